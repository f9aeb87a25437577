"""The properties of a promotion: those of the branch's commits, joined."""

import json

import pytest

import lance_core


@pytest.mark.parametrize(
    ("values", "joined"),
    [
        (['["a"]', '["b", "a"]'], ["a", "b"]),
        (["[]", '["a"]'], ["a"]),
        (["[]", "[]"], []),
        (["x", "y"], ["x", "y"]),
        (["x", "[]"], ["x", "[]"]),
    ],
)
def test_lists_are_joined(tmp_path, values, joined):
    table = lance_core.write_dataset({"id": [1]}, str(tmp_path / "t.lance"))
    branch = table.create_branch("b")
    for value in values:
        rows = lance_core.write_fragments({"id": [2]}, branch)
        lance_core.commit_fragments(
            branch, rows, table.schema, mode="append", commit=lance_core.Commit(properties={"list": value})
        )
        branch = table.checkout_version(("b", None))
    done = table.branches.promote("b")
    found = table.checkout_latest() or table.read_transaction(done.version)
    assert json.loads(found.transaction_properties["list"]) == joined
