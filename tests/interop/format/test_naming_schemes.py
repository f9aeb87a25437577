"""Datasets whose manifests follow both naming schemes: no version is hidden, and no number is given twice."""

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.commit.versions import locate_latest, newest_versions
from lance_core.errors import CorruptFileError
from lance_core.store.memory import MemoryStore
from lance_core.table.paths import Naming, manifest_key


def append(uri, value, library=lance_core):
    rows = pa.table({"id": [value]})
    library.write_dataset(rows, uri, mode="append", enable_v2_manifest_paths=False)


def ids(uri, library=lance_core):
    return sorted(library.dataset(uri).to_table()["id"].to_pylist())


def verify(uri):
    return CliRunner(env={"COLUMNS": "1000"}).invoke(cli, ["verify", uri])  # in one line for each problem


@pytest.fixture
def uri(tmp_path):
    """A table of five versions with V1 names."""
    uri = str(tmp_path / "t")
    for value in range(5):
        append(uri, value, lance)
    return uri


def rename(uri, version):
    old, new = (Path(uri) / manifest_key(version, naming) for naming in (Naming.V1, Naming.V2))
    old.rename(new)


@pytest.mark.parametrize("renamed", [1, 3, 4, 5])
def test_an_interrupted_migration_hides_no_version(uri, renamed):
    rename(uri, renamed)  # pylance renames in any order
    with pytest.raises(ValueError, match="multiple manifest naming schemes"):
        lance.dataset(uri)
    dataset = lance_core.dataset(uri)
    assert (dataset.version, ids(uri)) == (5, [0, 1, 2, 3, 4])
    assert dataset.version_as_of(dataset.versions()[-1]["timestamp"]) == 5
    result = verify(uri)
    assert (result.exit_code, "both naming schemes" in result.output) == (4, True)
    append(uri, 100)
    lance_core.dataset(uri).migrate_manifest_paths_v2()
    assert ids(uri) == ids(uri, lance) == [0, 1, 2, 3, 4, 100]
    assert lance.dataset(uri).version == 6
    assert verify(uri).exit_code == 0


def test_an_interrupted_copy_is_migrated(uri):
    old, new = (Path(uri) / manifest_key(5, naming) for naming in (Naming.V1, Naming.V2))
    shutil.copy(old, new)
    assert lance_core.dataset(uri).version == 5
    lance_core.dataset(uri).migrate_manifest_paths_v2()
    assert (old.exists(), ids(uri, lance)) == (False, [0, 1, 2, 3, 4])


def test_the_commit_of_an_older_handle_counts(uri):
    old = lance.dataset(uri)
    lance_core.dataset(uri).migrate_manifest_paths_v2()
    append(uri, 100)
    reader = lance_core.dataset(uri)
    old.insert(pa.table({"id": [101]}))
    assert old.version == 7
    reader.checkout_latest()
    assert (reader.version, ids(uri)) == (7, [0, 1, 2, 3, 4, 100, 101])
    append(uri, 102)
    lance_core.dataset(uri).migrate_manifest_paths_v2()
    assert ids(uri, lance) == [0, 1, 2, 3, 4, 100, 101, 102]


class TestOneNumberOfTwoVersions:
    """Two writers have given one number to two versions, each under its naming scheme."""

    @pytest.fixture
    def keys(self, uri):
        keys = [manifest_key(5, naming) for naming in (Naming.V1, Naming.V2)]
        old = Path(uri) / keys[0]
        hidden = old.read_bytes()
        old.unlink()
        append(uri, 100)
        (Path(uri) / keys[0]).rename(Path(uri) / keys[1])
        old.write_bytes(hidden)
        return keys

    def test_nothing_is_read_or_written(self, uri, keys):
        files = sorted(Path(uri).rglob("*"))
        for use in (ids, verify_and_raise, lambda uri: append(uri, 6)):
            with pytest.raises(CorruptFileError, match=f"{keys[0]}.*V1.*{keys[1]}.*V2.*migrate_manifest_paths_v2"):
                use(uri)
        assert sorted(Path(uri).rglob("*")) == files

    def test_the_remedy_works(self, uri, keys):
        (Path(uri) / keys[0]).unlink()
        lance_core.dataset(uri).migrate_manifest_paths_v2()
        assert ids(uri) == ids(uri, lance) == [0, 1, 2, 3, 100]

    def test_a_migration_removes_neither(self, uri, keys):
        dataset = lance_core.dataset(uri, version=4)
        with pytest.raises(CorruptFileError, match="two different manifests"):
            dataset.migrate_manifest_paths_v2()
        assert all((Path(uri) / key).exists() for key in keys)

    def test_below_the_latest_version(self, uri, keys):
        shutil.copy(Path(uri) / keys[1], Path(uri) / manifest_key(4, Naming.V2))
        (Path(uri) / keys[1]).unlink()
        dataset, manifests = lance_core.dataset(uri), sorted(Path(uri, "_versions").iterdir())
        with pytest.raises(CorruptFileError, match="version 4 has two different manifests"):
            dataset.migrate_manifest_paths_v2()
        assert sorted(Path(uri, "_versions").iterdir()) == manifests
        assert "version 4 has two different manifests" in verify(uri).output


def verify_and_raise(uri):
    result = CliRunner().invoke(cli, ["verify", uri], standalone_mode=False)
    assert result.exit_code != 0
    raise CorruptFileError(" ".join(result.output.split()))


@pytest.mark.parametrize("old", [1, 7, 1002, 1845, 5000])
def test_more_versions_than_a_listing_shows(monkeypatch, old):
    """Names of V1 sort before and after those of V2."""
    monkeypatch.setattr(MemoryStore, "put_is_a_request", True)
    store = MemoryStore(f"memory://named-twice-{old}")
    for version in range(1, 1002):
        store.put(manifest_key(version), b"")
    assert locate_latest(store)[0] == 1001
    assert list(newest_versions(store)) == list(range(1001, 0, -1))
    store.put(manifest_key(old, Naming.V1), b"")
    assert locate_latest(store)[0] == max(old, 1001)
    assert list(newest_versions(store)) == sorted({*range(1, 1002), old}, reverse=True)
