"""`lance-dagster`: the changes that Dagster's runs made to Lance tables, read from the tables alone.

lance-dagster lineage ROOT_OR_TABLE [--run ID | --version N | --asset KEY]
lance-dagster undo ROOT_OR_TABLE --run ID (--dry-run | --yes)
lance-dagster tables ROOT
lance-dagster change-type TABLE COLUMN TYPE [--allow-loss]
lance-dagster maintenance ROOT [--tables | --trends] [--include GLOB] [--exclude GLOB]
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without one of its packages, exit with a message that names the extra to install."""
    try:
        import lance_dagster.cli.change_type  # noqa: PLC0415 - adds a command
        import lance_dagster.cli.maintenance  # noqa: F401, PLC0415 - adds a command
        from lance_dagster.cli.app import run  # noqa: PLC0415 - click and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the command lance-dagster needs the package {error.name}: pip install 'lance-dagster[cli]'")
    run()
