"""Promotions of merges that record their keys: a key that main got since the fork is a conflict, other rows are not."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError
from lance_core.table.operations import update

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def table(*rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def merge(dataset, *rows):
    builder = dataset.merge_insert("id").record_keys().when_matched_update_all().when_not_matched_insert_all()
    builder.execute(table(*rows))


def rows(uri):
    return sorted(tuple(row.values()) for row in lance.dataset(uri).to_table().to_pylist())


@pytest.fixture(params=[False, True], ids=["addresses", "stable"])
def uri(tmp_path, request):
    """A table with a branch that has updated key 1 and inserted key 3."""
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(table((1, 0), (2, 0)), uri, enable_stable_row_ids=request.param)
    merge(lance_core.dataset(uri).create_branch("work"), (1, 10), (3, 30))
    return uri


@pytest.fixture(params=[True, False], ids=["listed", "unlisted"], autouse=True)
def listed(request, monkeypatch):
    """With as many keys as a commit lists, and with more."""
    if not request.param:
        monkeypatch.setattr(update, "MAX_EXACT_KEYS", 0)


def inserts(uri, by, *new):
    if by == "merge":
        merge(lance_core.dataset(uri), *new)
    elif by == "pylance merges":
        lance.dataset(uri).merge_insert("id").when_not_matched_insert_all().execute(table(*new))
    else:
        lance.write_dataset(table(*new), uri, mode="append")


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["history", "cleaned"])
@pytest.mark.parametrize("by", ["merge", "pylance merges", "append"])
def test_keys_that_main_got_since_the_fork(uri, by, is_cleaned):
    inserts(uri, by, (4, 40))
    if is_cleaned:
        lance.dataset(uri).optimize.compact_files()
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    main = lance_core.dataset(uri)
    main.create_branch("again")
    merge(main.checkout_version(("again", None)), (3, 33))
    main.branches.promote("work")
    assert rows(uri) == [(1, 10), (2, 0), (3, 30), (4, 40)]
    with pytest.raises(BranchConflictError, match="key"):
        main.branches.promote("again")
    assert rows(uri) == [(1, 10), (2, 0), (3, 30), (4, 40)]


@pytest.mark.parametrize("by", ["merge", "pylance merges", "append"])
def test_a_key_that_main_got_since_the_fork_is_a_conflict(uri, by):
    inserts(uri, by, (3, 33))
    with pytest.raises(BranchConflictError):
        lance_core.dataset(uri).branches.promote("work")
    assert rows(uri) == [(1, 0), (2, 0), (3, 33)]


def test_columns_that_main_got_since_the_fork_are_no_conflict(uri):
    lance_core.dataset(uri).add_columns(pa.field("more", pa.int64()))
    lance_core.dataset(uri).branches.promote("work")
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3]


def test_a_merge_on_main_that_runs_beside_the_promotion_is_repeated(uri):
    stale = lance_core.dataset(uri)
    lance_core.dataset(uri).branches.promote("work")
    merge(stale, (3, 33), (4, 40))
    assert rows(uri) == [(1, 10), (2, 0), (3, 33), (4, 40)]
