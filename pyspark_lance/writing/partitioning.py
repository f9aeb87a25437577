"""The partitions of a table: the columns of PARTITIONED BY, and which overwrite replaces single partitions.

partitionOverwriteMode of the write   of the session   columns of partitions   replaced
-----------------------------------   --------------   ---------------------   ---------------------
static                                                                         all rows
dynamic                                                                        partitions with rows
not given                             dynamic          of the write or table   partitions with rows
not given                             any              none                    all rows
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lance_core import LanceDataset
from lance_core.errors import SchemaError
from pyspark_lance.writing.options import WriteArguments

__all__ = [
    "OVERWRITE_MODE", "PARTITIONED_BY", "partition_by", "partitioned_by", "stored_partition_by",
    "with_mode_of_session",
]  # fmt: skip

PARTITIONED_BY: Final = "lance-dagster.partitioned_by"
"""Key of the table's configuration with the columns of PARTITIONED BY: a,b, or a list in JSON if a name has a comma."""
OVERWRITE_MODE: Final = "spark.sql.sources.partitionOverwriteMode"
"""The setting of a session that says what an overwrite replaces."""


def partition_by(dataset: LanceDataset) -> list[str] | None:
    """The columns of PARTITIONED BY, as far as the table still has them; None if there are none."""
    return [name for name in partitioned_by(dataset) if name in dataset.schema.names] or None


def partitioned_by(dataset: LanceDataset) -> list[str]:
    """The columns of PARTITIONED BY, which other writers may have dropped or renamed."""
    stored = dataset.config().get(PARTITIONED_BY, "")
    names: list[str] = json.loads(stored) if stored.startswith("[") else [name for name in stored.split(",") if name]
    return names


def stored_partition_by(names: Sequence[str]) -> str:
    """The columns of PARTITIONED BY as the table's configuration keeps them."""
    is_plain = not any("," in name or name.startswith("[") for name in names)
    return ",".join(names) if is_plain else json.dumps(list(names))


def with_mode_of_session(options: WriteArguments, base: LanceDataset | None) -> WriteArguments:
    """The options of a write that says whether an overwrite is dynamic.

    Args:
        options: The options that the caller gave.
        base: The version that the write is based on; None if there is no table.

    Raises:
        SchemaError: A column of PARTITIONED BY was dropped or renamed, so that the partitions are not known.
    """
    if options.partition_overwrite is not None:
        return options
    overwrites = options.mode == "overwrite" and options.replace_where is None and base is not None
    if not (options.session_is_dynamic and overwrites):
        return replace(options, partition_overwrite="static")
    assert base is not None
    declared = partitioned_by(base)
    columns = options.partition_by or tuple(declared)
    lacking = [name for name in declared if name not in base.schema.names]
    if lacking and set(columns) <= set(declared):
        raise SchemaError(
            f"{base.uri} is PARTITIONED BY {', '.join(lacking)}, and no longer has these columns, so that an overwrite"
            f" of partitions would replace all rows: run ALTER TABLE ... SET TBLPROPERTIES ('{PARTITIONED_BY}' ="
            " 'column') with their new names, or UNSET it. Nothing was done"
        )
    mode = "dynamic" if columns else "static"
    return replace(options, partition_by=columns or None, partition_overwrite=mode)  # type: ignore[arg-type]  # one of the two
