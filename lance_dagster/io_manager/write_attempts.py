"""The transaction properties that name the run of a commit, and the replacement of earlier attempts.

`properties` lists the keys. `lance.write_attempt` holds the number of the run in the Dagster instance, and the number
of the attempt in the run: "17.2".

All retries and re-executions of one write have the same token, and no other write has it. The rule: the table holds the
rows of the last attempt, once.

    first attempt, first run      write; the commit looks for other attempts among the versions made meanwhile
    retry or re-execution         look for commits with the token in the table's history, back to the creation of the
                                  root run
        of a later attempt        fail: the later attempt wins
        of this run, or of a run  replace its rows: an overwrite replaces them anyway, an append removes them in the
        that did not succeed      same commit
        of a run that succeeded   write, and keep that commit: this is a deliberate second run; the run that succeeded
                                  has replaced the rows of attempts before it

A commit that adds rows is also recorded, with its run, in the table's configuration, which stays when its version is
cleaned up. Its rows are removed if they can still be distinguished from others; otherwise the retry fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

import lance_core
from lance_core.errors import (
    CommitConflictError,
    EarlierAttemptCommittedError,
    EarlierAttemptError,
    LanceError,
    NotFoundError,
)
from lance_dagster import properties as prop
from lance_dagster._context.runs import CLOCK_SKEW
from lance_dagster._context.steps import RunFacts
from lance_dagster.health.policy import recorded_metadata
from lance_dagster.tables.attempts import find_commits_of_write
from lance_dagster.tables.settings import TableSettings

OF_RUN = (prop.RUN_ID, prop.ROOT_RUN_ID, prop.JOB_NAME, prop.STEP_KEY, prop.ASSET_KEY, prop.COLUMNS)
"""The properties that other commits of a run carry as well, such as that of an index."""
_SHOWN_KEYS = 3
_MISSING = re.compile(r"\bmissing='(\w+)'")
"""An argument of `write_columns` in messages, for which an asset has the metadata `lance/missing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """The commits of earlier attempts of a write, which this one replaces.

    Attributes:
        transactions: The transactions of earlier attempts by version, newest first.
        cleaned_up: The versions of earlier attempts that were cleaned up, and that the table's configuration records.
        missing: Versions that were cleaned up, and that earlier attempts may have committed.
        surviving: Numbers of attempts of runs that succeeded, whose rows stay.
    """

    transactions: Mapping[int, lance_core.Transaction] = field(default_factory=dict)
    cleaned_up: Sequence[int] = ()
    missing: Sequence[int] = ()
    surviving: Sequence[tuple[int, ...]] = ()

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions, oldest first."""
        return tuple(sorted({*self.transactions, *self.cleaned_up}))


def describe_commit(
    facts: RunFacts | None,
    *,
    asset_key: dg.AssetKey,
    output_name: str,
    partition_keys: Sequence[str] | None,
    code_version: str | None,
    metadata: Mapping[str, Any],
    sets_columns: bool = False,
    outside: bool = False,
) -> lance_core.Commit:
    """The commit of a write: its properties, and in a run its attempt, which names no earlier one.

    Args:
        facts: The run; None outside of a run.
        asset_key: The asset that is written.
        output_name: The output of the step.
        partition_keys: The run's partitions; None if the asset has no partitions.
        code_version: The asset's code version. It is not part of the token, so that a re-execution with corrected code
            replaces the earlier rows.
        metadata: The definition metadata of the asset.
        sets_columns: Whether the asset owns columns of another asset's table, so that its commits write no rows.
        outside: Whether the write may change rows outside of the partitions.
    """
    keys = None if partition_keys is None else json.dumps(sorted(partition_keys))
    asset, attempt = asset_key.to_user_string(), None
    optional_properties: dict[str, str | None] = {prop.ASSET_KEY: asset, prop.CODE_VERSION: code_version}
    optional_properties[prop.MAINTENANCE_METADATA] = recorded_metadata(metadata)
    optional_properties[prop.COLUMNS] = "[]" if sets_columns else None
    if keys is not None:
        optional_properties |= {prop.PARTITION_KEYS: prop.listed_keys(keys), prop.PARTITION_HASH: prop.hashed(keys)}
        optional_properties[prop.OUT_OF_PARTITION] = "allow" if outside else None
    if facts is not None:
        token = (prop.WRITE_TOKEN, prop.hashed(json.dumps([facts.root_run_id, asset, output_name, keys])))
        attempt = lance_core.WriteAttempt(token=token, number=(facts.number, facts.attempt), note=facts.run_id)
        optional_properties |= {
            prop.RUN_ID: facts.run_id,
            prop.ROOT_RUN_ID: facts.root_run_id,
            prop.JOB_NAME: facts.job_name,
            prop.STEP_KEY: facts.step_key,
            prop.ATTEMPT: str(facts.attempt),
            prop.BACKFILL_ID: facts.backfill_id,
            prop.WRITE_TOKEN: token[1],
        }
    properties = {key: value for key, value in optional_properties.items() if value is not None}
    return lance_core.Commit(properties=properties, write_attempt=attempt)


def find_earlier_attempts(
    dataset: lance_core.LanceDataset, write: lance_core.WriteAttempt | None, facts: RunFacts | None
) -> EarlierAttempts:
    """Find the commits of earlier attempts of a write.

    Args:
        dataset: The table at its latest version, from which its history is read backwards.
        write: This attempt; None outside of a run.
        facts: The run, whose instance has the records of earlier runs; None outside of a run.

    Raises:
        SupersededError: A later attempt has committed already.
    """
    is_retry = facts is not None and facts.is_retry
    return _other_attempts(dataset, write, facts) if is_retry else EarlierAttempts()


def reject_late_attempt(
    dataset: lance_core.LanceDataset, write: lance_core.WriteAttempt | None, facts: RunFacts | None
) -> None:
    """Reject a first attempt whose re-execution has committed already.

    Raises:
        SupersededError: A later attempt has committed.
    """
    _other_attempts(dataset, write, facts)


def _other_attempts(
    dataset: lance_core.LanceDataset, write: lance_core.WriteAttempt | None, facts: RunFacts | None
) -> EarlierAttempts:
    if write is None or facts is None:
        return EarlierAttempts()
    created = facts.created_at(facts.root_run_id)
    not_before = None if created is None else created - CLOCK_SKEW
    transactions, missing = find_commits_of_write(dataset, write, not_before)
    proofs = dataset.committed_attempts(write.token)
    removed = {proof.version for proof in proofs} - {proof.version for proof in proofs if not proof.is_removed}
    runs = {
        version: prop.properties_of(transaction).get(prop.RUN_ID, "") for version, transaction in transactions.items()
    }
    present = [attempt for attempt in proofs if not attempt.is_removed]
    survivors = [attempt for attempt in present if attempt.note != facts.run_id and facts.succeeded(attempt.note)]
    settled = max((attempt.version for attempt in survivors), default=0)  # a promotion commits several in one version
    earlier = {
        version: transactions[version]
        for version, run_id in runs.items()
        if version not in removed and (run_id == facts.run_id or (version >= settled and not facts.succeeded(run_id)))
    }
    cleaned_up = [
        attempt.version
        for attempt in present
        if attempt not in survivors and attempt.version >= settled and attempt.version not in transactions
    ]
    surviving = [attempt.number for attempt in survivors]
    undecided = _undecided(dataset, write, facts, missing)
    return EarlierAttempts(transactions=earlier, cleaned_up=cleaned_up, missing=undecided, surviving=surviving)


def _undecided(
    dataset: lance_core.LanceDataset, write: lance_core.WriteAttempt, facts: RunFacts, missing: Sequence[int]
) -> list[int]:
    """The cleaned up versions that an earlier attempt may have committed.

    These are versions that the table's configuration does not cover, and after the first attempt of the write.
    """
    known_after = dataset.known_after("attempts")
    firsts = [
        attempt.version
        for attempt in dataset.committed_attempts(write.token)
        if attempt.note == facts.root_run_id and attempt.number[-1] == 0
    ]
    begins = min(firsts, default=0)
    return [version for version in missing if version > begins and (known_after is None or version <= known_after)]


def reject_missing(attempts: EarlierAttempts, uri: str) -> None:
    """Reject an append or merge if versions that earlier attempts may have committed were cleaned up.

    Raises:
        EarlierAttemptError: Versions that earlier attempts may have committed were cleaned up.
    """
    if attempts.missing:
        raise EarlierAttemptError(
            f"version {max(attempts.missing)} of {uri} was cleaned up, so that it is unknown whether an earlier "
            "attempt of this write added rows in it. Look at the rows of the table, then set on_earlier_attempt, or "
            'the metadata lance/on_earlier_attempt of the asset: "append" adds the rows of this attempt, "adopt" keeps '
            "the table"
        )


def made_by(dataset: lance_core.LanceDataset, version: int) -> str:
    """The committer of a version: the run and its partitions, if the commit names them."""
    try:
        properties = prop.properties_of(dataset.read_transaction(version))
    except NotFoundError:
        notes = [fill.note for fill in dataset.committed_fills() if fill.version == version and fill.note]
        return f"run {notes[0]}" if notes else "an unknown writer, as the version was cleaned up"
    run_id = properties.get(prop.RUN_ID)
    if run_id is None:
        return "a writer that is not a run of Dagster"
    keys = properties.get(prop.PARTITION_KEYS)
    return f"run {run_id}" + ("" if keys is None else f" (partitions {keys})")


def error_of_write(
    error: LanceError, label: str, keys: Sequence[str] | None, uri: str, settings: TableSettings
) -> LanceError:
    """The error of a write with the asset, partitions and table, and for a conflict the committer of the version."""
    listed = ", ".join(map(repr, (keys or ())[:_SHOWN_KEYS])) + (" ..." if len(keys or ()) > _SHOWN_KEYS else "")
    partitions = "" if keys is None else f", partition {listed}"
    message = _MISSING.sub(r"lance/missing: \1", str(error))
    for prefix in (f"{label}, table {uri}: ", f"{label}: ", f"{uri}: "):
        message = message.removeprefix(prefix)
    match = re.search(r"\bversion (\d+)", message) if isinstance(error, CommitConflictError) else None
    if match is not None:
        dataset = lance_core.dataset(uri, storage_options=settings.options)
        message = f"{message.rstrip('.')}. Version {match[1]} was committed by {made_by(dataset, int(match[1]))}."
    kinds = (cls for cls in type(error).__mro__ if cls.__module__ == LanceError.__module__)
    kind = next(cls for cls in kinds if cls is not EarlierAttemptCommittedError)
    explained: LanceError = kind(f"{label}{partitions}, table {uri}: {message}")
    return explained
