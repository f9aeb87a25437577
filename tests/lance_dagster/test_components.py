"""Components: what YAML says becomes definitions; `dg` lists, scaffolds and accepts them."""

import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
import yaml
from dagster._core.definitions.reconstruct import ReconstructableRepository

import lance_core
from lance_dagster.components import LanceLakehouseComponent, LanceMaintenanceComponent
from lance_dagster.components.listing import HAS_STATE
from tests import processes
from tests.interop.namespaces import Namespace, rest_service
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_maintenance import fill

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster warns of its own sensors

LAKE = """
root_uri: {root}
default_load_type: pyarrow
maintenance: {{cron_schedule: "0 3 * * *", sensor: true, cleanup_older_than: 14d}}
branching: {{mode: per_backfill}}
tables:
  - key: nyc/flights
    checks: [health, integrity, drift]
    primary_key: [n]
    maintenance: {{max_small_fragments: 10}}
  - key: ext/boats
    external: true
"""


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


def build(component, text):
    """The definitions of a component from its YAML."""
    return component.resolve_from_yaml(text).build_defs(None)


def test_a_lakehouse_is_all_that_its_yaml_says(lake):
    made = build(LanceLakehouseComponent, LAKE.format(root=lake.root))
    defs = dg.Definitions.merge(made, dg.Definitions(assets=[flights]))
    assert {job.name for job in defs.jobs} >= {"lance_maintenance", "lance_promote", "lance_discard"}
    (schedule,) = defs.schedules
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert {sensor.name for sensor in defs.sensors} >= {"lance_maintenance_sensor", "lance_observation_sensor"}
    assets = defs.resolve_implicit_global_asset_job_def()
    result = assets.execute_in_process(instance=lake.instance, run_config=QUIET, asset_selection=[flights.key])
    assert lake.rows("nyc/flights") == [(0,), (1,)]
    names = {one.check_name: one.passed for one in result.get_asset_check_evaluations()}
    assert set(names) >= {"lance_integrity", "lance_drift", "lance_primary_key", "lance_versions"}
    assert all(names.values())
    fill(lake, "ext/boats", fragments=6)
    job = defs.resolve_job_def("lance_maintenance")
    assert job.execute_in_process(instance=lake.instance, run_config=QUIET).success
    assert len(lake.table("ext/boats").get_fragments()) == 6  # its owner's affair


@pytest.mark.parametrize("report", [None, "observations", "materializations"])
def test_commits_to_external_tables_are_reported_as_the_yaml_says(lake, report):
    fill(lake, "ext/boats", fragments=1)
    text = LAKE.format(root=lake.root) + ("" if report is None else f"report: {report}\n")
    (sensor,) = [one for one in build(LanceLakehouseComponent, text).sensors if one.name == "lance_observation_sensor"]
    resources = {"io_manager": lake.manager()}
    with dg.build_sensor_context(instance=lake.instance, resources=resources) as context:
        cursor = sensor(context).cursor
    lake.table("ext/boats").insert(pa.table({"n": [9]}))
    with dg.build_sensor_context(instance=lake.instance, cursor=cursor, resources=resources) as context:
        (event,) = sensor(context).asset_events
    assert isinstance(event, dg.AssetMaterialization if report == "materializations" else dg.AssetObservation)


def test_a_second_lakehouse_fits_beside_it(lake):
    one = build(LanceLakehouseComponent, LAKE.format(root=lake.root))
    other = LAKE.format(root=lake.root).replace("nyc/", "far/").replace("ext/", "ext/far/")
    other = other.replace("sensor: true", "sensor: true, job_name: far") + "io_manager_key: far\n"
    defs = dg.Definitions.merge(one, build(LanceLakehouseComponent, other))
    dg.Definitions.validate_loadable(dg.Definitions.merge(defs, dg.Definitions(assets=[flights])))


def test_a_lakehouse_maintains_all_tables_below_its_root(lake):
    for name in ("ext/boats", "new/cars", "new/vans", "nyc/flights"):
        fill(lake, name, fragments=6)
    whole = LAKE.replace("branching: {{mode: per_backfill}}", "all_tables: true\nexclude: ['*/vans']")
    defs = build(LanceLakehouseComponent, whole.format(root=lake.root))
    for table in ("nyc/flights", "new/cars", "new/vans", "ext/boats"):
        assert len(lake.table(table).get_fragments()) == 6
    job = defs.resolve_job_def("lance_maintenance")
    assert job.execute_in_process(instance=lake.instance, run_config=QUIET).success
    found = {
        name: len(lake.table(name).get_fragments()) for name in ("ext/boats", "new/cars", "new/vans", "nyc/flights")
    }
    assert found == {"ext/boats": 6, "new/cars": 1, "new/vans": 6, "nyc/flights": 1}


def test_maintenance_alone(lake):
    fill(lake, "ext/boats", fragments=6)
    made = build(
        LanceMaintenanceComponent,
        "tables: [ext/boats]\nmaintenance: {job_name: small, retain_versions: 1, cleanup_older_than: never}",
    )
    defs = dg.Definitions.merge(made, dg.Definitions(resources={"io_manager": lake.manager()}))
    assert defs.resolve_job_def("small").execute_in_process(instance=lake.instance, run_config=QUIET).success
    assert len(lake.table("ext/boats").versions()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "tables: [ext/boats]\nmaintenance: {retain: 1}",
        "tables: [ext/boats]\nmaintenance: {retain_versions: 0}",
        "tables: [ext/boats]\nmaintenance: {cleanup_older_than: soon}",
    ],
)
def test_a_wrong_field_is_an_error_when_it_is_loaded(text):
    with pytest.raises(Exception, match=r"retain|soon") as failure:
        build(LanceMaintenanceComponent, text)
    assert isinstance(failure.value, dg.DagsterError | ValueError)


def test_they_are_registered():
    (entry,) = [one for one in entry_points(group="dagster_dg_cli.registry_modules") if one.name == "lance_dagster"]
    assert entry.value == "lance_dagster.components"


PROJECT = """
[project]
name = "project"
version = "0.1"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "project"
registry_modules = ["lance_dagster.components"]
"""
DEFINITIONS = """
import inspect
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    folder = Path(__file__).parent
    is_new = "path_within_project" in inspect.signature(dg.load_from_defs_folder).parameters
    where = {"path_within_project": folder} if is_new else {"project_root": folder.parents[1]}
    return dg.load_from_defs_folder(**where)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that runs `dg` in a project, and the folder of its components."""
    pytest.importorskip("dagster_dg_cli")
    package = tmp_path / "src" / "project"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    (package / "defs" / "__init__.py").write_text("")
    (package / "definitions.py").write_text(DEFINITIONS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'src'}:{processes.ROOT}")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    program = Path(sys.executable).with_name("dg")

    def run(*arguments, fails=False):
        done = processes.run([program, *arguments], cwd=tmp_path)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run, package / "defs"


@pytest.mark.slow
def test_the_list_of_tables_is_refreshed_by_dg(lake, project):
    if not HAS_STATE:
        pytest.skip("this Dagster has no state of components")
    run, folder = project
    (folder / "lake").mkdir()
    component = {
        "type": "lance_dagster.components.LanceLakehouseComponent",
        "attributes": {
            "root_uri": lake.root,
            "external_assets": True,
            "defs_state": {"management_type": "LOCAL_FILESYSTEM", "refresh_if_dev": False},
        },
    }
    (folder / "lake" / "defs.yaml").write_text(yaml.safe_dump(component))
    fill(lake, "sea/ships", fragments=1)
    listed = run("list", "defs", "--json")
    assert "sea/ships" in listed
    assert "run dg utils refresh-defs-state" in listed
    run("utils", "refresh-defs-state")
    fill(lake, "sea/boats", fragments=1)
    assert "sea/boats" not in run("list", "defs", "--json")
    run("utils", "refresh-defs-state")
    listed = run("list", "defs", "--json")
    assert "sea/boats" in listed
    assert "refresh-defs-state" not in listed


@pytest.mark.slow
def test_dg_lists_the_tables_of_a_namespace(lake, project, monkeypatch):
    run, folder = project
    spaces = Namespace(lake.root)
    spaces.call("create_namespace", "shop")
    spaces.create("shop.theirs", 1)
    (folder / "lake").mkdir()
    with rest_service(lake.root) as service:
        namespace = {**service, "uri": "{{ env.SERVICE }}"}
        component = {
            "type": "lance_dagster.components.LanceLakehouseComponent",
            "attributes": {"namespace": namespace, "external_assets": True},
        }
        (folder / "lake" / "defs.yaml").write_text(yaml.safe_dump(component))
        monkeypatch.setenv("SERVICE", service["uri"])
        run("check", "yaml", "--no-validate-requirements")
        if HAS_STATE:
            run("utils", "refresh-defs-state")
        assert "shop/theirs" in run("list", "defs", "--json")


@pytest.mark.slow
def test_dg_lists_scaffolds_and_accepts_them(project):
    run, folder = project
    listed = run("list", "components", "--json")
    assert "lance_dagster.components.LanceLakehouseComponent" in listed
    assert "lance_dagster.components.LanceMaintenanceComponent" in listed
    run("scaffold", "defs", "lance_dagster.components.LanceLakehouseComponent", "lake", "--root-uri", "s3://lake/x")
    written = folder / "lake" / "defs.yaml"
    assert yaml.safe_load(written.read_text())["attributes"]["root_uri"] == "s3://lake/x"
    run("scaffold", "defs", "lance_dagster.components.LanceMaintenanceComponent", "maintenance", "--table", "a/b")
    run("check", "yaml")
    run("check", "defs")
    listed = run("list", "defs", "--json")
    assert "lance_maintenance_schedule" in listed
    assert "lance_maintenance_maintenance_schedule" in listed
    written.write_text(written.read_text().replace("health", "wealth"))
    assert "wealth" in run("check", "yaml", fails=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root_url: /x", "the key 'root_url' is not known; .*is 'root_uri' meant"),
        ("root_uri: /x\ntabels: []", "the key 'tabels' is not known; .*is 'tables' meant"),
        (
            "root_uri: /x\ntables: [{key: a}, {key: b, chekcs: [health]}]",
            r"tables\[1\]: the key 'chekcs' .*'checks' meant",
        ),
        ("root_uri: /x\ntables: [{key: a, checks: [helth]}]", r"tables\[0\].checks\[0\]: 'helth' .*is 'health' meant"),
        (
            "root_uri: /x\ntables: [{key: a, maintenance: {max_smal_fragments: 3}}]",
            r"tables\[0\].maintenance: the key 'max_smal_fragments' .*is 'max_small_fragments' meant",
        ),
        (
            "root_uri: /x\nmaintenance: {cron_schedul: x}",
            "maintenance: the key 'cron_schedul' .*is 'cron_schedule' meant",
        ),
        ("root_uri: /x\nbranching: {mode: per_runs}", "branching.mode: 'per_runs' is none of .*is 'per_run' meant"),
        ("root_uri: /x\nbranching: {mode: per_run, name: x}", "branching.name does nothing with mode per_run"),
        (
            "root_uri: /x\nbranching: {mode: off, auto_promote: true}",
            "branching.auto_promote does nothing with mode off",
        ),
        ("root_uri: /x\nmaintenance: {sensor: true}", "maintenance does nothing without tables"),
        ("root_uri: /x\nall_tables: true", "all_tables does nothing without maintenance"),
        ("root_uri: /x\ninclude: ['a/*']", "include does nothing without all_tables: true"),
        (
            "root_uri: /x\nreport: materializations\ntables: [{key: a, external: false, checks: [health]}]",
            "report does nothing without a table that is external: true",
        ),
        ("root_uri: /x\ntables: []", "tables is an empty list, which does nothing"),
        ("root_uri: /x\ntables: a", r"tables must be a list, such as \[a\], not 'a'"),
        ("root_uri: /x\ntables: [a]", r"tables\[0\] must be a mapping of keys to values, not 'a'"),
        ("root_uri: /x\ntables: [{checks: [health]}]", r"tables\[0\].key is missing"),
        (
            "root_uri: /x\ntables: [{key: a, primary_key: id}]",
            r"tables\[0\].primary_key must be a list, such as \[id\]",
        ),
        ("root_uri: /x\ntables: [{key: a, checks: health}]", r"tables\[0\].checks must be a list"),
        (
            "root_uri: /x\ntables: [{key: a, maintenance: 3}]",
            r"tables\[0\].maintenance must be a mapping .* or true or false",
        ),
        (
            "root_uri: /x\nmaintenance: {sensor: 3}\ntables: [{key: a}]",
            "maintenance.sensor must be true or false, not 3",
        ),
        (
            "root_uri: /x\nmaintenance: {job_name: bad name}\ntables: [{key: a}]",
            "maintenance.job_name must be made of ASCII",
        ),
        ("root_uri: /x\nbranching: {mode: env}", "branching.name is missing: mode env needs"),
        ("root_uri: /x\ntable_config: 3", "the key 'table_config' is not known"),
        ("root_uri: 3", "root_uri must be a string, not 3"),
        ("root_uri: /x\nui_url: a b", "ui_url: String should match"),
        ("{}", "root_uri is missing: give the folder of the tables, or a namespace"),
        (
            "namespace: {impl: rest, uri: x}\nmaintenance: {sensor: true}\ntables: [{key: a}]",
            "maintenance needs root_uri beside namespace",
        ),
        ("root_uri: /x\ntables: [{key: a}]", r"tables\[0\].key does nothing: give the table checks"),
        (
            "root_uri: /x\nmaintenance: {sensor: true}\ntables: [{key: b}, {key: a, maintenance: false}]",
            r"tables\[1\].key does nothing",
        ),
        (
            "root_uri: /x\ntables: [{key: a, checks: [], primary_key: [n]}]",
            r"tables\[0\].checks is an empty list",
        ),
        ("root_uri: /x\ntables: [{key: a, maintenance: {max_versions: 3}}]", r"tables\[0\].maintenance does nothing"),
        ("root_uri: /x\ntables: [{key: a, checks: [drift]}, {key: a, checks: [drift]}]", "list it once"),
    ],
)
def test_a_key_that_nothing_reads_is_named_with_the_nearest(text, message):
    secret = "\nstorage_options: {aws_secret_access_key: hunter2}"
    with pytest.raises(Exception, match=message) as caught:
        build(LanceLakehouseComponent, secret if text == "{}" else text + secret)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_the_storage_are_strings_and_not_shown():
    for options in ("hunter2", "{password: 5432}"):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"storage_options.* must be a") as caught:
            build(LanceLakehouseComponent, f"root_uri: /x\nstorage_options: {options}")
        assert not re.search(r"hunter2|5432|\n", str(caught.value))


def test_tables_must_be_a_list():
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"tables must be a list, such as \[events\]"):
        build(LanceMaintenanceComponent, "tables: events")


def test_an_unknown_key_of_maintenance_is_named_with_the_nearest():
    with pytest.raises(Exception, match=r"maintenance: the key 'engin' is not known; .*is 'engine' meant"):
        build(LanceMaintenanceComponent, "tables: [a]\nmaintenance: {engin: spark}")


def test_the_branching_mode_off_may_be_a_yaml_boolean():
    assert build(LanceLakehouseComponent, "root_uri: /x\nbranching: {mode: off}").resources["io_manager"]


NAMED_TABLE = """
import dagster as dg, pyarrow as pa
from lance_dagster.components import LanceLakehouseComponent

DAYS = dg.StaticPartitionsDefinition(["a", "b"])

@dg.asset(
    key_prefix="shop", partitions_def=DAYS, metadata={{"partition_expr": "day", "schema": "sales", "table": "events"}}
)
def visits(context) -> pa.Table:
    return pa.table({{"day": [context.partition_key] * 2, "id": [context.partition_key + str(i) for i in range(2)]}})

lakehouse = LanceLakehouseComponent.resolve_from_yaml('''
root_uri: {root}
default_load_type: pyarrow
maintenance: {{cron_schedule: "0 3 * * *", max_small_fragments: 1}}
branching: {{mode: from_tag}}
tables:
  - key: shop/visits
    checks: [health, integrity, drift]
    primary_key: [id]
''')
assets = dg.Definitions(assets=[visits], executor=dg.in_process_executor)
defs = dg.Definitions.merge(assets, lakehouse.build_defs(None))
"""


def test_a_listed_asset_whose_own_metadata_names_its_table(tmp_path):
    """Run in a code location, as only there a job finds the definition of an asset."""
    file = tmp_path / "location.py"
    file.write_text(NAMED_TABLE.format(root=tmp_path / "lake"))
    location = ReconstructableRepository.for_file(str(file), "defs")
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:

        def run(job, **tags):
            made = location.get_reconstructable_job(job)
            with dg.execute_job(made, instance=instance, run_config=QUIET, tags=tags) as result:
                assert result.success
                return {one.check_name: one.passed for one in result.get_asset_check_evaluations()}

        def table():
            return lance_core.dataset(str(tmp_path / "lake/sales/events.lance"))

        for day in "ab":
            checks = run("__ASSET_JOB", **{"dagster/partition": day})
        assert not checks.pop("lance_small_fragments")
        assert {"lance_drift", "lance_primary_key", "lance_integrity"} <= set(checks)
        assert all(checks.values())
        run("lance_maintenance")
        assert len(table().fragment_ids()) == 1
        run("__ASSET_JOB", **{"dagster/partition": "a", "lance/branch": "work"})
        before = table().version
        run("lance_promote", **{"lance/branch": "work"})
        assert table().version == before + 1
        run("lance_discard", **{"lance/branch": "work"})
        assert table().branches.list() == {}
        event = instance.get_latest_materialization_event(dg.AssetKey(["shop", "visits"])).asset_materialization
        assert (event.partition, event.metadata["lance/version"].value) == ("a", before + 1)


@dg.asset(key=["shop", "orders"])
def orders() -> pa.Table:
    return pa.table({"a": [1]})


class TestNamespaces:
    """Components take the namespace of their IO manager; the tables are where the service says."""

    @pytest.fixture
    def theirs(self, s3):
        """pylance's namespace of a bucket, and the service in front of it, which vends the options of the storage."""
        root, options = f"s3://{s3.new_bucket()}/theirs", s3.storage_options
        properties = {f"storage.{name}": value for name, value in options.items()}
        spaces = Namespace(root, **properties)
        for name in ("shop", "other"):
            spaces.call("create_namespace", name)
        for name in ("shop.theirs", "other.t"):
            for number in range(7):
                spaces.append(lance, name, number) if number else spaces.create(name, number)
        with rest_service(root, **properties, vend_input_storage_options="true") as service:
            yield spaces, service

    def test_of_a_lakehouse(self, lake, theirs, tmp_path):
        spaces, service = theirs
        text = {
            "namespace": service,
            "root_uri": lake.root,
            "default_load_type": "pyarrow",
            "maintenance": {"job_name": "keep"},
            "tables": [{"key": "shop/orders", "checks": ["integrity"]}],
            "all_tables": True,
            "health_checks": True,
            "external_assets": True,
            "exclude": ["other/*"],
        }
        component = LanceLakehouseComponent.resolve_from_yaml(yaml.safe_dump(text))
        assert service["uri"] not in repr(component) + (component.defs_state_config.key if HAS_STATE else "")
        component.write_state_to_path(tmp_path / "state")
        made = component.build_defs_from_state(None, tmp_path / "state")
        for each in (made, component.build_defs(None)):
            assert [spec.key.to_user_string() for spec in each.assets] == ["shop/theirs"]
        defs = dg.Definitions.merge(made, dg.Definitions(assets=[orders]))
        run = {"instance": lake.instance, "run_config": QUIET}
        assert defs.resolve_implicit_global_asset_job_def().execute_in_process(**run).success
        assert spaces.rows(lance, "shop.orders") == [1]
        assert defs.resolve_job_def("keep").execute_in_process(**run).success
        counts = [len(self.open(spaces, name).get_fragments()) for name in ("shop.theirs", "other.t")]
        assert counts == [1, 7]
        assert lance_core.list_tables(lake.root) == ["_maintenance/log.lance"]

    def open(self, spaces, name):
        return lance.dataset(spaces.call("describe_table", name).location, storage_options=spaces.options)

    def test_of_maintenance(self, lake, theirs, tmp_path):
        spaces, service = theirs
        text = {"root": True, "namespace": service, "health_checks": True, "policies": {"other": False}}
        component = LanceMaintenanceComponent.resolve_from_yaml(yaml.safe_dump(text))
        component.write_state_to_path(tmp_path / "state")
        made = component.build_defs_from_state(None, tmp_path / "state")
        assert {key.asset_key.to_user_string() for check in made.asset_checks for key in check.check_keys} == {
            "shop/theirs",
        }
        defs = dg.Definitions.merge(made, dg.Definitions(resources={"io_manager": lake.manager()}))
        job = defs.resolve_job_def("lance_maintenance")
        assert job.execute_in_process(instance=lake.instance, run_config=QUIET).success
        assert len(self.open(spaces, "shop.theirs").get_fragments()) == 1
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="has a namespace and no root"):
            build(LanceMaintenanceComponent, yaml.safe_dump({"tables": ["a/b"], "namespace": service}))
