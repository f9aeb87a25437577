"""The IO manager at work: one output becomes one commit, one input becomes one pinned version.

handle_output   asset -> location -> settings -> handler -> slices -> earlier tries -> write -> metadata
load_input      asset -> location -> version  -> slices + filter + columns -> handler
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, LanceError
from lance_core.maintenance import index_partitions
from lance_dagster._context import (
    RunFacts,
    add_metadata,
    defined_metadata,
    downstream_keys,
    input_annotation,
    instance_of,
    is_fan_in,
    output_name,
    run_facts,
    said_at_run_time,
    set_data_version,
    step_of,
    tag_run,
    type_metadata,
)
from lance_dagster.branch_tables import begin_empty, branch_for_writing, branch_metadata
from lance_dagster.branching import BRANCH_TAG, branch_of_run
from lance_dagster.column_types import with_remedy
from lance_dagster.commits import (
    CommitTags,
    EarlierTries,
    commit_tags,
    find_earlier_tries,
    made_by,
    named,
    refuse_missing,
)
from lance_dagster.consumers import consumers
from lance_dagster.handlers import (
    LanceTypeHandler,
    Loading,
    default_load_type,
    handler_for_load,
    handler_for_value,
)
from lance_dagster.handlers.arrow_schema import known_schema, with_known_types
from lance_dagster.handlers.base import CommitMode, WriteRequest
from lance_dagster.handlers.merging import may_insert
from lance_dagster.history import data_version
from lance_dagster.inputs import MissingInputError, read_requests
from lance_dagster.location import TableLocation, locate_table
from lance_dagster.metadata import arranged, event_metadata, lineage_metadata, of_several, partition_metadata
from lance_dagster.op_outputs import load_op_output, store_op_output
from lance_dagster.ownership import (
    check_old_place,
    check_owner,
    check_still_owner,
    refuse_memory_of_another_process,
)
from lance_dagster.partitions import PartitionPlan, plan_partitions
from lance_dagster.plan_lineage import has_plan, plan_lineage, remember_frame
from lance_dagster.read_inputs import input_properties, remember_input
from lance_dagster.settings import OutputSettings, TableSettings
from lance_dagster.settings_keys import PREFIX, plain_metadata
from lance_dagster.tables import TableRoot

__all__ = ["LanceTableIOManager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """One output on its way into its table."""

    context: dg.OutputContext
    where: str
    metadata: Mapping[str, Any]
    location: TableLocation
    settings: OutputSettings
    facts: RunFacts | None
    keys: Sequence[str] | None
    tags: CommitTags
    existing: lance_core.LanceDataset | None
    tries: EarlierTries
    branch: str | None = None
    begun: bool = False  # the table was made just now, empty, for the branch to begin with

    @property
    def uri(self) -> str:
        """Where the commit goes: the table, or its branch."""
        return self.location.uri if self.branch is None or self.existing is None else self.existing.uri


class LanceTableIOManager(dg.IOManager):
    """Stores and loads assets as Lance tables; made by `LanceIOManager`."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings

    @property
    def table_root(self) -> TableRoot:
        """Where the tables are; jobs, checks and sensors ask for it."""
        return self._settings.table_root

    def spark_session(self) -> Any:
        """The session of the `spark` resource, else the active one; for work on tables that Spark is to do."""
        from lance_dagster.handlers.spark import session_of  # noqa: PLC0415 - optional

        return session_of(self._settings)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write an asset's value with one commit, which replaces the commits of earlier tries.

        Raises:
            DagsterInvariantViolationError: the output belongs to no asset, or cannot be stored.
            LanceError: the value does not fit, or another writer came first; the table is unchanged.
        """
        refuse_memory_of_another_process(context, self._settings)
        if not context.has_asset_key:
            store_op_output(context, obj, self._settings)
            return
        output = self._output(context)
        handler = handler_for_value(obj, where=output.where, own=self._settings.type_handlers)
        if output.branch is not None and output.existing is None:
            output = self._begun(output, handler, obj)
        try:
            outcome = self._write(output, handler, obj)
        except LanceError as error:
            whole = output.keys is None and output.settings.write_mode == "overwrite"
            found = with_remedy(error, output.location.uri, whole=whole)
            raise named(found, output.where, output.keys, output.uri, self._settings) from error
        if outcome is None:
            _refuse_to_keep(output)
            context.log.info("%s has no rows; nothing was written", output.where)
            context.add_output_metadata({"lance/rows_written": 0})
            return
        if outcome.replaced_versions:
            context.log.warning(
                "%s: version %s was committed by an earlier try of this write; its rows are replaced in version %s",
                output.where,
                ", ".join(map(str, outcome.replaced_versions)),
                outcome.dataset.version,
            )
        if output.existing is None or output.begun:
            check_still_owner(outcome.dataset, context.asset_key, context.definition_metadata, output.where)
        for version in outcome.overruled_versions:
            context.log.warning(
                "%s: version %s was committed meanwhile by %s; this run is the later one; its rows take their place "
                "in version %s",
                output.where,
                version,
                made_by(outcome.dataset, version),
                outcome.dataset.version,
            )
        if outcome.deduplicated:
            context.log.warning(
                "%s: version %s was committed by an earlier try of this write and is kept, as on_earlier_try says; "
                "nothing of this try was written",
                output.where,
                outcome.dataset.version,
            )
        self._tell(output, outcome, obj, _casts(handler.arrow_schema(obj), output, outcome))
        self._index_partitions(output, outcome.dataset)

    def _tell(self, output: _Output, outcome: lance_core.WriteResult, obj: Any, casts: Mapping[str, str]) -> None:
        """Report the write to Dagster."""
        context, written = output.context, outcome.dataset
        set_data_version(context, data_version(written.root_uri, written.version, written.branch))
        entries = event_metadata(outcome, output.location) | branch_metadata(
            outcome.dataset, instance_of(context), context.asset_key
        )
        if casts:
            entries["lance/casts"] = dg.MetadataValue.json(casts)
            context.log.info("%s: columns were cast, and every value kept: %s", output.where, casts)
        page = entries.pop("lance/branches", None)
        entries |= lineage_metadata(
            output.metadata,
            written,
            output.where,
            consumers=consumers(downstream_keys(context), context.asset_key),
            ui_url=self._settings.ui_url,
            derived=self._derived(output, obj),
            branches=None if page is None else page.value,
        )
        keys = list(context.asset_partition_keys) if output.keys is not None else []
        entries, adds = of_several(entries, outcome, keys), output.settings.write_mode in ("append", "merge")
        add_metadata(context, arranged(entries), partition_metadata(outcome, entries, keys, adds=adds))

    def _derived(self, output: _Output, obj: Any) -> dg.TableColumnLineage | None:
        """Where the columns come from by the plan of the frame; nothing is known if it cannot be read."""
        if not self._settings.derive_column_lineage or not has_plan(obj):
            return None
        try:
            return plan_lineage(step_of(output.context), obj)
        except Exception as error:  # noqa: BLE001 - Spark's plans are no public interface, and the write is done
            output.context.log.warning("%s: its column lineage could not be derived: %s", output.where, error)
            return None

    def load_input(self, context: dg.InputContext) -> Any:
        """Load an upstream asset: the partitions that Dagster asks for, of one version of its table.

        Raises:
            DagsterInvariantViolationError: the input is no asset, or its type cannot be loaded.
            LanceError: table, version or column does not exist.
        """
        refuse_memory_of_another_process(context, self._settings)
        asset = f"asset {context.asset_key.to_user_string()}" if context.has_asset_key else "no asset"
        where = f"input {_input_name(context)} ({asset})"
        own = self._settings.type_handlers

        def find_loading() -> Loading:
            default = default_load_type(self._settings)
            return handler_for_load(input_annotation(context), default, where=where, own=own)

        if not context.has_asset_key:
            if context.upstream_output is None:
                raise dg.DagsterInvariantViolationError(
                    f"{where} comes from no output, and LanceIOManager loads outputs only"
                )
            return load_op_output(
                context.upstream_output, self._settings, find_loading, where, context.definition_metadata
            )
        loading = find_loading()
        upstream = context.upstream_output.definition_metadata if context.upstream_output is not None else {}
        location = self._locate(context.asset_key, upstream)
        settings = replace(self._settings, storage_options=location.options(self._settings.storage_options) or {})
        try:
            requests = read_requests(context, location, settings, loading, where=where, upstream=upstream)
        except MissingInputError as error:
            self._check_place(context.asset_key, upstream, None, where)
            if plain_metadata(context.definition_metadata.get("lance/missing")) != "empty":
                return _missing(context, loading, error)
            requests = None
        if requests is None:
            self._check_place(context.asset_key, upstream, None, where)
            context.log.info("%s: there is no table at %s yet; it is loaded without rows", where, location.uri)
            known = known_schema(upstream, type_metadata(context), where)
            return self._empty(context, loading, known)
        values = {}
        for key, request in requests.items():
            remember_input(step_of(context), context.asset_key.to_user_string(), request.dataset)
            context.log.debug("%s: version %s of %s", where, request.dataset.version, location.uri)
            values[key] = loading.handler.load(request)
            if self._settings.derive_column_lineage:
                remember_frame(step_of(context), context.asset_key.to_user_string(), values[key])
        if loading.by_partition:
            return values
        return values[None] if None in values else list(values.values())

    def _empty(self, context: dg.InputContext, loading: Loading, known: pa.Schema) -> Any:
        """What an input is when there is nothing to load."""
        if loading.by_partition:
            return {}
        if loading.as_list and not is_fan_in(context):
            return []
        return loading.handler.empty(known, self._settings, loading.load_as)

    def _locate(self, asset_key: dg.AssetKey, metadata: Any) -> TableLocation:
        return locate_table(self._settings.root_uri, asset_key, metadata, default_schema=self._settings.schema)

    def _output(self, context: dg.OutputContext) -> _Output:
        """The facts about an output that do not depend on its value."""
        asset = context.asset_key.to_user_string()
        definition, said = defined_metadata(context), said_at_run_time(context)
        settings = self._settings.output.overridden(definition, asset=asset, strict=True)
        settings = settings.overridden(said, asset=asset, strict=False)
        partitioned = context.has_asset_partitions
        settings.check(asset=asset, partitioned=partitioned)
        location = self._locate(context.asset_key, definition)
        facts = run_facts(context)
        keys = sorted(context.asset_partition_keys) if partitioned else None
        tags = commit_tags(
            facts,
            asset_key=context.asset_key,
            output_name=output_name(context),
            partition_keys=keys,
            code_version=_code_version(context),
        )
        try:
            existing = self._open(location.uri)
        except LanceError as error:
            raise named(error, f"asset {asset}", None, location.uri, self._settings) from error
        self._check_place(context.asset_key, definition, existing, f"asset {asset}")
        branch = branch_of_run(self._settings.branching, facts)
        if branch is not None:
            tag_run(context, {BRANCH_TAG: branch})
            existing = None if existing is None else branch_for_writing(existing, branch)
        return _Output(
            context=context,
            where=f"asset {asset}",
            metadata={**definition, **{key: value for key, value in said.items() if key.startswith(PREFIX)}},
            location=location,
            settings=settings,
            facts=facts,
            keys=keys,
            tags=tags,
            existing=existing,
            tries=EarlierTries() if existing is None else find_earlier_tries(context, existing, tags, facts),
            branch=branch,
        )

    def _check_place(
        self,
        asset_key: dg.AssetKey,
        metadata: Mapping[str, object],
        existing: lance_core.LanceDataset | None,
        where: str,
    ) -> None:
        """Make sure that the table is the asset's own."""
        if existing is not None:
            check_owner(existing, asset_key, metadata, where)
            return
        check_old_place(
            self._settings.root_uri,
            asset_key,
            metadata,
            default_schema=self._settings.schema,
            storage_options=self._settings.storage_options,
            where=where,
        )

    def _begun(self, output: _Output, handler: LanceTypeHandler, obj: Any) -> _Output:
        """The output with a branch of a table that is not there yet: the table begins empty."""
        assert output.branch is not None
        main = begin_empty(handler, obj, self._request(output, "create", None, output.settings))
        return replace(output, existing=branch_for_writing(main, output.branch), begun=True)

    def _open(self, uri: str) -> lance_core.LanceDataset | None:
        try:
            return lance_core.dataset(uri, storage_options=dict(self._settings.storage_options) or None)
        except DatasetNotFoundError:
            return None

    def _partitions(self, output: _Output, schema: pa.Schema) -> PartitionPlan | None:
        """The run's partitions in terms of the columns that are written."""
        if output.keys is None:
            return None
        return plan_partitions(
            output.context.asset_key,
            output.context.asset_partitions_def,
            output.context.asset_partition_keys,
            plain_metadata(output.metadata.get("partition_expr")),
            schema,
        )

    def _index_partitions(self, output: _Output, dataset: lance_core.LanceDataset) -> None:
        """Refresh zone maps on the partition columns; a failure is logged, as the write is done."""
        if not self._settings.index_partitions or output.keys is None or dataset.branch is not None:
            return  # main is indexed after a promotion
        try:
            plan = self._partitions(output, dataset.schema)
            columns = [] if plan is None else plan.slices.columns
            made = index_partitions(
                dataset,
                columns,
                most_uncovered=self._settings.max_unindexed_fragments,
                transaction_properties=output.tags.of_run,
            )
        except Exception as error:  # noqa: BLE001 - an index only saves work
            output.context.log.warning("%s: the zone maps of its partitions were not kept: %s", output.where, error)
            return
        if made:
            output.context.log.info("%s: zone maps refreshed: %s", output.where, ", ".join(made))

    def _write(self, output: _Output, handler: LanceTypeHandler, obj: Any) -> lance_core.WriteResult | None:
        frame = handler.arrow_schema(obj)
        alone = _is_alone(output, frame)
        kept = None if alone else output.existing
        plan = self._partitions(output, _new_columns(output, frame, obj) if kept is None else kept.schema)
        mode = "overwrite" if alone else _commit_mode(output, plan)
        settings = output.settings
        if mode in ("append", "merge") and settings.on_earlier_try == "replace":
            refuse_missing(output.tries, output.uri)
        if mode == "append" and output.tries.versions and settings.empty_output == "skip":
            settings = replace(settings, empty_output="write")  # the earlier rows have to go all the same
        if alone:
            settings = replace(settings, schema_mode="overwrite")
        request = self._request(output, mode, plan, settings)
        if settings.write_mode == "merge" and output.existing is None:
            may_insert(request)
        whole = settings.out_of_partition == "allow"
        attempt = output.tags.write_try(
            earlier=output.tries.versions,
            on_earlier_try=settings.on_earlier_try,
            whole=whole,
            alone=alone,
            overrules=True,
        )
        return handler.write(obj, replace(request, write_try=attempt))

    def _request(
        self, output: _Output, mode: CommitMode, plan: PartitionPlan | None, settings: OutputSettings
    ) -> WriteRequest:
        return WriteRequest(
            uri=output.uri,
            mode=mode,
            existing=output.existing,
            slices=None if plan is None else plan.slices,
            output=settings,
            # The table's configuration belongs to main: a promotion does not bring it there.
            table=self._settings if output.existing is None or output.branch is None else self._without_config,
            properties={**output.tags.properties, **input_properties(step_of(output.context))},
            write_try=None,
            known=known_schema(output.metadata, type_metadata(output.context), output.where),
        )

    @property
    def _without_config(self) -> TableSettings:
        return replace(self._settings, table_config={})


def _commit_mode(output: _Output, plan: PartitionPlan | None) -> CommitMode:
    """The mode of the commit.

    Raises:
        DatasetExistsError: the write mode forbids it, because rows or a table are there.
    """
    existing, mode = output.existing, output.settings.write_mode
    if mode == "overwrite":
        return "overwrite" if plan is None else "replace"
    if mode == "merge":
        return "create" if existing is None else "merge"
    if mode == "append" or output.begun or output.tries.versions:  # what the earlier tries put in goes
        return "append"
    if existing is not None and (plan is None or mode == "create_only"):
        raise DatasetExistsError(f"{output.where}: the table {output.location.uri} exists, and write_mode is {mode}")
    if existing is None or plan is None:
        return "create"
    rows = existing.count_rows(filter=plan.slices.expression(existing.schema))
    if rows:
        raise DatasetExistsError(
            f"{output.where}: {rows} rows of the run's partitions are in {output.location.uri}, and write_mode is error"
        )
    return "replace"


def _is_alone(output: _Output, frame: pa.Schema) -> bool:
    """Whether a table was made by earlier tries of this write and nobody else, and need not be kept to change it.

    It need not if the write is to create the table, or brings other columns than the earlier tries did.
    """
    existing, tries = output.existing, output.tries
    if existing is None or tries.gone or not tries.found or tries.found[tries.versions[0]].read_version != 0:
        return False
    if output.settings.write_mode in ("overwrite", "append") and not _differs(frame, existing.schema):
        return False
    others = set(range(tries.versions[0] + 1, existing.version + 1)) - set(tries.found)
    made = (existing.read_transaction(version) for version in others)
    return all(one is not None and one.operation.name in _NEUTRAL for one in made)


def _new_columns(output: _Output, frame: pa.Schema, obj: Any) -> pa.Schema:
    """The columns of a new table, as far as the frame or the metadata `lance/schema` gives their types."""
    known = known_schema(output.metadata, type_metadata(output.context), output.where)
    return with_known_types(frame, known, None, without_rows=isinstance(obj, Sized) and not len(obj))


_NEUTRAL = ("UpdateConfig", "ReserveFragments", "Rewrite", "CreateIndex")


def _differs(frame: pa.Schema, table: pa.Schema) -> bool:
    """Whether the columns of a frame are not those of a table, as far as the frame's types are known."""
    if set(frame.names) != set(table.names) or len(frame) != len(table):
        return True
    return any(field.type not in (pa.null(), table.field(field.name).type) for field in frame)


def _missing(context: dg.InputContext, loading: Loading, error: MissingInputError) -> None:
    """None for an input of which nothing was ever written, if it may be None.

    Raises:
        DatasetNotFoundError: it may not.
    """
    if not loading.optional:
        raise DatasetNotFoundError(str(error)) from None
    context.log.info("%s; the input is None", error)


def _casts(frame: pa.Schema, output: _Output, outcome: lance_core.WriteResult) -> dict[str, str]:
    """The columns whose values were cast to the types that the table had already, with both types."""
    if output.existing is None or outcome.deduplicated:
        return {}
    before, now = output.existing.schema, outcome.dataset.schema
    kept = [field for field in frame if field.name in before.names and now.get_field_index(field.name) >= 0]
    return {
        field.name: f"{field.type} -> {now.field(field.name).type}"
        for field in kept
        if field.type not in (pa.null(), now.field(field.name).type)
        and before.field(field.name).type == now.field(field.name).type
    }


def _refuse_to_keep(output: _Output) -> None:
    """Refuse to skip a try without rows while the rows of an earlier one are in the table.

    Raises:
        InvalidInputError: They are.
    """
    if output.tries.versions:
        version = output.tries.versions[-1]
        raise InvalidInputError(
            f"{output.where} has no rows, and empty_output is skip, but version {version} of {output.location.uri} "
            f"holds what an earlier try of this write was given. Restore version {output.tries.versions[0] - 1}, or "
            "let empty_output write clear what the earlier try wrote"
        )


def _input_name(context: dg.InputContext) -> str:
    return repr(context.name) if context.has_input_name else "without a name"


def _code_version(context: dg.OutputContext) -> str | None:
    try:
        return context.asset_spec.code_version
    except dg.DagsterInvariantViolationError:
        return None
