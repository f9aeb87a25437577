"""Plans a compaction: groups fragments that are rewritten together, as a pure function of facts about the fragments.

    class of a fragment    itself            more than the threshold of its rows is deleted
                           with neighbours   it has fewer rows and fewer bytes than the targets
                           none              all others, and the excluded ones
    run                    adjacent fragments of the first two classes, with the same indices, in the same base paths
    tier                   a fragment is rewritten with its neighbours if it has at most `LARGEST` times the bytes that
                           they have together; else it is not merged, and splits the run into two
    task                   fragments of a tier, in order, until their live rows or bytes reach the target; the rest
                           joins the last task if it does not reach the target itself

With `merge_results` a task also takes fragments that only the compaction makes adjacent, as new fragments follow those
that stay.

A merged fragment is at least 1.5 times as large as each of its sources. So the bytes that are rewritten for n bytes
written in small fragments grow as n log n, and a small fragment never causes the rewrite of a large one. A task makes
fewer fragments than it takes, or removes enough deleted rows, so that a second plan on its results is empty.

A fragment whose file cannot be read for the plan is a task of its own, which reports the error while others are merged.

The live rows of the fragments of a task use no more values of a dictionary than its indices can count: where they
would, a task ends.

With `partition_by`, each partition is planned as if it were a dataset of its own. A fragment with rows of several
partitions is never merged with another one.

Collects the facts about each fragment that a compaction plan needs, mostly from the manifest, else from the files.

Files are opened for fragments of 2023, whose manifests do not count rows, for dictionaries whose indices count few
values, where fragments have enough rows to use more of them, and for `partition_by`. In a fragment that
holds one partition, the partition column is a constant page, so that reading it costs little more than reading the
footer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.encoding.concatenate import (
    collect_used_values,
    find_dictionaries,
    find_smallest_capacity,
    has_narrow_dictionary,
    index_capacity,
)
from lance_core.errors import CorruptFileError, ObjectNotFoundError, SchemaError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.schema import Schema, quote_path, typed_schema
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.reuse import live_coverage
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.read_fragment import count_file_rows, read_fragment

LARGEST: Final = 2
"""The largest fragment of a task may have at most this many times the bytes of all its other fragments."""


FIXED_BYTES: Final = 4096
"""Bytes that are added to the size of each fragment for its fixed cost, so that tiny fragments form one tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentFacts:
    """Facts about a fragment, from which the plan is made.

    Attributes:
        position: Place in the manifest's list.
        fragment_id: Fragment id.
        physical_rows: Rows in its files.
        deleted_rows: Rows that are deleted.
        num_bytes: Bytes of its data files; 0 where the manifest does not record them.
        indices: Which indices cover it, as far as the compaction does not extend them to all fragments, which named
            base paths have its files, and whether it is kept apart: only fragments that are equal in this are merged.
        partition: Value of the partition columns; None without `partition_by`. A fragment with rows of several
            partitions has a unique value.
        values: For each dictionary with narrow indices the number of values that these count, and the values that live
            rows use.
        is_damaged: Whether a file is missing or corrupt.
    """

    position: int
    fragment_id: int
    physical_rows: int
    deleted_rows: int
    num_bytes: int = 0
    indices: Hashable = ()
    partition: Hashable = None
    values: Mapping[str, tuple[int, frozenset[Any]]] = field(default_factory=dict)
    is_damaged: bool = False

    @property
    def live_rows(self) -> int:
        """The number of rows that are not deleted."""
        return self.physical_rows - self.deleted_rows

    @property
    def live_bytes(self) -> int:
        """The approximate number of bytes of the live rows."""
        return self.num_bytes * self.live_rows // max(1, self.physical_rows)


def group_fragments(facts: Sequence[FragmentFacts], options: CompactionOptions) -> list[list[FragmentFacts]]:
    """Group the fragments to rewrite, one group per task, in order of the first fragment of each group."""
    partitions: dict[Hashable, list[FragmentFacts]] = {}
    for fact in facts:
        partitions.setdefault(("damaged", fact.position) if fact.is_damaged else fact.partition, []).append(fact)
    groups = [group for members in partitions.values() for group in _group_partition(members, options)]
    groups += [[fact] for fact in facts if fact.is_damaged and fact.fragment_id not in options.excluded_fragment_ids]
    groups.sort(key=lambda group: group[0].position)
    return limit_groups(groups, options)


def _group_partition(facts: Sequence[FragmentFacts], options: CompactionOptions) -> list[list[FragmentFacts]]:
    """The groups of one partition; their results are planned again until nothing is left to merge."""
    if options.deletions_only:
        return [[fact] for fact in facts if _has_many_deletions(fact, options)]
    members: dict[int, list[FragmentFacts]] = {}
    current = list(facts)
    while groups := list(_find_candidates(current, options)):
        left = {fact.position: fact for fact in current}
        for group in groups:
            old = [source for fact in group for source in members.pop(left.pop(fact.position).position, [fact])]
            merged = _merge_facts(group)
            left[merged.position] = merged
            members[merged.position] = sorted(old, key=lambda fact: fact.position)
        # The commit puts new fragments after those that stay, in the order of the tasks.
        last = members if options.merge_results else ()
        current = sorted(left.values(), key=lambda fact: (fact.position in last, fact.position))
    return list(members.values())


def _merge_facts(group: Sequence[FragmentFacts]) -> FragmentFacts:
    """The facts of the fragment that replaces a group; their sum if several fragments replace it."""
    rows, first = sum(fact.live_rows for fact in group), group[0]
    by_bytes = all(fact.num_bytes for fact in group)
    return FragmentFacts(
        position=min(fact.position for fact in group),
        fragment_id=-1,
        physical_rows=rows,
        deleted_rows=0,
        num_bytes=sum(fact.live_bytes for fact in group) if by_bytes else 0,
        indices=first.indices,
        partition=first.partition,
        values=_unite_values(group) or {},
    )


def _unite_values(facts: Sequence[FragmentFacts]) -> Mapping[str, tuple[int, frozenset[Any]]] | None:
    """The values that some fragments use together; None if a dictionary has no room for them."""
    values = {
        path: (most, frozenset().union(*(fact.values[path][1] for fact in facts if path in fact.values)))
        for fact in facts[:1]
        for path, (most, _) in fact.values.items()
    }
    return None if any(len(used) > most for most, used in values.values()) else values


def _find_candidates(facts: Sequence[FragmentFacts], options: CompactionOptions) -> Iterator[list[FragmentFacts]]:
    """The groups for a list of fragments; the results of the groups are not planned again."""
    run: list[FragmentFacts] = []
    for fact in facts:
        candidate = is_candidate(fact, options)
        if run and not (candidate and fact.indices == run[0].indices):
            yield from _divide_run(run, options)
            run = []
        if candidate:
            run.append(fact)
    yield from _divide_run(run, options)


def is_candidate(fact: FragmentFacts, options: CompactionOptions) -> bool:
    """Whether a fragment may be rewritten: it has many deletions, or is smaller than the targets."""
    if fact.is_damaged:
        return False  # it is a task of its own
    return _has_many_deletions(fact, options) or (
        fact.physical_rows < options.target_rows_per_fragment
        and not _reaches_byte_limit(fact.num_bytes, options)
        and fact.fragment_id not in options.excluded_fragment_ids
    )


def _reaches_byte_limit(num_bytes: int, options: CompactionOptions) -> bool:
    """Whether a fragment of `num_bytes` has reached the target or the limit of bytes."""
    limits = [limit for limit in (options.target_bytes_per_fragment, options.max_bytes_per_file) if limit is not None]
    return bool(limits) and num_bytes >= min(limits)


def _divide_run(run: Sequence[FragmentFacts], options: CompactionOptions) -> Iterator[list[FragmentFacts]]:
    """The tasks of a run of candidates."""
    if not run:
        return
    largest = _find_too_large(run)
    if largest is None:
        groups = list(_split(run, options))
        if len(groups) == 1:
            yield from _split_if_worthwhile(groups[0], options)
        else:
            for group in groups:
                yield from _divide_run(group, options)
        return
    yield from _divide_run(run[:largest], options)
    if _has_many_deletions(run[largest], options):
        yield [run[largest]]
    yield from _divide_run(run[largest + 1 :], options)


def _find_too_large(run: Sequence[FragmentFacts]) -> int | None:
    """The place of the largest fragment, if it is too large to be rewritten with the others."""
    by_bytes = all(fact.num_bytes for fact in run)
    sizes = [fact.live_bytes + FIXED_BYTES if by_bytes else fact.live_rows for fact in run]
    place = max(range(len(sizes)), key=lambda i: sizes[i])
    return place if sizes[place] > LARGEST * (sum(sizes) - sizes[place]) else None


def _split_if_worthwhile(group: list[FragmentFacts], options: CompactionOptions) -> Iterator[list[FragmentFacts]]:
    """The group as one task if that makes fewer fragments; else one task for each fragment with many deletions."""
    num_files = 1
    if options.max_bytes_per_file is not None:
        num_files = ceil(sum(fact.live_bytes for fact in group) / options.max_bytes_per_file)
    if num_files < len(group):
        yield group
    else:
        yield from ([fact] for fact in group if _has_many_deletions(fact, options))


def _has_many_deletions(fact: FragmentFacts, options: CompactionOptions) -> bool:
    if not options.materialize_deletions or fact.fragment_id in options.excluded_fragment_ids:
        return False
    if not fact.deleted_rows:
        return False
    # In single precision, as in pylance: exactly 10 % is not more than 0.1.
    share = np.float32(fact.deleted_rows) / np.float32(fact.physical_rows)
    return bool(share > np.float32(options.materialize_deletions_threshold))


def _split(facts: Sequence[FragmentFacts], options: CompactionOptions) -> Iterator[list[FragmentFacts]]:
    """Split a run of candidates into groups that reach the target."""
    left_rows, left_bytes = sum(fact.live_rows for fact in facts), sum(fact.live_bytes for fact in facts)
    group: list[FragmentFacts] = []
    rows = size = 0
    for fact in facts:
        is_full = _is_full(rows, size, options) and _is_full(left_rows, left_bytes, options)
        if group and (is_full or _unite_values([*group, fact]) is None):
            yield group
            group, rows, size = [], 0, 0
        group.append(fact)
        rows, size = rows + fact.live_rows, size + fact.live_bytes
        left_rows, left_bytes = left_rows - fact.live_rows, left_bytes - fact.live_bytes
    yield group


def _is_full(rows: int, num_bytes: int, options: CompactionOptions) -> bool:
    """Whether rows and bytes make a fragment of the target's size."""
    target_bytes = options.target_bytes_per_fragment
    return rows >= options.target_rows_per_fragment or (target_bytes is not None and num_bytes >= target_bytes)


def limit_groups(groups: list[list[FragmentFacts]], options: CompactionOptions) -> list[list[FragmentFacts]]:
    """The first groups that together stay within the `max_source_` limits."""
    fragments = rows = size = 0
    for index, group in enumerate(groups):
        fragments += len(group)
        rows += sum(fact.live_rows for fact in group)
        size += sum(fact.num_bytes for fact in group)
        limits = (
            (fragments, options.max_source_fragments),
            (rows, options.max_source_rows),
            (size, options.max_source_bytes),
        )
        if any(limit is not None and value > limit for value, limit in limits):
            return groups[:index]
    return groups


DAMAGE: Final = (CorruptFileError, ObjectNotFoundError)
"""The errors of files that are corrupt or missing."""

READ_AHEAD: Final = 8
"""Fragments that are read in parallel."""


def collect_facts(snapshot: Snapshot, options: CompactionOptions) -> list[FragmentFacts]:
    """The facts of all fragments, in order.

    Raises:
        SchemaError: A partition column does not exist.
    """
    manifest = snapshot.manifest
    covered = _find_dividing_segments(manifest, options)
    tiers = {base.id for base in manifest.base_paths if base.name is not None and manifest.branch is None}
    facts, apart = [], frozenset(options.apart_fragment_ids)
    for position, message in enumerate(manifest.fragments.messages()):
        rows, deleted, is_damaged = _count_rows(snapshot, position, message)
        facts.append(
            FragmentFacts(
                position=position,
                fragment_id=message.id,
                physical_rows=rows,
                deleted_rows=deleted,
                is_damaged=is_damaged,
                num_bytes=sum(file.file_size_bytes for file in message.files),
                indices=(
                    *(i for i, bitmap in enumerate(covered) if message.id in bitmap),
                    *(["apart"] if message.id in apart else []),
                    *(("base", base_id) for base_id in sorted(tiers & {file.base_id for file in message.files})),
                ),
            )
        )
    facts = _add_values(snapshot, facts, options)
    return _add_partitions(snapshot, facts, options) if options.partition_by else facts


def _find_dividing_segments(manifest: Manifest, options: CompactionOptions) -> list[BitMap]:
    """The fragments of each index segment that must not be merged with fragments outside of that segment.

    The commit extends an index of a supported kind to all fragments. Where it records moves of rows for indices of
    other kinds, every index must cover either all fragments of a group or none. With stable row ids no moves are
    recorded.
    """
    are_extended = manifest.uses_stable_row_ids or all(
        is_supported(index, manifest.schema) for index in manifest.indices
    )
    divides_all = options.defer_index_remap or not are_extended
    return [
        bitmap
        for index, bitmap in live_coverage(manifest.indices)
        if divides_all or not is_supported(index, manifest.schema)
    ]


def _count_rows(snapshot: Snapshot, position: int, message: table_pb2.DataFragment) -> tuple[int, int, bool]:
    """Physical and deleted rows of a fragment; 0, and True, if they are not known as a file cannot be read."""
    rows = message.physical_rows
    deleted = message.deletion_file.num_deleted_rows if message.HasField("deletion_file") else 0
    if rows and (deleted or not message.HasField("deletion_file")):
        return rows, deleted, False
    fragment = snapshot.manifest.fragments[position]
    try:
        deletions = snapshot.deletions(fragment)
        return count_file_rows(snapshot, fragment), 0 if deletions is None else len(deletions), False
    except DAMAGE:
        return 0, 0, True


def _add_values(snapshot: Snapshot, facts: list[FragmentFacts], options: CompactionOptions) -> list[FragmentFacts]:
    """Add the values that rows use of dictionaries with narrow indices, where fragments could use too many together.

    Fragments that a dry run expects cannot be read, as their files have no fields: their values count as fitting.
    """
    columns = [field for field in typed_schema(snapshot.manifest.schema) if has_narrow_dictionary(field.type)]
    candidates = [fact for fact in facts if columns and is_candidate(fact, options)]
    messages = snapshot.manifest.fragments
    candidates = [fact for fact in candidates if all(file.fields for file in messages[fact.position].files)]
    fewest = min((find_smallest_capacity(field.type) for field in columns), default=0)
    if options.deletions_only or len(candidates) < 2 or sum(fact.live_rows for fact in candidates) <= fewest:
        return facts
    schema = snapshot.manifest.schema.project([quote_path([field.name]) for field in columns])

    def with_values(fact: FragmentFacts) -> FragmentFacts:
        values: dict[str, tuple[int, frozenset[Any]]] = {}
        for rows in _read_live_rows(snapshot, fact, schema):
            for name, column in zip(rows.schema.names, rows.columns, strict=True):
                for path, array in find_dictionaries(column, (name,)):
                    most, earlier = values.get(quote_path(path), (index_capacity(array.type.index_type), frozenset()))
                    values[quote_path(path)] = (most, earlier.union(collect_used_values(array).to_pylist()))
        return replace(fact, values=values)

    with ThreadPool(READ_AHEAD) as pool:
        read_facts = pool.map(partial(_unless_damaged, with_values), candidates)
        by_position = dict(zip((fact.position for fact in candidates), read_facts, strict=True))
    return [by_position.get(fact.position, fact) for fact in facts]


def _read_live_rows(snapshot: Snapshot, fact: FragmentFacts, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The live rows of a fragment."""
    fragment, num_rows = snapshot.manifest.fragments[fact.position], fact.physical_rows
    deletions = snapshot.deletions(fragment) if fact.deleted_rows else None
    live = None if deletions is None else deletions.live_rows(num_rows)
    position = 0
    for batch in read_fragment(snapshot, fragment, schema, range(num_rows)):
        yield batch if live is None else batch.filter(pa.array(live[position : position + batch.num_rows]))
        position += batch.num_rows


def _add_partitions(
    snapshot: Snapshot, facts: Sequence[FragmentFacts], options: CompactionOptions
) -> list[FragmentFacts]:
    """Add the values of the partition columns, from the first fragment that may be rewritten to the last one.

    Fragments in between are read as well: a fragment that stays separates the fragments of its partition before it
    from those after it.
    """
    names = snapshot.manifest.schema.names
    missing = [name for name in options.partition_by if name not in names]
    if missing:
        raise SchemaError(f"partition_by: no column {missing[0]!r}; the columns are {list(names)}")

    def with_partition(fact: FragmentFacts) -> FragmentFacts:
        return replace(fact, partition=_read_partition(snapshot, fact, options))

    candidates = [place for place, fact in enumerate(facts) if is_candidate(fact, options)]
    first, end = (candidates[0], candidates[-1] + 1) if candidates else (0, 0)
    with ThreadPool(READ_AHEAD) as pool:
        read_facts = pool.map(partial(_unless_damaged, with_partition), facts[first:end])
        return [*facts[:first], *read_facts, *facts[end:]]


def _unless_damaged(read: Callable[[FragmentFacts], FragmentFacts], fact: FragmentFacts) -> FragmentFacts:
    """The facts that a function reads from the files of a fragment; the given ones if a file cannot be read."""
    try:
        return fact if fact.is_damaged else read(fact)
    except DAMAGE:
        return replace(fact, is_damaged=True)


def _read_partition(snapshot: Snapshot, fact: FragmentFacts, options: CompactionOptions) -> Hashable:
    """The value that the partition columns have in all live rows; a unique value if there are several."""
    schema = snapshot.manifest.schema.project(list(options.partition_by))
    partitions: set[tuple[Any, ...]] = set()
    for rows in _read_live_rows(snapshot, fact, schema):
        distinct = pa.Table.from_batches([rows]).group_by(list(options.partition_by)).aggregate([])
        partitions.update(tuple(row[name] for name in options.partition_by) for row in distinct.slice(0, 2).to_pylist())
        if len(partitions) > 1:
            return ("mixed", fact.fragment_id)
    return ("one", *partitions)
