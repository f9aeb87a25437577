"""Public names of compaction, under pylance's names: `lance.optimize`."""

from lance_core.maintenance.compaction import Compaction
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
]
