"""The entries of events: one table, from which the layout of events and the check of metadata are derived."""

from __future__ import annotations

from typing import Final

AT_TOP: Final = (
    "lance/replaced_attempt",
    "lance/kept_attempt",
    "lance/deduplicated",
    "lance/casts",
    "lance/forced",
    "lance/undid_run",
    "lance/rows_erased",
    "lance/promoted_from",
    "lance/discarded",
    "lance/left_behind",
    "dagster/partition_row_count",
    "dagster/row_count",
    "lance/rows_written",
    "dagster/size_bytes",
    "lance/deleted_fraction",
    "lance/changes",
    "lance/changes_inserted",
    "lance/changes_updated",
    "lance/changes_deleted",
    "lance/version",
    "lance/operation",
    "lance/branch",
    "lance/published",
    "lance/inputs",
    "dagster/column_schema",
    "dagster/uri",
    "dagster/column_lineage",
    "lance/table_log",
    "dagster/table_name",
)
"""The entries that may stand at the top of an event, in order."""

_DETAILS: Final = (
    "lance/attempts",
    "lance/bytes_written",
    "lance/columns",
    "lance/columns_added",
    "lance/fragments",
    "lance/fragments_added",
    "lance/fragments_removed",
    "lance/read_version",
    "lance/rows_deleted",
    "lance/rows_inserted",
    "lance/rows_nulled",
    "lance/rows_updated",
    "lance/small_fragments",
    "lance/transaction_uuid",
)
"""The entries of a write that the entry `lance/commit` holds."""

_RESERVED: Final = (
    "lance/branch",
    "lance/casts",
    "lance/discarded",
    "lance/forced",
    "lance/left_behind",
    "lance/promoted_from",
    "lance/published",
    "lance/rows_erased",
    "lance/undid_run",
    "lance/version",
)
"""Entries at the top that the body of an asset cannot set: those of jobs, and the version, branch and casts."""

EVENT_KEYS: Final = frozenset(key for key in (*AT_TOP, *_DETAILS) if key.startswith("lance/")).difference(_RESERVED)
"""Entries that the IO manager adds to events, and that the body of an asset may set instead."""
