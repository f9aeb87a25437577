import pickle
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_core._proto import rowids_pb2
from lance_core.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError, UnsupportedError
from lance_core.schema import schema_from_arrow
from lance_core.table import flags
from lance_core.table.deletion import DeletionFile, DeletionFileType, DeletionVector
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.manifest.manifest import WRITER, Manifest, WriterVersion
from lance_core.table.operations import (
    Append,
    ApplyContext,
    Delete,
    Merge,
    Overwrite,
    ReserveFragments,
    UpdateMemWalState,
)
from lance_core.table.paths import (
    Naming,
    TableFormat,
    branch_of_ref_key,
    branch_ref_key,
    manifest_key,
    new_data_file_name,
    parse_manifest_key,
)
from lance_core.table.refs import BranchRef, TagRef, check_branch_name, check_tag_name, new_identifier
from lance_core.table.rowids import (
    assign_row_ids,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
    find_created_versions,
)
from lance_core.table.transaction import Transaction
from tests.support.hypothesis_settings import examples

SCHEMA = schema_from_arrow(pa.schema([("a", pa.int64())]))


def file(path="x.lance", fields=(0,), version=(2, 2)):
    return DataFile(
        path=path, fields=fields, column_indices=(0,), file_major_version=version[0], file_minor_version=version[1]
    )


def fragment(fragment_id=0, **changes):
    return replace(Fragment(id=fragment_id, files=(file(),), physical_rows=10), **changes)


def manifest_of(*fragments, **changes):
    found = FragmentList.of(fragments)
    return replace(
        Manifest(version=1, schema=SCHEMA, fragments=found, max_fragment_id=max(found.ids, default=None)), **changes
    )


def applied(operation, manifest, **context):
    transaction = Transaction(read_version=1, operation=operation)
    return transaction.apply(manifest, ApplyContext(version=2, **context), 1)


# --- row ids


@pytest.mark.parametrize("steps", [st.just(1), st.integers(1, 3), st.integers(1, 100), st.integers(1, 2**40)])
def test_ascending_row_ids_survive(steps):
    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 2**50), st.lists(steps, max_size=200))
    def check(start, gaps):
        ids = np.cumsum([start, *gaps]).astype(np.uint64)
        assert decode_row_ids(encode_row_ids(ids)).tolist() == ids.tolist()

    check()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=100))
def test_any_row_ids_survive(ids):
    assert decode_row_ids(encode_row_ids(np.array(ids, np.uint64))).tolist() == ids


@pytest.mark.parametrize("count", [1, 2, 3, 100])
@pytest.mark.parametrize("gap", [1, 2, 2**40])
def test_the_last_row_ids_survive(count, gap):
    ids = [2**64 - 1 - gap * i for i in reversed(range(count))]
    assert decode_row_ids(encode_row_ids(np.array(ids, np.uint64))).tolist() == ids


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=100))
def test_versions_survive(versions):
    assert decode_versions(encode_versions(np.array(versions, np.uint64))).tolist() == versions


def test_dense_ids_are_kept_small():
    with_a_hole = np.array([i for i in range(10_000) if i != 77], np.uint64)
    assert len(encode_row_ids(with_a_hole)) < 40
    every_second = np.arange(0, 10_000, 2, dtype=np.uint64)
    assert len(encode_row_ids(every_second)) < 1300


def test_a_bitmap_counts_from_the_least_significant_bit():
    message = rowids_pb2.RowIdSequence()
    bitmap = message.segments.add().range_with_bitmap
    bitmap.start, bitmap.end, bitmap.bitmap = 5, 16, b"\x01\x04"
    assert decode_row_ids(message.SerializeToString()).tolist() == [5, 15]


@pytest.mark.parametrize(
    "segment",
    [
        rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=0, end=1 << 60)),
        rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=9, end=1)),
        rowids_pb2.U64Segment(
            range_with_bitmap=rowids_pb2.U64Segment.RangeWithBitmap(start=0, end=100, bitmap=b"\xff")
        ),
        rowids_pb2.U64Segment(
            array=rowids_pb2.EncodedU64Array(u64_array=rowids_pb2.EncodedU64Array.U64Array(values=b"123"))
        ),
        rowids_pb2.U64Segment(),
    ],
)
def test_broken_row_ids_are_rejected(segment):
    with pytest.raises(CorruptFileError):
        decode_row_ids(rowids_pb2.RowIdSequence(segments=[segment]).SerializeToString())
    with pytest.raises(CorruptFileError):
        decode_row_ids(b"\xff\xff")


def test_new_rows_get_ids_after_moved_ones():
    moved = fragment(physical_rows=4, row_ids=encode_row_ids(np.array([7, 3], np.uint64)))
    (first, second), next_row_id = assign_row_ids([moved, fragment(physical_rows=2)], 100)
    assert decode_row_ids(first.row_ids).tolist() == [7, 3, 100, 101]
    assert (decode_row_ids(second.row_ids).tolist(), next_row_id) == ([102, 103], 104)
    with pytest.raises(InvalidInputError):
        assign_row_ids([replace(moved, physical_rows=1)], 0)


def test_moved_rows_keep_the_version_that_made_them():
    origin = fragment(
        row_ids=encode_row_ids(np.array([10, 5, 20], np.uint64)),
        created_at_versions=encode_versions(np.array([1, 2, 3], np.uint64)),
    )
    assert find_created_versions(np.array([20, 99, 5], np.uint64), [origin], 9).tolist() == [3, 9, 2]


@pytest.mark.parametrize("seed", range(5))
def test_versions_of_rows_of_several_fragments_are_those_of_the_first_that_held_them(seed):
    rng = np.random.default_rng(seed)
    free, origins, expected = rng.permutation(400).astype(np.uint64) + np.uint64(2**40), [], {}
    ranges = [np.arange(5, 60, dtype=np.uint64), free[:30], np.arange(50, 90, dtype=np.uint64), free[20:21], free[:0]]
    for ids in ranges:
        versions = rng.integers(1, 9, len(ids)).astype(np.uint64)
        origins.append(
            fragment(physical_rows=len(ids), row_ids=encode_row_ids(ids), created_at_versions=encode_versions(versions))
        )
        expected = dict(zip(ids.tolist(), versions.tolist(), strict=True)) | expected
    asked = rng.permutation(np.concatenate([*ranges, free[100:120], np.array([0, 4, 90, 2**63], np.uint64)]))
    assert find_created_versions(asked, origins, 99).tolist() == [expected.get(row, 99) for row in asked.tolist()]


# --- deletion vectors


@pytest.mark.parametrize("count", [0, 1, 4999, 5000, 20_000])
def test_deletion_vectors_survive(count):
    vector = DeletionVector(range(0, 3 * count, 3))
    data, kind = vector.to_bytes()
    assert kind is (DeletionFileType.BITMAP if count >= 5000 else DeletionFileType.ARROW)
    assert DeletionVector.from_bytes(data, kind) == vector
    data, kind = vector.to_bytes(DeletionFileType.BITMAP)
    assert DeletionVector.from_bytes(memoryview(data), kind) == vector
    live = vector.live_rows(3 * count + 1)
    assert (live.sum(), live[0]) == (2 * count + 1, count == 0)


def test_deletion_files_of_pylance(tmp_path):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(pa.table({"a": range(30_000)}), path, max_rows_per_file=10_000)
    ds.delete("(a < 100 and a % 3 = 0) or (a >= 10000 and a < 20000 and a % 2 = 0)")
    manifest = Manifest.from_bytes(min(Path(path).glob("_versions/*.manifest")).read_bytes())
    kinds = []
    for found in manifest.fragments[:2]:
        data = (Path(path) / found.deletion_file.key(found.id)).read_bytes()
        vector = DeletionVector.from_bytes(data, found.deletion_file.file_type)
        assert len(vector) == found.num_deleted_rows
        assert vector == DeletionVector(range(0, 100, 3) if found.id == 0 else range(0, 10_000, 2))
        kinds.append(found.deletion_file.file_type)
        if found.deletion_file.file_type is DeletionFileType.BITMAP:
            assert vector.to_bytes()[0] == data
    assert kinds == [DeletionFileType.ARROW, DeletionFileType.BITMAP]


@pytest.mark.parametrize("kind", DeletionFileType)
@pytest.mark.parametrize("data", [b"", b"nonsense", b"ARROW1\0\0" + b"\xff" * 40])
def test_broken_deletion_files_are_rejected(data, kind):
    with pytest.raises(CorruptFileError):
        DeletionVector.from_bytes(data, kind)


# --- fragment lists


def test_a_list_changes_without_changing():
    before = FragmentList.of([fragment(1), fragment(2), fragment(300)])
    after = before.changed(
        removed={2, 99}, updated={300: fragment(300, physical_rows=5), 2: fragment(2)}, added=[fragment(7)]
    )
    assert (before.ids, after.ids) == ([1, 2, 300], [1, 7, 300])
    assert (after[2].physical_rows, after[-1], after[:1]) == (5, after[2], [fragment(1)])
    assert (after.get(7), after.get(2)) == (fragment(7), None)
    assert pickle.loads(pickle.dumps(after)) == after
    with pytest.raises(InvalidInputError, match="two fragments with id 7"):
        after.changed(added=[fragment(7)])


def test_lists_count_live_rows_without_records():
    def deleted(count):
        return DeletionFile(file_type=DeletionFileType.ARROW, read_version=1, id=1, num_deleted_rows=count)

    fragments = [
        Fragment(id=1, physical_rows=10),
        Fragment(id=2, physical_rows=10, deletion_file=deleted(3)),
        Fragment(id=3, physical_rows=10, deletion_file=deleted(0)),
        Fragment(id=4),
    ]
    fragments.append(fragment(5, physical_rows=0))
    assert FragmentList.of(fragments).live_counts() == [10, 7, None, 0, None]


def test_lists_say_which_fragments_can_hold_rows():
    fragments = [fragment(1), Fragment(id=2), fragment(3, physical_rows=0), Fragment(id=4, physical_rows=10)]
    assert list(FragmentList.of(fragments).places_with_rows()) == [0, 2, 3]
    assert list(FragmentList.of([fragment(1), fragment(2)]).places_with_rows()) == [0, 1]


def test_deletion_knowledge_follows_changes():
    deletions = DeletionFile(file_type=DeletionFileType.ARROW, read_version=1, id=5, num_deleted_rows=1)
    clean = FragmentList.of([fragment(1), fragment(2)])
    dirty = clean.changed(updated={1: fragment(1, deletion_file=deletions)})
    assert (clean.has_deletions, dirty.has_deletions) == (False, True)
    assert dirty.changed(removed={2}).has_deletions
    assert not dirty.changed(removed={1}).has_deletions
    assert not dirty.changed(updated={1: fragment(1)}).has_deletions


# --- manifests


def test_every_cut_of_a_manifest_is_rejected():
    whole = manifest_of(fragment(0)).to_bytes(b"transaction")
    assert Manifest.from_bytes(whole).transaction_bytes == b"transaction"
    for end in range(len(whole)):
        with pytest.raises(CorruptFileError):
            Manifest.from_bytes(whole[:end])


@examples(300)
@given(st.data())
def test_a_broken_manifest_never_crashes(data):
    whole = bytearray(manifest_of(fragment(0), fragment(1)).to_bytes(b"transaction"))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        manifest = Manifest.from_bytes(bytes(whole))
        list(manifest.fragments.messages())
    except (CorruptFileError, UnsupportedError):
        pass


@pytest.mark.parametrize("bit", [64, 512, 1024, 2048, 4096, 16384, 65536, 1 << 40])
def test_unknown_features_are_rejected(bit):
    with pytest.raises(UnsupportedError, match=str(bit)):
        Manifest.from_bytes(manifest_of(fragment(0), reader_flags=bit).to_bytes())
    writer_only = Manifest.from_bytes(manifest_of(fragment(0), writer_flags=bit).to_bytes())
    with pytest.raises(UnsupportedError, match=str(bit)):
        applied(Append(), writer_only)


def test_files_of_several_versions_are_marked():
    base = manifest_of(fragment(0), data_storage_version="2.0")
    mixed = applied(Append(fragments=(fragment(),)), base)
    assert mixed.reader_flags & mixed.writer_flags & flags.MIXED_DATA_FILES
    assert applied(Append(), mixed).reader_flags & flags.MIXED_DATA_FILES
    assert not applied(Overwrite(fragments=(), schema=SCHEMA), mixed).reader_flags & flags.MIXED_DATA_FILES
    with pytest.raises(InvalidInputError, match="cannot be added"):
        applied(Append(fragments=(fragment(files=(file(version=(0, 2)),)),)), base)


def test_field_ids_are_never_reused_where_a_table_says_so():
    base = manifest_of(fragment(0), max_allocated_field_id=9)
    after = applied(Append(), base)
    assert (after.max_allocated_field_id, after.max_field_id, after.writer_flags) == (9, 9, flags.NO_FIELD_ID_REUSE)


@pytest.mark.parametrize(
    ("writer", "kept"),
    [
        (None, True),
        (WriterVersion(library="lance", version="0.8.14"), True),
        (WriterVersion(library="lance", version="14.0.2"), False),
        (WriterVersion(library="other", version="0.1.0"), False),
    ],
)
def test_early_writers_stay_on_record_until_repaired(writer, kept):
    base = manifest_of(fragment(0), writer_version=writer)
    after = applied(Append(fragments=(fragment(),)), base)
    assert (after.writer_version == writer) == kept
    assert applied(Overwrite(fragments=(fragment(),), schema=SCHEMA), base).writer_version == WRITER


@pytest.mark.parametrize(
    ("said", "files", "found"),
    [("", (2, 0), "2.0"), ("", (0, 2), "0.1"), ("", (2, 1), "2.1"), ("0.1", (0, 3), "2.0"), ("2.1", (2, 1), "2.1")],
)
def test_the_files_say_what_old_manifests_do_not(said, files, found):
    old = manifest_of(fragment(0, files=(file(version=files),)), data_storage_version=said)
    assert Manifest.from_bytes(old.to_bytes()).data_storage_version == found


# --- operations


def test_reserved_ids_follow_the_highest():
    assert applied(ReserveFragments(num_fragments=3), manifest_of(fragment(4))).max_fragment_id == 7
    assert applied(ReserveFragments(num_fragments=3), manifest_of()).max_fragment_id == 3


def test_ids_beyond_the_recorded_highest_are_not_given_again():
    base = manifest_of(fragment(8), max_fragment_id=2)
    assert applied(Append(fragments=(fragment(),)), base).fragments.ids == [8, 9]


def test_operations_need_a_dataset():
    with pytest.raises(DatasetNotFoundError, match="non-existent"):
        applied(Delete(), None)


def test_a_merge_must_not_lose_fragments():
    with pytest.raises(InvalidInputError, match="fragment 1 is missing"):
        applied(Merge(fragments=(fragment(0),), schema=SCHEMA), manifest_of(fragment(0), fragment(1)))


def test_a_merge_searches_no_list_of_ids(monkeypatch):
    class Ids(list):
        def __contains__(self, one):
            raise AssertionError("a list is searched")

    base = applied(
        Overwrite(fragments=(fragment(),), schema=SCHEMA), None, table_format=TableFormat(stable_row_ids=True)
    )
    monkeypatch.setattr(base.fragments, "_ids", Ids(base.fragments.ids))
    merged = applied(Merge(fragments=(*base.fragments, fragment(9)), schema=SCHEMA), base)
    assert decode_row_ids(merged.fragments[1].row_ids).tolist() == list(range(10, 20))


def test_overwrite_takes_no_deletions_and_no_empty_files():
    deletions = DeletionFile(file_type=DeletionFileType.ARROW, read_version=1, id=5, num_deleted_rows=1)
    with pytest.raises(InvalidInputError, match="deletion"):
        applied(Overwrite(fragments=(fragment(deletion_file=deletions),), schema=SCHEMA), None)
    with pytest.raises(InvalidInputError, match="does not contain any fields"):
        applied(Append(fragments=(fragment(files=(file(fields=()),)),)), manifest_of())


def test_stable_row_ids_start_with_the_table():
    base = applied(
        Overwrite(fragments=(fragment(),), schema=SCHEMA), None, table_format=TableFormat(stable_row_ids=True)
    )
    after = applied(Append(fragments=(fragment(),)), base)
    assert decode_row_ids(after.fragments[1].row_ids).tolist() == list(range(10, 20))
    assert decode_versions(after.fragments[1].created_at_versions).tolist() == [2] * 10
    merged = applied(Merge(fragments=(*after.fragments, fragment(9)), schema=SCHEMA), after)
    assert decode_row_ids(merged.fragments[2].row_ids).tolist() == list(range(20, 30))


def test_write_ahead_logs_are_rejected():
    with pytest.raises(UnsupportedError, match="write-ahead"):
        applied(UpdateMemWalState(compacted_sstables=()), manifest_of())


# --- names


@pytest.mark.parametrize(("version", "name"), [(1, "18446744073709551614"), (123, "18446744073709551492")])
def test_v2_names_sort_newest_first(version, name):
    assert manifest_key(version) == f"_versions/{name}.manifest"
    assert parse_manifest_key(manifest_key(version)).version == version
    assert manifest_key(version + 1) < manifest_key(version)
    assert parse_manifest_key(manifest_key(version, Naming.V1)).naming is Naming.V1


@pytest.mark.parametrize(
    "name",
    ["latest_version_hint.json", ".tmp", "x.manifest", "5.manifest#1", "d5.manifest", "٣.manifest", "1.manifest-uuid"],
)
def test_other_files_are_no_manifests(name):
    assert parse_manifest_key(f"_versions/{name}") is None


def test_data_files_have_names_of_pylance():
    name = new_data_file_name()
    assert (len(name), set(name[:24]) <= {"0", "1"}, name.endswith(".lance")) == (56, True, True)


@pytest.mark.parametrize("name", ["main", "", "a//b", "/a", "a/", "ä", "a b", "a..b", "x.lock", "a/./b", "a\\b"])
def test_bad_branch_names(name):
    with pytest.raises(InvalidInputError, match="Ref is invalid"):
        check_branch_name(name)


def test_refs_of_pylance(tmp_path):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(pa.table({"a": [1]}), path)
    ds.tags.create("t1", 1)
    ds.create_branch("feat/a")
    tag = TagRef.from_bytes((tmp_path / "t/_refs/tags/t1.json").read_bytes())
    assert (tag.version, tag.branch, tag.manifest_size > 0) == (1, None, True)
    key = branch_ref_key("feat/a")
    assert branch_of_ref_key(key) == "feat/a"
    branch = BranchRef.from_bytes((tmp_path / "t" / key).read_bytes())
    assert (branch.parent_version, branch.parent_branch, len(branch.identifier)) == (1, None, 1)
    child = BranchRef(parent_version=1, parent_branch="feat/a", identifier=new_identifier(branch, 1), created_at=5)
    assert child.descends_from(branch)
    assert not branch.descends_from(child)
    check_tag_name("v1.0")
    (tmp_path / "t/_refs/tags/ours.json").write_bytes(
        TagRef(version=1, created_at=tag.created_at, updated_at=tag.updated_at, manifest_size=5).to_bytes()
    )
    assert lance.dataset(path).tags.list()["ours"]["version"] == 1
    assert lance.dataset(path, version="ours").version == 1
    with pytest.raises(CorruptFileError, match="manifestSize"):
        TagRef.from_bytes(b'{"version": 1}')


def test_bitmaps_are_roaring():
    assert DeletionVector(BitMap([1, 2])).bitmap == BitMap([1, 2])
