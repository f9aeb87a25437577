"""What a materialisation tells Dagster; `stamp.py` has what a definition tells it beforehand.

    where                       entries
    -----                       -------
    event                       lance/replaced_try (if the write took the place of one)
                                dagster/row_count (whole table)  dagster/size_bytes  dagster/column_schema
                                dagster/table_name  dagster/uri
                                lance/version  lance/operation  lance/transaction_uuid  lance/read_version
                                lance/rows_written  lance/rows_deleted  lance/bytes_written
                                lance/fragments  lance/fragments_added  lance/fragments_removed
                                lance/deleted_fraction  lance/commit_attempts  lance/deduplicated
    event of one partition      dagster/partition_row_count

All numbers come from the manifest of the commit and from the writers: nothing is scanned or counted. What is not
known, such as the rows that an earlier try wrote, is left out rather than guessed. Numbers are numbers, so that
Dagster plots them and metadata bounds checks can read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster.location import TableLocation

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.handlers.base import WriteOutcome

__all__ = ["column_schema", "event_metadata", "partition_metadata"]


def event_metadata(outcome: WriteOutcome, location: TableLocation) -> dict[str, Any]:
    """The entries of one materialisation, for every partition of it."""
    dataset = outcome.dataset
    live = dataset.count_rows()
    deleted = dataset.count_deleted_rows()
    known: dict[str, Any] = {
        "lance/replaced_try": _replaced_try(outcome),
        "dagster/row_count": live,
        "dagster/size_bytes": dataset.total_bytes,
        "dagster/column_schema": column_schema(dataset.schema),
        "dagster/table_name": location.name,
        "dagster/uri": location.uri,
        "lance/version": dataset.version,
        "lance/operation": outcome.operation,
        "lance/transaction_uuid": outcome.transaction_uuid,
        "lance/read_version": outcome.read_version,
        "lance/rows_written": outcome.rows_written,
        "lance/rows_deleted": outcome.rows_deleted,
        "lance/bytes_written": outcome.bytes_written,
        "lance/fragments": len(dataset.get_fragments()),
        "lance/fragments_added": outcome.fragments_added,
        "lance/fragments_removed": outcome.fragments_removed,
        "lance/deleted_fraction": deleted / (live + deleted) if deleted else 0.0,
        "lance/commit_attempts": outcome.attempts,
        "lance/deduplicated": outcome.deduplicated,
    }
    return {key: value for key, value in known.items() if value is not None}


def _replaced_try(outcome: WriteOutcome) -> dg.JsonMetadataValue | None:
    """The newest of the earlier tries that a write took the place of: who made it, and in which version."""
    if not outcome.replaced_versions:
        return None
    version = outcome.replaced_versions[-1]
    transaction = outcome.dataset.read_transaction(version)
    properties = (transaction.transaction_properties if transaction is not None else None) or {}
    attempt = properties.get("dagster.attempt", "")
    return dg.MetadataValue.json(
        {
            "run_id": properties.get("dagster.run_id"),
            "version": version,
            "attempt": int(attempt) if attempt.isdecimal() else None,
        }
    )


def partition_metadata(outcome: WriteOutcome) -> dict[str, dict[str, Any]]:
    """The entries of each partition's own event, where the writers counted its rows."""
    return {key: {"dagster/partition_row_count": rows} for key, rows in outcome.slice_rows.items()}


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """The columns as the Dagster UI shows them: Arrow types, nullability, text metadata of fields as tags."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=field.name,
                type=str(field.type),
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
                tags=_tags(field.metadata),
            )
            for field in schema
        ]
    )


def _tags(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Field metadata that is short text and legal as tags; Arrow's and Spark's own entries stay out."""
    tags = {}
    for key, value in (metadata or {}).items():
        try:
            name, text = key.decode(), value.decode()
        except UnicodeDecodeError:
            continue
        if len(name) <= 63 and len(text) <= 63 and not name.startswith(("ARROW:", "SPARK::", "PARQUET:")):
            tags[name] = text
    return tags
