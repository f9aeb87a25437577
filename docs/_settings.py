"""`docs/settings.md`, all settings, made from the code: `python docs/_settings.py` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import PydanticUndefined

from lance_dagster.io_manager.config import LanceIOManager
from lance_dagster.tables.settings import INPUT_KEYS, INPUT_PINS, OUTPUT_KEYS, PREFIX, READ_ELSEWHERE, OutputSettings
from pyspark_lance.datasource.options import OPTIONS

__all__ = ["settings_page"]

ASSET_KEYS: Final[Mapping[str, str]] = {
    "partition_expr": "the partition column; for several dimensions a mapping from each to its column",
    "schema": "folder of the table, in place of all parts of the key before the last",
    "table": "name of the table",
    "lance/write_mode": "as the setting; `write_mode` is understood too",
    "lance/schema_mode": "as the setting",
    "lance/empty_output": "as the setting",
    "lance/out_of_partition": "as the setting",
    "lance/cluster": "as the setting",
    "lance/stable_row_ids": "as the setting; a table that was created without them is rejected",
    "lance/on_earlier_attempt": "as the setting",
    "lance/merge_on": "the key of a merge: a column, or a list of columns; with clauses a mapping, "
    '`{"on": key, "when_matched": [...], ...}` ([partitions](partitions.md#merges-with-clauses))',
    "lance/when_matched": "rows of a merge that are in the output and in the table",
    "lance/when_not_matched": "rows of a merge that are in the output only",
    "lance/when_not_matched_by_source": "rows of a merge that are in the table only; in a run of partitions, "
    "only rows of these partitions",
    "lance/table": "with the mode columns, the table whose columns are set: the key of the asset that makes it, or "
    "`schema.table`",
    "lance/key": "with the mode columns, the columns that name its rows: a column, or a list of columns; frames that "
    "keep `_rowaddr` or `_rowid` of the input need none",
    "lance/missing": "with the mode columns, the rows of the run's partitions that the output lacks: `null` sets "
    "the columns of those that the step has loaded to null, `keep` leaves them, `error` rejects the output",
    "lance/commit_message": "message for the table's history",
    "lance/vector_columns": '`{"column": width}`: lists that are stored as vectors',
    "lance/schema": "a pyarrow schema, or a mapping from columns to names of Arrow types: types for columns that have "
    "only nulls, and the columns of a table that is not there yet. Without it they are read "
    "from the metadata of the asset's Dagster type: its "
    "`lance/schema`, or the table schema that types made from Pandera or Patito models show",
    "lance/shared_table": "`True`: other assets write to this table as well; without it a table whose commits name "
    "another asset is rejected",
    "lance/maintenance": "fields of a `LanceMaintenancePolicy`; false: left alone; true: maintained though external",
    "lance/indices": "the indices of the table, by column: a kind, or a mapping with kind and parameters "
    "([search](search.md#indices-of-assets)); in place of `indices` in `lance/maintenance` and in policies of jobs",
    "lance/index_on_write": "`True`: writes build the declared indices that the table lacks, and extend all its "
    "indices to the new rows, before their events ([search](search.md#indices-on-write))",
    "lance/column_lineage": "where each column comes from",
}
"""Definition metadata of an asset, with the meaning of each key."""

INPUT_ENTRIES: Final[Mapping[str, str]] = {
    "columns": "a list of columns, in the order wanted",
    "lance/filter": "SQL string, `lance_filter(expression)`, or a list of `[column, operator, value]` that all hold "
    "(`=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`); a list of such lists, of which one holds; nulls by SQL's "
    "`IS NULL`",
    "lance/version": "a version's number",
    "lance/tag": "a tag",
    "lance/as_of": "a time, or its ISO form; without a zone it is in UTC",
    "lance/missing": "what an input is whose table, or every partition, was never written: `error`, the default, or "
    "`empty`, no rows. An input that is annotated as Optional is None then. Where some of the partitions were written, "
    "the rows that the table has are loaded, and the log names the others unless this is `empty`",
    "lance/changes": "`since_last_run`: the rows that changed since the asset's own last commit, with `_change_type` "
    "([changes](changes.md#inputs-of-assets)); run tag `lance/full_refresh` = `true` reads everything again",
}
"""Definition metadata of an input, with the meaning of each key."""

_BLOBS: Final = """\
Frames hold the payloads of columns of blobs, so that an asset gets what another one wrote. An input that is
annotated as `LanceDataset` is a handle, as `lance_core.dataset` returns it: its scans give descriptions of blobs, and
payloads with `blob_handling="all_binary"`; returned as an output it is written with its payloads.
"""

_GRAPHS: Final = """\
In a graph asset they stand at the op, `dg.In(metadata={...})`: Dagster drops the metadata of `dg.AssetIn` of
`@dg.graph_asset` and `@dg.graph_multi_asset` before this package could see it, so that it has no effect there.
"""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "LANCE_CPU_THREADS": "threads of a process that decode, encode, filter and sort, at least 1; one per core that the "
    "process may use by default. Threads that read or write, such as several steps in one process, work beside them",
    "LANCE_DEFAULT_BATCH_SIZE": "rows of a batch of a scan without `batch_size`",
}
"""Environment variables, with the meaning of each. Those of storages are on the page of storages."""

_UNDESCRIBED: Final = {
    "spark": "The resource with the Spark session; without it the active session serves.",
    "max_rows_per_file": "Rows after which a task begins another data file.",
    "max_bytes_per_file": "Bytes after which a task begins another data file.",
}


def settings_page() -> str:
    """The page, as Markdown."""
    return "\n".join(
        [
            "# Settings",
            "",
            "Made from the code. What is not listed here is rejected by name, never ignored.",
            "",
            "## `LanceIOManager`",
            "",
            *_table(["setting", "values", "default", "meaning"], _manager_rows()),
            "",
            "## Metadata of assets",
            "",
            "In the definition, and for `lance/...` entries that are settings also in the metadata of one output.",
            "",
            *_table(["key", "values", "meaning"], _asset_rows()),
            "",
            "## Metadata of inputs",
            "",
            f"`dg.AssetIn(metadata={{...}})`. {', '.join(f'`{key}`' for key in INPUT_PINS)} cannot be combined.",
            "",
            _GRAPHS,
            *_table(["key", "meaning"], ([f"`{key}`", text] for key, text in INPUT_ENTRIES.items())),
            "",
            _BLOBS,
            "## Options of Spark's data source",
            "",
            '`spark.read.format("lance").option(name, value)`. Case and underscores in a name do not matter.',
            "Each use (`read`, `readStream`, `write`, `writeStream`) rejects options that it does not have.",
            "",
            *_table(["option", "of", "meaning"], ([f"`{one.name}`", one.used_by, one.meaning] for one in OPTIONS)),
            "",
            "## Environment variables",
            "",
            "Read when the first work needs them. Those of storages are [there](storage.md).",
            "",
            *_table(["variable", "meaning"], ([f"`{name}`", text] for name, text in ENVIRONMENT.items())),
            "",
        ]
    )


def documented_keys() -> tuple[frozenset[str], set[str]]:
    """The `lance/...` keys of assets and of inputs that the code reads."""
    return OUTPUT_KEYS | READ_ELSEWHERE, set(INPUT_KEYS)


def _manager_rows() -> Iterable[list[str]]:
    for name, field in LanceIOManager.model_fields.items():
        if name.startswith("_"):
            continue
        default = "required" if field.is_required() else _default(field)
        text = field.description or _UNDESCRIBED.get(name, "")
        yield [f"`{field.alias or name}`", _values(field.annotation), default, text]


def _asset_rows() -> Iterable[list[str]]:
    hints = get_type_hints(OutputSettings)
    for key, text in ASSET_KEYS.items():
        kind = hints.get(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else None
        yield [f"`{key}`", "" if kind is None else _values(kind), text]


def _default(field: Any) -> str:
    value = field.default
    if value is PydanticUndefined or value is None:
        return ""
    return f"`{value}`"


def _values(kind: Any) -> str:
    """A type for readers: the values of a choice, else its name."""
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if origin in (Union, UnionType):
        return " or ".join(shown for one in get_args(kind) if one is not NoneType and (shown := _values(one)))
    if kind in (bool, int, str):
        return {bool: "true, false", int: "a number", str: "string"}[kind]
    if origin is dict:
        return "a mapping"
    return "a resource" if kind is Any or "Resource" in str(kind) else ""


def _table(columns: list[str], rows: Iterable[list[str]]) -> Iterable[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


if __name__ == "__main__":
    print(settings_page(), end="")  # noqa: T201 - what the command is for
