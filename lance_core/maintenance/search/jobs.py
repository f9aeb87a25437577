"""The jobs of child processes, by pylance: one segment of an index is built, or recall is measured.

A segment is not committed here: the parent has chosen the name of its folder, removes it if the child is killed, and
commits it in the one version in which it replaces others.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyroaring import BitMap

from lance_core.maintenance.search.recall import measure_vectors, measure_words
from lance_core.verbs.context.handle import Handle


def build(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build a segment, and return what its record in a manifest needs."""
    table, kind = _open(request), request["kind"]
    arguments = {"name": request["name"], "replace": True, "fragment_ids": request["fragment_ids"]}
    if kind != "NGRAM":  # pylance chooses its folder
        arguments["index_uuid"] = request["uuid"]
    if request["metric"] is not None:
        arguments["metric"] = request["metric"]
    segment = table.create_index_uncommitted(request["column"], kind, **arguments, **request["parameters"])
    if kind == "FTS":  # what is built first is in stages: the segment is finished in the same folder
        segment = table.merge_existing_index_segments([segment])
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
    table.optimize.optimize_indices(index_names=request["names"], **request.get("arguments", {}))


def _open(request: Mapping[str, Any]) -> Any:
    import lance  # noqa: PLC0415 - an extra

    return lance.dataset(request["uri"], version=request["version"], storage_options=request["options"] or None)


JOBS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {"build": build, "extend": extend, "measure": measure}
