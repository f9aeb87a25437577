"""Changes of existing rows by Spark: `merge`, `update` and `delete`.

    source (each key once)     table: key columns with row addresses
           |                          |
           +------- Spark's join -----+--> inserted, updated and deleted rows --> `RowLevelChange`: one commit

The driver gets only bitmaps of row addresses. The table is read at the version at which the change begins. If a
concurrent commit has changed the same rows, the change is computed again on the latest version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import Any, Final, Literal, get_args

import lance_core
from lance_core import LanceDataset, Slices, WriteAttempt
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, SchemaError
from pyspark_lance.changing.clauses import parse_merge_clauses
from pyspark_lance.changing.conditional import RowCondition, delete_where, update_where
from pyspark_lance.changing.job import ChangeOptions, ChangeResult, RowLevelChange, run_change
from pyspark_lance.changing.key_clauses import inserted_rows, merge_by_key
from pyspark_lance.changing.merge_frames import (
    KeyedRows,
    reject_duplicate_keys,
    renamed,
)
from pyspark_lance.changing.struct_values import lacks_fields
from pyspark_lance.engine.lexing import has_escapes, translate_strings
from pyspark_lance.engine.sessions import check_frame, reject_memory, session_of
from pyspark_lance.keys.collations import PLAIN_SLICES, check_columns, session_filter
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.lazy import DataFrame, SparkSession
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, names_of
from pyspark_lance.types.spark_types import batch_schema, spark_schema
from pyspark_lance.writing.job import open_version
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.schema_plan import plan_write
from pyspark_lance.writing.write import write_with

Matched = Literal["update", "delete"]
NotMatched = Literal["insert"]
NotMatchedBySource = Literal["delete"]

_DEFAULTS: Final = ("update", "insert", None, None)
"""What `merge` does by default."""
_DELETE_BY_KEY: Final = (
    "pyspark_lance.delete(uri, rows, on=...) does so by its key: rows = pyspark_lance.read(spark, uri).where(...),"
    " or any DataFrame with the values"
)
_UPDATE_BY_KEY: Final = (
    "pyspark_lance.merge(rows, uri, on=..., when_not_matched=None) does so by a key: rows ="
    " pyspark_lance.read(spark, uri).where(...).withColumns(...)"
)


def merge(  # noqa: PLR0913 - each is a choice of its own, all but three have a default
    df: DataFrame,
    uri: str | PathLike[str],
    *,
    on: str | Sequence[str],
    when_matched: Matched | None = "update",
    when_not_matched: NotMatched | None = "insert",
    when_not_matched_by_source: NotMatchedBySource | None = None,
    condition: str | None = None,
    clauses: Mapping[str, Any] | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    max_rows_per_file: int | None = None,
    max_bytes_per_file: int | None = None,
    conflict_retries: int = 10,
    write_attempt: WriteAttempt | None = None,
    read_version: int | None = None,
    identity: str | None = None,
    within: Slices | None = None,
    deletes: DataFrame | None = None,
) -> ChangeResult:
    """Merge the rows of a DataFrame, classic or Spark Connect, into a table by a key, in one commit.

    Spark joins the keys, and the driver gets no rows. Updated rows move to new data files, and keep their old values in
    columns that the source lacks. A key that contains a null equals no other. Spark computes the source once and keeps
    it (`persist`) until the merge is over. If two concurrent merges by the same columns insert the same new key, the
    later one is computed again and updates the row.

    Args:
        df: The source: some columns of the table, including the key, and each key once.
        uri: The table. If it does not exist and rows are to be inserted, it is created.
        on: Columns that make up the key.
        when_matched: Rows in both: "update" gives them the source's values, "delete" deletes them, None keeps them.
        when_not_matched: Rows only in the source: "insert", or None.
        when_not_matched_by_source: Rows only in the table: "delete", or None.
        condition: Spark SQL over `source.<column>` and `target.<column>`: rows in both stay as they are unless it is
            true.
        clauses: Clauses that replace the four preceding arguments: what happens to rows by further conditions, with
            values by column. `parse_merge_clauses` describes them; expressions are Spark SQL over `source.<column>` and
            `target.<column>`. The source may have further columns that clauses use.
        transaction_properties: Strings by key that the commit records.
        commit_message: A message that the commit records.
        storage_options: Credentials and options of the storage, by object_store's names.
        max_rows_per_file: Rows after which a task begins another file.
        max_bytes_per_file: Bytes after which a task begins another file.
        conflict_retries: How often the merge is computed again after concurrent changes of the same rows.
        write_attempt: The write and the number of the attempt, if the write may have several attempts. A merge on top
            of an earlier attempt may differ from a merge without it, so the caller decides about its `earlier`
            attempts.
        read_version: The version to begin with; None for the latest, 0 if the table did not exist.
        identity: `LanceDataset.identity` of that version, which detects a table that was dropped and made again.
        within: Slices that must hold all rows that the merge deletes or replaces; otherwise nothing is changed. Rows of
            the source are not checked.
        deletes: Keys whose rows are deleted in the same commit, whatever the clauses say; none of them may be in the
            source. Columns besides `on` are ignored.

    Returns:
        The numbers of inserted, updated and deleted rows, and the version.

    Raises:
        SchemaError: The source does not fit the table; the message names the column.
        InvalidInputError: An argument is wrong, the source has a key twice, or a replaced row lies outside of `within`.
        UnsupportedError: A column of `within` has a collation.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
        SupersededError: A later attempt of the same write has committed.
        EarlierAttemptCommittedError: An earlier attempt, which `write_attempt` does not name, has committed.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> changes = spark.createDataFrame([(3,), (4,)], "id long")
        >>> pyspark_lance.merge(changes, "t.lance", on="id").version
        2
        >>> lance.dataset("t.lance").count_rows()
        4
    """
    check_frame("merge: df must be", df)
    keys = _respell_keys(on, df)
    _check_clauses(keys, when_matched, when_not_matched, when_not_matched_by_source)
    arguments = (when_matched, when_not_matched, when_not_matched_by_source, condition)
    if clauses is not None and arguments != _DEFAULTS:
        raise InvalidInputError("merge: clauses, when_matched, when_not_matched, ... and condition cannot be combined")
    parsed = parse_merge_clauses(_as_clauses(*arguments) if clauses is None else clauses)
    options = ChangeOptions.of(locals())
    _check_source(df, keys, "merge")
    reject_memory(uri)
    table = open_version(uri, read_version, storage_options, identity)
    if table is None:
        first = df if clauses is None else inserted_rows(df, keys, parsed)
        if (creation := _create_table(first if when_not_matched else None, uri, keys, options)) is not None:
            return creation
    dataset = table if table is not None else lance_core.dataset(uri, storage_options=storage_options)
    if options.within is not None:
        options.within.check(dataset.schema)
        check_columns("within", map(dataset.schema.field, options.within.columns), PLAIN_SLICES)
    if condition is not None:
        KeyedRows.fit(df, keys, dataset).check_condition(condition, dataset)
    return merge_by_key(
        df,
        dataset,
        keys,
        parsed,
        options,
        # Values of fields that the structs of the source lack are kept.
        is_as_it_is=clauses is None and not _lacks_fields(df, dataset),
        deleting=None if deletes is None else _fit_deletes(deletes, keys, dataset),
        checked_through=None if table is not None else 0,  # there was no table as the call began
    )


def _lacks_fields(df: DataFrame, dataset: LanceDataset) -> bool:
    """Whether a struct of the source lacks fields that rows of the table keep."""
    exact = case_sensitive(df.sparkSession)
    stored = {field.name: field.dataType for field in spark_schema(dataset.schema)}
    names = match_names(df.columns, list(stored), exact=exact)
    return any(lacks_fields(df.schema[n].dataType, stored[names[n]], exact=exact) for n in names)


def _as_clauses(
    matched: Matched | None, not_matched: NotMatched | None, by_source: NotMatchedBySource | None, condition: str | None
) -> dict[str, Any]:
    """The clauses that do what the four arguments say, in the form of `parse_merge_clauses`."""
    clauses: dict[str, Any] = {} if by_source is None else {"when_not_matched_by_source": by_source}
    if matched is not None:
        clauses["when_matched"] = {"then": matched} if condition is None else {"then": matched, "condition": condition}
    if not_matched is not None:
        clauses["when_not_matched"] = not_matched
    return clauses


def _respell_keys(on: str | Sequence[str] | None, df: DataFrame) -> list[str]:
    """The columns of the key in the spelling of a DataFrame; unknown names stay as they are."""
    names = names_of("on", () if on is None else on)
    frame_names = match_names(names, df.columns, exact=case_sensitive(df.sparkSession))
    return [frame_names.get(name, name) for name in names]


def _check_source(df: DataFrame, keys: list[str], verb: str) -> None:
    """Make sure that a source can be merged, before anything runs."""
    missing = [name for name in keys if name not in df.columns]
    if missing:
        raise SchemaError(f"{verb}: the source lacks the key columns {missing}; it has {df.columns}")
    batch_schema(df.schema)
    check_spellings(df, df.columns)


def _fit_deletes(rows: DataFrame, keys: Sequence[str], dataset: LanceDataset, verb: str = "merge") -> KeyedRows:
    """The distinct keys of a frame, fitted to the table; nothing is computed."""
    frame_keys = _respell_keys(keys, rows)
    _check_source(rows, frame_keys, verb)
    named = rows.select(*[renamed(*pair) for pair in zip(frame_keys, keys, strict=True)])
    fitted = KeyedRows.fit(named, keys, dataset)
    return replace(fitted, rows=fitted.rows.distinct())


def delete(
    uri: str | PathLike[str],
    where: str | DataFrame,
    *,
    on: str | Sequence[str] | None = None,
    spark: SparkSession | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    conflict_retries: int = 10,
) -> ChangeResult:
    """Delete the rows that meet a condition, or whose key a DataFrame has, in one commit.

    Args:
        uri: The table.
        where: A condition in Lance's SQL, or a DataFrame with the columns `on`, which may have a key more than once.
        on: The key, for a DataFrame.
        spark: The session for a condition; None for the active session of the thread, or the default of the process.
        transaction_properties: Strings by key that the commit records.
        commit_message: A message that the commit records.
        storage_options: Credentials and options of the storage, by object_store's names.
        conflict_retries: How often the change is computed again after concurrent changes of the same rows.

    Returns:
        The number of deleted rows, and the version.

    Raises:
        InvalidInputError: The condition does not fit the table, or an argument is wrong.
        DatasetNotFoundError: The URI holds no table.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> result = pyspark_lance.delete("t.lance", "id = 3", spark=spark)
        >>> lance.dataset("t.lance").count_rows()
        2
    """
    options = ChangeOptions.of(locals())
    reject_memory(uri)
    dataset = lance_core.dataset(uri, storage_options=storage_options)
    if not isinstance(where, str):
        check_frame("delete: where must be a condition in Lance's SQL, or", where)
        keys = _respell_keys(on, where)
        _check_clauses(keys, "delete", None, None)
        rows = _fit_deletes(where, keys, dataset, "delete")

        def change_by_key(base: LanceDataset) -> RowLevelChange:
            frame = rows.deletes(base, storage_options)
            return RowLevelChange(dataset=base, frame=frame, on=rows.keys, options=options)

        return run_change(dataset, change_by_key, options)
    if on is not None:
        raise InvalidInputError("delete: on names the key of a DataFrame, and where is a condition: leave on out")
    session = session_of(spark)
    condition = _translate_where("delete", dataset, where, session, _DELETE_BY_KEY)

    return delete_where(dataset, RowCondition(session=session, filter=condition), options)


def update(
    uri: str | PathLike[str],
    set: Mapping[str, str],  # noqa: A002 - SQL's word
    where: str | None = None,
    *,
    spark: SparkSession | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    conflict_retries: int = 10,
) -> ChangeResult:
    """Set columns of the rows that meet a condition, in one commit.

    Args:
        uri: The table.
        set: Expressions in Spark SQL over the table's columns, by column name.
        where: A condition in Lance's SQL; None for all rows.
        spark: The session; None for the active session of the thread, or the default of the process.
        transaction_properties: Strings by key that the commit records.
        commit_message: A message that the commit records.
        storage_options: Credentials and options of the storage, by object_store's names.
        conflict_retries: How often the change is computed again after concurrent changes of the same rows.

    Returns:
        The number of updated rows, and the version.

    Raises:
        SchemaError: The table lacks a column, or an expression has another type; the message names the column.
        InvalidInputError: The condition does not fit the table.
        DatasetNotFoundError: The URI holds no table.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> result = pyspark_lance.update("t.lance", {"id": "id + 10"}, "id = 3", spark=spark)
        >>> lance.dataset("t.lance").count_rows("id = 13")
        1
    """
    options = ChangeOptions.of(locals())
    reject_memory(uri)
    dataset = lance_core.dataset(uri, storage_options=storage_options)
    session = session_of(spark)
    condition = _translate_where("update", dataset, where, session, _UPDATE_BY_KEY)

    return update_where(dataset, set, RowCondition(session=session, filter=condition), options)


def _translate_where(
    verb: str, dataset: LanceDataset, where: str | None, session: SparkSession, remedy: str
) -> str | None:
    """A condition with strings as Lance's SQL writes them, checked before anything runs: it means what Spark means."""
    session_filter(f"{verb}: where", where, dataset, session, remedy)
    return None if where is None else translate_strings(where, escapes=has_escapes(session))


def _check_clauses(
    keys: list[str], matched: Matched | None, not_matched: NotMatched | None, by_source: NotMatchedBySource | None
) -> None:
    if not keys or len(set(keys)) < len(keys):
        raise InvalidInputError(f"on must name the columns of the key, each once, not {keys}")
    for name, action, action_type in (
        ("when_matched", matched, Matched),
        ("when_not_matched", not_matched, NotMatched),
        ("when_not_matched_by_source", by_source, NotMatchedBySource),
    ):
        if action is not None and action not in get_args(action_type):
            raise InvalidInputError(f"{name} {action!r} is none of {', '.join(get_args(action_type))} and None")
    if matched is None and not_matched is None and by_source is None:
        raise InvalidInputError("merge: each of the arguments when_... is None, so that nothing would change")


def _create_table(
    df: DataFrame | None, uri: str | PathLike[str], keys: list[str], options: ChangeOptions
) -> ChangeResult | None:
    """Create the table of a merge from the rows that are inserted; returns None if another writer has just created it.

    Raises:
        DatasetNotFoundError: The merge inserts no rows.
        InvalidInputError: The source has a key twice.
    """
    if df is None:
        raise DatasetNotFoundError(f"there is no table at {uri} to merge into, and the merge inserts no rows")
    check_keys_of("on", map(plan_write(batch_schema(df.schema), None).stored.field, keys))
    reject_duplicate_keys(df, keys)
    try:
        creation = WriteArguments(
            mode="create", storage_options=options.storage_options, commit=options.commit, files=options.files
        )
        write_result = write_with(df, uri, creation)
    except DatasetExistsError:
        if open_version(uri, None, options.storage_options) is None:
            raise  # only an external manifest store knows the table
        return None  # another writer came first
    assert write_result is not None, "a write without rows makes a version"
    facts = {field.name: getattr(write_result, field.name) for field in fields(write_result)}
    return ChangeResult(**facts | {"rows_inserted": write_result.rows_written, "rows_updated": 0, "rows_deleted": 0})
