"""Conversion of other formats into Lance, and of Lance into Parquet, by Spark.

    source            read by
    ----------------- -----------------------------------------------------------------------------------
    Parquet folder    Spark; Hive partitions (`day=2013-01-01/`) become columns
    Delta table       Spark's own reader where its jar is there, else the files that `deltalake` names
    Iceberg table     Spark's own reader where its jar is there, else the files that `pyiceberg` names

Files are converted in groups, one commit for each, which carries a digest of the group: groups that are converted
already are skipped. In the end rows are counted, and hashes of all columns summed up, on both sides.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyarrow import fs

import lance_core
from lance_core import LanceDataset
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, LanceError
from pyspark_lance.changes import session_of
from pyspark_lance.foreign_tables import BY_ID, SourceFiles, filesystem_of, foreign_files
from pyspark_lance.names import quoted
from pyspark_lance.reader import read
from pyspark_lance.writer import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ConvertMode", "ConvertResult", "convert", "to_parquet"]

ConvertMode = Literal["create", "append", "overwrite"]
SourceFormat = Literal["parquet", "delta", "iceberg"]

_DIGEST: Final = "pyspark_lance.convert"
_GROUP_BYTES: Final = 32 << 30
"""Bytes of source files per commit: at most so much is converted again after an interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult:
    """The result of a conversion.

    Attributes:
        dataset: The table.
        version: Its version.
        rows: Rows of the source, all of which the table has.
        commits: Commits that this run made.
        skipped: Groups of files that an earlier run had converted.
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

    An interrupted conversion continues when it is called again with the same arguments.

    Args:
        source: The folder of the source, or of an Iceberg table its metadata file.
        uri: The Lance table.
        partition_expr: Columns of which no data file shall hold two values, Hive partitions for example.
        mode: "create" wants no table to be there, but for one that this conversion has begun; "append" adds to one;
            "overwrite" replaces its rows, with the first commit.
        source_format: The format of the source; None detects it.
        spark: The session; None for the active one.
        vector_columns: Array columns to store as vectors of so many items.
        storage_options: Options of the storage of `uri`.
        max_bytes_per_commit: Bytes of source files that one commit takes.
        verify: Whether to compare both sides in the end; with "append" only the number of rows of this conversion is.

    Raises:
        DatasetExistsError: The mode is "create", and there is another table.
        UnsupportedError: Neither Spark nor an installed library can read the source.
        LanceError: The table differs from the source.
    """
    if mode not in get_args(ConvertMode):
        raise InvalidInputError(f"mode {mode!r} is none of {', '.join(get_args(ConvertMode))}")
    if max_bytes_per_commit < 1:
        raise InvalidInputError(f"max_bytes_per_commit must be positive, as {max_bytes_per_commit} is not")
    session = session_of(spark)
    with _columns_by_id(session):
        groups = list(_groups(session, str(source), source_format, max_bytes_per_commit))
        done = _done(uri, storage_options)
        if mode == "create" and done is not None and not done & {group.token for group in groups}:
            raise DatasetExistsError(f"there is a table at {uri} already, and not one of a conversion of {source}")
        commits = rows = 0
        for number, group in enumerate(groups):
            if done is not None and group.token in done:
                continue
            begins = mode == "overwrite" and number == 0
            made = write(
                group.frame,
                uri,
                mode="overwrite" if begins else "append",
                schema_mode="overwrite" if begins else "strict",
                partition_by=[partition_expr] if isinstance(partition_expr, str) else partition_expr,
                vector_columns=vector_columns,
                once=(_DIGEST, group.token),
                commit_message=f"convert {source}",
                storage_options=storage_options,
            )
            assert made is not None, "without a row a version is made as well"
            commits, rows = commits + 1, rows + made.rows_written
        dataset = lance_core.dataset(uri, storage_options=storage_options)
        if verify and mode != "append":
            rows = _compare(groups, read(session, uri, storage_options=storage_options), f"{uri} and {source}")
    return ConvertResult(
        dataset=dataset, version=dataset.version, rows=rows, commits=commits, skipped=len(groups) - commits
    )


@contextlib.contextmanager
def _columns_by_id(session: SparkSession) -> Iterator[None]:
    """Let Spark find columns by ids in Parquet files where a schema has ids; others are not concerned."""
    before = session.conf.get(BY_ID, None)
    session.conf.set(BY_ID, "true")
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(BY_ID)
        else:
            session.conf.set(BY_ID, before)


def to_parquet(
    uri: str | PathLike[str],
    target: str | PathLike[str],
    *,
    partition_by: Sequence[str] = (),
    mode: Literal["error", "overwrite", "append"] = "error",
    version: int | str | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    verify: bool = True,
) -> int:
    """Write a version of a Lance table to a Parquet folder.

    Args:
        uri: The Lance table.
        target: The folder.
        partition_by: Columns that become Hive partitions.
        mode: As Spark's writer has it.
        version: Version number or tag; None for the latest.
        spark: The session; None for the active one.
        storage_options: Options of the storage of `uri`.
        verify: Whether to compare both sides in the end; not with "append".

    Returns:
        The number of rows.

    Raises:
        LanceError: The folder differs from the table.
    """
    session = session_of(spark)
    frame = read(session, uri, version=version, storage_options=storage_options)
    frame.write.mode(mode).partitionBy(*partition_by).parquet(str(target))
    if not verify or mode == "append":
        return frame.count()
    written = session.read.parquet(str(target))
    # Types of Hive partitions are inferred from their texts.
    casts = [f"cast({quoted(f.name)} as {f.dataType.simpleString()}) as {quoted(f.name)}" for f in frame.schema]
    return _compare([_Group("", frame)], written.selectExpr(*casts), f"{target} and {uri}")


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of one commit."""

    token: str
    frame: DataFrame


def _done(uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> set[str] | None:
    """The groups that the table's history names; None if there is no table."""
    try:
        dataset = lance_core.dataset(uri, storage_options=storage_options)
    except DatasetNotFoundError:
        return None
    found = set()
    for one in dataset.versions():
        transaction = dataset.read_transaction(one["version"])
        token = ((transaction and transaction.transaction_properties) or {}).get(_DIGEST)
        if token is not None:
            found.add(token)
    return found


def _groups(spark: SparkSession, source: str, form: SourceFormat | None, most: int) -> Iterator[_Group]:
    """The files of a source, some for each commit; one group where Spark's own reader decides about files."""
    form = form or _format_of(source)
    if form not in get_args(SourceFormat):
        raise InvalidInputError(f"source_format {form!r} is none of {', '.join(get_args(SourceFormat))}")
    if form != "parquet" and _spark_reads(spark, form):
        yield _Group(_digest([form, source]), spark.read.format(form).load(source))
        return
    files = _listed(source) if form == "parquet" else foreign_files(source, form)
    if not files.sizes:
        raise InvalidInputError(f"{source}: there is no Parquet file")
    reader = spark.read if files.base is None else spark.read.option("basePath", files.base)
    schema = files.schema or reader.parquet(*files.sizes).schema
    for names in _batched(files.sizes, most):
        frame = reader.schema(schema).parquet(*names)
        if files.schema is not None:
            for name in schema.names:
                frame = frame.withMetadata(name, {})  # ids of another format mean nothing here
        yield _Group(_digest(names), frame)


def _batched(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Names of files in groups of so many bytes, at least one in each."""
    pending: list[str] = []
    for name, size in sizes.items():
        if pending and sum(sizes[one] for one in pending) + size > most:
            yield pending
            pending = []
        pending.append(name)
    yield pending


def _format_of(source: str) -> SourceFormat:
    if source.endswith(".metadata.json"):
        return "iceberg"
    for folder, form in (("_delta_log", "delta"), ("metadata", "iceberg")):
        if _exists(f"{source.rstrip('/')}/{folder}"):
            return form  # type: ignore[return-value]  # one of the three
    return "parquet"


def _exists(path: str) -> bool:
    filesystem, place, _ = filesystem_of(path)
    return bool(filesystem.get_file_info(place).type.name == "Directory")


def _listed(source: str) -> SourceFiles:
    filesystem, place, uri = filesystem_of(source)
    info = filesystem.get_file_info(place)
    if info.type == fs.FileType.NotFound:
        raise InvalidInputError(f"there is nothing at {source}")
    if info.type == fs.FileType.File:
        return SourceFiles(base=uri.rpartition("/")[0], sizes={uri: info.size})
    found = {}
    for one in filesystem.get_file_info(fs.FileSelector(place, recursive=True)):
        below = one.path.removeprefix(place)
        hidden = any(part.startswith(("_", ".")) for part in below.split("/"))
        if one.type == fs.FileType.File and not hidden:
            found[uri + below] = one.size
    return SourceFiles(base=uri, sizes=dict(sorted(found.items())))


def _spark_reads(spark: SparkSession, form: str) -> bool:
    """Whether the session has a reader for a format."""
    try:
        spark.read.format(form).load("/nowhere/at/all").schema  # noqa: B018 - what it raises tells
    except Exception as error:  # noqa: BLE001 - it differs between sessions; a reader that is there says something else
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def _digest(names: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def _compare(groups: Sequence[_Group], other: DataFrame, what: str) -> int:
    """Compare counts and sums of hashes of both sides; gives the number of rows.

    Raises:
        LanceError: They differ; the message names the column.
    """
    first = groups[0].frame
    wholes = [_sums(group.frame, first) for group in groups]
    ours = {name: sum(found[name] for found in wholes) for name in wholes[0]}
    theirs = _sums(other, first)
    wrong = [name for name, value in ours.items() if value != theirs[name]]
    if wrong:
        raise LanceError(f"{what} differ: {', '.join(f'{n}: {theirs[n]} and {ours[n]}' for n in wrong)}")
    return int(ours["rows"])


def _sums(frame: DataFrame, like: DataFrame) -> dict[str, int]:
    """Rows, values that are not null, and the sum of the hashes of each column."""
    parts = ["count(1) as `rows`"]
    for field in like.schema:
        name = quoted(field.name)
        label = quoted(f"values of {field.name}")
        parts.append(f"count({name}) as {label}")
        if not any(word in field.dataType.simpleString() for word in ("map<", "variant", "geometry", "geography")):
            kind = field.dataType.simpleString()
            hashes = f"coalesce(sum(cast(xxhash64(cast({name} as {kind})) as decimal(38, 0))), 0)"
            parts.append(f"{hashes} as {quoted(f'hashes of {field.name}')}")
    row = frame.selectExpr(*parts).collect()[0]
    return {key: int(value) for key, value in row.asDict().items()}
