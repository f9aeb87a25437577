"""Checks of tables: what they warn of, what they find broken, and their numeric metadata."""

import shutil
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import (
    LanceMaintenancePolicy,
    build_lance_drift_check,
    build_lance_health_checks,
    build_lance_integrity_checks,
    build_lance_overdue_checks,
    build_lance_primary_key_check,
)
from tests.lance_dagster.maintenance.test_maintenance import fill

DAYS = dg.StaticPartitionsDefinition(["a", "b"])


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


def check(lake, *checks, assets=(flights,)):
    """Run checks without materializing; results by name."""
    result = lake.run(*assets, *checks, select=dg.AssetSelection.checks(*checks))
    return {one.check_name: one for one in result.get_asset_check_evaluations()}


def values(evaluation):
    return {key: entry.value for key, entry in evaluation.metadata.items()}


class TestHealth:
    def test_a_table_that_needs_maintenance_is_warned_of(self, lake):
        table = fill(lake, "nyc/flights", fragments=6)
        table.delete("n = 7 or n = 9")
        policy = LanceMaintenancePolicy(max_versions=6)
        found = check(lake, *build_lance_health_checks([flights], policy))
        assert {name for name, one in found.items() if not one.passed} == {
            "lance_small_fragments",
            "lance_deleted_fraction",
            "lance_versions",
        }
        assert {one.severity for one in found.values()} == {dg.AssetCheckSeverity.WARN}
        numbers = values(found["lance_small_fragments"])
        assert numbers["lance/small_fragments"] == numbers["lance/fragments"] == 6
        assert numbers["lance/limit"] == 4
        assert numbers["lance/deleted_fraction"] == pytest.approx(2 / 12)
        assert numbers["lance/versions_total"] == 7

    def test_a_healthy_one_passes(self, lake):
        lake.run(flights)
        found = check(lake, *build_lance_health_checks(flights))
        assert len(found) == 4
        assert all(one.passed for one in found.values())

    def test_rows_that_an_index_does_not_cover(self, lake):
        import lance

        fill(lake, "nyc/flights", fragments=1)
        lance.dataset(lake.uri("nyc/flights")).create_scalar_index("n", "BTREE")
        checks = build_lance_health_checks([flights])
        assert check(lake, *checks)["lance_uncovered_indices"].passed
        lake.table("nyc/flights").insert(pa.table({"n": [7, 8]}))
        found = check(lake, *checks)["lance_uncovered_indices"]
        assert not found.passed
        assert values(found)["lance/index_unindexed_fraction"] == 0.5

    def test_an_assets_own_thresholds_count(self, lake):
        fill(lake, "boats")
        spec = dg.AssetSpec("boats", metadata={"lance/maintenance": {"max_small_fragments": 10}})
        checks = build_lance_health_checks([spec])
        assert check(lake, *checks, assets=(spec,))["lance_small_fragments"].passed

    def test_an_assets_own_thresholds_count_where_only_its_key_is_given(self, lake):
        fill(lake, "boats")
        spec = dg.AssetSpec("boats", metadata={"lance/maintenance": {"max_small_fragments": 10}})
        checks = build_lance_health_checks([spec.key])
        job = dg.define_asset_job("looking", selection=dg.AssetSelection.checks(*checks))
        defs = dg.Definitions([spec], asset_checks=checks, jobs=[job], resources={"io_manager": lake.manager()})
        result = defs.resolve_job_def("looking").execute_in_process(instance=lake.instance)
        assert {one.check_name: one.passed for one in result.get_asset_check_evaluations()}["lance_small_fragments"]


class TestIntegrity:
    @pytest.fixture
    def whole(self, lake):
        lake.run(flights)
        return Path(lake.uri("nyc/flights"))

    def find(self, lake):
        return check(lake, *build_lance_integrity_checks([flights]))["lance_integrity"]

    def test_a_whole_table_passes(self, lake, whole):
        found = self.find(lake)
        assert found.passed
        assert values(found)["lance/rows"] == 2

    def test_a_deleted_file(self, lake, whole):
        shutil.rmtree(whole / "data")
        found = self.find(lake)
        assert not found.passed
        assert found.severity is dg.AssetCheckSeverity.ERROR
        assert "is missing" in found.description

    @pytest.mark.parametrize("harm", [lambda b: b[:-5], lambda b: b"x" * 7 + b])
    def test_a_file_of_another_size(self, lake, whole, harm):
        (file,) = (whole / "data").iterdir()
        file.write_bytes(harm(file.read_bytes()))
        assert not self.find(lake).passed

    def test_a_manifest_that_cannot_be_read(self, lake, whole):
        (manifest,) = (whole / "_versions").glob("*.manifest")
        manifest.write_bytes(b"nothing at all")
        found = self.find(lake)
        assert not found.passed
        assert "Error" in found.description

    def test_rows_that_are_not_those_of_the_last_materialization(self, lake, whole):
        event = dg.AssetMaterialization(flights.key, metadata={"lance/version": 1, "dagster/row_count": 99})
        lake.instance.report_runless_asset_event(event)
        lake.instance.report_runless_asset_event(dg.AssetMaterialization(flights.key))  # by hand: names no version
        assert "has 2 rows, the materialization recorded 99" in self.find(lake).description

    def test_a_table_that_went_back(self, lake, whole):
        event = dg.AssetMaterialization(flights.key, metadata={"lance/version": 7, "dagster/row_count": 2})
        lake.instance.report_runless_asset_event(event)
        assert "made version 7, and the newest is 1" in self.find(lake).description

    def test_no_table_fails_and_says_so(self, lake):
        found = self.find(lake)
        assert (found.passed, found.description) == (False, NO_TABLE)


class TestPrimaryKey:
    def find(self, lake, rows, columns=("k",), **options):
        lance_core.write_dataset(pa.Table.from_pylist(rows), lake.uri("nyc/flights"))
        return check(lake, build_lance_primary_key_check(flights, list(columns), **options))["lance_primary_key"]

    def test_unique(self, lake):
        found = self.find(lake, [{"k": 1}, {"k": 2}])
        assert found.passed
        assert values(found)["lance/rows_checked"] == 2

    def test_duplicates_and_nulls_are_counted(self, lake):
        found = self.find(lake, [{"k": 1}, {"k": 1}, {"k": 1}, {"k": None}])
        assert not found.passed
        assert (values(found)["lance/duplicate_rows"], values(found)["lance/null_keys"]) == (2, 1)

    def test_of_several_columns(self, lake):
        assert self.find(lake, [{"k": 1, "l": 1}, {"k": 1, "l": 2}], ("k", "l")).passed

    def test_of_no_column(self, lake):
        with pytest.raises(ValueError, match="columns"):
            build_lance_primary_key_check(flights, "k")

    @pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")
    def test_of_the_partitions_of_the_run(self, lake):
        @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "p"})
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            return pa.table({"p": [context.partition_key] * 2, "k": [1, 1 if context.partition_key == "a" else 2]})

        try:
            one = build_lance_primary_key_check(events, ["k"], partitions_def=DAYS)
        except TypeError:
            pytest.skip("checks of this Dagster have no partitions")
        for partition, passed in (("a", False), ("b", True)):
            result = lake.run(events, one, partition=partition)
            (found,) = result.get_asset_check_evaluations()
            assert (found.passed, values(found)["lance/rows_checked"]) == (passed, 2)


class TestDrift:
    def test_only_what_others_write_is_drift(self, lake):
        one = build_lance_drift_check(flights)
        lake.run(flights)
        assert check(lake, one)["lance_drift"].passed
        lake.run(flights, write_mode="append")
        lake.table("nyc/flights").optimize.compact_files()
        assert check(lake, one)["lance_drift"].passed
        lake.table("nyc/flights").insert(pa.table({"n": [7]}))
        found = check(lake, one)["lance_drift"]
        assert not found.passed
        assert found.severity is dg.AssetCheckSeverity.WARN
        assert values(found)["lance/foreign_versions"] == 1
        assert "(Append)" in found.description
        lake.run(flights)
        assert check(lake, one)["lance_drift"].passed

    def test_rows_of_others_whose_version_was_cleaned_up(self, lake):
        one = build_lance_drift_check(flights)
        lake.run(flights)
        table = lake.table("nyc/flights")
        table.tags.create("mine", table.version)
        table.insert(pa.table({"n": [7]}))
        table.optimize.compact_files()
        table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        found = check(lake, one)["lance_drift"]
        assert not found.passed
        assert "was cleaned up" in found.description
        lake.run(flights)
        assert check(lake, one)["lance_drift"].passed


MULTI = dg.MultiPartitionsDefinition({"day": dg.StaticPartitionsDefinition(["1", "2"]), "p": DAYS})


class TestPrimaryKeyOfPartitions:
    """Nothing but the asset is given: a check of any Dagster, which runs without partitions as well."""

    @staticmethod
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "p"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        keys = sorted(context.partition_keys)
        rows = [{"p": key, "k": number if key == "b" else 7} for key in keys for number in (1, 2)]
        return pa.Table.from_pylist(rows)

    def test_rows_of_the_run_are_looked_at_and_all_rows_without_partitions(self, lake):
        one = build_lance_primary_key_check(self.events, ["k"])
        for chosen, passed, rows in (
            ({"partition": "a"}, False, 2),
            ({"partition": "b"}, True, 2),
            ({"span": ("a", "b")}, False, 4),
            ({"span": ("b", "b")}, True, 2),
        ):
            (found,) = lake.run(self.events, one, **chosen).get_asset_check_evaluations()
            assert (found.passed, values(found)["lance/rows_checked"]) == (passed, rows)
        found = check(lake, one)["lance_primary_key"]
        assert (found.passed, values(found)["lance/rows_checked"]) == (False, 4)

    def test_of_several_dimensions(self, lake):
        @dg.asset(partitions_def=MULTI, metadata={"partition_expr": {"day": "day", "p": "p"}})
        def parted(context: dg.AssetExecutionContext) -> pa.Table:
            day, p = (context.partition_key.keys_by_dimension[name] for name in ("day", "p"))
            return pa.table({"day": [day] * 2, "p": [p] * 2, "k": [1, 1 if p == "a" else 2]})

        one = build_lance_primary_key_check(parted, ["k"])
        for p, passed in (("a", False), ("b", True)):
            key = dg.MultiPartitionKey({"day": "1", "p": p})
            (found,) = lake.run(parted, one, partition=key).get_asset_check_evaluations()
            assert (found.passed, values(found)["lance/rows_checked"]) == (passed, 2)


def test_checks_run_with_the_asset(lake):
    checks = [*build_lance_health_checks([flights]), *build_lance_integrity_checks([flights])]
    result = lake.run(flights, *checks, build_lance_drift_check(flights))
    assert len(result.get_asset_check_evaluations()) == 6
    assert all(one.passed for one in result.get_asset_check_evaluations())


def test_a_missing_file_fails_the_check_of_the_key(lake):
    @dg.asset
    def keyed() -> pa.Table:
        return pa.table({"k": [1, 2]})

    lake.run(keyed)
    (file,) = Path(lake.uri("keyed"), "data").iterdir()
    file.unlink()
    found = check(lake, build_lance_primary_key_check(keyed, ["k"]))["lance_primary_key"]
    assert not found.passed
    assert file.name in found.description
    assert f"lance verify {lake.uri('keyed')}" in found.description


NO_TABLE = "there is no table yet: the asset was never materialized"


@pytest.mark.parametrize(
    ("build", "names", "passes"),
    [
        (lambda: build_lance_health_checks([flights]), 4, True),
        (lambda: [build_lance_drift_check(flights)], 1, True),
        (lambda: build_lance_overdue_checks([flights]), 1, True),
        (lambda: [build_lance_primary_key_check(flights, ["k"])], 1, False),
    ],
)
def test_an_asset_without_a_table(lake, build, names, passes):
    """A warning has nothing to say before the first run; a table that was deleted is a failure."""
    found = check(lake, *build())
    assert [(one.passed, one.description) for one in found.values()] == [(passes, NO_TABLE)] * names
    lake.instance.report_runless_asset_event(dg.AssetMaterialization(flights.key))
    found = check(lake, *build())
    assert [one.passed for one in found.values()] == [False] * names
    assert all(one.description.startswith("the table no longer exists: ") for one in found.values())
