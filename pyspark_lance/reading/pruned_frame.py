"""Pruned frames: what `read` returns, a DataFrame whose `select`, `where`, `limit`, `count` and `isEmpty` read less.

    read(...)                     all columns             count, isEmpty: from the manifest
      .select("id", "day")        two columns             classic sessions: the columns that expressions need
      .where("day = 2")           rows of day 2           conditions that may mean something else are left to Spark
      .limit(10)                  ten rows

A pruned frame is a DataFrame of the session's own class, so that joins, views and writes accept it. Each of these verbs
makes another frame with a read of its own. The frame on which the verb was called does not change, nor do other frames
made from it. Where a verb cannot be pushed down, Spark's own verb runs on the frame. It also does where names differ
in case alone and the session does not distinguish them, since Spark rejects these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import pyarrow.compute as pc

from lance_core import LanceDataset
from pyspark_lance.engine.lexing import parse_sql
from pyspark_lance.engine.spark_internals import condition_sql, find_needed_columns, is_classic, substitute_frame
from pyspark_lance.lazy import DataFrame
from pyspark_lance.reading.filter_pushdown import push_filter
from pyspark_lance.types.column_names import case_sensitive, quoted

_ADDRESS: Final = "_rowaddr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The rows and columns that a frame reads.

    Attributes:
        dataset: The version.
        columns: Names of its columns, in order.
        filter: The condition on the rows; None for all rows.
        limit: The largest number of rows; None for all rows.
        frame: Makes Spark's frame of a scan.
    """

    dataset: LanceDataset
    columns: tuple[str, ...]
    filter: pc.Expression | None = None
    limit: int | None = None
    frame: Callable[[Scan], DataFrame] = field(repr=False)

    def narrowed(self, condition: pc.Expression) -> Scan:
        """The scan with a further condition."""
        return replace(self, filter=condition if self.filter is None else self.filter & condition)


def prune_frame(scan: Scan) -> DataFrame:
    """The frame of a scan, whose verbs read less."""
    plain = scan.frame(scan)
    return _make_pruned(plain, scan, plain, lambda: plain)


def _make_pruned(frame: Any, scan: Scan, root: DataFrame, plain: Callable[[], DataFrame]) -> DataFrame:
    """A pruned frame.

    Args:
        frame: Spark's frame.
        scan: What it reads.
        root: The frame of the first read, whose columns callers may refer to.
        plain: Makes the frame by Spark's own verbs, which read all columns.
    """
    base = next(kind for kind in type(frame).__mro__ if kind.__module__.startswith("pyspark.sql."))
    kind: Any = _kind(base)
    pruned_frame = kind(frame._jdf if is_classic(frame) else frame._plan, frame.sparkSession)  # noqa: SLF001 - made as Spark makes them
    pruned_frame._lance = _State(scan=scan, root=root, plain=plain)  # noqa: SLF001 - an attribute of `_Pruned`
    return pruned_frame  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _State:
    scan: Scan
    root: DataFrame
    plain: Callable[[], DataFrame]


@lru_cache(maxsize=4)
def _kind(base: Any) -> type:
    """The class of pruned frames for a session's class of frames."""
    # The module of the class shows the kind of the session.
    return type("DataFrame", (_Pruned, base), {"__module__": base.__module__, "__doc__": base.__doc__})


class _Pruned:
    """The verbs that read less, mixed into Spark's own class."""

    _lance: _State
    _jdf: Any
    _plan: Any
    sparkSession: Any  # noqa: N815 - Spark's name
    _is_cached = False

    def select(self, *cols: Any) -> Any:
        """Spark's `select`."""
        names = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list) else list(cols)
        if self._is_sparks or not names:
            return self._spark().select(*cols)
        have = self._lance.scan.columns
        if all(isinstance(name, str) and name in have and "." not in name for name in names):
            if len(set(names)) == len(names):
                return self._with_columns(names, lambda plain: plain.select(*cols))
            return self._spark().select(*cols)
        return self._projected(lambda frame: frame.select(*cols))

    def selectExpr(self, *expr: Any) -> Any:  # noqa: N802 - Spark's name
        """Spark's `selectExpr`."""
        return self._projected(lambda frame: frame.selectExpr(*expr))

    def agg(self, *exprs: Any) -> Any:
        """Spark's `agg`."""
        return self._projected(lambda frame: frame.agg(*exprs))

    def drop(self, *cols: Any) -> Any:
        """Spark's `drop`."""
        have = self._lance.scan.columns
        if not all(isinstance(name, str) for name in cols):  # columns cannot be compared with names
            return self._projected(lambda frame: frame.drop(*cols))
        left = [name for name in have if name not in cols]
        if self._is_sparks or not set(have).issuperset(cols) or not left:
            return self._spark().drop(*cols)
        return self._with_columns(left, lambda plain: plain.drop(*cols))

    def filter(self, condition: Any) -> Any:
        """Spark's `filter`."""
        try:
            filtered_frame = self._spark().filter(condition)
        except Exception as error:  # noqa: BLE001 - Spark's AnalysisException, recognized by its name
            return self._on_plain(error, lambda plain: plain.filter(condition))
        scan = self._lance.scan
        if self._is_sparks or scan.limit is not None:
            return filtered_frame
        if not is_classic(filtered_frame) and not _knows(condition, scan.columns):
            return self._lance.plain().filter(condition)
        sql = condition_sql(filtered_frame) if is_classic(filtered_frame) else condition
        pushed = None if sql is None else push_filter(sql, scan.dataset.schema)
        if pushed is None:
            return filtered_frame
        narrowed = scan.narrowed(pushed.filter)
        plain = self._lance.plain
        less = self._reading(narrowed)
        if less is None:
            return filtered_frame
        if pushed.is_exact:
            return _make_pruned(less, narrowed, self._lance.root, lambda: plain().filter(condition))
        return less.filter(condition)

    def where(self, condition: Any) -> Any:
        """Spark's `where`."""
        return self.filter(condition)

    def limit(self, num: int) -> Any:
        """Spark's `limit`."""
        scan = self._lance.scan
        if self._is_sparks or not isinstance(num, int) or isinstance(num, bool) or num < 0:
            return self._spark().limit(num)
        least = num if scan.limit is None else min(num, scan.limit)
        return self._with_scan(replace(scan, limit=least), lambda frame: frame.limit(num))

    def count(self) -> int:
        """Spark's `count`; without a filter from the manifest."""
        scan = self._lance.scan
        if scan.filter is None:
            rows: int = scan.dataset.count_rows()
            return rows if scan.limit is None else min(rows, scan.limit)
        if self._is_cached:
            return int(self._spark().count())
        return int(scan.frame(replace(scan, columns=(_ADDRESS,))).count())

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        """Spark's `isEmpty`; without a filter from the manifest."""
        scan = self._lance.scan
        if scan.filter is None or scan.limit == 0:
            return self.count() == 0
        return not scan.frame(replace(scan, columns=(_ADDRESS,), limit=1)).take(1)

    def sort(self, *cols: Any, **kwargs: Any) -> Any:
        """Spark's `sort`, also by columns that a `select` has left out."""
        return self._with_others("sort", cols, kwargs)

    orderBy = sort  # noqa: N815 - Spark's name

    def sortWithinPartitions(self, *cols: Any, **kwargs: Any) -> Any:  # noqa: N802 - Spark's name
        """Spark's `sortWithinPartitions`, also by columns that a `select` has left out."""
        return self._with_others("sortWithinPartitions", cols, kwargs)

    def cache(self) -> Any:
        """Spark's `cache`: frames that are made from this one later use the cached rows."""
        self._is_cached = True
        return super().cache()  # type: ignore[misc]  # Spark's class

    def persist(self, *level: Any, **kwargs: Any) -> Any:
        """Spark's `persist`: frames that are made from this one later use the cached rows."""
        self._is_cached = True
        return super().persist(*level, **kwargs)  # type: ignore[misc]  # Spark's class

    def unpersist(self, *args: Any, **kwargs: Any) -> Any:
        """Spark's `unpersist`."""
        self._is_cached = False
        return super().unpersist(*args, **kwargs)  # type: ignore[misc]  # Spark's class

    @property
    def _is_sparks(self) -> bool:
        """Whether Spark's verbs run as they are: on cached rows, and on names that the session does not distinguish."""
        names = self._lance.scan.columns
        has_twins = len({name.lower() for name in names}) < len(names)
        return self._is_cached or (has_twins and not case_sensitive(self.sparkSession))

    def _spark(self) -> Any:
        """Spark's own verbs on this frame."""
        return super()

    def _reading(self, scan: Scan) -> DataFrame | None:
        """A frame that replaces this one and reads another scan; None if this Spark does not allow that."""
        less = substitute_frame(self._lance.root, scan.frame(scan))
        if less is None or is_classic(less):
            return less
        return less.select(*[quoted(name) for name in scan.columns])

    def _with_columns(self, names: list[str], verb: Callable[[Any], Any]) -> Any:
        return self._with_scan(replace(self._lance.scan, columns=tuple(names)), verb)

    def _with_scan(self, scan: Scan, verb: Callable[[Any], Any]) -> Any:
        """The frame of another scan, which has the rows and columns that Spark's verb returns."""
        less = self._reading(scan)
        plain = self._lance.plain
        if less is None:
            return verb(self._spark())
        return _make_pruned(less, scan, self._lance.root, lambda: verb(plain()))

    def _projected(self, verb: Callable[[Any], Any]) -> Any:
        """The result of a verb on the columns that it needs."""
        try:
            projected_frame = verb(self._spark())
        except Exception as error:  # noqa: BLE001 - Spark's AnalysisException, recognized by its name
            return self._on_plain(error, verb)
        needs = None if self._is_sparks else find_needed_columns(self, projected_frame)  # type: ignore[arg-type]  # it is a frame
        if needs is None:
            return projected_frame
        names, unchanged = needs
        scan = self._lance.scan
        if unchanged and names:
            return self._with_columns(names, verb)
        if len(names) == len(scan.columns):
            return projected_frame
        less = self._reading(replace(scan, columns=tuple(names or scan.columns[:1])))
        return projected_frame if less is None else verb(less)

    def _with_others(self, verb: str, cols: Any, kwargs: Any) -> Any:
        scan = self._lance.scan
        if not is_classic(self) and not all(_knows(column, scan.columns) for column in cols):  # type: ignore[arg-type]
            return getattr(self._lance.plain(), verb)(*cols, **kwargs)
        try:
            return getattr(self._spark(), verb)(*cols, **kwargs)
        except Exception as error:  # noqa: BLE001 - Spark's AnalysisException, recognized by its name
            return self._on_plain(error, lambda plain: getattr(plain, verb)(*cols, **kwargs))

    def _on_plain(self, error: Exception, verb: Callable[[Any], Any]) -> Any:
        """The result of a verb on the frame with all columns: Spark also resolves columns that a `select` left out."""
        if type(error).__name__ != "AnalysisException":
            raise error
        return verb(self._lance.plain())


def _knows(what: Any, columns: tuple[str, ...]) -> bool:
    """Whether a string names only columns of the frame; False for other arguments, which Connect cannot analyse."""
    if not isinstance(what, str):
        return False
    if what in columns:
        return True
    tree: Any = parse_sql(what)
    columns_of_tree = [] if tree is None else [node for node in tree.walk() if type(node).__name__ == "Column"]
    return tree is not None and all(len(column.parts) == 1 and column.name in columns for column in columns_of_tree)
