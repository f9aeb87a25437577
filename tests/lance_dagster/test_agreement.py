"""After every verb Dagster knows what the table holds: latest event, data version, row counts, materialized reads."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_branch_jobs, build_undo_job
from lance_dagster.lineage.history import compute_data_version
from lance_dagster.undo.plan import plan_undo
from tests.lance_dagster.lake import QUIET, errors

KEYS = dg.StaticPartitionsDefinition(["a", "b", "c"])
TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}
ON = {"lance/branch": "trial"}


def rows(context, keys):
    n = int(context.run.tags.get("n", 0))
    return pa.table({"k": [key for key in keys for _ in range(n)], "n": [n] * n * len(keys)})


@dg.asset(partitions_def=KEYS, metadata={"partition_expr": "k"})
def parts(context) -> pa.Table:
    return rows(context, sorted(context.partition_keys))


@dg.asset
def whole(context) -> pa.Table:
    return rows(context, ["x"])


ASSETS = {"parts": parts, "whole": whole}


@dg.asset_check(asset=parts, blocking=True)
def good_parts(context, parts: pa.Table) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=context.run.tags.get("bad") is None)


@dg.asset_check(asset=whole, blocking=True)
def good_whole(context, whole: pa.Table) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=context.run.tags.get("bad") is None)


class Story:
    """The verbs, on one asset."""

    def __init__(self, lake, name, mode):
        self.lake, self.name, self.asset, self.mode = lake, name, ASSETS[name], mode
        self.promote_job, self.discard_job = build_branch_jobs([self.asset])
        self.undo_job = build_undo_job([self.asset])
        self.runs = []

    def write(self, n, *keys, tags=None, fails=False, checked=False):
        partition = dict(zip(("partition",), keys, strict=False)) if self.name == "parts" else {}
        assets = [self.asset, *([good_parts if self.name == "parts" else good_whole] if checked else [])]
        done = self.lake.run(
            *assets, tags={"n": str(n), **(tags or {})}, fails=fails, write_mode=self.mode, **partition, **TAGGED
        )
        self.runs.append(done.run_id)
        return done

    def job(self, job, *, fails=False, tags=None, config=None):
        defs = dg.Definitions(assets=[self.asset], jobs=[job], resources={"io_manager": self.lake.manager(**TAGGED)})
        run_config = {**QUIET, **({"ops": {f"{job.name}_op": {"config": config}}} if config else {})}
        done = defs.resolve_job_def(job.name).execute_in_process(
            instance=self.lake.instance, tags=tags or {}, run_config=run_config, raise_on_error=False
        )
        assert done.success is not fails, errors(done)
        return done

    def promote(self, **options):
        return self.job(self.promote_job, tags=ON | options.pop("tags", {}), **options)

    def discard(self):
        return self.job(self.discard_job, tags=ON)

    def undo(self, run_id, **options):
        return self.job(self.undo_job, tags={"lance/undo_run": run_id} | options.pop("tags", {}), **options)

    def events(self):
        records = self.lake.instance.fetch_materializations(dg.AssetKey(self.name), limit=1000).records
        return [record.asset_materialization for record in reversed(records)]

    def believed(self):
        """The newest event of each partition that is about main."""
        newest = {}
        for event in self.events():
            newest[event.partition] = event
        return newest

    def agrees(self):
        """Nothing that Dagster believes of main is untrue."""
        main = self.lake.table(self.name)
        newest = self.believed()
        open_branches = set(main.branches.list())
        last = None
        for partition, event in newest.items():
            said = {key: entry.value for key, entry in event.metadata.items()}
            if "lance/branch" in said:
                assert said["lance/branch"] in open_branches, f"{partition}: {said['lance/branch']} was deleted"
                continue
            opened = main.checkout_version(said["lance/version"])
            assert said["dagster/row_count"] == opened.count_rows()
            assert event.tags["dagster/data_version"] == compute_data_version(opened)
            if partition is not None:
                found = main.count_rows(filter=f"k = '{partition}'")
                assert found == opened.count_rows(filter=f"k = '{partition}'"), partition
                assert said.get("dagster/partition_row_count", found) == found, partition
            if last is None or said["lance/version"] > last:
                last = said["lance/version"]
        if last is not None:
            assert main.checkout_version(last).to_table().equals(main.to_table())
            assert self.read() == self.lake.rows(self.name)

    def read(self):
        """What a downstream asset is given by `read="materialized"`."""
        got = []

        @dg.asset(ins={"given": dg.AssetIn(self.name)})
        def reader(given: pa.Table) -> None:
            got.append(sorted(tuple(row.values()) for row in given.to_pylist()))

        self.lake.run(self.asset, reader, select=[reader], read="materialized")
        return got[0]


def promoted(story):
    story.write(1, "a")
    story.write(2, "b", tags=ON)
    story.write(3, "c", tags=ON)
    story.promote()


def promoted_again_after_main_moved(story):
    promoted(story)
    story.write(5, "a")
    before = len(story.events())
    again = story.promote()
    assert len(story.events()) == before
    assert not [one for one in again.all_events if one.event_type_value == "ASSET_OBSERVATION"]


def promoted_again(story):
    promoted(story)
    before = len(story.events())
    story.promote()
    assert len(story.events()) == before


def promoted_after_main_moved(story):
    story.write(1, "a")
    story.write(2, "b", tags=ON)
    story.write(5, "a")
    story.promote(fails=story.name == "whole" and story.mode == "overwrite")


def promoted_when_the_first_run_did_not_report(story):
    story.write(1, "a")
    story.write(2, "b", tags=ON)
    story.lake.table(story.name).branches.promote("trial")
    story.write(5, "a")
    story.promote()
    assert story.believed().get("b" if story.name == "parts" else None).metadata["lance/version"].value >= 3


def promoted_then_discarded(story):
    promoted(story)
    before = len(story.events())
    story.discard()
    assert len(story.events()) == before
    assert story.lake.table(story.name).tags.list() == {}


def discarded(story):
    story.write(1, "a")
    story.write(4, "a", tags=ON)
    story.write(3, "b", tags=ON)
    story.discard()
    story.promote(fails=True)


def discarded_after_main_moved(story):
    story.write(1, "a")
    story.write(4, "a", tags=ON)
    story.write(3, "a")
    before = len(story.events())
    story.discard()
    assert len(story.events()) == before


def rejected_then_forced(story):
    story.write(1, "a")
    story.write(2, "b", tags=ON | {"bad": "1"}, fails=True, checked=True)
    version = story.lake.table(story.name).version
    assert "the check good_" in errors(story.promote(fails=True))
    assert story.lake.table(story.name).version == version
    story.agrees()
    story.promote(tags={"lance/force": "true"})
    said = story.believed()["b" if story.name == "parts" else None].metadata["lance/forced"].value
    assert "the check good_" in said


def forced_by_configuration(story):
    story.write(1, "a")
    story.write(2, "b", tags=ON | {"bad": "1"}, fails=True, checked=True)
    story.promote(config={"branch": "trial", "force": True})
    assert "lance/forced" in story.believed()["b" if story.name == "parts" else None].metadata


def checks_of_an_earlier_branch_of_that_name(story):
    story.write(1, "a")
    story.write(2, "b", tags=ON | {"bad": "1"}, fails=True, checked=True)
    story.discard()
    story.write(3, "b", tags=ON, checked=True)
    story.promote()


def nothing_to_promote(story):
    story.write(1, "a")
    story.lake.table(story.name).create_branch("trial")
    lance_core.write_dataset(story.lake.table(story.name).to_table(), story.lake.uri(story.name), mode="append")
    before = len(story.events())
    story.promote()
    assert len(story.events()) == before
    story.write(1, "a")  # so that Dagster knows what somebody else wrote


def undone(story):
    story.write(1, "a")
    story.write(2, "a")
    story.undo(story.runs[-1])
    newest = story.events()[-1]
    assert newest.metadata["lance/undid_run"].value == story.runs[-1]
    assert newest.metadata["dagster/row_count"].value == 1
    assert story.lake.rows(story.name) == [("a" if story.name == "parts" else "x", 1)]


def undone_by_the_beginning_of_its_id(story):
    story.write(1, "a")
    story.write(2, "a")
    story.undo(story.runs[-1][:8])


def undone_without_a_report(story):
    """By the command: what is recorded is not read, and a job reports it later."""
    story.write(1, "a")
    story.write(2, "a")
    plan_undo(story.lake.table(story.name), story.runs[-1]).commit()
    assert story.read() == story.lake.rows(story.name)
    story.undo(story.runs[-1])
    before = len(story.events())
    story.undo(story.runs[-1])
    assert len(story.events()) == before


def undone_after_others(story):
    story.write(1, "a")
    story.write(2, "b")
    story.write(3, "c")
    if story.name == "whole" and story.mode == "overwrite":
        story.undo(story.runs[1], fails=True)
        return
    plan_undo(story.lake.table(story.name), story.runs[1]).commit()
    assert story.read() == story.lake.rows(story.name)
    story.undo(story.runs[1])


def undone_in_a_dry_run(story):
    story.write(1, "a")
    story.write(2, "a")
    before, version = len(story.events()), story.lake.table(story.name).version
    story.undo(story.runs[-1], tags={"lance/dry_run": "true"})
    story.job(story.undo_job, config={"run_id": story.runs[-1], "dry_run": True})
    assert (len(story.events()), story.lake.table(story.name).version) == (before, version)


def undone_promotion(story):
    promoted(story)
    last = story.lake.properties(story.name)[-1]
    story.undo(last["dagster.promotion_run_id"])
    before = len(story.events())
    assert "was taken back" in errors(story.promote(fails=True))
    assert len(story.events()) == before


def undone_on_a_branch(story):
    story.write(1, "a")
    story.write(2, "a", tags=ON)
    story.write(3, "a", tags=ON)
    story.undo(story.runs[-1])
    event = story.events()[-1]
    assert event.metadata["lance/branch"].value == "trial"
    head = story.lake.table(story.name).checkout_version(("trial", None))
    assert event.metadata["dagster/row_count"].value == head.count_rows() == (3 if story.mode == "append" else 2)
    story.agrees()
    story.promote()


def rejected_undo(story):
    story.write(1, "a")
    before = len(story.events())
    assert "drop the table" in errors(story.undo(story.runs[0], fails=True))
    assert "no such run" in errors(story.undo("00000000", fails=True))
    assert "no run to undo is named" in errors(story.job(story.undo_job, fails=True))
    assert len(story.events()) == before


def materialized_again_after_an_undo(story):
    story.write(1, "a")
    story.write(2, "a")
    story.undo(story.runs[-1])
    story.write(4, "a")
    again = {"dagster/root_run_id": story.runs[1], "dagster/parent_run_id": story.runs[1]}
    story.write(3, "a", tags=again)


STORIES = [
    undone,
    undone_by_the_beginning_of_its_id,
    undone_without_a_report,
    undone_after_others,
    undone_in_a_dry_run,
    undone_promotion,
    undone_on_a_branch,
    rejected_undo,
    materialized_again_after_an_undo,
    promoted,
    promoted_again,
    promoted_again_after_main_moved,
    promoted_after_main_moved,
    promoted_when_the_first_run_did_not_report,
    promoted_then_discarded,
    discarded,
    discarded_after_main_moved,
    rejected_then_forced,
    forced_by_configuration,
    checks_of_an_earlier_branch_of_that_name,
    nothing_to_promote,
]


@pytest.mark.variants(11)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("parts", "append"),
        ("whole", "overwrite"),
        pytest.param("parts", "overwrite", marks=pytest.mark.slow),
        pytest.param("whole", "append", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("play", STORIES, ids=lambda play: play.__name__)
def test_dagster_knows_what_the_table_holds(lake, play, name, mode):
    story = Story(lake, name, mode)
    play(story)
    story.agrees()


def test_each_partition_has_its_own_counts(lake):
    story = Story(lake, "parts", "append")
    story.write(1, "a")
    story.write(2, "a", tags=ON)
    story.write(3, "b", tags=ON)
    story.promote()
    found = {
        event.partition: tuple(
            event.metadata[key].value
            for key in ("dagster/partition_row_count", "lance/rows_written", "dagster/row_count")
        )
        for event in story.events()[-2:]
    }
    assert found == {"a": (3, 2, 6), "b": (3, 3, 6)}


def test_runs_of_branch_jobs_are_not_retried():
    for job in (*build_branch_jobs([whole]), build_undo_job([whole])):
        assert job.tags["dagster/max_retries"] == "0"
