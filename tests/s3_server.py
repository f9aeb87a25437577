"""An S3 (and DynamoDB) server on a loopback port, for tests: moto, with its conditional puts made atomic.

moto looks whether a key or row exists and then stores it, without a lock in between: two racing writers can both win.
The server process started here holds one lock around the operations that write.
"""

import contextlib
import functools
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.s3_endpoint import S3Endpoint

ROOT = Path(__file__).parents[1]

_S3_WRITES = ("put_object", "copy_object", "delete_object")
_DYNAMODB_WRITES = ("put_item", "delete_item")


@contextlib.contextmanager
def s3_server() -> Iterator[S3Endpoint]:
    """Start a server in a process of its own, and stop it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.s3_server", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = S3Endpoint(port)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{server.endpoint}/moto-api/", timeout=5).close()
                break
            if process.poll() is not None:
                raise RuntimeError("the S3 server did not start")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(10)


def _serve(port: str) -> None:
    from moto.dynamodb.responses import DynamoHandler
    from moto.s3.responses import S3Response
    from moto.server import main

    lock = threading.RLock()

    def locked(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            with lock:
                return function(*args, **kwargs)

        return run

    for handler, names in ((S3Response, _S3_WRITES), (DynamoHandler, _DYNAMODB_WRITES)):
        for name in names:
            setattr(handler, name, locked(getattr(handler, name)))
    main(["-H", "127.0.0.1", "-p", port])


if __name__ == "__main__":
    _serve(sys.argv[1])
