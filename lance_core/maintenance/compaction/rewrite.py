"""Run one task of a compaction: read the live rows of some fragments and write them into new ones.

Pages are copied as they are where that is possible (`file.copy`); otherwise rows are decoded, filtered and encoded
again. Either way the rows keep their order, their stable ids, and the versions in which they were made and changed.

Results of the tasks of a compaction for its commit, with the JSON that pylance reads and writes as well.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lance_core._proto import table_pb2
from lance_core.encoding.concatenate import has_narrow_dictionary
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.file.container import WrittenFile
from lance_core.file.copy import CopySource, copy_pages
from lance_core.file.metadata import FileVersion
from lance_core.file.reader import DataFileReader
from lance_core.file.writer import DataFileWriter
from lance_core.maintenance.compaction.dictionary_values import drop_unused_values
from lance_core.maintenance.compaction.options import FORCE_COPY, REENCODE, CompactionOptions
from lance_core.row_addresses import make_row_address
from lance_core.schema import schema_to_arrow
from lance_core.store import ObjectStore
from lance_core.table.fragment import Fragment
from lance_core.table.operations import RewriteGroup
from lance_core.table.paths import data_key, new_data_file_name
from lance_core.table.rowids import U64Array, decode_row_ids, decode_versions, encode_row_ids, encode_versions
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import remove_files
from lance_core.verbs.files.conform import check_dictionaries
from lance_core.verbs.files.fragment_writer import make_data_file_record
from lance_core.verbs.pylance_types.fragments import FragmentMetadata
from lance_core.verbs.scan.read_fragment import OpenFiles, count_file_rows, open_file, read_fragment

_NOT_OF_PYLANCE: Final = frozenset({"tasks_skipped", "indices_extended"})
"""The counters that pylance does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionMetrics:
    """Counters of a compaction.

    Attributes:
        fragments_removed: Fragments that were rewritten.
        fragments_added: Fragments in place of the rewritten ones.
        files_removed: Data and deletion files of the rewritten fragments.
        files_added: Files of the added fragments.
        tasks_skipped: Tasks whose fragments a concurrent commit changed; their work was dropped.
        indices_extended: The names of the indices that were extended to the added fragments.
    """

    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0
    tasks_skipped: int = 0
    indices_extended: tuple[str, ...] = ()

    def __add__(self, other: CompactionMetrics) -> CompactionMetrics:
        """The sum of two counters."""
        return CompactionMetrics(
            **{name: getattr(self, name) + getattr(other, name) for name in CompactionMetrics.__slots__}
        )

    def to_json(self) -> dict[str, int]:
        """The counters as an object for `json.dumps`, in pylance's form."""
        return {name: getattr(self, name) for name in CompactionMetrics.__slots__ if name not in _NOT_OF_PYLANCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """The result of a task; nothing refers to its files before the commit.

    Attributes:
        metrics: The counters of the task.
        new_records: The new fragments, with id 0.
        original_records: The fragments that they replace.
        read_version: The version in which the original fragments were read.
        row_addrs: Addresses of the rows in their new order, as a serialized roaring treemap; None where no index
            needs them.
    """

    metrics: CompactionMetrics
    new_records: tuple[Fragment, ...]
    original_records: tuple[Fragment, ...]
    read_version: int
    row_addrs: bytes | None = None

    def __repr__(self) -> str:
        """The version and the fragments, in the form in which pylance shows them."""
        return (
            f"RewriteResult(read_version={self.read_version}, new_fragments={self.new_fragments}, "
            f"old_fragments={self.original_fragments})"
        )

    @property
    def group(self) -> RewriteGroup:
        """The fragments and their replacements, in the form of a Rewrite."""
        return RewriteGroup(old_fragments=self.original_records, new_fragments=self.new_records)

    @property
    def new_fragments(self) -> list[FragmentMetadata]:
        """The new fragments."""
        return [FragmentMetadata.from_record(record) for record in self.new_records]

    @property
    def original_fragments(self) -> list[FragmentMetadata]:
        """The fragments that they replace."""
        return [FragmentMetadata.from_record(record) for record in self.original_records]

    def json(self) -> str:
        """The result as JSON that pylance reads as well."""
        return json.dumps(
            {
                "metrics": self.metrics.to_json(),
                "new_fragments": fragments_to_json(self.new_records),
                "read_version": self.read_version,
                "original_fragments": fragments_to_json(self.original_records),
                "row_addrs": None if self.row_addrs is None else list(self.row_addrs),
            }
        )

    @classmethod
    def from_json(cls, string: str) -> Self:
        """Read the result of `json`, of this library or of pylance."""
        data = json.loads(string)
        addresses = data.get("row_addrs")
        return cls(
            metrics=CompactionMetrics(**data["metrics"]),
            new_records=fragments_from_json(data["new_fragments"]),
            original_records=fragments_from_json(data["original_fragments"]),
            read_version=data["read_version"],
            row_addrs=None if addresses is None else bytes(addresses),
        )


def fragments_to_json(records: Iterable[Fragment]) -> list[dict[str, Any]]:
    """Fragments as objects for `json.dumps`, in pylance's form."""
    return [FragmentMetadata.from_record(record).to_json() for record in records]


def fragments_from_json(data: Sequence[Mapping[str, Any]]) -> tuple[Fragment, ...]:
    """The inverse of `fragments_to_json`."""
    return tuple(FragmentMetadata.from_json(item).to_record() for item in data)


_logger = logging.getLogger(__name__)

FIRST_ROWS: Final = 4096
"""Rows of a fragment that are decoded first; their size decides how many rows are decoded next."""

READ_BYTES: Final = 64 * 1024 * 1024
"""The approximate bytes of rows that are decoded at a time; a small page can decode to many large rows."""


def rewrite(
    snapshot: Snapshot, raw: Iterable[bytes], options: CompactionOptions, *, file_prefix: str = ""
) -> RewriteResult:
    """Write the live rows of fragments into new fragments.

    Args:
        snapshot: The version that the fragments were planned in.
        raw: The fragments, in order, serialized as in the manifest.
        options: The options of the compaction.
        file_prefix: Start of the names of the new data files.

    Raises:
        InvalidInputError: A binary copy is forced and not possible.
        CorruptFileError: A file cannot be read; what was written is removed.
        UnsupportedError: The dataset cannot have files of the version that `options` names.
    """
    version = FileVersion.for_dataset(options.data_storage_version, snapshot.manifest.data_storage_version)
    records = fragments_of(raw)
    fragments = [_open_fragment(snapshot, record) for record in records]
    written = _Rewriter(snapshot, fragments, options, version, file_prefix).run()
    new = tuple(_add_row_ids(written, fragments) if snapshot.manifest.uses_stable_row_ids else written)
    needs_addresses = snapshot.manifest.indices and not snapshot.manifest.uses_stable_row_ids
    addresses = _serialize_live_addresses(fragments) if needs_addresses else None
    metrics = CompactionMetrics(
        fragments_removed=len(records),
        fragments_added=len(new),
        files_removed=sum(len(record.files) + (record.deletion_file is not None) for record in records),
        files_added=sum(len(record.files) for record in new),
    )
    return RewriteResult(
        metrics=metrics,
        new_records=new,
        original_records=records,
        read_version=snapshot.manifest.version,
        row_addrs=addresses,
    )


def fragments_of(raw: Iterable[bytes]) -> tuple[Fragment, ...]:
    """Fragments that are serialized as in the manifest."""
    return tuple(Fragment.from_protobuf(table_pb2.DataFragment.FromString(message)) for message in raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceFragment:
    """A fragment that a task reads.

    Attributes:
        record: The fragment.
        num_rows: Rows in its files.
        live: Whether each of them is live; None if all are.
        opened: Its open files, so that each is opened once.
    """

    record: Fragment
    num_rows: int
    live: npt.NDArray[np.bool_] | None
    opened: OpenFiles = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_live(self) -> int:
        """The number of live rows."""
        return self.num_rows if self.live is None else int(np.count_nonzero(self.live))

    def select_live(self, numbers: U64Array) -> U64Array:
        """The numbers of the live rows, selected from an array with one number per row."""
        return numbers if self.live is None else numbers[self.live]


@dataclass(frozen=True, slots=True)
class _Rewriter:
    """Writes the new files of one task."""

    snapshot: Snapshot
    fragments: list[_SourceFragment]
    options: CompactionOptions
    version: FileVersion
    prefix: str

    def run(self) -> list[Fragment]:
        """Write the new fragments, in order; remove them again if that fails."""
        done: list[Fragment] = []
        try:
            if not self._try_to_copy(done):
                done.extend(self._write_by_decoding())
            if self.version is FileVersion.V0_1:
                check_dictionaries(self.snapshot.manifest.schema, done, self.snapshot.store)
        except BaseException:
            discard(self.snapshot.store, done)
            raise
        return done

    def _try_to_copy(self, done: list[Fragment]) -> bool:
        """Write the new fragments by copying pages, and return whether that was possible.

        Raises:
            InvalidInputError: The options force a copy, and it is not possible.
        """
        if not self.options.copies_pages:
            return False
        forced = self.options.compaction_mode == FORCE_COPY
        try:
            for fragment in self._write_by_copying(merge_small=not forced):
                done.append(fragment)  # noqa: PERF402 - finished fragments must be known if the next one fails
        except UnsupportedError as error:
            if forced:
                raise InvalidInputError(f"binary copy is not supported: {error}") from error
            _logger.debug("rows are decoded: %s", error)
            discard(self.snapshot.store, done)
            done.clear()
            return False
        return True

    def _write_by_copying(self, *, merge_small: bool) -> Iterator[Fragment]:
        """Copy pages."""
        if self.options.max_bytes_per_file is not None:
            raise UnsupportedError("pages cannot be copied with max_bytes_per_file: leave it out, or use reencode")
        kinds = schema_to_arrow(self.snapshot.manifest.schema).types
        if merge_small and len(self.fragments) > 1 and any(map(has_narrow_dictionary, kinds)):
            raise UnsupportedError("the dictionaries of the pages may have too many values together")
        sources = [_open_pages(self.snapshot, fragment) for fragment in self.fragments]
        for parts in _divide_into_files(sources, self.rows_per_file):
            written = copy_pages(
                self.snapshot.store,
                data_key(self.prefix + new_data_file_name()),
                self.snapshot.manifest.schema,
                self.version,
                parts,
                merge_small=merge_small,
                read_bytes=self.options.binary_copy_read_batch_bytes,
            )
            yield _fragment(written)

    @property
    def rows_per_file(self) -> int:
        """Rows of each new file."""
        return rows_per_file(sum(fragment.num_live for fragment in self.fragments), self.options)

    def _write_by_decoding(self) -> Iterator[Fragment]:
        """Decode all rows and encode them again.

        With `compaction_mode="reencode"`, or if a dictionary counts few values, dictionaries lose the values that no
        row has, except in 0.1 files.
        """
        writer: DataFileWriter | None = None
        limit, most_bytes = self.rows_per_file, self.options.max_bytes_per_file
        is_narrow = any(map(has_narrow_dictionary, schema_to_arrow(self.snapshot.manifest.schema).types))
        is_pruned = self.version is not FileVersion.V0_1 and (is_narrow or self.options.compaction_mode == REENCODE)
        try:
            for rows in self._read_live_batches():
                left = drop_unused_values(rows) if is_pruned else rows
                while left.num_rows:
                    writer = writer or self._new_writer()
                    part = left.slice(0, limit - writer.num_rows)
                    if writer.num_rows and not writer.has_room_for(part):
                        written, writer = writer.finish(), None
                        yield _fragment(written)
                        continue
                    writer.write(part)
                    left = left.slice(part.num_rows)
                    if writer.num_rows >= limit or (most_bytes is not None and writer.has_reached(most_bytes)):
                        written, writer = writer.finish(), None
                        yield _fragment(written)
            if writer is not None:
                written, writer = writer.finish(), None
                yield _fragment(written)
        finally:
            if writer is not None:
                writer.abort()

    def _read_live_batches(self) -> Iterator[pa.RecordBatch]:
        for fragment in self.fragments:
            position = 0
            for batch in self._batches(fragment):
                end = position + batch.num_rows
                if fragment.live is None:
                    yield batch
                else:
                    mask = fragment.live[position:end]
                    yield batch if mask.all() else batch.filter(pa.array(mask))
                position = end
            fragment.opened.clear()  # small files are in memory as a whole

    def _batches(self, fragment: _SourceFragment) -> Iterator[pa.RecordBatch]:
        """All rows of a fragment, deleted ones included, `READ_BYTES` at a time."""
        schema = self.snapshot.manifest.schema
        start, count = 0, FIRST_ROWS
        while start < fragment.num_rows:
            rows = range(start, min(start + count, fragment.num_rows))
            num_bytes = 0
            for batch in read_fragment(
                self.snapshot, fragment.record, schema, rows, batch_rows=self.options.batch_size, opened=fragment.opened
            ):
                num_bytes += batch.nbytes
                yield batch
            start = rows.stop
            count = max(1, READ_BYTES * len(rows) // max(1, num_bytes))

    def _new_writer(self) -> DataFileWriter:
        key = data_key(self.prefix + new_data_file_name())
        return DataFileWriter(self.snapshot.store, key, self.snapshot.manifest.schema, version=self.version)


def rows_per_file(num_rows: int, options: CompactionOptions) -> int:
    """Rows of each new file of a task that rewrites a number of rows."""
    if options.deletions_only:
        return max(1, num_rows)
    count = max(1, num_rows // max(1, options.target_rows_per_fragment))
    return max(1, -(-num_rows // count))


def _open_fragment(snapshot: Snapshot, record: Fragment) -> _SourceFragment:
    """The fragment with its live rows."""
    num_rows = count_file_rows(snapshot, record)
    deletions = snapshot.deletions(record)
    live = None if deletions is None else deletions.live_rows(num_rows)
    return _SourceFragment(record=record, num_rows=num_rows, live=None if live is None or live.all() else live)


def _open_pages(snapshot: Snapshot, fragment: _SourceFragment) -> CopySource:
    """Open the files of a fragment, to copy their pages; a later file wins over an earlier one."""
    columns: dict[int, tuple[ObjectStore, str, DataFileReader, int]] = {}
    for file in reversed(fragment.record.files):
        store, key = snapshot.data_file(file)
        reader = open_file(snapshot, file, fragment.opened)
        for field_id, column in file.columns():
            if field_id >= 0:
                columns.setdefault(field_id, (store, key, reader, column))
    return CopySource(num_rows=fragment.num_rows, keep=fragment.live, columns=columns)


def _divide_into_files(sources: Sequence[CopySource], rows_per_file: int) -> Iterator[list[CopySource]]:
    """The pages of each new file, with `rows_per_file` rows to keep, or fewer in the last file."""
    current: list[CopySource] = []
    room = rows_per_file
    for source in sources:
        start, left = 0, source.num_kept
        while left:
            count = min(room, left)
            current.append(_cut_source(source, start, start + count))
            start, left, room = start + count, left - count, room - count
            if not room:
                yield current
                current, room = [], rows_per_file
    if current:
        yield current


def _cut_source(source: CopySource, start: int, end: int) -> CopySource:
    """The rows from `start` to `end`, counted among those that are kept."""
    if start == 0 and end == source.num_kept:
        return source
    live_offsets = np.arange(source.num_rows) if source.keep is None else np.flatnonzero(source.keep)
    keep = np.zeros(source.num_rows, np.bool_)
    keep[live_offsets[start:end]] = True
    return replace(source, keep=keep)


def discard(store: ObjectStore, written: Iterable[Fragment]) -> None:
    """Delete the files of new fragments that will not be committed."""
    remove_files([(store, data_key(file.path)) for fragment in written for file in fragment.files])


def _fragment(written: WrittenFile) -> Fragment:
    return Fragment(files=(make_data_file_record(written),), physical_rows=written.num_rows)


def _add_row_ids(written: Sequence[Fragment], fragments: Sequence[_SourceFragment]) -> Iterator[Fragment]:
    """The new fragments with the row ids and row versions of the live rows."""
    ids = np.concatenate([f.select_live(_read_row_ids(f)) for f in fragments]) if fragments else np.zeros(0, np.uint64)
    created = np.concatenate([f.select_live(_read_versions(f, f.record.created_at_versions)) for f in fragments])
    updated = np.concatenate([f.select_live(_read_versions(f, f.record.last_updated_at_versions)) for f in fragments])
    start = 0
    for fragment in written:
        rows = slice(start, start + fragment.physical_rows)
        start = rows.stop
        yield replace(
            fragment,
            row_ids=encode_row_ids(ids[rows]),
            created_at_versions=encode_versions(created[rows]),
            last_updated_at_versions=encode_versions(updated[rows]),
        )


def _read_row_ids(fragment: _SourceFragment) -> U64Array:
    if fragment.record.row_ids is None:
        raise InvalidInputError(f"fragment {fragment.record.id} has no row ids in a dataset with stable row ids")
    return _check_count(fragment, decode_row_ids(fragment.record.row_ids, fragment.num_rows), "row ids")


def _read_versions(fragment: _SourceFragment, data: bytes | None) -> U64Array:
    """The version of each row; 1 if the fragment records none."""
    if data is None:
        return np.ones(fragment.num_rows, np.uint64)
    return _check_count(fragment, decode_versions(data, fragment.num_rows), "row versions")


def _check_count(fragment: _SourceFragment, numbers: U64Array, what: str) -> U64Array:
    if len(numbers) != fragment.num_rows:
        raise InvalidInputError(f"fragment {fragment.record.id} has {len(numbers)} {what} for {fragment.num_rows} rows")
    return numbers


def _serialize_live_addresses(fragments: Sequence[_SourceFragment]) -> bytes:
    """The addresses of the live rows, as a treemap, for the fragment reuse index."""
    result = BitMap64()
    for fragment in fragments:
        first = make_row_address(fragment.record.id, 0)
        result.add_range(first, first + fragment.num_rows)
        if fragment.live is not None:
            result -= BitMap64(np.flatnonzero(~fragment.live).astype(np.uint64) + np.uint64(first))
    return result.serialize()
