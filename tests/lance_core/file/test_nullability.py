import pyarrow as pa
import pytest

from lance_core.errors import SchemaError
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.file.write_plan import check_nulls
from lance_core.schema import schema_from_arrow
from lance_core.schema.relabel import relabel
from lance_core.store.memory import MemoryStore

STRICT = pa.field("x", pa.int8(), nullable=False)
STRUCT = pa.struct([STRICT])
CASES = {
    "column": (pa.field("c", pa.int8(), nullable=False), [1, None], [1, 2]),
    "list": (pa.field("c", pa.list_(STRICT)), [[1], [None]], [[1], None]),
    "large list": (pa.field("c", pa.large_list(STRICT)), [[1], [None]], [[1], None]),
    "struct": (pa.field("c", STRUCT), [{"x": None}], [{"x": 1}]),
    "null struct": (pa.field("c", STRUCT), [{"x": 1}, None, {"x": None}], [{"x": 1}, None]),
    "list of structs": (pa.field("c", pa.list_(STRUCT)), [[{"x": None}]], [[None, {"x": 1}], None]),
    "struct with the names of a map": (
        pa.field("c", pa.struct([pa.field("key", pa.int8(), nullable=False), ("value", pa.int8())])),
        [{"key": None, "value": 1}],
        [{"key": 1, "value": None}],
    ),
    "struct of entries": (
        pa.field("c", pa.struct([pa.field("entries", STRUCT, nullable=False)])),
        [{"entries": None}],
        [{"entries": {"x": 1}}, None],
    ),
    "key of a map": (pa.field("c", pa.map_(STRUCT, pa.int8())), [[({"x": None}, 1)]], [[({"x": 1}, None)], None]),
    "map": (pa.field("c", pa.map_(pa.string(), STRICT.with_name("value"))), [[("a", None)]], [[("a", 1)], None]),
}


def write(field, values, loose=None):
    """Values of the field's type, or of one that allows nulls everywhere; their first row is cut off."""
    store = MemoryStore("memory://nulls")
    schema = schema_from_arrow(pa.schema([field]))
    writer = DataFileWriter(store, "f", schema, version=FileVersion.V2_2)
    array = pa.array([values[-1], *values], loose or field.type).slice(1)
    writer.write(pa.record_batch([array], names=["c"]))
    writer.finish()
    return [value for batch in DataFileReader.open(store, "f").read() for value in batch["c"].to_pylist()]


@pytest.mark.parametrize("name", list(CASES))
def test_nulls_are_rejected_at_every_level(name):
    field, bad, good = CASES[name]
    with pytest.raises(SchemaError, match=r"column 'c'.*(is|are) not nullable, but the data has nulls in it"):
        write(field, bad)
    assert write(field, good) == good


def test_nulls_of_data_whose_type_allows_them_are_rejected():
    with pytest.raises(SchemaError, match="not nullable"):
        write(CASES["list"][0], [[1], [None]], pa.list_(pa.field("element", pa.int8())))


def test_what_a_null_map_hides_does_not_count():
    field, _, good = CASES["map"]
    values = relabel(pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int8())), field.type)
    buffers = [pa.py_buffer(b"\x01"), values.buffers()[1]]
    hidden = pa.Array.from_buffers(field.type, 2, buffers, children=[values.values])
    top = schema_from_arrow(pa.schema([field])).fields[0]
    assert hidden.to_pylist() == good
    check_nulls(top, hidden)
    check_nulls(top, hidden.slice(1))
    with pytest.raises(SchemaError, match="field 'value' is not nullable"):
        check_nulls(top, values)


def test_what_a_null_struct_further_out_hides_does_not_count():
    inner = pa.StructArray.from_arrays([pa.array([None, 1], pa.int8())], fields=[STRICT])
    kind = pa.struct([("s", STRUCT)])
    hidden = pa.StructArray.from_arrays([inner], fields=list(kind), mask=pa.array([True, False]))
    schema = schema_from_arrow(pa.schema([("c", kind)]))
    check_nulls(schema.fields[0], hidden)
    with pytest.raises(SchemaError, match="field 'x' is not nullable"):
        check_nulls(schema.fields[0], pa.StructArray.from_arrays([inner], fields=list(kind)))
