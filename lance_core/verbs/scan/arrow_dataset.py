"""A version of a dataset as a `pyarrow.dataset.Dataset`, for engines that scan Arrow datasets.

This module imports `pyarrow.dataset`, which imports pandas: import it on use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from lance_core.arguments import reject
from lance_core.errors import UnsupportedError
from lance_core.verbs.scan.scanner import LanceScanner


class Readable(Protocol):
    """The methods of `LanceDataset` that `ArrowDataset` calls."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def scanner(
        self,
        columns: Any,
        filter: pc.Expression | None,  # noqa: A002 - pylance's name
        *,
        batch_size: int | None,
        blob_handling: str | None = None,
    ) -> LanceScanner:
        """Prepare a scan."""
        ...

    def take(self, indices: Any, columns: Any) -> pa.Table:
        """Rows by position."""
        ...


class ArrowDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow is untyped
    """The Arrow interface of a version of a dataset.

    It wraps no C++ dataset of Arrow, so all methods that would use one are overridden.

    Args:
        dataset: The version.
        filter_: A filter for all scans.
    """

    def __init__(self, dataset: Readable, filter_: pc.Expression | None = None) -> None:
        self._dataset = dataset
        self._filter = filter_

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the dataset."""
        return ArrowDataset, (self._dataset, self._filter)

    @property
    def schema(self) -> pa.Schema:
        """The columns that scans return; blobs are descriptions."""
        return self._dataset.scanner(None, None, batch_size=None).projected_schema

    @property
    def partition_expression(self) -> pc.Expression:
        """A condition that holds for all rows: true."""
        return pc.scalar(True)

    def filter(self, expression: pc.Expression) -> ArrowDataset:
        """The dataset with a further filter."""
        return ArrowDataset(self._dataset, self._both(expression))

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        batch_size: int | None = None,
        **options: Any,
    ) -> LanceScanner:
        """Prepare a scan.

        Args:
            columns: Names, or names and expressions; None for all.
            filter: Keep the rows for which this is true.
            batch_size: The most rows of a batch; None for the batches of the files.
            **options: Arrow's hints about threads, memory and read-ahead, which have no effect.

        Raises:
            UnsupportedError: Another option is given.
        """
        for hint in ("batch_readahead", "fragment_readahead", "use_threads", "cache_metadata", "memory_pool"):
            options.pop(hint, None)
        reject("scanner", options)
        return self._dataset.scanner(columns, self._both(filter), batch_size=batch_size)

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:  # noqa: A002 - Arrow's
        """All rows as one table, with the arguments of `scanner`."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(self, columns: Any = None, filter: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:  # noqa: A002 - Arrow's
        """Yield the rows in batches, with the arguments of `scanner`."""
        return self.scanner(columns, filter, **options).to_batches()

    def head(self, num_rows: int, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:  # noqa: A002 - Arrow's
        """The first rows, with the arguments of `scanner`."""
        return self.scanner(columns, filter, **options).head(num_rows)

    def take(self, indices: Any, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:  # noqa: A002 - Arrow's
        """Rows by position among those that the filter keeps, with the arguments of `scanner`."""
        if self._both(filter) is None and not options:
            return self._dataset.take(indices, columns)
        return self.scanner(columns, filter, **options).take(indices)

    def count_rows(self, filter: Any = None, **options: Any) -> int:  # noqa: A002 - Arrow's
        """Number of rows, with the arguments of `scanner`."""
        return self.scanner(filter=filter, **options).count_rows()

    def get_fragments(self, filter: Any = None) -> NoReturn:  # noqa: A002 - Arrow's
        """Not offered.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del filter
        raise UnsupportedError("get_fragments of the Arrow interface is not offered: use LanceDataset.get_fragments")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not offered.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del schema
        raise UnsupportedError(
            "replace_schema of the Arrow interface is not offered: use LanceDataset.alter_columns, or "
            "replace_schema_metadata"
        )

    def sort_by(self, sorting: Any, **options: Any) -> NoReturn:
        """Not offered.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del sorting, options
        raise UnsupportedError("sort_by of the Arrow interface is not offered: use LanceDataset.scanner(order_by=...)")

    def join(self, right_dataset: Any, keys: Any, **options: Any) -> NoReturn:
        """Not offered.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, keys, options
        raise UnsupportedError(
            "join of the Arrow interface is not offered: use to_table().join(...), or DuckDB over the dataset"
        )

    def join_asof(self, right_dataset: Any, on: Any, by: Any, tolerance: Any, **options: Any) -> NoReturn:
        """Not offered.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, on, by, tolerance, options
        raise UnsupportedError(
            "join_asof of the Arrow interface is not offered: use to_table().join_asof(...), or DuckDB over the dataset"
        )

    def _both(self, other: pc.Expression | None) -> pc.Expression | None:
        if self._filter is None or other is None:
            return other if self._filter is None else self._filter
        return self._filter & other
