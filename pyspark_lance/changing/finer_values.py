"""Values that are finer than Spark's, in rows that an update or a merge rewrites.

    stored             Spark              written
    ...00.123456789    ...00.123456       ...00.123456789     Spark's value is unchanged: the old value stays
    ...00.123456789    ...07.000000       ...07.000000000     the change has given another value

Timestamps and durations have microseconds in Spark, whatever their unit in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core import LanceDataset
from pyspark_lance.reading.plan import ReadPlan, plan_read, table_schema
from pyspark_lance.types.batch_convert import BatchConverter


@dataclass(frozen=True, slots=True, kw_only=True)
class FinerColumns:
    """The columns of a version whose values Spark rounds.

    Attributes:
        plan: The read of the columns, in the types that Spark gets.
    """

    plan: ReadPlan

    @classmethod
    def of(cls, base: LanceDataset, storage_options: Mapping[str, str] | None) -> Self | None:
        """The columns of a version; None if Spark has the values of all columns as they are stored."""
        names = [field.name for field in base.schema if _is_finer(field.type)]
        if not names:
            return None
        return cls(plan=plan_read(base, table_schema(base, names), storage_options=storage_options))

    def restore_finer_values(self, rows: pa.RecordBatch, ids: npt.NDArray[np.uint64]) -> pa.RecordBatch:
        """Rows with the old values of the version where Spark's values are those of the old rows.

        Args:
            rows: The new rows, in the types of the table.
            ids: The ids of the old rows: stable ones where the table has them, else addresses.
        """
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        old = self.plan.open()._take_rows(pa.array(ids), columns=list(self.plan.columns))  # noqa: SLF001 - by address
        [before] = old.combine_chunks().to_batches()
        after = rows.select(list(self.plan.columns))
        seen_before, seen_after = (BatchConverter(self.plan.expected, exact=False)(batch) for batch in (before, after))
        for name in self.plan.columns:
            column_arrays = (batch.column(name) for batch in (after, before, seen_after, seen_before))
            columns[name] = _keep_unchanged(*column_arrays)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)


def _is_finer(kind: pa.DataType) -> bool:
    """Whether values of a type can have a part that Spark drops."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return bool(kind.unit == "ns")
    return any(_is_finer(kind.field(i).type) for i in range(kind.num_fields))


def _keep_unchanged(after: pa.Array, before: pa.Array, seen_after: pa.Array, seen_before: pa.Array) -> pa.Array:
    """New values, or the old ones where Spark sees no difference; structs field by field."""
    if not _is_finer(after.type):
        return after
    if pa.types.is_struct(after.type):
        children = zip(*(array.flatten() for array in (after, before, seen_after, seen_before)), strict=True)
        fields = [after.type.field(i) for i in range(after.type.num_fields)]
        return pa.StructArray.from_arrays(
            [_keep_unchanged(*each) for each in children], fields=fields, mask=after.is_null()
        )
    return pc.if_else(_equal(seen_after, seen_before), before, after)


def _equal(left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """Whether each pair of values is equal; a null equals no value."""
    if pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return pa.array([a is not None and a == b for a, b in pairs], pa.bool_())
    return pc.fill_null(pc.equal(left, right), False)
