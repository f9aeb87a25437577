"""Maintenance of datasets: compaction, cleanup, erasure, zone maps, changes of a column's type; a lake's tables.

maintain(dataset, MaintenancePolicy()) -> MaintenanceReport             all that is due for one table
maintain_lake(root, MaintenancePolicy()) -> [MaintenanceReport, ...]    ... for all tables below a root

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
from lance_core.maintenance.routine.declared import DeclaredIndices, survey_declared, without_missing_columns
from lance_core.maintenance.routine.health import TableHealth
from lance_core.maintenance.routine.log import LOG_SCHEMA
from lance_core.maintenance.routine.maintain import maintain, maintain_lake
from lance_core.maintenance.routine.on_write import keep_indices
from lance_core.maintenance.routine.policy import MaintenanceBudget, MaintenancePolicy
from lance_core.maintenance.routine.report import MaintenancePlan, MaintenanceReport, MaintenanceStep, Rewriter
from lance_core.maintenance.routine.steps import pool_rewriter, run_here
from lance_core.maintenance.search.cover import IndexCoverage, cover_rows, reject_without_search
from lance_core.maintenance.search.declaration import IndexDeclaration, parse_declarations
from lance_core.maintenance.search.overview import IndexHealth, describe_index_health
from lance_core.maintenance.search.parts import IndexBuilder
from lance_core.maintenance.zone_maps import columns_without_zone_map, index_partitions
from lance_core.verbs.inspect.tables import FoundTable, find_tables

__all__ = [
    "LOG_SCHEMA",
    "Candidate",
    "CleanupExplanation",
    "CleanupStats",
    "Compaction",
    "CompactionMetrics",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionTask",
    "DeclaredIndices",
    "ErasureFinding",
    "ErasureReading",
    "ErasureReport",
    "ExpectedVersions",
    "FoundTable",
    "HoldingVersion",
    "IndexBuilder",
    "IndexCoverage",
    "IndexDeclaration",
    "IndexHealth",
    "MaintenanceBudget",
    "MaintenancePlan",
    "MaintenancePolicy",
    "MaintenanceReport",
    "MaintenanceStep",
    "ReferencedBranch",
    "RemovedCommit",
    "RewriteResult",
    "Rewriter",
    "Selectors",
    "TableHealth",
    "auto_cleanup",
    "change_type",
    "cleanup_old_versions",
    "columns_without_zone_map",
    "commit_what_fits",
    "compact",
    "cover_rows",
    "describe_index_health",
    "explain_cleanup_old_versions",
    "find_tables",
    "index_partitions",
    "keep_indices",
    "maintain",
    "maintain_lake",
    "parse_declarations",
    "pool_rewriter",
    "rebase_results",
    "reject_without_search",
    "removed_commits",
    "run_here",
    "select",
    "survey_declared",
    "without_missing_columns",
]
