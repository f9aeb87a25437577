"""The metadata entries of events: at the top in order, in `lance/commit`, and those that an asset may set."""

from __future__ import annotations

from typing import Final

COMMIT: Final = "lance/commit"
"""The entry of an event with all entries that are not at the top, by their names without prefix."""

DISCARDED: Final = "lance/discarded"
"""Entry of the events after a discard with the branch."""

UNDO_ENTRY: Final = "lance/undid_run"
"""Entry of the events of an undo with the run that was undone."""

RUN_ENTRIES: Final = (
    "lance/rows_written",
    "lance/due",
    "lance/rows_due",
    "lance/due_share",
    "lance/due_new",
    "lance/due_inputs_changed",
    "lance/due_code_changed",
    "lance/due_failed",
    "lance/rows_failed",
    "lance/rows_failed_standing",
    "lance/rows_staged_before",
    "lance/calls",
    "lance/seconds",
    "lance/cost",
)
"""The entries about a whole run, which are in `lance/commit` of the events of several partitions."""

TOP_ENTRIES: Final = (
    # what happened
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
    "lance/foreign_branch_versions",
    "lance/indices_covered",
    "lance/indices_not_covered",
    # rows and bytes; the first is in events of partitions only
    "dagster/partition_row_count",
    "dagster/row_count",
    *RUN_ENTRIES,
    "lance/failed_rows",
    "dagster/size_bytes",
    "lance/deleted_fraction",
    "lance/changes",
    "lance/changes_inserted",
    "lance/changes_updated",
    "lance/changes_deleted",
    # the version
    "lance/version",
    "lance/operation",
    "lance/branch",
    "lance/published",
    # the table
    "lance/inputs",
    "dagster/column_schema",
    "dagster/uri",
    "dagster/column_lineage",
    "lance/table_log",
    "dagster/table_name",
)
"""The entries that are at the top of an event, in this order, where they apply."""

COMMIT_ENTRIES: Final = (
    "lance/attempts",
    "lance/base_version",
    "lance/bytes_written",
    "lance/columns",
    "lance/columns_added",
    "lance/fragments",
    "lance/fragments_added",
    "lance/fragments_removed",
    "lance/open_branches",
    "lance/read_version",
    "lance/rows_deleted",
    "lance/rows_inserted",
    "lance/rows_nulled",
    "lance/rows_updated",
    "lance/small_fragments",
    "lance/transaction_uuid",
)
"""The entries of a write that are in `lance/commit`, as JSON and without the prefix."""

_RESERVED: Final = (
    "lance/base_version",
    "lance/branch",
    "lance/casts",
    "lance/discarded",
    "lance/forced",
    "lance/foreign_branch_versions",
    "lance/indices_covered",
    "lance/indices_not_covered",
    "lance/left_behind",
    "lance/open_branches",
    "lance/promoted_from",
    "lance/published",
    "lance/rows_erased",
    "lance/undid_run",
    "lance/version",
)
"""Entries that the body of an asset cannot set: those of jobs and branches, the version, and casts."""

SETTABLE_ENTRIES: Final = frozenset(
    key for key in (*TOP_ENTRIES, *COMMIT_ENTRIES) if key.startswith("lance/")
).difference(_RESERVED)
"""Entries that the IO manager adds to events, and that the body of an asset may set instead."""
