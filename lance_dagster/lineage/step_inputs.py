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
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster.lineage.history import input_entry
from lance_dagster.properties import INPUT_PREFIX

if TYPE_CHECKING:
    import pyarrow.compute as pc

    import lance_core

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
_rows: OrderedDict[Step, dict[str, dict[str, pc.Expression | None]]] = OrderedDict()


def remember_input(
    step: Step | None,
    asset: str,
    dataset: lance_core.LanceDataset,
    *,
    input_name: str = "",
    rows: pc.Expression | None = None,
) -> None:
    """Keep that a step reads a version of an asset's table; without a step, do nothing.

    Args:
        step: The step.
        asset: The asset.
        dataset: The table at the version that is read.
        input_name: The input, and its partition if each is one value; empty if the table is opened otherwise.
        rows: The condition of the rows that are read; None for all rows.
    """
    if step is None:
        return
    with _lock:
        _read.setdefault(step, {})[asset] = input_entry(dataset)
        _rows.setdefault(step, {}).setdefault(dataset.root_uri, {})[input_name] = rows
        for memory in (_read, _rows):
            while len(memory) > _MOST_STEPS:
                memory.popitem(last=False)


def loaded_rows(step: Step | None, uri: str) -> pc.Expression | None:
    """The condition of the rows of a table that a step has read; None for all rows, or if it has read none."""
    with _lock:
        conditions = [] if step is None else list(_rows.get(step, {}).get(uri, {}).values())
    read = [condition for condition in conditions if condition is not None]
    return reduce(or_, read) if read and len(read) == len(conditions) else None


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
