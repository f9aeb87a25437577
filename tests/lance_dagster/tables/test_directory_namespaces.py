"""Roots that are directory namespaces: the IO manager, jobs, sensors and checks use the tables that they list."""

import json
import logging
import threading
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import catalog
from lance_core.errors import DatasetExistsError, InvalidInputError
from lance_dagster import (
    BranchPolicy,
    LanceMaintenancePolicy,
    LanceTableResource,
    build_lance_health_checks,
    build_lance_observation_sensor,
    build_maintenance_job,
    build_maintenance_sensor,
    lance_external_assets,
    stamp_lance_metadata,
)
from lance_dagster.components import LanceMaintenanceComponent
from tests.interop.namespaces import Namespace, rest_service
from tests.lance_dagster.lake import QUIET, Lake, errors
from tests.support.undo_command import command

_DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


@dg.asset(key=["shop", "orders"])
def orders():
    return pa.table({"a": [1, 2]})


@dg.asset(key=["shop", "days"], partitions_def=_DAYS, metadata={"partition_expr": "day"})
def days(context):
    return pa.table({"day": [context.partition_key], "a": [1]})


@dg.asset(key=["shop", "eu", "sums"], ins={"rows": dg.AssetIn(key=["shop", "orders"])})
def sums_of_orders(rows: pa.Table):
    return pa.table({"a": [sum(rows["a"].to_pylist())]})


@pytest.fixture
def spaces(lake):
    """pylance's namespace of the root of the lake."""
    made = Namespace(lake.root)
    made.create("top", 0)
    return made


@dg.asset(key="top")
def top():
    return pa.table({"a": [1, 2]})


def location_of(spaces, name):
    return spaces.call("describe_table", name).location.removeprefix("file://")


def test_new_tables_are_declared_under_the_ids_of_their_assets(lake, spaces):
    result = lake.run(orders, sums_of_orders)
    for partition in ("mon", "tue"):
        lake.run(days, partition=partition)
    assert spaces.walk() == ["shop.days", "shop.eu.sums", "shop.orders", "top"]
    assert spaces.rows(lance, "shop.orders") == [1, 2]
    assert spaces.rows(lance, "shop.eu.sums") == [3]
    assert spaces.rows(lance, "shop.days") == [1, 1]
    (event,) = result.asset_materializations_for_node("shop__orders")
    assert event.metadata["dagster/uri"].value == location_of(spaces, "shop.orders")
    assert event.metadata["dagster/table_name"].value == "shop.orders"
    lake.run(orders)
    assert lance.dataset(location_of(spaces, "shop.orders")).version == 2
    assert not Path(lake.root, "shop").exists()
    spaces.call("drop_table", "shop.orders")
    lake.run(orders)
    assert spaces.rows(lance, "shop.orders") == [1, 2]


def test_tables_that_pylance_made_are_read_and_written_where_they_are(lake, spaces):
    spaces.create("shop.orders", 40)
    spaces.call("declare_table", "shop.eu.sums")
    lake.run(orders, sums_of_orders, select=[sums_of_orders])
    assert spaces.rows(lance, "shop.eu.sums") == [40]
    lake.run(orders)
    assert spaces.rows(lance, "shop.orders") == [1, 2]
    assert sorted(path.name[8:] for path in Path(lake.root).iterdir() if "shop" in path.name) == [
        "_shop$eu$sums", "_shop$orders",
    ]  # fmt: skip


def test_a_table_in_its_folder_stays_there_and_is_listed_by_the_next_write(lake):
    lake.run(orders)
    assert not Path(lake.root, "__manifest").exists()
    spaces = Namespace(lake.root)
    spaces.create("top", 0)
    lake.run(orders, sums_of_orders, select=[sums_of_orders])
    assert spaces.rows(lance, "shop.eu.sums") == [3]
    assert "orders" not in spaces.tables("shop")
    lake.run(orders)
    assert location_of(spaces, "shop.orders") == lake.uri("shop/orders")
    assert lake.table("shop/orders").version == 2


def test_of_two_that_create_a_table_at_once_both_write_one(lake, spaces, monkeypatch):
    """The other one declares the id, at another location, just before this run does."""
    declare = catalog.declare

    def late(root, object_id, location, **options):
        monkeypatch.setattr(catalog, "declare", declare)
        spaces.create("shop.orders", 9)
        return declare(root, object_id, location, **options)

    monkeypatch.setattr(catalog, "declare", late)
    lake.run(orders, write_mode="append")
    assert spaces.rows(lance, "shop.orders") == [9, 1, 2]
    assert [table.path for table in lance_core.maintenance.find_tables(lake.root)] == ["shop/orders", "top.lance"]


def test_writers_that_declare_an_id_at_once_get_one_location(lake, spaces):
    begun, locations = threading.Barrier(4), []

    def declare(number):
        begun.wait(timeout=100)
        locations.append(catalog.declare(lake.root, "shop$orders", f"{number}_shop$orders"))

    jobs = [threading.Thread(target=declare, args=(number,)) for number in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(locations) == 4
    assert set(locations) == {spaces.listed()["shop$orders"]}


def test_a_table_whose_name_is_a_namespace_s_is_rejected_before_it_is_written(lake, spaces):
    spaces.call("create_namespace", "shop")
    spaces.call("create_namespace", "shop.orders")
    before = sorted(path.name for path in Path(lake.root).iterdir())
    assert "shop$orders is a namespace" in errors(lake.run(orders, fails=True))
    assert sorted(path.name for path in Path(lake.root).iterdir()) == before


def test_runs_on_a_branch_create_the_table_where_it_is_declared(lake, spaces, monkeypatch):
    monkeypatch.setenv("LAKE_BRANCH", "dev")
    lake.run(orders, branching=BranchPolicy.env("LAKE_BRANCH"))
    assert spaces.rows(lance, "shop.orders") == []
    table = lance_core.dataset(location_of(spaces, "shop.orders"))
    assert table.checkout_version(("dev", None)).to_table()["a"].to_pylist() == [1, 2]
    lake.run(orders, sums_of_orders, select=[sums_of_orders], branching=BranchPolicy.env("LAKE_BRANCH"))
    assert spaces.walk() == ["shop.eu.sums", "shop.orders", "top"]


def test_the_resource_finds_lists_and_declares_tables(lake, spaces):
    spaces.create("shop.orders", 5)
    tables = LanceTableResource(root_uri=lake.root)
    assert tables.tables() == ["shop/orders", "top"]
    assert tables.open("shop/orders").to_table()["a"].to_pylist() == [5]
    assert tables.uri("shop/orders") == location_of(spaces, "shop.orders")

    @dg.asset(key=["shop", "own"])
    def own(tables: LanceTableResource) -> None:
        lance.write_dataset(pa.table({"a": [6]}), tables.uri(["shop", "own"]))
        lance.write_dataset(pa.table({"a": [6]}), tables.uri("shop/other"), mode="append")

    lake.run(own, resources={"tables": tables})
    assert spaces.rows(lance, "shop.own") == [6]
    assert spaces.tables("shop") == ["orders", "own"]
    assert tables.open("shop/other").count_rows() == 1


def test_jobs_sensors_and_checks_find_them_by_their_ids(lake, spaces):
    for name in ("shop", "shop.eu", "other"):
        spaces.call("create_namespace", name)
    for name in ("shop.items", "shop.eu.orders", "other.t"):
        for number in range(7):
            spaces.append(lance, name, number) if number else spaces.create(name, number)
    lake.run(orders)
    specs = lance_external_assets(lake.root, known=[orders])
    assert [spec.key.to_user_string() for spec in specs] == ["other/t", "shop/eu/orders", "shop/items", "top"]
    uris = {spec.key.to_user_string(): spec.metadata["dagster/uri"] for spec in specs}
    assert uris["shop/eu/orders"] == location_of(spaces, "shop.eu.orders")
    checks = build_lance_health_checks(root=lake.root, include="shop/*", exclude="shop/orders")
    assert {key.asset_key.to_user_string() for check in checks for key in check.check_keys} == {
        "shop/eu/orders", "shop/items",
    }  # fmt: skip
    job = build_maintenance_job(
        root=True, include="shop/*", policies={"shop/items": False}, policy=LanceMaintenancePolicy(retain_versions=1)
    )
    sensor = build_maintenance_sensor(
        job, root=True, include="shop/*", policies={"shop/items": False}, policy=LanceMaintenancePolicy()
    )
    with dg.build_sensor_context(
        instance=lake.instance, resources={"io_manager": lake.manager()}, repository_def=_repository(lake, job)
    ) as context:
        (request,) = sensor(context).run_requests
    assert "shop/eu/orders" in str(request.run_config)
    result = job.execute_in_process(resources={"io_manager": lake.manager()}, instance=lake.instance, run_config=QUIET)
    assert result.success
    counts = {name: len(lance.dataset(location_of(spaces, name)).get_fragments()) for name in spaces.walk()}
    assert counts == {"other.t": 7, "shop.eu.orders": 1, "shop.items": 7, "shop.orders": 1, "top": 1}
    log = lance_core.dataset(f"{lake.root}/_maintenance/log.lance").to_table()
    assert {*log["table"].to_pylist()} == {"shop/eu/orders", "shop/orders"}


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("choice", "fragments"),
    [
        ({}, 1),
        ({"include": "shop/*"}, 1),
        ({"exclude": "shop/*"}, 7),
        ({"policies": {"shop/second": False}}, 7),
        ({"policies": {"shop": {"retain_versions": 3}, "first": {"retain_versions": 2}}}, 7),
    ],
)
def test_every_id_of_a_table_chooses_it(lake, spaces, tmp_path, choice, fragments):
    for number in range(7):
        spaces.append(lance, "first", number) if number else spaces.create("first", number)
    spaces.call("create_namespace", "shop")
    spaces.call("register_table", "shop.second", location="first.lance")
    job = build_maintenance_job(root=True, **choice)
    result = job.execute_in_process(resources={"io_manager": lake.manager()}, instance=lake.instance, run_config=QUIET)
    assert result.success
    assert len(lance.dataset(f"{lake.root}/first.lance").get_fragments()) == fragments
    log = [entry.user_message for entry in lake.instance.all_logs(result.run_id) if entry.level == logging.WARNING]
    assert any("first and shop/second are ids of one table and have different policies" in line for line in log) == (
        len(choice.get("policies", ())) == 2
    )
    checks = build_lance_health_checks(root=lake.root, **choice)
    component = LanceMaintenanceComponent(root=lake.root, health_checks=True, external_assets=True, **_lists(choice))
    component.write_state_to_path(tmp_path / "state")
    listed = component.build_defs_from_state(None, tmp_path / "state")
    for definitions in (checks, listed.asset_checks):
        names = {key.asset_key.to_user_string() for check in definitions for key in check.check_keys}
        assert ("first" in names, "shop/second" in names) == (fragments == 1, False)
    specs = lance_external_assets(lake.root, **{name: globs for name, globs in choice.items() if name != "policies"})
    assert ("first" in {spec.key.to_user_string() for spec in specs}) == ("exclude" not in choice)


def _lists(choice):
    return {name: [value] if isinstance(value, str) else value for name, value in choice.items()}


def test_the_manifest_table_is_maintained_and_keeps_its_versions(lake, spaces):
    for number in range(6):
        catalog.declare(lake.root, f"shop$t{number}", f"t{number}")
    listed = lance_core.dataset(f"{lake.root}/__manifest")
    versions = len(listed.versions())
    job = build_maintenance_job(root=True, policy=LanceMaintenancePolicy(retain_versions=1, cleanup_older_than="1s"))
    result = job.execute_in_process(resources={"io_manager": lake.manager()}, instance=lake.instance, run_config=QUIET)
    assert result.success
    listed.checkout_latest()
    assert len(listed.get_fragments()) == 1
    assert len(listed.versions()) == listed.version > versions
    log = lance_core.dataset(f"{lake.root}/_maintenance/log.lance").to_table()
    assert set(log["table"].to_pylist()) == {"__manifest", "top"}
    spaces.create("shop.after", 3)
    assert "after" in spaces.tables("shop")


def test_tables_on_s3(s3):
    root, options = f"s3://{s3.new_bucket()}/lake", s3.storage_options
    spaces = Namespace(root, **{f"storage.{name}": value for name, value in options.items()})
    spaces.create("shop.orders", 40)
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Lake(root=root, instance=instance, storage_options=options)
        lake.run(orders, sums_of_orders, select=[sums_of_orders])
        lake.run(orders)
        assert spaces.walk() == ["shop.eu.sums", "shop.orders"]
        assert (spaces.rows(lance, "shop.eu.sums"), spaces.rows(lance, "shop.orders")) == ([40], [1, 2])
        spaces.call("deregister_table", "shop.orders")
        assert "is a table that was deregistered as shop$orders" in errors(lake.run(orders, fails=True))


def _repository(lake, job):
    return dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()}).get_repository_def()


def rename(spaces, name, new_name):
    location = spaces.call("deregister_table", name).location.rpartition("/")[2]
    spaces.call("register_table", new_name, location=location)


def test_a_table_that_was_renamed_is_another_asset_s_no_longer(lake, spaces):
    lake.run(orders)
    rename(spaces, "shop.orders", "shop.archive")
    tables = LanceTableResource(root_uri=lake.root)
    assert tables.tables() == ["shop/archive", "top"]
    lake.run(sums_of_orders, orders, select=[orders], write_mode="append")
    assert spaces.rows(lance, "shop.archive") == [1, 2]
    assert spaces.rows(lance, "shop.orders") == [1, 2]
    assert location_of(spaces, "shop.orders") != location_of(spaces, "shop.archive")
    assert tables.uri("shop/orders") == location_of(spaces, "shop.orders")


def test_a_folder_that_is_listed_under_another_id(lake, spaces):
    lance_core.write_dataset({"a": [7]}, lake.uri("shop/orders"))
    catalog.register(lake.root, "shop$archive", "shop/orders.lance")
    for _ in range(2):
        lake.run(orders)
    assert spaces.rows(lance, "shop.archive") == [7]
    assert spaces.rows(lance, "shop.orders") == [1, 2]
    assets = lance_external_assets(lake.root, known=[orders])
    assert {spec.key.to_user_string() for spec in assets} == {"shop/archive", "top"}


def test_external_assets_follow_their_ids(lake, spaces):
    """Others swap two ids, and take one away, after the code location was loaded."""
    spaces.call("create_namespace", "shop")
    for name, value in (("shop.orders", 1), ("shop.next", 2)):
        spaces.create(name, value)
    specs = lance_external_assets(lake.root)
    seen = []

    @dg.asset(ins={"rows": dg.AssetIn(key=["shop", "orders"])})
    def read(rows: pa.Table) -> None:
        seen.append(rows["a"].to_pylist())

    def run():
        return dg.materialize(
            [read, *specs], selection=[read], resources={"io_manager": lake.manager()}, raise_on_error=False
        )

    def move(old, new):
        location = catalog.read_listing(lake.root).tables[f"shop${old}"]
        catalog.deregister(lake.root, location)
        catalog.register(lake.root, f"shop${new}", location)

    assert run().success
    move("orders", "before")
    move("next", "orders")
    assert run().success
    assert seen == [[1], [2]]
    move("orders", "next")
    failed = run()
    assert not failed.success
    assert "(asset shop/orders) has no table at namespace:/shop/orders" in errors(failed)


def test_external_assets_of_ids_with_slashes_and_percent_signs_follow_their_ids(lake, spaces):
    spaces.call("create_namespace", "shop")
    ids = [["shop", name] for name in ("a/b", "a%2Fb", "50%", "a%252Fb")]
    for number, parts in enumerate(ids):
        spaces.create(parts, number)
    specs, root = lance_external_assets(lake.root), LanceTableResource(root_uri=lake.root).table_root
    names = ["shop/a%2Fb", "shop/a%252Fb", "shop/50%25", "shop/a%25252Fb", "top"]
    assert {spec.key.to_user_string() for spec in specs} == set(names)

    def values():
        tables = {spec.key.to_user_string(): root.open_or_none(spec) for spec in specs}
        return [tables[name] and tables[name].to_table()["a"].to_pylist() for name in names]

    assert values() == [[0], [1], [2], [3], [0]]
    spaces.call("deregister_table", ids[1])
    spaces.create(ids[1], 9)
    assert values() == [[0], [9], [2], [3], [0]]
    spaces.call("deregister_table", ids[1])
    assert values() == [[0], None, [2], [3], [0]]


def test_an_external_asset_whose_id_was_deregistered_fails(lake, spaces):
    """Tables in plain folders, and those whose keys differ from their ids, are read all the same."""
    spaces.create(["shop", "orders"], 1)
    spaces.create(["shop", "a/b"], 2)
    lance_core.write_dataset({"a": [3]}, lake.uri("nyc/flights"))
    tables = LanceTableResource(root_uri=lake.root).table_root
    specs = {spec.key.to_user_string(): spec for spec in lance_external_assets(lake.root)}
    assert [*specs] == ["nyc/flights", "shop/a%2Fb", "shop/orders", "top"]
    for name in ("shop.orders", "top"):
        spaces.call("deregister_table", name)
    for root in (tables, tables.with_listing()):
        rows = {
            name: dataset and dataset.to_table()["a"].to_pylist()
            for name, dataset in ((name, root.open_or_none(spec)) for name, spec in specs.items())
        }
        assert rows == {"nyc/flights": [3], "shop/a%2Fb": [2], "shop/orders": None, "top": [0]}

    @dg.asset(ins={"rows": dg.AssetIn(key=["shop", "orders"])})
    def read(rows: pa.Table) -> None:
        raise AssertionError(rows)

    resources = {"io_manager": lake.manager()}
    failed = dg.materialize([read, *specs.values()], selection=[read], resources=resources, raise_on_error=False)
    assert "(asset shop/orders) has no table at namespace:/shop/orders" in errors(failed)


def test_a_check_of_an_external_asset_fails_where_others_dropped_the_table(lake, spaces):
    spaces.call("create_namespace", "shop")
    spaces.create("shop.orders", 1)
    resources = {"io_manager": lake.manager()}
    specs, checks = lance_external_assets(lake.root), build_lance_health_checks(root=lake.root)
    spaces.call("drop_table", "shop.orders")
    defs = dg.Definitions(assets=[*specs], asset_checks=checks, resources=resources)
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=lake.instance, raise_on_error=False
    )
    said = {(one.asset_key.path[-1], one.passed, one.description[:19]) for one in result.get_asset_check_evaluations()}
    assert ("orders", False, "there is no table: ") in said
    assert ("orders", True, "there is no table: ") not in said


def test_an_id_of_a_plain_folder_is_read_under_its_own_name_alone(lake, spaces):
    spaces.call("create_namespace", "arch")
    rename(spaces, "top", "arch.f")
    (spec,) = lance_external_assets(lake.root)
    assert spec.key.path == ["arch", "f"]
    root = LanceTableResource(root_uri=lake.root).table_root
    assert root.open_or_none(spec).count_rows() == 1
    spaces.call("deregister_table", "arch.f")
    assert [table.path for table in lance_core.maintenance.find_tables(lake.root)] == ["top.lance"]
    assert (root.open_or_none(spec), root.with_listing().open_or_none(spec)) == (None, None)
    (again,) = lance_external_assets(lake.root)
    assert again.key.path == ["top"]
    assert root.open_or_none(again).count_rows() == 1


@pytest.mark.parametrize("is_service", [False, True])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_run_names_its_rows_where_the_id_was_taken_away_meanwhile(lake, spaces, is_service, renamed):
    spaces.call("create_namespace", "shop")
    spaces.create("shop.orders", 1)
    location = location_of(spaces, "shop.orders")

    def batches():
        yield pa.record_batch({"a": [5]})
        spaces.call("deregister_table", "shop.orders")
        if renamed:
            spaces.call("register_table", "shop.archive", location=Path(location).name)
            spaces.create("shop.orders", 5)

    @dg.asset(key=["shop", "orders"])
    def late():
        return pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int64()}), batches())

    with rest_service(lake.root) as service:
        result = lake.run(late, fails=True, **({"namespace": service} if is_service else {}))
    assert f"committed to {location}, but the table shop.orders was dropped or renamed" in errors(result)
    assert lance.dataset(location).to_table()["a"].to_pylist() == [5]


@pytest.mark.parametrize("is_service", [False, True])
def test_a_run_says_that_its_new_table_was_dropped_meanwhile(lake, spaces, is_service):
    def batches():
        yield pa.record_batch({"a": [5]})
        spaces.call("drop_table", "shop.orders")
        yield pa.record_batch({"a": [6]})

    @dg.asset(key=["shop", "orders"])
    def late():
        return pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int64()}), batches())

    with rest_service(lake.root) as service:
        result = lake.run(late, fails=True, **({"namespace": service} if is_service else {}))
    assert "the dataset was dropped after it was opened" in errors(result)
    lake.run(orders)
    assert spaces.rows(lance, "shop.orders") == [1, 2]


def test_a_write_begins_no_table_that_others_would_confuse(lake, spaces):
    """A folder of the root has another id; a folder that pylance named has none."""
    spaces.create("shop.orders", 1)
    folder = Path(location_of(spaces, "shop.orders")).name
    spaces.call("create_namespace", "old")
    rename(spaces, "top", "old.top")
    spaces.call("deregister_table", "shop.orders")
    before = sorted(path.name for path in Path(lake.root).iterdir()), catalog.read_listing(lake.root)
    for asset, message in (
        (top, "top.lance is the table old$top"),
        (orders, f"{folder} is a table that was deregistered"),
    ):
        assert message in errors(lake.run(asset, fails=True))
    with pytest.raises(DatasetExistsError, match="which other clients would open as top"):
        catalog.declare(lake.root, "top", catalog.free_location("top", catalog.read_listing(lake.root)))
    assert before == (sorted(path.name for path in Path(lake.root).iterdir()), catalog.read_listing(lake.root))
    catalog.register(lake.root, "shop$orders", folder)
    lake.run(orders, write_mode="append")
    assert spaces.rows(lance, "shop.orders") == [1, 1, 2]


def test_names_that_are_no_folders_of_ours(lake, spaces):
    """External assets name their URI: such a table is observed and loaded beside the others."""
    spaces.call("create_namespace", "shop")
    spaces.create("shop.or ders", 5)
    specs = lance_external_assets(lake.root)
    sensor = build_lance_observation_sensor(specs, name="observed")
    seen = []

    @dg.asset(ins={"rows": dg.AssetIn(key=["shop", "or ders"])})
    def read(rows: pa.Table) -> None:
        seen.append(rows["a"].to_pylist())

    resources = {"io_manager": lake.manager()}
    defs = dg.Definitions([*specs, read], sensors=[sensor], resources=resources)
    with dg.build_sensor_context(instance=lake.instance, definitions=defs, resources=resources) as context:
        events = sensor(context).asset_events
    assert ["shop", "or ders"] in [list(event.asset_key.path) for event in events]
    assert dg.materialize([read, *specs], selection=[read], resources=resources).success
    assert seen == [[5]]


def test_a_folder_that_others_are_removing_is_not_used(lake, spaces):
    folder = Path(lake.root, catalog.new_location("shop$orders"))
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "left.lance").write_bytes(b"")
    for _ in range(2):
        lake.run(orders)
    assert spaces.rows(lance, "shop.orders") == [1, 2]
    assert Path(location_of(spaces, "shop.orders")).name == catalog.new_location("shop$orders", 1)
    assert sorted(path.name for path in folder.iterdir()) == ["data"]


def test_names_that_checks_cannot_have(lake, spaces, caplog):
    spaces.call("create_namespace", "shop")
    spaces.create("shop.or ders", 1)
    spaces.create("shop.or-ders", 1)
    checks = build_lance_health_checks(root=lake.root, include="shop/*")
    assert {key.asset_key.to_user_string() for check in checks for key in check.check_keys} == {"shop/or-ders"}
    assert "or ders has no health checks" in caplog.text


@pytest.mark.parametrize("is_service", [False, True])
def test_a_key_of_one_part_is_an_id_of_the_root(lake, tmp_path, is_service):
    """External assets, the resource, the IO manager, jobs, sensors, checks and the command mean one table by it."""
    spaces = Namespace(str(tmp_path / "theirs") if is_service else lake.root)
    spaces.create("top", 0)
    with rest_service(spaces.root) as service:
        namespace = service if is_service else {}
        place = {"namespace": service} if is_service else {"root": lake.root}
        location = location_of(spaces, "top")
        (spec,) = lance_external_assets(**place)
        assert (spec.key.to_user_string(), spec.metadata["lance/uri"]) == ("top", location)
        tables = LanceTableResource(root_uri=lake.root, namespace=namespace)
        assert (tables.tables(), tables.uri("top")) == (["top"], location)
        assert tables.open("top").to_table()["a"].to_pylist() == [0]
        assert lance_external_assets(**place, known=[top]) == []
        result = lake.run(top, namespace=namespace)
        assert (spaces.walk(), spaces.rows(lance, "top")) == (["top"], [1, 2])
        (event,) = result.asset_materializations_for_node("top")
        assert event.metadata["dagster/table_name"].value == "top"
        resources = {"io_manager": lake.manager(namespace=namespace)}
        (stamped,) = stamp_lance_metadata(dg.Definitions([top], resources=resources)).resolve_all_asset_specs()
        assert stamped.metadata["dagster/table_name"] == ("top" if is_service else "public.top")
        for number in range(6):
            spaces.append(lance, "top", number)
        (check, *_) = build_lance_health_checks(["top"])
        checked = dg.Definitions(asset_checks=[check], resources=resources).resolve_implicit_global_asset_job_def()
        (*_, outcome) = checked.execute_in_process(instance=lake.instance).get_asset_check_evaluations()
        assert outcome.metadata["lance/fragments"].value == 7
        sensor = build_lance_observation_sensor(["top"], name="observed")
        with dg.build_sensor_context(
            instance=lake.instance, definitions=dg.Definitions([top], resources=resources), resources=resources
        ) as context:
            assert {event.asset_key.to_user_string() for event in sensor(context).asset_events} == {"top"}
        job = build_maintenance_job(root=lake.root, include="top", namespace=namespace)
        result = job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET)
        assert len(lance.dataset(location).get_fragments()) == 1
        assert {event.asset_key.to_user_string() for event in observations(result)} == {"top"}
        arguments = ["--namespace", json.dumps(service)] if is_service else []
        (row,) = json.loads(command("tables", "top" if is_service else lake.root, *arguments, "--json"))
        assert (row["asset"], row["table"]) == ("top", location)


def observations(result):
    return [event.event_specific_data.asset_observation for event in result.all_events if event.is_asset_observation]


def test_a_table_of_a_key_of_one_part_in_its_folder_stays_there(lake):
    lake.run(top)
    spaces = Namespace(lake.root)
    spaces.call("create_namespace", "shop")
    lake.run(top, write_mode="append")
    assert spaces.rows(lance, "public.top") == [1, 2, 1, 2]
    tables = LanceTableResource(root_uri=lake.root)
    assert tables.uri("top") == tables.uri("public/top") == lake.uri("top")
    assert lance_external_assets(lake.root, known=[top]) == []
    spaces.create("top", 0)
    assert tables.uri("top") == location_of(spaces, "top")
    assert tables.uri("public/top") == lake.uri("top")
    specs = lance_external_assets(lake.root)
    assert {spec.key.to_user_string(): spec.metadata["lance/uri"] for spec in specs} == {
        name: tables.uri(name) for name in ("top", "public/top")
    }


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_key_of_one_part_is_not_a_table_that_a_client_has_put_into_public(lake, spaces, is_folder):
    """Wherever it is looked for; also where a folder of that name is in the once plain root, which no list has."""
    spaces.call("create_namespace", "public")
    spaces.create("public.new", 7)
    if is_folder:
        lance.write_dataset(pa.table({"a": [8]}), lake.uri("new"))

    @dg.asset
    def new():
        return pa.table({"a": [1]})

    @dg.asset(ins={"rows": dg.AssetIn("new")})
    def read(rows: pa.Table) -> None:
        seen.append(rows["a"].to_pylist())

    seen, tables, source = [], LanceTableResource(root_uri=lake.root), dg.AssetSpec("new")
    for root in (tables.table_root, tables.table_root.with_listing()):
        assert root.open_or_none("new") is None
        assert root.open("public/new").to_table()["a"].to_pylist() == [7]
    assert "#dataset-not-found" in errors(
        lake.run(source.with_io_manager_key("io_manager"), read, select=[read], fails=True)
    )
    assert [spec.key.path for spec in lance_external_assets(lake.root, known=[new])] == [["public", "new"], ["top"]]
    lake.run(new)
    assert (spaces.rows(lance, "new"), spaces.rows(lance, "public.new")) == ([1], [7])
    lake.run(new, read)
    assert (seen, spaces.rows(lance, "public.new")) == ([[1]], [7])
    assert lance_external_assets(lake.root, known=[new, dg.AssetKey(["public", "new"]), top]) == []


@pytest.mark.parametrize("is_first", [False, True])
def test_assets_of_one_and_of_two_parts_have_their_tables_in_any_order(lake, spaces, is_first):
    @dg.asset(key=["public", "top2"])
    def long():
        return pa.table({"a": [7]})

    @dg.asset(key=["top2"])
    def short():
        return pa.table({"a": [1]})

    for asset in (short, long) if is_first else (long, short):
        lake.run(asset)
    assert (spaces.rows(lance, "top2"), spaces.rows(lance, "public.top2")) == ([1], [7])


@pytest.mark.variants(5)
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(
    ("name", "new_id"),
    [
        *((name, name) for name in ("shop/late", "late", "public/late", "a/b/c")),
        ("late", "public/late"),  # the folder is in no list then
        ("late", "other"),
    ],
)
def test_a_run_names_its_rows_where_a_client_created_the_id_meanwhile(lake, name, new_id, is_there):
    """The root was a plain one when the run began."""

    def asset(*batches):
        @dg.asset(key=name.split("/"), metadata={"lance/write_mode": "append"})
        def late():
            schema, calls = pa.schema({"a": pa.int64()}), (batch() for batch in batches)
            return pa.RecordBatchReader.from_batches(schema, (batch for batch in calls if batch is not None))

        return late

    def create():
        spaces, parts = Namespace(lake.root), new_id.split("/")
        for end in range(1, len(parts)):
            spaces.call("create_namespace", parts[:end])
        spaces.create(parts, 9)

    def row():
        return pa.record_batch({"a": [5]})

    if is_there:
        lake.run(asset(row))
    result, location = lake.run(asset(row, create), fails=None), lake.uri(name)
    assert lance.dataset(location).to_table()["a"].to_pylist() == [5] * (1 + is_there)
    assert result.success is (new_id == "other")
    if not result.success:
        table = name.replace("/", ".")
        assert f"committed to {location}, but the table {table} was dropped or renamed" in errors(result)
    lake.run(asset(row))
    rows = LanceTableResource(root_uri=lake.root).open(name.split("/")).to_table()["a"].to_pylist()
    assert rows == [9] * (new_id == name) + [5] * (1 if new_id != "other" else 2 + is_there)
    assert Namespace(lake.root).rows(lance, new_id.replace("/", ".")) == ([*rows] if new_id == name else [9])


@pytest.mark.parametrize("is_service", [False, True])
def test_ids_that_differ_by_the_suffix_are_two_tables(lake, tmp_path, is_service):
    spaces = Namespace(str(tmp_path / "theirs") if is_service else lake.root)
    spaces.call("create_namespace", "shop")
    ids = [["shop", "x"], ["shop", "x.lance"], ["y"], ["y.lance"]]
    for number, parts in enumerate(ids):
        for repeat in range(7):
            spaces.append(lance, parts, number) if repeat else spaces.create(parts, number)
    with rest_service(spaces.root) as service:
        namespace = service if is_service else {}
        place = {"namespace": service} if is_service else {"root": lake.root}
        names = {"/".join(parts): location_of(spaces, parts) for parts in ids}
        specs = lance_external_assets(**place)
        assert {spec.key.to_user_string(): spec.metadata["lance/uri"] for spec in specs} == names
        tables = LanceTableResource(root_uri=lake.root, namespace=namespace)
        assert {tables.table_root.locate(spec).uri for spec in specs} == set(names.values())
        for number, name in enumerate(names):
            assert set(tables.open(name).to_table()["a"].to_pylist()) == {number}
        listed = tmp_path / "state"
        component = LanceMaintenanceComponent(root=lake.root, external_assets=True, namespace=namespace)
        component.write_state_to_path(listed)
        assets = component.build_defs_from_state(None, listed).resolve_all_asset_specs()
        assert {spec.key.to_user_string(): spec.metadata["lance/uri"] for spec in assets} == names
        # pylance lists the folder of shop$x.lance in the root of its namespace, too, and cannot describe it.
        left_out = ["__manifest", "*_shop$x"]
        resources = {"io_manager": lake.manager()}
        clear = ["shop/x", "shop/x.lance.lance", *left_out]
        for choice in ({"exclude": "y.lance"}, {"include": ["y.lance"]}, {"policies": {"y.lance": False}}):
            with pytest.raises(InvalidInputError, match=r"write 'y' or 'y\.lance\.lance'"):
                lance_core.maintenance.maintain_lake(lake.root, **choice, namespace=namespace or None)
            job = build_maintenance_job(root=lake.root, namespace=namespace, **choice)
            failed = job.execute_in_process(resources=resources, raise_on_error=False, run_config=QUIET)
            assert "write 'y' or 'y.lance.lance'" in errors(failed)
            with pytest.raises(InvalidInputError, match="could be the table y or the table"):
                build_lance_health_checks(**place, **choice)
        job = build_maintenance_job(root=lake.root, exclude=clear, namespace=namespace)
        assert job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET).success
        assert [len(lance.dataset(uri).get_fragments()) for uri in names.values()] == [7, 7, 1, 1]
        reports = lance_core.maintenance.maintain_lake(lake.root, exclude=left_out, namespace=namespace or None)
        assert sorted(report.plan.table for report in reports) == sorted(names)
        assert [len(lance.dataset(uri).get_fragments()) for uri in names.values()] == [1, 1, 1, 1]
