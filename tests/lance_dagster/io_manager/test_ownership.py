"""One table belongs to one asset."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, LanceIOManager, LanceTableResource, stamp_lance_metadata
from lance_dagster.tables.settings import TableSettings
from tests.lance_dagster.lake import errors

SHARED = {"lance/shared_table": True}


def asset(key, n=1, **metadata):
    @dg.asset(key=key.split("/"), metadata=metadata)
    def made() -> pa.Table:
        return pa.table({"n": [n]})

    return made


def test_keys_that_end_alike_have_tables_of_their_own(lake):
    lake.run(asset("team1/events/daily", 1), asset("team2/events/daily", 2))
    assert (lake.rows("team1/events/daily"), lake.rows("team2/events/daily")) == ([(1,)], [(2,)])
    tables = LanceTableResource(root_uri=lake.root)
    assert tables.tables() == ["team1/events/daily", "team2/events/daily"]
    assert tables.open("team2/events/daily").uri == tables.open(["team2", "events", "daily"]).uri


@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("maintained", [False, True])
def test_an_asset_does_not_write_to_the_table_of_another(lake, mode, maintained):
    lake.run(asset("a/x"))
    if maintained:
        lake.table("a/x").update_config({"k": "v"})
        lake.table("a/x").create_scalar_index("n", "BTREE")
    version = lake.table("a/x").version
    said = errors(lake.run(asset("b/y", 2, schema="a", table="x"), write_mode=mode, fails=True))
    assert "asset b/y: the table" in said
    assert "belongs to asset a/x, which wrote version 1" in said
    assert '{"lance/shared_table": True}' in said
    assert (lake.table("a/x").version, lake.rows("a/x")) == (version, [(1,)])
    lake.run(asset("a/x", 3), write_mode=mode)  # the owner goes on


def test_the_metadata_shared_table_permits_several_assets(lake):
    first, second = (asset(f"shop/{name}", n, table="all", **SHARED) for name, n in (("a", 1), ("b", 2)))
    lake.run(first, second, write_mode="append")
    assert lake.rows("shop/all") == [(1,), (2,)]
    lake.run(asset("shop/renamed", 3, table="all", **SHARED), write_mode="append")
    assert "belongs to asset shop/renamed" in errors(lake.run(asset("shop/all", 3), fails=True))
    assert "must be True or False, not 'yes'" in errors(
        lake.run(asset("shop/all", 3, **{"lance/shared_table": "yes"}), fails=True)
    )


def test_a_table_that_others_made_can_be_written(lake):
    lance_core.write_dataset(pa.table({"n": [7]}), lake.uri("a/x"))
    lake.run(asset("a/x"), write_mode="append")
    assert lake.rows("a/x") == [(1,), (7,)]


def test_on_a_branch(lake):
    lake.run(asset("a/x"))
    tagged = {"branching": BranchPolicy.from_tag("lance/branch"), "tags": {"lance/branch": "trial"}}
    assert "belongs to asset a/x" in errors(lake.run(asset("b", 2, schema="a", table="x"), fails=True, **tagged))
    lake.run(asset("c", 3), **tagged)  # begun empty for its branch
    assert "belongs to asset c" in errors(lake.run(asset("public/c", 3), fails=True, **tagged))


def test_two_assets_that_make_one_table_at_the_same_time(lake, monkeypatch):
    real, calls = TableSettings.open_uri, []

    def meanwhile(self, uri):
        found = real(self, uri)
        calls.append(uri)
        if len(calls) == 2:  # the first is at the start of the step
            lance_core.write_dataset(pa.table({"n": [9]}), uri, transaction_properties={"dagster.asset_key": "team2/x"})
        return found

    monkeypatch.setattr(TableSettings, "open_uri", meanwhile)
    said = errors(lake.run(asset("team1/x"), write_mode="append", fails=True))
    assert "version 1 of its table" in said
    assert "for asset team2/x" in said


def test_rows_where_an_earlier_release_put_them_are_not_forgotten(lake):
    lake.run(asset("team1/events/daily", schema="events"))

    @dg.asset(ins={"daily": dg.AssetIn(["team1", "events", "daily"])})
    def reader(daily: pa.Table) -> pa.Table:
        return daily

    new = asset("team1/events/daily", 2)
    for result in (
        lake.run(new, fails=True),
        lake.run(new, reader, select=[reader], fails=True),
    ):
        assert 'Give the asset the metadata {"schema": "events"}, or move the folder' in errors(result)
    lake.run(asset("team1/events/daily", 3, schema="events"))
    lake.run(asset("team2/events/daily", 4))
    assert (lake.rows("events/daily"), lake.rows("team2/events/daily")) == ([(3,)], [(4,)])


def test_definitions_with_two_assets_of_one_table_are_rejected():
    def stamped(*assets, **resources):
        managers = {"io_manager": LanceIOManager(root_uri="/lake")} | resources
        return stamp_lance_metadata(dg.Definitions(assets=[*assets], resources=managers))

    two = [asset("a/x", table="all"), asset("a/y", table="all")]
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"a/x and a/y would both .* /lake/a/all\.lance"):
        stamped(*two)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="would both"):
        stamped(asset("x"), asset("public/x"))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="would both"):
        stamped(asset("a/x", table="all", **SHARED), two[1])
    stamped(asset("a/x", table="all", **SHARED), asset("a/y", table="all", **SHARED))
    graph = stamped(asset("team1/events/daily"), asset("team2/events/daily")).resolve_asset_graph()
    metadata = graph.get(dg.AssetKey(["team2", "events", "daily"])).metadata
    assert metadata["dagster/uri"] == "/lake/team2/events/daily.lance"
    assert metadata["dagster/table_name"] == "team2.events.daily"


@dg.asset
def first() -> pa.Table:
    return pa.table({"n": [1]})


@dg.asset
def second(first: pa.Table) -> pa.Table:
    return first


def in_memory():
    manager = LanceIOManager(root_uri="memory://ownership")
    defs = dg.Definitions([first, second], jobs=[dg.define_asset_job("both")], resources={"io_manager": manager})
    return defs.resolve_job_def("both")


def test_memory_is_rejected_where_steps_run_in_other_processes(tmp_path):
    """By Dagster's default executor."""
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.execute_job(dg.reconstructable(in_memory), instance=instance) as result,
    ):
        assert not result.success
        said = errors(result)
    assert "root_uri 'memory://ownership' is the memory of one process" in said
    assert "Use in_process_executor" in said


def test_memory_is_fine_in_one_process():
    manager = LanceIOManager(root_uri="memory://ownership-2")
    assert dg.materialize([first, second], resources={"io_manager": manager}).success
    assert in_memory().execute_in_process().success
