"""Pages that pylance wrote, cut out of its files by hand, decoded by the compressions alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, MiniBlockLayout, PageLayout
from lance_core._proto.file2_pb2 import ColumnMetadata
from lance_core.encoding.compression.chunks import ChunkBuffers
from lance_core.encoding.compression.registry import decode_block, decode_blocks, decode_miniblock, decode_per_value
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, block_to_array, view_array_as_block

ROWS = 20_000


@dataclass
class Page:
    layout: PageLayout
    buffers: list[np.ndarray]
    length: int


def pages_of_column(path: Path, column: int) -> Iterator[Page]:
    data = np.fromfile(path, np.uint8)
    assert data[-4:].tobytes() == b"LANC"
    positions, _ = int(data[-40:-32].view("<u8")[0]), None
    table = int(data[-32:-24].view("<u8")[0]) + column * 16
    position, size = data[table : table + 16].view("<u8").tolist()
    assert position >= positions
    metadata = ColumnMetadata.FromString(data[position : position + size].tobytes())
    for page in metadata.pages:
        wrapped = AnyMessage.FromString(page.encoding.direct.encoding)
        layout = PageLayout.FromString(wrapped.value)
        spans = zip(page.buffer_offsets, page.buffer_sizes, strict=True)
        yield Page(layout=layout, buffers=[data[o : o + s] for o, s in spans], length=page.length)


@dataclass
class Chunks:
    values: list[ChunkBuffers]
    counts: np.ndarray
    definition: ChunkBuffers | None
    num_levels: np.ndarray


def take_apart(layout: MiniBlockLayout, meta: np.ndarray, data: np.ndarray) -> Chunks:
    words = meta.view("<u4" if layout.has_large_chunk else "<u2").astype(np.int64)
    counts = 1 << (words & 15)
    counts[-1] = layout.num_items - counts[:-1].sum()
    sizes = ((words >> 4) + 1) * 8
    level_buffers = layout.HasField("rep_compression") + layout.HasField("def_compression")
    width = 4 if layout.has_large_chunk else 2
    places: list[list[tuple[int, int]]] = [[] for _ in range(level_buffers + layout.num_buffers)]
    num_levels = []
    start = 0
    for size in sizes.tolist():
        num_levels.append(int(data[start : start + 2].view("<u2")[0]))
        at = start + 2
        lengths = []
        for index in range(len(places)):
            step = 2 if index < level_buffers else width
            lengths.append(int.from_bytes(data[at : at + step].tobytes(), "little"))
            at += step
        at = start + -(-(at - start) // 8) * 8
        for place, length in zip(places, lengths, strict=True):
            place.append((at, length))
            at += -(-length // 8) * 8
        start += size
    found = [
        ChunkBuffers(data=data, starts=np.array([p for p, _ in x]), sizes=np.array([s for _, s in x])) for x in places
    ]
    return Chunks(
        values=found[level_buffers:],
        counts=counts,
        definition=found[level_buffers - 1] if layout.HasField("def_compression") else None,
        num_levels=np.array(num_levels),
    )


def decode_page(page: Page, kind: pa.DataType) -> tuple[pa.Array, list[str]]:
    """The values of a page without lists, and the names of the compressions in it."""
    layout = page.layout.mini_block_layout
    chunks = take_apart(layout, page.buffers[0], page.buffers[1])
    block: DataBlock = decode_miniblock(layout.value_compression, chunks.values, chunks.counts)
    names = [name_of(layout.value_compression)]
    if layout.num_dictionary_items:
        names.append("dictionary:" + name_of(layout.dictionary))
        items = decode_block(layout.dictionary, page.buffers[2], layout.num_dictionary_items)
        assert isinstance(block, FixedWidthBlock)
        block = view_array_as_block(block_to_array(items, kind).take(pa.array(block.view())))
    if chunks.definition is None:
        return block_to_array(block, kind), names
    names.append("levels:" + name_of(layout.def_compression))
    levels = decode_blocks(layout.def_compression, chunks.definition, chunks.num_levels)
    assert isinstance(levels, FixedWidthBlock)
    valid = np.packbits(levels.view() == 0, bitorder="little")
    return block_to_array(block, kind, pa.py_buffer(valid)), names


def name_of(encoding: CompressiveEncoding) -> str:
    name = encoding.WhichOneof("compression") or ""
    inner = getattr(encoding, name)
    if name == "general":
        return f"general:{inner.compression.scheme}({name_of(inner.values)})"
    if name in ("fsst", "fixed_size_list", "packed_struct"):
        return f"{name}({name_of(inner.values)})"
    return name


def written(path: Path, array: pa.Array, version: str, metadata: dict[str, str]) -> Path:
    field = pa.field("v", array.type, metadata=metadata)
    table = pa.table([array], schema=pa.schema([field]))
    lance.write_dataset(table, path, data_storage_version=version)
    (found,) = (path / "data").iterdir()
    return found


def random_words(rng: np.random.Generator, count: int) -> list[str]:
    words = [bytes(rng.integers(97, 123, int(k), dtype=np.uint8)).decode() for k in rng.integers(2, 9, 400)]
    return [" ".join(words[i] for i in rng.integers(0, 400, 4)) for _ in range(count)]


def with_nulls(array: pa.Array, rng: np.random.Generator) -> pa.Array:
    return pa.array(array.to_pylist(), array.type, mask=rng.random(len(array)) < 0.1)


@cache
def examples() -> dict[str, tuple[pa.Array, dict[str, str], str]]:
    """Arrays, field metadata, and the compression that pylance is expected to choose (a part of its name)."""
    rng = np.random.default_rng(7)
    strings = random_words(rng, ROWS)
    odd = [s + "\u00e9\u4e16\u00ff"[i % 4 : i % 4 + 1] + chr(256 + i % 5000) for i, s in enumerate(strings)]
    raw = [bytes(rng.integers(0, 256, 12, dtype=np.uint8)) for _ in range(ROWS)]
    numbers = rng.integers(0, 2**40, ROWS)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=ROWS * 6).astype(np.float32)), 6)
    holes = pa.FixedSizeListArray.from_arrays(with_nulls(pa.array(np.arange(ROWS * 3)), rng), 3)
    deep = pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(with_nulls(pa.array(np.arange(ROWS * 6, dtype=np.int16)), rng), 3), 2
    )
    packed = pa.StructArray.from_arrays([pa.array(np.arange(ROWS)), pa.array(rng.random(ROWS))], ["a", "b"])
    return {
        "int64-40-bits": (pa.array(numbers), {}, "inline_bitpacking"),
        "int64-sequence": (pa.array(np.arange(ROWS)), {}, "inline_bitpacking"),
        "int64-wide": (pa.array(rng.integers(-(2**62), 2**62, ROWS)), {}, "flat"),
        "uint8-5-bits": (pa.array(rng.integers(0, 32, ROWS, dtype=np.uint8)), {}, "inline_bitpacking"),
        "uint16-9-bits": (pa.array(rng.integers(0, 512, ROWS, dtype=np.uint16)), {}, "inline_bitpacking"),
        "uint32-17-bits": (pa.array(rng.integers(0, 2**17, ROWS, dtype=np.uint32)), {}, "inline_bitpacking"),
        "int32-runs": (pa.array(np.repeat(rng.integers(0, 2**31, ROWS // 40), 40).astype(np.int32)), {}, ""),
        "int64-long-runs": (pa.array(np.repeat(rng.integers(-(2**60), 2**60, ROWS // 500), 500)), {}, ""),
        "float32-runs": (pa.array(np.repeat(rng.random(ROWS // 7 + 1), 7)[:ROWS].astype(np.float32)), {}, ""),
        "float64-nulls": (with_nulls(pa.array(rng.normal(size=ROWS)), rng), {}, "levels:"),
        "int32-nulls": (with_nulls(pa.array(rng.integers(0, 1000, ROWS).astype(np.int32)), rng), {}, "levels:"),
        "bool": (pa.array(rng.integers(0, 2, ROWS).astype(bool)), {}, "flat"),
        "decimal": (pa.array(np.arange(ROWS)).cast(pa.decimal128(19, 0)), {}, "flat"),
        "fixed-size-binary": (pa.array([r[:3] for r in raw], pa.binary(3)), {}, "flat"),
        "strings-fsst": (pa.array(strings), {}, "fsst(variable)"),
        "strings-escapes": (pa.array(odd), {}, "fsst(variable)"),
        "strings-nulls": (with_nulls(pa.array(strings), rng), {}, "fsst(variable)"),
        "large-strings": (pa.array(strings, pa.large_string()), {}, "fsst(variable)"),
        "binary": (pa.array(raw), {}, "variable"),
        "binary-fsst": (pa.array(raw), {"lance-encoding:compression": "fsst"}, "fsst"),
        "strings-few": (pa.array([strings[i % 50] for i in range(ROWS)]), {}, "dictionary:"),
        "strings-few-nulls": (with_nulls(pa.array([strings[i % 900] for i in range(ROWS)]), rng), {}, "dictionary:"),
        "int64-few": (pa.array(rng.integers(0, 2**62, 40)[rng.integers(0, 40, ROWS)]), {}, ""),
        "zstd": (pa.array(numbers), {"lance-encoding:compression": "zstd"}, "general:2"),
        "lz4-floats": (
            pa.array(np.round(rng.normal(size=ROWS), 2).astype(np.float32)),
            {"lance-encoding:compression": "lz4"},
            "",
        ),
        "lz4-floats-split": (
            pa.array(np.linspace(0, 1, ROWS)),
            {"lance-encoding:compression": "zstd", "lance-encoding:bss": "on", "lance-encoding:rle-threshold": "0"},
            "byte_stream_split",
        ),
        "zstd-strings": (pa.array(strings), {"lance-encoding:compression": "zstd"}, "general:2"),
        "lists": (lists, {}, "fixed_size_list(flat)"),
        "lists-with-nulls": (holes, {}, "fixed_size_list(flat)"),
        "lists-of-lists": (deep, {}, "fixed_size_list(fixed_size_list(flat))"),
        "packed": (packed, {"lance-encoding:packed": "true"}, "packed_struct(flat)"),
    }


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("name", list(examples()))
def test_decodes_what_pylance_wrote(name: str, version: str, tmp_path: Path) -> None:
    array, metadata, expected = examples()[name]
    path = written(tmp_path / "t", array, version, metadata)
    parts, names = [], set()
    for page in pages_of_column(path, 0):
        assert page.layout.WhichOneof("layout") == "mini_block_layout"
        part, found = decode_page(page, array.type)
        part.validate(full=True)
        parts.append(part)
        names.update(found)
    assert pa.concat_arrays(parts).equals(array)
    if version == "2.2" or not expected.startswith("dictionary"):
        assert any(expected in found for found in names), names


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_fsst_beyond_the_use_of_pairs(version: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    strings = [s + chr(0x3000 + i % 20_000) for i, s in enumerate(random_words(rng, 60_000))]
    array = pa.array(strings)
    path = written(tmp_path / "t", array, version, {})
    parts = [decode_page(page, array.type)[0] for page in pages_of_column(path, 0)]
    assert pa.concat_arrays(parts).equals(array)


def full_zip_example(name: str) -> tuple[pa.Array, Any]:
    rng = np.random.default_rng(5)
    if name == "wide-lists":
        return pa.FixedSizeListArray.from_arrays(pa.array(rng.random(500 * 128, dtype=np.float32)), 128), np.uint8
    if name == "wide-lists-with-nulls":
        items = with_nulls(pa.array(rng.random(500 * 100, dtype=np.float32)), rng)
        return pa.FixedSizeListArray.from_arrays(items, 100), np.uint8
    words = random_words(rng, 6000)
    if name == "long-strings":
        return pa.array([" ".join(words[i * 12 : i * 12 + 12]) for i in range(500)]), np.uint32
    if name == "huge-strings":
        return pa.array([" ".join(words[i : i + 1500]) for i in range(40)]), np.uint32
    return pa.array([" ".join(words[i * 12 : i * 12 + 12]) for i in range(500)], pa.large_string()), np.uint64


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize(
    "name", ["wide-lists", "wide-lists-with-nulls", "long-strings", "long-large-strings", "huge-strings"]
)
def test_decodes_full_zip_values(name: str, version: str, tmp_path: Path) -> None:
    from lance_core.encoding.datablock import VariableBlock

    array, length = full_zip_example(name)
    path = written(tmp_path / "t", array, version, {})
    parts = []
    for page in pages_of_column(path, 0):
        layout = page.layout.full_zip_layout
        assert layout.bits_rep == layout.bits_def == 0
        data = page.buffers[0]
        if layout.WhichOneof("details") == "bits_per_value":
            block: Any = FixedWidthBlock(data=data, bits_per_value=layout.bits_per_value, num_values=layout.num_items)
        else:
            width = np.dtype(length).itemsize
            pieces, sizes, at = [], [0], 0
            for _ in range(layout.num_items):
                size = int(data[at : at + width].view(length)[0])
                pieces.append(data[at + width : at + width + size])
                sizes.append(size)
                at += width + size
            assert at == data.size
            block = VariableBlock(
                offsets=np.cumsum(sizes).astype(np.int32), data=np.concatenate(pieces), num_values=layout.num_items
            )
        parts.append(block_to_array(decode_per_value(layout.value_compression, block), array.type))
    assert pa.concat_arrays(parts).equals(array)
