"""What is due for the declared indices of a table: a pure function of declarations, records and facts of a version.

    build     there is none, and the table has `min_rows`
    adopt     an index by somebody else, of the same kind, column and metric, is recorded
    rebuild   another declaration, kind or metric; no row is covered; the table has grown; recall is too low, and was
              measured after extensions; pylance cannot search it; or an attempt failed, as with a corrupt index
    merge     the last segments -> one, which also covers the rows that the index misses
    extend    rows that the index misses -> one more segment
    measure   recall, where it was never measured, at other settings, or with a tenth fewer rows
    drop      an undeclared index, if the policy says so
    wait      an attempt failed, and the next one comes later
    install   pylance, which is needed, is not installed
    reject    there is no such column, its type does not fit, or the name belongs to another column

An index that a run has changed is decided on again: a build is followed by a measurement. Every action but `wait`,
`install` and `reject` can be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from lance_core.maintenance.search.declaration import IndexDeclaration
from lance_core.maintenance.search.record import IndexRecord

MOST_SEGMENTS: Final = 16
"""The segments of an index that are searched one by one before they are merged."""

NEVER_MEASURED: Final = "its recall was never measured"
_MEASURED_GROWTH: Final = 1.1
_BLOCKED: Final = ("wait", "install", "reject")
_GROWTH_OF_MERGES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentSegment:
    """A segment of an index.

    Attributes:
        uuid: Its uuid.
        fragment_ids: The fragments of the table's version that it covers.
        rows: Their live rows.
        version: The version that it was built on.
        created_at_ms: When it was made, in milliseconds since the epoch; None if that is not recorded.
        has_old_words: Whether it has old words of rows that were set again, and that another segment covers as well.
        fault: Why pylance cannot search it; it then covers no fragment. Empty if it can.
    """

    uuid: str
    fragment_ids: frozenset[int]
    rows: int
    version: int = 0
    created_at_ms: int | None = None
    has_old_words: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentIndex:
    """An index of a version.

    Attributes:
        name: Its name.
        kind: Its kind, as in declarations.
        metric: Its metric; None for kinds without one.
        field_ids: The indexed fields.
        segments: Its segments.
        size_bytes: The bytes of its files, if they are recorded.
        parameters: The parameters by which a full-text index was built.
    """

    name: str
    kind: str
    metric: str | None
    field_ids: tuple[int, ...]
    segments: Sequence[PresentSegment] = ()
    size_bytes: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The live rows that it covers."""
        return sum(segment.rows for segment in self.segments)

    @property
    def fragment_ids(self) -> frozenset[int]:
        """The fragments that it covers."""
        return frozenset().union(*(segment.fragment_ids for segment in self.segments))

    @property
    def has_old_words(self) -> bool:
        """Whether pylance finds rows by old words now."""
        return any(segment.has_old_words for segment in self.segments)

    @property
    def fault(self) -> str:
        """Why pylance cannot search it; empty if it can."""
        return next((segment.fault for segment in self.segments if segment.fault), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What is decided on.

    Attributes:
        columns: Of each declared column that exists, the id of its field and its type.
        fragments: The live rows of each fragment, by id.
        present: The indices, by name; those of the system are left out.
        records: The records, by name of the index.
        created: For fragments that an index misses, the version in which the oldest row was created, 0 if it is not
            known; a fragment whose rows are all new may be left out.
    """

    columns: Mapping[str, tuple[int, pa.DataType]]
    fragments: Mapping[int, int]
    present: Mapping[str, PresentIndex] = field(default_factory=dict)
    records: Mapping[str, IndexRecord] = field(default_factory=dict)
    created: Mapping[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The live rows of the table."""
        return sum(self.fragments.values())

    def missed_by(self, index: PresentIndex) -> frozenset[int]:
        """The fragments with rows that an index does not cover."""
        return frozenset(fragment for fragment, rows in self.fragments.items() if rows) - index.fragment_ids

    def count_missed_rows(self, index: PresentIndex) -> int:
        """The live rows that an index does not cover."""
        return sum(self.fragments[fragment] for fragment in self.missed_by(index))

    def find_stale_segments(self, index: PresentIndex) -> list[PresentSegment]:
        """The segments of a full-text index with old words of rows that were set again.

        Such a row keeps its id or address: once it is covered, pylance finds it by its old words as well.
        """
        newest = max(index.fragment_ids, default=-1)
        versions = [
            self.created.get(each, 0) for each in self.missed_by(index) if each in self.created or each < newest
        ]
        oldest = min(versions) if index.kind == "FTS" and versions else None
        return [s for s in index.segments if s.has_old_words or (oldest is not None and s.version >= oldest)]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAction:
    """An action on an index.

    Attributes:
        name: The name of the index.
        action: One of those that the head of the module lists.
        reason: Why it is due.
        declaration: The declaration; None for an index that is dropped.
        fragment_ids: The fragments of the segment to build.
        replaced: The uuids of the segments that it replaces.
    """

    name: str
    action: str
    reason: str
    declaration: IndexDeclaration | None = None
    fragment_ids: frozenset[int] = frozenset()
    replaced: frozenset[str] = frozenset()

    @property
    def is_possible(self) -> bool:
        """Whether it can be done now."""
        return self.action not in _BLOCKED


def decide(
    declarations: Sequence[IndexDeclaration],
    facts: TableFacts,
    *,
    now: datetime | None,
    pylance: str | None,
    limits: Sequence[float | None] = (),
    drop_undeclared: bool = False,
) -> list[IndexAction]:
    """The next action for each index for which something is due, in the order of the declarations.

    Args:
        declarations: The declarations of the policy.
        facts: The version.
        now: The time, by which failed attempts are due again; None if they are due at once.
        pylance: The version of pylance; None if it is not installed.
        limits: The memory and the seconds of a process; after a failure under others the next attempt is due at once.
        drop_undeclared: Whether indices that are not declared are dropped; zone maps stay.
    """
    cases = [_Case(find_name(each, facts, declarations), each, facts) for each in declarations]
    actions = [
        action for case in cases if (action := _block(case, _decide_case(case), now, pylance, limits)) is not None
    ]
    if drop_undeclared:
        declared = {case.name for case in cases}
        for name, index in facts.present.items():
            if name not in declared and index.kind != "ZONEMAP":
                replaced = frozenset(segment.uuid for segment in index.segments)
                actions.append(IndexAction(name=name, action="drop", reason="it is not declared", replaced=replaced))
    return actions


def find_name(declaration: IndexDeclaration, facts: TableFacts, declarations: Sequence[IndexDeclaration] = ()) -> str:
    """The name of a declared index: its own, that of its record, that of an index to adopt, or a new one.

    Args:
        declaration: The declaration.
        facts: The version.
        declarations: All declarations, whose names are not to be used.
    """
    if declaration.name is not None:
        return declaration.name
    other_names = {each.name for each in declarations}
    for name, record in facts.records.items():
        if (
            record.column == declaration.column
            and name not in other_names
            and _Case(name, declaration, facts).is_on_column
        ):
            return name
    same = [
        case for name in facts.present if name not in other_names and (case := _Case(name, declaration, facts)).is_same
    ]
    if same and declaration.column in facts.columns:
        return max(same, key=lambda case: (case.has_parameters, facts.present[case.name].rows)).name
    name, number = f"{declaration.column}_idx", 1
    while name in facts.present or name in other_names:
        number += 1
        name = f"{declaration.column}_idx_{number}"
    return name


@dataclass(frozen=True, slots=True)
class _Case:
    """A declaration, the name of its index, and the version that is decided on."""

    name: str
    declaration: IndexDeclaration
    facts: TableFacts

    @property
    def index(self) -> PresentIndex | None:
        return self.facts.present.get(self.name)

    @property
    def record(self) -> IndexRecord | None:
        return self.facts.records.get(self.name)

    @property
    def is_on_column(self) -> bool:
        """Whether there is no index of the name, or one on the declared column."""
        column = self.facts.columns.get(self.declaration.column)
        return self.index is None or (column is not None and self.index.field_ids == (column[0],))

    @property
    def is_same(self) -> bool:
        """Whether the index is of the declared column, kind and metric."""
        kind = (self.declaration.kind, self.declaration.metric)
        return self.index is not None and self.is_on_column and (self.index.kind, self.index.metric) == kind

    @property
    def has_parameters(self) -> bool:
        """Whether the index was built by the numbers and flags that are declared, as far as is known."""
        built = {} if self.index is None else self.index.parameters
        declared = {name: value for name, value in self.declaration.parameters.items() if isinstance(value, int)}
        return all(built.get(name, value) == value for name, value in declared.items())

    def make(
        self,
        action: str,
        reason: str,
        fragment_ids: frozenset[int] = frozenset(),
        replaced: Sequence[PresentSegment] = (),
    ) -> IndexAction:
        return IndexAction(
            name=self.name,
            action=action,
            reason=reason,
            declaration=self.declaration,
            fragment_ids=fragment_ids,
            replaced=frozenset(segment.uuid for segment in replaced),
        )


def _decide_case(case: _Case) -> IndexAction | None:
    """What is due for an index, whether or not it can be done now."""
    declaration, facts, index, record = case.declaration, case.facts, case.index, case.record
    column = facts.columns.get(declaration.column)
    if column is None:
        return case.make("reject", f"there is no column {declaration.column!r}")
    misfit = declaration.explain_misfit(column[1])
    if misfit is not None or not case.is_on_column:
        return case.make("reject", misfit or "the index of this name is on another column: give another name")
    if not facts.rows or (index is None and facts.rows < declaration.min_rows):
        return None
    reason = _explain_build(case)
    if reason is not None:
        every = frozenset(fragment for fragment, rows in facts.fragments.items() if rows)
        action, replaced = ("build", []) if index is None else ("rebuild", index.segments)
        return case.make(action, reason, every, replaced)
    if record is None:
        return case.make("adopt", "it was built by somebody else")
    return _decide_segments(case) or _decide_measurement(case) if declaration.needs_pylance else None


def _block(
    case: _Case, action: IndexAction | None, now: datetime | None, pylance: str | None, limits: Sequence[float | None]
) -> IndexAction | None:
    """The action, or why it cannot be done now."""
    if action is None or action.action in ("reject", "adopt"):
        return action
    if pylance is None and case.declaration.needs_pylance:
        return case.make("install", f"to {action.action} it, pylance is needed: pip install 'lance-dagster[search]'")
    failure = case.record.failure if case.record is not None else None
    if now is None or failure is None or not _is_current(case, failure) or failure["pylance"] != pylance:
        return action
    if list(failure.get("limits", limits)) != list(limits):
        return action
    # An index that raises errors is built again at once, and one that cannot be measured is extended all the same.
    mends = action.action == "rebuild" and failure["is_error"] and failure["action"] != "rebuild"
    is_other = failure["action"] == "measure" and action.action != "measure"
    if mends or is_other or now >= datetime.fromisoformat(failure["retry_at"]):
        return action
    attempts = f"attempt {failure['count']} to {failure['action']} it failed: {failure['reason']}"
    return case.make("wait", f"{attempts}; the next one is due at {failure['retry_at']}")


def _is_current(case: _Case, failure: Mapping[str, Any]) -> bool:
    """Whether a failure was of the present declaration."""
    return bool(failure["build"] == case.declaration.build_key)


def _explain_build(case: _Case) -> str | None:
    """Why an index is built, or built again; None if it is not."""
    declaration, facts, index, record = case.declaration, case.facts, case.index, case.record
    if index is None:
        return f"there is none for {facts.rows:,} rows"
    if not case.is_same:
        return "it is of another kind or metric"
    if record is not None and record.build != declaration.build_key:
        return "its declaration has changed"
    if not case.has_parameters:
        return "it was built with other parameters than declared"
    if declaration.needs_pylance and (index.fault or not index.rows):
        return index.fault or "it covers no row"
    if record is None or not declaration.needs_pylance:
        return None
    if record.failure and record.failure["needs_build"] and _is_current(case, record.failure):
        return f"an attempt to {record.failure['action']} it failed"
    if declaration.is_vector and facts.rows >= declaration.retrain_growth * record.trained_rows > 0:
        return f"it was trained on {record.trained_rows:,} of {facts.rows:,} rows"
    recall, least = record.recall or {}, declaration.min_recall
    # What a build has not reached, another one does not.
    if is_recall_too_low(declaration, record) and (recall["fresh_value"] is None or recall["fresh_value"] >= least):
        return f"recall {recall['value']:.3f} is below min_recall {least}"
    return None


def is_recall_too_low(declaration: IndexDeclaration, record: IndexRecord) -> bool:
    """Whether recall was measured at the settings of a declaration, and is below its `min_recall`."""
    recall, least = record.recall, declaration.min_recall
    if recall is None or least is None or recall["value"] is None:
        return False
    return bool(recall["settings"] == declaration.search_settings and recall["value"] < least)


def _decide_segments(case: _Case) -> IndexAction | None:
    """The extension of an index to rows that it misses, or the merge of its segments."""
    facts, index = case.facts, case.index
    assert index is not None
    missed = facts.missed_by(index)
    rows = facts.count_missed_rows(index)
    if len(index.segments) + bool(missed) > MOST_SEGMENTS:
        merged = choose_segments_to_merge(index, rows)
        if len(merged) > 1:
            return make_merge(case.name, case.declaration, facts, merged, f"it has {len(index.segments)} segments")
    if facts.find_stale_segments(index):
        return make_merge(case.name, case.declaration, facts, (), "values of rows that it has were set again")
    if not missed:
        return None
    empty = [segment for segment in index.segments if not segment.rows]
    return case.make("extend", f"it misses {rows:,} of {facts.rows:,} rows", missed, empty)


def make_merge(
    name: str, declaration: IndexDeclaration, facts: TableFacts, merged: Sequence[PresentSegment], reason: str
) -> IndexAction:
    """The action that makes one segment of several segments and of the rows that the index misses.

    Args:
        name: The index.
        declaration: Its declaration.
        facts: The version.
        merged: The segments, the last ones of the index.
        reason: Why they are merged.
    """
    index = facts.present[name]
    stale = {segment.uuid for segment in facts.find_stale_segments(index)}
    merged = [segment for segment in index.segments if segment in merged or segment.uuid in stale]
    fragment_ids = facts.missed_by(index).union(*(segment.fragment_ids for segment in merged))
    return _Case(name, declaration, facts).make("merge", reason, fragment_ids, merged)


def choose_segments_to_merge(index: PresentIndex, missed_rows: int) -> list[PresentSegment]:
    """The last segments, which are merged with each other and with the rows that the index misses, if they are small.

    A segment is merged if it has at most twice the rows of the later ones and of what is missed: a row is written again
    only when its segment grows by a half.

    Args:
        index: The index.
        missed_rows: The rows that the index misses.
    """
    merged, rows = list[PresentSegment](), missed_rows
    for segment in reversed(index.segments):
        if rows and segment.rows > _GROWTH_OF_MERGES * rows:
            break
        merged.append(segment)
        rows += segment.rows
    return merged


def is_measured(declaration: IndexDeclaration, name: str, facts: TableFacts) -> bool:
    """Whether the recall of a declared index is measured: not while another one on the column may answer its searches.

    Args:
        declaration: The declaration.
        name: The index.
        facts: The version.
    """
    if not declaration.needs_pylance or declaration.kind == "NGRAM":
        return False
    field_ids = (facts.columns[declaration.column][0],)
    indices_beside = [index for other, index in facts.present.items() if other != name and index.field_ids == field_ids]
    if declaration.is_vector:
        return all(index.metric != declaration.metric for index in indices_beside)
    return all(index.kind != "FTS" for index in indices_beside)


def _decide_measurement(case: _Case) -> IndexAction | None:
    declaration, index, record = case.declaration, case.index, case.record
    if index is None or record is None or not is_measured(declaration, case.name, case.facts):
        return None
    recall = record.recall
    if recall is None:
        return case.make("measure", NEVER_MEASURED)
    if recall["settings"] != declaration.search_settings:
        return case.make("measure", "its recall was measured at other settings")
    if index.rows >= _MEASURED_GROWTH * recall["rows"]:
        return case.make("measure", f"its recall was measured with {recall['rows']:,} of {index.rows:,} rows")
    return None
