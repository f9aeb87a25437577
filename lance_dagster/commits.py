"""Which commit belongs to which run, and why a write happens once.

Each commit carries, in the transaction properties of the table itself:

    dagster.run_id  dagster.root_run_id  dagster.job_name  dagster.step_key  dagster.attempt  dagster.backfill_id
    dagster.asset_key        "analytics/events"
    dagster.partition_keys   JSON list; past 4 KiB a JSON object with count, first, last and sha256
    dagster.partition_hash   sha256 of the JSON list, whatever its length
    dagster.code_version     of the asset, if it has one
    dagster.write_token      sha256 of (root run, asset, output, partition keys, code version)

The token is the same in every retry and every re-execution of one write, and in no other. The rule:

    first try of a first run      write; the commit loop still looks for the token among versions that land meanwhile
    retry or re-execution         look for the token in the table's history, back to the root run's creation
        not found                 write
        found, this run's own     adopt: the earlier try committed and failed afterwards
        found, an earlier run's   its step finished -> this is a deliberate second run: write again
                                  it did not        -> adopt
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

import lance_core
from lance_dagster._context import RunFacts, run_created_at, step_finished

__all__ = ["CommitTags", "LandedCommit", "commit_tags", "find_landed"]

PREFIX = "dagster."
TOKEN_KEY = "dagster.write_token"  # noqa: S105 -- the name of a property
_MAX_PARTITION_KEYS_BYTES = 4096
_LONGEST_SHOWN_KEY = 200
# How far the clocks of the Dagster instance and of the committing machine may differ.
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTags:
    """What one write puts on its commit.

    Attributes:
        properties: The transaction properties, the token among them.
        token: The write token; None outside of a run, where nothing is deduplicated.
    """

    properties: dict[str, str]
    token: str | None

    @property
    def once(self) -> tuple[str, str] | None:
        """The property that the commit loop must not let land twice."""
        return None if self.token is None else (TOKEN_KEY, self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedCommit:
    """A commit that an earlier try of this write has made.

    Attributes:
        version: The table version.
        transaction: Its transaction.
        run_id: The run that made it.
    """

    version: int
    transaction: lance_core.Transaction
    run_id: str


def commit_tags(
    facts: RunFacts | None,
    *,
    asset_key: dg.AssetKey,
    output_name: str,
    partition_keys: Sequence[str] | None,
    code_version: str | None,
) -> CommitTags:
    """Build the properties of a commit.

    Args:
        facts: The run; None outside of one.
        asset_key: The asset that is written.
        output_name: The output of the step.
        partition_keys: The run's partitions; None when the asset has none.
        code_version: The asset's code version. Part of the token: changed code never adopts an old commit.
    """
    keys = None if partition_keys is None else json.dumps(sorted(partition_keys))
    asset = asset_key.to_user_string()
    properties = {"asset_key": asset, "code_version": code_version}
    if keys is not None:
        properties |= {"partition_keys": _shortened(keys), "partition_hash": _sha256(keys)}
    if facts is None:
        return CommitTags(properties=_prefixed(properties), token=None)
    token = _sha256(json.dumps([facts.root_run_id, asset, output_name, keys, code_version]))
    properties |= {
        "run_id": facts.run_id,
        "root_run_id": facts.root_run_id,
        "job_name": facts.job_name,
        "step_key": facts.step_key,
        "attempt": str(facts.attempt),
        "backfill_id": facts.backfill_id,
        "write_token": token,
    }
    return CommitTags(properties=_prefixed(properties), token=token)


def find_landed(
    context: dg.OutputContext, dataset: lance_core.LanceDataset, tags: CommitTags, facts: RunFacts | None
) -> LandedCommit | None:
    """The commit that this write must adopt instead of writing again, if there is one.

    Args:
        context: The output's context, to ask the Dagster instance about earlier runs.
        dataset: The table at its latest version; its history is walked back from there.
        tags: What this write would put on its commit.
        facts: The run.
    """
    if facts is None or tags.token is None or not facts.is_retry:
        return None
    created = run_created_at(context, facts.root_run_id)
    not_before = None if created is None else created - _CLOCK_SKEW
    found = dataset.find_transaction(TOKEN_KEY, tags.token, not_before=not_before)
    if found is None:
        return None
    version, transaction = found
    properties = transaction.transaction_properties or {}
    run_id = properties.get("dagster.run_id", "")
    step_key = properties.get("dagster.step_key", facts.step_key or "")
    if run_id != facts.run_id and step_finished(context, run_id, step_key):
        return None
    return LandedCommit(version=version, transaction=transaction, run_id=run_id)


def _prefixed(properties: dict[str, str | None]) -> dict[str, str]:
    return {PREFIX + key: value for key, value in properties.items() if value is not None}


def _shortened(keys: str) -> str:
    """The JSON list itself, or a description of it when it is longer than 4 KiB."""
    if len(keys.encode()) <= _MAX_PARTITION_KEYS_BYTES:
        return keys
    listed = json.loads(keys)
    shown = {"first": listed[0][:_LONGEST_SHOWN_KEY], "last": listed[-1][:_LONGEST_SHOWN_KEY]}
    return json.dumps({"count": len(listed), **shown, "sha256": _sha256(keys)})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
