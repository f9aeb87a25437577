"""The health of a table: numbers from its manifest and the list of its versions. No data file is opened or listed.

lance/fragments             fragments of the newest version
lance/small_fragments       ... with fewer rows than the target
lance/deleted_fraction      rows that are deleted and still in the files, of all rows in the files
lance/versions_total        versions that were not cleaned up
lance/index_unindexed_fraction   share of the rows that the index with the least coverage does not cover
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.health.policy import LanceMaintenancePolicy  # the reports of Pipes measure without Dagster

__all__ = [
    "DEFAULT_TARGET",
    "TARGET_KEY",
    "TableHealth",
    "deleted_fraction",
    "index_bytes",
    "measure",
    "without_zone_maps",
]

DEFAULT_TARGET: Final = 1024 * 1024
_SYSTEM: Final = "__lance_"
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
        bytes: The bytes of the data files.
        versions: The number of versions of the branch; 0 if they were not counted.
        unindexed: For each index, the share of the live rows that it does not cover.
        oldest: The two oldest versions, or as many as there are; none if versions were not counted.
    """

    version: int
    fragments: int
    small_fragments: int
    rows: int
    deleted_rows: int
    bytes: int
    versions: int
    unindexed: dict[str, float]
    oldest: Sequence[int] = ()
    mergeable_fragments: int = 0

    @property
    def deleted_fraction(self) -> float:
        """The share of the rows in the files that are deleted."""
        return _share(self.deleted_rows, self.rows)

    @property
    def unindexed_fraction(self) -> float | None:
        """The share that the index with the least coverage does not cover; None without indices."""
        return max(self.unindexed.values()) if self.unindexed else None

    def numbers(self) -> dict[str, int]:
        """The numbers that maintenance compares before and after."""
        return {
            "fragments": self.fragments,
            "rows": self.rows,
            "deleted_rows": self.deleted_rows,
            "bytes": self.bytes,
            "versions": self.versions,
        }

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
        return {key: value for key, value in optional_metadata.items() if value is not None}

    def problems(
        self, policy: LanceMaintenancePolicy, *, versions: int | None = None, indices: bool = True
    ) -> list[str]:
        """The thresholds of a policy that are exceeded, as messages; empty if the table is healthy.

        Args:
            policy: The thresholds.
            versions: The number of versions that count; None for all versions.
            indices: Whether rows that an index does not cover count, if the policy refreshes indices.
        """
        counted = self.versions if versions is None else versions
        limits: tuple[tuple[str, float, float], ...] = (
            ("small fragments", self.mergeable_fragments, policy.max_small_fragments),
            ("deleted fraction", round(self.deleted_fraction, 4), policy.materialize_deletions_threshold),
            ("versions", counted, policy.max_versions),
        )
        problems = [f"{name} {value:,} (over {limit:,})" for name, value, limit in limits if value > limit]
        if indices and policy.refresh_indices:
            problems += [
                f"index {name!r} misses {share:.1%} of the rows" for name, share in self.unindexed.items() if share
            ]
        return problems


def deleted_fraction(dataset: lance_core.LanceDataset) -> float:
    """The share of the rows in the files of a version that are deleted."""
    return _share(dataset.count_deleted_rows(), dataset.count_rows())


def _share(deleted: int, live: int) -> float:
    return deleted / (deleted + live) if deleted else 0.0


def measure(
    dataset: lance_core.LanceDataset,
    policy: LanceMaintenancePolicy,
    *,
    count_versions: bool = True,
    versions: Sequence[int] | None = None,
) -> TableHealth:
    """Measure the version of a dataset from its manifest, and list its versions if they count.

    Args:
        dataset: The table.
        policy: The thresholds.
        count_versions: Whether the versions count.
        versions: The versions in ascending order, if they are known; None to list them.
    """
    target = policy.target_rows_per_fragment or int(dataset.config().get(TARGET_KEY, DEFAULT_TARGET))
    stats = dataset.stats.dataset_stats(target)
    rows = dataset.count_rows()
    if versions is None:
        versions = [version["version"] for version in dataset.version_refs()] if count_versions else []
    return TableHealth(
        version=dataset.version,
        fragments=stats["num_fragments"],
        small_fragments=stats["num_small_files"],
        mergeable_fragments=_mergeable(dataset, policy),
        rows=rows,
        deleted_rows=stats["num_deleted_rows"],
        bytes=dataset.total_bytes,
        versions=len(versions),
        oldest=versions[:2],
        unindexed=_unindexed(dataset, rows),
    )


def _mergeable(dataset: lance_core.LanceDataset, policy: LanceMaintenancePolicy) -> int:
    """The number of fragments in the compaction tasks that merge several fragments."""
    from lance_core.maintenance import Compaction  # noqa: PLC0415 - heavy imports at first use

    tasks = Compaction.plan(dataset, policy.compaction_options()).tasks
    return sum(len(task.raw) for task in tasks if len(task.raw) > 1)


def _unindexed(dataset: lance_core.LanceDataset, rows: int) -> dict[str, float]:
    if not dataset.has_index or not rows:
        return {}
    missed: dict[str, float] = {}
    for index in dataset.describe_indices():
        if not index.name.startswith(_SYSTEM):  # system indices, such as the fragment reuse index, cover no rows
            missed[index.name] = (rows - index.num_rows_indexed) / rows
    return missed


def index_bytes(dataset: lance_core.LanceDataset) -> dict[str, int]:
    """The bytes of each index segment, by the segment's UUID."""
    described = dataset.describe_indices() if dataset.has_index else []
    return {str(segment.uuid): segment.size_bytes or 0 for index in described for segment in index.segments}


def without_zone_maps(dataset: lance_core.LanceDataset, names: Collection[str]) -> list[str]:
    """The names of indices that are no zone maps; zone maps are counted where they are created for partitions."""
    if not names:
        return []
    kinds = {index.name: index.index_type.upper() for index in dataset.describe_indices()}
    return [name for name in names if kinds.get(name) != "ZONEMAP"]
