"""The condition of a write that replaces rows, which is read with a table in memory."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError
from lance_core.store import memory
from pyspark_lance.writing.job import prepare_write
from pyspark_lance.writing.options import WriteArguments

ROWS = pa.table({"id": [1]})


@pytest.mark.parametrize("condition", ["id = 1", "nonsense = 1", "id =", "id = 'x'"])
def test_a_condition_leaves_nothing_in_memory(uri, condition):
    lance_core.write_dataset(ROWS, uri)
    before = set(memory._objects)
    try:
        prepare_write(ROWS.schema, uri, WriteArguments(mode="overwrite", replace_where=condition))
    except LanceError:
        assert condition != "id = 1"
    else:
        assert condition == "id = 1"
    assert set(memory._objects) == before
