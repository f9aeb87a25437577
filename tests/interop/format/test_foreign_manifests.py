"""Manifests with what other tools may write: rejected or kept wherever pylance does so."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.errors import IncompatibleConflictError, InvalidInputError, LanceError, UnsupportedError
from tests.interop.format.wire import (
    edit_latest,
    edit_manifest,
    latest_message,
    manifest_paths,
    read_manifest,
)

UNKNOWN = 1 << 20
NO_REUSE = 32768
REJECTED = (OSError, ValueError, LanceError)
BOTH = pytest.mark.parametrize("library", [lance, lance_core])


def rows(*values):
    return pa.table({"a": list(values)})


@pytest.fixture
def uri(tmp_path):
    """A table of three versions."""
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(1, 2, 3), uri)
    for value in (4, 5):
        lance.write_dataset(rows(value), uri, mode="append")
    return uri


def files_below(uri):
    return sorted(str(path) for path in Path(uri).parent.rglob("*") if path.is_file())


# Row ids that are not there.


def _none(fragment):
    fragment.ClearField("inline_row_ids")


def _external(fragment):
    size = len(fragment.inline_row_ids)
    fragment.external_row_ids.path = "data/ids.bin"  # takes the place of the inline ones
    fragment.external_row_ids.size = size


@BOTH
@pytest.mark.parametrize("change", [_none, _external])
@pytest.mark.parametrize("position", [0, 1])
def test_stable_row_ids_that_are_not_in_the_manifest_are_rejected(tmp_path, library, change, position):
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(1, 2), uri, enable_stable_row_ids=True)
    lance.write_dataset(rows(3), uri, mode="append")
    edit_latest(uri, lambda message: change(message.fragments[position]))
    before = files_below(uri)
    with pytest.raises(REJECTED, match=r"row ids|row_ids"):
        library.dataset(uri).to_table(with_row_id=True)
    with pytest.raises(REJECTED, match=r"row ids|row_ids"):
        library.write_dataset(rows(4), uri, mode="append")
    if library is lance_core:
        assert files_below(uri) == before


# Unknown writer flags.


def flag(uri, version, flags=UNKNOWN):
    def change(message):
        message.writer_feature_flags |= flags

    edit_manifest(manifest_paths(uri)[version - 1], change)


USES = {
    "append": lambda library, uri, v: library.write_dataset(rows(9), library.dataset(uri, version=v), mode="append"),
    "overwrite": lambda library, uri, v: library.write_dataset(
        rows(9), library.dataset(uri, version=v), mode="overwrite"
    ),
    "restore": lambda library, uri, v: library.dataset(uri, version=v).restore(),
    "shallow clone": lambda library, uri, v: library.dataset(uri).shallow_clone(uri + "-clone", v),
    "deep clone": lambda library, uri, v: library.dataset(uri).deep_clone(uri + "-clone", v),
    "branch": lambda library, uri, v: library.dataset(uri).create_branch("work", v),
    "cleanup": lambda library, uri, v: library.dataset(uri).cleanup_old_versions(timedelta(microseconds=1)),  # noqa: ARG005
    "explain": lambda library, uri, v: library.dataset(uri).explain_cleanup_old_versions(timedelta(microseconds=1)),  # noqa: ARG005
}


@BOTH
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("use", USES)
def test_a_version_with_an_unknown_writer_flag_is_no_source_of_a_write(uri, library, version, use):
    flag(uri, version)
    before = files_below(uri)
    with pytest.raises(REJECTED, match=r"(?s)written by this version of .*Flags: 1048576"):
        USES[use](library, uri, version)
    if library is lance_core:
        assert files_below(uri) == before
    assert latest_message(uri).version == 3
    assert library.dataset(uri, version=version).to_table().num_rows == version + 2


def test_verbs_that_change_a_version_with_an_unknown_writer_flag_are_rejected(uri):
    flag(uri, 3)
    dataset = lance_core.dataset(uri)
    for change in (
        lambda: dataset.delete("a = 1"),
        lambda: dataset.update({"a": "7"}),
        lambda: dataset.add_columns({"b": "a + 1"}),
        dataset.optimize.compact_files,
        dataset.migrate_manifest_paths_v2,
        lambda: dataset.merge_insert("a").when_not_matched_insert_all().execute(rows(9)),
    ):
        with pytest.raises(UnsupportedError, match="cannot be written by this version"):
            change()
    assert latest_message(uri).version == 3


def test_a_branch_with_an_unknown_writer_flag_is_not_deleted(uri):
    lance_core.dataset(uri).create_branch("work")
    flag(f"{uri}/tree/work", 1)
    before = files_below(uri)
    with pytest.raises(UnsupportedError, match="1048576"):
        lance_core.dataset(uri).branches.delete("work")
    with pytest.raises(UnsupportedError, match="1048576"):
        lance_core.dataset(uri).cleanup_old_versions(timedelta(microseconds=1))
    assert files_below(uri) == before


def test_a_branch_with_an_unknown_writer_flag_is_not_promoted(uri):
    branch = lance_core.dataset(uri).create_branch("work").uri
    lance_core.write_dataset(rows(9), branch, mode="append")
    flag(branch, 2)
    before = files_below(uri)
    with pytest.raises(UnsupportedError, match="1048576"):
        lance_core.dataset(uri).branches.promote("work")
    assert files_below(uri) == before


def test_the_sentence_of_an_unknown_reader_flag(uri):
    edit_latest(uri, lambda message: setattr(message, "reader_feature_flags", UNKNOWN))
    with pytest.raises(UnsupportedError, match="the dataset cannot be read by this version of lance_core"):
        lance_core.dataset(uri)


# The time of a version.


@BOTH
@pytest.mark.parametrize("kind", ["shallow", "deep", "branch"])
def test_the_time_of_a_version_is_that_of_its_commit(uri, library, kind):
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    for path in manifest_paths(uri):
        edit_manifest(path, lambda message: message.timestamp.FromDatetime(long_ago))
    began = datetime.now(UTC)
    if kind == "branch":
        copy = f"{uri}/tree/work"
        library.dataset(uri).create_branch("work", 2)
    else:
        copy = f"{uri}-copy"
        getattr(library.dataset(uri), f"{kind}_clone")(copy, 2)
    (first,) = manifest_paths(copy)
    assert read_manifest(first).timestamp.ToDatetime(UTC) >= began - timedelta(milliseconds=1)
    lance_core.write_dataset(rows(9), copy, mode="append")
    for reader in (lance, lance_core):
        dataset = reader.dataset(copy)
        assert dataset.cleanup_old_versions(timedelta(days=30)).old_versions == 0
    assert len(manifest_paths(copy)) == 2


# A version that cannot be read, among others that can.


def test_a_version_with_unknown_reader_flags_is_listed_without_counters(uri):
    for number in (1, 2, 3):  # a second apart, so that whole seconds differ
        change = datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC)
        edit_manifest(manifest_paths(uri)[number - 1], lambda message, at=change: message.timestamp.FromDatetime(at))
    theirs = lance.dataset(uri).versions()
    edit_manifest(manifest_paths(uri)[1], lambda message: setattr(message, "reader_feature_flags", UNKNOWN))
    dataset = lance_core.dataset(uri)
    ours = dataset.versions()
    assert [(v["version"], v["timestamp"]) for v in ours] == [(v["version"], v["timestamp"]) for v in theirs]
    assert [v["metadata"] for v in ours] == [theirs[0]["metadata"], {}, theirs[2]["metadata"]]
    assert dataset.version_as_of(theirs[0]["timestamp"]) == 1
    assert dataset.version_as_of(theirs[1]["timestamp"]) == 2
    assert lance_core.dataset(uri, asof=theirs[2]["timestamp"]).version == 3
    assert [t.operation.name for t in dataset.get_transactions()] == ["Append", "Append", "Overwrite"]
    assert dataset.read_transaction(2).uuid == lance.dataset(uri).read_transaction(2).uuid
    assert dataset.find_transaction("who", "nobody") is None
    for library in (lance, lance_core):
        with pytest.raises(REJECTED, match="1048576"):
            library.dataset(uri, version=2)
        with pytest.raises(REJECTED, match="1048576"):
            library.write_dataset(rows(1), library.dataset(uri, version=1), mode="append")


def test_the_command_lists_a_version_that_cannot_be_read(uri):
    edit_manifest(manifest_paths(uri)[1], lambda message: setattr(message, "reader_feature_flags", UNKNOWN))
    result = CliRunner().invoke(cli, ["versions", uri, "--json"])
    assert result.exit_code == 0, result.output
    assert [row.get("rows") for row in json.loads(result.stdout)] == [5, None, 3]


# Texts that are none.


def test_schema_metadata_that_is_no_text_is_shown_as_well_as_it_can_be_and_kept(uri):
    edit_latest(uri, lambda message: message.schema_metadata.update({"bin": b"\xff\xfe"}))
    ours = lance_core.dataset(uri)
    assert ours.schema_metadata == lance.dataset(uri).schema_metadata == {"bin": "\ufffd\ufffd"}
    assert ours.update_schema_metadata({"k": "v"}) == {"bin": "\ufffd\ufffd", "k": "v"}
    assert ours.version == 4
    ours.delete("a = 1")
    ours.add_columns({"b": "a + 1"})
    assert dict(latest_message(uri).schema_metadata) == {"bin": b"\xff\xfe", "k": b"v"}
    assert ours.update_schema_metadata({"bin": None}) == {"k": "v"}


# What is rejected leaves nothing behind.


def _conflicting(message):
    """Let a version be made by an operation that nobody knows."""
    message.ClearField("transaction_section")
    message.transaction_file = ""


def test_a_rejected_append_leaves_no_data_file(uri):
    stale = lance_core.dataset(uri, version=2)
    edit_latest(uri, _conflicting)
    before = files_below(uri)
    with pytest.raises(IncompatibleConflictError):
        lance_core.write_dataset(rows(1), stale, mode="append")
    flag(uri, 3)
    with pytest.raises(UnsupportedError):
        lance_core.write_dataset(rows(1), uri, mode="append")
    with pytest.raises(UnsupportedError):
        lance_core.dataset(uri).insert(rows(1))
    with pytest.raises(LanceError):
        lance_core.write_dataset(pa.table({"other": [1]}), stale, mode="append")
    assert files_below(uri) == before


def test_a_rejected_creation_leaves_nothing(tmp_path):
    target = tmp_path / "new"
    with pytest.raises(InvalidInputError, match="auto_cleanup_options"):
        lance_core.write_dataset(rows(1), target, auto_cleanup_options={"every": 2})
    assert not list(target.rglob("*.lance"))
