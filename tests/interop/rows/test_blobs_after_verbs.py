"""Verbs over tables whose blobs lie in files of their own and in objects: no payload is lost, and objects stay objects."""

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field

import lance_core

SMALL = {"inline_size_threshold": 10, "dedicated_size_threshold": 100, "pack_file_size_threshold": 150}
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64()), blob_field("b", **SMALL)])
KINDS = (0, 1, 2, None, 0, 1, 3, 3, 3)
OWN = ("inline", "packed", "dedicated", "null", "empty", "packed", "whole", "range", "outside")


def payload(row):
    """The payload of a row; all rows differ."""
    sizes = {
        "inline": 8,
        "packed": 60,
        "dedicated": 300,
        "null": None,
        "empty": 0,
        "whole": 40,
        "range": 20,
        "outside": 9,
    }
    size = sizes[OWN[row % 9]]
    return None if size is None else (f"{row:06}".encode() * 60)[:size]


def value(folder, row):
    """The same as a writer gives it: a payload, or the URI of an object."""
    kind = OWN[row % 9]
    if kind not in ("whole", "range", "outside"):
        return payload(row)
    place = folder / ("elsewhere" if kind == "outside" else "media")
    place.mkdir(exist_ok=True, parents=True)
    path = place / f"{row}.bin"
    path.write_bytes((b"before" if kind == "range" else b"") + payload(row) + (b"after" if kind == "range" else b""))
    return Blob.from_uri(f"file://{path}", 6, 20) if kind == "range" else f"file://{path}"


def rows(folder, first, count):
    ids = range(first, first + count)
    return pa.table(
        [pa.array(ids), pa.array([0] * count), blob_array([value(folder, row) for row in ids])], schema=SCHEMA
    )


def create(library, folder, uri, *, count=27, **options):
    """Three fragments with blobs of all kinds."""
    place = library.DatasetBasePath(f"file://{folder}/media", "media")
    (folder / "media").mkdir(exist_ok=True, parents=True)
    for first in range(0, count, 9):
        bases = {} if first else {"initial_bases": [place]}
        library.write_dataset(
            rows(folder, first, 9), uri, mode="append", allow_external_blob_outside_bases=True, **bases, **options
        )
    return library.dataset(uri)


def check(uri, ids, numbers=None, version=None):
    """Both libraries read the payloads of exactly these rows, and those in objects are still there by URI."""
    ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
    if version is not None:
        ours, theirs = ours.checkout_version(version), theirs.checkout_version(version)
    assert ours.to_table().sort_by("id").equals(theirs.to_table().sort_by("id"))
    for library in (ours, theirs):
        read = library.to_table(blob_handling="all_binary").sort_by("id")
        assert read["id"].to_pylist() == sorted(ids)
        assert read["b"].to_pylist() == [payload(row) for row in sorted(ids)], library
        if numbers is not None:
            assert dict(zip(read["id"].to_pylist(), read["n"].to_pylist(), strict=True)) == numbers
    described = theirs.to_table().sort_by("id").to_pylist()
    kinds = [None if row["b"] is None else row["b"]["kind"] for row in described]
    assert kinds == [KINDS[row % 9] for row in sorted(ids)]


def clean(uri):
    """A cleanup of all but the latest version, by both libraries; every file of blobs that is left is used."""
    for library in (lance_core, lance):
        library.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    names = {
        Path(file.path).stem for fragment in lance_core.dataset(uri).get_fragments() for file in fragment.data_files()
    }
    left = {path.parent.name for path in Path(uri, "data").rglob("*.blob")}
    assert left <= names


def updated(dataset, **options):
    dataset.update({"n": "id"}, where="id % 2 = 0", **options)
    return range(27), {row: row if row % 2 == 0 else 0 for row in range(27)}


def deleted(dataset):
    dataset.delete("id % 5 = 1")
    return [row for row in range(27) if row % 5 != 1], None


def merged(dataset):
    """New blobs, but none outside of the base paths: pylance takes them in appends alone."""
    source = rows(Path(dataset.uri).parent, 20, 16)
    source = source.filter(pa.array([row % 9 != 8 for row in range(20, 36)]))
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
    return range(35), None


def merged_narrowly(dataset):
    source = pa.table({"id": [1, 2, 3, 15, 16], "n": [7] * 5})
    dataset.merge_insert("id").when_matched_update_all().execute(source)
    return range(27), {row: 7 if row in (1, 2, 3, 15, 16) else 0 for row in range(27)}


def compacted(dataset):
    dataset.delete("id in (0, 10, 20, 6)")
    dataset.optimize.compact_files()
    assert len(dataset.get_fragments()) == 1
    return [row for row in range(27) if row not in (0, 10, 20, 6)], None


def with_columns(dataset):
    dataset.add_columns({"m": "n + 1"})
    dataset.drop_columns(["m"])
    dataset.alter_columns({"path": "n", "name": "n2"})
    dataset.alter_columns({"path": "n2", "name": "n"})
    return range(27), None


def restored(dataset):
    dataset.delete("true")
    dataset.checkout_version(3).restore()
    return range(27), None


VERBS = [updated, merged, deleted, merged_narrowly, compacted, with_columns, restored]


@pytest.mark.variants(11)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize(("writer", "changer"), [(lance, lance_core), (lance_core, lance_core), (lance_core, lance)])
def test_verbs_keep_all_payloads(tmp_path, writer, changer, verb, stable):
    uri = str(tmp_path / "t")
    create(writer, tmp_path, uri, enable_stable_row_ids=stable)
    check(uri, range(27))
    ids, numbers = verb(changer.dataset(uri))
    check(uri, ids, numbers)
    clean(uri)
    check(uri, ids, numbers)


LIBRARIES = [(lance, lance_core), (lance_core, lance_core), (lance_core, lance)]


@pytest.mark.parametrize(("writer", "changer"), LIBRARIES)
def test_clones_read_all_payloads(tmp_path, writer, changer):
    uri = str(tmp_path / "t")
    create(writer, tmp_path, uri)
    shallow, deep = str(tmp_path / "shallow"), str(tmp_path / "deep")
    changer.dataset(uri).shallow_clone(shallow, 3)
    copies = [shallow]
    if changer is lance_core:  # pylance's deep clones lose the base paths that blobs name their objects by
        lance_core.dataset(uri).deep_clone(deep, 3)
        copies.append(deep)
    for copy in copies:
        check(copy, range(27))
        changer.write_dataset(rows(tmp_path, 27, 9), copy, mode="append", allow_external_blob_outside_bases=True)
        check(copy, range(36))
        lance_core.dataset(copy).update({"n": "2"}, where="id > 20")
        lance_core.dataset(copy).optimize.compact_files()
        check(copy, range(36))
        clean(copy)
        check(copy, range(36))
    if changer is lance_core:  # which does not drop what a clone needs
        lance_core.LanceDataset.drop(shallow)
    lance_core.LanceDataset.drop(uri)
    if deep in copies:
        check(deep, range(36))


@pytest.mark.parametrize(("writer", "changer"), LIBRARIES)
def test_branches_and_their_promotion_keep_all_payloads(tmp_path, writer, changer):
    uri = str(tmp_path / "t")
    create(writer, tmp_path, uri)
    branch = changer.dataset(uri).create_branch("b", 3)
    assert branch.to_table(blob_handling="all_binary")["b"].to_pylist() == [payload(row) for row in range(27)]
    changer.write_dataset(rows(tmp_path, 27, 9), branch, mode="append", allow_external_blob_outside_bases=True)
    own = lance_core.dataset(uri).checkout_version(("b", None))
    own.update({"n": "1"}, where="id in (1, 2, 33)")
    check(uri, range(36), version=("b", None))
    lance_core.dataset(uri).branches.promote("b")
    lance_core.dataset(uri).branches.delete("b")
    numbers = {row: 1 if row in (1, 2, 33) else 0 for row in range(36)}
    check(uri, range(36), numbers)
    clean(uri)
    check(uri, range(36), numbers)


@pytest.mark.parametrize("writer", [lance, lance_core])
def test_an_overwrite_by_the_tables_own_rows_keeps_all_payloads(tmp_path, writer):
    uri = str(tmp_path / "t")
    create(writer, tmp_path, uri)
    dataset = lance_core.dataset(uri)
    lance_core.write_dataset(dataset, dataset, mode="overwrite", allow_external_blob_outside_bases=True)
    check(uri, range(27))
    clean(uri)
    check(uri, range(27))


@pytest.mark.parametrize("mode", ["rewrite_rows", "rewrite_columns", "auto", "fewest_bytes"])
def test_updates_in_each_mode_keep_all_payloads(tmp_path, mode):
    uri = str(tmp_path / "t")
    create(lance, tmp_path, uri)
    ids, numbers = updated(lance_core.dataset(uri), write_mode=mode)
    check(uri, ids, numbers)
    clean(uri)
    check(uri, ids, numbers)


def test_an_aborted_write_removes_its_files_of_blobs(tmp_path):
    uri = str(tmp_path / "t")
    create(lance, tmp_path, uri, count=9)
    before = sorted(path for path in Path(uri, "data").rglob("*"))

    def broken():
        yield from rows(tmp_path, 9, 9).to_batches()
        yield from rows(tmp_path, 18, 9).to_batches()
        raise OSError("no more")

    options = {"mode": "append", "max_rows_per_file": 5, "allow_external_blob_outside_bases": True}
    with pytest.raises(OSError, match="no more"):
        lance_core.write_dataset(broken(), uri, SCHEMA, **options)
    assert sorted(path for path in Path(uri, "data").rglob("*")) == before


def test_uncommitted_files_of_blobs_go_and_committed_ones_stay(tmp_path):
    uri, prefix = str(tmp_path / "t"), "0" * 32
    create(lance, tmp_path, uri, count=9)
    schema = lance_core.dataset(uri).lance_schema_bytes
    written = []
    for first in (9, 18):
        writer = lance_core.FragmentWriter(uri, SCHEMA, file_prefix=prefix, dataset_schema=schema, external_places=None)
        writer.write(rows(tmp_path, first, 9))
        written.append(writer.finish())
    kept = [file.path for fragment in written[0] for file in fragment.files]
    lance_core.commit_fragments(uri, written[0], SCHEMA)
    lance_core.delete_uncommitted_files(uri, file_prefix=prefix, keep=kept)
    read = lance_core.dataset(uri).to_table(blob_handling="all_binary")["b"].to_pylist()
    assert read == [payload(row) for row in range(18)]
    clean(uri)
