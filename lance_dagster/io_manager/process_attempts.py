"""The attempts of one write by a process of Dagster Pipes: token, number, and commits of earlier attempts.

The orchestration code passes the facts of the run in the extras of the Pipes session
(`LanceTableResource.pipes_extras`). Without them, only retries of a step in one run count as attempts of one write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import lance_core
from lance_core.errors import EarlierAttemptError, InvalidInputError, SupersededError
from lance_dagster.properties import (
    ASSET_KEY,
    BACKFILL_ID,
    PARTITION_KEYS,
    ROOT_RUN_ID,
    RUN_ID,
    STEP_KEY,
    WRITE_TOKEN,
    hashed,
    properties_of,
)

EXTRAS_KEY: Final = "lance_dagster"


class PipesAttemptProperties(lance_core.AttemptProperties):
    """Transaction properties of a write by a process of Dagster Pipes.

    If several runs write the same rows, the later run wins, as in the IO manager.
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
        begun: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(properties)
        self.token = token
        self.number = number
        self.is_retry = is_retry
        self.since = since
        self.succeeded = frozenset(succeeded)
        self.branch = branch
        self.begun = begun

    def write_attempt_for(self, dataset: lance_core.LanceDataset | None, mode: str) -> lance_core.WriteAttempt:
        """The attempt, for the commit.

        Args:
            dataset: The newest version of the table; None if there is no table yet.
            mode: The mode of the write.

        Raises:
            SupersededError: A later attempt has committed already.
            EarlierAttemptError: Versions in which an earlier attempt of an append may have added rows were cleaned up.
            InvalidInputError: The run is on a branch, and the table is not on that branch.
        """
        if self.branch is not None and (dataset is None or dataset.branch != self.branch):
            where = "a table that does not exist yet" if dataset is None else dataset.uri
            raise InvalidInputError(
                f"the run is on branch {self.branch!r}, and {where} is not on that branch: write to the URI that "
                "LanceTableResource.uri returns in the asset that starts this process"
            )
        begun = self.begun
        is_same = begun is not None and begun["uri"] == (None if dataset is None else dataset.root_uri)
        attempt = lance_core.WriteAttempt(
            token=(WRITE_TOKEN, self.token),
            number=self.number,
            conflict_policy="later_wins",
            note=self.get(RUN_ID, ""),
            begun=begun["version"] if begun is not None and (is_same or not begun["version"]) else None,
        )
        if dataset is None or not self.is_retry:
            return attempt
        transactions, missing = dataset.find_transactions(WRITE_TOKEN, self.token, not_before=self.since)
        earlier = []
        for version, transaction in transactions.items():
            properties = properties_of(transaction)
            if attempt.is_superseded_by(properties):
                raise SupersededError(
                    f"version {version} of {dataset.uri} was committed by a later attempt of this write; nothing was "
                    "written"
                )
            run_id = properties.get(RUN_ID, "")
            if run_id == self.get(RUN_ID) or run_id not in self.succeeded:
                earlier.append(version)
        if missing and mode == "append":
            raise EarlierAttemptError(
                f"version {max(missing)} of {dataset.uri} was cleaned up, so that it is unknown whether an earlier "
                "attempt of this write added rows in it. Look at the rows of the table, then start a new run"
            )
        return replace(attempt, earlier=tuple(sorted(earlier)))


def attempt_properties(
    properties: Mapping[str, str], extras: Mapping[str, Any], attempt: int
) -> PipesAttemptProperties:
    """The properties of a write with its attempt.

    Args:
        properties: The properties that name the run, the asset and the partitions.
        extras: The facts of the run, from the extras of the Pipes session; may be empty.
        attempt: The number of the step's attempt in its run, from 0.
    """
    run_id = properties[RUN_ID]
    root = str(extras.get("root_run_id") or run_id)
    asset, keys = properties.get(ASSET_KEY), properties.get(PARTITION_KEYS)
    token = hashed(json.dumps([root, asset, "pipes", keys]))
    write_properties = {ROOT_RUN_ID: root, WRITE_TOKEN: token}
    if extras.get("step_key"):
        write_properties[STEP_KEY] = str(extras["step_key"])
    if extras.get("backfill_id"):
        write_properties[BACKFILL_ID] = str(extras["backfill_id"])
    since = extras.get("since")
    return PipesAttemptProperties(
        {**properties, **write_properties},
        token=token,
        number=(int(extras.get("number", 0)), attempt),
        is_retry=attempt > 0 or bool(extras.get("is_retry")),
        since=datetime.fromisoformat(since) if isinstance(since, str) else None,
        succeeded=[str(succeeded_id) for succeeded_id in extras.get("succeeded", ())],
        branch=extras.get("branch"),
        begun=extras.get("begun", {}).get(asset),
    )
