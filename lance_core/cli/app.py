"""The group of commands. One line adds one."""

from __future__ import annotations

from typing import Final

import click

from lance_core.cli import branching, look, upkeep

__all__ = ["COMMANDS", "cli"]

COMMANDS: Final[tuple[click.Command, ...]] = (
    look.info,
    look.versions,
    look.show,
    look.fragments,
    look.files,
    look.schema,
    look.head,
    look.diff,
    look.tags,
    branching.branches,
    branching.clones,
    branching.promote,
    branching.discard,
    upkeep.compact_command,
    upkeep.materialize_deletions,
    upkeep.cleanup,
    upkeep.verify,
    upkeep.restore,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lance-dagster", prog_name="lance")
def cli() -> None:
    """Look at Lance tables, and keep them small and fast."""


for _command in COMMANDS:
    cli.add_command(_command)
