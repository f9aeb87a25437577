"""Tasks of changes, without Spark."""

import numpy as np
import pyarrow as pa
import pytest

from pyspark_lance.changing.task import row_changed_twice

ADDRESSES = np.array([4, 7, 7], np.int64)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ID": [1, 2, 2], "v": ["a", "b", "c"]}, " id = 2"),
        ({"_change": ["delete"] * 3}, " of one row of the table; the key is ['id']"),
    ],
)
def test_the_key_of_a_row_that_is_changed_twice(columns, message):
    assert row_changed_twice(pa.RecordBatch.from_pydict(columns), ADDRESSES, ["id"]) == message
