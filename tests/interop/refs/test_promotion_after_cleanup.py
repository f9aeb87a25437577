"""A branch is promoted after the versions of main in between were cleaned up.

After a cleanup of this library it is decided as with the history there: the transactions of the removed versions are
stored. After one of pylance nothing is known, and the promotion says so before it writes anything.
"""

import datetime as dt
import errno
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError, InvalidInputError, StoreError
from lance_core.maintenance.cleanup import run as cleanup_run

DAYS = 6


def day(number, count=40, start=0):
    return pa.table({
        "day": [f"d{number}"] * count,
        "when": [dt.datetime(2024, 1, 1 + number, i % 24) for i in range(count)],
        "n": [start + i for i in range(count)],
        "x": [float("nan") if i % 7 == 0 else i / 3 for i in range(count)],
        "tags": [[number, i] for i in range(count)],
    })  # fmt: skip


def by_name(number):
    return lance_core.Slice(name=f"d{number}", conditions={"day": lance_core.Equals(f"d{number}")})


def by_window(number):
    start = dt.datetime(2024, 1, 1 + number)
    window = lance_core.Between(start, start + dt.timedelta(days=1))
    return lance_core.Slice(name=f"d{number}", conditions={"when": window})


def by_three_columns(number):
    """Rows of one hour of the day: nothing but the commit says which."""
    when = dt.datetime(2024, 1, 1 + number, 0)
    values = {"day": f"d{number}", "when": when, "n": 7000}
    return lance_core.Slice(name=f"d{number}", conditions={key: lance_core.Equals(one) for key, one in values.items()})


def fill(dataset, number, slicing, start=1000, count=25):
    """Replace a day, or a row of it."""
    table = day(number, 1, 7000) if slicing is by_three_columns else day(number, count, start)
    fragments = lance_core.write_fragments(table, dataset.uri, mode="append")
    return lance_core.commit_fragments(
        dataset.uri, fragments, table.schema, mode="replace", slices=lance_core.Slices([slicing(number)])
    )


def make(path, stable):
    uri = str(path)
    for number in range(DAYS):
        lance_core.write_dataset(day(number), uri, mode="append" if number else "create", enable_stable_row_ids=stable)
    return lance_core.dataset(uri)


def compact(main, slicing):
    main.optimize.compact_files()


def compact_in_two(main, slicing):
    main.optimize.compact_files(target_rows_per_fragment=100)


def pylance_compacts(main, slicing):
    lance.dataset(main.uri).optimize.compact_files()


def append_and_compact(main, slicing):
    main.insert(day(8))
    main.optimize.compact_files()
    main.insert(day(9))


def fill_another(main, slicing):
    fill(main, 4, slicing)


def fill_another_and_compact(main, slicing):
    fill(main, 4, slicing)
    lance_core.dataset(main.uri).optimize.compact_files()


def fill_the_same(main, slicing):
    fill(main, 1, slicing, start=5000)


def fill_the_same_and_compact(main, slicing):
    fill(main, 1, slicing, start=5000)
    lance_core.dataset(main.uri).optimize.compact_files()


def fill_the_same_new_one(main, slicing):
    fill(main, 7, slicing, start=5000)


def fill_the_same_new_one_and_compact(main, slicing):
    fill(main, 7, slicing, start=5000)
    lance_core.dataset(main.uri).optimize.compact_files()


def delete_its_rows(main, slicing):
    main.delete("day = 'd1' AND n < 3")


def update_its_rows(main, slicing):
    main.update({"n": "n + 1"}, where="day = 'd1' AND n < 3")


def delete_other_rows_and_compact(main, slicing):
    main.delete("day = 'd3'")
    main.optimize.compact_files()


def delete_some_rows_and_compact(main, slicing):
    main.delete("day = 'd3' AND n < 10")
    lance.dataset(main.uri).delete("day = 'd2' AND n < 10")
    main.checkout_latest()
    main.optimize.compact_files()


def add_a_column(main, slicing):
    main.add_columns({"y": "n + 1"})


def drop_a_column(main, slicing):
    main.drop_columns(["x"])


FINE = [compact, compact_in_two, pylance_compacts, append_and_compact, fill_another, fill_another_and_compact,
        delete_other_rows_and_compact, delete_some_rows_and_compact, drop_a_column]  # fmt: skip
CONFLICTS = [fill_the_same, fill_the_same_and_compact, fill_the_same_new_one, fill_the_same_new_one_and_compact,
             delete_its_rows, update_its_rows]  # fmt: skip
EITHER = [add_a_column]  # a conflict where rows have no stable ids


def clean(uri, library=lance_core, **options):
    options = {"older_than": dt.timedelta(0), "error_if_tagged_old_versions": False} | options
    library.dataset(uri).cleanup_old_versions(**options)


def rows(dataset):
    return sorted(map(str, dataset.to_table().to_pylist()))


def drafted(path, stable, happens, slicing=by_name):
    """A table with a branch that fills two days, and what happened on main since the fork."""
    main = make(path, stable)
    branch = main.create_branch("draft")
    for number in (1, 7):
        fill(branch.checkout_version(("draft", None)), number, slicing)
    main.checkout_latest()
    happens(main, slicing)
    lance_core.dataset(main.uri).update_config({"a": "b"})
    return lance_core.dataset(main.uri)


def promoted(path, stable, happens, slicing, *, is_cleaned):
    """The rows of main after a promotion, or None after a conflict."""
    main = drafted(path, stable, happens, slicing)
    if is_cleaned:
        for _ in range(2):
            clean(main.uri, delete_unverified=True)
        assert len(lance_core.dataset(main.uri).versions()) < 4
    before = rows(lance_core.dataset(main.uri))
    try:
        lance_core.dataset(main.uri).branches.promote("draft")
    except BranchConflictError:
        assert rows(lance_core.dataset(main.uri)) == before
        return None
    after = lance.dataset(main.uri)
    after.validate()
    assert rows(after) == rows(lance_core.dataset(main.uri))
    return rows(after)


@pytest.mark.variants(7)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("happens", [*FINE, *CONFLICTS, *EITHER], ids=lambda one: one.__name__)
def test_as_if_the_history_were_there(tmp_path, happens, stable):
    slicing = by_window if stable else by_name
    expected = promoted(tmp_path / "whole", stable, happens, slicing, is_cleaned=False)
    assert (expected is None) == (happens in CONFLICTS or (happens in EITHER and not stable))
    assert promoted(tmp_path / "cleaned", stable, happens, slicing, is_cleaned=True) == expected


@pytest.mark.parametrize("happens", [fill_another, fill_the_same_new_one], ids=lambda one: one.__name__)
def test_slices_over_any_columns(tmp_path, happens):
    after = promoted(tmp_path / "t", False, happens, by_three_columns, is_cleaned=True)
    assert (after is None) == (happens in CONFLICTS)


def test_no_data_file_of_a_removed_version_stays(tmp_path):
    main = drafted(tmp_path / "t", False, fill_another_and_compact)
    clean(main.uri)
    kept = {version["version"] for version in main.versions()}
    needed = {
        data_file.path
        for version in kept
        for fragment in main.checkout_version(version).get_fragments()
        for data_file in fragment.metadata.files
    }
    assert {file.name for file in (tmp_path / "t" / "data").iterdir()} == needed
    theirs = lance.dataset(main.uri)
    assert {version["version"] for version in theirs.versions()} == kept
    for version in kept:  # each version that either library lists can be read
        assert theirs.checkout_version(version).to_table().num_rows == main.checkout_version(version).count_rows()


def test_pylance_leaves_the_stored_transactions_alone(tmp_path):
    main = drafted(tmp_path / "t", False, fill_another_and_compact)
    clean(main.uri)
    stored = sorted((tmp_path / "t" / "_transactions" / "removed").iterdir())
    assert stored
    lance.dataset(main.uri).insert(day(9))
    clean(main.uri)
    clean(main.uri, lance, delete_unverified=True)
    assert set(stored) <= set((tmp_path / "t" / "_transactions" / "removed").iterdir())
    lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows("day = 'd9'") == 40
    assert lance_core.dataset(main.uri).count_rows("day = 'd7'") == 25


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_deletion_files_that_another_tool_removed_from_beside_stored_transactions(tmp_path):
    """Any tool may remove a file that no version refers to and that is seven days old."""
    main = lance_core.write_dataset(day(0), tmp_path / "t")
    main.insert(day(1))
    main.create_branch("draft").delete("n = 3")
    main.checkout_latest()
    main.delete("n = 5")
    main.optimize.compact_files(materialize_deletions_threshold=0.0)
    main.update_config({"a": "b"})
    clean(main.uri)
    assert list((tmp_path / "t" / "_deletions").iterdir())
    shutil.rmtree(tmp_path / "t" / "_deletions")
    before = files_of(tmp_path / "t")
    with pytest.raises(BranchConflictError, match=r"which rows version \d+ moved is not known.*Discard the branch"):
        lance_core.dataset(main.uri).branches.promote("draft")
    assert files_of(tmp_path / "t") == before


def test_a_full_disk_is_cleaned_and_the_promotion_says_what_is_lost(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise StoreError(errno.ENOSPC, "put: No space left on device")

    main = drafted(tmp_path / "t", False, fill_another)
    monkeypatch.setattr(cleanup_run, "store_removed_transaction", full)
    clean(main.uri)
    assert len(main.versions()) == 2
    assert "open branches cannot be promoted" in caplog.text
    with pytest.raises(BranchConflictError, match="nothing records what main changed"):
        main.branches.promote("draft")


@pytest.mark.parametrize("ends", ["promote", "discard"])
def test_stored_transactions_go_with_the_branch(tmp_path, ends):
    main = drafted(tmp_path / "t", False, fill_another_and_compact)
    main.create_branch("later")
    main.update_config({"a": "c"})
    clean(main.uri)
    folder = tmp_path / "t" / "_transactions" / "removed"
    before = {int(file.name) for file in folder.iterdir()}
    getattr(main.branches, ends)("draft")
    main = lance_core.dataset(main.uri)
    main.update_config({"a": "d"})
    clean(main.uri)
    after = {int(file.name) for file in folder.iterdir()}
    fork = main.branches.list()["later"]["parent_version"]
    assert min(after, default=fork + 1) > fork >= min(before)
    main.branches.discard("later")
    clean(main.uri)
    assert list(folder.iterdir()) == []


def cleaned_by_pylance(main):
    clean(main.uri, lance)


def cleaned_by_an_older_release(main):
    clean(main.uri)
    shutil.rmtree(Path(main.uri) / "_transactions" / "removed")


@pytest.mark.parametrize("cleanup", [cleaned_by_pylance, cleaned_by_an_older_release], ids=lambda one: one.__name__)
def test_a_history_that_is_not_known_is_one_error_with_a_remedy(tmp_path, cleanup):
    main = drafted(tmp_path / "t", False, fill_another)
    cleanup(main)
    before = sorted((tmp_path / "t").rglob("*"))
    version, fork = main.version, main.branches.list()["draft"]["parent_version"]
    with pytest.raises(BranchConflictError, match=rf"what main changed in version {fork + 1}[. ]") as raised:
        main.branches.promote("draft")
    assert "Nothing was written. Discard the branch, fork again and write again" in str(raised.value)
    assert sorted((tmp_path / "t").rglob("*")) == before
    assert lance_core.dataset(main.uri).version == version
    main.branches.discard("draft")
    fill(lance_core.dataset(main.uri).create_branch("draft"), 7, by_name)
    lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows("day = 'd7'") == 25


@pytest.mark.parametrize("who", [lance, lance_core], ids=["pylance", "ours"])
def test_a_branch_that_was_cleaned_up_itself(tmp_path, who):
    """Its commits say which slices it filled: one that main has filled meanwhile is not filled twice."""
    main = make(tmp_path / "t", False)
    branch = main.create_branch("draft")
    fill(branch, 7, by_name)
    branch.checkout_latest()
    branch.update_config({"a": "b"})
    fill(lance_core.dataset(main.uri), 7, by_name, start=5000)
    options = {"older_than": dt.timedelta(0), "error_if_tagged_old_versions": False}
    cleaned = lance_core.dataset(main.uri).checkout_version(("draft", None))
    if who is lance:
        lance.dataset(main.uri).checkout_version(("draft", None)).cleanup_old_versions(**options)
    else:
        cleaned.cleanup_old_versions(**options)
    assert len(cleaned.versions()) < 3
    message = "filled 'd7' as well" if who is lance_core else "what branch 'draft' changed in version 7"
    with pytest.raises(BranchConflictError, match=message):
        lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows("day = 'd7'") == 25


@pytest.mark.parametrize("number", [4, 7], ids=["another day", "the same day"])
def test_a_branch_of_a_branch(tmp_path, number):
    main = make(tmp_path / "t", False)
    middle = main.create_branch("middle")
    fill(middle.create_branch("draft"), 7, by_name)
    fill(middle, number, by_name, start=5000)
    middle.checkout_latest()
    middle.update_config({"a": "b"})
    middle.cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
    assert len(middle.versions()) == 2
    if number == 7:
        with pytest.raises(BranchConflictError, match="filled 'd7' as well"):
            main.branches.promote("draft")
    else:
        main.branches.promote("draft")
    middle.checkout_latest()
    assert middle.count_rows("day = 'd7'") == 25
    assert main.count_rows("day = 'd7'") == 0


def test_a_cleanup_that_is_interrupted_and_repeated(tmp_path, monkeypatch):
    main = drafted(tmp_path / "t", False, fill_the_same_new_one)
    real = cleanup_run._Remover.remove

    def remove(self, files, workers):
        if any(file.kind == "manifest" for file in files):
            raise KeyboardInterrupt
        return real(self, files, workers)

    with monkeypatch.context() as patch:
        patch.setattr(cleanup_run._Remover, "remove", remove)
        with pytest.raises(KeyboardInterrupt):
            clean(main.uri)
    clean(main.uri)
    with pytest.raises(BranchConflictError, match="filled 'd7' as well"):
        main.branches.promote("draft")


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_rows_of_a_mixed_fragment_are_found_where_they_went(tmp_path, stable):
    both = pa.concat_tables([day(0, 30), day(1, 30)]).take([*range(0, 60, 2), *range(1, 60, 2)])
    main = lance_core.write_dataset(both, tmp_path / "t", enable_stable_row_ids=stable)
    main.insert(day(2, 30))
    main.create_branch("draft").delete("day = 'd1' AND n % 2 = 0")
    main.checkout_latest()
    main.delete("day = 'd1' AND n = 3")
    main.insert(day(3, 30))
    main.optimize.compact_files()
    for deleted in (5, 7):
        clean(main.uri, delete_unverified=True)
        main.delete(f"day = 'd1' AND n = {deleted}")
    lance_core.dataset(main.uri).branches.promote("draft")
    found = lance_core.dataset(main.uri)
    assert sorted(found.to_table(["n"], filter="day = 'd1'")["n"].to_pylist()) == [1, *range(9, 30, 2)]
    assert found.count_rows() == 102


def test_equal_rows_are_counted(tmp_path):
    same = pa.table({"n": [1] * 10})
    main = lance_core.write_dataset(same, tmp_path / "t")
    main.insert(same)
    branch = main.create_branch("draft")
    branch.optimize.compact_files()
    main.checkout_latest()
    main.optimize.compact_files()
    clean(main.uri)
    lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows() == 20


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "unmarked"])
def test_a_promotion_made_twice_adds_nothing(tmp_path, is_marked):
    main = make(tmp_path / "t", stable=False)
    fill(main.create_branch("draft"), 7, by_name)
    for library in (lance_core, lance, lance_core):
        lance_core.dataset(main.uri).branches.promote("draft", tag=False)
        if not is_marked:
            main.branches.replace_metadata("draft", {})
        lance_core.dataset(main.uri).update_config({"a": library.__name__})
        clean(main.uri, library)
    assert lance_core.dataset(main.uri).count_rows("day = 'd7'") == 25


def test_a_branch_that_goes_on_after_its_promotion_is_not_promoted_again(tmp_path):
    main = make(tmp_path / "t", stable=False)
    main.create_branch("draft").insert(day(7))
    main.branches.promote("draft", tag=False)
    lance_core.dataset(main.uri).update_config({"a": "b"})
    clean(main.uri)
    lance_core.dataset(main.uri).checkout_version(("draft", None)).insert(day(8))
    with pytest.raises(InvalidInputError, match="has changed since"):
        lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows("day = 'd7'") == 40


def test_moved_rows_of_columns_that_no_search_could_find(tmp_path):
    main = lance_core.write_dataset({"v": [[1.0], [2.0]]}, tmp_path / "t", max_rows_per_file=1)
    main.create_branch("draft").delete("array_has(v, 1.0)")
    main.checkout_latest()
    main.optimize.compact_files()
    clean(main.uri)
    lance_core.dataset(main.uri).branches.promote("draft")
    assert lance.dataset(main.uri).to_table().to_pylist() == [{"v": [2.0]}]


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_promotion_that_may_have_been_taken_back_is_no_success(tmp_path, is_restored):
    """pylance removes the version after it, which a restore may have made; the tag of the promotion keeps it."""
    uri = str(tmp_path / "t.lance")
    table = lance_core.write_dataset(pa.table({"id": [1]}), uri)
    table.create_branch("work").insert(pa.table({"id": [2]}))
    promoted = table.branches.promote("work").version
    if is_restored:
        table.checkout_version(1).restore()
    else:
        lance_core.dataset(uri).update_config({"mine": "1"})
    lance_core.dataset(uri).update_config({"mine": "2"})
    lance.dataset(uri).cleanup_old_versions(
        older_than=dt.timedelta(0), error_if_tagged_old_versions=False, delete_unverified=True
    )
    table = lance_core.dataset(uri)
    assert [version["version"] for version in table.versions()] == [1, promoted, promoted + 2]
    if not is_restored:
        assert table.branches.promote("work").deduplicated
        table.branches.check_promotion("work", promoted)
        return
    for call in (lambda: table.branches.promote("work"), lambda: table.branches.check_promotion("work", promoted)):
        with pytest.raises(BranchConflictError, match=f"is not known, as version {promoted + 1} was cleaned up"):
            call()
    assert table.to_table()["id"].to_pylist() == [1]
