"""The WHEN clauses of a merge: how they are parsed, and which of them can be combined.

WHEN MATCHED [AND condition]                THEN UPDATE | DELETE    pairs
WHEN NOT MATCHED [AND condition]            THEN INSERT             rows only in the source
WHEN NOT MATCHED BY SOURCE [AND condition]  THEN UPDATE | DELETE    rows only in the table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from lance_core.errors import InvalidInputError
from pyspark_lance.changing.struct_values import Value
from pyspark_lance.changing.task import DELETE, INSERT, UPDATE

Side = Literal["matched", "not matched", "not matched by source"]

_WORDS: Final = {UPDATE: "UPDATE", DELETE: "DELETE", INSERT: "INSERT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClause:
    """One WHEN clause of a merge.

    Attributes:
        side: The rows that it concerns: pairs, rows only in the source, or rows only in the table.
        action: UPDATE, DELETE or INSERT.
        condition: A further condition; None for all rows of that side.
        values: New values by column of the table; None for the values of the source's columns of the same names.
    """

    side: Side
    action: int
    condition: Value | None = None
    values: Mapping[str, Value] | None = None

    @property
    def then(self) -> str:
        """What happens to the rows: update, delete or insert."""
        return _WORDS[self.action].lower()

    def __str__(self) -> str:
        return f"WHEN {self.side.upper()} THEN {_WORDS[self.action]}"


def check_clauses(clauses: Sequence[MergeClause]) -> None:
    """Make sure that clauses can be run in their order.

    Raises:
        InvalidInputError: The list is empty, a clause does not fit its rows, or a clause without a condition precedes
            another one for the same rows.
    """
    if not clauses:
        raise InvalidInputError("merge: there is no clause; add one, such as WHEN MATCHED THEN UPDATE SET *")
    for clause in clauses:
        if (clause.action == INSERT) != (clause.side == "not matched"):
            raise InvalidInputError(
                f"merge: {clause} is not possible: INSERT belongs to WHEN NOT MATCHED, and only there"
            )
        if clause.side == "not matched by source" and clause.action == UPDATE and clause.values is None:
            raise InvalidInputError(f"merge: {clause} needs values: these rows have no source")
    for side in {clause.side for clause in clauses}:
        side_clauses = [clause for clause in clauses if clause.side == side]
        for clause in side_clauses[:-1]:
            if clause.condition is None:
                raise InvalidInputError(f"merge: only the last clause WHEN {side.upper()} can be without a condition")


_SIDES: Final[Mapping[str, tuple[Side, tuple[str, ...]]]] = {
    "when_matched": ("matched", ("update", "delete")),
    "when_not_matched": ("not matched", ("insert",)),
    "when_not_matched_by_source": ("not matched by source", ("update", "delete")),
}
"""Names of the sides, and what can be done with their rows."""
_ACTIONS: Final = {"update": UPDATE, "delete": DELETE, "insert": INSERT}
_GIVES: Final = {"update": "set", "insert": "values"}
_FORM: Final = (
    "a clause is 'update', 'delete' or 'insert', or a mapping such as"
    ' {"then": "update", "condition": "source.x > target.x", "set": {"x": "source.x"}}'
)


def parse_merge_clauses(clauses: Mapping[str, Any]) -> tuple[MergeClause, ...]:
    """The clauses of a merge by a key, from the form in which `merge` and `lance/merge_on` take them.

    Args:
        clauses: One clause or a list of them, in order, for `when_matched`, `when_not_matched` and
            `when_not_matched_by_source`; nothing happens to the rows of a side that is left out. A clause says `then`:
            "update", "delete" or "insert"; it may have a `condition`, and `set` (update) or `values` (insert) with
            expressions by column. A clause without a condition and values may be given as its `then` alone.

    Raises:
        InvalidInputError: A clause is not understood, or cannot be combined with the preceding ones.

    Examples:
        >>> for clause in pyspark_lance.parse_merge_clauses({"when_matched": "update", "when_not_matched": "insert"}):
        ...     print(clause)
        WHEN MATCHED THEN UPDATE
        WHEN NOT MATCHED THEN INSERT
    """
    unknown = [name for name in clauses if name not in _SIDES]
    if unknown:
        raise InvalidInputError(f"merge: clauses are for {', '.join(_SIDES)}, not for {unknown[0]!r}")
    merge_clauses = []
    for name, (side, actions) in _SIDES.items():
        side_clauses = clauses.get(name, [])
        every = side_clauses if isinstance(side_clauses, list | tuple) else [side_clauses]
        merge_clauses += [_parse_clause(name, clause, side, actions) for clause in every]
    check_clauses(merge_clauses)
    return tuple(merge_clauses)


def _parse_clause(name: str, clause_form: Any, side: Side, actions: Sequence[str]) -> MergeClause:
    clause = {"then": clause_form} if isinstance(clause_form, str) else clause_form
    if not isinstance(clause, Mapping):
        raise InvalidInputError(f"merge: {name}: {clause_form!r} is not a clause; {_FORM}")
    then = clause.get("then")
    if then not in actions:
        raise InvalidInputError(f"merge: {name}: then must be one of {', '.join(actions)}, not {then!r}; {_FORM}")
    gives = _GIVES.get(str(then))
    unknown = [key for key in clause if key not in ("then", "condition", gives)]
    if unknown:
        keys = ", ".join(key for key in ("then", "condition", gives) if key)
        raise InvalidInputError(f"merge: {name}: {unknown[0]!r} is not understood; the keys of {then} are {keys}")
    condition = clause.get("condition")
    values: Any = clause.get(gives) if gives else None
    if condition is not None and not (isinstance(condition, str) and condition.strip()):
        raise InvalidInputError(f"merge: {name}: the condition must be a string of SQL, not {condition!r}")
    strings = isinstance(values, Mapping) and all(isinstance(text, str) for pair in values.items() for text in pair)
    if values is not None and not (strings and values):
        raise InvalidInputError(f"merge: {name}: {gives} must map columns to strings of SQL, not {values!r}")
    return MergeClause(
        side=side, action=_ACTIONS[str(then)], condition=condition, values=None if values is None else dict(values)
    )
