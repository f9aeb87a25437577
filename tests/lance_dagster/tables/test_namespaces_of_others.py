"""Namespaces of others under Dagster: the service locates the tables of assets, the root has the log and outputs of ops."""

import json
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pydantic import ValidationError

import lance_core
from lance_core.errors import DatasetNotFoundError, MaintenanceFailedError
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceTableResource,
    build_lance_health_checks,
    build_maintenance_job,
    build_maintenance_sensor,
    lance_changed_rows,
    lance_external_assets,
    stamp_lance_metadata,
)
from tests.interop.namespaces import Namespace, rest_service
from tests.lance_dagster.lake import QUIET, errors
from tests.lance_dagster.tables.test_directory_namespaces import days, location_of, orders, sums_of_orders
from tests.support.undo_command import command


@pytest.fixture
def spaces(tmp_path):
    made = Namespace(str(tmp_path / "theirs"))
    made.create("top", 0)
    return made


@pytest.fixture
def service(spaces):
    with rest_service(spaces.root) as properties:
        yield properties


def test_assets_are_where_the_service_says(lake, spaces, service, monkeypatch):
    spaces.call("create_namespace", "shop")
    spaces.create("shop.orders", 40)
    lake.run(orders, sums_of_orders, select=[sums_of_orders], namespace=service)
    assert spaces.rows(lance, "shop.eu.sums") == [40]
    result = lake.run(orders, namespace=service)
    assert spaces.rows(lance, "shop.orders") == [1, 2]
    (event,) = result.asset_materializations_for_node("shop__orders")
    assert event.metadata["dagster/uri"].value == location_of(spaces, "shop.orders")
    for partition in ("mon", "tue"):
        lake.run(days, partition=partition, namespace=service)
    assert spaces.rows(lance, "shop.days") == [1, 1]
    monkeypatch.setenv("LAKE_BRANCH", "dev")
    lake.run(orders, namespace=service, branching=BranchPolicy.env("LAKE_BRANCH"))
    table = lance_core.dataset(location_of(spaces, "shop.orders"))
    assert list(table.branches.list()) == ["dev"]
    assert not Path(lake.root).exists()


def test_the_resource_asks_the_service(lake, spaces, service):
    lake.run(orders, namespace=service)
    tables = LanceTableResource(root_uri=lake.root, namespace=service)
    assert tables.tables() == ["shop/orders", "top"]
    assert tables.uri("shop/orders") == location_of(spaces, "shop.orders")
    assert tables.open("shop/orders").count_rows() == 2


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_changed_rows_are_counted_where_the_service_says(lake, spaces, service):
    @dg.asset(deps=[orders], automation_condition=dg.AutomationCondition.any_deps_match(lance_changed_rows(at_least=5)))
    def late() -> None: ...

    resources = {"io_manager": lake.manager(namespace=service)}
    defs = stamp_lance_metadata(dg.Definitions([orders, late], resources=resources))
    lake.run(orders, namespace=service)
    first = dg.evaluate_automation_conditions(defs, instance=lake.instance)
    lance_core.dataset(location_of(spaces, "shop.orders")).insert(pa.table({"a": range(5)}))
    second = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=first.cursor)
    assert (first.total_requested, second.total_requested) == (0, 1)


def test_jobs_list_the_tables_of_the_service(lake, spaces, service):
    for name in ("shop", "other"):
        spaces.call("create_namespace", name)
    for name in ("shop.items", "other.t"):
        for number in range(7):
            spaces.append(lance, name, number) if number else spaces.create(name, number)
    lake.run(orders, namespace=service)
    specs = lance_external_assets(lake.root, namespace=service, include="*/*")
    assert [spec.key.to_user_string() for spec in specs] == ["other/t", "shop/items", "shop/orders"]
    checks = build_lance_health_checks(root=lake.root, namespace=service, include="shop/items")
    assert {key.asset_key.to_user_string() for check in checks for key in check.check_keys} == {"shop/items"}
    for arguments, manager in (
        ({"root": True}, {"namespace": service}),
        ({"root": lake.root, "namespace": service}, {}),
    ):
        job = build_maintenance_job(include="shop/*", **arguments)
        resources = {"io_manager": lake.manager(**manager)}
        sensor = build_maintenance_sensor(job, include="shop/*", **arguments)
        repository = dg.Definitions(jobs=[job], resources=resources).get_repository_def()
        with dg.build_sensor_context(instance=lake.instance, resources=resources, repository_def=repository) as context:
            (request,) = sensor(context).run_requests
        assert "shop/items" in str(request.run_config)
        result = job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET)
        assert result.success
        assert len(lance.dataset(location_of(spaces, "shop.items")).get_fragments()) == 1
        assert len(lance.dataset(location_of(spaces, "other.t")).get_fragments()) == 7
        log = lance_core.dataset(f"{lake.root}/_maintenance/log.lance").to_table()
        assert set(log["table"].to_pylist()) == {"shop/items", "shop/orders"}
        for number in range(6):
            spaces.append(lance, "shop.items", number)


def test_tables_on_s3_are_reached_by_the_options_that_the_service_vends(lake, s3):
    """Neither the IO manager nor the job has options of the storage."""
    root = f"s3://{s3.new_bucket()}/lake"
    options = {f"storage.{name}": value for name, value in s3.storage_options.items()}
    vends = {"vend_input_storage_options": "true", "vend_input_storage_options_refresh_interval_millis": "3600000"}
    spaces = Namespace(root, **options)
    with rest_service(root, **options, **vends) as service:
        lake.run(orders, sums_of_orders, namespace=service)
        for number in range(6):
            spaces.append(lance, "shop.eu.sums", number)
        resources = {"io_manager": lake.manager(namespace=service)}
        job = build_maintenance_job(root=True)
        assert job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET).success
        location = spaces.call("describe_table", "shop.eu.sums").location
        assert len(lance.dataset(location, storage_options=s3.storage_options).get_fragments()) == 1
        (spec,) = lance_external_assets(lake.root, namespace=service, include="*/sums")
        assert s3.storage_options["aws_secret_access_key"] not in str(spec.metadata)
    assert spaces.rows(lance, "shop.orders") == [1, 2]


def test_a_service_that_does_not_answer_is_named_before_anything_is_written(lake):
    silent = {"impl": "rest", "uri": "http://127.0.0.1:1", "header.x-api-key": "s3cr3t"}
    said = errors(lake.run(orders, fails=True, namespace=silent))
    assert "the namespace rest did not answer describe_table of shop.orders" in said
    assert "s3cr3t" not in said
    assert "s3cr3t" not in repr(LanceIOManager(root_uri=lake.root, namespace=silent))
    assert not Path(lake.root).exists()


@dg.op
def pair():
    return pa.table({"a": [1]})


@dg.op
def length(rows: pa.Table) -> int:
    return rows.num_rows


@dg.graph
def passes_rows():
    length(pair())


class TestWithoutARoot:
    """What nothing stores below a root works without one; what needs it says so before anything is written."""

    @pytest.fixture(autouse=True)
    def empty_folder(self, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        yield
        assert list(Path().iterdir()) == []

    def run(self, lake, *assets, fails=False, partition=None, **config):
        resources = {"io_manager": LanceIOManager(**config)}
        result = dg.materialize(
            list(assets),
            resources=resources,
            partition_key=partition,
            instance=lake.instance,
            raise_on_error=not fails,
            run_config=QUIET,
        )
        assert result.success is not fails
        return result

    def test_assets_and_the_resource(self, lake, spaces, service, monkeypatch):
        self.run(lake, orders, sums_of_orders, namespace=service)
        assert spaces.rows(lance, "shop.eu.sums") == [3]
        for partition in ("mon", "tue"):
            self.run(lake, days, partition=partition, namespace=service, read="materialized")
        monkeypatch.setenv("LAKE_BRANCH", "dev")
        self.run(lake, orders, namespace=service, branching=BranchPolicy.env("LAKE_BRANCH"))
        assert list(lance_core.dataset(location_of(spaces, "shop.orders")).branches.list()) == ["dev"]
        tables = LanceTableResource(namespace=service)
        assert tables.tables() == ["shop/days", "shop/eu/sums", "shop/orders", "top"]
        assert tables.open("shop/orders").count_rows() == 2
        with pytest.raises(DatasetNotFoundError, match="the namespace has no table shop/none: materialize its asset"):
            tables.uri("shop/none")
        with pytest.raises(DatasetNotFoundError, match="the namespace has no table shop/none"):
            tables.open("shop/none")

        @dg.asset(key=["shop", "own"])
        def own(tables: LanceTableResource) -> None:
            lance.write_dataset(pa.table({"a": [6]}), tables.uri(["shop", "own"]))

        dg.materialize([own], resources={"tables": tables}, instance=lake.instance)
        assert spaces.rows(lance, "shop.own") == [6]

    def test_the_resource_takes_the_branch_of_the_manager_of_its_namespace(self, lake, spaces, service, monkeypatch):
        self.run(lake, orders, namespace=service)
        monkeypatch.setenv("LAKE_BRANCH", "dev")
        branching = BranchPolicy.env("LAKE_BRANCH")
        self.run(lake, orders, namespace=service, branching=branching)
        opened = []

        @dg.asset
        def reader(tables: LanceTableResource) -> None:
            opened.append(tables.open("shop/orders").branch)

        for namespace in (service, {**service, "delimiter": "$"}):
            resources = {
                "tables": LanceTableResource(namespace=namespace),
                "io_manager": LanceIOManager(namespace=service, branching=branching),
            }
            dg.materialize([reader], resources=resources, instance=lake.instance)
        assert opened == ["dev", None]

    def test_an_input_that_the_namespace_does_not_have(self, lake, spaces, service):
        result = dg.materialize(
            [orders, sums_of_orders],
            selection=[sums_of_orders],
            resources={"io_manager": LanceIOManager(namespace=service)},
            instance=lake.instance,
            raise_on_error=False,
        )
        assert "has no table at namespace:/shop/orders; materialize it first" in errors(result)
        assert spaces.walk() == ["top"]

    def test_definitions(self, lake, spaces, service):
        self.run(lake, orders, namespace=service)
        assets = lance_external_assets(namespace=service, known=[orders])
        assert [spec.key.to_user_string() for spec in assets] == ["top"]
        checks = build_lance_health_checks([orders], namespace=service)
        assert {key.asset_key.to_user_string() for check in checks for key in check.check_keys} == {
            "shop/orders",
            "top",
        }
        other = LanceIOManager(namespace={**service, "delimiter": "."})
        twin = dg.asset(key="twin", io_manager_key="other", metadata={"schema": "shop", "table": "orders"})(lambda: 1)
        resources = {"io_manager": LanceIOManager(namespace=service), "other": other}
        defs = dg.Definitions(assets=[orders, twin], resources=resources)
        for spec in stamp_lance_metadata(defs).resolve_all_asset_specs():
            assert spec.metadata["dagster/table_name"] == "shop.orders"
            assert "dagster/uri" not in spec.metadata

    def test_outputs_of_ops(self, lake, service):
        job = passes_rows.to_job(resource_defs={"io_manager": LanceIOManager(namespace=service)})
        result = job.execute_in_process(instance=lake.instance, raise_on_error=False, run_config=QUIET)
        assert "/pair/result.lance is below root_uri, which is not given: outputs of ops" in errors(result)

    @pytest.mark.parametrize("arguments", [{"root": True}, {"tables": ["shop/orders"]}])
    def test_maintenance(self, lake, spaces, service, arguments):
        self.run(lake, orders, namespace=service)
        for number in range(6):
            spaces.append(lance, "shop.orders", number)
        job = build_maintenance_job(**arguments)
        resources = {"io_manager": LanceIOManager(namespace=service)}
        result = job.execute_in_process(
            resources=resources, instance=lake.instance, run_config=QUIET, raise_on_error=False
        )
        assert "_maintenance is below root_uri, which is not given" in errors(result)
        assert len(lance.dataset(location_of(spaces, "shop.orders")).get_fragments()) == 7

    def test_a_job_for_a_namespace_needs_a_root_for_its_log(self, lake, spaces, service):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="has a namespace and no root, below which the log"):
            build_maintenance_job(["a/b"], namespace=service)
        self.run(lake, orders, namespace=service)
        resources = {"io_manager": LanceIOManager(namespace=service)}
        job = build_maintenance_job(root=lake.root, namespace=service)
        assert job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET).success
        assert lance_core.list_tables(lake.root) == ["_maintenance/log.lance"]

    def test_there_is_a_root_or_a_namespace(self):
        for resource in (LanceIOManager, LanceTableResource):
            with pytest.raises(
                ValidationError, match="root_uri is missing: give the folder of the tables, or a namesp"
            ):
                resource()
            with pytest.raises(dg.DagsterInvalidDefinitionError, match="root_uri is empty"):
                resource(root_uri="", namespace={"impl": "rest"})


def test_a_folder_below_the_root_is_no_table_of_the_service(lake, spaces, service):
    lake.run(orders)
    result = lake.run(orders, sums_of_orders, select=[sums_of_orders], namespace=service, fails=True)
    assert "has no table at namespace:/shop/orders" in errors(result)
    assert LanceTableResource(root_uri=lake.root).open("shop/orders").count_rows() == 2


@pytest.mark.parametrize("fault", ["blank", "managed"])
def test_a_table_that_the_namespace_keeps_to_itself_fails_alone_and_by_name(lake, spaces, fault, caplog):
    spaces.call("create_namespace", "shop")
    for name in ("shop.first", "shop.items"):
        for number in range(7):
            spaces.append(lance, name, number) if number else spaces.create(name, number)
    faulty = {"impl": "tests.interop.namespaces.FaultyNamespace", "root": spaces.root, fault: "shop/first"}
    says = {"blank": "gives no usable location of", "managed": "keeps the versions of shop.first itself"}[fault]
    job = build_maintenance_job(root=lake.root, namespace=faulty)
    resources = {"io_manager": lake.manager()}
    result = job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET, raise_on_error=False)
    assert "maintenance of 1 tables failed: shop/first: plan: " in errors(result)
    assert says in errors(result)
    counts = {name: len(lance.dataset(location_of(spaces, name)).get_fragments()) for name in spaces.walk()}
    assert counts == {"shop.first": 7, "shop.items": 1, "top": 1}
    with pytest.raises(MaintenanceFailedError, match=f"of 1 of 3 tables failed: shop/first: plan: .*{says}"):
        lance_core.maintenance.maintain_lake(lake.root, namespace=faulty)
    job = build_maintenance_job(root=lake.root, namespace=faulty, exclude="shop/first")
    assert job.execute_in_process(resources=resources, instance=lake.instance, run_config=QUIET).success
    assert [spec.key.to_user_string() for spec in lance_external_assets(namespace=faulty)] == ["shop/items", "top"]
    assert "shop/first is left out: " in caplog.text
    assert says in errors(lake.run(first, namespace=faulty, fails=True))


@dg.asset(key=["shop", "first"])
def first():
    return pa.table({"a": [1]})


def test_commands_look_at_the_tables_of_the_service(lake, spaces, service, tmp_path, monkeypatch):
    lake.run(orders, sums_of_orders, namespace=service)
    run = lake.run(orders, sums_of_orders, namespace=service).run_id
    file = tmp_path / "service.json"
    file.write_text(json.dumps(service))
    sums = location_of(spaces, "shop.eu.sums")

    def answer(name, *arguments):
        return json.loads(command(name, *arguments, "--namespace", file, "--json"))

    assert [row["asset"] for row in answer("tables")] == ["shop/eu/sums", "shop/orders", None]
    assert [(row["name"], row["table"]) for row in answer("tables", "shop/eu")] == [("shop/eu/sums", sums)]
    roots = json.loads(command("tables", spaces.root, "--json"))
    assert [row["name"] for row in roots] == ["shop/eu/sums", "shop/orders", "top"]
    assert {row["asset"] for row in answer("lineage")} == {"shop/eu/sums", "shop/orders", None}
    assert [row["table"] for row in answer("lineage", "shop/eu/sums")] == [sums, sums]
    for arguments in (["none"], ["shop/or"]):
        assert "the namespace has no table" in command("tables", *arguments, "--namespace", file, fails=1)
    assert "ROOT] is missing" in command("tables", fails=2)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (row,) = answer("undo", "shop/eu/sums", "--run", run[:8], "--yes", "--report")
    assert (row["table"], row["version"], row["rows_after"]) == (sums, 3, 1)
    assert {row["table"] for row in answer("undo", "--run", run, "--dry-run")} == {location_of(spaces, "shop.orders")}
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["shop", "eu", "sums"]))
    assert event.asset_materialization.metadata["dagster/table_name"].value == "shop.eu.sums"
