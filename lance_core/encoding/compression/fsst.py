r"""FSST: strings as codes of one byte, each of which stands for a symbol of one to eight bytes.

    symbol table, 2312 bytes, in the page description
        |n|terminator|suffix limit|on|"TSSF"|symbol 0, 8 bytes|...|symbol n-1|u8 length 0|...|u8 length n-1|0 ...|
    value
        |code|code|255|literal byte|code|...       255 escapes a byte that is part of no symbol

`on` = 0 means that the values are not compressed; readers ignore the two bytes before it. The codes are stored as
variable values, in mini-block chunks or one by one; a code never extends over the end of a value.
A table is chosen by `fsst_symbols`, for a whole page. Values that it does not shrink are stored without it.

Codes are expanded by Arrow's take from a dictionary. It is twice as fast with pairs of codes: two bytes
of codes are one 16-bit index into a dictionary of 65536 strings. Where a value ends between the two codes of a pair,
its end is that of the first symbol. With escapes a 17th bit says that the first byte of a pair is a literal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, Fsst
from lance_core.encoding.compression import registry
from lance_core.encoding.compression.chunks import ChunkBuffers, ChunkGatherer, ChunkLimits, Counts, MiniBlockPage
from lance_core.encoding.compression.fsst_symbols import LONGEST, SymbolTable, compress, find_symbols
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, Offsets, VariableBlock, compute_offsets
from lance_core.errors import CorruptFileError, InvalidInputError

_ESCAPE = 255
_MAGIC = b"TSSF"
_HEADER_BYTES = 8
_TABLE_BYTES = 2312
_INT32_MAX = 2**31 - 1
# Below this many codes the dictionary of pairs costs more than it saves.
_MIN_CODES_FOR_PAIRS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodedSymbols:
    """The symbols of the codes.

    Attributes:
        count: Number of symbols; codes from here to 254 are invalid.
        lengths: Length of the expansion of every token: 256 codes (255, the escape, has none), then 256 literals.
        strings: The expansion itself.
    """

    count: int
    lengths: npt.NDArray[np.int32]
    strings: pa.Array


@lru_cache(maxsize=64)
def _read_table(table: bytes) -> _DecodedSymbols | None:
    """The symbols of a table, or None if values are not compressed.

    Raises:
        CorruptFileError: The table is too short or has impossible lengths.
    """
    if len(table) < _HEADER_BYTES or table[4:8] != _MAGIC:
        raise CorruptFileError("the FSST symbol table is invalid")
    count = table[0]
    if not table[3]:
        return None
    if len(table) < _HEADER_BYTES + count * 9:
        raise CorruptFileError(f"the FSST symbol table of {len(table)} bytes is too short for {count} symbols")
    sizes = np.frombuffer(table, np.uint8, count, _HEADER_BYTES + count * 8)
    if sizes.size and not 1 <= int(sizes.min()) <= int(sizes.max()) <= LONGEST:
        raise CorruptFileError("an FSST symbol does not have 1 to 8 bytes")
    lengths = np.zeros(512, np.int32)
    lengths[:count] = sizes
    lengths[256:] = 1
    symbols = [table[8 + i * 8 : 8 + i * 8 + size] for i, size in enumerate(sizes.tolist())]
    symbols += [b""] * (256 - count) + [bytes([literal]) for literal in range(256)]
    return _DecodedSymbols(count=count, lengths=lengths, strings=pa.array(symbols, pa.binary()))


def _expand(table: bytes, block: DataBlock) -> VariableBlock:
    """Replace the codes of all values by their symbols."""
    if not isinstance(block, VariableBlock):
        raise CorruptFileError("FSST codes are not variable values")
    symbols = _read_table(table)
    if symbols is None:
        return block
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    codes = block.data[first:last]
    bounds = block.offsets - block.offsets[0] if first else block.offsets
    if not codes.size:
        empty = np.zeros(block.num_values + 1, np.int32)
        return VariableBlock(offsets=empty, data=codes, num_values=block.num_values)
    literals = _find_literals(codes, symbols)
    if codes.size < _MIN_CODES_FOR_PAIRS:
        offsets, data = _expand_single(codes, bounds, literals, symbols)
    else:
        offsets, data = _expand_pairs(codes, bounds, literals, symbols)
    return VariableBlock(offsets=offsets, data=data, num_values=block.num_values)


def _find_literals(codes: Bytes, symbols: _DecodedSymbols) -> npt.NDArray[np.intp] | None:
    """The positions of the literal bytes after escapes; None if there are none.

    Raises:
        CorruptFileError: A code has no symbol, or the last one is an escape.
    """
    highest = int(codes.max())
    if highest < symbols.count:
        return None
    at = np.flatnonzero(codes == _ESCAPE)
    if at.size > 1 and int(np.diff(at).min()) == 1:
        # In a run of 255s every other one is an escape, beginning with the first.
        begins_run = np.concatenate([[True], np.diff(at) > 1])
        run_start = at[begins_run][np.cumsum(begins_run) - 1]
        at = at[(at - run_start) % 2 == 0]
    literals: npt.NDArray[np.intp] = at + 1
    if literals.size and literals[-1] == codes.size:
        raise CorruptFileError("FSST codes end in an escape")
    if symbols.count < _ESCAPE:
        unknown = codes >= symbols.count
        unknown[at] = False
        unknown[literals] = False
        if unknown.any():
            raise CorruptFileError(f"an FSST code is beyond the {symbols.count} symbols")
    return literals


def _take(strings: pa.Array, tokens: npt.NDArray[Any]) -> tuple[Offsets, Bytes]:
    """Concatenate the strings that the tokens point at: the end of every token, and the bytes."""
    longest = 2 * LONGEST
    large = tokens.size * longest > _INT32_MAX and (
        int(pc.sum(pc.binary_length(strings)).as_py()) > 0 and _measure_expanded_size(strings, tokens) > _INT32_MAX
    )
    values = strings.cast(pa.large_binary()) if large else strings
    expanded = pc.take(values, pa.array(tokens), boundscheck=False)
    kind: Any = np.int64 if large else np.int32
    offsets: Offsets = np.frombuffer(expanded.buffers()[1], kind)[: tokens.size + 1]
    data = expanded.buffers()[2]
    return offsets, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _measure_expanded_size(strings: pa.Array, tokens: npt.NDArray[Any]) -> int:
    lengths = np.diff(np.frombuffer(strings.buffers()[1], np.int32)[: len(strings) + 1]).astype(np.int64)
    uses = np.bincount(tokens, minlength=lengths.size)
    return int((uses * lengths).sum())


def _expand_single(
    codes: Bytes, bounds: Offsets, literals: npt.NDArray[np.intp] | None, symbols: _DecodedSymbols
) -> tuple[Offsets, Bytes]:
    tokens: npt.NDArray[Any] = codes
    if literals is not None:
        tokens = codes.astype(np.uint16)
        tokens[literals] += 256
    ends, data = _take(symbols.strings, tokens)
    return ends[bounds], data


def _expand_pairs(
    codes: Bytes, bounds: Offsets, literals: npt.NDArray[np.intp] | None, symbols: _DecodedSymbols
) -> tuple[Offsets, Bytes]:
    size = codes.size
    if size % 2 or codes.ctypes.data % 2:
        # The symbol of an additional code at the end is after the last value.
        even = np.zeros(size + size % 2, np.uint8)
        even[:size] = codes
        codes = even
    pairs: npt.NDArray[Any] = codes.view("<u2")
    if literals is not None:
        pairs = pairs.astype(np.uint32)
        pairs[literals[literals % 2 == 0] >> 1] += 1 << 16
    ends, data = _take(_pair_strings(symbols, with_literals=literals is not None), pairs)
    # A value that ends after the first code of a pair ends after the symbol of that code.
    before = np.maximum(bounds, 1) - 1
    firsts: npt.NDArray[Any] = codes.take(before)
    if literals is not None:
        is_literal = np.zeros(size, np.uint16)
        is_literal[literals] = 256
        firsts = firsts + is_literal.take(before)
    offsets = ends.take(bounds >> 1)
    offsets += symbols.lengths.take(firsts) * (bounds & 1)
    return offsets, data


def _pair_strings(symbols: _DecodedSymbols, *, with_literals: bool) -> pa.Array:
    """Expansions of all pairs: index = first code + 256 * second code + 65536 if the first byte is a literal."""
    index = np.arange(1 << 17 if with_literals else 1 << 16, dtype=np.uint32)
    first = index & 0xFF
    second = index >> 8 & 0xFF
    if with_literals:
        is_literal = index >> 16
        second = second + ((first == _ESCAPE) & (is_literal == 0)) * np.uint32(256)
        first = first + is_literal * np.uint32(256)
    take = symbols.strings.take
    return pc.binary_join_element_wise(take(pa.array(first)), take(pa.array(second)), pa.scalar(b"", pa.binary()))


def _decode_miniblock(encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts) -> DataBlock:
    return _expand(encoding.fsst.symbol_table, registry.decode_miniblock(encoding.fsst.values, buffers, counts))


def _decode_block(encoding: CompressiveEncoding, data: Bytes, num_values: int) -> DataBlock:
    return _expand(encoding.fsst.symbol_table, registry.decode_block(encoding.fsst.values, data, num_values))


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> DataBlock:
    return _expand(encoding.fsst.symbol_table, registry.decode_per_value(encoding.fsst.values, block))


def _gather(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, chunks: Counts, places: Counts, counts: Counts
) -> DataBlock | None:
    inner = encoding.fsst.values
    gather = registry.find_described_compression(inner).gather
    codes = None if gather is None else gather(inner, buffers, chunks, places, counts)
    return _decode_per_value(encoding, codes) if isinstance(codes, VariableBlock) else None


def _make_chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    inner = registry.make_chunk_gatherer(encoding.fsst.values, num_buffers)
    if inner is None or inner[1]:
        return None

    def gather(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
        codes = inner[0](buffers, count, places)
        offsets = compute_offsets(np.fromiter(map(len, codes), np.int64, len(codes)))
        data = np.frombuffer(b"".join(codes), np.uint8)
        block = _expand(encoding.fsst.symbol_table, VariableBlock(offsets=offsets, data=data, num_values=len(codes)))
        whole = block.data.tobytes()
        return [whole[start:end] for start, end in pairwise(block.offsets.tolist())]

    return gather, 0


def compress_values(block: DataBlock) -> tuple[bytes, VariableBlock] | None:
    """Find symbols for values and replace their bytes by codes.

    Args:
        block: The values.

    Returns:
        The symbol table and the codes, or None where these take more than the values.

    Raises:
        InvalidInputError: The values are not of varying length.
    """
    if not isinstance(block, VariableBlock):
        raise InvalidInputError("only values of varying length are compressed with FSST")
    symbols = find_symbols(block.data, block.offsets)
    codes, offsets = compress(symbols, block.data, block.offsets)
    if codes.size + _TABLE_BYTES > int(block.offsets[-1]) - int(block.offsets[0]):
        return None
    return _write_table(symbols), VariableBlock(offsets=offsets, data=codes, num_values=block.num_values)


def _write_table(symbols: SymbolTable) -> bytes:
    strings = symbols.strings
    header = bytes([len(strings), 0, len(strings), 1]) + _MAGIC
    words = b"".join(string.ljust(LONGEST, b"\0") for string in strings)
    return (header + words + bytes(map(len, strings))).ljust(_TABLE_BYTES, b"\0")


def _describe(table: bytes, inner: CompressiveEncoding) -> CompressiveEncoding:
    return CompressiveEncoding(fsst=Fsst(symbol_table=table, values=inner))


def _encode_miniblock(block: DataBlock, argument: str, limits: ChunkLimits) -> MiniBlockPage:
    pair = compress_values(block)
    name = registry.parse_inner_name(argument, "variable")
    page = registry.encode_miniblock(
        block if pair is None else pair[1], name, max_values=limits.max_values, max_bytes=limits.max_bytes
    )
    return page if pair is None else replace(page, encoding=_describe(pair[0], page.encoding))


def _encode_per_value(block: DataBlock, argument: str) -> tuple[CompressiveEncoding, FixedWidthBlock | VariableBlock]:
    pair = compress_values(block)
    encoding, values = registry.encode_per_value(
        block if pair is None else pair[1], registry.parse_inner_name(argument, "variable")
    )
    return (encoding if pair is None else _describe(pair[0], encoding)), values


COMPRESSION = registry.Compression(
    name="fsst",
    takes_argument=True,
    decode_miniblock=_decode_miniblock,
    decode_block=_decode_block,
    decode_per_value=_decode_per_value,
    gather=_gather,
    chunk_gatherer=_make_chunk_gatherer,
    gives_plain_values=True,
    encode_miniblock=_encode_miniblock,
    encode_per_value=_encode_per_value,
)
