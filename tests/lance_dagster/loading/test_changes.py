"""Inputs that bring what changed since the asset's own last commit."""

import datetime as dt
import json
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import DatasetNotFoundError
from lance_core.maintenance.routine.survey import list_held_versions
from lance_dagster import BranchPolicy, LanceMaintenancePolicy, build_maintenance_job, build_undo_job
from lance_dagster.undo.plan import CannotUndoError, plan_undo
from tests.lance_dagster.lake import QUIET, Lake, errors
from tests.lance_dagster.loading.copies import ALL, CHANGED, DAYS, ONE, SINCE, THREE, TWO, Copy, change, rows, source


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "lazy"])
def test_changes_are_merged_in_one_commit(lake, table, kind):
    import pandas as pd

    kinds = {"arrow": pa.Table, "pandas": pd.DataFrame}
    if kind in ("polars", "lazy"):
        pl = pytest.importorskip("polars")
        kinds |= {"polars": pl.DataFrame, "lazy": pl.LazyFrame}
    copy = Copy(kinds[kind])
    assert copy.run(lake)[0] == ALL
    assert lake.rows("copy") == [(1, 0), (2, 0), (3, 0)]
    version = lake.table("copy").version
    change(lake)
    given, result = copy.run(lake)
    assert given == CHANGED
    assert lake.rows("copy") == [(2, 10), (3, 0), (4, 0)]
    assert lake.table("copy").version == version + 1
    assert copy.run(lake)[0] == []
    assert lake.rows("copy") == [(2, 10), (3, 0), (4, 0)]
    (event,) = result.asset_materializations_for_node("copy")
    now = lake.table("source").version
    assert event.metadata["lance/changes"].value == [
        {
            "asset": "source",
            "from_version": 1,
            "to_version": now,
            "rows_inserted": 1,
            "rows_updated": 1,
            "rows_deleted": 1,
        }
    ]
    assert [event.metadata[f"lance/changes_{kind}"].value for kind in ("inserted", "updated", "deleted")] == [1, 1, 1]
    assert f'"version": {now}' in lake.properties("copy")[version]["dagster.input.source"]


def test_the_watermark_outlives_everything_but_a_restore(lake, table):
    copy = Copy(write_mode="append")
    copy.run(lake)
    change(lake)
    copy.run(lake)
    lance.dataset(lake.uri("copy")).optimize.compact_files()
    lance.dataset(lake.uri("copy")).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    lance.write_dataset(rows(9), lake.uri("source"), mode="append")
    assert copy.run(lake)[0] == [(9, 0, "insert")]
    dataset = lake.table("copy")
    dataset.checkout_version(dataset.version - 1).restore()
    assert copy.run(lake)[0] == [(9, 0, "insert")]


def test_a_failed_run_moves_nothing_and_its_retry_sees_the_same(lake, table):
    copy = Copy(fails=["no", "before", "no"])
    copy.run(lake)
    change(lake)
    given, failed = copy.run(lake, fails=True)
    assert given == CHANGED
    lance.write_dataset(rows(9), lake.uri("source"), mode="append")
    tags = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    assert copy.run(lake, tags=tags)[0] == CHANGED
    assert copy.run(lake)[0] == [(9, 0, "insert")]


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_an_attempt_that_has_committed_is_replaced_by_the_same_changes(lake, table, mode):
    """Its check fails after the commit; what changes meanwhile comes with the next run."""
    outcome = [True, False, True, True]
    given = []
    metadata = {"lance/write_mode": mode} | ({"lance/merge_on": "id"} if mode == "merge" else {})

    @dg.asset(
        ins={"source": dg.AssetIn(metadata=SINCE)},
        metadata=metadata,
        check_specs=[dg.AssetCheckSpec("fine", asset="copy", blocking=True)],
    )
    def copy(source: pa.Table):
        given.append(sorted((row["id"], row["n"], row["_change_type"][:6]) for row in source.to_pylist()))
        yield dg.Output(source)
        yield dg.AssetCheckResult(passed=outcome.pop(0), check_name="fine", asset_key="copy")

    lake.run(source, copy, select=["copy"])
    change(lake)
    failed = lake.run(source, copy, select=["copy"], fails=True)
    version = lake.table("copy").version
    lance.write_dataset(rows(9), lake.uri("source"), mode="append")
    tags = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    lake.run(source, copy, select=["copy"], tags=tags)
    assert given == [ALL, CHANGED, CHANGED]
    assert lake.table("copy").version == version + 1
    lake.run(source, copy, select=["copy"])
    assert given[-1] == [(9, 0, "insert")]
    expected = [(2, 10), (3, 0), (4, 0), (9, 0)] if mode == "merge" else [*ALL, *CHANGED, (9, 0, "insert")]
    assert len(lake.rows("copy")) == len(expected)


def test_a_full_refresh_reads_all_and_replaces_the_table(lake, table):
    copy = Copy()
    copy.run(lake)
    change(lake)
    lance.write_dataset(rows(77), lake.uri("copy"), mode="append")
    given, _ = copy.run(lake, tags={"lance/full_refresh": "true"})
    assert given == [(2, 10, "insert"), (3, 0, "insert"), (4, 0, "insert")]
    assert lake.rows("copy") == [(2, 10), (3, 0), (4, 0)]
    assert copy.run(lake)[0] == []
    said = errors(copy.run(lake, tags={"lance/full_refresh": "maybe"}, fails=True)[1])
    assert "must be true or false" in said


def test_deleted_versions_are_an_error_with_a_remedy(lake, table):
    copy = Copy()
    copy.run(lake)
    change(lake)
    for tag in list(lake.table("source").tags.list()):
        lake.table("source").tags.delete(tag)
    lance.dataset(lake.uri("source")).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    oldest = lake.table("source").version
    said = errors(copy.run(lake, fails=True)[1])
    assert "version 1 of" in said
    assert f"the oldest available version is {oldest}" in said
    assert copy.run(lake, tags={"lance/full_refresh": "true"})[0] == [
        (2, 10, "insert"),
        (3, 0, "insert"),
        (4, 0, "insert"),
    ]


def test_a_table_that_was_made_again_is_rejected(lake, table):
    copy = Copy()
    copy.run(lake)
    lance_core.LanceDataset.drop(lake.uri("source"))
    lance.write_dataset(rows(1), lake.uri("source"))
    assert "dropped and created again" in errors(copy.run(lake, fails=True)[1])


def test_another_run_that_consumes_the_same_changes_meanwhile_conflicts(lake, table):
    copy = Copy(write_mode="append")
    copy.run(lake)
    change(lake)
    other = Copy(write_mode="append")

    @dg.asset(ins={"source": dg.AssetIn(metadata=SINCE)}, metadata={"lance/write_mode": "append"})
    def slow(source: pa.Table):
        other.run(lake)
        return source

    slow = slow.with_attributes(asset_key_replacements={dg.AssetKey("slow"): dg.AssetKey("copy")})
    said = errors(lake.run(source, slow, select=["copy"], fails=True))
    assert "moved since by" in said
    assert len(lake.rows("copy")) == len(ALL) + len(CHANGED)


class TestPartitions:
    @pytest.fixture
    def table(self, lake):
        days = pa.concat_tables([rows(1, 2, day=ONE), rows(3, day=TWO)])
        return lance.write_dataset(days, lake.uri("source"), enable_stable_row_ids=True)

    def test_each_partition_has_its_own(self, lake, table):
        copy = Copy(partitions=DAYS)
        assert copy.run(lake, partition="2024-01-01")[0] == [(1, 0, "insert"), (2, 0, "insert")]
        lance.dataset(lake.uri("source")).update({"n": "7"}, where="id in (1, 3)")
        assert copy.run(lake, partition="2024-01-02")[0] == [(3, 7, "insert")]
        assert copy.run(lake, partition="2024-01-01")[0] == [(1, 7, "update")]
        assert copy.run(lake, partition="2024-01-01")[0] == []
        assert [row[:2] for row in lake.rows("copy")] == [(1, 7), (2, 0), (3, 7)]

    def test_partitions_that_are_not_equally_far_in_one_run(self, lake, table):
        copy = Copy(partitions=DAYS)
        copy.run(lake, partition="2024-01-01")
        lance.dataset(lake.uri("source")).update({"n": "7"}, where="id in (1, 3)")
        given, _ = copy.run(lake, span=("2024-01-01", "2024-01-03"))
        assert given == [(1, 7, "update"), (3, 7, "insert")]
        assert copy.run(lake, span=("2024-01-01", "2024-01-03"))[0] == []

    def test_rows_that_move_leave_one_partition_and_come_into_the_other(self, lake, table):
        copy = Copy(partitions=DAYS)
        copy.run(lake, span=("2024-01-01", "2024-01-02"))
        lance.dataset(lake.uri("source")).update({"day": "date '2024-01-02'"}, where="id = 1")
        assert copy.run(lake, partition="2024-01-01")[0] == [(1, 0, "delete")]
        assert copy.run(lake, partition="2024-01-02")[0] == [(1, 0, "insert")]
        assert [row[0] for row in lake.rows("copy")] == [1, 2, 3]

    def test_a_partition_that_is_replaced_is_merged_by_its_keys(self, lake, table):
        copy = Copy(partitions=DAYS)
        copy.run(lake, partition="2024-01-01")
        dataset = lance_core.dataset(lake.uri("source"))
        slices = lance_core.Slices([lance_core.Slice(name="1", conditions={"day": lance_core.Equals(ONE)})])
        new = rows(2, 5, n=4, day=ONE)
        fragments = lance_core.write_fragments(new, dataset.uri, mode="append")
        lance_core.commit_fragments(dataset.uri, fragments, new.schema, mode="replace", slices=slices)
        given, _ = copy.run(lake, partition="2024-01-01")
        assert given == [(1, 0, "delete"), (2, 0, "delete"), (2, 4, "insert"), (5, 4, "insert")]
        assert [row[:2] for row in lake.rows("copy")] == [(2, 4), (5, 4)]


def test_a_retry_of_partitions_of_which_one_was_read_further_meanwhile(lake):
    lance.write_dataset(pa.concat_tables([rows(1, day=ONE), rows(2, day=TWO)]), lake.uri("source"))
    copy, span = Copy(partitions=DAYS), ("2024-01-01", "2024-01-02")

    @dg.asset(deps=["copy"])
    def after():
        raise dg.Failure("after")

    copy.run(lake, span=span)
    lake.table("source").insert(rows(3, day=ONE))
    failed = lake.run(*copy.assets, after, select=["copy", "after"], span=span, fails=True)
    lake.table("source").insert(rows(4, day=TWO))
    copy.run(lake, partition="2024-01-02")
    again = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    _, failed = copy.run(lake, span=span, tags=again, fails=True)
    assert "run the partitions one by one, or with the tag lance/full_refresh=true" in errors(failed)


def test_a_partition_whose_rows_have_all_left(lake):
    """Dagster knows of no materialization of it, but the reader has read rows of it."""
    days = pa.concat_tables([rows(1, day=ONE), rows(2, day=TWO)])
    lance.write_dataset(days, lake.uri("source"), enable_stable_row_ids=True)
    copy = Copy(partitions=DAYS)
    copy.run(lake, partition="2024-01-01")
    lake.table("source").update({"day": "date '2024-01-02'"}, where="id = 1")
    assert copy.run(lake, partition="2024-01-01")[0] == [(1, 0, "delete")]


def test_updates_of_a_table_without_stable_row_ids_name_the_command(lake):
    merged = iter([rows(1, 2), rows(2, 3, n=1), rows(3, n=2)])
    merge = {"lance/write_mode": "merge", "lance/merge_on": "id", "lance/stable_row_ids": False}

    @dg.asset(name="source", metadata=merge)
    def upstream() -> pa.Table:
        return next(merged)

    copy = Copy()
    assets = [upstream, copy.assets[1]]
    first = lake.run(*assets)
    messages = [entry.user_message for entry in lake.instance.all_logs(first.run_id)]
    assert any("has no stable row ids, so that later runs fail" in message for message in messages)
    said = errors(lake.run(*assets, fails=True))
    assert f"Give them to the table (lance migrate-row-ids {lake.uri('source')}" in said
    assert "input 'source' (asset source)" in said
    lake.run(*assets, tags={"lance/full_refresh": "true"})
    assert lake.rows("copy") == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize(("column", "expected"), [("label", [3, 0, 0, 3]), ("vec", [3, 3, 0, 0])])
def test_updates_of_columns_that_are_not_read_bring_nothing(lake, table, column, expected):
    """An update in place rewrites its column of the fragment, so that no row of it is known to have kept its value."""
    uri, given = lake.uri("source"), []
    lance_core.dataset(uri).write_columns({"id": [1, 2, 3], "label": ["a", "b", "c"], "vec": [0.0, 0.0, 0.0]}, on="id")
    merge = {"lance/write_mode": "merge", "lance/merge_on": "id"}

    @dg.asset(ins={"source": dg.AssetIn(metadata={**SINCE, "columns": ["id", column]})}, metadata=merge)
    def captions(source: pa.Table) -> pa.Table:
        given.append(source.num_rows)
        return source

    def run():
        result = lake.run(source, captions, select=["captions"])
        (event,) = result.asset_materializations_for_node("captions")
        assert event.metadata["lance/changes"].value[0]["rows_updated"] == (0 if len(given) == 1 else given[-1])

    run()
    lance_core.dataset(uri).write_columns({"id": [1, 2, 3], "vec": [1.0, 2.0, 3.0]}, on="id")
    lance.dataset(uri).optimize.compact_files()
    run()
    lance.dataset(uri).add_columns({"more": "n + 1"})
    run()
    lance_core.dataset(uri).update({"label": "'z'"}, "id = 2", write_mode="rewrite_columns")
    lance_core.dataset(uri).write_columns({"id": [1, 2, 3], "more": [1, 2, 3]}, on="id")
    run()
    assert given == expected


def test_a_column_asset_does_not_read_its_own_columns_again(lake, table):
    given = []
    owned = {"lance/write_mode": "columns", "lance/table": "source", "lance/key": "id", "lance/missing": "keep"}

    @dg.asset(ins={"source": dg.AssetIn(metadata=SINCE)}, metadata=owned)
    def scores(source: pa.Table) -> pa.Table:
        rows = [row for row in source.to_pylist() if row["_change_type"] != "delete"]
        given.append(sorted(row["id"] for row in rows))
        return pa.table({"id": pa.array(given[-1], pa.int64()), "score": [float(i) for i in given[-1]]})

    def run():
        lake.run(source, scores, select=["scores"])
        return given[-1]

    assert run() == [1, 2, 3]
    assert run() == []
    lake.table("source").update({"n": "n + 1"}, "id = 2")
    lance.write_dataset(rows(4).append_column("score", pa.nulls(1, pa.float64())), lake.uri("source"), mode="append")
    assert run() == [2, 4]
    assert run() == []
    assert lake.rows("source", columns=["id", "score"]) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_key_that_is_changed_leaves_no_row_behind(lake, table):
    copy = Copy()
    copy.run(lake)
    lance.dataset(lake.uri("source")).update({"id": "id + 100"}, where="id = 2")
    assert copy.run(lake)[0] == [(2, 0, "delete"), (102, 0, "insert")]
    assert lake.rows("copy") == [(1, 0), (3, 0), (102, 0)]


KEYS = {
    "computed, and one of the input": ({"lance/merge_on": ["group", "id"]}, None),
    "with clauses": (
        {"lance/merge_on": {"on": ["group", "id"], "when_matched": "update", "when_not_matched": "insert"}},
        None,
    ),
    "left out of the columns of the input": ({"lance/merge_on": ["group", "id"]}, ["id", "n"]),
}


@pytest.mark.parametrize(("metadata", "columns"), KEYS.values(), ids=KEYS)
def test_a_key_that_the_asset_computes_leaves_no_row_behind(lake, columns, metadata):
    """Also where the input's table has a column of that name that the input does not have."""
    table = rows(1, 2, 3)
    if columns is not None:
        table = table.append_column("group", pa.array(["other"] * 3))
    lance.write_dataset(table, lake.uri("source"), enable_stable_row_ids=True)
    given = []

    @dg.asset(
        ins={"source": dg.AssetIn(metadata={**SINCE, **({} if columns is None else {"columns": columns})})},
        metadata={"lance/write_mode": "merge", **metadata},
    )
    def grouped(source: pa.Table) -> pa.Table:
        given.append(sorted((row["id"], row["n"], row["_change_type"][:6]) for row in source.to_pylist()))
        group = ["low" if n < 10 else "high" for n in source["n"].to_pylist()]
        return source.append_column("group", pa.array(group, pa.string()))

    def run():
        (event,) = lake.run(source, grouped, select=["grouped"]).asset_materializations_for_node("grouped")
        found = lake.table("grouped").to_table(["group", "id", "n"]).to_pylist()
        now = lake.table("source").to_table(["id", "n"]).to_pylist()
        expected = sorted(("low" if row["n"] < 10 else "high", row["id"], row["n"]) for row in now)
        assert sorted(tuple(row.values()) for row in found) == expected
        return given[-1], [event.metadata[f"lance/changes_{kind}"].value for kind in ("inserted", "updated", "deleted")]

    assert run() == (ALL, [3, 0, 0])
    lance.dataset(lake.uri("source")).update({"n": "n + 10"}, where="id = 1")
    lance.dataset(lake.uri("source")).update({"n": "n + 1"}, where="id = 2")
    lance.dataset(lake.uri("source")).delete("id = 3")
    split = [(1, 0, "delete"), (1, 10, "insert"), (2, 0, "delete"), (2, 1, "insert"), (3, 0, "delete")]
    assert run() == (split, [0, 2, 1])
    assert run() == ([], [0, 0, 0])


def test_a_row_that_moves_to_a_computed_partition_leaves_the_other_one(lake):
    """Both partitions are in one run, and no column of their key is the input's."""
    days = pa.concat_tables([rows(1, 2, day=ONE), rows(3, day=THREE)])
    lance.write_dataset(days, lake.uri("source"), enable_stable_row_ids=True)
    halves = dg.StaticPartitionsDefinition(["first", "second"])
    mapping = dg.StaticPartitionMapping({"2024-01-01": "first", "2024-01-02": "first", "2024-01-03": "second"})
    of_days = dg.StaticPartitionsDefinition(["2024-01-01", "2024-01-02", "2024-01-03"])
    upstream = dg.asset(name="source", partitions_def=of_days, metadata={"partition_expr": "day"})(lambda: None)

    @dg.asset(
        partitions_def=halves,
        ins={"source": dg.AssetIn(metadata={**SINCE, "lance/missing": "empty"}, partition_mapping=mapping)},
        metadata={"partition_expr": "half", "lance/write_mode": "merge", "lance/merge_on": ["half", "id"]},
    )
    def copy(source: pa.Table) -> pa.Table:
        half = ["second" if day == THREE else "first" for day in source["day"].to_pylist()]
        return source.append_column("half", pa.array(half, pa.string()))

    def run(**chosen):
        lake.run(upstream, copy, select=["copy"], **chosen)
        return sorted(tuple(row.values()) for row in lake.table("copy").to_table(["id", "half"]).to_pylist())

    both = {"span": ("first", "second")}
    assert run(**both) == [(1, "first"), (2, "first"), (3, "second")]
    lance.dataset(lake.uri("source")).update({"day": "date '2024-01-03'"}, where="id = 1")
    lance.dataset(lake.uri("source")).update({"day": "date '2024-01-02'"}, where="id = 2")
    assert run(**both) == [(1, "second"), (2, "first"), (3, "second")]
    lance.dataset(lake.uri("source")).update({"day": "date '2024-01-01'"}, where="id = 3")
    assert run(partition="second") == [(1, "second"), (2, "first")]
    assert run(partition="first") == [(1, "second"), (2, "first"), (3, "first")]


def test_outputs_with_other_keys_leave_no_row_behind(lake, table):
    """Each merges by a key of its own; the input splits updates of the columns of both."""
    outs = {
        name: dg.AssetOut(metadata={"lance/write_mode": "merge", "lance/merge_on": key})
        for name, key in (("by_id", ["id"]), ("by_both", ["n", "id"]))
    }

    @dg.multi_asset(ins={"source": dg.AssetIn(metadata=SINCE)}, outs=outs)
    def copies(source: pa.Table):
        return source, source

    lake.run(source, copies, select=["by_id", "by_both"])
    lance.dataset(lake.uri("source")).update({"n": "7"}, where="id = 2")
    lake.run(source, copies, select=["by_id", "by_both"])
    assert lake.rows("by_id") == lake.rows("by_both") == [(1, 0), (2, 7), (3, 0)]


def test_an_op_of_a_graph_asset_loads_changes(lake, table):
    """Dagster drops the metadata of the inputs of graph assets, and keeps that of the op's."""

    @dg.op(ins={"source": dg.In(metadata={**SINCE, "lance/filter": "id <> 2"})})
    def load(source: pa.Table) -> pa.Table:
        return source.select(["id", "n"])

    @dg.op
    def shape(rows: pa.Table) -> pa.Table:
        return rows

    @dg.graph_asset(metadata={"lance/write_mode": "append"})
    def copy(source):
        return load(source)

    @dg.graph_asset
    def of_two_ops(source):
        return shape(load(source))

    for n in (4, 5):
        lake.run(source, copy, select=["copy"])
        lance.write_dataset(rows(n), lake.uri("source"), mode="append")
    assert lake.rows("copy") == [(1, 0), (3, 0), (4, 0)]
    message = errors(lake.run(source, of_two_ops, select=["of_two_ops"], fails=True))
    assert "this step stores no asset; remove the entry, or let one op load the changes and return the value" in message


def two_copies(fails, *, can_subset):
    out = dg.AssetOut(metadata={"lance/write_mode": "append"}, is_required=not can_subset)
    outs = {"ahead": out, "behind": out}

    @dg.multi_asset(ins={"source": dg.AssetIn(metadata=SINCE)}, outs=outs, can_subset=can_subset)
    def copies(context, source: pa.Table):
        for name in sorted(context.op_execution_context.selected_output_names):
            if name == "behind" and fails:
                raise dg.Failure(fails.pop())
            yield dg.Output(source.select(["id", "n"]), output_name=name)

    return copies


@pytest.mark.parametrize("remedy", ["re-execute", "undo", "refresh"])
def test_a_failure_between_two_outputs_names_what_to_do(lake, table, remedy):
    fails = []
    copies = two_copies(fails, can_subset=False)
    assets, names = [source, copies], ["ahead", "behind"]
    lake.run(*assets, select=names)
    fails.append("between the outputs")
    lance.write_dataset(rows(4), lake.uri("source"), mode="append")
    failed = lake.run(*assets, select=names, fails=True)
    lance.write_dataset(rows(5), lake.uri("source"), mode="append")
    message = errors(lake.run(*assets, select=names, fails=True))
    assert "have consumed the same rows of the input up to different versions" in message
    assert "ahead up to version 2, behind up to version 1, and one input cannot be right for both" in message
    assert f"re-execute run {failed.run_id}, which failed after it had written ahead, or undo that run" in message
    assert "or launch a run with the tag lance/full_refresh=true" in message
    assert "by a run of its own" not in message
    if remedy == "re-execute":
        tags = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
        lake.run(*assets, select=names, tags=tags)
    elif remedy == "undo":
        undo = build_undo_job([copies])
        defs = dg.Definitions(assets, jobs=[undo], resources={"io_manager": lake.manager()})
        job = defs.resolve_job_def(undo.name)
        assert job.execute_in_process(
            instance=lake.instance, tags={"lance/undo_run": failed.run_id}, run_config=QUIET
        ).success
    lake.run(*assets, select=names, tags={"lance/full_refresh": "true"} if remedy == "refresh" else {})
    assert lake.rows("ahead") == lake.rows("behind") == [(n, 0) for n in range(1, 6)]


def test_an_output_that_is_new_to_its_input_catches_up_by_a_run_of_its_own(lake, table):
    copies = two_copies([], can_subset=True)
    lake.run(source, copies, select=["ahead"])
    message = errors(lake.run(source, copies, select=["ahead", "behind"], fails=True))
    assert "ahead up to version 1, behind up to version 0" in message
    assert "materialize each by a run of its own, or launch a run with the tag lance/full_refresh=true" in message
    assert "re-execute" not in message
    lake.run(source, copies, select=["behind"])
    lance.write_dataset(rows(4), lake.uri("source"), mode="append")
    lake.run(source, copies, select=["ahead", "behind"])
    assert lake.rows("ahead") == lake.rows("behind") == [(n, 0) for n in range(1, 5)]


@pytest.mark.parametrize(
    ("metadata", "kind", "said"),
    [
        ({"lance/changes": "always"}, pa.Table, "must be since_last_run"),
        ({**SINCE, "lance/version": 1}, pa.Table, "cannot be combined"),
        (SINCE, dict[str, pa.Table], "one value per partition"),
        (SINCE, lance_core.LanceDataset, "LanceDatasetHandler cannot load changes"),
    ],
)
def test_inputs_that_cannot_be_incremental(lake, table, metadata, kind, said):
    @dg.asset(ins={"source": dg.AssetIn(metadata=metadata)})
    def copy(source: kind) -> None: ...

    found = errors(lake.run(source, copy, select=["copy"], fails=True))
    assert said in found or "has no partitions" in found


def test_an_asset_does_not_read_changes_of_its_own_table(lake):
    """Its first run says so, before there is a table."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        partitions_def=DAYS,
        ins={"me": dg.AssetIn(metadata={**SINCE, "lance/missing": "empty"}, partition_mapping=before)},
        metadata={"partition_expr": "day"},
    )
    def me(me: pa.Table) -> pa.Table:
        return rows(1, day=ONE)

    for day in ("2024-01-01", "2024-01-02"):
        found = errors(lake.run(me, partition=day, fails=True))
        assert "is not for an asset's own table" in found
        assert "Remove the entry" in found
        assert "one value per partition" not in found
    with pytest.raises(DatasetNotFoundError):
        lake.table("me")


def test_an_asset_that_is_stored_elsewhere_is_rejected(lake, table):
    @dg.asset(ins={"source": dg.AssetIn(metadata=SINCE)}, io_manager_key="other")
    def copy(source: pa.Table):
        return source

    said = errors(lake.run(source, copy, select=["copy"], fails=True, resources={"other": dg.InMemoryIOManager()}))
    assert "InMemoryIOManager stores asset" in said


def maintain(lake):
    """Run maintenance that keeps no version by its age; returns the oldest one that is left."""
    policy = LanceMaintenancePolicy(cleanup_older_than=dt.timedelta(microseconds=1))
    job = build_maintenance_job([source], policy)
    defs = dg.Definitions(assets=[source], jobs=[job], resources={"io_manager": lake.manager()})
    assert defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET).success
    return lake.table("source").version_refs()[0]["version"]


class TestHolds:
    def test_no_cleanup_removes_what_is_consumed_last(self, lake, table):
        copy = Copy()
        copy.run(lake)
        change(lake)
        lance.dataset(lake.uri("source")).cleanup_old_versions(
            dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        held = list_held_versions(lake.table("source"))
        assert list(held.values()) == [[1]]
        assert list(held) == ["copy"]
        assert copy.run(lake)[0] == CHANGED
        now = lake.table("source").version
        assert list(list_held_versions(lake.table("source")).values()) == [[1, now]]
        assert copy.run(lake)[0] == []
        assert list(list_held_versions(lake.table("source")).values()) == [[1, now]]

    def test_each_partition_holds_its_own(self, lake):
        days = pa.concat_tables([rows(1, 2, day=ONE), rows(3, day=TWO)])
        lance.write_dataset(days, lake.uri("source"), enable_stable_row_ids=True)
        copy = Copy(partitions=DAYS)
        copy.run(lake, partition="2024-01-01")
        lance.dataset(lake.uri("source")).update({"n": "1"}, where="id = 3")
        copy.run(lake, partition="2024-01-02")
        assert list(list_held_versions(lake.table("source")).values()) == [[1, 2]]
        copy.run(lake, partition="2024-01-01")
        assert list(list_held_versions(lake.table("source")).values()) == [[1, 2]]
        lance.dataset(lake.uri("source")).update({"n": "2"}, where="id = 3")
        copy.run(lake, partition="2024-01-01")
        copy.run(lake, partition="2024-01-02")
        assert list(list_held_versions(lake.table("source")).values()) == [[2, 3]]

    def test_maintenance_names_the_holders_and_drops_those_that_are_too_old(self, lake, table):
        copy = Copy()
        copy.run(lake)
        change(lake)
        assert maintain(lake) == 1
        lance.dataset(lake.uri("source")).update_config({"lance-dagster.changes.days": "0"})
        assert maintain(lake) > 1
        assert list_held_versions(lake.table("source")) == {}
        assert "the oldest available version is" in errors(copy.run(lake, fails=True)[1])

    @pytest.mark.parametrize("retag", [False, True])
    def test_an_erasure_releases_it_and_the_next_run_names_the_remedy(self, lake, table, retag):
        copy = Copy()
        copy.run(lake)
        change(lake)
        report = lake.table("source").erase_rows("id = 2", delete_unverified=True, retag=retag)
        assert report.proven, report
        assert (report.readers_released, report.tags_moved) == (("copy",), {})
        assert list_held_versions(lake.table("source")) == {}
        oldest = lake.table("source").version_refs()[0]["version"]
        said = errors(copy.run(lake, fails=True)[1])
        assert f"the oldest available version is {oldest}" in said
        assert "lance/full_refresh" in said
        given, _ = copy.run(lake, tags={"lance/full_refresh": "true"})
        assert given == [(3, 0, "insert"), (4, 0, "insert")]

    @pytest.mark.parametrize("cleanup", ["maintenance", "core", "automatic"])
    def test_without_stable_row_ids_all_versions_since_stay(self, lake, cleanup):
        uri = lake.uri("source")
        lance.write_dataset(rows(1, 2, 3), uri)
        copy = Copy(write_mode="append")
        copy.run(lake)
        for number in (4, 5, 6):
            lance_core.write_dataset(rows(number), uri, mode="append")
            if number == 4 and cleanup == "automatic":
                automatic = {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.retain_versions": "1"}
                lake.table("source").update_config(automatic)
        if cleanup == "core":
            done = lake.table("source").cleanup_old_versions(
                retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False
            )
            assert done.old_versions == 0
        if cleanup == "maintenance":
            maintain(lake)
        given, _ = copy.run(lake)
        assert given == [(4, 0, "insert"), (5, 0, "insert"), (6, 0, "insert")]
        if cleanup == "maintenance":
            consumed = lake.table("source").version
            lance_core.write_dataset(rows(7), uri, mode="append")
            assert copy.run(lake)[0] == [(7, 0, "insert")]
            assert maintain(lake) == consumed

    def test_versions_of_branches_stay_until_the_branch_goes(self, lake, table):
        on_draft = {"tags": {"lance/branch": "draft"}, "branching": BranchPolicy.from_tag()}
        lake.table("source").ensure_branch("draft").insert(rows(4))
        copy = Copy(write_mode="append")
        assert copy.run(lake, **on_draft)[0] == [*ALL, (4, 0, "insert")]
        for number in (5, 6):
            lake.table("source").checkout_version(("draft", None)).insert(rows(number))
        branch = lake.table("source").checkout_version(("draft", None))
        branch.cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)
        assert copy.run(lake, **on_draft)[0] == [(5, 0, "insert"), (6, 0, "insert")]
        assert [tag["branch"] for tag in lake.table("source").readers.list().values()] == ["draft", "draft"]
        assert lake.table("source").branches.discard("draft")
        assert lake.table("source").readers.list() == {}

    def test_a_version_that_a_branch_of_the_reader_consumed_stays(self, lake, table):
        on_draft = {"tags": {"lance/branch": "draft"}, "branching": BranchPolicy.from_tag()}
        copy = Copy()
        copy.run(lake, branching=BranchPolicy.from_tag())
        lance.write_dataset(rows(4), lake.uri("source"), mode="append")
        assert copy.run(lake, **on_draft)[0] == [(4, 0, "insert")]
        lance.write_dataset(rows(5), lake.uri("source"), mode="append")
        assert len(copy.run(lake, branching=BranchPolicy.from_tag())[0]) == 2
        assert list(list_held_versions(lake.table("source")).values()) == [[1, 2, 3]]
        lance.dataset(lake.uri("source")).cleanup_old_versions(
            dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        assert copy.run(lake, **on_draft)[0] == [(5, 0, "insert")]

    def test_a_reader_that_runs_holds_its_version_however_long_that_is_the_latest(self, lake, table):
        copy = Copy()
        copy.run(lake)
        (ref,) = Path(lake.uri("source"), "_refs", "tags").iterdir()
        old = json.loads(ref.read_text()) | dict.fromkeys(["createdAt", "updatedAt"], "2024-01-01T00:00:00.000000000Z")
        ref.write_text(json.dumps(old))
        assert copy.run(lake)[0] == []
        change(lake)
        maintain(lake)
        assert copy.run(lake)[0] == CHANGED

    def test_maintenance_reports_who_holds_versions(self, lake, table):
        copy = Copy()
        copy.run(lake)
        change(lake)
        maintain(lake)
        (run,) = lake.instance.get_run_records(dg.RunsFilter(job_name="lance_maintenance"))
        messages = [entry.user_message for entry in lake.instance.all_logs(run.dagster_run.run_id)]
        assert "asset source: versions [1] are held for incremental reader copy" in messages


class TestUndo:
    def test_the_next_run_sees_the_changes_again(self, lake, table):
        copy = Copy(write_mode="append")
        copy.run(lake)
        change(lake)
        _, result = copy.run(lake)
        plan_undo(lake.table("copy"), result.run_id).commit()
        assert copy.run(lake)[0] == CHANGED

    def test_the_next_run_sees_the_changes_again_where_others_wrote_since(self, lake, table):
        copy = Copy(write_mode="append")
        copy.run(lake)
        change(lake)
        _, result = copy.run(lake)
        other = rows(50).append_column("_change_type", pa.array(["insert"]))
        lance_core.dataset(lake.uri("copy")).insert(other)
        plan_undo(lake.table("copy"), result.run_id).commit()
        assert copy.run(lake)[0] == CHANGED

    def test_a_run_is_not_undone_before_later_ones(self, lake, table):
        copy = Copy(write_mode="append")
        copy.run(lake)
        change(lake)
        _, first = copy.run(lake)
        lance.write_dataset(rows(9), lake.uri("source"), mode="append")
        _, second = copy.run(lake)
        with pytest.raises(CannotUndoError, match="undo that run first"):
            plan_undo(lake.table("copy"), first.run_id)
        plan_undo(lake.table("copy"), second.run_id).commit()
        plan_undo(lake.table("copy"), first.run_id).commit()
        assert copy.run(lake)[0] == sorted([*CHANGED, (9, 0, "insert")])

    def test_what_was_consumed_before_a_run_is_held_until_the_run_after_it(self, lake, table):
        copy, seen = Copy(), []
        copy.run(lake)
        for number in range(2):
            lance.write_dataset(rows(10 + number), lake.uri("source"), mode="append")
            seen.append(copy.run(lake))
        assert list_held_versions(lake.table("source")) == {"copy": [2, 3]}
        cleaned_up(lake)
        plan_undo(lake.table("copy"), seen[1][1].run_id).commit()
        assert copy.run(lake)[0] == seen[1][0]

    def test_a_full_refresh_is_undone_as_well(self, lake, table):
        copy = Copy()
        copy.run(lake)
        change(lake)
        _, refresh = copy.run(lake, tags={"lance/full_refresh": "true"})
        cleaned_up(lake)
        plan_undo(lake.table("copy"), refresh.run_id).commit()
        assert copy.run(lake)[0] == CHANGED

    @pytest.mark.parametrize("others", [False, True])
    @pytest.mark.parametrize("shared", [False, True])
    def test_several_undos_hold_what_they_bring_back_while_it_is_there(self, lake, table, others, shared):
        copy = Copy(write_mode="append", **({"shared_table": True} if shared else {}))
        runs, expected = [copy.run(lake)[1]], []
        for number in range(3):
            lance.write_dataset(rows(10 + number), lake.uri("source"), mode="append")
            given, result = copy.run(lake)
            runs.append(result)
            expected += given
        assert list_held_versions(lake.table("source")) == {"copy": [3, 4]}
        if others:
            more = rows(50).append_column("_change_type", pa.array(["insert"]))
            lance_core.dataset(lake.uri("copy")).insert(more)
        for result in reversed(runs[1:]):
            plan_undo(lake.table("copy"), result.run_id).commit()
        cleaned_up(lake)
        assert copy.run(lake)[0] == expected


def cleaned_up(lake):
    """Remove all versions of the input that nobody holds, by pylance."""
    lance.dataset(lake.uri("source")).cleanup_old_versions(
        dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )


def test_on_object_storage(s3):
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Lake(root=f"s3://{s3.new_bucket()}/lake", instance=instance, storage_options=s3.storage_options)
        options = {"storage_options": s3.storage_options}
        lance.write_dataset(rows(1, 2, 3), lake.uri("source"), enable_stable_row_ids=True, **options)
        copy = Copy()
        assert copy.run(lake)[0] == ALL
        table = lake.table("source")
        table.update({"n": "n + 10"}, where="id = 2")
        table.delete("id = 1")
        given, result = copy.run(lake)
        assert given == CHANGED[:2]
        assert lake.rows("copy") == [(2, 10), (3, 0)]
        assert list(list_held_versions(lake.table("source")).values()) == [[1, 3]]
        lake.table("source").checkout_version(1).readers.release_older_than(dt.timedelta(0))
        plan_undo(lake.table("copy"), result.run_id).commit(s3.storage_options)
        assert list(list_held_versions(lake.table("source")).values()) == [[1]]
        assert copy.run(lake)[0] == CHANGED[:2]


def reader(name, given, **metadata):
    @dg.asset(name=name, ins={"source": dg.AssetIn(metadata={**SINCE, "columns": ["id", "n"]})}, metadata=metadata)
    def made(source: pa.Table) -> pa.Table:
        given.setdefault(name, []).append(sorted(source["id"].to_pylist()))
        return source.select(["id"]).append_column(name, source["n"])

    return made


@pytest.mark.parametrize("shared", ["lance/table", "lance/shared_table"])
def test_each_asset_of_a_shared_table_reads_all_changes(lake, table, shared):
    """Columns of the table that they read, or rows of one that both append to."""
    given = {}
    if shared == "lance/table":
        metadata = {"lance/write_mode": "columns", "lance/table": "source", "lance/key": "id", "lance/missing": "keep"}
    else:
        metadata = {"lance/shared_table": True, "schema": "public", "table": "both"}
        metadata |= {"lance/write_mode": "append", "lance/schema_mode": "add_columns"}
    one, other = reader("one", given, **metadata), reader("other", given, **metadata)
    lake.run(source, one, select=[one])
    lake.table("source").insert({"id": [4], "n": [0]})
    lake.run(source, other, select=[other])
    lake.run(source, one, select=[one])
    lake.run(source, other, select=[other])
    assert given == {"one": [[1, 2, 3], [4]], "other": [[1, 2, 3, 4], []]}
    lake.table("source").cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    lake.table("source").insert({"id": [5], "n": [0]})
    for asset in (one, other):
        lake.run(source, asset, select=[asset])
    assert [found[-1] for found in given.values()] == [[5], [5]]
