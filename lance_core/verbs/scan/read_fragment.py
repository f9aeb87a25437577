"""Reads rows of a fragment from its files in lockstep, null where columns are missing; counts rows of old fragments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit.versions import raise_if_dropped
from lance_core.encoding.structural.blob import describe_schema, gives_payloads
from lance_core.errors import CorruptFileError, LanceError, ObjectNotFoundError, UnsupportedError
from lance_core.file.reader import DataFileReader
from lance_core.schema import Field, Schema, field_to_arrow, schema_to_arrow
from lance_core.store import ObjectStore
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.blob_payloads import blobs_inside, with_payloads

Rows = range | npt.NDArray[np.int64]
"""Physical rows of a fragment: a range, or ascending offsets without repetition."""

OpenFiles = dict[tuple[int | None, str], DataFileReader]
"""Open files of one fragment, by base and key, so that several reads of it open each file once."""

LOCKSTEP_ROWS = 65_536
"""Rows per batch if several files of a fragment are read in lockstep."""

_MAX_UNCHECKED_ROWS: Final = 1 << 26
"""A larger number of rows in the manifest is checked against a file."""

_PARALLEL_REQUESTS: Final = 8
"""Fragments that are read in parallel from object storage, where each costs a round trip."""


def parallel_requests(store: ObjectStore) -> int:
    """How many fragments a verb reads in threads of its own; 0 where a read is no request to a server."""
    return _PARALLEL_REQUESTS if store.put_is_a_request else 0


@dataclass(frozen=True, slots=True)
class _FileColumns:
    """The wanted columns of one data file."""

    reader: DataFileReader
    schema: Schema
    columns: dict[int, int]


def count_file_rows(snapshot: Snapshot, fragment: Fragment) -> int:
    """The number of rows in the files of a fragment; it is read from a file if the manifest, of 2023, lacks it.

    Raises:
        CorruptFileError: A number above `_MAX_UNCHECKED_ROWS` differs from that of the file.
    """
    stated = fragment.physical_rows
    if not fragment.files or 0 < stated <= _MAX_UNCHECKED_ROWS:
        return stated
    reader = open_file(snapshot, fragment.files[0], {})
    if stated not in (0, reader.num_rows):
        raise CorruptFileError(f"{reader.key}: has {reader.num_rows} rows, the manifest says {stated}")
    return reader.num_rows


def with_row_counts(snapshot: Snapshot, fragment: Fragment) -> Fragment:
    """The fragment's record with its row counts, which are read from its files if the manifest lacks them.

    Pylance up to 0.7 did not record them, and later releases that wrote to such a table left them out.
    """
    deleted = fragment.deletion_file
    if deleted is not None and not deleted.num_deleted_rows:
        fragment = replace(
            fragment, deletion_file=replace(deleted, num_deleted_rows=len(snapshot.deleted_rows(fragment)))
        )
    return fragment if fragment.physical_rows else replace(fragment, physical_rows=count_file_rows(snapshot, fragment))


def with_all_row_counts(snapshot: Snapshot) -> FragmentList:
    """All fragments of a version with their rows and deletions; see `with_row_counts`."""
    fragments = snapshot.manifest.fragments
    if None not in fragments.live_counts():
        return fragments
    return FragmentList.of(with_row_counts(snapshot, fragment) for fragment in fragments)


def count_live_each(snapshot: Snapshot, fragments: Sequence[Fragment]) -> list[int]:
    """The number of live rows of each fragment.

    Raises:
        CorruptFileError: A number is negative, or impossibly large.
    """
    stated_counts = fragments.live_counts() if isinstance(fragments, FragmentList) else [None] * len(fragments)
    counts = [count_live(snapshot, fragments[i]) if count is None else count for i, count in enumerate(stated_counts)]
    if counts and not 0 <= min(counts) <= max(counts) < 1 << 62:
        stated = f"between {min(counts)} and {max(counts)} live rows"
        raise CorruptFileError(f"{snapshot.store.root}: by the manifest, fragments have {stated}, which is impossible")
    return counts


def count_live(snapshot: Snapshot, fragment: Fragment) -> int:
    """The number of live rows of a fragment."""
    if fragment.deletion_file is not None and not fragment.deletion_file.num_deleted_rows:
        deletions = snapshot.deletions(fragment)
        return count_file_rows(snapshot, fragment) - (0 if deletions is None else len(deletions))
    return count_file_rows(snapshot, fragment) - fragment.num_deleted_rows


def live_offsets(snapshot: Snapshot, fragment: Fragment) -> BitMap:
    """The offsets of the live rows of a fragment."""
    return BitMap(range(count_file_rows(snapshot, fragment))) - snapshot.deleted_rows(fragment)


def read_fragment(
    snapshot: Snapshot,
    fragment: Fragment,
    schema: Schema,
    rows: Rows,
    *,
    batch_rows: int | None = None,
    opened: OpenFiles | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a fragment by physical offset, deleted ones included, in storage types; blobs get their payloads.

    Args:
        snapshot: The version that the fragment belongs to.
        fragment: The fragment.
        schema: Columns to read.
        rows: Offsets of the rows to read.
        batch_rows: The most rows of a batch; None for the batches of the file.
        opened: The open files of the fragment; files that are opened are added.

    Yields:
        Batches of `schema_to_arrow(schema)`, which together have as many rows as `rows`.
    """
    descriptor_schema = describe_schema(schema)
    if descriptor_schema is not None:
        descriptors = read_fragment(snapshot, fragment, descriptor_schema, rows, batch_rows=batch_rows, opened=opened)
        yield from _fill_payloads(snapshot, fragment, schema, descriptors)
        return
    arrow = schema_to_arrow(schema)
    opened = {} if opened is None else opened
    parts = [
        _FileColumns(open_file(snapshot, file, opened), file_schema, columns)
        for file, file_schema, columns in resolve_files_of_fields(fragment, schema)
    ]
    _check_row_counts(snapshot, fragment, parts)
    if not parts:
        yield from _generate_null_batches(arrow, len(rows), batch_rows or LOCKSTEP_ROWS)
        return
    streams = [part.reader.read(part.schema, part.columns, rows, batch_rows=batch_rows) for part in parts]
    with _explaining_lost_file(snapshot):
        for batches in _align_batches(streams) if len(parts) > 1 else zip(*streams, strict=True):
            if len(batches) == 1 and batches[0].schema.names == arrow.names and parts[0].schema == schema:
                yield batches[0]
            else:
                yield _join_columns(fragment, batches, schema, arrow)


def read_descriptors(snapshot: Snapshot, fragment: Fragment, rows: Rows) -> Iterator[pa.StructArray]:
    """Yield the descriptors of the blobs of 2.2 in rows of a fragment, at any level of its columns."""
    columns = snapshot.manifest.schema.fields
    payloads = Schema(fields=tuple(field for field in columns if any(gives_payloads(node) for node, _ in field.walk())))
    described = describe_schema(payloads)
    if described is not None:
        for batch in read_fragment(snapshot, fragment, described, rows):
            for field, column in zip(payloads.fields, batch.columns, strict=True):
                yield from (entries for _, entries in blobs_inside(field, column))


def _align_batches(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """Yield slices of the same rows of all streams, cut where a batch of one of them ends.

    The batches of a file have a bounded number of bytes; a fixed number of rows could be the whole of a wide column.
    """
    waiting = [next(stream, None) for stream in streams]
    while all(batch is not None for batch in waiting):
        batches = [batch for batch in waiting if batch is not None]
        length = min(batch.num_rows for batch in batches)
        yield tuple(batch.slice(0, length) for batch in batches)
        for at, (batch, stream) in enumerate(zip(batches, streams, strict=True)):
            waiting[at] = batch.slice(length) if batch.num_rows > length else next(stream, None)
        del batches
    assert all(batch is None for batch in waiting), "the files of a fragment have the same rows"


def _fill_payloads(
    snapshot: Snapshot, fragment: Fragment, schema: Schema, descriptor_batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with blob payloads in place of descriptors."""
    arrow = schema_to_arrow(schema)
    files = resolve_files_of_fields(fragment, schema)
    locations = {field_id: snapshot.data_file(file) for file, _, columns in files for field_id in columns}
    for batch in descriptor_batches:
        yield from with_payloads(snapshot, locations, batch, schema, arrow)


def _join_columns(
    fragment: Fragment, batches: Sequence[pa.RecordBatch], schema: Schema, arrow: pa.Schema
) -> pa.RecordBatch:
    """One batch with the columns of all files for the same rows.

    Raises:
        CorruptFileError: The files do not have the columns of the schema.
    """
    try:
        return pa.RecordBatch.from_arrays([_join_column(field, batches) for field in schema.fields], schema=arrow)
    except (LanceError, MemoryError):
        raise
    except (ValueError, LookupError, pa.ArrowException) as error:
        raise CorruptFileError(f"fragment {fragment.id}: its data files do not match its columns: {error}") from error


def _check_row_counts(snapshot: Snapshot, fragment: Fragment, parts: Sequence[_FileColumns]) -> None:
    """Check that the files have the number of rows in the manifest, before memory is allocated for that number.

    Raises:
        CorruptFileError: A file has another number of rows.
    """
    if fragment.physical_rows and not snapshot.manifest.is_early:
        for part in parts:
            if part.reader.num_rows != fragment.physical_rows:
                raise CorruptFileError(
                    f"{part.reader.key}: has {part.reader.num_rows} rows, the manifest says {fragment.physical_rows}"
                )


def resolve_files_of_fields(fragment: Fragment, schema: Schema) -> list[tuple[DataFile, Schema, dict[int, int]]]:
    """The files with fields of `schema`, each with these fields and its column indices by field id; later files win."""
    seen_ids: set[int] = set()
    files = []
    for file in reversed(fragment.files):
        pairs = file.columns()
        if file.version == "2.0":
            # A field with a negative column index is in no file, and null.
            pairs = [pair for pair in pairs if pair[1] >= 0]
        columns = {field_id: index for field_id, index in pairs if field_id >= 0 and field_id not in seen_ids}
        file_schema = schema.only_ids(set(columns))
        if not file_schema.fields:
            continue
        seen_ids.update(node.id for node, _ in file_schema.walk() if node.id in columns)
        files.append((file, file_schema, columns))
    return files


def open_file(snapshot: Snapshot, file: DataFile, opened: OpenFiles) -> DataFileReader:
    """The reader of a file; each file is opened once and kept in `opened`.

    Raises:
        DatasetNotFoundError: The file was deleted with its dataset.
        IncompatibleConflictError: The file was deleted, as the dataset was dropped and made again.
    """
    store, key = snapshot.data_file(file)
    where = (file.base_id, key)
    if where not in opened:
        size = file.file_size_bytes or None
        with _explaining_lost_file(snapshot):
            opened[where] = DataFileReader.open(store, key, size=size, cache=snapshot.session.files)
    return opened[where]


@contextmanager
def _explaining_lost_file(snapshot: Snapshot) -> Iterator[None]:
    """Raise a clearer error if a file is missing because its dataset was dropped, or dropped and made again."""
    try:
        yield
    except ObjectNotFoundError as error:
        raise_if_dropped(snapshot.store, snapshot.manifest, error)
        raise


def _join_column(field: Field, batches: Sequence[pa.RecordBatch]) -> pa.Array:
    """One column of a batch, assembled from its parts in several files."""
    parts = [batch.column(field.name) for batch in batches if field.name in batch.schema.names]
    return _assemble_column(field, parts, batches[0].num_rows)


def _assemble_column(field: Field, parts: list[pa.Array], num_rows: int) -> pa.Array:
    kind = field_to_arrow(field).type
    if not parts:
        return pa.nulls(num_rows, kind)
    if len(parts) == 1 and parts[0].type == kind:
        return parts[0]
    if not pa.types.is_struct(kind):
        raise UnsupportedError(
            f"column {field.name!r}: parts of a {field.logical_type} in different files are not supported"
        )
    children = []
    for child in field.children:
        pieces = [part.field(child.name) for part in parts if part.type.get_field_index(child.name) >= 0]
        children.append(_assemble_column(child, pieces, num_rows))
    mask = pc.is_null(parts[0]) if parts[0].null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _generate_null_batches(schema: pa.Schema, num_rows: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, num_rows, batch_rows):
        length = min(batch_rows, num_rows - start)
        if schema.names:
            yield pa.RecordBatch.from_arrays([pa.nulls(length, f.type) for f in schema], schema=schema)
        else:
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * length, pa.struct([])))
