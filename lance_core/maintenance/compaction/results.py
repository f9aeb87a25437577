"""Results of the tasks of a compaction for its commit, with the JSON that pylance reads and writes as well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from lance_core.table.fragment import Fragment
from lance_core.table.operations import RewriteGroup
from lance_core.verbs.pylance_types.fragments import FragmentMetadata

__all__ = ["CompactionMetrics", "RewriteResult", "fragments_from_json", "fragments_to_json"]

_NOT_OF_PYLANCE: Final = frozenset({"tasks_skipped", "indices_extended"})
"""The counters that pylance does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionMetrics:
    """Counters of a compaction.

    Attributes:
        fragments_removed: Fragments that were rewritten.
        fragments_added: Fragments in place of the rewritten ones.
        files_removed: Data and deletion files of the rewritten fragments.
        files_added: Files of the added fragments.
        tasks_skipped: Tasks whose fragments a concurrent commit changed; their work was dropped.
        indices_extended: The names of the indices that were extended to the added fragments.
    """

    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0
    tasks_skipped: int = 0
    indices_extended: tuple[str, ...] = ()

    def __add__(self, other: CompactionMetrics) -> CompactionMetrics:
        """The sum of two counters."""
        return CompactionMetrics(
            **{name: getattr(self, name) + getattr(other, name) for name in CompactionMetrics.__slots__}
        )

    def to_json(self) -> dict[str, int]:
        """The counters as an object for `json.dumps`, in pylance's form."""
        return {name: getattr(self, name) for name in CompactionMetrics.__slots__ if name not in _NOT_OF_PYLANCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """The result of a task; nothing refers to its files before the commit.

    Attributes:
        metrics: The counters of the task.
        new_records: The new fragments, with id 0.
        original_records: The fragments that they replace.
        read_version: The version in which the original fragments were read.
        row_addrs: Addresses of the rows in their new order, as a serialized roaring treemap; None where no index
            needs them.
    """

    metrics: CompactionMetrics
    new_records: tuple[Fragment, ...]
    original_records: tuple[Fragment, ...]
    read_version: int
    row_addrs: bytes | None = None

    def __repr__(self) -> str:
        """The version and the fragments, in the form in which pylance shows them."""
        return (
            f"RewriteResult(read_version={self.read_version}, new_fragments={self.new_fragments}, "
            f"old_fragments={self.original_fragments})"
        )

    @property
    def group(self) -> RewriteGroup:
        """The fragments and their replacements, in the form of a Rewrite."""
        return RewriteGroup(old_fragments=self.original_records, new_fragments=self.new_records)

    @property
    def new_fragments(self) -> list[FragmentMetadata]:
        """The new fragments."""
        return [FragmentMetadata.from_record(record) for record in self.new_records]

    @property
    def original_fragments(self) -> list[FragmentMetadata]:
        """The fragments that they replace."""
        return [FragmentMetadata.from_record(record) for record in self.original_records]

    def json(self) -> str:
        """The result as JSON that pylance reads as well."""
        return json.dumps(
            {
                "metrics": self.metrics.to_json(),
                "new_fragments": fragments_to_json(self.new_records),
                "read_version": self.read_version,
                "original_fragments": fragments_to_json(self.original_records),
                "row_addrs": None if self.row_addrs is None else list(self.row_addrs),
            }
        )

    @classmethod
    def from_json(cls, string: str) -> Self:
        """Read the result of `json`, of this library or of pylance."""
        data = json.loads(string)
        addresses = data.get("row_addrs")
        return cls(
            metrics=CompactionMetrics(**data["metrics"]),
            new_records=fragments_from_json(data["new_fragments"]),
            original_records=fragments_from_json(data["original_fragments"]),
            read_version=data["read_version"],
            row_addrs=None if addresses is None else bytes(addresses),
        )


def fragments_to_json(records: Iterable[Fragment]) -> list[dict[str, Any]]:
    """Fragments as objects for `json.dumps`, in pylance's form."""
    return [FragmentMetadata.from_record(record).to_json() for record in records]


def fragments_from_json(data: Sequence[Mapping[str, Any]]) -> tuple[Fragment, ...]:
    """The inverse of `fragments_to_json`."""
    return tuple(FragmentMetadata.from_json(item).to_record() for item in data)
