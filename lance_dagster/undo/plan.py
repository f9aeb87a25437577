"""Undo the change of one run to a table by one new commit, if that is exact; otherwise report the reason.

    only maintenance came after it, and
    changes that were undone themselves      -> the version before it is restored; where indices were built since,
                                                that is done fragment by fragment, as below, if possible, so that they
                                                stay; if not, they are named
    others came after it, elsewhere          -> one Update: the fragments that it added are removed, those that it
                                                removed return as they were
    it set columns                           -> the files of these columns are exchanged for those before (`columns`)
    others changed its fragments, or wrote
    to its partitions; the version before it
    was cleaned up; it created the table ... -> rejected, with the reason

`plan_undo` writes nothing. `Undo.commit` must follow the planned version directly: a commit in between is a conflict.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import lance_core
from lance_core.dataset import LANCE_COMMIT_MESSAGE_KEY
from lance_core.errors import LanceError, RetryableConflictError, VersionNotFoundError
from lance_dagster.lineage.history import TableVersion, partitions_of, read_history
from lance_dagster.lineage.reader_tags import hold_after_undo
from lance_dagster.lineage.runs import versions_of_run
from lance_dagster.properties import (
    ASSET_KEY,
    COLUMNS,
    PARTITION_KEYS,
    TAKES_BACK,
    UNDO_RUN_ID,
    UNDONE_VERSIONS,
    joined,
    listed_keys,
    several,
)
from lance_dagster.undo.columns import ColumnsBack, columns_back, sets_columns

__all__ = ["AlreadyUndoneError", "CannotUndoError", "Undo", "plan_undo"]


_log = logging.getLogger(__name__)
_PLAIN: Final = ("Append", "Update", "Delete")
_SYSTEM: Final = "__lance_"
"""The beginning of the names of indices that are none of rows."""


class CannotUndoError(LanceError):
    """A run's change cannot be taken back exactly; the message says why."""

    code = "cannot-undo"


class AlreadyUndoneError(CannotUndoError):
    """A run's change was taken back before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """The undoing of a run's change to one table.

    Attributes:
        dataset: The branch of the table at the version that was looked at.
        run_id: The run.
        made: The versions that it made.
        how: A description of the undo, for messages.
        operation: The operation to commit.
        rows: Live rows as they are.
        rows_after: Live rows as they will be.
        moves: The moves that bring back the watermarks of incremental inputs.
        indices_lost: The indices that were built since the version that is restored, and have to be built again.
    """

    dataset: lance_core.LanceDataset = field(repr=False)
    run_id: str
    made: tuple[TableVersion, ...]
    how: str
    operation: lance_core.LanceOperation.BaseOperation = field(repr=False)
    rows: int
    rows_after: int
    moves: tuple[lance_core.WatermarkMove, ...] = ()
    indices_lost: tuple[str, ...] = ()

    @property
    def versions(self) -> tuple[int, ...]:
        """The numbers of the versions that it made."""
        return tuple(one.version for one in self.made)

    @property
    def assets(self) -> list[str]:
        """The assets that the undone versions were made for; none if they name none."""
        return sorted({name for one in self.made for name in one.assets})

    def commit(self, storage_options: Mapping[str, str] | None = None) -> int:
        """Commit; returns the new version.

        Args:
            storage_options: How to reach incremental inputs of the run, whose versions are held again.

        Raises:
            RetryableConflictError: Another commit came between; nothing was changed.
        """
        head = self.dataset.version

        @contextlib.contextmanager
        def directly(version: int) -> Iterator[None]:
            if version != head + 1:
                raise RetryableConflictError(
                    f"{self.dataset.uri}: version {version - 1} was committed meanwhile; nothing was taken back"
                )
            yield

        properties = {
            UNDO_RUN_ID: self.run_id,
            UNDONE_VERSIONS: json.dumps(self.versions),
            TAKES_BACK: ",".join(map(str, self.versions)),
            **({ASSET_KEY: joined(self.assets)} if self.assets else {}),
            **_partition_properties(self.made),
            **lance_core.WatermarkMove.properties(self.moves),
            **_column_properties(self.made),
            LANCE_COMMIT_MESSAGE_KEY: f"undo of run {self.run_id}",
        }
        transaction = lance_core.Transaction(
            read_version=head, operation=self.operation, transaction_properties=properties
        )
        undone = lance_core.LanceDataset.commit(self.dataset, transaction, commit_lock=directly)
        try:
            hold_after_undo(undone, self.made, storage_options)
        except (LanceError, OSError) as error:  # the undo is done
            _log.warning("%s: versions of its inputs could not be held: %s", self.dataset.uri, error)
        return undone.version


def plan_undo(dataset: lance_core.LanceDataset, run_id: str) -> Undo | None:
    """Plan the undo of a run's change of a branch; None if the run changed nothing there.

    Args:
        dataset: The newest version of the branch.
        run_id: The run.

    Raises:
        CannotUndoError: The change cannot be undone exactly.
    """
    made = versions_of_run(dataset, run_id)
    if not made:
        return None
    for one in made:
        if run_id != one.committed_by and len(one.writers) > 1:
            raise _rejected(dataset, run_id, _of_several(one))
    versions = tuple(one.version for one in made)
    later = list(read_history(dataset, after=versions[0] - 1, count_changes=False))[::-1]
    others = [one for one in later if one.version not in versions]
    if any(one.undid == run_id for one in later):
        raise AlreadyUndoneError(str(_rejected(dataset, run_id, "it has been taken back already")))
    before = _before(dataset, run_id, versions[0])
    if not all(one.is_maintenance for one in _still_there(others)):
        return _reversed(dataset, run_id, made, before, others)
    lost = _built_since(dataset, before)
    if lost:
        with contextlib.suppress(CannotUndoError):  # fragment by fragment the indices stay
            return _reversed(dataset, run_id, made, before, others)
    return Undo(
        dataset=dataset,
        run_id=run_id,
        made=tuple(made),
        how=f"version {before.version} is restored{_said_of(lost)}",
        operation=lance_core.LanceOperation.Restore(version=before.version),
        rows=dataset.count_rows(),
        rows_after=before.count_rows(),
        indices_lost=tuple(lost),
    )


def _built_since(dataset: lance_core.LanceDataset, before: lance_core.LanceDataset) -> dict[str, str]:
    """The indices that an older version lacks, each with its kind and columns."""
    if not dataset.has_index:
        return {}
    known = {one.name for one in before.describe_indices()} if before.has_index else set()
    return {
        one.name: f"{one.index_type} on {', '.join(one.field_names)}"
        for one in dataset.describe_indices()
        if one.name not in known and not one.name.startswith(_SYSTEM)
    }


def _said_of(lost: Mapping[str, str]) -> str:
    """The indices that a restore loses, and the remedy, for the description of an undo."""
    if not lost:
        return ""
    names = ", ".join(f"{name!r} ({what})" for name, what in lost.items())
    return f", without the indices that were built since: {names}; build them again, by create_scalar_index or pylance"


def _of_several(made: TableVersion) -> str:
    """The reason why one of several runs that a promotion joins cannot be undone by itself, and what can be undone."""
    reason = f"version {made.version} holds the writes of {len(made.writers)} runs at once from a branch"
    if made.committed_by:
        return f"{reason}; take back run {made.committed_by}, which promoted them"
    return (
        f"{reason}, which no run of Dagster has promoted, so that no run names them all. If nothing was written since, "
        f"version {made.version - 1} can be restored: dataset.checkout_version({made.version - 1}).restore()"
    )


def _before(dataset: lance_core.LanceDataset, run_id: str, first: int) -> lance_core.LanceDataset:
    if first == 1:
        raise _rejected(dataset, run_id, "it created the table; drop the table instead")
    try:
        return dataset.checkout_version(first - 1)
    except VersionNotFoundError as error:
        raise _rejected(dataset, run_id, f"version {first - 1}, which it changed, was cleaned up") from error


def _reversed(
    dataset: lance_core.LanceDataset,
    run_id: str,
    made: Sequence[TableVersion],
    before: lance_core.LanceDataset,
    others: Sequence[TableVersion],
) -> Undo:
    """Undo a change with later commits of others: fragment by fragment."""
    last = made[-1].version
    between = [one.version for one in others if one.version < last and not one.is_maintenance]
    if between:
        raise _rejected(dataset, run_id, f"versions {between} of others lie between its own")
    if sets_columns(made):
        versions = [one.version for one in made]
        columns = columns_back(before, dataset.checkout_version((dataset.branch, last)), dataset, versions)
        if columns is not None:
            return _of_columns(dataset, run_id, made, columns)
    odd = [f"{one.version} ({one.operation})" for one in made if one.operation not in _PLAIN]
    if odd:
        raise _rejected(dataset, run_id, f"others came after version {', '.join(odd)}, which is more than rows")
    _check_partitions(dataset, run_id, made, [one for one in _still_there(others) if not one.keeps_rows])
    after = dataset.checkout_version(last)
    if not before.lance_schema_bytes == after.lance_schema_bytes == dataset.lance_schema_bytes:
        raise _rejected(dataset, run_id, "the columns have changed")
    operation = _inverse(dataset, run_id, before, after)
    change = before.count_rows() - after.count_rows()
    return Undo(
        dataset=dataset,
        run_id=run_id,
        made=tuple(made),
        how=f"{len(operation.removed_fragment_ids)} fragments go, {len(operation.new_fragments)} return, "
        f"{len(operation.updated_fragments)} are as they were",
        operation=operation,
        rows=dataset.count_rows(),
        rows_after=dataset.count_rows() + change,
        moves=_watermarks_back(dataset, run_id, made),
    )


def _of_columns(
    dataset: lance_core.LanceDataset, run_id: str, made: Sequence[TableVersion], columns: ColumnsBack
) -> Undo:
    if columns.operation is None:
        raise _rejected(dataset, run_id, columns.how)
    rows = dataset.count_rows()
    return Undo(
        dataset=dataset,
        run_id=run_id,
        made=tuple(made),
        how=columns.how,
        operation=columns.operation,
        rows=rows,
        rows_after=rows,
        moves=_watermarks_back(dataset, run_id, made),
    )


def _watermarks_back(
    dataset: lance_core.LanceDataset, run_id: str, made: Sequence[TableVersion]
) -> tuple[lance_core.WatermarkMove, ...]:
    """The moves that take back those of a run; a restore brings the watermarks back by itself."""
    ends: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    for one in made:
        for move in lance_core.WatermarkMove.of(one.properties):
            for part in move.parts:
                ends[move.name, part] = ends.get((move.name, part), (move.before, None))[0], move.after
    found = []
    for (name, part), (before, after) in ends.items():
        now = dataset.watermarks(name).get(part)
        if (None if now is None else now.position) != after:
            raise _rejected(
                dataset,
                run_id,
                f"a later run has consumed the changes of {name} that came after its own; undo it first",
            )
        found.append(lance_core.WatermarkMove(name=name, parts=(part,), before=after, after=before))
    return tuple(found)


def _still_there(others: Sequence[TableVersion]) -> list[TableVersion]:
    """Versions, newest first, without undone versions and without the versions that undid them."""
    numbers = {one.version for one in others}
    undos = [one for one in others if one.undone_versions and numbers.issuperset(one.undone_versions)]
    undone = {number for one in undos for number in (one.version, *one.undone_versions)}
    return [one for one in others if one.version not in undone]


def _check_partitions(
    dataset: lance_core.LanceDataset, run_id: str, made: Sequence[TableVersion], others: Sequence[TableVersion]
) -> None:
    """Reject if others wrote to the same partitions, or may have."""
    own = [one.partitions for one in made]
    if all(keys is None for keys in own):
        return
    known: set[str] = set()
    for keys in own:
        if not isinstance(keys, list):
            raise _rejected(dataset, run_id, "it wrote too many partitions for the table to name them all")
        known |= set(keys)
    for one in others:
        keys = _changed_partitions(dataset, one)
        if not isinstance(keys, list):
            raise _rejected(dataset, run_id, f"version {one.version} does not say which partitions it wrote")
        common = sorted(known & set(keys))
        if common:
            raise _rejected(dataset, run_id, f"version {one.version} wrote to partition {common[0]!r} as well")


def _changed_partitions(dataset: lance_core.LanceDataset, entry: TableVersion) -> Any:
    """The partitions that a version wrote; for an undo that names none, those of the versions that it undid."""
    if entry.partitions is not None or not entry.undone_versions:
        return entry.partitions
    undone = [_made_in(dataset, version) for version in entry.undone_versions]
    return partitions_of([found for found in undone if found is not None]) if None not in undone else None


def _made_in(dataset: lance_core.LanceDataset, version: int) -> TableVersion | None:
    """One version of the branch; None if it was cleaned up."""
    try:
        handle = dataset.checkout_version((dataset.branch, version))
    except VersionNotFoundError:
        return None
    return next(read_history(handle, after=version - 1, count_changes=False), None)


def _partition_properties(made: Sequence[TableVersion]) -> dict[str, str]:
    """The partitions that an undo changes, as commits of runs name them."""
    keys = partitions_of(made)
    return {PARTITION_KEYS: listed_keys(json.dumps(keys))} if isinstance(keys, list) else {}


def _column_properties(made: Sequence[TableVersion]) -> dict[str, str]:
    """The columns that an undo changes, if it changes columns alone: then it is not a write of rows."""
    named = [one.properties.get(COLUMNS) for one in made]
    columns = {column for names in named for column in several(names)}
    return {} if None in named else {COLUMNS: json.dumps(sorted(columns))}


def _inverse(
    dataset: lance_core.LanceDataset, run_id: str, before: lance_core.LanceDataset, after: lance_core.LanceDataset
) -> lance_core.LanceOperation.Update:
    old, new, now = ({one.fragment_id: one.metadata for one in ds.get_fragments()} for ds in (before, after, dataset))
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    touched = [key for key in (*added, *changed) if now.get(key) != new[key]]
    if touched:
        raise _rejected(dataset, run_id, f"fragments {touched} of its rows were changed since")
    if removed and dataset.has_stable_row_ids:
        raise _rejected(dataset, run_id, "rows with stable ids would return under others")
    holed = [key for key in removed if old[key].deletion_file is not None]
    if holed:
        raise _rejected(dataset, run_id, f"fragments {holed} had deleted rows, whose list belongs to their ids")
    if changed and dataset.has_index:
        raise _rejected(dataset, run_id, f"indices may lack rows that would return to fragments {changed}")
    return lance_core.LanceOperation.Update(
        removed_fragment_ids=added,
        updated_fragments=[old[key] for key in changed],
        new_fragments=[old[key] for key in removed],
    )


def _rejected(dataset: lance_core.LanceDataset, run_id: str, reason: str) -> CannotUndoError:
    return CannotUndoError(f"run {run_id} cannot be taken back exactly in {dataset.uri}: {reason}")
