"""`LanceFragment`: one fragment of a version of a dataset, to scan, count and take its rows.

It can be changed without a commit: deletions, new values and new columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import Any, Self, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.arguments import checked_methods, reject
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.row_addresses import bitmap_of
from lance_core.schema import Schema, typed_schema
from lance_core.schema.lance_schema import LanceSchema
from lance_core.store import make_durable
from lance_core.table.fragment import Fragment
from lance_core.verbs.columns.add import made_fragment, with_new_columns
from lance_core.verbs.columns.batch_udf import BatchUDF
from lance_core.verbs.columns.makers import ColumnMaker, Joined, column_maker, joined
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.context.uncommitted_files import collecting_files
from lance_core.verbs.files.column_files import live_batches, replace_columns, spread, write_column_file
from lance_core.verbs.files.conform import fit
from lance_core.verbs.files.fragment_writer import ReaderLike
from lance_core.verbs.files.progress import FragmentWriteProgress
from lance_core.verbs.inspect.validation import validate_fragment
from lance_core.verbs.pylance_types.data_files import described_file
from lance_core.verbs.pylance_types.fragments import DataFile, FragmentMetadata
from lance_core.verbs.rows.removal import matching_rows, with_deletions
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.options import Columns, Filter, ScanArguments, ScanOptions, check_num_rows, scan_options
from lance_core.verbs.scan.projection import AS_STORED, ROW_ADDRESS, ROW_ID, described_columns
from lance_core.verbs.scan.read_fragment import count_file_rows, count_live, with_row_counts
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.scan.take import take_rows
from lance_core.verbs.write.write_fragments import write_fragments


@checked_methods
class FragmentSession:
    """Takes rows of one fragment; made by `LanceFragment.open_session`.

    Args:
        snapshot: The version.
        record: The fragment.
        options: The columns to read, and the form of the rows.
    """

    def __init__(self, snapshot: Snapshot, record: Fragment, options: ScanOptions) -> None:
        self._snapshot = snapshot
        self._record = record
        self._options = options

    def take(self, indices: Sequence[int] | pa.Array) -> pa.Table:
        """Rows by position among the live rows of the fragment, in the order of the positions.

        Raises:
            InvalidInputError: A position is out of range.
        """
        return take_rows(self._snapshot, [self._record], indices, self._options)


_WHOLE = (1 << 63) - 1


class _Numbered(FragmentWriteProgress):
    """Passes progress calls on, with the id that the fragment of the write is going to have."""

    def __init__(self, progress: FragmentWriteProgress, fragment_id: int) -> None:
        self._progress = progress
        self._id = fragment_id

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Report the call to the user's progress."""
        self._progress.begin(replace(fragment, id=self._id), **kwargs)

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Report the call to the user's progress."""
        self._progress.complete(replace(fragment, id=self._id), **kwargs)


@checked_methods
class LanceFragment:
    """A fragment of one version of a dataset. Methods that change it return what a commit then adds to the dataset.

    Args:
        snapshot: The version.
        record: The fragment.
    """

    def __init__(self, snapshot: Snapshot, record: Fragment) -> None:
        self._snapshot = snapshot
        self._position = -1
        self.record = record

    @classmethod
    def all_of(cls, snapshot: Snapshot) -> list[Self]:
        """All fragments of a version; each record is read when it is accessed, as there can be very many."""
        fragments = []
        for position in range(len(snapshot.manifest.fragments)):
            fragment = cls.__new__(cls)
            fragment._snapshot, fragment._position = snapshot, position  # noqa: SLF001 - its own class
            fragments.append(fragment)
        return fragments

    @cached_property
    def record(self) -> Fragment:
        """The fragment as the version records it."""
        return self._snapshot.manifest.fragments[self._position]

    def __repr__(self) -> str:
        """Name the fragment and the dataset; a debugger may also ask before the fragment is initialized."""
        if not hasattr(self, "_snapshot"):
            return f"<{type(self).__name__} that is not opened>"
        return f"LanceFragment(id={self.fragment_id}, uri={self._snapshot.store.root!r})"

    @property
    def fragment_id(self) -> int:
        """The fragment's id."""
        return self._snapshot.manifest.fragments.ids[self._position] if self._position >= 0 else self.record.id

    @property
    def metadata(self) -> FragmentMetadata:
        """The fragment's record, as pylance's `FragmentMetadata`; rows that it does not count are counted in files."""
        return FragmentMetadata.from_record(with_row_counts(self._snapshot, self.record))

    @property
    def schema(self) -> pa.Schema:
        """The dataset's columns."""
        return typed_schema(self._snapshot.manifest.schema)

    @property
    def physical_rows(self) -> int:
        """Rows in its files, deleted ones included."""
        return count_file_rows(self._snapshot, self.record)

    @property
    def num_deletions(self) -> int:
        """Rows that are deleted."""
        return with_row_counts(self._snapshot, self.record).num_deleted_rows

    def data_files(self) -> list[DataFile]:
        """Its data files."""
        return FragmentMetadata.from_record(self.record).files

    def deletion_file(self) -> str | None:
        """Key of its deletion file below the dataset's root; None if it has none."""
        file = self.record.deletion_file
        return None if file is None else file.key(self.fragment_id)

    def scanner(
        self,
        columns: Columns = None,
        filter: Filter = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        **options: Unpack[ScanArguments],
    ) -> LanceScanner:
        """Prepare a scan of this fragment, with the arguments of `LanceDataset.scanner` except `fragments`."""
        arguments = scan_options(self._snapshot.manifest, columns, filter, limit=limit, offset=offset, **options)
        return LanceScanner(self._snapshot, [self.record], arguments)

    def to_table(self, columns: Columns = None, filter: Filter = None, **options: Any) -> pa.Table:  # noqa: A002 - pylance's
        """The rows as one table, with the arguments of `scanner`."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(self, columns: Columns = None, filter: Filter = None, **options: Any) -> Iterator[pa.RecordBatch]:  # noqa: A002 - pylance's
        """Yield its rows in batches, with the arguments of `scanner`."""
        return self.scanner(columns, filter, **options).to_batches()

    def to_pandas(self, columns: Columns = None, *, blob_mode: str = "lazy", **options: Any) -> Any:
        """Its rows as pandas, with the arguments of `scanner` and the `blob_mode` of `LanceScanner.to_pandas`."""
        return self.scanner(columns, **options).to_pandas(blob_mode=blob_mode)

    def rows_to_write(self) -> pa.RecordBatchReader:
        """The fragment's rows, with payloads of blobs, for a write to another table. Writers call this."""
        return self.scanner(blob_handling=AS_STORED).to_reader()

    def count_rows(self, filter: Filter = None) -> int:  # noqa: A002 - pylance's name
        """Number of its rows; without a filter only metadata is read."""
        return self.scanner(filter=filter).count_rows()

    def head(self, num_rows: int) -> pa.Table:
        """Its first rows."""
        check_num_rows(num_rows)
        return self.scanner(limit=num_rows).to_table()

    def open_session(self, columns: Columns = None, with_row_address: bool | None = None) -> FragmentSession:
        """Open a session that takes rows of the same columns repeatedly; files are opened once.

        Args:
            columns: What to read, as for `take`.
            with_row_address: Add a column `_rowaddr`.
        """
        manifest, with_addresses = self._snapshot.manifest, with_row_address or None
        options = scan_options(manifest, columns, flatten=False, with_row_address=with_addresses)
        return FragmentSession(self._snapshot, self.record, options)

    def take(self, indices: Sequence[int] | pa.Array, columns: Columns = None) -> pa.Table:
        """Rows by position among the live rows of the fragment, in the order of the positions.

        Raises:
            InvalidInputError: A position is out of range.
        """
        options = scan_options(self._snapshot.manifest, columns, flatten=False)
        return take_rows(self._snapshot, [self.record], indices, options)

    @staticmethod
    def create(
        dataset_uri: str | PathLike[str],
        data: ReaderLike,
        fragment_id: int | None = None,
        schema: pa.Schema | None = None,
        max_rows_per_group: int | None = None,
        progress: FragmentWriteProgress | None = None,
        mode: str = "append",
        *,
        data_storage_version: str | None = None,
        use_legacy_format: bool | None = None,
        storage_options: Mapping[str, str] | None = None,
        **unsupported: Any,
    ) -> FragmentMetadata:
        """Write rows into one new fragment, with the arguments of `write_fragments`.

        Args:
            dataset_uri: The dataset's root.
            data: The rows; at least one.
            fragment_id: Id of the fragment; None lets the commit pick one.
            schema: Schema of the rows; needed only for an iterable of batches.
            max_rows_per_group: Accepted for compatibility with pylance, without effect.
            progress: Called when the file begins and when it is complete.
            mode: "append" fits the rows to the dataset if there is one.
            data_storage_version: Version of the file.
            use_legacy_format: The older spelling of `data_storage_version`.
            storage_options: Credentials and options of the storage, under object_store's names.
            **unsupported: Arguments of pylance that are not offered.

        Raises:
            SchemaError: The data does not fit.
            InvalidInputError: There is no row.
        """
        reject("LanceFragment.create", unsupported)
        fragments = write_fragments(
            data,
            dataset_uri,
            schema,
            mode=mode,
            max_rows_per_file=_WHOLE,
            max_rows_per_group=max_rows_per_group,
            max_bytes_per_file=_WHOLE,
            progress=None if progress is None else _Numbered(progress, fragment_id or 0),
            data_storage_version=data_storage_version,
            use_legacy_format=use_legacy_format,
            storage_options=storage_options,
        )
        if not isinstance(fragments, list) or len(fragments) != 1:
            raise InvalidInputError("LanceFragment.create: data has no rows; a fragment needs at least one")
        fragments[0].id = fragment_id or 0
        return fragments[0]

    @staticmethod
    def create_from_file(filename: str, dataset: Handle, fragment_id: int) -> FragmentMetadata:
        """Describe a data file that was written separately as a fragment, for a commit.

        Args:
            filename: Its name below `data/` of the dataset.
            dataset: The dataset; columns are matched by name.
            fragment_id: Id of the fragment; 0 lets the commit pick one.

        Raises:
            SchemaError: The dataset lacks a column of the file.
            ObjectNotFoundError: There is no such file.
        """
        record, num_rows = described_file(dataset.snapshot, filename, None)
        return FragmentMetadata(id=fragment_id, files=[DataFile.from_record(record)], physical_rows=num_rows)

    def delete(self, predicate: str | pc.Expression) -> FragmentMetadata | None:
        """Delete the rows for which a predicate is true.

        Returns:
            The fragment with a new deletion file; None if no row is left.
        """
        columns = described_columns(self._snapshot.manifest)
        expression = to_condition(predicate, columns or self._snapshot.manifest.schema)
        return self._delete_rows(matching_rows(self._snapshot, self.record, expression, columns))

    def delete_rows(self, offsets: Iterable[int]) -> FragmentMetadata | None:
        """Delete rows by their physical offsets in the fragment.

        Returns:
            The fragment with a new deletion file; None if no row is left.

        Raises:
            InvalidInputError: An offset is out of range.
        """
        rows = np.asarray(list(offsets), np.int64)
        count = count_file_rows(self._snapshot, self.record)
        outside = rows[(rows < 0) | (rows >= count)]
        if len(outside):
            raise InvalidInputError(
                f"delete_rows offset {outside[0]} is out of range for fragment {self.record.id} with {count} rows"
            )
        return self._delete_rows(bitmap_of(rows) - self._snapshot.deleted_rows(self.record))

    def merge_columns(
        self,
        value_func: Any,
        columns: Sequence[str] | None = None,
        batch_size: int | None = None,
        reader_schema: pa.Schema | None = None,
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Add columns to this fragment, with the arguments of `LanceDataset.add_columns`.

        Returns:
            The fragment with a new file, and the dataset's schema with the new columns, for `LanceOperation.Merge`.

        Raises:
            SchemaError: A column exists, or the values do not fit.
            InvalidInputError: A function keeps a checkpoint, which only `LanceDataset.add_columns` supports.
        """
        if isinstance(value_func, BatchUDF) and value_func.cache is not None:
            raise InvalidInputError(
                "A checkpoint file cannot be used when applying a UDF with LanceFragment.merge_columns; only "
                "LanceDataset.add_columns keeps one"
            )
        return self._make_columns(column_maker(value_func, self._snapshot, columns, reader_schema), batch_size)

    def merge(
        self, data_obj: ReaderLike, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Add the columns of other rows to this fragment, by a left join, with the arguments of `LanceDataset.merge`.

        Returns:
            The changed fragment, and the dataset's schema with the new columns.
        """
        return self._make_columns(joined(data_obj, schema, self._snapshot.manifest.schema, left_on, right_on), None)

    def update_columns(
        self,
        data_obj: ReaderLike,
        left_on: str = ROW_ID,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
        *,
        with_offsets: bool = False,
    ) -> tuple[FragmentMetadata, list[int]] | tuple[FragmentMetadata, list[int], bytes]:
        """Set columns in the rows that match given rows; other rows keep their values.

        Args:
            data_obj: The given rows: the join column, and the columns to set.
            left_on: Column of the dataset that is joined on; `_rowid` and `_rowaddr` too.
            right_on: Column of the rows that is joined on; None for the same name.
            schema: Schema of an iterable of batches.
            with_offsets: Whether to return the offsets of the rows that matched as well.

        Returns:
            The fragment with a new file, the ids of the fields that changed, and with `with_offsets` the physical
            offsets of the rows as a serialized roaring bitmap: for `LanceOperation.Update`.

        Raises:
            SchemaError: A column does not exist or differs in type.
        """
        manifest = self._snapshot.manifest
        maker = joined(data_obj, schema, manifest.schema, left_on, right_on)
        if not maker.makes.names:
            raise SchemaError(
                f"update_columns: the data has no column but {right_on or left_on!r}, by which rows are matched: add "
                "a column with new values"
            )
        unknown = [name for name in maker.makes.names if name not in manifest.schema.names]
        if unknown:
            what = "; _row... are metadata columns, which" if any(name.startswith("_row") for name in unknown) else ""
            raise SchemaError(
                f"update_columns: the dataset has no columns {unknown}; it has {manifest.schema.names}: a column that "
                f"does not exist{what} cannot be updated"
            )
        columns = manifest.schema.project([name for name in manifest.schema.names if name in maker.makes.names])
        fit(columns, maker.makes)
        matched = BitMap()
        with collecting_files(self._snapshot) as files:
            tables = self._update_values(maker, columns, matched)
            file = write_column_file(self._snapshot, self.record, columns, tables, files)
        updated = FragmentMetadata.from_record(replace_columns(self.record, file))
        fields = [node.id for node, _ in columns.walk()]
        return (updated, fields, matched.serialize()) if with_offsets else (updated, fields)

    def validate(self) -> None:
        """Check that the fragment's files, row counts and deletions fit together.

        Raises:
            CorruptFileError: Files, row counts and deletions do not fit together.
        """
        validate_fragment(self._snapshot, self.record)

    def _delete_rows(self, deleted: BitMap) -> FragmentMetadata | None:
        if len(deleted) == count_live(self._snapshot, self.record):
            return None
        if not deleted:
            return FragmentMetadata.from_record(self.record)
        with collecting_files(self._snapshot) as files:
            fragment = with_deletions(self._snapshot, self.record, deleted, files)
            assert fragment.deletion_file is not None
            make_durable(self._snapshot.store, [fragment.deletion_file.key(fragment.id)])
            return FragmentMetadata.from_record(fragment)

    def _make_columns(self, maker: ColumnMaker, batch_size: int | None) -> tuple[FragmentMetadata, LanceSchema]:
        schema, columns = with_new_columns(self._snapshot.manifest, maker.makes)
        with collecting_files(self._snapshot) as files:
            fragment = made_fragment(self._snapshot, self.record, maker, columns, batch_size, files)
            maker.finish()
        return FragmentMetadata.from_record(fragment), LanceSchema(schema)

    def _update_values(self, maker: Joined, columns: Schema, matched: BitMap) -> Iterator[pa.Table]:
        """Yield the values of all rows, new ones where a row matched; offsets of these rows are added to `matched`."""
        on = maker.reads[0]
        is_read = on in (ROW_ID, ROW_ADDRESS) or on in columns.names
        read = columns if is_read else self._snapshot.manifest.schema.project([*columns.names, on])
        start = 0
        batches = live_batches(
            self._snapshot, self.record, read, with_row_id=on == ROW_ID, with_row_address=on == ROW_ADDRESS
        )
        for rows, mask in batches:
            partner = maker.rows(rows.select([on]))
            has_partner = pc.is_valid(partner).to_numpy(zero_copy_only=False)
            matched |= bitmap_of(np.flatnonzero(mask)[has_partner] + start)
            new = maker.take(partner.drop_null())
            places = np.arange(rows.num_rows)
            places[has_partner] = rows.num_rows + np.arange(new.num_rows)
            old = rows.select(columns.names)
            yield spread(pa.concat_tables([old, new.select(columns.names).cast(old.schema)]).take(places), mask)
            start += len(mask)
