"""Assets whose function computes columns of another asset's table."""

import os

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import FailedRowsError
from lance_dagster import BranchPolicy, LanceIOManager, build_undo_job, computed, computed_columns

SIZES = pa.schema([("size", pa.int32())])
DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])
CALLS = []


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


@dg.asset
def photos() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "text": ["a", "bb", "ccc"]})


def measure(batch):
    CALLS.extend(batch["text"].to_pylist())
    if "poison" in batch["text"].to_pylist():
        raise ValueError("poison")
    return pc.utf8_length(batch["text"])


def sized(table=photos, name="photo_sizes", code_version="1", **options):
    decorated = computed_columns(
        table=table, inputs=["text"], columns=SIZES, code_version=code_version, name=name, **options
    )
    return decorated(measure)


class Model(dg.ConfigurableResource):
    factor: int


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "lake")


def run(root, *assets, instance=None, selection=None, branching=None, **options):
    manager = LanceIOManager(root_uri=root, **({} if branching is None else {"branching": branching}))
    return dg.materialize(
        list(assets), selection=selection, resources={"io_manager": manager}, instance=instance, **options
    )


def read(root, table="public/photos", branch=None):
    dataset = lance_core.dataset(f"{root}/{table}.lance")
    dataset = dataset if branch is None else dataset.checkout_version((branch, None))
    return {row["text"]: row["size"] for row in dataset.to_table(["text", "size"]).to_pylist()}


def entries(result, asset):
    (event,) = result.asset_materializations_for_node(asset.node_def.name)
    return {key: value.value for key, value in event.metadata.items()}


def test_rows_are_computed_once(root, calls):
    sizes = sized()
    with dg.DagsterInstance.ephemeral() as instance:
        metadata = entries(run(root, photos, sizes, instance=instance), sizes)
        assert (metadata["lance/due"], metadata["lance/rows_due"], metadata["lance/calls"]) == (3, {"new": 3}, 1)
        assert read(root) == {"a": 1, "bb": 2, "ccc": 3}
        table = lance_core.dataset(f"{root}/public/photos.lance")
        version = table.version
        again = entries(run(root, photos, sizes, instance=instance, selection=[sizes]), sizes)
        assert (again["lance/due"], again["lance/calls"], again["lance/version"]) == (0, 0, version)
        assert lance_core.dataset(table.uri).version == version
        table.insert({"id": [4], "text": ["dddd"]})
        table.update({"text": "'A'"}, "id = 1")
        calls.clear()
        metadata = entries(run(root, photos, sizes, instance=instance, selection=[sizes]), sizes)
        assert metadata["lance/rows_due"] == {"new": 1, "inputs changed": 1}
        assert sorted(calls) == ["A", "dddd"]
        run(root, photos, sized(code_version="2"), instance=instance, selection=["photo_sizes"])
        assert len(calls) == 6


def test_an_asset_of_dagster_like_any_other(root):
    sizes = sized(group_name="features", owners=["team:vision"], key_prefix="nyc", metadata={"team": "a"})
    (spec,) = sizes.specs
    assert spec.key == dg.AssetKey(["nyc", "photo_sizes"])
    assert (spec.group_name, list(spec.owners), spec.code_version) == ("features", ["team:vision"], "1")
    assert [dep.asset_key for dep in spec.deps] == [photos.key]
    assert run(root, photos, sizes).success
    owner = lance_core.dataset(f"{root}/public/photos.lance").schema.field("size").metadata
    assert owner[b"dagster.asset_key"] == b"nyc/photo_sizes"


def test_resources_and_frames(root):
    def scaled(frame: "pd.DataFrame", model: Model):  # noqa: F821 - read as text
        return frame.assign(size=(frame["text"].str.len() * model.factor).astype("int32"))[["size"]]

    sizes = computed_columns(table=photos, inputs=["text"], columns=SIZES, code_version="1", cost_per_row=0.5)(scaled)
    resources = {"io_manager": LanceIOManager(root_uri=root), "model": Model(factor=10)}
    result = dg.materialize([photos, sizes], resources=resources)
    assert read(root) == {"a": 10, "bb": 20, "ccc": 30}
    assert entries(result, sizes)["lance/cost"] == 1.5


def test_coroutines(root):
    async def slow(batch):
        return measure(batch)

    sizes = computed_columns(
        table=photos, inputs=["text"], columns=SIZES, code_version="1", concurrency=2, batch_size=1
    )(slow)
    assert entries(run(root, photos, sizes), sizes)["lance/calls"] == 3
    assert read(root) == {"a": 1, "bb": 2, "ccc": 3}


def test_partitions(root, calls):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def daily(context) -> pa.Table:
        return pa.table({"day": [context.partition_key] * 2, "text": [context.partition_key, "x"]})

    sizes = sized(table=daily, partitions_def=DAYS, metadata={"partition_expr": "day"})
    for day in ("mon", "tue"):
        assert run(root, daily, selection=[daily], partition_key=day).success
    result = run(root, daily, sizes, selection=[sizes], partition_key="tue")
    assert sorted(calls) == ["tue", "x"]
    assert entries(result, sizes)["lance/due"] == 2
    rows = lance_core.dataset(f"{root}/public/daily.lance").to_table(["day", "size"]).to_pylist()
    assert {(row["day"], row["size"]) for row in rows} == {("mon", None), ("tue", 3), ("tue", 1)}
    run(root, daily, sizes, selection=[sizes], partition_key="mon")
    assert len(calls) == 4


def test_a_run_of_several_partitions_has_its_figures_once(root):
    """In `lance/commit`, which is about the whole run: charts of a partition have the figures of its own runs alone."""

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def daily(context) -> pa.Table:
        return pa.table({"day": list(context.partition_keys), "text": list(context.partition_keys)})

    sizes = sized(table=daily, partitions_def=DAYS, metadata={"partition_expr": "day"}, cost_per_row=1)
    tags = {"dagster/asset_partition_range_start": "mon", "dagster/asset_partition_range_end": "tue"}
    events = run(root, daily, sizes, tags=tags).asset_materializations_for_node("photo_sizes")
    assert {event.partition for event in events} == {"mon", "tue"}
    for event in events:
        figures = event.metadata["lance/commit"].value
        assert (figures["due"], figures["due_new"], figures["calls"], figures["cost"]) == (2, 2, 1, 2)
        assert not {"lance/due", "lance/rows_due", "lance/calls", "lance/cost"} & set(event.metadata)
    alone = run(root, daily, sizes, selection=[sizes], partition_key="mon")
    assert entries(alone, sizes)["lance/due"] == 0


def test_failed_rows(root, calls):
    @dg.asset
    def poisoned() -> pa.Table:
        return pa.table({"id": [1, 2], "text": ["a", "poison"]})

    sizes = sized(table=poisoned)
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(root, poisoned, sizes, instance=instance, raise_on_error=False)
        assert not result.success
        (failure,) = result.get_step_failure_events()
        assert FailedRowsError.__name__ in str(failure.event_specific_data.error)
        assert read(root, "public/poisoned") == {"a": 1, "poison": None}
        failed = lance_core.dataset(f"{root}/_failed/photo_sizes.lance").to_table().to_pylist()
        assert [(row["error"], row["attempt"]) for row in failed] == [("ValueError: poison", result.run_id)]
        calls.clear()
        assert run(root, poisoned, sizes, instance=instance, selection=[sizes]).success
        assert calls == []
        config = {"ops": {"photo_sizes": {"config": {"retry_failed": True}}}}
        again = run(
            root, poisoned, sizes, instance=instance, selection=[sizes], run_config=config, raise_on_error=False
        )
        assert (again.success, calls) == (False, ["poison"])


def observations(instance, name="photo_sizes"):
    records = instance.fetch_observations(dg.AssetKey(name), limit=10).records
    return [
        {key: value.value for key, value in record.asset_observation.metadata.items()} for record in reversed(records)
    ]


@pytest.mark.parametrize("is_tagged", [False, True], ids=["configuration", "tag"])
def test_a_dry_run(root, calls, is_tagged):
    sizes = sized(cost_per_row=0.5, group_name="features")

    @dg.asset(deps=[sizes])
    def report(): ...

    config = {"ops": {"photo_sizes": {"config": {"dry_run": True}}}}
    dry = {"tags": {"lance/dry_run": "true"}} if is_tagged else {"run_config": config}
    with dg.DagsterInstance.ephemeral() as instance:
        run(root, photos, instance=instance)
        table = lance_core.dataset(f"{root}/public/photos.lance")
        result = run(root, photos, sizes, report, instance=instance, selection=[sizes, report], **dry)
        assert result.success
        assert (calls, lance_core.dataset(table.uri).version) == ([], table.version)
        assert instance.get_latest_materialization_event(sizes.key) is None
        assert instance.get_latest_materialization_event(report.key) is None
        run(root, photos, sizes, instance=instance, selection=[sizes])
        table.checkout_latest()
        table.update({"text": "'A'"}, "id = 1")
        table.insert({"id": [4], "text": ["dddd"]})
        run(root, photos, sizes, instance=instance, selection=[sizes], **dry)
        first, second = observations(instance)
        assert (first["lance/due"], first["lance/due_new"], first["lance/due_share"]) == (3, 3, 1.0)
        assert first["lance/expected_cost"] == 1.5
        assert (second["lance/due_new"], second["lance/due_inputs_changed"], second["lance/due_share"]) == (1, 1, 0.5)
        assert second["lance/rows_due"] == {"new": 1, "inputs changed": 1}
        seconds = instance.get_latest_materialization_event(sizes.key).asset_materialization.metadata["lance/seconds"]
        assert 0 <= second["lance/expected_seconds"] <= seconds.value * 2 / 3 + 0.001
        assert "lance/expected_seconds" not in first
        assert len(calls) == 3


@pytest.mark.parametrize("tags", [{}, {"lance/dry_run": "true"}], ids=["run", "dry run"])
def test_another_io_manager(tags, tmp_path):
    table = lance_core.write_dataset({"text": ["a"]}, tmp_path / "photos.lance")
    resources = {"io_manager": dg.FilesystemIOManager(base_dir=table.uri)}
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"photo_sizes .* a PickledObject.*: set io_manager_key"):
        dg.materialize([photos, sized()], selection=["photo_sizes"], resources=resources, tags=tags)
    assert CALLS == []


def test_the_cost_of_rows_that_fail(root):
    """Each call is paid for, those of halves as well, and the next dry run expects as many."""

    @dg.asset
    def poisoned() -> pa.Table:
        return pa.table({"id": [1, 2], "text": ["a", "poison"]})

    sizes = sized(table=poisoned, cost_per_row=0.5, max_failed_rows=1)
    with dg.DagsterInstance.ephemeral() as instance:
        assert entries(run(root, poisoned, sizes, instance=instance), sizes)["lance/cost"] == 0.5 * (2 + 1 + 1)
        lance_core.dataset(f"{root}/public/poisoned.lance").insert({"id": [3], "text": ["b"]})
        run(root, poisoned, sizes, instance=instance, selection=[sizes], tags={"lance/dry_run": "true"})
        assert observations(instance)[-1]["lance/expected_cost"] == 0.5 * 2


def test_a_dry_run_of_a_partition_on_a_branch(root, calls):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def daily(context) -> pa.Table:
        return pa.table({"day": [context.partition_key] * 2, "text": [context.partition_key, "x"]})

    sizes = sized(table=daily, partitions_def=DAYS, metadata={"partition_expr": "day"})
    with dg.DagsterInstance.ephemeral() as instance:
        for day in DAYS.get_partition_keys():
            run(root, daily, instance=instance, partition_key=day)
        tags = {"lance/dry_run": "true", "lance/branch": "trial"}
        more = {"instance": instance, "selection": [sizes], "partition_key": "tue", "tags": tags}
        assert run(root, daily, sizes, branching=BranchPolicy.from_tag(), **more).success
        (entry,) = observations(instance)
        assert (entry["lance/due"], entry["lance/due_share"]) == (2, 0.5)
        assert lance_core.dataset(f"{root}/public/daily.lance").branches.list() == {}
        (record,) = instance.fetch_observations(sizes.key, limit=2).records
        assert record.partition_key == "tue"
        assert calls == []


def test_failed_rows_are_observed(root):
    @dg.asset
    def poisoned() -> pa.Table:
        return pa.table({"id": [1, 2], "text": ["a", "poison"]})

    sizes = sized(table=poisoned, cost_per_row=0.5, deps=None)
    with dg.DagsterInstance.ephemeral() as instance:
        failed = run(root, poisoned, sizes, instance=instance, raise_on_error=False)
        assert not failed.success
        (entry,) = observations(instance)
        assert (entry["lance/rows_failed"], entry["lance/rows_failed_standing"], entry["lance/due_new"]) == (1, 1, 2)
        assert (entry["lance/calls"], entry["lance/cost"]) == (3, 0.5 * (2 + 1 + 1))
        (record,) = instance.fetch_observations(sizes.key, limit=5).records
        assert record.run_id == failed.run_id
        again = entries(run(root, poisoned, sizes, instance=instance, selection=[sizes]), sizes)
        assert (again["lance/rows_failed"], again["lance/rows_failed_standing"], again["lance/cost"]) == (0, 1, 0)
    allowed = entries(run(root, poisoned, sized(table=poisoned, max_failed_rows=1, code_version="2")), sized())
    assert allowed["lance/failed_rows"].endswith("/_failed/photo_sizes.lance")


def test_progress_is_observed(root, monkeypatch):
    monkeypatch.setattr(computed, "_SECONDS", 0.0)
    sizes = sized(batch_size=1)
    with dg.DagsterInstance.ephemeral() as instance:
        run(root, photos, sizes, instance=instance)
        done = [(entry["lance/rows_done"], entry["lance/rows_left"]) for entry in observations(instance)]
    assert done == [(1, 2), (2, 1), (3, 0)]


def test_a_branch_and_its_promotion(root, calls):
    sizes = sized()
    policy = BranchPolicy.from_tag()
    with dg.DagsterInstance.ephemeral() as instance:
        run(root, photos, instance=instance)
        tags = {"lance/branch": "trial"}
        assert run(root, photos, sizes, instance=instance, selection=[sizes], branching=policy, tags=tags).success
        assert read(root) == {"a": None, "bb": None, "ccc": None}
        assert read(root, branch="trial") == {"a": 1, "bb": 2, "ccc": 3}
        lance_core.dataset(f"{root}/public/photos.lance").branches.promote("trial")
        assert read(root) == {"a": 1, "bb": 2, "ccc": 3}
        calls.clear()
        assert run(root, photos, sizes, instance=instance, selection=[sizes], branching=policy).success
        assert calls == []


def test_undo(root, calls):
    sizes = sized()
    manager = LanceIOManager(root_uri=root)
    undo = build_undo_job(assets=[photos, sizes])
    defs = dg.Definitions([photos, sizes], jobs=[undo], resources={"io_manager": manager})
    with dg.DagsterInstance.ephemeral() as instance:
        run(root, photos, sizes, instance=instance)
        lance_core.dataset(f"{root}/public/photos.lance").update({"text": "'A'"}, "id = 1")
        second = run(root, photos, sizes, instance=instance, selection=[sizes])
        assert read(root) == {"A": 1, "bb": 2, "ccc": 3}
        lance_core.dataset(f"{root}/public/photos.lance").update({"text": "'four'"}, "id = 2")
        third = run(root, photos, sizes, instance=instance, selection=[sizes])
        assert read(root)["four"] == 4
        job = defs.resolve_job_def(undo.name)
        assert job.execute_in_process(instance=instance, tags={"lance/undo_run": third.run_id}).success
        assert read(root)["four"] == 2
        calls.clear()
        assert run(root, photos, sizes, instance=instance, selection=[sizes]).success
        assert calls == ["four"]
        assert second.success


@pytest.mark.parametrize("tags", [{}, {"lance/dry_run": "true"}], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": pa.schema([("id", pa.int32())])}, "belongs to"),
        ({"columns": pa.schema([pa.field("size", pa.int32(), nullable=False)])}, "'size' must be nullable"),
        ({"inputs": ["none"]}, "none"),
        ({"code_version": ""}, "code_version must be a string that is not empty"),
        ({"table": "public/nothing"}, "there is no table"),
    ],
)
def test_wrong_definitions(root, options, message, tags):
    arguments = {"table": photos, "inputs": ["text"], "columns": SIZES, "code_version": "1", "name": "wrong", **options}
    wrong = computed_columns(**arguments)(measure)
    with pytest.raises(Exception, match=message):
        run(root, photos, wrong, tags=tags)
    assert CALLS == []


def test_the_executors_of_spark(root, spark, tmp_path):
    class Session(dg.ConfigurableResource):
        @property
        def spark_session(self):
            return spark

    def scaled(batch, model, plain):
        (tmp_path / str(os.getpid())).touch()
        return pc.multiply(pc.utf8_length(batch["text"]), model.factor * plain)

    sizes = computed_columns(
        table=photos, inputs=["text"], columns=SIZES, code_version="1", batch_size=1, engine="spark"
    )(scaled)
    resources = {"io_manager": LanceIOManager(root_uri=root, spark=Session()), "model": Model(factor=5), "plain": 2}
    result = dg.materialize([photos, sizes], resources=resources)
    assert (read(root), entries(result, sizes)["lance/calls"]) == ({"a": 10, "bb": 20, "ccc": 30}, 3)
    assert str(os.getpid()) not in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["code_version", "columns", "inputs", "table"])
def test_missing_arguments(name):
    arguments = {"table": photos, "inputs": ["text"], "columns": SIZES, "code_version": "1"}
    del arguments[name]
    with pytest.raises(TypeError, match=f"'{name}'"):
        computed_columns(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "ray"}, 'must be "process" or "spark", not \'ray\''),
        ({"engine": "spark", "processes": 2}, "leave out"),
    ],
)
def test_wrong_engines(options, message):
    with pytest.raises(ValueError, match=message):
        sized(**options)


def test_a_table_without_stable_row_ids(root):
    lance_core.write_dataset({"id": [1], "text": ["a"]}, f"{root}/public/photos.lance", enable_stable_row_ids=False)
    with pytest.raises(Exception, match=r"migrate_to_stable_row_ids"):
        run(root, photos, sized(), selection=["photo_sizes"])
    assert CALLS == []


def test_columns_of_another_computed_asset(root):
    with pytest.raises(Exception, match="belongs to"):
        run(root, photos, sized(), sized(name="other_sizes"))
    assert len(CALLS) == 3
