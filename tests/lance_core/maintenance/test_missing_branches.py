"""Branches whose file was lost: whoever needs them is named, and cleanup removes nothing of theirs."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance.verify.files import verify


def rows(*ids):
    return pa.table({"id": list(ids)})


@pytest.fixture
def table(tmp_path):
    dataset = lance_core.write_dataset(rows(1), tmp_path / "t")
    dataset.create_branch("b").insert(rows(2))
    dataset.insert(rows(3))
    return lance_core.dataset(dataset.uri)


@pytest.mark.parametrize("need", ["tag", "branch", "nothing"])
def test_a_branch_that_something_needs_is_missed(table, need):
    if need == "tag":
        table.tags.create("kept", ("b", 2))
    if need == "branch":
        table.create_branch("child", ("b", 2))
    assert verify(table) == []
    path = Path(table.uri, "_refs", "branches", "b.json")
    data = path.read_bytes()
    path.unlink()
    remedy = {"tag": "tags.delete('kept')", "branch": "branches.discard('child')"}
    problems = verify(lance_core.dataset(table.uri))
    assert [problem.path for problem in problems] == ([] if need == "nothing" else ["_refs/branches/b.json"])
    assert all(remedy[need] in problem.message for problem in problems)
    invalid = Path(table.uri, "_refs", "tags", "bad.json")
    invalid.write_text('{"version": -1, "manifestSize": 1}')
    named = {problem.path for problem in verify(lance_core.dataset(table.uri))}
    assert named == {"_refs/tags/bad.json", *(problem.path for problem in problems)}
    invalid.unlink()
    table.cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    path.write_bytes(data)
    opened = lance_core.dataset(table.uri)
    assert sorted(opened.checkout_version(("b", None)).to_table()["id"].to_pylist()) == [1, 2]
    assert verify(opened) == []
