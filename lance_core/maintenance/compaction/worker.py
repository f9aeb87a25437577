"""The program of a worker process of a compaction.

A message on standard input or output is a u64 LE length and that many bytes of pickle:

    in     first the dataset, then one task after the other; the end of the input ends the worker
    out    for each task its RewriteResult, or the exception that it raised

The process is not forked, so that it inherits no lock or connection of the parent. It does not run the parent's script
again, as `multiprocessing` would.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import IO, Any, Final

_LENGTH: Final = struct.Struct("<Q")


def send(stream: IO[bytes], message: object) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message.

    Raises:
        EOFError: The other side has closed its end.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other process has ended")
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError("the other process has ended within a message")
    return pickle.loads(data)  # noqa: S301 - the other side is our own parent or child


def main() -> None:
    """Serve one parent."""
    source = sys.stdin.buffer
    # Output of `print` must not mix with the messages.
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    dataset = receive(source)
    while True:
        try:
            task = receive(source)
        except EOFError:
            return
        try:
            result = task.execute(dataset)
        except Exception as error:  # noqa: BLE001 - the parent raises it, and the process can run other tasks
            result = _make_portable(error)
        send(sink, result)


def _make_portable(error: Exception) -> Exception:
    """An error that the parent can read: the same one, or its type and message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own error
    except Exception:  # noqa: BLE001 - classes of other libraries raise errors of any type
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
