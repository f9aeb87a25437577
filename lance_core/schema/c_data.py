"""Reads metadata through Arrow's C data interface, which keeps the order of keys and repeated keys.

pyarrow offers no other access to the serialized parameters of an extension type. Layout (native byte order):

    struct ArrowSchema { const char* format; const char* name; const char* metadata; ... }

    metadata   int32 n, then n times: int32 length, key, int32 length, value
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

import pyarrow as pa

__all__ = ["exported_metadata"]

_METADATA_MEMBER: Final = 2 * ctypes.sizeof(ctypes.c_void_p)
_LENGTH: Final = struct.Struct("=i")
_Memory = ctypes.c_char * (1 << 40)

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def exported_metadata(source: pa.Field | pa.Schema) -> list[tuple[bytes, bytes]]:
    """Keys and values; an extension type adds the keys ARROW:extension:name and ARROW:extension:metadata."""
    capsule = source.__arrow_c_schema__()  # the capsule owns the memory read below
    address = ctypes.c_void_p.from_address(_capsule_pointer(capsule, b"arrow_schema") + _METADATA_MEMBER).value
    if address is None:
        return []
    # The total size is recorded nowhere; only the bytes that the lengths span are read.
    memory = memoryview(_Memory.from_address(address)).cast("B")
    read = _LENGTH.unpack_from
    (count,), position = read(memory, 0), _LENGTH.size
    strings: list[bytes] = []
    for _ in range(2 * count):
        start = position + _LENGTH.size
        position = start + read(memory, position)[0]
        strings.append(bytes(memory[start:position]))
    return list(zip(strings[::2], strings[1::2], strict=True))
