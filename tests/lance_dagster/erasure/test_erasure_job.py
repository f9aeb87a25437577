"""The erasure job: rows leave the tables, Dagster hears of it, and neither keeps a string of the condition."""

import contextlib
import secrets
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
import lance_dagster
from lance_dagster.erasure.jobs import Condition

MARK = f"m{secrets.token_hex(12)}"


@dg.asset(key_prefix="shop")
def customers() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "email": ["a", MARK, "c"]})


@dg.asset(
    key_prefix="shop",
    partitions_def=dg.StaticPartitionsDefinition(["x", "y"]),
    metadata={"partition_expr": "part"},
)
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"part": [context.partition_key] * 2, "email": [MARK, "b"]})


@contextlib.contextmanager
def lake_in(path, instance):
    """The resources and the tables of a folder."""
    resources = {"io_manager": lance_dagster.LanceIOManager(root_uri=str(path / "lake"))}
    with instance:
        dg.materialize([customers], resources=resources, instance=instance)
        for part in ("x", "y"):
            dg.materialize([orders], resources=resources, instance=instance, partition_key=part)
        yield instance, resources, path


@pytest.fixture
def lake(tmp_path):
    with lake_in(tmp_path, dg.DagsterInstance.ephemeral()) as lake:
        yield lake


@pytest.fixture
def lake_on_disk(tmp_path):
    """A lake whose instance keeps its events, logs and configurations below `home`."""
    (tmp_path / "home").mkdir()
    with lake_in(tmp_path, dg.DagsterInstance.local_temp(str(tmp_path / "home"))) as lake:
        yield lake


def run(lake, *, success=True, where=None, **config):
    instance, resources, path = lake
    file = path / "secret.sql"
    file.write_text(f"email = '{MARK}'")
    job = lance_dagster.build_erasure_job([customers, orders])
    defs = dg.Definitions(assets=[customers, orders], jobs=[job], resources=resources)
    settings = {"where": where or {"file": str(file)}, **config}
    result = defs.resolve_job_def("lance_erasure").execute_in_process(
        instance=instance,
        run_config={"ops": {"lance_erasure_op": {"config": settings}}},
        raise_on_error=False,
    )
    file.unlink()
    assert result.success is success
    return result


def table(lake, name):
    return lance_core.dataset(f"{lake[2]}/lake/shop/{name}.lance")


def holds_mark(folder):
    return [str(path) for path in Path(folder).rglob("*") if path.is_file() and MARK.encode() in path.read_bytes()]


def test_rows_are_erased_and_reported(lake_on_disk):
    instance, _, path = lake_on_disk
    assert holds_mark(path / "lake")
    run(lake_on_disk, request="ticket 17")
    assert table(lake_on_disk, "customers").to_table()["id"].to_pylist() == [1, 3]
    assert table(lake_on_disk, "orders").to_table()["email"].to_pylist() == ["b", "b"]
    assert holds_mark(path) == []  # tables, events, logs and configurations
    event = instance.get_latest_materialization_event(customers.key).asset_materialization
    assert event.metadata["lance/rows_erased"].value == 1
    assert event.metadata["lance/commit"].value["erasure_request"] == "ticket 17"
    assert event.metadata["lance/commit"].value["erasure"]["proven"] is True
    assert event.metadata["lance/version"].value == table(lake_on_disk, "customers").version
    records = instance.fetch_materializations(orders.key, limit=10).records
    newest = {one.partition_key: one.asset_materialization for one in reversed(records)}
    assert {key: one.metadata["dagster/partition_row_count"].value for key, one in newest.items()} == {"x": 1, "y": 1}


def test_a_second_run_and_a_dry_run_change_nothing_and_report_observations(lake):
    _instance, _, _ = lake
    before = table(lake, "customers").version
    result = run(lake, dry_run=True)
    assert table(lake, "customers").version == before
    assert len(result.get_asset_observation_events()) == 2
    run(lake)
    versions = [one["version"] for one in table(lake, "orders").versions()]
    result = run(lake)
    assert len(result.get_asset_observation_events()) == 2
    assert [one["version"] for one in table(lake, "orders").versions()] == versions


def test_an_obstacle_in_one_table_stops_the_run_before_any_table_is_changed(lake):
    orders_table = table(lake, "orders")
    orders_table.tags.create("july", orders_table.version)
    before = [table(lake, name).version for name in ("customers", "orders")]
    result = run(lake, success=False)
    assert "tag july" in str(result.all_node_events)
    assert [table(lake, name).version for name in ("customers", "orders")] == before
    run(lake, retag=True, tables=["shop/orders"])
    assert table(lake, "orders").count_rows() == 2
    assert table(lake, "customers").count_rows() == 3


def test_rows_that_can_be_left_fail_the_run(lake):
    Path(lake[2], "lake/shop/customers.lance/notes.txt").write_text("mine")
    result = run(lake, success=False)
    assert "shop/customers: rows may be left" in str(result.all_node_events)


def test_a_bad_condition_is_not_repeated(lake_on_disk, monkeypatch):
    monkeypatch.setenv("ERASE", f"mail = '{MARK}2'")
    result = run(lake_on_disk, success=False, where={"env": "ERASE"})
    assert "does not fit the table" in str(result.all_node_events)
    assert list(holds_mark(lake_on_disk[2] / "home")) == []
    run(lake_on_disk, success=False, where={"env": "MISSING_VARIABLE"})
    run(lake_on_disk, success=False, where={"file": "/nowhere"})
    run(lake_on_disk, success=False, where={"env": "ERASE", "plain": "id = 1"})


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"plain": "  \n"}, r"where\.plain holds no condition"),
        ({"env": "ERASE"}, r"where\.env: ERASE holds no condition"),
        ({"file": "empty.sql"}, r"where\.file: empty\.sql holds no condition"),
        (
            {"file": "missing.sql"},
            r"missing\.sql cannot be read \(FileNotFoundError\); mount it where the run executes",
        ),
    ],
)
def test_a_source_without_a_condition_fails(where, message, monkeypatch, tmp_path):
    monkeypatch.setenv("ERASE", "  ")
    monkeypatch.chdir(tmp_path)
    Path("empty.sql").write_text("\n")
    with pytest.raises(dg.Failure, match=message):
        Condition(**where).read()


def test_an_event_of_a_partition_says_what_that_partition_lost(lake):
    instance, _, _ = lake
    run(lake, where={"plain": f"part = 'x' and email = '{MARK}'"}, tables=["shop/orders"])
    records = instance.fetch_materializations(orders.key, limit=2).records
    events = {one.partition_key: one.asset_materialization.metadata for one in records}
    assert {name: event["lance/rows_erased"].value for name, event in events.items()} == {"x": 1, "y": 0}
    assert {name: event["dagster/partition_row_count"].value for name, event in events.items()} == {"x": 1, "y": 2}


def test_the_data_version_stays_where_no_row_was_erased(lake):
    instance, _, _ = lake

    def data_versions(key, limit):
        records = instance.fetch_materializations(key, limit=limit).records
        return {one.partition_key: one.asset_materialization.tags["dagster/data_version"] for one in records}

    before = data_versions(orders.key, 2)
    run(lake, where={"plain": f"part = 'x' and email = '{MARK}'"}, tables=["shop/orders"])
    after = data_versions(orders.key, 2)
    assert after["y"] == before["y"]
    assert after["x"] != before["x"]
    # The row is in an earlier version alone.
    before = data_versions(customers.key, 1)
    table(lake, "customers").delete(f"email = '{MARK}'")
    dg.materialize([customers], resources=lake[1], instance=instance)
    table(lake, "customers").delete("id = 3")
    table(lake, "customers").insert(pa.table({"id": [4], "email": ["d"]}))
    known = data_versions(customers.key, 1)
    run(lake, where={"plain": "id = 3"}, tables=["shop/customers"])
    assert data_versions(customers.key, 1) == known != before


def test_all_tables_that_the_condition_does_not_fit_are_named_with_the_remedy(lake):
    table(lake, "orders").alter_columns({"path": "email", "name": "mail"})
    failed = str(run(lake, success=False).all_node_events)
    assert "shop/orders (schema)" in failed
    assert '`tables: ["shop/customers"]`' in failed
    assert table(lake, "customers").count_rows() == 3
    run(lake, tables=["shop/customers"])
    assert table(lake, "customers").count_rows() == 2
    table(lake, "customers").alter_columns({"path": "email", "name": "mail"})
    failed = str(run(lake, success=False).all_node_events)
    assert "shop/customers (schema); shop/orders (schema)" in failed
    assert "`tables:" not in failed


def test_a_plain_condition_is_taken(lake):
    run(lake, where={"plain": "id = 3"}, tables=["shop/customers"])
    assert table(lake, "customers").to_table()["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("value", ["false", "e", "''"])
def test_a_string_of_the_condition_may_be_a_part_of_the_words_of_the_report(lake, value):
    table(lake, "customers").insert(pa.table({"id": [4], "email": [value.replace("''", "'")]}))
    result = run(lake, where={"plain": f"email = '{value}'"}, tables=["shop/customers"])
    events = [one.event_specific_data for one in result.all_events if one.is_asset_observation]
    shown = [one.asset_observation.metadata["lance/erasure"].value for one in events]
    assert [(one["proven"], one["dry_run"]) for one in shown] == [(True, False)]
