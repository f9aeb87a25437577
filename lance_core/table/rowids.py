"""Stable row ids and row versions: sequences with one number per physical row of a fragment.

    RowIdSequence { segments* }               concatenated, in row order
      range          start .. end
      with holes     start .. end without some
      with bitmap    start + i for every bit i that is set, least significant bit first
      sorted_array, array                     any numbers: 2 or 4 bytes each above a base, or 8 bytes each

    RowDatasetVersionSequence { runs* }       (number of rows, version); only the length of a run's span counts

Both are kept inline in fragments; fragments that keep them in another file are rejected. The commit assigns ids, from
the manifest's `next_row_id` on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core._proto import rowids_pb2
from lance_core.errors import CorruptFileError, InvalidInputError, LanceError
from lance_core.row_addresses import find_positions, offsets_of
from lance_core.table.fragment import Fragment

U64Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]

_MAX_ROWS = 1 << 32
# Ids of rows of several fragments ascend within each fragment, and a segment for all would have 8 bytes per row.
_LONGEST_STEP, _SHORTEST_RUN = 1 << 16, 32
# The end of a range is one more than its last id, and is a uint64 as well.
_LAST_END = (1 << 64) - 1


def decode_row_ids(data: bytes, max_rows: int = _MAX_ROWS) -> U64Array:
    """Return the row ids of a serialized RowIdSequence, in row order.

    Args:
        data: The sequence.
        max_rows: Most rows that are accepted: a few bytes can declare billions.

    Raises:
        CorruptFileError: The bytes are not such a sequence, or the sequence is longer than `max_rows`.
    """
    try:
        message = rowids_pb2.RowIdSequence.FromString(data)
    except DecodeError as error:
        raise CorruptFileError("row ids: not a RowIdSequence") from error
    parts = []
    try:
        for segment in message.segments:
            parts.append(_decode_segment(segment, max_rows))
            max_rows -= len(parts[-1])
    except CorruptFileError as error:
        raise CorruptFileError(f"row ids: {error}") from error
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def find_row_sequence_problems(fragment: Fragment) -> Iterator[str]:
    """Yield the problems of a fragment's recorded row ids and row versions."""
    sequences = (
        ("row ids", fragment.row_ids, decode_row_ids),
        ("created versions", fragment.created_at_versions, decode_versions),
        ("updated versions", fragment.last_updated_at_versions, decode_versions),
    )
    # A few bytes can declare billions of rows. Up to twice the rows the message has the actual number.
    most = 2 * fragment.physical_rows
    for name, data, decode in sequences:
        if data is None:
            continue
        try:
            count = len(decode(data, most))
        except LanceError as error:
            yield f"{name}: {error}"
        else:
            if count != fragment.physical_rows:
                yield f"{name} for {count} of {fragment.physical_rows} rows"


def decode_row_ids_of(fragment: Fragment) -> U64Array | None:
    """The row ids of all rows of a fragment, deleted ones included; None if the fragment has no row ids.

    Raises:
        CorruptFileError: The number of row ids differs from the number of rows.
    """
    if fragment.row_ids is None:
        return None
    ids = decode_row_ids(fragment.row_ids, fragment.physical_rows)
    if len(ids) != fragment.physical_rows:
        raise CorruptFileError(f"fragment {fragment.id} has row ids for {len(ids)} of {fragment.physical_rows} rows")
    return ids


def encode_row_ids(row_ids: U64Array) -> bytes:
    """Serialize row ids, as one segment of the smallest form or as one for each long ascending run of near ids."""
    if len(row_ids) == 0:
        return b""
    ids = np.asarray(row_ids, np.uint64)
    steps = ids[1:] - ids[:-1]  # of a descending step, unsigned, a large number
    starts = np.flatnonzero(steps > _LONGEST_STEP) + 1
    runs = np.split(ids, starts) if len(starts) < len(ids) // _SHORTEST_RUN else [ids]
    return rowids_pb2.RowIdSequence(segments=map(_encode_segment, runs)).SerializeToString()


def list_versions_of_rows(data: bytes) -> set[int]:
    """The versions that a serialized RowDatasetVersionSequence has, whatever rows they belong to.

    Raises:
        CorruptFileError: The bytes are not such a sequence.
    """
    return {run.version for run in _parse_versions(data).runs}


def _parse_versions(data: bytes) -> rowids_pb2.RowDatasetVersionSequence:
    try:
        return rowids_pb2.RowDatasetVersionSequence.FromString(data)
    except DecodeError as error:
        raise CorruptFileError("row versions: not a RowDatasetVersionSequence") from error


def decode_versions(data: bytes, most: int = _MAX_ROWS) -> U64Array:
    """Return the version of each row of a serialized RowDatasetVersionSequence.

    Args:
        data: The sequence.
        most: Most rows that are accepted.

    Raises:
        CorruptFileError: The bytes are not such a sequence, or the sequence is longer than `most`.
    """
    message = _parse_versions(data)
    try:
        lengths = [_segment_length(run.span, most) for run in message.runs]
    except CorruptFileError as error:
        raise CorruptFileError(f"row versions: {error}") from error
    if sum(lengths) > most:
        raise CorruptFileError(f"row versions: {sum(lengths)} rows where there are at most {most}")
    return np.repeat(np.array([run.version for run in message.runs], np.uint64), lengths)


def encode_versions(versions: U64Array) -> bytes:
    """Serialize one version per row as runs of equal versions."""
    versions = np.asarray(versions, np.uint64)
    if len(versions) == 0:
        return b""
    starts = np.concatenate(([0], np.flatnonzero(versions[1:] != versions[:-1]) + 1))
    ends = [*starts[1:].tolist(), len(versions)]
    message = rowids_pb2.RowDatasetVersionSequence()
    for start, end in zip(starts.tolist(), ends, strict=True):
        run = message.runs.add(version=int(versions[start]))
        run.span.range.start, run.span.range.end = start, end
    return message.SerializeToString()


def assign_row_ids(fragments: Iterable[Fragment], next_row_id: int) -> tuple[list[Fragment], int]:
    """Give row ids to the rows that have none.

    A fragment may have ids for its first rows, which are moved rows; the other rows are new.

    Returns:
        The fragments, and the next free row id.

    Raises:
        InvalidInputError: A fragment has more ids than rows.
    """
    result = []
    for fragment in fragments:
        ids = decode_row_ids(fragment.row_ids or b"")
        missing = fragment.physical_rows - len(ids)
        if missing < 0:
            raise InvalidInputError(f"fragment {fragment.id} has {len(ids)} row ids for {fragment.physical_rows} rows")
        if fragment.row_ids is not None and not missing:
            result.append(fragment)
            continue
        fresh = np.arange(next_row_id, next_row_id + missing, dtype=np.uint64)
        next_row_id += missing
        result.append(replace(fragment, row_ids=encode_row_ids(np.concatenate([ids, fresh]))))
    return result, next_row_id


def with_versions(fragment: Fragment, version: int, created: U64Array | None = None) -> Fragment:
    """Record `version` as the one in which all rows of a fragment were written.

    Args:
        fragment: The fragment.
        version: Version of the commit.
        created: The version in which each row was created; None for `version`.
    """
    written = encode_versions(np.full(fragment.physical_rows, version, np.uint64))
    created_at = written if created is None else encode_versions(created)
    return replace(fragment, last_updated_at_versions=written, created_at_versions=created_at)


def with_last_updated(fragment: Fragment, offsets: BitMap, version: int) -> Fragment:
    """Record `version` as the one in which some rows of a fragment were updated last.

    Args:
        fragment: The fragment; a fragment that records no versions is returned as it is.
        offsets: The rows; offsets beyond the fragment are ignored.
        version: Version of the commit.
    """
    if fragment.last_updated_at_versions is None:
        return fragment
    versions = decode_versions(fragment.last_updated_at_versions).copy()
    rows = offsets_of(offsets)
    versions[rows[rows < len(versions)]] = version
    return replace(fragment, last_updated_at_versions=encode_versions(versions))


def find_created_versions(row_ids: U64Array, origins: Sequence[Fragment], default: int) -> U64Array:
    """Look up the versions in which rows were created.

    Args:
        row_ids: The rows.
        origins: Fragments that may have held the rows.
        default: Version of the other rows, which are new.
    """
    result = np.full(len(row_ids), default, np.uint64)
    for origin in reversed(origins):  # of several fragments that held a row the first one counts
        if origin.row_ids is None:
            continue
        ids = decode_row_ids(origin.row_ids, origin.physical_rows)
        versions = (
            decode_versions(origin.created_at_versions) if origin.created_at_versions else np.ones(len(ids), np.uint64)
        )
        length = min(len(ids), len(versions))
        positions = _find_ids(ids[:length], row_ids)
        result[positions >= 0] = versions[positions[positions >= 0]]
    return result


def hold_rows(fragments: Iterable[Fragment], row_ids: U64Array) -> bool:
    """Whether fragments hold all of some rows.

    Args:
        fragments: The fragments.
        row_ids: The ids of the rows.
    """
    missing_ids = row_ids
    for fragment in fragments:
        if len(missing_ids) and fragment.row_ids is not None:
            ids = decode_row_ids(fragment.row_ids, fragment.physical_rows)
            missing_ids = missing_ids[_find_ids(ids, missing_ids) < 0]
    return not len(missing_ids)


def _find_ids(ids: U64Array, row_ids: U64Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The position of each row id in the ids of a fragment; -1 for one that it lacks."""
    if len(ids) and bool((np.diff(ids) == 1).all()):  # a range, as most fragments have it
        positions = row_ids.astype(np.int64) - np.int64(ids[0])
        return np.where((positions >= 0) & (positions < len(ids)), positions, -1)
    order = np.argsort(ids, kind="stable")
    positions = find_positions(ids[order], row_ids)
    return np.where(positions >= 0, order[positions], -1) if len(ids) else positions


def _decode_segment(segment: rowids_pb2.U64Segment, max_rows: int) -> U64Array:
    ids = _decode_any_segment(segment, max_rows)
    if len(ids) > max_rows:
        raise CorruptFileError(f"{len(ids)} rows where there are at most {max_rows}")
    return ids


def _decode_any_segment(segment: rowids_pb2.U64Segment, max_rows: int) -> U64Array:
    kind = segment.WhichOneof("segment")
    if kind == "range":
        return _expand_range(segment.range.start, segment.range.end, max_rows)
    if kind == "range_with_holes":
        span = segment.range_with_holes
        holes = _decode_array(span.holes)
        return np.setdiff1d(_expand_range(span.start, span.end, max_rows + len(holes)), holes, assume_unique=True)
    if kind == "range_with_bitmap":
        bitmap = segment.range_with_bitmap
        bits = np.unpackbits(np.frombuffer(bitmap.bitmap, np.uint8), bitorder="little")
        ids = _expand_range(bitmap.start, bitmap.end, len(bits))
        return ids[bits[: len(ids)].astype(np.bool_)]
    if kind == "sorted_array":
        return _decode_array(segment.sorted_array)
    if kind == "array":
        return _decode_array(segment.array)
    raise CorruptFileError("a segment of an unknown kind")


def _segment_length(segment: rowids_pb2.U64Segment, most: int) -> int:
    if segment.WhichOneof("segment") == "range":
        return max(0, segment.range.end - segment.range.start)
    return len(_decode_segment(segment, most))


def _expand_range(start: int, end: int, most: int) -> U64Array:
    if not start <= end <= start + most:
        raise CorruptFileError(f"a range of {end - start} rows where there are at most {most}")
    return np.arange(start, end, dtype=np.uint64)


def _decode_array(array: rowids_pb2.EncodedU64Array) -> U64Array:
    kind = array.WhichOneof("array")
    try:
        if kind == "u16_array":
            return np.frombuffer(array.u16_array.offsets, "<u2").astype(np.uint64) + np.uint64(array.u16_array.base)
        if kind == "u32_array":
            return np.frombuffer(array.u32_array.offsets, "<u4").astype(np.uint64) + np.uint64(array.u32_array.base)
        return np.frombuffer(array.u64_array.values, "<u8").astype(np.uint64)
    except ValueError as error:
        raise CorruptFileError("an array is truncated") from error


def _encode_array(values: U64Array) -> rowids_pb2.EncodedU64Array:
    base = int(values.min()) if len(values) else 0
    span = int(values.max()) - base if len(values) else 0
    offsets = values - np.uint64(base)
    array = rowids_pb2.EncodedU64Array()
    if span < 1 << 16:
        array.u16_array.base, array.u16_array.offsets = base, offsets.astype("<u2").tobytes()
    elif span < 1 << 32:
        array.u32_array.base, array.u32_array.offsets = base, offsets.astype("<u4").tobytes()
    else:
        array.u64_array.values = values.astype("<u8").tobytes()
    return array


def _encode_segment(ids: U64Array) -> rowids_pb2.U64Segment:
    segment = rowids_pb2.U64Segment()
    if len(ids) > 1 and not bool((ids[1:] > ids[:-1]).all()):
        segment.array.CopyFrom(_encode_array(ids))
        return segment
    start, end = int(ids[0]), int(ids[-1]) + 1
    if end > _LAST_END:
        segment.sorted_array.CopyFrom(_encode_array(ids))
        return segment
    span = end - start
    if span == len(ids):
        segment.range.start, segment.range.end = start, end
        return segment
    width = 2 if span <= 1 << 16 else 4 if span <= 1 << 32 else 8
    if span // 8 <= min(len(ids), span - len(ids)) * width:
        present = np.zeros(span, np.uint8)
        present[(ids - np.uint64(start)).astype(np.int64)] = 1
        bitmap = segment.range_with_bitmap
        bitmap.start, bitmap.end = start, end
        bitmap.bitmap = np.packbits(present, bitorder="little").tobytes()
    elif span - len(ids) < len(ids):
        holes = segment.range_with_holes
        holes.start, holes.end = start, end
        missing = np.setdiff1d(np.arange(start, end, dtype=np.uint64), ids, assume_unique=True)
        holes.holes.CopyFrom(_encode_array(missing))
    else:
        segment.sorted_array.CopyFrom(_encode_array(ids))
    return segment
