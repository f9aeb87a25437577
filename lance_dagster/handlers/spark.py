"""The handler of Spark DataFrames, classic and Connect. Rows stay on the executors; the step's process commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
import pyarrow as pa

import pyspark_lance
from lance_core import WriteResult
from lance_core.errors import DatasetExistsError, SchemaError, UnsupportedError
from lance_dagster.handlers import columns as column_writes
from lance_dagster.handlers import merging
from lance_dagster.handlers.arrow_schema import owners
from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import CHANGE_TYPE, LanceTypeHandler, ReadRequest, WriteRequest, skips_empty
from lance_dagster.handlers.changes import KINDS, count_changes
from lance_dagster.handlers.merge_clauses import changes_others, parse_simple_merge
from lance_dagster.handlers.spark_cast import cast_in_job, name_lossy_values
from lance_dagster.properties import ASSET_KEY
from lance_dagster.tables.settings import OutputSettings, TableSettings
from pyspark_lance.engine.jobs import collect_arrow
from pyspark_lance.engine.sessions import check_frame
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.lazy import DataType, functions, types
from pyspark_lance.types.arrow_types import to_arrow
from pyspark_lance.types.column_names import quoted
from pyspark_lance.types.spark_types import check_type, spark_schema, stored_field
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.write import write_with

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lance_core import LanceDataset

_MOST_BROADCAST = 100_000
"""The most deleted keys that are broadcast to all executors, so that the rows of the frame are not shuffled."""


class SparkHandler(LanceTypeHandler):
    """`pyspark.sql.DataFrame`, classic or Connect."""

    loads_changes = True

    def arrow_schema(self, value: DataFrame) -> pa.Schema:
        """The Arrow types of the columns, for partitions and for messages.

        Raises:
            SchemaError: The type of a column, such as that of an empty `array()`, is not complete.
            UnsupportedError: Lance has no such type.
        """
        check_frame("the asset must return", value)
        for field in value.schema:
            check_type(field.dataType, field.name)
        return pa.schema([pa.field(field.name, _arrow_type(field.dataType)) for field in value.schema])

    def check(self, value: DataFrame, request: WriteRequest) -> bool:
        """Check that there are rows, and check their partitions and keys, by jobs that read only these columns."""
        output, slices, value = request.output, request.slices, cast_to_known_types(value, request)
        if output.empty_output != "write" and value.isEmpty() and skips_empty(0, request):
            return False
        if slices is not None and output.out_of_partition == "error":
            slices.assign_all(collect_arrow(value.select(*slices.columns).distinct()), request.uri)
        if output.write_mode == "merge":
            _reject_twice(value, output.merge_key)
        return True

    def write(self, value: DataFrame, request: WriteRequest) -> WriteResult | None:
        """Write the frame by a Spark job and one commit."""
        value = cast_to_known_types(value, request)
        if request.mode == "columns":
            return _write_columns(value, request)
        value = _add_columns_of_others(value, request)
        if request.existing is not None and request.output.schema_mode != "overwrite":
            value = cast_in_job(value, self.arrow_schema(value), request.existing.schema)
        with name_lossy_values():
            return self._write_or_merge(value, request)

    def _write_or_merge(self, value: DataFrame, request: WriteRequest) -> WriteResult | None:
        if request.mode == "merge":
            return _merge(value, request)
        if request.output.write_mode == "merge":  # there is no table, or earlier attempts created it
            return self._write_first(value, request)
        try:
            return self._write(value, request)
        except SchemaError:
            if request.existing is None or request.output.schema_mode == "overwrite" or not value.isEmpty():
                raise
            # Without rows the types of the frame do not count: the table's are used.
            return self._write(add_null_columns(value, request.existing.schema), request)

    def _write_first(self, value: DataFrame, request: WriteRequest) -> WriteResult | None:
        """Write what a merge inserts into a table without rows; merge if another writer creates the table meanwhile."""
        _reject_twice(value, request.output.merge_key)
        try:
            done = self._write(_select_inserted_rows(value, request.output), request)
        except DatasetExistsError:
            return _merge(value, merging.rebase_on_created_table(request))
        if done is None or request.mode != "create":
            return done
        return replace(done, rows_inserted=done.rows_written, rows_updated=0, rows_deleted=0)

    def _write(self, value: DataFrame, request: WriteRequest) -> WriteResult | None:
        assert request.mode != "merge"
        assert request.mode != "columns"
        vectors = {} if request.existing is not None else _known_vectors(value, request)
        options = WriteArguments(
            mode=request.mode,
            slices=request.slices,
            cluster=request.output.cluster,
            out_of_partition=request.output.out_of_partition,
            vector_columns={**vectors, **request.output.vector_columns} or None,
            schema_mode=request.output.schema_mode,
            empty_output=request.output.empty_output,
            partition_overwrite="static",
            require_empty=request.require_empty,
            read_version=request.read_version,
            identity=request.identity,
            table_config=request.table_config,
            storage_options=request.storage_options,
            commit=request.commit,
            files=request.files,
        )
        return write_with(value, request.uri, options)

    def load(self, request: ReadRequest) -> Any:
        """A lazy frame over the pinned version."""
        if request.changes is not None:
            return _read_changes(request)

        return pyspark_lance.read(
            session_of(request.table),
            request.dataset.uri,
            version=request.dataset.version,
            columns=request.columns,
            filter=request.filter,
            storage_options=request.table.options,
            blob_handling="all_binary",
        )

    def split_changes(self, value: DataFrame, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """The changed rows and the deleted keys as frames; a row of an unknown kind fails the job that writes."""
        merging.check_keys(pa.schema([(name, pa.int8()) for name in value.columns]).empty_table(), key)
        kind = functions.col(CHANGE_TYPE)
        message = functions.concat(
            functions.lit(f"a row has {CHANGE_TYPE} "), functions.coalesce(kind, functions.lit("null"))
        )
        checked_kind = functions.when(kind.isin(*KINDS), kind).otherwise(functions.raise_error(message))
        merged = value.where(checked_kind != "delete").drop(CHANGE_TYPE)
        deleted = value.where(checked_kind == "delete").drop(CHANGE_TYPE)
        again = merged.select(*map(quoted, key)).distinct()
        return self, merged, deleted.join(again, on=list(key), how="left_anti")

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A frame without rows."""
        del load_as
        return _empty_frame(schema, session_of(table))


def _read_changes(request: ReadRequest) -> DataFrame:
    """A lazy frame of the changes up to the pinned version."""
    assert request.changes is not None
    frames = [
        pyspark_lance.read_changes(
            session_of(request.table),
            request.dataset.uri,
            begin_version=part.begin_version,
            end_version=request.dataset.version,
            columns=request.columns,
            filter=part.filter,
            key=request.changes.key,
            split_updates=request.changes.splits_updates,
            updates_of=request.changes.updates_of,
            storage_options=request.table.options,
            blob_handling="all_binary",
        )
        for part in request.changes.parts
    ]
    count_changes(request)
    changes: DataFrame = reduce(lambda left, right: left.unionByName(right), frames)
    return changes.drop("_commit_version", "_commit_timestamp")


def _write_columns(value: DataFrame, request: WriteRequest) -> WriteResult | None:
    """Set columns of rows; the executors write the data files."""
    existing, output = request.existing, request.output
    assert existing is not None
    key = column_writes.choose_matching_columns(value.columns, output.row_key)
    if output.empty_output != "write" and value.isEmpty() and skips_empty(0, request):
        return None
    if column_writes.decide_to_adopt(request, key, lambda: collect_arrow(value.select(*map(quoted, key)))):
        return merging.build_adopted_result(request)
    frame_schema = SparkHandler().arrow_schema(value)
    column_writes.align_columns_to_set(frame_schema, request)
    columns = column_writes.set_columns(value.columns, output.row_key)
    value, left_out = _drop_deleted_rows(value.select(*map(quoted, (*key, *columns))), key, request)
    vectors = {**_known_vectors(value, request), **output.vector_columns}
    with name_lossy_values():
        done = pyspark_lance.write_columns(
            cast_in_job(value, frame_schema, existing.schema),
            request.uri,
            on=key,
            where=request.scope,
            missing=output.missing,
            vector_columns={name: width for name, width in vectors.items() if name not in existing.schema.names}
            or None,
            field_metadata={ASSET_KEY: request.commit.texts[ASSET_KEY]},
            read_version=request.read_version,
            identity=request.identity,
            storage_options=request.storage_options,
            **request.commit_arguments,
        )
    return column_writes.columns_result(
        existing.checkout_version((existing.branch, done.version)), done, request, left_out
    )


def _drop_deleted_rows(value: DataFrame, key: Sequence[str], request: WriteRequest) -> tuple[DataFrame, int]:
    """The rows without those that were deleted since the version that the step has read, and how many these are."""
    if not column_writes.may_lack_rows(key, request):
        return value, 0
    assert request.read is not None
    assert request.existing is not None

    def keys(dataset: LanceDataset) -> DataFrame:
        return pyspark_lance.read(
            value.sparkSession,
            dataset.uri,
            version=dataset.version,
            columns=list(key),
            storage_options=request.storage_options,
        )

    deleted = keys(request.read).join(keys(request.existing), on=list(key), how="left_anti").distinct()
    count = deleted.count()
    if not count:
        return value, 0
    deleted = functions.broadcast(deleted) if count <= _MOST_BROADCAST else deleted
    return value.join(deleted, on=list(key), how="left_anti"), count


def _add_columns_of_others(value: DataFrame, request: WriteRequest) -> DataFrame:
    """The frame with nulls in columns of other assets that it lacks; a merge keeps the table's values instead."""
    existing = request.existing
    if existing is None or request.mode == "merge" or request.output.schema_mode != "strict":
        return value
    lacking = [name for name in owners(existing.schema) if name not in value.columns]
    if not lacking:
        return value
    kinds = _empty_frame(pa.schema([existing.schema.field(name) for name in lacking]), value.sparkSession).schema
    return value.withColumns({field.name: functions.lit(None).cast(field.dataType) for field in kinds})


def cast_to_known_types(value: DataFrame, request: WriteRequest) -> DataFrame:
    """The frame with the types of the table, or of the metadata `lance/schema`, for columns of unknown types.

    If there is no table and the frame has no rows, all declared columns get the types of the metadata.
    """
    existing = None if request.existing is None else request.existing.schema
    value = _drop_owners(value, existing)
    if not value.columns and len(existing if existing is not None else request.known):
        return _empty_frame(existing if existing is not None else request.known, value.sparkSession)
    fields_by_name = {
        field.name: field for field in [*request.known, *(existing or ())] if not pa.types.is_null(field.type)
    }
    void = [
        field.name for field in value.schema if field.dataType.typeName() == "void" and field.name in fields_by_name
    ]
    if existing is None and len(request.known) and value.isEmpty():
        void = [name for name in value.columns if name in fields_by_name]
    return add_null_columns(value, pa.schema([fields_by_name[name] for name in void]))


def _drop_owners(value: DataFrame, table: pa.Schema | None) -> DataFrame:
    """The frame without the owners that its columns had in the table they come from; see `drop_owners`."""
    table_owners = {} if table is None else owners(table)
    for field in value.schema:
        owner = field.metadata.get(ASSET_KEY)
        if owner is not None and owner != table_owners.get(field.name):
            other_metadata = {key: text for key, text in field.metadata.items() if key != ASSET_KEY}
            value = value.withMetadata(field.name, other_metadata)
    return value


def add_null_columns(value: DataFrame, schema: pa.Schema) -> DataFrame:
    """The frame with nulls, of the schema's types, in the columns that the schema has.

    The values of these columns are dropped: they are all null, or the frame has no rows.
    """
    names = [name for name in schema.names if name in value.columns]
    if not names:
        return value
    null_fields = _empty_frame(pa.schema([schema.field(name) for name in names]), value.sparkSession).schema
    return value.withColumns({field.name: functions.lit(None).cast(field.dataType) for field in null_fields})


def _known_vectors(value: DataFrame, request: WriteRequest) -> dict[str, int]:
    vectors = [field for field in request.known if pa.types.is_fixed_size_list(field.type)]
    return {field.name: field.type.list_size for field in vectors if field.name in value.columns}


def _arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type as which a Spark type is stored; null for Spark's void, and for types that Arrow lacks."""
    from pyspark.errors import PySparkTypeError

    try:
        return stored_field(to_arrow(types.StructType([types.StructField("value", kind)])).field(0)).type
    except (PySparkTypeError, SchemaError):
        return pa.null()


def _merge(value: DataFrame, request: WriteRequest) -> WriteResult | None:
    """Merge a frame by Spark's joins.

    The rows are collected into this process only if rows that are only in the table may be deleted from partitions.
    """
    output, slices = request.output, request.slices
    is_empty = output.empty_output != "write" and value.isEmpty()
    if is_empty and (request.deletes is None or request.deletes.isEmpty()) and skips_empty(0, request):
        return None
    if slices is not None and changes_others(output):
        _check_plain(output)
        table = collect_arrow(value)
        deletes = None if request.deletes is None else collect_arrow(request.deletes)
        return write_arrow([table], table.schema, replace(request, deletes=deletes))
    if slices is not None and output.out_of_partition == "error":
        slices.assign_all(collect_arrow(value.select(*slices.columns).distinct()), request.uri)

    def merge(attempted: WriteRequest) -> WriteResult:
        assert attempted.existing is not None
        merging.give_null_columns_types(attempted.existing, SparkHandler().arrow_schema(value))
        merging.set_table_config(attempted)
        done = pyspark_lance.merge(
            value,
            attempted.uri,
            on=output.merge_key,
            **_clauses(output),
            storage_options=attempted.storage_options,
            within=merging.slices_that_merge_may_change(attempted),
            read_version=attempted.read_version,
            identity=attempted.identity,
            deletes=attempted.deletes,
            max_rows_per_file=attempted.files.max_rows_per_file,
            max_bytes_per_file=attempted.files.max_bytes_per_file,
            **attempted.commit_arguments,
        )
        write = attempted.commit.write_attempt
        return replace(done, replaced_versions=() if write is None else write.earlier)

    return merging.merge_on_attempts(request, lambda: collect_arrow(value.select(*output.merge_key)), merge)


def _select_inserted_rows(value: DataFrame, output: OutputSettings) -> DataFrame:
    """The rows that a merge inserts into a table without rows."""
    if output.merge_clauses is None:
        return value
    clauses = pyspark_lance.parse_merge_clauses(output.merge_clauses)
    inserted = pyspark_lance.inserted_rows(value, output.merge_key, clauses)
    return value.limit(0) if inserted is None else inserted


def _clauses(output: OutputSettings) -> dict[str, Any]:
    """The arguments of `pyspark_lance.merge` for the clauses or policies of a merge."""
    if output.merge_clauses is not None:
        return {"clauses": output.merge_clauses}
    return {
        "when_matched": None if output.when_matched == "nothing" else output.when_matched,
        "when_not_matched": None if output.when_not_matched == "nothing" else output.when_not_matched,
        "when_not_matched_by_source": "delete" if output.when_not_matched_by_source == "delete" else None,
    }


def _check_plain(output: OutputSettings) -> None:
    """Reject clauses that lance_core cannot run: it runs merges that change rows only in the table within partitions.

    Raises:
        UnsupportedError: A clause cannot be combined with partitions.
    """
    try:
        parse_simple_merge(output)
    except UnsupportedError as error:
        raise UnsupportedError(
            "lance/merge_on: with when_not_matched_by_source, an asset with partitions can have one clause for each"
            " side, without values: update, with a condition or without, or delete where matched, insert where not"
            " matched, delete where not matched by source. Nothing was written"
        ) from error


def _reject_twice(value: DataFrame, key: Sequence[str]) -> None:
    """Reject a frame that has a key twice, as `check_keys` does; at most one key is collected into this process.

    Keys are compared as in the merges of `pyspark_lance`: a NaN equals a NaN, a null equals nothing.
    """
    merging.check_keys(pa.schema([(name, pa.int8()) for name in value.columns]).empty_table(), key)
    check_keys_of("lance/merge_on", map(SparkHandler().arrow_schema(value).field, key))
    keys = [functions.col(quoted(name)) for name in key]
    whole = value.select(*keys)
    for column in keys:
        whole = whole.where(column.isNotNull())  # `dropna` drops NaN as well
    counted = whole.groupBy(*keys).agg(functions.count("*").alias("__lance_count"))
    twice = collect_arrow(counted.where("__lance_count > 1").drop("__lance_count").limit(1))
    merging.check_keys(pa.concat_tables([twice, twice]), key)


def _empty_frame(schema: pa.Schema, session: SparkSession) -> DataFrame:
    return session.createDataFrame([], spark_schema(schema))


def session_of(table: TableSettings) -> SparkSession:
    """The session of the IO manager's `spark` resource, else the active session.

    Raises:
        DagsterInvalidDefinitionError: The resource has no session.
        DagsterInvariantViolationError: There is no resource and no active session.
    """
    if table.spark is not None:
        session: Any = getattr(table.spark, "spark_session", None)
        if session is None:
            raise dg.DagsterInvalidDefinitionError(
                f"the spark resource of LanceIOManager, a {type(table.spark).__name__}, has no spark_session; use a "
                "LanceSparkResource, or a resource with that attribute"
            )
        return cast("SparkSession", session)
    from pyspark.sql import SparkSession

    active: SparkSession | None = SparkSession.getActiveSession()
    if active is None:
        raise dg.DagsterInvariantViolationError(
            "there is no active Spark session: give LanceIOManager(spark=...) a resource that has a spark_session, "
            "such as LanceSparkResource; or set default_load_type, if other frames are to be loaded"
        )
    return active
