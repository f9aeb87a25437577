"""The state of the indices of a version: declared, built, covered, measured; no file is opened for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lance_core.maintenance.search.facts import read_facts
from lance_core.verbs.context.handle import Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHealth:
    """The state of one index.

    Attributes:
        name: Its name.
        column: The column that it is declared on, or is on.
        kind: Its kind, or the declared one if there is none.
        metric: The metric of its vectors; None for other kinds.
        declared: Whether maintenance has recorded a declaration.
        built: Whether the version has it; without it all rows are searched one by one, and it covers none.
        rows: The live rows that it covers.
        covered: Their share of the live rows of the table; 1 without rows.
        segments: The number of its segments.
        size_bytes: The bytes of its files; None if they are not recorded.
        trained_rows: The rows that it was trained on; None if that is not recorded.
        recall: The last measurement: `value`, `settings`, `queries`, `rows`, `at`, `fresh_value`, `note`; or None.
        failure: The last failure, if nothing has succeeded since: `action`, `reason`, `count`, `retry_at` ...; or None.
    """

    name: str
    column: str
    kind: str
    metric: str | None
    declared: bool
    built: bool
    rows: int
    covered: float
    segments: int
    size_bytes: int | None
    trained_rows: int | None
    recall: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None


def describe_index_health(dataset: Handle) -> list[IndexHealth]:
    """The state of each index that the version has, or that maintenance has recorded, by name.

    Args:
        dataset: The table.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.create_scalar_index("id", "BTREE")
        >>> [(index.name, index.declared, index.covered) for index in maintenance.describe_index_health(table)]
        [('id_idx', False, 1.0)]
    """
    facts = read_facts(dataset.snapshot, ())
    columns = {field.id: ".".join(path) for path, field in dataset.snapshot.manifest.schema.walk_paths()}
    states = []
    for name in sorted({*facts.present, *facts.records}):
        index, record = facts.present.get(name), facts.records.get(name)
        build = record.build if record is not None else {}
        rows = 0 if index is None else index.rows
        states.append(
            IndexHealth(
                name=name,
                column=columns.get(index.field_ids[0], "") if index else record.column if record else "",
                kind=index.kind if index else build.get("kind", ""),
                metric=index.metric if index else build.get("metric"),
                declared=record is not None,
                built=index is not None,
                rows=rows,
                covered=rows / facts.rows if facts.rows else 1.0,
                segments=len(index.segments) if index else 0,
                size_bytes=index.size_bytes if index else None,
                trained_rows=(record.trained_rows or None) if record else None,
                recall=record.recall if record else None,
                failure=record.failure if record else None,
            )
        )
    return states
