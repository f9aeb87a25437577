"""The health of a table: numbers from its manifest and the list of its versions. No data file is opened or listed.

lance/fragments             fragments of the newest version
lance/small_fragments       ... with fewer rows than the target
lance/deleted_fraction      rows that are deleted and still in the files, of all rows in the files
lance/versions_total        versions that were not cleaned up
lance/index_unindexed_fraction   share of the rows that the index with the least coverage does not cover
lance/index_unindexed_fraction/<name>   ... that a declared index does not cover
lance/index_recall/<name>   last measured recall of a declared index
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lance_core.commit.versions import existing_versions
from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.search.facts import find_faults
from lance_core.maintenance.search.record import read_records
from lance_core.table.index import SYSTEM_PREFIX
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.inspect.indices import describe_indices
from lance_core.verbs.scan.read_fragment import count_live_each, with_all_row_counts

DEFAULT_TARGET: Final = 1024 * 1024
TARGET_KEY: Final = "lance.compaction.target_rows_per_fragment"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """The numbers of one version.

    Attributes:
        version: The version.
        fragments: The number of fragments.
        small_fragments: The number of fragments with fewer rows than the target.
        mergeable_fragments: The number of fragments that a compaction by the policy would merge; it does not merge a
            few small fragments with much larger ones.
        rows: The number of live rows.
        deleted_rows: The number of rows that are deleted and still in the files.
        bytes: The bytes of the data files; None if they are not known, as after a dry run.
        versions: The number of versions of the branch; 0 if they were not counted.
        unindexed: For each index, the share of the live rows that it does not cover; 1 if it has a fault.
        faults: Why searches by an index fail, or find wrong rows, by its name.
        oldest: The two oldest versions, or as many as there are; none if versions were not counted.
        recall: For each declared index of the version its last measurement; empty if it was never measured.
    """

    version: int
    fragments: int
    small_fragments: int
    rows: int
    deleted_rows: int
    bytes: int | None
    versions: int
    unindexed: Mapping[str, float] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    oldest: Sequence[int] = ()
    mergeable_fragments: int = 0
    recall: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def deleted_fraction(self) -> float:
        """The share of the rows in the files that are deleted."""
        return _share(self.deleted_rows, self.rows)

    @property
    def unindexed_fraction(self) -> float | None:
        """The share that the index with the least coverage does not cover; None without indices."""
        return max(self.unindexed.values(), default=None)

    def numbers(self) -> dict[str, int]:
        """The numbers that maintenance compares before and after, as far as they are known."""
        names = ("fragments", "rows", "deleted_rows", "bytes", "versions")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def metadata(self) -> dict[str, int | float]:
        """The entries of events and check results; the head of the module lists them."""
        optional_metadata: dict[str, int | float | None] = {
            "lance/version": self.version,
            "lance/fragments": self.fragments,
            "lance/small_fragments": self.small_fragments,
            "lance/deleted_fraction": self.deleted_fraction,
            "lance/versions_total": self.versions,
            "lance/index_unindexed_fraction": self.unindexed_fraction,
        }
        for name, measured in self.recall.items():
            optional_metadata[f"lance/index_unindexed_fraction/{name}"] = self.unindexed[name]
            optional_metadata[f"lance/index_recall/{name}"] = measured.get("value")
        return {key: value for key, value in optional_metadata.items() if value is not None}

    def problems(self, policy: MaintenancePolicy, *, versions: int | None = None, indices: bool = True) -> list[str]:
        """The thresholds of a policy that are exceeded, as messages; empty if the table is healthy.

        Args:
            policy: The thresholds.
            versions: The number of versions that count; None for all versions.
            indices: Whether rows that an index does not cover count, if the policy refreshes indices; its faults do.
        """
        limits: tuple[tuple[str, float, float], ...] = (
            ("small fragments", self.mergeable_fragments, policy.max_small_fragments),
            ("deleted fraction", round(self.deleted_fraction, 4), policy.materialize_deletions_threshold),
            ("versions", self.versions if versions is None else versions, policy.max_versions),
        )
        problems = [f"{name} {value:,} (over {limit:,})" for name, value, limit in limits if value > limit]
        if policy.refresh_indices:
            problems += [f"index {name!r}: {fault}" for name, fault in self.faults.items()]
            problems += [
                f"index {name!r} misses {share:.1%} of the rows"
                for name, share in self.unindexed.items()
                if share and indices and name not in self.faults
            ]
        return problems


def compute_deleted_fraction(dataset: Handle) -> float:
    """The share of the rows in the files of a version that are deleted."""
    snapshot = dataset.snapshot
    num_live_rows = sum(count_live_each(snapshot, snapshot.manifest.fragments))
    return _share(with_all_row_counts(snapshot).totals()[0], num_live_rows)


def _share(deleted: int, live: int) -> float:
    return deleted / (deleted + live) if deleted else 0.0


def measure(
    dataset: Handle, policy: MaintenancePolicy, *, count_versions: bool = True, versions: Sequence[int] | None = None
) -> TableHealth:
    """Measure the version of a dataset from its manifest, and list its versions if they count.

    Args:
        dataset: The table.
        policy: The thresholds.
        count_versions: Whether the versions count.
        versions: The versions in ascending order, if they are known; None to list them.
    """
    snapshot = dataset.snapshot
    target = policy.target_rows_per_fragment or int(snapshot.manifest.config.get(TARGET_KEY, DEFAULT_TARGET))
    fragments = with_all_row_counts(snapshot)
    rows = sum(count_live_each(snapshot, snapshot.manifest.fragments))
    if versions is None:
        versions = existing_versions(snapshot.store) if count_versions else []
    tasks = Compaction.plan(dataset, policy.compaction_options()).tasks
    faults, records = find_faults(snapshot) if rows else {}, read_records(snapshot.manifest.config)
    unindexed = _measure_indices(dataset, rows) | dict.fromkeys(faults, 1.0)
    return TableHealth(
        version=dataset.version,
        fragments=len(fragments),
        small_fragments=int((fragments.sizes()[1] < target).sum()),
        mergeable_fragments=sum(len(task.raw) for task in tasks if len(task.raw) > 1),
        rows=rows,
        deleted_rows=fragments.totals()[0],
        bytes=dataset.total_bytes,
        versions=len(versions),
        oldest=tuple(versions[:2]),
        unindexed=unindexed,
        faults=faults,
        recall={name: record.recall or {} for name, record in records.items() if name in unindexed},
    )


def _measure_indices(dataset: Handle, rows: int) -> dict[str, float]:
    """The share of the rows that each index misses; without those of the system."""
    if not dataset.snapshot.manifest.indices or not rows:
        return {}
    return {
        index.name: (rows - index.num_rows_indexed) / rows
        for index in describe_indices(dataset.snapshot)
        if not index.name.startswith(SYSTEM_PREFIX)
    }


def measure_index_bytes(dataset: Handle) -> dict[str, int]:
    """The bytes of each index segment, by the segment's UUID."""
    indices = describe_indices(dataset.snapshot) if dataset.snapshot.manifest.indices else []
    return {str(segment.uuid): segment.size_bytes or 0 for index in indices for segment in index.segments}


def drop_zone_maps(dataset: Handle, names: Collection[str]) -> list[str]:
    """The names of indices that are no zone maps; zone maps are counted where they are created for partitions."""
    if not names:
        return []
    kinds = {index.name: index.index_type.upper() for index in describe_indices(dataset.snapshot)}
    return [name for name in names if kinds.get(name) != "ZONEMAP"]
