"""Starts Python processes that import only what this process would, and that end with it.

Without `-P` Python would look for modules in the working folder first: a `queue.py` of somebody else would run there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Final

from lance_core.errors import UnsupportedError

_BEGIN: Final = "import ctypes; ctypes.CDLL(None).prctl(1, 9); " if sys.platform == "linux" else ""
"""PR_SET_PDEATHSIG, SIGKILL: the system kills the process as its parent ends, even if it is stopped."""


def start_python(
    module: str,
    *,
    imports_from_working_folder: bool,
    variables: Mapping[str, str] | None = None,
    messages: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that runs `main` of a module, with pipes for its input and output.

    On Linux it is killed once the thread that calls this ends.

    Args:
        module: The module of this library.
        imports_from_working_folder: Whether the process imports modules from the working folder where this one does,
            as code of users may be there.
        variables: Further variables of its environment.
        messages: Gets what it writes to standard error; None for that of this process.

    Raises:
        UnsupportedError: The interpreter of this process is not known.
    """
    if not sys.executable:
        raise UnsupportedError(
            "no path of a Python interpreter is known here (sys.executable), as in a program that embeds Python: set "
            "sys.executable to one that has the same packages"
        )
    paths = [path for path in sys.path if path or imports_from_working_folder]
    # `-m` would warn that the package has imported the module already.
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-c", f"{_BEGIN}from {module} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=messages,
        env={**os.environ, **(variables or {}), "PYTHONPATH": os.pathsep.join(paths)},
    )
