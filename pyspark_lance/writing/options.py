"""The arguments of a write, and checks of their combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from lance_core import Slices, WriteAttempt
from lance_core.errors import InvalidInputError
from pyspark_lance.writing.option_values import EmptyOutput, Mode, OutOfPartition, PartitionOverwrite, SchemaMode

__all__ = ["JobOptions", "WriteArguments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The arguments that writes and changes of rows share; `pyspark_lance.write` describes them."""

    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    transaction_properties: Mapping[str, str] | None = None
    commit_message: str | None = None
    idempotency_key: tuple[str, str] | None = None
    write_attempt: WriteAttempt | None = None
    max_rows_per_file: int | None = None
    max_bytes_per_file: int | None = None
    data_storage_version: str | None = None
    enable_stable_row_ids: bool = False
    allow_external_blob_outside_bases: bool = False

    def of_writer(self, dataset_schema: bytes | None, external_places: tuple[str, ...] | None) -> dict[str, Any]:
        """The options of `FragmentWriter` in a task.

        Args:
            dataset_schema: The table's schema with its field ids, if fragments are added to the table.
            external_places: Prefixes of the URIs by which blobs may be given; None for rows of the table.
        """
        writer_options = {
            "storage_options": dict(self.storage_options) if self.storage_options else None,
            "data_storage_version": self.data_storage_version,
            "max_rows_per_file": self.max_rows_per_file,
            "max_bytes_per_file": self.max_bytes_per_file,
            "dataset_schema": dataset_schema,
        }
        defined_options = {name: value for name, value in writer_options.items() if value is not None}
        return {
            **defined_options,
            "external_places": ("",) if self.allow_external_blob_outside_bases else external_places,
        }


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
    stream_batch: tuple[str, int] | None = None
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
    if options.idempotency_since and options.idempotency_key is None:
        raise InvalidInputError("idempotency_since limits the search for idempotency_key: give idempotency_key as well")
    if options.replace_where is not None and options.mode != "overwrite":
        raise InvalidInputError(f"replaceWhere needs mode 'overwrite', not {options.mode!r}")
    if options.partition_overwrite == "dynamic" and options.partition_by is None:
        raise InvalidInputError("partitionOverwriteMode 'dynamic' needs partition_by: the columns of the partitions")
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
