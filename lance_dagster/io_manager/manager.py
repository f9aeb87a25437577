"""The IO manager: writes one output by one commit, and loads one input from one pinned version.

    handle_output   settings -> location -> table, branch, earlier attempts -> handler -> slices -> write -> metadata
    load_input      see `input`

The facts that are known without the value are collected first, in a `TableOutput`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core.errors import DatasetExistsError, LanceError
from lance_core.maintenance import index_partitions, reject_without_search
from lance_dagster._context import steps
from lance_dagster._context.check_log import PROVENANCE, log_entry, record_or_find_begin
from lance_dagster._context.definitions import blocking_checks
from lance_dagster._context.steps import RunFacts
from lance_dagster.branches.promotion import cover_rows, coverage_entries
from lance_dagster.branches.writing import create_empty, describe_write_to_branch, ensure_branch, is_created_empty
from lance_dagster.events import materialization
from lance_dagster.events.reporting import count_rows_of_written_partitions
from lance_dagster.handlers import LanceTypeHandler, find_handler_for_value
from lance_dagster.handlers.computed import ComputedHandler
from lance_dagster.handlers.merging import check_inserts_rows
from lance_dagster.health.policy import policy_of_writes
from lance_dagster.io_manager import column_assets, ownership, write_attempts
from lance_dagster.io_manager.column_types import with_remedy
from lance_dagster.io_manager.input import load_input
from lance_dagster.io_manager.output import (
    TableOutput,
    code_version,
    have_other_columns,
    settings_of_refresh,
    wants_no_table,
)
from lance_dagster.io_manager.replaced_rows import log_replaced
from lance_dagster.io_manager.skipped_write import report_skipped, unchanged_data_version
from lance_dagster.lineage.check_reads import branch_id, record_check_read
from lance_dagster.lineage.consumers import consumers
from lance_dagster.lineage.history import compute_data_version, format_data_version, last_data_change
from lance_dagster.lineage.spark_columns import has_plan, plan_lineage
from lance_dagster.lineage.sql_inputs import watch_sql_inputs
from lance_dagster.lineage.step_inputs import changes_entries, consumed_changes, input_properties
from lance_dagster.op_outputs.store import store_op_output
from lance_dagster.properties import BLOCKING_CHECKS, INPUT_PREFIX, split_values
from lance_dagster.tables.begin import newest_version
from lance_dagster.tables.branch_policy import DEFER_TAG, reject_without_step, tag_run_with_branch
from lance_dagster.tables.location import TableLocation
from lance_dagster.tables.lost_writes import reject_lost_writes
from lance_dagster.tables.namespaces import check_still_listed, declare_location
from lance_dagster.tables.refs import TableRef, TableRoot
from lance_dagster.tables.settings import PREFIX, TableSettings

_RANGE_TAGS: Final = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


class LanceTableIOManager(dg.IOManager):
    """Stores and loads assets as Lance tables; `LanceIOManager` creates it."""

    def __init__(self, settings: TableSettings, created_in: dg.InitResourceContext | None = None) -> None:
        self._settings = settings
        self._created_in = created_in
        self._begun: dict[tuple[tuple[str, str] | None, str], tuple[int, str | None, int]] = {}
        self._missed_begins: set[tuple[str, str] | None] = set()
        watch_sql_inputs()

    @property
    def table_root(self) -> TableRoot:
        """The root of the tables, for jobs, checks and sensors."""
        return self._settings

    def spark_session(self) -> Any:
        """The session of the `spark` resource, else the active session."""
        from lance_dagster.handlers.spark import session_of  # noqa: PLC0415 - optional

        return session_of(self._settings)

    def remember_begin(self, outputs: Sequence[tuple[dg.OutputContext, Any]]) -> None:
        """Remember the newest version of the table of each output, as the first attempt of their step starts.

        Args:
            outputs: The outputs of the step, each with its IO manager.

        Raises:
            LanceError: A table cannot be read.
        """
        for context, manager in outputs:
            if manager is self:
                location, facts = (
                    self._locate(context.asset_key, steps.defined_metadata(context)),
                    steps.run_facts(context),
                )
                assert facts is not None
                branch = tag_run_with_branch(self._settings.branching, facts)
                main = self._settings_of(location).open_uri(location.uri)
                begun = record_or_find_begin(facts, location.uri, newest_version(main, branch))
                identity = None if main is None or branch is None else branch_id(main, branch)
                begun_of_main = newest_version(main, None)
                if facts.attempt:  # of main it is not recorded where it was at the first attempt
                    begun_of_main = min(begun, begun_of_main)
                self._begun[facts.step, location.uri] = begun, identity, begun_of_main

    def miss_begin(self, step: tuple[str, str]) -> None:
        """Let the writes of a step, given by its run and key, count as begun before all others."""
        self._missed_begins.add(step)

    def _begin_of(self, output: TableOutput) -> int | None:
        """The newest version as the step began; that of main, if the branch was begun again since."""
        begun, identity, begun_of_main = self._begun.get((output.step, output.location.uri), (None, None, 0))
        if begun is None or output.branch is None or output.existing is None or output.existing.branch is None:
            return begun
        if branch_id(output.existing, output.branch) == identity:
            return begun
        return begun_of_main

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write an asset's value with one commit, which replaces the commits of earlier attempts.

        Raises:
            DagsterInvariantViolationError: No handler stores the type of the value.
            LanceError: The value does not fit the table, or another writer made a conflicting commit. No row was
                changed, except perhaps after an `OutcomeUnknownError`, or where the namespace dropped the id meanwhile.
        """
        ownership.reject_memory_of_another_process(context, self._settings)
        if not context.has_asset_key:
            store_op_output(context, obj, self._settings)
            return
        output = self._output(context)
        handler = find_handler_for_value(obj, label=output.label, type_handlers=self._settings.type_handlers)
        try:
            lance_core.check_names(handler.arrow_schema(obj))
            handler, obj, output = output.without_change_type(handler, obj)
            if not output.sets_columns:
                output = self._declare(output)
            output = self._prepare_branch(replace(output, frame=handler.arrow_schema(obj)), handler, obj)
            outcome = self._write(output, handler, obj)
            output = output if outcome is not None else self._open_newest_for_skipped(output)
        except LanceError as error:
            whole = output.keys is None and output.settings.write_mode == "overwrite"
            explained = with_remedy(error, output.location.uri, whole=whole)
            raise write_attempts.error_of_write(
                explained, output.label, output.keys, output.uri, self._settings
            ) from error
        if outcome is None:
            output.reject_skip_over_earlier_rows()
            context.log.info("%s has no rows; nothing was written", output.label)
            report_skipped(output)
            output.move_watermarks()
            return
        check_still_listed(output.location, self._settings)
        output.warn_of_earlier_attempts(outcome)
        if output.sets_columns:
            column_assets.check_still_column_owner(output, outcome.dataset)
        if output.existing is None or output.is_created_empty:
            ownership.check_still_owner(outcome.dataset, context.asset_key, context.definition_metadata, output.label)
        _log_overruled(output, outcome)
        log_replaced(output, outcome, self._begin_of(output))
        if outcome.deduplicated:
            context.log.warning(
                "%s: version %s was committed by an earlier attempt of this write and is kept, because "
                "on_earlier_attempt is adopt; nothing of this attempt was written",
                output.label,
                outcome.dataset.version,
            )
        if outcome.operation == "None":  # nothing was committed, but the changes of inputs are consumed
            output.move_watermarks()
        else:
            output.release_consumed(outcome.dataset)
        record_check_read(
            output.facts, output.branch, outcome.dataset, output.keys, wrote=context.asset_key.to_user_string()
        )
        self._report(output, outcome, obj)
        self._index_partitions(output, outcome.dataset)

    def _report(self, output: TableOutput, outcome: lance_core.WriteResult, obj: Any) -> None:
        """Report the write to Dagster."""
        casts = output.find_casts(outcome)
        context, written = output.context, outcome.dataset
        _log_deferred(output, written)
        is_changed = last_data_change(written) >= written.version
        of_version = compute_data_version(written, written.version) if is_changed else None
        steps.set_data_version(context, of_version or unchanged_data_version(replace(output, existing=written)))
        entries = materialization.build_shared_entries(outcome, output.location, output.kept_attempts(outcome))
        entries |= _cover_rows(output, written)
        if output.sets_columns:
            entries |= column_assets.column_entries(output, outcome)
        if written.branch is not None:
            entries |= describe_write_to_branch(written, output.instance, context.asset_key)
        if output.changes:
            entries |= changes_entries(output.changes)
        if casts:
            entries["lance/casts"] = dg.MetadataValue.json(casts)
            context.log.info("%s: columns were cast, and every value kept: %s", output.label, casts)
        page = entries.pop("lance/branches", None)
        entries |= materialization.build_lineage_entries(
            output.metadata,
            written,
            output.label,
            consumers=consumers(steps.downstream_keys(context, context.asset_key), context.asset_key),
            ui_url=self._settings.ui_url,
            derived=self._derived(output, obj),
            branches=None if page is None else page.value,
        )
        keys = list(context.asset_partition_keys) if output.keys is not None else []
        entries, rows = (
            materialization.partition_entries(entries, outcome, keys),
            self._rows_of_partitions(output, outcome),
        )
        steps.add_metadata(
            context,
            materialization.ordered_entries(entries),
            materialization.build_entries_by_partition(outcome, entries, keys, rows),
        )

    def _rows_of_partitions(self, output: TableOutput, outcome: lance_core.WriteResult) -> dict[str, int]:
        """The rows of the run's partitions; a failure to count them is only logged, because the write is committed."""
        if output.keys is None:
            return {}
        key, definition = output.context.asset_key, output.context.asset_partitions_def
        is_next = outcome.version == 1 + (0 if output.existing is None else output.existing.version)
        try:
            return count_rows_of_written_partitions(
                outcome,
                TableRef(key=key, metadata=output.metadata, partitions_def=definition),
                output.keys,
                output.partition_columns(outcome.dataset),
                replaces=is_next and output.settings.write_mode not in ("append", "merge", "columns"),
                max_unindexed_fragments=self._settings.max_unindexed_fragments,
            )
        except Exception as error:  # noqa: BLE001 - the write is committed; only a number of its report is missing
            output.context.log.warning("%s: the rows of its partitions were not counted: %s", output.label, error)
            return {}

    def _derived(self, output: TableOutput, obj: Any) -> dg.TableColumnLineage | None:
        """The column lineage from the plan of the frame; None if the plan cannot be read."""
        if not self._settings.derive_column_lineage or not has_plan(obj):
            return None
        try:
            return plan_lineage(output.step, obj)
        except Exception as error:  # noqa: BLE001 - Spark's plans are no public interface; the write is committed
            output.context.log.warning("%s: its column lineage could not be derived: %s", output.label, error)
            return None

    def plan_computation(self, context: dg.OutputContext, obj: Any) -> dict[str, Any]:
        """The entries about the rows that a run of `computed_columns` would compute; nothing is called or written.

        Raises:
            LanceError: The rows cannot be computed.
        """
        handler = ComputedHandler()
        output = replace(self._output(context), frame=handler.arrow_schema(obj))
        column_assets.reject_without_table(output)
        ownership.check_column_owners(output)
        return handler.plan(obj, column_assets.columns_request(output, handler))

    def load_input(self, context: dg.InputContext) -> Any:
        """Load an upstream asset: the partitions that Dagster asks for, of one version of its table.

        Raises:
            DagsterInvariantViolationError: No handler loads the type of the input.
            LanceError: The table, the version or a column does not exist.
        """
        return load_input(context, self._settings, self._created_in)

    def _locate(self, asset_key: dg.AssetKey, metadata: Any) -> TableLocation:
        return self._settings.locate(TableRef(key=asset_key, metadata=metadata))

    def _settings_of(self, location: TableLocation) -> TableSettings:
        """The settings with the storage options of a table."""
        return replace(self._settings, storage_options=location.options(self._settings.storage_options) or {})

    def _declare(self, output: TableOutput) -> TableOutput:
        """The output with the location at which a namespace lists its table, which it does from then on."""
        location, earlier = declare_location(output.location, self._settings), (output.step, output.location.uri)
        if earlier in self._begun:
            self._begun[output.step, location.uri] = self._begun[earlier]
        return replace(output, location=location, table=self._settings_of(location))

    def _output(self, context: dg.OutputContext) -> TableOutput:
        """The facts about an output that are known without its value."""
        asset = context.asset_key.to_user_string()
        definition, said = steps.defined_metadata(context), steps.run_time_metadata(context)
        settings = self._settings.output.overridden(definition, asset=asset, strict=True)
        settings = settings.overridden(said, asset=asset, strict=False)
        partitioned = context.has_asset_partitions
        if not partitioned and steps.partitions_of_asset(context) is not None:
            raise dg.DagsterInvalidInvocationError(
                f"asset {asset} has partitions and its run names none, so that the rows of the run belong to no"
                " partition; nothing was written. Launch the run with a partition or a range of partitions: a backfill,"
                " RunRequest(partition_key=...) or materialize(..., partition_key=...)"
            )
        settings.check(asset=asset, partitioned=partitioned)
        ownership.check_mode(settings, definition, f"asset {asset}")
        location = self._locate(context.asset_key, definition)
        facts = steps.run_facts(context)
        policy, remedy = self._settings.branching, "return the value from the body"
        reject_without_step(facts, self._created_in, policy, f"asset {asset} is stored", remedy)
        changes = consumed_changes(None if facts is None else facts.step)
        merges_on, settings = settings.merge_key, settings_of_refresh(settings, changes)
        keys = sorted(context.asset_partition_keys) if partitioned else None
        if keys == []:
            raise dg.DagsterInvalidInvocationError(_no_partitions(asset, facts))
        commit = write_attempts.describe_commit(
            facts,
            asset_key=context.asset_key,
            output_name=steps.output_name(context),
            partition_keys=keys,
            code_version=code_version(context),
            metadata=definition,
            sets_columns=settings.write_mode == "columns",
            outside=settings.out_of_partition == "allow",
        )
        table_settings = self._settings_of(location)
        try:
            existing = table_settings.open_uri(location.uri)
        except LanceError as error:
            raise write_attempts.error_of_write(error, f"asset {asset}", None, location.uri, self._settings) from error
        if settings.write_mode != "columns":
            ownership.check_ownership(existing, context.asset_key, definition, self._settings, f"asset {asset}")
        branch = tag_run_with_branch(self._settings.branching, facts)
        if branch is not None:
            if (names := blocking_checks(context, context.asset_key)) is not None:
                commit = replace(commit, properties={**commit.texts, BLOCKING_CHECKS: json.dumps(sorted(names))})
            self._reject_lost_writes(existing, branch, facts)
            if existing is not None and (settings.write_mode != "columns" or branch in existing.branches.list()):
                existing = ensure_branch(existing, branch)
        return TableOutput(
            context=context,
            label=f"asset {asset}",
            metadata={**definition, **{key: value for key, value in said.items() if key.startswith(PREFIX)}},
            location=location,
            table=table_settings,
            settings=settings,
            facts=facts,
            keys=keys,
            commit=commit,
            existing=existing,
            attempts=write_attempts.EarlierAttempts()
            if existing is None
            else write_attempts.find_earlier_attempts(existing, commit.write_attempt, facts),
            branch=branch,
            changes=changes,
            merges_on=tuple(merges_on),
        )

    def consuming_table(
        self, context: dg.OutputContext, facts: RunFacts
    ) -> tuple[lance_core.LanceDataset | None, list[str]]:
        """The table of an output, on the branch of its run, and the columns by which a merge into it matches rows."""
        definition = steps.defined_metadata(context)
        asset = context.asset_key.to_user_string()
        settings = self._settings.output.overridden(definition, asset=asset, strict=True)
        location = self._locate(context.asset_key, definition)
        existing = self._settings_of(location).open_uri(location.uri)
        branch = tag_run_with_branch(self._settings.branching, facts)
        if existing is not None and branch is not None:
            self._reject_lost_writes(existing, branch, facts)
            existing = ensure_branch(existing, branch)
        return existing, settings.merge_key

    def _reject_lost_writes(self, main: lance_core.LanceDataset | None, branch: str, facts: RunFacts | None) -> None:
        """Reject a run that would create its branch again, without what earlier runs of its root wrote to it."""
        if facts is not None and (main is None or branch not in main.branches.list()):
            reject_lost_writes(facts, branch, self._settings)

    def _prepare_branch(self, output: TableOutput, handler: LanceTypeHandler, obj: Any) -> TableOutput:
        """Create what the write needs, its table on main and its branch, and return the output with the branch.

        A branch is forked from a table. A missing table is created on main without rows, unless the write would be
        rejected; a table that was created so with other columns gets the columns of the value.
        """
        existing, frame = output.existing, output.frame
        if output.sets_columns:
            return column_assets.prepare_branch_for_columns(output, output.table.open_uri(output.location.uri))
        if (
            output.branch is None
            or output.attempts.versions
            or (existing is not None and not have_other_columns(frame, existing.schema))
        ):
            return output
        main = None if existing is None else output.table.open_uri(output.location.uri)
        if main is not None and not is_created_empty(main, output.has_ended):
            return output
        slices = output.plan_slices(output.new_columns(obj))
        new = replace(output, existing=None)
        if not handler.check(obj, new.write_request("create", slices, output.settings)):
            return output
        if main is None or have_other_columns(frame, main.schema):
            request = replace(new, existing=main, branch=None).write_request("create", None, output.settings)
            main = create_empty(handler, obj, request)
        if existing is not None:
            main.branches.discard(output.branch)
        return replace(output, existing=ensure_branch(main, output.branch), is_created_empty=True)

    def _open_newest_for_skipped(self, output: TableOutput) -> TableOutput:
        """Open the table as it is now, for a write that is skipped: others may have written it, or earlier attempts.

        Raises:
            SupersededError: A later attempt of the write has committed.
        """
        main, branch = output.table.open_uri(output.location.uri), output.branch
        if main is None or (branch is not None and branch not in main.branches.list()):
            return output
        newest = main.checkout_version((branch, None))
        write, facts = output.commit.write_attempt, output.facts
        write_attempts.reject_late_attempt(newest, write, facts)
        return replace(output, existing=newest, attempts=write_attempts.find_earlier_attempts(newest, write, facts))

    def _index_partitions(self, output: TableOutput, dataset: lance_core.LanceDataset) -> None:
        """Refresh zone maps on the partition columns; a failure is only logged, because the write is committed."""
        max_unindexed_fragments = self._settings.max_unindexed_fragments
        if max_unindexed_fragments is None or output.keys is None or dataset.branch is not None:
            return  # main is indexed after a promotion
        try:
            zone_maps = index_partitions(
                dataset,
                output.partition_columns(dataset),
                max_unindexed_fragments=max_unindexed_fragments,
                transaction_properties=output.run_properties,
            )
        except Exception as error:  # noqa: BLE001 - an index only saves work
            output.context.log.warning("%s: its zone maps were not refreshed: %s", output.label, error)
            return
        if zone_maps:
            output.context.log.info("%s: zone maps refreshed: %s", output.label, ", ".join(zone_maps))

    def _write(self, output: TableOutput, handler: LanceTypeHandler, obj: Any) -> lance_core.WriteResult | None:
        policy = policy_of_writes(output.metadata, label=output.label)
        if policy is not None and policy.require_search:
            reject_without_search(output.existing, policy.declarations)
        ownership.check_column_owners(output)
        ownership.reject_rows_of_others(output)
        output.reject_types_that_main_lacks(obj)
        if output.sets_columns:
            return column_assets.write_columns_of(output, handler, obj)
        alone = output.is_sole_writer()
        remaining_table = None if alone else output.existing
        columns = output.new_columns(obj) if remaining_table is None else remaining_table.schema
        slices = output.plan_slices(columns)
        mode = "overwrite" if alone else output.commit_mode(slices)
        settings = output.settings
        if mode in ("append", "merge") and settings.on_earlier_attempt == "replace":
            write_attempts.reject_missing(output.attempts, output.uri)
        replaces_rows = settings.write_mode in ("overwrite", "merge")
        if not replaces_rows and output.attempts.versions and settings.empty_output == "skip":
            settings = replace(settings, empty_output="write")  # so that rows of earlier attempts are removed
        if alone:
            settings = replace(settings, schema_mode="overwrite")
        request = output.write_request(mode, slices, settings)
        if settings.write_mode == "merge" and output.existing is None:
            check_inserts_rows(request)
        exclusive = alone or (output.is_created_empty and wants_no_table(settings, slices))
        request = request.with_attempt(
            earlier=output.attempts.versions,
            surviving_attempts=tuple(output.attempts.surviving),
            on_earlier_attempt=settings.on_earlier_attempt,
            outside_slices=settings.out_of_partition == "allow",
            conflict_policy="exclusive" if exclusive else "later_wins",
            begun=0 if output.step in self._missed_begins else self._begin_of(output),
        )
        try:
            return handler.write(obj, request)
        except DatasetExistsError as error:
            raise DatasetExistsError(f"{error}. The write_mode is {settings.write_mode}") from error


def _cover_rows(output: TableOutput, written: lance_core.LanceDataset) -> dict[str, str]:
    """Let the indices of a table cover the rows that were written, before their event; returns the entries of that.

    Raises:
        Failure: An index misses rows, and the policy has `require_search`.
    """
    policy = policy_of_writes(output.metadata, label=output.label)
    if policy is None:
        return {}
    coverage = cover_rows(written.checkout_version((written.branch, None)), output.run_properties, policy)
    problems = [f"index {name}: {problem}" for name, problem in coverage.problems.items()]
    for problem in problems:
        output.context.log.warning("%s: not all rows are covered: %s", output.label, problem)
    if problems and policy.require_search:
        raise dg.Failure(
            f"{output.label}: version {written.version} is committed, and gets no event, because the policy has "
            f"require_search: {'; '.join(problems)}. Once this is mended, re-execute the run: that replaces these rows"
        )
    return {name: names for name, names in coverage_entries(coverage).items() if names is not None}


def _log_overruled(output: TableOutput, outcome: lance_core.WriteResult) -> None:
    """Name the commits of other runs whose rows the write has replaced because it was created later."""
    for version in outcome.overruled_versions:
        output.context.log.warning(
            "%s: version %s was committed meanwhile by %s; this run was created later, and its rows replace them in "
            "version %s",
            output.label,
            version,
            write_attempts.made_by(outcome.dataset, version),
            outcome.dataset.version,
        )


def _log_deferred(output: TableOutput, written: lance_core.LanceDataset) -> None:
    """Record what the rows were made from, if Dagster records no event of the write.

    Inputs that the step has read on the branch of the run count as they are there.
    """
    if output.facts is None or output.facts.tags.get(DEFER_TAG) != "true":
        return
    tags = steps.provenance_of_output(output.context)
    for name, recorded in input_properties(output.step).items():
        read, asset = json.loads(split_values(recorded)[0]), name.removeprefix(INPUT_PREFIX)
        if read.get("branch") == output.branch and f"dagster/input_data_version/{asset}" in tags:
            version = format_data_version(read["uri"], read["version"], output.branch, read.get("table_id"))
            tags[f"dagster/input_data_version/{asset}"] = version
    entry = {
        "asset": output.context.asset_key.to_user_string(),
        "partitions": None if output.keys is None else list(output.keys),
        "version": written.version,
        "tags": tags,
    }
    message = f"wrote version {written.version} of {entry['asset']}, whose event is deferred"
    log_entry(output.facts, PROVENANCE, entry, message)


def _no_partitions(asset: str, facts: RunFacts | None) -> str:
    """The message about a run without partitions, such as one whose range begins after its end."""
    tags = {} if facts is None else facts.tags
    first, last = (tags.get(tag) for tag in _RANGE_TAGS)
    named = "" if first is None or last is None else f": no partition lies in the range from {first!r} to {last!r}"
    return (
        f"asset {asset} has partitions, and its run has none{named}; nothing was written. Launch the run with a "
        "partition, or with a range whose start is not after its end"
    )
