"""Verbs of upkeep, which `lance_core.maintenance` carries out.

That package stands above this one and is imported when a verb is used: a dataset has pylance's methods, and reading and
writing do not load what they do not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_core.api.handle import Handle

if TYPE_CHECKING:
    from lance_core.maintenance.optimizer import DatasetOptimizer

__all__ = ["MaintainingVerbs"]


class MaintainingVerbs(Handle):
    """What a dataset offers to keep it small and fast."""

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction; see `DatasetOptimizer`."""
        from lance_core.maintenance.optimizer import DatasetOptimizer  # noqa: PLC0415 - see the module's text

        return DatasetOptimizer(self)  # type: ignore[arg-type]  # every handle with verbs is a LanceDataset
