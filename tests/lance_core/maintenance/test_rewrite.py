"""Rows that a compaction decodes: a bounded part at a time, however much a page holds."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance.compaction import rewrite


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_a_page_that_holds_many_long_rows_is_decoded_in_parts(tmp_path, monkeypatch, version):
    text = "long " * 200
    rows = pa.table({"a": range(20_000), "s": [text] * 20_000})
    for _ in range(2):
        dataset = lance_core.write_dataset(rows, tmp_path / "t", mode="append", data_storage_version=version)
    dataset.delete("a % 3 = 1")
    sizes = []

    def watched(*arguments, **options):
        for batch in read_fragment(*arguments, **options):
            sizes.append(batch.nbytes)
            yield batch

    read_fragment = rewrite.read_fragment
    monkeypatch.setattr(rewrite, "read_fragment", watched)
    monkeypatch.setattr(rewrite, "FIRST_ROWS", 100)
    monkeypatch.setattr(rewrite, "READ_BYTES", 1_000_000)
    dataset.optimize.compact_files(compaction_mode="reencode")
    assert max(sizes) < 1_100_000 < sum(sizes) / 20
    assert len(dataset.get_fragments()) == 1
    expected = pa.concat_tables([rows, rows]).filter([i % 3 != 1 for i in range(20_000)] * 2)
    assert dataset.to_table() == expected
