"""`make ui`: the Dagster UI for the example, with the runs of `make demo`."""

import os
import sys
from pathlib import Path

import pyspark_lance
from example_project.home import prepare_dagster_home
from lance_core.errors import LanceError

__all__ = ["main"]


def main() -> None:
    """Replace this process by `dagster dev`.

    Raises:
        SystemExit: No Java is installed; the message describes how to install it.
    """
    try:
        pyspark_lance.ensure_java()
    except LanceError as error:
        raise SystemExit(str(error)) from error
    prepare_dagster_home()
    workspace = Path(__file__).parent.parent / "workspace.yaml"
    os.chdir(workspace.parent)
    command = [sys.executable, "-m", "dagster", "dev", "--workspace", str(workspace), *sys.argv[1:]]
    os.execv(command[0], command)  # noqa: S606 - our own interpreter


if __name__ == "__main__":
    main()
