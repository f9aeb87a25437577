"""One seed's world: the real thing, the model beside it, and the comparison of both."""

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

import dagster as dg
import pyarrow as pa

import lance_core
from tests.machines.dagster_life import judging
from tests.machines.dagster_life.events import changes_rows, compare_due, compare_events
from tests.machines.dagster_life.model import MAIN, Commit, Line, Model, Result, Run, Write, of_partitions
from tests.machines.dagster_life.project import (
    PARTITIONS,
    SCHEMA,
    TABLES,
    WORLD,
    Config,
    definitions,
    manager,
    to_rows,
    to_table,
    watched_promotions,
)
from tests.machines.dagster_life.stage import Actor, Script, Stage, clocks, me

MODULE = "dagster_life_code"
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_numbers = itertools.count(1)
EXPECTED_ERRORS = {
    "superseded": ("SupersededError",),
    "exists": ("DatasetExistsError",),
    "undecidable": ("EarlierAttemptError", "RetryableConflictError"),  # the latter if others have committed meanwhile
    "not to keep": ("InvalidInputError", "EarlierAttemptError", "SupersededError"),
    "empty": ("InvalidInputError", "DatasetExistsError", "EarlierAttemptError", "SupersededError"),
}


class World(contextlib.AbstractContextManager):
    """The instance, the tables, the model, and what differs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.root = tempfile.mkdtemp(prefix="dagster-life-", dir=memory)
        self.model = Model(TABLES, config.switches)
        self.writes: dict[tuple[str, str], Write] = {}
        self.problems: list[str] = []
        self.numbers = itertools.count(1)
        self.actors: dict[str, Actor] = {}
        self.due: list[tuple[Commit | None, Run, str, str | None, dict]] = []
        self.seen = dict.fromkeys(TABLES, 0)
        self.newest_events: dict[tuple[str, str | None], int] = {}
        self.made_from: dict[str | None, int | None] = {}
        self.backfills: dict[str, dict] = {}
        self.cursor: str | None = None
        self.run_keys: set[str] = set()
        self.asked: set[tuple] = set()
        self.excuses: set[str] = set()
        self.idle_promotions: set[tuple[str, str]] = set()
        self.perhaps_recorded: set[tuple[str, str | None]] = set()
        self.settled: set[str] = set()
        self.compared: dict[tuple[str, str | None], tuple] = {}
        self.shares: dict[str, Counter] = {}
        self.share_writers: dict[str, str] = {}
        self.common: Counter = Counter()
        self.woken: set[str | None] = set()
        self.perhaps_woken: set[str | None] = set()
        self.automation = None
        self.automation_began_empty = False
        self.code = 0
        self.keys = PARTITIONS
        self.is_lost = False
        self.is_closing = False

    def __enter__(self) -> Self:
        self._clocks = clocks()
        self._clocks.__enter__()
        os.environ["LANCE_LIFE_BRANCH"] = "staging"
        name = self.define()
        WORLD[:] = [self]
        self._promotions = watched_promotions()
        self._promotions.__enter__()
        self.manager = manager(self.config, self.root)
        self.stage = Stage(MODULE, name)
        return self

    def define(self) -> str:
        """Make the code location of now; the name of its attribute in the module."""
        module = sys.modules.setdefault(MODULE, types.ModuleType(MODULE))
        name = f"location_{next(_numbers)}"
        self.definitions = definitions(self.config, self.root, self.code, self.keys)
        setattr(module, name, self.definitions)
        return name

    def deploy(self) -> None:
        """New code takes the place of the code location."""
        self.code += 1
        self.stage.load(MODULE, self.define())

    def __exit__(self, *_: object) -> None:
        self.is_closing = True
        self.stage.close()
        self._clocks.__exit__(None, None, None)
        self._promotions.__exit__(None, None, None)
        shutil.rmtree(self.root, ignore_errors=True)

    # Tables

    def open(self, table: str, branch: str | None = MAIN) -> lance_core.LanceDataset | None:
        try:
            main = lance_core.dataset(f"{self.root}/public/{table}.lance")
        except lance_core.errors.DatasetNotFoundError:
            return None
        return main if branch is None else main.checkout_version((branch, None))

    def version(self, table: str, branch: str | None) -> int:
        dataset = self.open(table)
        if dataset is None or (branch is not None and branch not in dataset.branches.list()):
            return 0
        return self.open(table, branch).version

    def forget(self, table: str) -> None:
        """The table was dropped."""
        self.model.forget(table)
        for key in [key for key in self.compared if key[0] == table]:
            del self.compared[key]

    # Runs

    def scope(self, partitions: tuple[str, ...] | None) -> dict[str, str]:
        """The tags of a run of partitions."""
        if partitions is None:
            return {}
        if len(partitions) == 1:
            return {"dagster/partition": partitions[0]}
        return {START: partitions[0], END: partitions[-1]}

    def adopt(self, run_id: str) -> Run:
        """Add to the model a run that Dagster has created."""
        record = self.stage.instance.get_run_by_id(run_id)
        tags = dict(record.tags)
        partitions = None
        if "dagster/partition" in tags:
            partitions = (tags["dagster/partition"],)
        elif START in tags:
            keys = list(PARTITIONS)
            partitions = tuple(keys[keys.index(tags[START]) : keys.index(tags[END]) + 1])
        root_id = record.root_run_id or run_id
        root = self.model.runs.get(root_id)
        is_audited = record.job_name == "audited"
        selection = record.asset_selection or record.asset_check_selection or ()
        if is_audited:
            selection = list(selection or map(dg.AssetKey, TABLES))
        backfill = tags.get("dagster/backfill")
        root_backfill = self.backfills.get(tags.get("dagster/root_backfill_id") or backfill)
        begin = self.model.mains() if root_backfill is None else root_backfill["mains"]
        run = Run(
            run_id=run_id,
            number=len(self.model.runs) + 1,
            root=root_id,
            parent=record.parent_run_id,
            branch=root.branch if root is not None else self.branch_of(tags, run_id, is_audited=is_audited),
            main_at_begin=root.main_at_begin if root is not None else begin,
            selection=tuple(sorted(str(key) for key in selection)),
            partitions=partitions,
            steps=tuple(
                record.step_keys_to_execute or (key.path[-1] for key in selection if isinstance(key, dg.AssetKey))
            ),
            backfill=backfill,
            is_of_repeated_backfill="dagster/root_backfill_id" in tags,
            is_audited=is_audited,
        )
        self.model.create_run(run)
        return run

    def branch_of(self, tags: dict[str, str], run_id: str, *, is_audited: bool) -> str | None:
        """The branch of a first run, as the table of `docs/backfills.md` has it."""
        backfill = tags.get("dagster/root_backfill_id") or tags.get("dagster/backfill")
        of_backfill = None if backfill is None else f"dagster/backfill/{backfill}"
        of_run = f"dagster/run/{run_id}"
        policy = self.config.policy
        if policy == "per_run" or is_audited:
            return of_run
        if policy == "per_backfill":
            return of_backfill
        if policy == "env":
            return "staging"
        if policy == "from_tag" and "lance/branch" in tags:
            value = tags["lance/branch"]
            return (of_backfill or of_run) if value == "auto" else value
        return None

    def start(self, run_id: str, script: Script) -> Actor:
        self.model.runs[run_id].code = str(self.code)
        actor = self.stage.start(run_id, script)
        self.actors[run_id] = actor
        self.sync()
        return actor

    def proceed(self, actor: Actor) -> None:
        actor.proceed()
        self.sync()

    def sync(self) -> None:
        """Take over how runs have ended."""
        states = {"SUCCESS": "succeeded", "FAILURE": "failed", "CANCELED": "canceled"}
        for run in self.model.runs.values():
            actor = self.actors.get(run.run_id)
            if run.state in ("launched", "running") or (actor is not None and run.run_id not in self.settled):
                if actor is not None and actor.ended:
                    self.settled.add(run.run_id)
                status = self.stage.instance.get_run_by_id(run.run_id).status.value
                run.state = states.get(status, "running" if run.run_id in self.actors else "launched")
                if run.state == "failed" and run.run_id in self.settled:
                    self.judge_failure(run)

    def judge_failure(self, run: Run) -> None:
        """A run has failed, which must have a reason: what it reads may have no rows, and so on."""
        is_of_totals = any("totals" in name for name in run.selection)
        if self.config.partitioned and run.partitions is None and (is_of_totals or self.config.check_partitioned):
            return  # Dagster fails before an input is loaded
        is_reader = self.config.checks or is_of_totals
        may_lack = is_reader and not of_partitions(self.model.readable("events", run), run.partitions)
        is_lost = self.config.read == "materialized" and (
            "events" in self.model.dropped or any(table == "events" for table, _ in self.perhaps_recorded)
        )  # such as by the event of a discard, of a version without rows
        is_lost |= run.branch in self.model.discarded or (run.branch is not None and bool(self.model.cleaned))
        if run.is_audited:
            judged, is_sure = judging.verdict(self, run.branch)
            is_lost |= bool(judged) or not is_sure or any(run.branch not in self.model.lines[name] for name in TABLES)
        if run.run_id not in self.excuses and run.selection and not may_lack and not is_lost:
            self.problems.append(f"run {run.number} failed: {self.why(run)}")

    def will_retry(self, run: Run) -> bool:
        """Whether Dagster is about to retry a run that has failed."""
        tags = self.stage.instance.get_run_by_id(run.run_id).tags
        is_due = tags.get("dagster/will_retry") == "true" and "dagster/auto_retry_run_id" not in tags
        return run.state == "failed" and is_due

    def mode(self, table: str) -> str:
        return self.config.mode if table == "events" else "overwrite"

    def tags_of(self, run: Run) -> dict[str, str]:
        """The tags of a run that its re-execution has too."""
        tags = self.stage.instance.get_run_by_id(run.run_id).tags
        return {key: value for key, value in tags.items() if not key.startswith("dagster/")}

    def why(self, run: Run) -> str:
        """The errors of the steps of a run."""
        records = self.stage.instance.get_records_for_run(
            run.run_id, of_type={dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
        ).records
        said = []
        for record in records:
            error = getattr(record.event_log_entry.dagster_event.event_specific_data, "error", None)
            while error is not None:
                said.append(f"{error.cls_name}: {error.message.strip()}")
                error = error.cause
        return " / ".join(said)[:600]

    # What the bodies of assets and checks call

    def compute(self, context, asset: str, read: pa.Table | None):
        actor, run = me(), self.model.runs[context.run_id]
        says = actor.script.says.get(asset, {})
        run.step_began.setdefault(asset, self.model.tick())
        made_from = None
        if read is not None:
            self.compare_read(run, "events", to_rows(read), f"{asset} in run {run.number}", run.partitions)
            line = self.model.lines["events"].get(run.branch)
            made_from = None if line is None else (run.branch, line.changed)
        seen_events = {partition: event for (name, partition), event in self.newest_events.items() if name == "events"}
        actor.reach(f"{asset} begins")
        is_first = context.retry_number == 0
        if says.get("fail") in ("before", "after"):
            self.excuses.add(run.run_id)
        if says.get("fail") == "before":
            raise RuntimeError("before the write")
        if says.get("fail") == "retry before" and is_first:
            raise dg.RetryRequested(max_retries=1)
        rows = Counter()
        for partition in run.partitions or PARTITIONS[:2]:
            if partition not in says.get("empty", ()):
                first = says.get("first key", 0)
                for key in range(first, first + says.get("size", 1)):
                    rows[partition, key, next(self.numbers)] += 1
        empty = self.config.empty_output if asset == "events" else "write"
        self.writes[run.run_id, asset] = Write(
            asset=asset,
            mode=self.mode(asset),
            run=run,
            attempt=context.retry_number,
            partitions=run.partitions,
            rows=rows,
            empty_output=empty,
            read=made_from,
            read_rows=Counter() if read is None else to_rows(read),
            seen_events=seen_events,
        )
        yield dg.Output(self.stream(actor, asset, rows) if says.get("stream") else to_table(rows))
        if says.get("fail") == "after":
            raise RuntimeError("after the write")
        if says.get("fail") == "retry after" and is_first:
            raise dg.RetryRequested(max_retries=1)

    def stream(self, actor: Actor, asset: str, rows: Counter) -> pa.RecordBatchReader:
        """The rows, as a stream that stops in its midst."""

        def batches():
            table = to_table(rows)
            yield from table.slice(0, 1).to_batches()
            actor.reach(f"{asset} streams")
            yield from table.slice(1).to_batches()

        return pa.RecordBatchReader.from_batches(SCHEMA, batches())

    def check(self, context, name: str, read: pa.Table) -> dg.AssetCheckResult:
        actor, run = me(), self.model.runs[context.run.run_id]
        rows, at, version = to_rows(read), self.model.now, self.version("events", run.branch)
        scope = run.partitions if self.config.check_partitioned else self.keys if self.config.partitioned else None
        self.compare_read(run, "events", rows, f"check {name} in run {run.number}", scope)
        actor.reach(f"{name} runs")
        says = actor.script.says.get(name, "passes")
        if says != "passes":
            self.excuses.add(run.run_id)
        if says == "crashes":
            raise RuntimeError("the check crashes")
        self.model.results.append(
            Result(
                check=name,
                version=version,
                run=run.number,
                asset="events",
                branch=run.branch,
                passed=says == "passes",
                read=rows,
                read_at=at,
                partitions=scope,
                is_whole=rows == self.model.readable("events", run),
            )
        )
        self.model.tick()
        return dg.AssetCheckResult(passed=says == "passes")

    def compare_read(self, run: Run, table: str, rows: Counter, who: str, partitions: tuple[str, ...] | None) -> None:
        compare_events(self)
        if run.branch is not None and run.branch not in self.model.lines[table] and not run.main_at_begin[table]:
            return  # there was no table yet
        whole = self.model.readable(table, run)
        if self.config.read == "materialized":
            if run.branch is not None:
                return  # no page says whether a branch is read as it was recorded
            branch = MAIN
            recorded = [
                version
                for (name, line, partition), version in self.model.recorded.items()
                if (name, line) == (table, branch) and (partitions is None or partition in partitions)
            ]
            if not recorded or (self.model.is_unordered and "event order" not in self.config.switches):
                return
            if any(name == table for name, _ in self.perhaps_recorded):
                return  # events of discards, which say what main has, count as well
            whole = self.model.lines[table][branch].versions.get(max(recorded), whole)
        right = of_partitions(whole, partitions)
        if rows != right:
            self.problems.append(f"{who} read {sorted(rows.elements())} of {table}, not {sorted(right.elements())}")

    # What the IO manager reports

    def begin_write(self, write: Write) -> None:
        self.before = {
            (table, branch): line.rows.copy()
            for table, lines in self.model.lines.items()
            for branch, line in lines.items()
        }
        if not self.lacks_partition(write):  # it is rejected before a branch begins
            self.model.fork(write.asset, write.run.branch)
        write.began = self.model.now
        write.ended = frozenset(run.number for run in self.model.runs.values() if run.state == "succeeded")

    def lacks_partition(self, write: Write) -> bool:
        return self.config.partitioned and write.partitions is None

    def end_write(self, write: Write, error: BaseException | None) -> None:
        if self.is_closing:
            return
        run, where = write.run, f"{write.asset} {write.run.partitions} in run {write.run.number}"
        if self.lacks_partition(write):
            self.excuses.add(run.run_id)
            if type(error).__name__ != "DagsterInvalidInvocationError":
                self.problems.append(f"{where} had to be rejected, but: {error or 'was committed'}")
            return
        expected = self.model.outcome(write)
        if error is not None:
            self.excuses.add(run.run_id)
            name = type(error).__name__
            is_canceled = isinstance(error, dg.DagsterExecutionInterruptedError)
            if expected not in ("any", "lost") and not is_canceled and name not in EXPECTED_ERRORS.get(expected, ()):
                self.problems.append(f"{where} had to be {expected}, but: {name}: {error}")
            lines = self.model.lines[write.asset]
            if (
                run.branch in lines
                and run.branch is not None
                and not lines[run.branch].own_commits()
                and not self.version(write.asset, run.branch)
            ):
                del lines[run.branch]
            return
        if expected not in ("written", "skipped", "any"):
            self.problems.append(f"{where} had to be {expected}, but was committed")
        version = self.version(write.asset, run.branch)
        may_skip = expected == "any" and not write.rows and write.empty_output == "skip"
        if expected == "skipped" or (may_skip and version in self.model.lines[write.asset][run.branch].versions):
            self.end_skipped(write)
        else:
            is_raced = bool(self.model.appended_meanwhile(write))
            stored = to_rows(self.open(write.asset, run.branch).to_table()) if is_raced else Counter()
            commit = self.model.apply(write, version, stored)
            line = self.model.lines[write.asset][run.branch]
            changed: int | set[int] = line.changed
            if not changes_rows(commit) and write.partitions is not None:
                changed = {changed, *self.unchanged_since(line.commits[:-1], frozenset(write.partitions))}
            self.expect_events(commit, run, write.asset, write.partitions, line, version, changed=changed)

    def end_skipped(self, write: Write) -> None:
        """An output without rows was not written: the event says what is there."""
        run, asset = write.run, write.asset
        line, version = self.model.lines[asset].get(run.branch), self.version(asset, run.branch)
        if not version:  # there is no table still
            self.model.lines[asset].pop(run.branch, None)
            nothing = dict.fromkeys(("version", "rows", "partition_rows", "changed", "branch"))
            self.due += [
                (None, run, asset, partition, nothing | {"is_skipped": True})
                for partition in write.partitions or (None,)
                if not run.is_audited
            ]
            return
        parts = None if write.partitions is None else frozenset(write.partitions)
        line.skipped.append((parts, run.code))
        changed: int | set[int] = line.changed
        if parts is not None and run.branch is MAIN:
            changed = {line.changed, *self.unchanged_since(line.commits, parts)}
        self.expect_events(None, run, asset, write.partitions, line, version, changed=changed, is_skipped=True)

    def unchanged_since(self, commits: list[Commit], partitions: frozenset[str]) -> set[int]:
        """The versions of commits after which no commit has changed rows of these partitions, from the newest on."""
        versions = set()
        for commit in reversed(commits):
            versions.add(commit.version)
            touches = commit.partitions is None or commit.partitions & partitions or not commit.asset
            if touches and (commit.added or commit.removed):
                return versions
        return versions | {1}  # which a branch may have begun with, without rows

    def expect_events(
        self, commit: Commit | None, run: Run, asset: str, partitions: tuple | None, line: Line, version: int, **facts
    ) -> None:
        """A step has written: its events are due when it ends, unless it is of an audited job."""
        if run.is_audited:
            return
        for partition in partitions or (None,):
            says = {
                "version": version,
                "branch": run.branch,
                "rows": line.rows.total(),
                "partition_rows": of_partitions(line.rows, None if partition is None else {partition}).total(),
                "codes": {run.code},
                **facts,
            }
            self.due.append((commit, run, asset, partition, says))

    def publish(self, actor: Actor, table: str, promote: Callable[[], object]) -> object:
        """A run promotes a table; of an audited job it is judged at once, of others by the step that runs them."""
        run = self.model.runs[actor.run_id]
        if not run.is_audited:
            return promote()
        line = self.model.lines[table].get(run.branch)
        judged, is_sure = judging.verdict(self, run.branch)
        try:
            promotion = promote()
        except BaseException:
            self.excuses.add(run.run_id)
            if line is not None and not judged and is_sure and not self.is_closing:
                self.problems.append(f"run {run.number} did not publish {table} of {run.branch}")
            raise
        if line is None or line.promoted:
            self.idle_promotions.add((run.run_id, table))
            self.model.lines[table].pop(run.branch, None)
            return promotion
        if judged:
            self.problems.append(f"run {run.number} published {table} of {run.branch}, though {judged}")
        if promotion.deduplicated:
            self.idle_promotions.add((run.run_id, table))
        else:
            judging.expect_promotion(self, table, run.branch, run, partitions=run.partitions or (None,))
        del self.model.lines[table][run.branch]
        return promotion

    # The comparison after each step

    def compare(self) -> list[str]:
        """What differs between the real thing and the model."""
        compare_events(self)
        compare_due(self)
        for table, lines in self.model.lines.items():
            self.compare_table(table, lines)
        return self.problems

    def compare_common(self) -> None:
        """The table that two assets share has the rows of both."""
        rows = to_rows(lance_core.dataset(f"{self.root}/public/common.lance").to_table())
        if rows != self.common:
            self.problems.append(f"the shared table has {sorted(rows)}, not {sorted(self.common)}")

    def compare_table(self, table: str, lines: dict) -> None:
        dataset = self.open(table)
        branches = set() if dataset is None else set(dataset.branches.list())
        expected = set(lines) - {MAIN}
        if branches != expected:
            self.problems.append(f"{table} has the branches {sorted(branches)}, not {sorted(expected)}")
            return
        for branch, line in lines.items():
            below = Path(
                self.root, "public", f"{table}.lance", *(() if branch is None else ("tree", branch)), "_versions"
            )
            stamp = (tuple(sorted(path.name for path in below.iterdir())) if below.exists() else None, line.rows.copy())
            if self.compared.get((table, branch)) == stamp:
                continue
            self.compared[table, branch] = stamp
            place = dataset if branch is None else self.open(table, branch)
            rows = Counter() if place is None else to_rows(place.to_table())
            if rows != line.rows:
                name = "main" if branch is None else branch
                self.problems.append(
                    f"{name} of {table} has {sorted(rows.elements())}, not {sorted(line.rows.elements())}"
                )
            elif place is not None:
                line.versions.setdefault(place.version, line.rows.copy())
