"""A few rows are looked up value by value; they are those that the plain way gives."""

import random
from dataclasses import replace
from decimal import Decimal

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.encoding import point_reads
from lance_core.errors import CorruptFileError, LanceError
from lance_core.file import column, reader
from lance_core.file.lance_file import LanceFileReader, LanceFileWriter

ROWS = 9_000


def packed(name: str, **metadata: str) -> pa.Field:
    """A field with wishes for its encoding."""
    kinds = {"lz4": pa.int64(), "zstd": pa.int64(), "flat": pa.int32(), "split": pa.float64(), "rle": pa.int16()}
    keys = {f"lance-encoding:{key}": value for key, value in metadata.items()}
    return pa.field(name, kinds[name], metadata=keys)


def table() -> pa.Table:
    """Columns of many types and encodings; a fifth of the values of some is null."""
    made = np.random.default_rng(7)
    numbers = made.integers(0, 1_000_000, ROWS)
    holes = made.random(ROWS) < 0.2
    texts = [f"text {n} {'x' * (n % 23)}" for n in numbers.tolist()]
    columns = {
        "wide": pa.array(numbers),
        "narrow": pa.array((numbers % 100).astype(np.uint8), mask=holes),
        "small": pa.array((numbers % 7).astype(np.int16)),
        "zero": pa.array(np.zeros(ROWS, np.int64)),
        "nothing": pa.nulls(ROWS, pa.int32()),
        "flag": pa.array(numbers % 3 == 0),
        "flag or null": pa.array(numbers % 3 == 0, mask=holes),
        "number": pa.array(made.random(ROWS)),
        "number or null": pa.array(made.random(ROWS, dtype=np.float32), mask=holes),
        "text": pa.array(texts),
        "text or null": pa.array(texts, pa.large_string(), mask=holes),
        "kind": pa.array([f"kind {n % 9}" for n in numbers.tolist()]),
        "kind or null": pa.array([f"kind {n % 9}" for n in numbers.tolist()], mask=holes),
        "bytes": pa.array([text.encode() for text in texts]),
        "price": pa.array([Decimal(n) for n in numbers.tolist()], pa.decimal128(20, 2)),
        "code": pa.array([f"{n:08}".encode() for n in numbers.tolist()], pa.binary(8)),
        "sorted": pa.array(np.sort(numbers) // 1000),
        "at": pa.array(np.sort(numbers), pa.timestamp("us")),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(made.random(ROWS * 96, dtype=np.float32)), 96),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(numbers.repeat(2)), 2),
        "list": pa.array([[n, n + 1] for n in numbers.tolist()]),
        "struct": pa.array([{"a": n} for n in numbers.tolist()]),
        "choice": pa.array([f"kind {n % 9}" for n in numbers.tolist()]).dictionary_encode(),
    }
    found = pa.table(columns)
    for field, values in (
        (packed("lz4", compression="lz4"), numbers),
        (packed("zstd", compression="zstd"), numbers),
        (packed("flat", compression="none"), (numbers % 1000).astype(np.int32)),
        (packed("split", bss="on", compression="zstd"), made.random(ROWS)),
        (packed("rle", **{"rle-threshold": "0.9"}), np.sort(numbers % 50).astype(np.int16)),
    ):
        found = found.append_column(field, pa.array(values))
    return found


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The rows, and tables of them by either library."""
    rows, folder = table(), tmp_path_factory.mktemp("points")
    for library in (lance, lance_core):
        for version in ("2.1", "2.2"):
            uri = folder / f"{library.__name__} {version}"
            library.write_dataset(rows, uri, data_storage_version=version, max_rows_per_file=7_000)
    return rows, folder


@pytest.mark.parametrize("writer", ["lance", "lance_core"])
@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_they_are_the_rows_of_the_plain_way(tables, writer, version, monkeypatch):
    rows, folder = tables
    made = random.Random(4)
    dataset = lance_core.dataset(folder / f"{writer} {version}")
    wanted = [
        [0],
        [6_999, 7_000],
        [*range(1_000, 1_100)],
        [*range(5_000, 8_500)],
        [*range(6_990, 7_010)],
        *(made.sample(range(ROWS), n) for n in (3, 20, 120)),
    ]
    plain = []
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_POINT_RUN", 0)
        plain = [dataset.take(sorted(some)) for some in wanted]
    names = set()

    def point_task(key, field, *others):
        found = column.point_task(key, field, *others)
        names.update({field.name} if found is not None else ())
        return found

    monkeypatch.setattr(reader, "point_task", point_task)
    for some, expected in zip(wanted, plain, strict=True):
        got = dataset.take(sorted(some))
        got.validate(full=True)
        assert got == expected == rows.take(sorted(some)).cast(got.schema)
        assert dataset.take(sorted(some)) == got, "what was noted of the pages gives other rows"
    assert len(names) >= len(rows.schema.names) * 3 // 4, sorted(set(rows.schema.names) - names)
    assert not names & {"list", "struct", "choice"}


def test_metadata_that_grows_is_counted_and_forgotten(tables):
    _, folder = tables
    dataset = lance_core.dataset(folder / "lance_core 2.2")
    cache = dataset.session().files
    dataset.count_rows("wide = 1")
    before = cache.num_bytes
    dataset.take([5])
    grown = cache.num_bytes
    assert grown > before
    dataset.take([5])
    assert cache.num_bytes == grown
    cache.max_bytes = 1
    cache.grew("no store", "no file", 1, 100)
    assert cache.num_bytes == grown
    with cache._lock:
        cache._add(next(iter(cache._metadata)), 0)
    assert not cache._metadata
    assert cache.num_bytes == 0


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_damaged_files_are_found(tmp_path, version):
    """Either way raises an error of ours, or gives values; it never fails with another one."""
    names = ["wide", "narrow", "text", "kind or null", "split", "rle", "vector"]
    rows = table().select(names).slice(0, 3_000)
    with LanceFileWriter(str(tmp_path / "whole"), rows.schema, version=version) as writer:
        writer.write_batch(rows)
    whole = (tmp_path / "whole").read_bytes()
    made = random.Random(9)
    errors = []
    for number in range(60):
        data = bytearray(whole)
        for _ in range(40):
            data[made.randrange(len(data) - 4_000)] = made.randrange(256)
        path = tmp_path / f"broken {number}"
        path.write_bytes(data)
        try:
            LanceFileReader(str(path)).take_rows(sorted(made.sample(range(3_000), 20))).to_table()
        except LanceError as error:
            errors.append((path.name, error))
    assert errors
    assert all(name in str(error) for name, error in errors if isinstance(error, CorruptFileError))


def test_an_index_beyond_the_dictionary_is_found(tmp_path, monkeypatch):
    texts = [f"a longer text {i % 3}" for i in range(1000)]
    dataset = lance_core.write_dataset(pa.table({"s": texts}), tmp_path)
    decode = point_reads.decode_block

    def shortened(encoding, data, count):
        whole = decode(encoding, data, count)
        return replace(whole, offsets=whole.offsets[:2], num_values=1)

    monkeypatch.setattr(point_reads, "decode_block", shortened)
    assert dataset.take([0], ["s"])["s"].to_pylist() == texts[:1]
    with pytest.raises(CorruptFileError, match="index 1 into a dictionary of 1 items"):
        dataset.take([1], ["s"])
