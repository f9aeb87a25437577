"""Settings in metadata: applied wherever they may stand, and rejected by name where nothing would read them."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy
from lance_dagster.tables.event_keys import COMMIT_ENTRIES, SETTABLE_ENTRIES, TOP_ENTRIES
from tests.lance_dagster.lake import errors

ROW = pa.table({"n": [1]})


@dg.op
def one_row():
    return ROW


def by_output(key):
    @dg.asset
    def rows():
        return dg.Output(ROW, metadata={key: "append"})

    return rows


def by_context(key):
    @dg.asset
    def rows(context):
        context.add_output_metadata({key: "append"})
        return ROW

    return rows


def by_asset_context(key):
    @dg.asset
    def rows(context: dg.AssetExecutionContext):
        context.add_asset_metadata({key: "append"})
        return ROW

    return rows


def by_result(key):
    @dg.asset
    def rows() -> dg.MaterializeResult:
        return dg.MaterializeResult(value=ROW, metadata={key: "append"})

    return rows


def by_op_of_a_graph(key):
    @dg.op(out=dg.Out(metadata={key: "append"}))
    def rows_of_op():
        return ROW

    @dg.graph_asset(metadata={"owner": "sales"})
    def rows():
        return rows_of_op()

    return rows


def by_graph(key):
    @dg.graph_asset(metadata={key: "append"})
    def rows():
        return one_row()

    return rows


def by_multi_asset(key):
    @dg.multi_asset(outs={"rows": dg.AssetOut()})
    def both():
        yield dg.Output(ROW, "rows", metadata={key: "append"})

    return both


EVERYWHERE = [by_output, by_context, by_asset_context, by_result, by_op_of_a_graph, by_graph, by_multi_asset]


@pytest.mark.variants(4)
@pytest.mark.parametrize("key", ["write_mode", "lance/write_mode"])
@pytest.mark.parametrize("said", EVERYWHERE)
def test_a_setting_is_followed(lake, said, key):
    for _ in range(3):
        lake.run(said(key))
    assert lake.rows("rows") == [(1,)] * 3


@pytest.mark.parametrize("said", EVERYWHERE)
def test_a_misspelt_setting_is_rejected_naming_the_nearest(lake, said):
    result = lake.run(said("lance/write_moed"), fails=True)
    assert "asset rows: metadata 'lance/write_moed' is not accepted" in errors(result)
    assert "is 'lance/write_mode' meant?" in errors(result)
    with pytest.raises(ValueError, match="not found"):
        lake.table("rows")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"mode": "append"}, "metadata 'mode' is another IO manager's, and LanceIOManager does not read it"),
        ({"overwrite_schema": True}, "use lance/schema_mode overwrite"),
        ({"partition_expr": "n"}, 'move it to @asset(metadata={"partition_expr": ...})'),
        ({"lance/maintenance": {"dry_run": True}}, "is read from the definition of the asset"),
        ({"write_mode": "sometimes"}, "metadata lance/write_mode must be one of overwrite, append"),
        ({"lance/branch": "dev"}, "metadata 'lance/branch' is not accepted"),
    ],
)
def test_an_output_cannot_say_at_run_time(lake, entry, message):
    @dg.asset
    def rows():
        return dg.Output(ROW, metadata=entry)

    assert message in errors(lake.run(rows, fails=True))


def test_metadata_of_the_users_own_stays(lake):
    entries = {"mode": "full", "schema": "v2", "table": "x", "lance/rows_written": 7, "rows": 3}

    @dg.asset
    def rows():
        return dg.Output(ROW, metadata=entries)

    (event,) = lake.run(rows).asset_materializations_for_node("rows")
    assert {key: event.metadata[key].value for key in entries} == entries


def test_an_output_may_say_what_the_io_manager_says_of_a_write(lake):
    @dg.asset
    def rows():
        return ROW

    (event,) = lake.run(rows).asset_materializations_for_node("rows")
    named = {f"lance/{name}" for name in event.metadata["lance/commit"].data}
    given = {key for key in event.metadata if key.startswith("lance/") and key not in ("lance/commit", "lance/version")}
    assert given | named <= SETTABLE_ENTRIES
    assert given <= set(TOP_ENTRIES)


def test_the_table_of_entries_has_those_of_a_write_to_a_branch(lake):
    @dg.asset
    def rows():
        return ROW

    lake.run(rows)
    result = lake.run(rows, tags={"lance/branch": "mine"}, branching=BranchPolicy.from_tag())
    (event,) = result.asset_materializations_for_node("rows")
    names = {key.rpartition("/")[2] for key in (*COMMIT_ENTRIES, *TOP_ENTRIES)}
    assert {"base_version", "open_branches"} <= set(event.metadata["lance/commit"].data) <= names
    assert not {"lance/base_version", "lance/open_branches"} & SETTABLE_ENTRIES


def test_an_output_may_say_its_schema(lake):
    @dg.asset
    def rows():
        return dg.Output(pa.table({"n": pa.nulls(1)}), metadata={"lance/schema": {"n": "int16"}})

    lake.run(rows)
    assert lake.table("rows").schema.field("n").type == pa.int16()


class TestOps:
    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ({"lance/nonsense": 1}, "metadata 'lance/nonsense' is not accepted; known here: lance/cluster"),
            ({"lance/write_mode": "append"}, "metadata 'lance/write_mode' is for assets, and this output is none"),
            ({"lance/comit_message": "x"}, "is 'lance/commit_message' meant?"),
        ],
    )
    @pytest.mark.parametrize("at_run_time", [False, True])
    def test_an_output_of_an_op_says_what_is_not_followed(self, lake, entry, message, at_run_time):
        @dg.op(out=dg.Out(metadata={} if at_run_time else entry))
        def give():
            return dg.Output(ROW, metadata=entry if at_run_time else {})

        assert message in self.failure(lake, give)

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ({"lance/nonsense": 1}, "input 'x' (no asset): metadata 'lance/nonsense' is not accepted"),
            ({"lance/filtre": "n > 1"}, "is 'lance/filter' meant?"),
            ({"lance/version": 1}, "the output of an op has only one version"),
            (
                {"lance/changes": "since_last_run"},
                "lance/changes is for inputs that are assets, not for the output of an",
            ),
            ({"lance/missing": "empty"}, "lance/missing is for inputs that are assets, not for the output of an op"),
            ({"columns": ["m"]}, "columns ['m'] are not among the table's columns ['n']"),
        ],
    )
    def test_an_input_of_an_op_says_what_is_not_followed(self, lake, entry, message):
        @dg.op(ins={"x": dg.In(metadata=entry)})
        def take(x: pa.Table):
            return x

        @dg.graph_asset
        def rows():
            return take(one_row())

        assert message in errors(lake.run(rows, fails=True))

    def test_an_input_of_an_op_takes_columns_and_a_filter(self, lake):
        @dg.op
        def numbers():
            return pa.table({"n": range(5), "m": range(5)})

        @dg.op(ins={"x": dg.In(metadata={"columns": ["n"], "lance/filter": "m > 2"})})
        def take(x: pa.Table):
            return x

        @dg.graph_asset
        def rows():
            return take(numbers())

        lake.run(rows)
        assert lake.rows("rows") == [(3,), (4,)]

    @staticmethod
    def failure(lake, op):
        @dg.job(resource_defs={"io_manager": lake.manager()})
        def alone():
            op()

        return errors(alone.execute_in_process(instance=lake.instance, raise_on_error=False))


def test_entries_of_a_retry_on_a_branch_stay_at_the_top(lake):
    """However many apply: the pages name them without `lance/commit`."""
    days = dg.StaticPartitionsDefinition(["mon", "tue"])
    metadata = {"partition_expr": "day", "lance/write_mode": "append"}

    @dg.asset(partitions_def=days, metadata=metadata, retry_policy=dg.RetryPolicy(max_retries=1))
    def events(context):
        yield dg.Output(pa.table({"day": [context.partition_key], "n": [1]}), metadata={"source": "api"})
        if context.retry_number == 0:
            raise RuntimeError("the first attempt fails after its write")

    lake.run(events, partition="mon")
    lake.run(events, partition="mon", tags={"lance/branch": "trial"}, branching=BranchPolicy.from_tag("lance/branch"))
    (record,) = lake.instance.fetch_materializations(events.key, limit=1).records
    entries = record.asset_materialization.metadata
    assert entries["lance/published"].value is False
    assert {"lance/replaced_attempt", "lance/branch", "lance/table_log", "dagster/partition_row_count"} <= set(entries)
