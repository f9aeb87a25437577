"""Maintenance of datasets: compaction, cleanup, erasure, zone maps, changes of a column's type; a lake's tables.

Compaction.plan(dataset) -> CompactionPlan -> CompactionTask.execute(dataset), anywhere -> RewriteResult
Compaction.commit(dataset, results) -> CompactionMetrics
"""

from lance_core.maintenance.change_type import change_type
from lance_core.maintenance.cleanup.automatic import auto_cleanup
from lance_core.maintenance.cleanup.open_branches import RemovedCommit, removed_commits
from lance_core.maintenance.cleanup.plan import Candidate, ReferencedBranch, Selectors
from lance_core.maintenance.cleanup.run import (
    CleanupExplanation,
    CleanupStats,
    cleanup_old_versions,
    explain_cleanup_old_versions,
    select,
)
from lance_core.maintenance.compaction.compaction import Compaction, commit_what_fits, compact
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.rebase import rebase_results
from lance_core.maintenance.compaction.rewrite import CompactionMetrics, RewriteResult
from lance_core.maintenance.compaction.tasks import CompactionPlan, CompactionTask
from lance_core.maintenance.erasure.report import ErasureFinding, ErasureReading, ErasureReport, HoldingVersion
from lance_core.maintenance.expected_versions import ExpectedVersions
from lance_core.maintenance.zone_maps import columns_without_zone_map, index_partitions
from lance_core.verbs.inspect.tables import FoundTable, find_tables

__all__ = [
    "Candidate",
    "CleanupExplanation",
    "CleanupStats",
    "Compaction",
    "CompactionMetrics",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionTask",
    "ErasureFinding",
    "ErasureReading",
    "ErasureReport",
    "ExpectedVersions",
    "FoundTable",
    "HoldingVersion",
    "ReferencedBranch",
    "RemovedCommit",
    "RewriteResult",
    "Selectors",
    "auto_cleanup",
    "change_type",
    "cleanup_old_versions",
    "columns_without_zone_map",
    "commit_what_fits",
    "compact",
    "explain_cleanup_old_versions",
    "find_tables",
    "index_partitions",
    "rebase_results",
    "removed_commits",
    "select",
]
