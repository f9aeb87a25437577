"""Declared indices in dry runs: the actions of a run, their versions and records, without what follows from recall."""

from __future__ import annotations

from dataclasses import replace

from lance_core.maintenance.expected_versions import ExpectedVersions
from lance_core.maintenance.routine.declared import (
    COUNTERS,
    drop_idle_records,
    estimate_bytes,
    find_early_actions,
    find_limit,
    list_changed_entries,
    survey_declared,
)
from lance_core.maintenance.routine.report import MaintenanceReport
from lance_core.maintenance.search.decide import NEVER_MEASURED, IndexAction, TableFacts, is_measured
from lance_core.maintenance.search.declaration import IndexDeclaration
from lance_core.maintenance.search.record import IndexRecord
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.indices.create import kind_and_parameters


def expect_early_actions(expected: ExpectedVersions[Handle], report: MaintenanceReport) -> MaintenanceReport:
    """The report of a dry run after `run_early_actions`."""
    policy = report.plan.policy
    declared = survey_declared(expected.dataset, policy, base=expected.base)
    if declared is None:
        return report
    records = dict(declared.facts.records)
    for action in find_early_actions(declared, policy, merges=report.plan.segments_first == "merge"):
        report = _expect(expected, report, action, declared.facts, records)
    expected.configure(list_changed_entries(declared.facts.records, records))
    return report


def expect_due_actions(expected: ExpectedVersions[Handle], report: MaintenanceReport) -> MaintenanceReport:
    """The report of a dry run after `run_due_actions`, without what follows from measured recall."""
    policy = report.plan.policy
    declared = survey_declared(expected.dataset, policy, base=expected.base)
    if declared is None:
        return report
    recorded = declared.facts.records
    records, attempted, built_names = dict(recorded), set[tuple[str, str]](), set[str]()
    while action := next(
        (each for each in declared.due if (each.name, each.action) not in attempted and each.name not in built_names),
        None,
    ):
        attempted.add((action.name, action.action))
        reason = find_limit(action, declared.facts, report, expected.dataset.snapshot)
        if reason:
            report = report.put_off(reason)
            continue
        report = _expect(expected, report, action, declared.facts, records)
        if action.action in ("build", "rebuild"):  # it has no details by which it could be decided on again
            built_names.add(action.name)
            if action.declaration is not None and is_measured(action.declaration, action.name, declared.facts):
                measurement = replace(action, action="measure", reason=NEVER_MEASURED, fragment_ids=frozenset())
                report = _expect(expected, report, measurement, declared.facts, records)
        declared = survey_declared(expected.dataset, policy, records, base=expected.base) or declared
    drop_idle_records(records, declared.facts, policy)
    expected.configure(list_changed_entries(recorded, records))
    return report.check_indices(declared.missing, None)


def _expect(
    expected: ExpectedVersions[Handle],
    report: MaintenanceReport,
    action: IndexAction,
    facts: TableFacts,
    records: dict[str, IndexRecord],
) -> MaintenanceReport:
    """The report after an action; its version is added to those that are expected, and `records` is changed."""
    declaration, name = action.declaration, action.name
    size = estimate_bytes(action, facts, expected.dataset.snapshot)
    if declaration is None:
        expected.drop_index(name)
        records.pop(name, None)
    else:
        record = records.get(name) or IndexRecord(column=declaration.column, build=declaration.build_key)
        if action.action in ("extend", "merge"):
            expected.replace_segments(name, action.fragment_ids, action.replaced)
        elif action.action in ("build", "rebuild"):
            rows = sum(facts.fragments[each] for each in action.fragment_ids)
            field_id = facts.columns[declaration.column][0]
            expected.build_index(name, field_id, _find_type_url(declaration), action.fragment_ids)
            record = IndexRecord(column=declaration.column, build=declaration.build_key, trained_rows=rows)
        elif action.action == "measure":
            rows = facts.present[name].rows if name in facts.present else facts.rows
            recall = {"value": None, "settings": declaration.search_settings, "rows": rows}
            record = replace(record, recall=recall)
        records[name] = replace(record, failure=None)
    entry = {"index": name, "action": action.action, "reason": action.reason}
    report = report.plus(**{COUNTERS[action.action]: 1, "bytes_read": size})
    return replace(report, indices=[*report.indices, entry])


def _find_type_url(declaration: IndexDeclaration) -> str:
    """The type of the details of a declared index."""
    if not declaration.needs_pylance:
        return kind_and_parameters(declaration.kind, declaration.parameters)[0].type_url
    kind = "Vector" if declaration.is_vector else {"FTS": "Inverted", "NGRAM": "NGram"}[declaration.kind]
    return f"/lance.index.pb.{kind}IndexDetails"
