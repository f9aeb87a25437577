"""Finds rows that certainly match a filter by indices alone, so that a count reads few rows.

An answer may have too few rows, never too many. A BITMAP is certain of the rows under a value, if no row of its
segment is under two values; a ZONEMAP of fragments each of whose zones holds one value, without nulls. Only fragments
that a single segment covers count.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import LanceError
from lance_core.index.kinds.bitmap import BitmapIndex
from lance_core.index.kinds.zonemap import ZoneMap
from lance_core.index.query.conditions import All, AnyOf, CaseWhen, Condition, Constant, Not, Test
from lance_core.index.query.rows import Candidates
from lance_core.index.selection.candidates import IndexAnswers, ask, field_at
from lance_core.index.selection.segments import IndexReader, Segment
from lance_core.schema import Field, arrow_type_of
from lance_core.table.manifest.manifest import Manifest

__all__ = ["certain_matches"]


def certain_matches(expression: pc.Expression, manifest: Manifest, reader: IndexReader) -> Candidates | None:
    """The rows for which a filter is certainly true, deleted rows included; None if no index is on its columns.

    Args:
        expression: The filter.
        manifest: The version.
        reader: Reads its indices.
    """
    question = ask(expression, manifest, reader)
    return None if question is None else _certain(question[0], True, question[1])


def _certain(condition: Condition, wanted: bool, asked: IndexAnswers) -> Candidates:
    """The rows for which a condition is certainly true, or false."""
    if isinstance(condition, Not):
        return _certain(condition.part, not wanted, asked)
    if isinstance(condition, All | AnyOf):
        parts = (_certain(part, wanted, asked) for part in condition.parts)
        return reduce(Candidates.__and__ if isinstance(condition, All) == wanted else Candidates.__or__, parts)
    if isinstance(condition, CaseWhen):
        then, otherwise = (
            _certain(condition.test, chosen, asked) & _certain(part, wanted, asked)
            for chosen, part in ((True, condition.then), (False, condition.otherwise))
        )
        return then | otherwise
    if isinstance(condition, Constant) and condition.value is wanted:
        return Candidates.every(asked.view)
    if not isinstance(condition, Test):
        return Candidates.no(asked.view)
    node = field_at(asked.manifest.schema, condition.path)
    result = Candidates.no(asked.view)
    if node is not None and len(condition.path) == 1:
        for segments in asked.indices(condition):
            result = result | _of_index(segments, node, condition, wanted, asked)
    return result


def _of_index(segments: list[Segment], node: Field, test: Test, wanted: bool, asked: IndexAnswers) -> Candidates:
    """The certain rows according to the segments of an index, in fragments that a single segment covers."""
    result = Candidates.no(asked.view)
    if segments[0].index.kind not in ("Bitmap", "ZoneMap"):
        return result
    covered = [asked.view.covered(segment.covered) for segment in segments]
    vouched = np.sum(covered, axis=0)
    for segment, own in zip(segments, covered, strict=True):
        alone = own & (vouched == 1)
        content = asked.reader.try_read(segment.index, arrow_type_of(node)) if alone.any() else None
        if not isinstance(content, BitmapIndex | ZoneMap):
            continue
        try:
            found = content.certain(test, wanted, asked.view, alone)
        except (LanceError, pa.ArrowException) as error:
            if isinstance(error, LanceError):
                asked.reader.cache.warn(segment.index, str(error))
            continue
        result = result if found is None else result | found
    return result
