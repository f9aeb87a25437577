"""Upkeep of datasets: compaction and cleanup.

Compaction.plan(dataset) -> CompactionPlan -> CompactionTask.execute(dataset), anywhere -> RewriteResult
Compaction.commit(dataset, results) -> CompactionMetrics
"""

from lance_core.maintenance.compaction import Compaction, compact
from lance_core.maintenance.options import CompactionOptions
from lance_core.maintenance.results import CompactionMetrics, RewriteResult
from lance_core.maintenance.tasks import CompactionPlan, CompactionTask

__all__ = [
    "Compaction",
    "CompactionMetrics",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionTask",
    "RewriteResult",
    "compact",
]
