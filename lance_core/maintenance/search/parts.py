"""Builds an index in parts, each of some fragments, where a builder such as Spark's executors does several at a time.

IVF_FLAT, IVF_PQ, and their HNSW kinds    trained once; the parts are segments of the index
FTS                                       the parts are joined to one segment
others                                    one part: pylance merges no segments that were quantized apart, and
                                          names the folders of NGRAM itself
"""

from __future__ import annotations

import base64
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from pyroaring import BitMap

from lance_core.errors import LanceError, UnsupportedError
from lance_core.maintenance.search.child import ChildFailedError, ChildProcess
from lance_core.maintenance.search.facts import find_pylance
from lance_core.table.index import IndexFile, IndexMetadata
from lance_core.table.paths import INDICES_PREFIX
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.uncommitted_files import delete_uncommitted_files

_LEAST_ROWS: Final = 10_000
"""The rows of a part: of fewer a process would rather start than work."""

_MOST_PARTS: Final = 16
_LONGEST_REASON: Final = 400
_LONGEST_START_S: Final = 30.0
_DIVIDED: Final = ("IVF_FLAT", "IVF_PQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "FTS")
_LONGEST_REMOVAL_S: Final = 20.0
_SHARED_PREFIX: Final = 24
"""The characters that the uuids of a build and of all its parts have in common."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBuilder:
    """Runs the tasks that build parts of an index, such as on Spark's executors.

    Attributes:
        run: Runs a task, which is a function of a number, for each number below a count, and returns the results in
            their order, or raises an error after a number of seconds (None for no limit). Task and results can be
            pickled.
        parallelism: The number of tasks that run at a time.
    """

    run: Callable[[Callable[[int], Any], int, float | None], list[Any]]
    parallelism: int


def build_segments(
    request: Mapping[str, Any], rows: Mapping[int, int], child: ChildProcess, builder: IndexBuilder | None
) -> list[dict[str, Any]]:
    """Build an index, and return its segments, which are to be committed.

    Args:
        request: The request to build it as one segment.
        rows: The rows of each of its fragments, by id.
        child: Trains what parts share, and joins them; without a builder it builds.
        builder: Builds the parts; None for the child process.

    Raises:
        ChildFailedError: A process failed. Folders of parts may be left.
    """
    if builder is None:
        return [child.run("build", request)]
    parts = divide(request, rows, builder.parallelism)
    common = {"memory": child.memory, "timeout_s": child.timeout_s}
    if len(parts) > 1:
        common["model"] = child.run("train", {**request, "rows": sum(rows.values())})
    try:
        # The limit of a part holds on its executor; this one is for an executor that answers no more.
        timeout_s = None if child.timeout_s is None else child.timeout_s + _LONGEST_START_S
        _reject_without_pylance(builder, timeout_s)
        segments = builder.run(_PartTask([{**part, **common} for part in parts]), len(parts), timeout_s)
    except LanceError:
        raise
    except Exception as error:  # Spark's, such as of an executor that was killed: of this index alone
        raise ChildFailedError(_shorten(error)) from error
    for segment in segments:
        if "failure" in segment:
            raise ChildFailedError(segment["failure"], is_error=segment["is_error"])
    if len(parts) == 1:
        return segments
    return [child.run("join", {**request, "segments": segments})] if request["kind"] == "FTS" else segments


def _shorten(error: Exception) -> str:
    """The lines of an error that are no places of a program, and say more than the call that failed."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    causes = [line for line in lines[1:] if re.search(r"(Exception|Error|Failure)\b.*: ", line)]
    return "; ".join(dict.fromkeys([lines[0], *causes[:2]]))[:_LONGEST_REASON]


def _reject_without_pylance(builder: IndexBuilder, timeout_s: float | None) -> None:
    """Raise an error that names the hosts that cannot build.

    Raises:
        UnsupportedError: pylance is not installed there.
    """
    without = {host for host, version in builder.run(describe_host, builder.parallelism, timeout_s) if version is None}
    if without:
        raise UnsupportedError(
            f"pylance, which builds the index, is not installed on the executors at {', '.join(sorted(without))}: "
            "pip install 'lance-dagster[search]' there"
        )


def describe_host(_number: int) -> tuple[str, str | None]:
    """The name of this host, and the version of its pylance; None without."""
    return socket.gethostname(), find_pylance()


@dataclass(frozen=True, slots=True)
class _PartTask:
    """Builds parts by their number, each in a child process of the executor; what goes wrong is in the result."""

    requests: Sequence[Mapping[str, Any]] = field(repr=False)

    def __call__(self, number: int) -> dict[str, Any]:
        """Build a part."""
        request = self.requests[number]
        with closing(ChildProcess(request["memory"], request["timeout_s"])) as child:
            try:
                segment: dict[str, Any] = child.run("build", request)
            except ChildFailedError as error:
                return {"failure": str(error), "is_error": error.is_error}
        return segment


def divide(request: Mapping[str, Any], rows: Mapping[int, int], parallelism: int) -> list[dict[str, Any]]:
    """Requests for consecutive fragments of about as many rows each.

    Args:
        request: The request to build one segment.
        rows: The rows of each fragment, by id.
        parallelism: The most requests.
    """
    total = max(1, sum(rows.values()))
    count = min(parallelism, _MOST_PARTS, max(1, total // _LEAST_ROWS)) if request["kind"] in _DIVIDED else 1
    groups, rows_before = dict[int, list[int]](), 0
    for fragment in sorted(rows):
        groups.setdefault(min(rows_before * count // total, count - 1), []).append(fragment)
        rows_before += rows[fragment]
    if len(groups) < 2:
        return [dict(request)]
    names = _list_part_names(request["uuid"])
    return [{**request, "uuid": name, "fragment_ids": ids} for name, ids in zip(names, groups.values(), strict=False)]


def _list_part_names(name: str) -> list[str]:
    """The uuids of the most parts that an index can have, from that of the build."""
    return [f"{name[:_SHARED_PREFIX]}{number:012x}" for number in range(_MOST_PARTS)]


def remove_leftovers(dataset: Handle, name: str, uuids: Collection[str], *, are_used: bool) -> None:
    """Remove the folders of a build; those that cannot be removed, or not soon, are left to cleanup.

    Args:
        dataset: The table.
        name: The uuid of the build.
        uuids: Those of its segments.
        are_used: Whether these are committed; then only the parts that they were made of are removed.
    """
    uri, snapshot = dataset.uri, dataset.snapshot

    def remove_folders() -> None:
        try:
            for prefix in {name[:_SHARED_PREFIX], *uuids}:
                delete_uncommitted_files(
                    uri,
                    file_prefix=prefix,
                    keep=uuids if are_used else (),
                    index_segments=True,
                    storage_options=snapshot.options,
                )
            for folder in (name, *uuids, *_list_part_names(name)):
                snapshot.store.remove_empty_folders(f"{INDICES_PREFIX}{folder}")
        except (LanceError, OSError) as error:
            _logger.warning("%s: the folder of a build was left behind: %s", uri, error)

    removal = threading.Thread(target=remove_folders, daemon=True)  # storage that does not answer takes minutes
    removal.start()
    removal.join(_LONGEST_REMOVAL_S)
    if removal.is_alive():
        _logger.warning("%s: the folder of a build may be left behind: its storage does not answer", uri)


def to_record(segment: Mapping[str, Any], name: str, version: int) -> IndexMetadata:
    """The record of a segment that a child process has built.

    Args:
        segment: The segment, as the process has described it.
        name: The name of the index.
        version: The version that was read.
    """
    return IndexMetadata(
        uuid=uuid.UUID(segment["uuid"]),
        name=name,
        fields=tuple(segment["fields"]),
        dataset_version=version,
        fragment_bitmap=BitMap(segment["fragment_ids"]).serialize(),
        details_type_url=segment["type_url"],
        details=base64.b64decode(segment["details"]),
        index_version=segment["index_version"],
        created_at_ms=time.time_ns() // 1_000_000,
        files=tuple(IndexFile(path=path, size_bytes=size) for path, size in segment["files"]),
    )
