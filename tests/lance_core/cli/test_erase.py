"""`lance erase`: the condition comes from the command line or a file, and the exit code says whether rows can be left."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli


@pytest.fixture
def table(tmp_path):
    """A table with a tagged version that holds all rows."""
    path = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"id": [1, 2, 3], "name": ["alice", "bob", "carl"]}), path)
    lance_core.dataset(path).tags.create("july", 1)
    lance_core.dataset(path).insert(pa.table({"id": [4], "name": ["dora"]}))
    return path


def call(*arguments, code=0, **others):
    done = CliRunner().invoke(cli, ["erase", *map(str, arguments)], catch_exceptions=False, **others)
    assert done.exit_code == code, done.output
    return done.stdout


def test_a_tag_is_an_obstacle_that_retag_removes(table):
    stopped = json.loads(call(table, "--where", "name = 'bob'", "--json", code=4))
    assert [(one["kind"], one["path"]) for one in stopped["obstacles"]] == [("tag", "july")]
    assert lance_core.dataset(table).version == 2
    report = json.loads(call(table, "--where", "name = 'bob'", "--json", "--retag"))
    assert report["proven"]
    assert report["rows_deleted"] == {"main": 1}
    assert report["tags_moved"]["july"] == lance_core.dataset(table).version
    assert sorted(lance_core.dataset(table).to_table()["id"].to_pylist()) == [1, 3, 4]


def test_the_condition_is_read_from_a_file(table, tmp_path):
    (tmp_path / "request.sql").write_text("name = 'carl'\n")
    shown = call(table, "--where", f"@{tmp_path / 'request.sql'}", "--retag", "-y")
    assert "No row is left" in shown
    assert "carl" not in shown
    assert lance_core.dataset(table).count_rows("name = 'carl'") == 0
    call(table, "--where", "@missing.sql", code=2)


def test_a_dry_run_lists_the_versions_that_go_and_changes_nothing(table):
    shown = call(table, "--where", "name = 'bob'", "--dry-run", "--retag")
    assert "main: 1, 2" in shown
    assert "dry run" in shown
    assert [one["version"] for one in lance_core.dataset(table).versions()] == [1, 2]
    assert "july" in call(table, "--where", "name = 'bob'", "--dry-run", code=4)


def test_it_asks_before_it_erases(table):
    call(table, "--where", "id = 1", "--retag", input="n\n", code=1)
    assert lance_core.dataset(table).count_rows() == 4
    call(table, "--where", "id = 1", "--retag", input="y\n")
    assert lance_core.dataset(table).count_rows() == 3


def test_what_is_left_is_listed_and_is_no_success(table, tmp_path):
    (tmp_path / "t" / "notes.txt").write_text("mine")
    shown = call(table, "--where", "name = 'bob'", "--retag", "-y", code=4)
    assert "notes.txt" in shown
    assert "Not proven: 1 place(s)" in shown


def test_a_condition_that_names_no_rows_in_all_versions_is_rejected(table):
    for where in ("true", "_rowid = 1", "nothing = 1", "name ="):
        call(table, "--where", where, "--retag", "-y", code=1)
    assert lance_core.dataset(table).version == 2


@pytest.mark.parametrize(
    "where", ["emial = 'alice the first'", "name = 'alice the first", "name = alice_the_first", "cast(name as int) = 7"]
)
@pytest.mark.parametrize("shape", [(), ("--json",)])
def test_no_message_shows_the_condition_or_a_row(table, where, shape):
    done = CliRunner().invoke(cli, ["erase", table, "--where", where, "--retag", "-y", *shape])
    assert done.exit_code == 1
    assert "does not fit the table" in done.output
    assert "id, name" in done.output
    assert not any(word in done.output for word in ("alice", "bob", "emial", "cast"))


def test_without_an_answer_it_names_the_option(table):
    done = CliRunner().invoke(cli, ["erase", table, "--where", "id = 1", "--retag"], input="")
    assert done.exit_code == 2
    assert "--yes" in done.output
    assert lance_core.dataset(table).count_rows() == 4
