"""A branch is promoted after the versions of main in between were cleaned up: decided as with the history there."""

import datetime as dt

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError

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


def fill(dataset, number, slicing, start=1000, count=25):
    """Replace a day."""
    table = day(number, count, start)
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


def add_a_column(main, slicing):
    main.add_columns({"y": "n + 1"})


FINE = [compact, compact_in_two, pylance_compacts, append_and_compact, fill_another, fill_another_and_compact,
        delete_other_rows_and_compact]  # fmt: skip
CONFLICTS = [fill_the_same, fill_the_same_and_compact, fill_the_same_new_one, fill_the_same_new_one_and_compact,
             delete_its_rows, update_its_rows]  # fmt: skip


def clean(uri, who):
    if who == "ours":
        lance_core.dataset(uri).cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
    else:
        lance.dataset(uri).cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)


def rows(dataset):
    return sorted(map(str, dataset.to_table().to_pylist()))


def promoted(path, stable, happens, slicing, cleaner):
    """The rows of main after a promotion, or None after a conflict."""
    main = make(path, stable)
    branch = main.create_branch("draft")
    for number in (1, 7):
        fill(branch.checkout_version(("draft", None)), number, slicing)
    main.checkout_latest()
    happens(main, slicing)
    if cleaner is not None:
        lance_core.dataset(main.uri).update_config({"a": "b"})
        clean(main.uri, cleaner)
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


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("happens", [*FINE, *CONFLICTS], ids=lambda one: one.__name__)
def test_as_if_the_history_were_there(tmp_path, happens, stable):
    slicing = by_window if stable else by_name
    cleaner = "ours" if stable else "theirs"
    expected = promoted(tmp_path / "whole", stable, happens, slicing, None)
    assert (expected is None) == (happens in CONFLICTS)
    assert promoted(tmp_path / "cleaned", stable, happens, slicing, cleaner) == expected


def test_other_columns_are_a_conflict(tmp_path):
    assert promoted(tmp_path / "t", False, add_a_column, by_name, "ours") is None


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_rows_of_a_mixed_fragment_are_found_where_they_went(tmp_path, stable):
    both = pa.concat_tables([day(0, 30), day(1, 30)]).take([*range(0, 60, 2), *range(1, 60, 2)])
    main = lance_core.write_dataset(both, tmp_path / "t", enable_stable_row_ids=stable)
    main.insert(day(2, 30))
    main.create_branch("draft").delete("day = 'd1' AND n % 2 = 0")
    main.checkout_latest()
    main.insert(day(3, 30))
    main.optimize.compact_files()
    clean(main.uri, "ours")
    lance_core.dataset(main.uri).branches.promote("draft")
    found = lance_core.dataset(main.uri)
    assert found.count_rows("day = 'd1'") == 15
    assert found.count_rows("day = 'd1' AND n % 2 = 0") == 0
    assert found.count_rows() == 105


def test_equal_rows_are_counted(tmp_path):
    same = pa.table({"n": [1] * 10})
    main = lance_core.write_dataset(same, tmp_path / "t")
    main.insert(same)
    branch = main.create_branch("draft")
    branch.optimize.compact_files()
    main.checkout_latest()
    main.optimize.compact_files()
    clean(main.uri, "ours")
    lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows() == 20


def test_a_promotion_made_twice_adds_nothing(tmp_path):
    main = make(tmp_path / "t", stable=False)
    fill(main.create_branch("draft"), 7, by_name)
    for _ in range(2):
        lance_core.dataset(main.uri).branches.promote("draft", tag=False)
        lance_core.dataset(main.uri).update_config({"a": "b"})
        clean(main.uri, "ours")
    assert lance_core.dataset(main.uri).count_rows("day = 'd7'") == 25
