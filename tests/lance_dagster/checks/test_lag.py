"""How far assets with incremental inputs are behind them."""

import datetime as dt
import shutil
import time

import dagster as dg
import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_lance_lag_checks
from tests.lance_dagster.lake import errors
from tests.lance_dagster.loading.copies import DAYS, ONE, SINCE, TWO, Copy, change, rows, source


def check(lake, copy, max_age=dt.timedelta(0), **options):
    (lag,) = build_lance_lag_checks(["copy"], max_age)
    result = lake.run(*copy.assets, lag, select=dg.AssetSelection.checks(lag), **options)
    (found,) = result.get_asset_check_evaluations()
    return found


def unread(found):
    return found.passed, found.metadata["lance/rows_unread"].value


@pytest.fixture
def table(lake):
    return lance.write_dataset(rows(1, 2, 3), lake.uri("source"), enable_stable_row_ids=True)


def test_it_counts_the_rows_that_the_next_run_reads(lake, table):
    copy = Copy()
    found = check(lake, copy)
    assert (found.passed, found.description) == (True, "there is no table yet: the asset was never materialized")
    copy.run(lake)
    assert unread(check(lake, copy)) == (True, 0)
    change(lake)
    found = check(lake, copy)
    assert unread(found) == (False, 3)
    assert "3 changed rows wait for the next run, the first for 0:00:0" in found.description
    (entry,) = found.metadata["lance/lag"].value
    now = lake.table("source").version
    assert (entry["asset"], entry["from_version"], entry["to_version"]) == ("source", 1, now)
    first = lance.dataset(lake.uri("source"), version=2).versions()[1]["timestamp"]
    waited = dt.datetime.now() - first
    assert waited.total_seconds() - 20 < entry["lag_s"] == found.metadata["lance/lag_s"].value < waited.total_seconds()
    assert unread(check(lake, copy, "1d")) == (True, 3)
    assert len(copy.run(lake)[0]) == 3
    assert unread(check(lake, copy)) == (True, 0)
    lake.table("source").optimize.compact_files()
    assert unread(check(lake, copy)) == (True, 0)


def test_each_partition_counts_with_its_own_rows(lake):
    days = pa.concat_tables([rows(1, 2, day=ONE), rows(3, day=TWO)])
    lance.write_dataset(days, lake.uri("source"), enable_stable_row_ids=True)
    copy = Copy(partitions=DAYS)
    copy.run(lake, partition="2024-01-01")
    assert unread(check(lake, copy)) == (True, 0)
    lance.dataset(lake.uri("source")).update({"n": "7"}, where="id in (1, 3)")
    assert unread(check(lake, copy)) == (False, 1)
    copy.run(lake, partition="2024-01-02")
    assert unread(check(lake, copy)) == (False, 1)
    copy.run(lake, partition="2024-01-01")
    assert unread(check(lake, copy)) == (True, 0)
    lance.dataset(lake.uri("source")).update({"day": "date '2024-01-02'"}, where="id = 1")
    assert unread(check(lake, copy)) == (False, 1)  # a row that both partitions read


def test_what_the_next_run_cannot_read_fails(lake, table):
    copy = Copy()
    copy.run(lake)
    shutil.rmtree(lake.uri("source"))
    found = check(lake, copy, "1d")
    assert not found.passed
    assert "source" in found.description
    lance.write_dataset(rows(1), lake.uri("source"), enable_stable_row_ids=True)
    found = check(lake, copy, "1d")
    assert not found.passed
    assert "lance/full_refresh=true" in found.description
    assert "lance/full_refresh=true" in errors(copy.run(lake, fails=True)[1])


def test_inputs_that_are_not_incremental_do_not_count(lake, table):
    @dg.asset(deps=["source"])
    def copy() -> pa.Table:
        return rows(1)

    lake.run(copy)
    (lag,) = build_lance_lag_checks(copy)
    result = lake.run(copy, lag, select=dg.AssetSelection.checks(lag))
    (found,) = result.get_asset_check_evaluations()
    assert (found.passed, found.description) == (True, "asset copy has consumed no input by lance/changes so far")


def test_a_branch_has_a_lag_of_its_own(lake, table):
    copy = Copy()
    copy.run(lake)
    change(lake)
    branching = {"branching": BranchPolicy.from_tag(), "tags": {"lance/branch": "b"}}
    copy.run(lake, **branching)
    assert lance_core.dataset(lake.uri("copy")).branches.list()
    assert unread(check(lake, copy, **branching)) == (True, 0)
    assert unread(check(lake, copy)) == (False, 3)


@pytest.mark.parametrize("max_age", ["never", dt.timedelta(days=-1)])
def test_a_limit_that_is_no_time(max_age):
    with pytest.raises(ValueError, match="max_age must be a length of time"):
        build_lance_lag_checks(["copy"], max_age)


def column_asset(name, given, columns=None, **ins):
    """An asset that sets a column of `source`, from what changed there."""
    metadata = {"lance/write_mode": "columns", "lance/table": "source", "lance/key": "id", "lance/missing": "keep"}
    chosen = {} if columns is None else {"columns": columns}

    @dg.asset(name=name, ins={"source": dg.AssetIn(metadata={**SINCE, **chosen, **ins})}, metadata=metadata)
    def made(source: pa.Table) -> pa.Table:
        given.append(len(source))
        live = pc.field("_change_type") != "delete"
        return (
            source.filter(live)
            .select(["id"])
            .append_column(name, pa.array(range(source.filter(live).num_rows), pa.int64()))
        )

    return made


def agree(lake, upstream, asset, given, expected):
    """The check's number is what the next run is given, and nothing waits after it."""
    (lag,) = build_lance_lag_checks([asset], dt.timedelta(0))

    def counted():
        result = lake.run(upstream, asset, lag, select=dg.AssetSelection.checks(lag))
        (found,) = result.get_asset_check_evaluations()
        return found.metadata["lance/rows_unread"].value

    assert counted() == expected
    lake.run(upstream, asset, select=[asset])
    assert given[-1] == expected
    assert counted() == 0


@pytest.mark.parametrize("columns", [None, ["id", "n"]])
def test_columns_that_the_asset_sets_do_not_count(lake, table, columns):
    """Its own writes are in the table that it reads, and it reads none of them back."""
    given = []
    asset = column_asset("score", given, columns)
    lake.run(source, asset, select=[asset])
    assert given == [3]
    agree(lake, source, asset, given, 0)
    lake.table("source").update({"n": "7"}, where="id = 1")
    lake.table("source").insert({"id": [4], "n": [0]})
    agree(lake, source, asset, given, 2)


def test_columns_that_the_asset_does_not_read_do_not_count(lake, table):
    given, others = [], []
    asset, other = column_asset("score", given, ["id", "n"]), column_asset("label", others)
    lake.run(source, asset, other, select=[asset, other])
    lake.table("source").write_columns({"id": [1, 2], "label": [8, 9]}, "id", missing="keep")
    agree(lake, source, asset, given, 0)
    lake.table("source").write_columns({"id": [1, 2], "n": [8, 9]}, "id", missing="keep")
    lake.table("source").delete("id = 3")
    agree(lake, source, asset, given, 3)


def test_rows_that_the_filter_of_the_input_excludes_do_not_count(lake, table):
    given = []
    asset = column_asset("score", given, **{"lance/filter": "n < 5"})
    lake.run(source, asset, select=[asset])
    lake.table("source").insert({"id": [4, 5, 6], "n": [1, 5, 9]})
    agree(lake, source, asset, given, 1)
    lake.table("source").update({"n": "7"}, where="id = 4")
    agree(lake, source, asset, given, 1)


def test_a_changed_key_counts_as_what_the_merge_is_given(lake):
    lance.write_dataset(pa.table({"id": [1, 2, 3], "n": [1, 2, 3]}), lake.uri("source"), enable_stable_row_ids=True)
    copy = Copy(key="n")
    copy.run(lake)
    lance.dataset(lake.uri("source")).update({"n": "7"}, where="id = 1")
    (lag,) = build_lance_lag_checks([copy.assets[1]], dt.timedelta(0))
    result = lake.run(*copy.assets, lag, select=dg.AssetSelection.checks(lag))
    (found,) = result.get_asset_check_evaluations()
    given, _ = copy.run(lake)
    assert found.metadata["lance/rows_unread"].value == len(given) == 2


def test_partitions_of_the_input_count_where_the_asset_has_none(lake):
    """It is given all rows, also those of partitions that are not defined."""
    lance.write_dataset(rows(1, day=ONE), lake.uri("source"), enable_stable_row_ids=True)
    copy = Copy()
    upstream = dg.asset(name="source", partitions_def=DAYS, metadata={"partition_expr": "day"})(lambda: None)
    copy.assets[0] = upstream
    copy.run(lake)
    lance.write_dataset(
        pa.concat_tables([rows(2, day=TWO), rows(3, day=dt.date(2030, 1, 1))]), lake.uri("source"), mode="append"
    )
    assert unread(check(lake, copy)) == (False, 2)
    assert [row[0] for row in copy.run(lake)[0]] == [2, 3]


def test_the_lag_begins_with_the_first_commit_that_is_read(lake, table):
    given = []
    asset = column_asset("score", given)
    lake.run(source, asset, select=[asset])
    before = lake.table("source").version
    lake.table("source").insert({"id": [4], "n": [0]})
    (lag,) = build_lance_lag_checks([asset], dt.timedelta(0))
    result = lake.run(source, asset, lag, select=dg.AssetSelection.checks(lag))
    (found,) = result.get_asset_check_evaluations()
    inserted = lake.table("source").checkout_version(before + 1)
    assert found.metadata["lance/lag_s"].value <= (dt.datetime.now(dt.UTC) - inserted.timestamp).total_seconds()
    assert found.metadata["lance/rows_unread"].value == 1


def test_the_lag_begins_with_the_version_after_a_change_that_was_cleaned_up(lake, table):
    copy = Copy()
    copy.run(lake)
    table = lake.table("source")
    table.tags.create("consumed", table.version)
    table.insert({"id": [4], "n": [0]})
    table.optimize.compact_files()
    table.tags.create("compacted", lake.table("source").version)
    time.sleep(0.5)  # the lag is that of this version, and not of the next one
    table.insert({"id": [5], "n": [0]})
    lake.table("source").cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
    assert [ref["version"] for ref in lake.table("source").versions()] == [1, 4, 5]
    result = check(lake, copy)
    assert unread(result) == (False, 2)
    assert result.metadata["lance/lag_s"].value > 0.5
