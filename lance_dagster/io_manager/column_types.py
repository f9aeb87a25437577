"""Types of columns by name, and the change of a column's type.

One commit rewrites the column with the new type (`lance_core.maintenance.change_type`); older versions keep the old
type. Unless losses are allowed, no value may change: a number must be the same number in the new type, and a string
must be the exact form of a value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.dataset import LANCE_COMMIT_MESSAGE_KEY
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.maintenance import change_type
from lance_dagster.handlers.exact_cast import CastRejectedError, can_cast, cast_exactly, show_value
from lance_dagster.properties import COLUMN_TYPE
from lance_dagster.tables.partitions import partition_columns, slices_of
from lance_dagster.tables.refs import TableRef
from pyspark_lance.types.number_casts import find_first_failing

if TYPE_CHECKING:
    import lance_core
    from lance_core.errors import LanceError

_NAMES: Final = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "string", "large_string", "binary", "large_binary", "date32", "date64"),
    *(f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")),
    *(f"duration[{unit}]" for unit in ("s", "ms", "us", "ns")),
    *("time32[s]", "time32[ms]", "time64[us]", "time64[ns]"),
)
_SQL_NAMES: Final = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    **dict.fromkeys(("integer", "int"), "int32"),
    **dict.fromkeys(("bigint", "long"), "int64"),
    **{f"{name} unsigned": kind for name, kind in (("smallint", "uint16"), ("int", "uint32"), ("bigint", "uint64"))},
    "real": "float32",
    **dict.fromkeys(("double precision", "number"), "float64"),
    **dict.fromkeys(("text", "varchar", "char", "str"), "string"),
    **dict.fromkeys(("blob", "bytea", "varbinary"), "binary"),
    **dict.fromkeys(("timestamp", "datetime"), "timestamp[us]"),
    **dict.fromkeys(("timestamptz", "timestamp with time zone"), "timestamp[us, tz=UTC]"),
    "time": "time64[us]",
    **dict.fromkeys(("decimal", "numeric"), "decimal128(10, 2)"),
}
"""Types by their names in SQL, where pyarrow has other names."""
_ALIASES: Final = ("double", "float", "halffloat", "utf8", "large_utf8", "string_view", "binary_view")
"""Other names of types that pyarrow accepts."""
_ZONED: Final = re.compile(r"timestamp\[(s|ms|us|ns), ?(?:tz=)?([^\]]+)\]")
_DECIMAL: Final = re.compile(r"decimal(128|256)?\((\d+), ?(-?\d+)\)")
_LIST: Final = re.compile(r"(large_)?list<(?:\w+: ?)?(.+)>")
_VECTOR: Final = re.compile(r"fixed_size_list<(?:\w+: ?)?(.+)>\[(\d+)\]")


def parse_type(name: str) -> pa.DataType:
    """The Arrow type of a name, as pyarrow spells types.

    Raises:
        InvalidInputError: No type has that name; the error names the nearest known name.
    """
    spelled = name.strip()
    if match := _ZONED.fullmatch(spelled):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(spelled):
        make = pa.decimal256 if match[1] == "256" else pa.decimal128
        return make(int(match[2]), int(match[3]))
    if match := _VECTOR.fullmatch(spelled):
        return pa.list_(parse_type(match[1]), int(match[2]))
    if match := _LIST.fullmatch(spelled):
        return (pa.large_list if match[1] else pa.list_)(parse_type(match[2]))
    try:
        return pa.type_for_alias(spelled)
    except ValueError:
        plain = " ".join(spelled.lower().split())
        sql = get_close_matches(plain, _SQL_NAMES, n=1, cutoff=0.9)
        near = [_SQL_NAMES[name_of_sql] for name_of_sql in sql] or get_close_matches(
            plain, (*_NAMES, *_ALIASES), n=1, cutoff=0.4
        )
        hint = f"; is {near[0]!r} meant?" if near else ""
        raise InvalidInputError(
            f"{name!r} is not the name of a type; write one of {', '.join(_NAMES)}, timestamp[us, tz=UTC], "
            f"decimal128(10, 2), list<int64>, fixed_size_list<float32>[3]{hint}"
        ) from None


def change_column_type(
    dataset: lance_core.LanceDataset,
    column: str,
    kind: pa.DataType,
    *,
    allow_loss: bool = False,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Change the type of a column; the dataset moves to the new version.

    Args:
        dataset: The table at its latest version.
        column: The column.
        kind: The new type. Besides the casts of `exact_cast`, strings can be cast to numbers, dates, times or booleans,
            and these to strings.
        allow_loss: Whether values may change as in Arrow's casts, which truncate fractions, and times to days.
        properties: Transaction properties of the commit.

    Raises:
        SchemaError: The column or the cast does not exist, or a value would change; nothing was written.
        UnsupportedError: The column has an index that cannot be rebuilt; nothing was written.
    """

    def convert(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        return _converted(values, field.with_name(column), allow_loss=allow_loss)

    before = dataset.schema.field(column).type if column in dataset.schema.names else None
    if before == kind:
        return
    said = f"column {column}: {before} -> {kind}"
    change_properties = {COLUMN_TYPE: said, LANCE_COMMIT_MESSAGE_KEY: said}
    change_type(dataset, column, kind, convert, transaction_properties={**(properties or {}), **change_properties})


def reject_moved_partitions(
    dataset: lance_core.LanceDataset,
    ref: TableRef,
    partitions: Collection[str],
    column: str,
    kind: pa.DataType,
    *,
    allow_loss: bool,
) -> None:
    """Make sure that each row stays in its partition when the type of a partition column changes.

    Args:
        dataset: The table at its latest version.
        ref: The asset.
        partitions: The partitions that may have rows.
        column: The column.
        kind: The new type.
        allow_loss: Whether values may change.

    Raises:
        SchemaError: Rows would be in another partition, or in none; or partitions cannot have a column of this type.
    """
    columns = partition_columns((ref.metadata or {}).get("partition_expr"), dataset.schema, ref.key)
    if column not in columns or not partitions or ref.partitions_def is None:
        return
    field, index = dataset.schema.field(column).with_type(kind), columns.index(column)
    before = slices_of(ref, partitions, dataset.schema)
    after = slices_of(ref, partitions, dataset.schema.set(dataset.schema.get_field_index(column), field))
    for batch in dataset.to_batches(columns=columns):
        rows = pa.Table.from_batches([batch])
        values = _converted(rows[column], field, allow_loss=allow_loss)
        changed = rows.set_column(index, field, values).combine_chunks().to_batches()
        moved = before.assign(batch) != after.assign(changed[0]) if changed else np.zeros(0, bool)
        for value in map(show_value, values.filter(moved).slice(0, 1)):
            raise SchemaError(
                f"column {column!r} of type {rows[column].type} cannot become {kind}: it is a partition column of "
                f"asset {ref.name}, and a row with {value} would not be in its partition any more. Write a new column, "
                "and name it in partition_expr"
            )


def _converted(values: pa.ChunkedArray, field: pa.Field, *, allow_loss: bool) -> pa.ChunkedArray:
    if can_cast(values.type, field.type) and not allow_loss:
        try:
            return cast_exactly(values, field)
        except CastRejectedError as error:
            raise _lossy(field, values.type, error.value) from None
    done = _arrow_cast(values, field.type, safe=not allow_loss)
    if done is None:
        if _arrow_cast(values.slice(0, 0), field.type, safe=not allow_loss) is None:
            raise SchemaError(
                f"column {field.name!r} of type {values.type} cannot become {field.type}: there is no such cast. "
                "Write a new column that is computed from it, and drop the old one"
            )
        row = find_first_failing(values, lambda part: _arrow_cast(part, field.type, safe=not allow_loss) is not None)
        raise _lossy(field, values.type, show_value(values[row]))
    return done


def _lossy(field: pa.Field, source: pa.DataType, value: str | None) -> SchemaError:
    return SchemaError(
        f"column {field.name!r} of type {source} cannot become {field.type}: its value {value} would change; correct "
        "such rows first, choose a wider type, or allow losses (--allow-loss, or allow_loss of the job)"
    )


def _arrow_cast(values: pa.ChunkedArray, kind: pa.DataType, *, safe: bool) -> pa.ChunkedArray | None:
    """The values cast by Arrow; None if there is no such cast, or if a safe cast is not reversible."""
    try:
        done = values.cast(kind, safe=safe)
        if not safe:
            return done
        back = done.cast(values.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    same = pc.all(pc.fill_null(pc.equal(values, back), True)).as_py()
    return done if same is not False and values.null_count == back.null_count else None


def with_remedy(error: LanceError, uri: str, *, whole: bool) -> LanceError:
    """The error with remedies if it is about the type of a column; any other error unchanged.

    Args:
        error: The error of a write.
        uri: The table.
        whole: Whether the write would overwrite the whole table.
    """
    if isinstance(error, CastRejectedError):
        message, column, frame_type = str(error), error.column, error.source
    elif isinstance(error, SchemaError) and (match := _OF_SPARK.fullmatch(str(error))):
        message, column = match[1], match[2]
        frame_type = None
    else:
        return error
    if whole:
        return SchemaError(
            f"{message}. Cast it in the asset, or give the asset the metadata lance/schema_mode: overwrite, so that "
            "the output's columns replace the table's"
        )
    name = "TYPE" if frame_type is None else shlex.quote(str(frame_type))
    return SchemaError(
        f"{message}. Cast it in the asset, or change the column's type in the table: lance-dagster change-type "
        f"{shlex.quote(uri)} {shlex.quote(column)} {name} (or the job of "
        "build_change_type_job), and run the asset again"
    )


_OF_SPARK: Final = re.compile(r"(column '(.+?)': .+); cast it, or replace the whole table with mode=.*", re.DOTALL)
"""The message of `pyspark_lance.write` about a column's type; its remedy does not work for partitioned assets."""
