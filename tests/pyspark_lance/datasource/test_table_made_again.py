"""A write fails if its table was dropped and made again since it was read."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import IncompatibleConflictError, InvalidInputError
from pyspark_lance.writing.job import open_version, prepare_write
from pyspark_lance.writing.options import WriteArguments

ROWS = pa.table({"a": [1, 2]})


def make(uri, versions):
    for number in range(versions):
        lance_core.write_dataset(ROWS, uri, mode="append" if number else "create")
    return lance_core.dataset(uri)


@pytest.mark.parametrize("again", [0, 1, 2, 3], ids=["dropped", "fewer versions", "as many", "more"])
def test_the_base_version_must_have_the_identity_that_was_read(tmp_path, again):
    uri = str(tmp_path / "t")
    read = make(uri, 2)
    options = WriteArguments(read_version=2, identity=read.identity)
    assert prepare_write(ROWS.schema, uri, options).base_version == 2
    lance_core.LanceDataset.drop(uri)
    make(uri, again) if again else None
    with pytest.raises(IncompatibleConflictError, match="do the write again"):
        prepare_write(ROWS.schema, uri, options)


def test_without_an_identity_the_number_decides(tmp_path):
    uri = str(tmp_path / "t")
    assert open_version(uri, None, None) is None
    make(uri, 1)
    assert open_version(uri, 0, None) is None
    assert open_version(uri, 1, None).version == open_version(uri, None, None).version == 1
    with pytest.raises(InvalidInputError, match="read_version"):
        open_version(uri, None, None, "some")
