"""The inputs of a step: kept in memory until the step writes, and then recorded on its commit.

    dagster.input.<asset key>     {"uri": "s3://lake/nyc/flights.lance", "version": 17}   and "branch" if it is not main

The IO manager adds the tables that it loads, `LanceTableResource` the tables that it opens in a step, and `sql_inputs`
the tables that Spark SQL reads. Only the newest steps are kept, so that steps which never write do not fill the memory.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster.lineage.history import input_entry
from lance_dagster.properties import INPUT_PREFIX

if TYPE_CHECKING:
    import lance_core

__all__ = [
    "ConsumedChanges",
    "changes_entries",
    "consumed_changes",
    "input_properties",
    "remember_changes",
    "remember_input",
]

_MOST_STEPS: Final = 1000
_KINDS: Final = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}

Step = tuple[str, str]
"""A run and the key of a step in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedChanges:
    """Changes of a table that a step has read.

    Attributes:
        asset: The asset of the table.
        dataset: The table.
        begin_version: The version after which the changes begin.
        end_version: The last version whose changes were read.
        moves: The moves of watermarks that the commit of each output makes, by the asset of the output.
        is_refresh: Whether a full refresh read all rows.
        counts: The number of rows by kind of change; kinds that were not counted are missing.
    """

    asset: str
    dataset: lance_core.LanceDataset = field(repr=False)
    begin_version: int
    end_version: int
    moves: Mapping[str, tuple[lance_core.WatermarkMove, ...]]
    is_refresh: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def entry(self) -> dict[str, Any]:
        """The record of the consumed changes for events."""
        rows = {f"rows_{name}": self.counts[kind] for kind, name in _KINDS.items() if kind in self.counts}
        return {"asset": self.asset, "from_version": self.begin_version, "to_version": self.end_version, **rows}


def changes_entries(changes: Sequence[ConsumedChanges]) -> dict[str, Any]:
    """The entries of an event about changes that were read: one list of inputs, and the total numbers of rows."""
    total: Counter[str] = Counter()
    for part in changes:
        total.update(part.counts)
    numbers = {f"lance/changes_{name}": total[kind] for kind, name in _KINDS.items() if kind in total}
    counted = all(_KINDS.keys() <= part.counts.keys() for part in changes)
    return {"lance/changes": dg.MetadataValue.json([part.entry for part in changes]), **(numbers if counted else {})}


_lock = threading.Lock()
_changes: OrderedDict[Step, dict[str, ConsumedChanges]] = OrderedDict()
_read: OrderedDict[Step, dict[str, dict[str, Any]]] = OrderedDict()


def remember_input(step: Step | None, asset: str, dataset: lance_core.LanceDataset) -> None:
    """Keep that a step reads a version of an asset's table; without a step, do nothing."""
    if step is None:
        return
    with _lock:
        _read.setdefault(step, {})[asset] = input_entry(dataset)
        while len(_read) > _MOST_STEPS:
            _read.popitem(last=False)


def remember_changes(step: Step | None, changes: ConsumedChanges) -> None:
    """Keep that a step reads changes, whose watermarks its commits move; without a step, do nothing."""
    if step is None:
        return
    with _lock:
        _changes.setdefault(step, {})[changes.asset] = changes
        while len(_changes) > _MOST_STEPS:
            _changes.popitem(last=False)


def consumed_changes(step: Step | None) -> list[ConsumedChanges]:
    """The changes that a step has read."""
    with _lock:
        return [] if step is None else list(_changes.get(step, {}).values())


def input_properties(step: Step | None) -> dict[str, str]:
    """The transaction properties with the inputs of a step."""
    with _lock:
        inputs = dict(_read.get(step, {})) if step is not None else {}
    return {INPUT_PREFIX + asset: json.dumps(entry) for asset, entry in inputs.items()}
