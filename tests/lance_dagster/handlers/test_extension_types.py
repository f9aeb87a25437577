"""Extension types below the top level in assets: partitions with and without rows, merges, each kind of frame."""

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 -- annotations of assets

pd, pl = (pytest.importorskip(name, reason="an extra") for name in ("pandas", "polars"))

UUIDS = pa.array([bytes([n] * 16) for n in range(3)], pa.uuid())
ROWS = pa.table({"part": ["a"] * 3, "x": pa.StructArray.from_arrays([UUIDS, pa.array([1, 2, 3])], ["value", "n"])})
PARTS = dg.StaticPartitionsDefinition(["a", "b"])
FRAMES = (pa.Table, pa.RecordBatch, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame)


def values(mode="partition"):
    metadata = {"partition_expr": "part"}
    if mode == "merge":
        metadata = {"lance/write_mode": "merge", "lance/merge_on": "part", "partition_expr": "part"}

    @dg.asset(name="values", partitions_def=PARTS, metadata=metadata)
    def made(context):
        if mode == "merge":
            return ROWS.slice(0, 1 if context.partition_key == "a" else 0)
        return ROWS.slice(0, 3 if context.partition_key == "a" else 0)

    return made


def reader(kind, seen):
    def sizes(value):
        if isinstance(value, pl.LazyFrame):
            return value.collect().height
        return value.read_all().num_rows if isinstance(value, pa.RecordBatchReader) else len(value)

    @dg.asset(partitions_def=PARTS, ins={"values": dg.AssetIn(dagster_type=kind)}, io_manager_key="other")
    def reads(values):
        seen.append(sizes(values))

    return reads


@pytest.mark.parametrize("mode", ["partition", "merge"])
def test_partitions_with_and_without_rows_are_written(lake, mode):
    asset = values(mode)
    for key in ("b", "a", "b"):  # first without a table, at last beside the rows of the other partition
        lake.run(asset, partition=key)
    assert lake.table("values").count_rows() == (3 if mode == "partition" else 1)
    assert lake.table("values").schema.field("x").type.field("value").type == pa.uuid()


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
def test_an_empty_partition_is_loaded_as_each_kind_of_frame(lake, kind):
    seen = []
    assets = [values(), reader(kind, seen)]
    for key in ("a", "b"):
        lake.run(*assets, partition=key, resources={"other": dg.mem_io_manager})
    assert seen == [3, 0]


def test_an_empty_partition_is_loaded_as_a_frame_of_spark(lake, spark):
    seen = []

    class Session(dg.ConfigurableResource):
        @property
        def spark_session(self):
            return spark

    @dg.asset(partitions_def=PARTS, io_manager_key="other")
    def reads(values: DataFrame):
        seen.append(values.count())

    for key in ("a", "b"):
        lake.run(values(), reads, partition=key, resources={"other": dg.mem_io_manager}, spark=Session())
    assert seen == [3, 0]


class Celsius(pa.ExtensionType):
    """A type that is not registered: tables give its storage."""

    def __init__(self):
        super().__init__(pa.float64(), "test.celsius")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


@pytest.mark.parametrize(
    "metadata", [{}, {"lance/write_mode": "append"}, {"lance/write_mode": "merge", "lance/merge_on": "n"}]
)
def test_an_extension_type_that_is_not_registered_is_written_again(lake, metadata):
    @dg.asset(metadata=metadata)
    def values():
        return pa.table({"n": [1, 2], "x": pa.ExtensionArray.from_storage(Celsius(), pa.array([1.5, None]))})

    lake.run(values)
    lake.run(values)
    rows = lake.table("values").to_table()
    assert rows["x"].to_pylist() == [1.5, None] * (rows.num_rows // 2)
    assert rows.schema.field("x").metadata[b"ARROW:extension:name"] == b"test.celsius"
