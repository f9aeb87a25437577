"""Tables that others write: maintenance and promotion leave them alone unless their definition says otherwise.

An asset is foreign if it is external or observable: the code location does not materialize it. Its owner decides what
becomes of its versions, files and branches. A bare key names a table of ours unless the code location says otherwise.
Metadata `lance/maintenance` with True, a policy or fields of one says that the table is to be maintained all the same;
False says of any asset that it is to be left alone.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from lance_dagster._context.steps import asset_definition, is_external_asset
from lance_dagster.health.policy import MAINTENANCE_KEY
from lance_dagster.tables.refs import TableRef

__all__ = ["is_foreign"]

Context = dg.OpExecutionContext | dg.SensorEvaluationContext


def is_foreign(ref: TableRef, context: Context | None = None) -> bool:
    """Whether others write a table, and nothing says that it is to be maintained here.

    Args:
        ref: The table.
        context: Of the run or tick, for the code location's own definition of the asset; without one only the table
            itself is asked, as when a job is defined.
    """
    known: list[Any] = [ref.metadata]
    is_external = ref.is_external
    if context is not None:
        known.append(asset_definition(context, ref.key)[0])
        if is_external is None:
            is_external = is_external_asset(context, ref.key)
        if is_external is None and ref.is_spec:
            # A spec declares what others write. One that says where our IO manager puts it names a table of ours.
            is_external = not {"schema", "table"} & set(ref.metadata or ())
    said = [metadata[MAINTENANCE_KEY] for metadata in known if metadata and MAINTENANCE_KEY in metadata]
    values = [one.value if isinstance(one, dg.MetadataValue) else one for one in said]
    return bool(is_external) and (not values or values[0] is None or values[0] is False)
