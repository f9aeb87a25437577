"""Incremental inputs: what changed since the version that the downstream asset's own last commit consumed.

    metadata={"lance/changes": "since_last_run"}

The downstream's table has how far each of its partitions has consumed an input (`LanceDataset.watermarks`). The commit
of the output moves that, so that rows and watermark are one version:

    watermark   <asset key of the input> / <partition>
    position    {"version": 9, "identity": "...", "branch": "b", "since": 7, "run": "..."}

    nothing consumed yet, or run tag lance/full_refresh    from version 0: all rows, as inserts
    the attempt before this one has committed              the same changes again: from `since` up to `version`
    else                                                   from `version` up to the latest, which is noted on the run,
                                                           so that a retry of it reads the same
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core import WatermarkMove
from lance_core.errors import IncompatibleConflictError, VersionNotFoundError
from lance_dagster._context import RunFacts, facts_of, outputs_of_step, tag_run
from lance_dagster.lineage.history import read_history
from lance_dagster.lineage.holds import hold
from lance_dagster.lineage.step_inputs import ConsumedChanges
from lance_dagster.properties import PROMOTED_FROM, hashed, several

__all__ = [
    "CHANGES",
    "FULL_REFRESH",
    "ChangeRange",
    "consumed_versions",
    "is_full_refresh",
    "range_of_input",
    "unread_after",
]

CHANGES: Final = "lance/changes"
FULL_REFRESH: Final = "lance/full_refresh"
_WHOLE: Final = "all"
"""The part of a table without partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """How far a part of a downstream table has consumed an input.

    Attributes:
        version: The last version whose changes were consumed.
        since: The version after which they began.
        identity: The identity of `version`.
        branch: The branch of the input; None for main.
        run: The run that consumed them.
    """

    version: int
    since: int
    identity: str
    branch: str | None
    run: str

    @classmethod
    def of(cls, value: str) -> _Position:
        found = json.loads(value)
        return cls(**{name: found.get(name) for name in cls.__slots__})

    def entry(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _InputReader:
    """One output of the step that reads the input, and what it has consumed.

    Attributes:
        asset: The asset's key.
        keys: The partitions by the part of the table that they are; {"all": None} for an asset without any.
        key: The columns that its merge matches rows by; none if it does not merge.
        known: Positions by part, as they are stored.
        by: The root runs that stored them, by part.
    """

    asset: str
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
        consumed: What the commits of the outputs note.
    """

    dataset: lance_core.LanceDataset
    begins: Mapping[int, Sequence[str] | None]
    key: tuple[str, ...]
    consumed: ConsumedChanges


def consumed_versions(table: lance_core.LanceDataset, asset: str) -> set[int]:
    """The versions of an input that parts of a table have consumed last."""
    return {_Position.of(one.position).version for one in table.watermarks(asset).values()}


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
    begins = _by_version((span.begin, span.reader.keys[span.part]) for span in spans)
    ends = {span.end for span in spans if span.end is not None}
    end = _end(context, facts, dataset, ends, min(begins), where)
    for reader in readers:
        hold(end, reader.asset)
    after = _Position(version=end.version, since=0, identity=end.identity, branch=end.branch, run=facts.run_id)
    moves: dict[str, tuple[WatermarkMove, ...]] = {}
    for span in spans:
        if span.begin != end.version or span.stored is None or refresh or ends:
            position = replace(after, since=span.begin).entry()
            move = WatermarkMove(
                name=asset, parts=(span.part,), before=span.stored, after=position, by=facts.root_run_id
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
        consumed=ConsumedChanges(
            asset=asset,
            dataset=end,
            begin_version=min(begins),
            end_version=end.version,
            moves=moves,
            is_refresh=refresh,
        ),
    )


def unread_after(
    dataset: lance_core.LanceDataset,
    table: lance_core.LanceDataset,
    asset: str,
    partitions: Sequence[str] | None,
    where: str,
) -> Mapping[int, Sequence[str] | None]:
    """The versions of an input after which the next run reads it, each with its partitions of the reader; None for all.

    Args:
        dataset: The input's table at the latest version.
        table: The table of the asset that reads it.
        asset: The input.
        partitions: The partitions of the asset that reads it; None if it has none.
        where: The input, for messages.

    Raises:
        VersionNotFoundError: The version that was consumed last was cleaned up.
        IncompatibleConflictError: The table was made again, or another branch of it was consumed.
    """
    known = {part: _Position.of(one.position) for part, one in table.watermarks(asset).items()}
    return _by_version(
        (0 if part not in known else _begin(dataset, known[part], where), key)
        for part, key in _parts(partitions).items()
    )


def _by_version(begins: Iterable[tuple[int, str | None]]) -> dict[int, list[str] | None]:
    """Partitions by the version after which they read; None for an asset without any."""
    found: dict[int, list[str] | None] = {}
    for begin, partition in begins:
        found[begin] = None if partition is None else [*(found.get(begin) or []), partition]
    return found


def _parts(partitions: Iterable[str] | None) -> dict[str, str | None]:
    """Partitions by the part of the table that they are."""
    return {_WHOLE: None} if partitions is None else {hashed(one)[:16]: one for one in sorted(partitions)}


def _reader(output: dg.OutputContext, manager: Any, facts: RunFacts, asset: str, where: str) -> _InputReader:
    name = output.asset_key.to_user_string()
    if not hasattr(manager, "consuming_table"):
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: {CHANGES} is for assets that LanceIOManager stores, as their tables note what was consumed; "
            f"asset {name} is stored by {type(manager).__name__}"
        )
    table, key = manager.consuming_table(output, facts)
    keys = _parts(output.asset_partition_keys if output.has_asset_partitions else None)
    known = {} if table is None else table.watermarks(asset)
    return _InputReader(
        asset=name,
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
    position = None if stored is None else _Position.of(stored)
    if position is not None and _is_own(facts, reader.by[part], position):
        return _Span(reader=reader, part=part, stored=stored, begin=position.since, end=position.version)
    begin = 0 if position is None or refresh else _begin(dataset, position, where)
    return _Span(reader=reader, part=part, stored=stored, begin=begin)


def _is_own(facts: RunFacts, by: str, position: _Position) -> bool:
    """Whether an earlier attempt of this write has consumed the changes, and is to be replaced."""
    if not facts.is_retry or by != facts.root_run_id:
        return False
    return position.run == facts.run_id or not facts.succeeded(position.run)


def _begin(dataset: lance_core.LanceDataset, position: _Position, where: str) -> int:
    """The version after which changes are read: the one that was consumed last.

    Raises:
        VersionNotFoundError: The version was cleaned up.
        IncompatibleConflictError: The version is another one now, or of a branch whose rows are not those of main.
    """
    version, branch = position.version, position.branch
    if branch not in (None, dataset.branch):
        found = _promotion_of(dataset, branch)
        if found is None:
            raise _other_rows(dataset, position, where)
        return found
    own = dataset.branch
    if branch is None and own is not None and version > dataset.branches.list()[own]["parent_version"]:
        raise _other_rows(dataset, position, where)
    try:
        consumed = dataset if version == dataset.version else dataset.checkout_version((branch, version))
    except VersionNotFoundError as error:
        oldest = dataset.version_refs()[0]["version"]
        raise VersionNotFoundError(
            f"{where}: version {version} of {dataset.uri}, which was consumed last, was cleaned up, so that what "
            f"changed since is not known; the oldest available version is {oldest}. Run with the tag "
            f"{FULL_REFRESH}=true to read all of the table and replace what was derived from it"
        ) from error
    if consumed.identity != position.identity:
        raise IncompatibleConflictError(
            f"{where}: version {version} of {dataset.uri} is another one than was consumed: the table was dropped and "
            f"made again. Run with the tag {FULL_REFRESH}=true to read all of it"
        )
    return version


def _other_rows(dataset: lance_core.LanceDataset, position: _Position, where: str) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"{where}: version {position.version} of branch {position.branch or 'main'!r} was consumed last, which is none "
        f"of the versions that led to version {dataset.version} of {dataset.uri}. Run with the tag {FULL_REFRESH}=true "
        "to read all of it"
    )


def _promotion_of(dataset: lance_core.LanceDataset, branch: str | None) -> int | None:
    """The version that promoted a branch, if nothing else changed rows between the fork and it; None if not known."""
    for one in read_history(dataset, count_changes=False):
        if branch in several(one.properties.get(PROMOTED_FROM)):
            between = list(
                read_history(dataset.checkout_version(one.version), after=one.read_version or 0, count_changes=False)
            )
            others = [other for other in between if other.changes_rows and other.version != one.version]
            return None if others else one.version
    return None


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
    """The version that this run, or one that it re-executes and that did not succeed, has noted as the last."""
    value, run = None, facts.run_id
    while value is None and (record := facts.record(run)) is not None:
        known = facts_of(record.dagster_run, facts.instance)
        value = known.tags.get(tag)
        if known.parent_run_id is None or facts.succeeded(known.parent_run_id):
            break
        run = known.parent_run_id
    return int(value) if value is not None and value.isdecimal() else None
