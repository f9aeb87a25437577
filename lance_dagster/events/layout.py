"""The layout of event metadata: which entries are at the top, in which order. Importing it does not load Dagster.

The table of entries is in `lance_dagster.tables.event_keys`: `TOP_ENTRIES` are at the top of an event, in that order,
where they apply. All others are in `lance/commit`, as JSON, without the prefix.

If more than ten entries apply, those of `_FIRST_TO_MOVE` move to `lance/commit` until ten are left. The other entries
always stay, above all numbers: Dagster plots only numbers at the top, and its bounds checks fail for an event without
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lance_core.maintenance.routine.health import compute_deleted_fraction
from lance_dagster.tables.event_keys import TOP_ENTRIES

if TYPE_CHECKING:
    import pyarrow as pa

    import lance_core

_MOST_AT_TOP: Final = 10

_FIRST_TO_MOVE: Final = ("dagster/table_name", "dagster/uri", "lance/operation")
"""The entries that move from the top to `lance/commit` if there are too many, in this order.

The definition has the first two as well, and the log of the table the others.
"""


def split_entries(entries: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries at the top of an event, in order, and the other entries, by their names without prefix."""
    top = [key for key in TOP_ENTRIES if key in entries]
    may_move = [*_FIRST_TO_MOVE]
    if entries.get("lance/rows_written") == entries.get("dagster/partition_row_count"):  # the same count twice
        may_move.append("lance/rows_written")
    if "lance/promoted_from" in entries:  # which says that it is published
        may_move.append("lance/published")
    for key in may_move:
        if len(top) > _MOST_AT_TOP and key in top:
            top.remove(key)
    commit_entries = {key.rpartition("/")[2]: value for key, value in entries.items() if key not in top}
    return {key: entries[key] for key in top}, commit_entries


def describe_version(dataset: lance_core.LanceDataset) -> dict[str, Any]:
    """The entries about the rows and bytes of a version."""
    return {
        "dagster/row_count": dataset.count_rows(),
        "dagster/size_bytes": dataset.total_bytes,
        "lance/deleted_fraction": compute_deleted_fraction(dataset),
        "lance/version": dataset.version,
    }


def describe_columns(schema: pa.Schema) -> Iterator[tuple[str, str, bool, Mapping[str, str]]]:
    """The name, Arrow type, nullability and tags of each column."""
    for field in schema:
        yield field.name, str(field.type), field.nullable, _select_tags(field.metadata)


def _select_tags(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """The field metadata that can be tags: at most 63 characters, and no entries of Arrow, Spark or Parquet."""
    tags = {}
    for key, value in (metadata or {}).items():
        try:
            name, tag = key.decode(), value.decode()
        except UnicodeDecodeError:
            continue
        if len(name) <= 63 and len(tag) <= 63 and not name.startswith(("ARROW:", "SPARK::", "PARQUET:")):
            tags[name] = tag
    return tags
