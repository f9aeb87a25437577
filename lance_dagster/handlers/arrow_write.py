"""Writes Arrow batches as uncommitted fragments, one partition per fragment, and commits them once.

    batches --fit--> columns of the table --assign--> slice of each row --> one FragmentWriter per slice
                                                                             |
    commit_fragments(mode, slices, write_attempt)  <---- fragments -------'

Every handler whose values are Arrow data, or become Arrow data in this process, writes through this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

import lance_core
from lance_core import SliceWriter, WriteResult
from lance_core.errors import CommitConflictError, DatasetExistsError
from lance_core.extension_types import empty_table
from lance_dagster.handlers import arrow_schema
from lance_dagster.handlers.base import WriteRequest, skips_empty
from lance_dagster.handlers.columns import write_column_batches
from lance_dagster.handlers.merge_clauses import check_plain
from lance_dagster.handlers.merging import check_keys, merge_arrow, merge_on_attempts, rebase_on_created_table

# The rows of a stream can be in any order; more open writers than this would hold too much unwritten data.
_MAX_OPEN_WRITERS = 32


def write_arrow(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, request: WriteRequest
) -> WriteResult | None:
    """Write batches with one commit; None if the output has no rows and empty output is skipped.

    Args:
        batches: The rows. A whole table is sorted by partition at once, so that there are fewer fragments.
        schema: The columns of the batches.
        request: The write.

    Raises:
        LanceError: The write failed: no row was changed, except perhaps after an `OutcomeUnknownError`.
    """
    if request.mode == "columns":
        return write_column_batches(batches, schema, request)
    without_table = False  # whether a merge creates its table
    check_plain(request.output)  # before anything is written
    target = _choose_columns_to_write(batches, schema, request)
    if request.output.write_mode == "merge":
        table = _to_merge(batches, schema, target, request)
        merged_deletes = request.deletes if request.mode == "merge" else None
        deletes = None if merged_deletes is None else arrow_schema.fit_batch(merged_deletes, target)
        request = replace(request, deletes=deletes)
        if skips_empty(table.num_rows + (0 if deletes is None else deletes.num_rows), request):
            return None
        if request.mode == "merge":
            return _merge(table, request)
        batches, without_table = [table], request.mode == "create"
    writer = _make_writer(target, request)
    try:
        for batch in batches:
            writer.write(arrow_schema.fit_batch(batch, target))
        fragments = writer.finish()
        if skips_empty(writer.num_rows, request):
            return None
    except BaseException:
        writer.discard()
        raise
    try:
        return _commit(fragments, target, writer, request)
    except DatasetExistsError:
        writer.discard()
        if not without_table:
            raise
    return write_arrow(batches, target, rebase_on_created_table(request))


def _choose_columns_to_write(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, request: WriteRequest
) -> pa.Schema:
    """The columns with which the rows are written."""
    without_rows = isinstance(batches, list) and not any(batch.num_rows for batch in batches)
    existing = None if request.existing is None else request.existing.schema
    frame_schema = arrow_schema.apply_known_types(schema, request.known, existing, without_rows=without_rows)
    frame_schema = arrow_schema.apply_vector_widths(frame_schema, request.output.vector_columns)
    if existing is not None and request.output.schema_mode != "overwrite":
        existing = arrow_schema.predict_table_schema(existing, frame_schema)
    return arrow_schema.target_schema(frame_schema, existing, request.mode, request.output.schema_mode)


def _to_merge(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, target: pa.Schema, request: WriteRequest
) -> pa.Table:
    """The rows of a merge; rows of the table keep their values in columns that other assets own."""
    if request.mode == "merge":
        owner_by_column = arrow_schema.owners(target)
        target = pa.schema(
            [field for field in target if field.name in schema.names or field.name not in owner_by_column]
        )
    table = pa.concat_tables([arrow_schema.fit_batch(batch, target) for batch in batches] or [empty_table(target)])
    check_keys(table, request.output.merge_key)
    return table


def check_arrow(batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, request: WriteRequest) -> bool:
    """Whether batches would be written to a table that does not exist yet; nothing is written.

    Raises:
        LanceError: The write would reject the batches.
    """
    check_plain(request.output)
    without_rows = isinstance(batches, list) and not any(batch.num_rows for batch in batches)
    frame_schema = arrow_schema.apply_known_types(schema, request.known, None, without_rows=without_rows)
    target = arrow_schema.target_schema(
        arrow_schema.apply_vector_widths(frame_schema, request.output.vector_columns), None, "create", "strict"
    )
    slices = request.slices if request.output.out_of_partition == "error" else None
    num_rows, keys = 0, []
    for batch in batches:
        fitted = arrow_schema.fit_batch(batch, target)
        num_rows += fitted.num_rows
        if slices is not None:
            slices.assign_all(fitted, request.uri)
        if request.output.write_mode == "merge":
            check_keys(fitted.slice(0, 0), request.output.merge_key)
            keys.append(fitted.select(request.output.merge_key))
    if keys:
        check_keys(pa.concat_tables(keys), request.output.merge_key)
    return not skips_empty(num_rows, request)


def _merge(table: pa.Table, request: WriteRequest) -> WriteResult | None:
    if request.slices is not None and request.output.out_of_partition == "error":
        for rows in (table, *([] if request.deletes is None else [request.deletes])):
            request.slices.assign_all(rows, request.uri)
    return merge_on_attempts(
        request, lambda: table.select(request.output.merge_key), lambda attempted: merge_arrow(table, attempted)
    )


def _commit(
    fragments: list[lance_core.FragmentMetadata], schema: pa.Schema, writer: SliceWriter, request: WriteRequest
) -> WriteResult:
    try:
        result = lance_core.commit_fragments(
            # The handle detects a table that was created again meanwhile.
            request.uri if request.existing is None else request.existing,
            fragments,
            schema,
            mode=request.mode,
            slices=request.slices if request.mode == "replace" or request.require_empty else None,
            require_empty=request.require_empty,
            read_version=request.read_version,
            table_config=request.table_config,
            storage_options=request.storage_options,
            commit=request.commit,
            files=request.files,
            add_columns=request.output.schema_mode == "add_columns" or bool(_find_untyped_columns(schema, request)),
        )
    except CommitConflictError:
        writer.discard()  # after a conflict nothing was committed; after other errors the files may be in use
        raise
    if result.deduplicated:
        writer.discard()
    rows = {} if request.slices is None else request.slices.counted(writer.rows)
    return WriteResult.of(result, fragments, writer.num_rows, rows)


def _make_writer(schema: pa.Schema, request: WriteRequest) -> SliceWriter:
    """The writer of the output; it keeps rows of different partitions apart."""
    slices, field_ids = request.slices, _field_ids(schema, request)

    def new_writer() -> lance_core.FragmentWriter:
        options = request.storage_options
        return request.files.writer(request.uri, schema, storage_options=options, dataset_schema=field_ids)

    def assign(rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        assert slices is not None
        must_lie_inside = request.output.out_of_partition == "error"
        return slices.assign_all(rows, request.uri) if must_lie_inside else slices.assign(rows)

    return SliceWriter(new_writer, None if slices is None else assign, max_open=_MAX_OPEN_WRITERS)


def _field_ids(schema: pa.Schema, request: WriteRequest) -> bytes | None:
    """The table's schema with field ids, for files beside its own; None if the table is new or overwritten."""
    existing = request.existing
    if existing is None or request.mode == "overwrite":
        return None
    typed_columns = set(existing.schema.names) - _find_untyped_columns(schema, request)
    added = [field for field in schema if field.name not in typed_columns]
    return existing.lance_schema_with(added) if added else existing.lance_schema_bytes


def _find_untyped_columns(schema: pa.Schema, request: WriteRequest) -> set[str]:
    """The columns of the table that have type null so far, and get a type."""
    return (
        set() if request.existing is None else set(arrow_schema.find_types_for_nulls(request.existing.schema, schema))
    )
