"""Names that code written for pylance imports from pylance's extension module, `lance.lance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.compaction.rewrite import CompactionMetrics, RewriteResult
from lance_core.maintenance.compaction.tasks import CompactionPlan, CompactionTask
from lance_core.schema import LanceSchema
from lance_core.store import bytes_read_counter, iops_counter

if TYPE_CHECKING:
    from lance_core.dataset.lance_dataset import LanceDataset

__all__ = [
    "Compaction",
    "CompactionMetrics",
    "CompactionPlan",
    "CompactionTask",
    "LanceSchema",
    "RewriteResult",
    "bytes_read_counter",
    "iops_counter",
    "manifest_needs_migration",
]


def manifest_needs_migration(dataset: LanceDataset) -> bool:
    """Whether the next commit may repair records of an early writer, such as numbers of rows and ids of fields."""
    return dataset.snapshot.manifest.is_early
