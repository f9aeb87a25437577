"""Checks the arguments of public functions against their annotations, so that a wrong type raises one clear error.

Annotations other than types (Any, protocols, type variables) are not checked.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import numbers
import operator
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from lance_core.errors import ArgumentTypeError, UnsupportedError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)
_Check = Callable[[object], bool]
_Item = tuple[_Check, str]

_NAMES: Final = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bytes: "bytes",
    bool: "True or False",
    type(None): "None",
    PathLike: "a path",
}
_NAMES_OF_CLASSES: Final = {"Expression": "a pyarrow expression"}
"""Words for classes whose modules are imported late."""
_HINTS: Final[dict[str, object]] = {
    "transaction_properties": Mapping[str, str] | None,  # protobuf's own error is unclear
    "storage_options": Mapping[str, Any] | None,  # `store.options` names the key, and takes numbers as well
}
"""The types of arguments that are checked in the same way whatever their annotations."""
_LOOKED_AT: Final = 1000
"""Number of items of a list whose types are checked."""
_PLAIN: Final = frozenset({int, float, str, bool})


def checked(function: Callable[_P, _R], where: str | None = None) -> Callable[_P, _R]:
    """Wrap a function, so that each call checks the types of its arguments first.

    Args:
        function: The function; the object of a method is not checked.
        where: The name of the function in errors; None for its own name.

    Raises:
        ArgumentTypeError: A call has an argument whose type its annotation does not allow.
    """
    name = where or function.__name__
    guard = _FunctionChecks(function, name)

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        guard(args, kwargs)
        return function(*args, **kwargs)

    return guarded


def checked_methods(cls: _Class) -> _Class:
    """Wrap all public methods of a class, inherited ones included, with checks of their arguments."""
    for name in dir(cls):
        if name.startswith("_") and name != "__init__":
            continue
        raw = inspect.getattr_static(cls, name)
        function = raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw
        if not isinstance(function, types.FunctionType) or not function.__module__.startswith("lance_core"):
            continue
        called = cls.__name__ if name == "__init__" else name
        wrapped: Any = checked(function, called)
        setattr(cls, name, type(raw)(wrapped) if isinstance(raw, staticmethod | classmethod) else wrapped)
    return cls


class _ArgumentCheck(NamedTuple):
    """How one argument is checked: its check, the expected type in words, and types whose values always pass.

    If a mapping is allowed, `items` says which keys and values it may have.
    """

    check: _Check
    words: str
    kinds: frozenset[type]
    items: tuple[_Item | None, _Item | None] | None = None


class _FunctionChecks:
    """Checks the arguments of one function; annotations are evaluated at the first call."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._order: list[str] | None = None
        self._checks: dict[str, _ArgumentCheck] = {}

    def __call__(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if self._order is None:
            self._learn()
        assert self._order is not None
        checks = self._checks
        for argument, value in zip(self._order, args, strict=False):
            rule = checks.get(argument)
            if rule is not None and type(value) not in rule.kinds and not rule.check(value):
                self._reject(argument, value, rule)
        for argument, value in kwargs.items():
            rule = checks.get(argument)
            if rule is not None and type(value) not in rule.kinds and not rule.check(value):
                self._reject(argument, value, rule)

    def _reject(self, argument: str, value: object, rule: _ArgumentCheck) -> NoReturn:
        what, words = argument, rule.words
        if isinstance(value, Mapping) and rule.items is not None:
            wrong = _wrong_item(value, *rule.items)
            if wrong is not None:
                what, words, value = f"{argument}: {wrong[0]}", wrong[1], wrong[2]
        # Storage options can be secret, whatever their type.
        shown = f"a {type(value).__name__}" if argument.endswith("_options") else f"{value!r:.80}"
        raise ArgumentTypeError(f"{self._name}: {what} must be {words}, not {shown}")

    def _learn(self) -> None:
        signature = inspect.signature(self._function)
        space = vars(sys.modules[self._function.__module__])
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue
            hint = _evaluate(parameter.annotation, space)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._learn_options(hint)
                continue
            hint = _HINTS.get(parameter.name, hint)
            pair = _check_of(hint)
            if hint is bool and parameter.default is False:
                pair = _allow_none(_NUMBERS[bool]), _NAMES[bool]  # None counts as False
            if pair is not None:
                default = parameter.default
                # A default is always accepted, whatever its type.
                exact = _exact_types(hint) | ({type(None)} if default is None else set())
                check = pair[0] if default is not None else _allow_none(pair[0])
                self._checks[parameter.name] = _ArgumentCheck(check, pair[1], frozenset(exact), _items_of(hint))
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._order = [parameter.name for parameter in signature.parameters.values() if parameter.kind in kinds]

    def _learn_options(self, hint: object) -> None:
        """The options of `**options: Unpack[SomeArguments]`."""
        for options in get_args(hint):
            for name, option_hint in get_type_hints(options).items():
                pair = _check_of(option_hint)
                if pair is not None:
                    self._checks[name] = _ArgumentCheck(
                        *pair, frozenset(_exact_types(option_hint)), _items_of(option_hint)
                    )


def _evaluate(annotation: object, space: dict[str, Any]) -> object:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, space)  # noqa: S307 - an annotation of this library
    except (NameError, AttributeError, TypeError):
        return Any  # a name that is imported for type checkers alone


def _allow_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _check_of(hint: object) -> _Item | None:
    """The check of an annotation and its expected type in words; None for an annotation without a check."""
    origin = get_origin(hint)
    if origin is Annotated:  # with words of its own
        pair = _check_of(get_args(hint)[0])
        return None if pair is None else (pair[0], get_args(hint)[1])
    if origin in (Union, types.UnionType):
        parts = [_check_of(part) for part in get_args(hint)]
        if any(part is None for part in parts):
            return None
        checked_parts = [part for part in parts if part is not None]
        checks = [part[0] for part in checked_parts]
        return lambda value: any(check(value) for check in checks), " or ".join(
            dict.fromkeys(p[1] for p in checked_parts)
        )
    if origin is not None:
        return _check_of_generic(origin, get_args(hint))
    if hint is None or hint is type(None):
        return lambda value: value is None, "None"
    if hint in (int, float, bool):
        return _NUMBERS[hint], _NAMES[hint]
    if is_typeddict(hint):
        return lambda value: isinstance(value, Mapping), "a mapping"
    if (
        isinstance(hint, type)
        and not getattr(hint, "_is_protocol", False)
        and hint not in (Any, object, inspect.Parameter.empty)
    ):
        kind = hint
        name = hint.__name__
        words = _NAMES.get(hint) or _NAMES_OF_CLASSES.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
        return lambda value: _is_of(value, kind), words
    return None


def _exact_types(hint: object) -> set[type]:
    """Types whose values an annotation accepts without a further check; they decide most calls."""
    if get_origin(hint) is Annotated:
        return _exact_types(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return set().union(*map(_exact_types, get_args(hint)))
    if hint is None:
        return {type(None)}
    if hint in (int, float, bool):
        return {int, bool} if hint is not float else {int, bool, float}
    return {hint} if isinstance(hint, type) and get_origin(hint) is None else set()


def _is_of(value: object, kind: type) -> bool:
    """Whether a value is an instance of a class, or of pylance's class of that name."""
    return isinstance(value, kind) or kind.__name__ in (base.__name__ for base in type(value).__mro__)


def _check_of_generic(origin: object, arguments: tuple[object, ...]) -> _Item | None:
    if origin is PathLike:
        return lambda value: isinstance(value, PathLike), "a path"
    if origin in (Sequence, Collection, Iterable, list):
        item = _check_of(arguments[0]) if arguments else None
        words = f"a list (each item {item[1]})" if item is not None else "a list"
        return lambda value: _is_list(value, item[0] if item is not None else None), words
    if origin is tuple and Ellipsis not in arguments:
        items = [_check_of(argument) for argument in arguments]
        words = f"{len(items)} values: {', '.join(item[1] if item is not None else 'any' for item in items)}"
        return lambda value: _is_tuple(value, [item[0] if item is not None else None for item in items]), words
    if origin in (Mapping, dict):
        pair = (_check_of(arguments[0]), _check_of(arguments[1])) if arguments else (None, None)
        return lambda value: isinstance(value, Mapping) and _wrong_item(value, *pair) is None, "a mapping"
    return (callable, "a function") if origin is Callable else None


def _is_list(value: object, check: _Check | None) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    if check is None or not (isinstance(value, list | tuple) or type(value).__module__.startswith("pyarrow")):
        return True
    looked = list(itertools.islice(value, _LOOKED_AT))
    kinds = set(map(type, looked))
    # The first number or string stands for all items.
    return all(map(check, looked[:1] if len(kinds) == 1 and kinds <= _PLAIN else looked))


def _is_tuple(value: object, checks: Sequence[_Check | None]) -> bool:
    if not isinstance(value, tuple | list) or len(value) != len(checks):
        return False
    return all(check is None or check(item) for check, item in zip(checks, value, strict=True))


def _items_of(hint: object) -> tuple[_Item | None, _Item | None] | None:
    """The checks of the keys and the values of the mapping that an annotation allows; None if it allows none."""
    arguments = get_args(hint)
    if get_origin(hint) in (Mapping, dict) and arguments:
        return _check_of(arguments[0]), _check_of(arguments[1])
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        return next(filter(None, map(_items_of, arguments)), None)
    return None


def _wrong_item(value: Mapping[Any, object], key: _Item | None, item: _Item | None) -> tuple[str, str, object] | None:
    """The first key or value of a mapping with a wrong type: its name, the expected type in words, and the value."""
    for name, element in itertools.islice(value.items(), _LOOKED_AT):
        if key is not None and not key[0](name):
            return "a key", key[1], name
        if item is not None and not item[0](element):
            return f"the value of {name!r}", item[1], element
    return None


def _is_whole(value: object) -> bool:
    if type(value) is int:
        return True
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # also raised for numpy's times, which are integers otherwise
        return False
    return True


_NUMBERS: Final[dict[object, _Check]] = {
    int: _is_whole,
    float: lambda value: isinstance(value, numbers.Real) or hasattr(value, "__float__"),
    bool: lambda value: isinstance(value, numbers.Integral) or type(value).__name__ in ("bool_", "bool"),
}


def reject(verb: str, arguments: Mapping[str, object]) -> None:
    """Reject arguments of pylance that are not offered; None means the default and passes.

    Raises:
        UnsupportedError: An argument has a value.
    """
    names = sorted(name for name, value in arguments.items() if value is not None)
    if names:
        raise UnsupportedError(f"{verb}: not offered: {', '.join(names)}")
