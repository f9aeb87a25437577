"""What a table may do to the terminal of who looks at it."""

import json
import os
import pty
import sys

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core as lance
from lance_core.cli.app import cli
from lance_core.printing import printable
from tests import processes

NASTY = {
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;pwned\x07",
    "link": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "c1": "\x9b31mred\x9d0;t\x9c",
    "carriage": "all is well\rFORGED     ",
    "backspace": "bad\x08\x08\x08ok ",
    "delete": "a\x7fb",
    "bidi": "\u202egnp-exe\u2066x\u2069\u200e\u061c",
    "nul": "a\x00b",
    "tab": "a\tb",
    "separator": "a\u2028b",
    "markup": "[draft] plan [bold red]x[/] [link=http://evil]y[/link] :smile:",
    "broken markup": "[/]",
}


def forbidden(text):
    return [
        c
        for c in text
        if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066\u2069\u200e\u061c\u2028"
    ]


def run(*arguments, code=0):
    done = CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(params=NASTY)
def text(request):
    return NASTY[request.param]


def test_no_text_of_a_table_acts_on_the_terminal(tmp_path, text):
    path = tmp_path / "t"
    column = text.replace("\0", "")
    rows = pa.table({column: [text], "n": [1]})
    dataset = lance.write_dataset(rows, path, commit_message=text, transaction_properties={"k" + text: text})
    dataset.update_config({"key" + text: text})
    dataset.update_metadata({"key" + text: text})
    dataset.replace_field_metadata(column, {"key" + text.replace("\0", ""): text.replace("\0", "")})
    commands = {
        ("info",): text,
        ("head",): text,
        ("schema",): column,
        ("versions",): text,
        ("show", path, "1"): text,
        ("diff", path, "1", "3"): text,
        ("fragments",): "",
        ("files",): "",
        ("verify",): "",
    }
    for command, shown in commands.items():
        arguments = command if len(command) > 1 else (*command, path)
        printed = run(arguments[0], *arguments[1:])
        assert forbidden(printed) == []
        # What is wrapped is there in pieces: look for the words.
        whole = "".join(printed.split())
        assert all(word in whole for word in printable(shown).split()[:2]), printed
        json.loads(run(arguments[0], *arguments[1:], "--json"))


def on_terminal(command, env):
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    with processes.running(command, terminal=theirs, env=env):
        os.close(theirs)
        parts = []
        while True:
            try:
                parts.append(os.read(ours, 65536))
            except OSError:  # the other side is closed
                break
    os.close(ours)
    return b"".join(parts).decode()


def test_a_real_terminal_gets_none_either(tmp_path):
    nasty = "".join(NASTY.values())
    lance.write_dataset(pa.table({"a": [nasty]}), tmp_path / "t", commit_message=nasty)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    printed = "".join(
        on_terminal([sys.executable, "-m", "lance_core.cli", command, str(tmp_path / "t")], env)
        for command in ("head", "versions")
    )
    for bad in ("\x1b[2J", "\x1b]", "\x9b", "\x08", "\x07", "\u202e", "\x7f"):
        assert bad not in printed
    assert "[draft] plan" in printed


def test_errors_act_on_no_terminal(tmp_path):
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    printed = run("head", tmp_path / "t", "-c", NASTY["clear"], code=1)
    assert forbidden(printed) == []
    assert "\\x1b[2J" in printed


@pytest.mark.parametrize("command", [("discard", "\x1b[2J"), ("restore", "1")])
def test_questions_act_on_no_terminal(tmp_path, command):
    path = tmp_path / "\x1b[2J"
    lance.write_dataset(pa.table({"n": [1]}), path)
    done = CliRunner().invoke(cli, [command[0], str(path), command[1]], input="n\n", catch_exceptions=False)
    assert done.exit_code == 1
    assert "\\x1b[2J" in done.output
    assert forbidden(done.output) == []


def test_printable():
    assert printable("a\nb\x1b\x85\u202e\ud800 é[x]") == "a\nb\\x1b\\x85\\u202e\\ud800 é[x]"
    assert printable(3) == "3"


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_options_come_from_files(tmp_path, ending):
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    (tmp_path / "place").write_bytes(f"sqlite:///{tmp_path}/m.db{ending}".encode())
    lance.write_dataset(
        pa.table({"a": [1]}), tmp_path / "m", storage_options={"manifest_store": f"sqlite:///{tmp_path}/m.db"}
    )
    assert json.loads(run("info", tmp_path / "m", "-o", f"manifest_store=@{tmp_path}/place", "--json"))["rows"] == 1
    assert "must be sqlite" in run("info", tmp_path / "m", "-o", "manifest_store=@@place", code=1)


def test_a_file_of_an_option_that_is_missing_is_named(tmp_path):
    printed = run("info", tmp_path / "t", "-o", f"aws_secret_access_key=@{tmp_path}/none", code=2)
    assert f"{tmp_path}/none: No such file" in " ".join(printed.split())


def test_orphans_are_listed(tmp_path):
    path = tmp_path / "t"
    dataset = lance.write_dataset(pa.table({"a": [1]}), path)
    dataset.insert(pa.table({"a": [2]}))
    assert json.loads(run("files", path, "--orphans", "--json")) == []
    left = ["data/" + "0" * 50 + ".lance", "data/x.lance#123", "_transactions/1-x.txn#9", "_versions/5.manifest#77"]
    left += ["_deletions/0-1-2.bin", "_versions/latest_version_hint.json#5"]
    for name in left:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"left")
    found = json.loads(run("files", path, "--orphans", "--json"))
    assert sorted(file["path"] for file in found) == sorted(left)
    assert {file["size_bytes"] for file in found} == {4}
    assert "6 file(s)" in run("files", path, "--orphans")
    assert dataset.cleanup_old_versions(retain_versions=5, delete_unverified=True).bytes_removed == 24
    assert json.loads(run("files", path, "--orphans", "--json")) == []
    assert lance.dataset(path).count_rows() == 2
