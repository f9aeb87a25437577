"""Erasures of rows whose values stand in records in escaped form, such as in JSON."""

import json
from pathlib import Path

import lance
import pytest

import lance_core
from lance_core.maintenance.erasure.escapes import in_bytes, in_words


def files_with(uri, mark):
    return [path for path in Path(uri).rglob("*") if path.is_file() and mark.encode() in path.read_bytes()]


ESCAPED = ["jösé-canary-ü", 'back\\slash"q"canary', "O'Brien-canary", "tab\tcanary", "😀-canary"]


@pytest.mark.parametrize("mark", ESCAPED)
@pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
def test_escaped_values_in_tags_and_branches_are_named(tmp_path, library, mark):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset({"id": [1], "email": ["ann@x.org"]}, uri)
    dataset = library.dataset(uri)
    dataset.tags.create("plain", 1)
    dataset.tags.replace_metadata("plain", {"k": mark})
    dataset.tags.create("json", 1)
    dataset.tags.replace_metadata("json", {"k": json.dumps({"p": mark})})
    lance_core.dataset(uri).create_branch("b")
    lance_core.dataset(uri).branches.replace_metadata("b", {"k": mark})
    quoted = mark.replace("'", "''")
    report = lance_core.dataset(uri).erase_rows(f"email = '{quoted}'")
    named = {one.path for one in report.remaining if one.kind == "record"}
    assert named == {"_refs/tags/plain.json", "_refs/tags/json.json", "_refs/branches/b.json"}


@pytest.mark.parametrize("mark", [*ESCAPED, "jö"])
def test_values_in_json_of_properties_and_metadata_are_found(tmp_path, mark):
    uri = str(tmp_path / "t.lance")
    keys = json.dumps(["a", mark])
    lance_core.write_dataset({"id": [1], "email": ["a"]}, uri, transaction_properties={"dagster.partition_keys": keys})
    dataset = lance_core.dataset(uri)
    dataset.insert({"id": [2], "email": ["b"]})
    quoted = mark.replace("'", "''")
    report = dataset.erase_rows(f"email = '{quoted}'")
    assert report.proven
    assert not files_with(uri, json.dumps(mark)[1:-1])
    if len(mark) >= 4:
        dataset.update_metadata({"k": json.dumps({"p": mark})})
        assert not dataset.erase_rows(f"email = '{quoted}'").proven


@pytest.mark.parametrize("mark", [*ESCAPED, "a/b c", "\b\f\n\r"])
def test_each_form_of_a_string_is_found(mark):
    once = [json.dumps(mark), json.dumps(mark, ensure_ascii=False)]
    twice = [json.dumps({"p": one}, ensure_ascii=ascii_only) for one in once for ascii_only in (True, False)]
    units = mark.encode("utf-16-be").hex().upper()
    all_escaped = "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
    in_uri = "".join(f"%{byte:02X}" for byte in mark.encode())
    for form in [mark, *once, *twice, *map(json.dumps, twice), all_escaped, in_uri, mark.replace("'", "''")]:
        assert in_bytes(mark).search(b"\x00\xff" + form.encode() + b"\xff")
        assert in_words(mark).search(f"[{form}]")
    assert not in_bytes(mark).search(mark[:-1].encode())


def test_a_word_after_an_escaped_line_break_is_one():
    assert in_words("bob").search(json.dumps("x\nbob"))
    assert not in_words("bob").search("xbob")
