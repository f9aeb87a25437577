"""`blob_array` makes the extension type of pylance, in processes with and without pylance."""

import sys

import lance
import pyarrow as pa
import pytest

import lance_core
from tests.processes import run

PAYLOADS = [b"a", None, b"", b"b" * 100_000]

WITHOUT_PYLANCE = """
import sys
import pyarrow as pa, lance_core
payloads = [b"a", None, b"", b"b" * 100_000]
def rows(first):
    return pa.table({"id": list(range(first, first + 4)), "photo": lance_core.blob_array(payloads)})
table = lance_core.write_dataset(rows(0), sys.argv[1])
table.insert(rows(4))
merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
merge.execute(rows(6))
big = pa.table({"id": range(20, 60), "photo": lance_core.blob_array([b"c" * 1_000_000] * 40)})
reader = pa.RecordBatchReader.from_batches(big.schema, big.to_batches(max_chunksize=8))
table.merge_insert("id").when_not_matched_insert_all().execute(reader)
assert "lance" not in sys.modules
"""


def test_without_pylance(tmp_path):
    run([sys.executable, "-c", WITHOUT_PYLANCE, tmp_path / "t"], check=True)
    for library in (lance, lance_core):
        table = library.dataset(tmp_path / "t").to_table(blob_handling="all_binary").sort_by("id")
        assert table["photo"].to_pylist() == PAYLOADS + PAYLOADS[:2] + PAYLOADS + [b"c" * 1_000_000] * 40


@pytest.mark.parametrize("writer", [lance, lance_core])
@pytest.mark.parametrize("maker", [lance, lance_core])
def test_each_library_writes_the_arrays_of_the_other(tmp_path, maker, writer):
    rows = pa.table({"id": range(4), "photo": maker.blob_array(PAYLOADS)})
    table = writer.write_dataset(rows, tmp_path / "t")
    writer.write_dataset(rows, table, mode="append")
    for library in (lance, lance_core):
        stored = library.dataset(tmp_path / "t").to_table(blob_handling="all_binary")
        assert stored["photo"].to_pylist() == PAYLOADS * 2
