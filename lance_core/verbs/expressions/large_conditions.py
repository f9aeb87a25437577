"""Large conditions: recursion over them runs in a thread with a large stack, and they are evaluated in pieces.

Arrow's C++ code recurses into an expression, and the time that it takes to bind one grows with the square of its size.
The value of a chain of AND or OR does not depend on how its parts are grouped, even if some of them are null.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.verbs.expressions.serialized import Entry, Node, deserialize, flatten, parse_serialized

LARGE: Final = 32_768
"""A serialized expression of more bytes is evaluated in pieces."""
_PIECE: Final = 1000
"""The number of entries of a piece."""
_MOST_LEVELS: Final = 50
"""Levels of AND and OR that are split into pieces."""
_STACK_BYTES: Final = 256 << 20
"""Address space of a stack; only the part that is used takes memory."""
_CHAINS: Final = (b"and_kleene", b"or_kleene")
_Result = TypeVar("_Result")
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Split:
    """A large condition, split into pieces that AND or OR joins.

    Attributes:
        name: The Arrow function that joins the parts.
        parts: The conditions.
    """

    name: str
    parts: tuple[Split | pc.Expression, ...]


def in_deep_thread(function: Callable[[], _Result]) -> _Result:
    """Call a function in a thread with a large stack, as it may recurse deeper than the stack of this thread allows."""
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            done.set_exception(error)

    with _lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()


@lru_cache(maxsize=8)
def split(data: bytes) -> Split | pc.Expression:
    """Split a large serialized expression into pieces that AND and OR join."""
    pieces = parse_serialized(pa.py_buffer(data))
    return _split(pieces.entries, pieces.columns, 0)


def _split(entries: list[Entry], columns: list[pa.Array], level: int) -> Split | pc.Expression:
    if len(entries) <= _PIECE or entries[0][0] != b"call" or entries[0][1] not in _CHAINS or level > _MOST_LEVELS:
        return _detach(entries, columns)
    name = entries[0][1]
    parts: list[Split | pc.Expression] = []
    waiting: list[Node] = []
    size = 0
    for start, stop in _find_links(entries, name):
        if stop - start > _PIECE:
            parts.append(_split(entries[start:stop], columns, level + 1))
            continue
        waiting.append(entries[start:stop])
        size += stop - start
        if size > _PIECE:
            parts.append(_detach(_chain(name, waiting), columns))
            waiting, size = [], 0
    if waiting:
        parts.append(_detach(_chain(name, waiting), columns))
    return Split(name.decode(), tuple(parts))


def _find_links(entries: list[Entry], name: bytes) -> list[tuple[int, int]]:
    """The start and the end of each part of a chain, as positions among its entries."""
    links: list[tuple[int, int]] = []
    position, end = 0, len(entries)
    while position < end:
        if entries[position] in ((b"call", name), (b"end", name)):
            position += 1
            continue
        start, depth = position, 0
        while True:
            key = entries[position][0]
            depth += (key == b"call") - (key == b"end")
            position += 1 + (int(entries[position][1]) if key == b"nested_field_ref" else 0)
            if depth == 0:
                break
        links.append((start, position))
    return links


def _chain(name: bytes, parts: list[Node]) -> Node:
    """Join the parts in pairs, so that the tree has few levels."""
    while len(parts) > 1:
        pairs: list[Node] = [
            [(b"call", name), *parts[position : position + 2], (b"end", name)]
            for position in range(0, len(parts) - 1, 2)
        ]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]


def _detach(node: Node, columns: list[pa.Array]) -> pc.Expression:
    """A piece as a separate expression, with only the literals and options that it needs."""
    piece_columns: list[pa.Array] = []
    entries: list[Entry] = []
    for key, value in flatten(node):
        if key in (b"literal", b"options"):
            piece_columns.append(columns[int(value)])
            entries.append((key, str(len(piece_columns) - 1).encode()))
        else:
            entries.append((key, value))
    return deserialize(list(entries), piece_columns)


def leaves_of(part: Split | pc.Expression) -> list[pc.Expression]:
    """The pieces of a condition, in order."""
    leaves: list[pc.Expression] = []
    left = [part]
    while left:
        piece = left.pop()
        if isinstance(piece, Split):
            left.extend(reversed(piece.parts))
        else:
            leaves.append(piece)
    return leaves


def combined(part: Split | pc.Expression, columns: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Compute the values of a condition from the values of its pieces, which are removed from `columns`."""
    if not isinstance(part, Split):
        return columns.pop(0)
    result = combined(part.parts[0], columns)
    for operand in part.parts[1:]:
        result = pc.call_function(part.name, [result, combined(operand, columns)])
    return result
