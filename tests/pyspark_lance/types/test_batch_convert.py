"""Lists to fixed-size lists and back: equal values, no copies, nulls, slices, wrong lengths."""

from decimal import Decimal

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInputError, LanceError, SchemaError
from pyspark_lance.types.batch_convert import BatchConverter, build_converter

ELEMENTS = pa.list_(pa.field("element", pa.float32()))
VECTORS = pa.list_(pa.field("item", pa.float32()), 2)


def convert(array, target, **options):
    change = build_converter(array.type, target, "c", **options)
    result = array if change is None else change(array)
    result.validate(full=True)
    assert result.type == target
    return result


LISTS = {
    "without nulls": [[1, 2], [3, 4], [5, 6]],
    "null rows": [[1, 2], None, None, [3, 4], None, [5, 6]],
    "null items": [[1, None], [3, 4], [None, None]],
    "null rows and items": [None, [1, None], None, [3, 4]],
    "all null": [None, None, None],
    "empty": [],
}


@pytest.mark.parametrize("rows", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("items", [pa.float32(), pa.float64(), pa.int8()], ids=str)
def test_vectors_survive_both_conversions_from_every_row_on(rows, items):
    whole = pa.array(rows, pa.list_(pa.field("element", items)))
    target = pa.list_(pa.field("item", items), 2)
    for start in range(len(rows) + 1):
        for length in range(len(rows) - start + 1):
            part = whole.slice(start, length)
            vectors = convert(part, target)
            assert vectors.to_pylist() == part.to_pylist()
            assert convert(vectors, whole.type).to_pylist() == part.to_pylist()
            for inner in range(length):
                assert convert(vectors.slice(inner), whole.type).to_pylist() == part.to_pylist()[inner:]


def test_vectors_without_null_rows_share_their_items():
    lists = pa.array([[1, 2], [3, 4]], ELEMENTS)
    vectors = convert(lists, VECTORS)
    assert vectors.values.buffers()[1].address == lists.values.buffers()[1].address
    assert convert(vectors, ELEMENTS).values.buffers()[1].address == lists.values.buffers()[1].address


def test_a_null_row_may_keep_items_in_the_list():
    # Arrow allows a null row to cover items; Spark does not write them, other producers do.
    items = pa.array([1, 2, 9, 9, 9, 3, 4], pa.float32())
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 5, 7], pa.int32()), items, mask=pa.array([False, True, False]))
    assert convert(lists, VECTORS).to_pylist() == [[1, 2], None, [3, 4]]


@pytest.mark.parametrize(
    "rows",
    [[[1, 2], [3]], [[1, 2], [3, 4, 5]], [[1, 2, 3], [4]], [[1, 2, 3], None], [None, []], [[1], None, [2, 3, 4]]],
)
def test_a_wrong_length_is_named_with_its_column(rows):
    length = next(len(row) for row in rows if row is not None and len(row) != 2)
    with pytest.raises(InvalidInputError, match=rf"column 'c': a vector has {length} items.*takes vectors of 2"):
        convert(pa.array(rows, ELEMENTS), VECTORS)


def test_half_precision_vectors():
    lists = pa.array([[1, 0.5], None, [3, 4]], ELEMENTS)
    vectors = convert(lists, pa.list_(pa.float16(), 2))
    assert convert(vectors, ELEMENTS).to_pylist() == lists.to_pylist()


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([2**64 - 1, None], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array([1.5, None], pa.float16()), pa.float32()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array(["ab", None], pa.large_string()), pa.string()),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.array(["a", None, "a"]), pa.dictionary(pa.int8(), pa.string())),
        (pa.array([None, None]), pa.int64()),
        (pa.array(['{"a": 1}', None]), pa.json_()),
        (pa.array([[1], None, [], [2, 3]], pa.large_list(pa.int8())), pa.list_(pa.int16())),
        (pa.array([[1], None, [], [2, 3]], pa.list_(pa.int8())), pa.large_list(pa.int16())),
        (pa.array([[(1, 1)], None, [(2, None)]], pa.map_(pa.int32(), pa.int8())), pa.map_(pa.int64(), pa.int16())),
        (
            pa.array([{"a": 1, "v": [[1, 2]]}, None, {"a": None, "v": None}], pa.struct([("a", pa.int8()), ("v", pa.list_(ELEMENTS))])),
            pa.struct([("v", pa.list_(VECTORS)), ("a", pa.int16())]),
        ),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)  # fmt: skip
def test_values_survive_a_change_of_type(array, target):
    for start in range(len(array) + 1):
        assert convert(array.slice(start), target).to_pylist() == array.to_pylist()[start:]


def test_extension_types_are_added_and_removed():
    values = pa.array([bytes(range(16)), None], pa.binary())
    typed = convert(values, pa.uuid())
    assert convert(typed, pa.binary()).to_pylist() == values.to_pylist()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", [pa.timestamp, pa.duration])
def test_times_outside_of_those_of_microseconds_are_an_error(kind, exact):
    seconds = pa.array([10**15], pa.int64()).cast(kind("s"))
    with pytest.raises(InvalidInputError, match=r"column 'c': .*out of bounds"):
        convert(seconds, kind("us"), exact=exact)


def test_nanoseconds_are_truncated_only_if_that_is_allowed():
    nanoseconds = pa.array([1500, None], pa.timestamp("ns"))
    assert convert(nanoseconds, pa.timestamp("us"), exact=False).cast(pa.int64()).to_pylist() == [1, None]
    with pytest.raises(InvalidInputError, match="column 'c'"):
        convert(nanoseconds, pa.timestamp("us"))
    source, target = pa.schema([("c", nanoseconds.type)]), pa.schema([("c", pa.timestamp("us"))])
    batch = pa.record_batch([nanoseconds], schema=source)
    assert BatchConverter(target, exact=False)(batch)["c"].cast(pa.int64()).to_pylist() == [1, None]
    with pytest.raises(InvalidInputError, match="column 'c'"):
        BatchConverter(target)(batch)


@pytest.mark.parametrize(
    ("source", "target"),
    [(pa.string(), VECTORS), (VECTORS, pa.string()), (pa.list_(pa.int8()), pa.int8()), (pa.struct([]), pa.struct([pa.field("a", pa.int8(), nullable=False)]))],
    ids=str,
)  # fmt: skip
def test_impossible_conversions_are_rejected_when_the_converter_is_made(source, target):
    with pytest.raises(SchemaError, match="column 'c'"):
        build_converter(source, target, "c")


def test_columns_are_matched_by_name_and_missing_ones_are_null():
    source = pa.schema([("b", pa.int32()), ("a", ELEMENTS)])
    target = pa.schema([("a", VECTORS), ("new", pa.string()), ("b", pa.int64())])
    batch = pa.record_batch([pa.array([1, 2], pa.int32()), pa.array([[1, 2], None], ELEMENTS)], schema=source)
    assert BatchConverter(target)(batch).to_pylist() == [
        {"a": [1, 2], "new": None, "b": 1},
        {"a": None, "new": None, "b": 2},
    ]


def test_nullable_fields_that_structs_lack_are_null_in_rows_that_are_written():
    whole = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]))
    array = pa.array([[{"a": 1}, None], None], pa.list_(pa.struct([("a", pa.int64())])))
    assert convert(array, whole).to_pylist() == [[{"a": 1, "b": None}, None], None]
    with pytest.raises(SchemaError, match="the struct has no field 'b'"):
        convert(array, whole, exact=False)


def test_an_error_in_a_nested_vector_names_its_path():
    source = pa.struct([("v", ELEMENTS)])
    with pytest.raises(LanceError, match=r"c\.v"):
        convert(pa.array([{"v": [1]}], source), pa.struct([("v", VECTORS)]))


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([1, None], pa.int32(), pa.int64()),
        ([1.5, None], pa.float32(), pa.float64()),
        ([7, None], pa.int32(), pa.decimal128(12, 2)),
        ([Decimal("1.25"), None], pa.decimal128(10, 2), pa.decimal128(12, 3)),
        ([[1], None], pa.list_(pa.int32()), pa.list_(pa.int64())),
    ],
)
def test_numbers_are_widened(values, source, target):
    change = build_converter(source, target, "c")
    assert change(pa.array(values, source)).to_pylist() == pa.array(values, target).to_pylist()


@pytest.mark.parametrize(
    "values", [["a", None, "a"], [1, None, 1], [0.5, None, 0.5]], ids=["strings", "integers", "floats"]
)
@pytest.mark.parametrize("index", [pa.int8(), pa.int32(), pa.int64()], ids=str)
def test_values_become_a_dictionary_of_any_type(values, index):
    plain = pa.array(values)
    wanted = pa.dictionary(index, plain.type)
    made = convert(plain, wanted)
    assert (made.type, made.to_pylist()) == (wanted, values)
    assert convert(made, plain.type).to_pylist() == values


def test_more_values_than_a_dictionary_can_number_are_an_error():
    with pytest.raises(InvalidInputError, match="column 'c'"):
        convert(pa.array(range(200)), pa.dictionary(pa.int8(), pa.int64()))


def test_vectors_of_vectors_may_be_null():
    inner = pa.list_(pa.float32(), 2)
    lists = pa.array([[[1.0, 2.0]], None, [[3.0, 4.0]]], pa.list_(pa.list_(pa.float32())))
    made = convert(lists, pa.list_(inner, 1))
    assert made.to_pylist() == lists.to_pylist()
    made.validate(full=True)


def test_lists_without_a_buffer_of_items_become_vectors():
    """Arrow's own cast ends the process for such lists, which Spark sends where all rows are null."""
    schema, sink = pa.schema([("a", ELEMENTS)]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([None, None], ELEMENTS)], schema=schema))
    (batch,) = pa.ipc.open_stream(sink.getvalue())
    assert BatchConverter(pa.schema([("a", VECTORS)]))(batch).to_pylist() == [{"a": None}, {"a": None}]


@pytest.mark.parametrize(("value", "kind"), [(2**60, pa.float64()), (2**31, pa.float32()), (65504, pa.float16())])
def test_a_float_takes_each_integer_that_it_holds(value, kind):
    batch = pa.record_batch({"a": pa.array([value, None], pa.int64())})
    assert BatchConverter(pa.schema([("a", kind)]))(batch)["a"].to_pylist() == [float(value), None]


@pytest.mark.parametrize(
    ("value", "kind"), [(2**60 + 1, pa.float64()), (2**31 + 1, pa.float32()), (65536, pa.float16())]
)
def test_a_float_takes_no_other_integer(value, kind):
    batch = pa.record_batch({"a": pa.array([value], pa.int64())})
    with pytest.raises(InvalidInputError, match=f"column 'a': the value {value} of type int64 does not fit"):
        BatchConverter(pa.schema([("a", kind)]))(batch)
