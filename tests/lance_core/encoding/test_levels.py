"""Levels against a definition in plain Python, and back into the same arrays."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core.encoding.assemble import assemble, merge_columns
from lance_core.encoding.datablock import view_array_as_block
from lance_core.encoding.page import DecodedRows, RowRuns
from lance_core.encoding.repdef import Layer, Levels, find_nulls, shred, unravel
from lance_core.encoding.structural.entries import control_bytes
from lance_core.errors import CorruptFileError
from lance_core.schema import schema_from_arrow
from lance_core.schema.field import leaf_paths
from tests.arrow_data import random_table


def columns_of(array):
    schema = schema_from_arrow(pa.schema([pa.field("c", array.type)]))
    return schema.fields[0], list(shred(schema.fields[0], array))


def rebuild(array):
    field, columns = columns_of(array)
    arrays = []
    for path, column in zip(leaf_paths(field), columns, strict=True):
        all_null = pa.types.is_null(column.values.type)
        decoded = DecodedRows(
            covered=RowRuns.of_range(0, len(array)),
            levels=column.levels,
            values=None if all_null else view_array_as_block(column.values),
        )
        arrays.append(assemble(path, decoded))
    return merge_columns(field, arrays)


def test_the_example_of_the_module():
    _, (column,) = columns_of(pa.array([[1, 2], None, [], [None]]))
    assert column.levels.layers == (Layer.NULLABLE_ITEM, Layer.NULL_AND_EMPTY_LIST)
    assert column.levels.repetition.tolist() == [1, 0, 1, 1, 1]
    assert column.levels.definition.tolist() == [0, 0, 2, 3, 1]
    assert column.values.to_pylist() == [1, 2, None]


@pytest.mark.parametrize(
    ("values", "layers", "repetition", "definition"),
    [
        ([1, 2], [1], None, None),
        ([1, None], [3], None, [0, 1]),
        ([{"x": 1}, None, {"x": None}], [3, 3], None, [0, 2, 1]),
        ([[1], [2, 3]], [1, 2], [1, 1, 0], None),
        ([[1], None], [1, 4], [1, 1], [0, 1]),
        ([[1], []], [1, 5], [1, 1], [0, 1]),
        ([[[1], [2, 3]], [[4]]], [1, 2, 2], [2, 1, 0, 2], None),
        ([[[1], []], None, [None, [2]]], [1, 6, 4], [2, 1, 2, 2, 1], [0, 2, 3, 1, 0]),
        ([{"x": [1]}, None], [1, 4, 3], [1, 1], [0, 2]),
    ],
    ids=str,
)
def test_levels_of_small_arrays(values, layers, repetition, definition):
    _, (column,) = columns_of(pa.array(values))
    assert [int(layer) for layer in column.levels.layers] == layers
    assert (None if column.levels.repetition is None else column.levels.repetition.tolist()) == repetition
    assert (None if column.levels.definition is None else column.levels.definition.tolist()) == definition


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32))
def test_arrays_survive_levels(seed):
    array = random_table(seed, max_rows=60)["c"].combine_chunks()
    if any(pa.types.is_dictionary(column.values.type) for column in columns_of(array)[1]):
        return
    rebuilt = rebuild(array)
    rebuilt.validate(full=True)
    assert rebuilt.to_pylist() == array.to_pylist()


def test_items_hidden_by_null_lists_are_left_out():
    offsets = pa.array([0, 2, 4], pa.int32())
    hidden = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4]), mask=pa.array([True, False]))
    _, (column,) = columns_of(hidden)
    assert column.values.to_pylist() == [3, 4]
    assert rebuild(hidden).to_pylist() == [None, [3, 4]]


def test_lists_below_null_structs_are_left_out():
    lists = pa.array([[1, 2], [3]])
    structs = pa.StructArray.from_arrays([lists], ["x"], mask=pa.array([True, False]))
    assert rebuild(structs).to_pylist() == [None, {"x": [3]}]


def test_levels_that_the_layers_do_not_hand_out_are_rejected():
    _, (column,) = columns_of(pa.array([[1], None]))
    broken = column.levels.definition.copy()
    broken[0] = 9
    levels = Levels(layers=column.levels.layers, num_levels=2, repetition=column.levels.repetition, definition=broken)
    with pytest.raises(CorruptFileError, match="definition level 9"):
        unravel(levels)


def test_null_mask_honours_slices():
    array = pa.array([None if i % 3 == 0 else i for i in range(50)])
    for start in (0, 1, 7, 8, 9):
        part = array.slice(start, 30)
        assert find_nulls(part).tolist() == [value is None for value in part.to_pylist()]


def test_columns_of_one_field_must_have_the_same_lists():
    values = pa.array([[{"x": 1, "y": 2}, {"x": 3, "y": 4}], [{"x": 5, "y": 6}]])
    field = schema_from_arrow(pa.schema([pa.field("c", values.type)])).fields[0]

    def column(name, lengths):
        structs = [[{name: 0}] * length for length in lengths]
        return pa.array(structs, pa.list_(pa.struct([pa.field(name, pa.int64())])))

    assert merge_columns(field, [column("x", [2, 1]), column("y", [2, 1])]).type == values.type
    for lengths in ([1, 2], [3, 0], [2, 2]):
        with pytest.raises(CorruptFileError, match="do not have the same lists"):
            merge_columns(field, [column("x", [2, 1]), column("y", lengths)])


def test_columns_of_one_struct_must_have_as_many_rows():
    field = schema_from_arrow(pa.schema([pa.field("c", pa.struct({"x": pa.int64(), "y": pa.int64()}))])).fields[0]
    columns = [pa.array([{"x": 1}, {"x": 2}]), pa.array([{"y": 1}])]
    with pytest.raises(CorruptFileError, match="different lengths"):
        merge_columns(field, columns)


@pytest.mark.parametrize(
    ("bits", "expected"), [((0, 0), 0), ((1, 0), 1), ((4, 4), 1), ((4, 5), 2), ((8, 8), 2), ((8, 9), 4), ((16, 16), 4)]
)
def test_control_words_of_zipped_pages_are_as_short_as_their_bits_allow(bits, expected):
    """As pylance counts: another width would make its pages and ours unreadable for each other."""
    assert control_bytes(*bits) == expected
