"""An S3 (and DynamoDB) server on a loopback port, for tests: moto, with its conditional puts made atomic.

moto looks whether a key or row exists and then stores it, without a lock in between: two racing writers can both win.
The server process started here holds one lock around the operations that write.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator

from tests import processes
from tests.s3_endpoint import S3Endpoint

_S3_WRITES = ("put_object", "copy_object", "delete_object")
_DYNAMODB_WRITES = ("put_item", "delete_item")


@contextlib.contextmanager
def s3_server() -> Iterator[S3Endpoint]:
    """Start a server in a process of its own, and stop it afterwards."""
    with processes.running([sys.executable, "-m", "tests.s3_server"], talks=True) as process:
        port = process.stdout.readline()
        if not port:
            raise RuntimeError("the S3 server did not start")
        yield S3Endpoint(int(port))


def _serve() -> None:
    """Serve on a free port, print it, and end with the standard input."""
    from moto.dynamodb.responses import DynamoHandler
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

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
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve()
