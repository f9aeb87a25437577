"""Draws samples of a dataset, and divides its rows among parallel processes, under pylance's names."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lance_core.arguments import checked, checked_methods
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.dataset.lance_dataset import dataset as open_dataset
from lance_core.dataset.reading import row_positions
from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import InvalidInputError

__all__ = ["ShardedBatchIterator", "ShardedBatchSampler", "ShardedFixedBatchSampler", "maybe_sample"]


@checked
def maybe_sample(
    dataset: str | PathLike[str] | LanceDataset,
    n: int,
    columns: Sequence[str] | Mapping[str, str] | str,
    batch_size: int = 10240,
    max_takes: int = 2048,
    filt: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield random rows without repetition; all rows, in order, if the dataset has at most `n`.

    Args:
        dataset: The dataset, or its URI.
        n: Number of rows.
        columns: Columns to read, as for `scanner`; a single name as a string.
        batch_size: Most rows of a batch.
        max_takes: If more rows than this are sampled, about this many runs of neighbouring rows are read, which is
            faster.
        filt: An SQL condition; only rows for which it is true are sampled.

    Raises:
        InvalidInputError: A number is not positive, or the filter is not a condition.
    """
    if min(n, batch_size, max_takes) < 1:
        raise InvalidInputError(f"n {n}, batch_size {batch_size} and max_takes {max_takes} must be positive")
    source = dataset if isinstance(dataset, LanceDataset) else open_dataset(dataset)
    requested_columns: Any = [columns] if isinstance(columns, str) else columns
    if n >= source.count_rows():
        yield from source.to_batches(requested_columns, filt, batch_size=batch_size)
        return
    chosen = _choose_rows(np.asarray(row_positions(source, filt)), n, max_takes)
    for start in range(0, len(chosen), batch_size):
        table = combine_chunks(source.take(chosen[start : start + batch_size], requested_columns), keeps_chunks=True)
        yield from table.to_batches()


def _choose_rows(candidates: np.ndarray[Any, Any], n: int, max_takes: int) -> np.ndarray[Any, Any]:
    """Random rows; runs of neighbouring rows above `max_takes`."""
    rng = np.random.default_rng()
    if len(candidates) <= n:
        return candidates
    if n <= max_takes:
        return rng.choice(candidates, n, replace=False)
    length = math.ceil(n / max_takes)
    runs = rng.permutation(math.ceil(len(candidates) / length))
    return np.concatenate([candidates[run * length : (run + 1) * length] for run in runs[: n // length + 2]])[:n]


@checked_methods
class ShardedBatchSampler:
    """The share of one process: every `world_size`-th batch of the rows.

    Args:
        rank: Number of the process.
        world_size: Number of processes.
        randomize: Whether the order of the batches differs between epochs.
        seed: Seed of the random order, the same in all processes.

    Raises:
        InvalidInputError: The rank is not below the number of processes.
    """

    def __init__(self, rank: int, world_size: int, randomize: bool = False, seed: int = 0) -> None:
        if not 0 <= rank < world_size:
            raise InvalidInputError(
                f"rank must be from 0 to world_size - 1: rank is {rank}, world_size is {world_size}"
            )
        self._rank = rank
        self._world_size = world_size
        self._randomize = randomize
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, which has its own random order if `randomize` is set."""
        self._epoch = epoch

    def __call__(
        self,
        dataset: LanceDataset,
        *,
        batch_size: int = 128,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        filter: str | None = None,  # noqa: A002 - pylance's name
        batch_readahead: int = 16,
        with_row_id: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield this process's batches.

        Args:
            dataset: The dataset to read.
            batch_size: Rows of a batch.
            columns: Columns to read, as for `scanner`.
            filter: A condition; with one, this process gets every `world_size`-th of the matching rows.
            batch_readahead: Accepted for compatibility with pylance, without effect.
            with_row_id: Add a column `_rowid`.
        """
        if batch_size < 1 or batch_readahead < 0:
            raise InvalidInputError(
                f"batch_size must be at least 1 and batch_readahead at least 0, not {batch_size} and {batch_readahead}"
            )
        rows = row_positions(dataset, filter)
        if filter is None:
            starts = range(self._rank * batch_size, len(rows), self._world_size * batch_size)
            batches: list[Any] = [rows[start : start + batch_size] for start in starts]
        else:
            mine = rows[self._rank :: self._world_size]
            batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
        for rows in self._shuffle(batches):
            yield from _take_batches(dataset, rows, columns, with_row_id)

    def _shuffle(self, batches: list[Any]) -> list[Any]:
        if self._randomize:
            random.Random(self._seed + self._epoch).shuffle(batches)  # noqa: S311 - no secret
        return batches


@checked_methods
class ShardedFixedBatchSampler(ShardedBatchSampler):
    """Positions of rows for one process: an adjacent share of the dataset, in batches of adjacent rows.

    Args:
        rank: Number of the process.
        world_size: Number of processes.
        randomize: Whether the batches come in another order in each epoch.
        seed: Seed of the random order.
        batch_size: Rows of a batch.
        total_num_rows: Rows of the dataset.

    Raises:
        InvalidInputError: The rank is not below the number of processes, or a dataset with rows has no batch size.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        randomize: bool = False,
        seed: int = 0,
        batch_size: int = 0,
        total_num_rows: int = 0,
    ) -> None:
        super().__init__(rank, world_size, randomize, seed)
        if total_num_rows < 0 or batch_size < 0 or (total_num_rows and not batch_size):
            raise InvalidInputError(
                "batch_size must be at least 1 if there are rows, and total_num_rows at least 0, not "
                f"{batch_size} and {total_num_rows}"
            )
        share = math.ceil(total_num_rows / world_size)
        end = min((rank + 1) * share, total_num_rows)
        self._batches = [
            range(start, min(start + batch_size, end)) for start in range(rank * share, end, max(batch_size, 1))
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self._shuffle(list(self._batches)):
            yield list(rows)


@checked_methods
class ShardedBatchIterator:
    """Iterates over the share of one process, from its start each time. `ShardedBatchSampler` replaces this class.

    Args:
        data: The dataset, or its URI.
        rank: Number of the process.
        world_size: Number of processes.
        columns: Columns to read, as for `scanner`.
        batch_size: Most rows of a batch.
        granularity: The unit that is distributed round-robin: fragments, which read fastest, or batches.
        batch_readahead: Accepted for compatibility with pylance, without effect.
        with_row_id: Add a column `_rowid`.

    Raises:
        InvalidInputError: The rank is not below the number of processes, or another argument is invalid.
    """

    def __init__(
        self,
        data: str | PathLike[str] | LanceDataset,
        rank: int,
        world_size: int,
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        batch_size: int = 10240,
        granularity: Literal["fragment", "batch"] = "fragment",
        batch_readahead: int = 8,
        with_row_id: bool = False,
    ) -> None:
        if granularity not in {"fragment", "batch"}:
            raise InvalidInputError(f'granularity {granularity!r} is neither "fragment" nor "batch"')
        if batch_size < 1 or batch_readahead < 0:
            raise InvalidInputError(
                f"batch_size must be at least 1 and batch_readahead at least 0, not {batch_size} and {batch_readahead}"
            )
        warnings.warn("ShardedBatchIterator is deprecated, use ShardedBatchSampler instead", stacklevel=2)
        self._dataset = data if isinstance(data, LanceDataset) else open_dataset(data)
        self._sampler = ShardedBatchSampler(rank, world_size)
        self._mine = slice(rank, None, world_size)
        self._columns: Any = columns
        self._batch_size = batch_size
        self._granularity = granularity
        self._with_row_id = with_row_id

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._granularity == "batch":
            options: dict[str, Any] = {"columns": self._columns, "with_row_id": self._with_row_id}
            yield from self._sampler(self._dataset, batch_size=self._batch_size, **options)
            return
        fragments = self._dataset.get_fragments()[self._mine]
        if fragments:
            yield from self._dataset.scanner(
                self._columns, fragments=fragments, batch_size=self._batch_size, with_row_id=self._with_row_id
            ).to_batches()


def _take_batches(dataset: LanceDataset, rows: Any, columns: Any, with_row_id: bool) -> Iterator[pa.RecordBatch]:
    """The rows at some positions as one batch."""
    if with_row_id:
        names = dataset.schema.names if columns is None else columns
        columns = {**names, "_rowid": "_rowid"} if isinstance(names, Mapping) else [*names, "_rowid"]
    yield from combine_chunks(dataset.take(rows, columns), keeps_chunks=True).to_batches()
