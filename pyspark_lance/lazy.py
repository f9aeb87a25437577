"""Names of Spark, without loading it: its classes, for annotations alone, and modules that are loaded on first use."""

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
