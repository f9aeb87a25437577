"""How far a column is read ahead of the rows that are returned depends on the size of its values, not of its pages."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.file import column


@pytest.fixture
def decoded(monkeypatch):
    """The bytes of the values of each page that is decoded."""
    found, real = [], column.PageTask.advance

    def advance(task, answer):
        ranges = real(task, answer)
        if task._result is not None:
            found.append(task._result.nbytes)
        return ranges

    monkeypatch.setattr(column.PageTask, "advance", advance)
    return found


def test_strings_that_compress_well_are_not_read_ahead_as_a_whole(tmp_path, decoded):
    strings = [f"{number:03}" * 100_000 for number in range(800)]
    rows = pa.table({"body": strings})
    table = lance_core.write_dataset(rows, tmp_path / "t.lance")
    given = 0
    for number, batch in enumerate(table.scanner(batch_size=4).to_batches()):
        assert batch["body"].to_pylist() == strings[4 * number : 4 * number + 4]
        given += batch.nbytes
        assert sum(decoded) - given < 160_000_000
    assert number == 199
