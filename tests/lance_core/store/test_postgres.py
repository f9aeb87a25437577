"""Commits through PostgreSQL, with a real server: `make test-heavy`."""

import logging
import sys
import traceback
import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, OutcomeUnknownError, StoreError
from lance_core.store import open_store
from lance_core.store.external import ExternallyCommittedStore
from lance_core.store.postgres import PostgresTable
from lance_core.testing import StoreConformance
from lance_core.testing.racing import race
from tests import processes
from tests.lance_core.store.external_conformance import ExternalCommitConformance, Place
from tests.postgres_server import PASSWORD, postgres_programs, postgres_server

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def postgres():
    programs = postgres_programs()
    if programs is None:
        pytest.fail("PostgreSQL is missing; on Debian: apt-get install postgresql")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture
def database(postgres):
    return postgres.new_database()


@pytest.fixture
def options(postgres, database):
    return {"manifest_store": postgres.uri(database)}


@pytest.fixture
def store(options):
    return open_store(f"memory://{uuid.uuid4().hex}", options)


@pytest.mark.heavy
class TestCommitsThroughPostgres(StoreConformance, ExternalCommitConformance):
    @pytest.fixture
    def store(self, options):
        return open_store(f"memory://{uuid.uuid4().hex}", options)

    @pytest.fixture
    def place(self, postgres, database, options, tmp_path):
        def rows():
            found = postgres.run("SELECT base_uri, version FROM lance_manifests", database)
            return [(place, int(version)) for place, version in found]

        return Place(str(tmp_path / "t"), options, rows)


@pytest.mark.heavy
def test_one_row_for_each_version(postgres, database, options, tmp_path):
    uri = str(tmp_path / "t")
    table = pa.table({"a": [1]})
    for mode in ("create", "append", "append"):
        lance_core.write_dataset(table, uri, mode=mode, storage_options=options)
    assert lance_core.dataset(uri, storage_options=options).count_rows() == lance.dataset(uri).count_rows() == 3
    rows = postgres.run("SELECT base_uri, version, path, size FROM lance_manifests ORDER BY version", database)
    assert [(place, int(version)) for place, version, _, _ in rows] == [(uri, 1), (uri, 2), (uri, 3)]
    assert [size for *_, size in rows] == [(tmp_path / "t" / path).stat().st_size for _, _, path, _ in rows]


@pytest.mark.heavy
def test_racing_creators_of_the_table(postgres, database):
    """Sessions that find no table all try to make it."""
    tables = [PostgresTable(postgres.uri(database), "place") for _ in range(8)]
    won = race(8, lambda number: tables[number].add(1, f"key-{number}", 1))
    assert sorted(won) == [False] * 7 + [True]


@pytest.mark.heavy
def test_a_lost_answer_is_not_another_writer(postgres, database, monkeypatch):
    import psycopg

    table = PostgresTable(postgres.uri(database), "place")
    assert table.latest() is None
    real = psycopg.Connection.execute

    def lost(self, statement, *args):
        real(self, statement, *args)
        raise psycopg.OperationalError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", lost)
        with pytest.raises(OutcomeUnknownError):
            table.add(7, "mine", 1)
    assert table.add(7, "mine", 1)
    assert not table.add(7, "another", 1)
    assert table.latest() == (7, "mine")
    with pytest.raises(StoreError, match="version 8 was deleted"):
        table.finalize(8, "mine", 1)
    table.remove(7)
    table.remove(7)
    assert table.get(7) is None


@pytest.mark.heavy
def test_large_numbers(postgres, database):
    table = PostgresTable(postgres.uri(database), "place")
    assert table.add(5, "fifth", 1)
    assert table.add((1 << 64) - 1, "last", 1 << 40)
    table.remove(5)
    assert not table.add(5, "fifth", 1), "no number is given below the highest"
    assert table.get(5) is None
    assert table.latest() == ((1 << 64) - 1, "last")


@pytest.mark.heavy
def test_the_password_shows_nowhere(postgres, database, options, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"a": [1]}), uri, storage_options=options)
    shown = [repr(open_store(uri, options)), repr(open_store(uri, options).table), caplog.text]
    rejected = [
        postgres.uri(database) + "?application_name=x&unheard=of",
        postgres.uri(database).replace("tester", "nobody"),
        postgres.uri("missing"),
        f"postgresql://tester:{PASSWORD}@127.0.0.1:1/missing",
    ]
    for bad in rejected:
        with pytest.raises((StoreError, InvalidInputError)) as caught:
            lance_core.dataset(uri, storage_options={"manifest_store": bad})
        shown += [repr(caught.value), "".join(traceback.format_exception(caught.value))]
    assert not [text for text in shown if PASSWORD in text]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


def test_the_driver_is_imported_when_it_is_needed():
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from lance_core.store import open_store\n"
        "open_store('memory://x', {'manifest_store': 'postgresql://h/d'})"
    )
    done = processes.run([sys.executable, "-c", code])
    assert "UnsupportedError" in done.stderr
    assert "lance-dagster[postgres]" in done.stderr


def test_the_option_selects_the_database():
    store = open_store("memory://x/t", {"manifest_store": "postgresql://u:secret@h:1/d?sslmode=require"})
    assert isinstance(store, ExternallyCommittedStore)
    assert repr(store.table) == "PostgresTable('PostgreSQL at h:1/d', 'memory://x/t')"
    for bad in ("mysql://h/d", "/path", "postgresql://u:secret@h/d?unheard=of"):
        with pytest.raises(InvalidInputError) as caught:
            open_store("memory://x", {"manifest_store": bad})
        assert "secret" not in str(caught.value)
