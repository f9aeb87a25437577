"""`build_erasure_job`: erase rows from all versions and files of tables, and report the proof to Dagster.

    rows       `where` in the configuration: the name of a file or of an environment variable that holds the condition,
               or the condition itself (`plain`), which Dagster then keeps in the configuration of the run
    tables     all tables of the job, or those that the configuration names; a table that assets share is processed once
    dry run    `dry_run` in the configuration, or the run tag `lance/dry_run`: only the report

All tables are surveyed before the first one is changed: an obstacle in one of them stops the run. No event, log or
commit holds the condition. The run fails if rows may be left.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.properties import ASSET_KEY, ERASURE, JOB_NAME, ROOT_RUN_ID, RUN_ID
from lance_dagster.tables.branch_policy import BRANCH_TAG, MAIN, NO_RETRIES, branch_source
from lance_dagster.tables.jobs import LostTables, TableRun, build_table_job
from lance_dagster.tables.refs import (
    ChosenTables,
    TableLike,
    TableRef,
    TableRoot,
    group_by_table,
    is_tagged,
    join_names,
)

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import ErasureReport

_DRY_RUN_TAG: Final = "lance/dry_run"
_ALLOWED: Final = {"retag", "release_branches", "drop_indices", "delete_unverified"}


class Condition(dg.Config):
    """The source of the condition of an erasure; exactly one attribute is given.

    Attributes:
        file: A file with the condition, which the run can read, such as a mounted secret.
        env: An environment variable of the run with the condition.
        plain: The condition itself, which Dagster keeps with the run.
    """

    model_config = ConfigDict(extra="forbid")

    file: str | None = Field(default=None, description="A file with the condition, in SQL.")
    env: str | None = Field(default=None, description="An environment variable with the condition.")
    plain: str | None = Field(default=None, description="The condition itself: Dagster keeps it with the run.")

    def read(self) -> str:
        """The condition.

        Raises:
            Failure: The configuration gives no source or several, or the source cannot be read or is empty.
        """
        sources = {f"where.{name}": source for name, source in self.model_dump().items() if source}
        if len(sources) != 1:
            remedy = "give `where.file`, `where.env` or `where.plain`"
            raise dg.Failure(f"the condition needs one source, not {len(sources)}: {remedy}")
        ((name, source),) = sources.items()
        try:
            condition = (
                Path(source).read_text("utf-8") if self.file else os.environ.get(source, "") if self.env else source
            )
        except (OSError, ValueError) as error:
            remedy = "mount it where the run executes, as UTF-8"
            raise dg.Failure(f"{name}: {source} cannot be read ({type(error).__name__}); {remedy}") from None
        if not condition.strip():
            raise dg.Failure(f"{name}{'' if self.plain else f': {source}'} holds no condition")
        return condition.strip()


class ErasureConfig(ChosenTables):
    """The configuration of one run.

    Attributes:
        where: The source of the condition that selects the rows.
        request: A name for the events, such as a ticket's; it must hold no value of the rows.
        dry_run: Whether to report only what would be done, as with the run tag `lance/dry_run`.
        retag: Whether to move tags of versions that hold such rows.
        release_branches: Whether to remove versions from which branches were forked.
        drop_indices: Whether to drop indices that hold such rows and cannot be built here.
        delete_unverified: Whether to remove unreferenced files of any age; nobody else may write meanwhile.
    """

    where: Condition = Field(description="The source of the condition that selects the rows.")
    request: str = Field(default="", description="A name for the events, such as a ticket's; no value of the rows.")
    dry_run: bool = Field(default=False, description="Whether to report only what would be done.")
    retag: bool = Field(default=False, description="Whether to move tags of versions that hold such rows.")
    release_branches: bool = Field(default=False, description="Whether to remove versions that branches forked from.")
    drop_indices: bool = Field(default=False, description="Whether to drop indices that cannot be built here.")
    delete_unverified: bool = Field(default=False, description="Whether to remove young files, while nobody writes.")


_Table = tuple["lance_core.LanceDataset", list[TableRef]]
"""A table, with the assets of the job that share it."""


def build_erasure_job(
    assets: Iterable[TableLike] | TableLike, *, name: str = "lance_erasure", io_manager_key: str = "io_manager"
) -> dg.JobDefinition:
    """Make the job that erases rows; the head of the module describes its runs.

    If versions that Dagster recorded were removed, materializations report the table, so that assets downstream can
    follow; otherwise, as after a dry run, observations do. All assets that share the table are reported, if the code
    location, the table or the events of the instance name them.

    Args:
        assets: Assets, specs or keys.
        name: Name of the job.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.

    Raises:
        DagsterInvalidDefinitionError: A reference to a table, or `name`, is invalid.

    Examples:
        >>> job = lance_dagster.build_erasure_job(["shop/customers"])
        >>> erasure = {"where": {"file": "/run/secrets/erase.sql"}, "request": "ticket 17"}
        >>> config = dg.validate_run_config(job, {"ops": {"lance_erasure_op": {"config": erasure}}})
        >>> config["ops"]["lance_erasure_op"]["config"]["request"]
        'ticket 17'
    """
    return build_table_job(
        assets,
        ErasureConfig,
        _erase,
        name=name,
        label="build_erasure_job: name",
        description="Erases rows from all versions and files of these tables, with a proof.",
        io_manager_key=io_manager_key,
        tags=NO_RETRIES,
    )


def _erase(run: TableRun) -> None:
    from lance_dagster.erasure.events import count_rows_before_erasure, log_erasure  # noqa: PLC0415 - heavy imports
    from lance_dagster.loading.assets_of_table import assets_of_table  # noqa: PLC0415 - heavy imports

    context, root, config = run.context, run.root, run.config
    is_dry = config.dry_run or is_tagged(context, _DRY_RUN_TAG)
    _reject_branch(root, context, is_dry=is_dry)
    where, allowed = config.where.read(), config.model_dump(include=_ALLOWED)
    chosen = [(ref, root.open_or_none(ref)) for ref in run.chosen_refs()]
    for ref in [ref for ref, dataset in chosen if dataset is None]:
        context.log.info("%s: there is no table", ref.name)
    existing = group_by_table((ref, dataset) for ref, dataset in chosen if dataset is not None)
    tables: dict[str, _Table] = {dataset.root_uri: (dataset, named) for dataset, named in existing}
    reports = _erase_tables(tables, where, dry_run=True, **allowed)
    stopped = {uri: report.obstacles for uri, report in reports.items() if report.obstacles}
    lost = LostTables(context)
    for uri, (dataset, named) in tables.items():
        with lost.noting():
            sharing = assets_of_table(context, root, dataset, named)
            rows = count_rows_before_erasure(context.instance, dataset, sharing) if reports[uri].rows_deleted else {}
            if not (stopped or is_dry):
                check = partial(run.reject_moved, named, dataset)
                check()
                properties = _make_properties(context, dataset, named)
                reports |= _erase_tables(
                    {uri: tables[uri]}, where, transaction_properties=properties, check=check, **allowed
                )
            context.log.info("%s: %s", join_names(named), json.dumps(asdict(reports[uri])))
            latest = dataset.checkout_version((None, None))
            log_erasure(context, root, latest, sharing, reports[uri], config.request, rows)
    if stopped:
        places = [
            f"{join_names(tables[uri][1])}: {', '.join(f'{obstacle.kind} {obstacle.path}' for obstacle in obstacles)}"
            for uri, obstacles in stopped.items()
        ]
        raise dg.Failure(
            f"nothing was erased, because of obstacles: {'; '.join(places)}. The entry lance/erasure of the events "
            "describes them"
        )
    lost.fail("rows may be left, or the erasure is not reported")
    left = [] if is_dry else [join_names(tables[uri][1]) for uri, report in reports.items() if not report.proven]
    if left:
        raise dg.Failure(f"{'; '.join(left)}: rows may be left; the entry lance/erasure of the events names the places")


def _reject_branch(root: TableRoot, context: dg.OpExecutionContext, *, is_dry: bool) -> None:
    """Reject an erasure whose environment, or whose run tag, names a branch; a dry run changes nothing.

    Raises:
        Failure: A branch is named.
    """
    branch = root.branch_of_job(context)
    if branch is None or is_dry:
        return
    raise dg.Failure(
        f"{branch_source(root.branching, branch)}, and an erasure is of all versions of a table, those of main among "
        f"them; nothing was erased. Run it where {root.branching.name or BRANCH_TAG}={MAIN}, or as a dry run"
    )


def _make_properties(
    context: dg.OpExecutionContext, dataset: "lance_core.LanceDataset", named: Sequence[TableRef]
) -> dict[str, str]:
    """The properties of the commits: the run, and the assets that wrote the rows, whose own commits are removed."""
    from lance_dagster.lineage.history import row_owners  # noqa: PLC0415 - code locations load without lance_core

    owners = row_owners(dataset) or [named[0].name]
    return {
        RUN_ID: context.run.run_id,
        ROOT_RUN_ID: context.run.root_run_id or context.run.run_id,
        JOB_NAME: context.run.job_name,
        ASSET_KEY: owners[0] if len(owners) == 1 else json.dumps(owners),
        ERASURE: "true",
    }


def _erase_tables(tables: Mapping[str, _Table], where: str, **arguments: Any) -> "dict[str, ErasureReport]":
    """Erase rows of tables by `erase_rows`, whose messages are withheld, as they can show personal data.

    Raises:
        Failure: The condition does not fit a table, such as for an unknown column.
    """
    from lance_core.errors import InvalidInputError, UnsupportedError  # noqa: PLC0415 - heavy imports
    from lance_core.maintenance.erasure.erase import erase_rows  # noqa: PLC0415 - heavy imports
    from lance_core.maintenance.erasure.report import ErasureOptions  # noqa: PLC0415 - heavy imports

    reports, unfit, fitting = {}, [], []
    for uri, (dataset, named) in tables.items():
        try:
            reports[uri] = erase_rows(dataset, where, ErasureOptions(**arguments))
            fitting += [ref.name for ref in named]
        except (InvalidInputError, UnsupportedError) as error:
            unfit.append(f"{join_names(named)} ({error.code})")
    if unfit:
        remedy = f"Set `tables: {json.dumps(fitting)}` to erase in the tables that it fits. " if fitting else ""
        raise dg.Failure(
            f"the condition does not fit the table of {'; '.join(unfit)}, which is left as it was. {remedy}The "
            "messages are withheld, as they can show the condition: `erase_rows(..., dry_run=True)` in Python shows "
            "them"
        )
    return reports
