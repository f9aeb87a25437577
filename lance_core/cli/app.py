"""The command `lance`: the group of all its commands. A new one is a line in `COMMANDS`."""

from __future__ import annotations

from typing import Final

import click

from lance_core.cli import erasure, inspect, maintain, maintenance, refs

COMMANDS: Final[tuple[click.Command, ...]] = (
    inspect.info,
    inspect.versions,
    inspect.show,
    inspect.fragments,
    inspect.files,
    inspect.schema,
    inspect.columns,
    inspect.head,
    inspect.indices,
    inspect.diff,
    inspect.tags,
    refs.branches,
    refs.clones,
    refs.promote,
    refs.discard,
    maintain.maintain_command,
    maintenance.compact_command,
    maintenance.materialize_deletions,
    maintenance.cleanup,
    erasure.erase,
    maintenance.verify,
    maintenance.migrate_row_ids,
    maintenance.restore,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lance-dagster", prog_name="lance")
def cli() -> None:
    """Look at Lance tables, and keep them small and fast."""


for _command in COMMANDS:
    cli.add_command(_command)
