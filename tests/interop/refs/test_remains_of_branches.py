"""Branches in folders of other branches, which cleanup removes, and tags of branches that pylance deleted."""

from datetime import timedelta

import lance
import pytest

import lance_core
from lance_core.errors import InvalidInputError


@pytest.fixture
def main(tmp_path):
    return lance_core.write_dataset({"id": [1]}, tmp_path / "t.lance")


FOLDERS = ["data", "_versions", "_indices", "_deletions", "_transactions", "_refs", "tree"]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("form", ["audit/{}", "audit/{}/more", "a/b/{}"])
def test_branch_in_a_folder_of_another_is_rejected(main, folder, form):
    name = form.format(folder)
    for create in (main.create_branch, main.ensure_branch):
        with pytest.raises(InvalidInputError, match=name.replace("/", "-")):
            create(name)
    assert main.tags.list() == {}
    main.create_branch(name.replace("/", "-"))


@pytest.mark.parametrize("name", [*FOLDERS, "audit/rows", "audit/data.1"])
def test_names_that_are_in_no_folder_of_another(main, name):
    main.create_branch(name).insert({"id": [2]})
    assert lance.dataset(main.uri).checkout_version((name, None)).count_rows() == 2


def test_branch_of_pylance_in_a_folder_is_read(main):
    lance.dataset(main.uri).create_branch("audit/data")
    branch = main.checkout_version(("audit/data", None))
    branch.insert({"id": [2]})
    assert main.ensure_branch("audit/data").count_rows() == 2
    assert list(main.branches.list()) == ["audit/data"]
    assert main.branches.discard("audit/data")


def test_sweep_removes_tags_of_branches_that_pylance_deleted(main):
    main.create_branch("trial").insert({"id": [9]})
    main.branches.promote("trial")
    lance_core.dataset(main.uri).create_branch("open").insert({"id": [5]})
    lance.dataset(main.uri).branches.delete("trial")
    assert len(main.tags.list()) == 3
    assert main.branches.orphans() == []
    assert main.branches.orphans(timedelta(0)) == ["trial"]
    assert main.branches.sweep(timedelta(hours=1)).orphans == ()
    assert main.branches.sweep(timedelta(0), dry_run=True).orphans == ("trial",)
    main.checkout_version(("open", None)).tags.create("keeps-open", ("open", None))
    assert main.branches.sweep(timedelta(0)).orphans == ("trial",)
    assert sorted(name.split(".")[0] for name in main.tags.list()) == ["fork", "keeps-open"]
    assert main.branches.orphans(timedelta(0)) == []
