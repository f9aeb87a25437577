"""The `lance` command: its output is what is in the table, its exit codes say what happened."""

import datetime as dt
import json
import re
import struct
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
import lance_core.cli.inspect
import lance_core.cli.maintenance
from lance_core.cli.app import cli
from lance_core.cli.output import _format
from lance_core.errors import CorruptFileError
from lance_core.file.metadata import Footer
from tests import processes


@pytest.mark.parametrize(
    ("value", "expected"),
    [(["b", "c"], "b, c"), ([1, 2, 3, 5], "4 (ids 1-3, 5)"), ([7], "1 (id 7)"), ([], ""), ([1, "b"], "1, b")],
)
def test_lists_are_names_or_numbers(value, expected):
    assert _format("fragments", value) == expected


def test_summaries_fit_a_terminal_of_80_columns():
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).stdout.partition("Commands:")[2]
    assert len(listed.splitlines()) > 15
    assert "..." not in listed


def call(*arguments, code=0):
    """Run a command and return what it prints."""
    done = CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def ask(*arguments, code=0):
    """Run a command and return its JSON."""
    return json.loads(call(*arguments, "--json", code=code))


@pytest.fixture
def table(tmp_path):
    """Three loads, a delete, a tag, a branch."""
    path = str(tmp_path / "t")
    for day in range(3):
        part = pa.table({"day": [dt.date(2024, 1, 1 + day)] * 10, "n": range(day * 10, day * 10 + 10)})
        lance_core.write_dataset(part, path, mode="append", commit_message=f"load day {day}")
    dataset = lance.dataset(path)
    dataset.delete("n < 5")
    dataset.tags.create("before", 3)
    dataset.create_branch("work")
    return path


def test_info(table):
    shown = ask("info", table)
    assert (shown["version"], shown["rows"], shown["deleted_rows"], shown["fragments"]) == (4, 25, 5, 3)
    assert shown["bytes"] == lance_core.dataset(table).total_bytes
    assert shown["uri"] == table
    assert ask("info", table, "--version", "before")["rows"] == 30
    assert re.search(r"rows +25\b", call("info", table))


def test_versions(table):
    shown = ask("versions", table)
    assert [v["version"] for v in shown] == [4, 3, 2, 1]
    assert [v["operation"] for v in shown] == ["Delete", "Append", "Append", "Overwrite"]
    assert shown[1]["message"] == "load day 2"
    assert len(ask("versions", table, "-n", 2)) == 2
    assert "2 older versions" in call("versions", table, "-n", 2)


def test_proofs_of_committed_writes_are_counted_and_no_configuration(tmp_path):
    path = str(tmp_path / "t")
    for number in range(2):
        rows = pa.table({"n": [number]})
        fragments = lance_core.write_fragments(rows, path)
        lance_core.commit_fragments(
            path, fragments, rows.schema, mode="append", commit=lance_core.Commit(idempotency_key=("key", str(number)))
        )
    lance_core.dataset(path).update_config({"owner": "me"})
    shown = ask("info", path)
    assert (shown["config"], shown["committed_writes"]) == ({"owner": "me"}, {"keys": 2})
    assert ask("diff", path, 1, 3)["config_changed"] == {"owner": " -> me"}
    assert "idempotency" not in call("diff", path, 1, 2) + call("info", path)


def test_show_and_diff(table):
    shown = ask("show", table, 4)
    assert (shown["operation"], shown["read_version"], shown["rows"]) == ("Delete", 3, 25)
    assert shown["changes"]["fragments_changed"] == [0]
    assert shown["writer"].startswith("lance ")
    assert ask("show", table, "before")["changes"]["fragments_added"] == [2]
    shown = ask("diff", table, 1, 4)
    assert (shown["rows_difference"], shown["fragments_added"]) == (15, [1, 2])
    assert "1-2" in call("diff", table, 1, 4)


def test_show_after_a_version_that_was_cleaned_up(table):
    dataset = lance_core.dataset(table)
    dataset.insert(dataset.to_table().slice(0, 1))
    dataset.update_config({"a": "b"})
    dataset.cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
    assert ask("show", table, 6)["changes"] == "unknown: version 5 was cleaned up"


def test_fragments_files_schema_head(table):
    assert [(f["id"], f["rows"], f["deleted_rows"]) for f in ask("fragments", table)] == [
        (0, 5, 5),
        (1, 10, 0),
        (2, 10, 0),
    ]
    shown = ask("files", table)
    assert [f["kind"] for f in shown] == ["data", "deletion", "data", "data"]
    assert all((Path(table) / f["path"]).exists() for f in shown)
    assert [(f["name"], f["type"]) for f in ask("schema", table)] == [("day", "date32[day]"), ("n", "int64")]
    assert ask("head", table, "-n", 2, "-c", "n") == [{"n": 5}, {"n": 6}]
    assert ask("head", table, "-n", 1)[0]["day"] == "2024-01-01"
    assert "2024-01-01" in call("head", table)


def test_tags_and_branches(table):
    (tag,) = ask("tags", table)
    assert (tag["tag"], tag["version"]) == ("before", 3)
    (branch,) = ask("branches", table)
    assert (branch["branch"], branch["parent"], branch["parent_version"]) == ("work", "main", 4)


def test_compact(table):
    shown = ask("compact", table, "--dry-run")
    assert [(t["fragments"], t["rows"]) for t in shown] == [([0, 1, 2], 25)]
    assert lance.dataset(table).version == 4
    shown = ask("compact", table)
    assert (shown["fragments_removed"], shown["fragments_added"], shown["version"]) == (3, 1, 6)
    assert lance.dataset(table).count_rows() == 25
    assert "nothing to do" in call("compact", table)
    assert "nothing to do" in call("compact", table, "--dry-run")


def test_compact_by_partition(table):
    assert ask("compact", table, "--partition-by", "day", "--keep-deletions", "--dry-run") == []
    assert ask("compact", table, "--partition-by", "day", "--dry-run")[0]["fragments"] == [0]
    assert "no column 'week'" in ask("compact", table, "--partition-by", "week", code=1)["error"]["message"]


def test_materialize_deletions(table):
    assert ask("materialize-deletions", table, "--threshold", 0.5, "--dry-run") == []
    shown = ask("materialize-deletions", table)
    assert (shown["fragments_removed"], shown["fragments_added"]) == (1, 1)
    assert ask("info", table)["deleted_rows"] == 0
    assert ask("info", table)["fragments"] == 3


def test_cleanup(table):
    call("compact", table)
    shown = ask("cleanup", table, "--retain-versions", 1, "--dry-run", "--list")
    assert shown["stats"]["old_versions"] == 3
    assert {file["path"].split("/")[0] for file in shown["candidate_files"]} == {"_versions", "_transactions"}
    assert "version 3 is kept: it is tagged before" in call("cleanup", table, "--retain-versions", 1, "--dry-run")
    assert [v["version"] for v in lance.dataset(table).versions()] == [1, 2, 3, 4, 5, 6]
    shown = ask("cleanup", table, "--retain-versions", 1, "--fail-on-tags", code=1)
    assert "before" in shown["error"]["message"]
    assert ask("cleanup", table, "--older-than", "1h")["old_versions"] == 0
    assert ask("cleanup", table, "--only", 1, "--only", 2, "--in-use", 2)["old_versions"] == 1
    shown = ask("cleanup", table, "--retain-versions", 1, "--rate", 1000, "--concurrency", 2)
    assert shown["old_versions"] == 2
    assert [v["version"] for v in lance.dataset(table).versions()] == [3, 4, 6]


def test_verify_finds_what_is_wrong(table):
    assert ask("verify", table, "--all") == []
    dataset = lance.dataset(table)
    dataset.create_scalar_index("n", "BTREE")
    assert ask("verify", table) == []
    root = Path(table)
    first, second, third = (root / "data" / f.metadata.files[0].path for f in dataset.get_fragments())
    original = second.read_bytes()
    first.unlink()
    second.write_bytes(original[:-1])
    third.write_bytes(b"short")
    next((root / "_deletions").iterdir()).write_bytes(b"nonsense")
    next((root / "_indices").rglob("*.lance")).unlink()
    problems = ask("verify", table, code=4)
    assert [(p["fragment_id"], p["path"].split("/")[0]) for p in problems][:3] == [
        (0, first.name), (0, "_deletions"), (1, second.name),
    ]  # fmt: skip
    assert problems[0]["message"] == "is missing"
    assert problems[-1]["path"].startswith("_indices/")
    text = call("verify", table, code=4)
    assert "5 problem(s)" in text


def test_verify_counts_rows(table):
    root = Path(table) / "data"
    lance_core.write_dataset(pa.table({"day": pa.array([None] * 3, pa.date32()), "n": [1, 2, 3]}), table + "2")
    (donor,) = (Path(table + "2") / "data").iterdir()
    victim = lance.dataset(table).get_fragments()[2].metadata.files[0]
    (root / victim.path).write_bytes(donor.read_bytes())
    (problem,) = ask("verify", table, code=4)
    assert "bytes" in problem["message"] or "has 3 rows, the manifest says 10" in problem["message"]


def test_verify_and_validate_look_at_the_metadata_of_all_columns(table):
    path = Path(table) / "data" / lance.dataset(table).get_fragments()[1].metadata.files[0].path
    data = bytearray(path.read_bytes())
    footer = Footer.from_bytes(bytes(data[-40:]))
    position, length = struct.unpack_from("<QQ", data, footer.column_table + 16)
    data[position : position + length] = b"\xff" * length
    path.write_bytes(data)
    (problem,) = ask("verify", table, code=4)
    assert "the metadata of column 1 cannot be parsed" in problem["message"]
    with pytest.raises(CorruptFileError, match=f"{path.name}: the metadata of column 1"):
        lance_core.dataset(table).validate()


def test_restore(table):
    shown = ask("restore", table, "before")
    assert (shown["restored_version"], shown["version"]) == (3, 5)
    assert lance.dataset(table).count_rows() == 30
    done = CliRunner().invoke(cli, ["restore", table, "1"], input="n\n")
    assert done.exit_code == 1
    assert lance.dataset(table).version == 5
    call("restore", table, 1, "--yes")
    assert lance.dataset(table).count_rows() == 10


def test_exit_codes(table, tmp_path):
    assert ask("info", tmp_path / "none", code=1)["error"]["code"] == "dataset-not-found"
    call("info", table, "--version", 77, code=1)
    call("info", code=2)
    call("cleanup", table, "--older-than", "soon", code=2)
    secret = CliRunner().invoke(cli, ["info", table, "-o", "aws_secret_access_key:hunter2"])
    assert secret.exit_code == 2
    assert "hunter2" not in secret.output


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (["info", "--version", "99"], "`lance versions TABLE` lists those that do"),
        (["info", "--version", "nope"], "`lance tags TABLE` lists those that do"),
        (["info", "--version", "²"], "`lance tags TABLE` lists those that do"),
        (["branches", "nope"], "`lance branches TABLE` lists those that do"),
    ],
)
def test_errors_name_commands(table, command, remedy):
    name, *arguments = command
    failed = CliRunner().invoke(cli, [name, table, *arguments])
    assert failed.exit_code == 1
    assert remedy in failed.stderr
    assert remedy in ask(name, table, *arguments, code=1)["error"]["message"]


def test_a_lost_race_is_exit_code_3(table, monkeypatch):
    from lance_core.maintenance.compaction import compaction

    original = compaction.commit_what_fits

    def late(*arguments, **options):
        lance.dataset(table).delete("n = 12")
        return original(*arguments, **options)

    monkeypatch.setattr(compaction, "commit_what_fits", late)
    assert ask("compact", table, "--retries", 0, code=3)["error"]["code"] == "commit-conflict-retryable"


def test_compact_does_what_writers_have_left_it(table, monkeypatch):
    from lance_core.maintenance.compaction import compaction

    original, times = compaction.commit_what_fits, iter(range(100))
    busy = [2]

    def late(*arguments, **options):
        turn = next(times)
        if turn < busy[0]:
            lance.dataset(table).add_columns({f"c{turn}": "n"})
        return original(*arguments, **options)

    monkeypatch.setattr(compaction, "commit_what_fits", late)
    shown = ask("compact", table)
    assert (shown["tasks_skipped"], shown["fragments_added"]) == (0, 1)
    busy[0] = 1000
    lance_core.dataset(table).insert(pa.table({"day": [dt.date(2024, 1, 9)], "n": [1], "c0": [1], "c1": [1]}))
    said = call("compact", table, "--retries", 1)
    assert lance_core.dataset(table).count_rows() == 26
    assert "Writers changed all fragments meanwhile, 2 times: 1 task(s) are left." in said


@pytest.mark.parametrize("command", ["compact", "materialize-deletions"])
@pytest.mark.parametrize("stable", [False, True])
def test_rows_that_writers_take_out_meanwhile_are_not_in_the_way(tmp_path, monkeypatch, command, stable):
    from lance_core.maintenance.compaction import compaction, late_deletions

    path = str(tmp_path / "t")
    for start in range(0, 400, 100):
        rows = pa.table({"n": range(start, start + 100), "s": [f"{n}" for n in range(start, start + 100)]})
        lance.write_dataset(rows, path, mode="append", enable_stable_row_ids=stable)
    lance.dataset(path).delete("n % 3 = 0")
    writers = iter([
        lambda: lance.dataset(path).delete("n % 10 = 1"),
        lambda: lance.dataset(path).update({"s": "'new'"}, where="n % 10 = 2"),
        lambda: lance.dataset(path).delete("n = 200"),
        lambda: lance_core.dataset(path).delete("n > 150 and n < 190"),
    ])  # fmt: skip
    expected = []

    def before(function):
        def late(*arguments, **options):
            for write in writers:
                write()
                expected[:] = [lance.dataset(path).to_table(with_row_id=True).sort_by("n")]
                break
            return function(*arguments, **options)

        return late

    monkeypatch.setattr(compaction, "commit_what_fits", before(compaction.commit_what_fits))
    monkeypatch.setattr(late_deletions, "find_late_deletions", before(late_deletions.find_late_deletions))
    shown = ask(command, path)
    assert next(writers, None) is None
    assert (shown["tasks_skipped"], shown["fragments_removed"]) == (0, 4)
    columns = ["n", "s", "_rowid"] if stable else ["n", "s"]
    for library in (lance, lance_core):
        found = library.dataset(path)
        assert found.to_table(with_row_id=True).sort_by("n").select(columns).equals(expected[0].select(columns))
        found.validate()
    call("verify", path)
    lance.dataset(path).optimize.compact_files()
    assert lance_core.dataset(path).to_table(with_row_id=True).sort_by("n").select(columns) == expected[0].select(
        columns
    )


def test_head_shows_values_as_they_are(tmp_path):
    path = str(tmp_path / "t")
    words = "a sentence of several words that is longer than a terminal is wide, " * 4
    lance_core.write_dataset(pa.table({"year_of": [2013], "text": [words], "f": [1234.5]}), path)
    said = call("head", path)
    assert "year_of" in said
    assert "2013" in said
    assert "2,013" not in said
    assert "1234.5" in said
    assert words.strip() in said


def test_ids_do_not_read_like_counts(table):
    lance_core.dataset(table).optimize.compact_files()
    said = call("show", table, lance_core.dataset(table).version)
    assert "fragments_removed = 3 (ids 0-2)" in said
    assert "fragments_added = 1 (id " in said


def test_versions_name_their_run(table):
    run = "0cf0d93e-0c91-4fda-b53d-827f194898c7"
    assert "run" not in call("versions", table)
    rows = pa.table({"day": [dt.date(2024, 1, 9)], "n": [1]})
    lance_core.write_dataset(rows, table, mode="append", transaction_properties={"dagster.run_id": run})
    assert ask("versions", table)[0]["run"] == run
    assert ask("versions", table)[1]["run"] is None
    assert "0cf0d93e " in call("versions", table)
    lance_core.write_dataset(rows, table, mode="append", transaction_properties={"dagster.undo.run_id": run})
    assert ask("versions", table)[0]["run"] is None


def test_it_is_installed_as_a_command(table):
    program = Path(sys.executable).with_name("lance")
    for start in ([str(program)], [sys.executable, "-m", "lance_core.cli"]):
        done = processes.run([*start, "info", table, "--json"])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 25


def test_help_names_every_command():
    text = call("--help")
    for name in (
        "info", "versions", "show", "fragments", "files", "schema", "head", "diff", "tags", "branches", "promote", "discard", "compact",
        "materialize-deletions", "cleanup", "verify", "restore",
    ):  # fmt: skip
        assert re.search(rf"^  {name}\b", text, re.MULTILINE), name
        call(name, "--help")


def test_without_click_it_says_what_to_install(tmp_path):
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import lance_core.cli; lance_core.cli.main()"
    done = processes.run([sys.executable, "-c", program])
    assert done.returncode == 1
    assert "lance-dagster[cli]" in done.stderr


def test_on_s3(s3, table):
    uri = f"s3://{s3.new_bucket()}/t"
    options = s3.storage_options
    for day in range(3):
        part = pa.table({"n": range(day * 10, day * 10 + 10)})
        lance_core.write_dataset(part, uri, mode="append", storage_options=options)
    given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    assert ask("info", uri, *given)["rows"] == 30
    assert ask("compact", uri, *given)["fragments_removed"] == 3
    young = ask("cleanup", uri, *given, "--retain-versions", 1)
    assert young["old_versions"] == 0, "on object storage a slow writer may need young versions"
    assert ask("cleanup", uri, *given, "--retain-versions", 1, "--delete-unverified")["old_versions"] == 4
    assert ask("verify", uri, *given, "--all") == []
    assert lance.dataset(uri, storage_options=dict(options)).count_rows() == 30


def test_json_is_all_that_is_on_standard_output(table):
    program = Path(sys.executable).with_name("lance")
    done = processes.run([program, "compact", table, "--json"], check=True)
    assert json.loads(done.stdout)["fragments_removed"] == 3


class TestBranches:
    @pytest.fixture
    def branch(self, table):
        dataset = lance_core.dataset(table)
        branch = dataset.create_branch("other")
        branch.delete("true")
        return branch

    def test_what_they_changed(self, table, branch):
        found = {row["branch"]: row for row in ask("branches", table)}["other"]
        assert (found["commits"], found["rows"], found["added"], found["drift"]) == (1, 0, 0, 0)
        shown = ask("branches", table, "other")
        assert shown["rows"]["removed"] == lance_core.dataset(table).count_rows()
        assert shown["branch"] == "other"
        Path(table, "_refs/branches/other.json").unlink()
        assert ask("branches", table, "--orphans") == [{"name": "other"}]

    def test_promote_and_discard(self, table, branch):
        before = lance_core.dataset(table).version
        done = ask("promote", table, "other", "--tag", "published", "-m", "empty it")
        assert (done["version"], done["tag"], done["deduplicated"]) == (before + 1, "published", False)
        assert ask("promote", table, "other", "--tag", "published")["deduplicated"] is True
        assert lance.dataset(table, version="published").count_rows() == 0
        assert ask("discard", table, "other") == {"branch": "other", "discarded": True}
        assert ask("discard", table, "other") == {"branch": "other", "discarded": False}
        assert "nope" in call("promote", table, "nope", "--json", code=1)

    def test_promoted_and_thrown_away_at_once(self, table, branch):
        ask("promote", table, "other", "--discard")
        assert "other" not in {one["branch"] for one in ask("branches", table)}
        assert lance.dataset(table).count_rows() == 0

    def test_idle_ones(self, table, branch):
        assert ask("discard", table, "--older-than", "1d", "--dry-run")["stale"] == []
        call("discard", table, code=2)
        assert "Aborted" in CliRunner().invoke(cli, ["discard", table, "other"], input="n\n").output
        assert "other" in lance_core.dataset(table).branches.list()

    @pytest.mark.parametrize("asked", [(), ("--yes",), ("--json",)])
    def test_a_dry_run_of_one_discards_nothing(self, table, branch, asked):
        result = CliRunner().invoke(cli, ["discard", table, "other", "--dry-run", *asked])
        assert (result.exit_code, "--dry-run is for --older-than" in result.output) == (2, True)
        assert "other" in lance_core.dataset(table).branches.list()

    @pytest.mark.parametrize(
        "arguments",
        [
            ("branches", "other", "--orphans"),
            ("branches", "--partition-by", "day"),
            ("promote", "other", "--tag", "one", "--no-tag"),
            ("cleanup", "--list", "--retain-versions", "1"),
            ("verify", "--all", "--version", "1"),
        ],
    )
    def test_options_without_effect_are_rejected_before_anything_is_done(self, table, branch, arguments):
        before = lance_core.dataset(table).versions()
        call(arguments[0], table, *arguments[1:], code=2)
        assert lance_core.dataset(table).versions() == before


@pytest.mark.parametrize(("name", "option"), [("head", "--rows"), ("versions", "--limit")])
def test_a_negative_number_is_named_as_it_was_given(tmp_path, name, option):
    lance_core.write_dataset(pa.table({"n": [1]}), tmp_path / "t")
    result = CliRunner().invoke(cli, [name, str(tmp_path / "t"), "-n", "-1"])
    assert result.exit_code == 2
    assert f"Invalid value for '-n' / '{option}': -1 is not in the range x>=0." in result.output


@pytest.mark.parametrize(
    ("name", "option"), [("compact", "--max-rows"), ("compact", "--processes"), ("cleanup", "--retain-versions")]
)
def test_a_limit_below_one_is_named_as_it_was_given(tmp_path, name, option):
    lance_core.write_dataset(pa.table({"n": [1]}), tmp_path / "t")
    result = CliRunner().invoke(cli, [name, str(tmp_path / "t"), option, "0"])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': 0 is not in the range x>=1." in result.output
