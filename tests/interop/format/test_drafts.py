"""Files of 2.2 as pylance 0.35 to 1.0 wrote them, to which 2.2 was a draft: read here, and mended by compaction."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.encoding.choosing.strategy import Limits
from lance_core.file import writer
from lance_core.maintenance.verify.files import verify

ROWS = 20_000
"""Pages of that many rows are copied, not put together with others."""


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """A table of two fragments of draft pages, and its rows."""
    uri = str(tmp_path / "t")
    numbers = np.random.default_rng(1).integers(0, 2**62, 2 * ROWS)
    texts = [None if i % 5 == 0 else f"text {i}" for i in range(2 * ROWS)]
    rows = pa.table({"a": numbers, "s": texts, "l": [[i, i] for i in range(2 * ROWS)]})
    with monkeypatch.context() as patch:
        patch.setattr(writer, "Limits", lambda **_: Limits(large_chunks=False))
        lance_core.write_dataset(rows, uri, data_storage_version="2.2", max_rows_per_file=ROWS)
    return uri, rows


@pytest.mark.parametrize("mode", ["try_binary_copy", "force_binary_copy", "reencode"])
def test_merging_fragments_mends_them(draft, mode):
    uri, rows = draft
    assert lance_core.dataset(uri).to_table() == rows
    with pytest.raises(Exception, match="require the u32 chunk grammar"):
        lance.dataset(uri).to_table()
    made = lance_core.dataset(uri).optimize.compact_files(compaction_mode=mode)
    assert made.fragments_removed == 2
    assert lance_core.dataset(uri).to_table() == rows
    assert lance.dataset(uri).to_table() == rows
    assert verify(lance_core.dataset(uri)) == []


def test_they_are_named_and_mended_where_nothing_else_asks_for_it(draft):
    uri, rows = draft
    problems = verify(lance_core.dataset(uri))
    assert [(one.fragment_id, one.message.split("'")[1]) for one in problems] == [
        (fragment, column) for fragment in (0, 1) for column in ("s", "l.item")
    ]
    assert all("pylance 0.35 to 1.0" in one.message and "repair_pages=True" in one.message for one in problems)

    options = {"target_rows_per_fragment": ROWS}
    dataset = lance_core.dataset(uri)
    assert dataset.optimize.compact_files(**options).fragments_removed == 0
    assert dataset.optimize.compact_files(**options, repair_pages=True).fragments_removed == 2
    assert dataset.optimize.compact_files(**options, repair_pages=True).fragments_removed == 0
    assert verify(dataset) == []
    assert lance.dataset(uri).to_table() == lance_core.dataset(uri).to_table() == rows


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_pages_of_today_are_no_drafts(tmp_path, version):
    uri = str(tmp_path / "t")
    for library, mode in ((lance, "create"), (lance_core, "append")):
        rows = pa.table({"a": np.arange(ROWS), "s": [f"text {i}" for i in range(ROWS)], "c": [7] * ROWS})
        library.write_dataset(rows, uri, mode=mode, data_storage_version=version)
    assert verify(lance_core.dataset(uri)) == []
    options = {"target_rows_per_fragment": ROWS, "repair_pages": True}
    assert lance_core.dataset(uri).optimize.compact_files(**options).fragments_removed == 0
