"""Local Spark sessions, and their requirements: a Java runtime, and workers that run the Python of this process.

Workers of a local session run `python3` from the PATH unless the environment variable `PYSPARK_PYTHON` was set before
the session started; the settings `spark.pyspark.python` and `spark.pyspark.driver.python` do not change that. In a
virtual environment the workers then lack pyarrow. `ensure_python` sets the variable.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lance_core.errors import LanceError
from pyspark_lance.lazy import SparkSession
from pyspark_lance.releases import require_feature

__all__ = ["JavaMissingError", "ensure_java", "ensure_python", "local_session"]

_OLDEST_JAVA: Final = 17
_HOW_TO_INSTALL: Final = (
    "Install one:\n"
    "  Debian, Ubuntu:  apt-get install openjdk-17-jdk-headless\n"
    "  Fedora:          dnf install java-17-openjdk-headless\n"
    "  macOS:           brew install openjdk@17\n"
    "or set JAVA_HOME to the folder of an installed one."
)


class JavaMissingError(LanceError, RuntimeError):
    """No Java that Spark can run on was found."""

    code = "java-missing"


def ensure_java() -> Path:
    """Find the Java that Spark will run on: the one in JAVA_HOME, or the one on the PATH if JAVA_HOME is not set.

    Returns:
        Path of the program.

    Raises:
        JavaMissingError: No Java was found, or it is older than 17; the message says how to install one.

    Examples:
        >>> pyspark_lance.ensure_java().name
        'java'
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if program is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise JavaMissingError(f"Spark needs a Java {_OLDEST_JAVA} or newer; there is none {where}. {_HOW_TO_INSTALL}")
    report = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - the user's own Java
    match = re.search(r'version "(\d+)', report)
    if match is None or int(match.group(1)) < _OLDEST_JAVA:
        version = match.group(1) if match else "of an unknown version"
        raise JavaMissingError(f"Spark needs a Java {_OLDEST_JAVA} or newer; {program} is {version}. {_HOW_TO_INSTALL}")
    return Path(program)


def ensure_python() -> None:
    """Have workers of new sessions run this Python, unless PYSPARK_PYTHON is set.

    Examples:
        >>> pyspark_lance.ensure_python()
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


_LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}
"""A session on one machine accepts no connections from other machines."""

_FAST: Final = {"spark.python.unix.domain.socket.enabled": "true"} if hasattr(socket, "AF_UNIX") else {}
"""Rows pass between Spark and its Python workers a quarter faster through a socket file than through loopback."""

_SECRETS: Final = {
    "spark.redaction.regex": r"(?i)secret|password|token|credential|(access|account)[._]?key|connection[._]?string"
    r"|manifest_store|sas|^storage\."
}
"""Patterns of option names whose values Spark hides in its UI, its REST interface and its event log."""


def local_session(
    master: str = "local[*]", *, app_name: str = "lance", config: Mapping[str, str] | None = None, connect: bool = False
) -> SparkSession:
    """A Spark session on this machine, or the existing one.

    Args:
        master: `local[n]` for n threads, `local[*]` for one per core.
        app_name: Name that Spark's UI shows.
        config: Further settings of Spark.
        connect: Whether to start a Spark Connect server and be its client, instead of a classic session. A process
            can have sessions of one kind only.

    Raises:
        JavaMissingError: No Java that Spark can run on was found.
        ModuleNotFoundError: pyspark is not installed, or only its Connect client is.
        UnsupportedError: A Connect session is asked for, and this Spark is older than 4.0.

    Examples:
        >>> spark = pyspark_lance.local_session("local[1]")
        >>> spark.range(3).count()
        3
    """
    try:
        from pyspark.sql import SparkSession as Session
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ModuleNotFoundError(
            "a Spark session needs pyspark: pip install 'lance-dagster[spark]'", name=error.name
        ) from None

    if find_spec("py4j") is None:
        raise ModuleNotFoundError(
            "a Spark session on this machine needs all of pyspark, and only pyspark-client is installed: pip"
            " install 'lance-dagster[spark]', or connect to a server, SparkSession.builder.remote('sc://host:15002')",
            name="py4j",
        )
    ensure_java()
    ensure_python()
    builder = Session.builder.appName(app_name).config("spark.ui.showConsoleProgress", "false")
    for key, value in {**_LOOPBACK, **_FAST, **_SECRETS, **(config or {})}.items():
        builder = builder.config(key, value)
    if connect:
        require_feature("a session of Spark Connect")
    else:
        return builder.master(master).getOrCreate()
    with warnings.catch_warnings():
        # Spark passes each setting to the new server, and again to the session, which cannot change all of them.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        return builder.remote(master).getOrCreate()
