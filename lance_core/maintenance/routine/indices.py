"""Extends the indices of a table, in its maintenance, to the rows that they do not cover.

lance_core extends the kinds that it can build; pylance, if it is installed, extends other kinds (vectors, words).

If a table has an index of another kind, each segment of an index must cover all fragments that are merged, or none of
them. If an extension, or a merge of segments, allows more fragments to be merged, it is done before the rewrites are
committed; otherwise these fragments would stay apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lance_core.errors import CommitConflictError, LanceError, UnsupportedError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.expected_versions import ExpectedVersions
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.search.child import ChildFailedError, ChildProcess
from lance_core.maintenance.search.cover import OWN_REBUILD, find_uncovered_indices, relocate_segments, run_extension
from lance_core.maintenance.search.decide import IndexAction, choose_segments_to_merge
from lance_core.maintenance.search.facts import find_pylance, read_facts
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.indices.optimize import optimize_indices

_TEXT: Final = ("FTS", "NGRAM")


@dataclass(slots=True, kw_only=True)
class Extension:
    """The result of `extend_indices`.

    Attributes:
        refreshed: The number of indices that were extended.
        lost: The number of extensions by lance_core that failed because a writer committed first.
        are_joined: Whether pylance has joined more segments of an index than it was asked to, as it does when it
            divides or joins partitions of vectors: then further fragments can be merged.
        problems: One sentence for each index that was not extended.
        failures: Those of the sentences that are about errors: the other indices were extended all the same.
    """

    refreshed: int = 0
    lost: int = 0
    are_joined: bool = False
    problems: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def is_extended_here(dataset: Handle, name: str) -> bool:
    """Whether lance_core, or pylance if it is installed, can extend an index."""
    return find_pylance() is not None or ExpectedVersions(dataset).optimize_index(name)


def choose_due_rewrites(
    dataset: Handle,
    tasks: list[CompactionTask],
    options: Mapping[str, Any],
    merge_counts: Mapping[str, int | None],
    actions: Sequence[IndexAction] = (),
) -> tuple[list[CompactionTask], bool]:
    """The rewrites that are due, and whether indices are to be extended before their commit.

    Args:
        dataset: The table.
        tasks: The rewrites that the indices allow without extension.
        options: Options of the compaction.
        merge_counts: How many of the last segments of indices are merged with the rows that they miss; None for the
            default.
        actions: The extensions and merges of declared indices.
    """
    expected = ExpectedVersions(dataset)
    count_expected_extensions(expected, merge_counts)
    for action in actions:
        expected.replace_segments(action.name, action.fragment_ids, action.replaced)
    later = [replace(task, read_version=dataset.version) for task in Compaction.plan(expected.dataset, options).tasks]
    # If the fragment reuse index has its details in a file, no fragment that an index covers can be rewritten.
    if later == tasks or count_saved_fragments(later) < count_saved_fragments(tasks):
        return tasks, False
    return later, True


def count_saved_fragments(tasks: Sequence[CompactionTask]) -> int:
    """The number of fragments that rewrites save."""
    return sum(len(task.raw) - 1 for task in tasks)


def count_segments_to_merge(snapshot: Snapshot, left_out: Collection[str]) -> dict[str, int]:
    """How many of the last segments of indices are merged so that they keep no fragments apart.

    Args:
        snapshot: The version.
        left_out: Names of indices that are merged by themselves.

    Returns:
        The numbers by the names of the indices of which a segment is merged with another one, or with missed rows.
    """
    manifest, facts = snapshot.manifest, read_facts(snapshot, ())
    if find_pylance() is None:
        left_out = {*left_out, *(each.name for each in manifest.indices if not is_supported(each, manifest.schema))}
    merge_counts = {}
    for name, index in facts.present.items():
        missed_rows = facts.count_missed_rows(index)
        merge_count = len(choose_segments_to_merge(index, missed_rows))
        if name not in left_out and merge_count and merge_count + bool(missed_rows) > 1:
            merge_counts[name] = merge_count
    return merge_counts


def count_expected_extensions(expected: ExpectedVersions[Handle], merge_counts: Mapping[str, int | None]) -> int:
    """The number of indices that `extend_indices` would extend; nothing is written.

    Args:
        expected: The expected versions, to which those of the extensions are added.
        merge_counts: How many of the last segments of indices are merged with the rows that they miss; None for the
            default.
    """
    done = 0
    for name, merge_count in merge_counts.items():
        if expected.optimize_index(name, merge_count):
            done += 1
        elif find_pylance() is not None:
            expected.extend_by_pylance(name, merge_count)
            done += 1
    return done


def extend_indices(
    dataset: Handle, merge_counts: Mapping[str, int | None], properties: Mapping[str, str], policy: MaintenancePolicy
) -> Extension:
    """Extend indices to the rows that they do not cover.

    Args:
        dataset: The table; it moves to the newest version.
        merge_counts: How many of the last segments of indices are merged with these rows; None for the default.
        properties: Transaction properties.
        policy: The policy, with the limits of the process in which pylance extends indices.
    """
    with closing(ChildProcess(policy.index_memory_bytes, policy.index_timeout_s)) as child:
        return _extend_indices(dataset, merge_counts, properties, child)


def _extend_indices(
    dataset: Handle, merge_counts: Mapping[str, int | None], properties: Mapping[str, str], child: ChildProcess
) -> Extension:
    done = Extension()
    for name, merge_count in merge_counts.items():
        problem = None
        try:
            by = find_uncovered_indices(dataset.snapshot).get(name)
            if not relocate_segments(dataset, [name], properties) or name in find_uncovered_indices(dataset.snapshot):
                optimize_indices(
                    dataset.snapshot,
                    num_indices_to_merge=merge_count,
                    index_names=[name],
                    retrain=by == OWN_REBUILD,
                    properties=properties,
                )
        except UnsupportedError as error:
            old_segments = _find_segments(dataset, name)
            reason = _extend_by_pylance(dataset, name, merge_count, child)
            done.are_joined |= len(old_segments - _find_segments(dataset, name)) > (merge_count or 0)
            problem = None if reason is None else f"index {name!r} was not refreshed: {error}; {reason}"
        except CommitConflictError as error:
            done.lost += 1
            problem = f"index {name!r} was not refreshed, because a writer committed first: {error}"
        except (LanceError, OSError) as error:
            problem = f"index {name!r} was not refreshed: {type(error).__name__}: {error}"
            done.failures.append(problem)
        dataset.checkout_latest()
        if problem is None:
            done.refreshed += 1
        else:
            done.problems.append(problem)
    return done


def _find_segments(dataset: Handle, name: str) -> set[str]:
    """The uuids of the segments of an index."""
    return {str(index.uuid) for index in dataset.snapshot.manifest.indices if index.name == name}


def _extend_by_pylance(dataset: Handle, name: str, merge_count: int | None, child: ChildProcess) -> str | None:
    """Let pylance extend an index of a kind that lance_core does not build, such as a vector index.

    Returns:
        The reason why pylance did not extend it; None if it did.
    """
    if find_pylance() is None:
        return "install pylance, which extends it: pip install 'lance-dagster[search]'"
    old_segments = _find_segments(dataset, name)
    how = find_uncovered_indices(dataset.snapshot).get(name, "segment")
    arguments = {} if merge_count is None else {"num_indices_to_merge": merge_count}
    try:
        run_extension(dataset, [name], how, child, **arguments)
    except ChildFailedError as error:
        return f"pylance could not extend it either: {error}"
    reason = ""
    if not _has_changed(dataset, name, old_segments) and read_facts(dataset.snapshot, ()).present[name].kind in _TEXT:
        try:
            run_extension(dataset, [name], "rebuild", child)
        except ChildFailedError as error:
            reason = f", and it could not be built again: {error}"
    if _has_changed(dataset, name, old_segments):
        return None
    return f"pylance passes over it, as over one with a file that it cannot read{reason}; drop it, or create it again"


def _has_changed(dataset: Handle, name: str, old_segments: Collection[str]) -> bool:
    """Whether an index has other segments in the newest version, to which the handle moves."""
    dataset.checkout_latest()
    return _find_segments(dataset, name) != old_segments
