"""The age of young versions is by the clock of the storage, whatever the clock of the machine that cleans up."""

import uuid
from datetime import datetime, timedelta

import pytest

import lance_core as lance
from lance_core.errors import StoreError
from lance_core.maintenance.cleanup import plan
from lance_core.store.memory import MemoryStore


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(MemoryStore, "put_is_a_request", True)
    uri = f"memory://clock-{uuid.uuid4().hex}"
    for value in range(4):
        lance.write_dataset({"id": [value]}, uri, mode="overwrite")
    return lance.dataset(uri)


@pytest.fixture
def set_ahead(monkeypatch):
    def set_ahead(ahead):
        class Ahead(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + ahead

        monkeypatch.setattr(plan, "datetime", Ahead)

    return set_ahead


def clean_up(table):
    table.cleanup_old_versions(retain_versions=1)
    return [version["version"] for version in table.versions()]


@pytest.mark.parametrize("minutes", [-7, 0, 7, 14])
def test_versions_of_the_last_minute_stay(table, set_ahead, minutes):
    set_ahead(timedelta(minutes=minutes))
    assert clean_up(table) == [1, 2, 3, 4]
    assert list(table.snapshot.store.list("_refs/claims/")) == []


def test_older_versions_go(table, set_ahead, monkeypatch):
    head = MemoryStore.head
    set_ahead(timedelta(minutes=7))

    def head_later(store, key):
        meta = head(store, key)
        return type(meta)(key=meta.key, size=meta.size, modified=meta.modified + 400, e_tag=meta.e_tag)

    monkeypatch.setattr(MemoryStore, "head", head_later)
    assert clean_up(table) == [4]


def test_without_rights_to_write_they_stay(table, set_ahead, monkeypatch):
    put = MemoryStore.put

    def put_no_claim(store, key, data):
        if "/clock-" in key:
            raise StoreError("denied")
        return put(store, key, data)

    set_ahead(timedelta(minutes=7))
    monkeypatch.setattr(MemoryStore, "put", put_no_claim)
    assert clean_up(table) == [1, 2, 3, 4]
