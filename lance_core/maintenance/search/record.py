"""What maintenance remembers of a declared index, in the configuration of the table.

    lance-dagster.index.<name>    JSON: the fields of an IndexRecord

The configuration is a part of each version: it survives cleanup, goes with branches, and is restored with a version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final

from lance_core.table.index import RECORD_PREFIX

_FIRST_WAIT: Final = timedelta(hours=1)
_LONGEST_WAIT: Final = timedelta(days=7)
_FAILURE_FIELDS: Final = frozenset(
    {"action", "reason", "count", "retry_at", "pylance", "build", "needs_build", "is_error"}
)
_RECALL_FIELDS: Final = frozenset({"value", "settings", "queries", "rows", "at", "fresh_value", "note"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRecord:
    """What is recorded of an index.

    Attributes:
        column: The column that it is declared on.
        build: Kind, metric and parameters, as declared when it was built or adopted.
        trained_rows: The rows of its training; 0 if it was never built.
        trained_at: When it was trained, in ISO form; None for an index by somebody else that was adopted.
        parameters: The parameters by which it was built.
        recall: The last measurement: `value` (None if it cannot be measured), `settings`, `queries`, `rows`, `at`,
            `fresh_value` (of the index as it was built, if that was measured) and `note`.
        failure: The last failure, if nothing has succeeded since: `action`, `reason`, `count`, `retry_at`, `pylance`,
            `build` (the declaration that failed), `limits` (memory and seconds of a process), `needs_build` (whether
            the index is to be built again) and `is_error` (whether pylance raised an error; otherwise its process was
            killed, or stopped at a limit).
    """

    column: str
    build: Mapping[str, Any]
    trained_rows: int = 0
    trained_at: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    recall: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """The value of the entry of the configuration."""
        return json.dumps(asdict(self), sort_keys=True)


def read_records(config: Mapping[str, str]) -> dict[str, IndexRecord]:
    """The records in the configuration of a table, by name of the index; those that cannot be parsed are left out.

    An entry that somebody else has broken is as if it were missing: the index is adopted.
    """
    names, records = {each.name for each in fields(IndexRecord)}, {}
    for key, value in config.items():
        if key.startswith(RECORD_PREFIX):
            try:
                values = json.loads(value)
                record = IndexRecord(**{name: values[name] for name in names if name in values})
            except (ValueError, TypeError, RecursionError):
                continue
            if _is_well_formed(record):
                records[key.removeprefix(RECORD_PREFIX)] = record
    return records


def _is_well_formed(record: IndexRecord) -> bool:
    """Whether the values of a record are of the types by which maintenance decides."""
    failure, recall = record.failure, record.recall
    types = [(record.build, dict), (record.parameters, dict), (record.trained_rows, int)]
    if not all(isinstance(value, kind) for value, kind in [*types, (recall, dict | None), (failure, dict | None)]):
        return False
    if recall is not None and not recall.keys() >= _RECALL_FIELDS:
        return False
    if failure is None:
        return True
    return failure.keys() >= _FAILURE_FIELDS and isinstance(failure["count"], int) and _is_time(failure["retry_at"])


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def describe_failure(earlier: Mapping[str, Any] | None, now: datetime, **failure: Any) -> dict[str, Any]:
    """A failure to record, to be tried again later: after an hour, two, four ... and at most a week.

    Args:
        earlier: The failure that is recorded; it counts if it was of the same declaration, pylance and limits.
        now: The time.
        **failure: Its `action`, `reason`, `pylance`, `build`, `limits`, `needs_build` and `is_error`.
    """
    names = ("pylance", "build", "limits")
    is_same = earlier is not None and all(earlier.get(name) == failure.get(name) for name in names)
    count = 1 + (earlier["count"] if earlier is not None and is_same else 0)
    retry_at = now + min(_FIRST_WAIT * 2 ** min(count - 1, 10), _LONGEST_WAIT)
    return {**failure, "count": count, "retry_at": retry_at.isoformat(timespec="seconds")}
