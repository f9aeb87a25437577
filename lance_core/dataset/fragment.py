"""`LanceFragment`: one fragment of a version of a dataset, to scan, count and take its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import pyarrow as pa

from lance_core.arguments import checked_methods
from lance_core.dataset.fragment_changes import FragmentChanges
from lance_core.schema import typed_schema
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.pylance_types.fragments import DataFile, FragmentMetadata
from lance_core.verbs.scan.options import Columns, Filter, ScanArguments, ScanOptions, check_num_rows, scan_options
from lance_core.verbs.scan.projection import AS_STORED
from lance_core.verbs.scan.read_fragment import counted, physical_rows
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.scan.take import take_rows


@checked_methods
class FragmentSession:
    """Takes rows of one fragment; made by `LanceFragment.open_session`.

    Args:
        source: The version.
        record: The fragment.
        options: The columns to read, and the form of the rows.
    """

    def __init__(self, source: Snapshot, record: Fragment, options: ScanOptions) -> None:
        self._source = source
        self._record = record
        self._options = options

    def take(self, indices: Sequence[int] | pa.Array) -> pa.Table:
        """Rows by position among the live rows of the fragment, in the order of the positions.

        Raises:
            InvalidInputError: A position is out of range.
        """
        return take_rows(self._source, [self._record], indices, self._options)


@checked_methods
class LanceFragment(FragmentChanges):
    """A fragment of one version of a dataset.

    Args:
        source: The version.
        record: The fragment.
    """

    def __repr__(self) -> str:
        """Name the fragment and the dataset; a debugger may also ask before the fragment is initialized."""
        if not hasattr(self, "_source"):
            return f"<{type(self).__name__} that is not opened>"
        return f"LanceFragment(id={self.fragment_id}, uri={self._source.store.root!r})"

    @property
    def fragment_id(self) -> int:
        """The fragment's id."""
        return self._source.manifest.fragments.ids[self._position] if self._position >= 0 else self.record.id

    @property
    def metadata(self) -> FragmentMetadata:
        """The fragment's record, as pylance's `FragmentMetadata`; rows that it does not count are counted in files."""
        return FragmentMetadata.from_record(counted(self._source, self.record))

    @property
    def schema(self) -> pa.Schema:
        """The dataset's columns."""
        return typed_schema(self._source.manifest.schema)

    @property
    def physical_rows(self) -> int:
        """Rows in its files, deleted ones included."""
        return physical_rows(self._source, self.record)

    @property
    def num_deletions(self) -> int:
        """Rows that are deleted."""
        return counted(self._source, self.record).num_deleted_rows

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
        arguments = scan_options(self._source.manifest, columns, filter, limit=limit, offset=offset, **options)
        return LanceScanner(self._source, [self.record], arguments)

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
        options = scan_options(self._source.manifest, columns, flatten=False, with_row_address=with_row_address or None)
        return FragmentSession(self._source, self.record, options)

    def take(self, indices: Sequence[int] | pa.Array, columns: Columns = None) -> pa.Table:
        """Rows by position among the live rows of the fragment, in the order of the positions.

        Raises:
            InvalidInputError: A position is out of range.
        """
        options = scan_options(self._source.manifest, columns, flatten=False)
        return take_rows(self._source, [self.record], indices, options)
