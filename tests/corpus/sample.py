"""A small file of the corpus, made by the writer that people use for its kind, and its rows as pyarrow reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

__all__ = ["KEY", "Sample", "with_key"]

KEY = "row_key"
"""The column that the roads add, by which rows are merged and put in order."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One file.

    Attributes:
        name: Its writer and what it has, such as `pandas/index of times`.
        write: Writes the file into a folder and returns its path.
        read: Reads the file with pyarrow.
        frame: The pandas frame that was written, if pandas wrote it.
        form: The format of what is written, if it is one that Spark converts: `parquet`, `delta`, `iceberg`; or `lance`.
    """

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], pa.Table]
    frame: Callable[[], Any] | None = None
    form: str | None = None

    def table(self, folder: Path) -> pa.Table:
        """The rows of the file, which is written into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return self.read(self.write(folder))


def with_key(table: pa.Table, first: int = 0) -> pa.Table:
    """The rows with numbers from `first` on as their key."""
    return table.add_column(0, KEY, pa.array(range(first, first + table.num_rows), pa.int64()))
