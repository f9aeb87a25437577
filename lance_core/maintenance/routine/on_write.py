"""`keep_indices`: after a write, declared indices that are missing are built, and all are extended; nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from lance_core.maintenance.routine.declared import IndexWork, survey_declared
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.routine.report import MaintenancePlan, MaintenanceReport
from lance_core.maintenance.search.cover import INSTALL, IndexCoverage, cover_rows, extend_indices, is_lost
from lance_core.verbs.context.handle import Handle


def keep_indices(
    dataset: Handle, policy: MaintenancePolicy, *, properties: Mapping[str, str] | None = None
) -> IndexCoverage:
    """Let indices cover all rows: the declared ones that a table lacks are built, and then all are extended.

    Nothing else of maintenance is done: what is built is measured by the next run, and so is built again what an
    attempt has broken; with `require_search` that is done here, at once. If no index is missing or misses a row,
    nothing is committed.

    Args:
        dataset: The table; it moves to the newest version.
        policy: The declarations, and the limits of the processes that build.
        properties: Transaction properties of commits by lance_core; pylance's have none.

    Returns:
        The indices that were built or extended, and those that are missing or miss rows, with the reasons.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> maintenance.keep_indices(table, maintenance.MaintenancePolicy(indices={"id": "BTREE"})).covered
        ('id_idx',)
    """
    dataset.checkout_latest()
    waits = not policy.require_search
    declared = survey_declared(dataset, policy, waits=waits)
    if declared is None:
        memory, timeout_s = policy.index_memory_bytes, policy.index_timeout_s
        return cover_rows(dataset, properties=properties, index_memory=memory, index_timeout_s=timeout_s)
    report = MaintenanceReport(plan=MaintenancePlan(table=dataset.uri, uri=dataset.uri, policy=policy))
    with IndexWork(dataset, policy, properties or {}, dict(declared.facts.records)) as work:
        while action := work.find_next(declared.find_lacking(with_broken=policy.require_search)):
            report = work.run(action, declared.facts, report)
            declared = survey_declared(dataset, policy, work.records, waits=waits) or declared
        failures = {name: work.records[name].failure for name in declared.names if name in work.records}
        left_out = {
            name: f"to {failure['action']} it failed: {failure['reason']}"
            for name, failure in failures.items()
            if failure is not None and failure["needs_build"]
        }
        covered, errors = extend_indices(dataset, work.child, properties, left_out)
        for action in declared.due:
            if action.name in errors and action.name not in left_out and not is_lost(errors[action.name]):
                work.note_failure(action, errors[action.name])
        work.commit_records()
    absent = [each for each in declared.actions if not each.is_possible and each.name not in declared.facts.present]
    problems = {each.name: INSTALL if each.action == "install" else each.reason for each in absent}
    problems |= {entry["index"]: entry["error"] for entry in report.indices if "error" in entry}
    built = [entry["index"] for entry in report.indices if "error" not in entry and entry["index"] not in errors]
    return IndexCoverage(
        version=dataset.version,
        covered=tuple(dict.fromkeys([*built, *covered])),
        problems={**problems, **{name: str(error) for name, error in errors.items()}},
    )
