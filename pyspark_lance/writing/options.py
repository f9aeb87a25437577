"""The arguments of a write, and checks of their combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self, get_args

from lance_core import Commit, FileOptions, Slices
from lance_core.errors import InvalidInputError
from pyspark_lance.writing.option_values import EmptyOutput, Mode, OutOfPartition, PartitionOverwrite, SchemaMode

NEEDS_PARTITIONS: Final = (
    "partitionOverwriteMode 'dynamic' needs partition_by: the columns of the partitions; or mode 'overwrite' and a"
    " table that is PARTITIONED BY columns"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What writes and changes of rows share.

    Attributes:
        storage_options: Credentials and options of the storage.
        commit: How the write or change is committed.
        files: How data files are made.
    """

    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    commit: Commit = field(default_factory=Commit)
    files: FileOptions = field(default_factory=FileOptions)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The options from the arguments of a public function, each in the record that it belongs to."""
        own_arguments = {option.name: arguments[option.name] for option in fields(cls) if option.name in arguments}
        return cls(**{"commit": Commit.of(arguments), "files": FileOptions.of(arguments), **own_arguments})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteArguments(JobOptions):
    """The arguments of `pyspark_lance.write`, which are described there, and three facts of the session.

    Attributes:
        session_is_dynamic: Whether an overwrite that does not say so replaces only the partitions that have rows.
        case_sensitive: Whether names of columns that differ only in case are two names.
        assume_utc: Whether times without a zone in `replace_where` are in UTC.
    """

    mode: Mode = "append"
    slices: Slices | None = None
    cluster: bool = True
    out_of_partition: OutOfPartition = "error"
    vector_columns: Mapping[str, int] | None = None
    schema_mode: SchemaMode = "strict"
    empty_output: EmptyOutput = "write"
    idempotency_since: int = 0
    read_version: int | None = None
    identity: str | None = None
    table_config: Mapping[str, str] | None = None
    replace_where: str | None = None
    partition_by: tuple[str, ...] | None = None
    partition_overwrite: PartitionOverwrite | None = None
    session_is_dynamic: bool = False
    merge_on: tuple[str, ...] | None = None
    case_sensitive: bool = False
    assume_utc: bool = True
    require_empty: bool = False

    def __post_init__(self) -> None:
        for name, choice, choices in (
            ("out_of_partition", self.out_of_partition, OutOfPartition),
            ("empty_output", self.empty_output, EmptyOutput),
            ("partition_overwrite", self.partition_overwrite or "static", PartitionOverwrite),
        ):
            if choice not in get_args(choices):
                raise InvalidInputError(f"{name} {choice!r} is none of {', '.join(get_args(choices))}")
        check_together(self)
        if self.mode == "replace" and self.slices is None:
            raise InvalidInputError("mode 'replace' needs the slices that are to be replaced")

    @property
    def is_dynamic(self) -> bool:
        """Whether only the partitions that have rows are replaced."""
        return self.partition_overwrite == "dynamic" and self.mode == "overwrite"

    @property
    def keeps_rows(self) -> bool:
        """Whether some existing rows stay."""
        return self.mode in ("append", "replace") or self.replace_where is not None or self.is_dynamic

    @property
    def sets_types(self) -> bool:
        """Whether the commit can give types to columns of the table whose type is null."""
        return not (self.is_dynamic or self.replace_where is not None or self.merge_on is not None)

    @property
    def has_rules(self) -> bool:
        """Whether tasks have rules for rows beyond the slices."""
        return self.replace_where is not None or self.partition_by is not None or self.merge_on is not None


def check_together(options: WriteArguments) -> None:
    """Make sure that the arguments can be combined.

    Raises:
        InvalidInputError: Two arguments cannot be combined, or an argument needs another one.
    """
    if options.idempotency_since and options.commit.idempotency_key is None:
        raise InvalidInputError("idempotency_since limits the search for idempotency_key: give idempotency_key as well")
    if options.replace_where is not None and options.mode != "overwrite":
        raise InvalidInputError(f"replaceWhere needs mode 'overwrite', not {options.mode!r}")
    if options.partition_overwrite == "dynamic" and options.partition_by is None and options.mode != "overwrite":
        raise InvalidInputError(NEEDS_PARTITIONS)
    if options.merge_on is not None and options.mode != "append":
        raise InvalidInputError(f"merge_on needs mode 'append', not {options.mode!r}")
    if options.merge_on is not None and options.schema_mode != "strict":
        raise InvalidInputError(
            f"merge_on needs schema_mode 'strict', without option mergeSchema, not {options.schema_mode!r}. Columns"
            " that the table lacks are added beforehand by pyspark_lance.write(df.limit(0), uri,"
            " schema_mode='add_columns'); pyspark_lance.merge(df, uri, on=...) accepts a DataFrame that lacks columns"
            " of the table"
        )
    chosen = {
        "slices": options.slices,
        "replaceWhere": options.replace_where,
        "partition_by": options.partition_by,
        "merge_on": options.merge_on,
    }
    argument_names = [name for name, value in chosen.items() if value is not None]
    if len(argument_names) > 1 and argument_names != ["replaceWhere", "partition_by"]:
        raise InvalidInputError(f"{' and '.join(argument_names)} do not go together")
    if options.replace_where is not None and options.is_dynamic:
        raise InvalidInputError("replaceWhere and partitionOverwriteMode 'dynamic' do not go together")
    if options.keeps_rows and options.schema_mode == "overwrite":
        static = ", with partitionOverwriteMode 'static'" if options.is_dynamic else ""
        raise InvalidInputError(
            f"schema_mode 'overwrite' needs a mode that replaces all rows, such as 'overwrite'{static}"
        )
