"""Commits through a database."""

import contextlib
import sqlite3
import uuid
from contextlib import closing

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.loop import commit
from lance_core.commit.versions import list_versions, load_latest
from lance_core.errors import AlreadyExistsError, DatasetExistsError, InvalidInputError, OutcomeUnknownError, StoreError
from lance_core.store import join_uri, open_store
from lance_core.store.external import ExternallyCommittedStore, SqliteTable
from lance_core.store.local import LocalStore
from lance_core.table.paths import manifest_key
from lance_core.testing import StoreConformance
from tests.lance_core.commit.tables import appending, creation
from tests.lance_core.store.external_conformance import ExternalCommitConformance, Place


@pytest.fixture
def sqlite_store(tmp_path):
    return open_store(f"memory://{uuid.uuid4().hex}", {"manifest_store": f"sqlite://{tmp_path}/index.db"})


@pytest.fixture
def dynamodb(s3, dynamodb_table):
    client, name = dynamodb_table
    uri = f"s3+ddb://{s3.new_bucket()}/deep/t?ddbTableName={name}"
    options = {**s3.storage_options, "dynamodb_endpoint": s3.endpoint}
    return uri, options, lambda: client.scan(TableName=name)["Items"]


class TestCommitsThroughSqlite(StoreConformance, ExternalCommitConformance):
    @pytest.fixture
    def store(self, sqlite_store):
        return sqlite_store

    @pytest.fixture
    def place(self, tmp_path):
        def rows():
            with closing(sqlite3.connect(tmp_path / "index.db")) as connection:
                return connection.execute("SELECT place, version FROM manifests").fetchall()

        return Place(str(tmp_path / "t"), {"manifest_store": f"sqlite://{tmp_path}/index.db"}, rows)


class TestCommitsThroughDynamoDb(ExternalCommitConformance):
    @pytest.fixture
    def place(self, dynamodb):
        uri, options, scan = dynamodb
        return Place(uri, options, lambda: [(row["base_uri"]["S"], int(row["version"]["N"])) for row in scan()])


def test_versions_are_decided_by_the_database(sqlite_store):
    first = commit(sqlite_store, creation())
    commit(sqlite_store, appending(1), base=first.manifest)
    assert list_versions(sqlite_store) == [1, 2]
    key = first.manifest.location.key
    sqlite_store.delete(key)
    with pytest.raises(AlreadyExistsError):
        sqlite_store.put_if_absent(key, b"again")
    assert not [found.key for found in sqlite_store.list("_versions/") if not found.key.endswith(".manifest")]


@pytest.mark.parametrize("library", [lance, lance_core], ids=lambda library: library.__name__)
def test_a_reader_without_the_database_is_one_version_behind_at_most(tmp_path, monkeypatch, library):
    options = {"manifest_store": f"sqlite://{tmp_path}/index.db"}
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"a": [1]}), uri, storage_options=options)
    assert library.dataset(uri).version == 1

    put = LocalStore.put

    def killed(self, key, data):
        if key.endswith(".manifest"):
            raise StoreError("injected")
        return put(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", killed)
        lance_core.write_dataset(pa.table({"a": [2]}), uri, mode="append", storage_options=options)
    assert library.dataset(uri).version == 1
    assert lance_core.dataset(uri, storage_options=options).version == 2
    assert library.dataset(uri).version == 2


def test_rows_go_with_their_versions_in_sqlite(tmp_path):
    options = {"manifest_store": f"sqlite://{tmp_path}/index.db"}
    uri = str(tmp_path / "t")
    for number in range(5):
        lance_core.write_dataset(pa.table({"a": [number]}), uri, mode="append", storage_options=options)
    dataset = lance_core.dataset(uri, storage_options=options)
    assert dataset.cleanup_old_versions(retain_versions=2).old_versions == 3
    with closing(sqlite3.connect(tmp_path / "index.db")) as connection:
        rows = [row[0] for row in connection.execute("SELECT version FROM manifests ORDER BY version")]
    assert rows == [4, 5]
    added = lance_core.write_dataset(pa.table({"a": [5]}), uri, mode="append", storage_options=options)
    assert (added.version, added.count_rows()) == (6, 6)


def test_rows_go_with_their_versions_in_dynamodb(dynamodb):
    uri, options, scan = dynamodb
    for number in range(3):
        lance.write_dataset(pa.table({"a": [number]}), uri, mode="append", storage_options=options)
    for number in range(2):
        lance_core.write_dataset(pa.table({"a": [number]}), uri, mode="append", storage_options=options)
    dataset = lance_core.dataset(uri, storage_options=options)
    assert dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True).old_versions == 4
    rows = [int(row["version"]["N"]) for row in scan()]
    assert rows == [5]
    lance.write_dataset(pa.table({"a": [5]}), uri, mode="append", storage_options=options)
    assert lance.dataset(uri, storage_options=options).count_rows() == 6
    assert lance_core.dataset(uri, storage_options=options).version == 6


def test_the_highest_row_stays_and_no_number_is_given_twice(sqlite_store):
    manifest = None
    for number in range(3):
        done = commit(sqlite_store, appending(number) if manifest else creation(), base=manifest)
        manifest = done.manifest
    for version in (1, 2, 3):
        sqlite_store.delete(manifest_key(version))
    table = sqlite_store.table
    assert [table.get(version) is not None for version in (1, 2, 3)] == [False, False, True]
    assert not table.add(2, manifest_key(2), 1)
    for version in (1, 2, 3):
        with pytest.raises(AlreadyExistsError):
            sqlite_store.put_if_absent(manifest_key(version), b"again")


def test_rows_that_an_interrupted_cleanup_left_are_removed_by_the_next(tmp_path, monkeypatch):
    options = {"manifest_store": f"sqlite://{tmp_path}/index.db"}
    uri = str(tmp_path / "t")
    for number in range(3):
        lance_core.write_dataset(pa.table({"a": [number]}), uri, mode="append", storage_options=options)
    dataset = lance_core.dataset(uri, storage_options=options)

    def failing(self, version):
        raise StoreError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteTable, "remove", failing)
        assert dataset.cleanup_old_versions(retain_versions=1).failed_deletes == 2
    assert dataset.cleanup_old_versions(retain_versions=1).old_versions == 2
    with closing(sqlite3.connect(tmp_path / "index.db")) as connection:
        assert connection.execute("SELECT version FROM manifests").fetchall() == [(3,)]


def test_pylance_and_we_share_dynamodb(dynamodb):
    uri, options, scan = dynamodb
    lance.write_dataset(pa.table({"a": [1]}), uri, storage_options=options)
    store = open_store(uri, options)
    assert isinstance(store, ExternallyCommittedStore)
    done = commit(store, appending(1))
    lance.write_dataset(pa.table({"a": [2]}), uri, storage_options=options, mode="append")
    commit(store, appending(2), base=done.manifest)
    ds = lance.dataset(uri, storage_options=options)
    assert (ds.version, ds.count_rows(), load_latest(store).version) == (4, 2, 4)
    rows = sorted(scan(), key=lambda row: int(row["version"]["N"]))
    assert [set(row) for row in rows] == [{"base_uri", "version", "path", "size", "committer"}] * 4
    assert {row["base_uri"]["S"] for row in rows} == {"deep/t"}
    assert all(row["path"]["S"].endswith(".manifest") for row in rows)


def test_pylance_finishes_our_commit(dynamodb, monkeypatch):
    uri, options, _ = dynamodb
    lance.write_dataset(pa.table({"a": [1]}), uri, storage_options=options)
    store = open_store(uri, options)

    def no_update(*_):
        raise StoreError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(type(store.table), "finalize", no_update)
        commit(store, appending(1))
    assert lance.dataset(uri, storage_options=options).version == 2
    assert not [found.key for found in store._store.list("_versions/") if ".manifest-" in found.key]


def test_a_drop_that_is_cut_short_anywhere_can_be_finished(tmp_path, monkeypatch):
    options = {"manifest_store": f"sqlite://{tmp_path}/index.db"}
    calls_made = 0

    def counted(real, calls, at):
        def call(self, *args):
            calls.append(args)
            if len(calls) == at:
                raise StoreError("injected")
            return real(self, *args)

        return call

    def rows():
        with closing(sqlite3.connect(tmp_path / "index.db")) as connection:
            return connection.execute("SELECT place, version FROM manifests").fetchall()

    for at in range(1, 100):
        uri = str(tmp_path / f"t{at}")
        for value in range(2):
            dataset = lance_core.write_dataset(pa.table({"a": [value]}), uri, mode="append", storage_options=options)
        dataset.create_branch("b").delete("a = 0")
        calls = []
        with monkeypatch.context() as patch:
            for owner, name in ((LocalStore, "delete"), (SqliteTable, "remove"), (SqliteTable, "clear")):
                patch.setattr(owner, name, counted(getattr(owner, name), calls, at))
            with contextlib.suppress(StoreError):
                lance_core.LanceDataset.drop(uri, options)
        if len(calls) < at:
            calls_made = len(calls)
            break
        lance_core.LanceDataset.drop(uri, options)
        assert (rows(), list(open_store(uri).list(""))) == ([], []), calls[-1]
    assert 15 < calls_made < 50


def test_our_drop_clears_the_way_for_pylance(dynamodb):
    """Its own leaves the rows behind, and then it cannot create a dataset there either."""
    uri, options, scan = dynamodb
    table = pa.table({"a": [1]})
    lance_core.write_dataset(table, uri, storage_options=options)
    lance_core.LanceDataset.drop(uri, options)
    assert lance.write_dataset(table, uri, storage_options=options).version == 1
    lance.LanceDataset.drop(uri, options)
    assert len(scan()) == 1
    with pytest.raises(DatasetExistsError, match=r"LanceDataset\.drop"):
        lance_core.write_dataset(table, uri, storage_options=options)
    lance_core.LanceDataset.drop(uri, options)
    assert lance.write_dataset(table, uri, storage_options=options).version == 1


def test_uris_with_a_query():
    assert join_uri("s3+ddb://b/t?ddbTableName=T", "tree/x") == "s3+ddb://b/t/tree/x?ddbTableName=T"
    assert join_uri("s3://b/t", "tree/x") == "s3://b/t/tree/x"
    assert join_uri("/a?b", "x") == "/a?b/x"
    for bad in ("s3+ddb://b/t", "s3+ddb://b/t?ddbTableName=T&x=1"):
        with pytest.raises(InvalidInputError, match="ddbTableName"):
            open_store(bad)


@pytest.mark.parametrize(("status", "unknown"), [(500, True), (503, True), (400, False)])
def test_whether_a_row_was_put_is_not_known_after_a_failure_of_the_server(dynamodb, monkeypatch, status, unknown):
    import botocore.client
    import botocore.exceptions

    uri, options, _ = dynamodb
    real = botocore.client.BaseClient._make_api_call

    def answer(self, method, parameters):
        if method == "PutItem":
            response = {"Error": {"Code": "Injected"}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise botocore.exceptions.ClientError(response, method)
        return real(self, method, parameters)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", answer)
    with pytest.raises(StoreError, match="did not answer" if unknown else f"HTTP {status}") as found:
        lance_core.write_dataset(pa.table({"a": [1]}), uri, storage_options=options)
    assert isinstance(found.value, OutcomeUnknownError) == unknown
