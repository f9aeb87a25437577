"""The attempts of one write by a process of Dagster Pipes: token, number, and commits of earlier attempts.

The orchestration code passes the facts of the run in the extras of the Pipes session
(`LanceTableResource.pipes_extras`). Without them, only retries of a step in one run count as attempts of one write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import lance_core
from lance_core.errors import EarlierAttemptError, InvalidInputError
from lance_dagster import properties as prop
from lance_dagster.tables.attempts import find_commits_of_write

EXTRAS_KEY: Final = "lance_dagster"


class PipesAttemptProperties(lance_core.AttemptProperties):
    """Transaction properties of a write by a process of Dagster Pipes.

    If several runs write the same rows, the later run wins, as in the IO manager.
    """

    def __init__(self, properties: Mapping[str, str], extras: Mapping[str, Any], attempt: int) -> None:
        """Name the write by the root run, the asset and the partitions.

        Args:
            properties: The properties that name the run, the asset and the partitions.
            extras: The facts of the run, from the extras of the Pipes session; may be empty.
            attempt: The number of the step's attempt in its run, from 0.
        """
        root = str(extras.get("root_run_id") or properties[prop.RUN_ID])
        self.token = prop.hashed(
            json.dumps([root, properties.get(prop.ASSET_KEY), "pipes", properties.get(prop.PARTITION_KEYS)])
        )
        self.number = (int(extras.get("number", 0)), attempt)
        self.extras = extras
        facts = {prop.STEP_KEY: extras.get("step_key"), prop.BACKFILL_ID: extras.get("backfill_id")}
        named = {name: str(fact) for name, fact in facts.items() if fact}
        super().__init__({**properties, prop.ROOT_RUN_ID: root, prop.WRITE_TOKEN: self.token, **named})

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
        branch, begun = self.extras.get("branch"), self.extras.get("begun", {}).get(self.get(prop.ASSET_KEY))
        if branch is not None and (dataset is None or dataset.branch != branch):
            label = "a table that does not exist yet" if dataset is None else dataset.uri
            raise InvalidInputError(
                f"the run is on branch {branch!r}, and {label} is not on that branch: write to the URI that "
                "LanceTableResource.uri returns in the asset that starts this process"
            )
        is_same = begun is not None and begun["uri"] == (None if dataset is None else dataset.root_uri)
        attempt = lance_core.WriteAttempt(
            token=(prop.WRITE_TOKEN, self.token),
            number=self.number,
            conflict_policy="later_wins",
            note=self.get(prop.RUN_ID, ""),
            begun=begun["version"] if begun is not None and (is_same or not begun["version"]) else None,
        )
        if dataset is None or not (self.number[1] or self.extras.get("is_retry")):
            return attempt
        since, succeeded = self.extras.get("since"), set(map(str, self.extras.get("succeeded", ())))
        not_before = datetime.fromisoformat(since) if isinstance(since, str) else None
        transactions, missing = find_commits_of_write(dataset, attempt, not_before)
        runs = {
            version: prop.properties_of(transaction).get(prop.RUN_ID, "")
            for version, transaction in transactions.items()
        }
        earlier = [version for version, run in runs.items() if run == self.get(prop.RUN_ID) or run not in succeeded]
        if missing and mode == "append":
            raise EarlierAttemptError(
                f"version {max(missing)} of {dataset.uri} was cleaned up, so that it is unknown whether an earlier "
                "attempt of this write added rows in it. Look at the rows of the table, then start a new run"
            )
        return replace(attempt, earlier=tuple(sorted(earlier)))
