import errno
import os
from pathlib import Path

import pytest

from lance_core.errors import ObjectNotFoundError, StoreError
from lance_core.store import local as local_module
from lance_core.store import open_store
from lance_core.store.local import LocalStore
from lance_core.testing import StoreConformance


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path):
        return open_store(str(tmp_path / "deep" / "dataset"))

    def outside(self, store):
        folder = Path(store.root).parent.parent / "outside"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub/file").write_bytes(b"outside")
        (folder / "sub/up").symlink_to(folder)
        return folder


def test_a_pipe_under_the_name_of_an_object_is_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ObjectNotFoundError, match="is not a file"):
        LocalStore(str(tmp_path)).get("pipe")


def test_root_is_an_absolute_plain_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store("a/../b/").root == str(tmp_path / "b")
    assert open_store(f"file://{tmp_path}/b").root == str(tmp_path / "b")


def test_without_hard_links_creation_stays_atomic(tmp_path, monkeypatch):
    def no_link(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(local_module.os, "link", no_link)
    store = LocalStore(str(tmp_path))
    store.put_if_absent("k", b"first")
    with pytest.raises(FileExistsError):
        store.put_if_absent("k", b"second")
    assert store.get("k") == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_a_full_disk_leaves_nothing_and_keeps_the_number(tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(str(tmp_path))
    monkeypatch.setattr(local_module.os, "write", full)
    with pytest.raises(StoreError, match="No space left") as caught:
        store.put("k", b"data")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(StoreError):
        store.put_if_absent("k", b"data")
    assert list(tmp_path.iterdir()) == []


def test_durable_writes_reach_the_disk_before_they_are_named(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "link", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(local_module.os, name, lambda *a, name=name, real=real: (calls.append(name), real(*a))[1])
    store = LocalStore(str(tmp_path))
    store.put_if_absent("k", b"x", durable=True)
    assert calls == ["fsync", "link", "fsync"]
    calls.clear()
    store.put_if_absent("k2", b"x", durable=False)
    assert calls == ["link"]
    calls.clear()
    with store.open_writer("k3") as writer:
        writer.write(b"x")
    assert calls == ["fsync", "rename", "fsync"]


def test_a_mapped_read_outlives_the_file(tmp_path):
    store = LocalStore(str(tmp_path))
    store.put("k", b"z" * (2 << 20))
    (part,) = store.get_ranges("k", [(0, 2 << 20)])
    store.delete("k")
    assert bytes(part) == b"z" * (2 << 20)


def test_a_large_file_is_synced_while_it_is_written(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path))
    syncs = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (syncs.append(fd), real(fd))[1])
    with store.open_writer("big") as writer:
        for _ in range(100):
            writer.write(bytes(1 << 20))
        assert syncs
    assert store.head("big").size == 100 << 20


def test_a_sync_that_fails_on_the_way_fails_the_file(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path))
    failures = iter([OSError(5, "Input/output error")])
    real = os.fsync

    def broken(fd):
        for failure in failures:
            raise failure
        real(fd)

    monkeypatch.setattr(os, "fsync", broken)
    writer = store.open_writer("big")
    for _ in range(40):
        writer.write(bytes(1 << 20))
    with pytest.raises(StoreError, match="Input/output"):
        writer.close()
    writer.abort()
    assert list(store.list("")) == []


def test_an_interruption_while_the_system_opens_a_file_leaves_none(tmp_path, monkeypatch):
    real = os.open

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LocalStore(str(tmp_path)).open_writer("a")
    assert list(tmp_path.iterdir()) == []
