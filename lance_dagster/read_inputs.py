"""What a step has read: remembered until the step writes, and then recorded on its commit.

    dagster.input.<asset key>     {"uri": "s3://lake/nyc/flights.lance", "version": 17}   and "branch" but for main

The IO manager tells of what it loads, `LanceTableResource` of what it opens inside of a step. A step that never writes
is forgotten when enough others have run.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import lance_core

__all__ = ["INPUT_PREFIX", "input_entry", "input_properties", "remember_input"]

INPUT_PREFIX: Final = "dagster.input."
_MOST_STEPS: Final = 1000

Step = tuple[str, str]
"""A run and the key of a step in it."""

_lock = threading.Lock()
_read: OrderedDict[Step, dict[str, dict[str, Any]]] = OrderedDict()


def remember_input(step: Step | None, asset: str, dataset: lance_core.LanceDataset) -> None:
    """Remember that a step reads a version of an asset's table; without a step, nothing."""
    if step is None:
        return
    with _lock:
        _read.setdefault(step, {})[asset] = input_entry(dataset)
        while len(_read) > _MOST_STEPS:
            _read.popitem(last=False)


def input_entry(dataset: lance_core.LanceDataset) -> dict[str, Any]:
    """What is recorded of a table that was read."""
    entry: dict[str, Any] = {"uri": dataset.root_uri, "version": dataset.version}
    if dataset.branch is not None:
        entry["branch"] = dataset.branch
    return entry


def input_properties(step: Step | None) -> dict[str, str]:
    """The transaction properties that tell what a step has read."""
    with _lock:
        found = dict(_read.get(step, {})) if step is not None else {}
    return {INPUT_PREFIX + asset: json.dumps(entry) for asset, entry in found.items()}
