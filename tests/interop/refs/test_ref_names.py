"""Names and files of tags and branches: which are made, and which of other tools are read, written to and kept."""

import json
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, LanceError

REJECTED = (OSError, ValueError, LanceError)
ROWS = pa.table({"a": [1, 2]})

TAGS = ["a", "a.b", "-a", "a-", "_", "main", "HEAD", "a.", "a..", ".a", ".", "a.lock", "a..b", "a/b", "", "a b", "a%b"]
BRANCHES = [
    *("a", "a.", ".a", "a.b", ".a.b", "-a", "a-", "_", "a/b", "a/.b", "a/b.", "a./b", ".a/.b.", "HEAD", "a.lock/b"),
    *("main", "", ".", "..", "a..", "a..b", "a.lock", "/a", "a/", "a//b", "a/.", "a/./b", "a b", "a:b", "a%b", "a\\b"),
]


@pytest.fixture
def uri(tmp_path):
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    lance.write_dataset(ROWS, uri, mode="append")
    return uri


@pytest.mark.parametrize("name", TAGS)
def test_tags_are_made_by_the_names_that_pylance_takes(tmp_path, name):
    outcomes = []
    for library in (lance, lance_core):
        dataset = library.write_dataset(ROWS, tmp_path / library.__name__)
        try:
            dataset.tags.create(name, 1)
        except REJECTED:
            outcomes.append("rejected")
        else:
            outcomes.append([sorted(reader.dataset(dataset.uri).tags.list()) for reader in (lance, lance_core)])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_made_by_the_names_that_pylance_takes(tmp_path, name):
    outcomes = []
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        library.write_dataset(ROWS, uri)
        try:
            library.dataset(uri).create_branch(name)
        except REJECTED:
            outcomes.append("rejected")
            continue
        for writer in (lance, lance_core):
            writer.write_dataset(ROWS, f"{uri}/tree/{name}", mode="append")
        read = [reader.dataset(uri).checkout_version((name, None)).count_rows() for reader in (lance, lance_core)]
        listed = [list(reader.dataset(uri).branches.list()) for reader in (lance, lance_core)]
        lance_core.dataset(uri).branches.delete(name)
        assert lance_core.dataset(uri).tags.list() == {}, "the tag of the fork goes with the branch"
        outcomes.append((read, listed))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["a.", ".a", "x/.a", "a/b."])
def test_every_branch_keeps_its_fork_version_by_a_tag(uri, name):
    lance_core.dataset(uri).create_branch(name, 1)
    (tag,) = lance_core.dataset(uri).tags.list()
    assert list(lance.dataset(uri).tags.list()) == [tag]
    lance_core.write_dataset(ROWS, uri, mode="overwrite")
    lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1))
    lance.dataset(uri).cleanup_old_versions(timedelta(microseconds=1), error_if_tagged_old_versions=False)
    assert lance.dataset(f"{uri}/tree/{name}").to_table() == ROWS


def test_the_tags_of_older_forks_go_on_working(uri):
    lance_core.dataset(uri).create_branch("a/b", 1)
    (path,) = Path(uri, "_refs", "tags").iterdir()
    assert path.name.startswith("fork.a-b.")
    path.rename(path.with_name("fork.some.name.json"))
    lance_core.write_dataset(ROWS, uri, mode="overwrite")
    lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1))
    assert lance_core.dataset(f"{uri}/tree/a/b").to_table() == ROWS
    lance_core.dataset(uri).branches.delete("a/b")
    assert lance_core.dataset(uri).tags.list() == {}


SCRIPTS = ["é", "日本", "ü/x", "٣", "ветка.1"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_branches_of_other_scripts_are_used_and_protected_but_not_made(uri, name):
    lance.dataset(uri).create_branch(name, 1)
    ours = lance_core.dataset(uri)
    assert list(ours.branches.list()) == [name]
    branch = ours.checkout_version((name, None))
    assert (branch.branch, branch.version, branch.to_table()) == (name, 1, ROWS)
    lance_core.write_dataset(ROWS, branch, mode="append")
    branch.checkout_latest()
    branch.delete("a = 1")
    lance.write_dataset(ROWS, f"{uri}/tree/{name}", mode="append")
    branch.checkout_latest()
    branch.tags.create("named")
    branch.branches.replace_metadata(name, {"who": "me"})
    lance_core.write_dataset(ROWS, uri, mode="overwrite")
    lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1))
    for library in (lance, lance_core):
        dataset = library.dataset(uri)
        assert dataset.checkout_version((name, None)).count_rows() == 4
        assert dataset.checkout_version("named").count_rows() == 4
        assert dataset.branches.list()[name]["metadata"] == {"who": "me"}
    with pytest.raises(InvalidInputError, match="ASCII"):
        lance_core.dataset(uri).create_branch(name + "2")
    lance_core.dataset(uri).create_branch("plain", (name, None))
    assert lance.dataset(f"{uri}/tree/plain").count_rows() == 4
    for each in ("plain", name):
        with pytest.raises(InvalidInputError, match="can not delete"):
            lance_core.dataset(uri).branches.delete(name)
        if each == "plain":
            lance_core.dataset(uri).branches.delete("plain")
    lance_core.dataset(uri).tags.delete("named")
    lance_core.dataset(uri).branches.delete(name)
    assert lance.dataset(uri).branches.list() == {}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if "/" not in name])
def test_tags_of_other_scripts_are_used_and_protect_their_versions_but_are_not_made(uri, name):
    lance.dataset(uri).tags.create(name, 1)
    ours = lance_core.dataset(uri)
    assert list(ours.tags.list()) == [name]
    assert ours.checkout_version(name).version == lance.dataset(uri).checkout_version(name).version == 1
    ours.tags.update(name, 2)
    assert lance.dataset(uri).checkout_version(name).version == 2
    ours.tags.replace_metadata(name, {"k": "v"})
    assert ours.tags.list()[name]["metadata"] == {"k": "v"}
    lance_core.write_dataset(ROWS, uri, mode="overwrite")
    lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1), error_if_tagged_old_versions=False)
    assert lance_core.dataset(uri, version=name).count_rows() == 4
    with pytest.raises(InvalidInputError, match="ASCII"):
        ours.tags.create(name + "2", 3)
    ours.tags.delete(name)
    assert ours.tags.list() == lance.dataset(uri).tags.list() == {}


def _changed(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_main_by_its_name_is_main(uri):
    lance.dataset(uri).tags.create("t", 1)
    lance.dataset(uri).create_branch("b", 1)
    _changed(Path(uri, "_refs", "tags", "t.json"), branch="main")
    _changed(Path(uri, "_refs", "branches", "b.json"), parentBranch="main")
    ours = lance_core.dataset(uri)
    assert ours.tags.list()["t"]["branch"] is None
    assert ours.checkout_version("t").version == lance.dataset(uri).checkout_version("t").version == 1
    assert ours.checkout_version("t").branch is None
    assert ours.branches.list()["b"]["parent_branch"] is None
    lance_core.write_dataset(ROWS, uri, mode="overwrite")
    with pytest.raises(InvalidInputError, match="tags: t"):
        lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1))
    lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1), error_if_tagged_old_versions=False)
    assert lance_core.dataset(f"{uri}/tree/b").to_table() == ROWS


def test_unknown_keys_are_kept_when_a_file_is_changed(uri):
    ours = lance_core.dataset(uri)
    ours.tags.create("t", 1)
    ours.create_branch("b", 1)
    tag, branch = Path(uri, "_refs", "tags", "t.json"), Path(uri, "_refs", "branches", "b.json")
    for path in (tag, branch):
        _changed(path, retention={"days": 3}, flag=True)
    ours.tags.update("t", 2)
    ours.tags.replace_metadata("t", {"a": "b"})
    ours.branches.replace_metadata("b", {"a": "b"})
    for path in (tag, branch):
        content = json.loads(path.read_text())
        assert (content["retention"], content["flag"], content["metadata"]) == ({"days": 3}, True, {"a": "b"})
    assert json.loads(tag.read_text())["version"] == 2
    assert lance.dataset(uri).tags.list()["t"]["metadata"] == {"a": "b"}
