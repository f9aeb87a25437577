"""A handle as a `pyarrow.dataset.Dataset`, whose scans take the columns and the filter of the engine that reads.

    pyarrow.dataset or duckdb imported already  ->  handles are of a subclass of LanceDataset and of Arrow's Dataset
    neither                                     ->  handles are plain; isinstance(handle, Dataset) holds by __class__

The module of Arrow's datasets imports pandas, half a second that most processes need not spend: whoever looks for
Arrow's class has imported it, as a rule before opening a table. A plain handle that DuckDB meets later is read as a
stream of all columns, with the same rows.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar, NoReturn

from lance_core.errors import UnsupportedError

__all__ = ["ArrowInterface"]

_ENGINES = ("pyarrow.dataset", "duckdb")
"""Modules that look for Arrow's class."""

_classes: dict[Any, Any] = {}
"""The subclass of a class of handles."""


def _arrow_class(own: Any) -> Any:
    """A subclass of a class of handles and of Arrow's datasets, under the name of the first."""
    if own not in _classes:
        import pyarrow.dataset  # noqa: PLC0415 - it imports pandas

        names = {
            "plain_class": own,
            "__module__": own.__module__,
            "__doc__": own.__doc__,
            "__qualname__": own.__qualname__,
        }
        _classes[own] = type(own.__name__, (own, pyarrow.dataset.Dataset), names)
    return _classes[own]


class ArrowInterface:
    """What Arrow's datasets offer beyond pylance's methods; part of `LanceDataset`."""

    plain_class: ClassVar[type | None] = None
    """The class without Arrow's, of one that has it; pickles name this one."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> Any:
        """Make an object of the class, and of Arrow's where an engine may look for it."""
        wanted = any(name in sys.modules for name in _ENGINES)
        made: Any = _arrow_class(cls) if wanted and cls.plain_class is None else cls
        return super(ArrowInterface, made).__new__(made)

    @property  # type: ignore[misc]  # it is only read
    def __class__(self) -> Any:
        """The class of the handle, which is one of Arrow's datasets as soon as those are imported."""
        own: Any = type(self)
        shown = own.plain_class is None and "pyarrow.dataset" in sys.modules
        return _arrow_class(own) if shown else own

    @property
    def partition_expression(self) -> NoReturn:
        """Not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        raise _not_offered("partition_expression", "a Lance table is not partitioned by folders")

    def filter(self, expression: Any) -> NoReturn:
        """Not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del expression
        raise _not_offered("filter", "use scanner(filter=...), or to_arrow_dataset().filter(...)")

    def replace_schema(self, schema: Any) -> NoReturn:
        """Not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del schema
        raise _not_offered("replace_schema", "use alter_columns, or replace_schema_metadata")

    def sort_by(self, sorting: Any, **options: Any) -> NoReturn:
        """Not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del sorting, options
        raise _not_offered("sort_by", "use scanner(order_by=...)")

    def join(self, right_dataset: Any, keys: Any, **options: Any) -> NoReturn:
        """Not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, keys, options
        raise _not_offered("join", "use to_table().join(...), or DuckDB over the dataset")

    def join_asof(self, right_dataset: Any, on: Any, by: Any, tolerance: Any, **options: Any) -> NoReturn:
        """Not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, on, by, tolerance, options
        raise _not_offered("join_asof", "use to_table().join_asof(...), or DuckDB over the dataset")


def _not_offered(name: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"LanceDataset.{name} is not offered: {remedy}")
