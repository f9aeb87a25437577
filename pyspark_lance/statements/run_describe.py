"""Runs DESCRIBE and SHOW, by lance_core's functions on the table.

SHOW CREATE TABLE gives the statement that makes a table with the same columns, partitions and properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from lance_core import LanceDataset
from lance_core.dataset import LANCE_COMMIT_MESSAGE_KEY
from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.tables import TableName
from pyspark_lance.lazy import DataFrame, DataType, StructType, types
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.table_properties import COMMENT, format_properties, properties_of
from pyspark_lance.types.column_names import case_sensitive, quoted
from pyspark_lance.types.spark_types import spark_schema
from pyspark_lance.writing.options import existing_partition_columns


def describe(context: Context, *, table: TableName, is_extended: bool) -> DataFrame:
    """Run a DESCRIBE TABLE [EXTENDED]."""
    dataset = context.finder.open(table)
    rows: list[tuple[Any, ...]] = []
    for field, stored in zip(spark_schema(dataset.schema), dataset.schema, strict=True):
        comment = (stored.metadata or {}).get(COMMENT.encode())
        rows.append((field.name, field.dataType.simpleString(), None if comment is None else comment.decode()))
    if is_extended:
        facts = {
            "Name": table,
            "Location": dataset.uri,
            "Provider": "lance",
            "Version": dataset.version,
            "Partitioned by": ", ".join(existing_partition_columns(dataset) or ()),
            "Table Properties": properties_of(dataset),
        }
        rows += [("", "", ""), ("# Detailed Table Information", "", "")]
        rows += [(name, str(value), "") for name, value in facts.items()]
    return context.answer("col_name string, data_type string, comment string", rows)


def describe_history(context: Context, *, table: TableName, limit: int | None) -> DataFrame:
    """Run a DESCRIBE HISTORY [LIMIT n]."""
    rows = []
    for version, transaction in islice(context.finder.open(table).history(), limit):
        properties = dict((transaction.transaction_properties or {}) if transaction is not None else {})
        message = properties.pop(LANCE_COMMIT_MESSAGE_KEY, None)
        operation = None if transaction is None else transaction.operation.name
        rows.append((version.version, version.timestamp, operation, message, properties))
    schema = (
        "version long, timestamp timestamp, operation string, message string, operationParameters map<string, string>"
    )
    return context.answer(schema, rows)


def describe_detail(context: Context, *, table: TableName) -> DataFrame:
    """Run a DESCRIBE DETAIL."""
    dataset = context.finder.open(table)
    row = (
        "lance",
        str(table),
        dataset.uri,
        existing_partition_columns(dataset) or [],
        len(dataset.get_fragments()),
        dataset.count_rows(),
        properties_of(dataset),
        dataset.version,
    )
    schema = (
        "format string, name string, location string, partitionColumns array<string>, numFragments long, numRows long,"
        " properties map<string, string>, version long"
    )
    return context.answer(schema, [row])


def show_columns(context: Context, *, table: TableName) -> DataFrame:
    """Run a SHOW COLUMNS."""
    return context.answer("col_name string", [(name,) for name in context.finder.open(table).schema.names])


def show_properties(context: Context, *, table: TableName, key: str | None) -> DataFrame:
    """Run a SHOW TBLPROPERTIES [(key)]."""
    properties = properties_of(context.finder.open(table))
    if key is not None:  # a missing one is answered in Spark's words
        properties = {key: properties.get(key, f"Table {table} does not have property: {key}")}
    return context.answer("key string, value string", properties.items())


def show_create_table(context: Context, *, table: TableName) -> DataFrame:
    """Run a SHOW CREATE TABLE."""
    dataset = context.finder.open(table)
    return context.answer("createtab_stmt string", [(create_statement(table, dataset, properties_of(dataset)),)])


def show_branches(context: Context, *, table: TableName) -> DataFrame:
    """Run a SHOW BRANCHES."""
    branches = sorted(context.finder.open(table).branches.list().items())
    rows = [(name, str(branch["parent_branch"] or "main"), branch["parent_version"]) for name, branch in branches]
    return context.answer("name string, parent string, parent_version long", rows)


def show_tags(context: Context, *, table: TableName) -> DataFrame:
    """Run a SHOW TAGS."""
    tags = sorted(context.finder.open(table).tags.list().items())
    rows = [(name, tag["branch"] or "main", tag["version"]) for name, tag in tags]
    return context.answer("name string, branch string, version long", rows)


def show_indices(context: Context, *, table: TableName) -> DataFrame:
    """Run a SHOW INDEXES."""
    rows = [
        (index.name, list(index.field_names), index.index_type.lower(), index.num_rows_indexed)
        for index in context.finder.open(table).describe_indices()
    ]
    return context.answer("name string, fields array<string>, index_type string, num_indexed_rows long", rows)


def show_tables(context: Context, *, parts: tuple[str, ...], what: str, pattern: str | None) -> DataFrame:
    """Run a SHOW TABLES or SHOW NAMESPACES.

    SHOW TABLES of a catalog lists the tables of all its namespaces, that of a namespace only its own.

    Raises:
        InvalidInputError: The statement names a path.
    """
    catalog = context.finder.catalog(parts[0])
    within = parts[1:]
    if catalog is None:
        raise InvalidInputError(
            f"SHOW {what} lists a catalog, and not the path {'.'.join(within)}: give the folder a name by"
            f" pyspark_lance.register_catalog(spark, 'lake', {within[0]!r}), then SHOW {what} IN lake"
        )
    exact = case_sensitive(context.spark)
    names = [name for name in context.finder.tables(catalog) if _is_within(name, within, exact=exact)]
    if what == "TABLES":
        rows = [(".".join(name[:-1]), name[-1], False) for name in names if len(name) == len(within) + 1 or not within]
        matching_rows = [row for row in rows if _like(row[1], pattern)]
        return context.answer("namespace string, tableName string, isTemporary boolean", matching_rows)
    spaces = sorted({".".join(name[: len(within) + 1]) for name in names if len(name) > len(within) + 1})
    return context.answer("namespace string", [(space,) for space in spaces if _like(space, pattern)])


def _is_within(name: tuple[str, ...], within: tuple[str, ...], *, exact: bool) -> bool:
    pairs = zip(name, within, strict=False)
    return len(name) > len(within) and all(a == b or (not exact and a.lower() == b.lower()) for a, b in pairs)


def _like(name: str, pattern: str | None) -> bool:
    """Whether a name fits a Spark pattern: a regular expression in which `*` is any characters, `|` separates choices.

    Raises:
        InvalidInputError: The pattern is not a regular expression.
    """
    if pattern is None:
        return True
    try:
        choices = [re.compile(choice.replace("*", ".*"), re.IGNORECASE) for choice in pattern.strip().split("|")]
    except re.error as error:
        raise InvalidInputError(f"LIKE {pattern!r} is not a pattern of names: {error}") from error
    return any(choice.fullmatch(name) for choice in choices)


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})


def create_statement(name: TableName, dataset: LanceDataset, config: Mapping[str, str]) -> str:
    """The statement that creates a table such as this one.

    Args:
        name: The name of the table.
        dataset: The table.
        config: Its configuration, without the keys that these packages keep for themselves.
    """
    columns = [f"  {field_text}" for field_text in _fields(spark_schema(dataset.schema), list(dataset.schema), " ")]
    lines = [f"CREATE TABLE {'.'.join(map(_plain, name.parts))} (\n" + ",\n".join(columns) + ")", "USING lance"]
    partitions = existing_partition_columns(dataset)
    if partitions:
        lines.append(f"PARTITIONED BY ({', '.join(map(quoted, partitions))})")
    properties = {**config, **format_properties(dataset)}
    if properties:
        entries = ", ".join(f"{_string(key)} = {_string(value)}" for key, value in properties.items())
        lines.append(f"TBLPROPERTIES ({entries})")
    return "\n".join(lines)


def _fields(struct: StructType, stored: list[pa.Field], separator: str) -> Iterator[str]:
    """Columns, or the fields of a struct: name, type, NOT NULL and comment."""
    for field, arrow in zip(struct, stored, strict=True):
        strict = "" if arrow.nullable else " NOT NULL"
        comment = (arrow.metadata or {}).get(COMMENT.encode())
        remark = "" if comment is None else f" COMMENT {_string(comment.decode())}"
        yield f"{quoted(field.name)}{separator}{_type(field.dataType, arrow.type)}{strict}{remark}"


def _type(kind: DataType, stored: pa.DataType) -> str:
    """A type in SQL, with the names of fields as they are."""
    if isinstance(stored, pa.BaseExtensionType):
        stored = stored.storage_type
    if isinstance(kind, types.StructType) and pa.types.is_struct(stored):
        return f"STRUCT<{', '.join(_fields(kind, list(stored), ': '))}>"
    if isinstance(kind, types.ArrayType):
        return f"ARRAY<{_type(kind.elementType, stored.value_type)}>"
    if isinstance(kind, types.MapType):
        return f"MAP<{_type(kind.keyType, stored.key_type)}, {_type(kind.valueType, stored.item_type)}>"
    return kind.simpleString().upper()


def _plain(part: str) -> str:
    return part if part.isidentifier() else quoted(part)


def _string(value: str) -> str:
    return f"'{value.translate(_ESCAPES)}'"
