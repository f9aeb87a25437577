"""Describe the indices of a version: their kinds, and the fragments and rows that they cover and miss.

The details of vector and full-text indices have their build parameters; details of other indices have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError, IndexNotFoundError, ObjectNotFoundError, UnsupportedError
from lance_core.index.kinds.registry import KINDS
from lance_core.schema import Schema, arrow_type_of, quote_path
from lance_core.table.index import FRAGMENT_REUSE_INDEX, IndexMetadata
from lance_core.table.reuse import live_coverage, num_reuse_versions
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.read_fragment import count_live


class IndexInformation(TypedDict):
    """A segment of an index."""

    name: str
    type: str
    uuid: str
    fields: list[str]
    version: int
    fragment_ids: set[int]
    base_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSegmentDescription:
    """A segment of an index.

    Attributes:
        uuid: Names its folder below `_indices/`.
        dataset_version_at_last_update: Version that it was built on.
        fragment_ids: Fragments that it covers, deleted ones possibly among them.
        index_version: Version of the index's own format.
        created_at: When it was made.
        size_bytes: Size of its files, if recorded.
        base_id: Base path that it lies in; None for the dataset itself.
        covering_fields: Ids of further fields whose values it stores.
    """

    uuid: str
    dataset_version_at_last_update: int
    fragment_ids: set[int]
    index_version: int
    created_at: datetime | None
    size_bytes: int | None
    base_id: int | None
    covering_fields: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDescription:
    """An index.

    Attributes:
        name: Its name.
        index_type: Its kind.
        type_url: Type of the details in its record.
        fields: Ids of the indexed fields.
        field_names: Their dotted paths.
        num_rows_indexed: Live rows of the fragments that it covers.
        segments: Its segments.
        total_size_bytes: Size of all its files, if recorded.
        details: How it was built, for vector and full-text search; empty for others.
    """

    name: str
    index_type: str
    type_url: str
    fields: list[int]
    field_names: list[str]
    num_rows_indexed: int
    segments: list[IndexSegmentDescription]
    total_size_bytes: int | None
    details: dict[str, Any]


class IndexStatistics(TypedDict, total=False):
    """Counters of an index; the fragment reuse index has only `num_versions`.

    Attributes:
        name: Its name.
        index_type: Its kind.
        num_indices: How many segments it has.
        num_segments: How many segments it has, under pylance's newer name.
        num_indexed_fragments: Live fragments that it covers.
        num_indexed_rows: Live rows of the fragments that it covers.
        num_unindexed_fragments: Live fragments that it does not cover.
        num_unindexed_rows: Live rows of the fragments that it does not cover.
        num_indexed_rows_per_delta: The live rows that each segment covers.
        updated_at_timestamp_ms: When its newest segment was made, milliseconds since the epoch; None if not recorded.
        num_versions: Compactions that it records.
        indices: Statistics from the files of each segment, for kinds that are read.
        segments: Statistics from the files of each segment, under pylance's newer name.
    """

    name: str
    index_type: str
    num_indices: int
    num_segments: int
    num_indexed_fragments: int
    num_indexed_rows: int
    num_unindexed_fragments: int
    num_unindexed_rows: int
    num_indexed_rows_per_delta: list[int]
    updated_at_timestamp_ms: int | None
    num_versions: int
    indices: list[dict[str, object]]
    segments: list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class _CoveredSegment:
    """A segment and the fragments that it covers now: compaction may have replaced the fragments it was built on."""

    index: IndexMetadata
    covered: BitMap


def describe_indices(snapshot: Snapshot) -> list[IndexDescription]:
    """All indices of a version, by name."""
    counts = _count_live_rows(snapshot)
    groups = sorted(_group_by_name(snapshot).items())
    return [_describe_index(snapshot.manifest.schema, group, counts) for _, group in groups]


def find_index_file_problems(snapshot: Snapshot, index: IndexMetadata) -> Iterator[tuple[str, str]]:
    """The files of a segment that are missing, or have another size than is recorded: path and problem.

    Args:
        snapshot: The version.
        index: A segment of it.
    """
    store, folder = snapshot.indices.folder(index)
    for file in index.files:
        key = f"{folder}{file.path}"
        path = key if index.base_id is None else f"{store.root}/{key}"
        try:
            size = store.head(key).size
        except ObjectNotFoundError:
            yield path, "is missing"
        else:
            if file.size_bytes and size != file.size_bytes:
                yield path, f"has {size} bytes, the manifest says {file.size_bytes}"


def reject_damaged_files(snapshot: Snapshot, name: str) -> None:
    """Make sure that the files of an index are there, with the sizes that are recorded: pylance may not read them all.

    Args:
        snapshot: The version.
        name: The index.

    Raises:
        CorruptFileError: A file is missing, or has another size.
    """
    for index in (each for each in snapshot.manifest.indices if each.name == name):
        for path, problem in find_index_file_problems(snapshot, index):
            raise CorruptFileError(f"{path} {problem}")


def index_statistics(snapshot: Snapshot, name: str) -> IndexStatistics:
    """Counters of an index.

    Raises:
        IndexNotFoundError: The version has no index of that name.
        UnsupportedError: The index belongs to the write-ahead log, or keeps its details in a file.
        CorruptFileError: A file of the index cannot be read.
    """
    group = _group_by_name(snapshot).get(name)
    if group is None:
        raise IndexNotFoundError(f"Index {name!r} not found")
    first = group[0].index
    if name == FRAGMENT_REUSE_INDEX:
        return {"num_versions": num_reuse_versions(first)}
    if first.is_system:
        raise UnsupportedError(f"statistics of {name!r} are not supported, as it is an index of the write-ahead log")
    counts = _count_live_rows(snapshot)
    covered = BitMap.union(*(segment.covered for segment in group))
    indexed = [count for fragment_id, count in counts.items() if fragment_id in covered]
    times = [segment.index.created_at_ms for segment in group if segment.index.created_at_ms is not None]
    result: IndexStatistics = {
        "index_type": first.kind,
        "name": name,
        "num_indices": len(group),
        "num_segments": len(group),
        "num_indexed_fragments": len(indexed),
        "num_indexed_rows": sum(indexed),
        "num_unindexed_fragments": len(counts) - len(indexed),
        "num_unindexed_rows": sum(counts.values()) - sum(indexed),
        "num_indexed_rows_per_delta": [_num_rows(segment.covered, counts) for segment in group],
        "updated_at_timestamp_ms": max(times, default=None),
    }
    content_statistics = _content_statistics(snapshot, [segment.index for segment in group])
    if content_statistics is not None:
        result["indices"] = result["segments"] = content_statistics
    return result


def _content_statistics(snapshot: Snapshot, segments: Sequence[IndexMetadata]) -> list[dict[str, object]] | None:
    """Statistics from the files of segments; None if this library does not read that kind of index."""
    kind = KINDS.get(segments[0].kind)
    if kind is None or any((index.index_version or 0) not in kind.versions for index in segments):
        return None
    fields = snapshot.manifest.schema.by_id()
    return [
        snapshot.indices.read(index, arrow_type_of(fields[index.fields[0]])).statistics()
        for index in segments
        if index.fields[0] in fields
    ]


def _count_live_rows(snapshot: Snapshot) -> dict[int, int]:
    """Live rows of each fragment."""
    return {fragment.id: count_live(snapshot, fragment) for fragment in snapshot.manifest.fragments}


def _num_rows(covered: BitMap, counts: dict[int, int]) -> int:
    return sum(count for fragment_id, count in counts.items() if fragment_id in covered)


def _group_by_name(snapshot: Snapshot) -> dict[str, list[_CoveredSegment]]:
    indices = snapshot.manifest.indices
    covered = {index.uuid: fragments for index, fragments in live_coverage(indices)}
    groups: dict[str, list[_CoveredSegment]] = {}
    for index in indices:
        live_fragments = covered.get(index.uuid)
        fragments = index.covered_fragments() or BitMap() if live_fragments is None else live_fragments
        groups.setdefault(index.name, []).append(_CoveredSegment(index, fragments))
    return groups


def _describe_index(schema: Schema, group: Sequence[_CoveredSegment], counts: dict[int, int]) -> IndexDescription:
    first = group[0].index
    segments = [_describe_segment(segment) for segment in group]
    sizes = [segment.size_bytes for segment in segments if segment.size_bytes is not None]
    return IndexDescription(
        name=first.name,
        index_type=first.kind,
        type_url=first.details_type_url,
        fields=list(first.fields),
        field_names=[_find_path(schema, i) for i in first.fields],
        num_rows_indexed=_num_rows(BitMap.union(*(segment.covered for segment in group)), counts),
        segments=segments,
        total_size_bytes=sum(sizes) if len(sizes) == len(segments) else None,
        details=index_details(first),
    )


def _describe_segment(segment: _CoveredSegment) -> IndexSegmentDescription:
    index = segment.index
    created = index.created_at_ms
    return IndexSegmentDescription(
        uuid=str(index.uuid),
        dataset_version_at_last_update=index.dataset_version,
        fragment_ids=set(segment.covered),
        index_version=index.index_version or 0,
        created_at=None if created is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=created),
        size_bytes=sum(file.size_bytes for file in index.files) if index.files else None,
        base_id=index.base_id,
        covering_fields=list(index.covering_fields),
    )


def _find_path(schema: Schema, field_id: int) -> str:
    parents = {node.id: (node, parent) for node, parent in schema.walk()}
    parts: list[str] = []
    while field_id in parents:
        node, field_id = parents[field_id]
        parts.append(node.name)
    return quote_path(parts[::-1])


_DEFAULT_BLOCK_SIZE = 128
_DEFAULTS = table_pb2.InvertedIndexDetails(
    base_tokenizer="simple",
    language='"English"',
    max_token_length=40,
    lower_case=True,
    stem=True,
    remove_stop_words=True,
    ascii_folding=True,
    min_ngram_length=3,
    max_ngram_length=3,
)
"""Defaults of pylance for a full-text index that does not record how it was built."""


def index_details(index: IndexMetadata) -> dict[str, Any]:
    """The details of an index as a dictionary, with pylance's names.

    Raises:
        CorruptFileError: The details cannot be parsed.
    """
    try:
        if index.is_vector and index.details:
            return _describe_vector(table_pb2.VectorIndexDetails.FromString(index.details))
        if index.details_type_url.endswith(".InvertedIndexDetails"):
            return _describe_inverted(table_pb2.InvertedIndexDetails.FromString(index.details))
    except (DecodeError, ValueError) as error:
        raise CorruptFileError(f"index {index.name!r}: its details cannot be parsed") from error
    return {}


def _describe_vector(details: table_pb2.VectorIndexDetails) -> dict[str, Any]:
    metrics = table_pb2.VectorIndexDetails.Metric
    is_known = details.metric_type in metrics.values()
    parameters: dict[str, Any] = {"metric_type": metrics.Name(details.metric_type) if is_known else "UNKNOWN"}
    if details.target_partition_size:
        parameters["target_partition_size"] = details.target_partition_size
    if details.HasField("hnsw"):
        hnsw = details.hnsw
        parameters["hnsw"] = {"max_connections": hnsw.max_connections, "construction_ef": hnsw.construction_ef}
        if hnsw.max_level:
            parameters["hnsw"]["max_level"] = hnsw.max_level
    match details.WhichOneof("compression"):
        case "pq":
            pq = details.pq
            parameters["compression"] = {"type": "pq", "num_bits": pq.num_bits, "num_sub_vectors": pq.num_sub_vectors}
        case "sq":
            parameters["compression"] = {"type": "sq", "num_bits": details.sq.num_bits}
        case "rq":
            is_matrix = details.rq.rotation_type == table_pb2.VectorIndexDetails.RabitQuantization.MATRIX
            rotation = "matrix" if is_matrix else "fast"
            parameters["compression"] = {"type": "rq", "num_bits": details.rq.num_bits, "rotation_type": rotation}
    if details.runtime_hints:
        parameters["runtime_hints"] = dict(details.runtime_hints)
    return parameters


def _describe_inverted(message: table_pb2.InvertedIndexDetails) -> dict[str, Any]:
    details = message if message.HasField("base_tokenizer") else _DEFAULTS
    by_element = details.document_granularity == table_pb2.InvertedIndexDetails.LIST_ELEMENT
    return {
        # These two parameters are recorded in the index's own files only.
        "lance_tokenizer": None,
        "custom_stop_words": None,
        "base_tokenizer": details.base_tokenizer,
        "language": json.loads(details.language or _DEFAULTS.language),
        "with_position": details.with_position,
        "max_token_length": details.max_token_length if details.HasField("max_token_length") else None,
        "lower_case": details.lower_case,
        "stem": details.stem,
        "remove_stop_words": details.remove_stop_words,
        "ascii_folding": details.ascii_folding,
        "min_ngram_length": details.min_ngram_length,
        "max_ngram_length": details.max_ngram_length,
        "prefix_only": details.prefix_only,
        "block_size": details.block_size or _DEFAULT_BLOCK_SIZE,
        "split_identifiers": details.code.split_identifiers,
        "split_on_numerics": details.code.split_on_numerics,
        "preserve_original": details.code.preserve_original,
        "index_operators": details.code.index_operators,
        "document_granularity": "list_element" if by_element else "row",
    }
