"""Changes across a column that was dropped, and added again under its field id, or restored with its values."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import UnsupportedError

BOTH = pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
FEED = ("_change_type", "_commit_version", "_commit_timestamp")


def rows_by_key(table):
    return {row["k"]: row for row in table.to_pylist()}


def applied(uri, begin, **options):
    """The rows of an earlier version, in the columns of the latest one, after the feed was applied to them."""
    table = lance_core.dataset(uri)
    names = table.schema.names
    rows = rows_by_key(lance_core.dataset(uri, version=begin).to_table()) if begin else {}
    rows = {key: {name: row.get(name) for name in names} for key, row in rows.items()}
    for row in (
        table.delta(begin_version=begin, end_version=table.version).get_changes(**options).read_all().to_pylist()
    ):
        if row["_change_type"] == "delete":
            rows.pop(row["k"])
        else:
            rows[row["k"]] = {name: value for name, value in row.items() if name not in FEED}
    return rows


def latest_rows(uri):
    return rows_by_key(lance_core.dataset(uri).to_table())


@pytest.fixture
def dropped(tmp_path):
    """A table whose column f, in a file of its own, was dropped."""
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"k": [0, 1, 2]}), uri, enable_stable_row_ids=True)
    lance_core.dataset(uri).add_columns({"f": "k * 2"})
    lance_core.dataset(uri).drop_columns(["f"])
    return uri


def ids(uri, version=None):
    fields = lance_core.dataset(uri, version=version).lance_schema.fields()
    return [(field.name(), field.id()) for field in fields]


@pytest.mark.parametrize("way", ["some values", "all values", "no values"])
@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
def test_the_next_column_is_another_one(dropped, way, compacted):
    if way == "some values":
        lance_core.dataset(dropped).write_columns(pa.table({"k": [0], "f": [7]}), on="k", missing="keep")
    elif way == "all values":
        lance.dataset(dropped).add_columns({"f": "k + 100"})
    else:
        lance.dataset(dropped).add_columns(pa.field("f", pa.int64()))
    assert ids(dropped) == ids(dropped, 2)
    if compacted:
        lance_core.dataset(dropped).insert(pa.table({"k": [3]}))
        lance_core.dataset(dropped).optimize.compact_files()
    assert applied(dropped, 2) == latest_rows(dropped)
    for begin in (0, 1, 3):
        assert applied(dropped, begin, each_version=True) == latest_rows(dropped)
        assert applied(dropped, begin) == latest_rows(dropped)


def test_old_rows_have_no_value_in_the_next_column(dropped):
    lance_core.dataset(dropped).write_columns(pa.table({"k": [0], "f": [7]}), on="k", missing="keep")
    lance_core.dataset(dropped).delete("k = 2")
    feed = lance_core.dataset(dropped).delta(2).get_changes(["k", "f"], preimages=True, filter="k = 2")
    assert [(row["_change_type"], row["f"]) for row in feed.read_all().to_pylist()] == [("delete", None)]


def test_a_column_that_takes_the_name_of_another_one_changes_all_rows(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"k": [0, 1], "v": [1, 2], "w": [3, 4]}), uri, enable_stable_row_ids=True)
    lance.dataset(uri).drop_columns(["v"])
    lance.dataset(uri).alter_columns({"path": "w", "name": "v"})
    assert applied(uri, 1) == latest_rows(uri) == {0: {"k": 0, "v": 3}, 1: {"k": 1, "v": 4}}


@BOTH
@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "file of its own"])
def test_a_restored_column_updates_all_rows(tmp_path, library, alone):
    uri = str(tmp_path / "t")
    rows = {"k": [0, 1, 2], "a": [5, 6, 7]}
    table = lance_core.write_dataset(pa.table({"k": rows["k"]} if alone else rows), uri, enable_stable_row_ids=True)
    table.add_columns({"a": "k + 5"} if alone else {"b": "k"})
    library.dataset(uri).drop_columns(["a"])
    library.dataset(uri).update({"k": "9"}, where="k = 1")
    library.dataset(uri, version=2).restore()
    table = lance_core.dataset(uri)
    for begin in (3, 4):
        kinds = table.delta(begin).get_changes().read_all()["_change_type"].to_pylist()
        assert kinds == ["update_postimage"] * 3
        assert table.delta(begin).get_updated_rows().read_all()["a"].to_pylist() == [5, 6, 7]
        assert table.delta(begin).get_changes(["a"], updates_of=["a"]).read_all().num_rows == 3
    assert table.delta(1).get_changes(updates_of=["k"]).read_all().num_rows == 0
    latest = table.delta(4).get_changes(each_version=True, preimages=True).read_all()
    assert set(zip(latest["_change_type"].to_pylist(), latest["_commit_version"].to_pylist(), strict=True)) == {
        ("update_preimage", 5),
        ("update_postimage", 5),
    }


def test_a_restore_of_the_same_columns_updates_what_differs(tmp_path):
    table = lance_core.write_dataset(pa.table({"k": [0, 1, 2]}), tmp_path / "t", enable_stable_row_ids=True)
    table.update({"k": "9"}, where="k = 1")
    lance_core.dataset(tmp_path / "t", version=1).restore()
    assert lance_core.dataset(tmp_path / "t").delta(2).get_changes().read_all()["k"].to_pylist() == [1]


def test_a_column_that_was_added_for_some_rows_updates_these(tmp_path):
    table = lance_core.write_dataset(pa.table({"k": [0, 1, 2]}), tmp_path / "t", enable_stable_row_ids=True)
    table.write_columns(pa.table({"k": [0], "f": [7]}), on="k", missing="keep")
    assert table.delta(1).get_changes().read_all()["k"].to_pylist() == [0]


def test_without_stable_row_ids_a_restored_column_is_named(tmp_path):
    lance_core.write_dataset(pa.table({"k": [0, 1], "a": [5, 6]}), tmp_path / "t")
    lance_core.dataset(tmp_path / "t").drop_columns(["a"])
    lance_core.dataset(tmp_path / "t", version=1).restore()
    with pytest.raises(UnsupportedError, match=r"version 3 cannot be listed: it updated rows \(Restore\)"):
        lance_core.dataset(tmp_path / "t").delta(2).get_changes()
