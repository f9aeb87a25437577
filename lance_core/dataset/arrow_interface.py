"""Makes a handle a `pyarrow.dataset.Dataset`, so that engines such as DuckDB push columns and filters down to scans.

    pyarrow.dataset or duckdb imported already  ->  handles are of a subclass of LanceDataset and of Arrow's Dataset
    neither                                     ->  handles are plain; isinstance(handle, Dataset) holds by __class__

Arrow's module of datasets imports pandas, which takes half a second, so that it is not imported here. An engine that
checks for Arrow's class has imported the module itself, usually before a table is opened. A plain handle that DuckDB
sees later is read as a stream of all columns, with the same rows.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar, NoReturn

from lance_core.errors import UnsupportedError

__all__ = ["ArrowInterface"]

_ENGINES = ("pyarrow.dataset", "duckdb")
"""Modules that look for Arrow's class."""

_classes: dict[Any, Any] = {}
"""By class of handles, its subclass that also derives from Arrow's class."""


def _make_arrow_class(handle_class: Any) -> Any:
    """A subclass of a class of handles and of Arrow's datasets, under the name of the first."""
    if handle_class not in _classes:
        import pyarrow.dataset  # noqa: PLC0415 - it imports pandas

        names = {
            "plain_class": handle_class,
            "__module__": handle_class.__module__,
            "__doc__": handle_class.__doc__,
            "__qualname__": handle_class.__qualname__,
        }
        _classes[handle_class] = type(handle_class.__name__, (handle_class, pyarrow.dataset.Dataset), names)
    return _classes[handle_class]


class ArrowInterface:
    """What Arrow's datasets offer beyond pylance's methods; part of `LanceDataset`."""

    plain_class: ClassVar[type | None] = None
    """Of a class that derives from Arrow's class, the class of handles that does not; pickles name that class."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> Any:
        """Make a handle; its class also derives from Arrow's class if an engine may check for that."""
        has_engine = any(name in sys.modules for name in _ENGINES)
        arrow_class: Any = _make_arrow_class(cls) if has_engine and cls.plain_class is None else cls
        return super(ArrowInterface, arrow_class).__new__(arrow_class)

    @property  # type: ignore[misc]  # it is only read
    def __class__(self) -> Any:
        """The class of the handle: a subclass of Arrow's `Dataset` as soon as `pyarrow.dataset` is imported."""
        handle_class: Any = type(self)
        shown = handle_class.plain_class is None and "pyarrow.dataset" in sys.modules
        return _make_arrow_class(handle_class) if shown else handle_class

    @property
    def partition_expression(self) -> NoReturn:
        """The expression that all rows meet, as Arrow has it for partitions: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        raise _not_offered("partition_expression", "a Lance table is not partitioned by folders")

    def filter(self, expression: Any) -> NoReturn:
        """A view of the rows that meet an Arrow expression: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del expression
        raise _not_offered("filter", "use scanner(filter=...), or to_arrow_dataset().filter(...)")

    def replace_schema(self, schema: Any) -> NoReturn:
        """A view with another schema: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del schema
        raise _not_offered("replace_schema", "use alter_columns, or replace_schema_metadata")

    def sort_by(self, sorting: Any, **options: Any) -> NoReturn:
        """The sorted rows: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del sorting, options
        raise _not_offered("sort_by", "use scanner(order_by=...)")

    def join(self, right_dataset: Any, keys: Any, **options: Any) -> NoReturn:
        """The rows joined to those of another dataset by keys: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, keys, options
        raise _not_offered("join", "use to_table().join(...), or DuckDB over the dataset")

    def join_asof(self, right_dataset: Any, on: Any, by: Any, tolerance: Any, **options: Any) -> NoReturn:
        """The rows joined to the nearest rows of another dataset: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, on, by, tolerance, options
        raise _not_offered("join_asof", "use to_table().join_asof(...), or DuckDB over the dataset")


def _not_offered(name: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"LanceDataset.{name} is not offered: {remedy}")
