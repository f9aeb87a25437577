"""Converts JSON strings to and from JSONB, the binary form of the `jsonb` crate in which Lance stores JSON columns.

    value       scalar:  u32 0x20000000, one entry, its data
                array:   u32 0x80000000 | count, an entry per item, their data
                object:  u32 0x40000000 | count, an entry per key, an entry per value, the keys, the data of the values
    entry       u32 kind << 28 | length of the data: 0 null, 1 string, 2 number, 3 false, 4 true, 5 array or object
    number      u8 0x00 zero, 0x40 signed, 0x50 unsigned (both of 1, 2, 4 or 8 bytes), 0x60 float64

All numbers are big-endian; keys are UTF-8 and ascend. Source: values written by pylance 14.0.2.
"""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

import pyarrow as pa

from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_SCALAR, _OBJECT, _ARRAY = 0x20000000, 0x40000000, 0x80000000
_KIND: Final = 0xE0000000
_NULL, _STRING, _NUMBER, _FALSE, _TRUE, _CONTAINER = range(6)
_ZERO, _NAN, _INFINITY, _MINUS_INFINITY, _SIGNED, _UNSIGNED, _FLOAT = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60
_SIZES: Final = (1, 2, 4, 8)
_MOST_LENGTH: Final = (1 << 28) - 1
_MOST_LEVELS: Final = 200
_SAFE_DIGITS: Final = 308


def jsonb_array(strings: pa.Array, name: str | None = None) -> pa.Array:
    """JSON strings in their stored form.

    Args:
        strings: The strings, of any Arrow string type.
        name: The column, for error messages; None for values that lie inside of a column.

    Raises:
        InvalidInputError: A string is not valid JSON; the message names the row.
    """
    values: list[bytes | None] = []
    for row, string in enumerate(strings.to_pylist()):
        try:
            values.append(None if string is None else encoded(parsed(string)))
        except (ValueError, RecursionError) as error:
            place = f"value {row} in it" if name is None else f"column {name!r}: row {row} of the batch"
            raise InvalidInputError(f"{place} is not valid JSON ({error}): {string!r:.80}") from error
    return pa.array(values, pa.large_binary())


def json_strings(values: pa.Array) -> pa.Array:
    """The inverse of `jsonb_array`: strings without spaces between values, with keys in ascending order.

    Raises:
        CorruptFileError: A value does not follow the format.
        UnsupportedError: A number is of an unknown kind.
    """
    return pa.array(
        [None if value is None else json_string(decoded(value)) for value in values.to_pylist()], pa.string()
    )


def encoded(value: Any) -> bytes:
    """The stored form of a Python value.

    Raises:
        ValueError: The value is nested too deep, a part of it is too long, or a string is not valid Unicode.
    """
    if isinstance(value, dict | list):
        return _encode_container(value, 0)
    entry, data = _encode_entry(value, 0)
    return struct.pack(">II", _SCALAR, entry) + data


def decoded(data: bytes) -> Any:
    """The Python value of a stored form, with the errors of `json_strings`."""
    try:
        return _decode_value(memoryview(data), 0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"a value of a JSON column does not follow its format: {error}") from error


def json_string(value: Any) -> str:
    """The JSON string of a value."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{encode_basestring(key)}:{json_string(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(json_string, value))}]"
    if isinstance(value, str):
        return encode_basestring(value)
    return _float_string(value) if isinstance(value, float) else json.dumps(value)


def parsed(string: str) -> Any:
    """The value of a JSON string.

    Raises:
        ValueError: The string is not valid JSON: it has a constant such as NaN, a number that is too large, or a
            key that occurs twice.
    """
    return json.loads(
        string,
        object_pairs_hook=_make_object,
        parse_constant=_reject_constant,
        parse_float=_parse_float,
        parse_int=_parse_integer,
    )


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _parse_float(string: str) -> float:
    value = float(string)
    if math.isinf(value):
        shown = string if len(string) <= 40 else f"a number of {len(string)} characters"
        raise ValueError(f"{shown} is too large")
    return value


def _parse_integer(string: str) -> int:
    if len(string) > _SAFE_DIGITS:  # it may exceed the largest float64, as which integers beyond 64 bits are stored
        _parse_float(string)
    return int(string)


def _encode_container(value: dict[str, Any] | list[Any], level: int) -> bytes:
    if level > _MOST_LEVELS:
        raise ValueError(f"the value is nested more than {_MOST_LEVELS} deep")
    if isinstance(value, list):
        keys: list[bytes] = []
        parts = [_encode_entry(item, level) for item in value]
    else:
        ordered = sorted((key.encode(), item) for key, item in value.items())
        keys = [key for key, _ in ordered]
        parts = [_encode_entry(item, level) for _, item in ordered]
    kind = _ARRAY if isinstance(value, list) else _OBJECT
    entries = [_STRING << 28 | _checked(len(key)) for key in keys] + [entry for entry, _ in parts]
    head = struct.pack(f">I{len(entries)}I", kind | _checked(len(parts)), *entries)
    return b"".join([head, *keys, *(data for _, data in parts)])


def _encode_entry(value: Any, level: int) -> tuple[int, bytes]:
    """The entry of a value, and its data."""
    if value is None:
        return _NULL << 28, b""
    if isinstance(value, bool):
        return (_TRUE if value else _FALSE) << 28, b""
    if isinstance(value, dict | list):
        kind, data = _CONTAINER, _encode_container(value, level + 1)
    elif isinstance(value, str):
        kind, data = _STRING, value.encode()
    else:
        kind, data = _NUMBER, _encode_number(value)
    return kind << 28 | _checked(len(data)), data


def _checked(length: int) -> int:
    if length > _MOST_LENGTH:
        raise ValueError(f"a part of the value has {length} bytes or items, more than {_MOST_LENGTH}")
    return length


def _encode_number(value: Any) -> bytes:
    if isinstance(value, float) or not -(1 << 63) <= value < 1 << 64:
        return struct.pack(">Bd", _FLOAT, value)
    if value == 0:
        return bytes([_ZERO])
    size = next(size for size in _SIZES if -(1 << 8 * size - 1) <= value < (1 << 8 * size if value > 0 else 1))
    return bytes([_UNSIGNED if value > 0 else _SIGNED]) + int(value).to_bytes(size, "big", signed=value < 0)


def _decode_value(data: memoryview, level: int) -> Any:
    if level > _MOST_LEVELS:
        raise CorruptFileError(f"a value of a JSON column is nested more than {_MOST_LEVELS} deep")
    (head,) = struct.unpack_from(">I", data)
    count, kind = head & ~_KIND, head & _KIND
    if kind == _SCALAR:
        count = 1
    num_entries = 2 * count if kind == _OBJECT else count
    if kind not in (_SCALAR, _OBJECT, _ARRAY) or 4 + 4 * num_entries > len(data):
        raise CorruptFileError("a value of a JSON column does not follow its format: its header is unknown")
    entries = struct.unpack_from(f">{num_entries}I", data, 4)
    position, values = 4 + 4 * num_entries, []
    for entry in entries:
        end = position + (entry & _MOST_LENGTH)
        if end > len(data):
            raise CorruptFileError("a value of a JSON column does not follow its format: it is truncated")
        values.append(_decode_part(entry >> 28, data[position:end], level))
        position = end
    if kind == _OBJECT:
        return dict(zip(values[:count], values[count:], strict=True))
    return values if kind == _ARRAY else values[0]


def _decode_part(kind: int, data: memoryview, level: int) -> Any:
    if kind in (_NULL, _FALSE, _TRUE):
        return {_NULL: None, _FALSE: False, _TRUE: True}[kind]
    if kind == _STRING:
        return str(data, "utf-8")
    if kind == _NUMBER:
        return _decode_number(data)
    if kind == _CONTAINER:
        return _decode_value(data, level + 1)
    raise UnsupportedError(f"a value of a JSON column is of the unknown kind {kind}")


def _decode_number(data: memoryview) -> int | float:
    kind, rest = data[0], data[1:]
    if kind == _ZERO:
        return 0
    if kind in (_SIGNED, _UNSIGNED) and len(rest) in (1, 2, 4, 8):
        return int.from_bytes(rest, "big", signed=kind == _SIGNED)
    if kind == _FLOAT and len(rest) == 8:
        return float(struct.unpack(">d", rest)[0])
    special = {_NAN: math.nan, _INFINITY: math.inf, _MINUS_INFINITY: -math.inf}.get(kind)
    if special is not None:
        return special
    raise UnsupportedError(f"a number of a JSON column is of the unknown kind {kind:#x}")


def _float_string(value: float) -> str:
    """A number as pylance writes it: 0.00001, 1e-7, 1e+16."""
    if not math.isfinite(value):
        return {math.inf: '"Infinity"', -math.inf: '"-Infinity"'}.get(value, '"NaN"')
    string = repr(value)
    mantissa, _, exponent = string.partition("e")
    if not exponent:
        return string
    if -6 < int(exponent) < 0:
        return format(Decimal(string), "f")
    return f"{mantissa}e{int(exponent):+d}"
