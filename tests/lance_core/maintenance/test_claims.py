"""Cleanups, and references that are made while they run: a version is kept, or nothing refers to it."""

import errno
import os
import time
from datetime import timedelta
from functools import partialmethod
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.commit import claims
from lance_core.commit.claims import CLAIM_AGE, VersionClaim
from lance_core.errors import StoreError, VersionNotFoundError
from lance_core.store.local import LocalStore

REFERENCES = {
    "tag": lambda table: table.tags.create("name", 2),
    "moved tag": lambda table: table.tags.update("moved", 2),
    "branch": lambda table: table.create_branch("name", 2),
    "clone": lambda table: table.shallow_clone(table.uri + "-clone", 2),
    "restore": lambda table: table.checkout_version(2).restore(),
    "operation": lambda table: lance_core.LanceDataset.commit(table.uri, lance_core.LanceOperation.Restore(2)),
}
READERS = {
    "tag": lambda table: table.checkout_version("name"),
    "moved tag": lambda table: table.checkout_version("moved"),
    "branch": lambda table: table.checkout_version(("name", None)),
    "clone": lambda table: lance_core.dataset(table.uri + "-clone"),
    "restore": lambda table: table,
    "operation": lambda table: table,
}


@pytest.fixture
def table(tmp_path):
    uri = str(tmp_path / "t")
    for key in range(4):
        lance_core.write_dataset(pa.table({"k": [key]}), uri, mode="overwrite")
    lance_core.dataset(uri).tags.create("moved", 4)
    return lance_core.dataset(uri)


def clean_up(table):
    lance_core.dataset(table.uri).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)


def claim_files(table):
    folder = Path(table.uri, "_refs", "claims")
    return sorted(folder.iterdir()) if folder.exists() else []


def before(monkeypatch, owner, name, action, when=lambda *_: True):
    """Let something happen once, before a method is called."""
    real, left = getattr(owner, name), [action]

    def method(self, *args, **kwargs):
        if left and when(*args):
            left.pop()()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, partialmethod(method) if owner is LocalStore else method)


@pytest.mark.parametrize("reference", REFERENCES)
def test_versions_that_are_being_removed_are_not_referred_to(table, monkeypatch, reference):
    def refer():
        with pytest.raises(VersionNotFoundError, match=r"version 2 is being removed by a cleanup that began at 20"):
            REFERENCES[reference](lance_core.dataset(table.uri))

    before(monkeypatch, LocalStore, "delete_many", refer)
    clean_up(table)
    table = lance_core.dataset(table.uri)
    assert table.version_refs() == [{"version": 4}]
    assert table.to_table()["k"].to_pylist() == [3]
    assert (list(table.tags.list()), list(table.branches.list())) == (["moved"], [])
    assert table.tags.get_version("moved") == 4
    assert claim_files(table) == []


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_between_plan_and_claim_keeps_its_version(table, monkeypatch, reference):
    before(
        monkeypatch,
        VersionClaim,
        "write",
        lambda: REFERENCES[reference](lance_core.dataset(table.uri)),
    )
    clean_up(table)
    table = lance_core.dataset(table.uri)
    assert READERS[reference](table).to_table()["k"].to_pylist() == [1]
    assert {"version": 1} not in table.version_refs()
    assert claim_files(table) == []


@pytest.mark.parametrize("reference", ["restore", "operation"])
def test_a_version_stays_while_it_is_restored(table, monkeypatch, reference):
    before(
        monkeypatch,
        LocalStore,
        "put_if_absent",
        lambda: clean_up(table),
        when=lambda key, *_: key.startswith("_versions/"),
    )
    REFERENCES[reference](lance_core.dataset(table.uri))
    table = lance_core.dataset(table.uri)
    assert (table.version, table.to_table()["k"].to_pylist()) == (5, [1])
    assert table.version_refs() == [{"version": number} for number in (2, 4, 5)]
    assert claim_files(table) == []
    clean_up(table)
    assert table.version_refs() == [{"version": number} for number in (4, 5)]  # 4 is tagged
    assert lance_core.dataset(table.uri).to_table()["k"].to_pylist() == [1]


def interrupted_cleanup(table, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        before(patch, LocalStore, "delete_many", interrupt)
        with pytest.raises(KeyboardInterrupt):
            clean_up(table)
    assert len(claim_files(table)) == 1


def test_an_interrupted_cleanup_is_finished_by_the_next(table, monkeypatch):
    interrupted_cleanup(table, monkeypatch)
    with pytest.raises(VersionNotFoundError, match=r"another one finishes it, or .*/_refs/claims/removal-.* can be"):
        table.tags.create("name", 2)
    clean_up(table)
    assert table.version_refs() == [{"version": 4}]
    with pytest.raises(VersionNotFoundError, match="version main:2 does not exist"):
        table.checkout_version(2)


def test_a_claim_counts_for_a_day(table, monkeypatch):
    interrupted_cleanup(table, monkeypatch)
    for file in claim_files(table):
        os.utime(file, (time.time() - CLAIM_AGE.total_seconds() - 1,) * 2)
    table.tags.create("name", 2)
    clean_up(table)
    assert claim_files(table) == []
    assert table.checkout_version("name").to_table()["k"].to_pylist() == [1]


def test_a_torn_claim_is_none(table, monkeypatch):
    interrupted_cleanup(table, monkeypatch)
    claim_files(table)[0].write_bytes(b'{"vers')
    table.tags.create("name", 2)


def test_a_cleanup_that_takes_long_writes_its_claim_again(table, monkeypatch):
    writes, real = [], VersionClaim.write
    monkeypatch.setattr(VersionClaim, "write", lambda self: writes.append(self.purpose) or real(self))
    monkeypatch.setattr(claims, "RENEWED_AFTER", timedelta(0))
    clean_up(table)
    assert len(writes) > 1


def failing(monkeypatch, name, error):
    def method(_, key, *args, **kwargs):
        if key.startswith("_refs/claims/"):
            raise StoreError(*error)
        return real(_, key, *args, **kwargs)

    real = getattr(LocalStore, name)
    monkeypatch.setattr(LocalStore, name, partialmethod(method))


def test_a_full_disk_is_cleaned_up(table, monkeypatch, caplog):
    failing(monkeypatch, "put", (errno.ENOSPC, "No space left on device"))
    clean_up(table)
    assert table.version_refs() == [{"version": 4}]
    assert "others cannot see which versions it removes" in caplog.text


def test_a_claim_that_may_not_be_written_stops_the_cleanup(table, monkeypatch):
    failing(monkeypatch, "put", (errno.EACCES, "denied"))
    with pytest.raises(StoreError, match="denied"):
        clean_up(table)
    assert len(table.version_refs()) == 4


def test_a_claim_that_may_not_be_deleted_claims_nothing(table, monkeypatch):
    failing(monkeypatch, "delete", (errno.EACCES, "denied"))
    table.checkout_version(2).restore()
    clean_up(table)
    assert table.version_refs() == [{"version": 4}, {"version": 5}]
    table.checkout_version(4).restore()
    assert all(file.read_text() == '{"versions":[]}' for file in claim_files(table))
