"""The commits of attempts of one write; a later attempt than the one that looks is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_core.errors import SupersededError
from lance_dagster.properties import ATTEMPT, RUN_ID, properties_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import lance_core


def find_commits_of_write(
    dataset: lance_core.LanceDataset, write: lance_core.WriteAttempt, not_before: datetime | None = None
) -> tuple[Mapping[int, lance_core.Transaction], Sequence[int]]:
    """The transactions of attempts of a write, by version, and the versions that were cleaned up.

    Args:
        dataset: The newest version of the table.
        write: The attempt that looks.
        not_before: When the first attempt began at the earliest; older versions are not read.

    Raises:
        SupersededError: A later attempt has committed already.
    """
    transactions, missing = dataset.find_transactions(*write.token, not_before=not_before)
    later = {
        attempt.version: f"in run {attempt.note}"
        for attempt in dataset.committed_attempts(write.token)
        if attempt.number > write.number
    }
    for version, transaction in transactions.items():
        properties = properties_of(transaction)
        if write.is_superseded_by(properties):
            later[version] = f"attempt {properties.get(ATTEMPT)} of run {properties.get(RUN_ID)}"
    for version, attempt_of_run in later.items():
        raise SupersededError(
            f"version {version} of {dataset.uri} was committed by a later attempt of this write, {attempt_of_run}; "
            "nothing was written"
        )
    return transactions, missing
