"""Assets with columns of blobs: frames hold the payloads, handles are as in the libraries."""

import dagster as dg
import lance
import pandas as pd  # noqa: TID253 -- annotations of assets
import polars as pl  # noqa: TID253 -- the same
import pyarrow as pa
import pytest

import lance_core

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
