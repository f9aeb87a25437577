"""Read the payloads of blob columns of version 2.2, whose places are in their descriptors.

    kind 0  inline      the data file               bytes `position` to `position + size`
    kind 1  packed      <name>/<bits>.blob          the same
    kind 2  dedicated   <name>/<bits>.blob          the first `size` bytes
    kind 3  external    `blob_uri`                  the same; all bytes if `size` is 0

<name> is the key of the data file without `.lance`, <bits> the 32 bits of `blob_id`, the lowest bit first. The
`blob_uri` of an external blob is relative to the base path of id `blob_id`, or absolute and percent-encoded if
`blob_id` is 0.

The layout is that of tables written by pylance 14.0.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.repdef import list_items
from lance_core.encoding.structural.blob import BlobKind, gives_payloads
from lance_core.errors import CorruptFileError, ObjectNotFoundError, UnsupportedError
from lance_core.extension_types import storage_type
from lance_core.file.container import blob_folder, sidecar_key
from lance_core.schema import Field, Schema, arrow_type_of
from lance_core.schema.field import is_blob_v2_payload
from lance_core.store import ObjectStore
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Snapshot

_BATCH_BYTES: Final = 32 * 1024 * 1024
"""About how many bytes of payloads are in memory at once; a batch has at least one row."""

_AT_ONCE: Final = 8
"""Objects that are read in parallel."""

_UNKNOWN_BYTES: Final = _BATCH_BYTES // _AT_ONCE
"""What an external blob without a size counts as: no more of them are in memory than are read in parallel."""

_MAX_FILE: Final = 2**62
_MANAGED: Final = 4


Place = tuple[ObjectStore, str]
"""Store and key of an object."""


class _PayloadRange(NamedTuple):
    """The bytes of one payload.

    Attributes:
        place: The store and key of the object.
        start: Position of the first byte.
        end: Position after the last byte; None for the end of the object.
    """

    place: Place
    start: int
    end: int | None


def with_payloads(
    snapshot: Snapshot, files: Mapping[int, Place], batch: pa.RecordBatch, schema: Schema, arrow: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield rows with their payloads, in batches of bounded bytes.

    Args:
        snapshot: The version.
        files: The data file of each field of blobs by its id; a field without a file is null.
        batch: The rows, with descriptors.
        schema: The columns of the result.
        arrow: The Arrow schema of `schema`.

    Raises:
        CorruptFileError: A payload lies beyond its file, or a blob file is missing.
        ObjectNotFoundError: The object of an external blob does not exist.
        UnsupportedError: A blob has an unknown kind, or a URI whose scheme is not allowed.
    """

    def filled(field: Field, entries: Any) -> pa.Array:
        return _read_column(snapshot, files.get(field.id), entries, field)

    sizes = sum(map(_sizes, schema.fields, batch.columns), np.zeros(batch.num_rows, np.int64))
    for start, end in _split_rows(sizes):
        columns = batch.slice(start, end - start).columns
        filled_columns = [replace_blobs(*pair, filled) for pair in zip(schema.fields, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(filled_columns, schema=arrow)


def replace_blobs(field: Field, array: Any, change: Callable[[Field, Any], pa.Array]) -> pa.Array:
    """The array with other values in place of the blobs of 2.2 inside of it.

    Args:
        field: The field of the result.
        array: Its values; in place of blobs they may have another type.
        change: Called with each field of blobs and its entries, in one array without structs and lists around them.
    """
    if gives_payloads(field):
        return change(field, array)
    if not _has_blobs(field):
        return array
    kind = arrow_type_of(field)
    if pa.types.is_struct(kind):
        children = [replace_blobs(child, array.field(i), change) for i, child in enumerate(field.children)]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    offsets, items = list_items(array)
    validity = array.is_valid().buffers()[1] if array.null_count else None
    ends = pa.py_buffer(offsets.astype(np.int64 if pa.types.is_large_list(kind) else np.int32))
    children = [replace_blobs(field.children[0], items, change)]
    return pa.Array.from_buffers(kind, len(array), [validity, ends], children=children)


def blobs_inside(field: Field, array: Any) -> list[tuple[Field, Any]]:
    """The fields of blobs of 2.2 in a field, each with its entries: structs of payloads and URIs, or of descriptors."""
    pairs: list[tuple[Field, Any]] = []

    def collected(blob: Field, entries: Any) -> Any:
        pairs.append((blob, entries.storage if isinstance(entries, pa.ExtensionArray) else entries))
        return pa.nulls(len(entries), arrow_type_of(blob))

    replace_blobs(field, array, collected)
    return pairs


def _has_blobs(field: Field) -> bool:
    return any(gives_payloads(node) for node, _ in field.walk())


def _split_rows(sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows whose payloads have at most `_BATCH_BYTES`, or of one row; one empty range for no rows."""
    if not len(sizes):
        yield 0, 0
        return
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, side="right")))
        yield start, end
        start = end


def _sizes(field: Field, entries: Any) -> npt.NDArray[np.int64]:
    """Bytes of the payloads in each value of a field."""
    sizes = np.zeros(len(entries), np.int64)
    if not _has_blobs(field):
        return sizes
    if not gives_payloads(field) and pa.types.is_struct(entries.type):
        return sum((_sizes(child, entries.field(i)) for i, child in enumerate(field.children)), sizes)
    if not gives_payloads(field):
        offsets, items = list_items(entries)
        sums = np.append(0, np.cumsum(_sizes(field.children[0], items)))[offsets]
        return np.asarray(sums[1:] - sums[:-1])
    sizes = pc.fill_null(entries.field("size"), 0).to_numpy(zero_copy_only=False)
    if len(sizes) and int(sizes.max()) >= _MAX_FILE:
        raise CorruptFileError(f"column {field.name!r}: a blob of {sizes.max()} bytes is larger than any file")
    if is_blob_v2_payload(field):  # other fields hold such blobs as references
        kinds = pc.fill_null(entries.field("kind"), 0).to_numpy(zero_copy_only=False)
        sizes = np.where((kinds == BlobKind.EXTERNAL) & (sizes == 0), _UNKNOWN_BYTES, sizes)
    present = entries.is_valid().to_numpy(zero_copy_only=False)
    return np.where(present, sizes, 0).astype(np.int64)


def _read_column(snapshot: Snapshot, file: Place | None, entries: Any, field: Field) -> pa.Array:
    """The values of a blob column for some descriptors: payloads, or references to external blobs."""
    kind = arrow_type_of(field)
    rows: list[dict[str, Any] | None] = entries.to_pylist()
    if file is None or not any(row is not None for row in rows):
        return pa.nulls(len(rows), kind)
    if is_blob_v2_payload(field):
        return pa.array(_read_payloads(snapshot, file, rows), pa.large_binary()).cast(kind)
    names = [child.name for child in field.children]
    by_reference = [
        # A struct without the children of a range of bytes holds the payload.
        row is not None and row["kind"] == BlobKind.EXTERNAL and (not row["size"] or "size" in names)
        for row in rows
    ]
    data = _read_payloads(snapshot, file, [None if keep else row for row, keep in zip(rows, by_reference, strict=True)])
    values = [
        None if row is None else _reference(snapshot, row, names) if keep else {"data": payload}
        for row, keep, payload in zip(rows, by_reference, data, strict=True)
    ]
    storage = pa.array(values, storage_type(kind))
    return pa.ExtensionArray.from_storage(kind, storage) if isinstance(kind, pa.BaseExtensionType) else storage


def _reference(snapshot: Snapshot, row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The reference to an external blob, in the form that writes accept."""
    whole = {"uri": snapshot.external_blobs.absolute(row["blob_id"], row["blob_uri"])}
    return {**whole, "position": row["position"], "size": row["size"]} if row["size"] and "size" in names else whole


def _read_payloads(snapshot: Snapshot, file: Place, rows: Sequence[Mapping[str, Any] | None]) -> list[bytes | None]:
    """The payloads of descriptors; objects are read in parallel, and the ranges of one object in one call."""
    contents: list[Any] = [None if row is None else b"" for row in rows]
    parts_by_object: dict[tuple[int, str], list[tuple[int, _PayloadRange]]] = {}
    for number, row in enumerate(rows):
        if row is not None and (row["size"] or row["kind"] >= BlobKind.EXTERNAL):
            part = _find_range(snapshot, file, row)
            parts_by_object.setdefault((id(part.place[0]), part.place[1]), []).append((number, part))
    groups = list(parts_by_object.values())

    def read(group: Sequence[tuple[int, _PayloadRange]]) -> Sequence[Any]:
        return _read([part for _, part in group], file)

    if len(groups) > 1:
        with ThreadPool(_AT_ONCE) as pool:
            answers = list(pool.map(read, groups))
    else:
        answers = [read(group) for group in groups]
    for group, payloads in zip(groups, answers, strict=True):
        for (number, _), payload in zip(group, payloads, strict=True):
            contents[number] = payload
    return contents


def _find_range(snapshot: Snapshot, file: Place, row: Mapping[str, Any]) -> _PayloadRange:
    kind, start, size = row["kind"], row["position"], row["size"]
    if max(start, size) >= _MAX_FILE:
        raise CorruptFileError(f"{file[1]}: a blob at position {start} of {size} bytes is beyond any file")
    if kind == BlobKind.INLINE:
        return _PayloadRange(file, start, start + size)
    if kind == BlobKind.PACKED:
        return _PayloadRange((file[0], sidecar_key(file[1], row["blob_id"])), start, start + size)
    if kind == BlobKind.DEDICATED:
        return _PayloadRange((file[0], sidecar_key(file[1], row["blob_id"])), 0, size)
    if kind == BlobKind.EXTERNAL:
        place = snapshot.external_blobs.opened(row["blob_id"], row["blob_uri"])
        return _PayloadRange(place, start, start + size if size else None)
    what = "managed blobs (kind 4)" if kind == _MANAGED else f"blobs of the unknown kind {kind}"
    raise UnsupportedError(f"{file[1]}: {what} are not supported")


def _read(parts: Sequence[_PayloadRange], file: Place) -> Sequence[Any]:
    """The bytes of parts of one object."""
    store, key = parts[0].place
    try:
        ranged = [(part.start, part.end) for part in parts if part.end is not None]
        answers = iter(store.get_ranges(key, ranged) if ranged else [])
        return [next(answers) if part.end is not None else store.get(key)[part.start :] for part in parts]
    except ObjectNotFoundError as error:
        if store is file[0] and key.startswith(blob_folder(file[1])):
            raise CorruptFileError(f"{file[1]}: its blob file {key} is missing") from error
        raise
