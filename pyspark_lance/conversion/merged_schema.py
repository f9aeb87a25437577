"""The schema of all Parquet files of a folder, of which each may have columns that the others lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote

from lance_core.errors import SchemaError
from pyspark_lance.lazy import DataFrameReader, DataType, StructType, types

_NO_MERGE: Final = "CANNOT_MERGE_"
"""Start of the names of Spark's errors about schemas that differ; the class of the errors differs between sessions."""


def merge_schemas(reader: DataFrameReader, files: Sequence[str]) -> StructType:
    """The columns of all files.

    Args:
        reader: The reader of the files.
        files: The files.

    Raises:
        SchemaError: A file has a column in another type than the files before it.
    """

    def merge(count: int) -> StructType:
        return reader.option("mergeSchema", True).parquet(*files[:count]).schema

    def is_merged(count: int) -> bool:
        try:
            merge(count)
        except Exception as error:
            if _NO_MERGE in str(error):
                return False
            raise
        return True

    try:
        return merge(len(files))
    except Exception as error:
        if _NO_MERGE not in str(error):
            raise
        fits, fails = 1, len(files)
        while fails - fits > 1:  # each step halves the files among which is the first one that does not fit
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if is_merged(middle) else (fits, middle)
        schemas = merge(fits), reader.parquet(files[fits]).schema
        what = "; ".join(
            f"column {path!r} is {now}, and {before} before" for path, before, now in _find_type_changes(*schemas)
        )
        raise SchemaError(f"{files[fits]} does not fit the files before it: {what}") from error


def check_partition_names(
    reader: DataFrameReader, files: Sequence[str], partitions: dict[str, str], *, exact: bool
) -> None:
    """Make sure that no file has a column of the name of a Hive partition: Spark would read the partition alone.

    Args:
        reader: The reader of the files.
        files: The files.
        partitions: The partitions, each with a file below its folder.
        exact: Whether Spark distinguishes names by case.

    Raises:
        SchemaError: A file has such a column.
    """
    if not partitions:
        return
    columns = reader.option("recursiveFileLookup", True).option("mergeSchema", True).parquet(*files).schema.names
    columns_by_name = {name if exact else name.lower(): name for name in columns}
    for partition, file in partitions.items():
        column = columns_by_name.get(partition if exact else partition.lower())
        if column is not None:
            raise SchemaError(
                f"the files have a column {column!r}, and their folders name a Hive partition {partition!r}, as that of"
                f" {file}: Spark reads one of the two only. Nothing was written. To keep both, name the folders"
                f" otherwise than {partition}=...; to keep the column of the files, pass"
                " spark.read.option('recursiveFileLookup', True).parquet(folder) to pyspark_lance.write; to keep the"
                " values of the folders, pass spark.read.parquet(folder)"
            )


def find_partitions(base: str, files: Sequence[str]) -> dict[str, str]:
    """The names of the Hive partitions of files below a folder, as Spark finds them, each with one of its files."""
    partitions: dict[str, str] = {}
    for file in files:
        is_below = False
        for folder in reversed(file.removeprefix(base).split("/")[:-1]):
            name, equals, _ = folder.partition("=")
            if equals:
                partitions.setdefault(unquote(name), file)
            elif is_below:  # Spark takes the nearest folders only
                break
            is_below = is_below or bool(equals)
    return partitions


def _find_type_changes(before: DataType, now: DataType, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the columns and fields of structs that have another type, each with its path and both types."""
    if isinstance(before, types.StructType) and isinstance(now, types.StructType):
        fields = {field.name.lower(): field for field in before} | {field.name: field for field in before}
        for field in now:
            same = fields.get(field.name) or fields.get(field.name.lower())
            if same is not None:
                yield from _find_type_changes(
                    same.dataType, field.dataType, f"{path}.{field.name}" if path else field.name
                )
    elif before.simpleString() != now.simpleString():
        yield path, before.simpleString(), now.simpleString()
