"""The partitions of a table: the columns of PARTITIONED BY, and which overwrite replaces single partitions.

partitionOverwriteMode of the write   of the session   columns of partitions   replaced
-----------------------------------   --------------   ---------------------   ---------------------
static                                                                         all rows
dynamic                                                of the write or table   partitions with rows
dynamic                                                none                    none: an error
not given                             dynamic          of the write or table   partitions with rows
not given                             any              none                    all rows
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.writing.options import NEEDS_PARTITIONS, WriteArguments

PARTITIONED_BY: Final = "lance-dagster.partitioned_by"
"""Key of the table's configuration with the columns of PARTITIONED BY: a,b, or a list in JSON if a name has a comma."""
OVERWRITE_MODE: Final = "spark.sql.sources.partitionOverwriteMode"
"""The setting of a session that says what an overwrite replaces."""


def existing_partition_columns(dataset: LanceDataset) -> list[str] | None:
    """The columns of PARTITIONED BY, as far as the table still has them; None if there are none."""
    return [name for name in configured_partition_columns(dataset) if name in dataset.schema.names] or None


def configured_partition_columns(dataset: LanceDataset) -> list[str]:
    """The columns of PARTITIONED BY as the configuration names them: other writers may have dropped or renamed some."""
    stored = dataset.config().get(PARTITIONED_BY, "")
    names: list[str] = json.loads(stored) if stored.startswith("[") else [name for name in stored.split(",") if name]
    return names


def stored_partition_by(names: Sequence[str]) -> str:
    """The columns of PARTITIONED BY as the table's configuration keeps them."""
    is_plain = not any("," in name or name.startswith("[") for name in names)
    return ",".join(names) if is_plain else json.dumps(list(names))


def set_overwrite_mode(options: WriteArguments, base: LanceDataset | None) -> WriteArguments:
    """The options of a write that says whether an overwrite is dynamic, and of which columns.

    Args:
        options: The options that the caller gave.
        base: The version that the write is based on; None if there is no table.

    Raises:
        InvalidInputError: The caller wants a dynamic overwrite, and neither the write nor the table names columns.
        SchemaError: A column of PARTITIONED BY was dropped or renamed, so that the partitions are not known.
    """
    overwrites = options.mode == "overwrite" and options.replace_where is None
    mode = options.partition_overwrite or ("dynamic" if options.session_is_dynamic and base is not None else "static")
    if mode == "static" or not overwrites:
        return replace(options, partition_overwrite=options.partition_overwrite or "static")
    if options.partition_overwrite is not None and options.partition_by is not None:
        return options
    declared = [] if base is None else configured_partition_columns(base)
    columns = options.partition_by or tuple(declared)
    lacking = [] if base is None else [name for name in declared if name not in base.schema.names]
    if base is not None and lacking and set(columns) <= set(declared):
        raise SchemaError(
            f"{base.uri} is PARTITIONED BY {', '.join(lacking)}, and no longer has these columns, so that an overwrite"
            f" of partitions would replace all rows: run ALTER TABLE ... SET TBLPROPERTIES ('{PARTITIONED_BY}' ="
            " 'column') with their new names, or UNSET it. Nothing was done"
        )
    if columns:
        return replace(options, partition_by=columns, partition_overwrite="dynamic")
    if options.partition_overwrite is not None:
        raise InvalidInputError(NEEDS_PARTITIONS)
    return replace(options, partition_overwrite="static")
