"""Outputs of steps that read what changed: deletes of a merge, full refreshes, and the note of what was consumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lance_core
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.base import CHANGE_TYPE
from lance_dagster.io_manager.output import Output
from lance_dagster.lineage.holds import release
from lance_dagster.lineage.step_inputs import ConsumedChanges
from lance_dagster.loading.changes import consumed_versions
from lance_dagster.tables.settings import OutputSettings

__all__ = ["as_refreshed", "move_watermarks", "release_consumed", "without_change_type"]


def as_refreshed(settings: OutputSettings, changes: Sequence[ConsumedChanges]) -> OutputSettings:
    """How an output is written: in a full refresh it replaces the table, or the run's partitions."""
    if settings.write_mode in ("append", "merge") and any(one.is_refresh for one in changes):
        return replace(settings, write_mode="overwrite", merge_on=None)
    return settings


def without_change_type(output: Output, handler: LanceTypeHandler, obj: Any) -> tuple[LanceTypeHandler, Any, Output]:
    """The output of a merge without the column `_change_type`, and with the rows that are deleted apart.

    A table that has a column of that name keeps it.

    Raises:
        LanceError: A row is of an unknown kind, or the kind of value has no changes.
    """
    known = () if output.existing is None else output.existing.schema.names
    if not output.merges_on or CHANGE_TYPE in known or CHANGE_TYPE not in handler.arrow_schema(obj).names:
        return handler, obj, output
    handler, obj, deletes = handler.split_changes(obj, output.merges_on)
    return handler, obj, replace(output, deletes=deletes)


def release_consumed(output: Output, written: lance_core.LanceDataset) -> None:
    """Let cleanups remove the versions of inputs whose changes no part of the table that was written needs any more."""
    if written.branch is None:
        reader = output.context.asset_key.to_user_string()
        for one in output.changes:
            release(one.dataset, reader, consumed_versions(written, one.asset))


def move_watermarks(output: Output) -> None:
    """Note by a commit of its own that changes were consumed from which nothing came; a missing table notes nothing."""
    properties = output.watermark_properties
    if not properties or output.existing is None:
        return
    transaction = lance_core.Transaction(
        read_version=output.existing.version,
        operation=lance_core.LanceOperation.UpdateConfig(),
        transaction_properties={**output.tags.properties, **properties},
    )
    release_consumed(output, lance_core.LanceDataset.commit(output.existing, transaction))
