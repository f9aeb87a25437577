"""Detects micro-batches that were committed before: Spark may repeat a batch after a crash.

The table's own state keeps the last batch of each query, even after versions are cleaned up. The properties of commits,
`spark.streaming.query` and `spark.streaming.batch`, record the same as long as their versions exist. If another
library restored an older state, the properties decide.

Streams of the data source write `QUERY` and `BATCH`; `STREAM_BATCH` is for conversions.

    this batch is the last one of the query that the state or a commit records  committed
    the last one has a lower number                                             not committed
    the last one has a higher number: the checkpoint is older than the table    an error, unless the user decides
    nothing of the query is known, and no version is missing                    not committed
    nothing of the query is known, versions are missing, and it is batch 0      not committed: a new query
    nothing of the query is known, versions are missing, and it is a later one  an error, unless the user decides
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lance_core import Commit, LanceDataset, LanceOperation, Transaction, commit_transaction
from lance_core.errors import UndecidedWriteError

QUERY: Final = "spark.streaming.query"
BATCH: Final = "spark.streaming.batch"
STREAM_BATCH: Final = "pyspark_lance.stream_batch"
"""Property that makes a commit the batch of a stream: a JSON list of the stream's name and the number of the batch."""
DECISIONS: Final = ("error", "write", "skip")


def batch_of(properties: Mapping[str, str] | None) -> tuple[str, int] | None:
    """The stream and the batch that the properties of a commit name; None if they name none."""
    value = (properties or {}).get(STREAM_BATCH)
    if value is None:
        return None
    stream, number = json.loads(value)
    return str(stream), int(number)


@dataclass(frozen=True, slots=True)
class CommittedBatches:
    """The batches of a query that were committed, as the latest version of the sink records them.

    Attributes:
        dataset: The latest version; None if there is no table.
        query: The query's id.
        uri: The table.
        decision: What happens to a batch that may or may not have been committed: error, write or skip. The commit
            itself decides where the state records a later batch.
    """

    dataset: LanceDataset | None
    query: str
    uri: str
    decision: str = "error"

    def has(self, batch: int) -> bool:
        """Whether a batch was committed.

        Raises:
            UndecidedWriteError: The state does not record the batch, and a later one was committed, or the version of
                the batch may have been cleaned up.
        """
        if self.dataset is None:
            return False
        last_batch = self.dataset.committed_batch(self.query)
        if last_batch is not None and last_batch.number >= batch:
            return last_batch.number == batch
        since = 0 if last_batch is None else last_batch.version
        batch_commit = self.dataset.find_transaction(QUERY, self.query, newer_than=since)
        if batch_commit is not None:
            number = int((batch_commit[1].transaction_properties or {}).get(BATCH, "-1"))
            if number <= batch:
                return number == batch
            why = f"batch {number} is the last one, so that this one comes from an older checkpoint"
        elif last_batch is not None or batch == 0 or not self._missing():
            return False
        else:
            why = f"version {max(self._missing())} was cleaned up, and the table knows no batch of this query"
        if self.decision == "error":
            raise UndecidedWriteError(
                f"whether batch {batch} of query {self.query} was committed in {self.uri} is not known: {why}. Nothing "
                "was written. If the table has its rows, start the query with option undecidedBatch='skip', otherwise "
                "with undecidedBatch='write'"
            )
        return self.decision == "skip"

    def remember_empty(self, batch: int) -> None:
        """Record a batch without rows, which makes no version, if later batches would otherwise be undecided."""
        dataset = self.dataset
        if dataset is None or dataset.committed_batch(self.query) is not None or not self._missing():
            return
        change = LanceOperation.UpdateConfig()
        properties = {QUERY: self.query, BATCH: str(batch)}
        transaction = Transaction(dataset.version, change, transaction_properties=properties)
        commit_transaction(dataset, transaction, Commit(stream_batch=(self.query, batch)))

    def _missing(self) -> list[int]:
        """Versions that were cleaned up and may have been commits of the query."""
        assert self.dataset is not None
        known_after = self.dataset.known_after("streams")
        if known_after == 0:
            return []
        _, missing = self.dataset.find_transactions(QUERY, self.query)
        return [version for version in missing if known_after is None or version <= known_after]
