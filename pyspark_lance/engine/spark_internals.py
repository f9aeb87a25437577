"""Frames that replace another frame and read less: references to columns of the replaced frame find their columns.

    full = read(...)                MapInArrow [id#1, day#2, delay#3]
    full.select("id")               Project [id#9 AS id#1] over MapInArrow [id#9]       so that full.id is still known

This module holds all internals of Spark that reading uses: identities of columns in plans of classic sessions, and of
plans in Spark Connect. Each function returns None if this Spark lacks a part of them; its caller then reads all
columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["condition_sql", "in_place_of", "is_classic", "needed_columns"]


def is_classic(frame: DataFrame) -> bool:
    """Whether a frame is one of a classic session."""
    return any(kind.__module__.startswith("pyspark.sql.classic.") for kind in type(frame).__mro__)


def in_place_of(full: DataFrame, less: DataFrame) -> DataFrame | None:
    """A frame with the columns of `less`, which references to the columns of `full` find by their names.

    Args:
        full: The frame whose columns others may refer to.
        less: A frame with some of the columns of `full`, each once.
    """
    if not is_classic(full):
        return _in_place_over_connect(full, less)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with classic sessions

    try:
        return _in_place(full, less)
    except (Py4JError, AttributeError, TypeError):
        return None


def _in_place(full: Any, less: Any) -> DataFrame:
    session = full.sparkSession
    jvm = session.sparkContext._jvm  # noqa: SLF001 - see the module
    sql = jvm.org.apache.spark.sql
    known = {one.name(): one for one in _attributes(_plan(full))}
    plan = _plan(less)
    columns = [
        sql.catalyst.expressions.Alias(
            one, one.name(), known[one.name()].exprId(), one.qualifier(), jvm.scala.Option.apply(None), one.qualifier()
        )
        for one in _attributes(plan)
    ]
    named = jvm.PythonUtils.toSeq(columns)
    made = sql.catalyst.plans.logical.Project(named, plan)
    kind: Any = next(kind for kind in type(less).__mro__ if kind.__module__.startswith("pyspark.sql.classic."))
    return kind(sql.classic.Dataset.ofRows(session._jsparkSession, made), session)  # type: ignore[no-any-return]  # noqa: SLF001 - see the module


def _in_place_over_connect(full: Any, less: Any) -> DataFrame | None:
    plan: Any = getattr(less, "_plan", None)
    other: Any = getattr(full, "_plan", None)
    if not hasattr(plan, "_root_plan_id") or not hasattr(other, "_root_plan_id"):
        return None
    plan._root_plan_id = other._root_plan_id  # noqa: SLF001 - see the module
    return less  # type: ignore[no-any-return]


def needed_columns(frame: DataFrame, made: DataFrame) -> tuple[list[str], bool] | None:
    """Columns of a classic frame that a frame made from it by one step needs; None if that cannot be determined.

    Returns:
        The names of the columns, and whether the other frame consists of exactly these columns, unchanged.
    """
    if not is_classic(frame):
        return None  # where py4j may not be installed
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with classic sessions

    try:
        plan: Any = _plan(made)
        if plan.getClass().getSimpleName() not in ("Project", "Aggregate") or not plan.child().equals(_plan(frame)):
            return None
        by_id = {one.exprId().id(): one.name() for one in _attributes(_plan(frame))}
        references = plan.references().toSeq()
        needed = {references.apply(i).exprId().id() for i in range(references.length())}
        output = [(one.exprId().id(), one.name()) for one in _attributes(plan)]
    except (Py4JError, AttributeError, TypeError):
        return None
    names = [name for known, name in by_id.items() if known in needed]
    unchanged = len(names) == len(output) == len(set(output)) and all(by_id.get(key) == name for key, name in output)
    return ([name for _, name in output] if unchanged else names), unchanged


def condition_sql(made: DataFrame) -> str | None:
    """The condition of a classic frame that `filter` made, in the SQL of Spark's analysed plan; None if unknown."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with classic sessions

    try:
        plan: Any = _plan(made)
        return str(plan.condition().sql()) if plan.getClass().getSimpleName() == "Filter" else None
    except (Py4JError, AttributeError, TypeError):
        return None


def _plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - see the module


def _attributes(plan: Any) -> Sequence[Any]:
    output = plan.output()
    return [output.apply(i) for i in range(output.length())]
