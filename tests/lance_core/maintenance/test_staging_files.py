"""What killed writers leave of manifests, tags and branches is removed, and nothing that is in use."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core

LEFT = [
    "_versions/18446744073709551610.manifest#17",
    "_refs/tags/july.json#4242424242",
    "_refs/branches/fix.json#4242424242",
    "_refs/branches/team/fix.json#4242424242",
]


@pytest.fixture
def table(tmp_path):
    table = lance_core.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t")
    table.tags.create("july")
    table.create_branch("fix")
    for name in LEFT:
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half of i")
    return table


def files(table):
    root = Path(table.uri)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def clean(table, **options):
    return table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False, **options)


@pytest.mark.parametrize("age", ["young", "old"])
def test_staging_files_are_removed_when_they_are_old_or_nobody_else_writes(table, age):
    before = files(table)
    if age == "young":
        clean(table)
        assert files(table) == before
        clean(table.checkout_version(("fix", None)), delete_unverified=True)
        assert {one for one in before if one.startswith("_refs/")} <= files(table), (
            "a branch has no references of its own"
        )
        clean(table, delete_unverified=True)
    else:
        week = time.time() - 8 * 86_400
        for name in LEFT:
            os.utime(Path(table.uri) / name, (week, week))
        clean(table)
    assert before - files(table) == set(LEFT)
    assert "july" in table.tags.list()
    assert list(table.branches.list()) == ["fix"]
    assert table.checkout_version("july").count_rows() == 2
