"""Tags and branches after a power loss, and references that are torn."""

import logging
import os
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError, InvalidInputError, TornFileError, VersionNotFoundError
from lance_core.maintenance import MaintenancePolicy, maintain
from lance_core.maintenance.verify.files import verify


def table(uri):
    dataset = lance_core.write_dataset(pa.table({"a": [1]}), uri)
    dataset.insert(pa.table({"a": [2]}))
    dataset.tags.create("old", 1)
    dataset.create_branch("work").insert(pa.table({"a": [3]}))
    return lance_core.dataset(uri)


class Disk:
    """A disk below `_refs/` that forgets, at a power loss, what was not synced.

    A name can be written back at any time once it was given, so that the file must be synced before; it is only sure
    to be there, or to be deleted, once its folder was synced.
    """

    def __init__(self, monkeypatch, root):
        self.root, self.synced, self.unsure, self.faults, self.events = Path(root), set(), {}, [], []
        for name in ("rename", "link"):
            monkeypatch.setattr(os, name, self.naming(getattr(os, name)))
        self.real_unlink, self.real_fsync = os.unlink, os.fsync
        monkeypatch.setattr(os, "unlink", self.unlink)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def folder(self, path):
        path = Path(path)
        return path.parent if "_refs" in path.parts and "#" not in path.name else None

    def naming(self, real):
        def name(source, target):
            if self.folder(target) is not None:
                if Path(source).stat().st_ino not in self.synced:
                    self.faults.append(f"{target} can be torn")
                self.unsure.setdefault(self.folder(target), []).append(Path(target).name)
                self.events.append(str(target))
            real(source, target)

        return name

    def unlink(self, path):
        if "tree" in Path(path).parts and any(folder.name == "branches" for folder in self.unsure):
            self.faults.append("files of a branch go before its name")
        if self.folder(path) is not None:
            self.unsure.setdefault(self.folder(path), []).append(Path(path).name)
            self.events.append(str(path))
        self.real_unlink(path)

    def fsync(self, fd):
        status = os.fstat(fd)
        self.synced.add(status.st_ino)
        for folder in [folder for folder in self.unsure if folder.stat().st_ino == status.st_ino]:
            del self.unsure[folder]
        self.real_fsync(fd)


VERBS = {
    "create a tag": lambda ds: ds.tags.create("new", 2),
    "move a tag": lambda ds: ds.tags.update("old", 2),
    "describe a tag": lambda ds: ds.tags.replace_metadata("old", {"a": "b"}),
    "delete a tag": lambda ds: ds.tags.delete("old"),
    "create a branch": lambda ds: ds.create_branch("more"),
    "describe a branch": lambda ds: ds.branches.replace_metadata("work", {"a": "b"}),
    "promote a branch": lambda ds: ds.branches.promote("work"),
    "promote a branch with a tag": lambda ds: ds.branches.promote("work", tag="done"),
    "delete a branch": lambda ds: ds.branches.delete("work"),
    "discard a branch": lambda ds: ds.branches.discard("work"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("store", ["disk", "sqlite"])
def test_references_survive_a_power_loss(tmp_path, monkeypatch, verb, store):
    uri = str(tmp_path / "t")
    dataset = table(uri)
    if store == "sqlite":
        options = {"manifest_store": f"sqlite:///{tmp_path / 'rows.db'}"}
        uri = str(tmp_path / "other")
        lance_core.write_dataset(pa.table({"a": [1]}), uri, storage_options=options).insert(pa.table({"a": [2]}))
        dataset = lance_core.dataset(uri, storage_options=options)
        dataset.tags.create("old", 1)
        dataset.create_branch("work").insert(pa.table({"a": [3]}))
    disk = Disk(monkeypatch, uri)
    VERBS[verb](dataset)
    assert disk.events
    assert disk.faults == []
    assert disk.unsure == {}, "what was acknowledged can be undone"


TORN = {"empty": b"", "half": b'{"branch": null, "vers', "binary": b"\xff\x00\xfe", "other": b"[]"}


@pytest.fixture(params=TORN)
def torn(request, tmp_path):
    """A table with a torn tag and a torn branch beside healthy ones."""
    uri = str(tmp_path / "t")
    dataset = table(uri)
    dataset.tags.create("bad", 1)
    dataset.create_branch("broken").insert(pa.table({"a": [4]}))
    for name in ("tags/bad.json", "branches/broken.json"):
        (tmp_path / "t" / "_refs" / name).write_bytes(TORN[request.param])
    return lance_core.dataset(uri)


def test_what_does_not_need_a_torn_reference_goes_on(torn, caplog):
    with caplog.at_level(logging.WARNING, "lance_core"):
        assert "old" in torn.tags.list()
        assert "bad" not in dict(torn.tags.list_ordered())
        assert list(torn.branches.list()) == ["work"]
        assert [name for name, _ in torn.branches.list_ordered()] == ["work"]
    assert "_refs/tags/bad.json" in caplog.text
    assert "_refs/branches/broken.json" in caplog.text
    assert torn.tags.get_version("old") == 1
    assert torn.checkout_version("old").count_rows() == 1
    torn.tags.update("old", 2)
    torn.tags.delete("old")
    torn.tags.create("more")
    torn.branches.promote("work")
    assert torn.branches.orphans(timedelta(0)) == []


def test_what_needs_a_torn_reference_names_it(torn):
    for act in (
        lambda: torn.tags.get_version("bad"),
        lambda: torn.checkout_version("bad"),
        lambda: torn.tags.update("bad", 2),
        lambda: torn.tags.replace_metadata("bad", {}),
    ):
        with pytest.raises(CorruptFileError, match=r"t/_refs/tags/bad\.json.*tags\.delete\('bad'\)"):
            act()
    for act in (
        lambda: torn.branches.promote("broken"),
        lambda: torn.branches.replace_metadata("broken", {}),
        lambda: torn.branches.delete("work"),
        lambda: torn.branches.sweep(timedelta(0)),
    ):
        with pytest.raises(CorruptFileError, match=r"t/_refs/branches/broken\.json.*branches\.delete\('broken'\)"):
            act()
    assert list(torn.branches.list()) == ["work"]


def test_cleanup_keeps_everything_beside_a_torn_reference(torn, caplog):
    torn.delete("a = 2")
    explained = torn.explain_cleanup_old_versions(retain_versions=1)
    assert explained.stats.old_versions == 0
    assert any("_refs/tags/bad.json" in warning for warning in explained.warnings)
    with caplog.at_level(logging.WARNING, "lance_core"):
        removed = torn.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert (removed.old_versions, removed.bytes_removed) == (0, 0)
    assert "_refs/branches/broken.json" in caplog.text


def test_verify_names_torn_references(torn):
    named = ["_refs/branches/broken.json", "_refs/tags/bad.json"]
    for dataset in (torn, torn.checkout_version(("work", None))):
        assert sorted(problem.path for problem in verify(dataset)) == named
    Path(torn.uri, "_refs/tags/bad.json").write_text('{"version": -1, "manifestSize": 1}')  # complete, and invalid
    assert sorted(problem.path for problem in verify(torn)) == named
    torn.tags.delete("bad")
    torn.branches.delete("broken")
    assert verify(torn) == []


def test_torn_references_can_be_deleted(torn):
    torn.tags.delete("bad")
    torn.branches.delete("broken")
    folder = Path(torn.uri)
    assert not (folder / "_refs/tags/bad.json").exists()
    assert not (folder / "tree/broken").exists()
    with pytest.raises(VersionNotFoundError):
        torn.tags.delete("bad")
    with pytest.raises(VersionNotFoundError):
        torn.branches.delete("broken")
    torn.tags.create("bad", 2)
    assert lance.dataset(torn.uri).tags.list().keys() >= {"bad", "old"}
    torn.branches.delete("work")
    torn.tags.delete("old")
    assert torn.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False).old_versions == 1


@pytest.fixture
def misnamed(tmp_path):
    """A table with copies of the files of a tag, of a reader's tag, of a branch and of claims, as a sync client makes them."""
    dataset = table(str(tmp_path / "t"))
    dataset.readers.hold("report")
    refs = tmp_path / "t" / "_refs"
    (refs / "claims").mkdir(exist_ok=True)
    for name in ("removal-0", "use-0"):
        (refs / "claims" / f"{name}.json").write_text('{"versions":[]}')
    for path in [*refs.glob("*/*.json")]:
        path.with_name(f"{path.stem} (1).json").write_bytes(path.read_bytes())
    return lance_core.dataset(dataset.uri)


def test_a_copy_of_a_reference_stops_nothing_and_is_named(misnamed, caplog):
    with caplog.at_level(logging.WARNING, "lance_core"):
        assert "old (1)" not in misnamed.tags.list()
        assert list(misnamed.branches.list()) == ["work"]
        assert len(misnamed.readers.list()) == 1
    assert "_refs/tags/old (1).json" in caplog.text
    assert "_refs/branches/work (1).json" in caplog.text
    misnamed.delete("a = 2")
    misnamed.readers.hold("report")
    assert len(misnamed.readers.release("report")) == 1
    explained = misnamed.explain_cleanup_old_versions(retain_versions=1)
    assert any("_refs/tags/old (1).json" in warning for warning in explained.warnings)
    assert (
        misnamed.cleanup_old_versions(retain_versions=1).old_versions == 0
    )  # the copy may be all that names a version
    assert maintain(misnamed, MaintenancePolicy()).error is None
    for act in (
        lambda: misnamed.erase_rows("a = 1"),
        lambda: misnamed.branches.sweep(timedelta(0)),
        lambda: misnamed.branches.delete("work"),
        misnamed.clones.list,
    ):
        with pytest.raises(TornFileError, match=r"t/_refs/.* \(1\)\.json.*\.delete\('.*\(1\)'\)"):
            act()


def test_a_copy_of_a_reference_can_be_removed(misnamed):
    folder = Path(misnamed.uri, "_refs")
    for kind, verbs in (("tags", misnamed.tags), ("branches", misnamed.branches)):
        names = sorted(path.stem for path in folder.glob(f"{kind}/* (1).json"))
        assert {problem.path for problem in verify(misnamed)} >= {f"_refs/{kind}/{name}.json" for name in names}
        for name in names:
            verbs.delete(name)
            assert not (folder / kind / f"{name}.json").exists()
            with pytest.raises(InvalidInputError, match="can have the name"):
                verbs.delete(name)
    assert verify(misnamed) == []
    assert "old" in misnamed.tags.list()
    assert misnamed.checkout_version(("work", None)).count_rows() > 0
    misnamed.delete("a = 2")
    misnamed.insert(pa.table({"a": [5]}))
    misnamed.readers.release("report")
    assert misnamed.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False).old_versions > 0
    with pytest.raises(InvalidInputError, match="reserved"):
        misnamed.branches.delete("main")
