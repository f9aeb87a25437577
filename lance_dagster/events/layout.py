"""The layout of event metadata: which entries stand at the top, in which order. Importing it does not load Dagster.

At most ten entries stand at the top of an event, in this order; what does not apply is left out:

    what happened            lance/replaced_attempt  lance/kept_attempt  lance/deduplicated  lance/casts  lance/forced
                             lance/undid_run  lance/rows_erased  lance/promoted_from  lance/discarded
                             lance/left_behind
    rows, bytes              dagster/partition_row_count (in the event of a partition)  dagster/row_count
                             lance/rows_written  dagster/size_bytes  lance/deleted_fraction
                             lance/changes  lance/changes_inserted, _updated, _deleted
    the version              lance/version  lance/operation  lance/branch  lance/published
    the table                lance/inputs  dagster/column_schema  dagster/uri  dagster/column_lineage  lance/table_log
                             dagster/table_name

All others are in `lance/commit`, as JSON, without the prefix:

    rows_written  rows_inserted  rows_updated  rows_deleted  bytes_written  read_version  attempts  transaction_uuid
    fragments  fragments_added  fragments_removed  small_fragments  base_version  open_branches

Where more than ten apply, names and places go there as well, and the numbers stay: Dagster plots numbers at the top
only, and its bounds checks fail for an event that lacks theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lance_dagster.tables.event_keys import AT_TOP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COMMIT", "columns_of", "laid_out"]

COMMIT: Final = "lance/commit"
"""The entry with all that does not stand at the top."""

_MOST_AT_TOP: Final = 10

_FIRST_TO_GO: Final = (
    "dagster/table_name",  # the definition has it
    "dagster/uri",  # the definition and the log of the table have it
    "lance/operation",
    "lance/published",
    "lance/casts",
    "lance/left_behind",
    "lance/replaced_attempt",
    "lance/kept_attempt",
    "lance/deduplicated",
    "lance/inputs",
    "lance/table_log",
    "lance/rows_written",
)
"""Those that go into `lance/commit` where there are more than fit, the first one first."""


def laid_out(entries: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries at the top of an event, in order; and the others, by their names without prefix."""
    top = [key for key in AT_TOP if key in entries]
    is_said_twice = entries.get("lance/rows_written") == entries.get("dagster/partition_row_count")
    for key in (*_FIRST_TO_GO[:3], "lance/rows_written", *_FIRST_TO_GO) if is_said_twice else _FIRST_TO_GO:
        if len(top) > _MOST_AT_TOP and key in top:
            top.remove(key)
    rest = {key.rpartition("/")[2]: value for key, value in entries.items() if key not in top}
    return {key: entries[key] for key in top}, rest


def columns_of(schema: pa.Schema) -> Iterator[tuple[str, str, bool, Mapping[str, str]]]:
    """Name, Arrow type, nullability, and tags of each column."""
    for field in schema:
        yield field.name, str(field.type), field.nullable, _tags(field.metadata)


def _tags(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Field metadata whose strings are short and legal as tags; Arrow's and Spark's own entries stay out."""
    tags = {}
    for key, value in (metadata or {}).items():
        try:
            name, tag = key.decode(), value.decode()
        except UnicodeDecodeError:
            continue
        if len(name) <= 63 and len(tag) <= 63 and not name.startswith(("ARROW:", "SPARK::", "PARQUET:")):
            tags[name] = tag
    return tags
