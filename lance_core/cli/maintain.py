"""`lance maintain`: all that is due for a table, or for all tables below a root, by a policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from lance_core.cli.command import FAILED, command
from lance_core.cli.output import CommandOutput
from lance_core.dataset.lance_dataset import dataset
from lance_core.errors import DatasetNotFoundError, InvalidInputError, MaintenanceFailedError
from lance_core.maintenance import MaintenanceBudget, MaintenancePolicy, MaintenanceReport, maintain, maintain_lake
from lance_core.maintenance.routine.policy import change_policy
from lance_core.printing import printable
from lance_core.store import Namespace, split_uri

_COLUMNS: Final = (
    "table", "outcome", "fragments", "fragments_after", "versions", "versions_after", "bytes_read", "bytes_written",
    "bytes_removed", "seconds", "reason",
)  # fmt: skip
_TYPES: Final[Mapping[str, Any]] = {"int": int, "float": float, "str": str}

F = TypeVar("F", bound=Callable[..., Any])


def _field_options(record: type) -> Callable[[F], F]:
    """One option for each field of a policy or budget."""

    def option(field: Field[Any]) -> Callable[[F], F]:
        name, kind = field.name.replace("_", "-"), str(field.type).partition(" ")[0]
        declaration = f"--{name}" if kind != "bool" or field.default is False else f"--{name}/--no-{name}"
        is_flag = kind == "bool" or None
        return click.option(
            declaration, default=None, is_flag=is_flag, type=_TYPES.get(kind), help=field.metadata["description"]
        )

    def decorate(function: F) -> F:
        for each in reversed(fields(record)):
            if each.name != "indices":  # a mapping, which a file has
                function = option(each)(function)
        return function

    return decorate


@command("maintain", argument="URI_OR_ROOT", lists=True)
@click.option("--policy", "file", type=click.Path(dir_okay=False), help="JSON or YAML: fields, `policies` by folder.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only tables such as 'nyc/*'; can be repeated.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Tables to leave out; can be repeated.")
@_field_options(MaintenanceBudget)
@_field_options(MaintenancePolicy)
def maintain_command(
    uri: str,
    storage_options: Mapping[str, str] | None,
    output: CommandOutput,
    file: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    dry_run: bool | None,
    namespace: Mapping[str, str] | None,
    **arguments: Any,
) -> None:
    """Compact, index and clean tables by a policy.

    It does all that is due for a table, or for those below a root. The exit code is 1 if one failed; the rest goes
    on. Runs on a root append their results to the table _maintenance/log.lance below it. With --namespace, the argument
    is the id of a table, such as shop/orders; or an absolute root, which has that log, for all tables of the namespace.
    """
    options = {name: value for name, value in arguments.items() if value is not None}
    budget = MaintenanceBudget(**{name: options.pop(name) for name in MaintenanceBudget.__slots__ if name in options})
    if file and options:
        raise click.UsageError(f"--policy has all fields: write {', '.join(options)} into the file")
    policies, changes = ({}, options) if file is None else _read_policy(Path(file))
    policy = change_policy(MaintenancePolicy(), changes, where=file or "options") or MaintenancePolicy()
    limits: dict[str, Any] = {"budget": budget, "dry_run": bool(dry_run)}
    lake: dict[str, Any] = {"include": include, "exclude": exclude, "policies": policies}
    failure = None
    try:
        if namespace is not None:
            reports = _maintain_namespace(uri, storage_options, namespace, policy, limits, lake)
        else:
            reports = _maintain(uri, storage_options, policy, limits, lake)
    except MaintenanceFailedError as error:
        reports, failure = list(error.reports), error
    output.rows([_describe(report) for report in reports], _COLUMNS)
    if failure is not None:
        click.echo(printable(f"lance: {failure}"), err=True)
        sys.exit(FAILED)


def _maintain(
    uri: str,
    storage_options: Mapping[str, str] | None,
    policy: MaintenancePolicy,
    limits: Mapping[str, Any],
    lake: Mapping[str, Any],
) -> list[MaintenanceReport]:
    """The reports of the table at a URI, or of the tables below it.

    Raises:
        DatasetNotFoundError: There is neither a table at the URI, nor one below it that is chosen.
        InvalidInputError: There is a table, and arguments choose among tables below a root.
    """
    try:
        table = dataset(uri, storage_options=storage_options)
    except DatasetNotFoundError:
        reports = maintain_lake(uri, policy, storage_options=storage_options, **limits, **lake)
        if not reports:
            raise DatasetNotFoundError(
                f"{uri} is no table, and no table is chosen below it: give a table or a root"
            ) from None
        return reports
    choices = [name for name, value in lake.items() if value]
    if choices:
        raise InvalidInputError(f"{', '.join(choices)} choose among the tables below a root, and {uri} is a table")
    return [maintain(table, policy, **limits)]


def _maintain_namespace(
    name_or_root: str,
    storage_options: Mapping[str, str] | None,
    namespace: Mapping[str, str],
    policy: MaintenancePolicy,
    limits: Mapping[str, Any],
    lake: Mapping[str, Any],
) -> list[MaintenanceReport]:
    """The reports of one table of a namespace, or of all of them with a root that has the log.

    Raises:
        DatasetNotFoundError: There is no such table, and the argument is no absolute root.
        InvalidInputError: Arguments choose among the tables, and one is named.
    """
    if split_uri(name_or_root)[0] or Path(name_or_root).is_absolute():
        lake = {**lake, "namespace": namespace}
        return maintain_lake(name_or_root, policy, storage_options=storage_options, **limits, **lake)
    location, vended = Namespace(namespace).describe(Namespace.parse_id(name_or_root))
    if choices := [name for name, value in lake.items() if value]:
        raise InvalidInputError(
            f"{', '.join(choices)} choose among the tables of a root, and {name_or_root} is a table"
        )
    table = dataset(location, storage_options={**(storage_options or {}), **vended} or None)
    return [maintain(table, policy, **limits)]


def _read_policy(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `policies` by folder, and the fields of the policy, of a file.

    Raises:
        InvalidInputError: The file is neither JSON nor YAML with a mapping of fields, or YAML cannot be read here.
    """
    reader: Callable[[str], Any] = json.loads
    problems: tuple[type[Exception], ...] = (ValueError,)
    if file.suffix in (".yaml", ".yml"):
        try:
            import yaml  # noqa: PLC0415 - optional
        except ImportError as error:
            raise InvalidInputError(f"{file}: YAML needs PyYAML: pip install pyyaml, or write JSON") from error
        reader, problems = yaml.safe_load, (ValueError, yaml.YAMLError)
    try:
        values = reader(file.read_text(encoding="utf-8"))
    except problems as error:
        raise InvalidInputError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("policies", {}), dict):
        raise InvalidInputError(f"{file} must be a mapping of the fields of a policy, with a mapping `policies`")
    return {str(name): changes for name, changes in values.pop("policies", {}).items()}, values


def _describe(report: MaintenanceReport) -> dict[str, Any]:
    """The row of a table."""
    before, after = report.plan.health, report.after or report.plan.health
    return {
        "table": report.plan.table,
        "uri": report.plan.uri,
        "outcome": "dry run" if report.plan.policy.dry_run and report.error is None else report.outcome,
        **({} if before is None else before.numbers()),
        **({} if after is None else {f"{name}_after": number for name, number in after.numbers().items()}),
        **report.done,
        **({} if report.expired_rows_in is None else {"expired_rows_in": report.expired_rows_in}),
        **({"indices": list(report.indices)} if report.indices else {}),
        "seconds": report.seconds,
        "reason": report.reason,
    }
