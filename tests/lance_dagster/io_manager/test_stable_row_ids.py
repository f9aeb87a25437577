"""Tables whose rows keep their ids when they are updated."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy
from tests.lance_dagster.lake import errors

DAYS = dg.StaticPartitionsDefinition(["a", "b"])
STABLE = {"lance/stable_row_ids": True}


def table_asset(kind=pa.Table, partitions=None, **metadata):
    @dg.asset(name="t", partitions_def=partitions, metadata={"partition_expr": "day", **metadata})
    def t(context) -> kind:
        day = context.partition_key if partitions else "a"
        found = pa.table({"id": [1, 2], "day": [day] * 2})
        if kind is pa.Table:
            return found
        return kind(found) if "polars" in kind.__module__ else found.to_pandas()

    return t


@pytest.mark.parametrize("kind", ["pyarrow.Table", "pandas.DataFrame", "polars.DataFrame"])
@pytest.mark.parametrize("mode", ["overwrite", "append", "merge", "error", "create_only"])
def test_a_new_table_has_them(lake, kind, mode):
    module, name = kind.split(".")
    kind = getattr(pytest.importorskip(module), name)
    more = {"lance/merge_on": "id"} if mode == "merge" else {}
    asset = table_asset(kind, **{"lance/write_mode": mode, **more})
    lake.run(asset)
    assert lake.table("t").has_stable_row_ids
    if mode in ("overwrite", "append", "merge"):
        lake.run(asset)
        assert lake.table("t").has_stable_row_ids


def test_partitions_that_are_replaced_keep_them(lake):
    asset = table_asset(partitions=DAYS)
    for day in ("a", "b", "a"):
        lake.run(asset, partition=day)
    assert lake.table("t").has_stable_row_ids
    assert lake.table("t").count_rows() == 4


def test_a_table_that_a_branch_run_creates_has_them(lake):
    branching = {"branching": BranchPolicy.from_tag(), "tags": {"lance/branch": "b"}}
    lake.run(table_asset(), **branching)
    assert lake.table("t").has_stable_row_ids
    assert lake.table("t").checkout_version(("b", None)).has_stable_row_ids


@pytest.mark.parametrize("metadata", [{}, {"lance/stable_row_ids": False}])
def test_a_table_without_them_stays_so(lake, metadata):
    lake.run(table_asset(**metadata), stable_row_ids=bool(metadata))
    assert not lake.table("t").has_stable_row_ids
    lake.run(table_asset())
    assert not lake.table("t").has_stable_row_ids
    lance_core.LanceDataset.drop(lake.uri("t"))
    lake.run(table_asset())
    assert lake.table("t").has_stable_row_ids


def test_an_asset_whose_table_lacks_them_is_rejected(lake):
    lake.run(table_asset(), stable_row_ids=False)
    said = errors(lake.run(table_asset(**STABLE), fails=True))
    assert "was created without stable row ids" in said
    assert lake.table("t").version == 1
