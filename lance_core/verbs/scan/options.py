"""The options of a scan, which are made from the arguments of pylance's scanner and checked.

One of them is the order of the rows by columns: NaN is greater than every number, nulls come first or last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import reject
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema
from lance_core.schema.field import quote_path
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.expressions.arrow import check_filter
from lance_core.verbs.scan.projection import (
    ROW_ADDRESS,
    ROW_ID,
    Projection,
    has_descriptions,
    scanned_columns,
    with_row_fields,
)


@dataclass(frozen=True)
class ColumnOrdering:
    """How to order by one column.

    Attributes:
        column_name: The column; a dotted path for a field of a struct.
        ascending: Whether the smallest values come first.
        nulls_first: Whether nulls come before all values, in ascending and descending order.
    """

    column_name: str
    ascending: bool = True
    nulls_first: bool = False


def to_orderings(orderings: Sequence[ColumnOrdering | str] | str | None) -> tuple[ColumnOrdering, ...]:
    """The orderings from the argument `order_by`; a name means ascending order with nulls last.

    Raises:
        InvalidInputError: An ordering is neither a name nor a `ColumnOrdering`.
    """
    column_orderings = []
    for ordering in [orderings] if isinstance(orderings, str) else orderings or ():
        if isinstance(ordering, str):
            column_orderings.append(ColumnOrdering(ordering))
        elif all(hasattr(ordering, name) for name in ("column_name", "ascending", "nulls_first")):
            column_orderings.append(ColumnOrdering(ordering.column_name, ordering.ascending, ordering.nulls_first))
        else:
            raise InvalidInputError(
                f"order_by must have names or ColumnOrdering objects, not {type(ordering).__name__}"
            )
    return tuple(column_orderings)


def order_of(
    columns: Sequence[pa.ChunkedArray], orderings: Sequence[ColumnOrdering], first: int | None = None
) -> npt.NDArray[np.int64]:
    """Positions of the rows in order; equal rows keep their order.

    Args:
        columns: A column for each ordering.
        orderings: The orderings, the most significant first.
        first: How many rows the caller needs, from the first; None for all. The result may have more rows.

    Raises:
        UnsupportedError: A column has a type without an order.
    """
    if first is not None and 0 < first < len(columns[0]) // 8:
        chosen = _find_candidates(columns[0], orderings[0], first)
        if chosen is not None:
            rows = pa.array(chosen)
            return chosen[order_of([column.take(rows) for column in columns], orderings)]
    keys: list[pa.ChunkedArray] = []
    directions: list[str] = []
    for column, ordering in zip(columns, orderings, strict=True):
        direction = "ascending" if ordering.ascending else "descending"
        if column.null_count:
            keys.append(pc.cast(pc.is_null(column), pa.int8()))
            directions.append("descending" if ordering.nulls_first else "ascending")
        nan = pc.is_nan(column) if pa.types.is_floating(column.type) else None
        if nan is not None and pc.any(nan).as_py():
            keys.append(pc.cast(nan, pa.int8()))
            directions.append(direction)
            column = pc.if_else(nan, pa.scalar(0, column.type), column)  # noqa: PLW2901 - the key without NaN
        elif pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)  # noqa: PLW2901 - the same values
        keys.append(column)
        directions.append(direction)
    names = [str(position) for position in range(len(keys))]
    options = pc.SortOptions(sort_keys=list(zip(names, directions, strict=True)))
    try:
        order = pc.sort_indices(pa.table(keys, names), options=options)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedError(f"order_by {[ordering.column_name for ordering in orderings]}: {error}") from error
    return np.asarray(order.to_numpy(), dtype=np.int64)


def _find_candidates(column: pa.ChunkedArray, ordering: ColumnOrdering, first: int) -> npt.NDArray[np.int64] | None:
    """Positions that include the first `first` rows and their ties; None if they cannot be found quickly."""
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return None
    values = column.to_numpy()
    if pa.types.is_floating(kind) and np.isnan(values).any():
        return None
    if ordering.ascending:
        return np.flatnonzero(values <= np.partition(values, first - 1)[first - 1])
    return np.flatnonzero(values >= np.partition(values, -first)[-first])


STRICT_ROWS: Final = 8192
"""Rows per batch if `strict_batch_size` is set without `batch_size`."""

Columns: TypeAlias = Sequence[str] | Mapping[str, str | pc.Expression] | None
Filter: TypeAlias = str | pc.Expression | Mapping[str, Any] | None

_BATCH_SIZE_VARIABLE: Final = "LANCE_DEFAULT_BATCH_SIZE"


_OPTIONS: Final = (
    "batch_size",
    "batch_size_bytes",
    "strict_batch_size",
    "with_row_id",
    "with_row_address",
    "include_deleted_rows",
    "fragment_readahead",
    "use_scalar_index",
)

_WITHOUT_MEANING: Final = (
    # How much to read at once: a scan reads ahead by pages, within a fixed bound.
    "batch_readahead",
    "io_buffer_size",
    # Batches are always in order; scan_in_order=False allows that.
    "scan_in_order",
    # Statistics never change what a filter keeps.
    "use_stats",
    # Options of a search: without a search they have no effect.
    "prefilter",
    "disable_scoring_autoprojection",
)


_AND: Final = re.compile("and", re.IGNORECASE)


class ScanArguments(TypedDict, total=False):
    """The keyword-only arguments of a scan; None stands for the default of each.

    Attributes:
        batch_size: The most rows of a batch; None for the batches of the files.
        batch_size_bytes: About how many bytes a batch has at most.
        strict_batch_size: Make all batches but the last have exactly `batch_size` rows, 8192 by default.
        with_row_id: Add a column `_rowid`: the stable row id where the dataset has them, else the row address.
        with_row_address: Add a column `_rowaddr`: fragment id << 32 | row offset.
        include_deleted_rows: Also return the deleted rows that are still stored; their `_rowid` is null. It needs
            `with_row_id`.
        order_by: Order the rows by columns: names, or `ColumnOrdering`; NaN is greater than every number.
        late_materialization: False reads the columns of the filter and all others together; otherwise the others are
            read only for rows that match. The result is the same.
        batch_readahead: Accepted without effect: scans read ahead by pages, within a fixed bound.
        fragment_readahead: How many small fragments are read in parallel from object storage, 8 by default; with 0 or
            1, they are read one by one.
        io_buffer_size: Accepted without effect: memory is bounded by a few pages of each column.
        scan_in_order: Accepted without effect: batches are always in order.
        use_stats: Accepted without effect: statistics never change the result.
        use_scalar_index: False uses no index; otherwise indices exclude fragments and rows that cannot match the
            filter. The result is the same.
        prefilter: Whether the filter selects the rows that `nearest` searches; if false, it filters the rows that are
            found.
        disable_scoring_autoprojection: True omits the column `_distance` of `nearest` if columns are named.
        fast_search: Only False is offered.
        blob_handling: The form of blob columns, also for filters and computed columns. "blobs_descriptions" (the
            default) and "all_descriptions" return structs with position and size, for which no payload is read;
            "all_binary" returns bytes; "as_stored" (not in pylance) returns payloads in the types of the table's
            schema, which other tables accept.
        nearest: Search for the rows whose vectors are nearest to a vector: a mapping with `column`, `q`, `k` (10 by
            default), `metric` ("l2", "cosine" or "dot") and `distance_range`. All vectors are compared and indices are
            not used, so the result is exact; keys about indices have no effect. Only for datasets, not for fragments.
        full_text_query: Not offered.
        index_segments: Not offered.
        scan_stats_callback: Not offered.
        row_addr_allowlist: Not offered.
        row_addr_blocklist: Not offered.
    """

    batch_size: int | None
    batch_size_bytes: int | None
    strict_batch_size: bool | None
    with_row_id: bool | None
    with_row_address: bool | None
    include_deleted_rows: bool | None
    order_by: Sequence[ColumnOrdering | str] | str | None
    late_materialization: bool | Collection[str] | None
    batch_readahead: int | None
    fragment_readahead: int | None
    io_buffer_size: int | None
    scan_in_order: bool | None
    use_stats: bool | None
    use_scalar_index: bool | None
    prefilter: bool | None
    disable_scoring_autoprojection: bool | None
    fast_search: bool | None
    blob_handling: str | None
    nearest: Any
    full_text_query: Any
    index_segments: Any
    scan_stats_callback: Any
    row_addr_allowlist: bytes | None
    row_addr_blocklist: bytes | None


def check_num_rows(num_rows: int | None) -> int | None:
    """Check the argument of `head`, and return it.

    Raises:
        InvalidInputError: The number is negative.
    """
    if num_rows is not None and num_rows < 0:
        raise InvalidInputError(f"head: num_rows must not be negative, not {num_rows}")
    return num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What to read.

    Attributes:
        schema: Columns to read, in order.
        projection: The output columns; None for the columns that are read.
        filter: Keep the rows for which this is true.
        conjuncts: The conditions that AND joins in the filter; empty if they are not known.
        limit: The most rows to return; None for all.
        offset: How many rows to skip first.
        batch_size: The most rows of a batch; None for the batches of the files.
        batch_size_bytes: About how many bytes a batch has at most; None for no bound.
        strict_batch_size: Whether all batches but the last have exactly `batch_size` rows.
        with_row_id: Add a column `_rowid`: the stable row id where the dataset has them, else the row address.
        with_row_address: Add a column `_rowaddr`: fragment id << 32 | row offset.
        more_row_columns: Further row columns that the scan needs but does not return.
        order_by: The order of the rows; the stored order if empty.
        include_deleted_rows: Also return the deleted rows that are still stored, with a null `_rowid`.
        late_materialization: False reads the columns of the filter and all others together; None and True find the
            matching rows first.
        fragment_readahead: How many small fragments are read in parallel from a remote store.
        use_scalar_index: Whether indices may rule out rows that cannot match.
        dataset: All columns of the dataset, in the types that filter and order use; None for the types of the schema.
    """

    schema: Schema
    projection: Projection | None = None
    filter: pc.Expression | None = None
    conjuncts: tuple[pc.Expression, ...] = ()
    limit: int | None = None
    offset: int = 0
    batch_size: int | None = None
    batch_size_bytes: int | None = None
    strict_batch_size: bool = False
    with_row_id: bool = False
    with_row_address: bool = False
    more_row_columns: tuple[str, ...] = ()
    order_by: tuple[ColumnOrdering, ...] = ()
    include_deleted_rows: bool = False
    late_materialization: bool | None = None
    fragment_readahead: int = 8
    use_scalar_index: bool = True
    dataset: Schema | None = None

    def __post_init__(self) -> None:
        """Reject invalid numbers, and options that cannot be combined."""
        for name, least in (
            ("limit", 0),
            ("offset", 0),
            ("batch_size", 1),
            ("batch_size_bytes", 1),
            ("fragment_readahead", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                requirement = "must be non-negative" if least == 0 else "must be positive"
                raise InvalidInputError(f"{name.capitalize()} {requirement}: {name} is {value}")
        if self.strict_batch_size and self.batch_size_bytes is not None:
            raise InvalidInputError("strict_batch_size cannot be combined with batch_size_bytes")
        if self.include_deleted_rows and not self.with_row_id:
            raise InvalidInputError("include_deleted_rows is set but with_row_id is false")
        if self.include_deleted_rows and self.order_by:
            raise UnsupportedError("include_deleted_rows together with order_by is not supported")

    @property
    def flagged(self) -> tuple[str, ...]:
        """The row columns at the end of the result."""
        flags = ((ROW_ID, self.with_row_id), (ROW_ADDRESS, self.with_row_address))
        return tuple(name for name, is_flagged in flags if is_flagged)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """All row columns that the scan needs."""
        projected = self.projection.row_columns if self.projection is not None else ()
        return tuple(dict.fromkeys([*self.flagged, *projected, *self.more_row_columns]))

    @property
    def described_blobs(self) -> dict[str, str]:
        """The column of the dataset for each column of the result that has blob descriptions."""
        outputs = self.projection.outputs if self.projection is not None else None
        if outputs is None:
            return {
                name: name for name in self.result.result(()).names if has_descriptions(self.result_schema.field(name))
            }
        return {out.field.name: quote_path(out.path) for out in outputs if out.path and has_descriptions(out.field)}

    @property
    def result(self) -> Projection:
        """The projection of the columns that are read."""
        return self.projection if self.projection is not None else Projection(schema=self.schema)

    @property
    def result_schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self.result.result(self.flagged)


def scan_options(
    manifest: Manifest,
    columns: Columns = None,
    filter_: Filter = None,
    *,
    limit: int | None = None,
    offset: int | None = None,
    order_by: Sequence[ColumnOrdering | str] | str | None = None,
    late_materialization: bool | Collection[str] | None = None,
    flatten: bool = True,
    blob_handling: str | None = None,
    **arguments: Any,
) -> ScanOptions:
    """Make options from the arguments of public methods; see `LanceDataset.scanner` and `ScanArguments`.

    Raises:
        InvalidInputError: An argument is invalid.
        SchemaError: A column does not exist.
        UnsupportedError: An argument is not offered.
    """
    schema = scanned_columns(manifest, blob_handling)
    projection = Projection.of(schema, columns, flatten=flatten)
    orderings = to_orderings(order_by)
    for ordering in orderings:
        schema.column(ordering.column_name)
    if late_materialization is not None and not isinstance(late_materialization, bool):
        if isinstance(late_materialization, str) or not isinstance(late_materialization, Iterable):
            raise InvalidInputError(
                f"late_materialization is True, False or a list of columns, not {late_materialization!r}"
            )
        for name in late_materialization:
            schema.column(name)
        late_materialization = True
    plain_options = {name: arguments.pop(name) for name in _OPTIONS if arguments.get(name) is not None}
    plain_options.setdefault("batch_size", _read_default_batch_size())
    _check_more_arguments(arguments)
    condition, conjuncts = (None, ()) if filter_ is None else _parse_condition(filter_, schema)
    return ScanOptions(
        schema=projection.schema,
        projection=projection if projection.outputs is not None else None,
        filter=condition,
        conjuncts=conjuncts,
        limit=limit,
        offset=offset or 0,
        order_by=orderings,
        late_materialization=late_materialization,
        dataset=None if schema is manifest.schema else schema,
        **plain_options,
    )


def _read_default_batch_size() -> int | None:
    """The batch size of pylance's environment variable; None if it is not set.

    Raises:
        InvalidInputError: The value of the variable is not a number.
    """
    setting = os.environ.get(_BATCH_SIZE_VARIABLE)
    if not setting:
        return None
    if not setting.isdecimal():
        raise InvalidInputError(
            f"the environment variable {_BATCH_SIZE_VARIABLE} must be a number of rows, not {setting!r}"
        )
    return int(setting)


def _parse_condition(filter_: Filter, schema: Schema) -> tuple[pc.Expression | None, tuple[pc.Expression, ...]]:
    """A filter as one expression, and as the conditions that AND joins if it is given in SQL."""
    columns = with_row_fields(schema)
    whole = check_filter(filter_, columns)
    if whole is None or not isinstance(filter_, str):
        return whole, ()
    from lance_core.verbs.expressions.sql import parse_conjuncts  # noqa: PLC0415 - it imports the SQL parser

    return whole, parse_conjuncts(filter_, columns) if _AND.search(filter_) else (whole,)


def _check_more_arguments(arguments: dict[str, Any]) -> None:
    """Accept arguments that cannot change the result; reject all others by name."""
    for name in _WITHOUT_MEANING:
        value = arguments.pop(name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value < 0:
            raise InvalidInputError(f"{name} must be at least 0, not {value}")
    if arguments.get("fast_search") is False:
        del arguments["fast_search"]
    reject("scanner", arguments)
