"""Columns that have one value in all rows of a file: partition columns, which the metadata of the table gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark_lance.lazy import DataFrame, functions, types
from pyspark_lance.types.column_names import quoted

_PATH: Final = "__lance_convert_path"
_VALUE: Final = "__lance_convert_value_"
_LISTED: Final = "__lance_convert_listed"
_SCHEME: Final = "^[A-Za-z0-9+.-]+:/+|^/+"


def add_constants(frame: DataFrame, constants: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """A frame over Parquet files with the values that the table's metadata gives for the columns of some files.

    Args:
        frame: The frame, with all columns of the table.
        constants: The values by column, by the name of each file.
    """
    names = list(dict.fromkeys(name for values in constants.values() for name in values))
    if not names:
        return frame
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    fields = [types.StructField(_PATH, types.StringType()), types.StructField(_LISTED, types.BooleanType())]
    for number, name in enumerate(names):
        value = types.StructType([types.StructField("value", kinds[name])])
        fields.append(types.StructField(f"{_VALUE}{number}", value))
    rows = [
        (re.sub(_SCHEME, "", file), True, *((values[name],) if name in values else None for name in names))
        for file, values in constants.items()
    ]
    file_constants = functions.broadcast(frame.sparkSession.createDataFrame(rows, types.StructType(fields)))
    # Spark gives the path of a file as a URI; `url_decode` takes a plus for a space.
    file_path = frame.metadataColumn("_metadata")["file_path"]
    encoded = functions.replace(file_path, functions.lit("+"), functions.lit("%2B"))
    path = functions.regexp_replace(functions.url_decode(encoded), _SCHEME, "")
    joined = frame.select("*", path.alias(_PATH)).join(file_constants, _PATH, "left")
    unknown = functions.concat(functions.lit("the table does not name the file "), functions.col(_PATH))
    columns = []
    for field in frame.schema.fields:
        column = functions.col(quoted(field.name))
        if field.name in names:
            constant = functions.col(f"{_VALUE}{names.index(field.name)}")
            column = functions.when(constant.isNotNull(), constant["value"]).otherwise(column)
            column = functions.when(functions.col(_LISTED), column).otherwise(functions.raise_error(unknown))
        columns.append(column.alias(field.name, metadata=field.metadata))
    return joined.select(columns)
