"""The answer to a commit is lost, and the storage fails again right after: what was committed is whole."""

import datetime as dt
from functools import partialmethod

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import OutcomeUnknownError, StoreError
from lance_core.store.local import LocalStore

ROWS = pa.table({"id": list(range(100)), "x": [float(i) for i in range(100)]})

VERBS = {
    "append": lambda uri: lance_core.write_dataset(ROWS, uri, mode="append"),
    "overwrite": lambda uri: lance_core.write_dataset(ROWS.slice(0, 7), uri, mode="overwrite"),
    "delete": lambda uri: lance_core.dataset(uri).delete("id % 3 = 0"),
    "update": lambda uri: lance_core.dataset(uri).update({"x": "x + 1"}, where="id < 5"),
    "merge": lambda uri: (
        lance_core.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(ROWS)
    ),
    "add columns": lambda uri: lance_core.dataset(uri).add_columns({"y": "x * 2"}),
    "alter columns": lambda uri: lance_core.dataset(uri).alter_columns({"path": "x", "data_type": pa.float32()}),
    "compact": lambda uri: lance_core.dataset(uri).optimize.compact_files(),
    "index": lambda uri: lance_core.dataset(uri).create_scalar_index("id", "BTREE"),
    "restore": lambda uri: lance_core.dataset(uri, version=1).restore(),
}


def _pass_on(store, to, *args, **kwargs):
    """Call a function in place of a store's method."""
    return to(store, *args, **kwargs)


class Breakage:
    """Breaks commits of a process: put number `number` of a manifest loses its answer, then the next call fails.

    Attributes:
        arrives: When the put arrives: at once, or after the call that fails, as a request that was slow.
    """

    def __init__(self, monkeypatch, number, arrives="at once"):
        self.number, self.arrives, self.puts, self.broken = number, arrives, 0, False
        self.real_put, self.real_read, self.late = LocalStore.put_if_absent, LocalStore.read, None
        monkeypatch.setattr(LocalStore, "put_if_absent", partialmethod(_pass_on, self.put))
        monkeypatch.setattr(LocalStore, "read", partialmethod(_pass_on, self.read))

    def put(self, store, key, data, **kwargs):
        if self.broken and self.late is not None:
            self.late = self.late()
            raise StoreError("injected: no answer at all")
        if key.startswith("_versions/"):
            self.puts += 1
        if not key.startswith("_versions/") or self.puts != self.number or self.broken:
            return self.real_put(store, key, data, **kwargs)
        self.broken = True
        if self.arrives == "later":
            self.late = lambda: self.real_put(store, key, bytes(data), **kwargs) and None
        else:
            self.real_put(store, key, data, **kwargs)
        raise OutcomeUnknownError("injected: the answer was lost")

    def read(self, store, *args, **kwargs):
        if self.broken and self.arrives == "at once":
            self.arrives = "done"
            raise StoreError("injected: unavailable")
        return self.real_read(store, *args, **kwargs)


def table(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(ROWS.slice(0, 50), uri)
    lance_core.write_dataset(ROWS.slice(50), uri, mode="append")
    return uri


def puts_of(tmp_path, verb, monkeypatch):
    """How many manifests a verb puts."""
    uri = table(tmp_path / "counted")
    with monkeypatch.context() as patch:
        breakage = Breakage(patch, number=0)
        VERBS[verb](uri)
    return breakage.puts


@pytest.mark.parametrize("arrives", ["at once", "later"])
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_that_a_version_refers_to_is_removed(tmp_path, monkeypatch, verb, arrives):
    puts = puts_of(tmp_path, verb, monkeypatch)
    assert puts
    for number in range(1, puts + 1):
        uri = table(tmp_path / str(number))
        before = lance_core.dataset(uri).version
        with monkeypatch.context() as patch:
            breakage = Breakage(patch, number, arrives)
            with pytest.raises(OutcomeUnknownError, match="The version was committed if"):
                VERBS[verb](uri)
        assert breakage.broken
        after = lance_core.dataset(uri)
        assert after.version == before + number  # it did arrive
        after.validate()
        reference = lance.dataset(uri)
        assert reference.to_table().sort_by("id").equals(after.to_table().sort_by("id"))
        assert reference.to_table(filter="id = 40").num_rows == after.count_rows("id = 40")


def test_a_name_that_may_not_be_on_disk_is_no_success(tmp_path, monkeypatch):
    from lance_core.store import local

    uri = table(tmp_path)
    real = local.sync_directory

    def failing(folder):
        if folder.endswith("_versions"):
            raise OSError(5, "Input/output error")
        real(folder)

    with monkeypatch.context() as patch:
        patch.setattr(local, "sync_directory", failing)
        with pytest.raises(OutcomeUnknownError, match=r"is there, and may not be on disk: .*Input/output error"):
            lance_core.write_dataset(ROWS, uri, mode="append")
    assert lance_core.dataset(uri).count_rows() == 200
    lance_core.dataset(uri).validate()


def test_a_name_that_reaches_the_disk_later_is_a_success(tmp_path, monkeypatch):
    from lance_core.store import local

    uri = table(tmp_path)
    real, failed = local.sync_directory, []

    def failing_once(folder):
        if folder.endswith("_versions") and not failed:
            failed.append(folder)
            raise OSError(5, "Input/output error")
        real(folder)

    monkeypatch.setattr(local, "sync_directory", failing_once)
    assert lance_core.write_dataset(ROWS, uri, mode="append").version == 3
    assert failed


MAKES = {
    "clone": lambda table, to: table.shallow_clone(to, None),
    "branch": lambda table, _: table.create_branch("b"),
}


class Failure:
    """The put of a key fails: its answer is lost, it has no effect, or the process is interrupted; no read works then."""

    def __init__(self, monkeypatch, part, error):
        self.part, self.error, self.real, self.is_down = part, error, LocalStore.put_if_absent, False
        self.real_read, self.real_get = LocalStore.read, LocalStore.get
        monkeypatch.setattr(LocalStore, "put_if_absent", partialmethod(_pass_on, self.put))
        monkeypatch.setattr(LocalStore, "read", partialmethod(_pass_on, self.read))
        monkeypatch.setattr(LocalStore, "get", partialmethod(_pass_on, self.get))

    def get(self, store, *args, **kwargs):
        if self.is_down:
            raise StoreError("injected: unavailable")
        return self.real_get(store, *args, **kwargs)

    def put(self, store, key, data, **kwargs):
        is_it = self.part in f"{store.root}/{key}"
        if not is_it or not isinstance(self.error, StoreError) or isinstance(self.error, OutcomeUnknownError):
            self.real(store, key, data, **kwargs)
        if is_it:
            self.is_down = True
            raise self.error

    def read(self, store, *args, **kwargs):
        if self.is_down:
            raise StoreError("injected: unavailable")
        return self.real_read(store, *args, **kwargs)


@pytest.mark.parametrize(
    ("verb", "part"),
    [("clone", "c/_versions/"), ("branch", "tree/b/_versions/"), ("branch", "_refs/branches/b")],
    ids=["clone", "version of a branch", "reference of a branch"],
)
@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), KeyboardInterrupt(), StoreError("failed")], ids=repr)
def test_what_may_need_a_version_keeps_its_tag(tmp_path, monkeypatch, verb, part, error):
    table, clone = lance_core.write_dataset(ROWS, tmp_path / "t"), tmp_path / "c"
    with monkeypatch.context() as patch:
        Failure(patch, part, error)
        with pytest.raises(type(error)):
            MAKES[verb](table, clone)
    made = "c" if verb == "clone" else "t/tree/b"
    exists = bool(list((tmp_path / made / "_versions").glob("*.manifest")))
    assert len(table.tags.list()) == exists
    lance_core.write_dataset(ROWS.slice(0, 1), tmp_path / "t", mode="overwrite")
    lance.dataset(table.uri).cleanup_old_versions(
        dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
    if exists:
        found = lance_core.dataset(clone) if verb == "clone" else lance_core.dataset(table.uri).ensure_branch("b")
        assert found.to_table() == ROWS
