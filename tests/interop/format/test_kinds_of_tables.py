"""One table of each kind that pylance offers: its rows are read and counted as pylance does, or it is rejected by name.

`KINDS` is the list. What pylance itself lists, such as index types and file versions, has to be in it.
"""

import datetime as dt
import decimal
import inspect
import json
import re
import uuid

import lance
import lance.arrow
import numpy as np
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field
from lance.indices import IndexConfig

import lance_core
from lance_core.errors import UnsupportedError
from tests.interop.pairs import sorted_rows

N = 300
BLOB = {"lance-encoding:blob": "true"}
VECTORS = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(1).random(N * 16, np.float32)), 16)
STRINGS = pa.array([f"word{i % 7} and {i}" for i in range(N)])
ROWS = pa.table({"id": range(N), "s": STRINGS, "v": VECTORS, "l": [[i % 3, i % 4] for i in range(N)]})
PLAIN = ROWS.select(["id", "s"])
JSON = pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps({"a": i}) for i in range(N)]))
READ = None


def write(**options):
    return lambda uri: lance.write_dataset(PLAIN, uri, max_rows_per_file=100, **options)


def column(values, kind=None, version="2.2"):
    """A table with a column, which is null in the last row."""
    array = values if isinstance(values, pa.Array) else pa.array([*values, None], kind)
    table = pa.table({"id": range(len(array)), "c": array})
    return lambda uri: lance.write_dataset(table, uri, data_storage_version=version)


def then(change, **options):
    """A plain table, and a change of it."""

    def build(uri):
        write(**options)(uri)
        change(lance.dataset(uri))

    return build


def blobs(version):
    rows = pa.table(
        [pa.array([b"a", None, b"b" * 9], pa.large_binary())],
        schema=pa.schema([pa.field("b", pa.large_binary(), metadata=BLOB)]),
    )
    return lambda uri: lance.write_dataset(rows, uri, data_storage_version=version)


def typed_blobs(uri):
    """Blobs in the file, packed into a file, in a file of their own, and by URI."""
    (place := uri.parent / "object.bin").write_bytes(b"object")
    schema = pa.schema([blob_field("b", inline_size_threshold=10, dedicated_size_threshold=100)])
    values = blob_array([b"a", b"b" * 50, b"c" * 200, None, Blob.from_uri(f"file://{place}")])
    lance.write_dataset(pa.table([values], schema=schema), uri, allow_external_blob_outside_bases=True)


def blobs_inside(version, kind):
    inside = pa.field("b", pa.large_binary(), metadata=BLOB)
    kind = pa.struct([inside]) if kind == "struct" else pa.list_(inside)
    values = [{"b": b"abc"}, {"b": None}] if pa.types.is_struct(kind) else [[b"abc"], [b"x", b""]]
    rows = pa.table({"id": [1, 2], "s": pa.array(values, kind)})
    return lambda uri: lance.write_dataset(rows, uri, data_storage_version=version)


def scalar_index(name, kind):
    def build(uri):
        lance.write_dataset(ROWS, uri, max_rows_per_file=100)
        lance.dataset(uri).create_scalar_index(name, kind)

    return build


def vector_index(kind):
    def build(uri):
        lance.write_dataset(ROWS, uri, max_rows_per_file=100)
        more = {"num_sub_vectors": 4} if "PQ" in kind else {}
        lance.dataset(uri).create_index("v", kind, num_partitions=2, **more)

    return build


def json_index(uri):
    lance.write_dataset(pa.table({"id": range(N), "j": JSON}), uri)
    config = IndexConfig(index_type="json", parameters={"target_index_type": "btree", "path": "$.a"})
    lance.dataset(uri).create_scalar_index("j", config)


def rtree(uri):
    metadata = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"}
    parts = [pa.field(name, pa.float64(), nullable=False) for name in "xy"]
    points = pa.array([{"x": float(i), "y": 1.0} for i in range(N)], pa.struct(parts))
    lance.write_dataset(pa.table([points], schema=pa.schema([pa.field("g", points.type, metadata=metadata)])), uri)
    lance.dataset(uri).create_scalar_index("g", "RTREE")


def deferred(uri):
    scalar_index("id", "BTREE")(uri)
    lance.dataset(uri).optimize.compact_files(defer_index_remap=True)


def overlay(uri):
    write()(uri)
    dataset = lance.dataset(uri)
    fragment = dataset.get_fragments()[0]
    operations = lance.LanceOperation
    file = fragment.metadata.files[0]
    group = operations.DataOverlayGroup(fragment.fragment_id, [operations.DataOverlayFile(file, b"")])
    lance.LanceDataset.commit(uri, operations.DataOverlay([group]), read_version=dataset.version)


def mixed_files(uri):
    lance.write_dataset(PLAIN, uri, data_storage_version="2.0")
    fragments = lance.fragment.write_fragments(PLAIN, uri, data_storage_version="2.2")
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=1)


def clone(uri):
    write()(uri.parent / "source")
    lance.dataset(uri.parent / "source").shallow_clone(str(uri), 1)


def other_base(uri):
    base = lance.DatasetBasePath(str(uri.parent / "base"), name="b", is_dataset_root=False, id=1)
    (uri.parent / "base").mkdir()
    lance.write_dataset(PLAIN, uri, initial_bases=[base], target_bases=["b"])


def branch(uri):
    write()(uri)
    other = lance.dataset(uri).create_branch("b")
    lance.write_dataset(PLAIN, other, mode="append")


FILES = r"file version 2\.3 is not supported"
LISTS_OF_BLOBS = "blobs inside lists are not supported"
POINT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)
KINDS = {
    **{f"files {version}": (write(data_storage_version=version), READ) for version in ("0.1", "legacy", "2.0", "2.1", "2.2", "stable")},
    **{f"files {version}": (write(data_storage_version=version), FILES) for version in ("2.3", "next")},
    "files of two versions": (mixed_files, READ),
    "stable row ids": (then(lambda d: d.update({"s": "'x'"}, where="id % 3 = 0"), enable_stable_row_ids=True), READ),
    "deletions": (then(lambda d: d.delete("id % 3 = 0")), READ),
    "many deletions": (then(lambda d: d.delete("id % 10 > 0")), READ),
    "configuration": (then(lambda d: d.update_config({"a": "b"})), READ),
    "automatic cleanup": (write(auto_cleanup_options={"interval": 2, "older_than_seconds": 1}), READ),
    "V1 names": (write(enable_v2_manifest_paths=False), READ),
    "shallow clone": (clone, READ),
    "another base": (other_base, READ),
    "branch": (branch, READ),
    "tag": (then(lambda d: d.tags.create("t", 1)), READ),
    "added column": (then(lambda d: d.add_columns({"x": "id * 2"})), READ),
    "null column": (then(lambda d: d.add_columns(pa.field("x", pa.int64()))), READ),
    "cast column": (then(lambda d: d.alter_columns({"path": "id", "data_type": pa.int32()})), READ),
    "dropped column": (then(lambda d: d.drop_columns(["s"])), READ),
    "primary key": (column(pa.array([1, 2])), READ),
    "deferred compaction": (deferred, READ),
    "overlays": (overlay, r"Flags: 64 \(data overlay files\)"),
    **{f"index {kind}": (scalar_index("id", kind), READ) for kind in ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")},
    "index LABEL_LIST": (scalar_index("l", "LABEL_LIST"), READ),
    **{f"index {kind}": (scalar_index("s", kind), READ) for kind in ("NGRAM", "INVERTED", "MINHASHLSH")},
    "index RTREE": (rtree, READ),
    "index of JSON": (json_index, READ),
    **{f"index {kind}": (vector_index(kind), READ) for kind in ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ", "IVF_RQ")},
    **{f"blobs {version}": (blobs(version), READ) for version in ("2.0", "2.1", "2.2")},
    "blobs of each place": (typed_blobs, READ),
    "blobs in a struct 2.0": (blobs_inside("2.0", "struct"), READ),
    "blobs in a struct 2.1": (blobs_inside("2.1", "struct"), READ),
    "blobs in a struct 2.2": (blobs_inside("2.2", "struct"), READ),
    "blobs in a list 2.0": (blobs_inside("2.0", "list"), READ),
    "blobs in a list 2.1": (blobs_inside("2.1", "list"), LISTS_OF_BLOBS),
    "blobs in a list 2.2": (blobs_inside("2.2", "list"), READ),
    "json": (column(JSON), READ),
    "json in a struct": (column(pa.StructArray.from_arrays([JSON], names=["j"])), READ),
    "json in a list": (column(pa.ListArray.from_arrays(list(range(N + 1)), JSON)), READ),
    "uuid": (column([uuid.UUID(int=7).bytes], pa.uuid()), READ),
    "tensor": (column(pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [4, 4]), VECTORS)), READ),
    "bfloat16": (column(lance.arrow.bfloat16_array([1.0, 2.0])), READ),
    "image URIs": (column(lance.arrow.ImageURIArray.from_uris(["file:///a.png", None])), READ),
    "encoded images": (column(pa.ExtensionArray.from_storage(lance.arrow.EncodedImageType(), pa.array([b"x"]))), READ),
    "packed struct": (
        lambda uri: lance.write_dataset(
            pa.table([pa.array([{"a": 1, "b": 2.0}])], schema=pa.schema([pa.field("c", pa.struct([("a", pa.int64()), ("b", pa.float64())]), metadata={"packed": "true"})])), uri
        ),
        READ,
    ),
    "struct": (column([{"a": 1, "b": {"c": "x"}}]), READ),
    "list": (column([[1, None], []]), READ),
    "large list": (column([["x"]], pa.large_list(pa.string())), READ),
    "map": (column([[("a", 1)]], pa.map_(pa.string(), pa.int64())), READ),
    "dictionary": (column(pa.array(["a", None, "b"]).dictionary_encode()), READ),
    "null": (column([None], pa.null()), READ),
    "decimal": (column([decimal.Decimal("1.25")], pa.decimal128(10, 2)), READ),
    "large decimal": (column([decimal.Decimal("1.25")], pa.decimal256(50, 2)), READ),
    "time of day": (column([dt.time(1, 2, 3)], pa.time64("us")), READ),
    "duration": (column([dt.timedelta(1)], pa.duration("ms")), READ),
    "timestamp": (column([POINT], pa.timestamp("us", "UTC")), READ),
    "date": (column([POINT.date()], pa.date32()), READ),
    "half floats": (column(np.array([1.5], np.float16), pa.float16()), READ),
    "fixed size binary": (column([b"abcd"], pa.binary(4)), READ),
    "views": (column(["a"], pa.string_view()), READ),
    "compression": (
        lambda uri: lance.write_dataset(PLAIN.cast(pa.schema([("id", pa.int64()), pa.field("s", pa.string(), metadata={"lance-encoding:compression": "zstd"})])), uri),
        READ,
    ),
}  # fmt: skip


@pytest.mark.variants(8)
@pytest.mark.parametrize("kind", KINDS)
def test_is_read_as_pylance_does_or_rejected_by_name(tmp_path, kind):
    build, rejection = KINDS[kind]
    uri = tmp_path / "t.lance"
    build(uri)
    if rejection is None:
        ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
        if kind == "branch":
            ours, theirs = ours.checkout_version(("b", None)), theirs.checkout_version(("b", None))
        assert ours.count_rows() == theirs.count_rows()
        assert ours.schema == theirs.schema
        tables = [each.to_table(blob_handling="all_binary") for each in (ours, theirs)]
        assert sorted_rows(tables[0]) == sorted_rows(tables[1])
        assert {index["name"] for index in ours.list_indices()} == {index["name"] for index in theirs.list_indices()}
        return
    with pytest.raises(UnsupportedError, match=rejection):
        lance_core.dataset(uri).to_table()


def test_the_list_has_what_pylance_lists(tmp_path):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    listed = set()
    for create, name in ((dataset.create_scalar_index, "id"), (dataset.create_index, "v")):
        with pytest.raises(NotImplementedError) as caught:
            create(name, "NONE")
        listed |= {f"index {kind}" for kind in re.findall(r"[A-Z_]{4,}", str(caught.value)) if kind != "NONE"}
    annotation = inspect.signature(lance.write_dataset).parameters["data_storage_version"].annotation
    listed |= {f"files {version}" for version in re.findall(r"'([^']+)'", annotation)}
    assert len(listed) > 20
    assert listed <= KINDS.keys()


def test_vectors_of_structs_which_pylance_writes_and_cannot_read(tmp_path):
    vectors = pa.array([[{"a": 1}, {"a": 2}]], pa.list_(pa.struct([("a", pa.int64())]), 2))
    lance.write_dataset(pa.table({"id": [1], "c": vectors}), tmp_path / "t")
    with pytest.raises(pa.ArrowInvalid, match="cannot read columns of differing lengths"):
        lance.dataset(tmp_path / "t").to_table()
    assert lance_core.dataset(tmp_path / "t").to_table()["c"].combine_chunks() == vectors
