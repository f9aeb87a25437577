"""Plans beside pylance's: both read the same rows, and ours names the indices that it does not use."""

import re

import lance
import pyarrow as pa
import pytest

import lance_core

ROWS = pa.table({"id": range(1000), "s": [str(i % 7) for i in range(1000)]})


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("plans") / "t")
    made = lance.write_dataset(ROWS, uri, max_rows_per_file=300)
    made.create_scalar_index("id", "BTREE")
    made.create_scalar_index("s", "BITMAP", name="words")
    made.delete("id = 3")
    return lance_core.dataset(uri), lance.dataset(uri)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"columns": ["s"], "filter": "id > 500"},
        {"filter": "s = '3' AND id < 100", "limit": 5, "offset": 2},
        {"limit": 320, "offset": 290},
        {"order_by": ["s"], "limit": 10},
    ],
    ids=str,
)
def test_the_rows_that_came(both, arguments):
    ours, theirs = (dataset.scanner(**arguments).analyze_plan() for dataset in both)
    # The last step stands first in pylance's too; what it gave are the rows of the result.
    assert re.search(r"rows=(\d+)", ours)[1] == str(both[1].to_table(**arguments).num_rows)
    assert f"output_rows={re.search(r'rows=([0-9]+)', ours)[1]}" in theirs


def test_indices_that_are_used_and_those_that_are_not(both):
    ours, theirs = (dataset.scanner(filter="id = 5").explain_plan() for dataset in both)
    assert "@id_idx(BTree)" in theirs
    assert "indices=[id_idx (BTree)], ruled out=" in ours
    ours = both[0].scanner(filter="id = 5 AND s = 'x'").explain_plan()
    assert "indices=[id_idx (BTree), words (Bitmap)]" in ours
    ours = both[0].scanner(filter="id = 5 AND length(s) = 1").explain_plan()
    assert "indices=[id_idx (BTree)]" in ours
    assert "unused indices=[words (Bitmap)]" in ours
    ours = both[0].scanner(filter="id = 5 AND s = 'x'", use_scalar_index=False).explain_plan()
    assert "unused indices=[id_idx (BTree), words (Bitmap)]" in ours
    assert "indices" not in both[0].scanner(columns=["id"], filter="_rowid = 5").explain_plan()
