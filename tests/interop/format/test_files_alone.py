"""Data files without a dataset: what both libraries say about them, and what they keep beside the columns."""

import threading

import lance.file as theirs
import numpy as np
import pyarrow as pa
import pytest

from lance_core import file as ours
from lance_core.errors import InvalidInputError, NotFoundError, SchemaError, UnsupportedError

TABLE = pa.table({"a": [1, 2, 3], "s": ["x", "y", None], "n": [{"b": 1}, {"b": 2}, None]})
BOTH = pytest.mark.parametrize("writer", [ours, theirs], ids=["ours", "theirs"])


def counted(metadata):
    return (
        metadata.schema,
        metadata.num_rows,
        (metadata.major_version, metadata.minor_version),
        (metadata.num_data_bytes, metadata.num_column_metadata_bytes, metadata.num_global_buffer_bytes),
        [(buffer.position, buffer.size) for buffer in metadata.global_buffers],
        [
            (len(column.column_buffers), [[(b.position, b.size) for b in page.buffers] for page in column.pages])
            for column in metadata.columns
        ],
    )


@BOTH
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_both_say_the_same_about_a_file(tmp_path, writer, version):
    path = str(tmp_path / "one.lance")
    with writer.LanceFileWriter(path, version=version) as file:
        file.write_batch(TABLE.select(["a", "s"]))
        assert file.add_global_buffer(b"first") == 1
        file.add_schema_metadata("key", "value")
        assert file.add_global_buffer(b"") == 2
    assert file.size_bytes == (tmp_path / "one.lance").stat().st_size
    here, there = ours.LanceFileReader(path), theirs.LanceFileReader(path)
    assert counted(here.metadata()) == counted(there.metadata())
    assert here.metadata().schema.metadata == there.metadata().schema.metadata == {b"key": b"value"}
    assert all(page.encoding for column in here.metadata().columns for page in column.pages)
    for reader in (here, there):
        assert [(c.num_pages, c.size_bytes) for c in reader.file_statistics().columns] == [
            (c.num_pages, c.size_bytes) for c in there.file_statistics().columns
        ]
        assert bytes(reader.read_global_buffer(1)) == b"first"
        assert reader.read_all().to_table().to_pylist() == TABLE.select(["a", "s"]).to_pylist()
        with pytest.raises(ValueError, match="global buffer"):
            reader.read_global_buffer(3)


def test_rows_of_several_threads_stay_whole(tmp_path):
    path = str(tmp_path / "one.lance")
    start = threading.Barrier(8)

    def write(number):
        start.wait()
        for batch in range(40):
            text = f"{number}.{batch}"
            file.write_batch(pa.table({name: [text] * 50 for name in "abcdef"}))

    with ours.LanceFileWriter(path, max_page_bytes=1) as file:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = theirs.LanceFileReader(path).read_all().to_table().to_pylist()
    assert len(rows) == 8 * 40 * 50
    assert all(len(set(row.values())) == 1 for row in rows)


@pytest.mark.parametrize("module", [ours, theirs], ids=["ours", "theirs"])
def test_a_page_of_2_0_is_as_small_as_asked_for(tmp_path, module):
    for version, pages in (("2.0", 3), ("2.1", 1)):
        path = str(tmp_path / f"{version}.lance")
        with module.LanceFileWriter(path, max_page_bytes=1, version=version) as file:
            file.write_batch(TABLE.select(["a"]))
        assert len(ours.LanceFileReader(path).metadata().columns[0].pages) == pages
        assert theirs.LanceFileReader(path).read_all().to_table() == TABLE.select(["a"])


def test_the_cache_of_all_columns_bounds_their_pages(tmp_path):
    rows = pa.table({str(i): np.arange(300_000) for i in range(60)})  # 2.3 MiB per column
    pages = []
    for cache in (30 << 20, None, 200 << 20):
        with ours.LanceFileWriter(tmp_path / "one.lance", data_cache_bytes=cache) as file:
            file.write_batch(rows)
        pages.append(len(theirs.LanceFileReader(str(tmp_path / "one.lance")).metadata().columns[0].pages))
    assert pages == [5, 2, 1]


def test_a_session_opens_lists_and_moves_files(tmp_path):
    (tmp_path / "local").write_bytes(b"abcdef")
    seen = []
    for module in (ours, theirs):
        session = module.LanceFileSession(tmp_path / module.__name__)
        with session.open_writer("d/one.lance", schema=TABLE.schema) as file:
            file.write_batch(TABLE)
        session.upload_file(tmp_path / "local", "copy")
        session.download_file("copy", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"abcdef"
        assert session.open_reader("d/one.lance", columns=["a"]).read_all().to_table() == TABLE.select(["a"])
        listed = session.list_with_delimiter()
        seen.append(
            [
                sorted(session.list()),
                session.list("d"),
                session.list("none"),
                (listed.common_prefixes, listed.objects),
                [session.contains(path) for path in ("copy", "d", "none")],
                session.read_range("copy", 1, 3),
            ]
        )
        for call in (
            lambda session=session: session.read_range("none", 0, 1),
            lambda session=session: session.delete_file("none"),
            lambda session=session: session.download_file("none", tmp_path / "no"),
            lambda session=session: session.upload_file(tmp_path / "missing", "x"),
            lambda session=session: session.read_range("copy", 4, 10),
        ):
            with pytest.raises(OSError):
                call()
        with pytest.raises(ValueError, match=r"one\.lance"):
            session.open_reader("one.lance")
        session.delete_file("copy")
        assert not session.contains("copy")
    assert seen[0] == seen[1]
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("end", [lambda writer: writer.close(), lambda writer: writer.__exit__(None, None, None)])
def test_a_file_that_cannot_be_finished_is_dropped(tmp_path, end):
    writer = ours.LanceFileWriter(tmp_path / "one.lance", version="2.0")
    writer.write_batch(TABLE.select(["n"]))
    with pytest.raises(SchemaError, match="null structs"):
        end(writer)
    assert not list(tmp_path.iterdir())
    assert writer.close() is None
    with pytest.raises(InvalidInputError, match="closed"):
        writer.write_batch(TABLE.select(["n"]))


def test_what_is_not_possible_is_rejected(tmp_path):
    session = ours.LanceFileSession(tmp_path)
    with pytest.raises(InvalidInputError, match="is not a path below"):
        session.open_reader("../other.lance")
    with pytest.raises(UnsupportedError, match="namespace_client"):
        ours.LanceFileSession(tmp_path, namespace_client=object())
    with pytest.raises(InvalidInputError, match="data_cache_bytes"):
        ours.LanceFileWriter(tmp_path / "x", data_cache_bytes=0)
    with pytest.raises(ValueError, match="Schema is unknown and file cannot be created"):
        ours.LanceFileWriter(tmp_path / "x").close()
    with ours.LanceFileWriter(tmp_path / "old", version="0.1") as file:
        file.write_batch(TABLE.select(["a"]))
        with pytest.raises(UnsupportedError, match="global buffers"):
            file.add_global_buffer(b"")
    with pytest.raises(InvalidInputError, match="closed"):
        file.add_schema_metadata("a", "b")
    with pytest.raises(UnsupportedError, match=r"0\.1"):
        ours.LanceFileReader(tmp_path / "old").metadata()
    with pytest.raises(NotFoundError):
        session.delete_file("none")
