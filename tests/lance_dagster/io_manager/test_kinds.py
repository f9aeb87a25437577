"""Which types outputs and inputs can have, and what an input is when there is no table yet."""

import datetime as dt
from typing import Annotated, Any, ClassVar, Optional

import dagster as dg
import duckdb  # noqa: TID253 -- the same
import lance
import pandas as pd  # noqa: TID253 -- annotations of assets
import polars as pl  # noqa: TID253 -- the same
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import lance_core
from lance_core.errors import UnsupportedError
from lance_dagster import LanceIOManager
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.pyarrow import PyArrowHandler, read_table
from tests.lance_dagster.lake import errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
ROWS = pa.table({"n": [1, 2], "s": ["a", "b"]})


def giving(value, **arguments):
    @dg.asset(name="numbers", **arguments)
    def numbers() -> Any:
        return value() if callable(value) else value

    return numbers


def taking(annotation, seen, **arguments):
    def reader(numbers):
        seen.append(numbers)

    reader.__annotations__ = {"numbers": annotation, "return": None}
    return dg.asset(**arguments)(reader)


def as_rows(value):
    if isinstance(value, pd.DataFrame):
        value = pa.Table.from_pandas(value, preserve_index=False)
    if isinstance(value, pl.LazyFrame):
        value = value.collect()
    if isinstance(value, pl.DataFrame):
        value = value.to_arrow()
    if isinstance(value, duckdb.DuckDBPyRelation):
        value = value.to_arrow_table()
    if isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    if not isinstance(value, pa.Table):
        value = value.to_table()
    return value.to_pydict()


@pytest.mark.parametrize(
    "value",
    [
        lambda: pads.dataset(ROWS),
        lambda: duckdb.from_arrow(ROWS),
        lambda: lance_core.write_dataset(ROWS, "memory://kinds", mode="overwrite"),
        lambda: pl.from_arrow(ROWS),
    ],
)
def test_values(lake, value):
    lake.run(giving(value))
    assert lake.table("numbers").to_table().to_pydict() == ROWS.to_pydict()


def deep():
    value = 7
    for _ in range(65):
        value = [value]
    return {"a": [value]}


@pytest.mark.parametrize(
    "value",
    [
        lambda: pl.DataFrame(deep()),
        lambda: pl.DataFrame(deep()).lazy(),
        lambda: pd.DataFrame(deep()),
        lambda: pa.table(deep()),
        lambda: duckdb.sql(f"select {'[' * 65}1{']' * 65} as a"),
    ],
)
def test_types_that_are_nested_too_deep_are_rejected(lake, value):
    with pytest.raises(UnsupportedError, match=r"asset numbers, table .*numbers"):
        lake.run(giving(value))


@pytest.mark.parametrize(
    "annotation",
    [
        pads.Dataset,
        duckdb.DuckDBPyRelation,
        lance_core.LanceDataset,
        lance.LanceDataset,
        pd.DataFrame | None,
        Optional[pl.DataFrame],  # noqa: UP045 -- the older spelling
        pl.LazyFrame,
    ],
)
def test_inputs(lake, annotation):
    seen = []
    lake.run(giving(ROWS), taking(annotation, seen))
    assert as_rows(seen[0]) == ROWS.to_pydict()


def test_a_handle_is_on_the_pinned_version(lake):
    lake.run(giving(ROWS))
    lake.run(giving(ROWS.slice(1)))
    seen = []
    reader = taking(lance_core.LanceDataset, seen, ins={"numbers": dg.AssetIn(metadata={"lance/version": 1})})
    lake.run(giving(ROWS), reader, select=[reader])
    assert (seen[0].version, seen[0].count_rows()) == (1, 2)


@pytest.mark.parametrize("entry", [{"columns": ["n"]}, {"lance/filter": "n > 1"}])
def test_a_handle_on_a_selection_is_rejected(lake, entry):
    reader = taking(lance_core.LanceDataset, [], ins={"numbers": dg.AssetIn(metadata=entry)})
    assert "is a LanceDataset, the whole table" in errors(lake.run(giving(ROWS), reader, fails=True))


def daily(context):
    return pa.table(
        {"day": [dt.date.fromisoformat(key) for key in context.partition_keys], "n": [1] * len(context.partition_keys)}
    )


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, name="numbers")
def of_days(context) -> pa.Table:
    return daily(context)


class TestByPartition:
    def test_one_value_per_key(self, lake):
        seen = []
        lake.run(of_days, span=("2024-01-01", "2024-01-03"))
        reader = taking(dict[str, pd.DataFrame], seen, partitions_def=DAYS)
        lake.run(of_days, reader, select=[reader], span=("2024-01-02", "2024-01-04"))
        assert {key: len(value) for key, value in seen[0].items()} == {
            "2024-01-02": 1,
            "2024-01-03": 1,
            "2024-01-04": 0,
        }
        assert seen[0]["2024-01-02"]["day"].tolist() == [dt.date(2024, 1, 2)]

    def test_a_single_key_too(self, lake):
        seen = []
        lake.run(of_days, partition="2024-01-01")
        reader = taking(dict[str, pa.Table], seen, partitions_def=DAYS)
        lake.run(of_days, reader, select=[reader], partition="2024-01-01")
        assert {key: value.num_rows for key, value in seen[0].items()} == {"2024-01-01": 1}

    def test_an_asset_without_partitions_is_rejected(self, lake):
        result = lake.run(giving(ROWS), taking(dict[str, pa.Table], []), fails=True)
        assert "the asset has no partitions" in errors(result)


@pytest.mark.parametrize("annotation", [list[pa.Table], dict[int, pa.Table], dict[str, dict[str, pa.Table]], set])
def test_other_types_are_rejected_by_name(lake, annotation):
    said = errors(lake.run(giving(ROWS), taking(annotation, []), fails=True))
    by_partition = annotation == list[pa.Table]  # which partitioned assets can be loaded as
    assert (
        "one value per partition" if by_partition else "which LanceIOManager cannot load; it can load pyspark DataFrame"
    ) in said
    assert str(getattr(annotation, "__name__", annotation)).lower().partition("[")[0] in said.lower()


def test_what_is_annotated_is_unwrapped():
    from lance_dagster.handlers import find_handler_for_load

    assert find_handler_for_load(Annotated[pa.Table, "x"], "pandas", label="x").load_as is pa.Table


class TestWithoutATable:
    """The first run of an asset that reads what it wrote before."""

    @pytest.mark.variants(3)
    @pytest.mark.parametrize(
        ("kind", "known"),
        [
            *((kind, None) for kind in (pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.Table, pads.Dataset)),
            (pa.Table, pa.schema({"day": pa.date32(), "n": pa.int64()})),
            (pd.DataFrame, {"day": "date32", "n": "int64"}),
        ],
    )
    def test_an_asset_that_reads_itself(self, lake, kind, known):
        seen = []
        metadata = {"partition_expr": "day"} | ({} if known is None else {"lance/schema": known})
        before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

        def numbers(context, numbers):
            seen.append(numbers)
            return daily(context)

        numbers.__annotations__ = {"numbers": kind, "return": Any}
        asset = dg.asset(partitions_def=DAYS, metadata=metadata, ins={"numbers": dg.AssetIn(partition_mapping=before)})(
            numbers
        )
        lake.run(asset, partition="2024-01-02")
        lake.run(asset, partition="2024-01-01")
        lake.run(asset, partition="2024-01-03")
        assert isinstance(seen[0], kind)
        first = as_rows(seen[0])
        assert first == ({} if known is None else {"day": [], "n": []})
        assert as_rows(seen[1]) == {"day": [], "n": []}
        assert as_rows(seen[2])["n"] == [1]

    def test_an_input_of_no_keys(self, lake):
        seen = []
        before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
        reader = taking(pa.Table, seen, partitions_def=DAYS, ins={"numbers": dg.AssetIn(partition_mapping=before)})
        lake.run(of_days, reader, select=[reader], partition="2024-01-01")
        assert seen[0].to_pydict() == {}

    def test_others_say_what_to_do(self, lake):
        reader = taking(pa.Table, [])
        assert "materialize it first" in errors(lake.run(giving(ROWS), reader, select=[reader], fails=True))


class Rows(list):
    """A type of a user's own."""


class RowsHandler(LanceTypeHandler):
    supported_types: ClassVar = (Rows,)

    def arrow_schema(self, value):
        return pa.Table.from_pylist(value).schema

    def write(self, value, request):
        return PyArrowHandler().write(pa.Table.from_pylist(value), request)

    def load(self, request):
        return Rows(read_table(request).to_pylist())


class WithRows(LanceIOManager):
    def type_handlers(self):
        return [RowsHandler()]


def test_handlers_of_a_users_own(lake):
    seen = []
    resources = {"io_manager": WithRows(root_uri=lake.root)}
    lake.run(giving(lambda: Rows([{"n": 3}])), taking(Rows, seen), resources=resources)
    assert seen == [Rows([{"n": 3}])]
    said = errors(lake.run(giving(3), resources=resources, fails=True))
    assert "it can store tests.lance_dagster.io_manager.test_kinds.Rows, pyspark" in said


def columns(**types):
    """A table schema as Dagster types show it."""
    return dg.MetadataValue.table_schema(dg.TableSchema([dg.TableColumn(name, kind) for name, kind in types.items()]))


def annotated_type(python_type, metadata):
    """A Dagster type such as dagster-pandera and dagster-polars make of models."""
    return dg.DagsterType(
        lambda _, value: isinstance(value, python_type), name="Numbers", typing_type=python_type, metadata=metadata
    )


class TestNulls:
    """A column of which only nulls are known binds nobody."""

    def asset(self, value, **metadata):
        return giving(value, metadata=metadata)

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_the_first_typed_write_gives_it_its_type(self, lake, mode):
        lake.run(self.asset(pa.table({"n": [1], "s": pa.nulls(1)})), write_mode=mode)
        lake.run(self.asset(pa.table({"n": [2], "s": ["b"]})), write_mode=mode)
        table = lake.table("numbers").to_table()
        assert table.schema.field("s").type == pa.string()
        assert table.to_pydict() == ({"n": [1, 2], "s": [None, "b"]} if mode == "append" else {"n": [2], "s": ["b"]})
        assert lance.dataset(lake.uri("numbers")).to_table() == table

    def test_the_metadata_gives_its_type(self, lake):
        lake.run(self.asset(pd.DataFrame({"n": [1], "s": [None]}), **{"lance/schema": {"n": "int64", "s": "string"}}))
        assert lake.table("numbers").schema.field("s").type == pa.string()

    @pytest.mark.parametrize("frame", [pd.DataFrame({"n": [], "s": []}), pd.DataFrame()])
    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_a_frame_without_rows_fits_the_table(self, lake, frame, mode):
        lake.run(self.asset(ROWS))
        lake.run(self.asset(frame), write_mode=mode)
        table = lake.table("numbers")
        assert table.schema == ROWS.schema
        assert table.count_rows() == (2 if mode == "append" else 0)

    def test_a_frame_without_rows_makes_the_table_of_the_metadata(self, lake):
        known = {"lance/schema": {"n": "int64", "s": "string"}}
        lake.run(self.asset(pd.DataFrame({"n": [], "s": []}), **known))
        assert lake.table("numbers").schema == ROWS.schema
        lake.run(self.asset(ROWS), write_mode="append")
        assert lake.table("numbers").to_table() == ROWS

    ANNOTATIONS: ClassVar = {
        "own": {"lance/schema": {"n": "int64", "s": "string"}},
        "pandera": {"schema": columns(n="int64", s="string", o="object")},
        "patito": {"dagster/column_schema": columns(n="Int64", s="String", o="Enum(categories=['a'])")},
    }

    @pytest.mark.parametrize("annotation", ANNOTATIONS)
    @pytest.mark.parametrize(
        "frame",
        [
            pd.DataFrame({"n": [None], "s": [None]}),
            pd.DataFrame({"n": [], "s": []}),
            pl.DataFrame({"n": [None], "s": [None]}),
            pl.DataFrame({"n": [], "s": []}),
            pa.table({"n": pa.nulls(2), "s": pa.nulls(2)}),
            pa.table({"n": pa.nulls(0), "s": pa.nulls(0)}),
        ],
        ids=lambda frame: f"{type(frame).__module__}-{len(frame)}",
    )
    def test_the_annotation_gives_types(self, lake, frame, annotation):
        kind = annotated_type(type(frame), self.ANNOTATIONS[annotation])

        @dg.asset(dagster_type=kind)
        def numbers():
            return frame

        lake.run(numbers)
        table = lake.table("numbers")
        assert table.schema == ROWS.schema
        assert table.count_rows() == len(frame)

    def test_a_type_that_an_annotation_does_not_name_stays_open(self, lake):
        kind = annotated_type(pd.DataFrame, self.ANNOTATIONS["pandera"])

        @dg.asset(dagster_type=kind)
        def numbers():
            return pd.DataFrame()

        lake.run(numbers)
        assert lake.table("numbers").schema == pa.schema({"n": pa.int64(), "s": pa.string(), "o": pa.null()})
        lake.run(self.asset(pa.table({"n": [1], "s": ["a"], "o": [1.5]})), write_mode="append")
        assert lake.table("numbers").schema.field("o").type == pa.float64()

    def test_the_annotation_of_an_input_without_a_table_gives_its_columns(self, lake):
        seen = []
        kind = annotated_type(pa.Table, {"lance/schema": {"day": "date32", "n": "int64"}})
        before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

        @dg.asset(
            partitions_def=DAYS,
            metadata={"partition_expr": "day"},
            ins={"numbers": dg.AssetIn(partition_mapping=before, dagster_type=kind)},
        )
        def numbers(context, numbers):
            seen.append(numbers)
            return daily(context)

        lake.run(numbers, partition="2024-01-02")
        assert [table.schema for table in seen] == [pa.schema({"day": pa.date32(), "n": pa.int64()})]


def test_outputs_of_ops_lie_beside_the_tables(lake):
    seen = []

    @dg.op(out={"rows": dg.Out(pa.Table), "other": dg.Out(pd.DataFrame)})
    def make(context):
        yield dg.Output(ROWS, "rows")
        yield dg.Output(ROWS.to_pandas(), "other")

    @dg.op
    def split(rows: pa.Table) -> pl.DataFrame:
        return pl.from_arrow(rows)

    @dg.op
    def begin() -> pa.Table:
        return ROWS

    @dg.graph_asset
    def numbers():
        return split(begin())

    @dg.op
    def take(rows: pd.DataFrame, other: pa.Table) -> None:
        seen.extend([rows, other])

    @dg.job(resource_defs={"io_manager": lake.manager()})
    def plain():
        take(*make())

    result = plain.execute_in_process(instance=lake.instance)
    assert [as_rows(value) for value in seen] == [ROWS.to_pydict()] * 2
    assert lance_core.dataset(f"{lake.root}/_ops/{result.run_id}/make/rows.lance").count_rows() == 2
    lake.run(numbers)
    assert lake.table("numbers").count_rows() == 2


@pytest.mark.parametrize("value", [5, None, {"a": [1, "x"]}, {"frame": pd.DataFrame({"a": [1]})}])
def test_outputs_of_ops_that_are_no_frames_are_pickled(lake, value):
    seen = []

    @dg.op
    def make():
        return value

    @dg.op
    def take(given) -> None:
        seen.append(given)

    @dg.job(resource_defs={"io_manager": lake.manager()})
    def plain():
        take(make())

    plain.execute_in_process(instance=lake.instance)
    assert repr(seen) == repr([value])


def test_an_output_of_an_op_that_cannot_be_kept_says_so(lake):
    @dg.op
    def make():
        return lambda: None

    @dg.job(resource_defs={"io_manager": lake.manager()})
    def plain():
        make()

    said = errors(plain.execute_in_process(instance=lake.instance, raise_on_error=False))
    assert (
        "output 'result' of 'make' is a builtins.function, which is no frame that LanceIOManager stores and cannot"
        in said
    )
