"""The declared indices of a table in its maintenance: what is due, and the doing of it, each index on its own.

    survey                 which actions are due, and which segments keep fragments apart that could be merged
    commit                 segments that do are merged before rewrites are committed
    refresh_indices        all other actions, decided on again after each of them; then the records are committed

A segment is built by pylance in a child process and committed by lance_core. What fails is recorded, and costs that
index alone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from lance_core.errors import LanceError, StoreError
from lance_core.maintenance.routine.budget import time_is_up
from lance_core.maintenance.routine.health import TableHealth
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.routine.report import Log, MaintenanceReport
from lance_core.maintenance.search.child import ChildFailedError, ChildProcess
from lance_core.maintenance.search.cover import is_lost
from lance_core.maintenance.search.decide import (
    MOST_SEGMENTS,
    IndexAction,
    PresentIndex,
    TableFacts,
    choose_segments_to_merge,
    decide,
    find_name,
    is_recall_too_low,
    make_merge,
)
from lance_core.maintenance.search.declaration import IndexDeclaration
from lance_core.maintenance.search.facts import count_vectors, find_pylance, read_facts, require_vectors
from lance_core.maintenance.search.parts import IndexBuilder, build_segments, remove_leftovers, to_record
from lance_core.maintenance.search.record import IndexRecord, describe_failure
from lance_core.table.index import RECORD_PREFIX, IndexMetadata
from lance_core.table.operations import CreateIndex, UpdateConfig, UpdateMap
from lance_core.verbs.context.handle import Handle, Snapshot, retry_on_latest
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.indices.create import create_scalar_index
from lance_core.verbs.inspect.indices import reject_damaged_files

MOST_UNCOVERED: Final = 0.05
"""The share of the rows that an index may miss before it is a reason to run maintenance."""

_UNTRAINED: Final = "it would cover no row, as there are too few vectors to train it on; declare another kind"
_LOST: Final = "a writer committed first: "
_MEASUREMENT: Final = ("settings", "queries", "rows", "at")
COUNTERS: Final = {
    "build": "indices_built",
    "rebuild": "indices_built",
    "extend": "indices_refreshed",
    "merge": "indices_refreshed",
    "adopt": "indices_adopted",
    "measure": "indices_measured",
    "drop": "indices_dropped",
}


@dataclass(frozen=True, slots=True)
class DeclaredIndices:
    """The declared indices of a version.

    Attributes:
        facts: The facts of the version.
        actions: The next action for each index for which something is due.
        names: The declarations by the names of their indices.
    """

    facts: TableFacts
    actions: Sequence[IndexAction]
    names: Mapping[str, IndexDeclaration]

    @property
    def due(self) -> list[IndexAction]:
        """The actions that can be done now."""
        return [action for action in self.actions if action.is_possible]

    def find_lacking(self, *, with_broken: bool) -> list[IndexAction]:
        """The builds of indices that are missing, or that cover no row.

        Args:
            with_broken: Whether builds of those that an attempt has broken are among them.
        """
        rows = {name: index.rows for name, index in self.facts.present.items()}
        broken = [name for name, record in self.facts.records.items() if with_broken and record.failure is not None]
        builds = [each for each in self.due if each.action in ("build", "rebuild")]
        return [each for each in builds if not rows.get(each.name) or each.name in broken]

    @property
    def missing(self) -> list[str]:
        """The indices for which pylance is missing."""
        return [action.name for action in self.actions if action.action == "install"]

    def find_pressing(self, policy: MaintenancePolicy) -> list[IndexAction]:
        """The actions for which maintenance is to run: not the extensions of indices that miss few rows.

        Args:
            policy: The policy of the survey.
        """
        facts, due = self.facts, {action.name: action for action in self.due}
        for name, declaration in self.names.items():  # lance_core extends its own kinds without an action
            index, is_own = facts.present.get(name), policy.refresh_indices and not declaration.needs_pylance
            if index is not None and is_own and facts.missed_by(index):
                reason = f"it misses {facts.count_missed_rows(index):,} of {facts.rows:,} rows"
                due.setdefault(name, IndexAction(name=name, action="extend", reason=reason))
        return [action for action in due.values() if not self._can_wait(action)]

    def _can_wait(self, action: IndexAction) -> bool:
        index = self.facts.present.get(action.name)
        if index is None or index.has_old_words or len(index.segments) > MOST_SEGMENTS:
            return False
        is_small = action.action in ("extend", "merge")
        return is_small and self.facts.count_missed_rows(index) <= MOST_UNCOVERED * self.facts.rows

    @property
    def problems(self) -> dict[str, str]:
        """Why actions cannot be done now, by index, without those for which pylance is missing."""
        return {each.name: each.reason for each in self.actions if each.action in ("wait", "reject")}


def survey_declared(
    dataset: Handle,
    policy: MaintenancePolicy,
    records: Mapping[str, IndexRecord] | None = None,
    *,
    waits: bool = True,
    base: Snapshot | None = None,
) -> DeclaredIndices | None:
    """What is due for the declared indices of a version; None without declarations.

    Args:
        dataset: The table, at the version.
        policy: The policy for the table.
        records: The records; None for those of the version.
        waits: Whether what has failed is due later; otherwise it is due at once.
        base: For a version that a dry run expects, one with the same values, whose files exist.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> policy = maintenance.MaintenancePolicy(indices={"id": "BTREE"})
        >>> [(each.name, each.action) for each in maintenance.survey_declared(table, policy).due]
        [('id_idx', 'build')]
    """
    if policy.indices is None:
        return None
    declarations = policy.declarations
    facts = read_facts(dataset.snapshot, declarations)
    facts = facts if records is None else replace(facts, records=records)
    actions = decide(
        declarations,
        facts,
        now=datetime.now(UTC) if waits else None,
        pylance=find_pylance(),
        limits=(policy.index_memory_bytes, policy.index_timeout_s),
        drop_undeclared=policy.drop_undeclared,
    )
    if not policy.refresh_indices:
        actions = [action for action in actions if action.action not in ("extend", "merge")]
    actions = require_vectors(actions, base or dataset.snapshot, facts)
    return DeclaredIndices(facts, actions, {find_name(each, facts, declarations): each for each in declarations})


def without_missing_columns(dataset: Handle, policy: MaintenancePolicy) -> MaintenancePolicy:
    """The policy without declarations of indices on columns that a version lacks, as for many tables of a folder.

    Args:
        dataset: The table, at the version.
        policy: The policy of the tables.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> policy = maintenance.MaintenancePolicy(indices={"id": "BTREE", "body": "FTS"})
        >>> list(maintenance.without_missing_columns(table, policy).indices)
        ['id']
    """
    if policy.indices is None:
        return policy
    columns = read_facts(dataset.snapshot, policy.declarations).columns
    return replace(policy, indices={name: entry for name, entry in policy.indices.items() if name in columns})


def find_stale_indices(health: TableHealth, policy: MaintenancePolicy, declared: DeclaredIndices | None) -> list[str]:
    """The indices that miss rows and are extended by the policy, without declared ones that need pylance.

    Args:
        health: The numbers of the version.
        policy: The policy for the table.
        declared: The declared indices of the version.
    """
    names = [] if declared is None else [n for n, each in declared.names.items() if each.needs_pylance]
    return [n for n, share in health.unindexed.items() if share and policy.refresh_indices and n not in names]


def find_early_actions(declared: DeclaredIndices, policy: MaintenancePolicy, *, merges: bool) -> list[IndexAction]:
    """The actions by which more fragments could be merged: each makes one segment of rows that are kept apart.

    Args:
        declared: The declared indices of a version.
        policy: The policy, with the declarations.
        merges: Whether segments are merged; otherwise indices are extended only.
    """
    facts, actions = declared.facts, [each for each in declared.due if each.action in ("extend", "merge")]
    if not merges or not policy.refresh_indices or find_pylance() is None:
        return actions
    blocked = {each.name for each in declared.actions if each not in actions and each.action != "measure"}
    joined = {action.name: action for action in actions}
    for name, declaration in declared.names.items():
        index = facts.present.get(name)
        if index is not None and declaration.needs_pylance and name not in blocked:
            missed = facts.missed_by(index)
            merged = choose_segments_to_merge(index, facts.count_missed_rows(index))
            if len(merged) + bool(missed) > 1 and merged:
                reason = "its segments keep fragments apart that could be merged"
                joined[name] = make_merge(name, declaration, facts, merged, reason)
    return list(joined.values())


def run_early_actions(
    dataset: Handle, report: MaintenanceReport, properties: Mapping[str, str], *, merges: bool
) -> MaintenanceReport:
    """Merge and extend the declared indices that keep fragments apart; each is a version."""
    declared = survey_declared(dataset, report.plan.policy)
    if declared is None:
        return report
    policy = report.plan.policy
    with IndexWork(dataset, policy, properties, dict(declared.facts.records)) as work:
        # Decided on again after each, as a writer may have moved the rows or the segments of the others.
        while action := work.find_next(find_early_actions(declared, policy, merges=merges)):
            report = work.run(action, declared.facts, report)
            declared = survey_declared(dataset, policy, work.records) or declared
        return work.record(report)


def list_changed_entries(before: Mapping[str, IndexRecord], after: Mapping[str, IndexRecord]) -> dict[str, str | None]:
    """The entries of the configuration that change with records; None for those that are removed."""
    entries: dict[str, str | None] = {
        RECORD_PREFIX + name: record.to_json() for name, record in after.items() if before.get(name) != record
    }
    return entries | {RECORD_PREFIX + name: None for name in before if name not in after}


def drop_idle_records(records: dict[str, IndexRecord], facts: TableFacts, policy: MaintenancePolicy) -> None:
    """Remove the records of indices that were dropped, and are no longer declared.

    Args:
        records: The records.
        facts: The facts of the version.
        policy: The policy, with the declarations.
    """
    for name in [*records]:
        if name not in facts.present and records[name].column not in (policy.indices or {}):
            del records[name]


def run_due_actions(
    dataset: Handle,
    report: MaintenanceReport,
    properties: Mapping[str, str],
    log: Log,
    builder: IndexBuilder | None = None,
) -> MaintenanceReport:
    """Do what is due for the declared indices, and record it; an index that a run has changed is decided on again.

    Args:
        dataset: The table; it moves to the newest version.
        report: The report so far.
        properties: Transaction properties of the commits.
        log: Gets a warning for each problem.
        builder: Builds indices in parts; None for one child process.
    """
    declared = survey_declared(dataset, report.plan.policy)
    if declared is None:
        return report
    policy = report.plan.policy
    with IndexWork(dataset, policy, properties, dict(declared.facts.records), builder) as work:
        # Each action is done once: an index that is never good enough ends the loop as well.
        while action := work.find_next(declared.due):
            reason = find_limit(action, declared.facts, report, dataset.snapshot)
            if reason is None:
                report = work.run(action, declared.facts, report)
                declared = survey_declared(dataset, policy, work.records) or declared
            else:
                work.done.add((action.name, action.action))
                report = report.put_off(reason)
        drop_idle_records(work.records, declared.facts, policy)
        report = work.record(report)
    problems = describe_problems(declared, {**_find_low_recalls(declared, report), **work.problems})
    return replace(report, index_problems=problems).check_indices(declared.missing, log)


def _find_low_recalls(declared: DeclaredIndices, report: MaintenanceReport) -> dict[str, str]:
    """The indices that a run has measured, and whose recall is too low although they are as they were trained."""
    measured = {work["index"] for work in report.indices if work["action"] == "measure"}
    problems = {}
    for name, declaration in declared.names.items():
        record = declared.facts.records.get(name)
        if name in measured and record is not None and is_recall_too_low(declaration, record):
            recall = record.recall or {}
            attempts = f"; with other settings: {recall['note']}" if recall["note"] else ""
            problems[name] = f"recall {recall['value']:.3f} is below min_recall {declaration.min_recall}{attempts}"
    return problems


def find_limit(action: IndexAction, facts: TableFacts, report: MaintenanceReport, snapshot: Snapshot) -> str | None:
    """The limit of the run's budget by which an action is put off; None if it fits.

    Args:
        action: The action.
        facts: The facts of the version.
        report: The report so far.
        snapshot: The version.
    """
    if time_is_up(report.plan.deadline):
        return f"max_duration: the time was up before index {action.name!r} was to {action.action}"
    left, size = report.bytes_left, estimate_bytes(action, facts, snapshot)
    if left is not None and size > left:
        return (
            f"max_bytes_rewritten: to {action.action} index {action.name!r} reads {size:,} bytes, which do not fit "
            f"into the {left:,} that are left"
        )
    return None


def estimate_bytes(action: IndexAction, facts: TableFacts, snapshot: Snapshot) -> int:
    """About how many bytes of data files the build of a segment reads: those of its column, as a part of all columns.

    Args:
        action: The action.
        facts: The facts of the version.
        snapshot: The version.
    """
    fragments = [each for each in snapshot.manifest.fragments if each.id in action.fragment_ids]
    if action.declaration is not None and action.declaration.is_vector:
        column_type = facts.columns[action.declaration.column][1]
        width = column_type.list_size * max(1, column_type.value_type.bit_width // 8)
        return int(width * sum(facts.fragments[each.id] for each in fragments))
    size = sum(file.file_size_bytes or 0 for each in fragments for file in each.files)
    return size // max(1, len(snapshot.manifest.schema.fields))


def _add_work(report: MaintenanceReport, entry: Mapping[str, Any]) -> MaintenanceReport:
    """The report with an action on an index, which counts as lost or failed if the last action on it was."""
    earlier: Mapping[str, Any] = next(
        (each for each in reversed(report.indices) if each["index"] == entry["index"]), {}
    )
    (lost, failed), (was_lost, had_failed) = _count_error(entry), _count_error(earlier)
    report = replace(report, indices=[*report.indices, entry]).plus(lost=lost - was_lost)
    return report if failed == had_failed else report.plus(indices_failed=failed - had_failed)


def _count_error(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Whether an action was lost to a writer, and whether it has failed otherwise."""
    error = entry.get("error")
    is_lost_to_writer = error is not None and error.startswith(_LOST)
    return int(is_lost_to_writer), int(error is not None and not is_lost_to_writer)


def describe_problems(declared: DeclaredIndices | None, more: Mapping[str, str] | None = None) -> list[str]:
    """Why declared indices cannot be built or kept, each with its name.

    Args:
        declared: The declared indices of a version.
        more: Problems of the work on them, which come before those of the version.
    """
    problems = {**({} if declared is None else declared.problems), **(more or {})}
    return [f"index {name!r}: {problem}" for name, problem in problems.items()]


class IndexWork:
    """Does actions on the indices of one table, and collects the records and problems.

    Args:
        dataset: The table; it moves to each version that is committed.
        policy: The policy, with the limits of child processes.
        properties: Transaction properties of the commits.
        records: The records of the version, which change with the work.
        builder: Builds indices in parts; None for one child process.
    """

    def __init__(
        self,
        dataset: Handle,
        policy: MaintenancePolicy,
        properties: Mapping[str, str],
        records: dict[str, IndexRecord],
        builder: IndexBuilder | None = None,
    ) -> None:
        self.dataset, self.policy, self.properties, self._builder = dataset, policy, properties, builder
        self.records, self.problems = records, dict[str, str]()
        self.done = set[tuple[str, str]]()
        self._recorded = dict(records)
        self.child = ChildProcess(policy.index_memory_bytes, policy.index_timeout_s)

    def __enter__(self) -> Self:
        """Begin without a child process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the child process."""
        self.child.close()

    def find_next(self, actions: Sequence[IndexAction]) -> IndexAction | None:
        """The first of some actions that was not done yet."""
        return next((each for each in actions if (each.name, each.action) not in self.done), None)

    def run(self, action: IndexAction, facts: TableFacts, report: MaintenanceReport) -> MaintenanceReport:
        """Do an action; what goes wrong is recorded, and is a problem of the index alone."""
        started = time.monotonic()
        if action.action == "rebuild":
            self.done.discard((action.name, "measure"))
        self.done.add((action.name, action.action))
        entry: dict[str, Any] = {"index": action.name, "action": action.action, "reason": action.reason}
        size = estimate_bytes(action, facts, self.dataset.snapshot)
        try:
            self._do(action, facts)
        except (ChildFailedError, LanceError, OSError) as error:
            entry["error"] = f"{_LOST}{error}" if is_lost(error) else str(error)
            if not is_lost(error):
                self.note_failure(action, error)
        else:
            self.problems.pop(action.name, None)  # of an attempt that this one has mended
            report = report.plus(**{COUNTERS[action.action]: 1, "bytes_read": size})
            recall = self.records[action.name].recall if action.name in self.records else None
            if action.action == "measure" and recall is not None:
                entry |= {"recall": recall["value"], **{name: recall[name] for name in _MEASUREMENT}}
        self.dataset.checkout_latest()
        return _add_work(report, {**entry, "seconds": time.monotonic() - started})

    def record(self, report: MaintenanceReport) -> MaintenanceReport:
        """Commit the records; where storage fails, as on a full disk, the report has the problems of the indices."""
        try:
            self.commit_records()
        except StoreError as error:
            for name, problem in self.problems.items():
                report = report.failed("refresh_indices", f"index {name!r}: {problem}")
            report = report.failed("refresh_indices", error)
        return report

    def commit_records(self) -> None:
        """Commit the records that have changed, in one version."""
        entries = list_changed_entries(self._recorded, self.records)
        if entries:
            operation = UpdateConfig(config=UpdateMap(entries=entries))
            retry_on_latest(
                self.dataset.snapshot,
                lambda snapshot: UncommittedFiles(snapshot).commit(operation, properties=self.properties),
            )
            self._recorded = dict(self.records)
            self.dataset.checkout_latest()

    def _do(self, action: IndexAction, facts: TableFacts) -> None:
        snapshot, declaration, name = self.dataset.snapshot, action.declaration, action.name
        if declaration is None:
            self._commit(snapshot, (), action)
            self.records.pop(name, None)
            return
        if action.action in ("extend", "merge", "measure"):
            reject_damaged_files(snapshot, name)
        record = self.records.get(name)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if record is None or action.action in ("build", "rebuild", "adopt"):
            record = IndexRecord(column=declaration.column, build=declaration.build_key)
        if action.action == "adopt":
            largest = max((segment.rows for segment in facts.present[name].segments), default=0)
            self.records[name] = replace(record, trained_rows=largest)
            return
        if action.action == "measure":
            result = self.child.run("measure", self._request(action) | {"min_recall": declaration.min_recall})
            recall = _describe_recall(result, declaration, record, facts.present[name])
            self.records[name] = replace(record, failure=None, recall={**recall, "at": now})
            return
        if declaration.is_vector and action.action in ("extend", "merge"):
            merged = len(action.replaced) if action.action == "merge" else 0
            arguments = {"num_indices_to_merge": merged}
            self.child.run("extend", {**self._request(action), "names": [name], "arguments": arguments})
        else:
            parameters = self._build(snapshot, action, facts)
            if action.action in ("build", "rebuild"):
                rows = sum(facts.fragments[fragment] for fragment in action.fragment_ids)
                record = replace(record, trained_rows=rows, trained_at=now, parameters=parameters, recall=None)
        failure = record.failure
        is_unmeasured = failure is not None and failure["action"] == "measure" and action.action in ("extend", "merge")
        self.records[name] = replace(record, failure=failure if is_unmeasured else None)

    def _build(self, snapshot: Snapshot, action: IndexAction, facts: TableFacts) -> dict[str, Any]:
        """Build and commit a segment, or a scalar index as a whole; returns the parameters."""
        declaration = action.declaration
        assert declaration is not None
        if not declaration.needs_pylance:
            create_scalar_index(
                snapshot,
                declaration.column,
                declaration.kind,
                action.name,
                replace=True,
                train=True,
                arguments=declaration.parameters,
                properties=self.properties,
            )
            return dict(declaration.parameters)
        column_type = facts.columns[declaration.column][1]
        dimensions = column_type.list_size if declaration.is_vector else 0
        parameters = declaration.choose_parameters(facts.rows, dimensions)
        is_further = action.action in ("extend", "merge")
        if is_further:  # pylance searches no segments whose parameters differ
            parameters = dict(facts.present[action.name].parameters) or parameters
        elif (most := parameters.get("num_partitions", 1)) > declaration.least_vectors:
            count = count_vectors(snapshot, declaration.column, facts, most)
            parameters = parameters if count == most else declaration.choose_parameters(count, dimensions)
        key, segments, is_committed = str(uuid.uuid4()), list[dict[str, Any]](), False
        request = {**self._request(action), "parameters": parameters, "name": action.name, "uuid": key}
        request |= {"fragment_ids": sorted(action.fragment_ids), "is_further": is_further}
        rows = {fragment: facts.fragments[fragment] for fragment in action.fragment_ids}
        try:
            segments = build_segments(request, rows, self.child, self._builder)
            if declaration.is_vector and not any(segment["fragment_ids"] for segment in segments):
                raise ChildFailedError(_UNTRAINED, is_error=True)
            version = snapshot.manifest.version
            self._commit(snapshot, tuple(to_record(each, action.name, version) for each in segments), action)
            is_committed = True
        finally:
            uuids = [segment["uuid"] for segment in segments]
            if not is_committed or self._builder is not None:
                remove_leftovers(self.dataset, key, uuids, are_used=is_committed)
        return parameters

    def _commit(self, snapshot: Snapshot, new: tuple[IndexMetadata, ...], action: IndexAction) -> None:
        """Commit segments in place of others, in one version."""
        removed = tuple(index for index in snapshot.manifest.indices if str(index.uuid) in action.replaced)
        operation = CreateIndex(new_indices=new, removed_indices=removed)
        self.dataset.move_to(UncommittedFiles(snapshot).commit(operation, properties=self.properties))

    def _request(self, action: IndexAction) -> dict[str, Any]:
        """What a child process needs for any job."""
        declaration, snapshot = action.declaration, self.dataset.snapshot
        assert declaration is not None
        record = self.records.get(action.name)
        return {
            "uri": self.dataset.uri,
            "options": dict(snapshot.options),
            "version": snapshot.manifest.version,
            "column": declaration.column,
            "kind": declaration.kind,
            "metric": declaration.metric,
            "settings": declaration.search_settings,
            "queries": declaration.queries,
            "parameters": dict(record.parameters if record is not None else declaration.parameters),
        }

    def note_failure(self, action: IndexAction, error: Exception) -> None:
        """Record the failure of an action, after which maintenance waits, or builds the index again."""
        declaration, name = action.declaration, action.name
        self.problems[name] = f"to {action.action} it failed: {error}"
        if declaration is None:
            return
        record = self.records.get(name) or IndexRecord(column=declaration.column, build=declaration.build_key)
        is_error = not isinstance(error, ChildFailedError) or error.is_error
        is_rebuilt = not self.done.isdisjoint({(name, "build"), (name, "rebuild")})
        failure = describe_failure(
            record.failure,
            datetime.now(UTC),
            action=action.action,
            reason=str(error),
            pylance=find_pylance(),
            build=declaration.build_key,
            limits=[self.child.memory, self.child.timeout_s],
            needs_build=action.action != "measure" or (is_error and not is_rebuilt),
            is_error=is_error,
        )
        self.records[name] = replace(record, failure=failure)


def _describe_recall(
    result: Mapping[str, Any], declaration: IndexDeclaration, record: IndexRecord, index: PresentIndex
) -> dict[str, Any]:
    """A measurement of an index for its record."""
    settings, earlier = declaration.search_settings, record.recall or {}
    is_fresh = record.trained_at is not None and len(index.segments) == 1 and index.rows <= record.trained_rows
    fresh_value = earlier.get("fresh_value") if earlier.get("settings") == settings else None
    value = result["value"] if is_fresh else fresh_value
    return {**result, "settings": settings, "rows": index.rows, "fresh_value": value}
