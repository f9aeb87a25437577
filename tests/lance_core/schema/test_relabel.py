import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core.errors import SchemaError
from lance_core.schema.relabel import relabel
from tests.arrow_data import random_table
from tests.support.hypothesis_settings import examples


def renamed(kind):
    """A type that stores the same: fields the other way round, other names, no views."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, renamed(field.type), metadata={"a": "b"}) for field in reversed(kind)])
    if types.is_map(kind):
        return pa.map_(renamed(kind.key_type), pa.field("other", renamed(kind.item_type)))
    if types.is_list(kind):
        return pa.list_(pa.field("other", renamed(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(pa.field("other", renamed(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(pa.field("other", renamed(kind.value_type)), kind.list_size)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def sorted_by_name(value):
    if isinstance(value, dict):
        return {name: sorted_by_name(value[name]) for name in sorted(value)}
    return [sorted_by_name(item) for item in value] if isinstance(value, (list, tuple)) else value


@given(seed=st.integers(0, 2**32))
@examples(200)
def test_values_stay(seed):
    array = random_table(seed)["c"].chunk(0)
    found = relabel(array, renamed(array.type))
    assert found.type == renamed(array.type)
    assert sorted_by_name(found.to_pylist()) == sorted_by_name(array.to_pylist())


def test_lists_of_nothing_keep_their_lengths():
    array = pa.array([[None] * 3, None, [], [None] * 2], pa.list_(pa.null()))
    for part in (array, array.slice(1), array.slice(3)):
        found = relabel(part, pa.list_(pa.field("element", pa.null())))
        found.validate(full=True)
        assert found.to_pylist() == part.to_pylist()


def test_nothing_is_copied():
    array = pa.array([[{"a": 1, "b": "x"}], None], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])))
    found = relabel(array, renamed(array.type))
    assert found.values.field("a").buffers()[1].address == array.values.field("a").buffers()[1].address


def test_dictionaries_and_extension_types():
    array = pa.array(["a", None, "b"]).dictionary_encode()
    ordered = pa.dictionary(pa.int32(), pa.string(), ordered=True)
    assert relabel(array, ordered).to_pylist() == array.to_pylist()
    assert relabel(relabel(array, ordered), array.type) == array
    uuids = pa.array([b"0" * 16], pa.uuid())
    assert relabel(uuids, pa.binary(16)).type == pa.binary(16)
    assert relabel(relabel(uuids, pa.binary(16)), pa.uuid()) == uuids


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (pa.int32(), pa.int64()),
        (pa.string(), pa.large_string()),
        (pa.list_(pa.int8()), pa.list_(pa.int16())),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
        (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int16(), pa.string())),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    ],
    ids=str,
)
def test_what_is_stored_in_another_way_is_rejected(kind, target):
    with pytest.raises(SchemaError):
        relabel(pa.nulls(2, kind), target)
