"""Verbs that read rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.fragment import LanceFragment
from lance_core.api.handle import Handle
from lance_core.api.scan import LanceScanner, ScanOptions
from lance_core.api.take import take_rows
from lance_core.api.unsupported import refuse

__all__ = ["ReadingVerbs"]


class ReadingVerbs(Handle):
    """What a dataset offers to read its rows."""

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        batch_size: int | None = None,
        fragments: Iterable[LanceFragment] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        **others: Any,
    ) -> LanceScanner:
        """Prepare a scan.

        Args:
            columns: Columns to read, in order; a dotted path reads part of a struct. None reads all.
            filter: Keep the rows for which this `pyarrow.compute` expression is true.
            limit: Most rows to return.
            offset: Rows to leave out first.
            batch_size: Most rows of a batch; None leaves it to the files.
            fragments: Read only these.
            with_row_id: Add a column `_rowid`.
            with_row_address: Add a column `_rowaddr`: fragment id << 32 | row offset.
            **others: Arguments of pylance's that are not offered; None is ignored, as it means their default.

        Raises:
            SchemaError: A column does not exist.
            UnsupportedError: An argument is not offered.
        """
        options = ScanOptions.of(
            self._manifest.schema, columns, filter, limit, offset, batch_size, with_row_id, with_row_address
        )
        refuse("scanner", others)
        chosen = self._manifest.fragments if fragments is None else [one.record for one in fragments]
        return LanceScanner(self.source, chosen, options)

    def to_table(self, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        """All rows as one table; arguments as `scanner`."""
        return self.scanner(columns, **options).to_table()

    def to_batches(self, columns: Sequence[str] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, with bounded memory; arguments as `scanner`."""
        return self.scanner(columns, **options).to_batches()

    def to_reader(self, columns: Sequence[str] | None = None, **options: Any) -> pa.RecordBatchReader:
        """The rows as an Arrow reader; arguments as `scanner`."""
        return self.scanner(columns, **options).to_reader()

    def to_pandas(self, columns: Sequence[str] | None = None, **options: Any) -> Any:
        """All rows as a pandas frame; arguments as `scanner`."""
        return self.to_table(columns, **options).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Serve the rows to whatever speaks Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count_rows(self, filter: pc.Expression | None = None) -> int:  # noqa: A002 - pylance's name
        """Number of rows; without a filter only metadata is read."""
        return self.scanner(filter=filter).count_rows()

    def count_deleted_rows(self) -> int:
        """Rows that deletion files hide."""
        return sum(message.deletion_file.num_deleted_rows for message in self._manifest.fragments.messages())

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """The first rows; arguments as `scanner`."""
        return self.scanner(limit=num_rows, **options).to_table()

    def take(self, indices: Sequence[int] | pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by position, in the order asked for.

        Args:
            indices: Positions among the rows of the dataset, from 0.
            columns: Columns to read; None for all.

        Raises:
            InvalidInputError: A position lies outside the dataset.
        """
        options = ScanOptions.of(self._manifest.schema, columns)
        return take_rows(self.source, self._manifest.fragments, indices, options)

    def get_fragments(self) -> list[LanceFragment]:
        """The fragments, in order."""
        source = self.source
        return [LanceFragment(source, record) for record in self._manifest.fragments]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """The fragment of that id; None if there is none."""
        record = self._manifest.fragments.get(fragment_id)
        return None if record is None else LanceFragment(self.source, record)
