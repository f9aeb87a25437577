"""Conversion of other formats into Lance, and of Lance into Parquet, by Spark.

    source            read by
    ----------------- -----------------------------------------------------------------------------------
    Parquet folder    Spark; Hive partitions (`day=2013-01-01/`) become columns
    Delta table       Spark's own reader if its jar is installed, else the files that `deltalake` names
    Iceberg table     Spark's own reader if its jar is installed, else the files that `pyiceberg` names

Files are converted in groups. Each group is one commit, which records its files, so that a later run skips them
(`history.py`). At the end, the rows of both sides are counted, and the hashes of their columns are added up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Final, Literal, TypeAlias, get_args

from pyarrow import fs

import lance_core
from lance_core import LanceDataset, WriteResult
from lance_core.errors import InvalidInputError, LanceError, RetryableConflictError, SchemaError, UnsupportedError
from pyspark_lance.conversion.constants import add_constants
from pyspark_lance.conversion.foreign_errors import foreign_errors
from pyspark_lance.conversion.history import IDEMPOTENCY_KEY, ConversionHistory
from pyspark_lance.conversion.merged_schema import check_partition_names, find_partitions, merge_schemas
from pyspark_lance.conversion.sources import BY_ID, SourceFiles, filesystem_of, list_foreign_files
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.jobs import run_job
from pyspark_lance.engine.sessions import session_of, with_setting, with_times
from pyspark_lance.lazy import DataFrame, SparkSession, functions
from pyspark_lance.reading.read import read
from pyspark_lance.releases import is_at_least
from pyspark_lance.types.column_names import case_sensitive, match_names, names_of, quoted
from pyspark_lance.writing.write import write

ConvertMode = Literal["create", "append", "overwrite"]
SourceFormat = Literal["parquet", "delta", "iceberg"]

_NOT_IN_NAMES: Final = {"string": r"\x00", "binary": r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]"""}
"""Characters that the name of a Hive partition cannot hold: of bytes, Spark does not read back what it escapes."""

_GROUP_BYTES: Final = 32 << 30
"""Bytes of source files per commit: an interruption loses the work of one commit at most."""


_SOURCE_REMEDY: Final = (
    "Nothing was written. If another tool reads the source, let it write Parquet files and convert these; otherwise"
    " repair or restore the source, or give another one"
)
_FOLDER_REMEDY: Final = (
    "Nothing was written. Repair or restore the files, or give another folder; or read the files by Spark in groups"
    " that fit, with casts, and pass the frames to pyspark_lance.write"
)
_TABLE_REMEDY: Final = "Spark's log says more; call it again with mode='overwrite'"
_TARGET_REMEDY: Final = "Give a folder that Spark can write, or mode='overwrite' or 'append' if it has files"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult:
    """The result of a conversion.

    Attributes:
        dataset: The table.
        version: Its version.
        rows: Number of rows of the source if both sides were compared, otherwise of rows that this run wrote.
        commits: Number of commits of this run.
        skipped: Number of commits of earlier runs, whose files were skipped.
    """

    dataset: LanceDataset
    version: int
    rows: int
    commits: int
    skipped: int


def convert(
    source: str | PathLike[str],
    uri: str | PathLike[str],
    *,
    partition_expr: str | Sequence[str] | None = None,
    mode: ConvertMode = "create",
    source_format: SourceFormat | None = None,
    spark: SparkSession | None = None,
    vector_columns: Mapping[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
    max_bytes_per_commit: int = _GROUP_BYTES,
    verify: bool = True,
) -> ConvertResult:
    """Convert a Parquet folder, a Delta table or an Iceberg table.

    An interrupted conversion continues when it is called again with the same arguments, unless converted files of the
    source have changed; new files are converted, too.

    The table has the columns of all files; a column that a file lacks is null in its rows.

    Args:
        source: The folder of the source, or of an Iceberg table its metadata file.
        uri: The Lance table.
        partition_expr: Columns of which each data file holds one value, for example Hive partitions.
        mode: "create" requires that the table does not exist, or was begun by this conversion; "append" adds the files
            that were not added before; "overwrite" replaces all rows with the first commit, unless the latest version
            belongs to this conversion. A table that Spark's own reader reads is converted as a whole: once it has
            changed, only "overwrite" converts it again.
        source_format: The format of the source; None detects it.
        spark: The session; None for the active one.
        vector_columns: Array columns to store as vectors, with the number of their items.
        storage_options: Options of the storage of `uri`.
        max_bytes_per_commit: Bytes of source files in one commit.
        verify: Whether both sides are compared at the end; with "append" they are not compared.

    Raises:
        DatasetExistsError: The mode is "create", and the URI holds another table.
        UnsupportedError: Neither Spark nor an installed library can read the source.
        InvalidInputError: The source cannot be opened, its files have incompatible schemas, or they were changed since
            the conversion began.
        SchemaError: A file has another type of a column than the files before it, or a column of the name of a Hive
            partition.
        NotFoundError: The source, or a file that it names, does not exist.
        StoreError: The storage of the source failed.
        UndecidedWriteError: Versions of an earlier run were cleaned up, so that its files are unknown.
        RetryableConflictError: Another process converts the same source at the same time.
        LanceError: The table differs from the source, or a file cannot be read.

    Examples:
        >>> source = os.path.abspath("t.parquet")
        >>> spark.range(3).write.parquet(source)
        >>> converted = pyspark_lance.convert(source, "t.lance", spark=spark)
        >>> lance.dataset("t.lance").count_rows()
        3
    """
    _check(mode, max_bytes_per_commit)
    session = session_of(spark)
    with with_setting(session, BY_ID, "true"), short_errors(str(source)):
        (files, frame), whole = _open_source(session, str(source), source_format)
        history = ConversionHistory.of(uri, str(source), storage_options)
        left, begins = history.find_files_to_convert(files, str(source), mode)
        write_results: list[WriteResult] = []
        for number, names in enumerate(_group_by_size(left, files.sizes, max_bytes_per_commit, begins=begins)):
            first = begins and number == 0
            idempotency_key = (IDEMPOTENCY_KEY, history.token(files, names, run=history.runs + begins))
            done = write(
                frame(names),
                uri,
                mode=mode if first else "append",
                partition_overwrite="static",
                schema_mode="strict" if first and mode != "overwrite" else "overwrite" if first else "add_columns",
                partition_by=None if partition_expr is None else names_of("partition_expr", partition_expr),
                vector_columns=vector_columns,
                idempotency_key=idempotency_key,
                transaction_properties=history.properties(files, names, begins=first, number=number),
                commit_message=f"convert {source}",
                storage_options=storage_options,
            )
            write_results.append(_check_not_concurrent(done, idempotency_key, str(source)))
        dataset = lance_core.dataset(uri, storage_options=storage_options)
        rows = sum(write_result.rows_written for write_result in write_results)
        if verify and mode != "append":
            converted = read(session, uri, blob_handling="all_binary", storage_options=storage_options)
            rows = _compare(whole, converted, f"{uri} and {source}")
    return ConvertResult(
        dataset=dataset,
        version=dataset.version,
        rows=rows,
        commits=sum(not write_result.deduplicated for write_result in write_results),
        skipped=0 if begins else history.commits,
    )


def _check_not_concurrent(done: WriteResult | None, idempotency_key: tuple[str, str], source: str) -> WriteResult:
    """The result of the write of some files.

    Raises:
        RetryableConflictError: Another conversion of the same source runs at the same time.
    """
    assert done is not None, "a write without rows makes a version"
    if done.deduplicated and done.dataset.find_idempotent_commit(*idempotency_key) is None:
        raise RetryableConflictError(
            f"{source} is being converted to {done.dataset.uri} by another process; convert it again"
        )
    return done


def _check(mode: ConvertMode, most: int) -> None:
    if mode not in get_args(ConvertMode):
        raise InvalidInputError(f"mode {mode!r} is none of {', '.join(get_args(ConvertMode))}")
    if most < 1:
        raise InvalidInputError(f"max_bytes_per_commit is {most}, and must be at least 1")


def to_parquet(
    uri: str | PathLike[str],
    target: str | PathLike[str],
    *,
    partition_by: str | Sequence[str] = (),
    mode: Literal["error", "overwrite", "append"] = "error",
    version: int | str | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    verify: bool = True,
) -> int:
    """Write a version of a Lance table to a Parquet folder; columns of blobs become columns of bytes.

    Args:
        uri: The Lance table.
        target: The folder.
        partition_by: Columns that become Hive partitions.
        mode: The mode of Spark's writer.
        version: Version number or tag; None for the latest.
        spark: The session; None for the active one.
        storage_options: Options of the storage of `uri`.
        verify: Whether both sides are compared at the end; with "append" they are not compared.

    Returns:
        The number of rows.

    Raises:
        SchemaError: `partition_by` names a column that the table lacks, or all columns.
        InvalidInputError: A column of `partition_by` has empty strings, or values that no name of a folder holds;
            the mode is unknown; or the folder has files.
        LanceError: The rows in the folder differ from the table's.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> target = os.path.abspath("t.parquet")
        >>> written = pyspark_lance.to_parquet("t.lance", target, spark=spark)
        >>> spark.read.parquet(target).count()
        3
    """
    if mode not in ("error", "overwrite", "append"):
        raise InvalidInputError(f"mode {mode!r} is none of error, overwrite, append")
    session = session_of(spark)
    frame = read(session, uri, version=version, blob_handling="all_binary", storage_options=storage_options)
    partition_names = names_of("partition_by", partition_by)
    spellings = match_names(partition_names, frame.columns, exact=case_sensitive(session))
    names = [spellings[name] for name in partition_names if name in spellings]
    if len(names) < len(partition_names) or len(set(names)) == len(frame.columns):
        raise SchemaError(
            f"partition_by {partition_names} must name columns of {frame.columns}, and leave out at least one"
        )
    with foreign_errors(str(uri), _TABLE_REMEDY, session):
        for name in names:
            _check_partition_values(frame, name)
    with with_times(session, frame.schema):
        with foreign_errors(str(target), f"{_TARGET_REMEDY}; drop or cast columns that it cannot write", session):
            frame.write.mode(mode).partitionBy(*names).parquet(str(target))
        if not verify or mode == "append":
            return run_job(session, frame.count)
        # With the table's types: Spark would infer those of Hive partitions from their names.
        both, copy = f"{target} and {uri}", session.read.schema(frame.schema).parquet(_literal(str(target)))
        with foreign_errors(both, _TABLE_REMEDY, session):
            return _compare(frame, copy, both)


def _check_partition_values(frame: DataFrame, name: str) -> None:
    """Make sure that the names of Hive partitions can hold the values of a column.

    Raises:
        InvalidInputError: A string is empty, or has a character 0; or bytes are empty, or Spark does not read them back
            from the name.
    """
    kind, column = frame.schema[name].dataType.simpleString(), functions.col(quoted(name))
    if kind not in ("string", "binary"):
        return
    text = column.cast("string")
    if not frame.where(functions.length(column) == 0).isEmpty():
        raise InvalidInputError(
            f"partition_by {name!r}: a Hive partition cannot distinguish an empty string from null; "
            "replace the empty strings first, or partition by another column"
        )
    if is_at_least((4, 0)):
        is_valid = functions.is_valid_utf8(text)
    else:  # decoding replaces what is not valid
        is_valid = functions.encode(functions.decode(text.cast("binary"), "UTF-8"), "UTF-8") == text.cast("binary")
    if not frame.where(~is_valid | text.rlike(_NOT_IN_NAMES[kind])).isEmpty():
        raise InvalidInputError(
            f"partition_by {name!r}: the name of a Hive partition cannot hold some values of the column: a character 0,"
            f" or bytes other than those of plain text; add a column with hex({name}) to the table, and partition by it"
        )


_ForeignSource: TypeAlias = tuple[SourceFiles, "Callable[[Iterable[str]], DataFrame]"]
"""The files of a source of another format, and a function that reads some of them."""


def _open_source(spark: SparkSession, source: str, form: SourceFormat | None) -> tuple[_ForeignSource, DataFrame]:
    """A source, and the frame of all its files, for which Spark has looked."""
    with foreign_errors(source, _SOURCE_REMEDY, spark):
        form = form or _format_of(source)
    with foreign_errors(source, _FOLDER_REMEDY if form == "parquet" else _SOURCE_REMEDY, spark):
        opened = files, frame = _source(spark, source, form)
        whole = frame(files.sizes)
        _ = whole.schema  # a Connect session looks for files only now
    return opened, whole


def _source(spark: SparkSession, source: str, form: SourceFormat) -> _ForeignSource:
    if form not in get_args(SourceFormat):
        raise InvalidInputError(f"source_format {form!r} is none of {', '.join(get_args(SourceFormat))}")
    if form != "parquet" and _spark_reads(spark, form):
        return _read_whole(spark, source, form)
    files = _list_source(source) if form == "parquet" else list_foreign_files(source, form)
    if not files.sizes and form == "parquet":
        raise InvalidInputError(f"{source}: there is no Parquet file")
    reader = spark.read if files.base is None else spark.read.option("basePath", files.base)
    schema = merge_schemas(reader, list(map(_literal, files.sizes))) if files.schema is None else files.schema
    if files.base is not None:
        partitions = find_partitions(files.base, list(files.sizes))
        check_partition_names(spark.read, list(map(_literal, files.sizes)), partitions, exact=case_sensitive(spark))

    def frame(names: Iterable[str]) -> DataFrame:
        chosen = list(names)
        if not chosen:
            source_frame = spark.createDataFrame([], schema)
        else:
            source_frame = reader.option("mergeSchema", False).schema(schema).parquet(*map(_literal, chosen))
            source_frame = add_constants(source_frame, {name: files.constants.get(name, {}) for name in chosen})
        for name in schema.names if files.schema is not None else ():
            source_frame = source_frame.withMetadata(name, {})  # without the ids of the other format
        return source_frame

    return files, frame


def _read_whole(spark: SparkSession, source: str, form: Literal["delta", "iceberg"]) -> _ForeignSource:
    """A table whose files Spark's own reader selects: all of it, at its newest version.

    Raises:
        UnsupportedError: The versions of the table cannot be listed.
    """
    reader = spark.read.format(form)
    version_files = _list_files_of_versions(spark, source, form)
    if form == "delta":  # each use of a frame would read the version that is the newest one then
        version_files = version_files[-1:]
        reader = reader.option("versionAsOf", str(int(version_files[0].partition(".")[0])))
    whole = reader.load(source)
    files = SourceFiles(base=None, sizes={source: 0}, times={source: "\n".join(version_files)}, is_whole=True)
    return files, lambda _: whole


def _list_files_of_versions(spark: SparkSession, source: str, form: Literal["delta", "iceberg"]) -> list[str]:
    """The files that the versions of a table have written, as names in ascending order, each with its size and time.

    Raises:
        UnsupportedError: There are none.
    """
    inner = f"_delta_log/{'?' * 20}.json" if form == "delta" else "metadata/*.metadata.json*"
    place = _literal(source) if source.endswith(".metadata.json") else f"{_literal(source.rstrip('/'))}/{inner}"
    try:
        # Spark lists the folder, which only it may be able to reach.
        files = spark.read.format("binaryFile").load(place)
        rows = files.selectExpr("path", "length", "unix_micros(modificationTime) as time").collect()
    except Exception as error:
        if "PATH_NOT_FOUND" not in str(error):  # its class differs between sessions
            raise
        raise UnsupportedError(
            f"{source}: Spark reads it as {form}, but there are no files {place} that say which version it has, by"
            " which a later run would see what has changed: give the folder of the table, or pass"
            f" spark.read.format({form!r}).load(...) to pyspark_lance.write. Nothing was written"
        ) from error
    return sorted(f"{row.path.rpartition('/')[2]} {row.length} {row.time}" for row in rows)


def _literal(name: str) -> str:
    """A path with the characters escaped that Spark would treat as a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", name)


def _group_by_size(names: Iterable[str], sizes: Mapping[str, int], most: int, *, begins: bool) -> Iterator[list[str]]:
    """Names of files in groups of at most `most` bytes, or of one file; one empty group begins an empty table."""
    pending: list[str] = []
    for name in names:
        if pending and sum(sizes[pending_name] for pending_name in pending) + sizes[name] > most:
            yield pending
            pending = []
        pending.append(name)
    if pending or (begins and not sizes):
        yield pending


def _format_of(source: str) -> SourceFormat:
    if source.endswith(".metadata.json"):
        return "iceberg"
    for folder, form in (("_delta_log", "delta"), ("metadata", "iceberg")):
        if _exists(f"{source.rstrip('/')}/{folder}"):
            return form  # type: ignore[return-value]  # one of the three
    return "parquet"


def _exists(path: str) -> bool:
    filesystem, inner, _ = filesystem_of(path)
    return bool(filesystem.get_file_info(inner).type.name == "Directory")


def _list_source(source: str) -> SourceFiles:
    filesystem, inner, uri = filesystem_of(source)
    info = filesystem.get_file_info(inner)
    if info.type == fs.FileType.NotFound:
        raise InvalidInputError(f"there is nothing at {source}")
    if info.type == fs.FileType.File:
        return SourceFiles(base=uri.rpartition("/")[0], sizes={uri: info.size}, times={uri: info.mtime_ns})
    file_infos = {}
    for file_info in filesystem.get_file_info(fs.FileSelector(inner, recursive=True)):
        below = file_info.path.removeprefix(inner)
        if file_info.type == fs.FileType.File and not any(map(_is_hidden, below.split("/"))):
            file_infos[uri + below] = file_info
    return SourceFiles(
        base=uri,
        sizes={name: file_infos[name].size for name in sorted(file_infos)},
        times={name: file_info.mtime_ns for name, file_info in file_infos.items()},
    )


def _is_hidden(part: str) -> bool:
    """Whether Spark ignores files and folders of this name; `_day=1` is a partition."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _spark_reads(spark: SparkSession, form: str) -> bool:
    """Whether the session has a reader for a format."""
    try:
        spark.read.format(form).load("/nowhere/at/all").schema  # noqa: B018 - its error is examined
    except Exception as error:  # noqa: BLE001 - its class differs between sessions; an existing reader raises another error
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def _compare(source_frame: DataFrame, copied_frame: DataFrame, what: str) -> int:
    """Compare counts and sums of hashes of both sides; returns the number of rows.

    Raises:
        LanceError: The sides differ; the message names the column.
    """
    source_sums, copy_sums = _sum_up_rows(source_frame, source_frame), _sum_up_rows(copied_frame, source_frame)
    wrong = [name for name, value in source_sums.items() if value != copy_sums[name]]
    if wrong:
        raise LanceError(f"{what} differ: {', '.join(f'{n}: {copy_sums[n]} and {source_sums[n]}' for n in wrong)}")
    return int(source_sums["rows"])


def _sum_up_rows(frame: DataFrame, like: DataFrame) -> dict[str, int]:
    """The number of rows; and for each column the number of non-null values, and the sum of hashes if it has them."""
    parts = [functions.count(functions.lit(1)).alias("rows")]
    for field in like.schema:
        column, kind = functions.col(quoted(field.name)), field.dataType
        parts.append(functions.count(column).alias(f"values of {field.name}"))
        if not any(word in kind.simpleString() for word in ("map<", "variant", "geometry", "geography")):
            hashes = functions.sum(functions.xxhash64(column.cast(kind)).cast("decimal(38, 0)"))
            parts.append(functions.coalesce(hashes, functions.lit(0)).alias(f"hashes of {field.name}"))
    row = frame.agg(*parts).collect()[0]
    return {key: int(value) for key, value in row.asDict().items()}
