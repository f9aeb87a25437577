"""`LanceTableResource`: Lance tables for the bodies of assets, checks, sensors and ops."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster._context.check_log import record_or_find_begin
from lance_dagster._context.runs import RunningStep, attempt_facts, running_step
from lance_dagster._context.steps import ABSENT
from lance_dagster.lineage.check_reads import record_check_read
from lance_dagster.lineage.sql_inputs import watch_sql_inputs
from lance_dagster.lineage.step_inputs import remember_input
from lance_dagster.tables.arguments import RootArguments
from lance_dagster.tables.begin import newest_version
from lance_dagster.tables.branch_policy import BY_THREAD, BranchPolicy, reject_without_step, tag_run_with_branch
from lance_dagster.tables.location import reject_no_location
from lance_dagster.tables.lost_writes import reject_lost_input, reject_lost_writes
from lance_dagster.tables.names import RESERVED
from lance_dagster.tables.namespaces import declare_location
from lance_dagster.tables.refs import TableLike, TableRoot, roots_of, table_ref

if TYPE_CHECKING:
    import lance_core

__all__ = ["LanceTableResource"]


class LanceTableResource(dg.ConfigurableResource["LanceTableResource"], RootArguments):
    """Opens the tables of a root, by the location rules of `LanceIOManager`: `{root_uri}/{schema}/{table}.lance`.

    Example:
        ```python
        @dg.asset
        def late(lance: LanceTableResource) -> int:
            return lance.open("nyc/flights", tag="published").count_rows(filter="dep_delay > 60")

        defs = dg.Definitions([late], resources={"lance": LanceTableResource(root_uri="s3://lake")})
        ```
    """

    branching: BranchPolicy = Field(
        default_factory=BranchPolicy.off,
        description="Which runs read a branch; if off, the policy of the step's LanceIOManager with the same root.",
    )

    @property
    def table_root(self) -> TableRoot:
        """The root of the tables, for jobs, checks and sensors."""
        return TableRoot(
            root_uri=self.root_uri or "",
            storage_options=dict(self.storage_options),
            schema=self.schema_,
            branching=self.branching,
            namespace=dict(self.namespace),
        )

    def uri(self, asset_key: TableLike) -> str:
        """The URI of the table of an asset, or of "schema/table"; the table need not exist, except as below.

        A namespace of others gives the URIs of its tables; one that the step materializes is declared there.

        In a step of a run on a branch, the URI is that of the branch. For an asset that the step materializes, the
        branch is created if it is missing; for another asset, the URI is that of main if the table has no such branch.
        The manifest table of a directory namespace lists a table that the step materializes from then on.

        Raises:
            DagsterInvalidDefinitionError: A name cannot be a folder name.
            DatasetNotFoundError: In a run on a branch, the step materializes the asset, and the table does not exist.
                Or the namespace has no such table, and the step does not materialize the asset.
        """
        running = self._running_step(f"the URI of {table_ref(asset_key).name} is asked for")
        root = self._root_of(running)
        location, ref = root.locate(asset_key), table_ref(asset_key)
        if running is not None and ref.key in running.assets:
            location = declare_location(location, root)
        uri = location.uri
        reject_no_location(uri)
        branch = tag_run_with_branch(root.branching, None if running is None else running.facts)
        if branch is None:
            return uri
        main = root.open_or_none(asset_key)
        if running is not None and ref.key in running.assets:
            from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

            if main is None:
                raise DatasetNotFoundError(
                    f"asset {ref.name} has no table at {uri} yet, from which a branch could be forked: write a first "
                    "version on main, which may be without rows"
                )
            if branch not in main.branches.list():
                reject_lost_writes(running.facts, branch, root)
            return main.ensure_branch(branch, renew_promoted=True).uri
        if main is None or branch not in main.branches.list():
            if main is not None and running is not None:
                reject_lost_input(running.facts, branch, ref.key, main)
            return uri
        head = main.checkout_version((branch, None))
        if running is not None:
            record_check_read(running.facts, branch, head, running.partitions)
        return head.uri

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """Record what SQL reads in the steps of this process."""
        watch_sql_inputs()

    def pipes_extras(self) -> dict[str, Any]:
        """Extras for a Dagster Pipes session: the facts of the running step that make its retries idempotent.

        `lance_dagster.pipes.commit_properties` reads them in the other process. They contain no storage options. If
        runs overwrite a table at the same time, the later one wins; the time of this run begins with this call.

        Example:
            ```python
            pipes.run(command, context=context, extras={**lake.pipes_extras(), "uri": lake.uri(context.asset_key)})
            ```

        Raises:
            DagsterInvariantViolationError: No step is running.
        """
        running = running_step()
        if running is None:
            raise dg.DagsterInvariantViolationError("pipes_extras must be called in the body of an asset or op")
        root = self._root_of(running)
        branch = tag_run_with_branch(root.branching, running.facts)
        begun = {}
        for key in running.assets:
            main = root.open_or_none(key)
            at = None if main is None else main.root_uri
            version = newest_version(main, branch)
            version = version if at is None else record_or_find_begin(running.facts, at, version)
            begun[key.to_user_string()] = {"uri": at, "version": version}
        return {"lance_dagster": {**attempt_facts(running), "branch": branch, "begun": begun}}

    def open(
        self,
        asset_key: TableLike,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
    ) -> "lance_core.LanceDataset":
        """Open a table at one version, by default the newest.

        In a step of a run on a branch, a call without other arguments opens the branch if the table has it, else main
        as it was when the backfill or the root run began; `branch="main"` opens main. Outside of a run the branch that
        the environment names is opened, if the table has it. An opened table counts as read: the commits of the step
        record it.

        Args:
            asset_key: An asset key, spec or definition, which is located by the IO manager's rules, or the string
                "schema/table", which names the folder and the table.
            version: A version number, on `branch` if that is given.
            tag: A tag.
            branch: A branch; by default main, or the branch of the run.
            as_of: A time, for the newest version at or before it; without a zone the time is in UTC.

        Raises:
            ValueError: Arguments cannot be combined, or `as_of` is no time.
            DatasetNotFoundError: The table does not exist.
            VersionNotFoundError: The version, tag or branch does not exist.
        """
        pinned = any(pin is not None for pin in (version, tag, branch, as_of))
        running = running_step() if pinned else self._running_step(f"{table_ref(asset_key).name} is opened")
        root = self._root_of(running)
        if pinned:
            dataset = self.table_root.open(asset_key, version=version, tag=tag, branch=branch, as_of=as_of)
        else:
            dataset = root.open_in_run(asset_key, None if running is None else running.facts)
        if running is not None and (version, tag, as_of) == (None, None, None):
            run_branch = tag_run_with_branch(root.branching, running.facts)
            record_check_read(running.facts, run_branch, dataset, running.partitions)
        if running is not None:
            remember_input(running.facts.step, table_ref(asset_key).name, dataset, attempt=running.attempt)
        return dataset

    def _running_step(self, label: str) -> RunningStep | None:
        """The step that is running in this thread; None outside of a run, or in a thread of a run on main."""
        running = running_step()
        created_in = None
        with suppress(*ABSENT):
            created_in = self.get_resource_context()
        facts = None if running is None else running.facts
        reject_without_step(facts, created_in, self.branching, label, BY_THREAD)
        return running

    def _root_of(self, running: RunningStep | None) -> TableRoot:
        """The root with the branch policy of the running step's IO manager for this root, unless it has its own."""
        root = self.table_root
        if running is None or self.branching.kind != "off":
            return root
        same = (other for other in roots_of(running.resources) if _place_of(other) == _place_of(root))
        return replace(
            root, branching=next((other.branching for other in same if other.branching.kind != "off"), self.branching)
        )

    def tables(self) -> list[str]:
        """The tables in folders of the root, as "schema/table" in ascending order.

        Those of the root of a namespace have the table's name alone. Outputs of ops and the log of maintenance are left
        out.
        """
        from lance_core.maintenance import find_tables  # noqa: PLC0415 - code locations load without it

        options, namespace = self.table_root.options, dict(self.namespace) or None
        tables = find_tables(self.root_uri, storage_options=options, namespace=namespace)
        return [
            table.name
            for table in tables
            if ("/" in table.name or table.object_id is not None) and not table.path.startswith(RESERVED)
        ]


def _place_of(root: TableRoot) -> object:
    """What locates the tables of a root: its namespace, or else its folder."""
    import lance_core  # noqa: PLC0415 - code locations load without it

    return dict(root.namespace) or lance_core.canonical_uri(root.root_uri)
