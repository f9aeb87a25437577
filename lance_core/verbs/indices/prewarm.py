"""Read an index into the cache before queries need it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from lance_core.errors import IndexNotFoundError, InvalidInputError, NotFoundError, UnsupportedError
from lance_core.index.kinds.registry import KINDS
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.indices.build import indexed_field


def prewarm(snapshot: Snapshot, name: str, segments: Iterable[str | uuid.UUID] | None) -> None:
    """Read an index into the cache of the handle.

    Raises:
        NotFoundError: There is no such index, or the index has no such segment.
        InvalidInputError: A segment is not given by a UUID.
        UnsupportedError: Indices of its kind are not read.
        CorruptFileError: The index cannot be read.
    """
    own_segments = {index.uuid: index for index in snapshot.manifest.indices if index.name == name}
    if not own_segments:
        raise IndexNotFoundError(f"Lance index not found: name={name}; list_indices() lists those of the table")
    keys = list(own_segments) if segments is None else [_parse_key(segment) for segment in segments]
    for key in keys:
        index = own_segments.get(key)
        if index is None:
            raise NotFoundError(f"the index {name!r} has no segment {key}")
        kind = KINDS.get(index.kind)
        if kind is None or (index.index_version or 0) not in kind.versions:
            raise UnsupportedError(
                f"reading the index {name!r} of type {index.kind}, version {index.index_version}, is not supported"
            )
        snapshot.indices.read(index, indexed_field(snapshot.manifest.schema, index.fields[0]).type)


def _parse_key(segment: str | uuid.UUID) -> uuid.UUID:
    try:
        return uuid.UUID(str(segment))
    except ValueError as error:
        raise InvalidInputError(
            f"index_segments: {str(segment)!r:.80} is no UUID; describe_indices lists the segments of an index"
        ) from error
