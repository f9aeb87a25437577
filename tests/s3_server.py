"""An S3 (and DynamoDB) server on a loopback port, for tests: moto, with its conditional puts made atomic.

moto looks whether a key exists and then stores it, without a lock in between: two racing writers can both win. The
server process started here holds one lock around the operations that write.
"""

import contextlib
import functools
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

_WRITES = ("put_object", "copy_object", "delete_object")


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, str]:
        """Options that lance_core and pylance both take."""
        return {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": "test-key-id",
            "aws_secret_access_key": "test-secret-canary",
            "aws_region": "us-east-1",
        }

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        return name


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server in a process of its own, and stop it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, __file__, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    server = S3Server(port)
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
    import moto.s3.responses
    from moto.server import main

    lock = threading.RLock()

    def locked(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            with lock:
                return function(*args, **kwargs)

        return run

    for name in _WRITES:
        setattr(moto.s3.responses.S3Response, name, locked(getattr(moto.s3.responses.S3Response, name)))
    main(["-H", "127.0.0.1", "-p", port])


if __name__ == "__main__":
    _serve(sys.argv[1])
