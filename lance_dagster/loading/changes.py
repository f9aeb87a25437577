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
    other rows are selected than before                    an error that names lance/full_refresh, as
                                                           `lineage.input_parts` says
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
from lance_dagster._context.steps import RunFacts, can_subset, defined_metadata, facts_of, outputs_of_step, tag_run
from lance_dagster.lineage import watermarks
from lance_dagster.lineage.input_parts import InputPart, input_parts, positions_by_partition, positions_of_partition
from lance_dagster.lineage.step_inputs import ConsumedChanges
from lance_dagster.lineage.watermarks import UnreadRange
from lance_dagster.properties import hashed

CHANGES: Final = "lance/changes"

Reads = Callable[[UnreadRange, str | None, Sequence[str], Sequence[str]], bool]
"""Returns whether an input has changes in a range of versions, for one of its partitions or for all rows, the columns
of the key of a downstream asset, and the assets that read the input."""

KeysOf = Callable[[dg.AssetKey, str | None], Sequence[str] | None]
"""Returns the partitions of an input that a partition of a downstream asset reads; None for all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InputReader:
    """One output of the step that reads the input, and the positions up to which it has consumed the input.

    Attributes:
        asset: The asset's key.
        name: The name of the input's watermarks in the asset's table.
        parts: The parts of the asset's table that the run writes.
        key: The columns by which the asset's merge matches rows; empty if it does not merge.
        left: The stored positions of other parts of the same partitions, which the commit removes: all in a full
            refresh, else those of earlier versions of this library that did not say which partitions they were of.
        by: The root runs that stored the positions, by part.
    """

    asset: str
    name: str
    parts: Sequence[InputPart]
    key: tuple[str, ...]
    left: Mapping[str, str]
    by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The changes that a part of a reader's table is to consume.

    Attributes:
        reader: The reader.
        part: The part.
        range: The versions whose changes are consumed.
        is_last: Whether the range ends at the latest version, or at the version that a tag of the run records.
        is_own: Whether an earlier attempt of the run has consumed these changes.
    """

    reader: _InputReader
    part: InputPart
    range: UnreadRange
    is_last: bool = True
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRange:
    """The changes that an input reads.

    Attributes:
        dataset: The input's table at the last version whose changes are read.
        begins: The versions after which changes are read, each with the partitions of the input that are read from it;
            None for all rows.
        is_first: Whether nothing was consumed before.
        key: The columns by which merges of the outputs match rows: an update that may change a key is read as a delete
            of the old row and an insert of the new one.
        readers: The assets that read the changes.
        consumed: The consumed changes, which the commits of the outputs record.
    """

    dataset: lance_core.LanceDataset
    begins: Mapping[int, Sequence[str] | None]
    is_first: bool
    key: tuple[str, ...]
    readers: tuple[str, ...]
    consumed: ConsumedChanges


def is_full_refresh(tags: Mapping[str, str]) -> bool:
    """Whether the tag of a run asks for a full refresh, which reads all rows again.

    Raises:
        DagsterInvalidDefinitionError: The tag is neither "true" nor "false".
    """
    value = tags.get(watermarks.FULL_REFRESH, "false")
    if value not in ("true", "false"):
        raise dg.DagsterInvalidDefinitionError(
            f"run tag {watermarks.FULL_REFRESH} must be true or false, not {value!r}"
        )
    return value == "true"


def plan_changes_of_input(
    context: dg.InputContext,
    facts: RunFacts | None,
    dataset: lance_core.LanceDataset,
    reads: Reads,
    keys_of: KeysOf,
    digest: str,
    label: str,
) -> ChangeRange:
    """Plan what an input reads, record its end as a tag of the run, and hold the versions by tags of the table.

    Args:
        context: The context of the input.
        facts: The run that loads the input.
        dataset: The input's table at the latest version.
        reads: Returns whether the input has changes in a range of versions for one of its partitions or for all rows.
        keys_of: Returns the partitions of the input that a partition of a downstream asset reads.
        digest: The digest of what selects rows of the input besides the partitions.
        label: The input, for messages.

    Raises:
        DagsterInvalidDefinitionError: There is no run, or the step writes no table that could record the watermarks.
        VersionNotFoundError: The version that was consumed last was cleaned up.
        IncompatibleConflictError: The input's table was created again, another branch of it was consumed, other rows
            were consumed than the input now selects, or partitions or outputs have consumed different versions and
            cannot be read together.
    """
    if facts is None:
        raise dg.DagsterInvalidDefinitionError(f"{label}: {CHANGES} can be loaded only in a run; materialize the asset")
    asset, refresh = context.asset_key.to_user_string(), is_full_refresh(facts.tags)
    readers = [
        _reader(output, manager, facts, asset, keys_of, digest, label, refresh=refresh)
        for output, manager in outputs_of_step(context)
    ]
    if not readers:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: {CHANGES} is for inputs of assets, whose tables record what was consumed, and this step stores "
            "no asset; remove the entry, or let one op load the changes and return the value of the asset"
        )
    read: dict[watermarks.InputPosition | None, list[UnreadRange]] = {}
    spans = [_span(facts, dataset, reader, part, reads, read, label) for reader in readers for part in reader.parts]
    spans = _fix_end_of_changes(context, facts, dataset, spans, label) if spans else []
    end = spans[0].range.dataset if spans else dataset
    consumed = max((span.range.consumed for span in spans), key=lambda dataset: dataset.version, default=dataset)
    begins = _by_begin(context, facts, spans, label) or {end.version: []}
    is_first = all(span.part.begin is None for span in spans)
    if not end.has_stable_row_ids and is_first:
        context.log.warning(
            "%s: %s has no stable row ids, so that later runs fail if its rows were updated. Give them to the table: "
            "lance migrate-row-ids %s, or stable_row_ids=True of a LanceMaintenancePolicy",
            label, end.uri, end.uri,
        )  # fmt: skip
    for reader in readers:
        consumed.readers.hold(reader.asset)
    return ChangeRange(
        dataset=end,
        begins=begins,
        is_first=is_first,
        key=tuple(dict.fromkeys(name for reader in readers for name in reader.key)),
        readers=tuple(reader.asset for reader in readers),
        consumed=ConsumedChanges(
            asset=asset,
            dataset=consumed,
            begin_version=min(begins),
            end_version=end.version,
            moves=_moves(facts, readers, spans, refresh=refresh),
            is_refresh=refresh,
        ),
    )


def _reader(
    output: dg.OutputContext,
    manager: Any,
    facts: RunFacts,
    asset: str,
    keys_of: KeysOf,
    digest: str,
    label: str,
    *,
    refresh: bool,
) -> _InputReader:
    name = output.asset_key.to_user_string()
    if not hasattr(manager, "consuming_table"):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: {CHANGES} is for assets that LanceIOManager stores, because their tables record what was "
            f"consumed, but {type(manager).__name__} stores asset {name}; remove the entry, or use LanceIOManager"
        )
    table, key = manager.consuming_table(output, facts)
    recorded_name = watermarks.watermark_name(asset, name, defined_metadata(output))
    watermarks_by_part = {} if table is None else table.watermarks(recorded_name)
    positions = positions_by_partition({part: watermark.position for part, watermark in watermarks_by_part.items()})
    by = {part: watermark.by for part, watermark in watermarks_by_part.items()}
    parts: list[InputPart] = []
    others: dict[str, str] = {}
    replaced: set[str] = set()
    for partition in sorted(output.asset_partition_keys) if output.has_asset_partitions else [None]:
        keys = keys_of(output.asset_key, partition)
        of_partition = input_parts(positions, partition, keys, digest, label, refresh=refresh)
        parts += of_partition
        replaced |= {part.continues for part in of_partition if part.continues is not None}
        others |= positions_of_partition(positions, partition)
    for part in parts:
        others.pop(part.name, None)
    if not refresh and any(_is_own(facts, by, part, stored) for part, stored in others.items()):
        raise IncompatibleConflictError(
            f"{label}: an earlier attempt of this run has consumed partitions of the input that its partition mapping "
            "does not name any more, and a retry would remove their rows; launch a new run instead of a retry"
        )
    left = others if refresh else {part: stored for part, stored in others.items() if part in replaced}
    return _InputReader(asset=name, name=recorded_name, parts=parts, key=tuple(key), left=left, by=by)


def _span(
    facts: RunFacts,
    dataset: lance_core.LanceDataset,
    reader: _InputReader,
    part: InputPart,
    reads: Reads,
    read: dict[watermarks.InputPosition | None, list[UnreadRange]],
    label: str,
) -> _Span:
    """The changes for a part of a reader's table: those of an earlier attempt, or the first unread ones.

    Args:
        facts: The run.
        dataset: The input's table at the latest version.
        reader: The reader.
        part: The part.
        reads: Returns whether the input has changes in a range of versions.
        read: The unread ranges after positions, which is completed.
        label: The input, for messages.
    """
    if part.stored is not None and part.may_continue and _is_own(facts, reader.by, part.name, part.stored):
        again = watermarks.consumed_range(dataset, watermarks.InputPosition.of(part.stored), label)
        return _Span(reader=reader, part=part, range=again, is_last=False, is_own=True)
    if part.begin not in read:
        read[part.begin] = watermarks.unread_ranges(dataset, part.begin, label)
    *earlier, last = read[part.begin]
    for unread in earlier:
        if _reads(reads, unread, reader, part, label):
            return _Span(reader=reader, part=part, range=unread, is_last=False)
    return _Span(reader=reader, part=part, range=last)


def _reads(reads: Reads, unread: UnreadRange, reader: _InputReader, part: InputPart, label: str) -> bool:
    try:
        return reads(unread, part.key, reader.key, (reader.asset,))
    except UnsupportedError as error:
        raise watermarks.updates_unknown(unread.dataset.uri, label, error) from error


def _is_own(facts: RunFacts, by: Mapping[str, str], part: str, stored: str) -> bool:
    """Whether an earlier attempt of this write, which is replaced, has consumed the changes."""
    if not facts.is_retry or by[part] != facts.root_run_id:
        return False
    run = watermarks.InputPosition.of(stored).run
    return run == facts.run_id or not facts.succeeded(run)


def _moves(
    facts: RunFacts, readers: Iterable[_InputReader], spans: Iterable[_Span], *, refresh: bool
) -> dict[str, tuple[WatermarkMove, ...]]:
    """The moves of watermarks that the commits of the outputs make, by the asset of the output."""
    parts: dict[tuple[str, str, str | None, str | None], list[str]] = {}
    for span in spans:
        is_same = span.range.begin == span.range.consumed.version and span.part.is_current
        if is_same and not refresh and not span.is_own:
            continue
        after = span.range.position(facts.run_id, span.part.rows).entry()
        parts.setdefault((span.reader.asset, span.reader.name, span.part.stored, after), []).append(span.part.name)
    for reader in readers:
        for part, stored in reader.left.items():
            parts.setdefault((reader.asset, reader.name, stored, None), []).append(part)
    moves: dict[str, tuple[WatermarkMove, ...]] = {}
    for (asset, name, before, after_move), some in parts.items():
        move = WatermarkMove(name=name, parts=tuple(some), before=before, after=after_move, by=facts.root_run_id)
        moves[asset] = (*moves.get(asset, ()), move)
    return moves


def _by_begin(
    context: dg.InputContext, facts: RunFacts, spans: Iterable[_Span], label: str
) -> dict[int, list[str] | None]:
    """The partitions of the input by the version after which they are read; None for all rows.

    Raises:
        IncompatibleConflictError: Partitions or outputs have consumed the same rows up to different versions.
    """
    by_key: dict[str | None, list[_Span]] = {}
    for span in spans:
        by_key.setdefault(span.part.key, []).append(span)
    keys_by_begin: dict[int, list[str] | None] = {}
    for key, some in by_key.items():
        begins = sorted({span.range.begin for span in some})
        if len(begins) > 1:
            raise IncompatibleConflictError(_describe_difference(context, facts, some, label))
        keys_by_begin[begins[0]] = None if key is None else [*(keys_by_begin.get(begins[0]) or []), key]
    return keys_by_begin


def _describe_difference(context: dg.InputContext, facts: RunFacts, spans: Sequence[_Span], label: str) -> str:
    """The message about partitions or outputs that have consumed the same rows up to different versions."""
    begins: dict[str, set[int]] = {}
    for span in spans:
        begins.setdefault(span.reader.asset, set()).add(span.range.begin)
    refresh = f"with the tag {watermarks.FULL_REFRESH}=true"
    if len(begins) == 1 or any(len(versions) > 1 for versions in begins.values()):
        versions = sorted({span.range.begin for span in spans})
        return (
            f"{label}: the partitions of this run have consumed the same rows of the input up to different versions, "
            f"{versions}; run the partitions one by one, or {refresh}"
        )
    ahead, ways = max(spans, key=lambda span: span.range.begin), [f"launch a run {refresh}"]
    if can_subset(context):
        ways.insert(0, "materialize each by a run of its own")
    run = None if ahead.part.stored is None else watermarks.InputPosition.of(ahead.part.stored).run
    if run is not None and not facts.succeeded(run):
        wrote = f"which failed after it had written {ahead.reader.asset}"
        ways.insert(0, f"re-execute run {run}, {wrote}, or undo that run")
    said = ", ".join(f"{asset} up to version {version}" for asset, (version,) in sorted(begins.items()))
    return (
        f"{label}: the assets of this step have consumed the same rows of the input up to different versions, {said}, "
        f"and one input cannot be right for both; {', or '.join(ways)}"
    )


def _fix_end_of_changes(
    context: dg.InputContext, facts: RunFacts, dataset: lance_core.LanceDataset, spans: Sequence[_Span], label: str
) -> list[_Span]:
    """Let all changes that a run reads end at one version; if that is the latest, record it as a tag of the run.

    Raises:
        IncompatibleConflictError: The changes of some partitions end at another version than those of others.
    """
    fixed = {span.range.end: span.range.dataset for span in spans if not span.is_last}
    if not fixed:
        tag = (
            f"{CHANGES}.{hashed(json.dumps([facts.step_key, context.asset_key.to_user_string(), dataset.branch]))[:12]}"
        )
        noted, begin = _find_noted_end(facts, tag), min(span.range.begin for span in spans)
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
            f"{label}: the changes for some partitions of this run end at earlier versions than those for others, at "
            f"{ends}; run the partitions one by one, or with the tag {watermarks.FULL_REFRESH}=true"
        )
    if any(not span.is_last and not span.is_own for span in spans):
        context.log.info(
            "%s: a branch was promoted after version %d of %s; the next run reads the later changes",
            label, end.version, branch,
        )  # fmt: skip
    return [replace(span, range=UnreadRange.up_to(end, span.range.begin)) if span.is_last else span for span in spans]


def _find_noted_end(facts: RunFacts, tag: str) -> int | None:
    """The last version to read by the tag of this run, or of a failed run that it re-executes; else None."""
    value, run = None, facts.run_id
    while value is None and (record := facts.record(run)) is not None:
        run_facts = facts_of(record.dagster_run, facts.instance)
        value = run_facts.tags.get(tag)
        if run_facts.parent_run_id is None or facts.succeeded(run_facts.parent_run_id):
            break
        run = run_facts.parent_run_id
    return int(value) if value is not None and value.isdecimal() else None
