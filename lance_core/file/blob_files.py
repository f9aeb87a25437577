"""Writes payloads of blobs of 2.2: small ones into the data file, larger ones into files of blobs beside it.

    size of the payload                                             kind
    at most `blob-inline-size-threshold`, 64 KiB by default         inline: in the data file
    at most `blob-dedicated-size-threshold`, 4 MiB by default       packed: in a file with others
    more                                                            dedicated: a file of its own

A packed file has at most `blob-pack-file-size-threshold` bytes, 1 GiB by default. The three thresholds are metadata of
the field, with `lance-encoding:` before their names.

    data/<name>.lance
    data/<name>/<bits>.blob         <bits>: the 32 bits of the number of the file (1, 2, ...), the lowest bit first

Source: tables written by pylance 14.0.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa

from lance_core.encoding.structural.blob import BlobKind, Descriptor
from lance_core.errors import InvalidInputError
from lance_core.schema import Field
from lance_core.store import ObjectStore, remove_leftovers
from lance_core.store.base import ObjectWriter

__all__ = ["BlobFiles", "blob_folder", "external", "sidecar_key"]

_MAX_FILES: Final = 2**32 - 1


def blob_folder(data_key: str) -> str:
    """The folder of the files of blobs of a data file, as the prefix of their keys."""
    return data_key.removesuffix(".lance") + "/"


def sidecar_key(data_key: str, blob_id: int) -> str:
    """Key of a file of blobs of a data file."""
    bits = f"{blob_id:032b}"[::-1]
    return f"{blob_folder(data_key)}{bits}.blob"


@dataclass(frozen=True, slots=True)
class _BlobThresholds:
    """The most bytes of inline and packed payloads, and of packed files."""

    inline: int = 64 * 1024
    packed: int = 4 * 1024 * 1024
    file: int = 1024 * 1024 * 1024

    @classmethod
    def of(cls, field: Field) -> Self:
        """The thresholds of a column.

        Raises:
            InvalidInputError: A threshold is not a number, or is too small.
        """
        names = {"inline": ("inline-size", 0), "packed": ("dedicated-size", 1), "file": ("pack-file-size", 1)}
        thresholds = {}
        for name, (middle, least) in names.items():
            key = f"lance-encoding:blob-{middle}-threshold"
            if key not in field.metadata:
                continue
            value = field.metadata[key].decode()
            if not (value.isascii() and value.isdecimal()) or int(value) < least:
                raise InvalidInputError(
                    f"column {field.name!r}: {key} is {value!r}, but must be a number of bytes, at least {least}"
                )
            thresholds[name] = int(value)
        return cls(**thresholds)


@dataclass(slots=True)
class _Pack:
    """A file to which payloads of one column are appended."""

    writer: ObjectWriter
    blob_id: int
    size: int = 0


def external(field: Field, blob: Mapping[str, Any]) -> Descriptor | None:
    """The descriptor of a blob that is given by its URI; None if it has a payload.

    Raises:
        InvalidInputError: Both payload and URI are given, or neither, or the range of an external blob is invalid.
    """
    uri, position, size = blob.get("uri"), blob.get("position"), blob.get("size")
    if (blob["data"] is None) == (uri is None) or uri == "":
        parts = "neither" if blob["data"] is None and uri is None else "an empty `uri`" if uri == "" else "both"
        raise InvalidInputError(
            f"column {field.name!r}: a blob must have either `data` or a `uri`, but it has {parts}; a null blob is "
            "None, and an empty one has b'' as `data`"
        )
    if (position is None) != (size is None) or size == 0 or (uri is None and size is not None):
        raise InvalidInputError(
            f"column {field.name!r}: a blob can have `position` and `size` only together and with a `uri`, and `size` "
            "must be above 0"
        )
    return None if uri is None else Descriptor(BlobKind.EXTERNAL, position or 0, size or 0, 0, uri)


class BlobFiles:
    """The files of blobs of a data file that is being written.

    Args:
        store: The store of the data file.
        key: Its key.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._num_files = 0
        self._packs: dict[int, _Pack] = {}
        self._limits: dict[int, _BlobThresholds] = {}
        self._closed: list[str] = []

    def place(self, field: Field, value: pa.Buffer, inline: Callable[[pa.Buffer], int]) -> Descriptor:
        """Store one payload.

        Args:
            field: The column.
            value: The payload.
            inline: Appends a payload to the data file and returns its position.
        """
        limits = self._limits.setdefault(field.id, _BlobThresholds.of(field))
        size: int = value.size
        if size > limits.packed:
            number = self._next_number()
            with self._open_sidecar(number) as writer:
                writer.write(value)
            self._closed.append(sidecar_key(self._key, number))
            return Descriptor(kind=BlobKind.DEDICATED, size=size, blob_id=number)
        if size > limits.inline:
            pack = self._packs.get(field.id)
            if pack is not None and pack.size + size > limits.file:
                self._close_pack(field.id)
                pack = None
            if pack is None:
                number = self._next_number()
                pack = self._packs[field.id] = _Pack(self._open_sidecar(number), number)
            pack.writer.write(value)
            descriptor = Descriptor(kind=BlobKind.PACKED, position=pack.size, size=size, blob_id=pack.blob_id)
            pack.size += size
            return descriptor
        return Descriptor(kind=BlobKind.INLINE, position=inline(value) if size else 0, size=size)

    def complete(self) -> None:
        """Make all files visible and durable."""
        for field_id in list(self._packs):
            self._close_pack(field_id)

    def keep(self) -> None:
        """Record that the data file is visible, so that `abort` keeps the files."""
        self._closed.clear()

    def abort(self) -> None:
        """Remove the files; does nothing after `keep`."""
        for pack in self._packs.values():
            pack.writer.abort()
        self._packs.clear()
        remove_leftovers(self._store, self._closed)
        if self._num_files:
            self._store.remove_empty_folders(blob_folder(self._key).removesuffix("/"))
        self._closed.clear()

    def _next_number(self) -> int:
        if self._num_files == _MAX_FILES:
            raise InvalidInputError(f"{self._key}: more than {_MAX_FILES} files of blobs; write files of fewer rows")
        self._num_files += 1
        return self._num_files

    def _open_sidecar(self, number: int) -> ObjectWriter:
        return self._store.open_writer(sidecar_key(self._key, number))

    def _close_pack(self, field_id: int) -> None:
        pack = self._packs.pop(field_id)
        pack.writer.close()
        self._closed.append(sidecar_key(self._key, pack.blob_id))
