"""One task of a change feed: changed rows of one fragment, which any process can read.

    columns of the table ... | _change_type | _commit_version | _commit_timestamp [| _rowid]

The columns are those of the later version. Deleted rows are read from the files of the version that had them, whose
columns `same_columns` matches to those of the feed; a column that was added later is null.

Values are fitted to the later version's type, where children of a column were renamed, added or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit.versions import check_identity_string
from lance_core.errors import SchemaError
from lance_core.row_addresses import offsets_of
from lance_core.schema import Field, in_storage_types
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.rowids import decode_versions
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.delta.same_columns import SameColumns
from lance_core.verbs.delta.version_of_branch import BranchHistory, version_before
from lance_core.verbs.expressions.arrow import columns_of, matching, true_places
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions, scan_options
from lance_core.verbs.scan.projection import ROW_ID, UPDATED_AT, row_field

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

ChangeType = Literal["insert", "update_preimage", "update_postimage", "delete"]

_FEED_FIELDS: Final = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
)

_BATCH_ROWS: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """The columns of a change feed.

    Attributes:
        names: Columns of the later version, in order; None for all.
        with_row_id: Whether `_rowid` is the last column.
        blob_handling: How columns of blobs are given, as in a scan.
        batch_size: Most rows of a batch.
        filter: The condition on rows of the feed, checked for old and new values separately; None for all rows.
    """

    names: tuple[str, ...] | None = None
    with_row_id: bool = False
    blob_handling: str | None = None
    batch_size: int | None = None
    filter: pc.Expression | None = field(default=None, compare=False)  # "==" of expressions is an expression

    def schema(self, manifest: Manifest) -> pa.Schema:
        """The schema of the feed.

        Raises:
            SchemaError: A column does not exist, or has the name of a column of the feed.
        """
        data = self.options(manifest).result_schema
        clashes = {*data.names, *self.read(manifest)} & {field.name for field in _FEED_FIELDS}
        if clashes:
            raise SchemaError(
                f"the table's own column {min(clashes)!r} has the name of a column of the change feed: read other "
                "columns, or rename it by alter_columns"
            )
        column_names = set(manifest.schema.names)
        strange = [name for name in self.names or () if name.startswith("_row") and name not in column_names]
        if strange:
            raise SchemaError(
                f"changes have no column {strange[0]!r}: with_row_id=True adds the ids of rows, and rows that were "
                "deleted or moved have no address"
            )
        row_id = [row_field(ROW_ID)] if self.with_row_id else []
        return pa.schema([*data, *_FEED_FIELDS, *row_id], metadata=data.metadata)

    def read(self, manifest: Manifest) -> list[str]:
        """Names of the columns that are read, those of the filter included."""
        filtered = [] if self.filter is None else columns_of(self.filter)
        return [field.name for field in self.options(manifest).schema.fields] + [
            path.split(".")[0] for path in filtered
        ]

    def options(self, manifest: Manifest) -> ScanOptions:
        """The scan options by which the columns are read from the later version."""
        names = None if self.names is None else list(self.names)
        return scan_options(manifest, names, blob_handling=self.blob_handling)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask:
    """Changed rows of one fragment, of one kind of change; it can be pickled and read in any process.

    Attributes:
        change_type: "insert", "update_preimage", "update_postimage" or "delete".
        begin_version: The earlier of the two versions that were compared.
        end_version: The later one.
        feed_version: The version whose columns the feed has.
        fragment_id: The fragment, in the version that has the rows: the earlier one for "update_preimage" and "delete".
        rows: Offsets of the rows, as a serialized roaring bitmap.
        columns: What is read.
        identity: The identity of the version that has the rows.
        same: The columns that the feed and the version that has the rows have in common.
        commit_version: The version that changed all rows of the task; None where each row records its own.
        row_versions: The version that last updated each row, serialized, for "update_preimage": the rows themselves
            record earlier ones.
    """

    change_type: ChangeType
    begin_version: int
    end_version: int
    feed_version: int
    fragment_id: int
    rows: bytes
    columns: ChangeColumns
    identity: str
    same: SameColumns = field(compare=False)
    commit_version: int | None = None
    row_versions: bytes | None = None

    @property
    def version(self) -> int:
        """The version that has the rows."""
        return self.begin_version if self.change_type in ("update_preimage", "delete") else self.end_version

    @property
    def num_rows(self) -> int:
        """The number of rows, before the filter."""
        return len(BitMap.deserialize(self.rows))

    def to_batches(self, dataset: Handle) -> Iterator[pa.RecordBatch]:
        """Read the rows, a few thousand at a time.

        Args:
            dataset: The table, at any version; other versions are opened where they are needed.

        Raises:
            VersionNotFoundError: A version that has the rows was cleaned up.
            IncompatibleConflictError: The table was dropped and created again since the plan.
            SchemaError: A column had another type in the version that has the rows, and a value does not fit the
                column's type in the feed.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> deleted = table.delete("id = 2")
            >>> (task,) = table.delta(1).plan().tasks
            >>> [batch["id"].to_pylist() for batch in task.to_batches(table)]
            [[2]]
        """
        at = _make_opener(dataset)
        feed, snapshot = at(self.feed_version), at(self.version)
        check_identity_string(snapshot.store, snapshot.manifest, self.identity)  # other tables have the same ids
        schema = self.columns.schema(feed.manifest)
        columns = self._match_columns(feed, snapshot)
        history = BranchHistory(dataset)
        times = _begin_times(history, snapshot)
        offsets, done = self._filter_offsets(dataset), 0
        if not len(offsets):
            return
        names = [*columns.read, ROW_ID, UPDATED_AT]
        for rows in rows_of_fragment(snapshot, self.fragment_id, offsets, names, self.columns):
            versions = self._commit_versions(rows, offsets[done : done + rows.num_rows])
            done += rows.num_rows
            for version in set(versions.tolist()) - times.keys():
                times[version] = history.time_us(version)
            feed_columns = [
                pa.array([self.change_type] * rows.num_rows, pa.string()),
                pa.array(versions, pa.int64()),
                pa.array([times[version] for version in versions.tolist()], pa.timestamp("us", tz="UTC")),
            ]
            row_id = [rows.column(ROW_ID)] if self.columns.with_row_id else []
            yield pa.RecordBatch.from_arrays([*columns.of_rows(rows, schema), *feed_columns, *row_id], schema=schema)

    def _filter_offsets(self, dataset: Handle) -> npt.NDArray[np.int64]:
        """Offsets of the rows that meet the filter; reads only the filter's columns."""
        offsets = offsets_of(BitMap.deserialize(self.rows))
        condition = self.columns.filter
        if condition is None:
            return offsets
        places, begin = [np.empty(0, np.int64)], 0
        for rows in replace(self, columns=ChangeColumns(names=tuple(columns_of(condition)))).to_batches(dataset):
            places.append(true_places(matching(in_storage_types(rows), condition)) + begin)
            begin += rows.num_rows
        return offsets[np.concatenate(places)]

    def _match_columns(self, feed: Snapshot, snapshot: Snapshot) -> _Columns:
        feed_fields = self.columns.options(feed.manifest).schema.fields
        source_fields = {field.name: field for field in snapshot.manifest.schema.fields}
        return _Columns(
            tuple((field, source_fields.get(self.same.names.get(field.name, ""))) for field in feed_fields),
            self.same.fields,
        )

    def _commit_versions(self, rows: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The version that last changed each row; the later version where that is not known."""
        if self.commit_version is not None:
            return np.full(rows.num_rows, self.commit_version, np.int64)
        if self.change_type == "delete" or self.end_version == self.begin_version + 1:
            return np.full(rows.num_rows, self.end_version, np.int64)
        if self.row_versions is None:
            versions = rows.column(UPDATED_AT).to_numpy().astype(np.int64)
        else:
            everyone = offsets_of(BitMap.deserialize(self.rows))
            recorded = decode_versions(self.row_versions, len(everyone)).astype(np.int64)
            versions = recorded[np.searchsorted(everyone, offsets)]
        return np.where((versions > self.begin_version) & (versions <= self.end_version), versions, self.end_version)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a feed, each with its column in the version that has the rows; None if it was added later.

    Attributes:
        columns: Pairs of a column of the feed and its column in that version.
        fields: Ids of fields of the feed, each with its id in that version; as in `SameColumns`.
    """

    columns: tuple[tuple[Field, Field | None], ...]
    fields: Mapping[int, int]

    @property
    def read(self) -> list[str]:
        """Names of the columns to read."""
        return list(dict.fromkeys(source.name for _, source in self.columns if source is not None))

    def of_rows(self, rows: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.Array]:
        """Yield the columns in the types of the feed."""
        for (feed_field, source), into in zip(self.columns, schema, strict=False):
            if source is None:
                yield pa.nulls(rows.num_rows, into.type)
                continue
            column = rows.column(source.name)
            field_ids = self.fields if self.fields.get(feed_field.id) == source.id else {}
            try:
                yield fitted(column, source, feed_field, into.type, field_ids)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaError(
                    f"column {into.name!r} was {column.type} in earlier rows, and is {into.type} now: {error}"
                    "; read the changes before and after the change of type separately, or leave the column out"
                ) from error


def rows_of_fragment(
    snapshot: Snapshot,
    fragment_id: int,
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]],
    names: Sequence[str],
    columns: ChangeColumns,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of one fragment.

    Args:
        snapshot: The version.
        fragment_id: A fragment of the version.
        offsets: Offsets of the rows, ascending.
        names: Names of columns, row columns included.
        columns: The form of blobs and the size of batches.
    """
    fragment = snapshot.manifest.fragments.by_id(fragment_id)
    size = columns.batch_size or _BATCH_ROWS
    options = scan_options(snapshot.manifest, list(names), blob_handling=columns.blob_handling, batch_size=size)
    projection, schema = options.result, options.result_schema
    is_whole = len(offsets) and int(offsets[-1]) - int(offsets[0]) + 1 == len(offsets)
    rows = range(int(offsets[0]), int(offsets[-1]) + 1) if is_whole else offsets
    for batch in FragmentScan(snapshot, fragment, options).rows(rows):
        yield projection.apply(batch, schema)


def _make_opener(dataset: Handle) -> Callable[[int], Snapshot]:
    """A function that opens a version by its number, and opens each version once."""
    snapshots = {dataset.version: dataset.snapshot}

    def at(version: int) -> Snapshot:
        if version not in snapshots:
            snapshots[version] = version_before(dataset, version).snapshot
        return snapshots[version]

    return at


def _begin_times(history: BranchHistory, snapshot: Snapshot) -> dict[int, int | None]:
    """The time of an opened version, unless that is a branch's clone of its fork version."""
    version = snapshot.manifest.version
    is_clone = history.store_of(version).root != snapshot.store.root
    return {} if is_clone else {version: snapshot.manifest.timestamp_ns // 1000}


def fitted(values: pa.Array, source: Field, target: Field, kind: pa.DataType, fields: Mapping[int, int]) -> pa.Array:
    """Convert values of a column to the type that the column has in another version.

    Args:
        values: The values.
        source: The column, as a field of the version of the values.
        target: The column, as a field of the other version.
        kind: The column's type in the other version.
        fields: Ids of fields of the other version, each with the id of the same field in the version of `source`.

    Returns:
        The values, whose children are matched by field; a child that was added later is null.

    Raises:
        ArrowInvalid: A value does not fit the type of the other version.
        ArrowNotImplementedError: Values cannot be cast to the type of the other version.
    """
    if values.type == kind and _are_same(source, target, fields):
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        parts = [
            _fit_child(values, source, child, into.type, fields)
            for child, into in zip(target.children, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pc.is_null(values))
    if type(kind) is type(values.type) and isinstance(kind, pa.ListType | pa.LargeListType):
        whole = values.take(pa.array(range(len(values)))) if values.offset else values  # a slice takes no mask
        item = fitted(whole.values, source.children[0], target.children[0], kind.value_type, fields)
        return type(whole).from_arrays(whole.offsets, item, type=kind, mask=pc.is_null(whole))
    if pa.types.is_nested(kind) and _child_names(source) != _child_names(target):  # Arrow casts children by their names
        raise pa.ArrowNotImplementedError("its children have other names")
    return values.cast(kind)


def _are_same(source: Field, target: Field, fields: Mapping[int, int]) -> bool:
    """Whether the children of a column are those of the other version, as far as that is known."""
    before = [node.id for child in source.children for node, _ in child.walk()]
    return not fields or before == [fields.get(node.id) for child in target.children for node, _ in child.walk()]


def _child_names(column: Field) -> list[str]:
    return [node.name for child in column.children for node, _ in child.walk()]


def _fit_child(
    values: pa.StructArray, source: Field, target: Field, kind: pa.DataType, fields: Mapping[int, int]
) -> pa.Array:
    """A child of a struct, found by its field id, or by its name where the ids of children cannot be matched."""
    ids = [child.id for child in source.children]
    names = [child.name for child in source.children]
    position = next((ids.index(number) for number in [fields.get(target.id)] if number in ids), None)
    if position is None and not fields and target.name in names:
        position = names.index(target.name)
    if position is None:
        return pa.nulls(len(values), kind)
    return fitted(pc.struct_field(values, [position]), source.children[position], target, kind, fields)
