"""Tasks of changes, without Spark."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core import MAX_EXACT_KEYS, key_hashes
from pyspark_lance.changing.task import ADDRESS, INSERT, KIND, ChangeReport, RowLevelTask, row_changed_twice

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


SCHEMA = pa.schema({"id": pa.string()})
BATCH_ROWS = 5_000


def inserted(batches, *, width, start=0, distinct=None):
    """Batches of rows that are inserted, with keys of some bytes each."""
    for number in range(batches):
        rows = range(start + number * BATCH_ROWS, start + (number + 1) * BATCH_ROWS)
        keys = [str(row % (distinct or row + 1)).rjust(width, "k") for row in rows]
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array(keys),
                ADDRESS: pa.nulls(BATCH_ROWS, pa.int64()),
                KIND: pa.array(np.full(BATCH_ROWS, INSERT, np.int8)),
            }
        )


def keys_reported(tmp_path, batches, **arguments):
    task = RowLevelTask(uri=str(tmp_path / "t.lance"), job="j", stored=SCHEMA, on=("id",), repeats=True, **arguments)
    return ChangeReport.from_bytes(task(0, 0, batches)).keys


def test_keys_of_a_task_that_may_repeat_are_reported_once(tmp_path):
    found = keys_reported(tmp_path, inserted(4, width=8, distinct=BATCH_ROWS + 7))
    expected = pa.table({"id": [str(row).rjust(8, "k") for row in range(BATCH_ROWS + 7)]})
    assert sorted(found) == sorted(key_hashes(expected, ["id"]))


@pytest.mark.parametrize(("most", "is_reported"), [(4 * BATCH_ROWS, True), (4 * BATCH_ROWS - 1, False), (None, True)])
def test_keys_are_reported_up_to_a_number(tmp_path, most, is_reported):
    found = keys_reported(tmp_path, inserted(4, width=8), most_keys=most)
    assert (found is not None) == is_reported


def test_keys_that_may_repeat_do_not_stay_in_memory(tmp_path):
    """200 MB of keys; what is written of them is buffered up to a limit, and nothing else is kept."""
    most = 0

    def watched():
        nonlocal most
        before = pa.total_allocated_bytes()
        for batch in inserted(40, width=1_000):
            yield batch
            most = max(most, pa.total_allocated_bytes() - before)

    assert keys_reported(tmp_path, watched(), most_keys=MAX_EXACT_KEYS) is None
    assert most < 100 << 20
