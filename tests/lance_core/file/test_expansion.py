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


@pytest.mark.parametrize("offset", [0, 2], ids=["whole", "from_the_middle_of_a_page"])
def test_strings_that_compress_well_are_not_read_ahead_as_a_whole(tmp_path, decoded, offset):
    strings = [f"{number:03}" * 100_000 for number in range(800)]
    rows = pa.table({"body": strings})
    table = lance_core.write_dataset(rows, tmp_path / "t.lance")
    given, found = 0, []
    for batch in table.scanner(batch_size=4, offset=offset, limit=796).to_batches():
        found += batch["body"].to_pylist()
        given += batch.nbytes
        assert sum(decoded) - given < 100_000_000
    assert found == strings[offset : offset + 796]


def test_strings_of_small_fragments_are_decoded_together(tmp_path, decoded):
    rows = pa.table({"name": [f"row {number:04}" for number in range(40 * 100)]})
    table = lance_core.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=100, max_rows_per_group=100)
    assert table.to_table() == rows
    assert len(decoded) == 2  # the first fragment, which gives the factor, and the others together
