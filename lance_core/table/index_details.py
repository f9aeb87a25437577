"""Build parameters in the details of vector and full-text indices; details of other indices have none."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.index import IndexMetadata

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
