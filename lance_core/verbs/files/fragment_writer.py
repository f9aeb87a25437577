"""Writes rows into data files of new fragments, which are in no version until a commit adds them.

Also turns all kinds of input rows (tables, readers, frames, lists of dicts) into Arrow batches.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from lance_core.arguments import checked_methods
from lance_core.commit.versions import reject_dropped_dataset
from lance_core.encoding.repeat import Choices
from lance_core.errors import (
    ArgumentTypeError,
    IncompatibleConflictError,
    InvalidInputError,
    SchemaError,
    StoreError,
    UnsupportedError,
)
from lance_core.extension_types import has_extensions
from lance_core.file.container import WrittenFile
from lance_core.file.metadata import DEFAULT_VERSION, FileVersion
from lance_core.file.write_plan import write_plan
from lance_core.file.writer import TOTAL_BUFFERED, DataFileWriter
from lance_core.schema import Schema, check_names, schema_from_arrow, schema_from_bytes
from lance_core.store import ObjectStore, PendingWrites, note_begun, open_store, sync_names
from lance_core.table import fragment as records
from lance_core.table.paths import DATA_PREFIX, TableFormat, data_key, new_data_file_name
from lance_core.verbs.context.bases import DatasetBasePath, WriteTarget, numbered
from lance_core.verbs.context.uncommitted_files import remove_files
from lance_core.verbs.files.conform import (
    check_column_name,
    check_external,
    check_metadata,
    check_new_columns,
    conform,
    fit,
    is_alike,
    known_dictionaries,
    new_schema,
)
from lance_core.verbs.files.null_rows import check_lacking_columns
from lance_core.verbs.files.progress import FragmentWriteProgress
from lance_core.verbs.files.python_rows import check_polars, table_of_columns, table_of_dicts, table_of_frame
from lance_core.verbs.pylance_types.fragments import DataFile, FragmentMetadata

MAX_ROWS_PER_FILE: Final = 1024 * 1024
MAX_BYTES_PER_FILE: Final = 90 * 1024**3
CLOSING_AT_A_TIME: Final = 8
"""Files of one writer that become durable in parallel, while the next one is filled."""
_VERSION_NUMBERS: Final = {version: version.manifest_numbers for version in FileVersion}

ReaderLike = Any
"""A table, batch, reader, scanner or dataset of Arrow, a pandas or polars frame, a dict of columns, a list of dicts, or
an iterable of batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Sizes, format and targets of data files, and the format of a new table; see the arguments of `write_dataset`."""

    max_rows_per_file: int = MAX_ROWS_PER_FILE
    max_bytes_per_file: int = MAX_BYTES_PER_FILE
    progress: FragmentWriteProgress | None = None
    data_storage_version: str | None = None
    enable_stable_row_ids: bool = False
    enable_v2_manifest_paths: bool = True
    initial_bases: Sequence[DatasetBasePath] | None = None
    target_bases: Sequence[str] | None = None
    target_all_bases: bool | None = None
    allow_external_blob_outside_bases: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The options from arguments of a public function, where None is the default; other entries are ignored."""
        names = [option.name for option in fields(cls)]
        options = cls(**{name: arguments[name] for name in names if arguments.get(name) is not None})
        legacy = arguments.get("use_legacy_format")
        return options if legacy is None else replace(options, data_storage_version="legacy" if legacy else "stable")

    @property
    def base_records(self) -> tuple[records.BasePath, ...]:
        """The base paths of a table that is created, with ids.

        Raises:
            InvalidInputError: Two base paths have the same id, name or path.
        """
        return numbered(self.initial_bases) if self.initial_bases else ()

    @property
    def table_format(self) -> TableFormat:
        """The format of a table that is created."""
        return TableFormat(
            data_storage_version=self.data_storage_version,
            stable_row_ids=self.enable_stable_row_ids,
            v2_manifest_paths=self.enable_v2_manifest_paths,
        )

    def writer(self, uri: str | PathLike[str], schema: pa.Schema, **arguments: Any) -> FragmentWriter:
        """A writer of such files; `arguments` are the other arguments of `FragmentWriter`."""
        return FragmentWriter(
            uri,
            schema,
            data_storage_version=self.data_storage_version,
            max_rows_per_file=self.max_rows_per_file,
            max_bytes_per_file=self.max_bytes_per_file,
            progress=self.progress,
            **arguments,
        )


@checked_methods
class FragmentWriter:
    """Write batches into new fragments of a dataset, without committing them.

    As a context manager it discards what it wrote if the body raises.

    Args:
        uri: The dataset's root; it need not exist yet.
        schema: Schema of the batches that will be written.
        storage_options: Credentials and options of the storage, under object_store's names.
        data_storage_version: Version of the files; None for the default. An append must use the dataset's.
        max_rows_per_file: Rows after which a new fragment is begun.
        max_bytes_per_file: Bytes after which a new fragment is begun, counted between batches.
        file_prefix: Start of the names of the data files.
        dataset_schema: The schema, or `LanceDataset.lance_schema_bytes`, of an existing dataset to append to: its field
            ids are used, and its types are required. None gives the fields of `schema` new ids.
        targets: Where files go, round-robin; None for the dataset itself.
        progress: Called when a file begins and when it is complete.
        first_field_id: Id of the first field if the fields get new ids (`Manifest.first_new_field_id`).
        max_buffered_bytes: Bytes of rows that are buffered before they become pages, over all columns: with more
            columns the pages are smaller, down to 64 KiB.
        external_places: Prefixes of the URIs by which blobs may be given; `("",)` for any, None for rows read from the
            table.
        divides_dictionaries: Whether a new fragment is begun where the rows have more values than the indices of a
            dictionary can count; otherwise such rows are rejected.

    Raises:
        SchemaError: The schema does not fit the dataset's, or cannot be stored; nothing was written.
    """

    def __init__(
        self,
        uri: str | PathLike[str],
        schema: pa.Schema,
        *,
        storage_options: Mapping[str, str] | None = None,
        data_storage_version: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        max_bytes_per_file: int = MAX_BYTES_PER_FILE,
        file_prefix: str = "",
        dataset_schema: bytes | Schema | None = None,
        targets: Sequence[WriteTarget] | None = None,
        progress: FragmentWriteProgress | None = None,
        first_field_id: int = 0,
        max_buffered_bytes: int = TOTAL_BUFFERED,
        external_places: Sequence[str] | None = (),
        divides_dictionaries: bool = False,
    ) -> None:
        for name, value in (
            ("max_rows_per_file", max_rows_per_file),
            ("max_bytes_per_file", max_bytes_per_file),
            ("max_buffered_bytes", max_buffered_bytes),
        ):
            if value < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {value}")
        self._version = FileVersion.from_string(data_storage_version)
        self._schema = resolve_field_ids(schema, dataset_schema, self._version, first_field_id)
        write_plan(self._schema, self._version)  # a schema that cannot be stored is rejected before any row
        self._targets = list(targets or [WriteTarget(store=open_store(uri, storage_options))])
        self._progress = progress
        self._max_rows = max_rows_per_file
        self._max_bytes = max_bytes_per_file
        self._buffered_bytes = max_buffered_bytes
        self._prefix = file_prefix
        self._external_places = external_places
        self._divides = divides_dictionaries
        self._file: DataFileWriter | None = None
        self._reported_fragment: FragmentMetadata | None = None
        self._choices = Choices.of(self._schema, self._version.value)
        self._reset()

    def _reset(self) -> None:
        """Reset the state: no file, no fragment."""
        self._num_ended = 0
        self._pending = PendingWrites()
        self._fragments: list[records.Fragment] = []
        self._keys: list[tuple[ObjectStore, str]] = []

    def another(self) -> Self:
        """A new writer with the arguments of this one, without another check of the schema."""
        assert self._file is None, "a file that is open belongs to one writer"
        writer = copy.copy(self)
        writer._reset()  # noqa: SLF001 - of this class
        return writer

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows.

        Raises:
            SchemaError: A column that must not be null has nulls in it, a string is not UTF-8, or a column is missing.
            InvalidInputError: A blob is given by a URI that is not allowed, or the values of a column do not fit into
                its dictionary.
        """
        rows = batch if is_alike(self._schema, batch.schema) else self._conform_batch(batch)
        if not self._divides:
            self._write(rows)
            return
        for part in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            if self._file is not None and not self._file.has_room_for(part):
                self._end_file()
            self._write(part)

    def _write(self, rows: pa.RecordBatch | pa.Table) -> None:
        start = 0
        while start < rows.num_rows:
            file = self._open_file()
            room = self._max_rows - file.num_rows
            part = rows if start == 0 and rows.num_rows <= room else rows.slice(start, room)
            file.write(part)
            start += part.num_rows
            if file.num_rows >= self._max_rows or file.has_reached(self._max_bytes):
                self._end_file()

    def _conform_batch(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        check_names(batch.schema)
        batch_names = set(batch.schema.names)
        missing = [name for name in self._schema.names if name not in batch_names]
        if missing:
            raise SchemaError(f"the batch lacks the columns {missing}; it has {batch.schema.names}")
        rows = conform(batch, self._schema)
        check_external(rows, self._schema, self._external_places)
        return rows

    def finish(self) -> list[FragmentMetadata]:
        """End the last file, make all files durable, and return the fragments; none if no row was written."""
        return [FragmentMetadata.from_record(record) for record in self.finish_records()]

    def finish_records(
        self, pending: PendingWrites | None = None, *, requests: bool = False
    ) -> tuple[records.Fragment, ...]:
        """End the last file and return the fragments as a manifest records them.

        Args:
            pending: Waits until the files are durable; None if they must be durable when this method returns.
            requests: Whether `pending` may wait for requests to object storage as well as for a disk.

        Raises:
            DatasetNotFoundError: The dataset was dropped during the write.
            IncompatibleConflictError: The dataset was dropped and made again during the write.
        """
        target = self._choose_target()
        in_background = pending is not None and (requests or not target.store.put_is_a_request)
        self._end_file(is_last=True, in_background=in_background)
        waiting = self._pending
        if pending is not None:
            pending.take(waiting)
            waiting = pending
        if pending is None or self._num_ended > 1:
            waiting.wait()
            self._sync_names()
        return tuple(self._fragments)

    def _sync_names(self) -> None:
        """Make the names of several files durable at once, after all of them have their names."""
        if self._num_ended > 1:
            for store in {id(store): store for store, _ in self._keys}.values():
                sync_names(store, [key for owner, key in self._keys if owner is store])

    def discard(self) -> None:
        """Delete the files that were written; while an interruption is handled, for a short time only."""
        remove_files(self.abandon())

    def abandon(self) -> list[tuple[ObjectStore, str]]:
        """Stop writing, and return the store and key of each file that may exist: the caller removes them."""
        self._pending.stop()
        if self._file is not None:
            self._file.abort()
        files, self._keys = self._keys, []
        self._file = None
        self._fragments = []
        return files

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard if the body raised."""
        if kind is not None:
            self.discard()

    def _open_file(self) -> DataFileWriter:
        if self._file is None:
            target = self._choose_target()
            name = self._prefix + new_data_file_name()
            note_begun(data_key(name))
            self._file = DataFileWriter(
                target.store,
                target.prefix + name,
                self._schema,
                version=self._version,
                choices=self._choices,
                buffered_bytes=self._buffered_bytes,
                first_row=sum(fragment.physical_rows for fragment in self._fragments),
            )
            self._keys.append((target.store, target.prefix + name))
            if self._progress is not None:
                file = DataFile(path=name, fields=[], base_id=target.base_id)
                self._reported_fragment = FragmentMetadata(id=self._num_ended, files=[file], physical_rows=0)
                self._progress.begin(self._reported_fragment)
        return self._file

    def _end_file(self, *, is_last: bool = False, in_background: bool = False) -> None:
        """End a file; as closing waits for the storage, it happens in the background unless its result is needed.

        Args:
            is_last: Whether no other file follows.
            in_background: Whether the last file is closed in the background as well.
        """
        if self._file is None:
            return
        file, target = self._file, self._choose_target()
        file.complete()
        self._num_ended += 1
        is_only_file = is_last and self._num_ended == 1
        # Progress is reported in order, and a file of 0.1 needs the dictionaries of the previous file.
        if (is_last and not in_background) or self._progress is not None or self._version is FileVersion.V0_1:
            with _explaining_lost_file(target):
                written = file.close(durable_name=is_only_file)
            self._schema = known_dictionaries(self._schema, written.dictionaries)
        else:
            written = file.written()
            if is_only_file:
                with _explaining_lost_file(target):
                    self._pending.add_all(file.close_early())
            else:
                self._pending.add(_close_file, file, target)
        self._file = None
        record = records.Fragment(
            files=(make_data_file_record(written, target.base_id, target.prefix),), physical_rows=written.num_rows
        )
        self._fragments.append(record)
        if self._progress is not None and self._reported_fragment is not None:
            self._progress.complete(FragmentMetadata.from_record(replace(record, id=self._reported_fragment.id)))
        self._pending.wait(CLOSING_AT_A_TIME)

    def _choose_target(self) -> WriteTarget:
        """The target of the file that is being written."""
        return self._targets[self._num_ended % len(self._targets)]


@contextmanager
def _explaining_lost_file(target: WriteTarget) -> Iterator[None]:
    """Raise a clearer error if a file that is closed was deleted meanwhile, with its folder."""
    try:
        yield
    except StoreError as error:
        if error.errno != errno.ENOENT:
            raise
        if target.base_id is None:
            reject_dropped_dataset(target.store)
        raise IncompatibleConflictError(
            f"{target.store.root}: a file was deleted while new rows were written to it, by a cleanup with "
            "delete_unverified, or as the dataset was dropped and made again meanwhile. None of the rows is there: "
            "open it again and write them again"
        ) from error


def _close_file(file: DataFileWriter, target: WriteTarget) -> None:
    """Close a complete file, whose name is made durable later; if that fails, nothing of the file is left."""
    try:
        with _explaining_lost_file(target):
            file.close(durable_name=False)
    except BaseException:
        file.abort()
        raise


def open_input_rows(
    data: ReaderLike, schema: pa.Schema | None = None
) -> tuple[pa.Schema, Iterable[pa.RecordBatch | pa.Table]]:
    """Return the Arrow schema of input rows, and an iterable of their batches; a stream is not read yet.

    Raises:
        InvalidInputError: The data is of an unsupported kind, or an iterable is given without a schema.
        SchemaError: Values of a dict of columns, of a list of dicts or of a frame do not fit a column, or a name is not
            UTF-8.
        UnsupportedError: The data comes from another library, and Arrow cannot import its types.
    """
    check_names(schema or ())
    data_schema, batches = _to_batches(data, schema)
    check_names(data_schema)
    return data_schema, batches


def _to_batches(data: ReaderLike, schema: pa.Schema | None) -> tuple[pa.Schema, Iterable[pa.RecordBatch | pa.Table]]:
    if isinstance(data, pa.Table | pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    table = _convert_python_rows(data, schema)
    if table is not None:
        return table.schema, [table]
    if hasattr(data, "rows_to_write"):
        return open_input_rows(data.rows_to_write())
    if hasattr(data, "to_reader"):
        return open_input_rows(data.to_reader())
    if hasattr(data, "__arrow_c_stream__"):
        return open_input_rows(_open_stream(data))
    if hasattr(data, "to_batches") and hasattr(data, "schema"):
        return data.schema, data.to_batches()
    if isinstance(data, Iterable):
        if schema is None:
            raise InvalidInputError("an iterable of batches needs the argument schema")
        return schema, _cast_batches(data, schema)
    raise ArgumentTypeError(f"rows cannot be taken from {type(data).__name__}")


def _open_stream(data: Any) -> pa.RecordBatchReader:
    if type(data).__module__.split(".")[0] == "polars":
        check_polars(data)
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid as error:  # types that are nested deeper than Arrow's C interface allows
        raise UnsupportedError(f"rows cannot be taken from {type(data).__name__}: {error}") from error


def _convert_python_rows(data: ReaderLike, schema: pa.Schema | None) -> pa.Table | None:
    """The rows of a pandas frame, of columns by name or of a list of dicts; None if it is something else.

    Raises:
        ArgumentTypeError: The data is a string or a path, or a column is not a list or an array.
        SchemaError: Values do not fit a column.
    """
    if isinstance(data, str | bytes | PathLike):
        raise ArgumentTypeError(
            f"rows are given as a table, batches or a frame, not as {data!r}: open a file first, for example by "
            "pyarrow.csv.open_csv or pyarrow.dataset.dataset"
        )
    if type(data).__module__.split(".")[0] == "pandas":
        return table_of_frame(data, schema)
    if isinstance(data, dict):
        return table_of_columns(data, schema)
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return table_of_dicts(data, schema)
    return None


def resolve_field_ids(
    schema: pa.Schema,
    dataset_schema: bytes | Schema | None,
    version: FileVersion = DEFAULT_VERSION,
    first_field_id: int = 0,
) -> Schema:
    """The schema, with field ids, for data of an Arrow schema: from a dataset's schema, or with ids for a new dataset.

    Raises:
        SchemaError: The schema does not fit the dataset's, or cannot be stored.
    """
    if isinstance(dataset_schema, Schema) and is_alike(dataset_schema, schema):
        check_metadata(schema.metadata)
        return dataset_schema
    check_new_columns(schema)
    if dataset_schema is None:
        for name in schema.names:
            check_column_name(name)
        return new_schema(schema, version, first_field_id)
    table_schema = schema_from_bytes(dataset_schema) if isinstance(dataset_schema, bytes) else dataset_schema
    check_lacking_columns(table_schema, schema.names, version.value)
    return fit(table_schema, schema, fills_structs=True)


def _cast_batches(batches: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch | pa.Table]:
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise InvalidInputError(
                f"an iterable of batches gave a {type(batch).__name__}; give pyarrow.RecordBatch or pyarrow.Table"
            )
        yield _cast(batch, schema)
        del batch


def _cast(batch: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch | pa.Table:
    """Cast a batch to the types of the given schema without loss, as numbers from Python come as int64."""
    if batch.schema.equals(schema):
        return batch
    check_names(batch.schema)
    columns, fields = list(batch.columns), list(batch.schema)
    changed = False
    for index, field in enumerate(batch.schema):
        at = schema.get_field_index(field.name)
        target = schema.field(at).type if at >= 0 else field.type
        if target == field.type:
            continue
        if has_extensions(target):
            fit(schema_from_arrow(pa.schema([schema.field(at)])), pa.schema([field]), fills_structs=True)
        if has_extensions(target) or has_extensions(field.type):
            continue
        try:
            columns[index] = columns[index].cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(
                f"column {field.name!r}: an iterable gave {field.type}, and the schema says {target}: {error}"
            ) from error
        fields[index], changed = field.with_type(target), True
    return (
        type(batch).from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata)) if changed else batch
    )


def make_data_file_record(file: WrittenFile, base_id: int | None = None, prefix: str = DATA_PREFIX) -> records.DataFile:
    """The record of a written file in a manifest; `WriteTarget` describes `base_id` and `prefix`."""
    major, minor = _VERSION_NUMBERS[file.version]
    return records.DataFile(
        path=file.key.removeprefix(prefix),
        fields=file.field_ids,
        column_indices=file.column_indices,
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=file.size_bytes,
        base_id=base_id,
    )
