"""Promotion and discarding of the branch of a table, and their events in Dagster.

gates        blocking checks passed on the branch and none failed, main has few new commits, the number of rows is
             plausible
promotion    one commit on main; an earlier promotion is found, even if the branch was discarded since
events       one materialization, with main's version, per asset and partition that the branch wrote; none if an earlier
             promotion was reported already
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core import maintenance
from lance_core.errors import LanceError, NotFoundError, UnsupportedError, VersionNotFoundError
from lance_dagster import properties as prop
from lance_dagster._context.definitions import blocking_checks
from lance_dagster.branches.changed_partitions import find_changed_partitions
from lance_dagster.branches.check_results import BranchChecks, check_branch
from lance_dagster.branches.gate import Gates
from lance_dagster.branches.written_entries import find_written_entries
from lance_dagster.events import reporting
from lance_dagster.events.provenance import find_written_provenance, point_inputs_to_main
from lance_dagster.events.reporting import PartitionRows
from lance_dagster.health.policy import policy_of_writes
from lance_dagster.lineage.check_reads import branch_id
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.refs import TableRef, TableRoot, join_names, on_branch

_PROMOTED_VERSION: Final = "lance.promoted_version"
"""Entry of a branch's metadata: the version of main that has its changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A promoted branch.

    Attributes:
        dataset: Main at the version that has the branch's rows, or at the newest if that version was cleaned up.
        version: The version that has the branch's rows.
        branch: The branch.
        promotion: The result of the promotion; None if the branch was discarded and an earlier promotion was found.
        properties: The transaction properties of the commit.
        partitions: The partitions that the branch wrote; empty for an asset without partitions, or if they are unknown.
        operation: The Lance operation of the commit; None if it was cleaned up, or there was nothing to commit.
        writers: The assets that wrote to the branch; empty if its commits name none.
        is_idle: Whether the branch has no change that a promotion would apply to main.
        coverage: The indices of main that cover the rows since, and those that do not; None if none was looked at.
    """

    dataset: lance_core.LanceDataset
    version: int
    branch: str
    promotion: Any
    properties: Mapping[str, str]
    partitions: Sequence[str]
    operation: str | None
    writers: Sequence[str]
    is_idle: bool = False
    coverage: maintenance.IndexCoverage | None = None

    @property
    def left_behind(self) -> Sequence[str]:
        """The changes that stay on the branch, because they are not to rows: configuration, metadata, indices."""
        return self.promotion.left_behind if self.promotion is not None else ()

    def is_of(self, ref: TableRef) -> bool:
        """Whether the asset wrote to the branch.

        If the commits name no asset, every asset counts but those that only own columns of another asset's table.
        """
        return ref.name in self.writers if self.writers else TABLE_KEY not in (ref.metadata or {})

    @property
    def foreign_versions(self) -> str:
        """The versions of the branch that no run wrote."""
        return ", ".join(map(str, json.loads(self.properties.get(prop.FOREIGN_BRANCH_VERSIONS, "[]"))))

    @property
    def summary(self) -> str:
        """What became of the branch, for the log."""
        if self.is_idle:
            return "has no change to promote"
        return f"{'is' if self.is_new else 'was promoted before, as'} version {self.version} of main"

    @property
    def is_new(self) -> bool:
        """Whether this call made the version."""
        return self.promotion is not None and not self.promotion.deduplicated


Tables = Sequence[tuple[lance_core.LanceDataset, Sequence[TableRef]]]
"""Tables with the assets that share each."""


def reject_conflicts(tables: Tables, branch: str, checked_branches: Mapping[str, BranchChecks]) -> None:
    """Reject the promotion of a branch of several tables if one of them cannot be promoted.

    A promotion of one table is one commit, which succeeds or leaves main as it was. Of several tables all are checked
    before the first commit, so that none is promoted without those that it was derived from.

    Args:
        tables: The tables; those without the branch do not count.
        branch: The branch.
        checked_branches: The branch as the gates have checked it, by the URI of the table.

    Raises:
        Failure: The branch of a table cannot be promoted; nothing was committed.
    """
    problems = []
    for main, refs in tables if len(tables) > 1 else ():
        checks = checked_branches.get(main.root_uri)
        if checks is None:
            continue
        try:
            promotion = main.branches.promote(branch, version=checks.version, branch_id=checks.branch_id, dry_run=True)
            _reject_settings_alone(main, branch, promotion)
        except NotFoundError:
            continue
        except LanceError as error:
            problems.append(f"{join_names(refs)}: {error}")
    if problems:
        raise dg.Failure(
            f"branch {branch} is not promoted, and main of all its tables is unchanged: {'; '.join(problems)}"
        )


def publish(
    main: lance_core.LanceDataset,
    branch: str,
    *,
    checked: BranchChecks | None,
    properties: Mapping[str, str],
    refs: Sequence[TableRef] = (),
) -> Published | None:
    """Promote a branch, or find its earlier promotion; None if the table never had the branch.

    The indices of main cover the rows in the version after that of the promotion, where they can be extended here.

    Args:
        main: The table.
        branch: The branch.
        checked: The branch as the gates have checked it; None without a branch, where an earlier promotion counts.
        properties: The transaction properties of the commit.
        refs: The assets of the table, whose metadata may require that its indices cover the rows.

    Raises:
        LanceError: The branch cannot be promoted, such as after a change that the gates have not seen; main is
            unchanged.
        UnsupportedError: The branch has changed only settings; or the metadata of an asset has `require_search`, and
            pylance is not installed.
    """
    try:
        if checked is None:
            return _find_earlier_promotion(main, branch)
        policies = [policy_of_writes(ref.metadata, label=f"asset {ref.name}") for ref in refs]
        foreign = {prop.FOREIGN_BRANCH_VERSIONS: json.dumps(sorted(checked.foreign))} if checked.foreign else {}
        if not checked.is_promoted and any(map(_requires_search, refs)):
            maintenance.reject_without_search(main)
        promotion = main.branches.promote(
            branch,
            version=checked.version,
            branch_id=checked.branch_id,
            tag=True,
            transaction_properties={**properties, **foreign},
        )
    except NotFoundError:
        return _find_earlier_promotion(main, branch)
    is_idle = _reject_settings_alone(main, branch, promotion)
    commit_properties: Mapping[str, str] = {}
    operation = None
    try:
        dataset = main.checkout_version((None, promotion.version))
    except VersionNotFoundError:  # the branch was promoted long ago, and the version was cleaned up since
        dataset = main.checkout_version((None, None))
        partitions, writers, _ = _sum_up_commits(main, branch)
    else:
        transaction = dataset.read_transaction(promotion.version)
        if transaction is not None and prop.properties_of(transaction).get(prop.PROMOTED_FROM) == branch:
            commit_properties, operation = prop.properties_of(transaction), transaction.operation.name
        partitions, writers = (
            prop.partition_names(commit_properties),
            prop.split_values(commit_properties.get(prop.ASSET_KEY)),
        )
    if is_idle:
        partitions, writers, runs = _sum_up_commits(main, branch)
        commit_properties = {prop.RUN_ID: json.dumps(runs)}
    latest = main.checkout_version((None, None))
    return Published(
        dataset=dataset,
        version=promotion.version,
        branch=branch,
        promotion=promotion,
        properties=commit_properties,
        partitions=partitions,
        operation=operation,
        writers=writers,
        is_idle=is_idle,
        coverage=None if is_idle else _cover_promotion(dataset, promotion.version, latest, properties, policies),
    )


def _cover_promotion(
    promoted: lance_core.LanceDataset,
    version: int,
    latest: lance_core.LanceDataset,
    properties: Mapping[str, str],
    policies: Sequence[maintenance.MaintenancePolicy | None],
) -> maintenance.IndexCoverage:
    """Extend the indices of main, and build those that the assets of the table declare for their writes.

    An index that the promotion dropped, as one on vectors if it replaces all rows, and that was not built again is a
    problem.
    """
    declared = [policy for policy in policies if policy is not None]
    indices = {column: index for policy in reversed(declared) for column, index in (policy.indices or {}).items()}
    coverage = cover_rows(latest, properties, replace(declared[0], indices=indices) if declared else None)
    try:
        before = promoted.checkout_version((None, version - 1)).describe_indices()
    except VersionNotFoundError:  # the branch was promoted long ago, or main had no version
        return coverage
    present = {index.name for dataset in (promoted, latest) for index in dataset.describe_indices()}
    reason = "the promotion set all its values again, which drops it"
    dropped = {index.name: reason for index in before if index.name not in present}
    return replace(coverage, problems={**dropped, **coverage.problems})


def cover_rows(
    dataset: lance_core.LanceDataset, properties: Mapping[str, str], policy: maintenance.MaintenancePolicy | None = None
) -> maintenance.IndexCoverage:
    """Extend the indices of a table; what fails is reported with the commit before, which stays all the same.

    Args:
        dataset: The table, on its branch; it moves to the newest version.
        properties: The transaction properties of the commits.
        policy: Declares indices that are built where they are missing; None to build none.
    """
    try:
        if policy is not None:
            return maintenance.keep_indices(dataset, policy, properties=properties)
        return maintenance.cover_rows(dataset, properties=properties)
    except (LanceError, OSError) as error:
        names = [index.name for index in dataset.describe_indices()] or (policy.indices if policy is not None else ())
        return maintenance.IndexCoverage(version=dataset.version, problems=dict.fromkeys(names or (), str(error)))


def coverage_entries(coverage: maintenance.IndexCoverage | None) -> dict[str, Any]:
    """The entries of an event about the indices that cover its rows."""
    return {
        "lance/indices_covered": ", ".join(coverage.covered) or None if coverage is not None else None,
        "lance/indices_not_covered": ", ".join(coverage.problems) or None if coverage is not None else None,
    }


def _requires_search(ref: TableRef) -> bool:
    """Whether the maintenance policy of an asset demands that declared indices are kept."""
    fields = (ref.metadata or {}).get("lance/maintenance")
    return bool(isinstance(fields, Mapping) and fields.get("require_search"))


def _reject_settings_alone(main: lance_core.LanceDataset, branch: str, promotion: Any) -> bool:
    """Reject a branch that changed only settings; returns whether it changed nothing and was never promoted."""
    is_idle = promotion.deduplicated and _PROMOTED_VERSION not in main.branches.list()[branch]["metadata"]
    settings = [setting for setting in promotion.left_behind if not setting.startswith("index ")]
    if is_idle and settings:
        raise UnsupportedError(
            f"branch {branch!r} has changed no rows or columns, only what a promotion does not apply: "
            f"{', '.join(settings)}. Make the same changes on main, by update_config, update_metadata, "
            "replace_schema_metadata or replace_field_metadata, and discard the branch"
        )
    return is_idle


def _find_earlier_promotion(main: lance_core.LanceDataset, branch: str) -> Published | None:
    promotion_commit = main.find_transaction(prop.PROMOTED_FROM, branch)
    if promotion_commit is None:
        return None
    version, transaction = promotion_commit
    main.branches.check_promotion(branch, version)
    properties = prop.properties_of(transaction)
    return Published(
        dataset=main.checkout_version(version),
        version=version,
        branch=branch,
        promotion=None,
        properties=properties,
        partitions=prop.partition_names(properties),
        operation=transaction.operation.name,
        writers=prop.split_values(properties.get(prop.ASSET_KEY)),
    )


def _sum_up_commits(main: lance_core.LanceDataset, branch: str) -> tuple[list[str], list[str], list[str]]:
    """The partition keys, the assets and the runs that the commits in a branch's history name."""
    partitions: set[str] = set()
    writers: set[str] = set()
    runs: set[str] = set()
    for _, transaction in main.checkout_version((branch, None)).history():
        properties = prop.properties_of(transaction)
        partitions.update(prop.partition_names(properties))
        writers.update(prop.split_values(properties.get(prop.ASSET_KEY)))
        runs.update(prop.split_values(properties.get(prop.RUN_ID)))
    return sorted(partitions), sorted(writers), sorted(runs)


def report_promotion(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    root: TableRoot,
    ref: TableRef,
    published: Published,
    *,
    partitions: Sequence[str] | None = None,
    entries: Mapping[str, Any] | None = None,
) -> bool:
    """Log what became of a branch, and the events that Dagster lacks after its promotion; returns whether any are.

    A new promotion reports all partitions, at the version that it made. For an earlier promotion, only partitions are
    reported whose event is missing, because the run that promoted ended before it recorded the event; these are
    reported as main has them now. So are partitions of a branch without changes that main has no event of.

    Args:
        context: The step that promotes.
        root: The tables.
        ref: The asset.
        published: The promoted branch.
        partitions: The partitions to report; None for the partitions that the asset wrote on the branch.
        entries: More metadata.

    Raises:
        DatasetNotFoundError: The asset has another table since the promotion.
    """
    location = root.locate_changed(ref, published.dataset)
    context.log.info("%s: branch %s %s", ref.name, published.branch, published.summary)
    if published.left_behind:
        context.log.warning("%s: branch %s keeps %s", ref.name, published.branch, ", ".join(published.left_behind))
    for index, problem in published.coverage.problems.items() if published.coverage is not None else ():
        context.log.warning("%s: index %s does not cover all rows of main: %s", ref.name, index, problem)
    if not published.is_of(ref) or (published.is_idle and not published.writers):
        return False
    written = _written_partitions(context.instance, ref, published) if partitions is None else sorted(partitions)
    partition_keys = sorted({*written, *_find_partitions_of_others(context, ref, published)})
    latest = published.dataset.checkout_version((None, None))
    reported_versions = reporting.read_recorded_states(context.instance, ref.key, partition_keys, latest)
    if published.is_new:
        due = list(reported_versions)
    else:  # without properties the commit is cleaned up or was never needed: only partitions without an event are due
        least = published.version if published.properties and not published.is_idle else 0
        due = [
            partition
            for partition, reported in reported_versions.items()
            if reported.version is None or reported.version < least
        ]
    overtaken = any((reported.version or 0) > published.version for reported in reported_versions.values())
    dataset = published.dataset if published.is_new and not overtaken else latest
    if not due:
        return False
    names = [partition for partition in due if partition is not None]
    rows = reporting.count_partition_rows(dataset, ref, names, _find_new_fragments(published))
    report = reporting.TableReport(
        ref=ref,
        dataset=dataset,
        partitions=names,
        metadata=_promotion_metadata(published, len(names)) | dict(entries or {}),
        rows=rows,
        provenance={
            **{at: reported_versions[at].provenance for at in set(names) - set(written)},
            **_find_provenance(context, root, ref, published),
        },
        entries_by_partition=_find_reported_entries(context.instance, ref, published, rows),
    )
    return reporting.log_events(context, root, report, location)


def _find_reported_entries(
    instance: dg.DagsterInstance, ref: TableRef, published: Published, rows: Mapping[str, PartitionRows]
) -> dict[str | None, dict[str, Any]]:
    """The entries that the runs on the branch reported, without rows that the commit of the promotion counts."""
    runs = prop.split_values(published.properties.get(prop.RUN_ID))
    entries_by_partition = find_written_entries(instance, ref.key, published.branch, runs)
    for partition, entries in entries_by_partition.items():
        counted = rows.get(partition) if partition is not None else None
        if counted is not None and counted.written is not None and "lance/columns" not in entries:
            entries.pop("lance/rows_written", None)
    return entries_by_partition


def _find_provenance(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, root: TableRoot, ref: TableRef, published: Published
) -> dict[str | None, dict[str, str]]:
    """The tags that name the origin of the rows that the runs on the branch wrote, by partition, or by None."""
    instance, branch = context.instance, published.branch
    try:
        head = published.dataset.checkout_version((branch, None))
    except NotFoundError:  # the branch was discarded
        head = None
    runs = prop.split_values(published.properties.get(prop.RUN_ID))
    written = find_written_provenance(instance, ref.key, branch, runs, head=head)
    read = {version: _read_on_branch(published, version) for version in {version for version, _ in written.values()}}

    def open_table(key: dg.AssetKey) -> lance_core.LanceDataset | None:
        return root.open_or_none(TableRef(key=key).resolved(context))

    return {
        at: point_inputs_to_main(instance, tags, branch, read[version], open_table)
        for at, (version, tags) in written.items()
    }


def _read_on_branch(published: Published, version: int) -> dict[str, int]:
    """The versions of the branch that a version was made from, by asset; the oldest if the commit was cleaned up."""
    properties = published.properties
    try:
        transaction = published.dataset.checkout_version((published.branch, version)).read_transaction(version)
        properties = prop.properties_of(transaction) or properties
    except NotFoundError:
        pass
    read: dict[str, int] = {}
    for name in properties:
        if name.startswith(prop.INPUT_PREFIX):
            joined = prop.split_values(properties[name])
            entries = [json.loads(entry) for entries in joined for entry in prop.split_values(entries)]
            versions = [entry["version"] for entry in entries if entry.get("branch") == published.branch]
            read |= {name.removeprefix(prop.INPUT_PREFIX): min(versions)} if versions else {}
    return read


def _written_partitions(instance: dg.DagsterInstance, ref: TableRef, published: Published) -> list[str]:
    """The partitions that the asset wrote on the branch.

    If the commit names no partitions or several assets, the partitions come from the events of the runs.
    """
    if (published.partitions and len(published.writers) <= 1) or ref.partitions_def is None:
        return list(published.partitions)
    return reporting.list_partitions_of_runs(
        instance, ref.key, prop.split_values(published.properties.get(prop.RUN_ID))
    )


def _find_partitions_of_others(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, ref: TableRef, published: Published
) -> list[str]:
    """The partitions that a promotion has changed; none if only runs wrote to the branch, which name theirs."""
    if not published.foreign_versions:
        return []
    context.log.warning(
        "%s: versions %s of branch %s, which no run wrote, are published as well",
        ref.name,
        published.foreign_versions,
        published.branch,
    )
    before = _open_before(published)
    return [] if before is None else find_changed_partitions(context.instance, ref, before, published.dataset)


def _promotion_metadata(published: Published, partitions: int) -> dict[str, Any]:
    promotion = published.promotion if published.is_new else None
    # With several partitions each event has its own numbers; with several assets, the numbers of each are unknown.
    whole = promotion if partitions <= 1 and len(published.writers) <= 1 else None
    return {
        "lance/operation": published.operation,
        "lance/published": True,
        "lance/promoted_from": published.branch,
        "lance/branch_version": _number(published.properties.get("promoted_version")),
        "lance/base_version": promotion.fork_version if promotion is not None else None,
        "lance/rows_written": whole.rows_added if whole is not None else None,
        "lance/rows_deleted": (whole.rows_removed or None) if whole is not None else None,
        "lance/tag": promotion.tag if promotion is not None else None,
        "lance/left_behind": ", ".join(published.left_behind) or None,
        "lance/foreign_branch_versions": published.foreign_versions or None,
        **coverage_entries(published.coverage),
        "lance/deduplicated": None if published.is_new else True,
    }


def _find_new_fragments(published: Published) -> set[int] | None:
    """The fragments that the promotion added; None if it is an earlier one, or the version before was cleaned up."""
    before = _open_before(published) if published.is_new else None
    return None if before is None else set(published.dataset.fragment_ids()) - set(before.fragment_ids())


def _open_before(published: Published) -> lance_core.LanceDataset | None:
    """Main at the version before the promotion; None if one of both was cleaned up."""
    if published.dataset.version != published.version:
        return None
    try:
        return published.dataset.checkout_version((None, published.version - 1))
    except VersionNotFoundError:
        return None


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None


def open_checks(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    tables: Tables,
    branch: str,
    *,
    only_blocking: bool = False,
) -> dict[str, BranchChecks]:
    """What checks say about a branch that is to be promoted, by the URI of each table that has the branch.

    Args:
        context: The step that promotes.
        tables: The tables.
        branch: The branch.
        only_blocking: Whether failures of other checks do not count.
    """
    checked_branches = {}
    for main, refs in tables:
        listed, head = main.branches.list().get(branch), on_branch(main, branch)
        if listed is None or head is None:
            continue
        if _PROMOTED_VERSION in listed["metadata"]:
            checks = BranchChecks(
                version=head.version, branch=branch, branch_id=branch_id(head, branch), is_promoted=True
            )
        else:
            keys, blocking = [ref.key for ref in refs], partial(blocking_checks, context)
            checks = check_branch(context.instance, main, branch, keys, blocking, only_blocking=only_blocking)
        checked_branches[main.root_uri] = checks
    return checked_branches


def find_gate_problems(main: lance_core.LanceDataset, checks: BranchChecks, gates: Gates) -> list[str]:
    """The reasons against the promotion of a branch, besides checks.

    Args:
        main: The table.
        checks: The branch, which was not promoted, as it was checked.
        gates: The conditions.
    """
    problems: list[str] = []
    if checks.cleaned_up:
        problems.append(
            f"version {checks.cleaned_up} of the branch was cleaned up by another library, so that it is not known "
            "which assets, partitions and runs it was of, and no event can name them: discard the branch and run again"
        )
    if (gates.max_commit_drift, gates.min_row_ratio, gates.max_row_ratio) == (None, None, None):
        return problems
    diff = main.branches.diff(checks.branch)
    rows, before = diff.rows.on_branch, main.count_rows()
    if gates.max_commit_drift is not None and diff.drift > gates.max_commit_drift:
        problems.append(f"main had {diff.drift} commits since the fork, max_commit_drift is {gates.max_commit_drift}")
    if gates.min_row_ratio is not None and rows < gates.min_row_ratio * before:
        problems.append(f"it has {rows} rows, main {before}: less than min_row_ratio {gates.min_row_ratio}")
    if gates.max_row_ratio is not None and before and rows > gates.max_row_ratio * before:
        problems.append(f"it has {rows} rows, main {before}: more than max_row_ratio {gates.max_row_ratio}")
    return problems
