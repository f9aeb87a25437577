"""Segments of indices that are built apart and committed as one, in either library."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import (
    ArgumentTypeError,
    InvalidInputError,
    RetryableConflictError,
    SchemaError,
    UnsupportedError,
)

KINDS = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")
FILTERS = ("id = 5", "id < 150", "id >= 150 and id < 350", "id in (1, 101, 399)", "id is null", "name = '3'")


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"id": np.arange(start, stop), "name": [str(i % 7) for i in range(start, stop)]})


@pytest.fixture(params=[False, True], ids=["addresses", "row_ids"])
def dataset(request, tmp_path):
    """Four fragments of 100 rows."""
    return lance_core.write_dataset(
        rows(0, 400), tmp_path / "t.lance", max_rows_per_file=100, enable_stable_row_ids=request.param
    )


def segments(uri, name: str = "id_idx") -> list[list[int]]:
    """The fragments of each segment, as both libraries list them."""
    found = [
        [
            sorted(one.fragment_ids)
            for index in library.dataset(uri).describe_indices()
            if index.name == name
            for one in index.segments
        ]
        for library in (lance_core, lance)
    ]
    assert found[0] == found[1]
    return found[0]


def agree(uri) -> None:
    """Both libraries find the same rows, with and without indices."""
    for text in FILTERS:
        ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
        found = [
            sorted(library.to_table(filter=text, use_scalar_index=used).column("id").to_pylist())
            for library in (ours, theirs)
            for used in (True, False)
        ]
        assert found == found[:1] * 4, text
        assert ours.count_rows(text) == theirs.count_rows(text) == len(found[0])


@pytest.mark.variants(2)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_workers_become_one_index(dataset, kind):
    uri = dataset.uri
    parts = []
    for ids in ([0, 2], [1], [3]):
        worker = lance_core.dataset(uri, version=1)
        parts.append(pickle.loads(pickle.dumps(worker.create_index_uncommitted("id", kind, fragment_ids=ids))))
    assert lance_core.dataset(uri).version == 1
    merged = dataset.merge_existing_index_segments(parts[:2])
    assert (merged.fragment_ids, merged.dataset_version) == ({0, 1, 2}, 1)
    assert dataset.commit_existing_index_segments("id_idx", "id", [merged, parts[2]]) is dataset
    assert (dataset.version, segments(uri)) == (2, [[0, 1, 2], [3]])
    agree(uri)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=2)
    assert segments(uri) == [[0, 1, 2, 3]]
    agree(uri)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_one_library_are_merged_and_committed_by_the_other(dataset, kind):
    theirs = lance.dataset(dataset.uri)
    given = [theirs.create_index_uncommitted("id", kind, fragment_ids=ids) for ids in ([0], [1, 3])]
    ours = [dataset.create_index_uncommitted("id", kind, fragment_ids=[2])]
    taken = [
        lance_core.Index(**{key: getattr(one, key) for key in vars(ours[0])} | {"fragment_ids": set(one.fragment_ids)})
        for one in given
    ]
    dataset.commit_existing_index_segments("id_idx", "id", [dataset.merge_existing_index_segments(taken), *ours])
    assert segments(dataset.uri) == [[0, 1, 3], [2]]
    agree(dataset.uri)


@pytest.mark.parametrize("kind", KINDS)
def test_pylance_takes_our_segments(dataset, kind):
    ours = [dataset.create_index_uncommitted("id", kind, fragment_ids=ids) for ids in ([0], [1, 3], [2])]
    theirs = lance.dataset(dataset.uri)
    from lance.dataset import Index

    given = [Index(**{**vars(one), "files": None}) for one in ours]
    merged = theirs.merge_existing_index_segments(given[:2])
    theirs.commit_existing_index_segments("id_idx", "id", [merged, given[2]])
    assert segments(dataset.uri) == [[0, 1, 3], [2]]
    agree(dataset.uri)


def test_new_segments_replace_those_that_they_cover(dataset):
    def part(*ids, kind="BTREE"):
        return dataset.create_index_uncommitted("id", kind, name="id_idx", fragment_ids=ids, replace=True)

    dataset.commit_existing_index_segments("id_idx", "id", [part(0, 1), part(2)])
    dataset.commit_existing_index_segments("id_idx", "id", [part(3)])
    assert segments(dataset.uri) == [[0, 1], [2], [3]]
    dataset.commit_existing_index_segments("id_idx", "id", [part(2, 3)])
    assert segments(dataset.uri) == [[0, 1], [2, 3]]
    with pytest.raises(InvalidInputError, match=r"covers fragment 1 .* fragment 0, which they do not cover"):
        dataset.commit_existing_index_segments("id_idx", "id", [part(1)])
    with pytest.raises(InvalidInputError, match=r"'id_idx' is of type BTree; .* fragment 2 is missing"):
        dataset.commit_existing_index_segments("id_idx", "id", [part(0, 1, kind="BITMAP")])
    dataset.commit_existing_index_segments("id_idx", "id", [part(0, 1, kind="BITMAP"), part(2, 3, kind="BITMAP")])
    assert segments(dataset.uri) == [[0, 1], [2, 3]]
    assert {index.index_type for index in dataset.describe_indices()} == {"Bitmap"}
    agree(dataset.uri)


def test_what_happens_before_the_commit_is_seen(dataset):
    uri = dataset.uri

    def part(*ids):
        return lance_core.dataset(uri).create_index_uncommitted("id", "BTREE", fragment_ids=ids)

    ready = part(0, 1)
    dataset.delete("id < 10")
    dataset.insert(rows(400, 450))
    dataset.update({"name": "'x'"}, where="id = 120")
    dataset.commit_existing_index_segments("first", "id", [ready])
    agree(uri)
    ready = part(2, 3)
    lance_core.dataset(uri).optimize.compact_files()
    dataset.checkout_latest()
    with pytest.raises(RetryableConflictError, match="build the segments again"):
        dataset.commit_existing_index_segments("second", "id", [ready])
    # Put together on the latest version, they are still of the older one.
    with pytest.raises(RetryableConflictError, match="build the segments again"):
        dataset.commit_existing_index_segments("second", "id", [dataset.merge_existing_index_segments([ready])])
    newer, first = part(dataset.get_fragments()[0].fragment_id), lance_core.dataset(uri, version=1)
    with pytest.raises(
        InvalidInputError, match=f"on version {dataset.version}, and this is version 1: open the latest"
    ):
        first.commit_existing_index_segments("second", "id", [newer])
    late = part(*[fragment.fragment_id for fragment in lance_core.dataset(uri).get_fragments()])
    old = lance_core.dataset(uri)
    lance_core.dataset(uri).delete("id = 399")
    old.commit_existing_index_segments("third", "id", [late])
    agree(uri)


def test_values_that_were_rewritten_in_place_are_not_covered(dataset):
    ready = dataset.create_index_uncommitted("name", "BTREE", fragment_ids=[0, 1, 2, 3])
    fragment = dataset.get_fragment(1)
    updated, fields = fragment.update_columns(pa.table({"id": [105, 106], "name": ["3", "y"]}), left_on="id")
    operation = lance_core.LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    dataset = lance_core.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
    dataset.commit_existing_index_segments("name_idx", "name", [ready])
    assert segments(dataset.uri, "name_idx") == [[0, 2, 3]]
    agree(dataset.uri)


@pytest.mark.parametrize("library", [lance, lance_core])
@pytest.mark.parametrize("is_latest", [False, True])
def test_values_that_a_merge_replaced_are_not_covered(dataset, library, is_latest):
    """A Merge says nowhere which files it replaced, as the promotion of a branch with new columns does."""
    ready = dataset.create_index_uncommitted("name", "BTREE", fragment_ids=[0, 1, 2, 3])
    dataset.add_columns({"more": "id * 2"})  # a Merge that leaves the indexed values as they are
    there = library.dataset(dataset.uri)
    changed, _ = there.get_fragment(1).update_columns(pa.table({"id": [105, 106], "name": ["3", "y"]}), left_on="id")
    fragments = [changed if one.fragment_id == 1 else one.metadata for one in there.get_fragments()]
    operation = library.LanceOperation.Merge(fragments, there.schema)
    library.LanceDataset.commit(dataset.uri, operation, read_version=there.version)
    if is_latest:
        dataset = lance_core.dataset(dataset.uri)
    dataset.commit_existing_index_segments("name_idx", "name", [ready])
    assert segments(dataset.uri, "name_idx") == [[0, 2, 3]]
    agree(dataset.uri)


def test_an_index_of_a_version_that_was_cleaned_up_is_not_committed_over_a_merge(dataset):
    ready = dataset.create_index_uncommitted("name", "BTREE", fragment_ids=[0, 1, 2, 3])
    dataset = lance_core.dataset(dataset.uri)
    lance_core.dataset(dataset.uri).add_columns({"more": "id * 2"})
    lance_core.dataset(dataset.uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    with pytest.raises(RetryableConflictError, match="build the index again"):
        dataset.commit_existing_index_segments("name_idx", "name", [ready])
    assert lance_core.dataset(dataset.uri).list_indices() == lance_core.dataset(dataset.uri, version=2).list_indices()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda d, _: d.create_index_uncommitted("id", "BTREE"), InvalidInputError, "requires fragment_ids"),
        (lambda d, _: d.create_index_uncommitted("id", "BTREE", fragment_ids=[9]), InvalidInputError, "no fragment 9"),
        (lambda d, _: d.create_index_uncommitted("no", "BTREE", fragment_ids=[0]), SchemaError, "'no'"),
        (lambda d, _: d.create_index_uncommitted("id", "FOO", fragment_ids=[0]), InvalidInputError, "'FOO'"),
        (lambda d, _: d.create_index_uncommitted("id", "NGRAM", fragment_ids=[0]), UnsupportedError, "NGRAM"),
        (
            lambda d, _: d.create_index_uncommitted("id", "BTREE", fragment_ids=[0], index_uuid="x"),
            InvalidInputError,
            "'x' is not a UUID",
        ),
        (lambda d, _: d.create_scalar_index("id", "BTREE", fragment_ids=[0]), UnsupportedError, "create_index_uncomm"),
        (lambda d, _: d.merge_existing_index_segments([]), InvalidInputError, "at least one"),
        (lambda d, p: d.merge_existing_index_segments([p(0), p(0)]), InvalidInputError, "fragment 0 is in two"),
        (lambda d, p: d.merge_existing_index_segments([p(0), p(1, "BITMAP")]), InvalidInputError, "one kind"),
        (lambda d, p: d.commit_existing_index_segments("i", "id", [p(0)] * 2), InvalidInputError, "given twice"),
        (lambda d, _: d.commit_existing_index_segments("i", "id", []), InvalidInputError, "at least one"),
        (
            lambda d, _: d.merge_existing_index_segments(
                [d.create_index_uncommitted("id", "BTREE", fragment_ids=[])] * 2
            ),
            InvalidInputError,
            "given twice",
        ),
        (
            lambda d, _: d.commit_existing_index_segments(
                "i", "id", [lance.dataset(d.uri).create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0])]
            ),
            ArgumentTypeError,
            "results of this library's create_index_uncommitted, not",
        ),
        (lambda d, p: d.commit_existing_index_segments("i", "no", [p(0)]), SchemaError, "'no'"),
        (lambda d, p: d.commit_existing_index_segments("i", "name", [p(0)]), InvalidInputError, "are on column 'id'"),
    ],
)
def test_what_cannot_be_is_rejected_by_name(dataset, call, error, match):
    def part(fragment: int, kind: str = "BTREE"):
        return dataset.create_index_uncommitted("id", kind, fragment_ids=[fragment])

    with pytest.raises(error, match=match):
        call(dataset, part)
    assert lance_core.dataset(dataset.uri).version == 1


def test_a_segment_that_is_not_committed_is_cleaned_up(dataset):
    key = uuid.uuid4()
    made = dataset.create_index_uncommitted("id", "BTREE", fragment_ids=[0], index_uuid=str(key))
    assert made.uuid == str(key)
    folder = Path(dataset.uri, "_indices", str(key))
    assert list(folder.iterdir())
    dataset.cleanup_old_versions(delete_unverified=True)
    assert not folder.exists() or not list(folder.iterdir())
