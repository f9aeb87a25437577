"""Whether the cells of a fragment were computed from the inputs that it has: what the versions of rows do not show.

Most changes of inputs record the version in which each row was changed. These do not: pylance's `update_columns`
without offsets, which puts a file with the column in the place of another one, and columns that are renamed. A file of
computed columns therefore has a digest of the places of their inputs in its name, a file and a column of it each:

    data/<new name>-<digest>.lance

The rows of a fragment in which it differs are compared. A compaction writes inputs and cells to one file, which has no
such name: it is trusted if no transaction since the newest commit of cells may have set inputs in that way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias
from zlib import crc32

from lance_core._proto import table_pb2
from lance_core.commit.history import find_transaction
from lance_core.table.fragment import DataFile
from lance_core.table.operations import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Project,
    ReserveFragments,
    Rewrite,
    UnknownOperation,
    Update,
    UpdateConfig,
)
from lance_core.table.paths import new_data_file_name, origin_of
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.references import dataset_store, load_branch

_KEEPING: Final = (Append, CreateIndex, Delete, ReserveFragments, Rewrite, UpdateConfig)


ColumnFile: TypeAlias = DataFile | table_pb2.DataFile
"""A data file of a fragment, as a record or as its message."""


def digest_places(files: Iterable[ColumnFile], input_ids: Collection[int]) -> str:
    """The digest of the places of the inputs of a fragment; `input_ids` has all of their fields, in order."""
    places = dict.fromkeys(input_ids, "")
    for file in files:
        for field_id, column in zip(file.fields, file.column_indices, strict=False):
            if field_id in places:
                places[field_id] = f"{origin_of(file.path)}:{column}"
    return f"{crc32('|'.join(places.values()).encode()):08x}"


def name_file(files: Iterable[ColumnFile], input_ids: Collection[int]) -> str:
    """A new name for the file of columns that are computed from the inputs of a fragment."""
    return f"{new_data_file_name().removesuffix('.lance')}-{digest_places(files, input_ids)}.lance"


def is_in_step(
    files: Collection[ColumnFile],
    state_ids: frozenset[int],
    input_ids: Collection[int],
    is_trusted: Callable[[], bool],
) -> bool:
    """Whether the cells of a fragment belong to its inputs, unless the versions of its rows say otherwise.

    Args:
        files: The files of the fragment.
        state_ids: The fields of the record of the cells.
        input_ids: The fields of the inputs, in order.
        is_trusted: Whether a file that has both may be trusted.
    """
    cells = [file.path for file in files if not state_ids.isdisjoint(file.fields)]
    if len(cells) != 1:
        return not cells
    inputs = [file for file in files if not frozenset(input_ids).isdisjoint(file.fields)]
    if all(file.path == cells[0] for file in inputs):
        return is_trusted()
    return cells[0].endswith(f"-{digest_places(inputs, input_ids)}.lance")


def keeps_inputs(transaction: Transaction | None) -> bool:
    """Whether a transaction sets no inputs of rows that were there; one that is not known may."""
    return transaction is not None and isinstance(transaction.operation, _KEEPING)


def records_rows(transaction: Transaction | None) -> bool:
    """Whether rows whose inputs a transaction may have set have its version as the one that changed them."""
    match None if transaction is None else transaction.operation:
        case None | DataReplacement() | Project() | UnknownOperation():
            return False
        case Update(fields_modified=fields, updated_fragment_offset_bitmaps=offsets):
            return not fields or bool(offsets)
    return True


def transactions_since(snapshot: Snapshot, since: int) -> Iterator[Transaction | None]:
    """Yield the transaction of each version after `since`, ascending; None for one that is not known."""
    root, shared = dataset_store(snapshot.store, snapshot.manifest.branch), find_shared_version(snapshot)
    for version in range(since + 1, snapshot.manifest.version + 1):
        yield find_transaction(root if version <= shared else snapshot.store, version)


def find_shared_version(snapshot: Snapshot) -> int:
    """The newest version up to which main has the same history: on main the version itself, else the fork version."""
    version, branch = snapshot.manifest.version, snapshot.manifest.branch
    root = dataset_store(snapshot.store, branch)
    while branch is not None:
        origin = load_branch(root, branch)
        version, branch = origin.parent_version, origin.parent_branch
    return version
