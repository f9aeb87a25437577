"""Spark's internals for frames that replace another frame and read less, while references to its columns still resolve.

    full = read(...)                MapInArrow [id#1, day#2, delay#3]
    full.select("id")               Project [id#9 AS id#1] over MapInArrow [id#9]       so that full.id still resolves

The internals are identities of columns in plans of classic sessions, plans in Spark Connect, and the expression that a
`Column` was made from. Each function returns None if this version of Spark lacks an internal that it needs; its caller
then reads all columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pyspark_lance.lazy import Column, DataFrame
from pyspark_lance.releases import is_at_least

_Result = TypeVar("_Result")

_CLASSIC: Final = ("pyspark.sql.classic.", "pyspark.sql.dataframe")
"""Modules of the class of classic frames, since 4.0 and before."""
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
"""A part of a name, as Spark splits it."""


def is_classic(frame: DataFrame) -> bool:
    """Whether a frame is one of a classic session."""
    return not any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(frame).__mro__)


def substitute_frame(full: DataFrame, less: DataFrame) -> DataFrame | None:
    """A frame with the columns of `less`, to which references to the columns of `full` resolve by name.

    Args:
        full: The frame whose columns may be referred to.
        less: A frame with some of the columns of `full`, each once.
    """
    if not is_classic(full):
        return _substitute_over_connect(full, less)
    return try_internals(lambda: _substitute_on_classic(full, less))


def _substitute_on_classic(full: Any, less: Any) -> DataFrame:
    session = full.sparkSession
    jvm = session.sparkContext._jvm  # noqa: SLF001 - see the module
    sql = jvm.org.apache.spark.sql
    full_attributes = {attribute.name(): attribute for attribute in items_of(_plan(full).output())}
    plan = _plan(less)
    columns = [
        sql.catalyst.expressions.Alias(
            attribute,
            attribute.name(),
            full_attributes[attribute.name()].exprId(),
            attribute.qualifier(),
            jvm.scala.Option.apply(None),
            attribute.qualifier(),
        )
        for attribute in items_of(plan.output())
    ]
    named = jvm.PythonUtils.toSeq(columns)
    return frame_of_plan(less, sql.catalyst.plans.logical.Project(named, plan))


def frame_of_plan(frame: Any, plan: Any) -> DataFrame:
    """The frame of a plan of the JVM, in the session of another frame of a classic session."""
    session, sql = frame.sparkSession, frame.sparkSession.sparkContext._jvm.org.apache.spark.sql  # noqa: SLF001 - see the module
    kind: Any = next(kind for kind in type(frame).__mro__ if kind.__module__.startswith(_CLASSIC))
    dataset = sql.classic.Dataset if is_at_least((4, 0)) else sql.Dataset
    return kind(dataset.ofRows(session._jsparkSession, plan), session)  # type: ignore[no-any-return]  # noqa: SLF001 - see the module


def _substitute_over_connect(full: Any, less: Any) -> DataFrame | None:
    plan: Any = getattr(less, "_plan", None)
    other: Any = getattr(full, "_plan", None)
    if not hasattr(plan, "_root_plan_id") or not hasattr(other, "_root_plan_id"):
        return None
    plan._root_plan_id = other._root_plan_id  # noqa: SLF001 - see the module
    return less  # type: ignore[no-any-return]


def find_needed_columns(frame: DataFrame, derived_frame: DataFrame) -> tuple[list[str], bool] | None:
    """Columns of a classic frame that a frame made from it by one step needs; None if that cannot be determined.

    Returns:
        The names of the columns, and whether the other frame consists of exactly these columns, unchanged.
    """
    return try_internals(lambda: _find_needed_columns(frame, derived_frame)) if is_classic(frame) else None


def _find_needed_columns(frame: DataFrame, derived_frame: DataFrame) -> tuple[list[str], bool] | None:
    plan: Any = _plan(derived_frame)
    if plan.getClass().getSimpleName() not in ("Project", "Aggregate") or not plan.child().equals(_plan(frame)):
        return None
    by_id = {attribute.exprId().id(): attribute.name() for attribute in items_of(_plan(frame).output())}
    needed = {reference.exprId().id() for reference in items_of(plan.references().toSeq())}
    output = [(attribute.exprId().id(), attribute.name()) for attribute in items_of(plan.output())]
    names = [name for attribute_id, name in by_id.items() if attribute_id in needed]
    unchanged = len(names) == len(output) == len(set(output)) and all(by_id.get(key) == name for key, name in output)
    return ([name for _, name in output] if unchanged else names), unchanged


def condition_sql(filtered_frame: DataFrame) -> str | None:
    """The condition of a classic frame that `filter` made, in the SQL of Spark's analysed plan; None if unknown."""

    def condition() -> str | None:
        plan = _plan(filtered_frame)
        return str(plan.condition().sql()) if plan.getClass().getSimpleName() == "Filter" else None

    return try_internals(condition)


def try_internals(call: Callable[[], _Result], *, raises: bool = False) -> _Result | None:
    """The result of a function that uses internals of classic sessions; None if this Spark lacks one of them.

    Args:
        call: The function.
        raises: Whether errors of the JVM are raised: what it did may fail for other reasons.

    Raises:
        Py4JJavaError: The JVM raised an error.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with classic sessions

    try:
        return call()
    except (Py4JError, AttributeError, TypeError) as error:
        if raises and isinstance(error, Py4JJavaError):
            raise
        return None


def _plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - see the module


def items_of(scala_sequence: Any) -> list[Any]:
    """The items of a sequence of Scala."""
    return [scala_sequence.apply(i) for i in range(scala_sequence.length())]


_OPERATORS: Final = {"EqualTo": "=", "EqualNullSafe": "<=>", "And": "and"}
"""Operators by the names of their classes in the plans of Spark 3.5, in which a column holds its expression itself."""


def called_function(column: Column) -> tuple[str, list[Column]] | None:
    """The function or operator that a column calls, in lower case, and its arguments; None for other columns."""
    node = _node(column)
    try:
        if hasattr(column, "_jc") and not is_at_least((4, 0)):
            children = [_make_column(column, child) for child in items_of(node.children())]
            if _kind(node) == "EqualNull":  # its only child is the operator `<=>`
                return called_function(children[0])
            return (_OPERATORS.get(_kind(node), _kind(node).lower()), children) if children else None
        if _kind(node) != "UnresolvedFunction":
            return None
        if not hasattr(column, "_jc"):
            return str(node._name).lower(), [_make_column(column, argument) for argument in node._args]  # noqa: SLF001 - see the module
        arguments = node.arguments()
        columns = [_make_column(column, arguments.apply(i)) for i in range(arguments.length())]
        return str(node.functionName()).lower(), columns
    except (AttributeError, TypeError):
        return None


def expression_text(column: Column) -> str | None:
    """The SQL of a column that `functions.expr` made; None for other columns."""
    node = _node(column)
    if _kind(node) == "SqlExpression":
        return str(node.expression())
    return str(node._expr) if _kind(node) == "SQLExpression" else None  # noqa: SLF001 - see the module


def column_path(column: Column) -> tuple[str, ...] | None:
    """The parts of the name of a column that stands for a name alone; None for other columns."""
    node = _node(column)
    if _kind(node) == "UnresolvedAttribute" and (not is_at_least((4, 0)) or node.planId().isEmpty()):
        parts = node.nameParts()
        return tuple(str(parts.apply(i)) for i in range(parts.length()))
    if _kind(node) == "ColumnReference" and node._plan_id is None:  # noqa: SLF001 - see the module
        name = str(node._unparsed_identifier)  # noqa: SLF001 - see the module
        return tuple((quoted or plain).replace("``", "`") for quoted, plain in _PART.findall(name))
    return None


def names_of_column(column: Column) -> list[str] | None:
    """The names, and SQL expressions with names, that a column is made from; None if one of its parts is unknown."""
    path, text, call = column_path(column), expression_text(column), called_function(column)
    if path is not None:
        return [".".join("`" + part.replace("`", "``") + "`" for part in path)]
    if text is not None:
        return [text]
    node: Any = _node(column)
    parts = [] if call is None else call[1]
    if call is None and _kind(node) == "Cast":
        parts = [_make_column(column, node.child())]
    elif call is None and _kind(node) == "CastExpression":
        parts = [_make_column(column, node._expr)]  # noqa: SLF001 - see the module
    elif call is None and _kind(node) not in ("Literal", "LiteralExpression"):
        return None
    part_names = [names_of_column(part) for part in parts]
    return (
        None if any(names is None for names in part_names) else [name for names in part_names for name in names or ()]
    )


def _make_column(column: Any, node: Any) -> Column:
    """Another column of the same kind, made from a node."""
    if not hasattr(column, "_jc"):
        return type(column)(node)  # type: ignore[no-any-return]
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - see the module
    return type(column)(context._jvm.org.apache.spark.sql.Column(node))  # type: ignore[no-any-return]  # noqa: SLF001 - see the module


def _node(column: Any) -> Any:
    """The expression that a column was made from; None if Spark does not show it."""
    try:
        if not hasattr(column, "_jc"):
            return column._expr  # noqa: SLF001 - see the module
        return column._jc.node() if is_at_least((4, 0)) else column._jc.expr()  # noqa: SLF001 - see the module
    except Exception:  # noqa: BLE001 - an error of py4j, which may not be installed
        return None


def _kind(node: Any) -> str:
    """The name of the class of a part of a column."""
    name = type(node).__name__
    return str(node.getClass().getSimpleName()) if name == "JavaObject" else name
