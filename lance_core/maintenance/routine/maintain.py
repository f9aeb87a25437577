"""`maintain` and `maintain_lake`: the whole maintenance of one table, and of all tables below a root, in one call."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar

from lance_core.arguments import checked
from lance_core.errors import DatasetNotFoundError, InvalidInputError, MaintenanceFailedError, StoreError
from lance_core.maintenance.routine.budget import fit_budget
from lance_core.maintenance.routine.declared import without_missing_columns
from lance_core.maintenance.routine.dry_run import foresee
from lance_core.maintenance.routine.log import LOG_FOLDER, LOG_PATH, append_log, find_tables_put_off, place_below
from lance_core.maintenance.routine.policy import MaintenanceBudget, MaintenancePolicy, change_policy
from lance_core.maintenance.routine.report import Log, MaintenancePlan, MaintenanceReport, Rewriter, format_error
from lance_core.maintenance.routine.run import finish
from lance_core.maintenance.routine.steps import StepContext, pool_rewriter
from lance_core.maintenance.routine.survey import drop_idle_cleanup, survey_table
from lance_core.maintenance.search.parts import IndexBuilder
from lance_core.store import canonical_uri
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.inspect.listing import check_ids
from lance_core.verbs.inspect.tables import FoundTable, find_in_namespace, find_with_manifest

_logger = logging.getLogger(__name__)

SUFFIX: Final = ".lance"
_RESERVED: Final = (f"{LOG_FOLDER}/", "_ops/")
"""Folders below a root whose tables are left to those that write them: this log, and outputs of Dagster's ops."""

Policy = TypeVar("Policy")


@checked
def maintain(
    dataset: Handle,
    policy: MaintenancePolicy | None = None,
    *,
    budget: MaintenanceBudget | None = None,
    dry_run: bool = False,
    rewriter: Rewriter | None = None,
    index_builder: IndexBuilder | None = None,
    transaction_properties: Mapping[str, str] | None = None,
) -> MaintenanceReport:
    """Do all that is due for a table: compaction, deletions, indices and cleanup, each step on its own.

    Writers are never waited for: a table whose rewrites lost every race is reported as "skipped". A step that fails
    does not stop the later ones.

    Args:
        dataset: The table; it moves to its newest version.
        policy: The steps and thresholds; None for those of `MaintenancePolicy()`.
        budget: The limits; None for no limits.
        dry_run: Whether to report only what would be done, as `policy.dry_run`.
        rewriter: Runs compaction tasks; None for `pool_rewriter(policy.max_parallel_tasks)`.
        index_builder: Builds declared indices in parts; None for one child process.
        transaction_properties: Strings for the history, by key, which all commits get.

    Raises:
        MaintenanceFailedError: A step failed; the error has the report.
        DatasetNotFoundError: The table was dropped.

    Examples:
        >>> table = lance.write_dataset({"id": [1]}, "t.lance")
        >>> table.insert({"id": [2]})
        >>> report = maintenance.maintain(table, maintenance.MaintenancePolicy(retain_versions=1))
        >>> (report.outcome, report.done["fragments_removed"], report.after.fragments)
        ('done', 2, 1)
    """
    chosen = _override_dry_run(MaintenancePolicy() if policy is None else policy, dry_run=dry_run)
    dataset.checkout_latest()
    report = drop_idle_cleanup(dataset, survey_table(dataset, chosen), lambda: None)
    (report,) = fit_budget([report], MaintenanceBudget() if budget is None else budget)

    def newest() -> Handle:
        dataset.checkout_latest()
        return dataset

    report = _maintain_surveyed(report, newest, rewriter, index_builder, transaction_properties)
    if report.was_dropped:
        outcome = f", which was {report.outcome}: {report.reason}" if report.outcome != "absent" else ""
        raise DatasetNotFoundError(f"{dataset.uri}: the dataset was dropped during its maintenance{outcome}")
    _reject_failures([report])
    return report


@checked
def maintain_lake(  # noqa: PLR0913 - each is a choice of its own, all but one have a default
    root_uri: str | PathLike[str],
    policy: MaintenancePolicy | None = None,
    *,
    policies: Mapping[str, Any] | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    budget: MaintenanceBudget | None = None,
    dry_run: bool = False,
    rewriter: Rewriter | None = None,
    index_builder: IndexBuilder | None = None,
    storage_options: Mapping[str, str] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> list[MaintenanceReport]:
    """Do all that is due for the tables below a root; a table that fails does not stop the others.

    Tables of a directory namespace are named by the parts of their ids, "shop/orders"; its own table, "__manifest", is
    maintained as well, and its versions are kept for 30 days at least.

    The reports are appended to the log, the table `_maintenance/log.lance` below the root. With a budget, tables of
    which the newest record there says that something was put off come first.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        policy: The steps and thresholds; None for those of `MaintenancePolicy()`. It also keeps the log small.
        policies: Policies, fields of one, or False (not maintained), by folder or path below the root, such as "nyc" or
            "nyc/flights". Those of a table's folders are applied first, then its own.
        include: Globs over the paths of tables below the root, such as "nyc/*"; all tables if there are none.
        exclude: Globs of tables to leave out.
        budget: The limits of all tables together; None for no limits.
        dry_run: Whether to report only what would be done.
        rewriter: Runs compaction tasks; None for `pool_rewriter(policy.max_parallel_tasks)`.
        index_builder: Builds declared indices in parts; None for one child process.
        storage_options: Credentials and options of the storage, under object_store's names.
        namespace: Properties of a namespace of others, such as `{"impl": "rest", "uri": "https://..."}`, whose tables
            are maintained in place of those below the root; the root has the log alone.

    Returns:
        One report per table, by its path without ".lance"; none of tables that are not maintained.

    Raises:
        MaintenanceFailedError: A table failed; the error has all reports.
        InvalidInputError: A policy is invalid, or a glob or the name of a policy could be one of two tables.

    Examples:
        >>> table = lance.write_dataset({"id": [1]}, "lake/nyc/flights.lance")
        >>> table.insert({"id": [2]})
        >>> reports = maintenance.maintain_lake("lake", policies={"nyc": {"cleanup_older_than": "30d"}})
        >>> [(report.plan.table, report.outcome) for report in reports]
        [('nyc/flights', 'done')]
    """
    root, limits = fspath(root_uri), MaintenanceBudget() if budget is None else budget
    chosen = _override_dry_run(MaintenancePolicy() if policy is None else policy, dry_run=dry_run)
    include, exclude = ((globs,) if isinstance(globs, str) else tuple(globs) for globs in (include, exclude))
    by_path = {name.strip("/").removesuffix(SUFFIX): changes for name, changes in (policies or {}).items()}
    for name, changes in by_path.items():
        change_policy(chosen, changes, where=f"policies[{name!r}]")
    lake_tables = find_chosen_tables(root, include, exclude, storage_options, namespace, tuple(policies or ()))
    tables = {table.name: table for table in lake_tables}
    warn_of_idle_choices(_logger, by_path, include, [name for table in tables.values() for name in table.names])

    def policy_of(path: str) -> MaintenancePolicy | None:
        path_policy: MaintenancePolicy | None = chosen
        for name in policy_levels(path):
            if name in by_path:
                path_policy = change_policy(path_policy or chosen, by_path[name], where=f"policies[{name!r}]")
        return path_policy

    reports = []
    for table in tables.values():
        table_policy = agree_on_policy(table.names, by_path, policy_of, _logger)
        if table_policy is not None:
            table_policy = _override_dry_run(table_policy, dry_run=chosen.dry_run)
            own_changes = [changes for name in table.names if isinstance(changes := by_path.get(name), Mapping)]
            is_own = any("indices" in changes for changes in own_changes)
            reports.append(_survey_listed_table(table, table_policy, skips_missing_columns=not is_own))
    reports = fit_budget(reports, limits, _read_put_off(root, storage_options, limits))
    reports = [
        _maintain_surveyed(report, _opener(report.plan, root, storage_options, namespace), rewriter, index_builder)
        for report in reports
    ]
    run_id, unlogged = uuid.uuid4().hex, None
    try:
        append_log(root, reports, chosen, run_id=run_id, job="maintain_lake", storage_options=storage_options)
    except Exception as error:
        _logger.exception("the log of maintenance below %s could not be written", root)
        unlogged = format_error("the log of maintenance: append", error)
    _reject_failures(reports, unlogged)
    return reports


def _override_dry_run(policy: MaintenancePolicy, *, dry_run: bool) -> MaintenancePolicy:
    return replace(policy, dry_run=True) if dry_run else policy


def _opener(
    plan: MaintenancePlan, root: str, storage_options: Mapping[str, str] | None, namespace: Mapping[str, Any] | None
) -> Callable[[], Handle]:
    """A function that opens the newest version of a table, if it still has the ids by which its policy was chosen."""

    def open_newest() -> Handle:
        options = storage_options
        if plan.ids is not None:
            options = check_ids(plan.uri, plan.ids, root_uri=root, storage_options=options, namespace=namespace)
        return Handle(plan.uri, storage_options=options)

    return open_newest


def _survey_listed_table(
    table: FoundTable, policy: MaintenancePolicy, *, skips_missing_columns: bool
) -> MaintenanceReport:
    """The survey of a table of a listing; an error is kept in the report, so that the other tables are finished.

    Args:
        table: The table.
        policy: The policy for the table.
        skips_missing_columns: Whether declarations of indices on columns that the table lacks are left out.
    """
    plan = MaintenancePlan(table=table.name, uri=table.uri, policy=policy)
    if table.problem is not None:
        return MaintenanceReport(plan=plan).failed("plan", StoreError(table.problem))
    try:
        dataset = Handle(plan.uri, storage_options=table.storage_options)
        policy = without_missing_columns(dataset, policy) if skips_missing_columns else policy
        return drop_idle_cleanup(dataset, survey_table(dataset, policy, table=table.name, ids=table.ids), lambda: None)
    except DatasetNotFoundError:
        return MaintenanceReport(plan=plan, was_dropped=True)
    except Exception as error:
        _logger.exception("%s cannot be read", table.name)
        return MaintenanceReport(plan=plan).failed("plan", error)


def _maintain_surveyed(
    report: MaintenanceReport,
    open_table: Callable[[], Handle],
    rewriter: Rewriter | None,
    index_builder: IndexBuilder | None,
    properties: Mapping[str, str] | None = None,
) -> MaintenanceReport:
    """The report after the work that is due within the budget, or after a dry run."""
    plan = report.plan
    if plan.policy.dry_run and plan.health is not None:
        try:
            return foresee(open_table().checkout_version((plan.branch, plan.health.version)), report)
        except DatasetNotFoundError:
            return replace(report, was_dropped=True)
        except Exception as error:
            _logger.exception("%s: the dry run failed", plan.table)
            return report.failed("dry_run", error)
    if report.error is not None or report.is_put_off:
        return report.plus(indices_not_refreshed=len(plan.indices_left)) if plan.indices_left else report
    if not plan.is_due:
        report = report.plus(indices_not_refreshed=len(plan.indices_left)) if plan.indices_left else report
        return report.check_indices(plan.indices_missing, _logger)
    context = StepContext(
        rewriter=pool_rewriter(plan.policy.max_parallel_tasks) if rewriter is None else rewriter,
        index_builder=index_builder,
        properties=dict(properties or {}),
    )
    return finish(report, open_table, context)


def _reject_failures(reports: Sequence[MaintenanceReport], unlogged: str | None = None) -> None:
    """Raise an error that names all tables that failed, and why the log could not be written.

    Raises:
        MaintenanceFailedError: A table failed.
    """
    errors = [f"{report.plan.table}: {report.error}" for report in reports if report.error is not None]
    what = f" of {len(errors):,} of {len(reports):,} tables" if len(reports) > 1 and errors else ""
    if errors or unlogged:
        named = "; ".join(filter(None, (*errors, unlogged)))
        raise MaintenanceFailedError(f"maintenance{what} failed: {named}", reports)


def _read_put_off(root: str, storage_options: Mapping[str, str] | None, budget: MaintenanceBudget) -> set[str]:
    """The URIs of tables of which the previous run put something off; without a budget the log is not read."""
    if budget == MaintenanceBudget():
        return set()
    try:
        return find_tables_put_off(Handle(place_below(root, LOG_PATH), storage_options=storage_options))
    except DatasetNotFoundError:
        return set()


def find_chosen_tables(
    root: str,
    include: Sequence[str],
    exclude: Sequence[str],
    storage_options: Mapping[str, str] | None,
    namespace: Mapping[str, Any] | None = None,
    policy_names: Sequence[str] = (),
) -> list[FoundTable]:
    """The tables below a root that globs choose, each once, without reserved folders, by their paths.

    The manifest table of a directory namespace is one of them, under the path "__manifest".

    Args:
        root: The root.
        include: Globs over paths below the root; all tables if there are none.
        exclude: Globs of tables to leave out.
        storage_options: The options by which the root is reached.
        namespace: Properties of a namespace, whose tables are chosen in place of those below the root.
        policy_names: The folders and paths that have policies, as the caller spells them.

    Raises:
        InvalidInputError: A glob or the name of a policy could be one of two tables.
    """
    if namespace is not None:
        tables = find_in_namespace(namespace, storage_options)
    else:
        tables = _leave_links_out(canonical_uri(root), find_with_manifest(root, storage_options))
    reject_names_of_two(tables, [*include, *exclude, *policy_names])
    return [table for table in tables if not table.path.startswith(_RESERVED) and takes(table, include, exclude)]


def reject_names_of_two(tables: Iterable[FoundTable], choices: Iterable[str]) -> None:
    """Reject the choice `x.lance` where `x` and `x.lance` are names of tables: it is the path of one, the name of one.

    Raises:
        InvalidInputError: A choice is such a name.
    """
    names = {name for table in tables for name in table.names}
    for choice in choices:
        base = choice.strip("/").removesuffix(SUFFIX)
        if base != choice.strip("/") and {base, base + SUFFIX} <= names:
            raise InvalidInputError(
                f"{choice!r} could be the table {base} or the table {base}{SUFFIX}: write {base!r} or "
                f"{base + SUFFIX * 2!r}"
            )


def takes(table: FoundTable, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether globs choose a table: `include` has one of its names, and `exclude` none."""
    names = table.names
    return any(is_chosen(name, include, ()) for name in names) and all(is_chosen(name, (), exclude) for name in names)


def is_chosen(path: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether globs choose a table, by its path without or with the suffix; `*` also matches slashes."""
    chosen, left_out = (
        any(fnmatchcase(name, glob) for glob in globs for name in (path, path + SUFFIX)) for globs in (include, exclude)
    )
    return (not include or chosen) and not left_out


def policy_levels(path: str) -> Iterator[str]:
    """The folders of a path, outermost first, and the path: where `policies` can name a policy for the table."""
    parts = path.split("/")
    return ("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def agree_on_policy(
    names: Sequence[str], policies: Collection[str], policy_of: Callable[[str], Policy | None], log: Log
) -> Policy | None:
    """The policy for a table; None if it is not maintained, as where the policies for its names differ.

    Args:
        names: Its names. Those for which `policies` has nothing, not even for a folder of them, have no say.
        policies: The folders and paths that have policies.
        policy_of: The policy for a name; None if it says that the table is not maintained.
        log: Gets a warning that has the names whose policies differ.
    """
    named = [name for name in names if any(level in policies for level in policy_levels(name))] or names[:1]
    policy = policy_of(named[0])
    other = next((name for name in named[1:] if policy_of(name) != policy), None)
    if other is None:
        return policy
    log.warning(
        "%s and %s are ids of one table and have different policies, so it is left alone: give both the same policy",
        named[0],
        other,
    )
    return None


def warn_of_idle_choices(log: Log, policies: Iterable[str], include: Iterable[str], paths: Collection[str]) -> None:
    """Log keys of `policies` and globs of `include` that choose none of these tables.

    Args:
        log: Gets the warnings.
        policies: Folders and paths of tables.
        include: Globs.
        paths: The paths of the chosen tables, without the suffix.
    """
    for name in sorted(set(policies) - {name for path in paths for name in policy_levels(path)}):
        log.warning("policies[%r]: no table below the root has this path, or is in this folder", name)
    for glob in include:
        if not any(is_chosen(path, [glob], ()) for path in paths):
            log.warning("include %r matches no table below the root; 'a/*' matches the tables in folder a", glob)


def _leave_links_out(root: str, tables: list[FoundTable]) -> list[FoundTable]:
    """The tables below a root, each once: symbolic links to tables below the root are left out."""
    folder = Path(root)
    if not folder.is_dir():
        return tables  # object storage has no links
    real = folder.resolve()
    tables_by_path: dict[Path, FoundTable] = {}
    for table in tables:
        path = Path(canonical_uri(table.uri))
        place = path.resolve()
        if place not in tables_by_path or place == real / path.relative_to(folder):
            tables_by_path[place] = table
    return sorted(tables_by_path.values(), key=lambda table: table.path)
