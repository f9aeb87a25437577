import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lance_core.errors import ObjectNotFoundError, StoreError
from lance_core.store import ObjectWriter, kernel_copy, open_store
from lance_core.store import local as local_module
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


@pytest.mark.parametrize("size", [100, 2 << 20], ids=["copied", "mapped"])
def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path, monkeypatch, size):
    store = open_store(tmp_path)
    store.put("data/x", bytes(size))
    real = local_module.os.fstat

    def before_it_shrinks(fd):
        status = real(fd)
        local_module.os.truncate(store.path_of("data/x"), 10)
        return status

    monkeypatch.setattr(local_module.os, "fstat", before_it_shrinks)
    with pytest.raises(StoreError, match=f"data/x: bytes up to {size} wanted"):
        store.get_ranges("data/x", [(0, size)])
    monkeypatch.undo()
    assert len(store.get("data/x")) == 10


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


class TestRangesOfOtherFiles:
    DATA = np.random.default_rng(5).bytes(300_000)

    @pytest.fixture
    def store(self, tmp_path):
        store = LocalStore(str(tmp_path))
        store.put("source", self.DATA)
        return store

    @pytest.mark.parametrize("way", ["_splice", "_copy_file_range"])
    @pytest.mark.parametrize(("start", "end"), [(0, 300_000), (1, 2), (4_096, 8_192), (5_000, 299_999)])
    def test_the_kernel_copies_them(self, store, monkeypatch, way, start, end):
        monkeypatch.setattr(kernel_copy, "_splice", getattr(kernel_copy, way))
        monkeypatch.setattr(kernel_copy, "_copy_file_range", getattr(kernel_copy, way))
        left = []
        monkeypatch.setattr(
            ObjectWriter, "copy_range", lambda *arguments, **_: left.append(arguments[3] - arguments[4])
        )
        with store.open_writer("target") as writer:
            writer.write(b"before")
            writer.copy_range(store, "source", start, end)
            writer.write(b"behind")
        assert left == [0]
        assert bytes(store.get("target")) == b"before" + self.DATA[start:end] + b"behind"

    def test_what_the_disk_has_to_read_is_copied_too(self, store):
        store.sync("source")
        with Path(store.path_of("source")).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        store.copy("source", "target")
        assert bytes(store.get("target")) == self.DATA

    @pytest.mark.parametrize("copied", [0, 70_000])
    def test_what_the_kernel_leaves_is_read_and_written(self, store, monkeypatch, copied):
        real = kernel_copy.copy_range

        def some(source, start, end, target):
            return real(source, start, max(start, min(end, copied)), target)

        monkeypatch.setattr(kernel_copy, "copy_range", some)
        store.copy("source", "target")
        assert bytes(store.get("target")) == self.DATA

    @pytest.mark.parametrize("name", ["splice", "copy_file_range"])
    @pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.ENOSYS])
    def test_a_kernel_that_does_not_copy_between_these_files(self, store, monkeypatch, name, number):
        def fail(*arguments, **options):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, name, fail)
        store.copy("source", "target")
        assert bytes(store.get("target")) == self.DATA

    def test_a_full_disk_leaves_nothing(self, store, monkeypatch):
        def full(*arguments, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "splice", full)
        monkeypatch.setattr(os, "copy_file_range", full)
        with pytest.raises(StoreError, match="No space left") as caught:
            store.copy("source", "target")
        assert caught.value.errno == errno.ENOSPC
        assert [found.key for found in store.list("")] == ["source"]

    def test_whole_blocks_are_shared_where_both_files_have_them(self, store, monkeypatch):
        shared = []

        def share(source, start, target, position, length):
            assert start % 4096 == position % 4096 == length % 4096 == 0
            assert os.lseek(target, 0, os.SEEK_CUR) == position
            os.pwrite(target, self.DATA[start : start + length], position)
            os.lseek(target, position + length, os.SEEK_SET)
            shared.append((start, position, length))
            return True

        monkeypatch.setattr(kernel_copy, "clone_range", share)
        with store.open_writer("target") as writer:
            writer.copy_range(store, "source", 0, 10_000)
            writer.copy_range(store, "source", 10_000, 20_000)
            writer.write(b"x")
            writer.copy_range(store, "source", 20_000, 100_000)
            writer.write(bytes(2303))
            writer.copy_range(store, "source", 4_000, 300_000)
        data = self.DATA[:20_000] + b"x" + self.DATA[20_000:100_000] + bytes(2303) + self.DATA[4_000:]
        assert bytes(store.get("target")) == data
        assert shared == [(0, 0, 8_192), (12_288, 12_288, 4_096), (4_096, 102_400, 294_912)]

    def test_a_file_system_without_shared_blocks_is_asked_once(self, store, monkeypatch):
        asked = []
        monkeypatch.setattr(kernel_copy, "clone_range", lambda *arguments: asked.append(arguments) and False)
        with store.open_writer("target") as writer:
            for _ in range(3):
                writer.copy_range(store, "source", 0, 8192)
        assert len(asked) == 1
        assert bytes(store.get("target")) == self.DATA[:8192] * 3


@pytest.mark.parametrize("early", [False, True])
def test_a_file_is_aborted_once_a_thread_has_closed_it(tmp_path, monkeypatch, early):
    """An interruption can abort a file that a thread closes: the descriptor, which may be another's, is closed once."""
    writer = LocalStore(str(tmp_path)).open_writer("k")
    writer.write(b"data")
    closing, aborted, fsync, early_aborts = threading.Event(), threading.Event(), os.fsync, []

    def slow(fd):
        closing.set()
        early_aborts.append(aborted.wait(0.1))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    calls = writer.close_early() if early else [writer.close]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(calls[0])
        assert closing.wait(10)
        writer.abort()
        aborted.set()
        ended.result()
    assert early_aborts
    assert not any(early_aborts)  # the descriptor was in use all the time
    assert [path.name for path in tmp_path.iterdir()] == ["k"]
