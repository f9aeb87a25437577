"""`build_erasure_job`: erase rows from all versions and files of tables, and report the proof to Dagster.

    rows       `where` in the configuration: the name of a file or of an environment variable that holds the condition,
               or the condition itself (`plain`), which Dagster then keeps in the configuration of the run
    tables     all tables of the job, or those that the configuration names; a table that assets share is processed once
    dry run    `dry_run` in the configuration, or the run tag `lance/dry_run`: only the report

All tables are surveyed before the first one is changed: an obstacle in one of them stops the run. No event, log or
commit holds the condition, or a string of it, except where the name of an asset, a partition's key or `request` is that
string. The run fails if rows may be left.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster._context.jobs import job_of_one_op
from lance_dagster.properties import ASSET_KEY, ERASURE, JOB_NAME, ROOT_RUN_ID, RUN_ID
from lance_dagster.tables.branch_policy import BRANCH_TAG, MAIN, NO_RETRIES, branch_source
from lance_dagster.tables.names import checked_job_name
from lance_dagster.tables.refs import (
    ChosenTables,
    TableLike,
    TableRef,
    TableRoot,
    chosen_refs,
    is_tagged,
    table_refs,
    table_root,
)

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import ErasureReport
    from lance_dagster.events.reporting import PartitionRows

__all__ = ["Condition", "ErasureConfig", "build_erasure_job"]

_DRY_RUN_TAG: Final = "lance/dry_run"
_STRINGS: Final = re.compile(r"'((?:[^']|'')*)'")


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
        sources = {"where.file": self.file, "where.env": self.env, "where.plain": self.plain}
        given_sources = [(source, value) for source, value in sources.items() if value]
        if len(given_sources) != 1:
            raise dg.Failure(
                f"the condition needs one source, not {len(given_sources)}: "
                "give `where.file`, `where.env` or `where.plain`"
            )
        source, condition = given_sources[0]
        try:
            if self.file:
                condition = Path(self.file).read_text(encoding="utf-8")
            elif self.env:
                condition = os.environ.get(self.env, "")
        except (OSError, ValueError) as error:
            raise dg.Failure(
                f"where.file: {self.file} cannot be read ({type(error).__name__}); mount it where the run executes, "
                "as UTF-8"
            ) from None
        if not condition.strip():
            raise dg.Failure(f"{source}{'' if self.plain else f': {given_sources[0][1]}'} holds no condition")
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
    release_branches: bool = Field(
        default=False, description="Whether to remove versions from which branches were forked."
    )
    drop_indices: bool = Field(
        default=False, description="Whether to drop indices that hold such rows and cannot be built here."
    )
    delete_unverified: bool = Field(
        default=False,
        description="Whether to remove unreferenced files of any age; nobody else may write meanwhile.",
    )

    def allowed(self) -> dict[str, Any]:
        """The arguments of `erase_rows` that allow further changes."""
        names = ("retag", "release_branches", "drop_indices", "delete_unverified")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErasedTable:
    """A table, with the assets of the job that share it."""

    dataset: "lance_core.LanceDataset"
    refs: Sequence[TableRef]

    @property
    def names(self) -> str:
        """The names of the assets, for messages."""
        return ", ".join(ref.name for ref in self.refs)


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
    checked_job_name(name, "build_erasure_job: name")
    refs = table_refs(assets)

    def run(context: dg.OpExecutionContext, config: ErasureConfig) -> None:
        _erase(context, refs, getattr(context.resources, io_manager_key), config)

    return job_of_one_op(
        run,
        name=name,
        description="Erases rows from all versions and files of these tables, with a proof.",
        resource_key=io_manager_key,
        tags=NO_RETRIES,
        metadata={"lance/tables": [ref.name for ref in refs]},
    )


def _erase(context: dg.OpExecutionContext, refs: Sequence[TableRef], resource: object, config: ErasureConfig) -> None:
    from lance_dagster.erasure.events import erasure_events, rows_before  # noqa: PLC0415 - heavy imports
    from lance_dagster.loading.assets_of_table import assets_of_table  # noqa: PLC0415 - heavy imports

    root, is_dry = table_root(resource), config.dry_run or is_tagged(context, _DRY_RUN_TAG)
    _reject_branch(root, context, is_dry=is_dry)
    where = config.where.read()
    tables: dict[str, _ErasedTable] = {}
    for ref in chosen_refs(context, refs, config.tables):
        dataset = root.open_or_none(ref)
        if dataset is None:
            context.log.info("%s: there is no table", ref.name)
            continue
        earlier = tables.get(dataset.root_uri)
        both = [*(earlier.refs if earlier else ()), ref]
        tables[dataset.root_uri] = _ErasedTable(dataset=dataset, refs=both)
    planned = _plan(tables, where, config)
    stopped = [uri for uri, report in planned.items() if report.obstacles]
    only_planned = bool(stopped) or is_dry
    left = []
    for uri, table in tables.items():
        report = planned[uri]
        sharing = assets_of_table(context, root, table.dataset, table.refs)
        before: dict[str, dict[str, PartitionRows]] = {}
        if not only_planned:
            before = rows_before(context.instance, table.dataset, sharing) if report.rows_deleted else {}
            report = _erased(table, where, config, _properties(context, table))
            left += [] if report.proven else [table.names]
        shown = _shown(report, where)
        context.log.info("%s: %s", table.names, json.dumps(shown))
        erasure_events(context, root, sharing, report, shown, config.request, before)
    if stopped:
        names = "; ".join(
            f"{tables[uri].names}: {', '.join(f'{place.kind} {place.path}' for place in planned[uri].obstacles)}"
            for uri in stopped
        )
        raise dg.Failure(
            f"nothing was erased, because of obstacles: {_without_strings(names, where)}. The entry lance/erasure of "
            "the events describes them"
        )
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


def _properties(context: dg.OpExecutionContext, table: _ErasedTable) -> dict[str, str]:
    """The properties of the commits: the run, and the assets that wrote the rows, whose own commits are removed."""
    from lance_dagster.lineage.history import row_owners  # noqa: PLC0415 - code locations load without lance_core

    owners = row_owners(table.dataset) or [table.refs[0].name]
    return {
        RUN_ID: context.run.run_id,
        ROOT_RUN_ID: context.run.root_run_id or context.run.run_id,
        JOB_NAME: context.run.job_name,
        ASSET_KEY: owners[0] if len(owners) == 1 else json.dumps(owners),
        ERASURE: "true",
    }


def _plan(tables: "Mapping[str, _ErasedTable]", where: str, config: ErasureConfig) -> "dict[str, ErasureReport]":
    """Report what the erasure would do to each table.

    Raises:
        Failure: The condition does not fit a table, such as for an unknown column.
    """
    from lance_core.errors import InvalidInputError, UnsupportedError  # noqa: PLC0415 - heavy imports

    planned, unfit = {}, []
    for uri, table in tables.items():
        try:
            planned[uri] = table.dataset.erase_rows(where, dry_run=True, **config.allowed())
        except (InvalidInputError, UnsupportedError) as error:
            unfit.append(f"{table.names} ({error.code})")
    if unfit:
        raise _unfit(unfit, [ref.name for uri in planned for ref in tables[uri].refs])
    return planned


def _erased(table: _ErasedTable, where: str, config: ErasureConfig, properties: dict[str, str]) -> "ErasureReport":
    """Erase rows of a table.

    Raises:
        Failure: The condition does not fit the table, whose columns may have changed since the plan.
    """
    from lance_core.errors import InvalidInputError, UnsupportedError  # noqa: PLC0415 - heavy imports

    try:
        return table.dataset.erase_rows(where, transaction_properties=properties, **config.allowed())
    except (InvalidInputError, UnsupportedError) as error:
        raise _unfit([f"{table.names} ({error.code})"], []) from None


def _unfit(names: Sequence[str], fitting: Sequence[str]) -> dg.Failure:
    """The failure for tables that a condition does not fit, without the reason, which can show personal data.

    Args:
        names: The tables that the condition does not fit, with the codes of the errors.
        fitting: The assets whose tables the condition fits.
    """
    chosen = f"Set `tables: {json.dumps(fitting)}` to erase in the tables that it fits. " if fitting else ""
    return dg.Failure(
        f"the condition does not fit the table of {'; '.join(names)}, which is left as it was. {chosen}The messages "
        "are withheld, as they can show the condition: `erase_rows(..., dry_run=True)` in Python shows them"
    )


def _shown(value: Any, where: str) -> Any:
    """A report, or a part of it, for JSON, without strings of the condition; the names of the fields are kept."""
    if isinstance(value, str):
        return _without_strings(value, where)
    if is_dataclass(value):
        return {field.name: _shown(getattr(value, field.name), where) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_shown(key, where): _shown(part, where) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_shown(part, where) for part in value]
    return value


def _without_strings(shown: str, where: str) -> str:
    """A string without the string literals of the condition, which can occur in it, such as in the name of a tag."""
    strings: list[Any] = [string.replace("''", "'") for string in _STRINGS.findall(where) if string]
    for string in sorted(strings, key=len, reverse=True):
        shown = shown.replace(string, "…")
    return shown
