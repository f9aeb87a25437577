"""Roots that lie in a folder of another table: of a branch, which is no table to drop, and of tables made there."""

from pathlib import Path

import pytest

import lance_core as lance
from lance_core.errors import InvalidInputError


@pytest.fixture
def table(tmp_path):
    return lance.write_dataset({"id": [1]}, tmp_path / "t.lance")


@pytest.mark.parametrize("name", ["x", "x/y"])
@pytest.mark.parametrize("is_torn", [False, True])
def test_drop_of_a_branch_names_the_verb_that_removes_it(table, name, is_torn):
    branch = table.create_branch(name)
    if is_torn:
        for manifest in (Path(branch.uri) / "_versions").iterdir():
            manifest.write_bytes(b"")
    with pytest.raises(InvalidInputError, match=rf"lance\.dataset\('{table.uri}'\)\.branches\.discard\('{name}'\)"):
        lance.LanceDataset.drop(branch.uri)
    assert list(table.branches.list()) == [name]
    assert is_torn or table.checkout_version((name, None)).count_rows() == 1
    assert table.branches.discard(name)


def test_drop_of_a_branch_that_a_creation_left_unfinished(table):
    branch = table.create_branch("x")
    (Path(table.uri) / "_refs/branches/x.json").unlink()
    with pytest.raises(InvalidInputError, match="discard"):
        lance.LanceDataset.drop(branch.uri)
    assert table.branches.discard("x")


WRITES = {
    "create": lambda _, uri: lance.write_dataset({"id": [2]}, uri),
    "overwrite": lambda _, uri: lance.write_dataset({"id": [2]}, uri, mode="overwrite"),
    "append": lambda _, uri: lance.write_dataset({"id": [2]}, uri, mode="append"),
    "shallow_clone": lambda table, uri: table.shallow_clone(uri, 1),
    "deep_clone": lambda table, uri: table.deep_clone(uri, 1),
    "commit": lambda table, uri: lance.LanceDataset.commit(
        uri, lance.LanceOperation.Overwrite(table.schema, [fragment.metadata for fragment in table.get_fragments()])
    ),
}


@pytest.mark.parametrize("folder", ["tree", "tree/x", "data", "_versions", "_indices/i", "_refs", "tree/b/data"])
@pytest.mark.parametrize("verb", WRITES)
def test_no_table_is_made_inside_of_another(table, verb, folder):
    table.create_branch("b")
    before = sorted(Path(table.uri).rglob("*"))
    with pytest.raises(InvalidInputError, match="Nothing was written"):
        WRITES[verb](table, f"{table.uri}/{folder}/new.lance")
    assert sorted(Path(table.uri).rglob("*")) == before
    assert table.tags.list().keys() == lance.dataset(table.uri).tags.list().keys()


def test_folders_of_these_names_that_are_in_no_table(tmp_path):
    for folder in ("tree", "data", "_indices", "data.lance/data"):
        uri = tmp_path / folder / "t.lance"
        lance.write_dataset({"id": [1]}, uri).insert({"id": [2]})
        lance.LanceDataset.drop(uri)


def test_rows_are_written_to_a_branch_by_its_root(table):
    branch = table.create_branch("x")
    assert lance.write_dataset({"id": [7]}, branch.uri, mode="overwrite").branch == "x"
    assert lance.write_dataset({"id": [8]}, branch.uri, mode="append").count_rows() == 2


def test_roots_in_memory(tmp_path):
    table = lance.write_dataset({"id": [1]}, "memory://inside.lance")
    branch = table.create_branch("x")
    with pytest.raises(InvalidInputError, match="discard"):
        lance.LanceDataset.drop(branch.uri)
