"""Incremental inputs on branches, and after their promotion."""

from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_lance_lag_checks
from tests.lance_dagster.lake import errors
from tests.lance_dagster.loading.copies import CHANGED, DAYS, ONE, THREE, TWO, Copy, change, rows, source


class TestBranches:
    """A branch starts from the watermark at its fork, and brings its own when it is promoted."""

    def test_the_downstream_on_a_branch(self, lake, table):
        copy = Copy()
        copy.run(lake, branching=BranchPolicy.from_tag())
        change(lake)
        given, _ = copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        assert given == CHANGED
        assert lake.rows("copy") == [(1, 0), (2, 0), (3, 0)]
        lance.write_dataset(rows(9), lake.uri("source"), mode="append")
        given, _ = copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        assert given == [(9, 0, "insert")]
        lake.table("copy").branches.promote("draft")
        assert copy.run(lake)[0] == []
        assert lake.rows("copy") == [(2, 10), (3, 0), (4, 0), (9, 0)]

    def test_a_branch_that_is_not_promoted_moves_nothing_on_main(self, lake, table):
        copy = Copy()
        copy.run(lake)
        change(lake)
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        assert copy.run(lake)[0] == CHANGED

    def test_both_on_a_branch(self, lake, table):
        copy = Copy()
        copy.run(lake)
        lance.dataset(lake.uri("source")).delete("id = 3")
        branch = lake.table("source").ensure_branch("draft")
        branch.insert(rows(4))
        given, _ = copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        assert given == [(3, 0, "delete"), (4, 0, "insert")]
        promote(lake)
        assert copy.run(lake)[0] == []
        lance.write_dataset(rows(9), lake.uri("source"), mode="append")
        assert copy.run(lake)[0] == [(9, 0, "insert")]

    @pytest.mark.parametrize(("late", "stable"), [(["draft", "main"], True), (["main", "compaction"], False)])
    def test_rows_that_came_between_the_run_and_the_promotion_are_read_once(self, lake, late, stable):
        """First what the branch got after the run, then what others wrote to main, then what came later."""
        lance.write_dataset(rows(1), lake.uri("source"), enable_stable_row_ids=stable)
        copy = Copy(write_mode="append")
        copy.run(lake)
        branch = lake.table("source").ensure_branch("draft")
        branch.insert(rows(2))
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        expected = {"draft": (3, 0), "main": (4, 0)}
        for line in late:
            table = branch if line == "draft" else lake.table("source")
            table.optimize.compact_files() if line == "compaction" else table.insert(rows(expected[line][0]))
        promote(lake)
        lance.write_dataset(rows(5), lake.uri("source"), mode="append")
        assert pairs(lake) == [(1, 0), (2, 0)]
        ranges = [[(*row, "insert")] for line, row in expected.items() if line in late]
        for waiting in ([*ranges, [(5, 0, "insert")]][index:] for index in range(len(ranges) + 1)):
            assert unread(lake, copy) == len(waiting)
            assert copy.run(lake)[0] == waiting[0]
        assert unread(lake, copy) == 0
        assert copy.run(lake)[0] == []
        assert pairs(lake) == sorted([(1, 0), (2, 0), (5, 0), *(expected[one] for one in late if one in expected)])

    def test_updates_and_deletes_around_a_promotion(self, lake):
        lance.write_dataset(rows(1, 2, 3, 4), lake.uri("source"), enable_stable_row_ids=True, max_rows_per_file=1)
        copy = Copy()
        copy.run(lake)
        lake.table("source").ensure_branch("draft").update({"n": "5"}, where="id = 2")
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        lake.table("source").update({"n": "6"}, where="id = 3")
        lake.table("source").delete("id = 4")
        promote(lake)
        lake.table("source").update({"n": "n + 10"}, where="id in (2, 3)")
        assert copy.run(lake)[0] == [(3, 6, "update"), (4, 0, "delete")]
        assert copy.run(lake)[0] == [(2, 15, "update"), (3, 16, "update")]
        assert lake.rows("copy") == lake.rows("source") == [(1, 0), (2, 15), (3, 16)]

    def test_a_failed_run_after_a_promotion_is_repeated(self, lake, table):
        copy = Copy(write_mode="append", fails=["no", "no", "before"])
        copy.run(lake)
        lake.table("source").ensure_branch("draft").insert(rows(4))
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        lake.table("source").insert(rows(5))
        promote(lake)
        _, failed = copy.run(lake, fails=True)
        assert copy.given[-1] == [(5, 0, "insert")]
        again = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
        assert copy.run(lake, tags=again)[0] == [(5, 0, "insert")]
        assert copy.run(lake)[0] == []
        assert pairs(lake) == [(one, 0) for one in range(1, 6)]

    def test_an_attempt_that_has_committed_after_a_promotion_is_replaced(self, lake, table):
        copy, then = Copy(write_mode="append"), []

        @dg.asset(deps=["copy"])
        def after():
            if then.pop(0):
                raise dg.Failure("after")

        copy.run(lake)
        lake.table("source").ensure_branch("draft").insert(rows(4))
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        lake.table("source").insert(rows(5))
        promote(lake)
        then.append(True)
        failed = lake.run(*copy.assets, after, select=["copy", "after"], fails=True)
        assert pairs(lake) == [(one, 0) for one in range(1, 6)]
        lance.write_dataset(rows(6), lake.uri("source"), mode="append")
        again = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
        assert copy.run(lake, tags=again)[0] == [(5, 0, "insert")]
        assert pairs(lake) == [(one, 0) for one in range(1, 6)]
        assert copy.run(lake)[0] == [(6, 0, "insert")]

    def test_runs_of_single_partitions_on_one_branch(self, lake):
        """Later versions of the branch, and of main, have no rows of the partition: nothing is read for them."""
        lance.write_dataset(rows(1, day=ONE), lake.uri("source"), enable_stable_row_ids=True)
        copy, on_branch = (
            Copy(partitions=DAYS),
            {"tags": {"lance/branch": "draft"}, "branching": BranchPolicy.from_tag()},
        )
        copy.run(lake, partition="2024-01-01")
        branch = lake.table("source").ensure_branch("draft")
        branch.insert(rows(2, day=ONE))
        copy.run(lake, partition="2024-01-01", **on_branch)
        branch.insert(rows(3, day=TWO))
        copy.run(lake, partition="2024-01-02", **on_branch)
        lake.table("source").insert(rows(4, day=THREE))
        promote(lake)
        lake.table("source").insert(pa.concat_tables([rows(5, day=ONE), rows(6, day=TWO)]))
        assert copy.run(lake, partition="2024-01-01")[0] == [(5, 0, "insert")]
        assert copy.run(lake, partition="2024-01-02")[0] == [(6, 0, "insert")]
        assert copy.run(lake, partition="2024-01-03")[0] == [(4, 0, "insert")]

    def test_a_range_of_changes_that_the_input_leaves_out_takes_no_run(self, lake):
        table = lance_core.write_dataset(rows(1), lake.uri("source"), enable_stable_row_ids=True)
        given = []

        @dg.asset(
            ins={"source": dg.AssetIn(metadata={"lance/changes": "since_last_run", "columns": ["id"]})},
            metadata={"lance/write_mode": "append"},
        )
        def copy(source: pa.Table):
            given.append(source["id"].to_pylist())
            return source

        on_branch = {"tags": {"lance/branch": "draft"}, "branching": BranchPolicy.from_tag()}
        lake.run(source, copy, select=["copy"])
        branch = table.ensure_branch("draft")
        branch.insert(rows(2))
        lake.run(source, copy, select=["copy"], **on_branch)
        branch.update({"n": "5"}, write_mode="rewrite_columns")
        promote(lake)
        lake.table("source").insert(rows(3))
        lake.run(source, copy, select=["copy"])
        assert given == [[1], [2], [3]]

    def test_a_branch_that_was_forked_again_by_the_same_name(self, lake, table):
        copy = Copy(write_mode="append")
        copy.run(lake)
        lake.table("source").ensure_branch("draft").insert(rows(4))
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        promote(lake)
        lake.table("source").ensure_branch("draft", renew_promoted=True).insert(rows(5))
        lake.table("source").branches.promote("draft")
        assert copy.run(lake)[0] == [(5, 0, "insert")]
        assert pairs(lake) == [(one, 0) for one in range(1, 6)]

    @pytest.mark.parametrize("consumed", [1, 3])
    def test_a_branch_of_a_branch(self, lake, consumed):
        """Versions of main after the first fork do not lead to it, whatever the second was forked from."""
        main = lance_core.write_dataset(rows(1), lake.uri("source"), enable_stable_row_ids=True)
        main.ensure_branch("one").insert(rows(2))
        copy, policy = Copy(), BranchPolicy.from_tag()
        for id_ in range(3, 2 + consumed):
            main.insert(rows(id_))
        copy.run(lake)
        two = main.create_branch("two", ("one", None))
        two.insert(rows(9))
        if consumed == 1:
            assert copy.run(lake, tags={"lance/branch": "two"}, branching=policy)[0] == [
                (2, 0, "insert"),
                (9, 0, "insert"),
            ]
        else:
            _, failed = copy.run(lake, tags={"lance/branch": "two"}, branching=policy, fails=True)
            assert "lance/full_refresh=true" in errors(failed)

    @pytest.mark.parametrize("lost", ["branch", "version"])
    def test_what_is_not_known_any_more_needs_a_full_refresh(self, lake, table, lost):
        copy = Copy()
        copy.run(lake)
        branch = lake.table("source").ensure_branch("draft")
        branch.insert(rows(4))
        copy.run(lake, tags={"lance/branch": "draft"}, branching=BranchPolicy.from_tag())
        (branch if lost == "branch" else lake.table("source")).insert(rows(5))
        promote(lake)
        if lost == "branch":
            lake.table("source").branches.delete("draft")
        else:
            versions = Path(lake.uri("source"), "_versions")
            (versions / f"{2**64 - 1 - (lake.table('source').version - 1):020}.manifest").unlink()
        (check,) = build_lance_lag_checks(copy.assets[1:])
        done = lake.run(*copy.assets, check, select=dg.AssetSelection.checks(check), fails=None)
        (found,) = done.get_asset_check_evaluations()
        assert not found.passed
        assert "lance/full_refresh=true" in found.description
        _, failed = copy.run(lake, fails=True)
        assert "lance/full_refresh=true" in errors(failed)
        copy.run(lake, tags={"lance/full_refresh": "true"})
        assert pairs(lake) == [(one, 0) for one in range(1, 6)]
        assert copy.run(lake)[0] == []


def promote(lake):
    """Promote the branch of both tables."""
    for name in ("source", "copy"):
        lake.table(name).branches.promote("draft")


def pairs(lake):
    """The rows of an asset, without the kind of change that an append keeps."""
    return sorted(row[:2] for row in lake.rows("copy"))


def unread(lake, copy):
    """The rows that a lag check finds."""
    (check,) = build_lance_lag_checks(copy.assets[1:])
    done = lake.run(*copy.assets, check, select=dg.AssetSelection.checks(check), fails=None)
    (found,) = done.get_asset_check_evaluations()
    return found.metadata["lance/rows_unread"].value
