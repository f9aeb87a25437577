"""Azure's Blob Storage on a loopback port, for tests: Azurite, with its conditional puts made atomic.

Azurite looks whether a blob exists and then stores it, without a lock in between: two racing writers can both win. Requests
pass a proxy that holds one lock around conditional puts. `make azurite` installs the server from npm.
"""

import base64
import contextlib
import datetime as dt
import email.utils
import hashlib
import hmac
import http.client
import http.server
import re
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tests import processes
from tests.support.http_servers import serving

PROGRAM = processes.ROOT / ".venv" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"
# Azurite's own account, which is public.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class AzureEndpoint:
    """A running server."""

    port: int

    @property
    def storage_options(self) -> dict[str, str]:
        """Options that lance_core and pylance both take."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "azure_allow_http": "true",
        }

    def sas_options(self, permissions: str) -> dict[str, str]:
        """Options with a shared access signature of the account, such as for "rl", in place of its key."""
        end = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"sp": permissions, "ss": "b", "srt": "sco", "se": end, "sv": "2021-08-06"}
        signed = "\n".join([ACCOUNT, permissions, "b", "sco", "", end, "", "", fields["sv"], "", ""])
        fields["sig"] = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        others = {name: value for name, value in self.storage_options.items() if value != KEY}
        return {**others, "azure_storage_sas_key": urllib.parse.urlencode(fields), "client_max_retries": "0"}

    def new_place(self) -> str:
        """The URI of a new container."""
        name = f"container-{uuid.uuid4().hex[:12]}"
        path, now = f"/{ACCOUNT}/{name}", email.utils.formatdate(usegmt=True)
        signed = f"PUT{chr(10) * 12}x-ms-date:{now}\nx-ms-version:2021-08-06\n/{ACCOUNT}{path}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        headers = {
            "x-ms-date": now,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "Content-Length": "0",
        }
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("PUT", f"{path}?restype=container", headers=headers)
            assert connection.getresponse().status == 201
        return f"az://{name}"


@contextlib.contextmanager
def azure_server() -> Iterator[AzureEndpoint]:
    """Start a server and its proxy, and stop them afterwards."""
    options = ["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    with processes.running([PROGRAM, *options], talks=True) as process:
        said = ""
        for line in process.stdout:
            said += line
            ready = re.search(r"successfully listens on http://127\.0\.0\.1:(\d+)", line)
            if ready:
                break
        else:
            raise RuntimeError(f"Azurite did not start: {said}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        with _proxy(int(ready[1])) as port:
            yield AzureEndpoint(port)


@contextlib.contextmanager
def _proxy(target: int) -> Iterator[int]:
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_conditional = self.command == "PUT" and "If-None-Match" in self.headers
            with lock if is_conditional else contextlib.nullcontext():
                connection = http.client.HTTPConnection("127.0.0.1", target)
                with contextlib.closing(connection):
                    connection.request(self.command, self.path, body, dict(self.headers))
                    response = connection.getresponse()
                    data, headers = response.read(), response.getheaders()
            self.send_response_only(response.status, response.reason)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "keep-alive", "content-length"):
                    self.send_header(name, value)
            length = response.getheader("Content-Length") if self.command == "HEAD" else len(data)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(data)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *_):
            pass

    with serving(Handler) as bridge_port:
        yield bridge_port
