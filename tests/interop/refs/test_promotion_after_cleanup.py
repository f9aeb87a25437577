"""A branch is promoted after the versions of main in between were cleaned up: decided as with the history there."""

import datetime as dt
from decimal import Decimal

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


@pytest.mark.variants(7)
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


NAN = float("nan")
STRUCT = pa.struct([("x", pa.float64()), ("words", pa.list_(pa.string()))])
COLUMNS = {
    "list": (pa.array([[1.0, NAN], None, [], [3.0]]), pa.array([[1.0], None])),
    "zero": (pa.array([[0.0], [0.0], [1.0], [2.0]]), pa.array([[-0.0], [-0.0]])),
    "vector": (pa.array([[1, 2], [3, NAN], None, [4, 5]], pa.list_(pa.float32(), 2)), [[1, 2], [3, 4]]),
    "struct": (pa.array([{"x": NAN, "words": ["a"]}, None, {"x": 1, "words": None}, None], STRUCT), [None, None]),
    "binary": (pa.array([b"a", None, b"c", b"d"]), [b"a", b""]),
    "fixed binary": (pa.array([b"aa", None, b"cc", b"dd"], pa.binary(2)), [b"aa", b"bb"]),
    "decimal": (pa.array([Decimal("1.5"), None, Decimal("2.5"), None]), [None, Decimal("1.5")]),
    "dictionary": (pa.array(["b", "a", None, "a"]).dictionary_encode(), pa.array(["b", "b"]).dictionary_encode()),
    "map": (pa.array([[("k", NAN)], None, [], [("l", 1.0)]], pa.map_(pa.string(), pa.float64())), [[], []]),
    "json": (pa.array(['{"a":1}', None, "1", "2"], pa.json_()), ['{"a":2}', None]),
}  # fmt: skip


def with_column(values, metadata=None):
    field = pa.field("v", values.type, metadata=metadata)
    return pa.table([pa.array([1, 2, 3, 4][: len(values)]), values], schema=pa.schema([("id", pa.int64()), field]))


@pytest.mark.parametrize("changes", [False, True], ids=["compacted", "changed"])
@pytest.mark.parametrize("kind", [*COLUMNS, "blob"])
def test_columns_of_any_type_are_compared(tmp_path, kind, changes):
    if kind == "blob":
        metadata, values, other = (
            {"lance-encoding:blob": "true"},
            [b"a", None, b"c" * 70_000, b"d"],
            [b"a", b"b" * 70_000],
        )
        values = pa.array(values, pa.large_binary())
    else:
        metadata, (values, other) = None, COLUMNS[kind]
    version = "2.1" if kind == "blob" else "2.2"
    main = lance_core.write_dataset(
        with_column(values, metadata), tmp_path / "t", max_rows_per_file=2, data_storage_version=version
    )
    main.create_branch("draft").delete("id <= 2")
    main.checkout_latest()
    if changes:
        rows = with_column(other if isinstance(other, pa.Array) else pa.array(other, values.type), metadata)
        main.merge_insert("id").when_matched_update_all().execute(rows)
    main.optimize.compact_files()
    clean(main.uri, "ours")
    main = lance_core.dataset(main.uri)
    before = rows_of(main)
    if changes:
        with pytest.raises(BranchConflictError, match="rows of fragment 0 have been changed"):
            main.branches.promote("draft")
        assert rows_of(lance_core.dataset(main.uri)) == before
    else:
        main.branches.promote("draft")
        assert rows_of(lance_core.dataset(main.uri)) == [row for row in before if row[0] > 2]


def rows_of(dataset):
    return [(row["id"], str(row["v"])) for row in dataset.scanner(blob_handling="all_binary").to_table().to_pylist()]


def test_moved_rows_without_a_column_to_search_are_a_conflict(tmp_path):
    main = lance_core.write_dataset({"v": [[1.0], [2.0]]}, tmp_path / "t", max_rows_per_file=1)
    main.create_branch("draft").delete("array_has(v, 1.0)")
    main.checkout_latest()
    main.optimize.compact_files()
    clean(main.uri, "ours")
    with pytest.raises(BranchConflictError, match="no column has numbers, times or strings"):
        lance_core.dataset(main.uri).branches.promote("draft")
