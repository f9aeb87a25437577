"""One output of a step that is written to its table: its target, the mode of its commit, and its log messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetExistsError, InvalidInputError
from lance_dagster._context.steps import RunFacts, type_metadata
from lance_dagster.branches.writing import NEUTRAL, is_created_empty
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.arrow_schema import known_schema, with_known_types
from lance_dagster.handlers.base import CHANGE_TYPE, CommitMode, WriteRequest, no_columns
from lance_dagster.handlers.columns import matched_by
from lance_dagster.io_manager.write_attempts import (
    CommitTags,
    EarlierAttempts,
)
from lance_dagster.lineage.reader_tags import release
from lance_dagster.lineage.step_inputs import ConsumedChanges, input_properties
from lance_dagster.lineage.watermarks import watermark_name
from lance_dagster.tables.location import TableLocation
from lance_dagster.tables.partitions import PartitionPlan, partition_columns, plan_partitions
from lance_dagster.tables.settings import OutputSettings, TableSettings, plain_metadata

__all__ = [
    "TableOutput",
    "casts_of",
    "code_version",
    "commit_mode",
    "has_ended",
    "have_other_columns",
    "is_sole_writer",
    "kept_attempts",
    "move_watermarks",
    "new_columns",
    "planned_partitions",
    "reject_to_keep",
    "release_consumed",
    "settings_of_refresh",
    "wants_no_table",
    "warn_of_earlier_attempts",
    "without_change_type",
    "write_request",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """One output of a step, with the facts that its write to a table needs.

    Attributes:
        context: Dagster's context of the output.
        where: The asset, for messages.
        metadata: The definition metadata, and the entries of this package that the step has added.
        location: The table.
        table: The settings of tables.
        settings: The settings of the write.
        facts: The run; None outside of one.
        keys: The partition keys, sorted; None for an asset without partitions.
        tags: The transaction properties of the commit, with the token of the write.
        existing: The newest version of the table, on the branch of the run; None if there is no table.
        attempts: The earlier attempts of the write.
        branch: The branch of the run; None for main.
        frame: The columns of the value, without the kinds of changes; none before the value is known.
        changes: The changes of inputs that the step has read.
        merges_on: The key of a merge, also of one that is a full refresh.
        deletes: The rows whose keys a merge deletes.
        is_created_empty: Whether this write has created the table without rows, for the branch to fork from.
    """

    context: dg.OutputContext
    where: str
    metadata: Mapping[str, Any]
    location: TableLocation
    table: TableSettings
    settings: OutputSettings
    facts: RunFacts | None
    keys: Sequence[str] | None
    tags: CommitTags
    existing: lance_core.LanceDataset | None
    attempts: EarlierAttempts
    branch: str | None = None
    frame: pa.Schema = field(default_factory=no_columns)
    changes: Sequence[ConsumedChanges] = ()  # that the step has read
    merges_on: tuple[str, ...] = ()  # the key of a merge, also where it is a full refresh
    deletes: Any = None  # rows whose keys a merge deletes
    is_created_empty: bool = False  # this write has created the table, without rows, for the branch to fork from

    @property
    def step(self) -> tuple[str, str] | None:
        """The run and the step that write; None outside of a run."""
        return None if self.facts is None else self.facts.step

    @property
    def watermark_properties(self) -> dict[str, str]:
        """The transaction properties that note which changes were consumed."""
        asset = self.context.asset_key.to_user_string()
        return lance_core.WatermarkMove.properties([move for one in self.changes for move in one.moves.get(asset, ())])

    @property
    def sets_columns(self) -> bool:
        """Whether the output sets columns of the table of another asset."""
        return self.settings.write_mode == "columns"

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The tables that the step has read: for each its URI, version and branch, if it is not main."""
        return [json.loads(entry) for entry in input_properties(self.step).values()]

    @property
    def instance(self) -> dg.DagsterInstance | None:
        """The Dagster instance of the run; None outside of one."""
        return None if self.facts is None else self.facts.instance

    def partition_columns(self, written: lance_core.LanceDataset) -> list[str]:
        """The partition columns of the table; none for an asset without partitions."""
        if self.keys is None:
            return []
        expression = plain_metadata(self.metadata.get("partition_expr"))
        return partition_columns(expression, written.schema, self.context.asset_key)

    @property
    def uri(self) -> str:
        """The target of the commit: the table, or its branch."""
        return self.location.uri if self.branch is None or self.existing is None else self.existing.uri


def planned_partitions(output: TableOutput, schema: pa.Schema) -> PartitionPlan | None:
    """The run's partitions in terms of the columns that are written; None for an asset without partitions."""
    if output.keys is None:
        return None
    return plan_partitions(
        output.context.asset_key,
        output.context.asset_partitions_def,
        output.context.asset_partition_keys,
        plain_metadata(output.metadata.get("partition_expr")),
        schema,
    )


def write_request(
    output: TableOutput, mode: CommitMode, plan: PartitionPlan | None, settings: OutputSettings
) -> WriteRequest:
    """The write of an output, without its attempt.

    Args:
        output: The output.
        mode: The mode of the commit.
        plan: The run's partitions; None for none.
        settings: How to write.

    Raises:
        DagsterInvalidDefinitionError: The metadata asks for stable row ids, which the table does not have.
    """
    existing, wanted = output.existing, plain_metadata(output.metadata.get("lance/stable_row_ids"))
    if existing is not None and wanted is True and not existing.has_stable_row_ids:
        raise dg.DagsterInvalidDefinitionError(
            f"{output.where}: metadata lance/stable_row_ids: {output.uri} was created without stable row ids, and "
            "a table keeps what it was created with. Remove the entry, or drop the table and materialize the "
            "asset again"
        )
    # The table's configuration belongs to main: a promotion does not copy it there.
    on_branch = existing is not None and output.branch is not None
    return WriteRequest(
        uri=output.uri,
        mode=mode,
        existing=existing,
        slices=None if plan is None else plan.slices,
        output=settings,
        table=replace(output.table, table_config={}) if on_branch else output.table,
        properties={**output.tags.properties, **input_properties(output.step), **output.watermark_properties},
        write_attempt=None,
        require_empty=plan is not None and settings.write_mode == "error" and mode in ("append", "replace"),
        known=known_schema(output.metadata, type_metadata(output.context), output.where),
        deletes=output.deletes if mode == "merge" else None,
    )


def commit_mode(output: TableOutput, plan: PartitionPlan | None) -> CommitMode:
    """The mode of the commit.

    Raises:
        DatasetExistsError: The write mode forbids the commit, because rows or a table exist.
    """
    existing, mode = output.existing, output.settings.write_mode
    is_new = existing is None or (output.is_created_empty and not existing.count_rows())
    if mode == "overwrite":
        return "overwrite" if plan is None else "replace"
    if mode == "merge":
        return "create" if existing is None else "merge"
    if mode == "append" or output.attempts.versions:  # the rows of earlier attempts are removed
        return "append"
    if wants_no_table(output.settings, plan) and not is_new:
        raise DatasetExistsError(f"{output.where}: the table {output.location.uri} exists, and write_mode is {mode}")
    if plan is None or mode == "create_only":
        return "create" if existing is None else "append"
    if existing is None:
        return "replace"  # another run may make the table meanwhile, for other partitions
    rows = existing.count_rows(filter=plan.slices.expression(existing.schema))
    if rows:
        raise DatasetExistsError(
            f"{output.where}: {rows} rows of the run's partitions are in {output.location.uri}, and write_mode is error"
        )
    return "replace"


def wants_no_table(settings: OutputSettings, plan: PartitionPlan | None) -> bool:
    """Whether the write needs that no table exists, or that its branch has no commit."""
    return settings.write_mode == "create_only" or (settings.write_mode == "error" and plan is None)


def is_sole_writer(output: TableOutput) -> bool:
    """Whether the write may replace the whole table, because no other write has contributed to the table.

    True for a table that earlier attempts of this write alone have made, if the write creates the table or has other
    columns than these attempts; and for a table without rows that was created for a branch to fork from.
    """
    existing, attempts = output.existing, output.attempts
    if existing is not None and output.branch is None and output.tags.token is not None and not attempts.versions:
        return have_other_columns(output.frame, existing.schema) and is_created_empty(
            existing, partial(has_ended, output)
        )
    if (
        existing is None
        or attempts.cleaned_up
        or not attempts.found
        or attempts.found[attempts.versions[0]].read_version != 0
    ):
        return False
    if output.settings.write_mode in ("overwrite", "append") and not have_other_columns(output.frame, existing.schema):
        return False
    others = set(range(attempts.versions[0] + 1, existing.version + 1)) - set(attempts.found)
    made = (existing.read_transaction(version) for version in others)
    return all(one is not None and one.operation.name in NEUTRAL for one in made)


def has_ended(output: TableOutput, run_id: str) -> bool:
    """Whether a run is the one that writes, has ended, or is unknown."""
    return output.facts is None or output.facts.run_id == run_id or output.facts.ended(run_id)


def new_columns(output: TableOutput, obj: Any) -> pa.Schema:
    """The columns of a new table, as far as the frame or the metadata `lance/schema` gives their types."""
    known = known_schema(output.metadata, type_metadata(output.context), output.where)
    return with_known_types(output.frame, known, None, without_rows=isinstance(obj, Sized) and not len(obj))


def have_other_columns(frame: pa.Schema, table: pa.Schema) -> bool:
    """Whether the columns of a frame are not those of a table, as far as the frame's types are known."""
    if set(frame.names) != set(table.names) or len(frame) != len(table):
        return True
    return any(field.type not in (pa.null(), table.field(field.name).type) for field in frame)


def warn_of_earlier_attempts(output: TableOutput, outcome: lance_core.WriteResult) -> None:
    """Log whether the rows of earlier attempts of the write are replaced or stay."""
    kept = kept_attempts(output, outcome)
    for versions, fate in ((outcome.replaced_versions, "are replaced in"), (kept, "stay, beside those of")):
        if versions:
            output.context.log.warning(
                "%s: of earlier attempts of this write, the rows of version %s %s version %s",
                output.where,
                ", ".join(map(str, versions)),
                fate,
                outcome.dataset.version,
            )


def kept_attempts(output: TableOutput, outcome: lance_core.WriteResult) -> list[int]:
    """The versions of earlier attempts whose rows stay beside those of the write."""
    if outcome.deduplicated or output.settings.on_earlier_attempt != "append":
        return []
    return [version for version in output.attempts.versions if version not in outcome.replaced_versions]


def casts_of(output: TableOutput, outcome: lance_core.WriteResult) -> dict[str, str]:
    """The columns whose values were cast to the types that the table had already, with both types."""
    if output.existing is None or outcome.deduplicated:
        return {}
    before, now = output.existing.schema, outcome.dataset.schema
    kept = [field for field in output.frame if field.name in before.names and now.get_field_index(field.name) >= 0]
    return {
        field.name: f"{field.type} -> {now.field(field.name).type}"
        for field in kept
        if field.type not in (pa.null(), now.field(field.name).type)
        and before.field(field.name).type == now.field(field.name).type
    }


def reject_to_keep(output: TableOutput) -> None:
    """Reject an attempt without rows that would be skipped while the table has rows of an earlier attempt.

    Raises:
        InvalidInputError: The table has rows of an earlier attempt.
    """
    if output.attempts.versions:
        version, before = output.attempts.versions[-1], output.attempts.versions[0] - 1
        restored = f", or restore version {before} and start a new run" if before else ""
        raise InvalidInputError(
            f"{output.where} has no rows, and empty_output is skip, but version {version} of {output.location.uri} "
            f"holds what an earlier attempt of this write was given. Let empty_output be write, which clears what the "
            f"earlier attempt wrote{restored}"
        )


def code_version(context: dg.OutputContext) -> str | None:
    """The code version of the asset; None if it has none, or the output is not an asset's."""
    try:
        return context.asset_spec.code_version
    except dg.DagsterInvariantViolationError:
        return None


def settings_of_refresh(settings: OutputSettings, changes: Sequence[ConsumedChanges]) -> OutputSettings:
    """The settings of an output; in a full refresh an append or merge becomes an overwrite of table or partitions."""
    if settings.write_mode in ("append", "merge") and any(one.is_refresh for one in changes):
        return replace(settings, write_mode="overwrite", merge_on=None)
    return settings


def without_change_type(
    output: TableOutput, handler: LanceTypeHandler, obj: Any
) -> tuple[LanceTypeHandler, Any, TableOutput]:
    """Take the column `_change_type` off an output, and for a merge separate the rows whose keys are deleted.

    A table that has a column of that name keeps it.

    Raises:
        LanceError: A row is of an unknown kind, or the kind of value has no changes.
    """
    known = () if output.existing is None else output.existing.schema.names
    names = handler.arrow_schema(obj).names if output.merges_on or output.sets_columns else []
    if CHANGE_TYPE in known or CHANGE_TYPE not in names:
        return handler, obj, output
    if output.sets_columns:
        handler, obj, _ = handler.split_changes(obj, matched_by(names, output.settings.row_key))
        return handler, obj, output
    handler, obj, deletes = handler.split_changes(obj, output.merges_on)
    return handler, obj, replace(output, deletes=deletes)


def release_consumed(output: TableOutput, written: lance_core.LanceDataset) -> None:
    """Let cleanups remove the versions of inputs whose changes no part of the table that was written needs any more."""
    reader = output.context.asset_key.to_user_string()
    for one in output.changes:
        name = watermark_name(one.asset, reader, output.metadata)
        release(one.dataset, written, reader, name, one.moves.get(reader, ()))


def move_watermarks(output: TableOutput) -> None:
    """Commit the watermarks of consumed changes that gave no rows to write; does nothing without a table."""
    properties = output.watermark_properties
    if not properties or output.existing is None:
        return
    transaction = lance_core.Transaction(
        read_version=output.existing.version,
        operation=lance_core.LanceOperation.UpdateConfig(),
        transaction_properties={**output.tags.properties, **properties},
    )
    release_consumed(output, lance_core.LanceDataset.commit(output.existing, transaction))
