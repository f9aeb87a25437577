"""The groups of fragments to rewrite together: a pure function of facts about the fragments.

    class of a fragment    itself            more than the threshold of its rows is deleted
                           with neighbours   it has fewer rows than the target
                           none              all others, and the excluded ones
    bin                    a run of adjacent fragments of a class, with the same indices; one that holds but one
                           fragment of the class "with neighbours" is dropped
    task                   fragments of a bin, in order, until their live rows reach the target; what is left of a bin
                           goes into its last task if it does not reach the target itself

With `partition_by`, each partition is planned as if it were a dataset of its own. A fragment in which several
partitions meet is never merged with another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lance_core.maintenance.options import CompactionOptions

__all__ = ["FragmentFacts", "bins", "within_limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentFacts:
    """Facts about a fragment, from which the plan is made.

    Attributes:
        position: Place in the manifest's list.
        fragment_id: Fragment id.
        physical_rows: Rows in its files.
        deleted_rows: Rows that are deleted.
        num_bytes: Bytes of its data files, where a limit asks for them.
        indices: Which indices cover it.
        partition: Value of the partition columns; None without `partition_by`. A fragment in which several
            partitions meet has a value of its own.
    """

    position: int
    fragment_id: int
    physical_rows: int
    deleted_rows: int
    num_bytes: int = 0
    indices: Hashable = ()
    partition: Hashable = None

    @property
    def live_rows(self) -> int:
        """Rows that are still there."""
        return self.physical_rows - self.deleted_rows


def bins(facts: Iterable[FragmentFacts], options: CompactionOptions) -> list[list[FragmentFacts]]:
    """Group the fragments that are to be rewritten, one group per task, in order of their first fragments."""
    partitions: dict[Hashable, list[FragmentFacts]] = {}
    for fact in facts:
        partitions.setdefault(fact.partition, []).append(fact)
    found = [group for members in partitions.values() for group in _bins(members, options)]
    found.sort(key=lambda group: group[0].position)
    return within_limits(found, options)


def _bins(facts: Sequence[FragmentFacts], options: CompactionOptions) -> Iterator[list[FragmentFacts]]:
    """The groups of one partition."""
    if options.deletions_only:
        yield from ([fact] for fact in facts if _is_full_of_holes(fact, options))
        return
    current: list[FragmentFacts] = []
    for fact in facts:
        candidate = _is_full_of_holes(fact, options) or (
            fact.physical_rows < options.target_rows_per_fragment
            and fact.fragment_id not in options.excluded_fragment_ids
        )
        if current and not (candidate and fact.indices == current[0].indices):
            yield from _split(current, options)
            current = []
        if candidate:
            current.append(fact)
    yield from _split(current, options)


def _is_full_of_holes(fact: FragmentFacts, options: CompactionOptions) -> bool:
    if not options.materialize_deletions or fact.fragment_id in options.excluded_fragment_ids:
        return False
    if not fact.deleted_rows:
        return False
    # In single precision, as in pylance: exactly 10 % is not more than 0.1.
    share = np.float32(fact.deleted_rows) / np.float32(fact.physical_rows)
    return bool(share > np.float32(options.materialize_deletions_threshold))


def _split(found: list[FragmentFacts], options: CompactionOptions) -> Iterator[list[FragmentFacts]]:
    """Cut a run of candidates into groups that reach the target."""
    if not found or (len(found) == 1 and not _is_full_of_holes(found[0], options)):
        return
    left = sum(fact.live_rows for fact in found)
    group: list[FragmentFacts] = []
    rows = 0
    for fact in found:
        if group and rows >= options.target_rows_per_fragment <= left:
            yield group
            group, rows = [], 0
        group.append(fact)
        rows += fact.live_rows
        left -= fact.live_rows
    yield group


def within_limits(found: list[list[FragmentFacts]], options: CompactionOptions) -> list[list[FragmentFacts]]:
    """The first groups that together stay within the `max_source_` limits."""
    fragments = rows = size = 0
    for index, group in enumerate(found):
        fragments += len(group)
        rows += sum(fact.live_rows for fact in group)
        size += sum(fact.num_bytes for fact in group)
        limits = (
            (fragments, options.max_source_fragments),
            (rows, options.max_source_rows),
            (size, options.max_source_bytes),
        )
        if any(limit is not None and value > limit for value, limit in limits):
            return found[:index]
    return found
