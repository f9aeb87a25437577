"""The attempts of one write by a process that Dagster started elsewhere: token, number, and what earlier ones did.

Dagster's side puts the facts of the run into the extras of the Pipes session (`LanceTableResource.pipes_extras`);
without them only the retries of one step are known to be attempts of one write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import lance_core
from lance_core.errors import EarlierAttemptError, InvalidInputError, SupersededError

__all__ = ["EXTRAS_KEY", "AttemptProperties", "attempt_properties"]

EXTRAS_KEY: Final = "lance_dagster"
_TOKEN_KEY: Final = "dagster.write_token"  # noqa: S105 - the name of a property


class AttemptProperties(dict[str, str]):
    """Transaction properties that know the write which they belong to.

    `lance_core.write_dataset` and `pyspark_lance.write` ask them for the attempt: rows that earlier attempts of the
    write have committed are replaced, and an attempt that comes too late is rejected. For other writers they are
    strings.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        token: str,
        number: tuple[int, ...],
        is_retry: bool,
        since: datetime | None,
        succeeded: Sequence[str],
        branch: str | None = None,
    ) -> None:
        super().__init__(properties)
        self.token = token
        self.number = number
        self.is_retry = is_retry
        self.since = since
        self.succeeded = frozenset(succeeded)
        self.branch = branch

    def write_attempt_for(self, dataset: lance_core.LanceDataset | None, mode: str) -> lance_core.WriteAttempt:
        """The attempt as a commit takes it.

        Args:
            dataset: The newest version of the table; None if there is none yet.
            mode: The mode of the write.

        Raises:
            SupersededError: a later attempt has committed already.
            EarlierAttemptError: versions in which an earlier attempt of an append may have added rows were cleaned up.
            InvalidInputError: the run is on a branch, and this is not it.
        """
        if self.branch is not None and (dataset is None or dataset.branch != self.branch):
            where = "a table that is not there yet" if dataset is None else dataset.uri
            raise InvalidInputError(
                f"the run is on branch {self.branch!r}, and {where} is not that branch: write to what "
                "LanceTableResource.uri gives the asset on Dagster's side"
            )
        own = lance_core.WriteAttempt(token=(_TOKEN_KEY, self.token), number=self.number)
        if dataset is None or not self.is_retry:
            return own
        found, missing = dataset.find_transactions(_TOKEN_KEY, self.token, not_before=self.since)
        earlier = []
        for version, transaction in found.items():
            properties = transaction.transaction_properties or {}
            if own.is_superseded_by(properties):
                raise SupersededError(
                    f"version {version} of {dataset.uri} was committed by a later attempt of this write; nothing was "
                    "written"
                )
            run_id = properties.get("dagster.run_id", "")
            if run_id == self.get("dagster.run_id") or run_id not in self.succeeded:
                earlier.append(version)
        if missing and mode == "append":
            raise EarlierAttemptError(
                f"version {max(missing)} of {dataset.uri} was cleaned up: whether an earlier attempt of this write "
                "added rows in it is not known. Look, and start a new run"
            )
        return lance_core.WriteAttempt(
            token=(_TOKEN_KEY, self.token), number=self.number, earlier=tuple(sorted(earlier)), overrules=True
        )


def attempt_properties(properties: Mapping[str, str], extras: Mapping[str, Any], attempt: int) -> AttemptProperties:
    """The properties of a write with its attempt.

    Args:
        properties: Those that name run, asset and partitions.
        extras: What Dagster's side says of the run; may be empty.
        attempt: Number of the attempt of the step in its run, from 0.
    """
    run_id = properties["dagster.run_id"]
    root = str(extras.get("root_run_id") or run_id)
    asset, keys = properties.get("dagster.asset_key"), properties.get("dagster.partition_keys")
    token = hashlib.sha256(json.dumps([root, asset, "pipes", keys]).encode()).hexdigest()
    known = {"dagster.root_run_id": root, _TOKEN_KEY: token}
    if extras.get("step_key"):
        known["dagster.step_key"] = str(extras["step_key"])
    if extras.get("backfill_id"):
        known["dagster.backfill_id"] = str(extras["backfill_id"])
    since = extras.get("since")
    return AttemptProperties(
        {**properties, **known},
        token=token,
        number=(int(extras.get("number", 0)), attempt),
        is_retry=attempt > 0 or bool(extras.get("is_retry")),
        since=datetime.fromisoformat(since) if isinstance(since, str) else None,
        succeeded=[str(one) for one in extras.get("succeeded", ())],
        branch=extras.get("branch"),
    )
