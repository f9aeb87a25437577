"""What commits through a database must do with every kind of it, as a test class."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

import lance_core
from lance_core import LanceDataset
from lance_core.commit.loop import commit
from lance_core.commit.versions import latest_version, list_versions, load_manifest
from lance_core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    StoreError,
    VersionNotFoundError,
)
from lance_core.store import open_store
from lance_core.table.paths import branch_ref_key
from lance_core.testing.racing import race
from tests.lance_core.commit.tables import appending, creation


@dataclass(frozen=True)
class Place:
    """Where a dataset can be that is committed through a database, and a look into the database."""

    uri: str
    options: Mapping[str, str]
    rows: Callable[[], list[tuple[str, int]]]

    @property
    def store(self):
        return open_store(self.uri, self.options)

    def open(self):
        return lance_core.dataset(self.uri, storage_options=self.options)

    def write(self, *values, mode="append"):
        return lance_core.write_dataset(pa.table({"a": values}), self.uri, mode=mode, storage_options=self.options)

    def drop(self, **arguments):
        LanceDataset.drop(self.uri, self.options, **arguments)

    def lose_files(self, prefix=""):
        """Delete files behind the database's back."""
        bare = self.store._store
        for found in list(bare.list(prefix)):
            bare.delete(found.key)

    def versions(self, suffix=""):
        """Versions of the rows whose place ends in so."""
        return sorted(version for place, version in self.rows() if place.endswith(suffix))


def failing(real, fails):
    """A method that fails for some arguments."""

    def call(self, *args):
        if fails(*args):
            raise StoreError("injected")
        return real(self, *args)

    return call


class ExternalCommitConformance:
    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.mark.parametrize("step", ["put", "finalize", "delete"])
    def test_a_reader_finishes_what_a_writer_left(self, place, monkeypatch, step):
        store = place.store
        commit(store, creation())
        owner = type(store.table if step == "finalize" else store._store)

        def fails(key, *_):
            return step == "finalize" or ("_versions/" in key and (".manifest-" in key) == (step == "delete"))

        with monkeypatch.context() as patch:
            patch.setattr(owner, step, failing(getattr(owner, step), fails))
            assert commit(store, appending(1)).manifest.version == 2
        assert latest_version(store) == 2
        assert load_manifest(store, 2).version == 2
        assert commit(store, appending(2)).manifest.version == 3

    def test_older_versions_open_by_number_where_the_newest_is_lost(self, place, monkeypatch):
        place.write(1, mode="create")
        place.write(2)
        store = place.store
        with monkeypatch.context() as patch:
            owner = type(store._store)
            patch.setattr(owner, "put", failing(owner.put, lambda key, *_: key.endswith(".manifest")))
            place.write(3)
        (staged,) = [meta.key for meta in store._store.list("_versions/") if ".manifest-" in meta.key]
        store._store.delete(staged)
        with pytest.raises(ObjectNotFoundError, match="older versions can be opened by their numbers"):
            place.open()
        for version in (1, 2):
            opened = lance_core.dataset(place.uri, version=version, storage_options=place.options)
            assert (opened.version, opened.count_rows()) == (version, version)
        with pytest.raises(ObjectNotFoundError):
            lance_core.dataset(place.uri, version=3, storage_options=place.options)

    def test_racing_writers_lose_nothing(self, place):
        store = place.store
        commit(store, creation())

        def write(_):
            for _ in range(3):
                commit(store, appending(1))

        race(4, write)
        assert list_versions(store) == list(range(1, 14))

    def test_of_racing_rows_one_is_added(self, place):
        tables = [place.store.table for _ in range(4)]
        for version in range(1, 11):
            added = race(4, lambda number, version=version: tables[number].add(version, f"key-{number}", 1))
            assert sorted(added) == [False] * 3 + [True]
            assert tables[0].latest() == (version, f"key-{added.index(True)}")

    def test_of_racing_creators_one_wins(self, place):
        def create(_):
            try:
                commit(place.store, creation())
            except DatasetExistsError as error:
                return str(error)
            return None

        for _ in range(3):
            (won, *errors) = sorted(race(4, create), key=bool)
            assert won is None
            assert [error for error in errors if error is None or "already exists" not in error] == []
            place.drop()

    def test_a_dropped_dataset_is_forgotten(self, place):
        for _ in range(3):
            dataset = place.write(1)
        dataset.create_branch("deep/b").delete("a = 5")
        assert place.versions("tree/deep/b") == [3, 4]
        place.drop()
        assert place.rows() == []
        assert place.write(7, mode="create").version == 1
        assert place.write(8).to_table()["a"].to_pylist() == [7, 8]

    def test_only_the_dropped_dataset_is_forgotten(self, place):
        def beside(end):
            before, *query = place.uri.partition("?")
            return replace(place, uri="".join((before, end, *query)))

        for each in (place, beside("2")):
            each.write(1).create_branch("b")
        lance_core.dataset(place.uri, storage_options=place.options).create_branch("x")
        place.store.delete(branch_ref_key("x"))  # a branch without a reference, as an unfinished one is
        # Names that lead elsewhere are no branches'.
        name = place.uri.partition("?")[0].rpartition("/")[2] + "2"
        place.store.put(branch_ref_key(f"../../{name}"), b"{}")
        place.drop()
        assert (place.versions(f"/{name}"), place.versions(f"/{name}/tree/b"), len(place.rows())) == ([1], [1], 2)
        assert beside("2").write(2).version == 2

    def test_a_deleted_branch_is_forgotten(self, place):
        dataset = place.write(1)
        dataset.create_branch("b/c")
        for value in (2, 3):
            branch = dataset.create_branch("b")
            for _ in range(value):
                branch.delete(f"a = {value}")
            dataset.branches.delete("b")
            assert place.versions("tree/b") == []
        assert place.versions("tree/b/c") == [1]
        assert place.versions() == [1, 1]
        assert dataset.branches.list().keys() == {"b/c"}
        assert dataset.checkout_version(("b/c", None)).count_rows() == 1
        with pytest.raises(VersionNotFoundError):
            dataset.branches.delete("b")

    def test_another_drop_finishes_one_that_was_cut_short(self, place, monkeypatch):
        place.write(1).create_branch("b")
        place.write(2)
        table = type(place.store.table)
        for count in range(2):
            cleared = []

            def fails(count=count, cleared=cleared):
                cleared.append(1)
                return len(cleared) > count

            with monkeypatch.context() as patch:
                patch.setattr(table, "clear", failing(table.clear, fails))
                with pytest.raises(StoreError, match="injected"):
                    place.drop()
            assert place.versions("tree/b") == ([1] if count == 0 else [])
        assert [found.key for found in place.store.list("")] == []
        assert place.versions() == [2]
        with pytest.raises(DatasetNotFoundError):
            place.open()
        place.drop()
        assert place.rows() == []
        with pytest.raises(DatasetNotFoundError):
            place.drop()
        place.drop(ignore_not_found=True)

    def test_another_deletion_finishes_that_of_a_branch(self, place, monkeypatch):
        dataset = place.write(1)
        dataset.create_branch("b").delete("a = 1")
        table = type(place.store.table)
        with monkeypatch.context() as patch:
            patch.setattr(table, "clear", failing(table.clear, lambda: True))
            with pytest.raises(StoreError, match="injected"):
                dataset.branches.delete("b")
        with pytest.raises(DatasetExistsError, match=re.escape("branches.delete('b')")):
            dataset.create_branch("b")
        (tag,) = dataset.tags.list()
        dataset.tags.delete(tag)  # pylance makes none
        dataset.branches.delete("b")
        assert place.versions("tree/b") == []
        assert dataset.create_branch("b").count_rows() == 1

    @pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
    def test_rows_without_files_are_named_when_a_dataset_begins(self, place, mode):
        for _ in range(3):
            place.write(1)
        place.lose_files()
        with pytest.raises(DatasetNotFoundError):
            place.open()
        with pytest.raises(DatasetExistsError, match=r"LanceDataset\.drop") as caught:
            place.write(7, mode=mode)
        assert place.uri in str(caught.value)
        place.drop()
        assert (place.rows(), list(place.store.list(""))) == ([], [])
        assert place.write(7, mode=mode).version == 1
        assert place.open().to_table()["a"].to_pylist() == [7]

    @pytest.mark.parametrize("lost", ["_versions/", ""])
    def test_a_commit_that_nobody_finished_before_the_files_went(self, place, monkeypatch, lost):
        owner = type(place.store._store)
        with monkeypatch.context() as patch:
            fails = lambda key, *_: key.endswith(".manifest")  # noqa: E731 - the put of the final manifest
            patch.setattr(owner, "put", failing(owner.put, fails))
            commit(place.store, creation())
        assert len(place.rows()) == 1
        place.lose_files(lost)
        with pytest.raises(DatasetNotFoundError):
            place.open()
        with pytest.raises(DatasetExistsError, match=r"LanceDataset\.drop"):
            place.write(7)
        place.drop()
        assert (place.rows(), list(place.store.list(""))) == ([], [])
        assert place.write(7).version == 1
