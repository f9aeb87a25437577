"""Azure Blob Storage, at Azurite, and Google Cloud Storage, at fake-gcs-server."""

import contextlib
import errno
import functools
import http.server
import multiprocessing
import pickle
import re
import socket
import threading

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    StoreError,
    UnsupportedError,
)
from lance_core.store import conditions, open_store
from lance_core.store.cloud import CloudStore
from lance_core.store.resolve import open_object
from lance_core.testing import StoreConformance, race
from tests.azure_server import ACCOUNT, KEY
from tests.support.http_servers import serving


class S3ByObstore:
    """The S3 server, with the switch to obstore in the storage options, which pylance ignores."""

    def __init__(self, server):
        self.server, self.storage_options = server, {**server.storage_options, "s3_client": "obstore"}

    def new_place(self):
        return f"s3://{self.server.new_bucket()}"


@pytest.fixture(scope="session")
def s3_by_obstore(s3):
    """An S3 server that is reached by obstore."""
    return S3ByObstore(s3)


@pytest.fixture(params=["azure", "gcs", "s3_by_obstore"])
def cloud(request):
    """A server; `storage_options` are those of both libraries."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def root(cloud):
    return f"{cloud.new_place()}/deep/dataset"


class TestCloudStore(StoreConformance):
    @pytest.fixture
    def store(self, cloud, root):
        return open_store(root, cloud.storage_options)


def rows(*values):
    return pa.table({"n": pa.array(values, pa.int64())})


def test_a_table_is_shared_with_pylance(cloud, root):
    options = cloud.storage_options
    lance.write_dataset(rows(1), root, storage_options=options)
    lance_core.write_dataset(rows(2), root, mode="append", storage_options=options)
    lance.write_dataset(rows(3), root, mode="append", storage_options=options)
    ours = lance_core.dataset(root, storage_options=options)
    ours.delete("n = 1")
    ours.optimize.compact_files()
    theirs = lance.dataset(root, storage_options=options)
    assert theirs.version == lance_core.dataset(root, storage_options=options).version
    assert sorted(theirs.to_table()["n"].to_pylist()) == [2, 3]
    assert lance_core.dataset(root, storage_options=options).to_table() == theirs.to_table()


def test_the_spellings_of_a_place_are_one_table(azure):
    plain = f"{azure.new_place()}/t"
    container = plain.split("/")[2]
    hadoop = f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/t"
    lance_core.write_dataset(rows(1), plain, storage_options=azure.storage_options)
    lance_core.write_dataset(rows(2), hadoop, mode="append", storage_options=azure.storage_options)
    for library in (lance, lance_core):
        for uri in (plain, hadoop):
            assert library.dataset(uri, storage_options=azure.storage_options).count_rows() == 2


def test_of_writers_that_create_a_table_at_once_one_creates_it(cloud, root):
    def create(number):
        try:
            lance_core.write_dataset(rows(number), root, storage_options=cloud.storage_options)
        except LanceError:
            return None
        return number

    created = [number for number in race(8, create) if number is not None]
    assert len(created) == 1
    assert lance_core.dataset(root, storage_options=cloud.storage_options).to_table() == rows(*created)


def test_no_append_of_eight_writers_is_lost(cloud, root):
    options = cloud.storage_options
    lance_core.write_dataset(rows(), root, storage_options=options)

    def append(number):
        library = lance if number % 2 else lance_core
        for turn in range(3):
            library.write_dataset(rows(10 * number + turn), root, mode="append", storage_options=options)

    race(8, append)
    expected = sorted(10 * number + turn for number in range(8) for turn in range(3))
    for library in (lance, lance_core):
        assert sorted(library.dataset(root, storage_options=options).to_table()["n"].to_pylist()) == expected


def test_a_server_that_ignores_the_condition_is_rejected(cloud, root, monkeypatch):
    store = open_store(root, cloud.storage_options)
    monkeypatch.setattr(conditions, "_proven", set())
    monkeypatch.setattr(store, "_create", store.put)
    with pytest.raises(UnsupportedError, match="ignores the condition of a put"):
        store.prepare_commits()
    assert list(store.list("")) == []


def test_secrets_are_shown_nowhere(azure):
    root = f"{azure.new_place()}/t"
    store = open_store(root, azure.storage_options)
    wrong = open_store(root, {**azure.storage_options, "azure_storage_account_key": "aHVudGVyMg=="})
    assert KEY not in repr(store)
    with pytest.raises(StoreError, match=r"access is denied \(HTTP 403\)") as caught:
        wrong.get("k")
    assert "hunter2" not in str(caught.value)
    assert "aHVudGVyMg" not in str(caught.value)
    assert pickle.loads(pickle.dumps(store)).root == root


def test_a_missing_bucket_is_named(cloud):
    scheme = cloud.new_place().partition("://")[0]
    store = open_store(f"{scheme}://no-such-container/t", cloud.storage_options)
    for verb in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: store.put_if_absent("k", b"1")):
        with pytest.raises(StoreError, match="://no-such-container: there is no such bucket or container"):
            verb()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"azure_nonsense": "1"}, "'azure_nonsense' is not known"),
        ({"azure_client_max_retries": "many"}, "'azure_client_max_retries' is not a number"),
        ({"azure_timeout": "soon"}, "azure_timeout"),
        ({}, "no account is named; set azure_storage_account_name"),
        ({"azure_storage_account_key": "not base64!"}, "azure_storage_account_key is not base64"),
        ({"azure_storage_sas_key": "s3cr3t"}, "azure_storage_sas_key is not a SAS token"),
    ],
)
def test_wrong_options_are_named_before_a_request(options, message, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)
    account = {"azure_storage_account_name": "somebody"} if options else {}
    with pytest.raises(InvalidInputError, match=message) as raised:
        open_store("az://box/t", {**account, **options})
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"azure_storage_account_key": "czNjcjN0"},
        {"azure_storage_account_name": "somebody"},
        {"azure_storage_account_key": None, "azure_storage_sas_key": "sv=2021-08-06&sp=rl&sig=s3cr3t%3D"},
        {"azure_storage_account_key": None, "azure_storage_token": "s3cr3t"},
        {"azure_storage_account_key": None, "azure_client_id": "x", "azure_client_secret": "s3cr3t"},
    ],
)
def test_credentials_that_the_server_denies_are_named_without_their_values(azure, wrong):
    options = {**azure.storage_options, "client_max_retries": "0", **wrong}
    options = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(StoreError, match="access is denied") as raised:
        lance_core.write_dataset(rows(1), f"{azure.new_place()}/t", storage_options=options)
    option = next(name for name, value in reversed(wrong.items()) if value is not None)
    assert option in str(raised.value)
    assert not any(secret in str(raised.value) for secret in ("s3cr3t", "czNjcjN0", KEY))


def test_what_azure_denies_is_named_with_the_permission_that_lacks(azure):
    uri = f"{azure.new_place()}/t"
    lance_core.write_dataset(rows(1), uri, storage_options=azure.storage_options)

    def says(permissions, work):
        with pytest.raises(StoreError) as raised:
            work(azure.sas_options(permissions))
        return str(raised.value)

    def append(options):
        lance_core.write_dataset(rows(2), uri, mode="append", storage_options=options)

    def read(options):
        return lance_core.dataset(uri, storage_options=options)

    assert "to list, the credentials need the role Storage Blob Data Reader, or l in a SAS" in says("rw", append)
    for write in (append, lambda options: open_store(uri, options).put("k", b"1")):
        assert "to write, the credentials need the role Storage Blob Data Contributor, or w in a SAS" in says(
            "rl", write
        )
    assert "to read, the credentials need the role Storage Blob Data Reader, or r in a SAS" in says("l", read)
    assert read(azure.sas_options("rl")).count_rows() == 1
    append(azure.sas_options("rlw"))


def test_a_delete_that_azure_denies_is_named(azure):
    """As Azure answers a batch of deletes; Azurite takes no batches with a SAS."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            reason = "This request is not authorized to perform this operation using this permission."
            answer = f"Content-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 403 {reason}\r\n\r\n"
            body = f"--b\r\n{answer}\r\n--b--\r\n".encode()
            self.send_response_only(202)
            self.send_header("Content-Type", "multipart/mixed; boundary=b")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with serving(Handler) as port:
        options = azure.storage_options | {"azure_storage_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}"}
        with pytest.raises(
            StoreError, match=r"denied \(HTTP 403\): to delete, .* Data Contributor, or d in a SAS"
        ) as raised:
            open_store("az://box/t", options).delete("k")
        assert raised.value.errno == errno.EACCES


AZURE = "az://container/path or abfss://container@account.dfs.core.windows.net/path"


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("wasb://c@a.blob.core.windows.net/t", AZURE),
        ("WASBS://c@a.blob.core.windows.net/t", AZURE),
        ("wasbs:/c/t", AZURE),
        ("azure://c/t", AZURE),
        ("adls://c/t", AZURE),
        ("r2://b/t", "s3://bucket/path, with the storage option aws_endpoint"),
        ("onelake://w/t", "abfss://workspace@onelake.dfs.fabric.microsoft.com/path"),
        ("az:///t", AZURE),
        ("abfss:///t", AZURE),
        ("az://a.blob.core.windows.net/c/t", AZURE),
        ("abfss://a.dfs.core.windows.net/t", AZURE),
        ("abfss://@a.dfs.core.windows.net/t", AZURE),
        ("abfss://c@/t", AZURE),
        ("abfss://c@a/t", AZURE),
        ("gs:///t", "gs://bucket/path"),
        ("gcs:///t", "gs://bucket/path"),
        ("gs://a b/t", "gs://bucket/path"),
        ("s3a:///t", "s3://bucket/path"),
        ("s3+ddb:///t?ddbTableName=T", "s3://bucket/path"),
        ("https://a.blob.core.windows.net/c/t", AZURE),
        ("http://storage.googleapis.com/b/t", "gs://bucket/path"),
    ],
)
def test_names_that_no_place_has_say_how_it_is_written(uri, remedy):
    options = {"azure_storage_account_name": "a", "azure_storage_account_key": "aGk="}
    for verb in (lance_core.dataset, lambda *_, **more: lance_core.write_dataset(rows(1), uri, **more)):
        with pytest.raises(InvalidInputError, match="write .*" + re.escape(remedy)):
            verb(uri, storage_options=options)


def test_a_file_at_a_web_address_can_be_read(tmp_path):
    (tmp_path / "blob").write_bytes(b"bytes")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with serving(handler) as port:
        store, key = open_object(f"http://127.0.0.1:{port}/blob", "/t", {"base_path_schemes": "http"}, {})
        assert bytes(store.get(key)) == b"bytes"


def test_options_of_other_services_are_left_out(cloud, root):
    other = "google_service_account" if root.startswith("az") else "azure_storage_account_name"
    options = {**cloud.storage_options, "aws_region": "us-east-1", other: "/nowhere"}
    store = open_store(root, options)
    store.put("k", b"1")
    assert bytes(store.get("k")) == b"1"
    open_store("s3://bucket/t", options)


def test_a_lost_answer_leaves_the_outcome_open(azure):
    root = f"{azure.new_place()}/t"
    dead = {**azure.storage_options, "azure_storage_endpoint": "http://127.0.0.1:9/x", "client_max_retries": "0"}
    store = open_store(root, dead)
    conditions._proven.add(store._place_of_proof)
    with pytest.raises(OutcomeUnknownError, match="it may have taken effect"):
        store.put_if_absent("k", b"1")
    with pytest.raises(
        StoreError,
        match=r"cannot connect to http://127.0.0.1:9: check the network, and azure_\w+_name and azure_\w+_endpoint",
    ):
        store.get("k")
    plain = {key: value for key, value in azure.storage_options.items() if key != "azure_allow_http"}
    with pytest.raises(StoreError, match="azure_allow_http or google_allow_http allows it"):
        open_store(root, plain).put_if_absent("k", b"1")
    wrong = open_store(root, {**azure.storage_options, "azure_storage_account_key": "aHVudGVyMg=="})
    with pytest.raises(StoreError, match=r"access is denied \(HTTP 403\)"):
        list(wrong.list(""))


_ENDPOINTS = {"azure": "azure_storage_endpoint", "gcs": "google_base_url", "s3_by_obstore": "aws_endpoint"}


@pytest.mark.parametrize("accepts", [False, True])
@pytest.mark.parametrize("service", _ENDPOINTS)
def test_a_server_that_does_not_answer_is_named_without_secrets(request, service, accepts):
    """A port where nobody listens, and a server that closes each connection."""
    cloud = request.getfixturevalue(service)
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        if accepts:
            threading.Thread(target=close_connections, args=(server,), daemon=True).start()
        else:
            server.close()
        endpoint = {_ENDPOINTS[service]: f"http://who:s3cr3t@{at}" + "/a?sig=s3cr3t" * (service == "azure")}
        store = open_store(f"{cloud.new_place()}/t", {**cloud.storage_options, **endpoint, "client_max_retries": "0"})

        def upload():
            with store.open_writer("k") as file:
                file.write(b"x")

        for verb in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: list(store.list("")), upload):
            with pytest.raises(StoreError) as raised:
                verb()
            said = str(raised.value)
            assert f" http://{at}: check the network, and " in said
            assert "cannot connect to" in said
            assert _ENDPOINTS[service] in said
            assert not re.search("s3cr3t|OSError|GenericError", said)
        if accepts:
            server.shutdown(socket.SHUT_RDWR)


def close_connections(server):
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


@pytest.mark.parametrize("prefix", ["", "azure_"])
def test_requests_go_through_a_proxy(azure, prefix):
    """As an option of the service, the library would end in a panic."""
    options = {**azure.storage_options, "client_max_retries": "0"}
    proxied = {f"{prefix}proxy_url": "http://127.0.0.1:9", f"{prefix}user_agent": "x", f"{prefix}http1_only": "true"}
    with pytest.raises(StoreError, match="cannot connect to"):
        list(open_store(f"{azure.new_place()}/t", {**options, **proxied}).list(""))
    excluded = {**proxied, f"{prefix}proxy_excludes": "127.0.0.1"}
    assert list(open_store(f"{azure.new_place()}/t", {**options, **excluded}).list("")) == []


def test_plain_http_is_named_for_an_upload_too(azure):
    plain = {key: value for key, value in azure.storage_options.items() if key != "azure_allow_http"}
    with pytest.raises(StoreError, match="azure_allow_http or google_allow_http allows it"):  # noqa: SIM117
        with open_store(f"{azure.new_place()}/t", plain).open_writer("k") as file:
            file.write(b"x")


def test_a_listing_that_breaks_off_goes_on(cloud, root, monkeypatch):
    store = open_store(root, cloud.storage_options)
    keys = [f"k{number}" for number in range(7)]
    for key in keys:
        store.put(key, b"1")
    real, left, place = CloudStore._pages, [3], [2]

    def breaking(self, folder, after, limit):
        for number, item in enumerate(real(self, folder, after, limit)):
            if number == place[0] and left[0]:
                left[0] -= 1
                raise StoreError("the answer broke off")
            yield item

    monkeypatch.setattr(CloudStore, "_pages", breaking)
    assert [meta.key for meta in store.list("")] == keys
    left[0] = 1
    assert [meta.key for meta in store.list("k", start_after="k1", limit=4)] == keys[2:6]
    left[0], place[0] = 100, 0
    with pytest.raises(StoreError, match="broke off"):
        list(store.list(""))


def test_the_account_of_a_uri_counts(azure):
    container = azure.new_place().split("/")[2]
    uri = f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/t"
    options = {**azure.storage_options, "azure_storage_account_name": "another"}
    lance.write_dataset(rows(1), uri, storage_options=options)
    assert lance_core.dataset(uri, storage_options=options).to_table() == rows(1)


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_forked_process_gets_an_error_and_does_not_hang(cloud, root):
    store = open_store(root, cloud.storage_options)
    store.put("k", b"1")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def use():
        try:
            answers.put(bytes(store.get("k")))
        except UnsupportedError as error:
            answers.put(str(error))

    child = context.Process(target=use, daemon=True)
    child.start()
    try:
        assert "start processes by 'spawn'" in str(answers.get(timeout=100))
    finally:
        child.kill()
        child.join()


def test_a_key_that_exists_is_not_replaced(cloud, root):
    store = open_store(root, cloud.storage_options)
    tag = store.put_if_absent("k", b"1")
    assert tag == store.head("k").e_tag == next(store.list("")).e_tag
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("k", b"2")


def test_an_erasure_is_not_called_proven_where_remains_cannot_be_listed(cloud, root):
    dataset = lance_core.write_dataset(rows(1, 2), root, storage_options=cloud.storage_options)
    report = dataset.erase_rows("n = 2", delete_unverified=True)
    assert not report.proven
    assert {finding.kind for finding in report.remaining} == {"upload", "versioning"}
    assert lance_core.dataset(root, storage_options=cloud.storage_options).to_table() == rows(1)


@pytest.mark.parametrize("status", [500, 403, 404])
def test_a_listing_that_fails_is_repeated_as_often_as_other_requests(status):
    requests = []

    class Failing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with serving(Failing) as port:
        options = {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "azure_allow_http": "true",
            "client_max_retries": "1",
        }
        with pytest.raises(StoreError):
            list(open_store("az://box/t", options).list(""))
    assert len(requests) == (2 if status == 500 else 1)


def test_the_library_of_s3_is_one_of_two(s3):
    with pytest.raises(InvalidInputError, match="'s3_client' is one of s3fs, obstore, not 'boto'"):
        open_store("s3://b/t", {**s3.storage_options, "s3_client": "boto"})
