"""`lance-dagster change-type`: changes the type of a column."""

from __future__ import annotations

from collections.abc import Mapping

import click

import lance_core
from lance_core.cli.output import CommandOutput
from lance_dagster.cli.app import _command
from lance_dagster.io_manager.column_types import change_column_type, parse_type


@_command("change-type", "TABLE")
@click.argument("column")
@click.argument("type_name", metavar="TYPE")
@click.option("--allow-loss", is_flag=True, help="Cast even if values change: fractions are truncated, for example.")
def change_type_command(
    uri: str, options: Mapping[str, str] | None, output: CommandOutput, column: str, type_name: str, allow_loss: bool
) -> None:
    """Change the type of COLUMN to TYPE.

    A type is one such as int64, float64, date32 or 'timestamp[us, tz=UTC]'.

    The column is rewritten in one commit; older versions keep the old type. If the cast would change a value, the
    command names the value and writes nothing, unless --allow-loss is given.
    """
    dataset = lance_core.dataset(uri, storage_options=None if options is None else dict(options))
    kind = parse_type(type_name)
    before = dataset.version
    change_column_type(dataset, column, kind, allow_loss=allow_loss)
    changed = dataset.version != before
    if output.as_json:
        output.record({"table": dataset.uri, "column": column, "type": str(kind), "version": dataset.version})
    elif changed:
        output.line(f"column {column!r} of {dataset.uri} is of type {kind} in version {dataset.version}")
    else:
        output.line(f"column {column!r} of {dataset.uri} is of type {kind} already; nothing was written")
