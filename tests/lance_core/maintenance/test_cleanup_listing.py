"""A cleanup beside other writers and cleanups: what it has listed may be out of date when it reads it."""

from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import RetryableConflictError
from lance_core.maintenance.cleanup import listed_versions
from lance_core.maintenance.verify.files import verify
from lance_core.store.local import LocalStore
from lance_core.table.paths import VERSIONS_PREFIX


def rows(*keys):
    return pa.table({"k": keys})


def meanwhile(monkeypatch, change, *, times):
    """Let something happen after a cleanup has read the oldest version that it listed."""
    real, left = listed_versions._load_listed, [None] * times

    def late(store, keys):
        names = {key: name.version for key in keys if (name := listed_versions.parse_manifest_key(key)) is not None}
        keys = sorted(names, key=names.__getitem__)
        if not left:
            return real(store, keys)
        left.pop()
        before, left[:] = list(left), []  # other cleanups read at once
        found = real(store, keys[:1])
        change()
        left[:] = before
        return found | real(store, keys[1:])

    monkeypatch.setattr(listed_versions, "_load_listed", late)


def table_of_two_versions(uri):
    lance_core.write_dataset(rows(1), uri).insert(rows(2))
    return lance_core.dataset(uri)


def test_files_that_a_newer_version_needs_stay(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    handle = table_of_two_versions(uri)

    def others():
        lance_core.dataset(uri).insert(rows(3))
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)

    meanwhile(monkeypatch, others, times=1)
    handle.cleanup_old_versions(timedelta(0))
    found = lance_core.dataset(uri)
    assert sorted(found.to_table()["k"].to_pylist()) == [1, 2, 3]
    assert verify(found) == []
    lance.dataset(uri).validate()


def test_a_listing_that_leaves_out_the_newest_version_is_made_again(tmp_path, monkeypatch):
    """As one may do while that version is removed and the next one is added."""
    uri = str(tmp_path / "t")
    table_of_two_versions(uri).insert(rows(3))
    handle = lance_core.dataset(uri)
    real, left = LocalStore.list_owned, [True]

    def without_newest(self, prefix):
        found = list(real(self, prefix))
        if prefix == VERSIONS_PREFIX and left:
            left.clear()
            lance_core.dataset(uri).insert(rows(4))
            newest = handle._manifest.location.key
            return [meta for meta in found if meta.key != newest]
        return found

    monkeypatch.setattr(LocalStore, "list_owned", without_newest)
    handle.cleanup_old_versions(timedelta(0))
    assert not left
    found = lance_core.dataset(uri)
    assert sorted(found.to_table()["k"].to_pylist()) == [1, 2, 3, 4]
    assert verify(found) == []


def test_a_table_that_never_holds_still_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(listed_versions, "_MOST_LISTINGS", 3)
    uri = str(tmp_path / "t")
    handle = table_of_two_versions(uri)

    def others():
        lance_core.dataset(uri).insert(rows(3))
        lance_core.dataset(uri).insert(rows(3))
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=2)

    meanwhile(monkeypatch, others, times=3)
    with pytest.raises(RetryableConflictError, match="faster than they can be read; nothing was removed"):
        handle.cleanup_old_versions(timedelta(0))
    assert lance_core.dataset(uri).count_rows() == 8
