"""Settings of the IO manager and of assets, places of tables, and rejections of settings that nothing reads."""

import sys
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from docs import _settings as settings
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceMaintenancePolicy,
    LanceSparkResource,
    LanceTableResource,
    build_audited_job,
    build_branch_jobs,
    build_change_type_job,
    build_lance_health_checks,
    build_lance_integrity_checks,
    build_maintenance_job,
    build_undo_job,
    observable_lance_asset,
    stamp_lance_metadata,
)
from lance_dagster.branches.jobs import BranchConfig
from lance_dagster.components import LanceLakehouseComponent
from lance_dagster.maintenance.run_config import MaintenanceConfig, PolicyOverrides
from lance_dagster.tables.location import locate_table
from lance_dagster.tables.settings import OutputSettings
from tests import processes


@pytest.mark.parametrize("make", [BranchPolicy, BranchConfig, MaintenanceConfig, PolicyOverrides, LanceIOManager])
def test_a_misspelt_field_is_rejected(make):
    with pytest.raises(ValidationError, match="dry_runn"):
        make(dry_runn=True)


@pytest.mark.parametrize(
    ("make", "given", "meant"),
    [
        (LanceIOManager, "mode", "use write_mode"),
        (LanceIOManager, "write_mod", "is 'write_mode' meant"),
        (LanceIOManager, "base_dir", "use root_uri"),
        (LanceTableResource, "storage_option", "is 'storage_options' meant"),
        (LanceTableResource, "mode", "it has branching, namespace, root_uri, schema, storage_options"),
        (LanceSparkResource, "mastr", "is 'master' meant"),
        (BranchPolicy, "kid", "is 'kind' meant"),
        (LanceMaintenancePolicy, "cleanup_older", "is 'cleanup_older_than' meant"),
    ],
)
def test_an_argument_that_there_is_not_is_named_with_the_nearest(make, given, meant):
    with pytest.raises(
        (ValidationError, TypeError), match=f"{make.__name__} has no argument '{given}'.*{meant}"
    ) as caught:
        make(**{given: "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: build_maintenance_job("a", name="bad name"), "build_maintenance_job: name"),
        (lambda: build_undo_job("a", name="bad name"), "build_undo_job: name"),
        (lambda: build_change_type_job("a", name="bad name"), "build_change_type_job: name"),
        (lambda: build_branch_jobs("a", discard_name="bad name"), "build_branch_jobs: discard_name"),
        (lambda: build_audited_job([], name="bad name"), "build_audited_job: name"),
    ],
)
def test_an_invalid_job_name_is_an_error_with_its_argument(make, place):
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=f"^{place} must be made of .*, not 'bad name'$"):
        make()


def test_a_key_alone_names_one_table():
    assert build_maintenance_job("events").metadata["lance/tables"].data == ["events"]
    assert build_undo_job("events").metadata["lance/tables"].data == ["events"]
    assert len(build_lance_integrity_checks("events")) == 1
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"not of \['events'\]"):
        build_audited_job("events", name="a")


def test_a_branch_of_a_variable_without_a_name_is_rejected():
    with pytest.raises(ValidationError, match="needs a name"):
        BranchPolicy(kind="env")
    assert BranchPolicy(kind="env", name="X") == BranchPolicy.env("X")


class TestLocation:
    @pytest.mark.parametrize(
        ("key", "metadata", "default", "expected"),
        [
            (["events"], {}, None, "public/events"),
            (["analytics", "events"], {}, None, "analytics/events"),
            (["team1", "events", "daily"], {}, None, "team1/events/daily"),
            (["team2", "events", "daily"], {}, None, "team2/events/daily"),
            (["team2", "events", "daily"], {"schema": "events"}, None, "events/daily"),
            (["team2", "events", "daily"], {"table": "hourly"}, None, "team2/events/hourly"),
            (["team2", "events", "daily"], {}, "prod", "prod/daily"),
            (["analytics", "events"], {}, "prod", "prod/events"),
            (["analytics", "events"], {"schema": "raw"}, "prod", "raw/events"),
            (["analytics", "events"], {"table": "e2"}, None, "analytics/e2"),
            (["events"], {"schema": dg.MetadataValue.text("raw")}, None, "raw/events"),
        ],
    )
    def test_schema_and_table(self, key, metadata, default, expected):
        location = locate_table("s3://lake/x/", dg.AssetKey(key), metadata, default_schema=default)
        assert location.uri == f"s3://lake/x/{expected}.lance"
        assert location.name == expected.replace("/", ".")

    @pytest.mark.parametrize(
        "segment", ["..", ".", "a/b", "a\\b", ".hidden", "a?b", "a#b", "a%2f", "a\0", "a\n", "", " ", "x" * 300]
    )
    def test_names_that_leave_the_root_are_rejected(self, segment):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="cannot be a folder name"):
            locate_table("/lake", dg.AssetKey(["analytics", segment]), {}, default_schema=None)
        if segment:
            with pytest.raises(dg.DagsterInvalidDefinitionError, match="cannot be a folder name"):
                locate_table("/lake", dg.AssetKey(["events"]), {"schema": segment}, default_schema=None)

    @pytest.mark.parametrize(
        ("key", "said"),
        [(["_ops", "x"], "holds the outputs of ops"), (["a", "b.lance", "c"], "is the name of a table")],
    )
    def test_folders_that_are_taken(self, key, said):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
            locate_table("/lake", dg.AssetKey(key), {}, default_schema=None)


class TestConfiguration:
    def test_everything_arrives(self):
        manager = LanceIOManager(
            root_uri="/lake",
            storage_options={"aws_secret_access_key": "hush"},
            schema="prod",
            write_mode="append",
            schema_mode="add_columns",
            empty_output="skip",
            out_of_partition="allow",
            read="materialized",
            default_load_type="pandas",
            cluster=False,
            max_rows_per_file=10,
            max_bytes_per_file=20,
            data_storage_version="2.1",
            table_config={"a": "b"},
        )
        settings = manager.settings()
        assert settings.output == OutputSettings(
            write_mode="append", schema_mode="add_columns", empty_output="skip", out_of_partition="allow", cluster=False
        )
        assert (settings.schema, settings.reads_materialized, settings.default_load_type) == ("prod", True, "pandas")
        assert (settings.max_rows_per_file, settings.max_bytes_per_file) == (10, 20)
        assert (settings.data_storage_version, settings.table_config) == ("2.1", {"a": "b"})
        assert "hush" not in repr(settings)
        assert "hush" not in repr(manager)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"write_mode": "upsert"},
            {"schema_mode": "drop"},
            {"read": "first"},
            {"max_rows_per_file": 0},
            {"empty_output": "x"},
        ],
    )
    def test_other_values_are_rejected(self, wrong):
        with pytest.raises((ValidationError, dg.DagsterInvalidConfigError)):
            LanceIOManager(root_uri="/lake", **wrong)

    def test_other_names_are_rejected(self):
        with pytest.raises((ValidationError, dg.DagsterInvalidInvocationError, dg.DagsterInvalidConfigError)):
            LanceIOManager(root_uri="/lake", branching="per_run")


class TestMetadata:
    def test_an_asset_changes_what_the_manager_says(self):
        metadata = {
            "lance/write_mode": "append",
            "lance/schema_mode": dg.MetadataValue.text("overwrite"),
            "lance/commit_message": "hello",
            "lance/vector_columns": {"v": 32},
            "lance/cluster": False,
            "lance/stable_row_ids": True,
            "other": 1,
        }
        settings = OutputSettings().overridden(metadata, asset="a", strict=True)
        assert settings == OutputSettings(
            write_mode="append",
            schema_mode="overwrite",
            commit_message="hello",
            vector_columns={"v": 32},
            cluster=False,
            stable_row_ids=True,
        )

    @pytest.mark.parametrize("entry", [{"lance/branch": "dev"}, {"lance/write_moed": "append"}])
    def test_an_entry_that_nothing_reads_is_rejected(self, entry):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="is not accepted; known here"):
            OutputSettings().overridden(entry, asset="a", strict=True)
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="is not accepted; known here"):
            OutputSettings().overridden(entry, asset="a", strict=False)

    @pytest.mark.parametrize(
        "entry",
        [
            {"lance/write_mode": "upsert"},
            {"lance/cluster": "no"},
            {"lance/stable_row_ids": "yes"},
            {"lance/vector_columns": {"v": 0}},
            {"lance/vector_columns": ["v"]},
            {"lance/commit_message": 3},
        ],
    )
    def test_a_value_of_another_kind_is_rejected(self, entry):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="must be"):
            OutputSettings().overridden(entry, asset="a", strict=True)


def test_a_code_location_loads_without_the_heavy_packages():
    program = """
import sys
import dagster as dg
import lance_dagster.components
from lance_dagster import LanceIOManager, lance_filter, stamp_lance_metadata

@dg.asset
def events() -> int: ...

stamp_lance_metadata(dg.Definitions(assets=[events], resources={"io_manager": LanceIOManager(root_uri="/lake")}))
print([name for name in ("pyspark", "lance_core", "pyarrow", "pandas", "polars", "numpy") if name in sys.modules])
"""
    done = processes.run([sys.executable, "-c", program], check=True)
    assert done.stdout.strip() == "[]"


class TestStamp:
    def definitions(self, assets, **resources):
        from lance_dagster import stamp_lance_metadata

        resources = {"io_manager": LanceIOManager(root_uri="/lake"), **resources}
        return stamp_lance_metadata(dg.Definitions(assets=assets, resources=resources))

    @pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
    def test_tables_of_others_stay_as_they_are(self, tmp_path):
        prices = observable_lance_asset("prices", str(tmp_path / "prices.lance"))

        @dg.asset
        def report(prices: pa.Table) -> pa.Table:
            return prices

        checks = build_lance_health_checks([report])
        defs = stamp_lance_metadata(
            dg.Definitions(
                [prices, report], asset_checks=checks, resources={"io_manager": LanceIOManager(root_uri=str(tmp_path))}
            )
        )
        graph = defs.resolve_asset_graph()
        assert graph.get(report.key).metadata["dagster/table_name"] == "public.report"
        assert graph.get(prices.key).metadata["dagster/uri"] == str(tmp_path / "prices.lance")
        assert graph.get(prices.key).is_observable
        assert graph.get(report.key).parent_keys == {prices.key}
        assert len(graph.asset_check_keys) == 4

    def test_name_uri_and_kind_are_in_the_definition(self):
        @dg.asset(key_prefix="analytics", kinds={"pyspark"}, metadata={"partition_expr": "day"})
        def events() -> int: ...

        defs = self.definitions([events])
        spec = defs.resolve_asset_graph().get(dg.AssetKey(["analytics", "events"]))
        assert spec.metadata["dagster/table_name"] == "analytics.events"
        assert spec.metadata["dagster/uri"] == "/lake/analytics/events.lance"
        assert spec.metadata["partition_expr"] == "day"
        assert spec.kinds == {"lance", "pyspark"}

    def test_the_root_may_be_an_environment_variable(self, monkeypatch):
        monkeypatch.setenv("LAKE", "s3://bucket")

        @dg.asset
        def events() -> int: ...

        defs = self.definitions([events], io_manager=LanceIOManager(root_uri=dg.EnvVar("LAKE")))
        assert (
            defs.resolve_asset_graph().get(dg.AssetKey("events")).metadata["dagster/uri"]
            == "s3://bucket/public/events.lance"
        )

    def test_assets_that_others_store_are_left_alone(self):
        @dg.asset(io_manager_key="files")
        def stored_elsewhere() -> int: ...

        @dg.asset
        def stores_itself() -> None: ...

        external = dg.AssetSpec("external")
        defs = self.definitions([stored_elsewhere, stores_itself, external], files=dg.FilesystemIOManager())
        for node in defs.resolve_asset_graph().asset_nodes:
            assert "dagster/uri" not in node.metadata, node.key
            assert "lance" not in node.kinds

    def test_what_the_asset_says_itself_stays(self):
        @dg.asset(metadata={"dagster/uri": "s3://mine"})
        def events() -> dg.MaterializeResult: ...

        metadata = self.definitions([events]).resolve_asset_graph().get(dg.AssetKey("events")).metadata
        assert (metadata["dagster/uri"], metadata["dagster/table_name"]) == ("s3://mine", "public.events")


class TestRoots:
    @pytest.mark.parametrize("root", ["", "  "])
    def test_an_empty_root_is_rejected(self, root):
        for made in (LanceIOManager, LanceTableResource):
            with pytest.raises(dg.DagsterInvalidDefinitionError, match="root_uri is empty"):
                made(root_uri=root)

    @pytest.mark.parametrize("root", ["dbfs:lake", "s3:bucket/lake", "file:lake"])
    def test_a_scheme_without_its_slash_is_rejected(self, root):
        for made in (LanceIOManager, LanceTableResource):
            with pytest.raises(dg.DagsterInvalidDefinitionError, match="has no slash after its scheme"):
                made(root_uri=root)

    @pytest.mark.parametrize(
        "root",
        [
            *("s3://user:hush@bucket/lake", "https://hush@host/x", "s3://key:hush@b?x=1"),
            "abfss://user:hush@account.dfs.core.windows.net/lake",
        ],
    )
    def test_credentials_are_rejected_and_not_shown(self, root):
        for made in (LanceIOManager, LanceTableResource, LanceLakehouseComponent):
            with pytest.raises(dg.DagsterInvalidDefinitionError, match="storage_options") as caught:
                made(root_uri=root)
            assert "hush" not in str(caught.value)

    def test_credentials_of_a_table_that_others_write_are_rejected_and_not_shown(self):
        uri = "s3://user:hush@bucket/lake/t.lance"
        asks = (
            lambda: observable_lance_asset("theirs", uri),
            lambda: locate_table("lake", dg.AssetKey("theirs"), {"lance/uri": uri}, default_schema=None),
        )
        for ask in asks:
            with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"asset theirs: .* storage_options") as caught:
                ask()
            assert "hush" not in str(caught.value)

    @pytest.mark.parametrize("wrong", ["hush", {"aws_secret_access_key": ["hush"]}, {"key": b"\xffhush"}], ids=str)
    def test_a_secret_of_a_wrong_type_is_not_shown(self, wrong):
        fields = {
            LanceIOManager: "storage_options",
            LanceTableResource: "storage_options",
            LanceSparkResource: "config",
        }
        for made, field in fields.items():
            with pytest.raises(ValidationError, match=field) as caught:
                made(**{field: wrong}, **({} if made is LanceSparkResource else {"root_uri": "s3://lake"}))
            assert "hush" not in str(caught.value)

    def test_a_query_is_rejected_but_that_of_dynamodb(self):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="query"):
            LanceIOManager(root_uri="s3://bucket/lake?aws_secret_access_key=hush")
        found = locate_table("s3+ddb://bucket/lake?ddbTableName=T", dg.AssetKey("t"), {}, default_schema=None)
        assert found.uri == "s3+ddb://bucket/lake/public/t.lance?ddbTableName=T"

    def test_what_an_environment_variable_holds_is_looked_at_when_it_is_read(self, lake, monkeypatch):
        manager = LanceIOManager(root_uri=dg.EnvVar("LANCE_TEST_ROOT"))
        monkeypatch.setenv("LANCE_TEST_ROOT", "s3://user:hush@bucket")
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="credentials"):
            dg.materialize([stored()], resources={"io_manager": manager}, instance=lake.instance)

    @pytest.mark.parametrize("root", ["abfss://container@account.dfs.core.windows.net/lake", ".", "/lake", "s3://b"])
    def test_others_are_taken(self, root):
        assert LanceIOManager(root_uri=root).root_uri == root


def stored(partitions=None, name="events", ins=None, **metadata):
    """An asset that a LanceIOManager stores."""

    @dg.asset(name=name, metadata=metadata, partitions_def=partitions, ins=ins)
    def asset(**inputs) -> pa.Table:
        return pa.table({"n": [1]})

    return asset


def stamped(*assets, **manager):
    made = LanceIOManager(**{"root_uri": "/lake"} | manager)
    return stamp_lance_metadata(dg.Definitions(list(assets), resources={"io_manager": made}))


PARTS = dg.StaticPartitionsDefinition(["a"])
GRID = dg.MultiPartitionsDefinition({"x": PARTS, "y": PARTS})


class TestWhenTheLocationLoads:
    @pytest.mark.parametrize(
        ("asset", "said"),
        [
            (
                stored(**{"lance/write_moed": "append"}),
                "'lance/write_moed' is not accepted; known here: partition_expr",
            ),
            (stored(**{"lance/write_mode": "apend"}), "lance/write_mode must be one of overwrite, append, merge"),
            (stored(mode="append"), "metadata 'mode' is another IO manager's.*use lance/write_mode"),
            (stored(upsert_options={"a": 1}), "use lance/write_mode merge with lance/merge_on"),
            (stored(overwrite_schema=True), "use lance/schema_mode overwrite"),
            (stored(custom_metadata={"a": "b"}), "use lance/commit_message"),
            (stored(write_mode="append", **{"lance/write_mode": "error"}), "have different values"),
            (stored(PARTS), 'asset events: it is partitioned.*"partition_expr": "column"'),
            (stored(PARTS, partition_expr=3), "not 3"),
            (stored(GRID, partition_expr="x"), "partition dimensions"),
            (stored(GRID, partition_expr={"x": "a", "z": "b"}), "partition dimensions"),
            (stored(GRID, partition_expr={"x": "a", "y": 5}), r"a different column for each dimension, not {'y': 5}"),
            (stored(GRID, partition_expr={"x": "a", "y": "a"}), "a different column for each dimension"),
            (
                stored(**{"lance/schema": 5}),
                "asset events: metadata lance/schema must be a pyarrow schema, or a mapping",
            ),
            (stored(**{"lance/schema": {"id": "int"}}), "metadata lance/schema must be a pyarrow schema, or a mapping"),
            (
                stored(**{"lance/maintenance": 5}),
                "metadata lance/maintenance must be a LanceMaintenancePolicy, a mapping",
            ),
            (stored(**{"lance/maintenance": {"retain": 5}}), "'retain' is not a field of a LanceMaintenancePolicy"),
            (stored(**{"lance/column_lineage": 5}), "metadata lance/column_lineage must map columns"),
            (stored(**{"lance/vector_columns": 5}), "lance/vector_columns must be a mapping from columns to widths"),
            (stored(PARTS, partition_expr="n", **{"lance/schema_mode": "overwrite"}), "overwrites the whole table"),
            (stored(write_mode="append", **{"lance/schema_mode": "overwrite"}), "overwrites the whole table"),
        ],
    )
    def test_an_asset_that_cannot_be_stored_is_rejected(self, asset, said):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
            stamped(asset)

    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            ({"filter": "n > 1"}, "use lance/filter"),
            ({"lance/filtre": "n > 1"}, "known here: columns, lance/as_of"),
            ({"lance/version": 1, "lance/tag": "a"}, "cannot be combined"),
            ({"columns": 5}, r"input 'events' \(asset events\): metadata columns must be a list of names, not 5"),
            ({"columns": "id"}, "metadata columns must be a list of names, not 'id'"),
            ({"lance/version": "x"}, "lance/version must be the number of a version, not 'x'"),
            ({"lance/tag": 5}, "lance/tag must be the name of a tag, not 5"),
            ({"lance/as_of": "yesterday"}, "lance/as_of is not a time in its ISO form"),
            ({"lance/filter": 5}, "lance/filter must be an SQL string"),
        ],
    )
    def test_an_input_that_cannot_be_loaded_is_rejected(self, entry, said):
        reader = stored(name="reader", ins={"events": dg.AssetIn(metadata=entry)})
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
            stamped(stored(), reader)

    def test_write_mode_is_understood(self, lake):
        asset = stored(write_mode="append")
        stamped(asset)
        lake.run(asset)
        lake.run(asset)
        assert lake.rows("events") == [(1,), (1,)]

    @pytest.mark.parametrize(
        ("manager", "left"),
        [
            ({"root_uri": dg.EnvVar("LANCE_TEST_UNSET")}, {"dagster/table_name": "public.events"}),
            ({"schema": dg.EnvVar("LANCE_TEST_UNSET")}, {}),
        ],
    )
    def test_an_environment_variable_that_is_not_set_leaves_out_what_depends_on_it(self, manager, left):
        defs = stamped(stored(), **manager)
        spec = next(iter(defs.resolve_all_asset_specs()))
        assert {
            key: spec.metadata[key] for key in ("dagster/table_name", "dagster/uri") if key in spec.metadata
        } == left
        assert "lance" in spec.kinds


class TestPageOfSettings:
    """`docs/settings.md` is what the code says: run `python docs/_settings.py > docs/settings.md`."""

    def test_it_is_up_to_date(self):
        page = Path(__file__).parents[3] / "docs" / "settings.md"
        assert page.read_text() == settings.settings_page()

    def test_it_has_every_key_that_is_read(self):
        assets, inputs = settings.documented_keys()
        assert {key for key in settings.ASSET_KEYS if key.startswith("lance/")} == assets
        assert {key for key in settings.INPUT_ENTRIES if key.startswith("lance/")} == inputs

    def test_every_setting_has_a_meaning(self):
        assert not [line for line in settings.settings_page().splitlines() if line.endswith("|  |")]
