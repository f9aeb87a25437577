"""Health checks of whole roots take the arguments of the job, and components offer them with external assets."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import (
    LanceMaintenancePolicy,
    build_lance_health_checks,
    build_lance_overdue_checks,
    build_maintenance_job,
    lance_external_assets,
)
from lance_dagster.components import LanceLakehouseComponent, LanceMaintenanceComponent
from lance_dagster.components.listing import HAS_STATE
from tests.lance_dagster.lake import QUIET, Lake
from tests.lance_dagster.maintenance.test_lake import fill_foreign
from tests.lance_dagster.maintenance.test_maintenance import fill, flights, run

REJECTED = dg.DagsterInvalidDefinitionError


def keys(checks):
    return {key.asset_key.to_user_string() for check in checks for key in check.check_keys}


def failed(lake, checks, assets=()):
    """Assets and names of the checks that fail."""
    defs = dg.Definitions(
        assets=list(assets),
        asset_checks=checks,
        jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
        resources={"io_manager": lake.manager()},
    )
    result = defs.resolve_job_def("check").execute_in_process(instance=lake.instance, run_config=QUIET)
    found = result.get_asset_check_evaluations()
    return {(one.asset_key.to_user_string(), one.check_name) for one in found if not one.passed}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"root": True}, r'root=True is the root of the IO manager.*pass the URI of the root, such as root="s3:'),
        ({"root": ""}, "root_uri is empty"),
        ({"policies": {"a": False}}, "policies choose among the tables below a root, and there is none"),
        ({"storage_options": {"aws_region": "x"}}, "storage_options and schema are for the tables below a root"),
        ({"root": "lake", "policies": {"a": {"max_version": 3}}}, r"policies\['a'\].*is 'max_versions' meant"),
    ],
)
def test_what_means_nothing_is_rejected(given, message):
    with pytest.raises(REJECTED, match=message):
        build_lance_health_checks(**given)


def test_the_root_of_external_assets_and_of_overdue_checks():
    with pytest.raises(REJECTED, match="lance_external_assets: root=True is the root of the IO manager"):
        lance_external_assets(True)
    with pytest.raises(REJECTED, match="root_uri is empty"):
        build_lance_overdue_checks(["a"], root="")


def test_overdue_checks_take_the_root_of_the_job(lake, tmp_path):
    other = Lake(root=str(tmp_path / "other"), instance=lake.instance)
    for one in (lake, other):
        fill_foreign(one, "sea/ships")
    assets = [dg.AssetSpec(["sea", "ships"])]
    assert failed(lake, build_lance_overdue_checks(assets, root=True), assets)
    assert run(lake, build_maintenance_job(root=True)).success
    assert not failed(lake, build_lance_overdue_checks(assets, root=True), assets)
    far = lance_external_assets(other.root)
    for named in (assets, far, [far[0].key]):
        assert failed(lake, build_lance_overdue_checks(named, root=other.root), named if named is far else ())
    assert run(lake, build_maintenance_job(root=other.root)).success
    for named in (far, [far[0].key]):
        assert not failed(lake, build_lance_overdue_checks(named, root=other.root), named if named is far else ())


def test_policies_are_those_of_the_job(lake):
    for path in ("a/one", "a/two", "b/three", "c/four"):
        fill_foreign(lake, path)
    policies = {"a": {"max_small_fragments": 10}, "a/two": {"max_small_fragments": 1}, "b": False}
    checks = build_lance_health_checks(root=lake.root, policies=policies)
    assert keys(checks) == {"a/one", "a/two", "c/four"}
    small = "lance_small_fragments"
    assert failed(lake, checks, lance_external_assets(lake.root)) == {("a/two", small), ("c/four", small)}


def test_policies_count_for_the_assets_of_tables_below_the_root(lake):
    for path in ("nyc/flights", "sea/boats", "sea/ships"):
        fill(lake, path)
    boats = dg.AssetSpec("b", metadata={"schema": "sea", "table": "boats", "lance/maintenance": {"max_versions": 2}})
    ships = dg.AssetSpec("s", metadata={"schema": "sea", "table": "ships", "lance/maintenance": False})
    policies = {"nyc": {"max_small_fragments": 10}, "sea": False}
    checks = build_lance_health_checks([flights, boats, ships], root=lake.root, policies=policies)
    assert keys(checks) == {"nyc/flights", "b"}  # the asset of boats says more than its folder
    assert failed(lake, checks, [flights, boats]) == {("b", "lance_small_fragments"), ("b", "lance_versions")}


def test_assets_are_found_in_the_schema_of_the_io_manager(lake):
    fill(lake, "nyc/orders", fragments=1)

    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"n": [1]})

    assert keys(build_lance_health_checks([orders], root=lake.root, schema="nyc")) == {"orders"}
    assert keys(build_lance_health_checks([orders], root=lake.root)) == {"orders", "nyc/orders"}


def test_small_fragments_that_maintenance_leaves_are_no_problem(lake):
    """By bytes they are large enough: the job finds the table healthy, and the check passes."""
    fill(lake, "nyc/flights", fragments=6, rows=100)
    policy = LanceMaintenancePolicy(target_bytes_per_fragment=100)
    assert run(lake, build_maintenance_job([flights], policy)).output_for_node("summarize")["healthy"] == [
        "nyc/flights"
    ]
    assert not failed(lake, build_lance_health_checks([flights], policy), [flights])
    assert failed(lake, build_lance_health_checks([flights]), [flights]) == {("nyc/flights", "lance_small_fragments")}


def test_rows_beside_an_index_are_no_problem_of_a_policy_that_refreshes_none(lake):
    fill(lake, "nyc/flights", fragments=1).create_scalar_index("n", "BTREE")
    lance_core.dataset(lake.uri("nyc/flights")).insert(pa.table({"n": [7]}))
    assert failed(lake, build_lance_health_checks([flights]), [flights])
    policy = LanceMaintenancePolicy(refresh_indices=False)
    assert not failed(lake, build_lance_health_checks([flights], policy), [flights])


class TestComponents:
    def build(self, component, text):
        return component.resolve_from_yaml(text).build_defs_from_state(None, None)

    def names(self, defs):
        assets = {spec.key.to_user_string() for spec in defs.assets or ()}
        return assets, keys(defs.asset_checks or ())

    def test_maintenance_declares_what_is_below_its_root(self, lake):
        for path in ("nyc/flights", "sea/ships", "sea/old", "tmp/a"):
            fill_foreign(lake, path)
        text = (
            f"root: {lake.root}\ntables: [nyc/flights]\nexclude: ['tmp/*']\npolicies: {{sea/old: false}}\n"
            "health_checks: true\nexternal_assets: true"
        )
        made = self.build(LanceMaintenanceComponent, text)
        assert self.names(made) == ({"sea/ships", "sea/old"}, {"nyc/flights", "sea/ships"})
        dg.Definitions.validate_loadable(
            dg.Definitions.merge(made, dg.Definitions([flights], resources={"io_manager": lake.manager()}))
        )

    def test_maintenance_checks_the_tables_that_it_lists(self):
        made = self.build(LanceMaintenanceComponent, "tables: [nyc/flights]\nhealth_checks: true")
        assert self.names(made) == (set(), {"nyc/flights"})

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("root: true\nhealth_checks: true", "health_checks lists tables while the code location is loaded"),
            ("root: true\nexternal_assets: true", "external_assets lists tables.*such as root: s3://bucket/lake"),
            ("tables: [a]\nexternal_assets: true", "external_assets does nothing without root"),
            ("root: /x\nstorage_options: {a: b}", "storage_options does nothing without root and health_checks or"),
            ("tables: [a]\nhealth_checks: true\ndefault_schema: b", "default_schema does nothing without root and"),
        ],
    )
    def test_what_maintenance_cannot_know_is_rejected(self, text, message):
        with pytest.raises(REJECTED, match=message):
            self.build(LanceMaintenanceComponent, text)

    def test_a_lakehouse_declares_what_is_below_its_root(self, lake):
        for path in ("nyc/flights", "sea/ships", "sea/theirs", "tmp/a"):
            fill_foreign(lake, path)
        text = (
            f"root_uri: {lake.root}\nexclude: ['tmp/*']\nhealth_checks: true\nexternal_assets: true\n"
            "tables:\n  - {key: nyc/flights, checks: [health, drift]}\n  - {key: sea/theirs, external: true}"
        )
        made = self.build(LanceLakehouseComponent, text)
        assert self.names(made) == ({"sea/ships", "sea/theirs"}, {"nyc/flights", "sea/ships"})
        defs = dg.Definitions.merge(made, dg.Definitions([flights]))
        dg.Definitions.validate_loadable(defs)
        job = dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())
        checked = dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def("check")
        result = checked.execute_in_process(instance=lake.instance, run_config=QUIET)
        found = {
            (one.asset_key.to_user_string(), one.check_name)
            for one in result.get_asset_check_evaluations()
            if not one.passed
        }
        small = "lance_small_fragments"
        assert {one for one in found if one[1] == small} == {("nyc/flights", small), ("sea/ships", small)}

    @pytest.mark.parametrize("component", [LanceLakehouseComponent, LanceMaintenanceComponent])
    def test_the_list_of_tables_is_that_of_the_state(self, lake, tmp_path, component, caplog):
        if not HAS_STATE:
            pytest.skip("this Dagster has no state of components")
        fill_foreign(lake, "sea/ships")
        fill_foreign(lake, "sea/old")
        root = "root_uri" if component is LanceLakehouseComponent else "root"
        text = f"{root}: {lake.root}\nhealth_checks: true\nexternal_assets: true\nexclude: ['*/old']"
        made, state = component.resolve_from_yaml(text), tmp_path / "state"
        made.write_state_to_path(state)
        fill_foreign(lake, "sea/boats")
        assert self.names(made.build_defs_from_state(None, state)) == ({"sea/ships"}, {"sea/ships"})
        assert not caplog.text
        assert self.names(made.build_defs_from_state(None, None)) == ({"sea/ships", "sea/boats"},) * 2
        assert "run dg utils refresh-defs-state" in caplog.text
        assert made.defs_state_config.key == f"{component.__name__}[{lake.root}]"

    def test_no_table_of_a_lakehouse_is_looked_at_unless_it_is_asked_for(self, tmp_path):
        made = self.build(LanceLakehouseComponent, f"root_uri: {tmp_path}/none\nhealth_checks: true")
        assert self.names(made) == (set(), set())
