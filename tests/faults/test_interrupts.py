"""Writers that are interrupted or killed: the table is as it was, and what they leave is found and cleaned up."""

import json
import signal
import sys
from datetime import timedelta

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.verbs.context import uncommitted_files
from lance_core.verbs.files.slice_writer import SliceWriter
from tests import processes


def files_of(uri):
    return sorted(str(path.relative_to(uri)) for path in uri.rglob("*") if path.is_file())


@pytest.mark.parametrize("rows", [100_000, 100_000_000], ids=["many-files", "one-file"])
def test_an_interrupted_insert_leaves_nothing(tmp_path, rows):
    uri = tmp_path / "t"
    lance_core.write_dataset(pa.table({"a": range(10)}), uri)
    before = files_of(uri)
    said = tmp_path / "said"
    command = [sys.executable, "-m", "tests.faults.endless", uri, rows, "append"]
    with processes.running(command, talks=True, log=said) as process:
        assert process.stdout.readline() == "going\n", said.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=200)
    assert process.returncode in (-signal.SIGINT, 130), said.read_text()
    assert "KeyboardInterrupt" in said.read_text()
    left = files_of(uri)
    if "left behind" not in said.read_text():  # on a machine that took long to delete many
        assert left == before
    assert lance.dataset(uri).count_rows() == lance_core.dataset(uri).count_rows() == 10
    lance_core.dataset(uri).insert(pa.table({"a": [1]}))
    assert lance.dataset(uri).count_rows() == 11


def write_a_file(uri, batch, error):
    with lance_core.FragmentWriter(uri, batch.schema, max_rows_per_file=2) as writer:
        writer.write(batch)
        raise error


def write_slices(uri, batch, error):
    writer = SliceWriter(
        lambda: lance_core.FragmentWriter(uri, batch.schema),
        lambda rows: rows.column(0).to_numpy(),
        max_open=1,
    )
    writer.write(batch)
    writer.finish()
    try:
        raise error
    finally:
        writer.discard()


def add_a_column(uri, _, error):
    def fails_in_the_second(rows):
        if rows["a"][0].as_py() == 5:
            raise error
        return pa.record_batch({"b": rows["a"]})

    lance_core.dataset(uri).add_columns(fails_in_the_second)


@pytest.mark.parametrize("write_and_raise", [write_a_file, write_slices, add_a_column])
def test_an_interrupted_writer_leaves_files_to_a_cleanup_where_there_are_too_many(
    tmp_path, monkeypatch, caplog, write_and_raise
):
    dataset = lance_core.write_dataset(pa.table({"a": range(10)}), tmp_path / "t", max_rows_per_file=5)
    before = files_of(tmp_path / "t")
    monkeypatch.setattr(uncommitted_files, "INTERRUPTED_S", -1.0)
    batch = pa.record_batch({"a": range(10)})
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            write_and_raise(tmp_path / "t", batch, error)
        # Those that are just being closed go in any case.
        assert (files_of(tmp_path / "t") != before) == (error is KeyboardInterrupt)
    assert ["files were left behind" in message for message in caplog.messages] == [True]
    dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert files_of(tmp_path / "t") == before


@pytest.mark.parametrize(("mode", "rows"), [("append", 100_000_000), ("overwrite", 100_000)])
def test_what_a_killed_writer_leaves_is_listed_and_cleaned_up(tmp_path, mode, rows):
    uri = tmp_path / "t"
    lance_core.write_dataset(pa.table({"a": range(10)}), uri)
    before = files_of(uri)
    command = [sys.executable, "-m", "tests.faults.endless", uri, rows, mode]
    with processes.running(command, talks=True, log=tmp_path / "said") as process:
        assert process.stdout.readline() == "going\n", (tmp_path / "said").read_text()
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    left = sorted(set(files_of(uri)) - set(before))
    assert left, "a killed process removes nothing"
    listed = CliRunner().invoke(cli, ["files", str(uri), "--orphans", "--json"], catch_exceptions=False)
    assert sorted(file["path"] for file in json.loads(listed.stdout)) == left
    assert lance.dataset(uri).count_rows() == lance_core.dataset(uri).count_rows() == 10
    stats = lance_core.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert files_of(uri) == before
    assert stats.data_files_removed == len(left)
    assert lance.dataset(uri).to_table() == lance_core.dataset(uri).to_table()
