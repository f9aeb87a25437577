"""The folder of the example: its tables, the unpacked source, and the records of Dagster.

    .demo/
      lake/nyc/flights.lance ...   the tables
      raw/flights.csv              unpacked once
      dagster/                     DAGSTER_HOME
      made-by-lance-example        marks these folders as the example's, which deletes them when it runs again

`LANCE_EXAMPLE_HOME` names another folder, which may have other contents as well.
"""

import os
import shutil
import signal
from pathlib import Path

__all__ = ["clear_example_home", "example_home", "notices_uri", "prepare_dagster_home"]

_OWN = ("lake", "raw", "dagster")
_MARK = "made-by-lance-example"

_DAGSTER_YAML = """\
telemetry: {enabled: false}
nux: {enabled: false}
"""


def example_home() -> Path:
    """The folder; it need not exist."""
    return Path(os.environ.get("LANCE_EXAMPLE_HOME", Path(__file__).parent.parent / ".demo"))


def notices_uri() -> str:
    """The URI of the table that others write."""
    return str(example_home() / "lake" / "office" / "notices.lance")


def clear_example_home() -> None:
    """Delete the folders that an earlier run of the example created, and nothing else.

    Raises:
        SystemExit: The folder has subfolders with the names of the example's that the example did not create.
    """
    home = example_home()
    found = [home / name for name in _OWN if (home / name).exists()]
    if found and "LANCE_EXAMPLE_HOME" in os.environ and not (home / _MARK).exists():
        raise SystemExit(
            f"LANCE_EXAMPLE_HOME={home} has {', '.join(path.name for path in found)}, which this example did not "
            "create and would delete; name another folder"
        )
    for path in found:
        shutil.rmtree(path)


def prepare_dagster_home() -> Path:
    """Create DAGSTER_HOME in the folder, and set the variable for this process and its children.

    If a shell's `&` or `nohup` made this process ignore SIGINT, its handler is restored: Dagster uses the handler of
    SIGINT for SIGTERM, and otherwise could not stop its child processes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = example_home() / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    (example_home() / _MARK).touch()
    (home / "dagster.yaml").write_text(_DAGSTER_YAML)
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    return home
