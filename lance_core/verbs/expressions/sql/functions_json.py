"""SQL functions of JSON, over columns of type JSON, which hold `lance_core.schema.jsonb`, and over strings.

A path has steps that name one place, or all items: `$.a.b`, `$."a b"`, `$["a"]`, `$[0]`, `$[last]`, `$[*]`, `$.*`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema.jsonb import decoded, encoded, json_string, parsed
from lance_core.verbs.expressions.sql.typed import Typed

_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]"'\s()?@*$]+)|\."(?P<quoted>[^"]*)"|\[\s*"(?P<double>[^"]*)"\s*\]|\[\s*'(?P<single>[^']*)'\s*\]"""
    r"""|\[\s*(?P<index>\d+)\s*\]|(?P<last>\[\s*last\s*\])|(?P<all>\[\s*\*\s*\])|(?P<every>\.\*)"""
)
_MOST_DIGITS: Final = 18
_ALL: Final = object()
_LAST: Final = object()
_EVERY: Final = object()


def check_json_arguments(name: str, arguments: tuple[Typed, ...]) -> None:
    """Reject values that are not JSON, and paths that are not supported, before rows are read.

    Raises:
        InvalidInputError: An argument has a type that is not JSON, or not that of a path.
        UnsupportedError: A path has a step that is not supported.
    """
    kind = arguments[0].type
    if not any(is_kind(kind) for is_kind in (pa.types.is_large_binary, pa.types.is_string, pa.types.is_null)):
        raise InvalidInputError(f"{name} takes a column of JSON, not {kind}")
    for other in arguments[1:]:
        if not (pa.types.is_string(other.type) or pa.types.is_large_string(other.type)):
            raise InvalidInputError(f"{name} takes strings after the column, not {other.type}")
    if arguments[1].is_literal and isinstance(arguments[1].value, str) and not name.startswith("json_get"):
        _parse_steps(arguments[1].value)


@lru_cache(maxsize=256)
def _parse_steps(path: str) -> tuple[object, ...]:
    """The steps of a path: names, positions, or a mark for all items, the last item, or all fields."""
    rest = path.strip()
    rest = rest[1:] if rest.startswith("$") else f".{rest}" if rest and rest[0] not in ".[" else rest
    steps: list[object] = []
    position = 0
    while position < len(rest):
        match = _STEP.match(rest, position)
        if match is None:
            raise UnsupportedError(f"the JSON path {path!r}, from {rest[position:]!r} on, is not supported")
        kind, part = match.lastgroup, match[match.lastgroup or 0]
        if kind == "index" and len(part) > _MOST_DIGITS:
            raise UnsupportedError(f"the JSON path {path!r} has a position of {len(part)} digits, which no list has")
        marks = {"all": _ALL, "last": _LAST, "every": _EVERY}
        steps.append(marks.get(kind or "", int(part) if kind == "index" else part))
        position = match.end()
    return tuple(steps)


def _find_values(value: Any, path: str) -> list[Any]:
    """All values that a path leads to."""
    nodes = [value]
    for step in _parse_steps(path):
        nodes = [item for node in nodes for item in _find_below(node, step)]
    return nodes


def _find_below(node: Any, step: object) -> list[Any]:
    if isinstance(step, str):
        return [node[step]] if isinstance(node, dict) and step in node else []
    if step is _EVERY:
        return list(node.values()) if isinstance(node, dict) else []
    if not isinstance(node, list):
        return []
    if step is _ALL:
        return node
    index = len(node) - 1 if step is _LAST else step
    assert isinstance(index, int)
    return [node[index]] if 0 <= index < len(node) else []


def _parse_value(data: bytes | str) -> Any:
    return parsed(data) if isinstance(data, str) else decoded(data)


def _extract(data: bytes | str, path: str) -> str | None:
    values = _find_values(_parse_value(data), path)
    return None if not values else json_string(values[0] if len(values) == 1 else values)


def _find_single(data: bytes | str, path: str, function: str) -> list[Any]:
    """The value that a path leads to, which must be one at most."""
    if any(step in (_ALL, _EVERY) for step in _parse_steps(path)):
        raise UnsupportedError(f"{function} with the JSON path {path!r}, which names several places, is not supported")
    return _find_values(_parse_value(data), path)


def _contains(data: bytes | str, path: str, searched_item: str) -> bool:
    values = _find_single(data, path, "json_array_contains")
    if not values or not isinstance(values[0], list):
        return False
    return any(item == searched_item or json_string(item) == searched_item for item in values[0])


def _length(data: bytes | str, path: str) -> int | None:
    values = _find_single(data, path, "json_array_length")
    return (len(values[0]) if isinstance(values[0], list) else 0) if values else None


_MISSING: Final = object()


def _find_child(data: bytes | str, key: str) -> Any:
    """The field of an object, or the item of a list, by its key."""
    value = _parse_value(data)
    if isinstance(value, dict):
        return value.get(key, _MISSING)
    if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _get(data: bytes | str, key: str) -> bytes | None:
    child = _find_child(data, key)
    return None if child is _MISSING else encoded(child)


def _make_getter(what: str, convert: Callable[[Any], Any]) -> Callable[[bytes | str, str], Any]:
    def get(data: bytes | str, key: str) -> Any:
        child = _find_child(data, key)
        if child is _MISSING or child is None:
            return None
        try:
            return convert(child)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInputError(f"{key!r} is not a valid {what}: {json_string(child):.80}") from error

    return get


def _string(value: Any) -> str:
    if isinstance(value, dict | list):
        raise TypeError
    return value if isinstance(value, str) else json_string(value)


def _int(value: Any) -> int:
    if isinstance(value, float):
        return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value) is None:
        raise ValueError
    return int(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in ("true", "false"):
        raise TypeError
    return value.lower() == "true"


JSON_FUNCTIONS: Final[dict[str, tuple[pa.DataType, Callable[..., Any]]]] = {
    "json_extract": (pa.string(), _extract),
    "json_exists": (pa.bool_(), lambda data, path: bool(_find_values(_parse_value(data), path))),
    "json_get": (pa.large_binary(), _get),
    "json_get_string": (pa.string(), _make_getter("text", _string)),
    "json_get_int": (pa.int64(), _make_getter("integer", _int)),
    "json_get_float": (pa.float64(), _make_getter("number", float)),
    "json_get_bool": (pa.bool_(), _make_getter("truth value", _bool)),
    "json_array_contains": (pa.bool_(), _contains),
    "json_array_length": (pa.int64(), _length),
}
"""The type of the result of each, and what it gives for the values of one row, none of them null.

All take a value and a path or key, one a string as well.
"""
