"""A shallow clone goes on working when its source is cleaned up, by either library."""

import datetime as dt
import errno
import re
import shutil

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.errors import DatasetExistsError, InvalidInputError, LanceError, StoreError, VersionNotFoundError
from lance_core.maintenance.verify.files import verify
from lance_core.store.local import LocalStore
from lance_core.verbs.refs import clones

LIBRARIES = {"ours": lance_core, "theirs": lance}


def rows(*numbers):
    return pa.table({"n": list(numbers)})


def ids(uri):
    found = sorted(lance_core.dataset(uri).to_table()["n"].to_pylist())
    assert sorted(lance.dataset(uri).to_table()["n"].to_pylist()) == found
    return found


def overwrite_and_clean(uri, who="ours"):
    lance_core.write_dataset(rows(9), uri, mode="overwrite")
    options = {} if who == "ours" else {"error_if_tagged_old_versions": False}
    LIBRARIES[who].dataset(uri).cleanup_old_versions(dt.timedelta(0), **options)


@pytest.fixture
def source(tmp_path):
    dataset = lance_core.write_dataset(rows(1, 2), tmp_path / "source")
    dataset.insert(rows(3))
    return dataset


@pytest.mark.parametrize("who", LIBRARIES)
def test_cleanup_keeps_what_a_clone_needs(source, tmp_path, who):
    target = str(tmp_path / "clone")
    source.shallow_clone(target, 2)
    (name,) = source.tags.list()
    assert name.startswith("clone.")
    overwrite_and_clean(source.uri, who)
    assert ids(target) == [1, 2, 3]
    assert verify(lance_core.dataset(target)) == []
    assert source.clones.list()[name]["uri"] == target
    lance_core.LanceDataset.drop(target)
    assert source.clones.list() == {}
    overwrite_and_clean(source.uri, who)
    assert [version["version"] for version in lance_core.dataset(source.uri).versions()] == [4]


def test_a_clone_of_a_branch_and_a_clone_of_a_clone(source, tmp_path):
    branch = source.create_branch("draft")
    branch.insert(rows(4))
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    source.shallow_clone(first, ("draft", None))
    lance_core.dataset(first).shallow_clone(second, 3)
    assert len(source.clones.list()) == 2
    with pytest.raises(InvalidInputError, match=re.escape(second)):
        lance_core.LanceDataset.drop(first)
    lance_core.dataset(first).clones.release(second)
    lance_core.LanceDataset.drop(first)
    assert [record["uri"] for record in source.clones.list().values()] == [second]
    source.clones.release(second)
    assert source.clones.list() == {}
    with pytest.raises(VersionNotFoundError, match="has no clone"):
        source.clones.release(second)


def test_a_table_is_not_dropped_while_a_clone_needs_its_files(source, tmp_path):
    target = str(tmp_path / "clone")
    source.shallow_clone(target, 2)
    before = sorted(path.name for path in tmp_path.glob("source/**/*"))
    with pytest.raises(InvalidInputError, match=rf"the shallow clone {re.escape(target)} needs its files"):
        lance_core.LanceDataset.drop(source.uri, ignore_not_found=True)
    assert sorted(path.name for path in tmp_path.glob("source/**/*")) == before
    assert ids(target) == [1, 2, 3]
    lance_core.LanceDataset.drop(target)
    lance_core.LanceDataset.drop(source.uri)
    assert lance_core.list_tables(tmp_path) == []


@pytest.mark.parametrize("ending", ["deep_clone", "release", "deleted by hand"])
def test_the_ways_to_drop_a_table_with_a_clone(source, tmp_path, ending):
    target = str(tmp_path / "clone")
    clone = source.shallow_clone(target, 2)
    if ending == "deep_clone":
        clone.deep_clone(str(tmp_path / "copy"), None)
        lance_core.LanceDataset.drop(target)
    elif ending == "deleted by hand":
        shutil.rmtree(target)
    if ending != "deep_clone":
        source.clones.release(target)
    lance_core.LanceDataset.drop(source.uri)
    if ending == "deep_clone":
        assert ids(tmp_path / "copy") == [1, 2, 3]


@pytest.mark.parametrize("damage", ["clone", "tag"])
def test_a_table_is_not_dropped_while_it_is_not_known_whether_a_clone_needs_it(source, tmp_path, monkeypatch, damage):
    def broken(store):
        raise StoreError(f"{store.root}: no answer")

    target = tmp_path / "clone"
    source.shallow_clone(str(target), 2)
    (tag,) = tmp_path.glob("source/_refs/tags/clone.*")
    if damage == "tag":
        tag.write_bytes(b"")
    else:
        monkeypatch.setattr(clones, "load_latest", broken)
    with pytest.raises(LanceError, match=r"tags.delete|may need its files|clones.release"):
        lance_core.LanceDataset.drop(source.uri)
    assert ids(source.uri) == [1, 2, 3]


def test_a_clone_that_is_not_made_leaves_no_tag(source, tmp_path):
    lance_core.write_dataset(rows(0), tmp_path / "there")
    with pytest.raises(DatasetExistsError):
        source.shallow_clone(tmp_path / "there", 1)
    assert source.tags.list() == {}


def test_a_source_that_cannot_be_written_to_is_warned_of(source, tmp_path, monkeypatch):
    put = LocalStore.put_if_absent

    def rejected(self, key, data, **options):
        if key.startswith("_refs/"):
            error = StoreError("read-only file system")
            error.errno = errno.EROFS
            raise error
        return put(self, key, data, **options)

    monkeypatch.setattr(LocalStore, "put_if_absent", rejected)
    with pytest.warns(UserWarning, match="deep_clone"):
        source.shallow_clone(tmp_path / "clone", 2)
    assert ids(tmp_path / "clone") == [1, 2, 3]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_clone_that_is_not_at_its_place_may_have_been_moved(source, tmp_path, is_replaced):
    target = str(tmp_path / "clone")
    source.shallow_clone(target, 2)
    shutil.move(target, tmp_path / "moved")
    if is_replaced:
        source.deep_clone(target, 2)
    with pytest.raises(InvalidInputError, match=r"is not at its place, and needs its files if it was moved.*release"):
        lance_core.LanceDataset.drop(source.uri)
    assert ids(tmp_path / "moved") == [1, 2, 3]
    source.clones.release(target)
    lance_core.LanceDataset.drop(source.uri)


def test_a_clone_is_not_made_where_its_version_is_not_kept(source, tmp_path, monkeypatch):
    def failed(*_, **__):
        raise StoreError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", failed)
        with pytest.raises(StoreError, match="no answer"):
            source.shallow_clone(tmp_path / "clone", 2)
    assert not (tmp_path / "clone").exists()


def test_verify_names_a_missing_base(source, tmp_path):
    target = str(tmp_path / "clone")
    clone = source.shallow_clone(target, 2)
    shutil.rmtree(source.uri)
    messages = [problem.message for problem in verify(clone) if problem.path == source.uri]
    assert len(messages) == 1
    assert "nothing is there" in messages[0]
    lance_core.LanceDataset.drop(target)  # nothing is left to be released


@pytest.mark.parametrize("is_dataset_root", [False, True])
@pytest.mark.parametrize("library", [lance, lance_core])
def test_verify_finds_a_base_path_without_a_dataset_sound(tmp_path, library, is_dataset_root):
    target, base = str(tmp_path / "t"), tmp_path / "second"
    base.mkdir()
    bases = [library.DatasetBasePath(str(base), name="second", is_dataset_root=is_dataset_root)]
    rows = pa.table({"a": [1, 2, 3]})
    library.write_dataset(rows, target, initial_bases=bases, target_bases=["second"])
    table = lance_core.dataset(target)
    assert verify(table, rows=True) == []
    lance.dataset(target).validate()
    shutil.rmtree(base)
    assert any("nothing is there" in problem.message for problem in verify(table))


def test_the_command_lists_and_releases(source, tmp_path):
    target = str(tmp_path / "clone")
    source.shallow_clone(target, 2)
    (name,) = source.clones.list()
    listed = CliRunner().invoke(cli, ["clones", source.uri, "--json"])
    assert (listed.exit_code, target in listed.output, name in listed.output) == (0, True, True)
    released = CliRunner().invoke(cli, ["clones", source.uri, "--release", target, "--yes"])
    assert released.exit_code == 0, released.output
    assert source.clones.list() == {}
    unknown = CliRunner().invoke(cli, ["clones", source.uri, "--release", target, "--yes"])
    assert "has no clone" in unknown.output
