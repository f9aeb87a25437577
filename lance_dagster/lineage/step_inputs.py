"""The inputs of a step: noted until the step writes, and then recorded on its commit.

    dagster.input.<asset key>     {"uri": "s3://lake/nyc/flights.lance", "version": 17}   and "branch" but for main

The IO manager notes the tables that it loads, `LanceTableResource` those that it opens inside of a step. Notes of steps
that never write are dropped after a number of others.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from lance_dagster.properties import INPUT_PREFIX

if TYPE_CHECKING:
    import lance_core

__all__ = ["input_entry", "input_properties", "remember_input"]

_MOST_STEPS: Final = 1000

Step = tuple[str, str]
"""A run and the key of a step in it."""

_lock = threading.Lock()
_read: OrderedDict[Step, dict[str, dict[str, Any]]] = OrderedDict()


def remember_input(step: Step | None, asset: str, dataset: lance_core.LanceDataset) -> None:
    """Note that a step reads a version of an asset's table; has no effect without a step."""
    if step is None:
        return
    with _lock:
        _read.setdefault(step, {})[asset] = input_entry(dataset)
        while len(_read) > _MOST_STEPS:
            _read.popitem(last=False)


def input_entry(dataset: lance_core.LanceDataset) -> dict[str, Any]:
    """The record of a table that was read."""
    entry: dict[str, Any] = {"uri": dataset.root_uri, "version": dataset.version}
    if dataset.branch is not None:
        entry["branch"] = dataset.branch
    return entry


def input_properties(step: Step | None) -> dict[str, str]:
    """The transaction properties with the inputs of a step."""
    with _lock:
        found = dict(_read.get(step, {})) if step is not None else {}
    return {INPUT_PREFIX + asset: json.dumps(entry) for asset, entry in found.items()}
