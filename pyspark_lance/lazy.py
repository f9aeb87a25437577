"""Names that are loaded on first use.

Of Spark: its modules, and its classes for annotations. Of `pyspark_lance` and `lance_dagster`: their public names.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Column",
    "DataFrame",
    "DataFrameReader",
    "DataType",
    "Row",
    "SparkSession",
    "StructField",
    "StructType",
    "functions",
    "load_name",
    "types",
]

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Row, SparkSession, functions, types
    from pyspark.sql.types import DataType, StructField, StructType
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    functions = _LazyModule("pyspark.sql.functions")
    types = _LazyModule("pyspark.sql.types")
    Column = DataFrame = DataFrameReader = Row = SparkSession = DataType = StructField = StructType = Any


def load_name(package: str, name: str, homes: Mapping[str, str], library: str, needed: str) -> Any:
    """Load a public name of a package, which then holds it.

    Args:
        package: The package.
        name: The name.
        homes: The module that defines each name; with a dot before it, below the package.
        library: The library without which the modules do not load.
        needed: The library's name and how to get it, for the message.

    Raises:
        AttributeError: The package has no such name.
        ModuleNotFoundError: The library is not installed.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(homes[name], package), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise ModuleNotFoundError(f"{package}.{name} needs {needed}", name=error.name) from None
    setattr(sys.modules[package], name, value)
    return value
