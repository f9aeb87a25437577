"""What reads and writes each kind of value, found without importing any of their packages.

A handler is picked by the names in a class's method resolution order, and its module is imported only then. One line
per kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import dagster as dg

from lance_dagster.handlers.base import LanceTypeHandler

__all__ = ["LanceTypeHandler", "handler_for_load", "handler_for_value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    package: str
    types: frozenset[str]
    handler: str


HANDLERS: Mapping[str, _Entry] = MappingProxyType(
    {
        "spark": _Entry(package="pyspark", types=frozenset({"DataFrame"}), handler="spark:SparkHandler"),
        "pyarrow": _Entry(
            package="pyarrow",
            types=frozenset({"Table", "RecordBatch", "RecordBatchReader"}),
            handler="pyarrow:PyArrowHandler",
        ),
        "pandas": _Entry(package="pandas", types=frozenset({"DataFrame"}), handler="pandas:PandasHandler"),
        "polars": _Entry(package="polars", types=frozenset({"DataFrame", "LazyFrame"}), handler="polars:PolarsHandler"),
    }
)


def handler_for_value(value: object, *, where: str) -> LanceTypeHandler:
    """The handler that writes a value.

    Raises:
        DagsterInvariantViolationError: none does.
    """
    name = _kind(type(value))
    if name is not None:
        return _load(name)
    advice = "annotate it `-> None` if it stores its data itself" if value is None else f"it can store {_offered()}"
    raise dg.DagsterInvariantViolationError(
        f"{where} returned a value of type {_type_name(type(value))}, which LanceIOManager cannot store; {advice}"
    )


def handler_for_load(annotation: object, default: str, *, where: str) -> tuple[LanceTypeHandler, type | None]:
    """The handler that loads an input, and the class that it is to return (None: the handler's usual one).

    Args:
        annotation: The input's type; anything that is not a class counts as none.
        default: Name of the handler for an input without a type.
        where: The input, for messages.

    Raises:
        DagsterInvariantViolationError: none loads this type.
    """
    if not isinstance(annotation, type) or annotation in (object, Any):
        return _load(default), None
    name = _kind(annotation)
    if name is not None:
        return _load(name), annotation
    raise dg.DagsterInvariantViolationError(
        f"{where} is of type {_type_name(annotation)}, which LanceIOManager cannot load; it can load {_offered()}"
    )


def _kind(cls: type) -> str | None:
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        for name, entry in HANDLERS.items():
            if package == entry.package and base.__name__ in entry.types:
                return name
    return None


def _load(name: str) -> LanceTypeHandler:
    module, _, cls = HANDLERS[name].handler.partition(":")
    handler = getattr(importlib.import_module(f"{__name__}.{module}"), cls)()
    assert isinstance(handler, LanceTypeHandler)
    return handler


def _offered() -> str:
    return ", ".join(f"{entry.package} {'/'.join(sorted(entry.types))}" for entry in HANDLERS.values())


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
