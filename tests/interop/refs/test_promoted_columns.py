"""Branches that added columns: their promotion is one commit, which pylance reads, writes to and compacts."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError, RetryableConflictError, SchemaError, UnsupportedError

LIBRARIES = {"ours": lance_core, "theirs": lance}
STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])


@pytest.fixture(params=LIBRARIES)
def maker(request):
    """The library that adds the columns on the branch."""
    return LIBRARIES[request.param]


def day(number, count=3, start=0):
    return pa.table({"day": [f"d{number}"] * count, "n": [10 * number + start + i for i in range(count)]})


def created(path, stable=False, days=4):
    uri = str(path / "t")
    for number in range(days):
        lance.write_dataset(day(number), uri, mode="append", enable_stable_row_ids=stable)
    lance_core.dataset(uri).create_branch("work")
    return uri


def on_branch(library, uri, name="work"):
    return library.dataset(uri).checkout_version((name, None))


def rows(dataset):
    return sorted(dataset.to_table().to_pylist(), key=lambda row: row["n"])


def promoted(uri, name="work"):
    """Promote in one commit, and return what both libraries read."""
    before = lance_core.dataset(uri)
    done = lance_core.dataset(uri).branches.promote(name)
    ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
    assert done.version == ours.version == theirs.version == before.version + 1
    assert lance_core.dataset(uri, version=before.version).to_table() == before.to_table()
    theirs.validate()
    found = rows(theirs)
    assert rows(ours) == found
    assert theirs.count_rows() == len(found)
    if ours.has_stable_row_ids:
        ids = theirs.scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
        assert len(set(ids)) == len(ids)
    assert lance_core.dataset(uri).branches.promote(name).deduplicated
    return done, found


@STABLE
def test_columns_rows_and_cells_in_one_commit(tmp_path, stable, maker):
    uri = created(tmp_path, stable)
    branch = on_branch(maker, uri)
    branch.delete("day = 'd0'")  # a fragment goes
    branch.delete("n = 11")
    branch.add_columns({"more": "n + 1"})
    branch.insert(day(6).append_column("more", pa.array([7, None, 9], pa.int64())))
    on_branch(lance_core, uri).write_columns({"n": [12, 60], "label": ["a", "b"]}, on="n", where="n > 11")
    on_branch(maker, uri).update({"more": "n + 1000"}, "n = 20")
    expected = rows(on_branch(lance, uri))
    lance.write_dataset(day(8), uri, mode="append")
    done, found = promoted(uri)
    assert done.columns_added == ("more", "label")
    appended = [{**row, "more": None, "label": None} for row in day(8).to_pylist()]
    assert found == sorted([*expected, *appended], key=lambda row: row["n"])
    assert lance.dataset(uri).schema.names == ["day", "n", "more", "label"]
    # The table is written to as before, by either library.
    lance.write_dataset(day(9, 2), uri, mode="append")
    lance.dataset(uri).delete("n = 90")
    lance_core.dataset(uri).write_columns({"n": [91, 10], "label": ["x", "y"]}, on="n", missing="keep")
    known = rows(lance.dataset(uri))
    LIBRARIES["theirs"].dataset(uri).optimize.compact_files(target_rows_per_fragment=100)
    assert rows(lance.dataset(uri)) == rows(lance_core.dataset(uri)) == known
    assert len(known) == len(found) + 1
    if stable:
        ids = lance.dataset(uri).scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
        assert len(set(ids)) == len(ids)


@STABLE
def test_row_ids_and_versions(tmp_path, stable):
    """As if the rows and the columns had been written to main."""
    uri = created(tmp_path, stable)
    ids = lance.dataset(uri).scanner(columns=["n"], with_row_id=True).to_table().to_pydict()
    branch = on_branch(lance_core, uri)
    branch.write_columns({"n": [10, 12], "label": ["a", "b"]}, on="n", where="day = 'd1'", missing="keep")
    branch.update({"day": "'moved'"}, "n = 20")
    branch.insert(day(7, 1))
    done, _ = promoted(uri)
    table = lance.dataset(uri).scanner(columns=["n"], with_row_id=True).to_table().to_pydict()
    after = dict(zip(table["n"], table["_rowid"], strict=True))
    if not stable:
        return
    assert all(after[n] == i for n, i in zip(ids["n"], ids["_rowid"], strict=True))
    columns = ["n", "_row_created_at_version", "_row_last_updated_at_version"]
    made = {r["n"]: (r[columns[1]], r[columns[2]]) for r in lance.dataset(uri).to_table(columns=columns).to_pylist()}
    assert made[70] == (done.version, done.version)
    assert {n for n, (_, updated) in made.items() if updated == done.version} == {10, 12, 20, 70}
    assert {n for n, (born, _) in made.items() if born == done.version} == {70}
    delta = lance_core.dataset(uri).delta(done.version - 1)
    assert sorted(delta.get_updated_rows().read_all()["n"].to_pylist()) == [10, 12, 20]
    assert delta.get_inserted_rows().read_all()["n"].to_pylist() == [70]
    lance.write_dataset(day(8), uri, mode="append")
    again = lance.dataset(uri).scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
    assert len(set(again)) == len(again)


@pytest.mark.parametrize("kind", ["null", "struct", "vector", "dictionary", "blob"])
def test_columns_of_all_kinds(tmp_path, kind):
    uri = created(tmp_path)
    branch = on_branch(lance_core, uri)
    field = lance_core.blob_field("v") if kind == "blob" else None
    values = {
        "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None]),
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "dictionary": pa.array(["x", "y"]).dictionary_encode(),
        "blob": lance_core.blob_array([b"q" * 5_000_000, b"m" * 70_000]),
    }
    if kind == "null":
        branch.add_columns(pa.field("v", pa.int32()))
    else:
        schema = pa.schema([("n", pa.int64()), field or pa.field("v", values[kind].type)])
        branch.write_columns(pa.table([[10, 30], values[kind]], schema=schema), on="n")
    read = {"blob_handling": "all_binary"} if kind == "blob" else {}
    expected = on_branch(lance, uri).to_table(**read).to_pylist()
    done = lance_core.dataset(uri).branches.promote("work")
    assert done.columns_added == ("v",)
    assert lance.dataset(uri).to_table(**read).to_pylist() == expected
    assert lance_core.dataset(uri).to_table(**read).to_pylist() == expected
    lance.dataset(uri).validate()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update({"n": "n + 1000"}, "n = 10"),
        lambda d: d.add_columns({"label": "'z'"}),
        lambda d: d.drop_columns(["day"]),
    ],
)
def test_what_main_did_meanwhile_is_a_conflict(tmp_path, change):
    uri = created(tmp_path)
    on_branch(lance_core, uri).write_columns({"n": [10], "label": ["a"]}, on="n")
    change(lance.dataset(uri))
    before, version = rows(lance.dataset(uri)), lance.dataset(uri).version
    with pytest.raises(BranchConflictError):
        lance_core.dataset(uri).branches.promote("work")
    assert (rows(lance.dataset(uri)), lance.dataset(uri).version) == (before, version)


@STABLE
def test_what_main_did_to_rows_without_changing_the_column_is_none(tmp_path, stable):
    """It has deleted rows that have values on the branch, has other columns, and was compacted."""
    uri = created(tmp_path, stable)
    on_branch(lance_core, uri).write_columns({"n": [10, 11, 20], "label": ["a", "b", "c"]}, on="n")
    main = lance.dataset(uri)
    main.delete("n = 10")
    main.add_columns({"other": "n"})
    main.optimize.compact_files()
    if stable:
        main.update({"day": "'x'"}, "n = 11")
    labels = {11: "b", 20: "c"}
    expected = [{**row, "label": labels.get(row["n"])} for row in rows(lance.dataset(uri))]
    assert promoted(uri)[1] == expected


def test_what_main_did_elsewhere_is_none(tmp_path):
    uri = created(tmp_path)
    on_branch(lance_core, uri).write_columns({"n": [10], "label": ["a"]}, on="n", missing="keep")
    main = lance.dataset(uri)
    main.delete("n = 20")
    main.update({"day": "'x'"}, "n = 30")
    lance.write_dataset(day(5), uri, mode="append")
    expected = [{**row, "label": "a" if row["n"] == 10 else None} for row in rows(lance.dataset(uri))]
    assert promoted(uri)[1] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop_columns(["day"]), r"dropped \['day'\]"),
        (lambda d: d.alter_columns({"path": "day", "name": "date"}), r"dropped \['day'\]"),
        (lambda d: d.alter_columns({"path": "n", "data_type": pa.int32()}), r"changed \['n'\]"),
        (lambda d: d.alter_columns({"path": "label", "nullable": False}), r"\['label'\], which cannot be null"),
    ],
)
def test_other_changes_of_columns_are_rejected(tmp_path, change, message):
    uri = created(tmp_path)
    branch = on_branch(lance_core, uri)
    branch.write_columns({"n": [n for i in range(4) for n in range(10 * i, 10 * i + 3)], "label": ["a"] * 12}, on="n")
    change(branch)
    version = lance_core.dataset(uri).version
    with pytest.raises(SchemaError, match=message):
        lance_core.dataset(uri).branches.promote("work")
    assert lance_core.dataset(uri).version == version


def test_rows_that_moved_are_no_deletions(tmp_path):
    """Without stable row ids nothing records which rows of the branch are which of main: as with an Update."""
    uri = created(tmp_path)
    stale = lance_core.dataset(uri)
    branch = on_branch(lance_core, uri)
    branch.add_columns({"more": "n + 1"})
    branch.update({"more": "0"}, "n = 10")
    done, found = promoted(uri)
    with pytest.raises(UnsupportedError, match="updated rows"):
        lance_core.dataset(uri).delta(done.version - 1).get_inserted_rows().read_all()
    plan = stale.plan_columns(pa.schema([("label", pa.string())]))
    rows_of = stale.to_table(["n"], with_row_address=True)
    values = rows_of.append_column("label", pa.array([str(n) for n in rows_of["n"].to_pylist()])).drop_columns(["n"])
    split = {task.fragment_id: values.slice(3 * task.fragment_id, 3) for task in plan.tasks}
    written = [task.write(stale, split[task.fragment_id]) for task in plan.tasks]
    with pytest.raises(RetryableConflictError):
        stale.commit_columns(plan, written)
    assert rows(lance.dataset(uri)) == found


def test_rows_and_columns_are_insertions(tmp_path):
    uri = created(tmp_path)
    branch = on_branch(lance_core, uri)
    branch.add_columns(pa.field("more", pa.int64()))
    branch.insert(day(6).append_column("more", pa.array([1, 2, 3])))
    done, _ = promoted(uri)
    assert lance_core.dataset(uri).delta(done.version - 1).get_inserted_rows().read_all()["more"].to_pylist() == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("new_column", [{"late": "n + 1000"}, pa.field("late", pa.int64())], ids=["values", "nulls"])
def test_new_rows_have_no_value_in_a_column_with_the_id_of_a_dropped_one(tmp_path, maker, new_column):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(day(0), uri).add_columns({"late": "n + 1"})
    lance_core.dataset(uri).create_branch("work")
    new = day(1).append_column("late", pa.array([1, 2, 3]))
    maker.write_dataset(new, on_branch(maker, uri), mode="append")
    maker.dataset(uri).drop_columns(["late"])
    maker.dataset(uri).add_columns(new_column)
    with pytest.raises(BranchConflictError, match="has its field id now"):
        lance_core.dataset(uri).branches.promote("work")
    assert lance_core.dataset(uri).count_rows() == 3


def test_new_rows_follow_a_column_that_was_dropped_and_added_if_they_lack_it(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(day(0), uri).create_branch("work")
    lance.write_dataset(day(1), on_branch(lance, uri), mode="append")
    for _ in range(2):
        lance_core.dataset(uri).add_columns({"late": "n + 1"})
        lance_core.dataset(uri).drop_columns(["late"])
    lance_core.dataset(uri).add_columns({"late": "n + 1"})
    lance_core.dataset(uri).branches.promote("work")
    assert lance.dataset(uri).count_rows() == 6
