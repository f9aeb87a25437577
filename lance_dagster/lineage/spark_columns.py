"""Column lineage from the plan of a Spark frame: best effort, and off by default.

    load_input      records the attributes of the frames that a step loads, by Spark's ids of expressions
    handle_output   follows the attributes of the stored frame back through its plan, to the recorded ones

    node of the plan                      sources of its attributes
    Alias(expression)                     what the expression refers to
    Union, rollup, cube                   the attribute at the same position of each side or grouping
    others, such as explode, mapInPandas  everything that the node refers to

Conditions of filters, joins and sorts are not sources: lineage is about where values come from. A frame that was
converted on the way (`toPandas`, a checkpoint), or of a Connect session, whose plan is on the server, has no lineage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import dagster as dg

from lance_dagster.lineage.step_inputs import Step, inputs_of

_MOST_NODES: Final = 2000

Source = tuple[str, str]
"""An asset and a column of it."""


def has_plan(value: object) -> bool:
    """Whether a value is a frame of a classic Spark session."""
    return hasattr(value, "_jdf") and hasattr(value, "sparkSession")


def remember_frame(step: Step | None, asset: str, frame: Any) -> None:
    """Record the columns of a frame that a step loads; without a step, do nothing."""
    if step is None or not has_plan(frame):
        return
    columns = {_id(attribute): (asset, attribute.name()) for attribute in _items(_analyzed(frame).output())}
    with inputs_of(step) as inputs:
        inputs.columns.update(columns)


def plan_lineage(step: Step | None, frame: Any) -> dg.TableColumnLineage | None:
    """The lineage of the columns of a frame, from its plan; None if the plan shows none.

    Args:
        step: The step that made the frame from its inputs.
        frame: The frame; the result is None for a value that is no frame of a classic session.
    """
    with inputs_of(step) as inputs:
        input_columns = dict(inputs.columns)
    if not input_columns or not has_plan(frame):
        return None
    plan = _analyzed(frame)
    attributes = _Made(input_columns)
    attributes.read(plan)
    sources_by_column = {
        attribute.name(): sorted(attributes.sources(_id(attribute))) for attribute in _items(plan.output())
    }
    deps = {
        column: [dg.TableColumnDep(dg.AssetKey.from_user_string(asset), name) for asset, name in sources]
        for column, sources in sources_by_column.items()
        if sources
    }
    return dg.TableColumnLineage(deps) if deps else None


class _Made:
    """The attributes from which each attribute of a plan is computed."""

    def __init__(self, sources: dict[int, Source]) -> None:
        self._known = sources
        self._from: dict[int, set[int]] = {}
        self._beside: dict[int, set[int]] = {}

    def read(self, plan: Any) -> None:
        """Read all nodes of a plan."""
        waiting, seen = [plan], 0
        while waiting and seen < _MOST_NODES:
            node, seen = waiting.pop(), seen + 1
            self._node(node)
            waiting += _items(node.children())

    def _node(self, node: Any) -> None:
        outputs = [_id(output) for output in _items(node.output())]
        kind = node.nodeName()
        if kind == "Union":  # its attributes have the ids of the first side's
            for side in _items(node.children()):
                for attribute, other in zip(outputs, _items(side.output()), strict=True):
                    self._beside.setdefault(attribute, set()).add(_id(other))
        elif kind == "Expand":  # a rollup or cube: one list of expressions for each grouping
            for projection in _items(node.projections()):
                for attribute, expression in zip(outputs, _items(projection), strict=True):
                    self._add(attribute, _references(expression))
        else:
            aliases = [alias for expression in _items(node.expressions()) for alias in _aliases(expression)]
            for alias in aliases:
                self._add(_id(alias), _references(alias))
            named = {_id(alias) for alias in aliases}
            produced_ids = {_id(output) for output in _items(node.producedAttributes().toSeq())} - named
            for attribute in produced_ids:
                self._add(attribute, _references(node))

    def _add(self, attribute: int, sources: Iterable[int]) -> None:
        self._from.setdefault(attribute, set()).update(source for source in sources if source != attribute)

    def sources(self, attribute: int) -> set[Source]:
        """The columns of inputs from which an attribute is computed."""
        input_columns: set[Source] = set()
        waiting, seen = [attribute], set()
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            waiting += self._beside.get(current, ())
            if current in self._known:
                input_columns.add(self._known[current])
            else:
                waiting += self._from.get(current, ())
        return input_columns


def _analyzed(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - the one way to the plan


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _references(node: Any) -> list[int]:
    """The attributes that a node or an expression refers to."""
    return [_id(attribute) for attribute in _items(node.references().toSeq())]


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _aliases(expression: Any) -> Iterator[Any]:
    """The aliases in an expression: the expression itself, or those within it."""
    if expression.nodeName() == "Alias":
        yield expression
        return
    for child in _items(expression.children()):
        yield from _aliases(child)
