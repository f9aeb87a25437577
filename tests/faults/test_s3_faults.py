"""Faults of the network between us and S3, and secrets that must not show in their wake."""

import functools
import io
import json
import logging
import pickle
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import botocore.exceptions
import pytest

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import load_latest
from lance_core.errors import AlreadyExistsError, ObjectNotFoundError, OutcomeUnknownError, StoreError
from lance_core.store import open_store
from lance_core.store import s3 as s3_module
from lance_core.store import s3_client as client_module
from lance_core.store.options import StorageOptions
from lance_core.store.s3_client import S3Client
from lance_core.table.fragment import DataFile, Fragment
from tests.lance_core.commit.tables import appending, creation
from tests.s3_endpoint import S3Endpoint

FILE = DataFile(path="x.lance", fields=(0,), column_indices=(0,), file_major_version=2, file_minor_version=2)
FRAGMENT = Fragment(files=(FILE,), physical_rows=3)


@pytest.fixture
def store(s3, monkeypatch):
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.001)
    result = open_store(f"s3://{s3.new_bucket()}/t", s3.storage_options)
    commit(result, creation(FRAGMENT))
    return result


def http_error(status, code):
    response = {"Error": {"Code": code, "Message": "injected"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(response, "PutObject")


@pytest.fixture
def inject(monkeypatch):
    """Let the next `times` conditional puts fail, before or after they took effect."""
    real = S3Client._once
    plan = []

    async def request_once(self, method, parameters):
        if plan and "IfNoneMatch" in parameters:
            error, effect = plan.pop(0)
            if effect:
                await real(self, method, parameters)
            raise error
        return await real(self, method, parameters)

    monkeypatch.setattr(S3Client, "_once", request_once)

    def add(error, *, times=1, effect=False):
        plan.extend([(error, effect)] * times)

    return add


@pytest.mark.parametrize(
    ("error", "effect", "times"),
    [
        (http_error(503, "SlowDown"), False, 2),
        (http_error(409, "ConditionalRequestConflict"), False, 3),
        (http_error(500, "InternalError"), False, 2),
        (http_error(500, "InternalError"), True, 1),
        (aiohttp.ServerDisconnectedError(), True, 1),
        (aiohttp.ServerDisconnectedError(), False, 2),
        (TimeoutError(), True, 1),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"), True, 1),
    ],
)
def test_a_commit_is_committed_once(store, inject, error, effect, times):
    inject(error, effect=effect, times=times)
    done = commit(store, appending(1, FRAGMENT))
    assert done.manifest.version == 2
    latest = load_latest(store)
    assert (latest.version, len(latest.fragments)) == (2, 2)


def test_a_lost_answer_shows_as_exists(store, inject):
    inject(aiohttp.ServerDisconnectedError(), effect=True)
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("k", b"mine")
    assert bytes(store.get("k")) == b"mine"


def test_no_answer_at_all_is_unknown(store, inject):
    inject(aiohttp.ServerDisconnectedError(), times=100)
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("k", b"mine")
    with pytest.raises(OutcomeUnknownError):
        commit(store, appending(1, FRAGMENT))


def test_a_rejection_is_final(store, inject):
    inject(http_error(403, "AccessDenied"))
    with pytest.raises(StoreError, match="HTTP 403 AccessDenied") as caught:
        commit(store, appending(1, FRAGMENT))
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert load_latest(store).version == 1
    assert not list(store.list("_transactions/"))


def test_throttling_for_ever_ends(store, inject):
    inject(http_error(503, "SlowDown"), times=100)
    with pytest.raises(StoreError, match="HTTP 503") as caught:
        store.put_if_absent("k", b"x")
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_the_secret_shows_nowhere(s3, store, inject, caplog):
    canary = "canary"
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        done = commit(store, appending(1, FRAGMENT, run="1"), options=Commit(idempotency_key=("run", "1")))
        texts = []
        for error in (http_error(403, "AccessDenied"), aiohttp.ServerDisconnectedError(), ValueError("odd")):
            inject(error, times=20)
            try:
                commit(store, appending(2, FRAGMENT))
            except StoreError as caught:
                texts.append("".join(traceback.format_exception(caught)))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert len(texts) == 3
    texts += [
        stream.getvalue(),
        caplog.text,
        repr(store),
        repr(store.options),
        repr(done),
        json.dumps(sorted(store.options)),
    ]
    texts += [str(pickle.dumps(part)) for part in (done.manifest, done.transaction, done)]
    texts += [str(bytes(store.get(found.key))) for found in store.list("")]
    assert not [text for text in texts if canary in text]


class TestUploadsInParts:
    @pytest.fixture
    def calls(self, monkeypatch):
        """The names of the requests that are made; those in `failing` are answered by its error, after their effect."""
        real, made, failing = S3Client._once, [], {}

        async def request_once(self, method, parameters):
            made.append(method)
            answer = await real(self, method, parameters)
            if method in failing:
                raise failing.pop(method)
            return answer

        monkeypatch.setattr(S3Client, "_once", request_once)
        monkeypatch.setattr(s3_module, "PART_BYTES", 5 << 20)
        return made, failing

    def test_a_writer_that_fails_drops_its_parts(self, store, calls):
        made, _ = calls

        def fail():
            with store.open_writer("data/x") as writer:
                writer.write(bytes(6 << 20))
                raise ValueError("no more")

        with pytest.raises(ValueError, match="no more"):
            fail()
        assert made[-1] == "abort_multipart_upload"
        assert not [found for found in store.list("data/") if found.key == "data/x"]

    def test_an_upload_that_was_aborted_is_over(self, store, calls):
        made, _ = calls
        writer = store.open_writer("data/x")
        writer.write(bytes(6 << 20))
        writer.abort()
        assert made[-1] == "abort_multipart_upload"
        writer.abort()
        with pytest.raises(StoreError, match="closed"):
            writer.write(b"x")
        with pytest.raises(StoreError, match="closed"):
            writer.close()
        assert made.count("abort_multipart_upload") == 1
        assert made[-1] == "abort_multipart_upload"

    def test_a_lost_answer_of_the_end_is_resolved_by_the_object(self, store, calls):
        made, failing = calls
        failing["complete_multipart_upload"] = http_error(500, "InternalError")
        with store.open_writer("data/x") as writer:
            writer.write(bytes(6 << 20))
        assert made.count("complete_multipart_upload") == 2
        assert store.head("data/x").size == 6 << 20

    def test_an_object_of_another_size_is_not_ours(self, store, calls, monkeypatch):
        _, failing = calls
        failing["complete_multipart_upload"] = http_error(404, "NoSuchUpload")
        store.put("data/x", b"somebody else's")
        writer = store.open_writer("data/x")
        writer.write(bytes(6 << 20))
        monkeypatch.setattr(writer, "_size", 5)
        with pytest.raises(ObjectNotFoundError):
            writer.close()
        writer.abort()


def test_a_put_whose_connection_breaks_is_not_repeated_unseen():
    """The answer to its repetition says nothing about the first one, which may have taken effect."""
    answers = [(404, b""), None, (403, b"<Error><Code>AccessDenied</Code></Error>")]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            prepared = answers.pop(0)
            if prepared is None:
                self.close_connection = True
                return
            self.send_response(prepared[0])
            self.send_header("Content-Length", str(len(prepared[1])))
            self.end_headers()
            self.wfile.write(prepared[1])

        do_PUT = do_HEAD = answer  # noqa: N815 - the names of the library

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = S3Client(StorageOptions(S3Endpoint(server.server_port).storage_options))
        try:
            with pytest.raises(ObjectNotFoundError):
                client.run(functools.partial(client.request, "head_object", Bucket="b", Key="k"))
            put = functools.partial(client.request, "put_object", writes=True, Bucket="b", Key="k", Body=b"rows")
            with pytest.raises(OutcomeUnknownError, match=r"403.*it may have taken effect"):
                client.run(put)
        finally:
            server.shutdown()
    assert not answers
