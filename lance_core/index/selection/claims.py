"""Claims: rows that match according to indices. If a claimed row does not match when it is read, an index is wrong.

A BITMAP, a BTREE and a LABEL_LIST give exactly the rows for which a test is true. These rows are still read and
filtered, so that a wrong entry is detected without further reads; a missing entry is not detected. After a wrong entry
the operation restarts without the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NoReturn

import numpy as np
import pyarrow as pa

from lance_core.errors import CorruptFileError
from lance_core.index.query.conditions import All, AnyOf, CaseWhen, Condition, Constant, Contains, Not, UnknownCondition
from lance_core.index.query.evaluate import evaluate_test
from lance_core.index.query.rows import Bools
from lance_core.index.selection.segments import IndexCache
from lance_core.table.index import IndexMetadata


class ContradictionError(CorruptFileError):
    """A row does not match, contrary to an index; the index is ignored from now on."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of indices about the candidates of some fragments.

    Attributes:
        condition: The condition that is claimed to be true for the candidates; None for the whole filter.
        fragments: Ids of the fragments.
        segments: The segments that made the claim, by id.
        cache: The cache that records wrong segments.
    """

    condition: Condition | None
    fragments: frozenset[int]
    segments: Mapping[object, IndexMetadata]
    cache: IndexCache

    def contradictions(self, rows: pa.RecordBatch, matches: Bools) -> Bools:
        """For each of some rows, whether it contradicts the claim.

        Args:
            rows: The rows.
            matches: Whether they match the filter.
        """
        if self.condition is None:
            return ~matches
        try:
            is_true = _evaluate(self.condition, True, rows)
        except pa.ArrowException:
            is_true = None  # the filter itself decides on values that cannot be compared here
        return np.zeros(rows.num_rows, np.bool_) if is_true is None else ~is_true

    def reject(self, fragment_id: int, offset: int) -> NoReturn:
        """Ignore the indices from now on, because a row contradicts them.

        Raises:
            ContradictionError: In every call: the caller has found that the row contradicts the indices.
        """
        reason = f"row {offset} of fragment {fragment_id} has another value than it says"
        for segment in self.segments.values():
            self.cache.ignore_wrong_segment(segment, reason)
        names = ", ".join(sorted({repr(segment.name) for segment in self.segments.values()}))
        raise ContradictionError(f"index {names}: {reason}; repeat the read, the index is ignored from now on")


def _evaluate(condition: Condition, truth: bool, rows: pa.RecordBatch) -> Bools | None:
    """For each row, whether a condition is true, or false; None if that is not known."""
    if isinstance(condition, Not):
        return _evaluate(condition.part, not truth, rows)
    if isinstance(condition, All | AnyOf):
        parts = [_evaluate(part, truth, rows) for part in condition.parts]
        known_parts = [part for part in parts if part is not None]
        if len(known_parts) < len(parts):
            return None
        return reduce(np.logical_and if isinstance(condition, All) == truth else np.logical_or, known_parts)
    if isinstance(condition, CaseWhen):
        test = (All((condition.test, condition.then)), All((Not(condition.test), condition.otherwise)))
        if not truth:
            test = (All((condition.test, Not(condition.then))), All((Not(condition.test), Not(condition.otherwise))))
        return _evaluate(AnyOf(test), True, rows)
    if isinstance(condition, Constant):
        return np.full(rows.num_rows, condition.value is truth)
    if isinstance(condition, UnknownCondition | Contains) or len(condition.path) > 1:
        return None
    name = condition.path[0]
    if name not in rows.schema.names or pa.types.is_dictionary(rows.schema.field(name).type):
        return None
    return evaluate_test(condition, truth, rows.column(name))
