"""Writes of columns: an asset with `write_mode` columns sets columns in existing rows of another asset's table.

    rows       matched by `_rowaddr` or `_rowid` if the frame kept it from its input, else by `lance/key`
    scope      the rows of the run's partitions, or all rows; `lance/missing` decides about those that the frame lacks,
               and with null the scope has only rows that the step has loaded
    columns    the other columns of the frame: cast to the table's types, or new, with the asset in the field's metadata

Only data files with these columns are written, and one commit sets them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import ColumnsResult, LanceDataset, WriteResult
from lance_core.errors import EarlierAttemptError, InvalidInputError, SchemaError, VersionNotFoundError
from lance_core.extension_types import empty_table
from lance_dagster.handlers.arrow_schema import apply_known_types, apply_vector_widths, fit_batch
from lance_dagster.handlers.base import ROW_NAMES, WriteRequest, skips_empty
from lance_dagster.handlers.exact_cast import CastRejectedError, can_cast
from lance_dagster.handlers.merging import build_adopted_result
from lance_dagster.properties import ASSET_KEY, COLUMNS, properties_of, split_values

_LAST_UPDATED: Final = "_row_last_updated_at_version"


def choose_matching_columns(names: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns that identify the rows of a frame.

    Args:
        names: The frame's columns.
        key: The columns of the metadata `lance/key`.

    Raises:
        SchemaError: The frame has neither `_rowid` nor `_rowaddr`, and `key` is empty or has a column that it lacks.
    """
    for name in ROW_NAMES:
        if name in names:
            return [name]
    lacking = [name for name in key if name not in names]
    if lacking or not key:
        raise SchemaError(
            f"the output lacks the key column {lacking[0]!r} of lance/key; it has {list(names)}"
            if lacking
            else 'write_mode columns needs a key that identifies the rows: metadata={"lance/key": "column"}; or keep '
            "_rowid or _rowaddr of the input in the output"
        )
    return list(key)


def set_columns(names: Iterable[str], key: Sequence[str]) -> list[str]:
    """The columns of a frame that are set: all except the ones that identify rows."""
    return [name for name in names if name not in (*ROW_NAMES, *key)]


def align_columns_to_set(schema: pa.Schema, request: WriteRequest, *, without_rows: bool = False) -> pa.Schema:
    """The columns to set, as the table stores them.

    Args:
        schema: The frame's columns.
        request: The write.
        without_rows: Whether the frame has no rows, so that its types are ignored.

    Raises:
        SchemaError: The frame has no column to set, or the type of a column is unknown or does not fit.
    """
    assert request.existing is not None
    table, names = request.existing.schema, set_columns(schema.names, request.output.row_key)
    if not names:
        raise SchemaError(f"the output has only the columns {schema.names}, which identify its rows, and none to set")
    frame = pa.schema([schema.field(name) for name in names])
    columns_schema = apply_known_types(frame, request.known, table, without_rows=without_rows)
    widths = {name: width for name, width in request.output.vector_columns.items() if name not in table.names}
    columns_schema = apply_vector_widths(columns_schema, widths)
    fields = []
    for field in columns_schema:
        if field.name in table.names:
            table_field = table.field(field.name)
            if field.type != table_field.type and not can_cast(field.type, table_field.type):
                raise CastRejectedError(field.name, field.type, table_field.type)
            fields.append(table_field)
            continue
        if pa.types.is_null(field.type):
            raise SchemaError(
                f"column {field.name!r} is new, and null in all rows, so that its type is not known; give the asset "
                f'the metadata {{"lance/schema": {{"{field.name}": "string", ...}}}}'
            )
        owner = {ASSET_KEY: request.commit.texts[ASSET_KEY]}
        fields.append(field.with_nullable(True).with_metadata({**(field.metadata or {}), **owner}))
    return pa.schema(fields)


def write_column_batches(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, request: WriteRequest
) -> WriteResult | None:
    """Set columns in the rows that batches identify, with one commit; None if empty output is skipped.

    Args:
        batches: The rows.
        schema: The columns of the batches.
        request: The write.

    Raises:
        LanceError: The write failed: no row was changed, except perhaps after an `OutcomeUnknownError`.
    """
    key = choose_matching_columns(schema.names, request.output.row_key)
    tables = [pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch for batch in batches]
    num_rows = sum(table.num_rows for table in tables)
    if skips_empty(num_rows, request):
        return None
    stored = align_columns_to_set(schema, request, without_rows=not num_rows)
    assert request.existing is not None
    target = pa.schema([*key_fields(key, request.existing.schema), *stored])

    def fitted() -> pa.Table:
        return pa.concat_tables([fit_batch(table, target) for table in tables] or [empty_table(target)])

    if decide_to_adopt(request, key, lambda: fitted().select(key)):
        return build_adopted_result(request)
    data = fitted()
    try:
        return _write(data, key, request)
    except InvalidInputError:
        left = data
        with suppress(pa.ArrowException):  # Arrow joins only by primitive types
            left = _drop_deleted_rows(data, key, request)
        if left.num_rows == data.num_rows:
            raise
    return _write(left, key, request, data.num_rows - left.num_rows)


def _write(data: pa.Table, key: Sequence[str], request: WriteRequest, left_out: int = 0) -> WriteResult:
    dataset = reopen_base(request)
    done = dataset.write_columns(
        data, key, where=request.scope, missing=request.output.missing, **request.commit_arguments
    )
    return columns_result(dataset, done, request, left_out)


def _drop_deleted_rows(data: pa.Table, key: Sequence[str], request: WriteRequest) -> pa.Table:
    """The rows without those that were deleted since the version that the step has read."""
    base = reopen_base(request)
    base.checkout_latest()  # the rejected write may have been done again there
    if not may_lack_rows(key, replace(request, existing=base)):
        return data
    assert request.read is not None
    names, number = list(key), "__lance_number"
    numbered = data.select(names).append_column(number, pa.array(range(data.num_rows), pa.int64()))
    lacking = numbered.join(base.to_table(names), keys=names, join_type="left anti")
    deleted = lacking.join(request.read.to_table(names), keys=names, join_type="left semi").column(number)
    return data.filter(pc.invert(pc.is_in(numbered.column(number), deleted.combine_chunks())))


def may_lack_rows(key: Sequence[str], request: WriteRequest) -> bool:
    """Whether rows of the version that the step has read may be deleted in the version that the write is based on.

    It does not matter for rows that are identified by address: they are followed from the version that was read.
    """
    read, existing = request.read, request.existing
    if read is None or existing is None or "_rowaddr" in key or existing.version <= read.version:
        return False
    now = {fragment.fragment_id: fragment.metadata.deletion_file for fragment in existing.get_fragments()}
    return any(
        fragment.fragment_id not in now or fragment.metadata.deletion_file != now[fragment.fragment_id]
        for fragment in read.get_fragments()
    )


def reopen_base(request: WriteRequest) -> LanceDataset:
    """A new handle on the version of the table that the write is based on."""
    assert request.existing is not None
    return request.existing.checkout_version((request.existing.branch, request.existing.version))


def decide_to_adopt(request: WriteRequest, key: Sequence[str], keys: Callable[[], pa.Table]) -> bool:
    """Whether the columns of an earlier attempt are adopted, so that nothing is written.

    Where `lance/missing` is keep, rows that the frame lacks keep the values of earlier attempts. Then `replace` needs a
    frame with all rows that these attempts have set, which it has if it is made from the same changes.

    Args:
        request: The write.
        key: The columns that identify the rows.
        keys: Returns these columns of the frame; called only after an earlier attempt.

    Raises:
        EarlierAttemptError: Cells that only an earlier attempt set may be kept, and `on_earlier_attempt` is replace.
    """
    write = request.commit.write_attempt
    if write is None or not write.earlier or request.output.missing != "keep":
        return False
    if write.on_earlier_attempt == "replace":
        left = _describe_cells_of_earlier(request, key, keys)
        if left == "":
            return False
        raise EarlierAttemptError(
            f"an earlier attempt of this write set columns of {request.uri} in version {write.earlier[-1]}, and "
            f"lance/missing is keep, so that cells which only that attempt has set would stay{left}. Nothing was "
            "written. Set lance/on_earlier_attempt to append, to set the cells of this attempt too, or to adopt, to "
            "keep those of the earlier attempt"
        )
    return write.on_earlier_attempt == "adopt"


def _describe_cells_of_earlier(request: WriteRequest, key: Sequence[str], keys: Callable[[], pa.Table]) -> str:
    """The cells that only earlier attempts have set, for the message; an empty string if there are none.

    They are known for tables with stable row ids, which record the last change of each row, until the versions of the
    attempts are cleaned up.
    """
    existing, write = request.existing, request.commit.write_attempt
    assert existing is not None
    assert write is not None
    if not existing.has_stable_row_ids or "_rowaddr" in key:
        return ", if there are any: this is known only of tables with stable row ids, and not with _rowaddr as key"
    names, columns, current_keys = (
        list(key),
        set(split_values(request.commit.texts.get(COLUMNS))),
        keys().select(list(key)),
    )
    for version in write.earlier:
        try:
            earlier_version = existing.checkout_version((existing.branch, version))
        except VersionNotFoundError:
            return f", if there are any: version {version} was cleaned up"
        other_columns = (
            set(split_values(properties_of(earlier_version.read_transaction(version)).get(COLUMNS))) - columns
        )
        if other_columns:
            return f", in the columns {sorted(other_columns)}"
        rows = _set_in(earlier_version, list(dict.fromkeys((*names, "_rowid"))))
        kinds = pa.schema([rows.schema.field(name) for name in names])
        left = rows.join(current_keys.cast(kinds), names, join_type="left anti")
        if left.num_rows:  # rows that were deleted since do not count, but rows whose key was changed do
            left = left.join(existing.to_table(["_rowid"]), "_rowid", join_type="left semi")
        if left.num_rows:
            return f", in {left.num_rows} rows"
    return ""


def _set_in(dataset: LanceDataset, names: Sequence[str]) -> pa.Table:
    """Some columns of the rows that a version changed, and no later one up to that version did."""
    scanner = dataset.scanner(columns=[*names, _LAST_UPDATED])
    batches = [batch.filter(pc.equal(batch.column(_LAST_UPDATED), dataset.version)) for batch in scanner.to_batches()]
    return pa.Table.from_batches(batches, scanner.projected_schema).select(list(names))


def key_fields(key: Sequence[str], table: pa.Schema) -> list[pa.Field]:
    """The key in the table's types.

    Raises:
        SchemaError: The table lacks a column of the key.
    """
    unknown = [name for name in key if name not in ROW_NAMES and name not in table.names]
    if unknown:
        raise SchemaError(f"lance/key names {unknown}, which are not among the table's columns {table.names}")
    return [pa.field(name, pa.uint64()) if name in ROW_NAMES else table.field(name).with_nullable(True) for name in key]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsWritten(WriteResult):
    """The result of a write of columns.

    Attributes:
        left_out: The most keys that were left out, since their rows were deleted: for a lazy frame, the number of keys
            that were deleted, whether or not the frame has them.
        entries: Further entries of the event.
    """

    left_out: int = 0
    entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def columns_result(
    dataset: LanceDataset, done: ColumnsResult, request: WriteRequest, left_out: int = 0
) -> ColumnsWritten:
    """The result of a write of columns.

    Args:
        dataset: The table at the version that was committed.
        done: What was written.
        request: The write.
        left_out: The most keys that were left out.
    """
    facts: Mapping[str, Any] = {
        "read_version": done.read_version,
        "rows_written": done.rows_updated - done.rows_nulled,
        "rows_updated": done.rows_updated,
        "bytes_written": done.bytes_written,
        "files": done.files,
        "left_out": left_out,
    }
    if not done.operation:
        return ColumnsWritten(dataset=dataset, operation="None", **facts)
    result = ColumnsWritten.of_transaction(dataset, dataset.read_transaction(done.version), **facts)
    earlier = () if request.commit.write_attempt is None else request.commit.write_attempt.earlier
    return replace(result, replaced_versions=earlier)
