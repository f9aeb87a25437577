"""S3 in this process: moto behind rules that deny actions, throttle, and lose or delay answers.

A role is an access key: `full`, or `no-` and the actions that it lacks, such as `no-DeleteObject`.
"""

import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_REGION = "us-east-1"
_KEY = re.compile(r"Credential=([^/]+)/")


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        """Print nothing."""


@dataclass
class Rule:
    """What happens to some requests.

    Attributes:
        kind: `throttle`, `lose` (the answer), `late` (the request is executed after the step), or `meanwhile`.
        at: The number of the first request that it concerns, counted from 0.
        times: How many requests it concerns.
        work: For `meanwhile`: what another process does before the request.
    """

    kind: str
    at: int
    times: int = 1
    work: Callable[[], None] | None = None
    fired: int = 0
    worked: threading.Event = field(default_factory=threading.Event)


@dataclass
class Server:
    """The running server."""

    port: int = 0
    rule: Rule | None = None
    number: int = 0
    denied: set[str] = field(default_factory=set)
    late: list[Callable[[], None]] = field(default_factory=list)

    def options(self, role: str = "full") -> dict[str, str]:
        """Storage options of a role, for both libraries."""
        return {
            "aws_endpoint": f"http://127.0.0.1:{self.port}",
            "allow_http": "true",
            "aws_access_key_id": role,
            "aws_secret_access_key": "secret",
            "aws_region": _REGION,
        }

    def client(self) -> Any:
        """A client past the rules, for the machine itself."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name=_REGION,
            aws_access_key_id="machine",
            aws_secret_access_key="secret",
        )

    def begin(self, rule: Rule | None) -> None:
        """Begin a step."""
        self.rule, self.number = rule, 0
        self.denied.clear()

    def end(self) -> None:
        """End a step: another writer has come to its end, and requests whose execution was late are executed now."""
        if self.rule is not None and self.rule.kind == "meanwhile" and self.rule.fired:
            self.rule.worked.wait()  # its client may not have waited for the answer
        self.rule = None
        late, self.late = self.late, []
        for request in late:
            request()


def _action(environ: dict[str, Any]) -> str:
    """The action of a request, as policies name it."""
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    names = {part.partition("=")[0] for part in query.split("&") if part}
    is_bucket = environ["PATH_INFO"].strip("/").count("/") == 0
    if is_bucket:
        bucket_actions = {"uploads": "ListBucketMultipartUploads", "versions": "ListBucketVersions"}
        if method == "POST" and "delete" in names:
            return "DeleteObject"
        if "versioning" in names:
            return "GetBucketVersioning"
        return next((action for name, action in bucket_actions.items() if name in names), "ListBucket")
    if method in ("GET", "HEAD"):
        return "GetObject"
    if method == "DELETE":
        return "AbortMultipartUpload" if "uploadId" in names else "DeleteObject"
    return "PutObject"


def _error(start: Callable[..., Any], status: str, code: str, method: str) -> list[bytes]:
    body = b"" if method == "HEAD" else f"<Error><Code>{code}</Code><Message>by the machine</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


_PROBE = "/.conditional-put-"
"""In the keys by which a writer finds out whether the server knows conditional puts."""


class _Gate:
    """The application in front of moto."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.lock = threading.RLock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        matched = _KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        role = matched[1] if matched else "full"
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        if environ.get("HTTP_TRANSFER_ENCODING") == "chunked":
            body = environ["wsgi.input"].read()
        action, method = _action(environ), environ["REQUEST_METHOD"]
        lacking = set(role.removeprefix("no-").split("-")) if role.startswith("no-") else set()
        if action in lacking:
            self.server.denied.add(f"s3:{action}")
            return _error(start, "403 Forbidden", "AccessDenied", method)
        kind = None if role == "machine" else self._kind(environ["PATH_INFO"])
        if kind == "throttle":
            return _error(start, "503 Slow Down", "SlowDown", method)
        if kind == "late":
            self.server.late.append(lambda: self._execute(environ, body))
            return self._broken(environ, start)
        status, headers, data = self._execute(environ, body)
        if status.startswith("404") and action == "GetObject" and "ListBucket" in lacking:
            self.server.denied.add("s3:ListBucket")
            return _error(start, "403 Forbidden", "AccessDenied", method)
        if kind == "lose":
            return self._broken(environ, start)
        start(status, headers)
        return data

    def _kind(self, path: str) -> str | None:
        """What happens to this request."""
        with self.lock:
            number, rule = self.server.number, self.server.rule
            if rule is not None and rule.kind == "meanwhile" and _PROBE in path:
                return None  # one writer probes at a time: another one waits for it
            self.server.number += 1
            if rule is None or not rule.at <= number < rule.at + rule.times:
                return None
            rule.fired += 1
            first = rule.fired == 1
        if rule.kind == "meanwhile" and first and rule.work is not None:
            try:
                rule.work()
            finally:
                rule.worked.set()
        return rule.kind

    def _execute(self, environ: dict[str, Any], body: bytes) -> tuple[str, list[tuple[str, str]], list[bytes]]:
        import io

        answer: dict[str, Any] = {}

        def remember(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            answer.update(status=status, headers=headers)

        again = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        again.pop("HTTP_TRANSFER_ENCODING", None)
        with self.lock:
            data = list(self.moto(again, remember))
        return answer["status"], answer["headers"], data

    def _broken(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        """Close the connection without an answer."""
        connection = environ.get("werkzeug.socket")
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            return _error(start, "500 Internal Server Error", "InternalError", environ["REQUEST_METHOD"])
        return _error(start, "500 Internal Server Error", "InternalError", environ["REQUEST_METHOD"])


@contextmanager
def running() -> Iterator[Server]:
    """Serve on a free port of this process."""
    server = Server()
    served = make_server("127.0.0.1", 0, _Gate(server), threaded=True, request_handler=_Quiet)
    server.port = served.server_port
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def new_bucket(server: Server) -> str:
    """Make a bucket."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    client = server.client()
    client.create_bucket(Bucket=name)
    client.close()
    return name
