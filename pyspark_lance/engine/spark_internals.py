"""A frame that reads less, in the place of another: references to columns of the other one find its columns.

    full = read(...)                MapInArrow [id#1, day#2, delay#3]
    full.select("id")               Project [id#9 AS id#1] over MapInArrow [id#9]       so that full.id is still known

All that is not public in Spark and that this package uses to read stands in here: identities of columns in the plans
of classic sessions, and of plans in Spark Connect. Each function gives None where a part of it is missing: another
Spark; the caller reads all columns then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["condition_text", "in_place_of", "is_classic", "needed_columns"]


def is_classic(frame: DataFrame) -> bool:
    """Whether a frame is one of a classic session."""
    return any(kind.__module__.startswith("pyspark.sql.classic.") for kind in type(frame).__mro__)


def in_place_of(full: DataFrame, less: DataFrame) -> DataFrame | None:
    """A frame with the columns of `less`, which are known as those of the same names of `full`.

    Args:
        full: The frame whose columns others may refer to.
        less: A frame with some of its columns, none of them twice.
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
    """Columns of a classic frame that another one needs, which was made of it by one step; None if there is no telling.

    Returns:
        Their names, and whether the other frame consists of these columns alone, as they are.
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
    alone = len(names) == len(output) == len(set(output)) and all(by_id.get(known) == name for known, name in output)
    return ([name for _, name in output] if alone else names), alone


def condition_text(made: DataFrame) -> str | None:
    """The condition of a classic frame that `filter` made, as Spark has understood it, in SQL; None if unknown."""
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
