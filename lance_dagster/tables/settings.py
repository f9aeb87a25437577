"""Options of writes and reads: the IO manager's configuration, and the changes of one asset or input.

    set on the IO manager       changed per asset by definition metadata, or per output by its metadata at run time
    ---------------------       ------------------------------------------------------------------------------------
    write_mode                  lance/write_mode
    schema_mode                 lance/schema_mode
    empty_output                lance/empty_output
    out_of_partition            lance/out_of_partition
    cluster                     lance/cluster
    stable_row_ids              lance/stable_row_ids
    on_earlier_attempt          lance/on_earlier_attempt
                                lance/merge_on             with write_mode merge: a column, a list of columns, or
                                                           {"on": columns, "when_matched": [clauses], ...}
                                lance/when_matched         rows in both: update, nothing, delete
                                lance/when_not_matched     rows only in the output: insert, nothing
                                lance/when_not_matched_by_source
                                                           rows only in the table, or the run's partitions of it:
                                                           nothing, delete
                                lance/table                with write_mode columns: the table of another asset
                                                           (definition metadata only)
                                lance/key                  the columns that name its rows; none for _rowid, _rowaddr
                                lance/missing              rows that the output lacks: null, keep, error
                                lance/commit_message       message shown in the table's history
                                lance/vector_columns       {"column": width}: lists stored as fixed-size vectors
                                lance/maintenance          True, False, or fields of a LanceMaintenancePolicy
                                                           (definition metadata only; `health.policy`)
                                lance/indices              the indices of the table, by column: kinds and parameters
                                                           (definition metadata only; `health.policy`)
                                lance/index_on_write       whether writes build and extend these indices
                                                           (definition metadata only; `health.policy`)
                                lance/column_lineage       the source of each column (`lineage.declared_columns`)

    per input, definition metadata of the input:
        columns  lance/version  lance/tag  lance/as_of  lance/filter  lance/missing  lance/changes

Entries that nothing reads are rejected, so that a misspelt one is never silently ignored:

`lance/...` in            keys that are read                            other keys
-------------             ------------------                            ----------
definition of an asset    settings, and what jobs and checks read       rejected, naming the nearest key
output at run time        settings, lance/schema, lance/column_lineage  rejected, except for keys of events
input                     the keys above                                rejected
output of an op           lance/commit_message, lance/vector_columns,   rejected, except for keys of events
                          lance/cluster

The keys of other table IO managers are rejected, with the key to use here; only their `write_mode` is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import dagster as dg

from lance_dagster.tables.event_keys import SETTABLE_ENTRIES
from lance_dagster.tables.names import near_name, plain_metadata
from lance_dagster.tables.partition_expr import partition_column
from lance_dagster.tables.refs import INDEX_ON_WRITE_KEY, INDICES_KEY, MAINTENANCE_KEY, TableRoot, as_moment
from pyspark_lance import EmptyOutput, OutOfPartition, SchemaMode

PREFIX: Final = "lance/"
READ_ELSEWHERE: Final = {
    *(INDEX_ON_WRITE_KEY, INDICES_KEY, MAINTENANCE_KEY),
    *("lance/column_lineage", "lance/schema", "lance/shared_table", "lance/table"),
}
"""Definition metadata that jobs, checks and lineage read."""

_OF_OUTPUTS: Final = frozenset({"lance/column_lineage", "lance/schema"})
"""Entries of `READ_ELSEWHERE` that the metadata of an output may have as well."""

OF_DEFINITIONS: Final = ("partition_expr", "schema", "table")
"""Entries of definition metadata without the prefix."""

_OP_OUTPUT_KEYS: Final = frozenset({"lance/commit_message", "lance/vector_columns", "lance/cluster"})

FOREIGN_OUTPUT_KEYS: Final[Mapping[str, str]] = {
    "mode": "lance/write_mode",
    "upsert_options": "lance/write_mode merge with lance/merge_on",
    "upsert_keys": "lance/merge_on",
    "overwrite_schema": "lance/schema_mode overwrite",
    "schema_mode": "lance/schema_mode",
    "schema_update_mode": "lance/schema_mode",
    "custom_metadata": "lance/commit_message",
}
"""Keys of other table IO managers in the metadata of an asset, and their equivalents here."""

_AMBIGUOUS: Final = frozenset({"mode", "schema_mode"})
"""Keys of `FOREIGN_OUTPUT_KEYS` that may be a user's own in the metadata of an output."""

FOREIGN_INPUT_KEYS: Final[Mapping[str, str]] = {
    "filter": "lance/filter",
    "version": "lance/version",
    "tag": "lance/tag",
}
"""Keys of other table IO managers in the metadata of an input, and their equivalents here."""


WriteMode = Literal["overwrite", "append", "merge", "columns", "error", "create_only"]
OnEarlierAttempt = Literal["replace", "adopt", "append"]
WhenMatched = Literal["update", "nothing", "delete"]
WhenNotMatched = Literal["insert", "nothing"]
WhenNotMatchedBySource = Literal["nothing", "delete"]
MissingRows = Literal["null", "keep", "error"]
ReadMode = Literal["latest", "materialized"]
LoadType = Literal["auto", "spark", "pandas", "polars", "pyarrow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """How one output is written; see the list at the head of the module."""

    write_mode: WriteMode = "overwrite"
    schema_mode: SchemaMode = "strict"
    empty_output: EmptyOutput = "write"
    out_of_partition: OutOfPartition = "error"
    cluster: bool = True
    stable_row_ids: bool = True
    on_earlier_attempt: OnEarlierAttempt = "replace"
    merge_on: str | Sequence[str] | Mapping[str, Any] | None = None
    when_matched: WhenMatched = "update"
    when_not_matched: WhenNotMatched = "insert"
    when_not_matched_by_source: WhenNotMatchedBySource = "nothing"
    key: str | Sequence[str] | None = None
    missing: MissingRows = "null"
    commit_message: str | None = None
    vector_columns: Mapping[str, int] = field(default_factory=dict)

    def overridden(self, metadata: Mapping[str, object], *, asset: str, strict: bool) -> OutputSettings:
        """A copy with the options that `lance/...` entries of an asset or of one output set.

        Args:
            metadata: Definition or output metadata.
            asset: The asset, for messages.
            strict: Whether `metadata` is definition metadata. Output metadata may have entries of the user's own, so
                that a key of another IO manager is rejected there only if it cannot be one of these.

        Raises:
            DagsterInvalidDefinitionError: An entry is unknown, belongs elsewhere, or has an invalid value.
        """
        label = f"asset {asset}"
        if strict:
            reject_unknown(metadata, OUTPUT_KEYS | READ_ELSEWHERE, label=label, plain=OF_DEFINITIONS)
            reject_foreign(metadata, FOREIGN_OUTPUT_KEYS, label=label)
        else:
            reject_at_run_time(metadata, OUTPUT_KEYS, _CHOICES, label=label)
        return self.changed(_with_write_mode(metadata, label), label=label)

    def changed(self, metadata: Mapping[str, object], *, label: str) -> OutputSettings:
        """A copy with the options that entries of metadata set.

        Raises:
            DagsterInvalidDefinitionError: An entry has an invalid value.
        """
        changes = {
            key.removeprefix(PREFIX): _checked(key, plain_metadata(value), label)
            for key, value in metadata.items()
            if key in OUTPUT_KEYS
        }
        return replace(self, **changes)

    @property
    def merge_key(self) -> list[str]:
        """The columns that a merge matches rows by."""
        on = self.merge_on["on"] if isinstance(self.merge_on, Mapping) else self.merge_on
        return [on] if isinstance(on, str) else list(on or ())

    @property
    def merge_clauses(self) -> dict[str, Any] | None:
        """The clauses of a merge, as `pyspark_lance.merge` takes them; None if `lance/when_...` has them."""
        if not isinstance(self.merge_on, Mapping):
            return None
        return {name: value for name, value in self.merge_on.items() if name != "on"}

    @property
    def row_key(self) -> list[str]:
        """The columns that identify the rows in which columns are set."""
        return [self.key] if isinstance(self.key, str) else list(self.key or ())

    def check(self, *, asset: str, partitioned: bool) -> None:
        """Reject options that cannot be combined.

        Raises:
            DagsterInvalidDefinitionError: Two options cannot be combined, or one lacks another that it needs.
        """
        for problem in self._find_conflicts(partitioned=partitioned):
            raise dg.DagsterInvalidDefinitionError(f"asset {asset}: {problem}")

    def _find_conflicts(self, *, partitioned: bool) -> Iterator[str]:
        mode, schema_mode = self.write_mode, self.schema_mode
        if mode == "merge" and not self.merge_on:
            yield 'write_mode merge needs the key, metadata={"lance/merge_on": "column"} or a list of columns'
        if mode != "merge" and self.merge_on:
            yield f"metadata lance/merge_on is for write_mode merge, not {mode}"
        policies = [name for name, default in _WHEN.items() if getattr(self, name) != default]
        if self.merge_clauses is not None and policies:
            yield f"lance/merge_on has clauses, so that lance/{policies[0]} cannot be set as well: say it in a clause"
        if mode != "columns" and (self.key is not None or self.missing != "null"):
            entry = "missing" if self.key is None else "key"
            yield f"metadata lance/{entry} is for write_mode columns, not {mode}"
        if schema_mode != "strict" and mode in _STRICT_MODES:
            yield f"write_mode {mode} {_STRICT_MODES[mode]}, so that schema_mode must be strict, not {schema_mode}"
        if schema_mode == "overwrite" and (partitioned or mode != "overwrite"):
            place = "a partition" if partitioned else mode
            yield f"schema_mode overwrite needs a write that overwrites the whole table, not {place}"


_STRICT_MODES: Final = {
    "merge": "keeps the columns of the table",
    "columns": "adds columns that the table lacks and changes no others",
}
_WHEN: Final = {"when_matched": "update", "when_not_matched": "insert", "when_not_matched_by_source": "nothing"}
"""Options of a merge without clauses, and their defaults."""

OUTPUT_KEYS = frozenset(PREFIX + option.name for option in fields(OutputSettings))
"""The options of an output as entries of metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(TableRoot):
    """Options of the IO manager for every table below its root.

    Attributes:
        output: How outputs are written, unless the metadata of the asset or output changes it.
        default_load_type: The type as which an input without a type annotation is loaded.
        spark: The resource with the Spark session, or None for the active session.
        type_handlers: Handlers for further types of values, which are tried before those of this package.
        max_rows_per_file: Rows of a data file; None for lance_core's default.
        max_bytes_per_file: Bytes of a data file; None for lance_core's default.
        data_storage_version: Version of new data files; None for the table's own, or lance_core's default.
        table_config: Entries of the table's configuration to set with each write; no entry is ever removed. Entries
            that the table lacks are set in a version of their own before an append, a merge or a replacement of
            partitions.
        derive_column_lineage: Whether column lineage is derived from the plans of Spark frames.
    """

    output: OutputSettings = field(default_factory=OutputSettings)
    default_load_type: LoadType = "auto"
    spark: Any = field(default=None, repr=False)
    type_handlers: Sequence[Any] = ()
    max_rows_per_file: int | None = None
    max_bytes_per_file: int | None = None
    data_storage_version: str | None = None
    table_config: Mapping[str, str] = field(default_factory=dict)
    derive_column_lineage: bool = False


INPUT_PINS = ("lance/version", "lance/tag", "lance/as_of")
"""Entries that choose the version of an input's table; at most one of them is allowed."""

INPUT_KEYS_OF_ASSETS = {"lance/missing", "lance/changes"}
"""Entries about an asset's history, which the output of an op does not have."""
INPUT_KEYS = {*INPUT_PINS, *INPUT_KEYS_OF_ASSETS, "lance/filter"}


def check_input(metadata: Mapping[str, object], label: str) -> None:
    """Reject entries of an input's metadata that nothing reads, that cannot be combined, or that have invalid values.

    Raises:
        DagsterInvalidDefinitionError: The metadata has such an entry.
    """
    reject_unknown(metadata, INPUT_KEYS, label=label, plain=("columns",))
    reject_foreign(metadata, FOREIGN_INPUT_KEYS, label=label)
    pins = [key for key in INPUT_PINS if key in metadata]
    if len(pins) > 1:
        raise dg.DagsterInvalidDefinitionError(f"{label}: metadata {' and '.join(pins)} cannot be combined")
    settings = {key: plain_metadata(metadata.get(key)) for key in ("columns", *INPUT_KEYS)}
    if settings["lance/changes"] is not None and pins:
        raise dg.DagsterInvalidDefinitionError(f"{label}: metadata lance/changes and {pins[0]} cannot be combined")
    for key, value in settings.items():
        holds, expected = _INPUT_VALUES[key]
        if value is not None and not holds(value):
            raise _wrong_value(key, value, expected, label)
    if settings["lance/as_of"] is not None:
        try:
            as_moment(settings["lance/as_of"])
        except ValueError as error:
            raise dg.DagsterInvalidDefinitionError(f"{label}: metadata lance/{error}") from error


_FILTERS: Final = (
    "an SQL string, lance_filter(expression) of a pyarrow expression, or a list of [column, operator, value] such as "
    '[["carrier", "==", "UA"]]'
)
_INPUT_VALUES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "columns": (
        lambda value: isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value),
        "a list of names",
    ),
    "lance/version": (lambda value: isinstance(value, int) and not isinstance(value, bool), "the number of a version"),
    "lance/tag": (lambda value: isinstance(value, str), "the name of a tag"),
    "lance/as_of": (lambda _: True, "a time"),
    "lance/missing": (lambda value: value in ("error", "empty"), "one of error, empty"),
    "lance/changes": (lambda value: value == "since_last_run", "since_last_run"),
    "lance/filter": (lambda value: isinstance(value, str | list | tuple), _FILTERS),
}
"""Whether an entry of an input's metadata has a valid value, and what it must be."""


def _wrong_value(key: str, value: object, expected: str, label: str) -> dg.DagsterInvalidDefinitionError:
    return dg.DagsterInvalidDefinitionError(f"{label}: metadata {key} must be {expected}, not {value!r}")


def _with_write_mode(metadata: Mapping[str, object], label: str) -> Mapping[str, object]:
    """The metadata with `lance/write_mode` set from `write_mode`, the name of the key in some other IO managers."""
    if "write_mode" not in metadata:
        return metadata
    write_modes = {plain_metadata(metadata[key]) for key in ("write_mode", "lance/write_mode") if key in metadata}
    if len(write_modes) > 1:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata 'write_mode' and 'lance/write_mode' have different values, "
            f"{metadata['write_mode']!r} and {metadata['lance/write_mode']!r}; leave out 'write_mode'"
        )
    return {**metadata, "lance/write_mode": metadata["write_mode"]}


def partition_columns(metadata: Mapping[str, Any]) -> list[str]:
    """The columns that `partition_expr` in the metadata of an asset names; none if it names none."""
    expression = plain_metadata(metadata.get("partition_expr"))
    names = expression.values() if isinstance(expression, Mapping) else [expression]
    return [partition_column(name, label="the asset") for name in names if isinstance(name, str) and name]


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    PREFIX + name: get_args(hint)
    for name, hint in get_type_hints(OutputSettings).items()
    if get_origin(hint) is Literal
}
"""The values of options that are one of several strings."""


def _checked(key: str, value: object, label: str) -> Any:
    if key in _CHOICES:
        good, expected = value in _CHOICES[key], f"one of {', '.join(_CHOICES[key])}"
    elif key in ("lance/cluster", "lance/stable_row_ids"):
        good, expected = isinstance(value, bool), "a bool"
    elif key == "lance/merge_on" and isinstance(value, Mapping):
        _check_clauses(value, label)
        good, expected = True, ""
    elif key in ("lance/merge_on", "lance/key"):
        columns = [value] if isinstance(value, str) else value
        good = _are_columns(columns)
        expected = "a column, or a list of columns"
    elif key == "lance/commit_message":
        good, expected = isinstance(value, str), "a string"
    else:
        good = isinstance(value, Mapping) and all(type(width) is int and width > 0 for width in value.values())
        expected = "a mapping from columns to widths"
    if not good:
        raise _wrong_value(key, value, expected, label)
    return value


def _are_columns(columns: object) -> bool:
    return isinstance(columns, list | tuple) and bool(columns) and all(isinstance(c, str) and c for c in columns)


def _check_clauses(value: Mapping[str, Any], label: str) -> None:
    """Reject a mapping `lance/merge_on` without a key or with invalid clauses."""
    from lance_core.errors import InvalidInputError  # noqa: PLC0415 - few definitions need it
    from pyspark_lance import parse_merge_clauses  # noqa: PLC0415 - few definitions need it

    on = value.get("on")
    if not _are_columns([on] if isinstance(on, str) else on):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata lance/merge_on with clauses needs the key as 'on', a column or a list of columns, not "
            f"{on!r}"
        )
    try:
        parse_merge_clauses({name: clauses for name, clauses in value.items() if name != "on"})
    except InvalidInputError as error:
        raise dg.DagsterInvalidDefinitionError(f"{label}: metadata lance/merge_on: {error}") from error


def reject_unknown(
    metadata: Mapping[str, object],
    names: Collection[str],
    *,
    label: str,
    plain: tuple[str, ...] = (),
    accepted_keys: Collection[str] = (),
) -> None:
    """Reject `lance/...` entries that nothing reads.

    Args:
        metadata: The entries.
        names: The keys that are read.
        label: The asset, input or output, for messages.
        plain: Keys without the prefix that are read, for the message.
        accepted_keys: Keys that are accepted, and that the message does not name.

    Raises:
        DagsterInvalidDefinitionError: Nothing reads an entry; the error names it, and the nearest known key.
    """
    for key in sorted(metadata):
        if key.startswith(PREFIX) and key not in names and key not in accepted_keys:
            raise dg.DagsterInvalidDefinitionError(
                f"{label}: metadata {key!r} is not accepted; known here: {', '.join([*plain, *sorted(names)])}"
                f"{near_name(key, names)}"
            )


def reject_foreign(metadata: Mapping[str, object], foreign: Mapping[str, str], *, label: str) -> None:
    """Reject the keys of other IO managers, which would be ignored here.

    Raises:
        DagsterInvalidDefinitionError: The metadata has such a key.
    """
    for key, lance_key in foreign.items():
        if key in metadata:
            raise dg.DagsterInvalidDefinitionError(
                f"{label}: metadata {key!r} is another IO manager's, and LanceIOManager does not read it; use "
                f"{lance_key}"
            )


def reject_at_run_time(
    metadata: Mapping[str, object], names: Collection[str], choices: Mapping[str, Collection[str]], *, label: str
) -> None:
    """Reject entries of an output's metadata at run time that look like settings but have no effect.

    Args:
        metadata: The output's metadata.
        names: The settings, each with the prefix.
        choices: The allowed values of settings that have a few.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: The metadata has such an entry.
    """
    late = sorted(({"partition_expr"} | (READ_ELSEWHERE - _OF_OUTPUTS)) & set(metadata))
    if late:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {late[0]!r} is read from the definition of the asset, and this output sets it at run "
            f'time; move it to @asset(metadata={{"{late[0]}": ...}})'
        )
    reject_unknown(metadata, {*names, *_OF_OUTPUTS}, label=label, accepted_keys=SETTABLE_ENTRIES)
    foreign = {
        key: lance_key
        for key, lance_key in FOREIGN_OUTPUT_KEYS.items()
        if key not in _AMBIGUOUS or plain_metadata(metadata.get(key)) in tuple(choices.get(lance_key, ()))
    }
    reject_foreign(metadata, foreign, label=label)


def reject_of_ops(metadata: Mapping[str, object], settings: Collection[str], *, label: str) -> None:
    """Reject entries in the metadata of an op's output that have no effect, because the output is no asset.

    Args:
        metadata: The output's metadata, of its definition or at run time.
        settings: The settings of outputs, each with the prefix.
        label: The output, for messages.

    Raises:
        DagsterInvalidDefinitionError: The metadata has such an entry.
    """
    for key in sorted(set(metadata) & ({*settings, *READ_ELSEWHERE} - _OP_OUTPUT_KEYS)):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {key!r} is for assets, and this output is none: it only passes a frame to another op. "
            "Make it an asset, or leave the entry out"
        )
    reject_unknown(metadata, _OP_OUTPUT_KEYS, label=label, accepted_keys=SETTABLE_ENTRIES)
