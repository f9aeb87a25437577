"""The inputs of a step: kept in memory until the step writes, and then recorded on its commit.

    dagster.input.<asset key>     {"uri": "s3://lake/nyc/flights.lance", "version": 17}   and "branch" if it is not main
                                  or a list of these as strings, that of the loaded input first

The IO manager adds the tables that it loads, `LanceTableResource` the tables that it opens in a step, and `sql_inputs`
the tables that Spark SQL reads. Only the newest steps are kept, so that steps which never write do not fill the memory.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster.lineage.history import input_entry
from lance_dagster.properties import INPUT_PREFIX, join_values, split_values

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


@dataclass(slots=True)
class StepInputs:
    """What an attempt of a step has read.

    Attributes:
        attempt: The number of the attempt; what an earlier one in this process has read does not count.
        read: The record of each version that was read, by asset, and by input or, if it was opened otherwise, itself.
        rows: The condition of the rows that each input has read, by the URI of its table; None for all rows.
        changes: The changes that were read, by asset.
        columns: The assets' columns that Spark's frames have, by Spark's id of the expression.
    """

    attempt: int = 0
    read: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, dict[str, pc.Expression | None]] = field(default_factory=dict)
    changes: dict[str, ConsumedChanges] = field(default_factory=dict)
    columns: dict[int, tuple[str, str]] = field(default_factory=dict)

    def begin(self, attempt: int) -> None:
        """Forget what another attempt has read."""
        if self.attempt != attempt:
            self.attempt, self.read, self.rows = attempt, {}, {}


_lock = threading.Lock()
_steps: OrderedDict[Step, StepInputs] = OrderedDict()


@contextmanager
def inputs_of(step: Step | None) -> Iterator[StepInputs]:
    """What a step has read, to look at or to add to; without a step, nothing is kept."""
    with _lock:
        yield StepInputs() if step is None else _steps.setdefault(step, StepInputs())
        while len(_steps) > _MOST_STEPS:
            _steps.popitem(last=False)


def remember_input(
    step: Step | None,
    asset: str,
    dataset: lance_core.LanceDataset,
    *,
    attempt: int,
    input_name: str = "",
    rows: pc.Expression | None = None,
) -> None:
    """Keep that a step reads a version of an asset's table; without a step, do nothing.

    Args:
        step: The step.
        asset: The asset.
        dataset: The table at the version that is read.
        attempt: The number of the step's attempt in the run.
        input_name: The input, and its partition if each is one value; empty if the table is opened otherwise.
        rows: The condition of the rows that are read; None for all rows.
    """
    entry = json.dumps(input_entry(dataset))
    with inputs_of(step) as inputs:
        inputs.begin(attempt)
        inputs.read.setdefault(asset, {})[input_name or entry] = entry
        inputs.rows.setdefault(dataset.root_uri, {})[input_name] = rows


def remember_inputs_of_op(step: Step | None, properties: Mapping[str, str], *, attempt: int) -> None:
    """Keep what the output of an op that a step loads was made from; without a step, do nothing.

    Args:
        step: The step.
        properties: The properties of the commit that stored the output.
        attempt: The number of the step's attempt in the run.
    """
    with inputs_of(step) as inputs:
        inputs.begin(attempt)
        for name, value in properties.items():
            if name.startswith(INPUT_PREFIX):
                entries = inputs.read.setdefault(name.removeprefix(INPUT_PREFIX), {})
                entries |= {entry: entry for entry in split_values(value)}


def loaded_rows(step: Step | None, uri: str) -> pc.Expression | None:
    """The condition of the rows of a table that a step has read; None for all rows, or if it has read none."""
    with inputs_of(step) as inputs:
        conditions = list(inputs.rows.get(uri, {}).values())
    read = [condition for condition in conditions if condition is not None]
    return reduce(or_, read) if read and len(read) == len(conditions) else None


def remember_changes(step: Step | None, changes: ConsumedChanges) -> None:
    """Keep that a step reads changes, whose watermarks its commits move; without a step, do nothing."""
    with inputs_of(step) as inputs:
        inputs.changes[changes.asset] = changes


def consumed_changes(step: Step | None) -> list[ConsumedChanges]:
    """The changes that a step has read."""
    with inputs_of(step) as inputs:
        return list(inputs.changes.values())


def input_properties(step: Step | None) -> dict[str, str]:
    """The transaction properties with the inputs of a step."""
    with inputs_of(step) as inputs:
        read = {asset: list(dict.fromkeys(entries.values())) for asset, entries in inputs.read.items()}
    return {INPUT_PREFIX + asset: join_values(entries) for asset, entries in read.items()}
