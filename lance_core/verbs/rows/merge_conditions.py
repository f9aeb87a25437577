"""Evaluate the conditions of a merge, and check before it that they fit the columns.

clause                               columns of the condition
when_matched_update_all              source.<column>, target.<column>
when_not_matched_by_source_delete    <column> of the dataset; blobs are descriptions, as in a delete
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.concatenate import combined
from lance_core.errors import InvalidInputError
from lance_core.extension_types import empty_table
from lance_core.schema import Schema, schema_to_arrow, typed_schema
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.expressions.arrow import columns_of, matching
from lance_core.verbs.rows.merge_clauses import MergeClauses
from lance_core.verbs.scan.blob_view import scanned_columns
from lance_core.verbs.scan.conditions import evaluate, to_condition, to_expression
from lance_core.verbs.scan.projection import with_row_fields

__all__ = ["check_conditions", "is_updated"]


def check_conditions(clauses: MergeClauses, source: pa.Schema, manifest: Manifest) -> None:
    """Check that the conditions of a merge fit the columns; a merge evaluates them only on rows that need them.

    Args:
        clauses: The clauses of the merge.
        source: Columns of the source, fitted to the dataset.
        manifest: The version of the dataset.

    Raises:
        InvalidInputError: A condition is none, uses an unknown column, or is neither true nor false.
    """
    schema, described = manifest.schema, scanned_columns(manifest)
    if clauses.condition is not None:
        is_updated(clauses.condition, empty_table(source), empty_table(schema_to_arrow(schema)), schema)
    if clauses.delete_condition is not None:
        nothing = pa.RecordBatch.from_pylist([], with_row_fields(described))
        matching(nothing, to_condition(clauses.delete_condition, described))


def is_updated(
    condition: str | pc.Expression, source: pa.Table, target: pa.Table, schema: Schema
) -> npt.NDArray[np.bool_]:
    """For each match, whether the condition of the update is true.

    Args:
        condition: The condition.
        source: The rows of the source.
        target: The rows of the dataset, in storage types.
        schema: Their columns.

    Raises:
        InvalidInputError: The condition does not fit the columns, or is neither true nor false.
    """
    sides = {"source": pa.struct(list(source.schema)), "target": pa.struct(list(typed_schema(schema)))}
    expression = to_expression(condition, pa.schema(sides))
    both = pa.table({"source": _as_struct(source), "target": _as_struct(target)})
    keep = evaluate(both.select(columns_of(expression) or ["source"]), {"keep": expression}).column("keep")
    if not pa.types.is_boolean(keep.type):
        raise InvalidInputError(f"the condition {condition} gives {keep.type}, not true or false")
    mask: npt.NDArray[np.bool_] = pc.fill_null(keep, False).to_numpy()
    return mask


def _as_struct(table: pa.Table) -> pa.ChunkedArray:
    whole = combined(table)
    arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in whole.columns]
    return pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=list(table.schema))])
