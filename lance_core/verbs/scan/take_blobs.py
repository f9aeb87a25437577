"""Take the payloads of a blob column, by position, row id or row address."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import SEEK_CUR, SEEK_END, SEEK_SET, BytesIO
from typing import Final, NoReturn

import pyarrow as pa

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema.field import is_blob, is_blob_v2
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.projection import AS_BYTES, ROW_ADDRESS
from lance_core.verbs.scan.row_ids import check_live, take_ids, unsigned
from lance_core.verbs.scan.take import take_addresses, take_rows

_READ_ONLY: Final = "a blob of a dataset cannot be written to; update changes its payload"


class BlobFile(BytesIO):
    """The payload of one blob as a read-only file."""

    def size(self) -> int:
        """The number of bytes."""
        return self.getbuffer().nbytes if not self.closed else self._closed_size

    def close(self) -> None:
        """Free the payload."""
        if not self.closed:
            self._closed_size = self.getbuffer().nbytes
        super().close()

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Move to a position, and return it.

        Raises:
            InvalidInputError: The position lies before the payload; the file stays where it was.
        """
        position = offset + {SEEK_CUR: self.tell(), SEEK_END: self.size()}.get(whence, 0)
        if position < 0:
            raise InvalidInputError(f"position {position} lies before the blob, which has bytes 0 to {self.size()}")
        return super().seek(offset, whence)

    def writable(self) -> bool:
        """False: a blob cannot be written to."""
        return False

    def write(self, _data: object) -> int:
        """Raise `UnsupportedError`: `update` changes payloads."""
        raise UnsupportedError(_READ_ONLY)

    def writelines(self, _lines: object) -> NoReturn:
        """Raise `UnsupportedError`: `update` changes payloads."""
        raise UnsupportedError(_READ_ONLY)

    def truncate(self, size: int | None = None) -> NoReturn:
        """Raise `UnsupportedError`: `update` changes payloads."""
        del size
        raise UnsupportedError(_READ_ONLY)

    def getbuffer(self) -> memoryview:
        """The payload as read-only memory."""
        return super().getbuffer().toreadonly()

    def readall(self) -> bytes:
        """The rest of the payload."""
        return self.read()

    def read_range(self, offset: int, length: int) -> bytes:
        """The bytes of a range; the position of `read` does not change.

        Raises:
            InvalidInputError: The range is not inside the payload.
        """
        if offset < 0 or length < 0 or offset + length > self.size():
            raise InvalidInputError(f"Blob range {offset} to {offset + length} exceeds blob size {self.size()}")
        return self.getvalue()[offset : offset + length]

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """The bytes of several ranges, each as `read_range` returns them."""
        return [self.read_range(offset, length) for offset, length in ranges]

    def __repr__(self) -> str:
        return f"<BlobFile size={self.size()}>"


def blobs_at(
    snapshot: Snapshot,
    column: str,
    ids: Sequence[int] | pa.Array | None = None,
    addresses: Sequence[int] | pa.Array | None = None,
    indices: Sequence[int] | pa.Array | None = None,
) -> list[tuple[int, bytes | None]]:
    """Row addresses and payloads of rows, in the given order; the payload of a null is None.

    Args:
        snapshot: The version.
        column: A blob column.
        ids: Row ids.
        addresses: Row addresses: fragment id << 32 | row offset.
        indices: Positions among the live rows.

    Raises:
        InvalidInputError: None or several of the three are given, the column has no blobs, or there is no such row.
        SchemaError: There is no such column.
        UnsupportedError: A row is deleted.
    """
    if sum(argument is not None for argument in (ids, addresses, indices)) != 1:
        raise InvalidInputError("Exactly one of ids, indices, or addresses must be specified")
    field = snapshot.manifest.schema.column(column)
    if not (is_blob(field) or is_blob_v2(field)):
        raise InvalidInputError(f"the column {column!r} is not a blob column")
    options = scan_options(snapshot.manifest, [column], with_row_address=True, blob_handling=AS_BYTES)
    fragments = snapshot.manifest.fragments
    if indices is not None:
        return _pair_payloads(take_rows(snapshot, fragments, indices, options))
    if ids is not None:
        return _pair_payloads(take_ids(snapshot, ids, options))
    where = unsigned("addresses", addresses)
    check_live(snapshot, where)
    return _pair_payloads(take_addresses(snapshot, fragments, where, options))


def blob_ranges_at(
    snapshot: Snapshot, column: str, requests: Sequence[tuple[int, int, int]], selector: str
) -> list[tuple[int, int, bytes | None]]:
    """Ranges of payloads, in the given order; see `LanceDataset.read_blob_ranges`."""
    if selector not in ("ids", "addresses", "indices"):
        raise InvalidInputError(f"selector must be 'ids', 'addresses' or 'indices', not {selector!r}")
    for number, (row, offset, length) in enumerate(requests):
        if min(row, offset, length) < 0 or offset + length >= 1 << 64:
            raise InvalidInputError(
                f"blob range {number} has a negative number or ends above 2**64: row {row}, offset {offset}, "
                f"length {length}"
            )
    ranges = []
    payloads = blobs_at(snapshot, column, **{selector: [row for row, _, _ in requests]})
    for number, ((_, offset, length), (address, payload)) in enumerate(zip(requests, payloads, strict=True)):
        if payload is not None and offset + length > len(payload):
            raise InvalidInputError(
                f"Blob range request {number} for row address {address} is invalid: Blob range end {offset + length} "
                f"exceeds blob size {len(payload)}"
            )
        ranges.append((number, address, None if payload is None else payload[offset : offset + length]))
    return ranges


def payloads_at_addresses(snapshot: Snapshot, columns: Sequence[str], addresses: pa.ChunkedArray) -> pa.Table:
    """The payloads of blob columns at row addresses, in the given order; deleted rows are allowed."""
    options = scan_options(snapshot.manifest, columns, blob_handling=AS_BYTES)
    return take_addresses(snapshot, snapshot.manifest.fragments, addresses.to_numpy(), options)


def _pair_payloads(table: pa.Table) -> list[tuple[int, bytes | None]]:
    return list(zip(table.column(ROW_ADDRESS).to_pylist(), table.column(0).to_pylist(), strict=True))
