"""What must hold of tables, runs, branches and events, as the pages in `docs/` say it.

Rows are `(partition, key, number)`, and no two writes give a row the same number, so that a row names the write it is from.
A line is main or a branch of one table. Order is that of what happened, counted by `now`; no clock is read.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Row = tuple[str, int, int]
MAIN = None


@dataclass(kw_only=True)
class Run:
    """A run of Dagster.

    Attributes:
        number: Its place in the order in which runs were created.
        root: The first run of its chain of re-executions.
        branch: The branch that it writes; None for main.
        main_at_begin: The rows of main of each table when its root run, or root backfill, began.
        step_began: When the first attempt of each of its steps began.
        is_audited: Whether it is of the job that writes, audits and publishes.
        code: The code version that it is executed with.
        state: launched, running, failed, succeeded or canceled.
    """

    run_id: str
    number: int
    root: str
    parent: str | None
    branch: str | None
    main_at_begin: dict[str, Counter]
    selection: tuple[str, ...]
    partitions: tuple[str, ...] | None
    steps: tuple[str, ...] = ()
    backfill: str | None = None
    is_of_repeated_backfill: bool = False
    step_began: dict[str, int] = field(default_factory=dict)
    is_audited: bool = False
    code: str = ""
    state: str = "launched"


@dataclass(kw_only=True)
class Commit:
    """A write of a run that was committed, or a commit of others.

    Attributes:
        read: The version that last changed the rows of `events` which the write was made from, and whose line that was.
        replaces_all: Whether another library replaced all rows, or a merge those of its earlier attempts with the table.
        is_undone: Whether an undo removed its rows.
        is_replaced: Whether a later attempt of the same write removed its rows.
        read_rows: The rows of `events` which the write was made from.
        seen_events: The newest event of each partition of `events` when the step began.
        publisher: The run that promoted it to main; None before.
    """

    at: int
    version: int
    run: Run
    attempt: int
    asset: str
    partitions: frozenset[str] | None
    added: Counter
    removed: Counter
    read: tuple[str | None, int] | None = None
    replaces_all: bool = False
    is_undone: bool = False
    is_replaced: bool = False
    read_rows: Counter = field(default_factory=Counter)
    seen_events: dict[str | None, int] = field(default_factory=dict)
    publisher: Run | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.run.number, self.attempt


@dataclass(kw_only=True)
class Line:
    """Main, or a branch.

    Attributes:
        rows: The rows that it has now.
        commits: The writes that it contains, oldest first; those before the fork as well.
        versions: The rows of each version that was seen.
        changed: The version that last changed rows; 0 if none did since the fork.
        fork: Rows of main at the fork; None for main.
        base: The writes that main contained at the fork.
        promoted: Whether main has its changes.
        promoted_as: The version of main that has them.
        is_stuck: Whether an undo changed it after its promotion, so that no table of the branch can be promoted.
        has_late_rows: Whether a write that began before its promotion was committed after it.
        skipped: The partitions of outputs that were skipped, and the code of their runs.
        began: When the branch was made.
    """

    rows: Counter = field(default_factory=Counter)
    commits: list[Commit] = field(default_factory=list)
    versions: dict[int, Counter] = field(default_factory=dict)
    changed: int = 0
    fork: Counter | None = None
    base: list[Commit] = field(default_factory=list)
    promoted: bool = False
    promoted_as: int = 0
    is_stuck: bool = False
    has_late_rows: bool = False
    skipped: list[tuple[frozenset[str] | None, str]] = field(default_factory=list)
    began: int = 0

    def own_commits(self) -> list[Commit]:
        """The writes since the fork."""
        return [commit for commit in self.commits if all(commit is not old for old in self.base)]


@dataclass(kw_only=True)
class Result:
    """A result of a check; of several about one version, that of the later run decides."""

    check: str
    version: int
    run: int
    asset: str
    branch: str | None
    passed: bool
    read: Counter
    read_at: int
    partitions: tuple[str, ...] | None
    is_whole: bool

    def covers(self, scope: str | None) -> bool:
        """Whether it is about a partition; for None, about all rows."""
        return (self.is_whole and self.passed) or self.partitions is None or scope in self.partitions


@dataclass(kw_only=True)
class Write:
    """An output that a step hands to the IO manager."""

    asset: str
    mode: str
    run: Run
    attempt: int
    partitions: tuple[str, ...] | None
    rows: Counter
    empty_output: str
    read: tuple[str | None, int] | None = None
    read_rows: Counter = field(default_factory=Counter)
    seen_events: dict[str | None, int] = field(default_factory=dict)
    began: int = 0
    ended: frozenset[int] = frozenset()
    """The runs that had succeeded as the write began; of others it replaces the rows, though they may go on."""

    @property
    def order(self) -> tuple[int, int]:
        return self.run.number, self.attempt


def of_partitions(rows: Counter, partitions: Iterable[str] | None) -> Counter:
    """The rows in these partitions; all rows for None."""
    return rows.copy() if partitions is None else Counter({row: n for row, n in rows.items() if row[0] in partitions})


def is_in(partition: str | None, partitions: frozenset[str] | None) -> bool:
    return partition is None or partitions is None or partition in partitions


class Model:
    """All tables, runs and results of checks."""

    def __init__(self, tables: Iterable[str], switches: frozenset[str]) -> None:
        self.now = 0
        self.switches = switches
        self.lines: dict[str, dict[str | None, Line]] = {table: {} for table in tables}
        self.runs: dict[str, Run] = {}
        self.results: list[Result] = []
        self.compacted: set[str] = set()
        self.cleaned: set[str] = set()
        self.dropped: set[str] = set()
        self.lost: dict[str, dict[str, bool]] = {}
        """By branch the tables that were dropped with it, and whether an event has named the writes to it there."""
        self.is_unordered = False
        """Whether an event was recorded after that of a newer version of its line."""
        self.discarded: dict[str, list[Commit]] = {}
        """The writes of branches that were discarded without promotion."""
        self.recorded: dict[tuple[str, str | None, str | None], int] = {}
        """The newest version that an event records, by table, branch and partition."""

        self.shown: dict[tuple[str, str | None], str | None] = {}
        """The branch that the newest event is about, by table and partition."""

        self.reported_changes: dict[tuple[str, str | None, str | None], int | None] = {}
        """The version in the data version of the newest event, by table, branch and partition."""

    def tick(self) -> int:
        self.now += 1
        return self.now

    def rows(self, table: str, branch: str | None) -> Counter:
        line = self.lines[table].get(branch)
        return Counter() if line is None else line.rows

    def forget(self, table: str) -> None:
        """The table is not there any more, and no version that was recorded of it."""
        for branch, line in self.lines[table].items():
            if branch is not MAIN and not line.promoted:
                self.discarded.setdefault(branch, []).extend(line.own_commits())
                if line.own_commits():
                    is_recorded = any(key[:2] == (table, branch) for key in self.recorded)
                    self.lost.setdefault(branch, {})[table] = is_recorded
        self.lines[table] = {}
        self.results = [result for result in self.results if result.asset != table]
        self.compacted.discard(table)
        self.cleaned.discard(table)
        self.dropped.add(table)
        for facts in (self.recorded, self.shown, self.reported_changes):
            for key in [key for key in facts if key[0] == table]:
                del facts[key]
        for run in self.runs.values():
            run.main_at_begin[table] = Counter()

    # Runs

    def create_run(self, run: Run) -> None:
        self.runs[run.run_id] = run

    def mains(self) -> dict[str, Counter]:
        return {table: self.rows(table, MAIN).copy() for table in self.lines}

    # Reading

    def readable(self, table: str, run: Run) -> Counter:
        """The rows that an input of a run is made of: its branch, or main as it was when the root run began."""
        if run.branch is None:
            return self.rows(table, MAIN)
        if run.branch in self.lines[table]:
            return self.rows(table, run.branch)
        return run.main_at_begin[table]

    # Writing

    def fork(self, table: str, branch: str | None) -> None:
        """A write to a branch begins: there is a branch from now on, and a promoted one begins again from main."""
        if branch is None:
            return
        line = self.lines[table].get(branch)
        if line is None or (line.promoted and not line.has_late_rows):
            main = self.lines[table].setdefault(MAIN, Line())
            self.lines[table][branch] = Line(
                rows=main.rows.copy(),
                commits=[*main.commits],
                fork=main.rows.copy(),
                base=[*main.commits],
                began=self.now,
            )

    def attempts(self, write: Write) -> list[Commit]:
        """The commits of other attempts of the same write: the same root run, asset and partitions."""
        line = self.lines[write.asset].get(write.run.branch)
        scope = None if write.partitions is None else frozenset(write.partitions)
        return [
            commit
            for commit in (line.commits if line is not None else ())
            if commit.run.root == write.run.root and commit.asset == write.asset and commit.partitions == scope
        ]

    def earlier_attempts(self, write: Write) -> list[Commit]:
        """Those whose rows the write replaces: a run that succeeded has replaced those before it, and keeps its own."""
        attempts = [commit for commit in self.attempts(write) if not commit.is_undone]
        ended = [commit.at for commit in attempts if commit.run.number in write.ended and commit.run is not write.run]
        return [
            commit
            for commit in attempts
            if commit.order < write.order and (commit.run is write.run or commit.at > max(ended, default=0))
        ]

    def outcome(self, write: Write) -> str:
        """What has to come of a write that commits now: `written`, `skipped`, the kind of its failure, or `any`."""
        line = self.lines[write.asset].get(write.run.branch) or Line()
        if write.run.branch in self.discarded:
            return self.outcome_after_discard(write)
        is_published = write.run.branch is not MAIN and write.run.branch not in self.lines[write.asset]
        is_published |= line.began > write.began  # while the write went on, and was removed or begun again
        if not write.rows and write.empty_output == "error":
            return "any" if is_published else "empty"  # or any other failure that the write has as well
        if self.is_from_promotion(write) and "promoted attempts" not in self.switches:
            return "any"
        if is_published or self.may_be_undecidable(write) or self.was_replaced(write, line):
            return "any"
        if any(commit.order > write.order for commit in self.attempts(write)):
            return "superseded" if write.mode != "overwrite" or "late overwrites" in self.switches else "any"
        earlier = self.earlier_attempts(write)
        replaced = sum((commit.added for commit in earlier), Counter())
        if write.mode == "error" and of_partitions(line.rows, write.partitions) - replaced:
            return "exists"
        if not write.rows and write.empty_output == "skip" and (not earlier or write.mode in ("overwrite", "merge")):
            stays = write.mode == "overwrite" and all(self.is_promoted(commit, line) for commit in earlier)
            stays |= all(commit.added and not commit.added & line.rows for commit in earlier)  # others replaced them
            stays |= all(commit.run.state == "succeeded" for commit in earlier)  # meanwhile
            return "skipped" if not earlier or stays else "not to keep"  # what it has replaced cannot come back
        if write.mode == "overwrite" and any(self._is_rival(write, commit) for commit in line.commits):
            return "superseded" if "rivals" in self.switches else "any"
        return self.outcome_of_merge(write, line, earlier) if write.mode == "merge" else "written"

    def outcome_of_merge(self, write: Write, line: Line, earlier: list[Commit]) -> str:
        """A merge cannot take back rows of earlier attempts whose keys it lacks, unless it replaces the table."""
        if self.is_from_promotion(write) or any(commit.at > write.began for commit in self.attempts(write)):
            return "any"
        keys = {row[:2] for row in write.rows}
        present = {row[:2] for row in line.rows}
        lacking = [commit for commit in earlier if any(row[:2] in present - keys for row in commit.added)]
        if not lacking:
            return "written"
        return "any" if self.is_alone(write) or any(commit.is_replaced for commit in lacking) else "undecidable"

    def outcome_after_discard(self, write: Write) -> str:
        """A re-execution of a run whose branch was discarded has to write all that was written to it."""
        run, line = write.run, self.lines[write.asset].get(write.run.branch)
        is_sure = (
            "discarded branches" in self.switches
            and run.branch == f"dagster/run/{run.root}"
            and (line is None or not line.own_commits())
        )
        # A write of no rows may have been promoted without a version.
        discarded = [commit for commit in self.discarded[run.branch] if commit.added or commit.removed]
        lost = {commit.asset for commit in discarded if commit.asset} - set(run.steps)  # an undo has no asset
        return "lost" if is_sure and lost and not run.is_audited else "any"  # an audited job fails before it publishes

    def is_alone(self, write: Write) -> bool:
        """Whether nobody but earlier attempts of a write has written the table, which the write may replace."""
        line, earlier = self.lines[write.asset].get(write.run.branch) or Line(), self.earlier_attempts(write)
        return bool(earlier) and all(any(commit is one for one in earlier) for commit in line.commits)

    def was_replaced(self, write: Write, line: Line) -> bool:
        """Whether others replaced all rows since the write began, or since an earlier attempt of it."""
        since = min([write.began, *(commit.at for commit in self.earlier_attempts(write))])
        return any(commit.replaces_all and commit.at > since for commit in line.commits)

    def may_be_undecidable(self, write: Write) -> bool:
        """Whether rows of an earlier attempt were moved, and the versions that say where were removed.

        Or the first version of a table that others made again was removed, which may have been an earlier attempt.
        """
        line = self.lines[write.asset].get(write.run.branch)
        if line and line.commits and not line.commits[0].run.run_id and write.asset in self.dropped & self.cleaned:
            return write.mode != "overwrite"
        is_kept = write.asset not in self.compacted or write.asset not in self.cleaned
        return not is_kept and write.mode != "overwrite" and bool(self.earlier_attempts(write))

    def is_from_promotion(self, write: Write) -> bool:
        """Whether an earlier attempt wrote to a branch that was promoted and has begun again since."""
        line = self.lines[write.asset].get(write.run.branch)
        return line is not None and any(self.is_promoted(commit, line) for commit in self.earlier_attempts(write))

    @staticmethod
    def is_promoted(commit: Commit, line: Line) -> bool:
        """Whether a commit was made on a branch that was promoted and has begun again since, as this line."""
        return line.fork is not None and commit.run.branch is not None and commit in line.base

    def _is_rival(self, write: Write, commit: Commit) -> bool:
        """Whether a run that was created later has committed the same partitions since this run's step began."""
        return (
            commit.run.root != write.run.root
            and commit.run.number > write.run.number
            and commit.at > write.run.step_began[write.asset]
            and (write.partitions is None or bool(commit.partitions & set(write.partitions)))
        )

    def appended_meanwhile(self, write: Write) -> Counter:
        """The rows that others have appended to the partitions of an overwrite since it began."""
        line = self.lines[write.asset].get(write.run.branch) or Line()
        appends = [commit.added for commit in line.commits if not commit.asset and commit.at > write.began]
        return of_partitions(sum(appends, Counter()), write.partitions) if write.mode == "overwrite" else Counter()

    def apply(self, write: Write, version: int, stored: Counter) -> Commit:
        """The write has been committed as this version; rows that were appended meanwhile may be stored, or replaced."""
        line = self.lines[write.asset].setdefault(write.run.branch, Line())
        added = write.rows
        is_sole_writer = write.mode == "merge" and self.is_alone(write)
        if write.mode == "overwrite":
            removed = of_partitions(line.rows, write.partitions) - (self.appended_meanwhile(write) & stored)
        elif write.mode == "merge":
            keys = {row[:2] for row in write.rows}
            removed = Counter({row: n for row, n in line.rows.items() if row[:2] in keys})
            if is_sole_writer:
                removed = line.rows.copy()
            copies = Counter(row[:2] for row in removed.elements())  # of keys that a promotion added a second time
            added = Counter({row: max(n, copies[row[:2]]) for row, n in write.rows.items()})
        else:
            removed = sum((commit.added for commit in self.earlier_attempts(write)), Counter()) & line.rows
        for commit in self.earlier_attempts(write):
            commit.is_replaced = True
        line.rows = line.rows - removed + added
        if removed or added:
            line.changed = version
            line.has_late_rows = line.has_late_rows or line.promoted
            line.is_stuck = line.is_stuck or line.promoted
        line.versions[version] = line.rows.copy()
        commit = Commit(
            at=self.tick(),
            version=version,
            run=write.run,
            attempt=write.attempt,
            asset=write.asset,
            partitions=None if write.partitions is None else frozenset(write.partitions),
            added=added,
            removed=removed,
            read=write.read,
            read_rows=write.read_rows,
            seen_events=write.seen_events,
            replaces_all=is_sole_writer,
        )
        line.commits.append(commit)
        return commit

    # Where rows are from

    def codes(self, line: Line, asset: str, partition: str | None, *, without: Run | None = None) -> set[str]:
        """The code versions that the event of a job may name; empty if no run has written the partition."""
        skipped = {code for parts, code in line.skipped if parts is None or partition in parts}
        for commit in reversed(line.commits):
            if commit.asset == asset and commit.run is not without and is_in(partition, commit.partitions):
                return set() if commit.is_undone else {commit.run.code, *skipped}
        return set()

    def newest_write(self, line: Line, asset: str, partition: str | None) -> Commit | None:
        """The last write of an asset to a partition."""
        writes = [one for one in line.commits if one.asset == asset and is_in(partition, one.partitions)]
        return writes[-1] if writes else None

    def published_input(self, table: str, branch: str, partition: str | None) -> int | None:
        """The version of main that has the rows of `events` from which a branch's rows are made; None if unknown."""
        line, source = self.lines[table][branch], self.lines["events"].get(branch)
        write = self.newest_write(line, table, partition)
        if table == "events" or write is None or write.read is None or source is None or not source.promoted:
            return None
        return source.promoted_as if write.read == (branch, source.changed) else None

    # Branches

    def written_partitions(self, table: str, branch: str) -> set[str | None]:
        """The partitions that runs wrote on a branch; `{None}` for a table without partitions."""
        keys: set[str | None] = set()
        for commit in self.lines[table][branch].own_commits():
            keys |= {None} if commit.partitions is None else commit.partitions
        return keys

    def conflict(self, table: str, branch: str, mode: str) -> str:
        """Whether main has changed what the branch changes: `yes`, `no`, or `perhaps` where no page says so."""
        line, main = self.lines[table][branch], self.lines[table][MAIN]
        since = [commit for commit in main.commits if all(commit is not old for old in line.base)]
        if any(other.replaces_all for other in since) and self._differs(line):
            return "yes"
        if any(not other.asset and other.removed for other in since):
            return "perhaps"  # an undo
        if (line.fork - line.rows) - main.rows:
            return "yes"
        pairs = [(mine, other) for mine in line.own_commits() for other in since if self._overlap(mine, other)]
        if not pairs or mode == "append":
            return "no"
        if mode != "overwrite":
            return "perhaps"
        changed = any(
            (mine.added or mine.removed) and (other.added or other.removed) and other.asset for mine, other in pairs
        )
        return "yes" if changed and self._differs(line) else "perhaps"

    @staticmethod
    def _overlap(one: Commit, other: Commit) -> bool:
        return one.partitions is None or other.partitions is None or bool(one.partitions & other.partitions)

    @staticmethod
    def _differs(line: Line) -> bool:
        return line.rows != line.fork

    def promote(self, table: str, branch: str, version: int, run: Run) -> None:
        """Main has the changes of a branch from now on."""
        line, main = self.lines[table][branch], self.lines[table][MAIN]
        main.rows = main.rows - (line.fork - line.rows) + (line.rows - line.fork)
        for commit in line.own_commits():
            commit.publisher = commit.publisher or run
        main.commits += [commit for commit in line.own_commits() if commit not in main.commits]
        main.versions[version] = main.rows.copy()
        if line.fork != line.rows:
            main.changed = version
        main.skipped += line.skipped
        line.promoted, line.promoted_as = True, version

    def unaudited(self, table: str, branch: str, blocking: Iterable[tuple[str, bool]]) -> list[str]:
        """The blocking checks of an asset that do not let a branch pass, `(check, is partitioned)` given."""
        line = self.lines[table][branch]
        reasons = []
        for check, _ in blocking:
            results = [
                result
                for result in self.results
                if (result.check, result.asset, result.branch) == (check, table, branch)
                and result.read_at >= line.began  # results of a branch that has begun again are about other rows
            ]
            written = self.written_partitions(table, branch)
            failed = {scope for result in results if not result.passed for scope in result.partitions or (None,)}
            for scope in sorted(written | failed, key=str):
                about = [result for result in results if result.covers(scope)]
                about.sort(key=lambda result: (result.version, result.run))
                last_change = max(
                    (
                        commit.at
                        for commit in line.own_commits()
                        if (commit.added or commit.removed)
                        and (scope is None or commit.partitions is None or scope in commit.partitions)
                    ),
                    default=0,
                )
                if not about:
                    reasons.append(f"{check} {scope}: no result")
                elif not about[-1].passed:
                    reasons.append(f"{check} {scope}: its last result is a failure")
                elif scope in written and about[-1].read_at < last_change:
                    reasons.append(f"{check} {scope}: rows changed since it read them")
        return reasons
