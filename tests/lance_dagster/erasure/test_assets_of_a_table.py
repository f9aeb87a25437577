"""The assets that share an erased table: Dagster hears of each that its recorded version is no longer there."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
import lance_dagster
from tests.lance_dagster.lake import QUIET, errors

PARTS = dg.StaticPartitionsDefinition(["x", "y"])


@dg.asset
def people() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "email": ["a", "b", "c"]})


@dg.asset(
    ins={"people": dg.AssetIn(metadata={"columns": ["id"]})},
    metadata={"lance/write_mode": "columns", "lance/table": "people", "lance/key": "id"},
)
def labels(people: pa.Table) -> pa.Table:
    return people.append_column("label", pa.array([f"l{i}" for i in people["id"].to_pylist()]))


def part(name, **options):
    """An asset that writes its partitions to the table `shared`."""
    metadata = {"table": "shared", "partition_expr": "part", "lance/shared_table": True}

    @dg.asset(name=name, partitions_def=PARTS, metadata=metadata, **options)
    def made(context) -> pa.Table:
        return pa.table({"part": [context.partition_key] * 2, "email": ["a", "b"]})

    return made


def erase(lake, assets, *, of, where, success=True, **config):
    """Run the erasure job of a code location with some assets."""
    job = lance_dagster.build_erasure_job(of)
    defs = dg.Definitions(assets=assets, jobs=[job], resources={"io_manager": lake.manager(read="materialized")})
    settings = {"where": {"plain": where}, **config}
    with pytest.MonkeyPatch.context() as patch:  # in this process a run does not know its code location
        patch.setattr(dg.OpExecutionContext, "repository_def", defs.get_repository_def())
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=lake.instance,
            run_config={"ops": {"lance_erasure_op": {"config": settings}}, **QUIET},
            raise_on_error=success,
        )
    assert result.success is success
    return result


def load(lake, asset, *, fails=False, **options):
    """The rows that an asset downstream gets, which reads the version that Dagster recorded."""
    seen = []

    @dg.asset(name=f"reader_of_{asset.key.path[-1]}", ins={"rows": dg.AssetIn(asset.key)})
    def reader(rows: pa.Table) -> None:
        seen.append(rows.num_rows)

    upstream = [people] if asset is labels else []
    result = lake.run(asset, reader, *upstream, select=[reader], read="materialized", fails=fails, **options)
    return errors(result) if fails else seen[0]


def reported(lake, asset):
    """The version that the newest event of an asset names, of each partition."""
    records = lake.instance.fetch_materializations(asset.key, limit=50).records
    events = {one.partition_key: one.asset_materialization for one in reversed(records)}
    return {key: event.metadata["lance/version"].value for key, event in events.items()}


@pytest.mark.parametrize("located", [[people, labels], [people]], ids=["same code location", "another one"])
def test_the_asset_of_columns_is_reported(lake, located):
    lake.run(people, labels)
    data_version = lake.instance.get_latest_materialization_event(labels.key).asset_materialization.tags
    erase(lake, located, of=[people], where="id = 2")
    version = lake.table("people").version
    assert reported(lake, people) == reported(lake, labels) == {None: version}
    assert load(lake, labels) == 2
    event = lake.instance.get_latest_materialization_event(labels.key).asset_materialization
    assert event.metadata["lance/rows_erased"].value == 1
    assert event.metadata["dagster/uri"].value == lake.uri("people")
    assert event.tags["dagster/data_version"] != data_version["dagster/data_version"]


@pytest.mark.parametrize("is_located", [True, False], ids=["same code location", "another one"])
def test_partitions_of_other_assets_are_reported(lake, is_located):
    first, second = part("first"), part("second")
    for asset, key in ((first, "x"), (second, "y")):
        lake.run(asset, partition=key)
    erase(lake, [first, second] if is_located else [first], of=[first], where="email = 'a'")
    version = lake.table("shared").version
    assert reported(lake, first) == {"x": version}
    assert reported(lake, second) == {"y": version}
    assert load(lake, second) == 1 + 1
    if is_located:
        event = lake.instance.get_latest_materialization_event(second.key).asset_materialization
        assert event.metadata["dagster/partition_row_count"].value == 1


def test_a_second_erasure_finds_assets_that_no_commit_names(lake):
    lake.run(people, labels)
    erase(lake, [people], of=[people], where="id = 2")
    erase(lake, [people], of=[people], where="id = 3")
    assert reported(lake, labels) == {None: lake.table("people").version}
    assert load(lake, labels) == 1


def test_an_asset_whose_events_name_no_removed_version_gets_no_materialization(lake):
    @dg.asset(metadata={"table": "people", "lance/shared_table": True})
    def never_run() -> pa.Table: ...

    @dg.asset
    def others() -> pa.Table:
        return pa.table({"id": [1]})

    lake.run(people, others)
    erase(lake, [people, never_run, others], of=[people], where="id = 2")
    assert lake.instance.get_latest_materialization_event(never_run.key) is None
    assert reported(lake, others) == {None: 1}


def test_an_asset_of_another_instance_is_not_made_known(lake):
    with dg.DagsterInstance.ephemeral() as other:
        dg.materialize([people, labels], resources={"io_manager": lake.manager()}, instance=other)
    erase(lake, [people], of=[people], where="id = 2")
    assert labels.key not in lake.instance.get_asset_keys()


def test_a_run_that_ended_before_its_events_is_reported_by_the_next_one(lake, monkeypatch):
    lake.run(people, labels)

    def killed(*_arguments, **_options):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("lance_dagster.erasure.events.log_erasure", killed)
        erase(lake, [people], of=[people], where="id = 2", success=False)
    assert lake.table("people").count_rows() == 2
    assert load(lake, labels, fails=True)
    erase(lake, [people], of=[people], where="id = 2")
    version = lake.table("people").version
    assert reported(lake, people) == reported(lake, labels) == {None: version}
    assert load(lake, labels) == 2


def test_what_an_erasure_cannot_report_fails_with_a_remedy_that_works(lake):
    lake.run(people, labels)
    lance_core.dataset(lake.uri("people")).erase_rows("id = 2")
    failed = load(lake, labels, fails=True)
    assert "was removed by a cleanup or an erasure" in failed
    assert "Materialize the asset again" in failed
    lake.run(people, labels, read="materialized")
    assert load(lake, labels) == 3


@pytest.mark.parametrize("named", [[labels], [labels, people]])
def test_the_rows_stay_those_of_their_asset(lake, named):
    lake.run(people, labels)
    erase(lake, [people, labels], of=named, where="id = 2")
    lake.run(people, labels)
    assert lake.table("people").count_rows() == 3


def test_partitions_stay_those_of_their_assets(lake):
    first, second = part("first"), part("second")
    lake.run(first, partition="x")
    lake.run(second, partition="y")
    erase(lake, [first, second], of=[first], where="email = 'a'")
    lake.run(second, partition="y")
    erase(lake, [first], of=[first], where="email = 'a'")
    assert reported(lake, second) == {"y": lake.table("shared").version}
