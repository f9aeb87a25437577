"""A temporary folder for each child process, removed with it: pylance's own stay behind in a process that is killed.

Its parent holds a lock on the folder, which the system releases when the parent ends, however it does. A folder without
a lock belongs to nobody, and the next process that is started on the host removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

_PREFIX: Final = "lance-index-"
_STARTING_S: Final = 60.0
"""The age of a folder from which it counts as abandoned: a new one is locked right after it was made."""


class TemporaryFolder:
    """Makes a folder in that of temporary files, and removes abandoned ones there.

    Raises:
        OSError: There is no folder of temporary files, or nothing can be written there.
    """

    def __init__(self) -> None:
        # Python would take another folder where that of TMPDIR does not exist.
        parent = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = _lock(self.path)

    def remove(self) -> None:
        """Remove the folder; what cannot be removed now is abandoned."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        lock = _lock(path)
        if lock is not None:
            status = os.fstat(lock)
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _STARTING_S:
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A lock on a folder; None if somebody else has it, or where there are no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
