"""The jobs of child processes, by pylance: a segment of an index is built, or recall is measured.

    build             one segment of some fragments
    extend, rebuild   indices get segments for the rows that they miss, or are built again, and committed by pylance
    train, join       what parts of one index share, and one segment of those that were built apart

A segment is not committed here: the parent has chosen the name of its folder, removes it if the child is killed, and
commits it in the one version in which it replaces others.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyroaring import BitMap

from lance_core.maintenance.search.recall import measure_vectors, measure_words
from lance_core.verbs.context.handle import Handle

_NO_MODEL: Final = base64.b64encode(pickle.dumps({})).decode()
_PQ_BITS: Final = 8
_SAMPLE_RATE: Final = 256  # rows for each code or partition, as pylance has it


def build(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build a segment, and return what its record in a manifest needs.

    Args:
        request: With `model`, the result of `train`, the segment is a part of an index; with `is_further`, it is one
            more of the index `name`.
    """
    table, kind = _open(request), request["kind"]
    arguments = {"name": request["name"], "replace": True, "fragment_ids": request["fragment_ids"]}
    if kind != "NGRAM":  # pylance chooses its folder
        arguments["index_uuid"] = request["uuid"]
    if request["metric"] is not None:
        arguments["metric"] = request["metric"]
    model = pickle.loads(base64.b64decode(request.get("model", _NO_MODEL)))  # noqa: S301 - from our own process
    arguments |= request["parameters"] | model
    if kind == "FTS" and request["is_further"]:
        arguments |= _read_stop_words(table, request["name"])
    segment = table.create_index_uncommitted(request["column"], kind, **arguments)
    if kind == "FTS" and "model" not in request:  # in stages: the segment is finished in the same folder
        segment = table.merge_existing_index_segments([segment])
    return _describe_segment(segment)


def train(request: Mapping[str, Any]) -> str:
    """Train what all parts of an index share: the centroids of partitions, and the codes of the PQ kinds."""
    from lance.indices import IndicesBuilder  # noqa: PLC0415 - an extra

    parameters, arguments = request["parameters"], dict[str, Any]()
    if request["metric"] is not None:
        builder = IndicesBuilder(_open(request), request["column"])
        limits = {name: parameters[name] for name in ("sample_rate", "max_iters") if name in parameters}
        partitions = builder.train_ivf(parameters["num_partitions"], distance_type=request["metric"], **limits)
        arguments["ivf_centroids"] = partitions.centroids
        if "PQ" in request["kind"]:
            bits = parameters.get("num_bits", _PQ_BITS)
            limits["sample_rate"] = min(limits.get("sample_rate", _SAMPLE_RATE), request["rows"] // 2**bits)
            codes = builder.train_pq(partitions, parameters["num_sub_vectors"], num_bits=bits, **limits)
            arguments["pq_codebook"] = codes.codebook
    return base64.b64encode(pickle.dumps(arguments)).decode()


def join(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make one segment of `segments`, as `build` has described them."""
    from lance.bitmap import Bitmap  # noqa: PLC0415 - an extra
    from lance.dataset import Index, IndexFile  # noqa: PLC0415 - an extra

    segments = [
        Index(
            uuid=segment["uuid"],
            name=request["name"],
            fields=segment["fields"],
            dataset_version=request["version"],
            fragment_ids=Bitmap(segment["fragment_ids"]),
            index_version=segment["index_version"],
            files=[IndexFile(path, size) for path, size in segment["files"]],
            index_details=(segment["type_url"], base64.b64decode(segment["details"])),
        )
        for segment in request["segments"]
    ]
    return _describe_segment(_open(request).merge_existing_index_segments(segments))


def _describe_segment(segment: Any) -> dict[str, Any]:
    url, details = segment.index_details
    return {
        "uuid": segment.uuid,
        "fields": list(segment.fields),
        "fragment_ids": list(BitMap(segment.fragment_ids)),
        "index_version": segment.index_version,
        "files": [(file.path, file.size_bytes) for file in segment.files or ()],
        "type_url": url,
        "details": base64.b64encode(details).decode(),
    }


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the recall of an index: `value`, `queries` and `note`."""
    table = _open(request)
    handle = Handle(request["uri"], storage_options=request["options"] or None).checkout_version(request["version"])
    if request["kind"] == "FTS":
        return measure_words(table, handle.snapshot, request)
    return measure_vectors(table, handle.snapshot, request)


def extend(request: Mapping[str, Any]) -> None:
    """Extend indices in one version: as pylance does by itself, or with the `arguments` of its `optimize_indices`.

    The segments of an index on vectors share their training, without which pylance merges no segments.
    """
    table = _open({**request, "version": None})
    table.optimize.optimize_indices(index_names=request["names"], **request["arguments"])


def rebuild(request: Mapping[str, Any]) -> None:
    """Build indices of words again, each in one version: pylance's `retrain` keeps old words, and NGRAM as it is."""
    from lance.query import DocumentGranularity  # noqa: PLC0415 - an extra

    table = _open({**request, "version": None})
    for name, index in request["indices"].items():
        parameters = dict(index["parameters"])
        if index["kind"] == "FTS":
            parameters |= _read_stop_words(table, name)
        if (granularity := parameters.pop("document_granularity", None)) is not None:
            parameters["document_granularity"] = DocumentGranularity[granularity.upper()]
        table.create_scalar_index(index["column"], index["kind"], name=name, replace=True, **parameters)


def _read_stop_words(table: Any, name: str) -> dict[str, Any]:
    """The parameter of an index of words that its files alone have, and that its details in the manifest lack."""
    segments = table.stats.index_stats(name)["indices"]
    stop_words = (segment.get("params", {}).get("custom_stop_words") for segment in segments)
    return {"custom_stop_words": next((words for words in stop_words if words is not None), None)}


def _open(request: Mapping[str, Any]) -> Any:
    import lance  # noqa: PLC0415 - an extra

    return lance.dataset(request["uri"], version=request["version"], storage_options=request["options"] or None)


JOBS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    function.__name__: function for function in (build, train, join, extend, rebuild, measure)
}
