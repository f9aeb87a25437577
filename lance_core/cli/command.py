"""The parts that commands share: the table, storage options, output and exit codes.

The exit codes: 1 failed, 3 can be repeated, 4 problems found.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from lance_core.cli.output import CommandOutput
from lance_core.dataset.lance_dataset import dataset
from lance_core.errors import LanceError
from lance_core.printing import printable
from lance_core.store import Namespace

FAILED: Final = 1
TRY_AGAIN: Final = 3
FOUND_PROBLEMS: Final = 4

_COMMANDS: Final = {
    "versions() lists those that do": "`lance versions TABLE` lists those that do",
    "tags.list() lists those that do": "`lance tags TABLE` lists those that do",
    "branches.list() lists those that do": "`lance branches TABLE` lists those that do",
}
"""Remedies in error messages that name a call in Python, and the commands that do the same."""

F = TypeVar("F", bound=Callable[..., Any])


def command(
    name: str,
    *,
    versioned: bool = True,
    argument: str | None = None,
    program: str = "lance",
    lists: bool = False,
    whole: bool = False,
) -> Callable[[F], click.Command]:
    """Make a function a command on a table, or on a root of tables.

    The function is called with the opened dataset and the output, then with its own arguments. With an `argument` it is
    called with a URI, the storage options, which are None if there are none, and the output.

    Args:
        name: Name of the command.
        versioned: Whether it looks at one version, which can be chosen.
        argument: The name of a URI that the function opens itself; None for a table.
        program: Name of the program, which stands in front of error messages.
        lists: Whether the function gets the properties of the namespace, whose tables it lists; otherwise a namespace
            gives the URI and the storage options of the table.
        whole: Whether the URI can be left out beside a namespace, for all its tables; it is then empty.
    """
    opens, versioned = argument is None, versioned and argument is None

    def decorate(function: F) -> click.Command:
        @functools.wraps(function)
        def wrapped(
            table: str, storage_option: tuple[str, ...], as_json: bool, namespace: str | None, **arguments: Any
        ) -> None:
            if not table and namespace is None:
                raise click.UsageError(f"{argument or 'TABLE'} is missing")
            output = CommandOutput(as_json)
            chosen = arguments.pop("at_version", None)
            options = dict(_key_value(item) for item in storage_option)
            try:
                properties = None if namespace is None else _read_namespace(namespace)
                if lists:
                    arguments["namespace"] = properties
                elif properties is not None:
                    table, vended = Namespace(properties).describe(Namespace.parse_id(table))
                    options |= vended
                if opens:
                    opened = dataset(table, None if chosen is None else parse_version(chosen), storage_options=options)
                    function(opened, output, **arguments)
                else:
                    function(table, options or None, output, **arguments)
            except (LanceError, OSError) as error:
                exit_with_error(error, output, program)

        final: Any = wrapped
        if versioned:
            final = click.option("--version", "at_version", help="Version number or tag; the latest by default.")(final)
        final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(final)
        final = click.option(
            "-o",
            "--storage-option",
            multiple=True,
            metavar="KEY=VALUE",
            help="Option of the storage; can be repeated. KEY=@FILE reads the value from a file, so that no list of "
            "processes shows it; KEY=@@... is for a value that begins with @.",
        )(final)
        final = click.option(
            "--namespace",
            metavar="FILE_OR_JSON",
            help='Properties of a namespace, as JSON: {"impl": "rest", "uri": ...}. A table is then named by its id, '
            "such as shop/orders.",
        )(final)
        final = click.argument("table", metavar=argument, required=not whole, default="" if whole else None)(final)
        return click.command(name)(final)

    return decorate


def _read_namespace(file_or_json: str) -> dict[str, Any]:
    """The properties of a namespace.

    Raises:
        BadParameter: The properties cannot be read; the message does not repeat them, as they may be secret.
    """
    try:
        is_json = file_or_json.lstrip().startswith("{")
        properties = json.loads(file_or_json if is_json else Path(file_or_json).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"cannot be read as JSON: {type(error).__name__}", param_hint="--namespace") from None
    if not isinstance(properties, dict):
        raise click.BadParameter('must be an object such as {"impl": "rest", "uri": ...}', param_hint="--namespace")
    return properties


def parse_version(version: str) -> int | str:
    """A version number, or else a tag."""
    return int(version) if version.isdecimal() else version


def _key_value(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key:
        # The value may be a secret: it is not repeated.
        raise click.BadParameter("must be KEY=VALUE", param_hint="--storage-option")
    if value.startswith("@@"):
        return key, value[1:]
    if not value.startswith("@"):
        return key, value
    try:
        return key, Path(value[1:]).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise click.BadParameter(printable(f"{key}: {value[1:]}: {reason}"), param_hint="--storage-option") from None


def exit_with_error(error: Exception, output: CommandOutput, program: str) -> NoReturn:
    """Print an error and end the process: with status 3 if the command can be repeated, else with status 1.

    Args:
        error: The error.
        output: Prints it as JSON, if that is asked for.
        program: Name of the program, which stands in front of the message.
    """
    message = str(error)
    for call, command_line in _COMMANDS.items():
        message = message.replace(call, command_line)
    if output.as_json:
        output.record({"error": {"code": getattr(error, "code", "os"), "message": message}})
    else:
        click.echo(printable(f"{program}: {message}"), err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(printable(note), err=True)
    sys.exit(TRY_AGAIN if getattr(error, "retryable", False) else FAILED)
