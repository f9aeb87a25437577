"""What is deleted with a table never lies behind a symbolic link."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core as lance

ROWS = pa.table({"a": [1, 2, 3]})


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "precious.lance").write_bytes(b"precious")
    (folder / "precious.lance").write_bytes(b"precious")
    return folder


def untouched(folder: Path) -> bool:
    return all((folder / name).read_bytes() == b"precious" for name in ("precious.lance", "sub/precious.lance"))


def test_drop_removes_links_and_nothing_behind_them(tmp_path, outside):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    root = Path(dataset.uri)
    for place in ("link", "data/link", "_refs"):
        (root / place).symlink_to(outside)
    (root / "_indices").symlink_to(tmp_path / "nowhere")
    lance.LanceDataset.drop(root)
    assert untouched(outside)
    assert [path for path in root.rglob("*") if path.is_symlink() or path.is_file()] == []


def test_drop_of_a_root_that_is_a_link_removes_the_link(tmp_path):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    (tmp_path / "link").symlink_to(dataset.uri)
    lance.LanceDataset.drop(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    assert lance.dataset(dataset.uri).count_rows() == 3


def test_drop_of_a_table_whose_versions_lie_behind_a_link(tmp_path):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    versions = Path(dataset.uri) / "_versions"
    versions.rename(tmp_path / "elsewhere")
    versions.symlink_to(tmp_path / "elsewhere")
    assert lance.dataset(dataset.uri).count_rows() == 3
    lance.LanceDataset.drop(dataset.uri)
    assert not versions.is_symlink()
    assert len(list((tmp_path / "elsewhere").glob("*.manifest"))) == 1


def test_a_branch_goes_without_what_lies_behind_its_links(tmp_path, outside):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    dataset.create_branch("b").insert(ROWS)
    dataset.create_branch("whole")
    root = Path(dataset.uri)
    (root / "tree/b/link").symlink_to(outside)
    whole = root / "tree/whole"
    whole.rename(tmp_path / "whole")
    whole.symlink_to(tmp_path / "whole")
    kept = sorted((tmp_path / "whole").rglob("*"))
    dataset.branches.delete("b")
    dataset.branches.delete("whole")
    assert untouched(outside)
    assert not (root / "tree/b/link").is_symlink()
    assert not whole.is_symlink()
    assert sorted((tmp_path / "whole").rglob("*")) == kept
    assert dataset.branches.list() == {}


def test_cleanup_leaves_alone_what_lies_behind_a_link(tmp_path, outside):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    dataset.insert(ROWS)
    dataset.delete("a = 1")
    root = Path(dataset.uri)
    for part in ("data", "_deletions"):
        (root / part).rename(tmp_path / part)
        (root / part).symlink_to(tmp_path / part)
    (tmp_path / "data" / "precious.lance").write_bytes(b"precious")
    (root / "_indices").symlink_to(outside)
    before = sorted((tmp_path / "data").iterdir())
    lance.write_dataset(ROWS, root, mode="overwrite")
    after = sorted((tmp_path / "data").iterdir())
    stats = lance.dataset(root).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert stats.old_versions == 3
    assert stats.data_files_removed == 0
    assert sorted((tmp_path / "data").iterdir()) == after
    assert set(before) < set(after)
    assert untouched(outside)
    assert lance.dataset(root).count_rows() == 3


def test_cleanup_keeps_versions_whose_manifests_lie_behind_a_link(tmp_path):
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    root = Path(dataset.uri)
    (root / "_versions").rename(tmp_path / "elsewhere")
    (root / "_versions").symlink_to(tmp_path / "elsewhere")
    dataset = lance.write_dataset(ROWS, root, mode="overwrite")
    stats = dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert (stats.old_versions, stats.data_files_removed) == (0, 0)
    assert lance.dataset(root, version=1).count_rows() == 3
