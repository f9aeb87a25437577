"""The schema layer alone: ids, paths, projection, and the round trips to Arrow and protobuf."""

import dataclasses

import pyarrow as pa
import pytest

from lance_core.errors import CorruptFileError, SchemaError, UnsupportedError
from lance_core.schema import (
    quote_path,
    resolve_extensions,
    schema_from_arrow,
    schema_from_bytes,
    schema_from_protobuf,
    schema_to_arrow,
    schema_to_bytes,
    schema_to_protobuf,
    split_path,
)
from lance_core.schema.forms import field_to_arrow

STORABLE = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(),
    pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(),
    pa.large_binary(), pa.binary(7), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
    pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "+05:00"),
    pa.timestamp("us", "America/New_York"), pa.duration("s"), pa.duration("ns"), pa.decimal128(12, 3),
    pa.decimal256(50, -2), pa.list_(pa.float32(), 16), pa.list_(pa.list_(pa.int8(), 2), 3),
    pa.list_(pa.timestamp("us", "+01:00"), 2), pa.list_(pa.int8()), pa.large_list(pa.string()),
    pa.list_(pa.field("element", pa.float32(), nullable=False)), pa.list_(pa.struct([("x", pa.int8())])),
    pa.large_list(pa.struct([("x", pa.list_(pa.binary()))])), pa.struct([("a", pa.int8()), ("b", pa.string())]),
    pa.map_(pa.string(), pa.list_(pa.int64())), pa.list_(pa.struct([("x", pa.int8())]), 2),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_binary()),
]  # fmt: skip


@pytest.mark.parametrize("kind", STORABLE, ids=str)
def test_every_storable_type_survives_arrow_and_protobuf(kind: pa.DataType) -> None:
    arrow = pa.schema(
        [pa.field("a", kind, nullable=pa.types.is_null(kind), metadata={"k": "v"}), pa.field("b", kind)], {"s": "m"}
    )
    schema = schema_from_arrow(arrow)
    wire = schema_from_protobuf(schema_to_protobuf(schema), schema.metadata)
    assert wire == schema
    assert schema_to_arrow(wire).equals(arrow, check_metadata=True)


def test_ids_are_depth_first_and_parents_are_named() -> None:
    arrow = pa.schema(
        [("a", pa.int8()), ("l", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.int8())]))), ("z", pa.int8())]
    )
    flat = schema_to_protobuf(schema_from_arrow(arrow))
    assert [(f.name, f.id, f.parent_id) for f in flat] == [
        ("a", 0, -1), ("l", 1, -1), ("item", 2, 1), ("x", 3, 2), ("y", 4, 2), ("z", 5, -1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal32(3, 1),
        pa.month_day_nano_interval(),
        pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int32(), pa.int8()),
    ],
)
def test_a_type_the_format_lacks_is_rejected_by_column_name(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedError, match=r"'s\.x'"):
        schema_from_arrow(pa.schema([("s", pa.struct([("x", kind)]))]))


def test_extension_types_keep_their_parameters() -> None:
    arrow = pa.schema([("u", pa.uuid()), ("t", pa.fixed_shape_tensor(pa.float32(), [2, 3]))])
    back = resolve_extensions(schema_to_arrow(schema_from_arrow(arrow)))
    assert back.types == arrow.types


def test_a_repeated_column_name_is_rejected() -> None:
    with pytest.raises(SchemaError, match="'a'"):
        schema_from_arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_a_child_before_its_parent_is_corrupt() -> None:
    flat = schema_to_protobuf(schema_from_arrow(pa.schema([("l", pa.list_(pa.int8()))])))
    with pytest.raises(CorruptFileError, match="item"):
        schema_from_protobuf(reversed(flat), {})


def test_projection_keeps_order_and_merges_paths_into_one_struct() -> None:
    inner = pa.struct([("x", pa.int8()), ("y", pa.struct([("p", pa.int8()), ("q", pa.int8())]))])
    schema = schema_from_arrow(pa.schema([("a", pa.int8()), ("s", inner), ("dotted.name", pa.int8())]))
    assert schema.project(["dotted.name", "a"]).names == ["dotted.name", "a"]
    picked = schema.project(["s.y.q", "s.x"])
    assert schema_to_arrow(picked).field("s").type == pa.struct(
        [("y", pa.struct([("q", pa.int8())])), ("x", pa.int8())]
    )
    assert [f.id for f, _ in picked.walk()] == [1, 3, 5, 2]
    for wrong in (["b"], ["s.z"], ["a", "a"]):
        with pytest.raises(SchemaError):
            schema.project(wrong)


def test_only_ids_keeps_the_parents_of_kept_leaves() -> None:
    schema = schema_from_arrow(
        pa.schema([("a", pa.int8()), ("l", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.int8())])))])
    )
    assert [f.name for f, _ in schema.only_ids({4}).walk()] == ["l", "item", "y"]
    assert schema.only_ids(set()).fields == ()


def test_paths_quote_and_split_back() -> None:
    for parts in (["a"], ["a.b", "c"], ["`x"], ["a`.b", "c"]):
        assert split_path(quote_path(parts)) == parts
    for wrong in ("", "a..b", "`a", "`a`b"):
        with pytest.raises(SchemaError):
            split_path(wrong)


def test_bytes_round_trip() -> None:
    schema = schema_from_arrow(pa.schema([("a", pa.int8()), ("l", pa.list_(pa.int8()))], {"k": "v"}))
    assert schema_from_bytes(schema_to_bytes(schema)) == schema


def test_keys_of_metadata_that_are_no_text_are_rejected() -> None:
    for schema in (pa.schema([], {b"\xff": b""}), pa.schema([pa.field("a", pa.int8(), metadata={b"\xff": b""})])):
        with pytest.raises(SchemaError, match="no UTF-8"):
            schema_from_arrow(schema)


@pytest.mark.parametrize("length", [-1, 2**31, 2**63])
def test_a_list_of_an_impossible_length(length):
    structs = pa.list_(pa.struct([("x", pa.int8())]), 2)
    for kind in (structs, pa.list_(pa.int8(), 2)):
        (field,) = schema_from_arrow(pa.schema([("v", kind)])).fields
        damaged = dataclasses.replace(field, logical_type=field.logical_type.replace(":2", f":{length}"))
        with pytest.raises(CorruptFileError, match=f"lists of {length} items"):
            field_to_arrow(damaged)
