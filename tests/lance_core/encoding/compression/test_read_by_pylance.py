"""Files of one mini-block page, put together by hand around what the compressions write, read by pylance."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from lance.file import LanceFileReader

from lance_core._proto.encodings_v2_1_pb2 import (
    REPDEF_ALL_VALID_ITEM,
    REPDEF_NULLABLE_ITEM,
    MiniBlockLayout,
    PageLayout,
)
from lance_core._proto.file2_pb2 import ColumnMetadata
from lance_core._proto.file_pb2 import Field, FileDescriptor
from lance_core.encoding.compression.chunks import ChunkBuffers, MiniBlockPage
from lance_core.encoding.compression.registry import encode_block, encode_blocks, encode_miniblock
from lance_core.encoding.datablock import FixedWidthBlock, view_array_as_block

ROWS = 10_000


def padded(data: bytes, width: int, fill: bytes = b"\xfe") -> bytes:
    return data + fill * (-len(data) % width)


def chunk_data(page: MiniBlockPage, levels: ChunkBuffers | None, *, large: bool) -> tuple[bytes, bytes]:
    """Chunk meta and chunks."""
    out, words = b"", []
    for index, count in enumerate(page.counts.tolist()):
        values = [buffer.piece(index).tobytes() for buffer in page.buffers]
        level = b"" if levels is None else levels.piece(index).tobytes()
        head = (0 if levels is None else count).to_bytes(2, "little")
        head += b"" if levels is None else len(level).to_bytes(2, "little")
        head += b"".join(len(v).to_bytes(4 if large else 2, "little") for v in values)
        chunk = b"".join(padded(part, 8) for part in [head, *([] if levels is None else [level]), *values])
        last = index == page.counts.size - 1
        words.append((len(chunk) // 8 - 1) << 4 | (0 if last else count.bit_length() - 1))
        out += chunk
    return np.array(words, np.uint32 if large else np.uint16).tobytes(), out


def write_file(
    path: Path, field: Field, layout: MiniBlockLayout, buffers: list[bytes], version: tuple[int, int]
) -> None:
    out = b""

    def put(data: bytes) -> tuple[int, int]:
        nonlocal out
        out = padded(out, 64)
        at = len(out)
        out += data
        return at, len(data)

    metadata = ColumnMetadata()
    metadata.encoding.direct.encoding = AnyMessage(
        type_url="/lance.encodings.ColumnEncoding", value=bytes.fromhex("0a00")
    ).SerializeToString()
    page = metadata.pages.add(length=layout.num_items)
    for buffer in buffers:
        at, size = put(buffer)
        page.buffer_offsets.append(at)
        page.buffer_sizes.append(size)
    page.encoding.direct.encoding = AnyMessage(
        type_url="/lance.encodings21.PageLayout", value=PageLayout(mini_block_layout=layout).SerializeToString()
    ).SerializeToString()
    descriptor = FileDescriptor(length=layout.num_items)
    getattr(descriptor, "schema").fields.append(field)  # noqa: B009
    schema_at = put(descriptor.SerializeToString())
    column_at = put(metadata.SerializeToString())
    first = len(out)
    out += b"".join(n.to_bytes(8, "little") for n in column_at)
    second = len(out)
    out += b"".join(n.to_bytes(8, "little") for n in schema_at)
    out += b"".join(n.to_bytes(8, "little") for n in (column_at[0], first, second))
    out += b"".join(n.to_bytes(4, "little") for n in (1, 1))
    out += b"".join(n.to_bytes(2, "little") for n in version) + b"LANC"
    path.write_bytes(out)


@cache
def examples() -> dict[str, tuple[pa.Array, str, str]]:
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, int(n)))) for n in rng.integers(0, 30, ROWS)]
    rare = [word + chr(0x100 + i % 700) if i % 20 == 0 else word for i, word in enumerate(words)]
    few = np.repeat(rng.integers(0, 2**40, ROWS // 100), 100)
    rounded = np.round(rng.normal(size=ROWS), 1)
    return {
        "flat": (pa.array(rng.integers(-(2**62), 2**62, ROWS)), "int64", "flat"),
        "bits": (pa.array(rng.integers(0, 2, ROWS).astype(bool)), "bool", "flat"),
        "inline-64": (pa.array(rng.integers(0, 2**33, ROWS)), "int64", "inline_bitpacking"),
        "inline-32": (pa.array(rng.integers(0, 2**7, ROWS).astype(np.int32)), "int32", "inline_bitpacking"),
        "inline-16": (pa.array(rng.integers(0, 2**9, ROWS).astype(np.uint16)), "uint16", "inline_bitpacking"),
        "inline-8": (pa.array(rng.integers(0, 2**3, ROWS).astype(np.uint8)), "uint8", "inline_bitpacking"),
        "rle-64": (pa.array(few), "int64", "rle"),
        "rle-8": (pa.array((few % 100).astype(np.int8)), "int8", "rle"),
        "rle-long": (pa.array(np.repeat(few[::100], 100).astype(np.float32)), "float", "rle"),
        "variable": (pa.array(words), "string", "variable"),
        "large": (pa.array(words, pa.large_string()), "large_string", "variable"),
        "lz4": (pa.array(rounded), "double", "general:lz4(flat)"),
        "lz4-planes": (pa.array(rounded), "double", "general:lz4(byte_stream_split)"),
        "lz4-strings": (pa.array(words), "string", "general:lz4(variable)"),
        "zstd-strings": (pa.array(words), "string", "general:zstd(variable)"),
        "fsst": (pa.array(words), "string", "fsst(variable)"),
        "fsst-large": (pa.array(words, pa.large_string()), "large_string", "fsst(variable)"),
        "fsst-escapes": (pa.array(rare), "string", "fsst(variable)"),
        "zstd-packed": (pa.array(few), "int64", "general:zstd(inline_bitpacking)"),
        "zstd-runs": (pa.array(few), "int64", "general:zstd(rle)"),
        "lists": (
            pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * 5, dtype=np.float32)), 5),
            "fixed_size_list:float:5",
            "fixed_size_list",
        ),
        "lists-with-nulls": (
            pa.FixedSizeListArray.from_arrays(
                pa.array(rng.integers(0, 99, ROWS * 3).astype(np.int16), mask=rng.random(ROWS * 3) < 0.2), 3
            ),
            "fixed_size_list:int16:3",
            "fixed_size_list",
        ),
    }


def layout_of(page: MiniBlockPage, *, large: bool) -> MiniBlockLayout:
    return MiniBlockLayout(
        value_compression=page.encoding,
        num_buffers=len(page.buffers),
        num_items=int(page.counts.sum()),
        layers=[REPDEF_ALL_VALID_ITEM],
        has_large_chunk=large,
    )


def read(path: Path) -> Any:
    return LanceFileReader(str(path)).read_all().to_table().column(0).combine_chunks()


@pytest.mark.parametrize("version", [(2, 1), (2, 2)])
@pytest.mark.parametrize("name", list(examples()))
def test_values(name: str, version: tuple[int, int], tmp_path: Path) -> None:
    array, logical, compression = examples()[name]
    large = version == (2, 2)
    limits = {"max_bytes": 100_000, "max_values": 4096} if large else {"max_bytes": 16_384, "max_values": 2048}
    page = encode_miniblock(view_array_as_block(array), compression, **limits)
    field = Field(name="v", id=0, parent_id=-1, logical_type=logical, nullable=True)
    path = tmp_path / "v.lance"
    write_file(path, field, layout_of(page, large=large), list(chunk_data(page, None, large=large)), version)
    assert read(path).equals(array)
    taken = LanceFileReader(str(path)).take_rows([0, 1, 4095, 5000, ROWS - 1]).to_table().column(0)
    assert taken.to_pylist() == [array[i].as_py() for i in (0, 1, 4095, 5000, ROWS - 1)]


LEVELS = ["flat", "out_of_line_bitpacking", "out_of_line_bitpacking:3", "inline_bitpacking"]


@pytest.mark.parametrize(
    ("compression", "version"),
    [*itertools.product(LEVELS, [(2, 1), (2, 2)]), ("rle", (2, 2))],  # levels are stored as runs since 2.2
)
@pytest.mark.parametrize("rows", [ROWS, 1100, 1700])
def test_levels(compression: str, version: tuple[int, int], rows: int, tmp_path: Path) -> None:
    large = version == (2, 2)
    array = pa.array(np.arange(rows), mask=np.random.default_rng(0).random(rows) < 0.1)
    page = encode_miniblock(view_array_as_block(array), "inline_bitpacking")
    definition = np.asarray(array.is_null()).astype(np.uint16)
    block = FixedWidthBlock(data=definition.view(np.uint8), bits_per_value=16, num_values=rows)
    encoding, levels = encode_blocks(block, compression, page.counts)
    layout = layout_of(page, large=large)
    layout.def_compression.CopyFrom(encoding)
    layout.layers[0] = REPDEF_NULLABLE_ITEM
    field = Field(name="v", id=0, parent_id=-1, logical_type="int64", nullable=True)
    path = tmp_path / "v.lance"
    write_file(path, field, layout, list(chunk_data(page, levels, large=large)), version)
    assert read(path).equals(array)


@pytest.mark.parametrize("version", [(2, 1), (2, 2)])
@pytest.mark.parametrize("compression", ["variable", "general:lz4(variable)", "general:zstd(variable)"])
@pytest.mark.parametrize("logical", ["string", "large_string"])
def test_dictionary_items(compression: str, logical: str, version: tuple[int, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = pa.array([f"item number {i}" for i in range(40)], logical)
    indices = rng.integers(0, 40, ROWS).astype(np.uint32)
    large = version == (2, 2)
    page = encode_miniblock(view_array_as_block(pa.array(indices)), "inline_bitpacking")
    layout = layout_of(page, large=large)
    encoding, data = encode_block(view_array_as_block(items), compression)
    layout.dictionary.CopyFrom(encoding)
    layout.num_dictionary_items = 40
    field = Field(name="v", id=0, parent_id=-1, logical_type=logical, nullable=True)
    path = tmp_path / "v.lance"
    write_file(path, field, layout, [*chunk_data(page, None, large=large), data.tobytes()], version)
    assert read(path).equals(items.take(pa.array(indices)))
