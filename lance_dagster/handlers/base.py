"""The interface between the IO manager and its type handlers: requests to write and read, and the base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from lance_core.errors import DatasetNotFoundError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    import lance_core
    from lance_dagster.tables.settings import OutputSettings, TableSettings

__all__ = [
    "CHANGE_TYPE",
    "ROW_NAMES",
    "ChangesPart",
    "ChangesRequest",
    "CommitMode",
    "LanceTypeHandler",
    "ReadRequest",
    "WriteRequest",
    "skips_empty",
]

CHANGE_TYPE: Final = "_change_type"
"""The column that says what a row of changes is: insert, update_postimage or delete."""


ROW_NAMES: Final = ("_rowaddr", "_rowid")
"""Columns that name a row by themselves; the first one that a frame has is taken."""

CommitMode = Literal["create", "append", "overwrite", "replace", "merge", "columns"]
"""The mode of the commit.

`replace` replaces the slices' rows, `merge` follows the output's policies for keys, `columns` sets columns of rows.
"""


def no_columns() -> pa.Schema:
    """An empty schema: no column is known."""
    import pyarrow as pa  # noqa: PLC0415 - where it is used, it is loaded

    return pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """One write, fully decided.

    Attributes:
        uri: The table.
        mode: The mode of the commit.
        existing: The table as it was when the write began; None when there was none.
        slices: The run's partitions; None for an asset without any.
        output: How to treat schema, empty frames and rows outside of the slices.
        table: Storage options and file options.
        properties: Transaction properties of the commit.
        write_attempt: The write and the number of the attempt; None outside of a run.
        require_empty: Whether the slices must have no row but those of earlier attempts when the commit is made.
        known: The columns that the asset's metadata `lance/schema` or its annotation declares.
        deletes: For a merge, rows whose keys are deleted, as the handler's `split_changes` gave them; None for none.
        read: For columns, the version of the table that the step has read, whose rows may be deleted; None for none.
        left_out: Where the handler counts rows that were deleted since `read`, and are left out.
    """

    uri: str
    mode: CommitMode
    existing: lance_core.LanceDataset | None
    slices: lance_core.Slices | None
    output: OutputSettings
    table: TableSettings
    properties: Mapping[str, str]
    write_attempt: lance_core.WriteAttempt | None
    require_empty: bool = False
    known: pa.Schema = field(default_factory=no_columns)
    deletes: Any = None
    read: lance_core.LanceDataset | None = None
    left_out: list[int] = field(default_factory=list)

    @property
    def read_version(self) -> int:
        """The version that the commit is based on, 0 when there was no table."""
        return 0 if self.existing is None else self.existing.version

    @property
    def identity(self) -> str | None:
        """The identity of that version, which a table that was created again does not share; None without a table."""
        return None if self.existing is None else self.existing.identity

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options in the form that lance_core takes."""
        return dict(self.table.storage_options) or None

    @property
    def file_options(self) -> dict[str, Any]:
        """The options of data files that are set; the others keep lance_core's defaults."""
        options = {
            "max_rows_per_file": self.table.max_rows_per_file,
            "max_bytes_per_file": self.table.max_bytes_per_file,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def creates_stable_row_ids(self) -> bool:
        """Whether the rows of a table that is created get stable ids."""
        return self.output.stable_row_ids and self.existing is None

    @property
    def data_storage_version(self) -> str | None:
        """The version of the data files: as configured, else the table's own; None for lance_core's default."""
        if self.table.data_storage_version is not None or self.existing is None:
            return self.table.data_storage_version
        return self.existing.data_storage_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPart:
    """Changes since one version.

    Attributes:
        begin_version: The earlier version, whose own changes are left out; 0 for an empty table.
        filter: Which rows; None for all.
    """

    begin_version: int
    filter: pc.Expression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """What changed up to the version that is read, instead of its rows.

    Attributes:
        parts: The changes, of different rows where they are several.
        key: Columns whose update is a delete of the old row and an insert of the new one; none for any.
        splits_updates: Whether each update is a delete of the old row and an insert of the new one.
        updates_of: Columns whose updates are changes; None for all.
        counts: Rows by kind of change, where the handler counts them as it reads.
    """

    parts: tuple[ChangesPart, ...]
    key: tuple[str, ...] = ()
    splits_updates: bool = False
    updates_of: tuple[str, ...] | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def columns_read(self, wanted: Sequence[str] | None) -> list[str] | None:
        """The columns that are read to give some columns; None for all."""
        return None if wanted is None else list(dict.fromkeys((*wanted, *self.key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One read, fully decided.

    Attributes:
        dataset: The table at the version to read.
        columns: Which columns, in order; None for all.
        filter: Which rows; None for all.
        table: Storage options, and where the Spark session is.
        load_as: The class that the input is annotated with, if any.
        filtered: Whether `filter` holds one of the input's metadata, not only its partitions.
        changes: What changed, to be read instead of the rows; None for the rows.
    """

    dataset: lance_core.LanceDataset
    columns: list[str] | None
    filter: pc.Expression | None
    table: TableSettings
    load_as: type | None
    filtered: bool = False
    changes: ChangesRequest | None = None

    @property
    def scan(self) -> dict[str, Any]:
        """Arguments of `scanner`: frames hold the payloads of blobs, as the asset was given them."""
        return {"columns": self.columns, "filter": self.filter, "blob_handling": "all_binary"}


def skips_empty(num_rows: int, request: WriteRequest) -> bool:
    """Whether a write is skipped, because its output has no rows and `empty_output` is skip.

    Raises:
        InvalidInputError: The output has no rows, and `empty_output` is error.
    """
    if num_rows or request.output.empty_output == "write":
        return False
    if request.output.empty_output == "skip":
        return True
    raise InvalidInputError("the output has no rows, and empty_output is error")


class LanceTypeHandler(ABC):
    """Writes and loads one kind of value.

    For types of your own: derive from it, name them in `supported_types`, and return an instance from
    `LanceIOManager.type_handlers`.
    """

    supported_types: ClassVar[Sequence[type]] = ()
    """The classes whose values, and those of classes derived from them, this handler writes and loads."""

    loads_changes: ClassVar[bool] = False
    """Whether `load` heeds `ReadRequest.changes`, and `split_changes` is there."""

    @abstractmethod
    def arrow_schema(self, value: Any) -> pa.Schema:
        """The columns of a value as far as partitions need them, without computing it."""

    def check(self, value: Any, request: WriteRequest) -> bool:  # noqa: ARG002 - of the others
        """Whether there is something to write; called where a table has to be created first.

        A value that can be read once only is not looked at.

        Raises:
            LanceError: The write would reject the value.
        """
        return True

    @abstractmethod
    def write(self, value: Any, request: WriteRequest) -> lance_core.WriteResult | None:
        """Write a value with one commit; None when it has no rows and empty output is skipped.

        Raises:
            LanceError: The write failed: no row was changed, except perhaps after an `OutcomeUnknownError`.
        """

    @abstractmethod
    def load(self, request: ReadRequest) -> Any:
        """Load a value."""

    def split_changes(self, value: Any, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """A value with the column `_change_type`, as the rows that are merged and those whose keys are deleted.

        Args:
            value: The value.
            key: The columns that a merge matches rows by.

        Returns:
            The handler of both, the rows to merge and the rows to delete, both without that column. A key that is
            deleted and inserted again is merged, not deleted.

        Raises:
            UnsupportedError: The handler does not split values.
        """
        del value, key
        raise UnsupportedError(f"{type(self).__name__} does not apply {CHANGE_TYPE} in merges")

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:  # noqa: ARG002 - of the others
        """A value without rows, for an input whose table does not exist yet.

        Args:
            schema: The columns as far as they are known, maybe none.
            table: Where the Spark session is.
            load_as: The class that the input is annotated with, if any.

        Raises:
            DatasetNotFoundError: The handler cannot make a value without a table.
        """
        raise DatasetNotFoundError("there is no table yet, and a value of this type is not made without one")
