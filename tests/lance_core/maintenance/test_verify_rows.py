"""`verify(rows=True)` decodes every page; without it only the metadata of files is read."""

from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.errors import CorruptFileError
from lance_core.maintenance.verify.files import verify

ROWS = pa.table({"id": range(100), "v": [f"s{i}" for i in range(100)], "s": [{"x": i, "y": [i]} for i in range(100)]})


@pytest.fixture
def damaged(tmp_path):
    """A table and the column that cannot be read, with a flipped bit in one of its pages."""
    table = lance_core.write_dataset(ROWS, tmp_path / "t.lance")
    (file,) = (Path(table.uri) / "data").iterdir()
    content = file.read_bytes()
    for position in range(len(content)):
        file.write_bytes(content[:position] + bytes([content[position] ^ 0x40]) + content[position + 1 :])
        opened = lance_core.dataset(table.uri)
        if verify(opened):
            continue  # the metadata shows it
        try:
            opened.to_table()
        except CorruptFileError:
            return opened, file.name
    raise AssertionError("no flipped bit makes the file unreadable")


def test_a_damaged_page_is_named(damaged):
    table, name = damaged
    problems = verify(table, rows=True)
    assert [problem.path for problem in problems] == [name]
    assert any(f"column {column!r} cannot be read" in problems[0].message for column in ROWS.column_names)
    assert CliRunner().invoke(cli, ["verify", table.uri]).exit_code == 0
    result = CliRunner().invoke(cli, ["verify", "--rows", table.uri])
    assert result.exit_code == 4
    assert name in result.output


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_a_good_table_has_no_problem(tmp_path, version):
    table = lance_core.write_dataset(ROWS, tmp_path / "t.lance", data_storage_version=version)
    table.insert(ROWS)
    table.delete("id < 10")
    if version != "0.1":
        table.add_columns({"w": "id + 1"})
        table.drop_columns(["v"])
    table.optimize.compact_files()
    table.insert(lance_core.dataset(table.uri).to_table())
    assert verify(lance_core.dataset(table.uri), rows=True) == []
