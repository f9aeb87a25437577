"""Where the example keeps things: tables, the unpacked source, and Dagster's own records.

    .demo/
      lake/nyc/flights.lance ...   the tables
      raw/flights.csv              unpacked once
      dagster/                     DAGSTER_HOME

`LANCE_EXAMPLE_HOME` names another folder.
"""

import os
import signal
from pathlib import Path

__all__ = ["example_home", "prepare_dagster_home"]

_DAGSTER_YAML = """\
telemetry: {enabled: false}
nux: {enabled: false}
"""


def example_home() -> Path:
    """The folder; it need not exist."""
    return Path(os.environ.get("LANCE_EXAMPLE_HOME", Path(__file__).parent.parent / ".demo"))


def prepare_dagster_home() -> Path:
    """Create DAGSTER_HOME in the folder, and name it to this process and its children.

    Interrupts are taken again where a shell's `&` or `nohup` had them ignored: Dagster gives SIGTERM what SIGINT has,
    and could end none of its children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = example_home() / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(_DAGSTER_YAML)
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    return home
