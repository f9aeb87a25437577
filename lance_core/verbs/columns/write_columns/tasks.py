"""Plan column files with new values for some rows, one task per fragment, and write a file by its task.

    plan     the rows of the scope, by fragment; the columns with the ids that they have or will have
    task     one fragment: values with row addresses -> one new file with these columns for all of its rows

Rows of a fragment that are not set keep their values: these values are read from the files of the same columns and
written again, so that the new file has as many rows as the fragment's other files. No other file is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit.versions import identity_of
from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.extension_types import empty_table
from lance_core.row_addresses import bitmap_of, fragment_ids_of, offsets_of, row_offsets
from lance_core.schema import Schema, check_names, schema_from_bytes, schema_to_bytes, typed_schema
from lance_core.schema.forms import reject_repeated
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.columns.add import with_new_columns
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.files.column_files import write_column_file
from lance_core.verbs.files.conform import check_external, conform, external_prefixes, fit
from lance_core.verbs.files.fragment_writer import ReaderLike, open_input_rows
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.projection import ROW_ADDRESS, described_columns
from lance_core.verbs.scan.read_fragment import LOCKSTEP_ROWS, count_file_rows, read_fragment

Missing = Literal["null", "keep", "error"]
"""What happens to the rows of the scope that the data lacks."""

_Offsets = npt.NDArray[np.int64]
_SHOWN: Final = 5
_NONE: Final = BitMap().serialize()


class SlicedRows(Protocol):
    """Rows that are taken in slices, in order: a table, or what reads them then."""

    def slice(self, first: int, count: int, /) -> pa.Table:
        """`count` rows from the row `first` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumns:
    """A file with columns of one fragment, which no version refers to yet. It can be pickled.

    Attributes:
        fragment_id: The fragment.
        file: The file, with the field ids of the plan.
        rows: Offsets of the rows that were set, as a serialized roaring bitmap.
        nulled: Offsets of those of the rows that were set to null because the data lacked them, in the same form.
    """

    fragment_id: int
    file: DataFile
    rows: bytes
    nulled: bytes = _NONE

    @property
    def offsets(self) -> BitMap:
        """Offsets of the rows that were set."""
        return BitMap.deserialize(self.rows)

    @property
    def nulled_offsets(self) -> BitMap:
        """Offsets of the rows that were set to null because the data lacked them."""
        return BitMap.deserialize(self.nulled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTask:
    """Columns of one fragment that are to be written. It can be pickled and run in any process.

    Attributes:
        version: The version that the rows are in.
        fragment_id: The fragment.
        num_rows: The number of rows of the scope.
        scope: Offsets of the rows of the scope, as a serialized roaring bitmap.
        missing: What happens to rows of the scope that the data lacks: "error", "null" or "keep".
        columns: The columns with their field ids, serialized.
        external_places: Prefixes of the URIs by which blobs may be given; `("",)` for any.
    """

    version: int
    fragment_id: int
    num_rows: int
    scope: bytes
    missing: Missing
    columns: bytes
    external_places: tuple[str, ...] = ()

    def write(self, dataset: Handle, values: ReaderLike, schema: pa.Schema | None = None) -> WrittenColumns | None:
        """Write the file with the columns of the fragment; nothing is committed.

        The values of the fragment are held in memory; rows may come in any order.

        Args:
            dataset: The table. If it is at another version, the plan's version is opened.
            values: Rows of `_rowaddr` and the columns: a table, a reader, or an iterable of batches. Rows of
                other fragments are rejected.
            schema: Schema of an iterable of batches.

        Returns:
            The file; None if no row is to be set.

        Raises:
            InvalidInputError: A row is not in the scope, occurs twice, or is missing although `missing` is "error"; or
                a blob is given by a URI that is not allowed.
            SchemaError: The values do not fit the columns.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> plan = table.plan_columns(pa.schema([("n", pa.int64())]))
            >>> values = pa.table({"_rowaddr": pa.array([0, 2], pa.uint64()), "n": [10, 30]})
            >>> written = [task.write(table, values) for task in plan.tasks]
            >>> table.commit_columns(plan, written).rows_updated
            2
            >>> table.to_table()["n"].to_pylist()
            [10, None, 30]
        """
        same = dataset.version == self.version
        snapshot = dataset.snapshot if same else dataset.checkout_version(self.version).snapshot
        return self.write_table(snapshot, as_table(values, schema))

    def write_table(self, snapshot: Snapshot, table: pa.Table) -> WrittenColumns | None:
        """Write the values of a table to the file of the fragment, at the plan's version."""
        fragment = snapshot.manifest.fragments.get(self.fragment_id)
        if fragment is None:
            raise InvalidInputError(
                f"version {self.version} of {snapshot.store.root} has no fragment {self.fragment_id}: the task is of "
                "another table"
            )
        columns = schema_from_bytes(self.columns)
        if ROW_ADDRESS not in table.column_names:
            raise SchemaError(f"the values have no column {ROW_ADDRESS}, which identifies the row of each value")
        offsets, table = self._order_rows(table)
        scope = BitMap.deserialize(self.scope)
        value_rows = bitmap_of(offsets)
        self._check(offsets, value_rows, scope)
        nulls = scope - value_rows if self.missing == "null" else BitMap()
        if nulls and not any(_is_stored(fragment, field.id) for field, _ in columns.walk()):
            nulls = BitMap()  # these rows are null already
        if not value_rows and not nulls:
            return None
        _check_nulls(columns, nulls)
        values = conform(table.select(columns.names), fit(columns, table.select(columns.names).schema))
        check_external(values, columns, self.external_places)
        with collecting_files(snapshot) as files:
            file = write_values(snapshot, fragment, columns, offsets, values, nulls, files)
        rows = (value_rows | nulls).serialize()
        return WrittenColumns(fragment_id=self.fragment_id, file=file, rows=rows, nulled=nulls.serialize())

    def _order_rows(self, table: pa.Table) -> tuple[_Offsets, pa.Table]:
        """The offsets of the rows, ascending, and the rows in that order."""
        addresses = table.column(ROW_ADDRESS)
        if addresses.type != pa.uint64() or addresses.null_count:
            raise InvalidInputError(f"{ROW_ADDRESS} must be a column of uint64 without nulls, as a scan returns it")
        numbers = addresses.to_numpy()
        strange = fragment_ids_of(numbers) != self.fragment_id
        if strange.any():
            raise InvalidInputError(
                f"row address {numbers[strange][0]} is in fragment {int(fragment_ids_of(numbers[strange])[0])}, not in "
                f"fragment {self.fragment_id}"
            )
        offsets = row_offsets(numbers)
        if len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all()):
            return offsets, table
        order = np.argsort(offsets, kind="stable")
        return offsets[order], table.take(pa.array(order))

    def _check(self, offsets: _Offsets, value_rows: BitMap, scope: BitMap) -> None:
        if len(value_rows) < len(offsets):
            twice = offsets[1:][offsets[1:] == offsets[:-1]][0]
            raise InvalidInputError(f"row {twice} of fragment {self.fragment_id} has two values")
        outside = value_rows - scope
        if outside:
            raise InvalidInputError(
                f"{len(outside)} rows of the data are deleted, or not in the scope: fragment {self.fragment_id}, rows "
                f"{list(outside[:_SHOWN])}"
            )
        if self.missing == "error" and len(value_rows) < len(scope):
            raise InvalidInputError(
                f"the data lacks {len(scope) - len(value_rows)} of {len(scope)} rows of fragment {self.fragment_id}, "
                f"such as row {(scope - value_rows)[0]}; missing='null' or missing='keep' allows that"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """What is to be written: one task per fragment that has rows of the scope. It can be pickled.

    Attributes:
        version: The version that the rows are in.
        columns: The columns with their field ids, serialized.
        added: Names of the columns that the table lacks.
        tasks: The tasks.
        identity: The identity of the version, which differs if the table is dropped and created again.
    """

    version: int
    columns: bytes
    added: tuple[str, ...]
    tasks: tuple[ColumnTask, ...]
    identity: str

    @property
    def lance_columns(self) -> Schema:
        """The columns with their field ids."""
        return schema_from_bytes(self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow."""
        return typed_schema(self.lance_columns)


def plan_columns(
    snapshot: Snapshot,
    schema: pa.Schema,
    where: str | pc.Expression | None,
    missing: Missing,
    *,
    allow_external: bool = False,
) -> ColumnPlan:
    """Plan files with columns, with the arguments of `LanceDataset.plan_columns`.

    Raises:
        SchemaError: A column has another type than in the table, or cannot be stored.
        InvalidInputError: No column is given, or an argument has an invalid value.
    """
    if missing not in get_args(Missing):
        raise InvalidInputError(f"missing is one of {', '.join(get_args(Missing))}, not {missing!r}")
    columns, added = resolve_columns(snapshot.manifest, schema)
    serialized = schema_to_bytes(columns)
    places = ("",) if allow_external else external_prefixes(snapshot.manifest.base_paths)
    tasks = tuple(
        ColumnTask(
            version=snapshot.manifest.version,
            fragment_id=fragment.id,
            num_rows=len(rows),
            scope=rows.serialize(),
            missing=missing,
            columns=serialized,
            external_places=places,
        )
        for fragment, rows in _find_scope(snapshot, where)
    )
    return ColumnPlan(
        version=snapshot.manifest.version,
        columns=serialized,
        added=added,
        tasks=tasks,
        identity=identity_of(snapshot.manifest),
    )


def resolve_columns(manifest: Manifest, schema: pa.Schema) -> tuple[Schema, tuple[str, ...]]:
    """The columns with field ids, and the names of those that the table lacks."""
    _check_names(schema)
    if not schema.names:
        raise InvalidInputError("the data has no column besides the key: there is nothing to write")
    table_schema = manifest.schema
    if manifest.data_storage_version == "0.1":
        raise UnsupportedError("columns of a table of the file version 0.1 cannot be written; rewrite it as 2.x first")
    existing_names = [name for name in schema.names if name in table_schema.names]
    replaced = table_schema.project(existing_names) if existing_names else Schema(fields=())
    if existing_names:
        fit(replaced, pa.schema([schema.field(name) for name in existing_names]))
    lacking = [schema.field(name).with_nullable(True) for name in schema.names if name not in table_schema.names]
    added = with_new_columns(manifest, pa.schema(lacking))[1].fields if lacking else ()
    return Schema(fields=(*replaced.fields, *added)), tuple(field.name for field in lacking)


def _check_names(schema: pa.Schema) -> None:
    check_names(schema)
    reject_repeated(schema.names, "column name")


def _find_scope(snapshot: Snapshot, where: str | pc.Expression | None) -> Iterator[tuple[Fragment, BitMap]]:
    """The live rows of the scope, by fragment."""
    described = described_columns(snapshot.manifest)
    condition = None if where is None else to_condition(where, described or snapshot.manifest.schema)
    return each_matching(snapshot, condition, described)


def _check_nulls(columns: Schema, nulls: BitMap) -> None:
    strict = [field.name for field in columns.fields if not field.nullable]
    if nulls and strict:
        raise SchemaError(
            f"column {strict[0]!r} allows no null, and the data lacks {len(nulls)} rows; missing='keep' keeps their "
            "values"
        )


def _is_stored(fragment: Fragment, field_id: int) -> bool:
    return any(field_id in file.fields for file in fragment.files)


def write_values(
    snapshot: Snapshot,
    fragment: Fragment,
    columns: Schema,
    offsets: _Offsets,
    values: SlicedRows,
    nulls: BitMap,
    files: UncommittedFiles,
    name: str | None = None,
) -> DataFile:
    """Write a file of columns for all rows of a fragment.

    Args:
        snapshot: The version.
        fragment: The fragment.
        columns: The columns with field ids.
        offsets: The rows that get new values, ascending.
        values: Their values, in storage types.
        nulls: The rows that become null.
        files: Takes note of the file.
        name: Its name; None for any new one.
    """
    num_rows, deletions = count_file_rows(snapshot, fragment), snapshot.deletions(fragment)
    dead = offsets_of(BitMap() if deletions is None else deletions.within(num_rows).bitmap)
    keeps = len(offsets) + len(nulls) < num_rows - len(dead) and any(
        _is_stored(fragment, f.id) for f, _ in columns.walk()
    )
    keeps = keeps or any(not field.nullable for field in columns.fields)
    windows = _read_old(snapshot, fragment, columns, num_rows, keeps=keeps)
    tables = _merge_values(windows, offsets, values, offsets_of(nulls), dead)
    return write_column_file(snapshot, fragment, columns, tables, files, name)


def _read_old(
    snapshot: Snapshot, fragment: Fragment, columns: Schema, num_rows: int, *, keeps: bool
) -> Iterator[pa.RecordBatch | int]:
    """Yield the old values of all rows in windows; if no value is kept, only the number of rows of each window."""
    if keeps:
        yield from read_fragment(snapshot, fragment, columns, range(num_rows), batch_rows=LOCKSTEP_ROWS)
        return
    yield from (min(LOCKSTEP_ROWS, num_rows - start) for start in range(0, num_rows, LOCKSTEP_ROWS))


def _merge_values(
    windows: Iterable[pa.RecordBatch | int], offsets: _Offsets, values: SlicedRows, nulls: _Offsets, dead: _Offsets
) -> Iterator[pa.Table]:
    """Yield the old values with the new ones in their places; deleted rows may get any value, as it is never read."""
    start = 0
    for window in windows:
        num_rows = window if isinstance(window, int) else window.num_rows
        first, last = np.searchsorted(offsets, (start, start + num_rows))
        window_offsets, new = offsets[first:last] - start, values.slice(first, last - first)
        if last - first == num_rows:
            yield new
        elif isinstance(window, int):
            places = np.full(num_rows, -1, np.int64)
            places[_offsets_within(dead, start, num_rows)] = 0 if len(window_offsets) else -1
            yield _place_rows([new], places, window_offsets, 0)
        else:
            places = np.arange(num_rows)
            places[_offsets_within(nulls, start, num_rows)] = -1
            yield _place_rows([pa.Table.from_batches([window]), new], places, window_offsets, num_rows)
        start += num_rows


def _offsets_within(offsets: _Offsets, start: int, num_rows: int) -> _Offsets:
    return offsets[slice(*np.searchsorted(offsets, (start, start + num_rows)))] - start


def _place_rows(tables: Sequence[pa.Table], places: _Offsets, offsets: _Offsets, start: int) -> pa.Table:
    """Take rows from joined tables by `places`, null for -1; at `own` come the new rows, which begin at `start`."""
    places[offsets] = start + np.arange(len(offsets))
    joined = combine_chunks(pa.concat_tables([table.replace_schema_metadata(None) for table in tables]))
    return joined.take(pa.array(places, mask=places < 0))


def as_table(data: ReaderLike, schema: pa.Schema | None = None) -> pa.Table:
    """All rows of some data as one table.

    Raises:
        SchemaError: Two columns have the same name.
    """
    data_schema, batches = open_input_rows(data, schema)
    _check_names(data_schema)
    tables = [pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch for batch in batches]
    return pa.concat_tables(tables) if tables else empty_table(data_schema)
