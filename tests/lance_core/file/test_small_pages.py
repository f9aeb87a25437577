"""Files of many small pages, which are decoded together: any rows of them."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core.file import DataFileReader, DataFileWriter, FileVersion, column
from lance_core.schema import schema_from_arrow
from lance_core.store import open_store

ROWS = 60_000
ZIPPED = {"lance-encoding:structural-encoding": "fullzip"}


@pytest.fixture(params=["2.1", "2.2"], scope="module")
def written(request, tmp_path_factory):
    """A file with several pages per column, and its rows."""
    rng = np.random.default_rng(3)
    missing = rng.random(ROWS) < 0.2
    schema = pa.schema(
        [
            pa.field("zipped", pa.float64(), metadata=ZIPPED),
            pa.field("nullable", pa.float64(), metadata=ZIPPED),
            pa.field("vector", pa.list_(pa.float32(), 4), metadata=ZIPPED),
            pa.field("packed", pa.int64()),
        ]
    )
    values = [
        pa.array(rng.random(ROWS)),
        pa.array(rng.random(ROWS), mask=missing),
        pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * 4, np.float32)), 4),
        pa.array(rng.integers(0, 999, ROWS), mask=missing),
    ]
    table = pa.table(values, schema)
    store = open_store(str(tmp_path_factory.mktemp("pages")))
    version = FileVersion.from_string(request.param)
    writer = DataFileWriter(store, "file", schema_from_arrow(schema), version=version, page_bytes=64 * 1024)
    for start in range(0, ROWS, 1000):
        writer.write(table.slice(start, 1000))
    writer.finish()
    return store, table


def read(store, rows):
    reader = DataFileReader.open(store, "file")
    assert all(len(pages.messages) > 5 for pages in reader.metadata.columns)
    return pa.Table.from_batches(reader.read(rows=rows, batch_rows=None)).combine_chunks()


def test_all_rows(written):
    store, table = written
    assert read(store, None) == table


@pytest.mark.parametrize("rows", [range(1, 2), range(7_000, 31_234), range(8_100, ROWS)], ids=str)
def test_ranges(written, rows):
    store, table = written
    assert read(store, rows) == table.slice(rows.start, len(rows))


@pytest.mark.parametrize("count", [2, 50, 5_000])
def test_scattered_rows(written, count):
    store, table = written
    rows = np.sort(np.random.default_rng(count).choice(ROWS, count, replace=False))
    assert read(store, rows) == table.take(pa.array(rows)).combine_chunks()


def test_grouping_changes_nothing(written, monkeypatch):
    store, table = written
    monkeypatch.setattr(column, "_GROUP_BYTES", 1)
    assert read(store, None) == table
