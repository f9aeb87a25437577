"""Changes between versions, against pylance's `delta`, and against the rows of both versions by themselves."""

import pickle
import shutil
from datetime import timedelta

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_core
from lance_core.errors import InvalidInputError, NotFoundError, SchemaError, UnsupportedError, VersionNotFoundError
from tests.support.deltas import table, take_step
from tests.support.hypothesis_settings import examples

FEED = ["_change_type", "_commit_version"]


def rows(reader, *columns):
    table = reader.read_all()
    return sorted(map(tuple, zip(*(table[name].to_pylist() for name in columns or table.column_names), strict=True)))


def changes(delta, *columns, **options):
    return rows(delta.get_changes(**options), *(columns or ("id", *FEED)))


@pytest.fixture
def history(tmp_path):
    """Six versions by pylance: created, appended, updated, deleted, and compacted in two."""
    uri = str(tmp_path / "t")
    lance.write_dataset(table(1, 2, 3, 4), uri, enable_stable_row_ids=True, max_rows_per_file=3)
    lance.write_dataset(table(5, 6), uri, mode="append")
    lance.dataset(uri).update({"n": "n + 100"}, where="id in (1, 5)")
    lance.dataset(uri).delete("id = 2")
    lance.dataset(uri).optimize.compact_files()
    assert lance.dataset(uri).version == 6
    return uri


@pytest.mark.parametrize("begin", range(7))
def test_rows_and_transactions_are_those_of_pylance(history, begin):
    ours, theirs = lance_core.dataset(history).delta(begin), lance.dataset(history).delta(begin)
    for kind in ("get_inserted_rows", "get_updated_rows", "get_deleted_row_ids"):
        own, other = getattr(ours, kind)(), getattr(theirs, kind)()
        assert own.schema.equals(other.schema, check_metadata=True)
        assert rows(own) == rows(other), kind
    assert [one.uuid for one in ours.list_transactions()] == [one.uuid for one in theirs.list_transactions()]


def test_an_earlier_end_gives_the_rows_of_that_version(history):
    """pylance reads them from the version of the handle, where rows may have been changed or deleted since."""
    delta = lance_core.dataset(history).delta(begin_version=1, end_version=2)
    assert rows(delta.get_inserted_rows(), "id", "n") == [(5, 0), (6, 0)]
    assert (delta.begin_version, delta.end_version) == (1, 2)


def test_all_changes_in_one_feed(history):
    dataset = lance_core.dataset(history)
    assert changes(dataset.delta(1)) == [
        (1, "update_postimage", 3), (2, "delete", 6), (5, "insert", 3), (6, "insert", 2)
    ]  # fmt: skip
    assert changes(dataset.delta(1), "id", "n", "_change_type", preimages=True) == [
        (1, 0, "update_preimage"), (1, 100, "update_postimage"), (2, 0, "delete"), (5, 100, "insert"), (6, 0, "insert")
    ]  # fmt: skip
    assert changes(dataset.delta(1), "id", "n", *FEED, each_version=True, preimages=True) == [
        (1, 0, "update_preimage", 3), (1, 100, "update_postimage", 3), (2, 0, "delete", 4),
        (5, 0, "insert", 2), (5, 0, "update_preimage", 3), (5, 100, "update_postimage", 3), (6, 0, "insert", 2),
    ]  # fmt: skip
    feed = dataset.delta(2).get_changes(["id"], with_row_id=True)
    assert feed.schema.names == ["id", *FEED, "_commit_timestamp", "_rowid"]
    moments = {one["version"]: one["timestamp"].astimezone() for one in dataset.versions()}
    for row in feed.read_all().to_pylist():
        assert abs(row["_commit_timestamp"] - moments[row["_commit_version"]]) < timedelta(milliseconds=1)


def test_a_compaction_changes_nothing(history):
    delta = lance_core.dataset(history).delta(4)
    assert changes(delta) == changes(delta, each_version=True) == []
    assert rows(delta.get_deleted_rows()) == []


def test_deleted_rows_come_from_the_earlier_version(history):
    found = lance_core.dataset(history).delta(2).get_deleted_rows().read_all()
    assert found.select(["id", "n", "_rowid"]).to_pylist() == [{"id": 2, "n": 0, "_rowid": 1}]


def test_a_restore_gives_back_what_was_deleted_and_takes_away_what_was_inserted(history):
    lance.dataset(history, version=1).restore()
    dataset = lance_core.dataset(history)
    assert changes(dataset.delta(6), "id", "n", *FEED) == [
        (1, 0, "update_postimage", 7), (2, 0, "insert", 7), (5, 100, "delete", 7), (6, 0, "delete", 7)
    ]  # fmt: skip
    assert changes(dataset.delta(1)) == []


def test_an_overwrite_replaces_all_rows(history):
    lance.write_dataset(table(9), history, mode="overwrite")
    dataset = lance_core.dataset(history)
    assert changes(dataset.delta(6)) == [*((i, "delete", 7) for i in (1, 3, 4, 5, 6)), (9, "insert", 7)]
    assert len(changes(dataset.delta(5), each_version=True)) == 6


def test_columns_with_values_update_rows_and_others_do_not(history):
    theirs = lance.dataset(history)
    theirs.add_columns(pa.field("empty", pa.int32()))
    theirs.alter_columns({"path": "n", "name": "m"})
    assert changes(lance_core.dataset(history).delta(6)) == []
    theirs.add_columns({"double": "m * 2"})
    theirs.drop_columns(["empty"])
    delta = lance_core.dataset(history).delta(6)
    assert changes(delta, "id", "m", "double", "_change_type")[0] == (1, 100, 200, "update_postimage")
    assert rows(delta.get_updated_rows()) == rows(theirs.delta(6).get_updated_rows())
    theirs.delete("id = 1")
    # As the earlier version has it, under the names of the later one.
    deleted = lance_core.dataset(history).delta(6).get_changes().read_all().slice(0, 1).to_pylist()[0]
    assert (deleted["id"], deleted["m"], deleted["double"], deleted["_change_type"]) == (1, 100, None, "delete")


def test_a_value_that_does_not_fit_the_type_of_today(tmp_path):
    dataset = lance_core.write_dataset(
        pa.table({"id": [1, 2], "n": pa.array([1, 1 << 40])}), tmp_path / "t", enable_stable_row_ids=True
    )
    dataset.delete("id = 2")
    dataset.alter_columns({"path": "n", "data_type": pa.int8()})
    with pytest.raises(SchemaError, match="column 'n' was int64"):
        dataset.delta(1).get_changes().read_all()
    assert changes(dataset.delta(1), columns=["id"]) == [(1, "update_postimage", 3), (2, "delete", 3)]


def test_versions_that_were_cleaned_up(history):
    lance.dataset(history).tags.create("kept", 2)
    lance_core.dataset(history).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    dataset = lance_core.dataset(history)
    for use in (dataset.delta(1).get_changes, dataset.delta(1).plan, dataset.delta(1).list_transactions):
        with pytest.raises(
            VersionNotFoundError,
            match=r"version [1-5] was cleaned up.*oldest version after which no version is missing is 6",
        ):
            use()
    with pytest.raises(
        VersionNotFoundError, match="version 4 was cleaned up, or lies before the fork of the branch; it has"
    ):
        dataset.delta(begin_version=2, end_version=4)
    # What both ends say is enough for the net changes; those of each version are lost.
    assert changes(dataset.delta(2)) == [(1, "update_postimage", 3), (2, "delete", 6), (5, "update_postimage", 3)]
    feed = dataset.delta(2).get_changes().read_all()
    assert sorted(zip(feed["id"].to_pylist(), feed["_commit_timestamp"].is_valid().to_pylist(), strict=True)) == [
        (1, False), (2, True), (5, False)
    ]  # fmt: skip
    with pytest.raises(VersionNotFoundError, match="version 3 was cleaned up"):
        dataset.delta(2).plan(each_version=True)


def test_wrong_versions(history):
    dataset = lance_core.dataset(history)
    for wrong in ({}, {"begin_version": 1}, {"end_version": 1}, {"compared_against": 1, "begin_version": 1}):
        with pytest.raises(InvalidInputError, match=r"compared_against"):
            dataset.delta(**wrong)
    with pytest.raises(
        InvalidInputError, match="begin_version is 7; it must lie between 0 and end_version, which is 6"
    ):
        dataset.delta(7)
    with pytest.raises(VersionNotFoundError, match="no version 9; the latest is 6"):
        dataset.delta(begin_version=1, end_version=9)
    with pytest.raises(InvalidInputError, match="max_rows_per_task is 0"):
        dataset.delta(1).plan(max_rows_per_task=0)


def test_a_column_with_a_name_of_the_feed(tmp_path):
    own = lance_core.write_dataset(pa.table({"id": [1], "_change_type": ["x"]}), tmp_path / "t")
    with pytest.raises(SchemaError, match="'_change_type' has the name of a column of the change feed"):
        own.delta(0).get_changes()
    assert changes(own.delta(0), columns=["id"]) == [(1, "insert", 1)]


def test_tasks_are_read_anywhere(history):
    dataset = lance_core.dataset(history)
    delta = dataset.delta(1)
    plan = delta.plan(preimages=True, max_rows_per_task=1, with_row_id=True)
    whole = delta.get_changes(preimages=True, with_row_id=True)
    assert plan.schema == whole.schema
    assert {task.num_rows for task in plan.tasks} == {1}
    assert plan.counts == {"delete": 1, "update_preimage": 1, "update_postimage": 1, "insert": 2}
    parts = [
        batch
        for task in plan.tasks
        for batch in pickle.loads(pickle.dumps(task)).to_batches(lance_core.dataset(history))
    ]
    assert pa.Table.from_batches(parts, plan.schema) == whole.read_all()


def test_planning_reads_no_data_file(history):
    dataset = lance_core.dataset(history)
    shutil.rmtree(f"{history}/data")
    assert dict(dataset.delta(2).plan().counts) == {"delete": 1, "update_postimage": 2}


def test_of_rows_that_a_filter_leaves_out_no_other_column_is_read(tmp_path):
    days = pa.table({"id": range(6), "day": ["mon"] * 3 + ["tue"] * 3})
    dataset = lance_core.write_dataset(days, tmp_path / "t", enable_stable_row_ids=True, max_rows_per_file=3)
    dataset.write_columns({"id": range(6), "photo": [b"."] * 6}, on="id")
    files = [fragment.data_files()[-1].path for fragment in lance.dataset(dataset.uri).get_fragments()]
    (tmp_path / "t" / "data" / files[1]).unlink()
    for begin, kind in ((0, "insert"), (1, "update_postimage")):
        found = dataset.delta(begin).get_changes(["id", "photo"], filter="day = 'mon'").read_all()
        assert found.select(["id", "photo", "_change_type"]).to_pylist() == [
            {"id": i, "photo": b".", "_change_type": kind} for i in range(3)
        ]
        with pytest.raises(NotFoundError):
            dataset.delta(begin).get_changes(["photo"]).read_all()


def test_filters_that_fit_no_column(history):
    delta = lance_core.dataset(history).delta(1)
    with pytest.raises(SchemaError, match="missing"):
        delta.get_changes(filter="missing = 1")
    with pytest.raises(InvalidInputError, match="not true or false"):
        delta.plan(filter=pc.field("n") + 1).tasks[0].to_batches(lance_core.dataset(history)).__next__()


def test_without_stable_row_ids_rows_are_known_by_fragments(tmp_path):
    uri = str(tmp_path / "t")
    lance.write_dataset(table(1, 2, 3, 4), uri, max_rows_per_file=2)
    lance.write_dataset(table(5, 6), uri, mode="append")
    lance.dataset(uri).delete("id in (1, 6)")
    lance.dataset(uri).optimize.compact_files()
    lance.write_dataset(table(7), uri, mode="append")
    lance.dataset(uri).delete("id = 4")
    lance.dataset(uri).optimize.compact_files()
    dataset = lance_core.dataset(uri)
    end = dataset.version
    assert changes(dataset.delta(1)) == [(1, "delete", end), (4, "delete", end), (5, "insert", 2), (7, "insert", 6)]
    assert [row[:2] for row in changes(dataset.delta(1), each_version=True)] == [
        (1, "delete"), (4, "delete"), (5, "insert"), (6, "delete"), (6, "insert"), (7, "insert")
    ]  # fmt: skip
    assert rows(dataset.delta(1).get_inserted_rows(), "id") == [(5,), (7,)]
    assert rows(dataset.delta(1).get_deleted_rows(), "id") == [(1,), (4,)]
    for kind in ("get_updated_rows", "get_deleted_row_ids"):
        with pytest.raises(UnsupportedError, match="need stable row ids"):
            getattr(dataset.delta(1), kind)()


@pytest.mark.parametrize(
    "verb",
    [
        lambda uri: lance.dataset(uri).update({"n": "5"}, where="id = 1"),
        lambda uri: lance.dataset(uri).merge_insert("id").when_matched_update_all().execute(table(1, value=9)),
        lambda uri: lance.dataset(uri).add_columns({"m": "n + 1"}),
    ],
    ids=["update", "merge", "column"],
)
def test_without_stable_row_ids_updates_are_rejected_by_name(tmp_path, verb):
    uri = str(tmp_path / "t")
    lance.write_dataset(table(1, 2), uri)
    verb(uri)
    lance.dataset(uri).delete("id = 2")
    dataset = lance_core.dataset(uri)
    with pytest.raises(UnsupportedError, match=r"version 2 cannot be listed: it updated rows.*stable row ids"):
        dataset.delta(1).get_changes()
    assert changes(dataset.delta(2)) == [(2, "delete", 3)]
    lance.dataset(uri, version=1).restore()
    again = lance_core.dataset(uri)
    if "m" in dataset.schema.names:
        with pytest.raises(UnsupportedError, match="version 4"):
            again.delta(3).plan()
    else:
        assert {row[1] for row in changes(again.delta(3))} <= {"insert", "delete"}


def test_a_partition_that_is_replaced_is_deleted_and_inserted(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(table(1, 2), uri)
    new = lance_core.write_fragments(table(2, 2, value=5), uri)
    slices = lance_core.Slices((lance_core.Slice(name="two", conditions={"id": lance_core.Equals(2)}),))
    lance_core.commit_fragments(uri, new, table().schema, mode="replace", slices=slices)
    delta = lance_core.dataset(uri).delta(1)
    assert changes(delta, "id", "n", "_change_type") == [(2, 0, "delete"), (2, 5, "insert"), (2, 5, "insert")]


STEPS = st.lists(
    st.sampled_from(
        ["append", "delete", "update", "merge", "compact", "restore", "overwrite", "column", "index", "move"]
    ),
    min_size=1,
    max_size=7,
)


@examples(30)
@given(steps=STEPS, seed=st.integers(0, 1 << 16), ours=st.booleans())
def test_applying_the_changes_to_the_earlier_version_gives_the_later_one(tmp_path_factory, steps, seed, ours):
    uri = str(tmp_path_factory.mktemp("t") / "t")
    rng = np.random.default_rng(seed)
    library = lance_core if ours else lance
    library.write_dataset(table(*range(8)), uri, enable_stable_row_ids=True, max_rows_per_file=3)
    for number, step in enumerate(steps):
        take_step(library, uri, step, rng, 10 * number + 10)
    dataset = lance_core.dataset(uri)
    begin = int(rng.integers(0, dataset.version + 1))
    for each in (False, True):
        _check_applied(dataset, begin, each_version=each)
        _check_filtered(dataset, begin, each_version=each, preimages=bool(rng.integers(2)))


def _check_applied(dataset, begin, **options):
    def version(number):
        if not number:
            return {}
        found = dataset.checkout_version(number).to_table(["id", "n"], with_row_id=True).to_pylist()
        return {row["_rowid"]: (row["id"], row["n"]) for row in found}

    state = version(begin)
    feed = dataset.delta(begin).get_changes(["id", "n"], preimages=True, with_row_id=True, **options)
    outdated = set()
    for row in feed.read_all().to_pylist():
        key, values = row["_rowid"], (row["id"], row["n"])
        if row["_change_type"] == "update_preimage":
            outdated.add((key, row["_commit_version"], row["_commit_timestamp"]))
        elif row["_change_type"] == "update_postimage":
            outdated.remove((key, row["_commit_version"], row["_commit_timestamp"]))
        assert begin < row["_commit_version"] <= dataset.version
        if row["_change_type"] == "insert":
            assert key not in state
            state[key] = values
        elif row["_change_type"] == "delete":
            assert state.pop(key) == values
        elif row["_change_type"] == "update_preimage":
            assert state[key] == values
        else:
            assert key in state
            state[key] = values
    assert state == version(dataset.version)
    assert not outdated, "both images name the version that updated the row"


def _check_filtered(dataset, begin, **options):
    """A filter gives the rows that meet it, in the same order, whether its columns are read or not."""
    delta = dataset.delta(begin)
    whole = delta.get_changes(["id", "n"], **options).read_all()
    for condition, keeps in (("n > 5", lambda n: n > 5), ("n > 100 or n < 10", lambda n: n > 100 or n < 10)):
        expected = whole.filter(pa.array([keeps(n) for n in whole["n"].to_pylist()], pa.bool_()))
        assert delta.get_changes(["id", "n"], filter=condition, **options).read_all() == expected
        assert delta.get_changes(["id"], filter=condition, **options).read_all() == expected.drop_columns(["n"])
        tasks = pickle.loads(pickle.dumps(delta.plan(["id"], filter=condition, **options).tasks))
        assert sum(batch.num_rows for task in tasks for batch in task.to_batches(dataset)) == len(expected)


@pytest.mark.parametrize("name", ["_rowid", "_rowaddr"])
def test_names_of_rows_are_no_columns_of_changes(tmp_path, name):
    table = lance_core.write_dataset({"n": [1]}, str(tmp_path / "t"), enable_stable_row_ids=True)
    with pytest.raises(SchemaError, match=f"changes have no column '{name}': with_row_id=True adds the ids"):
        table.delta(begin_version=0, end_version=1).get_changes([name, "n"])
