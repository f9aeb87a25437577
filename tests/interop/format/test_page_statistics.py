"""pylance skips batches of 0.1 files by their statistics, whoever wrote those, and loses no row but of NaN."""

import math
import struct
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core._proto import file_pb2, table_pb2

ROWS = 40_000
COLUMN = pc.field


@pytest.fixture(scope="module")
def data():
    floats = [math.nan if i % 9_000 == 5 else i / 7 for i in range(ROWS)]
    return pa.table(
        {
            "i": pa.array(range(ROWS)),
            "nulls": pa.array([None if i % 9 == 0 else i for i in range(ROWS)], pa.int32()),
            "f": pa.array(floats),
            "same": pa.array([math.nan if i % 11 == 0 else 5.0 for i in range(ROWS)]),
            "s": pa.array([f"{i:06d}" + "y" * 80 for i in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module", params=[lance_core, lance], ids=["ours", "pylance's"])
def uri(request, data, tmp_path_factory):
    place = str(tmp_path_factory.mktemp("statistics"))
    if request.param is lance_core:  # which rejects nulls that are read as 0; pylance writes them
        data = data.set_column(1, "nulls", data["nulls"].fill_null(0))
    request.param.write_dataset(data, place, data_storage_version="legacy", max_rows_per_file=25_000)
    return place


ABOVE = COLUMN("f") > 5_000
FILTERS = [
    (COLUMN("i") > 39_000) | (COLUMN("i") == 5),
    (COLUMN("i") >= 8_000) & (COLUMN("s") < "0083"),
    COLUMN("nulls") == 0,
    COLUMN("nulls") < 3,
    ABOVE,
    COLUMN("same") != 5,
    ~(COLUMN("same") == 5),
    ~(COLUMN("f") < 5_600),
    COLUMN("s").isin(["000077" + "y" * 80]),
    COLUMN("s") >= "039999",
    COLUMN("i") < 0,
    COLUMN("i").is_null(),
]


@pytest.mark.parametrize("expression", FILTERS, ids=str)
def test_no_row_is_lost(uri, expression):
    everything = lance_core.dataset(uri).to_table()
    above = expression | COLUMN("f").is_nan() if expression.equals(ABOVE) else expression  # NaN is above all numbers
    expected = everything.filter(above)["i"].to_pylist()
    assert lance_core.dataset(uri).to_table(columns=["i"], filter=expression)["i"].to_pylist() == expected
    assert lance_core.dataset(uri).count_rows(filter=expression) == len(expected)
    if not any(f"({name} " in str(expression) for name in ("f", "same")):  # pylance loses NaN by its own statistics
        assert lance.dataset(uri).to_table(columns=["i"], filter=expression)["i"].to_pylist() == expected


KINDS = {
    "i": pa.int64(),
    "u": pa.uint8(),
    "f": pa.float64(),
    "s": pa.string(),
    "bin": pa.binary(),
    "b": pa.bool_(),
    "date": pa.date32(),
    "d": pa.decimal128(10, 2),
    "whole": pa.decimal128(38, 0),
    "t": pa.timestamp("us"),
}
NULLABLE = ("s", "bin")
"""Columns with nulls in a file of 0.1: this library rejects the others, which pylance writes as 0."""
VALUES = [
    (pa.nulls(3, kind) if name in NULLABLE else pa.array([0, 0, 0], pa.int32()).cast(kind), name)
    for name, kind in KINDS.items()
    if not pa.types.is_timestamp(kind) and not pa.types.is_decimal(kind)
]
VALUES += [
    (pa.array([0, 0, 0]).cast(pa.timestamp("us")), "t"),
    (pa.array(["0", "0", "0"]).cast(pa.decimal128(10, 2)), "d"),
    (pa.array(["0", "0", "0"]).cast(pa.decimal128(38, 0)), "whole"),
    (pa.array(["1.50", "0.00", "-2.25"]).cast(pa.decimal128(10, 2)), "decimals"),
    (pa.array([1, 0, -7]), "ints"),
    (pa.array(["b", None, "a"]), "strings"),
]


def _messages(uri):
    """The manifest block of the one data file, its metadata, and the pages of its statistics."""
    (path,) = Path(uri, "data").iterdir()
    data = path.read_bytes()
    (position,) = struct.unpack_from("<q", data, len(data) - 16)

    def message(at, kind):
        (length,) = struct.unpack_from("<I", data, at)
        return kind.FromString(data[at + 4 : at + 4 + length])

    metadata = message(position, file_pb2.Metadata)
    found = metadata.statistics
    cells = struct.iter_unpack("<qq", data[found.page_table_position :][: 16 * len(found.fields)])
    width = {"null_count": 8}
    kinds = {field.id: (field.name, field.logical_type) for field in found.schema}
    pages = [
        (kinds[i], data[start : start + count * width.get(kinds[i][0], 16)] if "decimal" in kinds[i][1] else count)
        for i, (start, count) in zip(found.fields, cells, strict=True)
    ]
    return message(metadata.manifest_position, table_pb2.Manifest), list(found.schema), pages


@pytest.mark.parametrize(("values", "name"), VALUES, ids=lambda value: value if isinstance(value, str) else "")
def test_files_describe_themselves_and_their_pages_as_pylances_do(tmp_path, values, name):
    described = []
    for library in (lance, lance_core):
        uri = tmp_path / library.__name__
        library.write_dataset(pa.table({name: values}), uri, data_storage_version="legacy")
        manifest, schema, pages = _messages(uri)
        assert manifest.writer_version.library == library.__name__
        assert manifest.writer_version.version == library.__version__
        manifest.ClearField("writer_version")
        described.append((manifest, schema, pages))
        read = [reader.dataset(str(uri)).to_table() for reader in (lance, lance_core)]
        assert read[0] == read[1]
    assert described[0] == described[1]
