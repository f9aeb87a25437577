"""Columns of a column asset that another asset passes on to a table of its own, which owns them there."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy
from tests.lance_dagster.lake import errors
from tests.support.column_assets import embeddings_asset, ids_of, images_asset, vector

DAY = "2024-01-01"
OWNER = b"dagster.asset_key"


def passing_on(kind=pa.Table, extra=None, **metadata):
    @dg.asset(metadata=metadata)
    def copied(embeddings: kind) -> kind:
        return embeddings if extra is None else extra(embeddings)

    return copied


def assert_passed_on(lake, branch=None):
    table = lake.table("copied").checkout_version((branch, None))
    assert all(OWNER not in (field.metadata or {}) for field in table.schema)
    assert {row["id"]: row["vector"] for row in table.to_table().to_pylist()} == {i: vector(i) for i in ids_of(DAY)}


@pytest.mark.parametrize("kind", ["pyarrow.Table", "pandas.DataFrame", "polars.DataFrame", "spark"])
def test_a_column_is_passed_on_in_each_run(lake, kind, request):
    if kind == "spark":
        request.getfixturevalue("spark")
    module, _, name = ("pyspark.sql.DataFrame" if kind == "spark" else kind).rpartition(".")
    images, embeddings = images_asset(), embeddings_asset()
    copied = passing_on(getattr(pytest.importorskip(module), name))
    lake.run(images, embeddings, partition=DAY)
    for _ in range(2):
        lake.run(images, embeddings, copied, select=[copied])
        assert_passed_on(lake)


def test_a_column_is_passed_on_to_a_new_column(lake):
    images, embeddings = images_asset(), embeddings_asset()
    copied = passing_on(**{"lance/schema_mode": "add_columns"})
    lake.run(images, embeddings, partition=DAY)
    lance_core.write_dataset({"id": pa.array([], pa.int64())}, lake.uri("copied"))
    for _ in range(2):
        lake.run(images, embeddings, copied, select=[copied])
        assert_passed_on(lake)


def test_a_column_is_passed_on_to_a_branch(lake):
    """Main is made without rows for the branch to fork from, and again where the asset has other columns then."""
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition=DAY)
    for branch, extra in (("a", lambda rows: rows.select(["id"]).slice(0, 0)), ("b", None), ("b", None)):
        copied, on = passing_on(extra=extra), {"lance/branch": branch}
        lake.run(images, embeddings, copied, select=[copied], tags=on, branching=BranchPolicy.from_tag())
    assert lake.table("copied").schema.names == ["id", "vector"]
    assert all(OWNER not in (field.metadata or {}) for field in lake.table("copied").schema)
    assert_passed_on(lake, "b")


def test_an_owner_that_came_with_copied_rows_does_not_count(lake):
    """Of rows that were copied without the plugin, and of tables of earlier releases."""
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition=DAY)
    rows = lake.table("images").to_table(["id", "vector"])
    assert OWNER in rows.schema.field("vector").metadata
    lance_core.write_dataset(rows, lake.uri("copied"))
    copied = passing_on()
    for _ in range(2):
        lake.run(images, embeddings, copied, select=[copied])
    lengths = dg.asset(
        name="lengths", metadata={"lance/write_mode": "columns", "lance/table": "copied", "lance/key": "id"}
    )(lambda: rows)
    assert "belongs to the asset that writes the rows" in errors(lake.run(lengths, fails=True))


def test_the_owner_stands_where_the_commit_that_added_the_column_was_cleaned_up(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition=DAY)
    lake.run(images, partition="2024-01-02")
    table = lake.table("images")
    table.cleanup_old_versions(retain_versions=1)
    assert [one["version"] for one in table.versions()] == [table.version]

    @dg.asset(name="images", partitions_def=images.partitions_def, metadata={"partition_expr": "day"})
    def grabbing() -> pa.Table:
        return table.to_table()

    assert "belongs to asset embeddings" in errors(lake.run(grabbing, partition=DAY, fails=True))
