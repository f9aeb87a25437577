"""How long a cleanup of Spark's failed tasks waits for files that come late: in most tests, a quarter of the time.

Tests that are about such files have the fixture `late_files`, which puts a file at a place that all processes of a session
know: while it is there, they wait as long as they do for users.
"""

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

PLACE = "LANCE_TEST_LATE_FILES"
"""The environment variable of the place."""


def new_place() -> Path:
    """The place of the sessions that this process starts."""
    return Path(tempfile.gettempdir(), f"lance-late-files-{os.getpid()}")


def impatient(place: Path) -> SimpleNamespace:
    """What the module of the cleanup has as `time`."""
    return SimpleNamespace(sleep=lambda seconds: time.sleep(seconds if place.exists() else seconds / 4))
