"""`LanceTableResource`: Lance tables for the bodies of assets, checks, sensors and ops."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster._context.runs import RunningStep, attempt_facts, running_step
from lance_dagster.lineage.step_inputs import remember_input
from lance_dagster.tables.arguments import RootArguments
from lance_dagster.tables.branch_policy import BRANCH_TAG, BranchPolicy, branch_of_run
from lance_dagster.tables.names import RESERVED
from lance_dagster.tables.refs import TableLike, TableRoot, table_ref

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
        description="Which runs read a branch; if off, those that the LanceIOManager of the step says for this root.",
    )

    @property
    def table_root(self) -> TableRoot:
        """The location of the tables, for this package's other parts."""
        return TableRoot(
            root_uri=self.root_uri,
            storage_options=dict(self.storage_options),
            schema=self.schema_,
            branching=self.branching,
        )

    def uri(self, asset_key: TableLike) -> str:
        """The URI of the table of an asset, or of "schema/table"; outside of a run the table need not exist.

        Inside of a step of a run on a branch, the URI is that of the branch. For assets that the step makes, the branch
        is created if need be; for other assets, the URI is that of main if the table has no such branch.

        Raises:
            DagsterInvalidDefinitionError: A name cannot be a folder name.
            DatasetNotFoundError: The step makes the asset, and there is no table for the branch to fork from.
        """
        running = running_step()
        root = self._root_of(running)
        uri = root.locate(asset_key).uri
        branch = None if running is None else branch_of_run(root.branching, running.facts)
        if branch is None or running is None:
            return uri
        ref = table_ref(asset_key)
        main = root.open_or_none(ref)
        if ref.key in running.assets:
            from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

            if main is None:
                raise DatasetNotFoundError(
                    f"asset {ref.name} has no table at {uri} yet, and a branch needs a table to begin with: write a "
                    "first version on main, one without rows will do"
                )
            running.instance.add_run_tags(running.facts.run_id, {BRANCH_TAG: branch})
            return main.ensure_branch(branch, renew_promoted=True).uri
        return main.checkout_version((branch, None)).uri if main is not None and branch in main.branches.list() else uri

    def pipes_extras(self) -> dict[str, Any]:
        """Extras for a Dagster Pipes session: the facts of the running step that make its retries idempotent.

        `lance_dagster.pipes.commit_properties` reads them in the other process. No storage option is among them.

        Example:
            ```python
            pipes.run(command, context=context, extras={**lake.pipes_extras(), "uri": lake.uri(context.asset_key)})
            ```

        Raises:
            DagsterInvariantViolationError: No step is running.
        """
        running = running_step()
        if running is None:
            raise dg.DagsterInvariantViolationError("pipes_extras is called in the body of an asset or op")
        branch = branch_of_run(self._root_of(running).branching, running.facts)
        return {"lance_dagster": {**attempt_facts(running), "branch": branch}}

    def open(
        self,
        asset_key: TableLike,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
    ) -> "lance_core.LanceDataset":
        """Open a table at one version, the newest unless something else is asked for.

        In a step of a run on a branch, an asset key alone opens the branch if the table has it, else main as it was
        when the backfill, or the root run, began; `branch="main"` opens main. An opened table counts as read: the
        commits of the step record it.

        Args:
            asset_key: An asset key, spec or definition, which follow the IO manager's rules, or the string
                "schema/table", which names the folders themselves.
            version: A version number, on the branch if one is given.
            tag: A tag.
            branch: A branch; main unless one is given, or the run is on one.
            as_of: The newest version at or before this time; without a zone it is in UTC.

        Raises:
            ValueError: Arguments cannot be combined.
            DatasetNotFoundError: The table does not exist.
            VersionNotFoundError: The version, tag or branch does not exist.
        """
        pinned = any(given is not None for given in (version, tag, branch, as_of))
        running = running_step()
        if running is None or pinned:
            dataset = self.table_root.open(asset_key, version=version, tag=tag, branch=branch, as_of=as_of)
        else:
            dataset = self._root_of(running).open_in_run(asset_key, running.facts)
        remember_input(None if running is None else running.facts.step, table_ref(asset_key).name, dataset)
        return dataset

    def _root_of(self, running: RunningStep | None) -> TableRoot:
        """The tables with the branch policy that the running step has for this root."""
        root = self.table_root
        if running is None or self.branching.kind != "off":
            return root
        others = (getattr(one, "table_root", None) for one in running.resources)
        same = (one for one in others if isinstance(one, TableRoot) and one.root_uri == root.root_uri)
        return replace(
            root, branching=next((one.branching for one in same if one.branching.kind != "off"), self.branching)
        )

    def tables(self) -> list[str]:
        """The tables in folders of the root, as "schema/table" in ascending order, without the outputs of ops."""
        import lance_core  # noqa: PLC0415 - code locations load without it

        found = lance_core.list_tables(self.root_uri, storage_options=self.table_root.options)
        return [name.removesuffix(".lance") for name in found if "/" in name and not name.startswith(RESERVED)]
