"""Namespaces of others: tables are opened, written and listed by ids that pylance's REST adapter and clients know."""

import datetime as dt
import http.server
import json
import pickle
import shutil
import sys
import threading
import time
from contextlib import contextmanager

import lance
import lance_namespace
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core import maintenance
from lance_core.cli.app import cli
from lance_core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    StoreError,
    UnsupportedError,
)
from lance_core.store import namespace as vending
from lance_core.store.s3_client import S3Client
from tests.interop.namespaces import Namespace, rest_service

ROWS = pa.table({"a": [1]})


@pytest.fixture
def spaces(tmp_path):
    made = Namespace(str(tmp_path / "lake"))
    for name in ("shop", "shop.eu"):
        made.call("create_namespace", name)
    made.create("shop.orders", 7)
    return made


@pytest.fixture
def service(spaces):
    """The properties of a REST namespace on loopback, in front of the directory namespace."""
    with rest_service(spaces.root) as properties:
        yield properties


def connect(properties):
    return lance_namespace.connect(properties["impl"], {"uri": properties["uri"]})


@pytest.mark.parametrize("client", [dict, connect], ids=["our client", "pylance's client"])
def test_tables_are_opened_and_written_by_their_ids(service, spaces, client):
    named = {"namespace_client": client(service), "table_id": ["shop", "orders"]}
    assert lance_core.dataset(**named).to_table()["a"].to_pylist() == [7]
    lance_core.write_dataset(ROWS, mode="append", **named)
    assert spaces.rows(lance, "shop.orders") == [7, 1]
    with pytest.raises(DatasetExistsError):
        lance_core.write_dataset(ROWS, **named)
    new = {**named, "table_id": ["shop", "us", "new"]}
    lance_core.write_dataset(ROWS, **new)
    assert spaces.rows(lance, "shop.us.new") == [1]
    theirs = lance.dataset(namespace_client=connect(service), table_id=["shop", "us", "new"])
    assert theirs.to_table() == lance_core.dataset(**new).to_table()


def test_a_directory_namespace_is_a_client_as_well(spaces):
    named = {"namespace_client": spaces.inner, "table_id": ["shop", "eu", "new"]}
    lance_core.write_dataset(ROWS, mode="overwrite", **named)
    assert lance_core.dataset(**named, version=1).count_rows() == 1
    impl = {"impl": "dir", "root": spaces.root}
    assert lance_core.dataset(namespace_client=impl, table_id=["shop", "eu", "new"]).count_rows() == 1


def test_a_directory_that_was_removed_and_made_again_is_read(spaces):
    """In one process; a client of pylance keeps what it read of the old one."""
    place = {"namespace_client": {"impl": "dir", "root": spaces.root}, "table_id": ["shop", "orders"]}
    assert lance_core.dataset(**place).count_rows() == 1
    shutil.rmtree(spaces.root)
    again = Namespace(spaces.root)
    again.call("create_namespace", "shop")
    again.create("shop.orders", 7)
    assert lance_core.dataset(**place).to_table()["a"].to_pylist() == [7]
    assert len(maintenance.find_tables(namespace=place["namespace_client"])) == 1


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_write_says_that_its_new_table_was_dropped_meanwhile(service, spaces, is_declared):
    def batches():
        yield pa.record_batch({"a": [5]})
        spaces.call("drop_table", "shop.late")
        yield pa.record_batch({"a": [6]})

    if is_declared:
        spaces.call("declare_table", "shop.late")
    rows = pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int64()}), batches())
    with pytest.raises(DatasetNotFoundError, match="the dataset was dropped after it was opened"):
        lance_core.write_dataset(rows, namespace_client=service, table_id=["shop", "late"])


def test_all_ids_are_listed_page_by_page(service, spaces, monkeypatch):
    for number in range(5):
        spaces.create(f"shop.eu.t{number}", number)
    expected = [tuple(name.split(".")) for name in spaces.walk()]
    source = vending.Namespace(service)
    client = source._client
    arguments = type(client)._arguments
    monkeypatch.setattr(type(client), "_arguments", lambda self, request: arguments(self, request) | _limit(request))
    assert sorted(source.list_ids()) == sorted(expected)


def _limit(request):
    return {"limit": 2} if hasattr(request, "page_token") else {}


def test_a_lake_is_listed_and_maintained_by_the_ids_of_a_service(service, spaces, tmp_path):
    spaces.call("declare_table", "shop.later")
    spaces.create("shop.eu.orders", 0)
    for number in range(6):
        spaces.append(lance, "shop.eu.orders", number)
    found = maintenance.find_tables(namespace=service)
    assert [table.path for table in found] == ["shop/eu/orders", "shop/orders"]
    assert lance_core.dataset(found[1].uri, storage_options=found[1].storage_options).count_rows() == 1
    ops = str(tmp_path / "ops")
    reports = maintenance.maintain_lake(ops, policies={"shop/orders": False}, namespace=service)
    assert [(report.plan.table, report.done["fragments_removed"]) for report in reports] == [("shop/eu/orders", 7)]
    assert lance_core.list_tables(ops) == ["_maintenance/log.lance"]
    with pytest.raises(InvalidInputError, match="root_uri of a folder, or the properties of a namespace"):
        maintenance.find_tables()


def test_tables_are_maintained_with_the_options_that_the_service_vends(s3, tmp_path):
    """The caller has none: those of the storage come with each location."""
    root = f"s3://{s3.new_bucket()}/lake"
    options = {f"storage.{name}": value for name, value in s3.storage_options.items()}
    spaces = Namespace(root, **options)
    for number in range(6):
        spaces.append(lance, "t", number) if number else spaces.create("t", number)
    vends = {"vend_input_storage_options": "true", "vend_input_storage_options_refresh_interval_millis": "3600000"}
    with rest_service(root, **options, **vends) as service:
        (report,) = maintenance.maintain_lake(tmp_path, namespace=service)
        assert report.done["fragments_removed"] == 6
        assert s3.storage_options["aws_secret_access_key"] not in repr(maintenance.find_tables(namespace=service))
        table = lance_core.dataset(namespace_client=service, table_id=["t"])
        assert table.count_rows() == 6


def test_the_commands_take_a_namespace(service, spaces, tmp_path):
    file = tmp_path / "namespace.json"
    file.write_text(json.dumps(service))

    def run(*arguments):
        result = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
        return result.exit_code, json.loads(result.output) if result.output.startswith(("[", "{")) else result.output

    for source in (str(file), json.dumps(service)):
        code, info = run("info", "shop/orders", "--namespace", source)
        assert (code, info["rows"]) == (0, 1)
    code, rows = run("maintain", str(tmp_path / "ops"), "--namespace", str(file), "--include", "shop/*")
    assert (code, [row["table"] for row in rows]) == (0, ["shop/orders"])
    for command in ("info", "maintain"):
        code, answer = run(command, "shop/none", "--namespace", str(file))
        assert (code, answer["error"]["code"]) == (1, "dataset-not-found")
    for wrong in ("{", "[1]", str(tmp_path / "none.json")):
        code, answer = run("info", "shop/orders", "--namespace", wrong)
        assert code == 2
        assert "--namespace" in answer


def test_one_table_of_a_namespace_is_maintained_alone(service, spaces, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ledger", "books"):
        rows = {"id": range(10), "day": [dt.date(2020, 1, 1)] * 10}
        lance_core.write_dataset(rows, namespace_client=service, table_id=["shop", name])
    expiry = ["--expire-rows-older-than", "400d", "--expire-by", "day"]
    result = CliRunner().invoke(cli, ["maintain", "shop/ledger", "--namespace", json.dumps(service), "--json", *expiry])
    assert [row["outcome"] for row in json.loads(result.output)] == ["done"]
    counts = {
        table.path: lance_core.dataset(table.uri).count_rows() for table in maintenance.find_tables(namespace=service)
    }
    assert (counts["shop/ledger"], counts["shop/books"]) == (0, 10)
    assert list(tmp_path.glob("shop*")) == []


def test_namespaces_and_tables_are_created_at_once(service, spaces):
    """A service answers that another client changes the same namespace: it is asked again."""
    barrier, errors = threading.Barrier(3), []

    def write(number, table_id):
        barrier.wait()
        try:
            lance_core.write_dataset({"v": [number]}, namespace_client=service, table_id=table_id, mode="append")
        except lance_core.errors.LanceError as error:
            errors.append(error)

    for turn in range(3):
        ids = [["new", f"t{turn}"]] * 3 if turn else [["new", name] for name in "abc"]
        threads = [threading.Thread(target=write, args=pair) for pair in enumerate(ids)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    rows = lance_core.dataset(namespace_client=service, table_id=["new", "t1"]).to_table()["v"].to_pylist()
    assert sorted(rows) == [0, 1, 2]


def test_an_unknown_implementation_is_named():
    with pytest.raises(InvalidInputError, match="there is no namespace of impl 'glue' here: dir, rest are"):
        maintenance.find_tables(namespace={"impl": "glue"})


def test_what_is_wrong_is_named_before_anything_is_written(service, spaces):
    before = spaces.listed()
    named = {"namespace_client": service, "table_id": ["shop", "none"]}
    with pytest.raises(DatasetNotFoundError, match=r"namespace rest has no shop\.none"):
        lance_core.dataset(**named)
    for wrong in ({"uri": "t.lance", **named}, {"table_id": ["a"]}, {"namespace_client": service}, {}):
        with pytest.raises(InvalidInputError, match="by its uri alone, or by namespace_client and table_id"):
            lance_core.dataset(**wrong)
    for properties, match in [
        ({"uri": service["uri"]}, "impl is missing"),
        ({"impl": "rest"}, "uri is missing"),
        ({**service, "headr": "x"}, "'headr' is no property of impl rest"),
        ({"impl": "no.such.Thing", "key": "s3cr3t"}, "no.such.Thing cannot be opened"),
    ]:
        with pytest.raises(InvalidInputError, match=match) as raised:
            lance_core.write_dataset(ROWS, namespace_client=properties, table_id=["a"])
        assert "s3cr3t" not in str(raised.value)
    with pytest.raises(StoreError, match=r"did not answer describe_table of a: .*check that the service runs"):
        lance_core.write_dataset(ROWS, namespace_client={"impl": "rest", "uri": "http://127.0.0.1:1"}, table_id=["a"])
    assert spaces.listed() == before


NEEDS_NO_PLACE = {
    "a wrong type": {"data_obj": 5},
    "values that Arrow cannot convert": {"data_obj": {"a": [1, "x"]}},
    "an unknown format": {"data_obj": ROWS, "data_storage_version": "9.9"},
    "files without rows": {"data_obj": ROWS, "max_rows_per_file": -1},
    "a lock that is none": {"data_obj": ROWS, "commit_lock": 5},
    "unknown bases": {"data_obj": ROWS, "target_bases": ["none"]},
    "another schema": {"data_obj": {"a": ["x"]}, "schema": pa.schema({"a": pa.int64()})},
    "batches of another type": {"data_obj": [pa.table({"a": ["x"]})], "schema": pa.schema({"a": pa.int64()})},
    "batches without a column": {"data_obj": iter([ROWS]), "schema": pa.schema({"b": pa.int64()})},
}


@pytest.mark.parametrize("wrong", NEEDS_NO_PLACE.values(), ids=NEEDS_NO_PLACE)
def test_a_table_is_not_declared_for_rows_that_cannot_be_written(service, spaces, wrong):
    before = spaces.listed()
    with pytest.raises(InvalidInputError):
        lance_core.write_dataset(**wrong, namespace_client=service, table_id=["shop", "wrong"])
    assert spaces.listed() == before


def test_batches_of_a_stream_are_all_written_to_a_table_that_is_declared(service, spaces):
    batches = (pa.table({"a": [number]}) for number in range(3))
    named = {"namespace_client": service, "table_id": ["shop", "stream"]}
    lance_core.write_dataset(batches, schema=ROWS.schema, **named)
    assert spaces.rows(lance, "shop.stream") == [0, 1, 2]
    lance_core.write_dataset(iter(()), schema=ROWS.schema, **{**named, "table_id": ["empty"]})
    assert spaces.rows(lance, "empty") == []


@pytest.mark.parametrize("location", ["../up/x", "relative/x", "  ", ""])
def test_a_location_that_is_relative_to_nothing_is_rejected(tmp_path, monkeypatch, location):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    vendor = Vendor(location, None)
    with pytest.raises(StoreError, match="gives no usable location of t, but"):
        lance_core.write_dataset(ROWS, namespace_client=vendor, table_id=["t"])
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize("mode", ["create", "overwrite", "append"])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_write_names_its_rows_where_the_id_was_removed_meanwhile(service, spaces, mode, renamed):
    def batches():
        yield ROWS
        location = spaces.listed()["shop$lost"]
        spaces.call("deregister_table", "shop.lost")
        if renamed:
            spaces.call("register_table", "shop.other", location=location)
            spaces.create("shop.lost", 5)
        yield ROWS

    named = {"namespace_client": service, "table_id": ["shop", "lost"]}
    spaces.call("declare_table", "shop.lost")
    with pytest.raises(
        DatasetNotFoundError, match=r"committed to .*lost, but the table shop\.lost was dropped or renamed"
    ):
        lance_core.write_dataset(batches(), schema=ROWS.schema, mode=mode, **named)


def test_a_written_table_is_returned_where_the_namespace_fails_after_it(tmp_path, caplog):
    vendor = Vendor(str(tmp_path / "t"), None)

    def batches():
        yield ROWS
        vendor.broken = True

    assert lance_core.write_dataset(batches(), schema=ROWS.schema, namespace_client=vendor, table_id=["t"]).version == 1
    assert "is still the table t is not checked: " in caplog.text


def test_the_id_of_a_namespace_is_no_table(service, spaces):
    before = spaces.listed()
    with pytest.raises(DatasetExistsError, match=r"has shop, but not as a table: .* choose another id"):
        lance_core.write_dataset(ROWS, namespace_client=service, table_id=["shop"], mode="overwrite")
    assert spaces.listed() == before


@contextmanager
def answering(body, status=200, content="application/json", earlier=()):
    """The properties of a service that gives one answer to each request, after earlier ones: pairs of body and status."""
    answers = list(earlier)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.answer(*(answers.pop(0) if answers else (body, status)))

        def answer(self, body, status):
            self.send_response(status)
            self.send_header("content-type", content)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST  # noqa: N815 - a name of the library

        def log_message(self, *_arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield {"impl": "rest", "uri": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (("{}",), r"list_tables of its root: .*the answer is none of the specification"),
        (('{"detail": "key is stale"}', 403), r"403 Forbidden \(key is stale\)"),
        (('{"error": "no", "detail": "key is stale", "code": "x"}', 403), r"403 Forbidden \(no: key is stale\)"),
        (("boom", 500, "text/plain"), r"500 Internal Server Error \(boom\)"),
        (("<html>login</html>", 403, "text/html"), r"403 Forbidden; check"),
        (("<html>login</html>", 200, "text/html"), r"check that the service runs"),
        (
            ('{"tables": [], "namespaces": [], "page_token": "same"}',),
            r"same page_token again to list_tables of its root",
        ),
        (('{"tables": [], "namespaces": ["t"]}',), r"more than 32 levels of namespaces: t\.t\."),
    ],
)
def test_what_a_service_answers_is_in_the_error(answer, match):
    with answering(*answer) as service, pytest.raises(StoreError, match=match) as raised:
        maintenance.find_tables(namespace=service)
    assert "\n" not in str(raised.value)
    assert "login" not in str(raised.value)


def test_a_list_that_breaks_off_is_no_list():
    invalid = json.dumps({"error": "the token is stale", "code": 13, "type": "InvalidInput"})
    earlier = [('{"tables": ["a"], "page_token": "2"}', 200), (invalid, 400)]
    with answering('{"namespaces": []}', earlier=earlier) as service, pytest.raises(InvalidInputError, match="stale"):
        maintenance.find_tables(namespace=service)


def test_an_end_of_options_that_is_no_number_is_named(tmp_path):
    body = json.dumps({"location": str(tmp_path / "t"), "storage_options": {"expires_at_millis": "abc"}})
    with answering(body) as service, pytest.raises(StoreError, match=r"expires_at_millis .* must be integers"):
        lance_core.write_dataset(ROWS, namespace_client=service, table_id=["t"])


def test_versions_that_a_namespace_manages_are_rejected(tmp_path):
    spaces = Namespace(str(tmp_path / "lake"), table_version_tracking_enabled="true")
    spaces.create("t", 1)
    with pytest.raises(UnsupportedError, match="keeps the versions of t itself"):
        lance_core.dataset(namespace_client=spaces.inner, table_id=["t"])


def test_a_package_of_implementations_is_looked_for_by_their_names(spaces, tmp_path, monkeypatch):
    """It registers them where it is imported; its errors have no codes, and its lists have levels of their own."""
    package = tmp_path / "packages" / "lance_namespace_impls.py"
    package.parent.mkdir()
    package.write_text(
        "import lance_namespace\n"
        "lance_namespace.register_namespace_impl('glue', 'tests.interop.namespaces.CodelessNamespace')\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(lance_namespace, "_REGISTERED_IMPLS", {})
    glue = {"impl": "glue", "root": spaces.root}
    for mode in ("create", "append"):
        lance_core.write_dataset(ROWS, namespace_client=glue, table_id=["shop", "new"], mode=mode)
    assert spaces.rows(lance, "shop.new") == [1, 1]
    assert [table.path for table in maintenance.find_tables(namespace=glue)] == ["shop/new", "shop/orders"]
    with pytest.raises(DatasetNotFoundError, match=r"the namespace glue has no shop\.none"):
        lance_core.dataset(namespace_client=glue, table_id=["shop", "none"])
    with pytest.raises(InvalidInputError, match=r"does not take list_namespaces of shop\.eu: .*no levels below"):
        list(vending.Namespace(glue).list_ids(("shop", "eu")))
    del sys.modules["lance_namespace_impls"]


class Vendor:
    """A namespace whose options for S3 end after an hour, and change with each call."""

    def __init__(self, location, s3):
        self.location, self.s3, self.calls, self.lasts_ms = location, s3, 0, 3_600_000
        self.broken = self.manages = False

    def describe_table(self, request):
        from lance_namespace import DescribeTableResponse

        if self.broken:
            raise RuntimeError("the service is down")
        self.calls += 1
        end = int(time.time() * 1000) + self.lasts_ms
        options = {
            **(self.s3.storage_options if self.s3 else {}),
            "aws_session_token": f"token{self.calls}",
            "expires_at_millis": str(end),
        }
        return DescribeTableResponse(location=self.location, storage_options=options, managed_versioning=self.manages)


def test_vended_options_are_renewed_before_they_end_also_in_a_long_write(s3, monkeypatch):
    vendor = Vendor(f"s3://{s3.new_bucket()}/t.lance", s3)
    real, writes = S3Client._once, []

    async def request_once(self, method, parameters):
        if method == "put_object":
            writes.append((parameters["Key"].split("/")[1], self._filesystem.token))
        return await real(self, method, parameters)

    monkeypatch.setattr(S3Client, "_once", request_once)
    named = {"namespace_client": vendor, "table_id": ["t"]}

    def batches():
        yield pa.record_batch({"a": [1]})
        shift(monkeypatch, 3_600_000)  # an hour passes while the rows are written
        yield pa.record_batch({"a": [2]})

    written = lance_core.write_dataset(batches(), schema=pa.schema({"a": pa.int64()}), mode="append", **named)
    assert written.count_rows() == 2
    assert ("data", "token2") in writes  # the file was begun before the options were renewed
    assert {token for _, token in writes} == {"token2"}
    assert vendor.calls == 3  # the last one to see that the table is still there
    again = pickle.loads(pickle.dumps(written))
    assert again.count_rows() == 2
    assert "token" not in repr(again)


def test_a_write_ends_where_the_namespace_manages_the_versions_from_then_on(s3, monkeypatch):
    vendor = Vendor(f"s3://{s3.new_bucket()}/t.lance", s3)
    named = {"namespace_client": vendor, "table_id": ["t"]}

    def batches():
        yield pa.record_batch({"a": [1]})
        vendor.manages = True
        shift(monkeypatch, 3_590_000)  # the options are renewed, and have not ended
        yield pa.record_batch({"a": [2]})

    table = lance_core.write_dataset(ROWS, **named)
    with pytest.raises(UnsupportedError, match="keeps the versions of t itself"):
        lance_core.write_dataset(batches(), schema=pa.schema({"a": pa.int64()}), mode="append", **named)
    assert lance_core.dataset(table.uri, storage_options=s3.storage_options).version == 1


def shift(monkeypatch, milliseconds):
    now = time.time
    monkeypatch.setattr(vending.time, "time", lambda: now() + milliseconds / 1000)


def test_options_that_ended_and_are_not_renewed_are_named(s3, monkeypatch, caplog):
    vendor = Vendor(f"s3://{s3.new_bucket()}/t.lance", s3)
    named = {"namespace_client": vendor, "table_id": ["t"]}
    table = lance_core.write_dataset(ROWS, **named)
    vendor.broken = True
    shift(monkeypatch, 3_590_000)
    assert table.count_rows() == 1
    table.insert(ROWS)
    assert "are not renewed yet" in caplog.text
    shift(monkeypatch, 20_000)
    with pytest.raises(StoreError, match=r"options of t have ended, and were not renewed: .*the service is down"):
        table.insert(ROWS)
    vendor.broken = False
    table.insert(ROWS)
    assert table.count_rows() == 3


def test_another_process_renews_by_the_properties_of_the_namespace(spaces):
    vends = {"vend_input_storage_options": "true", "vend_input_storage_options_refresh_interval_millis": "30000"}
    with rest_service(spaces.root, **{"storage.aws_region": "x"}, **vends) as properties:
        _, options = vending.Namespace(properties).describe(["shop", "orders"])
        assert json.loads(options["namespace_table"]) == {"namespace": properties, "id": ["shop", "orders"]}
        vending._vended.clear()  # as in a process that got the options only
        current = vending.current_options(vending.StorageOptions(options))
        assert current["aws_region"] == "x"
        assert len(vending._vended) == 1
