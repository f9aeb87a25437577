"""Incremental inputs: what changed since the version that the downstream asset's own last commit consumed.

    metadata={"lance/changes": "since_last_run"}

The table of the downstream asset records up to which version each of its partitions has consumed an input
(`LanceDataset.watermarks`). The commit of the output moves these watermarks, so that one version has both the rows and
their watermarks:

    watermark   <asset key of the input> / <partition>; see `watermark_name`
    position    {"version": 9, "identity": "...", "branch": "b", "since": 7, "run": "..."}

    nothing consumed yet, or run tag lance/full_refresh    from version 0: all rows, as inserts
    the attempt before this one has committed              the same changes again: from `since` up to `version`
    else                                                   from `version` up to the latest, which is noted on the run,
                                                           so that a retry of it reads the same
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core import WatermarkMove
from lance_core.errors import IncompatibleConflictError
from lance_dagster._context.steps import RunFacts, defined_metadata, facts_of, outputs_of_step, tag_run
from lance_dagster.lineage.step_inputs import ConsumedChanges
from lance_dagster.lineage.watermarks import (
    FULL_REFRESH,
    InputPosition,
    by_version,
    next_after,
    parts_of,
    watermark_name,
)
from lance_dagster.properties import hashed

__all__ = [
    "CHANGES",
    "ChangeRange",
    "is_full_refresh",
    "range_of_input",
]

CHANGES: Final = "lance/changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class _InputReader:
    """One output of the step that reads the input, and what it has consumed.

    Attributes:
        asset: The asset's key.
        name: The name of the input's watermarks in its table.
        keys: The partitions by the part of the table that they are; {"all": None} for an asset without any.
        key: The columns that its merge matches rows by; none if it does not merge.
        known: Positions by part, as they are stored.
        by: The root runs that stored them, by part.
    """

    asset: str
    name: str
    keys: Mapping[str, str | None]
    key: tuple[str, ...]
    known: Mapping[str, str]
    by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The changes that a part of a reader's table is to consume.

    Attributes:
        reader: The reader.
        part: The part.
        stored: Its position, as it is stored; None if it has none.
        begin: The version after which the changes begin.
        end: The last version, if an earlier attempt has consumed them; None for the latest.
    """

    reader: _InputReader
    part: str
    stored: str | None
    begin: int
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRange:
    """The changes that an input reads.

    Attributes:
        dataset: The input's table at the last version whose changes are read.
        begins: The versions after which changes are read, each with the partitions of the downstream that it is for;
            None for all.
        key: The columns whose update is a delete and an insert.
        readers: The assets that read them.
        consumed: What the commits of the outputs note.
    """

    dataset: lance_core.LanceDataset
    begins: Mapping[int, Sequence[str] | None]
    key: tuple[str, ...]
    readers: tuple[str, ...]
    consumed: ConsumedChanges


def is_full_refresh(tags: Mapping[str, str]) -> bool:
    """Whether a run is to read everything again.

    Raises:
        DagsterInvalidDefinitionError: The tag has another value.
    """
    value = tags.get(FULL_REFRESH, "false")
    if value not in ("true", "false"):
        raise dg.DagsterInvalidDefinitionError(f"run tag {FULL_REFRESH} must be true or false, not {value!r}")
    return value == "true"


def range_of_input(
    context: dg.InputContext, facts: RunFacts | None, dataset: lance_core.LanceDataset, where: str
) -> ChangeRange:
    """The changes that an input reads, noted on the run.

    Args:
        context: The input.
        facts: The run that loads it.
        dataset: Its table at the latest version.
        where: The input, for messages.

    Raises:
        DagsterInvalidDefinitionError: The step writes no table that could note what it consumed.
        VersionNotFoundError: The version that was consumed last was cleaned up.
        IncompatibleConflictError: The table was made again, or another branch of it was consumed.
    """
    if facts is None:
        raise dg.DagsterInvalidDefinitionError(f"{where}: {CHANGES} needs a run, which has consumed something before")
    asset, refresh = context.asset_key.to_user_string(), is_full_refresh(facts.tags)
    readers = [_reader(output, manager, facts, asset, where) for output, manager in outputs_of_step(context)]
    if not readers:
        raise dg.DagsterInvalidDefinitionError(f"{where}: {CHANGES} is for inputs of assets, whose table notes it")
    spans = [_span(facts, dataset, reader, part, where, refresh=refresh) for reader in readers for part in reader.keys]
    begins = by_version((span.begin, span.reader.keys[span.part]) for span in spans)
    ends = {span.end for span in spans if span.end is not None}
    end = _end(context, facts, dataset, ends, min(begins), where)
    if not end.has_stable_row_ids and all(span.stored is None for span in spans):
        context.log.warning(
            "%s: %s has no stable row ids, so that later runs fail where rows of it were updated. An asset with the "
            "metadata lance/stable_row_ids: True, and LanceIOManager with stable_row_ids, create tables with them",
            where, end.uri,
        )  # fmt: skip
    for reader in readers:
        end.readers.hold(reader.asset)
    after = InputPosition(version=end.version, since=0, identity=end.identity, branch=end.branch, run=facts.run_id)
    moves: dict[str, tuple[WatermarkMove, ...]] = {}
    for span in spans:
        if span.begin != end.version or span.stored is None or refresh or ends:
            position = replace(after, since=span.begin).entry()
            move = WatermarkMove(
                name=span.reader.name, parts=(span.part,), before=span.stored, after=position, by=facts.root_run_id
            )
            moves[span.reader.asset] = (*moves.get(span.reader.asset, ()), move)
    if len(begins) > 1 and len(readers) > 1:
        raise IncompatibleConflictError(
            f"{where}: the outputs of the step have consumed the input up to different versions, {sorted(begins)}; run "
            f"it with the tag {FULL_REFRESH}=true"
        )
    return ChangeRange(
        dataset=end,
        begins=begins,
        key=readers[0].key if len({reader.key for reader in readers}) == 1 else (),
        readers=tuple(reader.asset for reader in readers),
        consumed=ConsumedChanges(
            asset=asset,
            dataset=end,
            begin_version=min(begins),
            end_version=end.version,
            moves=moves,
            is_refresh=refresh,
        ),
    )


def _reader(output: dg.OutputContext, manager: Any, facts: RunFacts, asset: str, where: str) -> _InputReader:
    name = output.asset_key.to_user_string()
    if not hasattr(manager, "consuming_table"):
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: {CHANGES} is for assets that LanceIOManager stores, as their tables note what was consumed; "
            f"asset {name} is stored by {type(manager).__name__}"
        )
    table, key = manager.consuming_table(output, facts)
    keys = parts_of(output.asset_partition_keys if output.has_asset_partitions else None)
    watermarks = watermark_name(asset, name, defined_metadata(output))
    known = {} if table is None else table.watermarks(watermarks)
    return _InputReader(
        asset=name,
        name=watermarks,
        keys=keys,
        key=tuple(key),
        known={part: one.position for part, one in known.items()},
        by={part: one.by for part, one in known.items()},
    )


def _span(
    facts: RunFacts, dataset: lance_core.LanceDataset, reader: _InputReader, part: str, where: str, *, refresh: bool
) -> _Span:
    """The changes that a part of a reader's table is to consume."""
    stored = reader.known.get(part)
    position = None if stored is None else InputPosition.of(stored)
    if position is not None and _is_own(facts, reader.by[part], position):
        return _Span(reader=reader, part=part, stored=stored, begin=position.since, end=position.version)
    begin = 0 if position is None or refresh else next_after(dataset, position, where)
    return _Span(reader=reader, part=part, stored=stored, begin=begin)


def _is_own(facts: RunFacts, by: str, position: InputPosition) -> bool:
    """Whether an earlier attempt of this write has consumed the changes, and is to be replaced."""
    if not facts.is_retry or by != facts.root_run_id:
        return False
    return position.run == facts.run_id or not facts.succeeded(position.run)


def _end(
    context: dg.InputContext,
    facts: RunFacts,
    dataset: lance_core.LanceDataset,
    committed: set[int],
    begin: int,
    where: str,
) -> lance_core.LanceDataset:
    """The last version whose changes are read: that of the attempt before, or the latest, which is noted on the run."""
    tag = f"{CHANGES}.{hashed(json.dumps([facts.step_key, context.asset_key.to_user_string(), dataset.branch]))[:12]}"
    if len(committed) > 1:
        raise IncompatibleConflictError(
            f"{where}: earlier attempts have consumed the input up to different versions, {sorted(committed)}; run it "
            f"with the tag {FULL_REFRESH}=true"
        )
    noted = _noted(facts, tag)
    end = committed.pop() if committed else noted if noted is not None and noted >= begin else dataset.version
    if noted != end:
        tag_run(context, {tag: str(end)})
    return dataset if end == dataset.version else dataset.checkout_version(end)


def _noted(facts: RunFacts, tag: str) -> int | None:
    """The last version to read as this run noted it, or a run that it re-executes and that did not succeed."""
    value, run = None, facts.run_id
    while value is None and (record := facts.record(run)) is not None:
        known = facts_of(record.dagster_run, facts.instance)
        value = known.tags.get(tag)
        if known.parent_run_id is None or facts.succeeded(known.parent_run_id):
            break
        run = known.parent_run_id
    return int(value) if value is not None and value.isdecimal() else None
