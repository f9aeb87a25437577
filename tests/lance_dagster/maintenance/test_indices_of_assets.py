"""Indices that assets, jobs and folders declare: built and measured by jobs, noticed by sensors, rejected when wrong."""

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import describe_index_health
from lance_dagster import (
    LanceMaintenancePolicy,
    build_lance_health_checks,
    build_lance_index_checks,
    build_maintenance_job,
    build_maintenance_sensor,
    stamp_lance_metadata,
)
from lance_dagster.components import LanceLakehouseComponent
from tests.lance_dagster.lake import QUIET, errors

pytestmark = pytest.mark.usefixtures("local_children")

DECLARED = {"embedding": {"kind": "IVF_FLAT", "metric": "cosine", "min_recall": 0.9}, "body": "FTS", "id": "BTREE"}
KEPT = LanceMaintenancePolicy(cleanup_older_than=None)


def notes(start=0, count=300):
    vectors = np.random.default_rng(start).random((count, 16), np.float32)
    return pa.table({
        "id": range(start, start + count),
        "body": [f"note{i} about topic{i % 9}" for i in range(start, start + count)],
        "embedding": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 16),
    })  # fmt: skip


def declaring(indices=DECLARED, name="docs", **metadata):
    @dg.asset(name=name, metadata={"lance/indices": indices, "lance/write_mode": "append", **metadata})
    def table() -> pa.Table:
        return notes()

    return table


docs = declaring()


def run(lake, job, config=None, **options):
    """Run a job with the assets, and return its result."""
    options = {"raise_on_error": False, **options}
    defs = dg.Definitions(assets=[docs], jobs=[job], resources={"io_manager": lake.manager()})
    resolved = defs.resolve_job_def(job.name)
    return resolved.execute_in_process(instance=lake.instance, run_config={**QUIET, **(config or {})}, **options)


def observed(result):
    (event,) = result.get_asset_observation_events()
    metadata = event.asset_observation_data.asset_observation.metadata
    return {key: entry.value for key, entry in metadata.items()}


def state(lake, name="docs"):
    indices = describe_index_health(lake.table(name))
    return {index.name: (index.declared, index.kind, round(index.covered, 3)) for index in indices}


BUILT = {
    "body_idx": (True, "FTS", 1.0),
    "embedding_idx": (True, "IVF_FLAT", 1.0),
    "id_idx": (True, "BTREE", 1.0),
}


def test_a_job_builds_what_an_asset_declares_and_plots_its_recall(lake):
    lake.run(docs)
    job = build_maintenance_job([docs], KEPT)
    dry = run(lake, job, {"ops": {"plan": {"config": {"dry_run": True}}}})
    planned = [(work["index"], work["action"]) for work in observed(dry)["lance/index_work"]]
    assert "build body_idx: there is none for 300 rows" in dry.output_for_node("summarize")["index_work"]["docs"]
    assert state(lake) == {}
    result = run(lake, job)
    assert state(lake) == BUILT
    assert (
        "measure embedding_idx: its recall was never measured"
        in result.output_for_node("summarize")["index_work"]["docs"]
    )
    entries = observed(result)
    assert planned == [(work["index"], work["action"]) for work in entries["lance/index_work"]]
    assert entries["lance/index_recall/embedding_idx"] >= 0.9
    assert entries["lance/index_recall/body_idx"] == 1.0
    assert entries["lance/index_unindexed_fraction/embedding_idx"] == 0.0
    measured = entries["lance/index_measurements"]["embedding_idx"]
    assert (measured["rows"], measured["settings"]["k"], measured["queries"]) == (300, 10, 100)
    assert measured["at"].startswith("20")
    assert lance.dataset(lake.uri("docs")).to_table(columns=["id"], full_text_query="note42")["id"].to_pylist() == [42]
    version = lake.table("docs").version
    healthy = run(lake, job)
    assert (observed(healthy)["lance/maintenance"], lake.table("docs").version) == ("healthy", version)
    assert observed(healthy)["lance/index_recall/embedding_idx"] == entries["lance/index_recall/embedding_idx"]


def test_the_declaration_of_an_asset_is_in_place_of_those_of_policies(lake):
    lake.run(docs)
    own = declaring({"id": "BITMAP"}, **{"lance/maintenance": {"indices": {"body": "FTS"}, "drop_undeclared": True}})
    assert run(lake, build_maintenance_job([own], LanceMaintenancePolicy(indices={"id": "BTREE"}))).success
    assert state(lake) == {"id_idx": (True, "BITMAP", 1.0)}
    lake.table("docs").create_scalar_index("id", "BTREE", name="by_hand")
    assert run(
        lake, build_maintenance_job([declaring({"id": "BITMAP"})], LanceMaintenancePolicy(drop_undeclared=True))
    ).success
    assert state(lake) == {"id_idx": (True, "BITMAP", 1.0)}
    whole = declaring({"id": "BTREE"}, **{"lance/maintenance": LanceMaintenancePolicy(indices={"body": "FTS"})})
    assert run(lake, build_maintenance_job([whole])).success
    assert state(lake) == {"id_idx": (True, "BTREE", 1.0)}


def test_a_job_that_does_not_know_the_asset_goes_by_what_its_commits_recorded(lake):
    lake.run(declaring({"id": "BTREE"}))
    job = build_maintenance_job(root=True, policy=LanceMaintenancePolicy(max_versions=1, retain_versions=1))
    defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
    for _ in range(2):
        lake.run(declaring({"id": "BTREE"}))  # small fragments, for which the history is read
    assert defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET).success
    assert state(lake) == {"id_idx": (True, "BTREE", 1.0)}


class TestSharedTable:
    """Assets that own columns of a table declare indices beside the asset that writes its rows."""

    @pytest.fixture
    def share(self, lake, monkeypatch):
        """Write a table with the columns of two assets; returns the assets and a way to run a job with their code."""

        def make(indices, row_indices=None):
            rows = declaring(row_indices or {"id": "BTREE"}, name="rows")

            @dg.asset(
                ins={"rows": dg.AssetIn(metadata={"columns": ["id"]})},
                metadata={"lance/write_mode": "columns", "lance/table": "rows", "lance/key": "id",
                          "lance/indices": indices},
            )  # fmt: skip
            def labels(rows: pa.Table) -> pa.Table:
                return rows.append_column("label", pa.array([f"label{i}" for i in rows["id"].to_pylist()]))

            lake.run(labels, rows)

            def run_job(job, **more):
                defs = dg.Definitions(
                    assets=[rows, labels, docs], jobs=[job], resources={"io_manager": lake.manager()}, **more
                )
                # A run in the process of a test does not know its code location.
                monkeypatch.setattr(dg.OpExecutionContext, "repository_def", defs.get_repository_def())
                return defs.resolve_job_def(job.name).execute_in_process(
                    instance=lake.instance, run_config={} if more else QUIET, raise_on_error=False
                )

            return rows, labels, run_job

        return make

    @pytest.mark.variants(3)
    @pytest.mark.parametrize("chosen", ["rows", "labels", "both", "root", "root and rows"])
    def test_assets_that_share_a_table_declare_together(self, lake, share, chosen):
        rows, labels, run_job = share({"id": "BITMAP", "label": "FTS"})
        assets = {"rows": [rows], "labels": [labels], "both": [labels, rows], "root and rows": [rows]}.get(chosen, [])
        assert run_job(build_maintenance_job(assets, root=True if "root" in chosen else None)).success
        assert state(lake, "rows") == {"id_idx": (True, "BTREE", 1.0), "label_idx": (True, "FTS", 1.0)}

    @pytest.mark.parametrize("is_listed", [False, True])
    def test_declarations_that_do_not_fit_together_are_named_in_the_outcome(self, lake, share, is_listed):
        rows, _, run_job = share({"label": {"kind": "FTS", "name": "i"}}, {"id": {"kind": "BTREE", "name": "i"}})
        lake.run(docs)
        chosen = {"root": True} if is_listed else {"tables": [rows, docs]}
        job = build_maintenance_job(**chosen)
        result = run_job(job)
        assert "asset rows: metadata lance/indices: indices: the name 'i' is given to two columns" in errors(result)
        assert "1 failed" in errors(result)
        lake.run(docs)
        sensor, resources = build_maintenance_sensor(job, **chosen), {"io_manager": lake.manager()}
        repository = dg.OpExecutionContext.repository_def
        with dg.build_sensor_context(instance=lake.instance, resources=resources, repository_def=repository) as context:
            result = sensor(context)
            assert not isinstance(result, dg.SkipReason), result
            (request,) = result.run_requests
        assert request.tags["lance/tables"] == '["docs"]'

    def test_checks_of_one_asset_know_the_declarations_of_the_other(self, share):
        rows, _, run_job = share({"label": "FTS"})
        checks = [*build_lance_index_checks([rows]), *build_lance_health_checks([rows])]
        job = dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())
        result = run_job(job, asset_checks=checks)
        failed = {each.check_name: each.description for each in result.get_asset_check_evaluations() if not each.passed}
        assert "index 'label_idx': there is none for 300 rows" in failed["lance_indices_built"]
        assert "there is no index label_idx, id_idx, which is declared" in failed["lance_uncovered_indices"]


def test_the_yaml_of_a_lakehouse_declares_indices(lake):
    text = f"""
        root_uri: {lake.root}
        maintenance: {{indices: {{id: BTREE}}, index_memory: 4GB, index_timeout: 2h}}
        all_tables: true
        policies: {{a: {{indices: {{id: BITMAP}}}}}}
        tables: [{{key: b/notes, maintenance: {{indices: {{body: {{kind: BTREE}}}}}}}}]
    """
    for folder in "abc":
        lance.write_dataset(notes(), f"{lake.root}/{folder}/notes.lance")
    defs = LanceLakehouseComponent.resolve_from_yaml(text).build_defs(None)
    job = defs.resolve_job_def("lance_maintenance")
    assert job.execute_in_process(instance=lake.instance, run_config=QUIET).success
    built = {folder: lance_core.dataset(f"{lake.root}/{folder}/notes.lance").describe_indices() for folder in "abc"}
    assert {folder: [(each.name, each.index_type) for each in indices] for folder, indices in built.items()} == {
        "a": [("id_idx", "Bitmap")],
        "b": [("body_idx", "BTree")],
        "c": [("id_idx", "BTree")],
    }


def test_a_policy_of_several_tables_passes_over_those_without_the_column(lake):
    lance.write_dataset(notes(), f"{lake.root}/a/notes.lance")
    lance.write_dataset(pa.table({"n": [1, 2]}), f"{lake.root}/a/numbers.lance")
    lance.write_dataset(pa.table({"n": [1, 2]}), f"{lake.root}/b/numbers.lance")
    folder = {"a": {"indices": {"id": "BTREE"}}, "b/numbers": {"indices": {"id": "BTREE"}}}
    summary = run(lake, build_maintenance_job(root=True, policies=folder)).output_for_node("summarize")
    assert summary["done"] == ["a/notes"]
    assert summary["healthy"] == ["a/numbers"]
    assert summary["partly_done"] == {"b/numbers": "index 'id_idx': there is no column 'id'"}


def test_a_failed_index_leaves_the_run_green_unless_search_is_required(lake):
    lance.write_dataset(notes(), lake.uri("plain"))
    for required in (False, True):
        policy = LanceMaintenancePolicy(
            indices={"missing": "FTS", "id": "BTREE"}, require_search=required, cleanup_older_than=None
        )
        job = build_maintenance_job(["plain"], policy)
        for _ in range(2):  # with work to do, and without
            result = run(lake, job)
            assert result.success is not required
            if required:
                report = next(line for line in errors(result).splitlines() if "asset plain: " in line)
                assert report.count("there is no column 'missing'") == 1
            else:
                assert observed(result)["lance/maintenance"] == "partly done"
                assert observed(result)["lance/index_problems"] == "index 'missing_idx': there is no column 'missing'"


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ({"body": "FTX"}, "there is no kind 'FTX'"),
        ({"embedding": {"kind": "IVF_FLAT", "metrik": "l2"}}, "has no field 'metrik'; is 'metric' meant"),
        ({"embedding": {"kind": "IVF_PQ", "metric": "hamming"}}, "hamming"),
        ({"body": {"kind": "FTS", "min_recall": 2}}, "min_recall must be"),
        (["body"], "must be a mapping"),
    ],
)
def test_wrong_declarations_are_rejected_when_the_code_location_loads(lake, indices, message):
    asset = declaring(indices)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=f"asset docs: metadata lance/indices: .*{message}"):
        build_maintenance_job([asset])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=message):
        stamp_lance_metadata(dg.Definitions(assets=[asset], resources={"io_manager": lake.manager()}))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=message):
        build_maintenance_job(root=True, policies={"a": {"indices": indices}})
    with pytest.raises(ValueError, match=message):
        LanceMaintenancePolicy(indices=indices)


class TestSensor:
    @pytest.fixture
    def tick(self, lake):
        """Evaluate the sensor of a job, run what it requests, and return why it requested a run."""
        held, keys = {}, set()

        def evaluate(policy=KEPT, asset=docs):
            job = build_maintenance_job([asset], policy)
            sensor, resources = build_maintenance_sensor(job, [asset], policy), {"io_manager": lake.manager()}
            with dg.build_sensor_context(instance=lake.instance, cursor=held.get("c"), resources=resources) as context:
                result = sensor(context)
            if isinstance(result, dg.SkipReason):
                return False
            held["c"] = result.cursor
            for request in result.run_requests or ():
                assert request.run_key not in keys  # Dagster makes one run of a key
                keys.add(request.run_key)
                assert run(lake, job, dict(request.run_config), tags=request.tags).success
            return bool(result.run_requests)

        return evaluate

    def test_a_missing_index_is_a_reason_to_run_and_so_are_rows_that_it_misses(self, lake, tick):
        lake.run(docs)
        assert tick()
        assert state(lake) == BUILT
        assert not tick()
        lance.write_dataset(notes(300, 10), lake.uri("docs"), mode="append")
        assert not tick()  # 5 % can wait
        lance.write_dataset(notes(310, 10), lake.uri("docs"), mode="append")
        assert tick()
        assert state(lake) == BUILT
        assert not tick()
        assert not tick()

    def test_rows_that_lance_cores_own_kinds_miss_are_counted_too(self, lake, tick):
        asset = declaring({"id": "BTREE"})
        lake.run(docs)
        assert tick(asset=asset)
        lance.write_dataset(notes(300, 10), lake.uri("docs"), mode="append")
        assert not tick(asset=asset)
        lance.write_dataset(notes(310, 10), lake.uri("docs"), mode="append")
        assert not tick(LanceMaintenancePolicy(refresh_indices=False, cleanup_older_than=None), asset)
        assert tick(asset=asset)
        assert state(lake) == {"id_idx": (True, "BTREE", 1.0)}
        assert not tick(asset=asset)

    def test_segments_without_end_are_a_reason_to_merge_them(self, lake, tick):
        """Writes that cover their rows at once leave one segment each."""
        asset = declaring({"embedding": "IVF_FLAT"}, **{"lance/index_on_write": True})
        lake.run(asset)
        assert tick(asset=asset)  # measures
        for i in range(16):
            table = lance.write_dataset(notes(300 + i, 1), lake.uri("docs"), mode="append")
            table.optimize.optimize_indices(num_indices_to_merge=0)
            assert i != 14 or not tick(asset=asset)
        policy = LanceMaintenancePolicy(max_small_fragments=100, cleanup_older_than=None)
        assert tick(policy, asset)
        (index,) = describe_index_health(lake.table("docs"))
        assert index.segments <= 2
        assert not tick(policy, asset)

    def test_another_declaration_is_one_at_the_same_version(self, lake, tick):
        policy = LanceMaintenancePolicy(max_versions=1, retain_versions=1, target_rows_per_fragment=1)
        for _ in range(2):
            lake.run(docs)
        assert tick(policy, declaring({}))  # removes versions, and makes none
        version = lake.table("docs").version
        assert not tick(policy, declaring({}))
        assert lake.table("docs").version == version
        assert tick(policy, declaring({"id": "BTREE"}))
        assert state(lake) == {"id_idx": (True, "BTREE", 1.0)}

    def test_an_index_that_cannot_be_built_waits(self, lake, tick):
        lake.run(docs)
        policy = LanceMaintenancePolicy(index_memory=1000, cleanup_older_than=None)
        assert tick(policy)
        (failed,) = (index for index in describe_index_health(lake.table("docs")) if index.name == "embedding_idx")
        assert failed.failure["count"] == 1
        assert not tick(policy)
        assert not tick(policy)
