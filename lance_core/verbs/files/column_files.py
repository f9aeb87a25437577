"""Write new data files with some columns of existing fragments: rows, deleted ones included, keep their offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.file.container import WrittenFile
from lance_core.file.metadata import FileVersion
from lance_core.file.pool import in_order, num_threads
from lance_core.file.writer import DataFileWriter
from lance_core.row_addresses import make_row_addresses
from lance_core.schema import Schema, typed_schema
from lance_core.store import ObjectStore, note_begun
from lance_core.table.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.table.paths import data_key, new_data_file_name
from lance_core.table.rowids import decode_row_ids_of
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.conform import check_dictionaries, conform
from lance_core.verbs.files.fragment_writer import CLOSING_AT_A_TIME, make_data_file_record
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID, with_types
from lance_core.verbs.scan.read_fragment import count_file_rows, parallel_requests, read_fragment

Mask = npt.NDArray[np.bool_]
Item = TypeVar("Item")
Written = TypeVar("Written")


def live_batches(
    snapshot: Snapshot,
    fragment: Fragment,
    schema: Schema,
    *,
    batch_rows: int | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
) -> Iterator[tuple[pa.Table, Mask]]:
    """Read the live rows of a fragment in batches, with a mask of the physical rows that each batch stands for.

    Yields:
        The live rows among some consecutive physical rows, and for each of these physical rows whether it is alive.
    """
    num_rows = count_file_rows(snapshot, fragment)
    deletions = snapshot.deletions(fragment)
    live = np.ones(num_rows, np.bool_) if deletions is None else deletions.live_rows(num_rows)
    ids = decode_row_ids_of(fragment) if with_row_id else None
    typed = typed_schema(schema)
    start = 0
    for batch in read_fragment(snapshot, fragment, schema, range(num_rows), batch_rows=batch_rows):
        end = start + batch.num_rows
        mask = live[start:end]
        table = pa.Table.from_batches([with_types(batch, typed)])
        if with_row_id or with_row_address:
            addresses = make_row_addresses(fragment.id, np.arange(start, end, dtype=np.uint64))
        if with_row_id:
            table = table.append_column(ROW_ID, pa.array(addresses if ids is None else ids[start:end], pa.uint64()))
        if with_row_address:
            table = table.append_column(ROW_ADDRESS, pa.array(addresses, pa.uint64()))
        yield table if mask.all() else table.filter(pa.array(mask)), mask
        start = end


def spread(rows: pa.Table, mask: Mask) -> pa.Table:
    """Put the values of live rows at their offsets; deleted rows get values of a neighbour, which are never read."""
    if mask.all():
        return rows
    if not rows.num_rows:
        return pa.table([_fill_unread(field.type, len(mask)) for field in rows.schema], schema=rows.schema)
    return rows.take(pa.array(np.maximum(np.cumsum(mask) - 1, 0)))


def _fill_unread(kind: Any, count: int) -> pa.Array:
    """Any values of a type; no null where some version of files cannot store it."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_fill_unread(kind.storage_type, count))
    if pa.types.is_struct(kind):
        children = [_fill_unread(field.type, count) for field in kind]
        return pa.Array.from_buffers(kind, count, [None], children=children)
    if pa.types.is_fixed_size_list(kind):
        items = _fill_unread(kind.value_type, count * kind.list_size)
        return pa.Array.from_buffers(kind, count, [None], children=[items])
    nulls = pa.nulls(count, kind)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, count, [None, *nulls.buffers()[1:]])
    return nulls


def patch_rows(
    snapshot: Snapshot,
    fragment: Fragment,
    schema: Schema,
    offsets: npt.NDArray[np.int64],
    new: Callable[[pa.RecordBatch, int, int], pa.Table],
    *,
    reads: Schema | None = None,
) -> Iterator[pa.Table]:
    """Yield columns of a fragment, for all physical rows in order, with new values in some rows.

    Args:
        snapshot: The version that the fragment is in.
        fragment: The fragment.
        schema: The columns.
        offsets: Offsets of the rows that change, ascending.
        new: Returns the new values of the rows `offsets[first:last]`; gets the old rows, `first` and `last`.
        reads: The columns of the old rows that `new` gets, those of `schema` included; None for `schema`.
    """
    start = 0
    for batch in read_fragment(snapshot, fragment, reads or schema, range(count_file_rows(snapshot, fragment))):
        end = start + batch.num_rows
        first, last = (int(place) for place in np.searchsorted(offsets, (start, end)))
        old = batch.select(schema.names)
        if first == last:
            yield pa.Table.from_batches([old])
        else:
            rows = offsets[first:last] - start
            values = new(batch.take(pa.array(rows)), first, last).select(schema.names)
            places = np.arange(batch.num_rows)
            places[rows] = batch.num_rows + np.arange(last - first)
            both = pa.concat_tables([pa.Table.from_batches([old]), values.cast(old.schema)])
            yield both.take(pa.array(places))
        start = end


def write_column_file(
    snapshot: Snapshot,
    fragment: Fragment,
    schema: Schema,
    tables: Iterable[pa.Table],
    files: UncommittedFiles,
    name: str | None = None,
) -> DataFile:
    """Write columns of a fragment into a new file.

    Args:
        snapshot: The version that the fragment is in.
        fragment: The fragment.
        schema: The columns, with field ids.
        tables: Their values for all physical rows, in order.
        files: Takes note of the file.
        name: Its name; None for any new one.

    Raises:
        InvalidInputError: There are more or fewer values than rows.
        SchemaError: The values do not fit the columns, or are new in a dictionary of version 0.1.
    """
    name = name or new_data_file_name()
    note_begun(data_key(name))
    version = FileVersion.from_string(snapshot.manifest.data_storage_version)
    writer = DataFileWriter(snapshot.store, data_key(name), schema, version=version)
    try:
        for table in tables:
            writer.write(conform(table, schema))
        _check_rows(fragment, writer.num_rows, count_file_rows(snapshot, fragment))
        written = _finish_file(writer, version, files)
    except BaseException:
        writer.abort()
        raise
    file = make_data_file_record(written)
    files.add_data_file(file)
    check_dictionaries(snapshot.manifest.schema, [replace(fragment, files=(file,))], snapshot.store)
    return file


def write_at_once(work: Callable[[Item], Written], parts: Sequence[Item], store: ObjectStore) -> Iterator[Written]:
    """Yield what `work` returns for some parts, each of a fragment, in order; several are written at once.

    Few parts are written one after the other, each by all threads.
    """
    requests = parallel_requests(store)
    if not requests and len(parts) < 2 * num_threads():
        return map(work, parts)
    return in_order(work, parts, requests=requests)


def _finish_file(writer: DataFileWriter, version: FileVersion, files: UncommittedFiles) -> WrittenFile:
    """Close a file: it is durable now, or, on a local disk and in versions after 0.1, after the pending writes."""
    if files.pending is None or version is FileVersion.V0_1 or files.snapshot.store.put_is_a_request:
        return writer.finish()
    writer.complete()
    files.pending.add_all(writer.close_early())
    files.pending.wait(CLOSING_AT_A_TIME)
    return writer.written()


def with_column_file(fragment: Fragment, file: DataFile) -> Fragment:
    """The fragment with one more data file."""
    return replace(fragment, files=(*fragment.files, file))


def replace_columns(fragment: Fragment, file: DataFile) -> Fragment:
    """The fragment with a new data file, whose columns replace those in its other files.

    Files that are left without columns are dropped.
    """
    field_ids = set(file.fields)
    files = (
        replace(old, fields=tuple(TOMBSTONE if f in field_ids else f for f in old.fields))
        if field_ids & set(old.fields)
        else old
        for old in fragment.files
    )
    return with_column_file(replace(fragment, files=tuple(files)), file).without_dead_files()


def _check_rows(fragment: Fragment, num_rows: int, num_expected: int) -> None:
    if num_rows != num_expected:
        raise InvalidInputError(f"fragment {fragment.id} has {num_expected} rows, but there are values for {num_rows}")
