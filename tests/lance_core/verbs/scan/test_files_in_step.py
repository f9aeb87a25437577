"""Fragments whose columns lie in several files are read by bytes, as those of one file are."""

import numpy as np
import pyarrow as pa
import pytest

import lance_core

ROWS, WIDTH = 300, 100_000


@pytest.fixture
def table(tmp_path):
    values = [np.random.default_rng(number).bytes(WIDTH) for number in range(ROWS)]
    return lance_core.write_dataset(
        pa.table({"id": range(ROWS), "wide": pa.array(values, pa.binary())}), tmp_path / "t"
    )


def test_batches_are_as_small_as_those_of_a_single_file(table):
    before = [batch.nbytes for batch in table.to_batches()]
    expected = table.to_table()
    table.add_columns({"more": "id * 2"})
    after = list(table.to_batches())
    assert max(batch.nbytes for batch in after) < 1.1 * max(before) < ROWS * WIDTH / 2
    assert pa.Table.from_batches(after).select(["id", "wide"]).equals(expected)
    assert table.update({"more": "1"})["num_rows_updated"] == ROWS
    assert table.to_table(columns=["id", "wide"]).equals(expected)
