"""The arguments of a write, checks of their combinations, and which overwrite replaces single partitions.

partitionOverwriteMode of the write   of the session   columns of partitions   replaced
-----------------------------------   --------------   ---------------------   ---------------------
static                                                                         all rows
dynamic                                                of the write or table   partitions with rows
dynamic                                                none                    none: an error
not given                             dynamic          of the write or table   partitions with rows
not given                             any              none                    all rows
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self, get_args

from lance_core import Commit, FileOptions, LanceDataset, Slices
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.writing.option_values import EmptyOutput, Mode, OutOfPartition, PartitionOverwrite, SchemaMode

_NEEDS_PARTITIONS: Final = (
    "partitionOverwriteMode 'dynamic' needs partition_by: the columns of the partitions; or mode 'overwrite' and a"
    " table that is PARTITIONED BY columns"
)
PARTITIONED_BY: Final = "lance-dagster.partitioned_by"
"""Key of the table's configuration with the columns of PARTITIONED BY: a,b, or a list in JSON if a name has a comma."""
OVERWRITE_MODE: Final = "spark.sql.sources.partitionOverwriteMode"
"""The setting of a session that says what an overwrite replaces."""


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
        raise InvalidInputError(_NEEDS_PARTITIONS)
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


def existing_partition_columns(dataset: LanceDataset) -> list[str] | None:
    """The columns of PARTITIONED BY, as far as the table still has them; None if there are none."""
    return [name for name in configured_partition_columns(dataset) if name in dataset.schema.names] or None


def configured_partition_columns(dataset: LanceDataset) -> list[str]:
    """The columns of PARTITIONED BY as the configuration names them: other writers may have dropped or renamed some."""
    stored = dataset.config().get(PARTITIONED_BY, "")
    names: list[str] = json.loads(stored) if stored.startswith("[") else [name for name in stored.split(",") if name]
    return names


def stored_partition_by(names: Sequence[str]) -> str:
    """The columns of PARTITIONED BY as the table's configuration keeps them."""
    is_plain = not any("," in name or name.startswith("[") for name in names)
    return ",".join(names) if is_plain else json.dumps(list(names))


def set_overwrite_mode(options: WriteArguments, base: LanceDataset | None) -> WriteArguments:
    """The options of a write that says whether an overwrite is dynamic, and of which columns.

    Args:
        options: The options that the caller gave.
        base: The version that the write is based on; None if there is no table.

    Raises:
        InvalidInputError: The caller wants a dynamic overwrite, and neither the write nor the table names columns.
        SchemaError: A column of PARTITIONED BY was dropped or renamed, so that the partitions are not known.
    """
    overwrites = options.mode == "overwrite" and options.replace_where is None
    mode = options.partition_overwrite or ("dynamic" if options.session_is_dynamic and base is not None else "static")
    if mode == "static" or not overwrites:
        return replace(options, partition_overwrite=options.partition_overwrite or "static")
    if options.partition_overwrite is not None and options.partition_by is not None:
        return options
    declared = [] if base is None else configured_partition_columns(base)
    columns = options.partition_by or tuple(declared)
    lacking = [] if base is None else [name for name in declared if name not in base.schema.names]
    if base is not None and lacking and set(columns) <= set(declared):
        raise SchemaError(
            f"{base.uri} is PARTITIONED BY {', '.join(lacking)}, and no longer has these columns, so that an overwrite"
            f" of partitions would replace all rows: run ALTER TABLE ... SET TBLPROPERTIES ('{PARTITIONED_BY}' ="
            " 'column') with their new names, or UNSET it. Nothing was done"
        )
    if columns:
        return replace(options, partition_by=columns, partition_overwrite="dynamic")
    if options.partition_overwrite is not None:
        raise InvalidInputError(_NEEDS_PARTITIONS)
    return replace(options, partition_overwrite="static")
