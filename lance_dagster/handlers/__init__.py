"""The handlers that read and write each kind of value, found without importing the values' packages.

A handler is picked by the names in a class's method resolution order, and its module is imported only then. `HANDLERS`
has an entry for each kind of value.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import dagster as dg

from lance_dagster.handlers.base import LanceTypeHandler

if TYPE_CHECKING:
    from lance_dagster.tables.settings import TableSettings

__all__ = ["LanceTypeHandler", "Loading", "default_load_type", "find_handler_for_load", "find_handler_for_value"]


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
        "dataset": _Entry(package="pyarrow", types=frozenset({"Dataset"}), handler="pyarrow:DatasetHandler"),
        "pandas": _Entry(package="pandas", types=frozenset({"DataFrame"}), handler="pandas:PandasHandler"),
        "polars": _Entry(package="polars", types=frozenset({"DataFrame", "LazyFrame"}), handler="polars:PolarsHandler"),
        "duckdb": _Entry(package="duckdb", types=frozenset({"DuckDBPyRelation"}), handler="pyarrow:DuckDBHandler"),
        "lance_core": _Entry(
            package="lance_core", types=frozenset({"LanceDataset"}), handler="lance:LanceDatasetHandler"
        ),
        "computed": _Entry(
            package="lance_dagster", types=frozenset({"RowsToCompute"}), handler="computed:ComputedHandler"
        ),
        "lance": _Entry(package="lance", types=frozenset({"LanceDataset"}), handler="lance:LanceDatasetHandler"),
    }
)


def find_handler_for_value(
    value: object, *, label: str, type_handlers: Sequence[LanceTypeHandler] = ()
) -> LanceTypeHandler:
    """The handler that writes a value.

    Args:
        value: The output of the asset.
        label: The asset, for messages.
        type_handlers: The handlers that the IO manager adds, which are tried first.

    Raises:
        DagsterInvariantViolationError: No handler writes values of this type.
    """
    handler = _find_handler(type(value), type_handlers)
    if handler is not None:
        return handler
    advice = f"it can store {_offered(type_handlers)}"
    if value is None:
        advice = "annotate the asset `-> None` if its body stores the data, or return a frame without rows"
    raise dg.DagsterInvariantViolationError(
        f"{label} returned a value of type {_type_name(type(value))}, which LanceIOManager cannot store; {advice}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How an input is loaded.

    Attributes:
        handler: The handler that loads the input.
        load_as: The class of the loaded value; None for the handler's default.
        by_partition: Whether the input is a mapping from partition keys to such values.
        as_list: Whether the input is a list of such values, one per partition or per output.
        optional: Whether the input may be None.
    """

    handler: LanceTypeHandler
    load_as: type | None
    by_partition: bool = False
    as_list: bool = False
    optional: bool = False


def find_handler_for_load(
    annotation: object, default: str, *, label: str, type_handlers: Sequence[LanceTypeHandler] = ()
) -> Loading:
    """How an input with a type annotation is loaded.

    Args:
        annotation: The input's type: a class, `Optional` of one, or `dict[str, ...]` or `list[...]` for several values.
        default: The name of the handler for an input without a type annotation.
        label: The input, for messages.
        type_handlers: The handlers that the IO manager adds, which are tried first.

    Raises:
        DagsterInvariantViolationError: No handler loads values of this type.
    """
    requested_type = _unwrap_annotation(annotation)
    choices = {
        "by_partition": requested_type.by_partition,
        "as_list": requested_type.as_list,
        "optional": requested_type.optional,
    }
    if requested_type.inner in (None, object, Any):
        return Loading(handler=_load(default), load_as=None, **choices)
    if isinstance(requested_type.inner, type):
        handler = _find_handler(requested_type.inner, type_handlers)
        if handler is not None:
            return Loading(handler=handler, load_as=requested_type.inner, **choices)
    name = _type_name(annotation) if isinstance(annotation, type) else str(annotation)
    raise dg.DagsterInvariantViolationError(
        f"{label} is of type {name}, which LanceIOManager cannot load; it can load {_offered(type_handlers)}, "
        "Optional of these, and dict[str, ...] or list[...] of these for one value per partition"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WantedType:
    """The type of one value, and how the annotation wraps it."""

    inner: object
    by_partition: bool = False
    as_list: bool = False
    optional: bool = False


def _unwrap_annotation(annotation: object) -> _WantedType:
    """The type within `Optional`, and within `dict[str, ...]` or `list[...]`, which hold several values."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        members = [member for member in inside if member is not NoneType]
        if len(members) == 1:
            return replace(_unwrap_annotation(members[0]), optional=True)
    if origin is Annotated:
        return _unwrap_annotation(inside[0])
    if (origin in (dict, Mapping) and inside[0] is str) or (origin in (list, Sequence) and inside):
        inner_type = _unwrap_annotation(inside[-1])
        if not (inner_type.by_partition or inner_type.as_list):
            is_list = origin in (list, Sequence)
            return _WantedType(inner=inner_type.inner, by_partition=not is_list, as_list=is_list)
    return _WantedType(inner=annotation)


def default_load_type(table: TableSettings) -> str:
    """The name of the handler for inputs without a type annotation: the configured one, else by what is installed.

    Spark is chosen if the IO manager has a `spark` resource, or if a session is active; no session is started.
    """
    if table.default_load_type != "auto":
        return table.default_load_type
    if table.spark is not None or _has_session():
        return "spark"
    return next(name for name in ("pandas", "polars", "pyarrow") if importlib.util.find_spec(name) is not None)


def _has_session() -> bool:
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


def _find_handler(cls: type, type_handlers: Sequence[LanceTypeHandler]) -> LanceTypeHandler | None:
    for handler in type_handlers:
        if issubclass(cls, tuple(handler.supported_types)):
            return handler
    name = _kind(cls)
    return None if name is None else _load(name)


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


def _offered(type_handlers: Sequence[LanceTypeHandler]) -> str:
    named = [_type_name(cls) for handler in type_handlers for cls in handler.supported_types]
    return ", ".join([*named, *(f"{entry.package} {'/'.join(sorted(entry.types))}" for entry in HANDLERS.values())])


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
