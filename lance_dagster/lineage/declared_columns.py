"""Column lineage from the asset's metadata `lance/column_lineage`.

    {"delay": ["nyc/flights.dep_delay", "nyc/flights.arr_delay"], "carrier": "nyc/airlines.carrier"}

or a `TableColumnLineage` of Dagster. Each materialization repeats it as `dagster/column_lineage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from lance_dagster.tables.names import plain_metadata

COLUMN_LINEAGE_KEY = "lance/column_lineage"


def column_lineage(metadata: Mapping[str, Any], *, label: str) -> dg.TableColumnLineage | None:
    """The lineage that an asset declares; None if it declares none.

    Args:
        metadata: Definition metadata.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: The entry is no lineage, or names a source in another form.
    """
    value: Any = plain_metadata(metadata.get(COLUMN_LINEAGE_KEY))
    if value is None or isinstance(value, dg.TableColumnLineage):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(label, value)
    return dg.TableColumnLineage(
        {str(column): [_dep(label, source) for source in _listed(sources)] for column, sources in value.items()}
    )


def _listed(sources: Any) -> list[Any]:
    return list(sources) if isinstance(sources, list | tuple) else [sources]


def _dep(label: str, source: Any) -> dg.TableColumnDep:
    if isinstance(source, Mapping) and {"asset", "column"} == set(source):
        return dg.TableColumnDep(dg.AssetKey.from_user_string(source["asset"]), source["column"])
    if isinstance(source, str):
        asset, dot, column = source.partition(".")
        if asset and dot and column:
            return dg.TableColumnDep(dg.AssetKey.from_user_string(asset), column)
    raise _wrong(label, source)


def _wrong(label: str, value: Any) -> dg.DagsterInvalidDefinitionError:
    return dg.DagsterInvalidDefinitionError(
        f'{label}: metadata {COLUMN_LINEAGE_KEY} must map columns to "asset/key.column" or lists of such, not {value!r}'
    )
