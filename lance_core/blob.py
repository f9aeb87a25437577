"""Binary values as files, under pylance's names."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.verbs.scan.take_blobs import BlobFile

__all__ = ["BlobColumn", "BlobFile"]


class BlobColumn:
    """An iterator over a column of binary values as files; a null is None.

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
