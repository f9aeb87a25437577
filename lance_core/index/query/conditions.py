"""Parses filters from Arrow expressions into trees of conditions, with the tests that an index may answer.

Arrow serializes an expression as the metadata of an IPC file: a list of `call`, `literal`, `field_ref`, `options` and
`end` entries, where literals and options are numbers of columns of its only batch; `nested_field_ref: n` stands before
the n parts of a path. Unsupported parts become `UnknownCondition`, for which every row counts as a match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.extension_types import exported_metadata

Path: TypeAlias = tuple[str | int, ...]
"""Names from a column down to a nested field; a number is the position of a child in its struct."""


@dataclass(frozen=True, slots=True)
class Compare:
    """`path operator value`; the operator is one of Arrow's: equal, not_equal, less, less_equal, greater, ..."""

    path: Path
    operator: str
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class IsIn:
    """`path IN (values)`; false or null for null values."""

    path: Path
    values: pa.Array


@dataclass(frozen=True, slots=True)
class IsNull:
    """`path IS NULL`."""

    path: Path


@dataclass(frozen=True, slots=True)
class IsNan:
    """`isnan(path)`."""

    path: Path


@dataclass(frozen=True, slots=True)
class StartsWith:
    """Whether a string begins with a prefix."""

    path: Path
    prefix: str


@dataclass(frozen=True, slots=True)
class Contains:
    """Whether a list contains values: any of them, or all."""

    path: Path
    values: pa.Array
    needs_all: bool


@dataclass(frozen=True, slots=True)
class Constant:
    """A boolean; None is null."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class UnknownCondition:
    """A part of a filter that no index can answer: every row counts as a match."""


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT part`; null where the part is null."""

    part: Condition


@dataclass(frozen=True, slots=True)
class All:
    """All parts hold, by the three-valued AND of SQL."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds, by the three-valued OR of SQL."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class CaseWhen:
    """CASE WHEN: `then` where `test` is true, `otherwise` where it is false, null where it is null."""

    test: Condition
    then: Condition
    otherwise: Condition


Test: TypeAlias = Compare | IsIn | IsNull | IsNan | StartsWith | Contains
"""A test that an index may answer: it is about one field."""

Condition: TypeAlias = Test | Constant | UnknownCondition | Not | All | AnyOf | CaseWhen

_MATCH: Final = 0
"""Arrow's `null_matching_behavior` by which a null in the set matches nulls."""
_SMALL: Final = 4096
"""Size in bytes up to which the tree of an expression is cached."""

_MOST_LEVELS: Final = 100
"""Most levels of a tree, because functions on trees are recursive."""

_MIRRORED: Final = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_CHAINS: Final[dict[str, type[All | AnyOf]]] = {"and": All, "or": AnyOf}
_LISTS: Final = re.compile(r"lance\.(array_has|array_has_any|array_has_all)\.")
_CHILD: Final = re.compile(r"\[(\d+)\]|FieldPath\((\d+)\)")


@dataclass(frozen=True, slots=True)
class _FieldPath:
    path: Path


@dataclass(frozen=True, slots=True)
class _Value:
    value: pa.Scalar


_Node: TypeAlias = "Condition | _FieldPath | _Value"


def parse_condition(expression: pc.Expression) -> Condition:
    """The tree of an expression."""
    _, (buffer,) = expression.__reduce__()
    return _parse_cached(buffer.to_pybytes()) if buffer.size <= _SMALL else _parse(buffer)


@lru_cache(maxsize=256)
def _parse_cached(data: bytes) -> Condition:
    return _parse(pa.py_buffer(data))


def _parse(buffer: pa.Buffer) -> Condition:
    reader = pa.ipc.open_file(buffer)
    batch = reader.get_batch(0) if reader.num_record_batches else None
    return _to_condition(_build_tree(list(exported_metadata(reader.schema)), batch))


def list_tests(condition: Condition) -> Iterator[Test]:
    """All tests in a tree."""
    if isinstance(condition, Not):
        yield from list_tests(condition.part)
    elif isinstance(condition, All | AnyOf):
        for part in condition.parts:
            yield from list_tests(part)
    elif isinstance(condition, CaseWhen):
        for part in (condition.test, condition.then, condition.otherwise):
            yield from list_tests(part)
    elif not isinstance(condition, Constant | UnknownCondition):
        yield condition


@dataclass(slots=True)
class _Frame:
    """A call whose arguments are being read.

    Attributes:
        name: The function.
        arguments: The arguments read so far.
        options: The options.
        levels: The number of levels below.
    """

    name: str
    arguments: list[_Node]
    options: dict[str, Any]
    levels: int = 0


def _build_tree(entries: Sequence[tuple[bytes, bytes]], batch: Any) -> _Node:
    """The node that entries describe; parts that are nested too deep become `UnknownCondition`."""
    frames = [_Frame("", [], {})]
    parts = iter(entries)
    for kind, value in parts:
        top = frames[-1]
        if kind == b"call":
            frames.append(_Frame(value.decode(), [], {}))
        elif kind == b"end":
            done = frames.pop()
            node = _convert_call(done.name, done.arguments, done.options)
            levels = done.levels + 1
            # A chain of AND or of OR is one node.
            if isinstance(node, All | AnyOf) and any(type(argument) is type(node) for argument in done.arguments):
                levels -= 1
            frames[-1].levels = max(frames[-1].levels, levels if levels <= _MOST_LEVELS else 0)
            frames[-1].arguments.append(node if levels <= _MOST_LEVELS else UnknownCondition())
        elif kind == b"options":
            top.options = _read_options(batch.column(int(value))[0])
        elif kind == b"nested_field_ref":
            top.arguments.append(_FieldPath(tuple(next(parts)[1].decode() for _ in range(int(value)))))
        elif kind == b"field_ref":
            top.arguments.append(_FieldPath((value.decode(),)))
        else:
            top.arguments.append(_Value(batch.column(int(value))[0]) if kind == b"literal" else UnknownCondition())
    return frames[0].arguments[0]


def _flatten(kind: type[All | AnyOf], arguments: Sequence[_Node]) -> tuple[Condition, ...]:
    """The operands of AND or OR; nested nodes of the same kind are flattened."""
    operands: list[Condition] = []
    for part in map(_to_condition, arguments):
        operands += part.parts if isinstance(part, All | AnyOf) and isinstance(part, kind) else (part,)
    return tuple(operands)


def _combine_strictly(kind: type[All | AnyOf], arguments: Sequence[_Node]) -> Condition:
    """AND or OR without Kleene logic: null wherever an argument is null."""
    sides = [_to_condition(argument) for argument in arguments]
    if Constant(None) in sides:
        return Constant(None)
    plain, nulls = kind(_flatten(kind, arguments)), [_find_null_paths(side) for side in sides]
    null_paths = [paths for paths in nulls if paths is not None]
    if len(null_paths) < len(nulls):
        return CaseWhen(UnknownCondition(), plain, Constant(None))
    if all(paths == null_paths[0] for paths in null_paths):
        return plain  # all arguments are null in the same rows
    return CaseWhen(
        All(tuple(Not(IsNull(path)) for path in sorted(frozenset().union(*null_paths), key=str))), plain, Constant(None)
    )


def _find_null_paths(condition: Condition) -> frozenset[Path] | None:
    """The fields whose nulls are exactly the nulls of the condition; None if they are not known."""
    if isinstance(condition, Compare | IsNan | StartsWith):
        return frozenset([condition.path])
    if isinstance(condition, Not):
        return _find_null_paths(condition.part)
    if isinstance(condition, All | AnyOf):
        null_paths = {_find_null_paths(part) for part in condition.parts}
        return null_paths.pop() if len(null_paths) == 1 else None
    return frozenset() if isinstance(condition, IsNull) else None


def _read_options(value: Any) -> dict[str, Any]:
    """The options of a call, as scalars; empty unless they are a struct."""
    return {name: value[name] for name in value.type.names} if pa.types.is_struct(value.type) else {}


def _convert_call(name: str, arguments: Sequence[_Node], options: dict[str, Any]) -> _Node:
    if name in ("and_kleene", "or_kleene"):
        kind = _CHAINS[name.removesuffix("_kleene")]
        return kind(_flatten(kind, arguments))
    if name in _CHAINS:
        return _combine_strictly(_CHAINS[name], arguments)
    if name == "invert":
        return Not(_to_condition(arguments[0]))
    if name == "if_else":
        return CaseWhen(*map(_to_condition, arguments))
    if name in _MIRRORED and len(arguments) == 2:
        return _compare(name, *arguments)
    first = arguments[0] if arguments else None
    if not isinstance(first, _FieldPath):
        return UnknownCondition()
    if _LISTS.match(name):
        return _test_list(name, first, arguments[1:])
    return _test_field(name, first, options)


def _test_field(name: str, field: _FieldPath, options: dict[str, Any]) -> _Node:
    """The condition or field path for a call with one field and options; `UnknownCondition` for other calls."""
    path = field.path
    if name == "struct_field":
        child = _CHILD.search(str(options.get("field_ref", "")))
        return _FieldPath((*path, int(child[1] or child[2]))) if child else UnknownCondition()
    if name == "is_null":
        test = IsNull(path)
        is_nan_null = "nan_is_null" not in options or options["nan_is_null"].as_py()
        return AnyOf((test, IsNan(path))) if is_nan_null else test
    if name == "is_valid":
        return Not(IsNull(path))
    if name == "is_nan":
        return IsNan(path)
    if name == "is_in" and "value_set" in options:
        values = options["value_set"].values
        is_in = IsIn(path, values.drop_null())
        matches_null = values.null_count and options["null_matching_behavior"].as_py() == _MATCH
        return AnyOf((is_in, IsNull(path))) if matches_null else is_in
    if name in ("starts_with", "match_like") and not options["ignore_case"].as_py():
        return _test_prefix(name, path, options["pattern"].as_py())
    return UnknownCondition()


def _test_prefix(name: str, path: Path, pattern: str) -> _Node:
    """A test of the prefix that a pattern requires, combined with an unknown condition if the pattern requires more."""
    if name == "starts_with":
        return StartsWith(path, pattern)
    prefix = re.split(r"[%_\\]", pattern, maxsplit=1)[0]
    if not prefix:
        return UnknownCondition()
    test = StartsWith(path, prefix)
    return test if pattern == f"{prefix}%" else All((test, UnknownCondition()))


def _compare(operator: str, left: _Node, right: _Node) -> Condition:
    if isinstance(left, _Value) and isinstance(right, _FieldPath):
        operator, left, right = _MIRRORED[operator], right, left
    if isinstance(left, _FieldPath) and isinstance(right, _Value):
        return Compare(left.path, operator, right.value) if right.value.is_valid else Constant(None)
    return UnknownCondition()


def _test_list(name: str, field: _FieldPath, arguments: Sequence[_Node]) -> Condition:
    """array_has(list, value), array_has_any(list, values) and array_has_all."""
    argument = arguments[0] if arguments else None
    if not isinstance(argument, _Value) or not argument.value.is_valid:
        return UnknownCondition()
    value = argument.value
    is_one = name.startswith("lance.array_has.")
    values = pa.array([value.as_py()], value.type) if is_one else getattr(value, "values", None)
    if values is None or values.null_count or not len(values):
        return UnknownCondition()
    return Contains(field.path, values, is_one or name.startswith("lance.array_has_all."))


def _to_condition(node: _Node) -> Condition:
    """A node as a condition: a boolean column is compared with true."""
    if isinstance(node, _FieldPath):
        return Compare(node.path, "equal", pa.scalar(True))
    if isinstance(node, _Value):
        return Constant(node.value.as_py()) if pa.types.is_boolean(node.value.type) else UnknownCondition()
    return node
