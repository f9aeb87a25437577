"""Plans of a compaction and their tasks: records of metadata alone, sent to other processes as JSON or by pickle."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.rewrite import (
    RewriteResult,
    fragments_from_json,
    fragments_of,
    fragments_to_json,
    rewrite,
)
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.pylance_types.fragments import FragmentMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """One task of a plan.

    Attributes:
        raw: The fragments to rewrite, in order, serialized as in the manifest.
        read_version: The version that the plan was made from.
        options: The options of the compaction.
        fragment_ids: Their ids.
        num_rows: The number of live rows of the fragments when the plan was made.
        num_deleted_rows: The number of deleted rows of the fragments when the plan was made.
        num_bytes: The bytes of their data files, according to the manifest.
    """

    raw: tuple[bytes, ...]
    read_version: int
    options: CompactionOptions
    fragment_ids: list[int] = field(compare=False)
    num_rows: int = field(compare=False)
    num_deleted_rows: int = field(compare=False)
    num_bytes: int = field(compare=False)

    @property
    def records(self) -> tuple[Fragment, ...]:
        """The fragments to rewrite, in order."""
        return fragments_of(self.raw)

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """The fragments to rewrite."""
        return [FragmentMetadata.from_record(record) for record in self.records]

    def execute(self, dataset: Handle, *, file_prefix: str = "") -> RewriteResult:
        """Write the new fragments; nothing is committed.

        Args:
            dataset: The dataset. If its handle is on another version, the plan's version is opened.
            file_prefix: Start of the names of the new data files, by which `delete_uncommitted_files` finds those of a
                killed execution.

        Raises:
            VersionNotFoundError: The plan's version was cleaned up.
        """
        is_open = dataset.version == self.read_version
        snapshot = dataset.snapshot if is_open else dataset.checkout_version(self.read_version).snapshot
        return rewrite(snapshot, self.raw, self.options, file_prefix=file_prefix)

    def json(self) -> str:
        """The task as JSON that pylance reads as well."""
        return json.dumps(
            {
                "task": {"fragments": fragments_to_json(self.records)},
                "read_version": self.read_version,
                "options": self.options.to_json(),
            }
        )

    @classmethod
    def from_json(cls, string: str) -> Self:
        """Read the result of `json`, of this library or of pylance."""
        data = json.loads(string)
        options = CompactionOptions.from_json(data["options"])
        return cls.of(fragments_from_json(data["task"]["fragments"]), data["read_version"], options)

    @classmethod
    def of(cls, records: Iterable[Fragment], read_version: int, options: CompactionOptions) -> Self:
        """A task on some fragments."""
        fragments = tuple(records)
        deleted = sum(
            fragment.deletion_file.num_deleted_rows for fragment in fragments if fragment.deletion_file is not None
        )
        return cls(
            raw=tuple(record.to_protobuf().SerializeToString() for record in fragments),
            read_version=read_version,
            options=options,
            fragment_ids=[record.id for record in fragments],
            num_rows=max(0, sum(record.physical_rows for record in fragments) - deleted),  # old manifests count no rows
            num_deleted_rows=deleted,
            num_bytes=sum(file.file_size_bytes for record in fragments for file in record.files),
        )

    def __repr__(self) -> str:
        """Name the fragments."""
        return f"{type(self).__name__}(read_version={self.read_version}, fragments={self.fragment_ids})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The tasks of a compaction.

    Attributes:
        read_version: Version that the plan was made from; the commit follows it.
        tasks: The tasks; any subset may be executed and committed.
        options: The options that the tasks follow.
    """

    read_version: int
    tasks: tuple[CompactionTask, ...]
    options: CompactionOptions

    def num_tasks(self) -> int:
        """How many tasks there are."""
        return len(self.tasks)

    def json(self) -> str:
        """The plan as JSON that pylance reads as well."""
        return json.dumps(
            {
                "tasks": [{"fragments": fragments_to_json(task.records)} for task in self.tasks],
                "read_version": self.read_version,
                "options": self.options.to_json(),
            }
        )

    @classmethod
    def from_json(cls, string: str) -> Self:
        """Read the result of `json`, of this library or of pylance."""
        data = json.loads(string)
        options, version = CompactionOptions.from_json(data["options"]), data["read_version"]
        tasks = (CompactionTask.of(fragments_from_json(task["fragments"]), version, options) for task in data["tasks"])
        return cls(read_version=version, tasks=tuple(tasks), options=options)

    def __repr__(self) -> str:
        """Name the version and the number of tasks."""
        return f"CompactionPlan(read_version={self.read_version}, tasks=<{len(self.tasks)} compaction tasks>)"
