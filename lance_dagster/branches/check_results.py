"""What a branch of a table changed for its assets, and what checks said about it: the records that the gate judges.

changed rows   the commits of the branch since its fork: operation, assets, partitions
results        the logs of the runs that have the tag `lance/branch`: results of checks, and what their steps read
blocking       the checks of the code location; if it is not known, those of the code locations of the runs that wrote,
               which their commits record
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core.errors import NotFoundError
from lance_core.maintenance import removed_commits
from lance_dagster import properties as prop
from lance_dagster._context.check_log import CheckEvaluation, CheckLog, read_check_log
from lance_dagster.branches.gate import REST, ChangedRows, CheckProblem, CheckResult, check_problems
from lance_dagster.lineage.check_reads import branch_id
from lance_dagster.lineage.history import read_history
from lance_dagster.tables.branch_policy import BRANCH_TAG

_AHEAD: Final = 8
_OWN_PROPERTIES: Final = (prop.RUN_ID, prop.UNDO_RUN_ID, prop.COLUMN_TYPE, prop.ERASURE, prop.MAINTENANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchChecks:
    """What checks say about a branch.

    Attributes:
        version: The version of the branch that was looked at.
        branch: The branch.
        branch_id: The identifier of the branch.
        is_promoted: Whether the branch was promoted before, so that no check counts.
        problems: The checks that reject it, by asset.
        undefined: The assets of which it is not known which blocking checks they have.
        cleaned_up: The newest version that was cleaned up without a record, which may have changed any partition; 0 for
            none.
        foreign: The versions of the branch that no run wrote, newest first, and that may have changed any rows.
        newest_run: The newest run on the branch; None without one.
        newest_result: The number of the run of the newest result of a check, and that of the event in its log; zeros
            without one.
    """

    version: int
    branch: str
    branch_id: str | None
    is_promoted: bool = False
    problems: Mapping[str, Sequence[CheckProblem]] = field(default_factory=dict)
    undefined: Sequence[str] = ()
    cleaned_up: int = 0
    foreign: Sequence[int] = ()
    newest_run: str | None = None
    newest_result: tuple[int, int] = (0, 0)

    def names(self, *, failed: bool) -> list[str]:
        """The checks that failed, or those without a result, as "asset: check"."""
        problems = [(asset, problem) for asset, problems in self.problems.items() for problem in problems]
        names = {f"{asset}: {problem.check}" for asset, problem in problems if (problem.result is not None) is failed}
        return sorted(names) + [f"{asset}: all, as they are not known" for asset in self.undefined if not failed]

    def sentences(self, launch: str) -> list[str]:
        """The reasons why the branch is rejected.

        Args:
            launch: How to launch a check on the branch.
        """
        undefined = [
            f"{asset}: it is not known which blocking checks it has, as neither this run nor the branch names them; "
            f"run the job of a code location that defines {asset}, and not by execute_in_process"
            for asset in self.undefined
        ]
        return undefined + [
            self._sentence(asset, problem, launch) for asset, problems in self.problems.items() for problem in problems
        ]

    def _sentence(self, asset: str, problem: CheckProblem, launch: str) -> str:
        about = f" (partition {', '.join(problem.partitions[:3])})" if problem.partitions else ""
        about += " and others" if len(problem.partitions) > 3 else ""
        if problem.result is not None:
            read = problem.result.version
            label = "it" if read is None else f"version {read}{about} of it"
            return f"{asset}: the check {problem.check} did not pass on {label}, in run {problem.result.run_id}"
        last = problem.last
        if last is None:
            why = "it has given no result on the branch"
        elif last.version is None:
            why = (
                f"what it read in run {last.run_id} is not recorded: let it load the asset as an input, open the table "
                "by LanceTableResource.open without a version, or name the branch in pyspark_lance.sql, as "
                f"lake.nyc.flights@`{self.branch}`"
            )
        else:
            why = f"it last read version {last.version}, in run {last.run_id}"
            if last.partitions is not None and not problem.partitions:
                why += (
                    ", and not all of its rows: let it open the table by LanceTableResource.open, without a version, "
                    "if rows lie outside of the partitions"
                )
        run = "" if self.newest_run is None else f", or re-execute it in run {self.newest_run}"
        return (
            f"{asset}: the check {problem.check} has not passed on version {self.version}{about}: {why}; "
            f"launch the check {launch}{run}"
        )


def find_failed_checks(
    instance: dg.DagsterInstance,
    main: lance_core.LanceDataset,
    branch: str,
    key: dg.AssetKey,
    *,
    most_runs: int | None = None,
) -> list[str] | None:
    """The checks of an asset that failed on the rows that a branch has; None if too many runs wrote to it.

    Args:
        instance: The instance that recorded the runs.
        main: The table.
        branch: The branch.
        key: The asset.
        most_runs: The most runs on the branch whose logs are read; None for all of them.
    """
    limit = None if most_runs is None else most_runs + 1
    runs = instance.get_runs(filters=dg.RunsFilter(tags={BRANCH_TAG: branch}), limit=limit)
    if limit is not None and len(runs) == limit:
        return None
    results = (evaluation for run in runs for evaluation in read_check_log(instance, run.run_id).evaluations)
    if not any(
        evaluation.asset_key == key and not evaluation.passed and not evaluation.only_warns for evaluation in results
    ):
        return []  # without a look at the history of the branch
    try:
        checks = check_branch(instance, main, branch, [key], lambda _: ())
    except NotFoundError:  # it was discarded meanwhile
        return None
    return sorted({problem.check for problem in checks.problems.get(key.to_user_string(), ())})


def check_branch(
    instance: dg.DagsterInstance,
    main: lance_core.LanceDataset,
    branch: str,
    keys: Iterable[dg.AssetKey],
    blocking_checks: Callable[[dg.AssetKey], Collection[str] | None],
    *,
    only_blocking: bool = False,
) -> BranchChecks:
    """Judge the newest version of a branch by the checks of its assets.

    Args:
        instance: The instance that recorded the runs.
        main: The table.
        branch: The branch.
        keys: The known assets of the table; those that wrote to the branch are judged as well.
        blocking_checks: Returns the names of an asset's blocking checks; None if the code location is not known. Then
            those count that the commits of the branch record.
        only_blocking: Whether failures of other checks do not count.

    Raises:
        VersionNotFoundError: There is no such branch.
    """
    head = main.checkout_version((branch, None))
    records = instance.get_run_records(filters=dg.RunsFilter(tags={BRANCH_TAG: branch}))
    history, lost = _read_commits_since_fork(main, head)
    branch_runs = _RunsOfBranch.of(instance, head, history, records)
    writers = {dg.AssetKey.from_user_string(name) for commit in history for name in commit.assets}
    is_unnamed = bool(lost) or any(not commit.assets for commit in history)
    problems: dict[str, list[CheckProblem]] = {}
    undefined: list[str] = []
    newest_result = (0, 0)
    for key in sorted({*keys, *writers}):
        name = key.to_user_string()
        rows = _sum_up_changed_rows(history, name, lost, branch_runs.partition_lists)
        results = branch_runs.list_results(key)
        newest_result = max((newest_result, *(result.order for result in results)))
        blocking: Collection[str] = ()
        if rows.changed and (key in writers or is_unnamed):
            names = blocking_checks(key)
            names = branch_runs.blocking_checks(key) if names is None else names
            blocking, undefined = names or (), undefined + ([name] if names is None else [])
        listed = [
            problem
            for problem in check_problems(rows, blocking, results)
            if problem.check in blocking or not only_blocking
        ]
        if listed:
            problems[name] = listed
    return BranchChecks(
        version=head.version,
        branch=branch,
        branch_id=branch_runs.branch_id,
        problems=problems,
        undefined=undefined,
        cleaned_up=lost,
        foreign=[commit.version for commit in history if commit.is_foreign],
        newest_run=branch_runs.newest,
        newest_result=newest_result,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BranchCommit:
    """A commit of a branch that may have changed rows, whose version may have been removed since."""

    version: int
    operation: str | None
    properties: Mapping[str, str]
    is_idle: bool = False

    @property
    def assets(self) -> list[str]:
        """The assets for which the commit was made."""
        return prop.split_values(self.properties.get(prop.ASSET_KEY))

    @property
    def is_foreign(self) -> bool:
        """Whether others than Dagster made the commit."""
        return self.operation != "Clone" and self.properties.keys().isdisjoint(_OWN_PROPERTIES)


def _read_commits_since_fork(
    main: lance_core.LanceDataset, head: lance_core.LanceDataset
) -> tuple[list[_BranchCommit], int]:
    """The commits of a branch that may have changed rows, newest first; and the newest version that is unknown, or 0.

    Of versions that cleanup has removed the commits are stored, unless another library has removed them.
    """
    assert head.branch is not None
    fork, removed = main.branches.list()[head.branch]["parent_version"], removed_commits(head)
    existing = {version_ref["version"] for version_ref in head.version_refs()}
    commits: dict[int, Any] = {
        version: commit for version, commit in removed.items() if version > fork and version not in existing
    }
    history = read_history(head, after=fork, count_changes=False, ahead=_AHEAD)
    commits |= {commit.version: commit for commit in history}
    newest_first = [
        _BranchCommit(
            version=version,
            operation=commits[version].operation,
            properties=commits[version].properties,
            is_idle=getattr(commits[version], "is_idle", False),
        )
        for version in sorted(commits, reverse=True)
        if commits[version].changes_rows
    ]
    missing = (number for number in range(fork + 1, head.version) if number not in existing | removed.keys())
    return newest_first, max(missing, default=0)


def _sum_up_changed_rows(
    history: Sequence[_BranchCommit], asset: str, lost: int, partition_lists: Mapping[str, Sequence[str]]
) -> ChangedRows:
    """What the commits of a branch, newest first, changed for an asset.

    Args:
        history: The commits that may have changed rows.
        asset: The asset; commits that name only other assets do not change its rows.
        lost: The newest version that was cleaned up without a record; it may have changed anything. 0 for none.
        partition_lists: Lists of partitions by their hash, for commits that name more than a commit records.
    """
    changed: dict[str | None, int] = {REST: lost} if lost else {}
    replaced: dict[str | None, int] = {}
    table_replaced = 0
    for commit in reversed([commit for commit in history if not commit.assets or asset in commit.assets]):
        names = prop.partition_names(commit.properties) or partition_lists.get(
            commit.properties.get(prop.PARTITION_HASH, ""), ()
        )
        parts: Sequence[str | None] = [*names] or [REST]
        if commit.is_idle:  # the rows are those that an earlier result has read, if one covers the partitions
            changed = dict.fromkeys(parts, max(changed.values(), default=commit.version)) | changed
            continue
        if prop.OUT_OF_PARTITION in commit.properties:
            changed[REST] = commit.version
        changed |= dict.fromkeys(parts, commit.version)
        if prop.SLICES in commit.properties:
            replaced |= dict.fromkeys(parts, commit.version)
        elif commit.operation == "Overwrite":
            table_replaced = commit.version
    return ChangedRows(changed=changed, replaced=replaced, table_replaced=table_replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunsOfBranch:
    """The logs of the runs on a branch, with the numbers of the runs."""

    uri: str
    branch: str | None
    branch_id: str | None
    history: Sequence[_BranchCommit]
    logs: Mapping[str, tuple[int, CheckLog]]

    @classmethod
    def of(
        cls,
        instance: dg.DagsterInstance,
        head: lance_core.LanceDataset,
        history: Sequence[_BranchCommit],
        records: Iterable[dg.RunRecord],
    ) -> _RunsOfBranch:
        """Read the logs of the runs that have the branch's tag."""
        logs = {
            record.dagster_run.run_id: (int(record.storage_id), read_check_log(instance, record.dagster_run.run_id))
            for record in records
        }
        return cls(
            uri=head.root_uri,
            branch=head.branch,
            branch_id=branch_id(head, head.branch or ""),
            history=history,
            logs=logs,
        )

    @property
    def newest(self) -> str | None:
        """The newest run that wrote to the branch or that had checks; None if there is none."""
        writers = {run for commit in self.history for run in prop.split_values(commit.properties.get(prop.RUN_ID))}
        numbered_runs = [
            (number, run)
            for run, (number, log) in self.logs.items()
            if run in writers or log.planned or log.evaluations
        ]
        return max(numbered_runs, default=(0, None))[1]

    @property
    def partition_lists(self) -> dict[str, Sequence[str]]:
        """The lists of partitions that steps have read or written, by the hash that commits record."""
        lists = [read["partitions"] for _, log in self.logs.values() for reads in log.reads.values() for read in reads]
        return {prop.hashed(json.dumps(names)): names for names in lists if names is not None}

    def blocking_checks(self, key: dg.AssetKey) -> set[str] | None:
        """The checks of an asset that were blocking when a run wrote it or executed them, or was to execute them.

        None if no commit records the checks that the asset has: others may exist that no run was to execute.
        """
        commits = [commit.properties for commit in self.history if key.to_user_string() in commit.assets]
        recorded = [json.loads(names) for commit in commits if (names := commit.get(prop.BLOCKING_CHECKS)) is not None]
        if not recorded:
            return None
        planned = {name for _, log in self.logs.values() for asset, name in log.planned if asset == key}
        results = [
            evaluation for _, log in self.logs.values() for evaluation in log.evaluations if evaluation.asset_key == key
        ]
        blocking = {evaluation.name for evaluation in results if evaluation.is_blocking}
        return blocking.union(planned - {evaluation.name for evaluation in results}, *recorded)

    def list_results(self, key: dg.AssetKey) -> list[CheckResult]:
        """The results of the checks of an asset, except for those about an earlier branch of the same name."""
        writers = {run for commit in self.history for run in prop.split_values(commit.properties.get(prop.RUN_ID))}
        oldest = min((number for run, (number, _) in self.logs.items() if run in writers), default=0)
        listed = []
        for run, (number, log) in self.logs.items():
            for evaluation in log.evaluations:
                reads = self._list_reads(run, log, evaluation) if evaluation.asset_key == key else None
                if reads is None or (not reads and number < oldest):
                    continue
                listed.append(_make_result(run, number, evaluation, reads))
        return listed

    def _list_reads(self, run: str, log: CheckLog, evaluation: CheckEvaluation) -> list[Mapping[str, Any]] | None:
        """What the attempt of a step read of the branch, or wrote; None if it was a branch of the same name."""
        reads = [
            read
            for read in log.reads.get(evaluation.attempt, ())
            if (read["uri"], read["branch"]) == (self.uri, self.branch)
        ]
        asset = evaluation.asset_key.to_user_string()
        reads = [read for read in reads if read["wrote"] == asset][-1:] or [
            read for read in reads if read["wrote"] is None
        ]
        if any(read["branch_id"] != self.branch_id for read in reads):
            return None
        return reads or self._list_other_commits(run, asset, evaluation)

    def _list_other_commits(self, run: str, asset: str, evaluation: CheckEvaluation) -> list[Mapping[str, Any]]:
        """The newest version that the attempt of a step committed by other means than the IO manager."""
        step, attempt = evaluation.attempt
        made_by = (run, step, str(attempt))
        for commit in self.history:
            if asset in commit.assets and made_by == tuple(
                map(commit.properties.get, (prop.RUN_ID, prop.STEP_KEY, prop.ATTEMPT))
            ):
                return [{"version": commit.version, "partitions": prop.partition_names(commit.properties) or None}]
        return []


def _make_result(run: str, number: int, evaluation: CheckEvaluation, reads: Sequence[Mapping[str, Any]]) -> CheckResult:
    """The result of an evaluation; of several reads the oldest version counts.

    One that passed on partitions beside which there is no row is about all rows. One that failed is about these
    partitions, so that a later result about them overrules it.
    """
    partitions: set[str] | None = None
    if evaluation.partition is not None:
        partitions = {evaluation.partition}
    elif reads and all(read["partitions"] is not None for read in reads):
        partitions = {name for read in reads for name in read["partitions"]}
    if evaluation.passed and reads and all(read.get("is_whole", read["partitions"] is None) for read in reads):
        partitions = None
    return CheckResult(
        check=evaluation.name,
        order=(number, evaluation.number),
        run_id=run,
        passed=evaluation.passed or evaluation.only_warns,
        version=min((read["version"] for read in reads), default=None),
        partitions=partitions,
    )
