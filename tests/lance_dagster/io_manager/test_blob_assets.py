"""Assets with columns of blobs: frames hold the payloads, handles are as in the libraries."""

import dagster as dg
import lance
import pandas as pd  # noqa: TID253 -- annotations of assets
import polars as pl  # noqa: TID253 -- the same
import pyarrow as pa
import pytest

import lance_core
from lance_dagster.handlers.exact_cast import can_cast, cast_exactly

FIELD = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
ROWS = pa.table(
    [pa.array(range(4)), pa.array([b"abc", None, b"q" * 5000, b"packed" * 20_000], pa.large_binary())],
    schema=pa.schema([pa.field("id", pa.int64()), FIELD]),
)


@dg.asset
def images() -> pa.Table:
    return ROWS


def column(value):
    if isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    return value["b"].to_pylist() if isinstance(value, pa.Table) else value["b"].to_list()


@pytest.mark.parametrize("kind", [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame])
def test_an_asset_gets_the_payloads_of_another_one(lake, kind):
    seen = []

    def copy(images):
        seen.append(images)
        return pa.table(ROWS) if kind is pa.RecordBatchReader else images

    copy.__annotations__ = {"images": kind}
    lake.run(images, dg.asset(copy))
    assert column(seen[0]) == ROWS["b"].to_pylist()
    assert lake.table("copy").to_table(blob_handling="all_binary")["b"].to_pylist() == ROWS["b"].to_pylist()


@pytest.mark.parametrize("library", [lance_core, lance])
def test_a_handle_that_is_returned_is_written_with_its_payloads(lake, library):
    def copy(images):
        assert pa.types.is_struct(images.to_table().schema.field("b").type)
        return images

    copy.__annotations__ = {"images": library.LanceDataset}
    lake.run(images, dg.asset(copy))
    written = lake.table("copy").to_table(blob_handling="all_binary")
    assert written["b"].to_pylist() == ROWS["b"].to_pylist()


DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])
MERGE = {"lance/write_mode": "merge", "lance/merge_on": "id"}


@pytest.mark.variants(3)
@pytest.mark.parametrize("kind", [pa.Table, pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("metadata", [{"partition_expr": "day"}, {}, MERGE, {"lance/write_mode": "append"}])
def test_payloads_go_into_a_table_that_has_the_column(lake, kind, metadata):
    """Of whatever size: inline, packed or in files of their own."""
    payloads = [b"small", None, b"", b"m" * 70_000, b"l" * 5_000_000]

    def photos(context):
        day = context.partition_key if metadata.get("partition_expr") else "mon"
        fields = [pa.field("id", pa.int64()), pa.field("day", pa.string()), FIELD]
        first = 10 if day == "tue" else 0
        ids = [first + i for i in range(5)]
        rows = pa.table([ids, [day] * 5, pa.array(payloads, pa.large_binary())], schema=pa.schema(fields))
        marked = kind is pa.Table or "photos" not in made
        made.append("photos")
        return rows if marked else pl.from_arrow(rows) if kind is pl.DataFrame else rows.to_pandas()

    made = []
    parted = "partition_expr" in metadata
    asset = dg.asset(photos, partitions_def=DAYS if parted else None, metadata=metadata)
    for day in ("mon", "mon", "tue"):
        lake.run(asset, **({"partition": day} if parted else {}))
    rows = lance.dataset(lake.uri("photos")).to_table(blob_handling="all_binary").to_pylist()
    times = {"append": 3}.get(metadata.get("lance/write_mode"), 2 if parted else 1)
    assert [row["b"] for row in sorted(rows, key=lambda row: row["id"] // 10)] == payloads * times
    schema = lake.table("photos").schema
    assert schema.field("b").type.extension_name == "lance.blob.v2"


def test_a_column_asset_sets_payloads(lake):
    @dg.asset(metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id"})
    def thumbs(images: pa.Table) -> pa.Table:
        return pa.table({"id": images["id"], "thumb": pa.array([b"t" * 70_000, None, b"", b"x"], pa.large_binary())})

    lake.run(images)
    field = lance_core.blob_field("thumb")
    owned = field.with_metadata({**(field.metadata or {}), b"dagster.asset_key": b"thumbs"})
    lake.table("images").add_columns(owned)
    lake.run(images, thumbs, select=[thumbs])
    found = lance.dataset(lake.uri("images")).to_table(columns=["thumb", "b"], blob_handling="all_binary")
    assert found["thumb"].to_pylist() == [b"t" * 70_000, None, b"", b"x"]
    assert found["b"].to_pylist() == ROWS["b"].to_pylist()


INSIDE = {
    "struct": (pa.struct([FIELD, pa.field("n", pa.int64())]), [{"b": b"abc", "n": 1}, None, {"b": None, "n": 2}]),
    "list": (pa.list_(FIELD), [[b"abc", None, b"q" * 70_000], [], None]),
}


@pytest.mark.parametrize("kind", [pa.Table, pl.DataFrame])
@pytest.mark.parametrize("metadata", [MERGE, {"lance/write_mode": "append"}])
@pytest.mark.parametrize("shape", INSIDE)
def test_blobs_inside_of_other_types(lake, kind, metadata, shape):
    """Marked when the table is created; then bytes go into it."""
    type_, values = INSIDE[shape]

    def parts():
        rows = pa.table({"id": range(3), "s": pa.array(values, type_)})
        made.append("parts")
        return rows if len(made) == 1 or kind is pa.Table else pl.from_arrow(rows)

    made, seen = [], []
    asset = dg.asset(parts, metadata=metadata)

    @dg.asset
    def reader(parts: pa.Table) -> None:
        seen.append(parts["s"].to_pylist())

    lake.run(asset)
    lake.run(asset, reader)
    times = 1 if metadata is MERGE else 2
    rows = lance.dataset(lake.uri("parts")).to_table(blob_handling="all_binary")
    assert sorted(map(repr, rows["s"].to_pylist())) == sorted(map(repr, seen[0])) == sorted(map(repr, values * times))


def test_casts_to_blobs_without_pylance():
    """The column is a struct where no extension type is registered."""
    storage = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
    target = pa.struct([pa.field("b", storage)])
    rows = pa.array([{"b": b"x"}, {"b": None}, None], pa.struct([("b", pa.binary())]))
    assert can_cast(rows.type, target)
    cast = cast_exactly(rows, pa.field("s", target))
    assert cast.to_pylist() == [{"b": {"data": b"x", "uri": None}}, {"b": None}, None]
    assert not can_cast(pa.int64(), storage)
