"""Tags that keep versions of an input until an incremental reader has consumed the changes after them.

    changes.<asset key of the reader>-<digest>.<version>

An asset with the metadata `lance/changes` on an input reads incrementally; `LanceDataset.readers` creates the tags. A
run tags the version up to which it reads, before it reads. After its commit, it removes the tags of versions that no
partition of its table needs any more, on any branch: each partition needs the version that it consumed last, and the
version before, which becomes the last one if the run is undone. An undo tags these versions again, if they exist. A tag
expires if no run has renewed it for a number of days, which the input's configuration sets
(`lance-dagster.changes.days`, 30 by default): maintenance removes it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import lance_core
from lance_core.errors import NotFoundError, VersionNotFoundError
from lance_dagster.lineage.watermarks import InputPosition, needed_versions, positions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lance_dagster.lineage.history import TableInput, TableVersion


def hold_consumed_and_release_older(
    dataset: lance_core.LanceDataset,
    table: lance_core.LanceDataset,
    reader: str,
    name: str,
    moves: Iterable[lance_core.WatermarkMove] = (),
) -> None:
    """Tag the consumed version of an input for a reader, and untag older ones that none of its partitions needs.

    Args:
        dataset: The input at the version that was consumed.
        table: The reader's table after its commit.
        reader: The asset that reads the changes.
        name: The input's name in the watermarks of the reader's table.
        moves: The moves of watermarks that the commit made, which an undo would reverse.
    """
    dataset.readers.hold(reader)  # a run that consumed a later version may have removed this tag meanwhile
    before = [InputPosition.of(move.before) for move in moves if move.before is not None]
    needed = {position.version for position in before if position.branch == dataset.branch}
    needed |= needed_versions(table, name, dataset.branch)
    for line in {None, *table.branches.list()} - {table.branch}:
        try:
            needed |= needed_versions(table.checkout_version((line, None)), name, dataset.branch)
        except VersionNotFoundError:  # the branch was removed meanwhile
            continue
    dataset.readers.release(reader, needed)


def hold_after_undo(
    table: lance_core.LanceDataset, undone_versions: Sequence[TableVersion], storage_options: Mapping[str, str] | None
) -> None:
    """Tag the versions of inputs that a table has consumed last after an undo, if they exist.

    Versions that the undone run consumed stay tagged, because another run may be reading up to them; the next run that
    commits removes their tags.

    Args:
        table: The table after the undo.
        undone_versions: The versions that were undone.
        storage_options: The options by which the inputs are reached.

    Raises:
        LanceError: An input cannot be read, or its tags cannot be written.
    """
    names = {move.name for version in undone_versions for move in lance_core.WatermarkMove.of(version.properties)}
    done = set()
    for read, reader in (
        (read, reader) for version in undone_versions for read in version.inputs for reader in version.assets
    ):
        if (read.uri, reader) in done:
            continue
        done.add((read.uri, reader))
        for name in {read.asset, f"{read.asset} for {reader}"} & names:
            for position in positions_of(table, name):
                _hold(read, reader, position, storage_options)


def _hold(read: TableInput, reader: str, position: InputPosition, options: Mapping[str, str] | None) -> None:
    if read.uri is None:
        return
    with suppress(NotFoundError):  # the version was cleaned up, or the table was dropped
        consumed = lance_core.dataset(read.uri, (position.branch, position.version), storage_options=options)
        if consumed.identity != position.identity:
            return
        consumed.readers.hold(reader)
        if position.branch is None and position.since:
            consumed.checkout_version((None, position.since)).readers.hold(reader)
