"""Writing and reading one file: batches, pages, projections, errors."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lance_core._proto.file2_pb2 import ColumnMetadata
from lance_core.errors import InvalidInputError, ObjectNotFoundError, SchemaError
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.file.metadata import FOOTER_SIZE, Footer, table_to_bytes
from lance_core.schema import schema_from_arrow
from lance_core.store import local, open_store

VERSIONS = ["0.1", "2.0", "2.1", "2.2"]


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


def table(rows=10_000):
    return pa.table(
        {
            "i": pa.array(range(rows)),
            "s": pa.array([f"text {i}" for i in range(rows)]),
            "t": pa.array([{"x": i, "y": [i, i + 1]} for i in range(rows)]),
        }
    )


def write(store, data, version="2.2", **arguments):
    writer = DataFileWriter(store, "f.lance", schema_from_arrow(data.schema), version=FileVersion(version), **arguments)
    for batch in data.to_batches(max_chunksize=999):
        writer.write(batch)
    return writer.finish()


@pytest.mark.parametrize("version", VERSIONS)
def test_round_trip_over_many_batches_and_pages(store, version):
    data = table()
    written = write(store, data, version, page_bytes=70_000)
    assert written.num_rows == data.num_rows
    assert written.size_bytes == store.head("f.lance").size
    reader = DataFileReader.open(store, "f.lance", size=written.size_bytes)
    assert reader.version is FileVersion(version)
    assert reader.num_rows == data.num_rows
    assert [f.name for f in reader.schema.fields] == data.column_names
    assert pa.Table.from_batches(list(reader.read())).equals(data)
    batches = list(reader.read(batch_rows=3000))
    assert [batch.num_rows for batch in batches] == [3000, 3000, 3000, 1000]
    assert pa.Table.from_batches(batches).equals(data)
    assert pa.Table.from_batches(list(reader.read(batch_rows=None))).equals(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_is_finished_once(store, version):
    data = table(3)
    writer = DataFileWriter(store, "f.lance", schema_from_arrow(data.schema), version=FileVersion(version))
    writer.write(data)
    writer.complete()
    with pytest.raises(InvalidInputError, match=r"f\.lance: the writer is finished"):
        writer.complete()
    assert writer.close().size_bytes == store.head("f.lance").size


@pytest.mark.parametrize("version", VERSIONS)
def test_projection_and_renaming_go_by_field_id(store, version):
    data = table(2000)
    write(store, data, version)
    reader = DataFileReader.open(store, "f.lance")
    assert pa.Table.from_batches(list(reader.read(reader.schema.project(["s"])))).equals(data.select(["s"]))
    part = reader.schema.project(["t.x", "i"])
    expected = [{"t": {"x": i}, "i": i} for i in range(2000)]
    assert pa.Table.from_batches(list(reader.read(part))).to_pylist() == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_rows(store, version):
    data = table()
    write(store, data, version, page_bytes=70_000)
    reader = DataFileReader.open(store, "f.lance")
    picked = np.array([0, 1, 998, 999, 5000, 9999])
    assert pa.Table.from_batches(list(reader.read(rows=picked))).equals(data.take(picked))
    assert pa.Table.from_batches(list(reader.read(rows=range(990, 4001)))).equals(data.slice(990, 3011))
    assert list(reader.read(rows=range(5, 5))) == []
    assert list(reader.read(rows=np.array([], np.int64))) == []
    for wrong in (range(10_001), range(0, 10, 2), np.array([5, 5]), np.array([9, 3]), np.array([10_000])):
        with pytest.raises(InvalidInputError, match=r"f\.lance"):
            list(reader.read(rows=wrong))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_without_rows(store, version):
    data = table(0)
    written = write(store, data, version)
    assert written.num_rows == 0
    reader = DataFileReader.open(store, "f.lance")
    assert reader.num_rows == 0
    assert list(reader.read()) == []


def test_no_columns_still_have_rows(store):
    write(store, table(20_000))
    reader = DataFileReader.open(store, "f.lance")
    batches = list(reader.read(reader.schema.project([])))
    assert [batch.num_rows for batch in batches] == [8192, 8192, 3616]
    assert batches[0].num_columns == 0


def test_pages_are_megabytes_whatever_the_batches(store):
    rng = np.random.default_rng(0)
    data = pa.table({"r": pa.array(rng.integers(0, 2**62, 3_000_000))})
    write(store, data)
    pages = DataFileReader.open(store, "f.lance").metadata.columns[0].messages
    assert len(pages) == 3
    assert pages[0].buffer_sizes[0] >= 7_900_000
    assert [page.priority for page in pages] == [0, pages[0].length, pages[0].length + pages[1].length]


def test_buffers_are_aligned_and_padded(store, tmp_path):
    write(store, table(1000))
    data = (tmp_path / "f.lance").read_bytes()
    reader = DataFileReader.open(store, "f.lance")
    ends = []
    for pages in reader.metadata.columns:
        for page in pages.messages:
            for start, size in zip(page.buffer_offsets, page.buffer_sizes, strict=True):
                assert start % 64 == 0
                ends.append(start + size)
    for end in ends:
        assert set(data[end : end + -end % 64]) <= {ord("H")}


def test_columns_may_come_in_any_order_but_must_fit(store):
    data = table(10)
    writer = DataFileWriter(store, "f.lance", schema_from_arrow(data.schema))
    writer.write(data.select(["t", "s", "i"]))
    with pytest.raises(SchemaError, match="columns"):
        writer.write(data.select(["t", "s"]))
    with pytest.raises(SchemaError, match="'i'"):
        writer.write(data.set_column(0, "i", pa.array(["x"] * 10)))
    writer.finish()
    assert pa.Table.from_batches(list(DataFileReader.open(store, "f.lance").read())).equals(data)


def test_nulls_where_there_must_be_none(store):
    schema = pa.schema([pa.field("i", pa.int64(), nullable=False)])
    writer = DataFileWriter(store, "f.lance", schema_from_arrow(schema))
    with pytest.raises(SchemaError, match="'i'"):
        writer.write(pa.table({"i": pa.array([1, None])}))
    writer.abort()


def test_nothing_is_visible_before_the_end_or_after_an_abort(store):
    data = table(10)
    writer = DataFileWriter(store, "f.lance", schema_from_arrow(data.schema))
    writer.write(data)
    with pytest.raises(ObjectNotFoundError):
        store.head("f.lance")
    writer.abort()
    with pytest.raises(ObjectNotFoundError):
        store.head("f.lance")
    with pytest.raises(InvalidInputError, match="finished"):
        writer.write(data)


def test_a_missing_file(store):
    with pytest.raises(ObjectNotFoundError):
        DataFileReader.open(store, "none.lance")


def test_a_column_that_the_file_does_not_have(store):
    write(store, table(10))
    reader = DataFileReader.open(store, "f.lance")
    with pytest.raises(InvalidInputError, match="'s'"):
        list(reader.read(reader.schema.project(["s"]), {0: 0}))


def test_wide_metadata_is_read_in_a_second_request(store):
    data = pa.table({f"column {i}": pa.array([i, i + 1]) for i in range(1500)})
    write(store, data)
    assert pa.Table.from_batches(list(DataFileReader.open(store, "f.lance").read())).equals(data)


@pytest.mark.parametrize(("rows", "requests"), [(100, 1), (50_000, 2)])
def test_opening_takes_one_request_and_a_scan_few(store, rows, requests):
    write(store, table(rows))
    asked = []

    class Counting:
        root = store.root

        def get_tail(self, key, length):
            asked.append("tail")
            return store.get_tail(key, length)

        def get_ranges(self, key, ranges):
            asked.append(len(ranges))
            return store.get_ranges(key, ranges)

    reader = DataFileReader.open(Counting(), "f.lance")
    assert asked == ["tail"]
    list(reader.read(batch_rows=None))
    assert len(asked) == requests


@pytest.mark.parametrize("version", list(FileVersion))
def test_small_pages_after_large_ones_keep_their_order(store, version):
    data = pa.table({"n": pa.array(range(50_000)), "s": pa.array([f"value {i}" for i in range(50_000)])})
    writer = DataFileWriter(store, "f.lance", schema_from_arrow(data.schema), version=version, page_bytes=300_000)
    writer.write(data)
    writer.finish()
    assert pa.Table.from_batches(list(DataFileReader.open(store, "f.lance").read())).equals(data)


def test_views_and_extension_arrays_are_written_as_their_storage(store):
    data = pa.table({"s": pa.array(["a", "b" * 40], pa.string_view())})
    write(store, data)
    assert pa.Table.from_batches(list(DataFileReader.open(store, "f.lance").read()))["s"].to_pylist() == ["a", "b" * 40]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_descriptions_may_lie_elsewhere_in_the_file(store, tmp_path, version):
    data = table(500)
    write(store, data, version)
    path = tmp_path / "f.lance"
    raw = path.read_bytes()
    footer = Footer.from_bytes(raw[-FOOTER_SIZE:])
    body, messages = raw[: footer.column_metadata], []
    entries = np.frombuffer(raw[footer.column_table :], "<u8", footer.num_columns * 2).reshape(-1, 2).tolist()
    for position, length in entries:
        column = ColumnMetadata.FromString(raw[position : position + length])
        for holder in (column, *column.pages):
            description = holder.encoding.direct.encoding
            holder.encoding.indirect.buffer_location = len(body)
            holder.encoding.indirect.buffer_length = len(description)
            body += description
        messages.append(column.SerializeToString())
    start = len(body)
    ends = (start + np.cumsum([len(message) for message in messages])).tolist()
    ranges = [(end - len(message), end) for end, message in zip(ends, messages, strict=True)]
    body += b"".join(messages)
    buffers = raw[footer.buffer_table : footer.buffer_table + 16 * footer.num_buffers]
    moved = replace(
        footer,
        column_metadata=start,
        column_table=len(body),
        buffer_table=len(body) + 16 * len(ranges),
    )
    path.write_bytes(body + table_to_bytes(ranges) + buffers + moved.to_bytes())
    assert pa.Table.from_batches(list(DataFileReader.open(store, "f.lance").read())).equals(data)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.2])
@pytest.mark.parametrize("mapped", [False, True])
def test_scattered_rows_are_those_of_the_table(store, monkeypatch, version, share, mapped):
    data = table(6000).append_column("n", pa.array([None if i % 3 else i for i in range(6000)]))
    write(store, data, version, page_bytes=200_000)
    if mapped:
        monkeypatch.setattr(local, "MAPPED_READ_BYTES", 1)
    rows = np.flatnonzero(np.random.default_rng(3).random(6000) < share)
    found = list(DataFileReader.open(store, "f.lance").read(rows=rows))
    assert pa.Table.from_batches(found).equals(data.take(pa.array(rows)))
