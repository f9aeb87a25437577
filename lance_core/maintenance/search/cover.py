"""Lets the indices of a table cover rows that were just added, such as those of a promotion, in versions of their own.

own kinds            lance_core adds a segment to each for the rows that it misses, in one version
vectors and text     pylance adds a segment to each, in one version, in a child process; where that fails, each alone
text, rows set again with stable ids    built again by pylance: it would find these rows by their old words
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from lance_core.errors import LanceError, UnsupportedError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.search.child import ChildFailedError, ChildProcess
from lance_core.maintenance.search.facts import find_pylance, read_facts
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.indices.optimize import optimize_indices

_INSTALL: Final = "pylance, which extends it, is not installed: pip install 'lance-dagster[search]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCoverage:
    """The result of `cover_rows`.

    Attributes:
        version: The newest version.
        covered: The names of the indices that were extended.
        problems: Why indices still miss rows, by name.
    """

    version: int
    covered: Sequence[str] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


def cover_rows(
    dataset: Handle,
    *,
    properties: Mapping[str, str] | None = None,
    index_memory: int | None = None,
    index_timeout_s: float | None = None,
) -> IndexCoverage:
    """Let every index of the newest version cover all rows; if none misses a row, nothing is committed.

    Zone maps are extended with others, and not alone: the writes that keep them for partitions do that now and then.

    Args:
        dataset: The table; it moves to the newest version.
        properties: Transaction properties of commits by lance_core; pylance's have none.
        index_memory: The most bytes of the process in which pylance works; None for no limit.
        index_timeout_s: The most seconds that it may take; None for no limit.

    Returns:
        The indices that were extended, and those that still miss rows: a failure costs its index alone.

    Examples:
        >>> flights = lance.write_dataset({"id": [1]}, "flights.lance")
        >>> flights.create_scalar_index("id", "BTREE")
        >>> flights.insert({"id": [2]})
        >>> maintenance.cover_rows(flights).covered
        ('id_idx',)
    """
    dataset.checkout_latest()
    due, problems = find_uncovered_indices(dataset.snapshot), dict[str, str]()
    own_names = [name for name, by in due.items() if by == "lance_core"]
    if own_names:
        try:
            optimize_indices(dataset.snapshot, num_indices_to_merge=0, index_names=own_names, properties=properties)
        except (LanceError, OSError) as error:
            problems |= dict.fromkeys(own_names, str(error))
    if len(own_names) < len(due) and find_pylance() is not None:
        _extend_by_pylance(dataset, due, problems, ChildProcess(index_memory, index_timeout_s))
    dataset.checkout_latest()
    left = [name for name in _find_missing_rows(dataset.snapshot) if name in due]
    return IndexCoverage(
        version=dataset.version,
        covered=tuple(name for name in due if name not in left),
        problems={name: problems.get(name, _INSTALL if find_pylance() is None else "rows came since") for name in left},
    )


def find_uncovered_indices(snapshot: Snapshot) -> dict[str, str]:
    """The names of the indices that miss rows, each with what covers them; empty if there are zone maps alone.

    That is "lance_core", "segment" for a further segment by pylance, or "retrain" for a new index by pylance.

    Args:
        snapshot: The version.
    """
    due = _find_missing_rows(snapshot)
    return {} if all(kind == "ZONEMAP" for kind, _ in due.values()) else {name: by for name, (_, by) in due.items()}


def _find_missing_rows(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    """The kinds of the indices that miss rows, and what covers these, by name."""
    facts = read_facts(snapshot, ())
    own_names = {index.name for index in snapshot.manifest.indices if is_supported(index, snapshot.manifest.schema)}
    return {
        name: (
            index.kind,
            "lance_core" if name in own_names else "retrain" if facts.find_stale_segments(index) else "segment",
        )
        for name, index in facts.present.items()
        if facts.missed_by(index)
    }


def reject_without_search(dataset: Handle) -> None:
    """Make sure that all indices of a table can be extended here.

    Raises:
        UnsupportedError: pylance, which indices of vectors or words need, is not installed.

    Examples:
        >>> maintenance.reject_without_search(lance.write_dataset({"id": [1]}, "flights.lance"))
    """
    manifest = dataset.snapshot.manifest
    names = {each.name for each in manifest.indices if not each.is_system and not is_supported(each, manifest.schema)}
    if names and find_pylance() is None:
        raise UnsupportedError(f"index {', '.join(sorted(names))}: {_INSTALL}")


def _extend_by_pylance(dataset: Handle, due: Mapping[str, str], problems: dict[str, str], child: ChildProcess) -> None:
    """Extend indices together, and each alone if that fails; those that fail alone are named in `problems`."""
    request = {"uri": dataset.uri, "options": dict(dataset.snapshot.options)}
    with closing(child):
        for how, arguments in (("segment", {"num_indices_to_merge": 0}), ("retrain", {"retrain": True})):
            names = [name for name, by in due.items() if by == how]
            for some in ([names] if names else []) + [[name] for name in names if len(names) > 1]:
                try:
                    child.run("extend", {**request, "names": some, "arguments": arguments})
                except ChildFailedError as error:
                    problems |= dict.fromkeys(some, str(error))
                else:
                    if some is names:
                        break
