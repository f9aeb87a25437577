"""Names of columns and of fields that are not UTF-8, which Arrow reads from files, are rejected before a file is written."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import SchemaError
from lance_core.file import LanceFileWriter
from lance_core.schema import LanceSchema


def with_bytes(schema):
    """The schema with the byte 255 in place of each %: a schema that is read from a message may have any bytes."""
    return pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes().replace(b"%", b"\xff")))


def table_of(schema):
    return pa.Table.from_arrays([pa.array([None], kind) for kind in schema.types], schema=with_bytes(schema))


NAMES = {
    "column": pa.schema([("id", pa.int64()), ("n%", pa.int64())]),
    "struct": pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64()), ("y%", pa.int64())]))]),
    "list": pa.schema([("id", pa.int64()), ("s", pa.list_(pa.struct([("y%", pa.int64())])))]),
}
"""Schemas with a name that is not UTF-8 in the column at position 1."""


def stream(table):
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())


def udf(table):
    return lambda _: table.to_batches()[0]


WRITES = {
    "write_dataset": lambda t, rows: lance_core.write_dataset(rows, f"{t.uri}-2"),
    "a stream": lambda t, rows: lance_core.write_dataset(stream(rows), f"{t.uri}-2"),
    "an iterable": lambda t, rows: lance_core.write_dataset(rows.to_batches(), f"{t.uri}-2", schema=rows.schema),
    "batches": lambda t, rows: lance_core.write_dataset(rows.to_batches(), t.uri, schema=t.schema, mode="append"),
    "a schema": lambda t, rows: lance_core.write_dataset({"id": [1]}, f"{t.uri}-2", schema=rows.schema),
    "overwrite": lambda t, rows: lance_core.write_dataset(rows, t.uri, mode="overwrite"),
    "insert": lambda t, rows: t.insert(rows),
    "merge_insert": lambda t, rows: t.merge_insert("id").when_not_matched_insert_all().execute(rows),
    "merge": lambda t, rows: t.merge(rows, "id"),
    "add_columns of fields": lambda t, rows: t.add_columns(rows.schema),
    "add_columns of values": lambda t, rows: t.add_columns(stream(rows.drop_columns("id"))),
    "add_columns of a function": lambda t, rows: t.add_columns(udf(rows.drop_columns("id"))),
    "plan_columns": lambda t, rows: t.plan_columns(rows.schema),
    "write_columns": lambda t, rows: t.write_columns(rows, on="id"),
    "write_fragments": lambda t, rows: lance_core.write_fragments(rows, t.uri, mode="append"),
    "FragmentWriter": lambda t, rows: lance_core.FragmentWriter(t.uri, rows.schema),
    "FragmentWriter.write": lambda t, rows: lance_core.FragmentWriter(t.uri, t.schema).write(rows),
    "LanceFragment.create": lambda t, rows: lance_core.LanceFragment.create(t.uri, rows),
    "update_columns": lambda t, rows: t.get_fragments()[0].update_columns(rows, "id"),
    "merge_columns": lambda t, rows: t.get_fragments()[0].merge(rows, "id"),
    "LanceFileWriter": lambda t, rows: LanceFileWriter(f"{t.uri}/data/x.lance", rows.schema),
    "LanceFileWriter.write_batch": lambda t, rows: LanceFileWriter(f"{t.uri}/data/x.lance", t.schema).write_batch(rows),
    "LanceSchema": lambda _, rows: LanceSchema.from_pyarrow(rows.schema),
    "schema_to_json": lambda _, rows: lance_core.schema_to_json(rows.schema),
    "key_hashes": lambda _, rows: lance_core.key_hashes(rows, ["id"]),
    "Slices": lambda _, rows: lance_core.Slices(
        [lance_core.Slice(name="1", conditions={"id": lance_core.Equals(1)})]
    ).assign(rows),
}


NARROWED = ("add_columns of values", "add_columns of a function")
"""Writes of the column alone."""


@pytest.mark.variants(29)
@pytest.mark.parametrize("place", NAMES)
@pytest.mark.parametrize("write", WRITES)
def test_a_name_that_is_not_utf8_is_named_by_its_position_and_bytes(tmp_path, write, place):
    table = lance_core.write_dataset({"id": [1]}, tmp_path / "t")
    files = sorted(tmp_path.rglob("*"))
    rows = table_of(NAMES[place])
    rows = rows.set_column(0, "id", pa.array([1])) if place == "column" else rows
    if write in ("Slices", "key_hashes"):  # they use the columns that are named alone
        WRITES[write](table, rows)
    else:
        position = 0 if write in NARROWED else 1
        name = f"the name of column {position}" if place == "column" else f"the name of a field in column {position}"
        with pytest.raises(SchemaError, match=rf"^{name}, counted from 0, is no UTF-8: b'[ny]\\xff'; .*rename_columns"):
            WRITES[write](table, rows)
    assert sorted(tmp_path.rglob("*")) == files


def test_names_at_any_level_and_in_extension_types_are_checked():
    inner = pa.struct([("x%", pa.int64())])
    for kind in (pa.list_(inner), pa.map_(pa.string(), inner), pa.struct([("a", pa.list_(pa.list_(inner)))])):
        with pytest.raises(SchemaError, match="the name of a field in column 0"):
            lance_core.check_names(with_bytes(pa.schema([("c", kind)])))
    lance_core.check_names(pa.schema([("ä", pa.list_(pa.struct([("€", pa.json_())])))]))


def test_columns_that_are_renamed_can_be_written(tmp_path):
    rows = table_of(NAMES["column"])
    table = lance_core.write_dataset(rows.rename_columns(["id", "n"]), tmp_path / "t")
    assert table.count_rows(pc.field("n").is_null()) == 1
