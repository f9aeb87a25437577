"""Creation and discarding of the branches that runs write to, and creation of tables that branches fork from.

A branch forks from main's latest version; a missing table is created on main without rows. `tables.refs` opens the
tables that such a run reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetExistsError, NotFoundError
from lance_dagster.branches.page import describe_branches
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.arrow_schema import apply_known_types, apply_vector_widths, drop_owners
from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import WriteRequest
from lance_dagster.properties import ASSET_KEY, BEGUN_EMPTY, PROMOTED_FROM, RUN_ID, properties_of
from lance_dagster.tables.branch_policy import BRANCH_TAG, MAIN

_CREATED_BY: Final = "lance/begun_by"
"""Property of the commit that creates a table without rows, from which a branch forks: the run."""

NEUTRAL: Final = ("UpdateConfig", "ReserveFragments", "Rewrite", "CreateIndex")
"""Names of operations that keep the rows as they are."""

_PROMOTION_TAG: Final = "promoted."
"""Prefix of the names of tags that promotions create."""


def ensure_branch(main: lance_core.LanceDataset, branch: str) -> lance_core.LanceDataset:
    """Create a branch if it is missing, and return its latest version; runs may call this concurrently.

    A branch that was promoted is created again, because later writes to the old branch could not be promoted.
    """
    return main.ensure_branch(branch, renew_promoted=True)


def discard_branch(main: lance_core.LanceDataset, branch: str) -> bool:
    """Remove a branch, and the tags that its promotions created; returns whether the branch existed."""
    existed = main.branches.discard(branch)
    for name, tag in main.tags.list().items():
        if name.startswith(_PROMOTION_TAG) and (tag.get("metadata") or {}).get(PROMOTED_FROM) == branch:
            main.tags.delete(name)
    return existed


def is_created_empty(main: lance_core.LanceDataset, has_ended: Callable[[str], bool]) -> bool:
    """Whether a table was created so that a branch could fork from it, and has no rows on main or any branch.

    Args:
        main: The table.
        has_ended: Returns whether a run, given by its id, has ended. A run that is under way may be about to write to
            the table that it created, so that the result is False.
    """
    try:
        transactions = [main.read_transaction(1)]
        if main.count_rows() or not _is_empty_creation(transactions[0]):
            return False
        transactions += [main.read_transaction(version) for version in range(2, main.version + 1)]
    except NotFoundError:  # a version was cleaned up
        return False
    for transaction in transactions:
        run = properties_of(transaction).get(_CREATED_BY)
        if (
            transaction is None
            or not (_is_empty_creation(transaction) or transaction.operation.name in NEUTRAL)
            or (run and not has_ended(run))
        ):
            return False
    return not any(main.checkout_version((name, None)).count_rows() for name in main.branches.list())


def _is_empty_creation(transaction: lance_core.Transaction | None) -> bool:
    return properties_of(transaction).get(BEGUN_EMPTY[0]) == BEGUN_EMPTY[1]


def create_empty(handler: LanceTypeHandler, value: Any, request: WriteRequest) -> lance_core.LanceDataset:
    """Create a table on main without rows, with the columns of a value, so that a branch can fork from it.

    An existing table, for which `is_created_empty` is true, gets these columns in place of its own.

    Args:
        handler: The handler of the value.
        value: The value that will be written to the branch.
        request: The write of the value, with main's URI.
    """
    names = {ASSET_KEY: ASSET_KEY, RUN_ID: _CREATED_BY}
    owner = {names[key]: value for key, value in (request.commit.properties or {}).items() if key in names}
    output = replace(request.output, empty_output="write", write_mode="create_only")
    again = request.existing is not None
    empty = replace(
        request,
        mode="overwrite" if again else "create",
        slices=None,
        require_empty=False,
        output=replace(output, schema_mode="overwrite") if again else output,
    ).changed_commit(
        properties={**dict([BEGUN_EMPTY]), **owner},
        write_attempt=lance_core.WriteAttempt(token=BEGUN_EMPTY, conflict_policy="exclusive"),
    )
    try:
        limit = getattr(value, "limit", None) if type(value).__module__.startswith("pyspark.") else None
        if limit is not None:
            outcome = handler.write(limit(0), empty)
        elif again:
            return _replace_all_columns(handler.arrow_schema(value), empty)
        else:
            outcome = write_arrow([], handler.arrow_schema(value), empty)
    except DatasetExistsError:  # another run of the backfill has created it
        return lance_core.dataset(request.uri, storage_options=request.storage_options)
    assert outcome is not None
    return outcome.dataset


def _replace_all_columns(frame: pa.Schema, request: WriteRequest) -> lance_core.LanceDataset:
    """The table with the columns of a frame in place of its own."""
    assert request.existing is not None
    schema = apply_known_types(drop_owners(frame.remove_metadata()), request.known, None, without_rows=False)
    return lance_core.commit_fragments(
        request.existing,
        [],
        apply_vector_widths(schema, request.output.vector_columns),
        mode="overwrite",
        commit=request.commit,
        files=request.files,
    ).dataset


def describe_write_to_branch(
    dataset: lance_core.LanceDataset, instance: dg.DagsterInstance | None, key: dg.AssetKey
) -> dict[str, Any]:
    """The entries about branches in the event of a write to a branch.

    Args:
        dataset: The version that was written.
        instance: The instance that recorded the table's checks; None leaves out the page of the branches.
        key: The asset.
    """
    branch = dataset.branch or MAIN
    fork = dataset.branches.list().get(branch, {})
    all_entries = {BRANCH_TAG: branch, "lance/published": False, "lance/base_version": fork.get("parent_version")}
    entries = {name: value for name, value in all_entries.items() if value is not None}
    return entries if instance is None else entries | describe_branches(dataset, instance, key, short=True)
