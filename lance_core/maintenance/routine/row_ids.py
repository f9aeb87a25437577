"""Gives a table stable row ids in its maintenance.

Indices that follow moves of rows by the fragment reuse index, which such a table cannot have, are built again before,
each in one version: scalar ones by the migration itself, declared ones as declared, others by pylance from their own
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lance_core.errors import RetryableConflictError, UnsupportedError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.routine.declared import IndexWork, find_limit, survey_declared
from lance_core.maintenance.routine.report import Log, MaintenanceReport
from lance_core.maintenance.search.child import ChildFailedError
from lance_core.maintenance.search.cover import run_extension
from lance_core.maintenance.search.decide import IndexAction
from lance_core.maintenance.search.facts import find_pylance, read_facts
from lance_core.maintenance.search.parts import IndexBuilder
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.indices.stable_row_ids import find_followers, migrate_to_stable_row_ids

_REASON = "it follows moves of rows that a compaction has recorded, and the table gets stable row ids"


def migrate_row_ids(
    dataset: Handle,
    report: MaintenanceReport,
    properties: Mapping[str, str],
    log: Log,
    builder: IndexBuilder | None = None,
) -> MaintenanceReport:
    """Give the table stable row ids, unless it has got them since the survey.

    Args:
        dataset: The table; it moves to the newest version.
        report: The report so far.
        properties: Transaction properties of the commits.
        log: Gets a warning if the table gets none.
        builder: Builds indices in parts; None for one child process.
    """
    if not dataset.has_stable_row_ids and find_pylance() is not None:
        report = _rebuild_followers(dataset, report, properties, builder)
    try:
        manifest, migration = migrate_to_stable_row_ids(dataset.snapshot, properties)
    except RetryableConflictError as error:
        log.warning("%s: %s", report.plan.table, error)
        return report.plus(lost=1)
    except UnsupportedError as error:  # of its indices; the rest of the maintenance goes on
        problem = "; ".join(filter(None, (report.row_ids_problem, f"stable_row_ids: {error}")))
        log.warning("%s: %s", report.plan.table, problem)
        return replace(report, row_ids_problem=problem)
    dataset.move_to(manifest)
    report = replace(report, row_ids_problem=None)
    return report.plus(row_ids_migrated=int(migration.is_new), indices_refreshed=len(migration.indices_rebuilt))


def _rebuild_followers(
    dataset: Handle, report: MaintenanceReport, properties: Mapping[str, str], builder: IndexBuilder | None
) -> MaintenanceReport:
    """Build the indices again that need pylance, and whose entries have old addresses."""
    manifest, policy = dataset.snapshot.manifest, report.plan.policy
    scalar = {index.name for index in manifest.indices if is_supported(index, manifest.schema)}
    names = [name for name in find_followers(manifest) if name not in scalar]
    declared = survey_declared(dataset, policy)
    records = {} if declared is None else dict(declared.facts.records)
    blocked = set() if declared is None else {each.name for each in declared.actions if not each.is_possible}
    with IndexWork(dataset, policy, properties, records, builder) as work:
        for name in names:
            facts = read_facts(dataset.snapshot, policy.declarations)
            index = facts.present.get(name)
            if index is None or name in blocked:
                continue
            action = IndexAction(
                name=name,
                action="rebuild",
                reason=_REASON,
                declaration=None if declared is None else declared.names.get(name),
                fragment_ids=frozenset(fragment for fragment, rows in facts.fragments.items() if rows),
                replaced=frozenset(segment.uuid for segment in index.segments),
            )
            limit = find_limit(action, facts, report, dataset.snapshot)
            if limit is not None:
                report = replace(report, row_ids_problem=limit)
            elif action.declaration is not None:
                report = work.run(action, facts, report)
            else:
                try:
                    how = "rebuild" if index.kind in ("FTS", "NGRAM") else "retrain"
                    run_extension(dataset, [name], how, work.child)
                    report = report.plus(indices_refreshed=1)
                except ChildFailedError as error:
                    report = replace(report, row_ids_problem=f"index {name!r}: to rebuild it failed: {error}")
                dataset.checkout_latest()
        return work.record(report)
