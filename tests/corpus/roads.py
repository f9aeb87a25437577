"""The roads that every file goes, once with this library and once with pylance, whose tables must be equal.

Each road is a function of the library, the rows, a folder and the version of the data files. It returns what pylance reads
afterwards, in the order of the key, or anything else that must be equal for both libraries.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import lance
import pyarrow as pa

from tests.corpus.sample import KEY, with_key

__all__ = ["FRAME_ROADS", "ROADS", "VERSIONS", "bytes_on_disk", "filters"]

VERSIONS = ("2.2", "2.1", "2.0", "0.1")
Road = Callable[[ModuleType, pa.Table, Path, str], Any]


def _write(library: ModuleType, rows: Any, folder: Path, version: str, **options: Any) -> Any:
    return library.write_dataset(rows, str(folder), data_storage_version=version, **options)


def _read(folder: Path) -> pa.Table:
    table = _plain(lance.dataset(str(folder)).to_table())
    return table.sort_by(KEY) if KEY in table.column_names else table


def _plain(table: pa.Table) -> pa.Table:
    """The rows with the values of dictionaries, which Arrow cannot sort if nulls are among their items."""
    kinds = {f"type of {name}": str(kind) for name, kind in zip(table.column_names, table.schema.types, strict=True)}
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            values = field.with_type(field.type.value_type)
            table = table.set_column(index, values, table.column(index).cast(values.type))
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **kinds})


def write(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table:
    """Write the rows as they are."""
    _write(library, rows, folder, version)
    return _read(folder)


def append(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table:
    """Append the rows twice: as a table, and as a stream of small batches."""
    _write(library, with_key(rows), folder, version)
    more = with_key(rows, rows.num_rows)
    library.write_dataset(more, str(folder), mode="append")
    again = with_key(rows, 2 * rows.num_rows)
    stream = pa.RecordBatchReader.from_batches(again.schema, again.to_batches(max_chunksize=5))
    library.dataset(str(folder)).insert(stream)
    return _read(folder)


def _turned(rows: pa.Table) -> pa.Table:
    """The rows in reverse order; Arrow cannot take rows of views."""
    return pa.concat_tables([rows.slice(at, 1) for at in range(rows.num_rows - 1, -1, -1)]) if rows.num_rows else rows


def merge(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table:
    """Merge the rows in reverse order: the second half of the keys is updated, and as many are new."""
    _write(library, with_key(rows), folder, version)
    turned = _turned(rows)
    builder = library.dataset(str(folder)).merge_insert(KEY)
    builder.when_matched_update_all().when_not_matched_insert_all().execute(with_key(turned, rows.num_rows // 2))
    return _read(folder)


def partial_structs(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table | None:
    """Append and merge rows whose structs lack their last field."""
    narrow, is_narrower = rows, False
    for index, field in enumerate(rows.schema):
        kind = field.type
        if pa.types.is_struct(kind) and kind.num_fields > 1 and kind.field(kind.num_fields - 1).nullable:
            fields = [kind.field(at) for at in range(kind.num_fields - 1)]
            chunks = [_structs(chunk, fields) for chunk in rows.column(index).chunks]
            narrow = narrow.set_column(
                index, field.with_type(pa.struct(fields)), pa.chunked_array(chunks, pa.struct(fields))
            )
            is_narrower = True
    if not is_narrower:
        return None
    _write(library, with_key(rows), folder, version)
    library.write_dataset(with_key(narrow, rows.num_rows), str(folder), mode="append")
    builder = library.dataset(str(folder)).merge_insert(KEY)
    builder.when_matched_update_all().execute(with_key(_turned(narrow)))
    return _read(folder)


def _structs(array: pa.StructArray, fields: list[pa.Field]) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [array.field(at) for at in range(len(fields))], fields=fields, mask=array.is_null()
    )


def update(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table:
    """Update the key of some rows of two fragments, and set a column to itself."""
    half = rows.num_rows // 2
    _write(library, with_key(rows.slice(0, half)), folder, version)
    dataset = library.dataset(str(folder))
    dataset.insert(with_key(rows.slice(half), half))
    dataset.update({KEY: f"{KEY} + 1000"}, where=f"{KEY} % 3 = 0")
    names = [name for name in rows.column_names if name.isidentifier()]
    if names:
        dataset.update({names[0]: f"`{names[0]}`"}, where=f"{KEY} % 2 = 0")
    return _read(folder)


def filters(rows: pa.Table, key: str = KEY) -> Iterator[str]:
    """Conditions that are made from the values of the rows, some with their key."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        name = f"`{field.name}`"
        if "`" in field.name or not field.name:
            continue
        yield f"{name} IS NULL"
        for value in [scalar for scalar in column.slice(0, 8) if scalar.is_valid][:2]:
            text = _literal(value)
            if text is not None:
                yield f"{name} = {text}"
                yield f"{name} > {text} OR {key} = 1"
                yield f"{name} IN ({text}) AND {key} < 9"


def _literal(scalar: pa.Scalar) -> str | None:
    kind = scalar.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return str(scalar.as_py()).lower()
    if pa.types.is_floating(kind):
        text = repr(scalar.as_py())
        return None if text in ("nan", "inf", "-inf") else text
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "'" + scalar.as_py().replace("'", "''") + "'"
    if pa.types.is_date32(kind):
        return f"DATE '{scalar.as_py()}'"
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit in ("s", "ms", "us"):
        value = scalar.as_py()
        return (
            f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S}'"
            if isinstance(value, dt.datetime) and not value.microsecond
            else None
        )
    return None


def filtered(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> list[Any]:
    """Filter by conditions that are made from the values."""
    _write(library, with_key(rows), folder, version)
    return _answers(library.dataset(str(folder)), rows)


def _answers(dataset: Any, rows: pa.Table) -> list[Any]:
    """The keys of rows that meet conditions, or errors."""
    answers: list[Any] = []
    for condition in filters(rows):
        try:
            answers.append((condition, sorted(dataset.to_table(columns=[KEY], filter=condition)[KEY].to_pylist())))
        except Exception as error:  # noqa: BLE001 - compared by the caller
            answers.append((condition, error))
    return answers


INDICES = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER", "LABEL_LIST", "NGRAM")


def indices(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> list[Any]:
    """Append to a table with the indices that pylance builds, refresh them, and filter by conditions of the values."""
    try:
        dataset = _write(lance, with_key(rows), folder, version)
        _read(folder)
    except BaseException:  # noqa: BLE001 - the road `write` compares that
        return []
    for name in [name for name in rows.column_names if name.isidentifier()][:2]:
        for kind in INDICES:
            try:
                dataset.create_scalar_index(name, kind, name=f"{name} {kind}")
            except BaseException:  # noqa: BLE001 - it builds none on this type, or panics
                continue
    library.dataset(str(folder)).insert(with_key(rows, rows.num_rows))
    library.dataset(str(folder)).optimize.optimize_indices()
    return [("after a refresh", repr(_read(folder).to_pylist())), *_answers(library.dataset(str(folder)), rows)]


def add_columns(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table:
    """Add copies of columns by SQL, a computed column and one of nulls, and drop one."""
    dataset = _write(library, with_key(rows), folder, version)
    names = [name for name in rows.column_names if name.isidentifier()][:3]
    dataset.add_columns({"__computed": f"{KEY} * 2"} | {f"__copy_{at}": f"`{name}`" for at, name in enumerate(names)})
    dataset.add_columns(pa.field("__null", pa.string()))
    dataset.drop_columns(["__computed"])
    return _read(folder)


def compact(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table:
    """Compact small fragments, one of which lost rows."""
    _write(library, with_key(rows), folder, version)
    for first in (1, 2):
        library.write_dataset(with_key(rows, first * rows.num_rows), str(folder), mode="append")
    dataset = library.dataset(str(folder))
    dataset.delete(f"{KEY} % 7 = 3")
    dataset.optimize.compact_files()
    dataset.cleanup_old_versions(dt.timedelta(0))
    return _read(folder)


def cross(library: ModuleType, rows: pa.Table, folder: Path, version: str) -> pa.Table | None:
    """Read what pylance wrote: all rows, some of them, and one column."""
    try:
        _write(lance, rows, folder, version)
        _read(folder)
    except BaseException:  # noqa: BLE001 - pylance cannot write or read it: the road `write` compares that
        return None
    table = library.dataset(str(folder))
    some = table.take([rows.num_rows - 1, 0]) if rows.num_rows else table.to_table()
    single = table.to_table(columns=rows.column_names[:1]) if "." not in rows.column_names[0] else None
    answers = [table.to_table(), some, *([] if single is None else [single])]
    return pa.table(
        {
            "schema": [str(answer.schema.remove_metadata()) for answer in answers],
            "rows": [repr(answer.to_pylist()) for answer in answers],
        }
    )


ROADS: dict[str, Road] = {
    "write": write,
    "cross": cross,
    "append": append,
    "merge": merge,
    "partial structs": partial_structs,
    "update": update,
    "filters": filtered,
    "indices": indices,
    "add_columns": add_columns,
    "compaction": compact,
}


def frame_write(library: ModuleType, frame: Any, folder: Path, version: str) -> pa.Table:
    """Write a frame of pandas, and append it."""
    _write(library, frame, folder, version)
    library.write_dataset(frame, str(folder), mode="append")
    return _read(folder)


def frame_merge(library: ModuleType, frame: Any, folder: Path, version: str) -> pa.Table:
    """Insert and merge a frame of pandas."""
    frame = frame.assign(**{KEY: range(len(frame))})
    dataset = _write(library, pa.Table.from_pandas(frame), folder, version)
    dataset.insert(frame.assign(**{KEY: range(10, 10 + len(frame))}))
    builder = library.dataset(str(folder)).merge_insert(KEY)
    builder.when_matched_update_all().when_not_matched_insert_all().execute(
        frame.assign(**{KEY: range(1, 1 + len(frame))})
    )
    return _read(folder)


FRAME_ROADS: dict[str, Callable[[ModuleType, Any, Path, str], pa.Table]] = {
    "frame": frame_write,
    "frame merge": frame_merge,
}


def bytes_on_disk(folder: Path) -> int:
    """Bytes of the data files of a table."""
    return sum(path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file())
