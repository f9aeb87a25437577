"""The history of a table: the committer, the inputs and the changes of each version.

Everything is read from the manifests and the transactions in them, without Dagster's database.

    operation                                     changes rows   counts as
    ReserveFragments                              no             bookkeeping of a rewrite; left out of every list
    Rewrite, CreateIndex                          no             maintenance, whoever commits it
    UpdateConfig, UpdateBases, UpdateMemWalState  no             a change of settings
    all others                                    yes            a write
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lance_dagster import properties as prop
from lance_dagster.lineage.row_changes import live_rows, row_changes

if TYPE_CHECKING:
    import lance_core

_AHEAD: Final = 8
"""The number of versions that are read at once where most of them are needed."""
_MOST_VERSIONS: Final = 20
"""The most versions that are read to find an owner; maintenance by others makes fewer between two writes."""
_BOOKKEEPING: Final = "ReserveFragments"
_MAINTENANCE: Final = frozenset({"Rewrite", "CreateIndex", _BOOKKEEPING})
_KEEPS_ROWS: Final = _MAINTENANCE | {"UpdateConfig", "UpdateBases", "UpdateMemWalState"}


_CHANGED_FRAGMENTS: Final = {
    "Append": ("fragments",),
    "Delete": ("updated_fragments", "deleted_fragment_ids"),
    "Update": ("new_fragments", "updated_fragments", "removed_fragment_ids"),
}
"""The fragments that a commit names, by operation: without any, it has changed no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInput:
    """One table that was read to make a version.

    Attributes:
        asset: The asset's key, parts joined by slashes.
        uri: The URI of its table; None if it was not recorded.
        version: The version that was read; None if it was not recorded.
        branch: The branch of that version; None for main.
        table_id: The id of the table; None if it has none.
    """

    asset: str
    uri: str | None
    version: int | None
    branch: str | None = None
    table_id: str | None = None

    @property
    def label(self) -> str:
        """The version, with the branch unless that is main."""
        return f"{self.version}" if self.branch is None else f"{self.version} of branch {self.branch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One version of a table.

    Attributes:
        version: The number of the version.
        branch: The branch; None for main.
        time: When the version was committed, in UTC.
        operation: The Lance operation; None if it is not recorded.
        rows: The number of live rows.
        rows_added: The number of rows that were added; None if the version before was cleaned up, or nothing counted.
        rows_removed: The number of rows that were removed; None in the same cases.
        fragments: The number of fragments.
        read_version: The version from which the change was made.
        properties: The properties of the transaction.
        is_idle: Whether the version is a write of no rows that removes none.
        identity: The identity of the version (`LanceDataset.identity`).
    """

    version: int
    branch: str | None
    time: datetime
    operation: str | None
    rows: int
    rows_added: int | None
    rows_removed: int | None
    fragments: int
    read_version: int | None
    properties: dict[str, str]
    is_idle: bool = False
    identity: str = ""

    @property
    def writers(self) -> list[str]:
        """The Dagster runs that made the changes: one, or for a promotion all runs that wrote to the branch."""
        return prop.split_values(self.properties.get(prop.RUN_ID))

    @property
    def committed_by(self) -> str | None:
        """The Dagster run that committed the version: the run of the promotion's job, else the run that wrote."""
        return self.properties.get(prop.PROMOTION_RUN_ID) or (self.writers[0] if len(self.writers) == 1 else None)

    @property
    def run_id(self) -> str | None:
        """The Dagster run that wrote the version, or that promoted the writes of several runs."""
        return self.writers[0] if len(self.writers) == 1 else self.committed_by

    def is_of(self, run_id: str) -> bool:
        """Whether a run wrote or promoted the version, or is the root run of a run that did."""
        roots = prop.split_values(self.properties.get(prop.ROOT_RUN_ID))
        return run_id in (*self.writers, self.committed_by, *roots)

    @property
    def asset(self) -> str | None:
        """The asset for which the version was made."""
        return self.properties.get(prop.ASSET_KEY)

    @property
    def assets(self) -> list[str]:
        """The assets for which the version was made; several for the promotion of a branch to which several wrote."""
        return prop.split_values(self.asset)

    @property
    def maintenance_metadata(self) -> Any:
        """The metadata `lance/maintenance` of the asset; None if the commit recorded none.

        If the promotion of a branch has joined several values, False takes precedence.
        """
        recorded_metadata = [
            json.loads(text) for text in prop.split_values(self.properties.get(prop.MAINTENANCE_METADATA))
        ]
        return (
            False if any(metadata is False for metadata in recorded_metadata) else next(iter(recorded_metadata), None)
        )

    @property
    def message(self) -> str | None:
        """The commit message."""
        from lance_core.dataset import LANCE_COMMIT_MESSAGE_KEY  # noqa: PLC0415 - code locations load without it

        return self.properties.get(LANCE_COMMIT_MESSAGE_KEY)

    @property
    def partitions(self) -> Any:
        """The partitions that were written: a list of keys, or a mapping with count, first and last; None for none.

        A string of another writer that is no JSON counts as one key.
        """
        value = self.properties.get(prop.PARTITION_KEYS)
        if value is None:
            return None
        try:
            partitions = json.loads(value)
        except ValueError:
            return [value]
        if isinstance(partitions, list):  # a promotion joins lists, and puts summaries beside them as strings
            return next((json.loads(key) for key in partitions if prop.is_shortened(key)), partitions)
        return partitions if isinstance(partitions, dict) else [value]

    @property
    def inputs(self) -> list[TableInput]:
        """The tables that were read to make the version."""
        return [
            _input(key.removeprefix(prop.INPUT_PREFIX), value)
            for key, values in sorted(self.properties.items())
            if key.startswith(prop.INPUT_PREFIX)
            for joined in prop.split_values(values)
            for value in prop.split_values(joined)  # a promotion joins single entries with lists of them
        ]

    @property
    def undid(self) -> str | None:
        """The run that the version undid; None for a promotion, which only records undos on its branch."""
        return None if prop.PROMOTED_FROM in self.properties else self.properties.get(prop.UNDO_RUN_ID)

    @property
    def undone_versions(self) -> list[int]:
        """The versions that the version undid; empty for a promotion, which only records undos on its branch."""
        if prop.PROMOTED_FROM in self.properties:
            return []
        try:
            versions = json.loads(self.properties.get(prop.UNDONE_VERSIONS, "[]"))
        except ValueError:
            return []
        return [version for version in versions if isinstance(version, int)] if isinstance(versions, list) else []

    @property
    def changes_rows(self) -> bool:
        """Whether rows or columns may differ from those of the version before."""
        return self.operation not in _KEEPS_ROWS

    @property
    def keeps_rows(self) -> bool:
        """Whether the rows are the same as in the version before, apart from new columns and types of columns."""
        return self.operation in _KEEPS_ROWS or prop.COLUMN_TYPE in self.properties

    @property
    def touches_no_rows(self) -> bool:
        """Whether the version is known to have written no row and removed none."""
        is_empty_overwrite = self.operation == "Overwrite" and (self.rows_added, self.rows_removed) == (0, 0)
        return self.is_idle or is_empty_overwrite

    @property
    def is_maintenance(self) -> bool:
        """Whether the version only rearranges existing rows, or changes indices."""
        return self.operation in _MAINTENANCE


def read_history(
    dataset: lance_core.LanceDataset, *, after: int = 0, count_changes: bool = True, ahead: int = 1
) -> Iterator[TableVersion]:
    """The versions of a branch up to that of a dataset, newest first; each is read when the iterator reaches it.

    Args:
        dataset: The table at the newest version to return.
        after: The version before the oldest one to return.
        count_changes: Whether to count the rows that were added and removed, by comparing fragments.
        ahead: The number of versions that are read at once; for callers that need many.
    """
    steps = dataset.history(ahead=ahead)
    current = next(steps, None)
    while current is not None and current[0].version > after:
        before = next(steps, None)
        handle, transaction = current
        operation = None if transaction is None else transaction.operation.name
        if operation != _BOOKKEEPING:
            changes = _changes(handle, before and before[0], operation) if count_changes else (None, None)
            yield _version(handle, transaction, changes)
        current = before


def _version(
    handle: lance_core.LanceDataset, transaction: lance_core.Transaction | None, changes: tuple[int | None, int | None]
) -> TableVersion:
    added, removed = changes
    return TableVersion(
        version=handle.version,
        branch=handle.branch,
        time=handle.timestamp,
        operation=None if transaction is None else transaction.operation.name,
        rows=handle.count_rows(),
        rows_added=added,
        rows_removed=removed,
        fragments=len(handle.fragment_ids()),
        read_version=None if transaction is None else transaction.read_version,
        properties=prop.properties_of(transaction),
        is_idle=_changes_nothing(transaction),
        identity=handle.identity,
    )


def _changes(
    handle: lance_core.LanceDataset, before: lance_core.LanceDataset | None, operation: str | None
) -> tuple[int | None, int | None]:
    return (0, 0) if operation in _KEEPS_ROWS else row_changes(handle, before, operation)


def owning_commits(dataset: lance_core.LanceDataset) -> list[TableVersion]:
    """The recent commits that name assets, newest first; commits of maintenance only if there are no others.

    Maintenance is done for no asset: its commits count only if cleanup has removed all other commits that name one.
    """
    named = list(_named(dataset))
    return [commit for commit in named if prop.MAINTENANCE not in commit.properties] or named


def owner_of(dataset: lance_core.LanceDataset) -> TableVersion | None:
    """The newest commit of rows that names an asset; None if no recent commit does.

    Commits that only set columns do not count.
    """
    maintained = None
    for commit in _named(dataset):
        if prop.COLUMNS in commit.properties and not _changes_rows(dataset, commit):
            continue
        if prop.MAINTENANCE not in commit.properties:
            return commit
        maintained = maintained or commit
    return maintained


def row_owners(dataset: lance_core.LanceDataset) -> list[str]:
    """The assets that recent commits of rows name, newest first; commits that only set columns do not count."""
    newest = owner_of(dataset)
    if newest is None:
        return []
    wrote = [commit for commit in owning_commits(dataset) if prop.COLUMNS not in commit.properties]
    return list(dict.fromkeys([*newest.assets, *(asset for commit in wrote for asset in commit.assets)]))


def writers_of_rows(dataset: lance_core.LanceDataset) -> tuple[list[str], bool]:
    """The assets of the commits since all rows were replaced, newest first, and whether all these commits are known.

    Commits that set columns do not count. Of versions that were cleaned up the table records which replaced all rows.
    """
    names, expected = list[str](), dataset.version
    for handle, transaction in dataset.history(ahead=_AHEAD):
        if handle.version != expected:
            break
        properties = prop.properties_of(transaction)
        if prop.COLUMNS not in properties and prop.MAINTENANCE not in properties:
            names += prop.split_values(properties.get(prop.ASSET_KEY))
        if transaction is not None and transaction.operation.name == "Overwrite":
            return names, True
        expected -= 1
    filled = {fill.version for fill in dataset.committed_fills() if fill.slices == ()}
    return names, not expected or last_data_change(dataset) in filled


def _changes_rows(dataset: lance_core.LanceDataset, commit: TableVersion) -> bool:
    """Whether a commit that set columns changed rows as well, such as the promotion of a branch with writes of both."""
    from lance_core.errors import NotFoundError  # noqa: PLC0415 - code locations load without it

    if prop.PROMOTED_FROM not in commit.properties:
        return False
    after = dataset.checkout_version((commit.branch, commit.version))
    try:
        before = dataset.checkout_version((commit.branch, commit.version - 1))
    except NotFoundError:
        return len(commit.assets) > 1
    return live_rows(before) != live_rows(after)


def _named(dataset: lance_core.LanceDataset) -> Iterator[TableVersion]:
    for handle, transaction in islice(dataset.history(), _MOST_VERSIONS):
        if prop.properties_of(transaction).get(prop.ASSET_KEY):
            yield _version(handle, transaction, (None, None))


def columns_set_by(dataset: lance_core.LanceDataset, asset: str) -> list[str]:
    """The columns of the newest commit in which an asset set columns; empty if there is no such commit."""
    for _, transaction in dataset.history(ahead=_AHEAD):
        properties = prop.properties_of(transaction)
        if asset not in prop.split_values(properties.get(prop.ASSET_KEY)) or prop.UNDO_RUN_ID in properties:
            continue
        columns = prop.split_values(properties.get(prop.COLUMNS))
        if columns:
            return columns
    return []


def undo_after(dataset: lance_core.LanceDataset, version: int) -> int | None:
    """The newest version that undid a change which an older version still has; None if there is none.

    Args:
        dataset: The newest version of the branch.
        version: The older version.
    """
    if version >= dataset.version:
        return None
    for later in read_history(dataset, after=version, count_changes=False, ahead=_AHEAD):
        if any(undone <= version for undone in later.undone_versions):
            return later.version
    return None


def format_data_version(uri: str, version: int, branch: str | None = None, table_id: str | None = None) -> str:
    """The data version of an asset: a hash of its URI, the branch, and the version that last changed its rows.

    If the table has an id, it follows the hash, so that a table which is dropped and made again has another one.
    """
    place = sha256(uri.encode()).hexdigest()[:12]
    return f"{place}{f'.{table_id}' if table_id else ''}:{branch or 'main'}:{version}"


def last_data_change(dataset: lance_core.LanceDataset) -> int:
    """The newest version that may have changed rows; rewrites, indices and settings do not change them.

    The table records it (`LanceDataset.recorded_row_change`), and the properties of maintenance commits do. Only
    versions after those that the record covers are looked at, and none beyond a version that was cleaned up.
    """
    changed, known_to = dataset.recorded_row_change() or (0, 0)
    number, expected = dataset.version, dataset.version
    for handle, transaction in dataset.history():
        if expected <= known_to or handle.version < expected:  # what is before was recorded, or was cleaned up
            break
        operation = None if transaction is None else transaction.operation.name
        if operation not in _KEEPS_ROWS and not _changes_nothing(transaction):
            return handle.version
        expected = handle.version - 1
        data_version = prop.properties_of(transaction).get(prop.DATA_VERSION, "")
        if transaction is not None and operation != _BOOKKEEPING:
            number = int(data_version) if data_version.isdecimal() else transaction.read_version or handle.version
    return changed if expected <= known_to else max(number, changed)


def is_change_lost(dataset: lance_core.LanceDataset, since: int) -> bool:
    """Whether the version that last changed rows is later than another one, and was cleaned up."""
    changed = last_data_change(dataset)
    return changed > since and all(ref["version"] != changed for ref in dataset.version_refs())


def is_without_changes(transaction: lance_core.Transaction | None) -> bool:
    """Whether a commit keeps all rows, writes none and removes none, or begins a branch."""
    operation = None if transaction is None else transaction.operation.name
    return operation in _KEEPS_ROWS or operation == "Clone" or _changes_nothing(transaction)


def _changes_nothing(transaction: lance_core.Transaction | None) -> bool:
    """Whether a commit is a write of no rows that removes none."""
    operation = None if transaction is None else transaction.operation
    lists = _CHANGED_FRAGMENTS.get("" if operation is None else operation.name, ())
    return bool(lists) and not any(getattr(operation, name) for name in lists)


def compute_data_version(
    dataset: lance_core.LanceDataset, changed: int | None = None, table_id: str | None = None
) -> str:
    """The data version of a table at its version.

    Args:
        dataset: The table.
        changed: The version that last changed rows; None to look for it.
        table_id: The id of the table; None for the one that the table has recorded.
    """
    number = last_data_change(dataset) if changed is None else changed
    return format_data_version(dataset.root_uri, number, dataset.branch, table_id or dataset.recorded_table_id())


def partitions_of(versions: Sequence[TableVersion]) -> Any:
    """The partitions that versions wrote, in the form of `TableVersion.partitions`; None if a version names none."""
    named = [version.partitions for version in versions]
    if not all(isinstance(keys, list) for keys in named):
        return next((keys for keys in named if isinstance(keys, dict)), None) if None not in named else None
    return sorted({str(key) for keys in named for key in keys})


def input_entry(dataset: lance_core.LanceDataset) -> dict[str, Any]:
    """The record of a table that was read, for the commit that was made from it."""
    entry: dict[str, Any] = {"uri": dataset.root_uri, "version": dataset.version}
    if dataset.branch is not None:
        entry["branch"] = dataset.branch
    table_id = dataset.recorded_table_id()
    return entry if table_id is None else {**entry, "table_id": table_id}


def input_record(read: TableInput) -> dict[str, Any]:
    """A table that was read, for JSON; the branch is left out if it is main."""
    entry = {"asset": read.asset, "uri": read.uri, "version": read.version}
    return entry if read.branch is None else {**entry, "branch": read.branch}


def _input(asset: str, value: str) -> TableInput:
    """Parse an entry of `input_properties`; a number alone is a version."""
    try:
        position = json.loads(value)
    except ValueError:
        position = None
    if isinstance(position, dict):
        return TableInput(asset=asset, **{key: position.get(key) for key in ("uri", "version", "branch", "table_id")})
    return TableInput(asset=asset, uri=None, version=position if isinstance(position, int) else None)
