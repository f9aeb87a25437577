"""The `lance` command: look at Lance tables, and keep them small and fast.

    lance info TABLE          lance versions TABLE        lance show TABLE VERSION    lance diff TABLE A B
    lance fragments TABLE     lance files TABLE           lance schema TABLE          lance head TABLE
    lance tags TABLE          lance verify TABLE          lance restore TABLE VERSION
    lance branches TABLE [B]  lance promote TABLE BRANCH  lance discard TABLE BRANCH
    lance compact TABLE       lance materialize-deletions TABLE                       lance cleanup TABLE
    lance clones TABLE        lance erase TABLE

A TABLE is a path or a URI such as s3://bucket/table. Every command takes `--json`. Exit codes:

    0    done
    1    failed: the message says why
    2    the command line is invalid
    3    another writer committed first: run it again
    4    `verify` has found a problem, or `erase` has not proven that no row is left
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        # click and rich are an optional extra: say so instead of showing a traceback.
        from lance_core.cli.app import cli  # noqa: PLC0415 - click is an optional extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the lance command needs {error.name}: pip install 'lance-dagster[cli]'")
    cli()
