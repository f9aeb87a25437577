"""Undo the change of one run to a table by one new commit, if that is exact; otherwise report the reason.

    only maintenance followed the run, and
    changes that were undone themselves      -> the version before the run is restored. If indices were built since,
                                                the undo is done by fragments, as below, to keep them; if that is
                                                impossible, the lost indices are named
    other writes followed, elsewhere         -> one Update: the fragments that the run added are removed, and those that
                                                it removed are added again
    the run set columns                      -> the files of these columns are replaced by the earlier ones (`columns`)
    others changed its fragments, or wrote
    to its partitions; the version before it,
    or one after it that may have, was
    cleaned up; it created the table ...     -> rejected, with the reason

`plan_undo` writes nothing. `Undo.commit` must follow the planned version directly: a commit in between is a conflict.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import lance_core
from lance_core.dataset import LANCE_COMMIT_MESSAGE_KEY
from lance_core.errors import LanceError, RetryableConflictError, VersionNotFoundError
from lance_dagster import properties as prop
from lance_dagster.lineage.history import TableVersion, partitions_of, read_history
from lance_dagster.lineage.reader_tags import hold_after_undo
from lance_dagster.lineage.runs import versions_of_run
from lance_dagster.undo.columns import (
    SYSTEM,
    describe_emptied_indices,
    find_emptied_indices,
    plan_columns_undo,
    sets_columns,
)

_log = logging.getLogger(__name__)
_PLAIN: Final = ("Append", "Update", "Delete")
_UNDONE: Final = "it was undone before"
_LATER_FIRST: Final = "undo the later runs first"


class CannotUndoError(LanceError):
    """A run's change cannot be undone exactly; the message has the reason."""

    code = "cannot-undo"


class AlreadyUndoneError(CannotUndoError):
    """A run's change was undone before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """The undo of a run's change to one branch of a table.

    Attributes:
        dataset: The branch of the table at the version for which the undo was planned.
        run_id: The run.
        run_versions: The versions that the run made.
        how: A description of the undo, for messages.
        operation: The operation to commit.
        rows_after: The number of live rows after the undo.
        moves: The moves that reset the watermarks of incremental inputs.
        indices_lost: The indices that are missing or cover no row after the undo, and must be built again.
    """

    dataset: lance_core.LanceDataset = field(repr=False)
    run_id: str
    run_versions: tuple[TableVersion, ...]
    how: str
    operation: lance_core.LanceOperation.BaseOperation = field(repr=False)
    rows_after: int
    moves: tuple[lance_core.WatermarkMove, ...] = ()
    indices_lost: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of live rows before the undo."""
        return self.dataset.count_rows()

    @property
    def versions(self) -> tuple[int, ...]:
        """The numbers of the versions that the run made."""
        return tuple(version.version for version in self.run_versions)

    @property
    def assets(self) -> list[str]:
        """The assets for which the undone versions were made; empty if the versions name none."""
        return sorted({name for version in self.run_versions for name in version.assets})

    def commit(self, storage_options: Mapping[str, str] | None = None) -> int:
        """Commit the undo; returns the new version.

        Args:
            storage_options: The options by which incremental inputs of the run are reached, whose versions are tagged
                again; None for those of the table.

        Raises:
            RetryableConflictError: Another commit came between; nothing was changed.
        """
        head = self.dataset.version

        @contextlib.contextmanager
        def directly(version: int) -> Iterator[None]:
            if version != head + 1:
                raise RetryableConflictError(
                    f"{self.dataset.uri}: version {version - 1} was committed meanwhile; nothing was undone"
                )
            yield

        properties = {
            prop.UNDO_RUN_ID: self.run_id,
            prop.UNDONE_VERSIONS: json.dumps(self.versions),
            prop.TAKES_BACK: ",".join(map(str, self.versions)),
            **({prop.ASSET_KEY: prop.join_values(self.assets)} if self.assets else {}),
            **_partition_properties(self.run_versions),
            **lance_core.WatermarkMove.properties(self.moves),
            **_column_properties(self.run_versions),
            LANCE_COMMIT_MESSAGE_KEY: f"undo of run {self.run_id}",
        }
        transaction = lance_core.Transaction(
            read_version=head, operation=self.operation, transaction_properties=properties
        )
        undone = lance_core.LanceDataset.commit(self.dataset, transaction, commit_lock=directly)
        try:
            hold_after_undo(undone, self.run_versions, storage_options or self.dataset.snapshot.options)
        except (LanceError, OSError) as error:  # the undo is committed
            _log.warning("%s: versions of its inputs could not be tagged: %s", self.dataset.uri, error)
        return undone.version


def plan_undo(dataset: lance_core.LanceDataset, run_id: str) -> Undo | None:
    """Plan the undo of a run's change to a branch; None if the run changed nothing there.

    Args:
        dataset: The newest version of the branch.
        run_id: The run.

    Raises:
        CannotUndoError: The change cannot be undone exactly.
    """
    try:
        return _plan(dataset, run_id)
    except CannotUndoError as error:
        said = f"run {run_id} cannot be undone exactly in {dataset.uri}: {error}"
        raise type(error)(said) from error.__cause__


def _plan(dataset: lance_core.LanceDataset, run_id: str) -> Undo | None:
    """The undo, see `plan_undo`; an error has only the reason."""
    run_versions = versions_of_run(dataset, run_id)
    _check_recorded(dataset, run_id, run_versions)
    if not run_versions:
        return None
    for version in run_versions:
        if run_id != version.committed_by and len(version.writers) > 1:
            raise CannotUndoError(_explain_joined_runs(version))
    first, versions = run_versions[0].version, {version.version for version in run_versions}
    later = list(read_history(dataset, after=first - 1, count_changes=False))[::-1]
    other_versions = [version for version in later if version.version not in versions]
    if any(version.undid == run_id for version in later):
        raise AlreadyUndoneError(_UNDONE)
    before, removed = _before(dataset, first), _find_removed_versions(dataset, first)
    undo = partial(Undo, dataset=dataset, run_id=run_id, run_versions=tuple(run_versions))
    lost = _built_since(dataset, before)
    is_alone = not removed and all(version.is_maintenance for version in _remaining_versions(other_versions))
    if lost or not is_alone or all(version.touches_no_rows for version in run_versions):
        try:
            return undo(**_plan_by_fragments(dataset, run_versions, before, other_versions, removed))
        except CannotUndoError:  # an undo by fragments keeps the indices, and the data version if no row changes
            if not is_alone:
                raise
    return undo(
        how=f"version {before.version} is restored{_describe_lost_indices(lost)}",
        operation=lance_core.LanceOperation.Restore(version=before.version),
        rows_after=before.count_rows(),
        indices_lost=tuple(lost),
    )


def _check_recorded(dataset: lance_core.LanceDataset, run_id: str, run_versions: Sequence[TableVersion]) -> None:
    """Check that the versions which the table has recorded for the run are there, unless they were undone before.

    Raises:
        AlreadyUndoneError: The run was undone before.
        CannotUndoError: A version was cleaned up.
    """
    fork = 0 if dataset.branch is None else int(dataset.branches.list()[dataset.branch]["parent_version"])
    recorded = {
        attempt.version for attempt in dataset.committed_attempts() if attempt.note == run_id and attempt.version > fork
    }
    recorded |= {fill.version for fill in dataset.committed_fills() if fill.note == run_id and fill.version > fork}
    missing = recorded - {version_ref["version"] for version_ref in dataset.version_refs()}
    if not missing:
        return
    first = min([*missing, *(version.version for version in run_versions)])
    if any(version.undid == run_id for version in read_history(dataset, after=first, count_changes=False)):
        raise AlreadyUndoneError(_UNDONE)
    raise CannotUndoError(f"its version {max(missing)} was cleaned up")


def _built_since(dataset: lance_core.LanceDataset, before: lance_core.LanceDataset) -> dict[str, str]:
    """The indices that an older version does not have, each with its kind and columns."""
    if not dataset.has_index:
        return {}
    index_names = {index.name for index in before.describe_indices()} if before.has_index else set()
    return {
        index.name: f"{index.index_type} on {', '.join(index.field_names)}"
        for index in dataset.describe_indices()
        if index.name not in index_names and not index.name.startswith(SYSTEM)
    }


def _describe_lost_indices(lost: Mapping[str, str]) -> str:
    """The indices that a restore loses, and the remedy, for the description of an undo."""
    if not lost:
        return ""
    names = ", ".join(f"{name!r} ({what})" for name, what in lost.items())
    return f", without the indices that were built since: {names}; build them again, by create_scalar_index or pylance"


def _explain_joined_runs(version: TableVersion) -> str:
    """The reason for which one of several runs that a promotion joins cannot be undone by itself, and the remedy."""
    reason = f"version {version.version} is the promotion of a branch to which {len(version.writers)} runs wrote"
    if version.committed_by:
        return f"{reason}; undo run {version.committed_by}, which promoted them"
    return (
        f"{reason}, and no run of Dagster promoted it. If nothing was written since, version {version.version - 1} can "
        f"be restored: dataset.checkout_version({version.version - 1}).restore()"
    )


def _before(dataset: lance_core.LanceDataset, first: int) -> lance_core.LanceDataset:
    if first == 1:
        raise CannotUndoError("it created the table; drop the table instead")
    try:
        return dataset.checkout_version(first - 1)
    except VersionNotFoundError as error:
        raise CannotUndoError(f"version {first - 1}, which it changed, was cleaned up") from error


def _find_removed_versions(dataset: lance_core.LanceDataset, first: int) -> list[int]:
    """The versions after another one that were cleaned up, so that what they changed is not known."""
    versions = {version_ref["version"] for version_ref in dataset.version_refs()}
    return [version for version in range(first + 1, dataset.version) if version not in versions]


def _plan_by_fragments(
    dataset: lance_core.LanceDataset,
    run_versions: Sequence[TableVersion],
    before: lance_core.LanceDataset,
    other_versions: Sequence[TableVersion],
    removed: Sequence[int],
) -> dict[str, Any]:
    """The attributes of the undo of a change that later commits of others followed, by fragments.

    Raises:
        CannotUndoError: The change cannot be undone exactly.
    """
    last = run_versions[-1].version
    writes = [version.version for version in other_versions if not version.is_maintenance]
    between = sorted(version for version in (*writes, *removed) if version < last)
    if between:
        raise CannotUndoError(f"versions {between}, which others wrote or which were cleaned up, are between its own")
    if sets_columns(run_versions):
        versions = [version.version for version in run_versions]
        columns = plan_columns_undo(before, dataset.checkout_version((dataset.branch, last)), dataset, versions)
        if columns is not None:
            if columns.operation is None:
                raise CannotUndoError(f"{columns.how}; {_LATER_FIRST}")
            moves = _watermarks_back(dataset, run_versions)
            return {
                "how": columns.how,
                "operation": columns.operation,
                "rows_after": dataset.count_rows(),
                "moves": moves,
                "indices_lost": columns.indices_lost,
            }
    odd = [f"{version.version} ({version.operation})" for version in run_versions if version.operation not in _PLAIN]
    if odd:
        raise CannotUndoError(
            f"others wrote after version {', '.join(odd)}, which cannot be undone by fragments; {_LATER_FIRST}"
        )
    writes_of_others = [version for version in _remaining_versions(other_versions) if not version.keeps_rows]
    _check_partitions(dataset, run_versions, writes_of_others, removed)
    after = dataset.checkout_version(last)
    if not before.lance_schema_bytes == after.lance_schema_bytes == dataset.lance_schema_bytes:
        raise CannotUndoError(f"the columns have changed; {_LATER_FIRST}")
    operation = _inverse(dataset, before, after)
    stay = {fragment.fragment_id for fragment in dataset.get_fragments()}.difference(operation.removed_fragment_ids)
    lost = find_emptied_indices(dataset, stay.union(fragment.id for fragment in operation.new_fragments if fragment.id))
    return {
        "how": f"{len(operation.removed_fragment_ids)} fragments are removed, {len(operation.new_fragments)} added "
        f"again, {len(operation.updated_fragments)} restored{describe_emptied_indices(lost)}",
        "operation": operation,
        "rows_after": dataset.count_rows() + before.count_rows() - after.count_rows(),
        "moves": _watermarks_back(dataset, run_versions),
        "indices_lost": lost,
    }


def _watermarks_back(
    dataset: lance_core.LanceDataset, run_versions: Sequence[TableVersion]
) -> tuple[lance_core.WatermarkMove, ...]:
    """The moves that reverse those of a run; a restore resets the watermarks without them.

    Raises:
        CannotUndoError: A later run has moved the same watermarks.
    """
    ends: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    for version in run_versions:
        for move in lance_core.WatermarkMove.of(version.properties):
            for part in move.parts:
                ends[move.name, part] = ends.get((move.name, part), (move.before, None))[0], move.after
    moves = []
    for (name, part), (before, after) in ends.items():
        now = dataset.watermarks(name).get(part)
        if (None if now is None else now.position) != after:
            raise CannotUndoError(f"a later run has consumed later changes of {name}; undo that run first")
        moves.append(lance_core.WatermarkMove(name=name, parts=(part,), before=after, after=before))
    return tuple(moves)


def _remaining_versions(versions: Sequence[TableVersion]) -> list[TableVersion]:
    """The versions without those that were undone, and without the versions that undid them."""
    numbers = {version.version for version in versions}
    undos = [version for version in versions if version.undone_versions and numbers.issuperset(version.undone_versions)]
    undone = {number for version in undos for number in (version.version, *version.undone_versions)}
    return [version for version in versions if version.version not in undone]


def _check_partitions(
    dataset: lance_core.LanceDataset,
    run_versions: Sequence[TableVersion],
    other_versions: Sequence[TableVersion],
    removed: Sequence[int],
) -> None:
    """Reject the undo if others wrote to the same partitions, or may have.

    Raises:
        CannotUndoError: Another version wrote to the same partition, names no partitions, or was cleaned up.
    """
    partition_lists = [version.partitions for version in run_versions]
    if all(keys is None for keys in partition_lists):
        return
    partition_keys: set[str] = set()
    for keys in partition_lists:
        if not isinstance(keys, list):
            raise CannotUndoError("it wrote too many partitions for the table to name them all")
        partition_keys |= set(keys)
    if other_versions and any(prop.FOREIGN_BRANCH_VERSIONS in version.properties for version in run_versions):
        raise CannotUndoError(f"it promoted changes of others, perhaps to any partition; {_LATER_FIRST}")
    if removed:
        raise CannotUndoError(f"version {removed[0]} was cleaned up, and the partitions that it wrote are not known")
    for version in other_versions:
        keys = _changed_partitions(dataset, version)
        if not isinstance(keys, list):
            raise CannotUndoError(f"version {version.version} does not name the partitions that it wrote")
        common = sorted(partition_keys & set(keys))
        if common:
            raise CannotUndoError(f"version {version.version} wrote to partition {common[0]!r} as well")


def _changed_partitions(dataset: lance_core.LanceDataset, entry: TableVersion) -> Any:
    """The partitions that a version wrote; for an undo that names none, the partitions of the undone versions.

    None if they are not known, as of a promotion with changes of others.
    """
    if prop.FOREIGN_BRANCH_VERSIONS in entry.properties:
        return None
    if entry.partitions is not None or not entry.undone_versions:
        return entry.partitions
    undone = [_read_version(dataset, version) for version in entry.undone_versions]
    return partitions_of([version for version in undone if version is not None]) if None not in undone else None


def _read_version(dataset: lance_core.LanceDataset, version: int) -> TableVersion | None:
    """One version of the branch; None if it was cleaned up."""
    try:
        handle = dataset.checkout_version((dataset.branch, version))
    except VersionNotFoundError:
        return None
    return next(read_history(handle, after=version - 1, count_changes=False), None)


def _partition_properties(versions: Sequence[TableVersion]) -> dict[str, str]:
    """The property with the partitions that an undo changes, if they are known."""
    keys = partitions_of(versions)
    return {prop.PARTITION_KEYS: prop.listed_keys(json.dumps(keys))} if isinstance(keys, list) else {}


def _column_properties(versions: Sequence[TableVersion]) -> dict[str, str]:
    """The property with the columns that an undo changes, if it changes only columns: then it is no write of rows."""
    named = [version.properties.get(prop.COLUMNS) for version in versions]
    columns = {column for names in named for column in prop.split_values(names)}
    return {} if None in named else {prop.COLUMNS: json.dumps(sorted(columns))}


def _inverse(
    dataset: lance_core.LanceDataset, before: lance_core.LanceDataset, after: lance_core.LanceDataset
) -> lance_core.LanceOperation.Update:
    old, new, now = (
        {fragment.fragment_id: fragment.metadata for fragment in ds.get_fragments()} for ds in (before, after, dataset)
    )
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    touched = [key for key in (*added, *changed) if now.get(key) != new[key]]
    if touched:
        raise CannotUndoError(f"fragments {touched} with its rows were changed since")
    with_deletions = [key for key in removed if old[key].deletion_file is not None]
    if with_deletions:
        raise CannotUndoError(f"fragments {with_deletions}, which it removed, have deletion files, bound to their ids")
    if changed and dataset.has_index:
        raise CannotUndoError(f"indices may lack rows that would be restored in fragments {changed}")
    return lance_core.LanceOperation.Update(
        removed_fragment_ids=added,
        updated_fragments=[old[key] for key in changed],
        new_fragments=_bring_back(dataset, before, [old[key] for key in removed]),
        fields_for_preserving_frag_bitmap=sorted(dataset.lance_schema.record.by_id()),
    )


def _bring_back(
    dataset: lance_core.LanceDataset, before: lance_core.LanceDataset, fragments: Sequence[lance_core.FragmentMetadata]
) -> list[lance_core.FragmentMetadata]:
    """Fragments of an earlier version as fragments to add.

    They come back as written by the undo, so that readers of changes see them, under their row ids, and under their own
    ids, by which indices that are as they were still cover them. Bitmaps of indices that were built since can list the
    ids without having the rows: then the fragments get new ids. Under a new id no index covers them, and an index of
    words would have their rows twice once it is extended, so that the rows get new ids as well. So do rows that were
    set again: an index of words can have their old words, which are looked for by the versions that end here.
    """
    segments, earlier = _segments(dataset), _segments(before)
    lost = {number for uuid, (_, numbers) in segments.items() if uuid not in earlier for number in numbers} | {0}
    has_words = any(kind == "Inverted" for kind, _ in segments.values())
    changes = {"created_at_version_meta": None, "last_updated_at_version_meta": None}
    new = changes | {"id": 0} | ({"row_id_meta": None} if has_words else {})
    return [
        replace(fragment, **(new if fragment.id in lost or (has_words and _is_set_again(fragment)) else changes))
        for fragment in fragments
    ]


def _is_set_again(fragment: lance_core.FragmentMetadata) -> bool:
    """Whether rows of a fragment can have had other values, whole rows or columns in place."""
    has_replaced_columns = any(min(file.fields) < 0 for file in fragment.files)
    return has_replaced_columns or fragment.created_at_version_meta != fragment.last_updated_at_version_meta


def _segments(dataset: lance_core.LanceDataset) -> dict[str, tuple[str, Collection[int]]]:
    """The segments of the indices by uuid, each with its kind and the fragments that it lists."""
    return {
        segment.uuid: (index.index_type, segment.fragment_ids)
        for index in (dataset.describe_indices() if dataset.has_index else ())
        for segment in index.segments
    }
