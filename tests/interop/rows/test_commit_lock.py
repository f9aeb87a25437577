"""A commit lock is held for the commits that pylance holds it for."""

import contextlib
import pickle

import lance
import pyarrow as pa
import pytest

import lance_core

LIBRARIES = {"ours": lance_core, "theirs": lance}

CHANGES = {
    "insert": lambda ds: ds.insert(rows(4)),
    "overwrite": lambda ds: ds.insert(rows(4), mode="overwrite"),
    "delete": lambda ds: ds.delete("a = 1"),
    "update": lambda ds: ds.update({"b": "'y'"}, "a = 1"),
    "merge_insert": lambda ds: ds.merge_insert("a").when_not_matched_insert_all().execute(rows(1, 9)),
    "truncate": lambda ds: ds.truncate_table(),
    "add_columns": lambda ds: ds.add_columns({"c": "a + 1"}),
    "alter_columns": lambda ds: ds.alter_columns({"path": "b", "name": "c"}),
    "drop_columns": lambda ds: ds.drop_columns(["b"]),
    "update_config": lambda ds: ds.update_config({"k": "v"}),
    "update_metadata": lambda ds: ds.update_metadata({"k": "v"}),
    "compact": lambda ds: ds.optimize.compact_files(),
    "restore": lambda ds: ds.checkout_version(1).restore(),
    "add_bases": lambda ds: ds.add_bases([base_of(ds)]),
    "tag": lambda ds: ds.tags.create("x", 1),
    "create_branch": lambda ds: ds.create_branch("one").delete("a = 1"),
    "old branch": lambda ds: (ds.create_branch("one"), ds.checkout_version(("one", None)).delete("a = 1")),
    "checkout": lambda ds: ds.checkout_version(2).delete("a = 1"),
    "shallow_clone": lambda ds: ds.shallow_clone(f"{ds.uri}-clone", 2).delete("a = 1"),
    "deep_clone": lambda ds: ds.deep_clone(f"{ds.uri}-clone", 2).delete("a = 1"),
    "pickle": lambda ds: pickle.loads(pickle.dumps(ds)).delete("a = 1"),
    "cleanup": lambda ds: ds.cleanup_old_versions(retain_versions=1),
}


def rows(*values):
    return pa.table({"a": pa.array(values, pa.int64()), "b": ["x"] * len(values)})


def base_of(dataset):
    library = lance if isinstance(dataset, lance.LanceDataset) else lance_core
    return library.DatasetBasePath(f"{dataset.uri}-base", name="base")


class Lock:
    """Notes which versions it was held for, one at a time."""

    def __init__(self):
        self.versions, self.is_held = [], False

    @contextlib.contextmanager
    def __call__(self, version):
        assert not self.is_held
        self.versions.append(version)
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False


def made(library, uri):
    """A dataset of two versions."""
    library.write_dataset(rows(1, 2), uri)
    library.write_dataset(rows(3), uri, mode="append")
    return uri


@pytest.mark.parametrize("name", CHANGES)
def test_handles_hold_the_lock_for_their_commits(tmp_path, name):
    held = {}
    for which, library in LIBRARIES.items():
        lock = Lock()
        CHANGES[name](library.dataset(made(library, str(tmp_path / which)), commit_lock=lock))
        held[which] = lock.versions
    assert held["ours"] == held["theirs"]
    assert bool(held["ours"]) == (name not in ("tag", "cleanup", "pickle"))


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
class TestWriters:
    def test_what_write_dataset_returns_keeps_the_lock(self, tmp_path, library):
        lock = Lock()
        dataset = library.write_dataset(rows(1), str(tmp_path / "t"), commit_lock=lock)
        library.write_dataset(rows(2), dataset, mode="append")
        library.write_dataset(rows(2), dataset.uri, mode="append")
        library.write_dataset(rows(2), dataset.uri, mode="append", commit_lock=lock).delete("a = 2")
        assert lock.versions == [1, 2, 4, 5]

    def test_an_argument_goes_before_the_lock_of_the_handle(self, tmp_path, library):
        of_handle, given = Lock(), Lock()
        dataset = library.dataset(made(library, str(tmp_path / "t")), commit_lock=of_handle)
        dataset.insert(rows(4), commit_lock=given)
        fragments = library.fragment.write_fragments(rows(5), dataset.uri)
        append = library.LanceOperation.Append(fragments)
        library.LanceDataset.commit(dataset, append, read_version=3, commit_lock=given)
        library.LanceDataset.commit(dataset, append, read_version=3)
        transaction = library.Transaction(3, append)
        library.LanceDataset.commit_batch(dataset, [transaction], commit_lock=given)
        library.LanceDataset.commit(dataset.uri, append, read_version=3, commit_lock=given).delete("a = 1")
        assert (of_handle.versions, given.versions) == ([5], [3, 4, 6, 7, 8])

    def test_something_else_is_rejected(self, tmp_path, library):
        with pytest.raises(TypeError, match="commit_lock must be a function"):
            library.write_dataset(rows(1), str(tmp_path / "t"), commit_lock=3)
        assert not (tmp_path / "t").exists()


def test_what_a_lock_raises_comes_through_and_commits_nothing(tmp_path):
    def rejected(version):
        raise ConnectionError(f"no lock for {version}")

    dataset = lance_core.dataset(made(lance_core, str(tmp_path / "t")), commit_lock=rejected)
    with pytest.raises(ConnectionError, match="no lock for 3"):
        dataset.delete("a = 1")
    assert (dataset.version, dataset.latest_version, dataset.count_rows()) == (2, 2, 3)


@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["insert", "overwrite", "delete", "update", "merge_insert", "add_columns", "restore"])
def test_a_lock_that_cannot_be_had_leaves_nothing(tmp_path, name, error):
    """Whether a function raises that gives a lock, or entering what it gives."""

    class Rejected:
        def __enter__(self):
            raise error("no lock")

        def __exit__(self, *_):
            raise AssertionError("it was not entered")

    uri = made(lance_core, str(tmp_path / "t"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match="no lock"):
        CHANGES[name](lance_core.dataset(uri, commit_lock=lambda _: Rejected()))
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and path not in before] == []


def test_a_lock_is_entered_for_each_attempt(tmp_path):
    uri = made(lance_core, str(tmp_path / "t"))
    seen = []

    @contextlib.contextmanager
    def late(version):
        """Lets another writer be faster, as one that does not know the lock can be."""
        seen.append(version)
        if version == 3:
            lance.write_dataset(rows(7), uri, mode="append")
        yield

    dataset = lance_core.dataset(uri, commit_lock=late)
    dataset.insert(rows(8))
    assert seen == [3, 4]
    assert sorted(lance.dataset(uri).to_table()["a"].to_pylist()) == [1, 2, 3, 7, 8]
