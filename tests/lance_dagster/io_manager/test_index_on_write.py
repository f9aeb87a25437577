"""`lance/index_on_write`: when Dagster records the event of a write, every index covers its rows, and search finds them."""

import uuid
from pathlib import Path

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance
from lance_core.maintenance.routine import declared
from lance_core.maintenance.search import cover
from lance_dagster import BranchPolicy, build_maintenance_job, build_undo_job
from tests.lance_dagster.branches.test_indices import INDICES, promote, rows, unindexed
from tests.lance_dagster.lake import QUIET, errors

pytestmark = pytest.mark.usefixtures("local_children")

BRANCHING = {"branching": BranchPolicy.from_tag("lance/branch")}
DAYS = dg.StaticPartitionsDefinition(["a", "b"])
COVERED = {"embedding_idx": 0.0, "body_idx": 0.0, "id_idx": 0.0}


def make_notes(mode="append", *, spark=False, partitions=None, retry=None, **metadata):
    entries = {"lance/write_mode": mode, "lance/indices": INDICES, "lance/index_on_write": True, **metadata}

    def body(context):
        day = context.partition_key if partitions else "a"
        frame = rows(int(context.run.tags.get("first", 0)), int(context.run.tags.get("count", 300)))
        frame = frame.append_column("day", pa.array([day] * len(frame)))
        return context.resources.spark.createDataFrame(frame) if spark else frame

    keys = {"spark"} if spark else set()
    decorate = dg.asset(
        name="notes", metadata=entries, partitions_def=partitions, retry_policy=retry, required_resource_keys=keys
    )
    return decorate(body)


notes = make_notes()


def entries_of(result):
    (event,) = result.asset_materializations_for_node("notes")
    return {name: entry.value for name, entry in event.metadata.items()}


def assert_searchable(uri, numbers, branch=None):
    """Search by the indices alone finds rows by a word of their own, and their neighbours as a comparison with all does."""
    table = lance.dataset(uri)
    table = table if branch is None else table.checkout_version((branch, None))
    for number in numbers:
        found = table.to_table(columns=["id"], full_text_query=f"word{number}", fast_search=True)
        assert found["id"].to_pylist() == [number]
        vector = np.asarray(rows(number, 1)["embedding"][0].values)
        (stored,) = table.to_table(columns=["embedding"], filter=f"id = {number}")["embedding"].to_pylist()
        nearest = {"column": "embedding", "q": np.asarray(stored, vector.dtype), "k": 5, "nprobes": 50}
        near = table.to_table(columns=["id"], nearest=nearest, fast_search=True)["id"].to_pylist()
        assert near == table.to_table(columns=["id"], nearest={**nearest, "use_index": False})["id"].to_pylist()


@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_search_finds_the_rows_at_the_moment_of_their_event(lake, mode):
    asset = make_notes(mode, **({"lance/merge_on": "id"} if mode == "merge" else {}))
    job = dg.Definitions(
        assets=[asset], resources={"io_manager": lake.manager()}
    ).resolve_implicit_global_asset_job_def()
    seen = []
    for first in (0, 300) if mode == "append" else (0, 300, 250):
        run_id, count = str(uuid.uuid4()), 300

        def look(entry, numbers=(first, first + count - 1)):
            if entry.dagster_event is not None and entry.dagster_event.is_step_materialization:
                assert_searchable(lake.uri("notes"), numbers)
                seen.append(numbers)

        lake.instance.add_event_listener(run_id, look)
        tags = {"first": str(first), "count": str(count)}
        result = job.execute_in_process(instance=lake.instance, run_id=run_id, tags=tags, run_config=QUIET)
        entries = entries_of(result)
        assert set(entries["lance/indices_covered"].split(", ")) == set(COVERED)
        assert "lance/indices_not_covered" not in entries
    assert [first for first, _ in seen] == [0, 300, 250][: len(seen)]
    assert len(seen) == (2 if mode == "append" else 3)
    assert unindexed(lake.uri("notes")) == COVERED


def test_an_append_is_covered_by_two_versions_and_none_where_there_is_nothing_to_cover(lake):
    lake.run(notes)
    version = lake.table("notes").version
    written = entries_of(lake.run(notes, tags={"first": "300", "count": "20"}))["lance/version"]
    table = lake.table("notes")
    assert (written, table.version) == (version + 1, version + 3)  # lance_core's kinds, and those of pylance
    assert maintenance.keep_indices(table, maintenance.MaintenancePolicy(indices=INDICES)).covered == ()
    assert table.version == version + 3


def test_indices_by_others_are_covered_as_well(lake):
    lake.run(notes)
    lake.table("notes").create_scalar_index("day", "BITMAP", name="by_somebody")
    entries = entries_of(lake.run(notes, tags={"first": "300", "count": "20"}))
    assert set(entries["lance/indices_covered"].split(", ")) == {*COVERED, "by_somebody"}


def test_a_run_of_a_partition_replaces_its_rows(lake):
    asset = make_notes("overwrite", partitions=DAYS, partition_expr="day")
    for day, first in (("a", 0), ("b", 300), ("b", 600)):
        lake.run(asset, partition=day, tags={"first": str(first)})
    assert_searchable(lake.uri("notes"), [0, 600])
    found = lance.dataset(lake.uri("notes")).to_table(columns=["id"], full_text_query="word300")
    assert found["id"].to_pylist() == []


def test_rows_of_spark_on_a_branch_are_found_there(lake, spark):
    asset, uri = make_notes(spark=True), lake.uri("notes")
    lake.run(notes)
    tags = {"lance/branch": "work", "first": "300", "count": "20"}
    entries = entries_of(lake.run(asset, tags=tags, resources={"spark": spark}, **BRANCHING))
    assert set(entries["lance/indices_covered"].split(", ")) == set(COVERED)
    assert_searchable(uri, [3, 310], branch="work")
    assert lake.table("notes").count_rows() == 300
    assert unindexed(uri) == COVERED


def test_a_promotion_that_replaces_all_rows_builds_what_it_drops(lake):
    asset = make_notes("overwrite")
    lake.run(asset)
    lake.run(asset, tags={"lance/branch": "work", "first": "1000"}, **BRANCHING)
    assert_searchable(lake.uri("notes"), [1003], branch="work")
    (event,) = [each.materialization for each in promote(lake, asset).all_events if each.is_step_materialization]
    assert set(event.metadata["lance/indices_covered"].value.split(", ")) == set(COVERED)
    assert_searchable(lake.uri("notes"), [1003, 1299])
    assert unindexed(lake.uri("notes")) == COVERED


@pytest.mark.parametrize("attempt", ["replace", "adopt"])
def test_an_attempt_that_ended_between_commit_and_indices_is_completed_by_the_next(lake, monkeypatch, attempt):
    lake.run(notes)
    keep, calls = maintenance.keep_indices, []

    def end_once(*arguments, **options):
        calls.append(lake.table("notes").version)
        if len(calls) == 1:
            raise RuntimeError("the process ends here")
        return keep(*arguments, **options)

    monkeypatch.setattr(maintenance, "keep_indices", end_once)
    asset = make_notes(retry=dg.RetryPolicy(max_retries=1), **{"lance/on_earlier_attempt": attempt})
    lake.run(asset, tags={"first": "300", "count": "20"})
    assert len(calls) == 2
    assert lake.table("notes").count_rows() == 320
    assert_searchable(lake.uri("notes"), [3, 310])
    assert unindexed(lake.uri("notes")) == COVERED


def test_a_failed_index_is_named_by_the_event_and_left_to_maintenance_unless_search_is_required(lake):
    lake.run(notes)
    uri = lake.uri("notes")
    (index,) = (each for each in lake.table("notes").list_indices() if each["name"] == "embedding_idx")
    for file in Path(uri, "_indices", str(index["uuid"])).iterdir():
        file.write_bytes(b"broken")
    for first in (300, 320):
        entries = entries_of(lake.run(notes, tags={"first": str(first), "count": "20"}))
        assert entries["lance/indices_not_covered"] == "embedding_idx"
        assert set(entries["lance/indices_covered"].split(", ")) == {"body_idx", "id_idx"}
    (health,) = (each for each in maintenance.describe_index_health(lake.table("notes")) if each.failure)
    assert (health.name, health.failure["count"], health.failure["action"]) == ("embedding_idx", 1, "extend")
    starved = make_notes(**{"lance/maintenance": {"require_search": True, "index_memory": 1000}})
    result = lake.run(starved, tags={"first": "340", "count": "20"}, fails=True)
    message = errors(result)
    assert "is committed, and gets no event, because the policy has require_search: index " in message
    assert "index embedding_idx: " in message
    strict = make_notes(**{"lance/maintenance": {"require_search": True}})
    entries = entries_of(lake.run(strict, tags={"first": "360", "count": "20"}))
    assert set(entries["lance/indices_covered"].split(", ")) == set(COVERED)
    job = build_maintenance_job([notes])
    defs = dg.Definitions(assets=[notes], jobs=[job], resources={"io_manager": lake.manager()})
    assert defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET).success
    assert unindexed(uri) == COVERED
    assert_searchable(uri, [3, 310, 330])


def test_without_pylance_own_kinds_are_built_and_others_named(lake, monkeypatch):
    for module in (cover, declared):
        monkeypatch.setattr(module, "find_pylance", lambda: None)
    entries = entries_of(lake.run(notes))
    assert entries["lance/indices_covered"] == "id_idx"
    assert set(entries["lance/indices_not_covered"].split(", ")) == {"embedding_idx", "body_idx"}
    version = lake.table("notes").version
    strict = make_notes(**{"lance/maintenance": {"require_search": True}})
    assert "pip install 'lance-dagster[search]'" in errors(lake.run(strict, fails=True))
    assert lake.table("notes").version == version


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"lance/index_on_write": "yes"}, "metadata lance/index_on_write must be a bool, not 'yes'"),
        ({"lance/indices": None}, "lance/index_on_write needs indices: declare them by the metadata lance/indices"),
    ],
)
def test_what_is_no_setting_is_rejected(lake, metadata, message):
    asset = make_notes(**metadata)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=message):
        build_maintenance_job([asset])
    assert message in errors(lake.run(asset, fails=True))
    with pytest.raises(lance_core.errors.DatasetNotFoundError):
        lake.table("notes")


def test_lists_that_an_undo_sets_back_are_found(lake):
    words = ["old"]

    @dg.asset
    def base() -> pa.Table:
        return pa.table({"id": range(20)})

    @dg.asset(
        deps=[base],
        metadata={
            "lance/write_mode": "columns",
            "lance/table": "base",
            "lance/key": "id",
            "lance/missing": "keep",
            "lance/index_on_write": True,
            "lance/indices": {"tags": "LABEL_LIST", "words": "FTS"},
        },
    )
    def lists() -> pa.Table:
        count = 20 if words[0] == "old" else 5
        column = pa.array([[words[0]]] * count, pa.list_(pa.string()))
        return pa.table({"id": range(count), "tags": column, "words": column})

    def count(word):
        table = lance.dataset(lake.uri("base"))
        searched = table.to_table(columns=["id"], full_text_query=word).num_rows
        return searched, table.to_table(filter=f"array_has(tags, '{word}')").num_rows

    job, resources = build_undo_job([base, lists]), {"io_manager": lake.manager()}
    assert dg.materialize([base, lists], resources=resources, instance=lake.instance).success
    words[0] = "new"
    run = dg.materialize([base, lists], selection=[lists], resources=resources, instance=lake.instance)
    assert (count("old"), count("new")) == ((15, 15), (5, 5))
    undo = dg.Definitions(assets=[base, lists], jobs=[job], resources=resources).resolve_job_def(job.name)
    assert undo.execute_in_process(instance=lake.instance, tags={"lance/undo_run": run.run_id}).success
    assert (count("old"), count("new")) == ((20, 20), (0, 0))
