"""Where the example keeps things: tables, the unpacked source, and Dagster's own records.

    .demo/
      lake/nyc/flights.lance ...   the tables
      raw/flights.csv              unpacked once
      dagster/                     DAGSTER_HOME
      made-by-lance-example        says that these are the example's, to be deleted when it runs again

`LANCE_EXAMPLE_HOME` names another folder, in which other things may lie.
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
    """The table that somebody else writes."""
    return str(example_home() / "lake" / "office" / "notices.lance")


def clear_example_home() -> None:
    """Delete what an earlier run of the example made, and nothing else.

    Raises:
        SystemExit: The folder holds files under names of the example that the example did not create.
    """
    home = example_home()
    found = [home / name for name in _OWN if (home / name).exists()]
    if found and "LANCE_EXAMPLE_HOME" in os.environ and not (home / _MARK).exists():
        raise SystemExit(
            f"LANCE_EXAMPLE_HOME={home} holds {', '.join(path.name for path in found)}, which this example did not "
            "make and would delete; name another folder"
        )
    for path in found:
        shutil.rmtree(path)


def prepare_dagster_home() -> Path:
    """Create DAGSTER_HOME in the folder, and name it to this process and its children.

    Interrupts are taken again where a shell's `&` or `nohup` had them ignored: Dagster gives SIGTERM what SIGINT has,
    and could end none of its children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = example_home() / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    (example_home() / _MARK).touch()
    (home / "dagster.yaml").write_text(_DAGSTER_YAML)
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    return home
