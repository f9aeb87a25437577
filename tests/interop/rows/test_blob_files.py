"""Blobs of 2.2 in files beside the data files, and by URI: both libraries write, read and change them."""

import random
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import Blob, blob_array, blob_field

import lance_core
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError
from lance_core.maintenance.verify.files import verify
from lance_core.store import open_store

LIBRARIES = pytest.mark.parametrize("writer", [lance, lance_core], ids=["pylance writes", "we write"])
LIMITS = {"inline_size_threshold": 100, "dedicated_size_threshold": 1000, "pack_file_size_threshold": 2000}
SCHEMA = pa.schema([pa.field("id", pa.int64()), blob_field("b", **LIMITS)])


def payload(number, size):
    return random.Random(number).randbytes(size)


SIZES = [10, 0, None, 100, 101, 700, 800, 900, 1000, 1001, 5000, 90]
PAYLOADS = [None if size is None else payload(number, size) for number, size in enumerate(SIZES)]


def rows(start=0, values=None):
    values = PAYLOADS if values is None else values
    return pa.table([pa.array(range(start, start + len(values)), pa.int64()), blob_array(values)], schema=SCHEMA)


@pytest.fixture
def outside(tmp_path):
    """Two blobs by URI, all of a file and a part of it, and their payloads."""
    path = tmp_path / "photos" / "a b%.bin"
    path.parent.mkdir()
    path.write_bytes(payload(99, 500))
    uri = path.as_uri()
    return [uri, Blob.from_uri(uri, 10, 20)], [payload(99, 500), payload(99, 500)[10:30]]


def seen(uri, library, where=None, **options):
    """Id and payload of each row, by id."""
    dataset = library.dataset(str(uri), **options)
    table = dataset.to_table(columns=["id", "b"], filter=where, blob_handling="all_binary")
    return sorted(zip(table["id"].to_pylist(), table["b"].to_pylist(), strict=True))


def both_see(uri, expected, **options):
    for library in (lance, lance_core):
        assert seen(uri, library, **options) == sorted(expected), library.__name__


def sidecars(uri):
    return sorted(path.relative_to(uri).as_posix() for path in Path(uri).rglob("*.blob"))


def kinds(uri):
    table = lance.dataset(str(uri)).to_table(columns=["id", "b"]).sort_by("id")
    return [None if blob is None else blob["kind"] for blob in table["b"].to_pylist()]


EXPECTED = list(enumerate(PAYLOADS))


@LIBRARIES
def test_thresholds_decide_where_payloads_lie(tmp_path, writer):
    uri = tmp_path / "t"
    writer.write_dataset(rows(), str(uri), data_storage_version="2.2")
    both_see(uri, EXPECTED)
    assert kinds(uri) == [0, 0, None, 0, 1, 1, 1, 1, 1, 2, 2, 0]
    # 900 more bytes than 101 + 700 + 800 would exceed the 2,000 of a packed file; two dedicated ones follow.
    assert sorted(path.stat().st_size for path in uri.rglob("*.blob")) == [1001, 1601, 1900, 5000]
    present = [number for number, size in enumerate(SIZES) if size is not None]
    for library in (lance, lance_core):
        dataset = library.dataset(str(uri))
        assert [blob.read() for blob in dataset.take_blobs("b", indices=present)] == [PAYLOADS[i] for i in present]
        found = dataset.read_blobs("b", indices=[5, 10])
        assert [data for _, data in found] == [PAYLOADS[5], PAYLOADS[10]]


@LIBRARIES
def test_without_thresholds_they_are_those_of_pylance(tmp_path, writer):
    uri = tmp_path / "t"
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("b")])
    sizes = [65536, 65537, 4 * 1024 * 1024, 4 * 1024 * 1024 + 1]
    values = [payload(size, size) for size in sizes]
    table = pa.table([pa.array(range(4), pa.int64()), blob_array(values)], schema=schema)
    writer.write_dataset(table, str(uri), data_storage_version="2.2")
    assert kinds(uri) == [0, 1, 1, 2]
    both_see(uri, list(enumerate(values)))


def test_columns_that_are_marked_are_stored_alike(tmp_path):
    schema = pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    values = [payload(1, 70_000), payload(2, 10)]
    dataset = lance_core.write_dataset(pa.table([pa.array(values, pa.large_binary())], schema=schema), tmp_path / "t")
    assert len(sidecars(tmp_path / "t")) == 1
    blobs = lance.dataset(str(tmp_path / "t")).take_blobs("b", indices=[0, 1])
    assert [blob.read() for blob in blobs] == values == [blob.read() for blob in dataset.take_blobs("b", [0, 1])]


@LIBRARIES
def test_blobs_by_uri(tmp_path, outside, writer):
    uri, (values, payloads) = tmp_path / "t", outside
    more = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True}
    writer.write_dataset(rows(0, [*values, b"inline"]), str(uri), **more)
    assert kinds(uri) == [3, 3, 0]
    both_see(uri, list(enumerate([*payloads, b"inline"])))
    assert sidecars(uri) == []


def test_blobs_below_base_paths(tmp_path, outside):
    """Pylance keeps the URI relative to its base path, we as it is given."""
    values, payloads = outside
    folder = str(tmp_path / "photos")
    for library, bases in ((lance, lance.DatasetBasePath), (lance_core, lance_core.DatasetBasePath)):
        uri = tmp_path / library.__name__
        base = bases(f"file://{folder}" if library is lance else folder, name="photos", is_dataset_root=False)
        table = rows(0, [values[0] if library is lance else f"{folder}/a b%.bin", b"x"])
        library.write_dataset(table, str(uri), data_storage_version="2.2", initial_bases=[base])
        assert kinds(uri) == [3, 0]
        both_see(uri, [(0, payloads[0]), (1, b"x")])
        lance_core.dataset(uri).update({"id": "id + 10"})
        both_see(uri, [(10, payloads[0]), (11, b"x")])


CHANGES = {
    "append": lambda d, _: d.insert(rows(100, [payload(5, 3000), b"s"])),
    "delete": lambda d, _: d.delete("id in (4, 9)"),
    "update of the id": lambda d, _: d.update({"id": "id + 1000"}, "id >= 4"),
    "merge": lambda d, _: (
        d.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(rows(10, [payload(7, 800), payload(8, 2000), None, payload(9, 4000)]))
    ),
    "merge of another column": lambda d, _: (
        d.merge_insert("id")
        .when_matched_update_all()
        .execute(pa.table({"id": pa.array([4, 9]), "n": pa.array([40, 90])}))
    ),
    "compaction": lambda d, _: d.optimize.compact_files(target_rows_per_fragment=1000),
    "deletion materialization": lambda d, _: (
        d.delete("id in (0, 4)"),
        d.optimize.compact_files(materialize_deletions_threshold=0),
    ),
    "add a column": lambda d, _: d.add_columns({"m": "id * 2"}),
    "drop and add": lambda d, _: (d.drop_columns(["n"]), d.add_columns({"n": "id"})),
    "restore": lambda d, _: (d.delete("id > 2"), d.checkout_version(d.version - 1).restore()),
    "branch": lambda d, _: d.create_branch("b").delete("id = 9"),
    "cleanup": lambda d, _: (
        d.optimize.compact_files(target_rows_per_fragment=1000),
        d.cleanup_old_versions(older_than=__import__("datetime").timedelta(0), delete_unverified=True),
    ),
}


def made(folder, writer, outside, **options):
    values, _ = outside
    uri = str(folder)
    schema = SCHEMA.append(pa.field("n", pa.int64()))
    table = rows(0, PAYLOADS[:6] + values + PAYLOADS[8:])
    table = table.append_column("n", pa.array(range(len(table)), pa.int64())).cast(schema)
    more = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True, "max_rows_per_file": 5, **options}
    writer.write_dataset(table, uri, **more)
    return uri


@pytest.mark.variants(13)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@LIBRARIES
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_verbs_keep_payloads(tmp_path, outside, writer, change, stable):
    """Each verb of ours, on tables of both: the payloads of the rows are those of before, by both libraries."""
    uri = made(tmp_path / "t", writer, outside, enable_stable_row_ids=stable)
    before = dict(seen(uri, lance))
    change(lance_core.dataset(uri), uri)
    after = dict(seen(uri, lance))
    assert after == dict(seen(uri, lance_core))
    for row, value in after.items():
        origin = row - 1000 if row >= 1000 else row
        if origin in before and origin not in (10, 11):
            assert value == before[origin], row
    assert verify(lance_core.dataset(uri)) == []


@pytest.mark.parametrize("name", ["delete", "update of the id", "compaction", "cleanup", "append", "branch"])
def test_verbs_of_pylance_on_tables_of_ours(tmp_path, outside, name):
    """What pylance cannot do with its own table, it is not asked to do with ours."""
    ours, theirs = made(tmp_path / "o", lance_core, outside), made(tmp_path / "p", lance, outside)
    outcomes = []
    for uri in (theirs, ours):
        try:
            CHANGES[name](lance.dataset(uri), uri)
        except Exception as error:  # noqa: BLE001 - the same one is expected
            outcomes.append(str(error).split(",")[0].split(":")[0])
        else:
            outcomes.append(seen(uri, lance))
            assert seen(uri, lance_core) == outcomes[-1]
    assert outcomes[0] == outcomes[1]


def test_external_blobs_stay_external(tmp_path, outside):
    uri = made(tmp_path / "t", lance, outside)
    dataset = lance_core.dataset(uri)
    dataset.update({"n": "0"}, "id in (6, 7)")
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    assert [kind for kind in kinds(uri) if kind == 3] == [3, 3]
    blobs = {row["id"]: row["b"] for row in lance.dataset(uri).to_table(columns=["id", "b"]).to_pylist()}
    assert (blobs[7]["position"], blobs[7]["size"]) == (10, 20)


def test_clones_promotion_and_copies(tmp_path, outside):
    uri = made(tmp_path / "t", lance, outside)
    expected = seen(uri, lance)
    dataset = lance_core.dataset(uri)
    shallow, deep = str(tmp_path / "shallow"), str(tmp_path / "deep")
    dataset.shallow_clone(shallow, dataset.version)
    dataset.deep_clone(deep, dataset.version)
    both_see(shallow, expected)
    lance_core.write_dataset(dataset, str(tmp_path / "copy"), allow_external_blob_outside_bases=True)
    both_see(tmp_path / "copy", expected)
    branch = dataset.create_branch("b")
    branch.update({"n": "1"}, "id in (4, 9)")
    branch.optimize.compact_files(target_rows_per_fragment=1000)
    lance_core.dataset(uri).branches.promote("b")
    both_see(uri, expected)
    assert lance_core.dataset(uri).to_table(filter="n = 1 and id in (4, 9)").num_rows == 2
    lance_core.dataset(shallow).optimize.compact_files(target_rows_per_fragment=1000)
    both_see(shallow, expected)
    for path in Path(uri).rglob("*"):
        if path.is_file():
            path.unlink()
    both_see(deep, expected)
    both_see(shallow, expected)


def test_delta_gives_payloads(tmp_path, outside):
    uri = made(tmp_path / "t", lance, outside, enable_stable_row_ids=True)
    dataset = lance_core.dataset(uri)
    dataset.delete("id = 9")
    dataset.merge_insert("id").when_matched_update_all().execute(rows(4, [payload(1, 1500)]))
    changes = dataset.delta(compared_against=1).get_changes(blob_handling="all_binary").read_all()
    found = {(row["id"], row["_change_type"]): row["b"] for row in changes.to_pylist()}
    assert found[9, "delete"] == PAYLOADS[9]
    assert found[4, "update_postimage"] == payload(1, 1500)


def test_failed_writes_leave_no_files_of_blobs(tmp_path):
    uri = tmp_path / "t"
    dataset = lance_core.write_dataset(rows(), uri)
    before = sidecars(uri)

    def batches():
        yield rows(100).to_batches()[0]
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        dataset.insert(batches(), schema=SCHEMA)
    both = [rows(200).to_batches()[0], rows(300, ["file:///etc/hostname"]).to_batches()[0]]
    with pytest.raises(InvalidInputError, match="outside of the dataset's base paths"):
        dataset.insert(iter(both), schema=SCHEMA, max_rows_per_file=3)
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(InvalidInputError, match="outside of the dataset's base paths"):
        merge.execute(rows(4, [payload(1, 3000), "file:///etc/hostname"]))
    assert sidecars(uri) == before
    behind = lance_core.dataset(uri)
    lance_core.write_dataset(pa.table({"x": [1]}), uri, mode="overwrite")
    with pytest.raises(lance_core.errors.LanceError):
        behind.insert(rows(5))
    assert sidecars(uri) == before


def test_files_of_a_write_that_stay_keep_their_blobs(tmp_path):
    """Uncommitted files of other attempts go, those of the attempt that counts stay with their blobs."""
    uri, prefix = tmp_path / "t", "0" * 32
    lance_core.write_dataset(rows(), uri)
    schema = lance_core.dataset(uri).lance_schema_bytes
    kept = []
    for _ in range(2):
        writer = lance_core.FragmentWriter(uri, SCHEMA, file_prefix=prefix, dataset_schema=schema)
        writer.write(rows(50))
        kept = writer.finish()
    names = [file.path for fragment in kept for file in fragment.files]
    before = set(sidecars(uri))
    lance_core.delete_uncommitted_files(uri, file_prefix=prefix, keep=names)
    stem = names[0].removesuffix(".lance")
    mine = {name for name in before if name.startswith(f"data/{prefix}")}
    assert {name for name in sidecars(uri) if name.startswith(f"data/{prefix}")} == {
        name for name in mine if name.startswith(f"data/{stem}/")
    }
    lance_core.LanceDataset.commit(uri, lance_core.LanceOperation.Append(kept), read_version=1)
    both_see(uri, [*EXPECTED, *((number + 50, value) for number, value in EXPECTED)])


def test_what_cannot_be(tmp_path, outside):
    uri = made(tmp_path / "t", lance, outside)
    name = next(name for name in sidecars(uri))
    (Path(uri) / name).unlink()
    with pytest.raises(CorruptFileError, match=r"its blob file data/.*\.blob is missing"):
        seen(uri, lance_core)
    (tmp_path / "photos" / "a b%.bin").unlink()
    with pytest.raises(lance_core.errors.ObjectNotFoundError, match=r"a b%\.bin"):
        seen(uri, lance_core, where="id = 6")
    kind = SCHEMA.field("b").type.storage_type
    blobs = pa.array([{"data": b"x", "uri": "file:///x"}], kind)
    table = pa.table({"id": pa.array([1]), "b": pa.ExtensionArray.from_storage(SCHEMA.field("b").type, blobs)})
    with pytest.raises(InvalidInputError, match="either `data` or a `uri`, but it has both"):
        lance_core.write_dataset(table, tmp_path / "n", allow_external_blob_outside_bases=True)
    assert not (tmp_path / "n").exists() or not any(path.is_file() for path in (tmp_path / "n").rglob("*"))
    evil = pa.array([{"uri": "evil://host/x"}], kind)
    table = pa.table({"id": pa.array([1]), "b": pa.ExtensionArray.from_storage(SCHEMA.field("b").type, evil)})
    lance_core.write_dataset(table, tmp_path / "e", allow_external_blob_outside_bases=True)
    with pytest.raises(UnsupportedError, match="base_path_schemes=evil"):
        seen(tmp_path / "e", lance_core)


def test_on_s3_beside_objects_that_are_referred_to(s3):
    bucket, options = s3.new_bucket(), s3.storage_options
    open_store(f"s3://{bucket}", options).put("photos/a b.bin", payload(99, 500))
    values = [*PAYLOADS, f"s3://{bucket}/photos/a b.bin", Blob.from_uri(f"s3://{bucket}/photos/a b.bin", 10, 20)]
    expected = list(enumerate([*PAYLOADS, payload(99, 500), payload(99, 500)[10:30]]))
    for writer in (lance, lance_core):
        uri = f"s3://{bucket}/{writer.__name__}"
        more = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True}
        writer.write_dataset(rows(0, values), uri, max_rows_per_file=5, storage_options=options, **more)
        both_see(uri, expected, storage_options=options)
        dataset = lance_core.dataset(uri, storage_options=options)
        dataset.update({"id": "id + 100"}, "id in (4, 12)")
        dataset.optimize.compact_files(target_rows_per_fragment=1000)
        changed = [(number + 100 if number in (4, 12) else number, value) for number, value in expected]
        both_see(uri, changed, storage_options=options)


def test_payloads_stream_in_bounded_memory(tmp_path):
    """A scan holds the payloads of some rows, however many a page describes."""
    uri = tmp_path / "t"
    values = [payload(number, 1 << 20) for number in range(96)]
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("b")])
    lance_core.write_dataset(pa.table([pa.array(range(96), pa.int64()), blob_array(values)], schema=schema), uri)
    sizes = [batch.nbytes for batch in lance_core.dataset(uri).to_batches(blob_handling="all_binary")]
    assert len(sizes) >= 3
    assert max(sizes) <= 40 << 20


def test_fields_and_values_are_those_of_pylance(tmp_path):
    values = [
        b"a",
        bytearray(b"b"),
        memoryview(b"c"),
        "file:///x",
        None,
        Blob(data=b""),
        Blob(uri="u", position=0, size=2),
    ]
    own = [
        lance_core.Blob(data=one.data, uri=one.uri, position=one.position, size=one.size)
        if isinstance(one, Blob)
        else one
        for one in values
    ]
    theirs, ours = blob_array(values), lance_core.blob_array(own)
    assert ours.to_pylist() == theirs.to_pylist()
    assert ours.type == theirs.type
    assert lance_core.blob_array([]).type == ours.type
    field = lance_core.blob_field("b", nullable=False, **LIMITS)
    assert (field.nullable, field.type) == (False, ours.type)
    schema = pa.schema([pa.field("id", pa.int64()), lance_core.blob_field("b", **LIMITS)])
    table = pa.table([pa.array(range(len(PAYLOADS)), pa.int64()), lance_core.blob_array(PAYLOADS)], schema=schema)
    lance_core.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    both_see(tmp_path / "t", EXPECTED)
    assert lance.dataset(str(tmp_path / "t")).schema == SCHEMA
    lance.write_dataset(table, str(tmp_path / "p"), data_storage_version="2.2")
    both_see(tmp_path / "p", EXPECTED)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"data": b"", "uri": "x"},
        {"uri": ""},
        {"uri": "x", "size": 1},
        {"uri": "x", "position": 0, "size": 0},
        {"data": b"", "position": 0, "size": 1},
    ],
)
def test_blobs_that_cannot_be(given):
    for library in (lance, lance_core):
        with pytest.raises(ValueError, match=r"[Bb]lob|part"):
            library.Blob(**given)


def test_values_and_thresholds_that_cannot_be():
    with pytest.raises(TypeError, match="not as int"):
        lance_core.blob_array([1])
    with pytest.raises(InvalidInputError, match="data or a uri"):
        lance_core.blob_array([""])
    for name in ("inline_size_threshold", "dedicated_size_threshold", "pack_file_size_threshold"):
        least = -1 if name.startswith("inline") else 0
        for library in (lance, lance_core):
            with pytest.raises(ValueError, match="threshold"):
                library.blob_field("b", **{name: least})
