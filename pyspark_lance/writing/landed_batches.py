"""Whether a micro-batch has landed, which Spark may repeat after a crash.

The table's own state knows the last batch of each query, whatever became of the versions. The properties of commits,
`spark.streaming.query` and `spark.streaming.batch`, say the same as long as their versions are there: they decide where
the state cannot, because another library restored an older one.

    the state knows this batch or a later one of the query, or a commit does    landed
    a commit of the query is known, and none of this batch                      not landed
    nothing of the query is known, and no version is missing                    not landed
    the same, and versions are missing; batch 0                                 not landed: a new query
    the same, another batch                                                     an error, unless the user says which
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lance_core import LanceDataset, LanceOperation, Transaction, commit_transaction
from lance_core.errors import UndecidedWriteError

__all__ = ["BATCH", "DECISIONS", "QUERY", "STREAM_BATCH", "Landed", "batch_of"]

QUERY: Final = "spark.streaming.query"
BATCH: Final = "spark.streaming.batch"
STREAM_BATCH: Final = "pyspark_lance.stream_batch"
"""Property that makes a commit the batch of a stream: a JSON list of the stream's name and the number of the batch."""
DECISIONS: Final = ("error", "write", "skip")


def batch_of(properties: Mapping[str, str] | None) -> tuple[str, int] | None:
    """The stream and the batch that the properties of a commit name; None if they name none."""
    text = (properties or {}).get(STREAM_BATCH)
    if text is None:
        return None
    stream, number = json.loads(text)
    return str(stream), int(number)


@dataclass(frozen=True, slots=True)
class Landed:
    """What the latest version of a sink says about the batches of a query.

    Attributes:
        dataset: That version; None if there is no table.
        query: The query's id.
        uri: The table.
        decision: What is done with a batch of which nobody knows: error, write, skip.
    """

    dataset: LanceDataset | None
    query: str
    uri: str
    decision: str = "error"

    def has(self, batch: int) -> bool:
        """Whether a batch has landed.

        Raises:
            UndecidedWriteError: Its version may have been cleaned up, and the table does not know.
        """
        if self.dataset is None:
            return False
        known = self.dataset.landed_batch(self.query)
        if known is not None and known.number >= batch:
            return True
        since = 0 if known is None else known.version
        found = self.dataset.find_transaction(QUERY, self.query, newer_than=since)
        if found is not None:
            return int((found[1].transaction_properties or {}).get(BATCH, "-1")) >= batch
        if known is not None or batch == 0 or not self._missing():
            return False
        if self.decision == "error":
            raise UndecidedWriteError(
                f"whether batch {batch} of query {self.query} has landed in {self.uri} is not known: version "
                f"{max(self._missing())} was cleaned up, and the table knows no batch of this query. Nothing was "
                "written. Look whether its rows are there, and start the query with option undecidedBatch='skip' if "
                "they are, or 'write' if they are not"
            )
        return self.decision == "skip"

    def remember_empty(self, batch: int) -> None:
        """Let the table know of a batch without rows, which makes no version, where later ones would be undecided."""
        dataset = self.dataset
        if dataset is None or dataset.landed_batch(self.query) is not None or not self._missing():
            return
        change = LanceOperation.UpdateConfig()
        texts = {QUERY: self.query, BATCH: str(batch)}
        transaction = Transaction(dataset.version, change, transaction_properties=texts)
        commit_transaction(dataset, transaction, stream_batch=(self.query, batch))

    def _missing(self) -> list[int]:
        """The versions that may have been the query's, and are gone."""
        assert self.dataset is not None
        known_after = self.dataset.known_after("streams")
        if known_after == 0:
            return []
        _, missing = self.dataset.find_transactions(QUERY, self.query)
        return [version for version in missing if known_after is None or version <= known_after]
