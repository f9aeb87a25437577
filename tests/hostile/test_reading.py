"""What a table may do to its reader."""

import re
import struct
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_core as lance
from lance_core.errors import CorruptFileError, InvalidInputError, LanceError, StoreError, UnsupportedError
from lance_core.file import column
from lance_core.maintenance.verify.files import verify
from lance_core.store import fsspec as fsspec_module
from lance_core.store import open_store
from lance_core.table.deletion import DeletionFileType, DeletionVector
from lance_core.table.fragment import BasePath
from lance_core.table.rowids import encode_row_ids
from lance_core.table.transaction import WriterVersion
from tests import processes
from tests.hostile.tables import ROWS, forge, forge_files, forge_fragments, table


def at_base(path, base_path):
    """The table, with its data files at a base path."""
    table(path)
    base = BasePath(id=1, path=base_path, is_dataset_root=False)
    forge(path, lambda manifest: replace(manifest, base_paths=(base,)))
    forge_files(path, base_id=1)
    return lance.dataset(path)


@pytest.mark.parametrize(
    "base",
    [
        *("http://127.0.0.1:9/x", "https://localhost:9/x", "hdfs://host/x", "zip://x", "dir://x", "generic://x"),
        *("ftp://127.0.0.1/x", "ssh://127.0.0.1/x", "github://a/b", "data://x", "HTTP://127.0.0.1:9/x"),
        *("simplecache::http://127.0.0.1:9/x", "reference://x", "libarchive://x", "jupyter://x", "nonsense://x"),
    ],
)
def test_a_manifest_may_not_name_any_scheme(tmp_path, base, monkeypatch):
    made = []
    monkeypatch.setattr(fsspec_module, "_filesystem", lambda *args: made.append(args))
    dataset = at_base(tmp_path / "t", base)
    with pytest.raises(LanceError):
        dataset.to_table()
    assert made == []


def test_the_user_may_allow_a_scheme(tmp_path):
    dataset = at_base(tmp_path / "t", "nonsense://x/y")
    with pytest.raises(UnsupportedError, match="base_path_schemes=nonsense"):
        dataset.to_table()
    allowing = lance.dataset(tmp_path / "t", storage_options={"base_path_schemes": "http,nonsense"})
    with pytest.raises(UnsupportedError, match="no store serves the scheme 'nonsense'"):
        allowing.to_table()


@pytest.mark.parametrize("base", ["/x", "file:///x", "memory://x/y"])
def test_known_schemes_are_followed(tmp_path, base):
    with pytest.raises(FileNotFoundError):
        at_base(tmp_path / "t", base).to_table()


@pytest.mark.parametrize("base", ["s3://key:secret@bucket/x", "s3://bucket/../..", "", "memory://"])
def test_a_base_path_that_is_none_is_the_manifests_fault(tmp_path, base):
    with pytest.raises(CorruptFileError, match="base path") as caught:
        at_base(tmp_path / "t", base).to_table()
    assert "secret" not in str(caught.value)


def test_what_a_file_system_raises_when_it_is_made_becomes_an_error_of_ours():
    for scheme in ("zip", "dir", "generic", "reference", "hdfs", "webhdfs", "smb", "github", "libarchive", "tar"):
        with pytest.raises(LanceError):
            open_store(f"{scheme}://a/b/c").get("k")
    import fsspec

    class Broken(fsspec.AbstractFileSystem):
        cachable = False

        def __init__(self, **_):
            raise KeyError("password=secret")

    fsspec.register_implementation("broken", Broken, clobber=True)
    with pytest.raises(StoreError, match=r"broken://.*KeyError") as caught:
        open_store("broken://a/b")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["manifest_stor", "manifest-store", "manifeststore", "manifest_stores", "base_path_scheme"]
)
@pytest.mark.parametrize("uri", ["{}/t", "memory://t", "s3://bucket/t", "gs://bucket/t"])
def test_a_misspelt_option_of_ours_is_rejected(tmp_path, key, uri):
    with pytest.raises(InvalidInputError, match=re.escape(repr(key))):
        open_store(uri.format(tmp_path), {key: "sqlite:///x"})


def deleted_by(path, data, kind, **counts):
    """A table of six rows, of which a file that a test made deletes some."""
    dataset = table(path)
    dataset.delete("a = 1")
    if kind == "bin":
        forge_deletions(path, file_type=1)
    (file,) = (path / "_deletions").iterdir()
    file.unlink()
    file.with_suffix(f".{kind}").write_bytes(data)
    if counts:
        forge_deletions(path, **counts)
    return lance.dataset(path)


def forge_deletions(path, **fields):
    from lance_core.table.deletion import DeletionFileType

    if "file_type" in fields:
        fields["file_type"] = DeletionFileType(fields["file_type"])
    forge_fragments(path, lambda f: replace(f, deletion_file=replace(f.deletion_file, **fields)))


def arrow_file(rows, compression="zstd"):
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.record_batch([rows], schema=schema))
    return sink.getvalue().to_pybytes()


def bitmap_of_all():
    """All 2^32 offsets: 65536 containers of one run each."""
    import struct

    head = struct.pack("<I", 12347 | (65535 << 16)) + b"\xff" * 8192
    head += b"".join(struct.pack("<HH", key, 65535) for key in range(65536))
    start = len(head) + 4 * 65536
    offsets = b"".join(struct.pack("<I", start + 6 * index) for index in range(65536))
    data = head + offsets + struct.pack("<HHH", 1, 0, 65535) * 65536
    assert len(BitMap.deserialize(data)) == 2**32
    return data


LIMITED = """
import resource, sys, lance_core as lance
from lance_core.maintenance.verify.files import verify
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
dataset = lance.dataset(sys.argv[1])
for verb in (dataset.to_table, lambda: dataset.delete("a = 2"), lambda: dataset.update({"b": "'z'"}), dataset.validate):
    try:
        verb()
    except lance.errors.CorruptFileError as error:
        print(error)
for problem in verify(dataset):
    print(problem.path, problem.message)
"""


@pytest.mark.variants(2)
@pytest.mark.parametrize("kind", ["arrow", "bin"])
@pytest.mark.parametrize("claim", [1, 2**29])
def test_bombs_in_deletion_files_are_not_unpacked(tmp_path, kind, claim):
    data = arrow_file(pa.array(np.zeros(2**26, np.uint32))) if kind == "arrow" else bitmap_of_all()
    path = tmp_path / "t"
    deleted_by(path, data, kind, num_deleted_rows=claim)
    done = processes.run([sys.executable, "-c", LIMITED, path])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("_deletions/") >= 4, done.stdout + done.stderr


def test_a_negative_size_in_a_deletion_file_makes_no_room_for_a_large_one():
    file = bytearray(DeletionVector(range(1000)).to_bytes(DeletionFileType.ARROW)[0])
    buffers = re.search(rb"\x02\x00{27}(.{8})", file, re.DOTALL)  # two: an empty one, and the compressed offsets at 0
    assert buffers is not None
    (size,) = struct.unpack("<q", buffers[1])
    body = file.index(struct.pack("<q", 4000), buffers.end())  # the size of the offsets after decompression
    place = size // 8 * 8 - 8
    file[buffers.start() + 4 : buffers.start() + 20] = struct.pack("<qq", place, 8)
    file[body : body + 8] = struct.pack("<q", 1 << 40)
    file[body + place : body + place + 8] = struct.pack("<q", -1 << 40)
    message = re.escape("declares 1000 rows in buffers of [-1099511627776, 1099511627776] bytes")
    with pytest.raises(CorruptFileError, match=message):
        DeletionVector.from_bytes(bytes(file), DeletionFileType.ARROW, num_rows=2000)


EARLY = """
import resource, sys, lance_core as lance
from lance_core.maintenance.verify.files import verify
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
dataset = lance.dataset(sys.argv[1])
print(verify(dataset)[0].message)
try:
    print(dataset.take([0]).num_rows)
except lance.errors.CorruptFileError as error:
    print(error)
"""


@pytest.mark.parametrize("rows", [6, 2**32, 2**40])
def test_all_rows_are_deleted_by_a_manifest_whose_counts_may_be_wrong(tmp_path, rows):
    path = tmp_path / "t"
    deleted_by(path, bitmap_of_all(), "bin", num_deleted_rows=2**31)
    forge_fragments(path, lambda fragment: replace(fragment, physical_rows=rows))
    forge(path, lambda manifest: replace(manifest, writer_version=WriterVersion(library="lance", version="0.8.1")))
    done = processes.run([sys.executable, "-c", EARLY, path])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(("deletes", "the manifest says", "has 6 rows")), done.stdout


@pytest.mark.parametrize(
    ("rows", "message"),
    [([1, 6], "deletes row 6 of 6"), ([1, 2, 3], "deletes 3 rows, the manifest says 1"), (list(range(7)), "at most 6")],
)
def test_deletions_fit_the_manifest(tmp_path, rows, message):
    dataset = deleted_by(tmp_path / "t", arrow_file(pa.array(rows, pa.uint32())), "arrow")
    with pytest.raises(CorruptFileError, match=message) as caught:
        dataset.to_table()
    assert "_deletions/0-1-" in str(caught.value)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrow_deletions_of_any_compression_are_read(tmp_path, compression):
    dataset = deleted_by(tmp_path / "t", arrow_file(pa.array([4], pa.uint32()), compression), "arrow")
    assert dataset.to_table()["a"].to_pylist() == [0, 1, 2, 3, 5]


def test_deletions_in_several_batches_are_read(tmp_path):
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    with pa.ipc.new_file(sink, schema) as writer:
        for row in (5, 2):
            writer.write_batch(pa.record_batch([pa.array([row], pa.uint32())], schema=schema))
    data = sink.getvalue().to_pybytes()
    dataset = deleted_by(tmp_path / "t", data, "arrow", num_deleted_rows=2)
    assert dataset.to_table()["a"].to_pylist() == [0, 1, 3, 4]


def test_deletions_of_no_row_are_valid(tmp_path):
    dataset = deleted_by(tmp_path / "t", arrow_file(pa.array([], pa.uint32())), "arrow", num_deleted_rows=0)
    dataset.validate()
    assert verify(dataset) == []
    assert dataset.to_table() == ROWS


def test_running_out_of_memory_says_nothing_about_the_file(tmp_path, monkeypatch):
    dataset = table(tmp_path / "t")

    def too_little(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 64 failed")
        yield

    for way in ("decode_pages", "read_points"):
        monkeypatch.setattr(column, way, too_little)
    for verb in (dataset.to_table, lambda: list(dataset.to_batches()), lambda: dataset.delete("a > 2")):
        with pytest.raises(MemoryError, match=r"\.lance") as caught:
            verb()
        assert not isinstance(caught.value, LanceError)


def test_a_file_with_other_rows_than_the_manifest_says_is_not_decoded(tmp_path, monkeypatch):
    path = tmp_path / "t"
    table(path, pa.table({"a": pa.array(np.zeros(1_000_000, np.int64))}))

    forge_fragments(path, lambda fragment: replace(fragment, physical_rows=3))

    def decoded(*_, **__):
        pytest.fail("pages were decoded")

    for way in ("decode_pages", "read_points"):
        monkeypatch.setattr(column, way, decoded)
    with pytest.raises(CorruptFileError, match="has 1000000 rows, the manifest says 3"):
        lance.dataset(path).to_table()


@pytest.mark.parametrize("path", ["../x.lance", "a/../../x.lance", "/etc/passwd", "", ".", "a//b", "x\0y", "a/"])
@pytest.mark.parametrize("based", [False, True])
def test_data_files_lie_below_their_folder(tmp_path, path, based):
    if based:
        at_base(tmp_path / "t", str(tmp_path / "elsewhere"))
    else:
        table(tmp_path / "t")
    forge_files(tmp_path / "t", path=path)
    dataset = lance.dataset(tmp_path / "t")
    verbs = {
        "read": dataset.to_table,
        "take": lambda: dataset.take([1]),
        "delete": lambda: dataset.delete("a = 1"),
        "clone": lambda: dataset.deep_clone(tmp_path / "clone", 1),
        "validate": dataset.validate,
        "files": lambda: dataset.tracked_files().read_all(),
    }
    for name, verb in verbs.items():
        with pytest.raises(CorruptFileError, match=r"_versions/\d+\.manifest: the manifest names the data file"):
            print(name, verb())


def test_a_transaction_file_lies_in_its_folder(tmp_path):
    table(tmp_path / "t")
    forge(tmp_path / "t", lambda m: replace(m, transaction_file="../../secret.txn", transaction_bytes=None))
    (path,) = (tmp_path / "t" / "_versions").glob("*.manifest")
    dataset = lance.dataset(tmp_path / "t")
    manifest = dataset.snapshot.manifest
    path.write_bytes(replace(manifest, transaction_bytes=None).to_bytes(None))
    with pytest.raises(CorruptFileError, match="transaction file"):
        lance.dataset(tmp_path / "t").read_transaction(1)


def nested(levels, make):
    kind = pa.int32()
    for _ in range(levels):
        kind = make(kind)
    return kind


NESTINGS = {"struct": lambda kind: pa.struct([("x", kind)]), "list": pa.list_}


@pytest.mark.parametrize("make", NESTINGS)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_columns_of_64_levels_are_written_and_read(tmp_path, make, version):
    value = 7
    for _ in range(64):
        value = {"x": value} if make == "struct" else [value]
    rows = pa.table({"a": pa.array([value, value], nested(64, NESTINGS[make]))})
    dataset = lance.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    assert lance.dataset(dataset.uri).to_table() == rows


@pytest.mark.parametrize("make", NESTINGS)
@pytest.mark.parametrize("levels", [65, 150, 500])
def test_columns_of_more_levels_are_rejected(tmp_path, make, levels):
    schema = pa.schema([("a", nested(levels, NESTINGS[make]))])
    with pytest.raises(UnsupportedError, match="column 'a' is nested more than 64 deep"):
        lance.write_dataset(schema.empty_table(), tmp_path / "t")
    assert not (tmp_path / "t").exists()
    dataset = table(tmp_path / "t")
    with pytest.raises(UnsupportedError, match="nested more than 64 deep"):
        dataset.add_columns(schema)


def test_a_frame_that_is_too_deep_for_arrows_c_interface_is_rejected(tmp_path):
    import polars as pl

    value = 7
    for _ in range(65):
        value = [value]
    frame = pl.DataFrame({"a": [value]})
    with pytest.raises(UnsupportedError, match="DataFrame"):
        lance.write_dataset(frame, tmp_path / "t")
    with pytest.raises(UnsupportedError, match="DataFrame"):
        table(tmp_path / "t").insert(frame)


@pytest.mark.parametrize("make", NESTINGS)
def test_levels_of_schemas_in_json(make):
    deepest = pa.schema([("a", nested(64, NESTINGS[make]))])
    made = lance.schema_to_json(deepest)
    assert lance.json_to_schema(made) == deepest
    for levels in (65, 150, 500, 2000):
        with pytest.raises(UnsupportedError, match="nested more than 64 deep"):
            lance.schema_to_json(pa.schema([("a", nested(levels, NESTINGS[make]))]))
        kind = {"type": "int32"}
        for _ in range(levels):
            kind = {"type": "list", "fields": [{"name": "x", "nullable": True, "type": kind}]}
        with pytest.raises(InvalidInputError, match="nested more than 64 deep"):
            lance.json_to_schema({"fields": [{"name": "a", "nullable": True, "type": kind}]})


@pytest.mark.parametrize("levels", [65, 150, 500, 5000])
def test_a_manifest_of_more_levels_is_rejected_when_it_is_opened(tmp_path, levels):
    from lance_core.schema import Field, Schema

    table(tmp_path / "t")
    manifest = lance.dataset(tmp_path / "t").snapshot.manifest
    data = manifest.to_bytes(manifest.transaction_bytes)
    from lance_core._proto import table_pb2
    from lance_core.table.manifest.manifest import message_range

    start, end = message_range(memoryview(data))
    message = table_pb2.Manifest.FromString(data[start:end])
    for level in range(levels + 1):
        kind = "struct" if level < levels else "int32"
        message.fields.add(name="x", id=100 + level, parent_id=99 + level if level else -1, logical_type=kind)
    new = message.SerializeToString()
    forged = data[: start - 4] + len(new).to_bytes(4, "little") + new + data[end:]
    (tmp_path / "t" / manifest.location.key).write_bytes(forged)
    with pytest.raises(CorruptFileError, match="nested more than 64 deep"):
        lance.dataset(tmp_path / "t")
    assert Schema(fields=(Field(name="a", logical_type="int32"),)).names == ["a"]


def test_validate_counts_row_ids(tmp_path):
    from lance_core._proto import rowids_pb2

    dataset = table(tmp_path / "t", enable_stable_row_ids=True)
    dataset.validate()
    sequence = rowids_pb2.RowIdSequence()
    sequence.segments.add().range.CopyFrom(rowids_pb2.U64Segment.Range(start=0, end=2**40))
    forge_fragments(tmp_path / "t", lambda fragment: replace(fragment, row_ids=sequence.SerializeToString()))
    with pytest.raises(CorruptFileError, match="row ids"):
        lance.dataset(tmp_path / "t").validate()


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (lambda _: range(6), "6 of its rows have ids of other rows; 0 is in fragment 0 as well"),
        (lambda f: range(f.id * 5, f.id * 5 + 6), "1 of its rows have ids of other rows; 5 is in fragment 0 as well"),
        (lambda f: [f.id * 6 + i for i in (5, 4, 3, 2, 5, 0)], "5 is in this fragment twice"),
        (
            lambda f: range(f.id * 6 + 1, f.id * 6 + 7),
            "row id 12 is in use, and the manifest says that 12 and higher ids are free",
        ),
        (lambda f: [f.id + 2 * i for i in range(6)], None),
        (lambda f: range(f.id * 6, f.id * 6 + 6)[::-1], None),
    ],
)
def test_row_ids_of_two_rows_are_reported(tmp_path, ids, expected):
    table(tmp_path / "t", pa.table({"a": range(12)}), max_rows_per_file=6, enable_stable_row_ids=True)
    forge_fragments(tmp_path / "t", lambda f: replace(f, row_ids=encode_row_ids(np.array(ids(f), np.uint64))))
    dataset = lance.dataset(tmp_path / "t")
    found = [problem.message for problem in verify(dataset)]
    if expected is None:
        assert found == []
        dataset.validate()
        return
    assert any(expected in message for message in found)
    with pytest.raises(CorruptFileError, match=expected):
        dataset.validate()


def test_rows_that_moved_keep_their_ids(tmp_path):
    dataset = table(tmp_path / "t", enable_stable_row_ids=True)
    dataset.update({"b": "'y'"}, where="a > 2")
    dataset.validate()
    assert verify(dataset) == []


def test_a_manifest_of_millions_of_empty_fragments(tmp_path):
    from lance_core.table.fragment_list import FragmentList

    path = tmp_path / "t"
    table(path)
    forge(path, lambda manifest: replace(manifest, fragments=FragmentList([b""] * 10_000_000)))
    with pytest.raises(CorruptFileError, match="several fragments with the id 0"):
        lance.dataset(path)
    ids = [b"\x08" + bytes([0x80 | (i & 127), 0x80 | (i >> 7 & 127), i >> 14]) for i in range(1 << 14, 1 << 19)]
    store = open_store(str(path))
    (found,) = store.list("_versions/1844")
    from lance_core.table.manifest.manifest import Manifest

    manifest = Manifest.from_bytes(table(tmp_path / "t2").snapshot.store.get(found.key))
    store.put(found.key, replace(manifest, fragments=FragmentList(ids), max_fragment_id=1 << 20).to_bytes(None))
    dataset = lance.dataset(path)
    assert len(dataset.snapshot.manifest.fragments.places_with_rows()) == 0
    assert dataset.count_rows() == dataset.count_rows(filter="a = 1") == 0
