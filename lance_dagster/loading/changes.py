"""Incremental inputs: the changes since the version that the last commit of the downstream asset consumed.

    metadata={"lance/changes": "since_last_run"}

The table of the downstream asset records up to which version each of its partitions has consumed an input
(`LanceDataset.watermarks`). The commit of the output moves these watermarks, so that one version has both the rows and
their watermarks; `lineage.watermarks` describes them:

    watermark   <asset key of the input> / <part>
    position    {"version": 9, "identity": "...", "branch": "b", "since": 7, "run": "..."}

    nothing consumed yet, or run tag lance/full_refresh    from version 0: all rows, as inserts
    an earlier attempt has committed                       the same changes again: from `since` up to `version`
    a branch was consumed, which was promoted since        the first of the ranges of `lineage.watermarks` that has
                                                           changes; the next run reads the range after it
    else                                                   from `version` up to the latest version, which a tag of the
                                                           run records, so that a retry reads the same changes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core import WatermarkMove
from lance_core.errors import IncompatibleConflictError, UnsupportedError
from lance_dagster._context.steps import RunFacts, defined_metadata, facts_of, outputs_of_step, tag_run
from lance_dagster.lineage.step_inputs import ConsumedChanges
from lance_dagster.lineage.watermarks import (
    FULL_REFRESH,
    InputPosition,
    UnreadRange,
    consumed_range,
    parts_of,
    unread_ranges,
    updates_unknown,
    watermark_name,
)
from lance_dagster.properties import hashed

__all__ = [
    "CHANGES",
    "ChangeRange",
    "Reads",
    "is_full_refresh",
    "range_of_input",
]

CHANGES: Final = "lance/changes"

Reads = Callable[[UnreadRange, str | None, Sequence[str], Sequence[str]], bool]
"""Returns whether an input has changes in a range of versions, for a partition of the downstream asset, the columns of
its key, and the assets that read the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InputReader:
    """One output of the step that reads the input, and the positions up to which it has consumed the input.

    Attributes:
        asset: The asset's key.
        name: The name of the input's watermarks in the asset's table.
        keys: The partitions by their parts in watermarks; {"all": None} for an asset without partitions.
        key: The columns by which the asset's merge matches rows; empty if it does not merge.
        positions: The stored positions, by part.
        by: The root runs that stored the positions, by part.
    """

    asset: str
    name: str
    keys: Mapping[str, str | None]
    key: tuple[str, ...]
    positions: Mapping[str, str]
    by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The changes that a part of a reader's table is to consume.

    Attributes:
        reader: The reader.
        part: The part.
        stored: The stored position of the part; None if it has none.
        range: The versions whose changes are consumed.
        is_last: Whether the range ends at the latest version, or at the version that a tag of the run records.
        is_own: Whether an earlier attempt of the run has consumed these changes.
    """

    reader: _InputReader
    part: str
    stored: str | None
    range: UnreadRange
    is_last: bool = True
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRange:
    """The changes that an input reads.

    Attributes:
        dataset: The input's table at the last version whose changes are read.
        begins: The versions after which changes are read, each with its partitions of the downstream asset; None for
            an asset without partitions.
        key: The columns by which merges of the outputs match rows: an update that may change a key is read as a delete
            of the old row and an insert of the new one.
        readers: The assets that read the changes.
        consumed: The consumed changes, which the commits of the outputs record.
    """

    dataset: lance_core.LanceDataset
    begins: Mapping[int, Sequence[str] | None]
    key: tuple[str, ...]
    readers: tuple[str, ...]
    consumed: ConsumedChanges


def is_full_refresh(tags: Mapping[str, str]) -> bool:
    """Whether the tag of a run asks for a full refresh, which reads all rows again.

    Raises:
        DagsterInvalidDefinitionError: The tag is neither "true" nor "false".
    """
    value = tags.get(FULL_REFRESH, "false")
    if value not in ("true", "false"):
        raise dg.DagsterInvalidDefinitionError(f"run tag {FULL_REFRESH} must be true or false, not {value!r}")
    return value == "true"


def range_of_input(
    context: dg.InputContext,
    facts: RunFacts | None,
    dataset: lance_core.LanceDataset,
    reads: Reads,
    where: str,
) -> ChangeRange:
    """The changes that an input reads; a tag of the run records their last version.

    Args:
        context: The context of the input.
        facts: The run that loads the input.
        dataset: The input's table at the latest version.
        reads: Returns whether the input has changes in a range of versions for a partition of the downstream asset.
        where: The input, for messages.

    Raises:
        DagsterInvalidDefinitionError: There is no run, or the step writes no table that could record the watermarks.
        VersionNotFoundError: The version that was consumed last was cleaned up.
        IncompatibleConflictError: The input's table was created again, another branch of it was consumed, or partitions
            or outputs have consumed different versions and cannot be read together.
    """
    if facts is None:
        raise dg.DagsterInvalidDefinitionError(f"{where}: {CHANGES} can be loaded only in a run; materialize the asset")
    asset, refresh = context.asset_key.to_user_string(), is_full_refresh(facts.tags)
    readers = [_reader(output, manager, facts, asset, where) for output, manager in outputs_of_step(context)]
    if not readers:
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: {CHANGES} is for inputs of assets, whose tables record what was consumed; remove the entry"
        )
    spans = [
        _span(facts, dataset, reader, part, reads, where, refresh=refresh) for reader in readers for part in reader.keys
    ]
    spans = _up_to_one_end(context, facts, dataset, spans, where)
    end, consumed = (
        spans[0].range.dataset,
        max((span.range.consumed for span in spans), key=lambda dataset: dataset.version),
    )
    begins = _by_begin(spans)
    if not end.has_stable_row_ids and all(span.stored is None for span in spans):
        context.log.warning(
            "%s: %s has no stable row ids, so that later runs fail if its rows were updated. Set the metadata "
            "lance/stable_row_ids: True of its asset, or stable_row_ids of LanceIOManager, to create tables with them",
            where, end.uri,
        )  # fmt: skip
    for reader in readers:
        consumed.readers.hold(reader.asset)
    if len(begins) > 1 and len(readers) > 1:
        raise IncompatibleConflictError(
            f"{where}: the outputs of the step have consumed the input up to different versions, {sorted(begins)}; run "
            f"it with the tag {FULL_REFRESH}=true"
        )
    return ChangeRange(
        dataset=end,
        begins=begins,
        key=tuple(dict.fromkeys(name for reader in readers for name in reader.key)),
        readers=tuple(reader.asset for reader in readers),
        consumed=ConsumedChanges(
            asset=asset,
            dataset=consumed,
            begin_version=min(begins),
            end_version=end.version,
            moves=_moves(facts, spans, refresh=refresh),
            is_refresh=refresh,
        ),
    )


def _reader(output: dg.OutputContext, manager: Any, facts: RunFacts, asset: str, where: str) -> _InputReader:
    name = output.asset_key.to_user_string()
    if not hasattr(manager, "consuming_table"):
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: {CHANGES} is for assets that LanceIOManager stores, because their tables record what was "
            f"consumed, but {type(manager).__name__} stores asset {name}; remove the entry, or use LanceIOManager"
        )
    table, key = manager.consuming_table(output, facts)
    keys = parts_of(output.asset_partition_keys if output.has_asset_partitions else None)
    watermarks = watermark_name(asset, name, defined_metadata(output))
    watermarks_by_part = {} if table is None else table.watermarks(watermarks)
    return _InputReader(
        asset=name,
        name=watermarks,
        keys=keys,
        key=tuple(key),
        positions={part: watermark.position for part, watermark in watermarks_by_part.items()},
        by={part: watermark.by for part, watermark in watermarks_by_part.items()},
    )


def _span(
    facts: RunFacts,
    dataset: lance_core.LanceDataset,
    reader: _InputReader,
    part: str,
    reads: Reads,
    where: str,
    *,
    refresh: bool,
) -> _Span:
    """The changes for a part of a reader's table: those of an earlier attempt, or the first unread ones."""
    stored = reader.positions.get(part)
    position = None if stored is None else InputPosition.of(stored)
    if position is not None and _is_own(facts, reader, part):
        again = consumed_range(dataset, position, where)
        return _Span(reader=reader, part=part, stored=stored, range=again, is_last=False, is_own=True)
    *earlier, last = unread_ranges(dataset, None if refresh else position, where)
    for unread in earlier:
        if _reads(reads, unread, reader, part, where):
            return _Span(reader=reader, part=part, stored=stored, range=unread, is_last=False)
    return _Span(reader=reader, part=part, stored=stored, range=last)


def _reads(reads: Reads, unread: UnreadRange, reader: _InputReader, part: str, where: str) -> bool:
    try:
        return reads(unread, reader.keys[part], reader.key, (reader.asset,))
    except UnsupportedError as error:
        raise updates_unknown(unread.dataset.uri, where, error) from error


def _is_own(facts: RunFacts, reader: _InputReader, part: str) -> bool:
    """Whether an earlier attempt of this write, which is replaced, has consumed the changes."""
    if part not in reader.positions or not facts.is_retry or reader.by[part] != facts.root_run_id:
        return False
    run = InputPosition.of(reader.positions[part]).run
    return run == facts.run_id or not facts.succeeded(run)


def _moves(facts: RunFacts, spans: Iterable[_Span], *, refresh: bool) -> dict[str, tuple[WatermarkMove, ...]]:
    """The moves of watermarks that the commits of the outputs make, by the asset of the output."""
    moves: dict[str, tuple[WatermarkMove, ...]] = {}
    for span in spans:
        is_same = span.range.begin == span.range.consumed.version and span.stored is not None
        if is_same and not refresh and not span.is_own:
            continue
        move = WatermarkMove(
            name=span.reader.name,
            parts=(span.part,),
            before=span.stored,
            after=span.range.position(facts.run_id).entry(),
            by=facts.root_run_id,
        )
        moves[span.reader.asset] = (*moves.get(span.reader.asset, ()), move)
    return moves


def _by_begin(spans: Iterable[_Span]) -> dict[int, list[str] | None]:
    """The downstream partitions by the version after which they read; None for an asset without partitions."""
    partitions_by_begin: dict[int, list[str] | None] = {}
    for span in spans:
        partition = span.reader.keys[span.part]
        partitions_by_begin[span.range.begin] = (
            None if partition is None else [*(partitions_by_begin.get(span.range.begin) or []), partition]
        )
    return partitions_by_begin


def _up_to_one_end(
    context: dg.InputContext, facts: RunFacts, dataset: lance_core.LanceDataset, spans: Sequence[_Span], where: str
) -> list[_Span]:
    """The changes that a run reads, all up to one version; if that is the latest, a tag of the run records it.

    Raises:
        IncompatibleConflictError: The changes of some partitions end at another version than those of others.
    """
    fixed = {span.range.end: span.range.dataset for span in spans if not span.is_last}
    if not fixed:
        tag = (
            f"{CHANGES}.{hashed(json.dumps([facts.step_key, context.asset_key.to_user_string(), dataset.branch]))[:12]}"
        )
        noted, begin = _noted(facts, tag), min(span.range.begin for span in spans)
        version = noted if noted is not None and noted >= begin else dataset.version
        if noted != version:
            tag_run(context, {tag: str(version)})
        fixed = {
            (dataset.branch or "main", version): dataset
            if version == dataset.version
            else dataset.checkout_version(version)
        }
    (branch, version), end = next(iter(fixed.items()))
    behind = [span for span in spans if span.is_last and (end.branch != dataset.branch or span.range.begin > version)]
    if len(fixed) > 1 or behind:
        ends = ", ".join(f"version {version} of {branch}" for branch, version in sorted(fixed))
        raise IncompatibleConflictError(
            f"{where}: the changes for some partitions of this run end at earlier versions than those for others, at "
            f"{ends}; run the partitions one by one, or with the tag {FULL_REFRESH}=true"
        )
    if any(not span.is_last and not span.is_own for span in spans):
        context.log.info(
            "%s: a branch was promoted after version %d of %s; the next run reads the later changes",
            where, end.version, branch,
        )  # fmt: skip
    return [replace(span, range=UnreadRange.up_to(end, span.range.begin)) if span.is_last else span for span in spans]


def _noted(facts: RunFacts, tag: str) -> int | None:
    """The last version to read by the tag of this run, or of a failed run that it re-executes; else None."""
    value, run = None, facts.run_id
    while value is None and (record := facts.record(run)) is not None:
        run_facts = facts_of(record.dagster_run, facts.instance)
        value = run_facts.tags.get(tag)
        if run_facts.parent_run_id is None or facts.succeeded(run_facts.parent_run_id):
            break
        run = run_facts.parent_run_id
    return int(value) if value is not None and value.isdecimal() else None
