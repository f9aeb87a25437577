"""Columns of blobs under pylance's names: builds fields and arrays of blobs, and reads binary values as files.

A blob of files of 2.2 is a struct with the extension name `lance.blob.v2`, of which either `data` or `uri` is given:

    data        large_binary
    uri         string          where the object lies
    position    uint64          a part of the object, with `size`
    size        uint64
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import pyarrow as pa

from lance_core.errors import ArgumentTypeError, InvalidInputError
from lance_core.schema.field import BLOB_V2_NAME
from lance_core.verbs.scan.take_blobs import BlobFile

__all__ = ["Blob", "BlobColumn", "BlobFile", "blob_array", "blob_field"]

_STORAGE: Final = pa.struct(
    [
        pa.field("data", pa.large_binary()),
        pa.field("uri", pa.string()),
        pa.field("position", pa.uint64()),
        pa.field("size", pa.uint64()),
    ]
)


class BlobType(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """The Arrow type of blobs, equal to pylance's: a struct with the extension name `lance.blob.v2`.

    It is not registered, so that pylance can register its own; once that has happened, `blob_array` makes pylance's.
    """

    def __init__(self) -> None:
        super().__init__(_STORAGE, BLOB_V2_NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        """The type has no parameters."""
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage_type: pa.DataType, _serialized: bytes) -> BlobType:
        """The type; it has one storage."""
        return cls()


def _blob_type() -> pa.BaseExtensionType:
    """The type of this module, or the one that pylance has registered under the same name."""
    field = pa.field("", _STORAGE, metadata={"ARROW:extension:name": BLOB_V2_NAME, "ARROW:extension:metadata": ""})
    registered = pa.ipc.read_schema(pa.schema([field]).serialize()).field(0).type
    return registered if isinstance(registered, pa.BaseExtensionType) else BlobType()


@dataclass(frozen=True)
class Blob:
    """One blob: its bytes, or the URI of an object or of a part of one.

    Attributes:
        data: The bytes.
        uri: The URI.
        position: First byte of the part.
        size: Bytes of the part, at least one.

    Raises:
        InvalidInputError: Both bytes and URI are given, or neither, or the part is not a valid range.

    Examples:
        >>> lance.Blob(uri="s3://bucket/video.mp4", position=100, size=20).size
        20
    """

    data: bytes | None = None
    uri: str | None = None
    position: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        """Check that the attributes describe one blob."""
        if (self.data is None) == (self.uri is None) or self.uri == "":
            raise InvalidInputError("a Blob needs either data or a uri that is not empty; None stands for no blob")
        if (self.position is None) != (self.size is None) or (self.data is not None and self.size is not None):
            raise InvalidInputError(
                "a Blob with a uri needs both position and size, or neither; a Blob with data has neither"
            )
        if self.size is not None and (self.size < 1 or (self.position or 0) < 0):
            raise InvalidInputError(
                f"a Blob needs a position of at least 0 and a size of at least 1, not {self.position} and {self.size}"
            )

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> Blob:
        """A blob of these bytes."""
        return Blob(data=bytes(data))

    @staticmethod
    def from_uri(uri: str, position: int | None = None, size: int | None = None) -> Blob:
        """A blob that is an object, or a part of one."""
        return Blob(uri=uri, position=position, size=size)

    @staticmethod
    def empty() -> Blob:
        """A blob of no bytes."""
        return Blob(data=b"")


def blob_array(values: Iterable[bytes | bytearray | memoryview | str | Blob | None]) -> pa.ExtensionArray:
    """Values of a column of blobs, for files of 2.2.

    Args:
        values: Bytes, URIs as strings, `Blob` objects, or None for no blob.

    Returns:
        An extension array, from which tables of any schema can be made.

    Raises:
        ArgumentTypeError: A value is of another type, or a blob is given without a list.
        InvalidInputError: A URI is empty.

    Examples:
        >>> rows = pa.table({"id": [1, 2], "photo": lance.blob_array([b"...", None])})
        >>> photos = lance.write_dataset(rows, "photos.lance", data_storage_version="2.2")
        >>> [blob.read() for blob in photos.take_blobs("photo", indices=[0])]
        [b'...']
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise ArgumentTypeError(f"blob_array: values must be a list of blobs, not {type(values).__name__}")
    blobs = [_to_blob(value) for value in values]
    rows = [None if blob is None else (blob.data, blob.uri, blob.position, blob.size) for blob in blobs]
    columns = zip(*((None,) * 4 if row is None else row for row in rows), strict=True) if rows else [()] * 4
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _STORAGE, strict=True)]
    mask = pa.array([row is None for row in rows], pa.bool_())
    storage = pa.StructArray.from_arrays(arrays, fields=list(_STORAGE), mask=mask)
    return pa.ExtensionArray.from_storage(_blob_type(), storage)


def _to_blob(value: object) -> Blob | None:
    if value is None or isinstance(value, Blob):
        return value
    if isinstance(value, str):
        return Blob(uri=value)
    if isinstance(value, bytes | bytearray | memoryview):
        return Blob(data=bytes(value))
    raise ArgumentTypeError(f"a blob is given as bytes, a URI, a Blob or None, not as {type(value).__name__}")


def blob_field(
    name: str,
    *,
    nullable: bool = True,
    inline_size_threshold: int | None = None,
    dedicated_size_threshold: int | None = None,
    pack_file_size_threshold: int | None = None,
) -> pa.Field:
    """The field of a column of blobs, for files of 2.2.

    Args:
        name: Name of the column.
        nullable: Whether rows may have no blob.
        inline_size_threshold: Most bytes of a blob in the data file; 64 KiB if it is None.
        dedicated_size_threshold: Most bytes of a blob that shares a file; 4 MiB if it is None.
        pack_file_size_threshold: Most bytes of a file that blobs share; 1 GiB if it is None.

    Raises:
        ArgumentTypeError: The name is not a string.
        InvalidInputError: The name is empty, or a threshold is below 1; `inline_size_threshold` may be 0.

    Examples:
        >>> lance.blob_field("photo", inline_size_threshold=0).name
        'photo'
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"blob_field: name must be a string, not {name!r}")
    if not name:
        raise InvalidInputError("blob_field: the name of a column cannot be empty")
    metadata = {}
    for middle, value, least in (
        ("inline-size", inline_size_threshold, 0),
        ("dedicated-size", dedicated_size_threshold, 1),
        ("pack-file-size", pack_file_size_threshold, 1),
    ):
        if value is not None and value < least:
            raise InvalidInputError(f"column {name!r}: a threshold of {value} bytes ({middle}) is below {least}")
        if value is not None:
            metadata[f"lance-encoding:blob-{middle}-threshold"] = str(value)
    return pa.field(name, _blob_type(), nullable, metadata=metadata or None)


class BlobColumn:
    """An iterator over a column of binary values, each as a file object; a null is None.

    Args:
        blob_column: The values.

    Raises:
        InvalidInputError: The values are not binary.
    """

    def __init__(self, blob_column: pa.Array | pa.ChunkedArray) -> None:
        if not isinstance(blob_column, pa.Array | pa.ChunkedArray):
            raise InvalidInputError(f"Expected a pyarrow.Array or pyarrow.ChunkedArray, got {type(blob_column)}")
        if not (pa.types.is_binary(blob_column.type) or pa.types.is_large_binary(blob_column.type)):
            raise InvalidInputError(f"Expected a binary array, got {blob_column.type}")
        self.blob_column = blob_column

    def __iter__(self) -> Iterator[BytesIO | None]:
        for value in self.blob_column:
            yield BytesIO(value.as_py()) if value.is_valid else None
