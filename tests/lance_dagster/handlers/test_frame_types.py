"""The types of pandas frames, and the metadata of Arrow schemas, come back as they were stored."""

from decimal import Decimal

import dagster as dg
import pandas as pd  # noqa: TID253 -- annotations of assets
import polars as pl  # noqa: TID253 -- annotations of assets
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import DatasetNotFoundError, SchemaError

WIDE = 2**60 + 1
FRAME = pd.DataFrame(
    {
        "whole": pd.array([1, None, WIDE], "Int64"),
        "small": pd.array([1, None, 3], "UInt8"),
        "is_new": pd.array([True, None, False], "boolean"),
        "share": pd.array([0.5, None, 1.5], "Float32"),
        "plain": [1, 2, 3],
    }
)

ARROW_VALUES = {
    "whole": pa.array([1, None, WIDE]),
    "large": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "is_new": pa.array([True, None, False]),
    "text": pa.array(["a", None, "b"]),
    "parts": pa.array([[1, None], None, [WIDE]]),
    "fields": pa.array([{"n": WIDE}, None, {"n": None}]),
    "at": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "time": pa.array([1, None, 3], pa.time64("ns")),
    "group": pa.array(["a", None, "b"]).dictionary_encode(),
    "price": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(10, 2)),
}


def arrow_backed(**arrays):
    return pd.DataFrame({name: pd.array(values, pd.ArrowDtype(values.type)) for name, values in arrays.items()})


def loaded_after(lake, value, annotation, load_as, **metadata):
    """What an asset downstream gets."""
    values = []

    @dg.asset(name="rows", metadata=metadata)
    def rows() -> annotation:
        return value

    @dg.asset(name="reader")
    def reader(rows: load_as) -> None:
        values.append(rows)

    assert lake.run(rows, reader).success
    return values[0]


def test_nullable_types_of_pandas(lake):
    loaded = loaded_after(lake, FRAME, pd.DataFrame, pd.DataFrame)
    pd.testing.assert_frame_equal(loaded, FRAME)


def test_a_column_that_was_cast_has_the_default_type(lake):
    loaded_after(lake, FRAME, pd.DataFrame, pd.DataFrame)
    lance_core.dataset(lake.uri("rows")).alter_columns({"path": "small", "data_type": pa.int32()})
    values = []

    @dg.asset(name="reader")
    def reader(rows: pd.DataFrame) -> None:
        values.append(rows)

    rows = dg.AssetSpec("rows")
    assert dg.materialize([rows, reader], resources={"io_manager": lake.manager()}, instance=lake.instance).success
    assert (str(values[0]["whole"].dtype), str(values[0]["small"].dtype)) == ("Int64", "float64")


def test_arrow_backed_types_of_pandas(lake):
    frame = arrow_backed(**ARROW_VALUES)
    frame.insert(1, "masked", FRAME["whole"])
    frame.insert(4, "plain", FRAME["plain"])
    loaded = loaded_after(lake, frame, pd.DataFrame, pd.DataFrame)
    pd.testing.assert_frame_equal(loaded, frame)
    assert loaded["whole"][2] == WIDE


def test_a_frame_of_arrow_backed_types_alone(lake):
    frame = arrow_backed(**ARROW_VALUES)
    pd.testing.assert_frame_equal(loaded_after(lake, frame, pd.DataFrame, pd.DataFrame), frame)


def test_an_arrow_backed_column_that_was_cast_stays_backed_by_arrow(lake):
    loaded_after(lake, arrow_backed(n=pa.array([1, None], pa.int32())), pd.DataFrame, pd.DataFrame)
    lance_core.dataset(lake.uri("rows")).alter_columns({"path": "n", "data_type": pa.int64()})
    lance_core.dataset(lake.uri("rows")).insert({"n": [WIDE]})
    values = []

    @dg.asset(name="reader")
    def reader(rows: pd.DataFrame) -> None:
        values.append(rows)

    rows = dg.AssetSpec("rows")
    assert dg.materialize([rows, reader], resources={"io_manager": lake.manager()}, instance=lake.instance).success
    pd.testing.assert_frame_equal(values[0], arrow_backed(n=pa.array([1, None, WIDE])))


def test_values_that_pandas_cannot_represent(lake):
    """The column is named when it is loaded: an Arrow table may have it."""
    table = pa.table({"n": [1], "time": pa.array([1], pa.time64("ns"))})
    with pytest.raises(SchemaError, match=r"column 'time' of time64\[ns\] .* load it as pyarrow.Table"):
        loaded_after(lake, table, pa.Table, pd.DataFrame)


def test_no_column_becomes_the_index(lake):
    table = pa.Table.from_pandas(FRAME.assign(plain=["x", "y", "z"]).set_index("plain"))
    loaded = loaded_after(lake, table, pa.Table, pd.DataFrame)
    assert list(loaded.columns) == ["whole", "small", "is_new", "share", "plain"]
    assert isinstance(loaded.index, pd.RangeIndex)


@pytest.mark.parametrize("load_as", [pa.Table, pa.RecordBatchReader])
def test_metadata_of_an_arrow_schema(lake, load_as):
    schema = pa.schema([pa.field("g", pa.binary())], {"geo": "{}"})
    loaded = loaded_after(lake, pa.table([[b"x"]], schema=schema), pa.Table, load_as)
    assert loaded.schema.metadata == {b"geo": b"{}"}


def test_decimals_of_objects_are_objects(lake):
    frame = pd.DataFrame({"price": [Decimal("1.50"), None]})
    assert loaded_after(lake, frame, pd.DataFrame, pd.DataFrame)["price"].dtype == object


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.DataFrame({"s": pd.arrays.SparseArray([0, 0, 1])}), r"column 's' of Sparse.*frame\['s'\].sparse.to_dense"),
        (pd.DataFrame({"s": ["\ud800"]}, dtype=object), "column 's' of str"),
        (pl.DataFrame({"a\0b": [1]}), r"\['a\\x00b'\].* has a NUL"),
        (pl.DataFrame({"s": [[{"a\0b": 1}]]}), r"\['s'\].* has a NUL"),
    ],
    ids=["sparse", "surrogate", "name", "field"],
)
def test_what_arrow_cannot_hold_is_rejected(lake, tmp_path, frame, said):
    with pytest.raises(SchemaError, match=said):
        loaded_after(lake, frame, type(frame), type(frame))
    with pytest.raises(SchemaError):
        lance_core.write_dataset(frame, tmp_path / "t")


class TestCategoricals:
    def append(self, lake, *frames):
        for frame in frames:
            loaded = loaded_after(lake, frame, pd.DataFrame, pd.DataFrame, **{"lance/write_mode": "append"})
        return loaded["c"].tolist()

    @pytest.mark.parametrize(
        ("first", "second"), [([1, 2], pd.Categorical([3.0])), ([1, 2], [3]), ([True], [False]), ([0.5], [2])]
    )
    def test_of_other_values(self, lake, first, second):
        frames = (pd.DataFrame({"c": pd.Categorical(first)}), pd.DataFrame({"c": second}))
        assert self.append(lake, *frames) == [*first, *second]

    @pytest.mark.parametrize(("second", "said"), [(pd.Categorical([3.5]), "3.5"), (range(300), "cannot be cast to it")])
    def test_that_would_lose(self, lake, second, said):
        with pytest.raises(SchemaError, match=rf"dictionary<values=int64, indices=int8.* {said}"):
            self.append(lake, pd.DataFrame({"c": pd.Categorical([1])}), pd.DataFrame({"c": second}))


ENUM, GROWN = pl.Enum(["x", "y"]), pl.Enum(["x", "y", "z"])


class TestEnumsOfPolars:
    @pytest.mark.variants(4)
    @pytest.mark.parametrize(
        ("grown", "load_as"), [(GROWN, pl.DataFrame), (pl.String, pl.LazyFrame), (pl.Categorical, pl.DataFrame)]
    )
    @pytest.mark.parametrize(
        ("nest", "kind"),
        [
            (lambda value: value, lambda item: item),
            (lambda value: [value, None], pl.List),
            (lambda value: {"a": [{"b": value}]}, lambda item: pl.Struct({"a": pl.List(pl.Struct({"b": item}))})),
        ],
        ids=["value", "list", "structs"],
    )
    def test_values_beside_the_categories_of_the_table_are_kept(self, lake, nest, kind, load_as, grown):
        append = {"lance/write_mode": "append"}
        frames = [
            pl.DataFrame({"e": pl.Series([nest(value), None], dtype=kind(item)), "n": [1, 2]})
            for value, item in (("x", ENUM), ("z", grown))
        ]
        assert loaded_after(lake, frames[0], pl.DataFrame, load_as, **append).lazy().collect().equals(frames[0])
        loaded = loaded_after(lake, frames[1], pl.DataFrame, load_as, **append).lazy().collect()
        assert loaded["e"].to_list() == [nest("x"), None, nest("z"), None]
        assert loaded["e"].dtype == kind(pl.String)

    def test_rows_whose_values_are_categories_have_the_enum(self, lake):
        write = {"partition_expr": "part"}

        @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["x", "z"]), metadata=write)
        def rows(context) -> pl.DataFrame:
            return pl.DataFrame({"part": [context.partition_key]}).with_columns(
                e=pl.col("part").cast(ENUM if context.partition_key == "x" else GROWN)
            )

        types = []

        @dg.asset(partitions_def=rows.partitions_def, io_manager_key="other")
        def reader(rows: pl.DataFrame) -> None:
            types.append((rows["e"].to_list(), rows["e"].dtype))

        for key in ("x", "z"):
            lake.run(rows, reader, partition=key, resources={"other": dg.mem_io_manager})
        assert types == [(["x"], ENUM), (["z"], pl.String)]

    def test_a_function_that_computes_a_column_gets_them(self, tmp_path):
        def lengths(frame: pl.DataFrame) -> pl.Series:
            return frame["e"].cast(pl.String).str.len_chars()

        for value, kind in (("x", ENUM), ("zz", pl.Enum(["zz"]))):
            frame = pl.DataFrame({"e": pl.Series([value], dtype=kind)})
            table = lance_core.write_dataset(frame, tmp_path / "t", mode="append", enable_stable_row_ids=True)
        columns = pa.schema([("size", pa.int32())])
        table.compute_columns(lengths, inputs=["e"], columns=columns, name="size", code_version="1")
        assert table.to_table()["size"].to_pylist() == [1, 2]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("metadata", [{}, {"lance/write_mode": "merge", "lance/merge_on": "a"}])
def test_objects_of_polars_are_rejected(lake, lazy, metadata):
    """Polars would give Arrow their addresses in memory."""
    frame = pl.DataFrame({"a": [1], "o": pl.Series([{"two": 2}], dtype=pl.Object)})

    @dg.asset(metadata=metadata)
    def rows() -> pl.LazyFrame if lazy else pl.DataFrame:
        return frame.lazy() if lazy else frame

    with pytest.raises(SchemaError, match="are Python objects of polars"):
        lake.run(rows)
    with pytest.raises(DatasetNotFoundError):
        lake.table("rows")
