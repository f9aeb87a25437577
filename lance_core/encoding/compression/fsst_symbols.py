"""The FSST encoder: chooses the symbols of a page and replaces its values by codes (for the bytes see `fsst`).

Symbols are found in rounds on a sample: it is compressed with the current symbols, and the symbols and neighbouring
pairs that save most become the symbols of the next round (Boncz, Neumann, Leis: FSST, VLDB 2020).

All values are compressed together, first the first codes of all values, then the second ones, and so on. Long values
are divided into stretches to bound the number of steps; a symbol ends where its stretch ends. Two tables give the next
code:

    long [hash of 3 bytes]     the one symbol of 3 to 8 bytes that may match; its other bytes are compared
    short [2 bytes]            else the symbol of 2 bytes, or of 1 byte, or 256 + the byte: an escape
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from lance_core.encoding.datablock import Bytes, Offsets

LONGEST: Final = 8
_MOST: Final = 255
_ESCAPE: Final = 255
_LITERAL: Final = 256
_ROUNDS: Final = 5
_SAMPLE_BYTES: Final = 64 * 1024
_STRETCH: Final = 256
_SAMPLE_STRETCH: Final = 64
_BLOCK_BYTES: Final = 1 << 20
_CANDIDATES: Final = 4096
# A byte without a symbol takes two bytes: symbols of one byte count this many times.
_GAIN_OF_BYTES: Final = 8
_SLOT_BITS: Final = 16
# Knuth's multiplicative hash: 2**32 divided by the golden ratio.
_MULTIPLIER: Final = np.uint32(2_654_435_769)

Tokens = npt.NDArray[np.uint16]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolTable:
    """Symbols, and the tables to find them by the next bytes.

    Attributes:
        strings: The symbols of the codes 0, 1, ...; at most 255, of 1 to 8 bytes.
        words: By token (a code, or 256 + a literal byte): its first 8 bytes as a number, little-endian.
        masks: By token: the bits of this number that belong to the symbol.
        lengths: By token: number of bytes.
        long: By hash of 3 bytes: a token; where there is none, one that never matches.
        short: By 2 bytes: the token of the 2-byte symbol, else that of the first byte.
        single: By 1 byte: its token.
    """

    strings: tuple[bytes, ...]
    words: npt.NDArray[np.uint64]
    masks: npt.NDArray[np.uint64]
    lengths: Positions
    long: Tokens
    short: Tokens
    single: Tokens

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Self:
        """Tables of these symbols; if two long symbols share a slot, the later one is never found."""
        words = np.zeros(2 * _LITERAL, np.uint64)
        masks = np.zeros(2 * _LITERAL, np.uint64)
        lengths = np.ones(2 * _LITERAL, np.int64)
        # The escape is not a symbol: its mask leaves bits that its word cannot have.
        words[_ESCAPE] = 1
        single = np.arange(_LITERAL, 2 * _LITERAL, dtype=np.uint16)
        for token, string in enumerate(strings):
            words[token] = int.from_bytes(string, "little")
            masks[token] = (1 << 8 * len(string)) - 1
            lengths[token] = len(string)
            if len(string) == 1:
                single[string[0]] = token
        short = np.tile(single, _LITERAL)
        long = np.full(1 << _SLOT_BITS, _ESCAPE, np.uint16)
        for token, string in enumerate(strings):
            if len(string) == 2:
                short[int.from_bytes(string, "little")] = token
            elif len(string) > 2 and long[slot := _slot_of(string)] == _ESCAPE:
                long[slot] = token
        return cls(
            strings=tuple(strings), words=words, masks=masks, lengths=lengths, long=long, short=short, single=single
        )


def find_symbols(
    data: Bytes, offsets: Offsets, *, rounds: int = _ROUNDS, sample_bytes: int = _SAMPLE_BYTES
) -> SymbolTable:
    """Choose symbols for values.

    Args:
        data: Their bytes.
        offsets: The start of each value, and the end of the last one; shape (values + 1,).
        rounds: How often the symbols are improved.
        sample_bytes: About the most bytes of the values that are examined.
    """
    starts, ends = _list_stretches(offsets.astype(np.int64), _SAMPLE_STRETCH)
    num_stretches = sample_bytes // _SAMPLE_STRETCH
    if starts.size > num_stretches:
        sampled = np.linspace(0, starts.size - 1, num_stretches).astype(np.int64)
        starts, ends = starts[sampled], ends[sampled]
    sizes = ends - starts
    first = np.cumsum(sizes) - sizes
    sample = data[np.repeat(starts - first, sizes) + np.arange(int(sizes.sum()))]
    symbols = SymbolTable.of(())
    for _ in range(rounds):
        tokens, counts = _tokenize(symbols, sample, first, first + sizes)
        symbols = SymbolTable.of(_choose_most_useful(symbols, tokens, counts))
    return symbols


def compress(symbols: SymbolTable, data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """Replace the bytes of all values by codes.

    Args:
        symbols: The symbols.
        data: The bytes of the values.
        offsets: The start of each value, and the end of the last one; shape (values + 1,).

    Returns:
        The codes, and the start of the codes of each value; of the type of `offsets`, from 0.
    """
    bounds = offsets.astype(np.int64)
    pieces: list[Bytes] = []
    ends = np.zeros(bounds.size, np.int64)
    begin, written = 0, 0
    while begin < bounds.size - 1:
        end = max(begin + 1, int(np.searchsorted(bounds, bounds[begin] + _BLOCK_BYTES, "right")) - 1)
        base = int(bounds[begin])
        codes, stops = _compress_block(symbols, data[base : int(bounds[end])], bounds[begin : end + 1] - base)
        ends[begin + 1 : end + 1] = stops + written
        written += codes.size
        pieces.append(codes)
        begin = end
    code_offsets: Offsets = ends if offsets.itemsize == 8 else ends.astype(np.int32)
    return (np.concatenate(pieces) if pieces else data[:0]), code_offsets


def _compress_block(symbols: SymbolTable, data: Bytes, bounds: Positions) -> tuple[Bytes, Positions]:
    """The codes of some values, and the end of the codes of each value."""
    starts, ends = _list_stretches(bounds, _STRETCH)
    tokens, counts = _tokenize(symbols, data, starts, ends)
    last = np.searchsorted(starts, bounds[1:])
    stops = np.concatenate([[0], np.cumsum(counts)])[last]
    escaped = tokens >= _LITERAL
    if not escaped.any():
        return tokens.astype(np.uint8), stops
    after = np.cumsum(escaped) + np.arange(1, tokens.size + 1)
    codes = np.full(int(after[-1]), _ESCAPE, np.uint8)
    # The low byte of a token is its code, or the literal, which stands last of the two bytes.
    codes[after - 1] = tokens.astype(np.uint8)
    return codes, np.concatenate([[0], after])[stops]


def _list_stretches(bounds: Positions, most: int) -> tuple[Positions, Positions]:
    """Start and end of every stretch of values that are not empty, in order."""
    lengths = np.diff(bounds)
    parts = -(-lengths // most)
    number = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = np.repeat(bounds[:-1], parts) + number * most
    return starts, np.minimum(starts + most, np.repeat(bounds[1:], parts))


def _tokenize(symbols: SymbolTable, data: Bytes, starts: Positions, ends: Positions) -> tuple[Tokens, Positions]:
    """The tokens of stretches, one after the other, and how many each has."""
    padded = np.zeros(data.size + LONGEST, np.uint8)
    padded[: data.size] = data
    following: npt.NDArray[np.uint64] = np.ndarray((data.size,), "<u8", padded.data, strides=(1,))
    counts = np.zeros(starts.size, np.int64)
    stretch = np.arange(starts.size)
    steps: list[tuple[npt.NDArray[np.intp], Tokens]] = []
    position, end = starts, ends
    while position.size:
        word = following[position]
        left = end - position
        long_token = symbols.long[_hash_to_slots(word)]
        wrong = (word ^ symbols.words[long_token]) & symbols.masks[long_token] != 0
        wrong |= symbols.lengths[long_token] > left
        wrong |= long_token == _ESCAPE
        low = word.astype(np.uint16)
        token = np.where(wrong, np.where(left > 1, symbols.short[low], symbols.single[low & 255]), long_token)
        steps.append((stretch, token))
        position = position + symbols.lengths[token]
        alive = position < end
        if not alive.all():
            counts[stretch[~alive]] = len(steps)
            position, end, stretch = position[alive], end[alive], stretch[alive]
    tokens = np.empty(int(counts.sum()), np.uint16)
    first = np.cumsum(counts) - counts
    for number, (stretch, token) in enumerate(steps):
        tokens[first[stretch] + number] = token
    return tokens, counts


def _hash_to_slots(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Hashes of the first three bytes."""
    three = words.astype(np.uint32) & np.uint32(0xFFFFFF)
    return (three * _MULTIPLIER) >> np.uint32(32 - _SLOT_BITS)


def _slot_of(string: bytes) -> int:
    return int(_hash_to_slots(np.array([int.from_bytes(string, "little")], np.uint64))[0])


def _choose_most_useful(symbols: SymbolTable, tokens: Tokens, counts: Positions) -> list[bytes]:
    """The symbols, literals and pairs of a compressed sample that save most bytes."""
    gains: dict[bytes, int] = {}
    uses: npt.NDArray[Any] = np.bincount(tokens, minlength=2 * _LITERAL)
    for token in np.flatnonzero(uses).tolist():
        string = _string_of(symbols, token)
        gains[string] = int(uses[token]) * (_GAIN_OF_BYTES if len(string) == 1 else len(string))
    inside = np.ones(tokens.size, np.bool_)
    inside[np.cumsum(counts) - 1] = False
    pairs = tokens[:-1].astype(np.int64) * (2 * _LITERAL) + tokens[1:]
    uses = np.bincount(pairs[inside[:-1]], minlength=1)
    common = np.flatnonzero(uses > 1)
    common = common[np.argsort(-uses[common], kind="stable")][:_CANDIDATES]
    for pair in common.tolist():
        string = (_string_of(symbols, pair // (2 * _LITERAL)) + _string_of(symbols, pair % (2 * _LITERAL)))[:LONGEST]
        gains[string] = gains.get(string, 0) + int(uses[pair]) * len(string)
    chosen: list[bytes] = []
    slots: set[int] = set()
    for string in sorted(gains, key=lambda string: (-gains[string], string)):
        if len(string) > 2:
            slot = _slot_of(string)
            if slot in slots:
                continue
            slots.add(slot)
        chosen.append(string)
        if len(chosen) == _MOST:
            break
    return chosen


def _string_of(symbols: SymbolTable, token: int) -> bytes:
    return bytes([token - _LITERAL]) if token >= _LITERAL else symbols.strings[token]
