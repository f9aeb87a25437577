"""`lance maintain`: a table or a root, a policy by options or by a file, and exit codes that cron understands."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from tests.lance_core.maintenance.test_maintain import break_table, fill


def call(*arguments, code=0):
    done = CliRunner().invoke(cli, ["maintain", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def ask(*arguments, code=0):
    done = CliRunner().invoke(cli, ["maintain", *map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def fragments(uri):
    return len(lance_core.dataset(str(uri)).get_fragments())


def test_a_table(tmp_path):
    uri = tmp_path / "t.lance"
    fill(uri)
    (dry,) = ask(uri, "--dry-run")
    assert (dry["outcome"], dry["fragments"], dry["fragments_after"], fragments(uri)) == ("dry run", 6, 1, 6)
    (row,) = ask(uri, "--retain-versions", 1, "--cleanup-older-than", "never", "--target-rows-per-fragment", 300)
    assert (row["outcome"], row["fragments_after"], row["versions_after"], fragments(uri)) == ("done", 2, 1, 2)
    assert "healthy" in call(uri, "--target-rows-per-fragment", 300, "--no-refresh-indices")


def test_a_root_and_its_log(tmp_path):
    for name in ("a/one", "b/two"):
        fill(tmp_path / f"{name}.lance")
    rows = ask(tmp_path, "--include", "a/*", "--max-duration", "2h")
    assert [(row["table"], row["outcome"]) for row in rows] == [("a/one", "done")]
    assert (fragments(tmp_path / "a/one.lance"), fragments(tmp_path / "b/two.lance")) == (1, 6)
    assert lance_core.dataset(str(tmp_path / "_maintenance/log.lance")).count_rows() == 2


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_file_has_the_policy_and_those_of_folders(tmp_path, kind):
    for name in ("a/one", "b/two"):
        fill(tmp_path / f"{name}.lance")
    file = tmp_path / f"policy.{kind}"
    policy = {"retain_versions": 2, "cleanup_older_than": "never", "policies": {"b": False}}
    text = (
        json.dumps(policy)
        if kind == "json"
        else "retain_versions: 2\ncleanup_older_than: never\npolicies: {b: false}\n"
    )
    file.write_text(text)
    (row,) = ask(tmp_path, "--policy", file)
    assert (row["table"], row["versions_after"]) == ("a/one", 2)
    file.write_text(text.replace("retain_versions", "retain"))
    (error,) = ask(tmp_path, "--policy", file, code=1).values()
    assert error["message"].startswith(f"{file}: 'retain' is not a field of a MaintenancePolicy")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "must be a mapping of the fields"), ('{"policies": 3}', "with a mapping `policies`"),
     ('{"policies": {"a": {"retain": 1}}}', "policies['a']: 'retain' is not a field")],
)  # fmt: skip
def test_a_file_that_says_nothing(tmp_path, text, message):
    fill(tmp_path / "a.lance", pieces=1)
    (tmp_path / "policy.json").write_text(text)
    assert message in ask(tmp_path, "--policy", tmp_path / "policy.json", code=1)["error"]["message"]


def test_a_file_that_is_missing_or_no_text_and_a_folder_named_by_a_number(tmp_path):
    fill(tmp_path / "2024/a.lance", pieces=1)
    file = tmp_path / "policy.yaml"
    assert "policy.yaml" in ask(tmp_path, "--policy", file, code=1)["error"]["message"]
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in ask(tmp_path, "--policy", file, code=1)["error"]["message"]
    file.write_text("policies: {2024: false}")
    assert "no table is chosen" in ask(tmp_path, "--policy", file, code=1)["error"]["message"]


def test_a_table_that_fails_gives_exit_code_1_and_the_others_are_done(tmp_path):
    for name in ("a", "broken"):
        fill(tmp_path / f"{name}.lance")
    break_table(tmp_path / "broken.lance")
    rows = {row["table"]: row for row in ask(tmp_path, code=1)}
    assert (rows["a"]["outcome"], rows["broken"]["outcome"]) == ("done", "failed")
    assert rows["broken"]["reason"].startswith("plan: CorruptFileError")
    assert "lance: maintenance of 1 of 2 tables failed: broken: plan:" in call(tmp_path, code=1)
    (tmp_path / "_maintenance/log.lance").rename(tmp_path / "log")
    (tmp_path / "_maintenance").rmdir()
    (tmp_path / "_maintenance").write_text("in the way")
    assert "lance: maintenance failed: the log of maintenance: append" in call(tmp_path, "--include", "a", code=1)


def test_what_cannot_be_meant(tmp_path):
    lance_core.write_dataset(pa.table({"n": [1]}), str(tmp_path / "t.lance"))
    (tmp_path / "policy.json").write_text("{}")
    assert "--policy has all fields: write retain_versions" in call(
        tmp_path, "--policy", tmp_path / "policy.json", "--retain-versions", 1, code=2
    )
    assert "no table is chosen below it" in call(tmp_path / "nothing", code=1)
    assert "include choose among the tables below a root" in call(tmp_path / "t.lance", "--include", "a", code=1)
    assert "cleanup_older_than" in call(tmp_path / "t.lance", "--cleanup-older-than", "0d", code=1)
