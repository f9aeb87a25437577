"""A process that has no Dagster tags its commit with the run, and reports it."""

import json
import sys

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SupersededError
from lance_dagster import BranchPolicy, LanceTableResource, build_lance_drift_check
from lance_dagster.io_manager.process_attempts import PipesAttemptProperties
from pyspark_lance.writing.job import open_version
from tests import processes
from tests.lance_dagster.lake import errors

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")  # Dagster warns of its own Pipes

SCRIPT = """
import sys
sys.modules["dagster"] = None  # not installed there

import pyarrow as pa
from dagster_pipes import open_dagster_pipes

import lance_core
from lance_dagster.pipes import commit_properties, report_commit

with open_dagster_pipes() as pipes:
    uri = pipes.get_extra("uri")
    source = lance_core.write_dataset(pa.table({"n": [1]}), uri + ".source")
    table = lance_core.write_dataset(
        pa.table({"n": [1, 2]}), uri, transaction_properties=commit_properties(pipes, inputs={"raw/n": source})
    )
    report_commit(pipes, table, metadata={"mine": 7})
"""


def remote(lake, **options):
    @dg.asset(key_prefix="nyc", **options)
    def flights(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient):
        return pipes.run(
            command=[sys.executable, "-c", SCRIPT],
            context=context,
            extras={"uri": lake.uri("nyc/flights")},
            env={"PYTHONPATH": str(processes.ROOT)},
        ).get_materialize_result()

    return flights


@pytest.mark.parametrize("partition", [None, "b"])
def test_the_commit_and_the_event_know_each_other(lake, partition):
    options = {} if partition is None else {"partitions_def": dg.StaticPartitionsDefinition(["a", "b"])}
    result = lake.run(remote(lake, **options), partition=partition, resources={"pipes": dg.PipesSubprocessClient()})
    (properties,) = lake.properties("nyc/flights")
    assert properties["dagster.run_id"] == result.run_id
    assert properties["dagster.asset_key"] == "nyc/flights"
    assert properties.get("dagster.partition_keys") == (None if partition is None else '["b"]')
    assert json.loads(properties["dagster.input.raw/n"])["version"] == 1
    (event,) = result.asset_materializations_for_node("nyc__flights")
    values = {key: entry.value for key, entry in event.metadata.items()}
    assert (values["dagster/row_count"], values["lance/version"], values["mine"]) == (2, 1, 7)
    assert f"/runs/{result.run_id}" in values["lance/table_log"].partition("### Versions")[2]
    assert (values["lance/operation"], values["lance/rows_written"], values["lance/deleted_fraction"]) == (
        "Create",
        2,
        0,
    )
    assert [one["asset"] for one in values["lance/inputs"]] == ["raw/n"]
    columns = values["dagster/column_schema"].columns
    assert [(one.name, one.type, one.constraints.nullable) for one in columns] == [("n", "int64", True)]
    assert len(set(values) - {"mine", "lance/commit"}) == 10
    assert event.tags["dagster/data_version"].endswith(":main:1")


RETRIED = """
import os, sys
sys.modules["dagster"] = None  # not installed there

import pyarrow as pa
from dagster_pipes import open_dagster_pipes

import lance_core
from lance_dagster.pipes import commit_properties, report_commit

with open_dagster_pipes() as pipes:
    uri, mode = pipes.get_extra("uri"), pipes.get_extra("mode")
    table = lance_core.write_dataset(
        pa.table({"n": [1, 2]}), uri, mode=mode, transaction_properties=commit_properties(pipes)
    )
    marker = pipes.get_extra("marker")
    if not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(7)  # killed between commit and report
    report_commit(pipes, table)
"""


def retried(lake, tmp_path, *, mode="append", tables=None, **options):
    tables = tables or LanceTableResource(root_uri=lake.root)

    @dg.asset(key_prefix="nyc", **options)
    def flights(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient):
        uri = tables.uri(context.asset_key)
        extras = {**tables.pipes_extras(), "uri": uri, "mode": mode, "marker": str(tmp_path / "died")}
        return pipes.run(
            command=[sys.executable, "-c", RETRIED],
            context=context,
            extras=extras,
            env={"PYTHONPATH": str(processes.ROOT)},
        ).get_materialize_result()

    return flights


PIPES = {"pipes": dg.PipesSubprocessClient()}


@pytest.mark.parametrize("mode", ["append", "create"])
def test_a_retried_write_adds_its_rows_once(lake, tmp_path, mode):
    asset = retried(lake, tmp_path, mode=mode, retry_policy=dg.RetryPolicy(max_retries=1))
    lake.run(asset, resources=PIPES)
    assert lake.rows("nyc/flights") == [(1,), (2,)]
    if mode == "append":
        lake.run(asset, resources=PIPES)  # another run adds
        assert len(lake.rows("nyc/flights")) == 4


def test_a_re_execution_replaces_what_the_failed_run_added(lake, tmp_path):
    asset = retried(lake, tmp_path)
    failed = lake.run(asset, resources=PIPES, fails=True)
    assert len(lake.rows("nyc/flights")) == 2
    chain = {"dagster/root_run_id": failed.run_id, "dagster/parent_run_id": failed.run_id}
    lake.run(asset, resources=PIPES, tags=chain)
    assert len(lake.rows("nyc/flights")) == 2
    lake.run(asset, resources=PIPES, tags=chain)  # of a chain that has succeeded: it adds
    assert len(lake.rows("nyc/flights")) == 4
    table = lance_core.dataset(lake.uri("nyc/flights"))
    properties = table.read_transaction(table.version).transaction_properties
    assert properties["dagster.root_run_id"] == failed.run_id


def attempt_of_spark(uri, properties):
    """The attempt of an append, as `pyspark_lance.write` finds it."""
    return lance_core.Commit(properties=properties).as_attempt(open_version(uri, None, None), "append").write_attempt


def test_writes_of_spark_ask_for_the_attempt(tmp_path):
    given = {"dagster.run_id": "r1", "dagster.asset_key": "a"}
    first, second = (PipesAttemptProperties(given, {}, attempt) for attempt in (0, 1))
    uri = str(tmp_path / "t.lance")
    assert attempt_of_spark(uri, first).number == (0, 0)
    table = lance_core.write_dataset(pa.table({"n": [1]}), uri, mode="append", transaction_properties=first)
    lance_core.write_dataset(pa.table({"n": [9]}), uri, mode="append")
    attempt = attempt_of_spark(uri, second)
    assert (attempt.number, attempt.earlier) == ((0, 1), (table.version,))
    lance_core.write_dataset(pa.table({"n": [2]}), uri, mode="append", transaction_properties=second)
    late = PipesAttemptProperties(given, {"is_retry": True}, 0)
    with pytest.raises(SupersededError, match="by a later attempt of this write"):
        lance_core.write_dataset(pa.table({"n": [3]}), uri, mode="append", transaction_properties=late)
    assert sorted(lance_core.dataset(uri).to_table()["n"].to_pylist()) == [2, 9]
    assert attempt_of_spark(uri, {"x": "y"}) is None
    table = lance_core.dataset(uri)
    third = PipesAttemptProperties(given, {}, 2)
    with pytest.raises(InvalidInputError, match=r"give them to lance_core\.write_dataset"):
        table.insert(pa.table({"n": [4]}), transaction_properties=third)
    table = lance_core.write_dataset(pa.table({"n": [4]}), table, mode="append", transaction_properties=third)
    assert (table.version, sorted(table.to_table()["n"].to_pylist())) == (4, [4, 9])


@pytest.mark.parametrize("attempt", [0, 1])
def test_of_overwrites_at_the_same_time_the_later_run_wins(tmp_path, attempt):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(pa.table({"n": [0]}), uri)

    def properties(run):
        given = {"dagster.run_id": f"r{run}", "dagster.asset_key": "a"}
        return PipesAttemptProperties(given, {"number": run}, attempt)

    def overtaken(run, by):
        def batches():
            overwrite(pa.table({"n": [by]}), by)
            yield pa.record_batch({"n": [run]})

        return pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches())

    def overwrite(data, run):
        lance_core.write_dataset(data, uri, mode="overwrite", transaction_properties=properties(run))

    overwrite(overtaken(8, by=7), 8)
    assert lance_core.dataset(uri).to_table()["n"].to_pylist() == [8]
    with pytest.raises(SupersededError, match="by a later write of the same rows"):
        overwrite(overtaken(9, by=10), 9)
    assert lance_core.dataset(uri).to_table()["n"].to_pylist() == [10]


def test_a_run_on_a_branch_leads_to_the_branch(lake, tmp_path):
    (tmp_path / "died").touch()
    policy = BranchPolicy.from_tag("lance/branch")
    tables = LanceTableResource(root_uri=lake.root, branching=policy)
    lake.run(retried(lake, tmp_path, tables=tables), resources=PIPES)
    done = lake.run(retried(lake, tmp_path, tables=tables), resources=PIPES, tags={"lance/branch": "trial"})
    assert len(lake.rows("nyc/flights")) == 2
    assert lake.table("nyc/flights").checkout_version(("trial", None)).count_rows() == 4
    (event,) = done.asset_materializations_for_node("nyc__flights")
    assert (event.metadata["lance/branch"].value, event.metadata["lance/published"].value) == ("trial", False)
    assert lake.table("nyc/flights").branches.promote("trial").version == 2
    main = lance_core.dataset(lake.uri("nyc/flights"))
    astray = PipesAttemptProperties({"dagster.run_id": "r"}, {"branch": "trial"}, 0)
    with pytest.raises(InvalidInputError, match="the run is on branch 'trial'"):
        lance_core.write_dataset(pa.table({"n": [1]}), main.uri, mode="append", transaction_properties=astray)
    none = retried(lake, tmp_path, tables=LanceTableResource(root_uri=f"{lake.root}/new", branching=policy))
    assert "from which a branch could be forked" in errors(
        lake.run(none, resources=PIPES, tags={"lance/branch": "trial"}, fails=True)
    )


def test_rows_that_were_never_reported_are_drift(lake, tmp_path):
    asset = retried(lake, tmp_path)
    check = build_lance_drift_check(asset)

    def drifted():
        done = lake.run(asset, check, select=dg.AssetSelection.checks(check), resources=PIPES)
        (result,) = done.get_asset_check_evaluations()
        return result

    failed = lake.run(asset, resources=PIPES, fails=True)
    found = drifted()
    assert not found.passed
    assert f"version 1 was committed by run {failed.run_id}" in found.description
    lake.run(asset, resources=PIPES)
    assert drifted().passed


@pytest.mark.parametrize("exists", [False, True])
def test_a_process_that_was_started_before_a_later_run_committed_does_not_overwrite_its_rows(lake, exists):
    tables = LanceTableResource(root_uri=lake.root)

    @dg.asset
    def t(context) -> None:
        uri, extras = tables.uri("t"), tables.pipes_extras()["lance_dagster"]
        if "late" in context.run.tags:
            lake.run(t)
        given = {"dagster.run_id": context.run_id, "dagster.asset_key": "t"}
        rows = pa.table({"run": [context.run_id]})
        lance_core.write_dataset(
            rows, uri, mode="overwrite", transaction_properties=PipesAttemptProperties(given, extras, 0)
        )

    if exists:
        lake.run(t)
    late = lake.run(t, tags={"late": ""}, fails=True)
    newest = lake.instance.get_runs()[0]
    assert newest.run_id != late.run_id
    assert f"version {2 if exists else 1} was committed by a later write of the same rows" in errors(late)
    assert lake.rows("t") == [(newest.run_id,)]
