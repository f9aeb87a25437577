"""The public module of compaction, as pylance's `lance.optimize`: plan, tasks, results and commit."""

from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.rewrite import CompactionMetrics, RewriteResult
from lance_core.maintenance.compaction.tasks import CompactionPlan, CompactionTask

__all__ = ["Compaction", "CompactionMetrics", "CompactionOptions", "CompactionPlan", "CompactionTask", "RewriteResult"]
