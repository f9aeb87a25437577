"""One fragment of a dataset, to read by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.fragment_changes import FragmentChanges
from lance_core.api.metadata import DataFile, FragmentMetadata
from lance_core.api.read import physical_rows
from lance_core.api.scan import LanceScanner, ScanOptions
from lance_core.api.take import take_rows
from lance_core.api.unsupported import refuse
from lance_core.schema import resolve_extensions, schema_to_arrow

__all__ = ["LanceFragment"]


class LanceFragment(FragmentChanges):
    """A fragment of one version of a dataset.

    Args:
        source: The version.
        record: The fragment.
    """

    def __repr__(self) -> str:
        """Tell which fragment of what."""
        return f"LanceFragment(id={self.fragment_id}, uri={self._source.store.root!r})"

    @property
    def fragment_id(self) -> int:
        """Its id."""
        return self.record.id

    @property
    def metadata(self) -> FragmentMetadata:
        """Its description."""
        return FragmentMetadata.from_record(self.record)

    @property
    def schema(self) -> pa.Schema:
        """The dataset's columns."""
        return resolve_extensions(schema_to_arrow(self._source.manifest.schema))

    @property
    def physical_rows(self) -> int:
        """Rows in its files, deleted ones included."""
        return physical_rows(self._source, self.record)

    @property
    def num_deletions(self) -> int:
        """Rows that are deleted."""
        return self.record.num_deleted_rows

    def data_files(self) -> list[DataFile]:
        """Its data files."""
        return self.metadata.files

    def deletion_file(self) -> str | None:
        """Key of its deletion file below the dataset's root; None if it has none."""
        file = self.record.deletion_file
        return None if file is None else file.key(self.fragment_id)

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        batch_size: int | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        **others: Any,
    ) -> LanceScanner:
        """Prepare a scan of this fragment; arguments as `LanceDataset.scanner`."""
        schema = self._source.manifest.schema
        options = ScanOptions.of(schema, columns, filter, limit, offset, batch_size, with_row_id, with_row_address)
        refuse("scanner", others)
        return LanceScanner(self._source, [self.record], options)

    def to_table(self, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        """Its rows as one table; arguments as `scanner`."""
        return self.scanner(columns, **options).to_table()

    def to_batches(self, columns: Sequence[str] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield its rows in batches; arguments as `scanner`."""
        return self.scanner(columns, **options).to_batches()

    def count_rows(self, filter: pc.Expression | None = None) -> int:  # noqa: A002 - pylance's name
        """Number of its rows."""
        return self.scanner(filter=filter).count_rows()

    def head(self, num_rows: int) -> pa.Table:
        """Its first rows."""
        return self.scanner(limit=num_rows).to_table()

    def take(self, indices: Sequence[int] | pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by position in the fragment, in the order asked for."""
        options = ScanOptions.of(self._source.manifest.schema, columns)
        return take_rows(self._source, [self.record], indices, options)
