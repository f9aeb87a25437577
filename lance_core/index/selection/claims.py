"""Rows that indices say match: where one that is read does not, the indices are wrong, and are left aside.

A BITMAP, a BTREE and a LABEL_LIST name exactly the rows of which a test is true. These rows are read and filtered all
the same, so that a wrong one shows without further reads; a row that is merely missing does not. Whatever was being
done then begins again without the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from lance_core.errors import CorruptFileError
from lance_core.index.query.conditions import All, AnyOf, Choice, Condition, Constant, Contains, Not, Unknown
from lance_core.index.query.evaluate import holds
from lance_core.index.query.rows import Bools
from lance_core.index.selection.segments import IndexCache
from lance_core.table.index import IndexMetadata

__all__ = ["Claim", "ContradictionError", "until_consistent"]

_Result = TypeVar("_Result")


class ContradictionError(CorruptFileError):
    """A row does not match though an index says so; the index is left aside from now on."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What indices say of the rows of some fragments that can match.

    Attributes:
        condition: What is true of them; None if that is the whole filter.
        fragments: Ids of the fragments.
        segments: The segments that were asked, by their ids.
        cache: Where to note that they are wrong.
    """

    condition: Condition | None
    fragments: frozenset[int]
    segments: Mapping[object, IndexMetadata]
    cache: IndexCache

    def others(self, rows: pa.RecordBatch, matches: Bools) -> Bools:
        """Which of some rows are not as it says.

        Args:
            rows: The rows.
            matches: Whether they match the filter.
        """
        if self.condition is None:
            return ~matches
        try:
            found = _truth(self.condition, True, rows)
        except pa.ArrowException:
            found = None  # what cannot be compared here is the filter's to judge
        return np.zeros(rows.num_rows, np.bool_) if found is None else ~found

    def reject(self, fragment_id: int, offset: int) -> NoReturn:
        """Leave the indices aside, as a row is not as they say.

        Raises:
            ContradictionError: Always.
        """
        reason = f"row {offset} of fragment {fragment_id} has another value than it says"
        for segment in self.segments.values():
            self.cache.distrust(segment, reason)
        names = ", ".join(sorted({repr(segment.name) for segment in self.segments.values()}))
        raise ContradictionError(f"index {names}: {reason}; read again, it is left aside now")


def until_consistent(job: Callable[[], _Result]) -> _Result:
    """Run a job, and again without the indices that were found to be wrong."""
    while True:
        try:
            return job()
        except ContradictionError:
            continue  # fewer indices are asked each time


def _truth(condition: Condition, wanted: bool, rows: pa.RecordBatch) -> Bools | None:
    """Which rows a condition is true of, or false; None if that is not known."""
    if isinstance(condition, Not):
        return _truth(condition.part, not wanted, rows)
    if isinstance(condition, All | AnyOf):
        parts = [_truth(part, wanted, rows) for part in condition.parts]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return reduce(np.logical_and if isinstance(condition, All) == wanted else np.logical_or, known)
    if isinstance(condition, Choice):
        test = (All((condition.test, condition.then)), All((Not(condition.test), condition.otherwise)))
        if not wanted:
            test = (All((condition.test, Not(condition.then))), All((Not(condition.test), Not(condition.otherwise))))
        return _truth(AnyOf(test), True, rows)
    if isinstance(condition, Constant):
        return np.full(rows.num_rows, condition.value is wanted)
    if isinstance(condition, Unknown | Contains) or len(condition.path) > 1:
        return None
    name = condition.path[0]
    if name not in rows.schema.names or pa.types.is_dictionary(rows.schema.field(name).type):
        return None
    return holds(condition, wanted, rows.column(name))
