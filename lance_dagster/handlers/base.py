"""The interface between the IO manager and its type handlers: requests to write and read, and the base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import lance_core
from lance_core.errors import DatasetNotFoundError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from lance_dagster.tables.settings import OutputSettings, TableSettings

CHANGE_TYPE: Final = "_change_type"
"""The column with the kind of each change: insert, update_postimage or delete."""


ROW_NAMES: Final = ("_rowaddr", "_rowid")
"""Columns that identify a row by themselves; the first one that a frame has is used."""

CommitMode = Literal["create", "append", "overwrite", "replace", "merge", "columns"]
"""The mode of the commit.

`replace` replaces the rows of the slices, `merge` merges rows by key as the output's settings say, `columns` sets
columns of rows.
"""


def no_columns() -> pa.Schema:
    """An empty schema, for columns that are not known."""
    import pyarrow as pa  # noqa: PLC0415 - a caller has loaded it

    return pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """One write, fully decided.

    Attributes:
        uri: The table.
        mode: The mode of the commit.
        existing: The table as it was when the write began; None if there was none.
        slices: The run's partitions; None for an asset without partitions.
        output: The settings of the output, such as for the schema, empty frames and rows outside of the slices.
        table: The settings of the table, such as storage options and file options.
        commit: How the write is committed; its attempt is None outside of a run.
        require_empty: Whether the commit requires that the slices have no rows except for those of earlier attempts.
        known: The columns that the asset's metadata `lance/schema` or its annotation declares.
        deletes: For a merge, rows whose keys are deleted, as the handler's `split_changes` returned them; or None.
        read: For a write of columns, the version of the table that the step has read; or None. Rows of this version
            that were deleted since are left out of the write.
        loaded: For a write of columns that sets rows which the frame lacks to null, the condition of the rows that the
            step has loaded: it sets no others. None for all rows.
    """

    uri: str
    mode: CommitMode
    existing: lance_core.LanceDataset | None
    slices: lance_core.Slices | None
    output: OutputSettings
    table: TableSettings
    commit: lance_core.Commit
    require_empty: bool = False
    known: pa.Schema = field(default_factory=no_columns)
    deletes: Any = None
    read: lance_core.LanceDataset | None = None
    loaded: pc.Expression | None = None

    @property
    def scope(self) -> pc.Expression | None:
        """For a write of columns, the condition of the rows that it may set; None for all rows."""
        assert self.existing is not None
        partitions = None if self.slices is None else self.slices.expression(self.existing.schema)
        if partitions is None or self.loaded is None or partitions.equals(self.loaded):
            return self.loaded if partitions is None else partitions
        return partitions & self.loaded

    @property
    def read_version(self) -> int:
        """The version that the commit is based on; 0 if there was no table."""
        return 0 if self.existing is None else self.existing.version

    @property
    def identity(self) -> str | None:
        """The identity of the table, which changes if the table is created again; None if there was no table."""
        return None if self.existing is None else self.existing.identity

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The storage options as lance_core takes them."""
        return self.table.options

    @property
    def files(self) -> lance_core.FileOptions:
        """How data files are made: as the settings say; files of an existing table have its version."""
        existing, version = self.existing, self.table.data_storage_version
        options = {
            "max_rows_per_file": self.table.max_rows_per_file,
            "max_bytes_per_file": self.table.max_bytes_per_file,
            "data_storage_version": existing.data_storage_version if version is None and existing else version,
            "enable_stable_row_ids": self.output.stable_row_ids and existing is None,
        }
        return lance_core.FileOptions.of(options)

    @property
    def table_config(self) -> dict[str, str] | None:
        """The configuration of the table to set; None for none."""
        return dict(self.table.table_config) or None

    @property
    def commit_arguments(self) -> dict[str, Any]:
        """The commit as arguments of `write_columns` and `merge`."""
        return {
            "transaction_properties": self.commit.properties,
            "commit_message": self.commit.message,
            "write_attempt": self.commit.write_attempt,
        }

    def changed_commit(self, **changes: Any) -> WriteRequest:
        """The request with other attributes of its commit."""
        return replace(self, commit=replace(self.commit, **changes))

    def with_attempt(self, **changes: Any) -> WriteRequest:
        """The request with other attributes of its attempt, if it is one."""
        attempt = self.commit.write_attempt
        return self if attempt is None else self.changed_commit(write_attempt=replace(attempt, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPart:
    """The changes of some rows after one version.

    Attributes:
        begin_version: The version after which changes count; 0 for all rows.
        filter: The condition of the rows; None for all rows.
    """

    begin_version: int
    filter: pc.Expression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """A read of the changes up to a version instead of the version's rows.

    Attributes:
        parts: The changes to read; several parts are about different rows.
        key: Columns whose update is read as a delete of the old row and an insert of the new one.
        splits_updates: Whether each update is read as a delete of the old row and an insert of the new one.
        updates_of: The columns whose updates are changes; None for all columns.
        counts: The number of rows by kind of change, which the handler sets.
    """

    parts: tuple[ChangesPart, ...]
    key: tuple[str, ...] = ()
    splits_updates: bool = False
    updates_of: tuple[str, ...] | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def columns_read(self, requested_columns: Sequence[str] | None) -> list[str] | None:
        """The columns to read so that the wanted columns and the key are there; None for all columns."""
        return None if requested_columns is None else list(dict.fromkeys((*requested_columns, *self.key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One read, fully decided.

    Attributes:
        dataset: The table at the version to read.
        columns: The columns, in order; None for all columns.
        filter: The condition of the rows; None for all rows.
        table: The settings of the table, such as storage options and the resource of the Spark session.
        load_as: The class of the input's type annotation, if it has one.
        filtered: Whether `filter` includes the filter of the input's metadata, besides that of its partitions.
        changes: The changes to read instead of the rows; None to read the rows.
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
        """The arguments of `scanner`; blobs are read as their bytes."""
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
    raise InvalidInputError(
        "the output has no rows, and empty_output is error; set lance/empty_output to skip or write to allow it"
    )


class LanceTypeHandler(ABC):
    """Writes and loads one kind of value.

    For types of your own, derive a class from this one, name the types in `supported_types`, and return an instance
    from `LanceIOManager.type_handlers`.
    """

    supported_types: ClassVar[Sequence[type]] = ()
    """The classes whose instances, including those of derived classes, this handler writes and loads."""

    loads_changes: ClassVar[bool] = False
    """Whether `load` supports `ReadRequest.changes`, and the handler implements `split_changes`."""

    @abstractmethod
    def arrow_schema(self, value: Any) -> pa.Schema:
        """The columns of a value, without computing it; types may be approximate where no partition needs them."""

    def check(self, value: Any, request: WriteRequest) -> bool:  # noqa: ARG002 - derived classes use them
        """Whether there is something to write; called before a table is created for the write.

        The result is True, without a check, for a value that can be read only once.

        Raises:
            LanceError: The write would reject the value.
        """
        return True

    @abstractmethod
    def write(self, value: Any, request: WriteRequest) -> lance_core.WriteResult | None:
        """Write a value with one commit; None if the value has no rows and empty output is skipped.

        Raises:
            LanceError: The write failed: no row was changed, except perhaps after an `OutcomeUnknownError`.
        """

    @abstractmethod
    def load(self, request: ReadRequest) -> Any:
        """Load a value."""

    def split_changes(self, value: Any, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """Split a value with the column `_change_type` into rows to merge, and rows whose keys are deleted.

        Args:
            value: The value.
            key: The columns by which a merge matches rows.

        Returns:
            The handler of the rows, the rows to merge, and the rows to delete, both without that column. A key that is
            deleted and inserted again is merged, not deleted.

        Raises:
            UnsupportedError: The handler does not split values.
        """
        del value, key
        raise UnsupportedError(f"{type(self).__name__} does not apply {CHANGE_TYPE} in merges")

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:  # noqa: ARG002 - see above
        """A value without rows, for an input whose table does not exist yet.

        Args:
            schema: The known columns; may be empty.
            table: The settings of the table, with the resource of the Spark session.
            load_as: The class of the input's type annotation, if it has one.

        Raises:
            DatasetNotFoundError: The handler cannot make a value without a table.
        """
        raise DatasetNotFoundError(
            "the table does not exist yet, and a value of this type needs one: materialize the upstream asset first"
        )
