"""Checks of the values in the components' YAML: an error names the key of an invalid value, and the expected form.

type of the field   accepted values
-----------------   ---------------
any                 a string with a template, `{{ ... }}`, which Dagster resolves
a list              a list whose items are accepted
a mapping           a mapping, whose keys `yaml_keys` checks
anything else       what pydantic accepts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

_WORDS: Final[Mapping[Any, str]] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def misfit_of(value: Any, annotation: Any, place: str) -> str | None:
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
            misfits = (misfit_of(member, items, f"{place}[{position}]") for position, member in enumerate(value))
            return next((misfit for misfit in misfits if misfit is not None), None)
        takes_strings = isinstance(value, Mapping) and any(_holds_strings(kind) for kind in kinds)
        wrong = [key for key, member in value.items() if not isinstance(member, str)] if takes_strings else []
        return f"{place}.{wrong[0]} must be a string; put it into quotes" if wrong else None
    if value is None:
        return f"{place} has no value; give it one, or leave it out"
    expected = " or ".join(dict.fromkeys(_word(kind, value) for kind in kinds if kind is not NoneType))
    secret = any(get_origin(kind) is dict for kind in kinds) or not isinstance(value, str | int | float)
    return f"{place} must be {expected}" + ("" if secret else f", not {value!r}")


def _kinds(annotation: Any) -> Iterator[Any]:
    """The members of a union; `str` for a type with a resolver, such as an asset key, which is a string in YAML."""
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _kinds(member)
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


def _word(kind: Any, value: Any) -> str:
    if get_origin(kind) is Sequence:
        return f"a list, such as [{value}]" if isinstance(value, str | int) else "a list"
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "a mapping of keys to values"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _WORDS[kind]
