"""What a promotion publishes: the rows of the named version, and the first rows of a table of one branch alone."""

import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.errors import BranchConflictError, RetryableConflictError


@pytest.fixture
def table(tmp_path):
    return lance.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t.lance")


@pytest.fixture
def empty(tmp_path):
    return lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "empty.lance")


def ids(table):
    return sorted(lance.dataset(table.root_uri).to_table()["id"].to_pylist())


@pytest.mark.parametrize("dry_run", [False, True])
def test_rows_that_came_after_the_named_version_are_not_promoted(table, dry_run):
    branch = table.create_branch("work")
    branch.insert(pa.table({"id": [3]}))
    checked = branch.version
    branch.delete("id = 3")
    with pytest.raises(RetryableConflictError, match=rf"at version {checked}, .*: version {checked + 1} may have"):
        table.branches.promote("work", version=checked, dry_run=dry_run)
    assert ids(table) == [1, 2]
    assert not [name for name in table.tags.list() if name.startswith("promoted.")]


def test_maintenance_of_the_branch_keeps_the_rows_of_the_named_version(table):
    branch = table.create_branch("work")
    for number in (3, 4):
        branch.insert(pa.table({"id": [number]}))
    checked = branch.version
    branch.optimize.compact_files()
    branch.create_scalar_index("id", "BTREE")
    branch.update_config({"mine": "1"})
    assert branch.version > checked
    assert table.branches.promote("work", version=checked).branch_version == branch.version
    assert ids(table) == [1, 2, 3, 4]
    assert table.branches.promote("work", version=checked).deduplicated


def test_a_version_that_the_branch_does_not_have(table):
    branch = table.create_branch("work")
    branch.insert(pa.table({"id": [3]}))
    with pytest.raises(RetryableConflictError, match=f"at version {branch.version + 1}, and its latest"):
        table.branches.promote("work", version=branch.version + 1)


def overwritten(main, name, number):
    branch = main.ensure_branch(name)
    lance.write_dataset(pa.table({"id": [number]}), branch, mode="overwrite")


@pytest.mark.parametrize("stable", [False, True])
def test_one_of_two_first_overwrites_is_promoted(tmp_path, stable):
    none = pa.table({"id": pa.array([], pa.int64())})
    main = lance.write_dataset(none, tmp_path / "t.lance", enable_stable_row_ids=stable)
    overwritten(main, "one", 1)
    overwritten(main, "two", 2)
    main.branches.promote("one")
    for dry_run in (True, False):
        with pytest.raises(BranchConflictError, match="which had no rows then, and version 2 has rows of others"):
            main.branches.promote("two", dry_run=dry_run)
    assert ids(main) == [1]
    assert main.branches.promote("one").deduplicated


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_an_overwrite_from_nothing_conflicts_with_rows_of_main(empty, mode):
    overwritten(empty, "work", 1)
    lance.write_dataset(pa.table({"id": [2]}), empty.uri, mode=mode)
    with pytest.raises(BranchConflictError):
        empty.branches.promote("work")
    assert ids(empty) == [2]


def test_rows_that_come_while_the_promotion_commits(empty, monkeypatch):
    from lance_core.verbs.refs.promotion import promote

    overwritten(empty, "work", 1)
    real = promote.commit_change

    def others_first(*args, **kwargs):
        monkeypatch.undo()
        lance.write_dataset(pa.table({"id": [2]}), empty.uri, mode="append")
        return real(*args, **kwargs)

    monkeypatch.setattr(promote, "commit_change", others_first)
    with pytest.raises(BranchConflictError):
        lance.dataset(empty.uri).branches.promote("work")
    assert ids(empty) == [2]


def test_appends_to_a_table_without_rows_both_stay(empty):
    for name, number in (("one", 1), ("two", 2)):
        empty.ensure_branch(name).insert(pa.table({"id": [number]}))
    for name in ("one", "two"):
        empty.branches.promote(name)
    assert ids(empty) == [1, 2]


def test_rows_that_main_had_and_lost_do_not_conflict(empty):
    overwritten(empty, "work", 1)
    empty.insert(pa.table({"id": [2]}))
    empty.delete("true")
    empty.branches.promote("work")
    assert ids(empty) == [1]


def test_partitions_of_a_table_without_rows_both_stay(empty):
    for number in (1, 2):
        branch = empty.ensure_branch(f"work{number}")
        slices = lance.Slices([lance.Slice(name=str(number), conditions={"id": lance.Equals(number)})])
        rows = pa.table({"id": [number]})
        lance.commit_fragments(
            branch.uri,
            lance.write_fragments(rows, branch.uri, mode="append"),
            rows.schema,
            mode="replace",
            slices=slices,
        )
    for number in (1, 2):
        empty.branches.promote(f"work{number}")
    assert ids(empty) == [1, 2]


def test_files_that_are_written_again_are_no_change_of_rows(table):
    table.insert(pa.table({"id": [3]}))
    branch = table.create_branch("work")
    assert branch.optimize.compact_files().fragments_added == 1
    promotion = table.branches.promote("work")
    assert promotion.deduplicated
    assert promotion.tag is None
    assert lance.dataset(table.root_uri).version == table.version
    branch.delete("id = 3")
    assert not table.branches.promote("work").deduplicated
    assert ids(table) == [1, 2]
