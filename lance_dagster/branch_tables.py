"""Tables as a run on a branch writes them.

The branch begins at main's latest version; a table that is not there yet begins empty on main. `tables` has how such
a run reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core.errors import DatasetExistsError
from lance_dagster.branch_page import branch_entries
from lance_dagster.branching import BRANCH_TAG
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import WriteRequest

__all__ = ["begin_empty", "branch_for_writing", "branch_metadata", "discard_branch"]

_PROMOTION_TAG: Final = "promoted."
"""How the names of tags begin that promotions make by themselves."""


def branch_for_writing(main: lance_core.LanceDataset, branch: str) -> lance_core.LanceDataset:
    """The latest version of a branch; any number of runs may ask for it at once.

    A branch that was promoted is created anew: later writes to the old one could not be promoted.
    """
    return main.ensure_branch(branch, renew_promoted=True)


def discard_branch(main: lance_core.LanceDataset, branch: str) -> bool:
    """Remove a branch, and the tags that promotions of it have made; returns whether there was such a branch."""
    gone = main.branches.discard(branch)
    for name, tag in main.tags.list().items():
        if name.startswith(_PROMOTION_TAG) and (tag.get("metadata") or {}).get("promoted_from") == branch:
            main.tags.delete(name)
    return gone


def begin_empty(handler: LanceTypeHandler, value: Any, request: WriteRequest) -> lance_core.LanceDataset:
    """Make a table without rows on main, with the columns of a value, for a branch to begin with.

    Args:
        handler: The value's.
        value: What will be written to the branch.
        request: That write, with main's URI.
    """
    owner = {key: text for key, text in request.properties.items() if key == "dagster.asset_key"}
    output = replace(request.output, empty_output="write", write_mode="create_only")
    empty = replace(
        request,
        mode="create",
        slices=None,
        existing=None,
        output=output,
        properties={BRANCH_TAG: "begun empty", **owner},
        write_try=None,
    )
    try:
        limit = getattr(value, "limit", None) if type(value).__module__.startswith("pyspark.") else None
        outcome = (
            write_arrow([], handler.arrow_schema(value), empty) if limit is None else handler.write(limit(0), empty)
        )
    except DatasetExistsError:  # by another run of the backfill
        return lance_core.dataset(request.uri, storage_options=request.storage_options)
    assert outcome is not None
    return outcome.dataset


def branch_metadata(
    dataset: lance_core.LanceDataset, instance: dg.DagsterInstance | None, key: dg.AssetKey
) -> dict[str, Any]:
    """Further entries of the event of a write to a branch; none for main.

    Args:
        dataset: The version that was written.
        instance: Where checks were recorded; None leaves the page of the branches out.
        key: The asset.
    """
    if dataset.branch is None:
        return {}
    fork = dataset.branches.list().get(dataset.branch, {})
    known = {
        BRANCH_TAG: dataset.branch,
        "lance/published": False,
        "lance/base_version": fork.get("parent_version"),
    }
    found = {name: value for name, value in known.items() if value is not None}
    return found if instance is None else found | branch_entries(dataset, instance, key, short=True)
