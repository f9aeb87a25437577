"""A torn manifest of an old version is named, the rest goes on, and a cleanup can remove it."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.errors import CorruptFileError
from lance_core.maintenance.verify.files import verify


@pytest.fixture
def table(tmp_path):
    """Version 3 of 5 is torn."""
    for number in range(5):
        table = lance_core.write_dataset(pa.table({"id": [number]}), tmp_path / "t.lance", mode="append")
    torn = manifest_of(table, 3)
    written = torn.stat().st_mtime_ns
    torn.write_bytes(b"half of a manifest")
    os.utime(torn, ns=(written, written))
    return table


def manifest_of(table, version):
    return Path(table.uri, "_versions", f"{2**64 - 1 - version}.manifest")


def versions(table):
    return [one["version"] for one in table.version_refs()]


def ids(table):
    return sorted(lance_core.dataset(table.uri).to_table()["id"].to_pylist())


def call(*arguments, code=0):
    done = CliRunner().invoke(cli, [*arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_lists_name_it(table):
    found = {one["version"]: one["metadata"] for one in table.versions()}
    assert list(found) == [1, 2, 3, 4, 5]
    assert "too few for a manifest" in found[3]["error"]
    assert found[4]["total_rows"] == "4"
    lines = call("versions", table.uri).splitlines()
    assert sum("cannot be read" in line for line in lines) == 1
    assert len([line for line in lines if "Append" in line]) == 3
    assert "version 3 cannot be read" in json.loads(call("show", table.uri, "4", "--json"))["changes"]


def test_verify_names_it_once(table):
    (problem,) = verify(table)
    assert (problem.version, "cleanup_old_versions(versions=[3])" in problem.message) == (3, True)
    assert "too few for a manifest" in problem.message
    found, _ = json.JSONDecoder().raw_decode(call("verify", table.uri, "--all", "--json", code=4))
    assert [one["version"] for one in found] == [3]


@pytest.mark.parametrize("selectors", [{"versions": [3]}, {"retain_versions": 1}])
def test_cleanup_removes_it(table, selectors):
    explained = table.explain_cleanup_old_versions(**selectors)
    assert any("version 3" in line and "it is removed" in line for line in explained.warnings)
    done = table.cleanup_old_versions(**selectors)
    assert 3 not in versions(table)
    assert len(done.torn_versions) == 1
    assert versions(table) == ([1, 2, 4, 5] if "versions" in selectors else [5])
    assert ids(table) == [0, 1, 2, 3, 4]
    assert verify(lance_core.dataset(table.uri)) == []


def test_the_command_removes_it_alone(table):
    assert "half" not in call("cleanup", table.uri, "--only", "3")
    assert versions(table) == [1, 2, 4, 5]


def test_while_it_stays_files_that_it_may_need_stay(table):
    """Versions 1 and 2 go; a file of theirs that no readable version has stays with the torn version."""
    table = lance_core.write_dataset(pa.table({"id": [9]}), table.uri, mode="overwrite")
    before = set(Path(table.uri, "data").iterdir())
    done = table.cleanup_old_versions(retain_versions=1, in_use={"a reader": 3})
    assert versions(table) == [3, 6]
    assert (done.data_files_removed, len(done.torn_versions)) == (2, 1)  # those of versions 4 and 5 alone
    assert len(before) - len(set(Path(table.uri, "data").iterdir())) == 2
    assert "may need them" in done.torn_versions[0]
    table.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert len(set(Path(table.uri, "data").iterdir())) == 1
    assert ids(table) == [9]


def test_its_age_is_that_of_its_file(table):
    table.cleanup_old_versions(timedelta(hours=1))
    assert versions(table) == [1, 2, 3, 4, 5]
    hours_ago = time.time() - 7200
    os.utime(manifest_of(table, 3), (hours_ago, hours_ago))
    table.cleanup_old_versions(timedelta(hours=1))
    assert versions(table) == [1, 2, 4, 5]


def test_a_torn_version_of_a_branch_keeps_what_it_may_need(table):
    branch = table.create_branch("work")
    branch.insert(pa.table({"id": [6]}))
    branch.insert(pa.table({"id": [7]}))
    torn = Path(branch.uri, "_versions", f"{2**64 - 1 - (branch.version - 1)}.manifest")
    torn.write_bytes(b"half")
    done = table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    assert any("work" in line and "may need them" in line for line in done.torn_versions)
    assert ids(table) == [0, 1, 2, 3, 4]
    assert branch.count_rows() == 7


def test_a_torn_newest_version_stops_a_cleanup(table):
    manifest_of(table, 5).write_bytes(b"half")
    with pytest.raises(CorruptFileError, match="version 5"):
        lance_core.dataset(table.uri, version=4).cleanup_old_versions(retain_versions=1)
    assert versions(table) == [1, 2, 3, 4, 5]
