"""Extends the indices of a table, in its maintenance, to the rows that they do not cover.

lance_core extends the kinds that it can build; pylance, if it is installed, extends other kinds (vectors, words).

If a table has an index of another kind, each segment of an index must cover all fragments that are merged, or none of
them. If an extension allows more fragments to be merged, the indices are extended before the rewrites are committed;
otherwise a second run would have to merge these fragments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from lance_core.errors import CommitConflictError, LanceError, UnsupportedError
from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.expected_versions import ExpectedVersions
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.search.child import ChildFailedError, ChildProcess
from lance_core.maintenance.search.cover import find_uncovered_indices, run_extension
from lance_core.maintenance.search.decide import IndexAction
from lance_core.maintenance.search.facts import find_pylance
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.indices.optimize import optimize_indices
from lance_core.verbs.inspect.indices import describe_indices


@dataclass(slots=True, kw_only=True)
class Extension:
    """The result of `extend_indices`.

    Attributes:
        refreshed: The number of indices that were extended.
        lost: The number of extensions by lance_core that failed because a writer committed first.
        are_joined: Whether pylance has joined the segments of a vector index into one, as it does when it divides or
            joins partitions: then further fragments can be merged.
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
    names: Sequence[str],
    actions: Sequence[IndexAction] = (),
) -> tuple[list[CompactionTask], bool]:
    """The rewrites that are due, and whether indices are to be extended before their commit.

    Args:
        dataset: The table.
        tasks: The rewrites that the indices allow without extension.
        options: Options of the compaction.
        names: The indices that do not cover all rows, and can be extended here.
        actions: The extensions and merges of declared indices.
    """
    expected = ExpectedVersions(dataset)
    count_expected_extensions(expected, names)
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


def count_expected_extensions(expected: ExpectedVersions[Handle], names: Sequence[str]) -> int:
    """The number of indices that `extend_indices` would extend; nothing is written.

    Args:
        expected: The expected versions, to which those of the extensions are added.
        names: The indices.
    """
    done = 0
    for name in names:
        if expected.optimize_index(name):
            done += 1
        elif find_pylance() is not None:
            expected.extend_by_pylance(name)
            done += 1
    return done


def extend_indices(
    dataset: Handle, names: Sequence[str], properties: Mapping[str, str], policy: MaintenancePolicy
) -> Extension:
    """Extend indices to the rows that they do not cover.

    Args:
        dataset: The table; it moves to the newest version.
        names: The indices.
        properties: Transaction properties.
        policy: The policy, with the limits of the process in which pylance extends indices.
    """
    with closing(ChildProcess(policy.index_memory_bytes, policy.index_timeout_s)) as child:
        return _extend_indices(dataset, names, properties, child)


def _extend_indices(
    dataset: Handle, names: Sequence[str], properties: Mapping[str, str], child: ChildProcess
) -> Extension:
    done, before = Extension(), _find_vector_segments(dataset, names)
    for name in names:
        problem = None
        try:
            optimize_indices(dataset.snapshot, index_names=[name], properties=properties)
        except UnsupportedError as error:
            reason = _extend_by_pylance(dataset, name, child)
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
    done.are_joined = not before <= _find_vector_segments(dataset, names)
    return done


def _find_vector_segments(dataset: Handle, names: Sequence[str]) -> set[str]:
    """The segments of the vector indices among some indices."""
    indices = (index for index in describe_indices(dataset.snapshot) if index.name in names)
    return {str(segment.uuid) for index in indices if "IVF" in index.index_type for segment in index.segments}


def _extend_by_pylance(dataset: Handle, name: str, child: ChildProcess) -> str | None:
    """Let pylance extend an index of a kind that lance_core does not build, such as a vector index.

    Returns:
        The reason why pylance did not extend it; None if it did.
    """
    if find_pylance() is None:
        return "install pylance, which extends it: pip install 'lance-dagster[search]'"
    try:
        run_extension(dataset, [name], find_uncovered_indices(dataset.snapshot).get(name, "segment"), child)
    except ChildFailedError as error:
        return f"pylance could not extend it either: {error}"
    return None
