"""Arrow arrays to blocks and back."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from lance_core.encoding.datablock import (
    FixedSizeListBlock,
    FixedWidthBlock,
    NullBlock,
    PackedStructBlock,
    VariableBlock,
    block_to_array,
    compute_offsets,
    view_array_as_block,
)
from lance_core.errors import CorruptFileError, UnsupportedError

NOW = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)

ARRAYS = {
    "int8": pa.array([1, -2, 3, 4] * 5, pa.int8()),
    "float16": pa.array(np.arange(20).astype(np.float16)),
    "bool": pa.array([True, False, False, True, True] * 4),
    "decimal128": pa.array([decimal.Decimal(f"{i}.25") for i in range(20)], pa.decimal128(10, 2)),
    "decimal256": pa.array([decimal.Decimal(i) for i in range(20)], pa.decimal256(50, 0)),
    "timestamp": pa.array([NOW] * 20, pa.timestamp("us", "UTC")),
    "date64": pa.array([NOW.date()] * 20, pa.date64()),
    "time32": pa.array(range(20), pa.time32("s")),
    "duration": pa.array(range(20), pa.duration("ns")),
    "binary3": pa.array([bytes([i] * 3) for i in range(20)], pa.binary(3)),
    "string": pa.array(["a" * i for i in range(20)]),
    "large_binary": pa.array([b"b" * i for i in range(20)], pa.large_binary()),
    "list": pa.array([[i, i + 1, None] for i in range(20)], pa.list_(pa.int16(), 3)),
    "list-of-bits": pa.array([[True, None, False]] * 20, pa.list_(pa.bool_(), 3)),
    "lists": pa.array([[[i, None], [3, 4]] for i in range(20)], pa.list_(pa.list_(pa.float32(), 2), 2)),
    "struct": pa.array([{"x": i, "y": "z" * i} for i in range(20)]),
    "null": pa.nulls(20),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes([i] * 16) for i in range(20)], pa.binary(16))),
}


@pytest.mark.parametrize("name", list(ARRAYS))
@pytest.mark.parametrize("start", [0, 1, 8, 13, 20])
def test_there_and_back(name: str, start: int) -> None:
    array = ARRAYS[name].slice(start, 5)
    block = view_array_as_block(array)
    assert block.num_values == len(array)
    found = block_to_array(block, array.type)
    found.validate(full=True)
    assert found.equals(array)


def test_validity_is_put_back() -> None:
    array = pa.array([1, None, 3])
    assert block_to_array(view_array_as_block(array), pa.int64(), array.buffers()[0]).equals(array)
    text = pa.array(["a", None, "c"])
    assert block_to_array(view_array_as_block(text), pa.string(), text.buffers()[0]).equals(text)


def test_nothing_is_copied() -> None:
    array = pa.array(np.arange(1000)).slice(100)
    found = block_to_array(view_array_as_block(array), array.type)
    assert found.buffers()[1].address == array.buffers()[1].address + 800
    text = pa.array(["abc"] * 100).slice(7)
    found = block_to_array(view_array_as_block(text), text.type)
    assert found.buffers()[2].address == text.buffers()[2].address


def test_unaligned_memory_is_moved() -> None:
    raw = np.arange(81, dtype=np.uint8)[1:]
    found = block_to_array(FixedWidthBlock(data=raw, bits_per_value=64, num_values=10), pa.int64())
    assert found.buffers()[1].address % 8 == 0
    assert found.to_numpy().tobytes() == raw.tobytes()


def test_views_and_dictionaries_become_plain() -> None:
    words = ["short", "a string that is longer than twelve bytes", ""]
    view = pa.array(words, pa.string_view())
    assert block_to_array(view_array_as_block(view), pa.string()).to_pylist() == words
    coded = pa.array(words * 3).dictionary_encode()
    assert block_to_array(view_array_as_block(coded), pa.string()).to_pylist() == words * 3


def test_offsets_change_width() -> None:
    text = pa.array(["a", "bc"])
    assert block_to_array(view_array_as_block(text), pa.large_string()).to_pylist() == ["a", "bc"]
    large = pa.array(["a", "bc"], pa.large_string())
    assert block_to_array(view_array_as_block(large), pa.string()).to_pylist() == ["a", "bc"]
    far = VariableBlock(offsets=np.array([2**31, 2**31 + 2]), data=np.empty(0, np.uint8), num_values=1)
    with pytest.raises(CorruptFileError):
        block_to_array(far, pa.large_string())
    wide = VariableBlock(offsets=np.array([0, 2**31]), data=np.empty(0, np.uint8), num_values=1)
    with pytest.raises(UnsupportedError, match="fewer rows"):
        block_to_array(wide, pa.string())


def test_offsets_of() -> None:
    assert compute_offsets(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert compute_offsets(np.array([2, 0, 3])).dtype == np.int32
    assert compute_offsets(np.array([2**31 - 1, 1])).dtype == np.int64


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (FixedWidthBlock(data=np.zeros(16, np.uint8), bits_per_value=64, num_values=2), pa.int32()),
        (FixedWidthBlock(data=np.zeros(15, np.uint8), bits_per_value=64, num_values=2), pa.int64()),
        (FixedWidthBlock(data=np.zeros(16, np.uint8), bits_per_value=64, num_values=2), pa.string()),
        (FixedWidthBlock(data=np.zeros(16, np.uint8), bits_per_value=64, num_values=2), pa.list_(pa.int32(), 3)),
        (FixedWidthBlock(data=np.zeros(16, np.uint8), bits_per_value=64, num_values=2), pa.list_(pa.int64())),
        (VariableBlock(offsets=np.array([0, 1]), data=np.zeros(1, np.uint8), num_values=1), pa.int64()),
        (VariableBlock(offsets=np.array([0, 2]), data=np.zeros(1, np.uint8), num_values=1), pa.string()),
        (VariableBlock(offsets=np.array([0, 1]), data=np.zeros(1, np.uint8), num_values=2), pa.string()),
        (PackedStructBlock(children=(NullBlock(num_values=1),), num_values=1), pa.struct([])),
        (PackedStructBlock(children=(NullBlock(num_values=1),), num_values=2), pa.struct([("a", pa.null())])),
        (
            FixedSizeListBlock(items=NullBlock(num_values=3), dimension=2, validity=None, num_values=2),
            pa.list_(pa.null(), 2),
        ),
        (
            FixedSizeListBlock(items=NullBlock(num_values=4), dimension=2, validity=None, num_values=2),
            pa.list_(pa.null(), 4),
        ),
    ],
)
def test_blocks_that_do_not_fit_the_type(block: object, kind: pa.DataType) -> None:
    with pytest.raises(CorruptFileError):
        block_to_array(block, kind)  # type: ignore[arg-type]


def test_short_validity() -> None:
    block = FixedWidthBlock(data=np.zeros(80, np.uint8), bits_per_value=64, num_values=10)
    with pytest.raises(CorruptFileError, match="validity"):
        block_to_array(block, pa.int64(), pa.py_buffer(b"\xff"))


def test_lists_have_no_block() -> None:
    with pytest.raises(UnsupportedError, match="list"):
        view_array_as_block(pa.array([[1], [2, 3]]))
