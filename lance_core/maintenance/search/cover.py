"""Lets the indices of a table cover rows that were just added, such as those of a promotion, in versions of their own.

own kinds            lance_core adds a segment to each for the rows that it misses, in one version
vectors and text     pylance adds a segment to each, in one version, in a child process; where that fails, each alone
text, rows set again     built again by pylance: it would find these rows by their old words as well
graphs (HNSW)            trained again by pylance where it cannot search them, as a compaction has left out some rows
files in a wrong folder  named by the record, where pylance's compaction of a branch has written them there
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lance_core.errors import CommitConflictError, LanceError, UnsupportedError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.search.child import ChildFailedError, ChildProcess
from lance_core.maintenance.search.decide import PresentIndex, TableFacts
from lance_core.maintenance.search.declaration import IndexDeclaration
from lance_core.maintenance.search.facts import find_lost_segments, find_pylance, read_facts
from lance_core.store import has_object
from lance_core.table.operations import CreateIndex
from lance_core.table.paths import INDICES_PREFIX
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.indices.optimize import optimize_indices

OWN_REBUILD: Final = "lance_core rebuild"
_OWN_WAYS: Final[Mapping[str, Any]] = {"lance_core": {"num_indices_to_merge": 0}, OWN_REBUILD: {"retrain": True}}
INSTALL: Final = "pylance, which builds and extends it, is not installed: pip install 'lance-dagster[search]'"


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
        The indices that were extended, and those that still miss rows: a failure costs its index alone. Declared
        indices that the table lacks are no part of it: maintenance builds them.

    Examples:
        >>> flights = lance.write_dataset({"id": [1]}, "flights.lance")
        >>> flights.create_scalar_index("id", "BTREE")
        >>> flights.insert({"id": [2]})
        >>> maintenance.cover_rows(flights).covered
        ('id_idx',)
    """
    with closing(ChildProcess(index_memory, index_timeout_s)) as child:
        covered, errors = extend_indices(dataset, child, properties)
    problems = {name: str(error) for name, error in errors.items()}
    return IndexCoverage(version=dataset.version, covered=covered, problems=problems)


def extend_indices(
    dataset: Handle,
    child: ChildProcess,
    properties: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], dict[str, Exception]]:
    """Extend the indices that miss rows; returns their names, and of those that miss rows still, the errors.

    Rows that come meanwhile do not count.

    Args:
        dataset: The table; it moves to the newest version.
        child: The process in which pylance works.
        properties: Transaction properties of commits by lance_core.
        left_out: Indices that are left as they are, each with the reason.
    """
    dataset.checkout_latest()
    due, errors = find_uncovered_indices(dataset.snapshot), dict[str, Exception]()
    fragment_ids = frozenset(dataset.snapshot.manifest.fragments.ids)
    work = {name: by for name, by in due.items() if name not in (left_out or {})}
    if relocate_segments(dataset, work, properties):
        work = {name: by for name, by in find_uncovered_indices(dataset.snapshot).items() if name in work}
    for how, options in _OWN_WAYS.items():
        names = [name for name, by in work.items() if by == how]
        if names:
            try:
                optimize_indices(dataset.snapshot, index_names=names, properties=properties, **options)
            except (LanceError, OSError) as error:
                errors |= dict.fromkeys(names, error)
            dataset.checkout_latest()
    if not _OWN_WAYS.keys() >= set(work.values()) and find_pylance() is not None:
        _extend_by_pylance(dataset, work, errors, child)
    dataset.checkout_latest()
    left = [name for name in _find_missing_rows(dataset.snapshot, fragment_ids) if name in due]
    for name in left:
        reason = INSTALL if find_pylance() is None else "pylance has not extended it to all rows"
        errors.setdefault(name, UnsupportedError((left_out or {}).get(name, reason)))
    return tuple(name for name in due if name not in left), {name: errors[name] for name in left}


def relocate_segments(dataset: Handle, names: Collection[str], properties: Mapping[str, str] | None = None) -> bool:
    """Correct the records of segments whose files pylance's compaction of a branch has written into its own folder.

    Args:
        dataset: The table; it moves to the version that is made.
        names: The indices.
        properties: Transaction properties of the commit.

    Returns:
        Whether there were any.
    """
    snapshot = dataset.snapshot
    lost = find_lost_segments(snapshot)
    relocated = tuple(
        replace(index, base_id=None)
        for index in snapshot.manifest.indices
        if index.name in names
        and str(index.uuid) in lost
        and has_object(snapshot.store, f"{INDICES_PREFIX}{index.uuid}/{index.files[0].path}")
    )
    if relocated:
        dataset.move_to(UncommittedFiles(snapshot).commit(CreateIndex(new_indices=relocated), properties=properties))
    return bool(relocated)


def is_lost(error: Exception) -> bool:
    """Whether another writer committed first."""
    return isinstance(error, CommitConflictError) or "commit conflict" in str(error).lower()  # as pylance says it


def find_uncovered_indices(snapshot: Snapshot) -> dict[str, str]:
    """The names of the indices that miss rows, each with what covers them; empty if there are zone maps alone.

    That is "lance_core", "segment" for a further segment by pylance, or for a new index "lance_core rebuild", or
    "rebuild" or, of vectors, "retrain" by pylance.

    Args:
        snapshot: The version.
    """
    due = _find_missing_rows(snapshot)
    return {} if all(kind == "ZONEMAP" for kind, _ in due.values()) else {name: by for name, (_, by) in due.items()}


def _find_missing_rows(snapshot: Snapshot, fragment_ids: frozenset[int] | None = None) -> dict[str, tuple[str, str]]:
    """The kinds of the indices that miss rows, of some fragments or of all, or find wrong ones; and what mends them."""
    facts = read_facts(snapshot, ())
    own_names = {index.name for index in snapshot.manifest.indices if is_supported(index, snapshot.manifest.schema)}
    return {
        name: (index.kind, _choose_extension(facts, index, is_own=name in own_names))
        for name, index in facts.present.items()
        if index.has_old_words
        or facts.missed_by(index) & (facts.fragments.keys() if fragment_ids is None else fragment_ids)
    }


def _choose_extension(facts: TableFacts, index: PresentIndex, *, is_own: bool) -> str:
    """How lance_core or pylance covers the rows that an index misses."""
    if is_own:
        return OWN_REBUILD if index.fault else "lance_core"
    if index.fault and index.metric is not None:
        return "retrain"
    return "rebuild" if index.fault or facts.find_stale_segments(index) else "segment"


def reject_without_search(dataset: Handle | None, declarations: Sequence[IndexDeclaration] = ()) -> None:
    """Make sure that all indices of a table can be built and extended here.

    Args:
        dataset: The table; None if there is none yet.
        declarations: The indices that it is to have.

    Raises:
        UnsupportedError: pylance, which indices of vectors or words need, is not installed.

    Examples:
        >>> maintenance.reject_without_search(lance.write_dataset({"id": [1]}, "flights.lance"))
    """
    names = {each.name or f"on {each.column}" for each in declarations if each.needs_pylance}
    if dataset is not None:
        indices, schema = dataset.snapshot.manifest.indices, dataset.snapshot.manifest.schema
        names |= {each.name for each in indices if not each.is_system and not is_supported(each, schema)}
    if names and find_pylance() is None:
        raise UnsupportedError(f"index {', '.join(sorted(names))}: {INSTALL}")


def _extend_by_pylance(
    dataset: Handle, due: Mapping[str, str], errors: dict[str, Exception], child: ChildProcess
) -> None:
    """Extend indices together, and each alone if that fails; those that fail alone get their errors."""
    for how in ("segment", "rebuild", "retrain"):
        names = [name for name, by in due.items() if by == how]
        for some in ([names] if names else []) + [[name] for name in names if len(names) > 1]:
            try:
                run_extension(dataset, some, how, child, num_indices_to_merge=0)
            except ChildFailedError as error:
                errors |= dict.fromkeys(some, error)
            else:
                for name in some:
                    errors.pop(name, None)
                if some is names:
                    break


def run_extension(dataset: Handle, names: Sequence[str], how: str, child: ChildProcess, **arguments: int) -> None:
    """Let pylance extend indices, or build indices of words again by the parameters that they have.

    Args:
        dataset: The table.
        names: The indices.
        how: What covers them, as `find_uncovered_indices` says.
        child: The process.
        **arguments: Those of pylance's `optimize_indices`.

    Raises:
        ChildFailedError: The process has failed.
    """
    snapshot = dataset.snapshot
    request: dict[str, Any] = {"uri": dataset.uri, "options": dict(snapshot.options)}
    if how != "rebuild":
        chosen = {"retrain": True} if how == "retrain" else arguments
        child.run("extend", {**request, "names": names, "arguments": chosen})
        return
    present = read_facts(snapshot, ()).present
    columns = {node.id: ".".join(path) for path, node in snapshot.manifest.schema.walk_paths()}
    indices = {
        name: {"column": columns[index.field_ids[0]], "kind": index.kind, "parameters": dict(index.parameters)}
        for name in names
        for index in [present[name]]
    }
    child.run("rebuild", {**request, "indices": indices})
