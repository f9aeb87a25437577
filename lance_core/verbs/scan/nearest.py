"""Search for the rows whose vectors are nearest to a vector; all vectors are compared, so the result is exact.

columns of the result     those of the scan, then `_distance` unless it is among them, then `_rowid` and `_rowaddr`
filter                    filters the rows that were found; with `prefilter`, the rows that are searched
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.row_addresses import fragment_ids_of, row_offsets
from lance_core.schema import Schema, schema_to_arrow
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.explain import PlanStep, nearest_steps
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions, check_num_rows
from lance_core.verbs.scan.projection import ROW_ADDRESS
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.scan.take import take_addresses

DISTANCE: Final = "_distance"
_DISTANCES: Final = ("l2", "cosine", "dot")
_ALIASES: Final = {"euclidean": "l2"}
# Options of a search in an index; without one they have no effect.
_OF_AN_INDEX: Final = frozenset(
    {"nprobes", "minimum_nprobes", "maximum_nprobes", "refine_factor", "use_index", "ef", "query_parallelism"}
)

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestQuery:
    """A search for the nearest vectors.

    Attributes:
        column: The column of vectors.
        vector: The vector from which distances are measured.
        k: The number of rows to find.
        metric: "l2" for the squared distance, "cosine" for 1 - cosine, "dot" for 1 - dot product.
        least: The smallest distance of a result; None for no lower bound.
        below: The distance below which results are; None for no upper bound.
    """

    column: str
    vector: _Floats
    k: int
    metric: str
    least: float | None = None
    below: float | None = None

    @classmethod
    def of(cls, nearest: Any, schema: Schema) -> Self:
        """Parse the argument `nearest` of a scan.

        Raises:
            InvalidInputError: A key is missing or unknown, or a value is invalid.
            SchemaError: There is no such column.
            UnsupportedError: The column has no vectors of floats, `q` is not a vector, or the metric is not supported.
        """
        if not isinstance(nearest, Mapping):
            raise InvalidInputError(f"nearest must be a mapping with the keys column and q, not {nearest!r}")
        unknown = set(nearest) - {"column", "q", "k", "metric", "distance_range"} - _OF_AN_INDEX
        if unknown or "column" not in nearest or "q" not in nearest:
            raise InvalidInputError(
                "nearest needs the keys column and q, and can have k, metric and distance_range; "
                f"its keys are {sorted(nearest, key=str)}"
            )
        if not isinstance(nearest["column"], str):
            raise InvalidInputError(f"nearest: column must be the name of a column, not {nearest['column']!r}")
        kind = schema_to_arrow(schema.project([nearest["column"]])).field(0).type
        if not pa.types.is_fixed_size_list(kind) or not pa.types.is_floating(kind.value_type):
            raise UnsupportedError(f"nearest: {nearest['column']!r} is not a column of vectors of floats but {kind}")
        vector = _parse_vector(nearest["q"])
        if len(vector) != kind.list_size:
            raise InvalidInputError(
                f"nearest: q has {len(vector)} dimensions, but column {nearest['column']!r} has {kind.list_size}"
            )
        k = 10 if nearest.get("k") is None else nearest["k"]
        if not isinstance(k, int | np.integer) or k < 1:
            raise InvalidInputError(f"nearest: k must be a positive number of rows, not {k!r}")
        metric = str(nearest.get("metric") or "l2").lower()
        metric = _ALIASES.get(metric, metric)
        if metric not in _DISTANCES:
            raise UnsupportedError(
                f"nearest: the metric {metric!r} is not supported; use one of {', '.join(_DISTANCES)}"
            )
        least, below = _parse_distance_range(nearest.get("distance_range"))
        return cls(column=nearest["column"], vector=vector, k=int(k), metric=metric, least=least, below=below)

    def distances(self, vectors: _Floats) -> _Floats:
        """The distance of each vector."""
        distances: _Floats
        if self.metric == "l2":
            distances = ((vectors - self.vector) ** 2).sum(axis=1)
            return distances
        distances = 1 - vectors @ self.vector
        if self.metric == "cosine":
            with np.errstate(all="ignore"):
                lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(self.vector)
                distances = 1 - (1 - distances) / lengths
        return distances


def split_distance(columns: Any) -> tuple[Any, int | None]:
    """The columns of a scan without `_distance`, and its number among them; None if it is not there."""
    if not isinstance(columns, list | tuple) or DISTANCE not in columns:
        return columns, None
    return [name for name in columns if name != DISTANCE], columns.index(DISTANCE)


class NearestScanner(LanceScanner):
    """A prepared search for the nearest vectors.

    Args:
        snapshot: The version to read.
        fragments: Its fragments to read.
        options: What to return of the rows that are found.
        query: The search.
        prefilter: Whether the filter selects the rows to search; if false, it filters the rows that are found.
        with_distance: Whether to add the column `_distance`.
        place: The number of that column; None for after the columns.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        fragments: Sequence[Fragment],
        options: ScanOptions,
        query: NearestQuery,
        *,
        prefilter: bool,
        with_distance: bool,
        place: int | None = None,
    ) -> None:
        super().__init__(snapshot, fragments, options)
        if options.order_by or options.include_deleted_rows:
            raise UnsupportedError("nearest together with order_by or include_deleted_rows is not supported")
        self._query = query
        self._prefilter = prefilter
        self._with_distance = with_distance
        self._place = place

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the batches."""
        schema = self._options.result_schema
        if not self._with_distance:
            return schema
        place = len(schema) - len(self._options.flagged) if self._place is None else self._place
        return schema.insert(place, pa.field(DISTANCE, pa.float32()))

    def _batches(self, schema: pa.Schema, *, at_once: bool = False) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - it is
        addresses, distances = self._find_nearest()
        plain = replace(self._options, filter=None, conjuncts=(), limit=None, offset=0)
        rows = take_addresses(self._snapshot, self._fragments, addresses, plain)
        if self._with_distance:
            at = schema.get_field_index(DISTANCE)
            rows = rows.add_column(at, schema.field(at), pa.array(distances.astype(np.float32)))
        table = pa.Table.from_arrays(rows.columns, schema=schema) if schema.names else rows
        yield from self._resize_batches(iter(table.to_batches()))

    def count_rows(self) -> int:
        """Number of rows that are found."""
        return len(self._find_nearest()[0])

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        check_num_rows(num_rows)
        return self.to_table().slice(0, num_rows)

    def explain_plan(self, verbose: bool = False) -> str:
        """The plan of the search, the last step first."""
        scan = LanceScanner(self._snapshot, self._fragments, self._narrow_options())._plan(verbose=verbose)  # noqa: SLF001 - its base
        query = self._query
        facts = (f"column={query.column}", f"k={query.k}", f"metric={query.metric}", f"prefilter={self._prefilter}")
        search = PlanStep(name="KNNVectorDistance", facts=facts, inputs=(scan,))
        return "\n".join(nearest_steps(self._snapshot, self._options, search, prefilter=self._prefilter).lines())

    def analyze_plan(self, count_rows: bool = False) -> str:
        """Not offered for a search.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del count_rows
        raise UnsupportedError("analyze_plan of a scan with nearest is not supported; use explain_plan")

    def _find_nearest(self) -> tuple[U64Array, _Floats]:
        """Addresses of the rows, nearest first, and their distances."""
        options, query = self._options, self._query
        addresses, distances = np.zeros(0, np.uint64), np.zeros(0)
        for batch in LanceScanner(self._snapshot, self._fragments, self._narrow_options()).to_batches():
            where, new_distances = _measure(batch, query)
            addresses, distances = np.concatenate([addresses, where]), np.concatenate([distances, new_distances])
            order = np.argsort(distances, kind="stable")[: query.k]
            addresses, distances = addresses[order], distances[order]
        if options.filter is not None and not self._prefilter and len(addresses):
            matches = self._match_filter(addresses)
            addresses, distances = addresses[matches], distances[matches]
        stop = None if options.limit is None else options.offset + options.limit
        return addresses[options.offset : stop], distances[options.offset : stop]

    def _match_filter(self, addresses: U64Array) -> npt.NDArray[np.bool_]:
        """For each row address, whether the filter keeps the row."""
        narrow = replace(self._narrow_options(), schema=Schema(fields=()), filter=self._options.filter)
        narrow = replace(narrow, conjuncts=self._options.conjuncts)
        owners, offsets = fragment_ids_of(addresses), row_offsets(addresses)
        matching_addresses = [np.zeros(0, np.uint64)]
        for fragment in self._fragments:
            fragment_offsets = offsets[owners == fragment.id]
            if len(fragment_offsets):
                scan = FragmentScan(self._snapshot, fragment, narrow, possible=BitMap(fragment_offsets.tolist()))
                matching_addresses += [batch.column(ROW_ADDRESS).to_numpy() for batch in scan.batches()]
        return np.isin(addresses, np.concatenate(matching_addresses))

    def _narrow_options(self) -> ScanOptions:
        """The options of a scan of the vectors with their row addresses."""
        return replace(
            self._options,
            schema=self._snapshot.manifest.schema.project([self._query.column]),
            projection=None,
            limit=None,
            offset=0,
            with_row_id=False,
            with_row_address=True,
            filter=self._options.filter if self._prefilter else None,
            conjuncts=self._options.conjuncts if self._prefilter else (),
            batch_size=None,
            batch_size_bytes=None,
            strict_batch_size=False,
        )


def _measure(batch: pa.RecordBatch, query: NearestQuery) -> tuple[U64Array, _Floats]:
    """Addresses and distances of the rows that have a vector whose distance is in the range."""
    column = batch.column(0)
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    addresses = batch.column(ROW_ADDRESS).to_numpy()[valid]
    values = column.drop_null().flatten().to_numpy(zero_copy_only=False)
    distances = query.distances(values.astype(np.float64).reshape(-1, column.type.list_size))
    in_range = ~np.isnan(distances)
    if query.least is not None:
        in_range &= distances >= query.least
    if query.below is not None:
        in_range &= distances < query.below
    return addresses[in_range], distances[in_range]


def _parse_distance_range(distance_range: Any) -> tuple[float | None, float | None]:
    """The smallest distance of a result, and the distance below which results are; None for no bound."""
    if distance_range is None:
        return None, None
    bounds = tuple(distance_range) if isinstance(distance_range, tuple | list | np.ndarray) else ()
    if len(bounds) != 2 or not all(bound is None or (isinstance(bound, Real) and bound == bound) for bound in bounds):  # noqa: PLR0124 - NaN
        raise InvalidInputError(
            "nearest: distance_range must be the smallest distance and the distance below which results are, each a "
            f"number or None, not {distance_range!r:.80}"
        )
    return bounds


def _parse_vector(numbers: Any) -> _Floats:
    """The vector of a query: a list, an array, or a scalar of Arrow."""
    if isinstance(numbers, pa.Scalar):
        numbers = numbers.as_py() if not hasattr(numbers, "to_numpy") else numbers.to_numpy()
    elif isinstance(numbers, pa.Array | pa.ChunkedArray):
        numbers = numbers.to_pylist()
    try:
        vector = np.asarray(numbers, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"nearest: q must be a vector of numbers, not {numbers!r:.80}") from error
    if vector.ndim != 1 or not len(vector):
        raise UnsupportedError(f"nearest: q must be one non-empty vector, not an array of the shape {vector.shape}")
    return vector
