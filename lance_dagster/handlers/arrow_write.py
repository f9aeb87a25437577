"""Writes Arrow batches as uncommitted fragments, one partition per fragment, and commits them once.

    batches --fit--> columns of the table --assign--> slice of each row --> one FragmentWriter per slice
                                                                             |
    commit_fragments(mode, slices, write_try)  <---- fragments -------'

Used by every handler whose values are Arrow, or can become Arrow, in this process.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

import numpy as np
import pyarrow as pa

import lance_core
from lance_core.errors import CommitConflictError, InvalidInputError
from lance_core.threads import ThreadPool
from lance_dagster.handlers.arrow_schema import fit_batch, target_schema, with_vectors
from lance_dagster.handlers.base import WriteOutcome, WriteRequest

__all__ = ["write_arrow"]

# Streams come in any order; more open writers than this hold too much unwritten data.
_MAX_OPEN_WRITERS = 32

# Finishing a writer waits for the storage: so many are finished side by side.
_FINISHING_AT_A_TIME = 4


def write_arrow(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, request: WriteRequest
) -> WriteOutcome | None:
    """Write batches with one commit; None when there is no row and empty output is skipped.

    Args:
        batches: The rows. A table that arrives whole is sorted by partition at once, which makes fewer fragments.
        schema: Their columns.
        request: What to write where.

    Raises:
        LanceError: nothing was committed, and the files that were written are gone.
    """
    table = None if request.existing is None else request.existing.schema
    wanted = with_vectors(schema, request.output.vector_columns)
    target = target_schema(wanted, table, request.mode, request.output.schema_mode)
    writers = _SliceWriters(target, request)
    try:
        for batch in batches:
            writers.write(fit_batch(batch, target))
        fragments = writers.finish()
        if _skips_empty(writers.num_rows, request):
            return None
    except BaseException:
        writers.discard()
        raise
    return _commit(fragments, target, writers, request)


def _skips_empty(num_rows: int, request: WriteRequest) -> bool:
    """Whether there is nothing to do.

    Raises:
        InvalidInputError: there is no row, and that is an error.
    """
    if num_rows or request.output.empty_output == "write":
        return False
    if request.output.empty_output == "skip":
        return True
    raise InvalidInputError("the output has no rows, and empty_output is error")


def _commit(
    fragments: list[lance_core.FragmentMetadata], schema: pa.Schema, writers: _SliceWriters, request: WriteRequest
) -> WriteOutcome:
    try:
        result = lance_core.commit_fragments(
            request.uri,
            fragments,
            schema,
            mode=request.mode,
            slices=request.slices if request.mode == "replace" else None,
            read_version=request.read_version,
            transaction_properties=dict(request.properties),
            commit_message=request.output.commit_message,
            write_try=request.write_try,
            storage_options=request.storage_options,
            data_storage_version=request.data_storage_version,
            table_config=dict(request.table.table_config) or None,
            add_columns=request.output.schema_mode == "add_columns",
        )
    except CommitConflictError:
        writers.discard()  # a conflict is a clear answer: nothing landed. After other errors the files may be in use.
        raise
    if result.deduplicated:
        writers.discard()
    return WriteOutcome(
        dataset=result.dataset,
        operation=result.operation,
        transaction_uuid=result.transaction_uuid,
        read_version=result.read_version,
        attempts=result.attempts,
        deduplicated=result.deduplicated,
        replaced_versions=result.replaced_versions,
        rows_written=None if result.deduplicated else writers.num_rows,
        rows_deleted=result.rows_deleted,
        fragments_added=result.fragments_added,
        fragments_removed=result.fragments_removed,
        bytes_written=None if result.deduplicated else writers.num_bytes,
        slice_rows={} if result.deduplicated else writers.slice_rows(),
    )


class _SliceWriters:
    """The open writers of one write, least recently used first; -1 is the writer of rows in no slice."""

    def __init__(self, schema: pa.Schema, request: WriteRequest) -> None:
        self._schema = schema
        self._request = request
        self._open: OrderedDict[int, lance_core.FragmentWriter] = OrderedDict()
        self._all: list[lance_core.FragmentWriter] = []
        self._pool = ThreadPool(_FINISHING_AT_A_TIME, thread_name_prefix="lance-finish")
        self._finishing: deque[Future[list[lance_core.FragmentMetadata]]] = deque()
        self._fragments: list[lance_core.FragmentMetadata] = []
        names = [] if request.slices is None else request.slices.names
        self._rows = dict.fromkeys([-1, *range(len(names))], 0)

    @property
    def num_rows(self) -> int:
        """Rows written so far."""
        return sum(self._rows.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of the finished data files."""
        return sum(fragment.num_bytes for fragment in self._fragments)

    def slice_rows(self) -> dict[str, int]:
        """Rows per slice name, zeros included."""
        slices = self._request.slices
        return {} if slices is None else {name: self._rows[i] for i, name in enumerate(slices.names)}

    def write(self, table: pa.Table) -> None:
        """Write rows, each to its slice's writer."""
        for position, part in self._split(table):
            writer = self._writer(position)
            for batch in part.to_batches():
                writer.write(batch)
            self._rows[position] += part.num_rows

    def finish(self) -> list[lance_core.FragmentMetadata]:
        """Close every file; the fragments of all."""
        for position in list(self._open):
            self._close(position)
        self._settle(0)
        self._pool.shutdown()
        return self._fragments

    def discard(self) -> None:
        """Delete everything that was written."""
        self._pool.shutdown(cancel_futures=True)
        for writer in self._all:
            writer.discard()

    def _split(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each slice, in ascending order of slices; rows of one slice keep their order."""
        slices = self._request.slices
        if slices is None or table.num_rows == 0:
            yield from [(-1, table)] if table.num_rows else []
            return
        positions = slices.assign(table)
        if self._request.output.out_of_partition == "error" and (positions < 0).any():
            _refuse_outside(table, positions, slices)
        if (np.diff(positions) < 0).any():
            order = np.argsort(positions, kind="stable")
            table, positions = table.take(pa.array(order)), positions[order]
        starts = np.flatnonzero(np.diff(positions, prepend=positions[0] - 1))
        for start, end in zip(starts, [*starts[1:], len(positions)], strict=True):
            yield int(positions[start]), table.slice(start, end - start)

    def _writer(self, position: int) -> lance_core.FragmentWriter:
        if position in self._open:
            self._open.move_to_end(position)
            return self._open[position]
        if len(self._open) >= _MAX_OPEN_WRITERS:
            self._close(next(iter(self._open)))
        request = self._request
        writer = lance_core.FragmentWriter(
            request.uri,
            self._schema,
            storage_options=request.storage_options,
            data_storage_version=request.data_storage_version,
            dataset_schema=self._field_ids(),
            **request.file_options,
        )
        self._open[position] = writer
        self._all.append(writer)
        return writer

    def _field_ids(self) -> bytes | None:
        """The table's schema with its field ids, when the files go beside older ones."""
        existing = self._request.existing
        if existing is None or self._request.mode == "overwrite":
            return None
        known = set(existing.schema.names)
        added = [field for field in self._schema if field.name not in known]
        return existing.lance_schema_with(added) if added else existing.lance_schema_bytes

    def _close(self, position: int) -> None:
        self._finishing.append(self._pool.submit(self._open.pop(position).finish))
        self._settle(_FINISHING_AT_A_TIME)

    def _settle(self, most: int) -> None:
        """Wait until at most so many writers are being finished."""
        while len(self._finishing) > most:
            self._fragments += self._finishing.popleft().result()


def _refuse_outside(table: pa.Table, positions: np.ndarray, slices: lance_core.Slices) -> None:
    outside = np.flatnonzero(positions < 0)
    example = {name: table.column(name)[int(outside[0])].as_py() for name in slices.columns}
    raise InvalidInputError(
        f"{len(outside)} rows are outside of the run's {len(slices.names)} partitions "
        f"({slices.names[0]!r} .. {slices.names[-1]!r}), for example {example}; nothing was written. "
        'Filter them out, or set out_of_partition to "allow".'
    )
