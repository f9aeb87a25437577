"""Tables as a run on a branch writes them.

The branch begins at main's latest version; a table that is not there yet begins empty on main. `tables` has how such
a run reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetExistsError, NotFoundError
from lance_dagster.branches.page import branch_entries
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.arrow_schema import with_known_types, with_vectors
from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import WriteRequest
from lance_dagster.properties import ASSET_KEY, PROMOTED_FROM, RUN_ID, properties_of
from lance_dagster.tables.branch_policy import BRANCH_TAG, MAIN

__all__ = ["NEUTRAL", "begin_empty", "begun_without_rows", "branch_for_writing", "branch_metadata", "discard_branch"]

_BEGUN: Final = (BRANCH_TAG, "begun empty")
"""The property of the commit that makes a table for a branch to begin with."""

_BEGUN_BY: Final = "lance/begun_by"
"""Its property with the run that made it so."""

NEUTRAL: Final = ("UpdateConfig", "ReserveFragments", "Rewrite", "CreateIndex")
"""Names of operations that bring no row and take none away."""

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
        if name.startswith(_PROMOTION_TAG) and (tag.get("metadata") or {}).get(PROMOTED_FROM) == branch:
            main.tags.delete(name)
    return gone


def begun_without_rows(main: lance_core.LanceDataset, is_over: Callable[[str], bool]) -> bool:
    """Whether a table was made for a branch to begin with, and nobody has written a row since, on any branch.

    Args:
        main: The table.
        is_over: Whether a run has ended: one that has not may be about to write to what it began.
    """
    try:
        made = [main.read_transaction(1)]
        if main.count_rows() or not _is_begun(made[0]):
            return False
        made += [main.read_transaction(version) for version in range(2, main.version + 1)]
    except NotFoundError:  # cleaned up
        return False
    for one in made:
        run = properties_of(one).get(_BEGUN_BY)
        if one is None or not (_is_begun(one) or one.operation.name in NEUTRAL) or (run and not is_over(run)):
            return False
    return not any(main.checkout_version((name, None)).count_rows() for name in main.branches.list())


def _is_begun(made: lance_core.Transaction | None) -> bool:
    return properties_of(made).get(_BEGUN[0]) == _BEGUN[1]


def begin_empty(handler: LanceTypeHandler, value: Any, request: WriteRequest) -> lance_core.LanceDataset:
    """Make a table without rows on main, with the columns of a value, for a branch to begin with.

    One that is there, and was `begun_without_rows`, gets these columns in place of its own.

    Args:
        handler: The value's.
        value: What will be written to the branch.
        request: That write, with main's URI.
    """
    owner = {key: text for key, text in request.properties.items() if key == ASSET_KEY}
    if RUN_ID in request.properties:
        owner[_BEGUN_BY] = request.properties[RUN_ID]
    output = replace(request.output, empty_output="write", write_mode="create_only")
    again = request.existing is not None
    empty = replace(
        request,
        mode="overwrite" if again else "create",
        slices=None,
        require_empty=False,
        output=replace(output, schema_mode="overwrite") if again else output,
        properties={**dict([_BEGUN]), **owner},
        write_attempt=lance_core.WriteAttempt(token=_BEGUN, conflict_policy="exclusive") if again else None,
    )
    try:
        limit = getattr(value, "limit", None) if type(value).__module__.startswith("pyspark.") else None
        if limit is not None:
            outcome = handler.write(limit(0), empty)
        elif again:
            return _emptied(handler.arrow_schema(value), empty)
        else:
            outcome = write_arrow([], handler.arrow_schema(value), empty)
    except DatasetExistsError:  # by another run of the backfill
        return lance_core.dataset(request.uri, storage_options=request.storage_options)
    assert outcome is not None
    return outcome.dataset


def _emptied(frame: pa.Schema, request: WriteRequest) -> lance_core.LanceDataset:
    """The table with the columns of a frame in place of its own."""
    assert request.existing is not None
    schema = with_known_types(frame.remove_metadata(), request.known, None, without_rows=False)
    return lance_core.commit_fragments(
        request.existing,
        [],
        with_vectors(schema, request.output.vector_columns),
        mode="overwrite",
        transaction_properties=dict(request.properties),
        write_attempt=request.write_attempt,
        data_storage_version=request.data_storage_version,
    ).dataset


def branch_metadata(
    dataset: lance_core.LanceDataset, instance: dg.DagsterInstance | None, key: dg.AssetKey
) -> dict[str, Any]:
    """Further entries of the event of a write to a branch.

    Args:
        dataset: The version that was written.
        instance: Where checks were recorded; None leaves the page of the branches out.
        key: The asset.
    """
    branch = dataset.branch or MAIN
    fork = dataset.branches.list().get(branch, {})
    known = {
        BRANCH_TAG: branch,
        "lance/published": False,
        "lance/base_version": fork.get("parent_version"),
    }
    found = {name: value for name, value in known.items() if value is not None}
    return found if instance is None else found | branch_entries(dataset, instance, key, short=True)
