"""Changes as Arrow tables: read for an input, and split into the rows that a merge writes and those that it deletes.

An updated row is an insert if only its new values meet the filter, and a delete if only its old values do. If a column
of the key differs, the update is a delete of the old row and an insert of the new one. If the reader computes a column
of its key, every update is read so, but still counted as an update.

    _change_type    insert | update_postimage | delete
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_dagster.handlers.base import CHANGE_TYPE, ChangesPart, ReadRequest
from lance_dagster.handlers.merging import select_key

if TYPE_CHECKING:
    import lance_core

ROW_ID = "_rowid"
_MOST_COUNTED = 1_000_000
"""The most changes that are read an additional time to count them."""
KINDS = ("insert", "update_postimage", "delete")


def changes_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of an input of changes: those of the table and `_change_type`."""
    return schema.append(pa.field(CHANGE_TYPE, pa.string()))


def read_changes(request: ReadRequest) -> pa.Table:
    """The changes of a request, with its columns and the kind of each change.

    Raises:
        LanceError: A version that is needed was cleaned up, or the changes cannot be read.
    """
    assert request.changes is not None
    parts, total = [], Counter[str]()
    for part in request.changes.parts:
        changes, updates = _read_part(request, part)
        total += _count_by_kind(changes)
        total += Counter(insert=-updates, update_postimage=updates, delete=-updates)
        parts.append(changes)
    column_names = request.dataset.schema.names if request.columns is None else request.columns
    request.changes.counts.update({kind: total[kind] for kind in KINDS})
    return pa.concat_tables([part.select([*column_names, CHANGE_TYPE]) for part in parts])


def count_changes(request: ReadRequest, *, all_of_them: bool = False) -> None:
    """Count changes that are read later. To apply a filter, or a key, its columns are read.

    Args:
        request: The read, whose `changes.counts` is set.
        all_of_them: Whether to count any number of changes. If not, nothing is counted where more than a million
            changes would have to be read.
    """
    assert request.changes is not None
    dataset, key, counted = request.dataset, request.changes.key, request.changes.updates_of
    column = _choose_cheap_column(dataset)
    total = Counter(dict.fromkeys(KINDS, 0))
    for part in request.changes.parts:
        delta = dataset.delta(begin_version=part.begin_version, end_version=dataset.version)
        counts = Counter(
            {str(kind): number for kind, number in delta.plan([column], updates_of=counted).counts.items()}
        )
        if part.begin_version == 0 and part.filter is not None:
            total["insert"] += dataset.count_rows(filter=part.filter)
        elif part.filter is None and not (key and counts["update_postimage"]):
            total += counts
        elif all_of_them or counts.total() <= _MOST_COUNTED:
            whole = replace(request, columns=[column], changes=replace(request.changes, splits_updates=False))
            total += _count_by_kind(_read_part(whole, part)[0])
        else:
            return
    request.changes.counts.update({kind: total[kind] for kind in KINDS})


def has_changes(
    dataset: lance_core.LanceDataset, begin_version: int, rows: pc.Expression | None, updates_of: Sequence[str] | None
) -> bool:
    """Whether some rows of a table were changed after a version.

    Args:
        dataset: The table at the later version.
        begin_version: The version after which changes count.
        rows: The condition of the rows; None for all rows.
        updates_of: The columns whose updates are changes; None for all columns.

    Raises:
        LanceError: A version that is needed was cleaned up, or the changes cannot be read.
    """
    delta, column = (
        dataset.delta(begin_version=begin_version, end_version=dataset.version),
        _choose_cheap_column(dataset),
    )
    if rows is None:
        return bool(delta.plan([column], updates_of=updates_of).tasks)
    feed = delta.get_changes([column], updates_of=updates_of, preimages=True, filter=rows)
    return any(batch.num_rows for batch in feed)


def _choose_cheap_column(dataset: lance_core.LanceDataset) -> str:
    """A column that is cheap to read, for reads that need no particular column."""
    schema: pa.Schema = dataset.schema
    names: list[str] = schema.names
    return next((field.name for field in schema if pa.types.is_primitive(field.type)), names[0])


def _count_by_kind(changes: pa.Table) -> Counter[str]:
    counted = changes.column(CHANGE_TYPE).value_counts()
    return Counter({count["values"].as_py(): count["counts"].as_py() for count in counted})


def _read_part(request: ReadRequest, part: ChangesPart) -> tuple[pa.Table, int]:
    """The changes of a part, and the number of updates that are a delete and an insert among them."""
    assert request.changes is not None
    dataset, key = request.dataset, list(request.changes.key)
    delta = dataset.delta(begin_version=part.begin_version, end_version=dataset.version)
    read = request.changes.columns_read(request.columns)
    columns = None if read is None else [name for name in read if name != ROW_ID] or dataset.schema.names[:1]
    options: dict[str, Any] = {"updates_of": request.changes.updates_of, "filter": part.filter}
    splits = request.changes.splits_updates
    pairs = (part.filter is not None or bool(key) or splits) and bool(
        delta.plan(columns, **options).counts["update_postimage"]
    )
    feed = delta.get_changes(
        columns, preimages=pairs, with_row_id=pairs or ROW_ID in (read or ()), blob_handling="all_binary", **options
    ).read_all()
    if pairs and splits:
        return _split(feed)
    return (_pair_updates(feed, key) if pairs else feed), 0


def _split(feed: pa.Table) -> tuple[pa.Table, int]:
    """The feed with deletes and inserts in place of updates, and the number of updates that became both."""
    kinds = feed.column(CHANGE_TYPE)
    before, after = pc.equal(kinds, "update_preimage"), pc.equal(kinds, "update_postimage")
    ids = feed.column(ROW_ID)
    both = pc.sum(pc.is_in(ids.filter(after), ids.filter(before).combine_chunks())).as_py() or 0
    kinds = pc.if_else(before, "delete", pc.if_else(after, "insert", kinds))
    index = feed.schema.get_field_index(CHANGE_TYPE)
    return feed.set_column(index, feed.schema.field(index), kinds), both


def _pair_updates(feed: pa.Table, key: Sequence[str]) -> pa.Table:
    """The feed with one row per update, or with a delete or insert where only one side meets the filter.

    An update that changes the key becomes a delete and an insert.
    """
    kinds = feed.column(CHANGE_TYPE)
    before = feed.filter(pc.equal(kinds, "update_preimage")).sort_by(ROW_ID)
    after = feed.filter(pc.equal(kinds, "update_postimage")).sort_by(ROW_ID)
    inserts_and_deletes = feed.filter(pc.is_in(kinds, pa.array(["insert", "delete"])))
    left = pc.is_in(before.column(ROW_ID), after.column(ROW_ID).combine_chunks())
    came = pc.invert(pc.is_in(after.column(ROW_ID), before.column(ROW_ID).combine_chunks()))
    deletions, new = [before.filter(pc.invert(left))], [after.filter(came)]
    before, after = before.filter(left), after.filter(pc.invert(came))
    if key and len(before):
        differs = reduce(or_, (_differs(before.column(name), after.column(name)) for name in key))
        moved = pa.array(differs)
        deletions.append(before.filter(moved))
        new.append(after.filter(moved))
        after = after.filter(pc.invert(moved))
    return pa.concat_tables(
        [
            *(_as(part, "delete") for part in deletions),
            inserts_and_deletes,
            after,
            *(_as(part, "insert") for part in new),
        ]
    )


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> object:
    """For each row, whether two values differ; two nulls are equal."""
    same = pc.fill_null(pc.equal(left, right), False)
    return (
        pc.invert(pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right))))
        .combine_chunks()
        .to_numpy(zero_copy_only=False)
    )


def _as(rows: pa.Table, kind: str) -> pa.Table:
    index = rows.schema.get_field_index(CHANGE_TYPE)
    return rows.set_column(index, rows.schema.field(index), pa.array([kind] * len(rows), pa.string()))


def split_table(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The rows to merge, and the rows whose keys are deleted; see `LanceTypeHandler.split_changes`.

    Raises:
        SchemaError: A column of the key is missing.
        UnsupportedError: A column of the key is nested.
        InvalidInputError: A row has an unknown kind of change.
    """
    kinds = table.column(CHANGE_TYPE)
    odd = set(kinds.unique().to_pylist()) - set(KINDS)
    if odd:
        named = min(map(repr, odd))
        raise InvalidInputError(f"a row has {CHANGE_TYPE} {named}, but a merge applies only {', '.join(KINDS)}")
    rows = table.drop_columns([CHANGE_TYPE])
    is_delete = pc.equal(kinds, "delete")
    merged, deleted = rows.filter(pc.invert(is_delete)), rows.filter(is_delete)
    numbered = select_key(deleted, key).append_column("__number", pa.array(range(len(deleted)), pa.int64()))
    without_match = numbered.join(select_key(merged, key), keys=list(key), join_type="left anti")
    first = without_match.group_by(list(key)).aggregate([("__number", "min")]).column("__number_min").sort()
    return merged, deleted.take(first)
