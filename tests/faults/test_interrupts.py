"""Ctrl-C during an insert: the process ends, its files go, and the table is as it was."""

import signal
import sys

import lance
import pyarrow as pa
import pytest

import lance_core
from tests import processes


@pytest.mark.parametrize("rows", [100_000, 100_000_000], ids=["many-files", "one-file"])
def test_an_interrupted_insert_leaves_nothing(tmp_path, rows):
    uri = tmp_path / "t"
    lance_core.write_dataset(pa.table({"a": range(10)}), uri)
    before = sorted(path for path in uri.rglob("*") if path.is_file())
    said = tmp_path / "said"
    command = [sys.executable, "-m", "tests.faults.endless", uri, rows]
    with processes.running(command, talks=True, log=said) as process:
        assert process.stdout.readline() == "going\n", said.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=200)
    assert process.returncode in (-signal.SIGINT, 130), said.read_text()
    assert "KeyboardInterrupt" in said.read_text()
    assert sorted(path for path in uri.rglob("*") if path.is_file()) == before
    assert lance.dataset(uri).count_rows() == lance_core.dataset(uri).count_rows() == 10
    lance_core.dataset(uri).insert(pa.table({"a": [1]}))
    assert lance.dataset(uri).count_rows() == 11
