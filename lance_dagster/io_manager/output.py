"""One output of a step: its table, the mode of its commit, and its log messages."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Final

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetExistsError, InvalidInputError, SchemaError
from lance_dagster._context.steps import RunFacts, type_metadata
from lance_dagster.branches.writing import NEUTRAL, is_created_empty
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers.arrow_schema import apply_known_types, find_types_for_nulls, known_schema
from lance_dagster.handlers.base import CHANGE_TYPE, CommitMode, WriteRequest, no_columns
from lance_dagster.handlers.columns import choose_matching_columns
from lance_dagster.io_manager.write_attempts import OF_RUN, EarlierAttempts, reject_late_attempt
from lance_dagster.lineage.reader_tags import hold_consumed_and_release_older
from lance_dagster.lineage.step_inputs import ConsumedChanges, input_properties
from lance_dagster.lineage.watermarks import watermark_name
from lance_dagster.properties import split_values
from lance_dagster.tables.location import TableLocation
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.partitions import make_slices, partition_columns
from lance_dagster.tables.settings import OutputSettings, TableSettings

_OTHER_MODES: Final = "set lance/write_mode to append, overwrite or merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """One output of a step, with the facts that its write to a table needs.

    Attributes:
        context: Dagster's context of the output.
        label: The asset, for messages.
        metadata: The definition metadata, and the entries of this package that the step has added.
        location: The table.
        table: The settings of tables.
        settings: The settings of the write.
        facts: The run; None outside of a run.
        keys: The partition keys, sorted; None for an asset without partitions.
        commit: The properties of the commit, and in a run its attempt.
        existing: The newest version of the table, on the branch of the run; None if there is no table.
        attempts: The earlier attempts of the write.
        branch: The branch of the run; None for main.
        frame: The columns of the value, without `_change_type`; empty before the value is known.
        changes: The changes of inputs that the step has read.
        merges_on: The key of a merge, even if a full refresh overwrites instead of merging.
        deletes: The rows whose keys a merge deletes; or None.
        is_created_empty: Whether this write has created the table without rows, so that the branch could fork from it.
    """

    context: dg.OutputContext
    label: str
    metadata: Mapping[str, Any]
    location: TableLocation
    table: TableSettings
    settings: OutputSettings
    facts: RunFacts | None
    keys: Sequence[str] | None
    commit: lance_core.Commit
    existing: lance_core.LanceDataset | None
    attempts: EarlierAttempts
    branch: str | None = None
    frame: pa.Schema = field(default_factory=no_columns)
    changes: Sequence[ConsumedChanges] = ()
    merges_on: tuple[str, ...] = ()
    deletes: Any = None
    is_created_empty: bool = False

    @property
    def step(self) -> tuple[str, str] | None:
        """The run and the step that write; None outside of a run."""
        return None if self.facts is None else self.facts.step

    @property
    def watermark_properties(self) -> dict[str, str]:
        """The transaction properties that record which changes were consumed."""
        asset = self.context.asset_key.to_user_string()
        return lance_core.WatermarkMove.properties(
            [move for consumed in self.changes for move in consumed.moves.get(asset, ())]
        )

    @property
    def run_properties(self) -> dict[str, str]:
        """The properties of other commits of the run, such as of an index, which are no attempts of the write."""
        return {key: value for key, value in self.commit.texts.items() if key in OF_RUN}

    @property
    def sets_columns(self) -> bool:
        """Whether the output sets columns of the table of another asset."""
        return self.settings.write_mode == "columns"

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The tables that the step has read: the URI and version of each, and its branch if that is not main."""
        return [json.loads(entry) for joined in input_properties(self.step).values() for entry in split_values(joined)]

    @property
    def instance(self) -> dg.DagsterInstance | None:
        """The Dagster instance of the run; None outside of a run."""
        return None if self.facts is None else self.facts.instance

    def partition_columns(self, written: lance_core.LanceDataset) -> list[str]:
        """The partition columns of the table; empty for an asset without partitions."""
        if self.keys is None:
            return []
        return partition_columns(self.metadata.get("partition_expr"), written.schema, self.context.asset_key)

    @property
    def declared_schema(self) -> pa.Schema:
        """The columns that the definition of the asset declares; empty if it declares none."""
        return known_schema(self.metadata, type_metadata(self.context), self.label)

    @property
    def uri(self) -> str:
        """The target of the commit: the table, or its branch."""
        return self.location.uri if self.branch is None or self.existing is None else self.existing.uri

    def plan_slices(self, schema: pa.Schema) -> lance_core.Slices | None:
        """The run's partitions as slices of the written columns; None for an asset without partitions.

        Raises:
            SchemaError: The table lacks a partition column that the output has.
        """
        if self.keys is None:
            return None
        context, expression = self.context, self.metadata.get("partition_expr")
        key, definition = context.asset_key, context.asset_partitions_def
        try:
            return make_slices(key, definition, context.asset_partition_keys, expression, schema)
        except SchemaError as error:
            for name in partition_columns(expression, schema, key):
                if name in self.frame.names and name not in schema.names:
                    raise SchemaError(
                        f"{self.label}: metadata partition_expr names {name!r}, which the output has and the table "
                        f"{self.uri} lacks, so that the rows of the table belong to no partition; nothing was written. "
                        "Add the column with the values of these rows first, as by add_columns of the table, or store "
                        'the asset in another table (metadata "table")'
                    ) from error
            raise

    def write_request(
        self, mode: CommitMode, slices: lance_core.Slices | None, settings: OutputSettings
    ) -> WriteRequest:
        """The write of an output; its attempt names no earlier one.

        Args:
            mode: The mode of the commit.
            slices: The run's partitions; None for an asset without partitions.
            settings: The settings of the write.

        Raises:
            DagsterInvalidDefinitionError: The metadata asks for stable row ids, and the table was created without them.
        """
        existing, stable_row_ids = self.existing, plain_metadata(self.metadata.get("lance/stable_row_ids"))
        if existing is not None and stable_row_ids is True and not existing.has_stable_row_ids:
            raise dg.DagsterInvalidDefinitionError(
                f"{self.label}: metadata lance/stable_row_ids: {self.uri} was created without stable row ids. "
                f"Remove the entry, or give them to the table: lance migrate-row-ids {self.uri}"
            )
        # The table's configuration belongs to main: a promotion does not copy it there.
        on_branch = existing is not None and self.branch is not None
        properties = {**self.commit.texts, **input_properties(self.step), **self.watermark_properties}
        return WriteRequest(
            uri=self.uri,
            mode=mode,
            existing=existing,
            slices=slices,
            output=settings,
            table=replace(self.table, table_config={}) if on_branch else self.table,
            commit=replace(self.commit, message=settings.commit_message, properties=properties),
            require_empty=slices is not None and settings.write_mode == "error" and mode in ("append", "replace"),
            known=self.declared_schema,
            deletes=self.deletes if mode == "merge" else None,
        )

    def commit_mode(self, slices: lance_core.Slices | None) -> CommitMode:
        """The mode of the commit.

        Raises:
            DatasetExistsError: The write mode forbids the commit, because rows or a table exist.
            SupersededError: These rows are of a later attempt of the write.
        """
        existing, mode = self.existing, self.settings.write_mode
        is_new = existing is None or (self.is_created_empty and not existing.count_rows())
        if mode == "overwrite":
            return "overwrite" if slices is None else "replace"
        if mode == "merge":
            return "create" if existing is None else "merge"
        if mode == "append" or self.attempts.versions:  # the rows of earlier attempts are removed
            return "append"
        if existing is not None and wants_no_table(self.settings, slices) and not is_new:
            reject_late_attempt(existing, self.commit.write_attempt, self.facts)
            raise DatasetExistsError(
                f"{self.label}: the table {self.location.uri} exists, and write_mode is {mode}; {_OTHER_MODES}"
            )
        if slices is None or mode == "create_only":
            return "create" if existing is None else "append"
        if existing is None:
            return "replace"  # another run may create the table meanwhile, for other partitions
        rows = existing.count_rows(filter=slices.expression(existing.schema))
        if rows:
            reject_late_attempt(existing, self.commit.write_attempt, self.facts)
            raise DatasetExistsError(
                f"{self.label}: {self.location.uri} has {rows} rows in the run's partitions, and write_mode is "
                f"error; {_OTHER_MODES}"
            )
        return "replace"

    def is_sole_writer(self) -> bool:
        """Whether the write may replace the whole table, because no other write has contributed to the table.

        True for a table that only earlier attempts of this write have written, if the write mode needs a new table,
        merges, or the columns differ from theirs; and for a table with other columns and without rows, from which a
        branch was to fork.
        """
        existing, attempts = self.existing, self.attempts
        if (
            existing is not None
            and self.branch is None
            and self.commit.write_attempt is not None
            and not attempts.versions
        ):
            return have_other_columns(self.frame, existing.schema) and is_created_empty(existing, self.has_ended)
        if (
            existing is None
            or attempts.cleaned_up
            or not attempts.transactions
            or attempts.transactions[attempts.versions[0]].read_version != 0
        ):
            return False
        modes = ("overwrite", "append") if self.keys is None else ("overwrite", "append", "error")
        if self.settings.write_mode in modes and not have_other_columns(self.frame, existing.schema):
            return False
        other_versions = set(range(attempts.versions[0] + 1, existing.version + 1)) - set(attempts.transactions)
        transactions = (existing.read_transaction(version) for version in other_versions)
        return all(transaction is not None and transaction.operation.name in NEUTRAL for transaction in transactions)

    def has_ended(self, run_id: str) -> bool:
        """Whether a run has ended, is the run that writes, or is unknown."""
        return self.facts is None or self.facts.run_id == run_id or self.facts.ended(run_id)

    def new_columns(self, obj: Any) -> pa.Schema:
        """The columns of a new table, with types from the frame or from the metadata `lance/schema`."""
        without_rows = isinstance(obj, Sized) and not len(obj)
        return apply_known_types(self.frame, self.declared_schema, None, without_rows=without_rows)

    def warn_of_earlier_attempts(self, outcome: lance_core.WriteResult) -> None:
        """Log whether the rows of earlier attempts of the write are replaced or kept."""
        kept_versions = self.kept_attempts(outcome)
        for versions, fate in ((outcome.replaced_versions, "are replaced in"), (kept_versions, "are kept in")):
            if versions:
                self.context.log.warning(
                    "%s: rows that earlier attempts of this write committed in version %s %s version %s",
                    self.label,
                    ", ".join(map(str, versions)),
                    fate,
                    outcome.dataset.version,
                )

    def kept_attempts(self, outcome: lance_core.WriteResult) -> list[int]:
        """The versions of earlier attempts whose rows the table keeps."""
        if outcome.deduplicated or self.settings.on_earlier_attempt != "append":
            return []
        return [version for version in self.attempts.versions if version not in outcome.replaced_versions]

    def find_casts(self, outcome: lance_core.WriteResult) -> dict[str, str]:
        """The columns that were cast to the table's types, each with both types."""
        if self.existing is None or outcome.deduplicated:
            return {}
        before, now = self.existing.schema, outcome.dataset.schema
        common_fields = [
            field for field in self.frame if field.name in before.names and now.get_field_index(field.name) >= 0
        ]
        return {
            field.name: f"{field.type} -> {now.field(field.name).type}"
            for field in common_fields
            if field.type not in (pa.null(), now.field(field.name).type)
            and before.field(field.name).type == now.field(field.name).type
        }

    def reject_types_that_main_lacks(self, obj: Any) -> None:
        """Reject a write on a branch that gives a column of main its first type, which no promotion could apply.

        Raises:
            SchemaError: A column has type null at the branch and at its fork version, and another type in the value.
        """
        if self.branch is None or self.existing is None:
            return
        types = find_types_for_nulls(self.existing.schema, self.new_columns(obj))
        for name, kind in types.items():
            fork = self.existing.branches.list()[self.branch]["parent_version"]
            if name in self.existing.checkout_version((None, fork)).schema.names:
                raise SchemaError(
                    f"column {name!r} has no type on main, and a promotion cannot give it the type {kind}. Give it on "
                    f"main: lance-dagster change-type {shlex.quote(self.location.uri)} {shlex.quote(name)} "
                    f"{shlex.quote(str(kind))}; then discard branch {self.branch}, and run this again"
                )

    def reject_skip_over_earlier_rows(self) -> None:
        """Reject an attempt without rows that is skipped, if the table has rows of an earlier attempt.

        Raises:
            InvalidInputError: The table has rows of an earlier attempt.
        """
        if self.attempts.versions:
            version, before = self.attempts.versions[-1], self.attempts.versions[0] - 1
            restored = f", or restore version {before} and start a new run" if before else ""
            raise InvalidInputError(
                f"{self.label} has no rows, and empty_output is skip, but version {version} of {self.location.uri} has "
                "rows of an earlier attempt of this write. Set empty_output to write, which removes these rows"
                f"{restored}"
            )

    def without_change_type(self, handler: LanceTypeHandler, obj: Any) -> tuple[LanceTypeHandler, Any, TableOutput]:
        """Remove the column `_change_type` from an output; for a merge, separate the rows whose keys are deleted.

        If the table has a column of that name, the output is unchanged.

        Raises:
            LanceError: A row has an unknown kind of change, or the handler of the value does not support changes.
        """
        table_columns = () if self.existing is None else self.existing.schema.names
        names = handler.arrow_schema(obj).names if self.merges_on or self.sets_columns else []
        if CHANGE_TYPE in table_columns or CHANGE_TYPE not in names:
            return handler, obj, self
        if self.sets_columns:
            handler, obj, _ = handler.split_changes(obj, choose_matching_columns(names, self.settings.row_key))
            return handler, obj, self
        handler, obj, deletes = handler.split_changes(obj, self.merges_on)
        return handler, obj, replace(self, deletes=deletes)

    def release_consumed(self, written: lance_core.LanceDataset) -> None:
        """Let cleanups remove versions of inputs whose changes every part of the written table has consumed."""
        reader = self.context.asset_key.to_user_string()
        for consumed in self.changes:
            name = watermark_name(consumed.asset, reader, self.metadata)
            hold_consumed_and_release_older(consumed.dataset, written, reader, name, consumed.moves.get(reader, ()))

    def move_watermarks(self) -> None:
        """Commit the watermarks of consumed changes that led to no rows to write; without a table, do nothing."""
        properties = self.watermark_properties
        if not properties or self.existing is None:
            return
        transaction = lance_core.Transaction(
            read_version=self.existing.version,
            operation=lance_core.LanceOperation.UpdateConfig(),
            transaction_properties={**self.commit.texts, **properties},
        )
        self.release_consumed(lance_core.LanceDataset.commit(self.existing, transaction))


def wants_no_table(settings: OutputSettings, slices: lance_core.Slices | None) -> bool:
    """Whether the write fails if the table exists, or if its branch has commits."""
    return settings.write_mode == "create_only" or (settings.write_mode == "error" and slices is None)


def have_other_columns(frame: pa.Schema, table: pa.Schema) -> bool:
    """Whether the columns of a frame differ from those of a table; columns of type null differ only by name."""
    if set(frame.names) != set(table.names) or len(frame) != len(table):
        return True
    return any(field.type not in (pa.null(), table.field(field.name).type) for field in frame)


def code_version(context: dg.OutputContext) -> str | None:
    """The code version of the asset; None if it has none, or the output is not an asset's."""
    try:
        return context.asset_spec.code_version
    except dg.DagsterInvariantViolationError:
        return None


def settings_of_refresh(settings: OutputSettings, changes: Sequence[ConsumedChanges]) -> OutputSettings:
    """The settings of an output; in a full refresh, an append or merge overwrites the table or its partitions."""
    if settings.write_mode in ("append", "merge") and any(consumed.is_refresh for consumed in changes):
        return replace(settings, write_mode="overwrite", merge_on=None)
    return settings
