"""Filtered scans of 0.1 datasets skip batches by their statistics, whoever wrote those, and lose no row."""

import math

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.file import DataFileReader

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
    request.param.write_dataset(data, place, data_storage_version="legacy", max_rows_per_file=25_000)
    return place


FILTERS = [
    (COLUMN("i") > 39_000) | (COLUMN("i") == 5),
    (COLUMN("i") >= 8_000) & (COLUMN("s") < "0083"),
    COLUMN("nulls") == 0,
    COLUMN("nulls") < 3,
    COLUMN("f") > 5_000,
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
    expected = everything.filter(expression)["i"].to_pylist()
    assert lance_core.dataset(uri).to_table(columns=["i"], filter=expression)["i"].to_pylist() == expected
    assert lance_core.dataset(uri).count_rows(filter=expression) == len(expected)


def test_batches_without_a_match_are_not_read(uri, monkeypatch):
    asked = []
    read = DataFileReader.read

    def spy(self, schema, columns, rows, **arguments):
        asked.append(len(rows))
        return read(self, schema, columns, rows, **arguments)

    monkeypatch.setattr(DataFileReader, "read", spy)
    found = lance_core.dataset(uri).to_table(columns=["i"], filter=(COLUMN("i") >= 12_345) & (COLUMN("i") < 12_350))
    assert found["i"].to_pylist() == list(range(12_345, 12_350))
    assert sum(asked) <= 10_000
