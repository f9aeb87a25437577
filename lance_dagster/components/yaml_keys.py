"""Checks of the components' YAML: an error names the key and its place, and the nearest known key or the expected form.

Pydantic rejects unknown keys too, but lists every form that the value could have, and not the key that was meant.

Values are accepted by the type of their field:

    any                 a string with a template, `{{ ... }}`, which Dagster resolves
    a list              a list whose items are accepted
    a mapping           a mapping, whose keys are checked as well
    anything else       what pydantic accepts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

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
            values = _restore_off(values)
            missing = (f"{name} is missing" for name in _required(component) if name not in values)
            for problem in (*_find_unknown_keys(values, component, ""), *missing, *check(values)):
                # Pydantic would show the attributes with a ValueError, and these may hold secrets.
                raise dg.DagsterInvalidDefinitionError(f"{component.__name__}: {problem}")
            return values

    Checked.__name__ = Checked.__qualname__ = model.__name__
    return Checked


def find_empty_lists(values: Mapping[str, Any], *keys: str, place: str = "") -> Iterator[str]:
    """Yield a problem for each key whose value is an empty list."""
    for key in keys:
        if values.get(key) == []:
            label = f"{place}.{key}" if place else key
            yield f"{label} is an empty list, which does nothing; list something, or leave it out"


def _restore_off(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the string "off" as the branching mode, which YAML parses as false."""
    branching = values.get("branching")
    if isinstance(branching, Mapping) and branching.get("mode") is False:
        return {**values, "branching": {**branching, "mode": _OFF}}
    return dict(values)


def _find_unknown_keys(values: Mapping[str, Any], model: type[BaseModel], place: str) -> Iterator[str]:
    annotations = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for key, value in values.items():
        label = f"{place}.{key}" if place else str(key)
        if key not in annotations:
            listed, before = ", ".join(sorted(annotations)), f"{place}: " if place else ""
            yield f"{before}the key {key!r} is not known; known here: {listed}{near_name(str(key), annotations)}"
            continue
        misfit = find_misfit(value, annotations[key], label)
        if misfit is not None:
            yield misfit
            continue
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        inner, choices = _model_in(annotations[key]), _choices_in(annotations[key])
        for position, item in items:
            at = label if position is None else f"{label}[{position}]"
            if inner is not None and isinstance(item, Mapping):
                yield from _find_unknown_keys(item, inner, at)
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


_WORDS: Final[Mapping[Any, str]] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def find_misfit(value: Any, annotation: Any, place: str) -> str | None:
    """The problem with a value, or None. It does not show the values of mappings, which may be secrets.

    Args:
        value: The value, as YAML is parsed.
        annotation: The type of the field.
        place: The key with its parents, for the message.
    """
    kinds = list(_kinds(annotation))
    if any(_fits(value, kind) for kind in kinds):
        items = next((get_args(kind)[0] for kind in kinds if get_origin(kind) is Sequence), None)
        if items is not None and isinstance(value, list):
            misfits = (find_misfit(member, items, f"{place}[{position}]") for position, member in enumerate(value))
            return next((misfit for misfit in misfits if misfit is not None), None)
        takes_strings = isinstance(value, Mapping) and any(_holds_strings(kind) for kind in kinds)
        wrong = [key for key, member in value.items() if not isinstance(member, str)] if takes_strings else []
        return f"{place}.{wrong[0]} must be a string; put it into quotes" if wrong else None
    if value is None:
        return f"{place} has no value; give it one, or leave it out"
    expected = " or ".join(dict.fromkeys(_name_kind(kind, value) for kind in kinds if kind is not NoneType))
    secret = any(get_origin(kind) is dict for kind in kinds) or not isinstance(value, str | int | float)
    return f"{place} must be {expected}" + ("" if secret else f", not {value!r}")


def _kinds(annotation: Any) -> Iterator[Any]:
    """The members of a union; `str` for a type with a resolver, such as an asset key, which is a string in YAML."""
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _kinds(member)
    elif get_origin(annotation) is Mapping:
        yield GenericAlias(dict, get_args(annotation))
    elif get_origin(annotation) in (Sequence, dict, Literal) or annotation in (*_WORDS, NoneType):
        yield annotation
    else:
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        yield annotation if is_model else str


def _holds_strings(kind: Any) -> bool:
    """Whether a type is a mapping whose values are strings."""
    return get_origin(kind) is dict and get_args(kind)[1] is not Any


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(value, str) and "{{" in value:
        return True
    if get_origin(kind) is Sequence:
        return isinstance(value, list)
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return isinstance(value, Mapping)
    if get_origin(kind) is Literal and isinstance(value, str):
        return True  # `yaml_keys` rejects other strings, and names the nearest choice
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


def _name_kind(kind: Any, value: Any) -> str:
    if get_origin(kind) is Sequence:
        return f"a list, such as [{value}]" if isinstance(value, str | int) else "a list"
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "a mapping of keys to values"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _WORDS[kind]
