"""Checks of the keys in the components' YAML: an error names the unknown key, its place and the nearest known key.

Pydantic rejects unknown keys too, but lists every form that the value could have, and not the key that was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, model_validator

from lance_dagster.components.yaml_values import misfit_of
from lance_dagster.tables.names import near_name

_OFF = "off"


def with_checked_keys(
    model: type[BaseModel], component: type[BaseModel], check: Callable[[Mapping[str, Any]], Iterator[str]]
) -> type[BaseModel]:
    """The model of a component's YAML, which checks keys before anything else.

    The model raises a DagsterInvalidDefinitionError for the first problem.

    Args:
        model: The model that Dagster derives from the component.
        component: The component, whose fields are the known keys.
        check: Yields further problems of the attributes, such as keys without effect.
    """

    class Checked(model):  # type: ignore[misc, valid-type]  # the model is made at run time
        @model_validator(mode="before")
        @classmethod
        def _check_keys(cls, values: Any) -> Any:
            if not isinstance(values, Mapping):
                return values
            values = _without_booleans(values)
            missing = (f"{name} is missing" for name in _required(component) if name not in values)
            for problem in (*_unknown(values, component, ""), *missing, *check(values)):
                # Pydantic would show the attributes with a ValueError, and these may hold secrets.
                raise dg.DagsterInvalidDefinitionError(f"{component.__name__}: {problem}")
            return values

    Checked.__name__ = Checked.__qualname__ = model.__name__
    return Checked


def empty_lists(values: Mapping[str, Any], *keys: str, place: str = "") -> Iterator[str]:
    """Yield a problem for each key whose value is an empty list."""
    for key in keys:
        if values.get(key) == []:
            where = f"{place}.{key}" if place else key
            yield f"{where} is an empty list, which does nothing; list something, or leave it out"


def _without_booleans(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the string "off" as the branching mode, which YAML parses as false."""
    branching = values.get("branching")
    if isinstance(branching, Mapping) and branching.get("mode") is False:
        return {**values, "branching": {**branching, "mode": _OFF}}
    return dict(values)


def _unknown(values: Mapping[str, Any], model: type[BaseModel], place: str) -> Iterator[str]:
    annotations = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for key, value in values.items():
        where = f"{place}.{key}" if place else str(key)
        if key not in annotations:
            listed, before = ", ".join(sorted(annotations)), f"{place}: " if place else ""
            yield f"{before}the key {key!r} is not known; known here: {listed}{near_name(str(key), annotations)}"
            continue
        misfit = misfit_of(value, annotations[key], where)
        if misfit is not None:
            yield misfit
            continue
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        inner, choices = _model_in(annotations[key]), _choices_in(annotations[key])
        for position, item in items:
            at = where if position is None else f"{where}[{position}]"
            if inner is not None and isinstance(item, Mapping):
                yield from _unknown(item, inner, at)
                yield from (f"{at}.{name} is missing" for name in _required(inner) if name not in item)
            elif choices and isinstance(item, str) and item not in choices and "{{" not in item:
                yield f"{at}: {item!r} is none of {', '.join(choices)}{near_name(item, choices)}"


def _required(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items() if field.is_required()]


def _choices_in(annotation: Any) -> tuple[str, ...]:
    """The strings of the first `Literal` in a type; empty if there is none."""
    if get_origin(annotation) is Literal:
        return tuple(choice for choice in get_args(annotation) if isinstance(choice, str))
    if annotation is str:
        return ()
    return next((choices for member in get_args(annotation) if (choices := _choices_in(member))), ())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in a type such as `Sequence[Model]` or `Model | None`; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, dg.Model):
        return annotation
    return next((model for member in get_args(annotation) if (model := _model_in(member)) is not None), None)
