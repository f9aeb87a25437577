"""The values of options of Spark writes; importing this module loads neither pyspark nor Arrow."""

from __future__ import annotations

from typing import Literal

Mode = Literal["append", "overwrite", "create", "error", "replace"]
SaveMode = Literal["append", "overwrite", "create", "error", "errorifexists", "ignore", "replace"]
"""The modes of a write, with Spark's other name for "error", and "ignore", which writes nothing if the table exists."""
SchemaMode = Literal["strict", "add_columns", "overwrite"]
"""Which differences between the columns of the data and those of the table are allowed."""
OutOfPartition = Literal["error", "allow"]
"""What happens to rows that lie in none of the slices."""
EmptyOutput = Literal["write", "skip", "error"]
"""What happens to a write without rows."""
PartitionOverwrite = Literal["static", "dynamic"]
