"""Files of indices that pylance's compaction of a branch writes into a folder that their records do not name."""

import shutil
from pathlib import Path

import lance as pylance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, cover_rows, describe_index_health, maintain
from lance_core.maintenance.verify.files import verify

pytestmark = [
    pytest.mark.usefixtures("local_children"),
    pytest.mark.filterwarnings("ignore:index .id_idx. .* is ignored"),
]

VECTORS = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
COLUMNS = {"BTREE": "id", "BITMAP": "id", "INVERTED": "w", "NGRAM": "w", "IVF_FLAT": "v"}
POLICY = MaintenancePolicy(cleanup_older_than=None)


def write_branch(place, kind):
    """A branch, opened by lance_core, whose index pylance has rewritten."""
    for start in range(0, 300, 100):
        ids = range(start, start + 100)
        vectors = pa.FixedSizeListArray.from_arrays(VECTORS[start : start + 100].ravel(), 8)
        data = pa.table({"id": ids, "w": [f"word{i} kilo" for i in ids], "v": vectors})
        table = lance_core.write_dataset(data, place, mode="append")
    if kind.startswith("IVF"):
        pylance.dataset(place).create_index("v", kind, num_partitions=2)
    else:
        pylance.dataset(place).create_scalar_index(COLUMNS[kind], kind)
    table.checkout_latest()
    table.create_branch("b")
    pylance.dataset(place).checkout_version(("b", None)).optimize.compact_files()
    return table.checkout_version(("b", None))


def search(branch, kind):
    """The ids of the rows that pylance finds by its index."""
    theirs = pylance.dataset(branch.uri.partition("/tree/")[0]).checkout_version(("b", None))
    options = {"filter": "contains(w, 'word7')" if kind == "NGRAM" else "id = 7"}
    if kind == "INVERTED":
        options = {"full_text_query": "word7"}
    elif kind == "IVF_FLAT":
        options = {"nearest": {"column": "v", "q": VECTORS[7], "k": 1, "nprobes": 2}}
    return theirs.to_table(columns=["id"], **options)["id"].to_pylist()


def list_segments(branch):
    branch.checkout_latest()
    return {segment.uuid for index in branch.describe_indices() for segment in index.segments}


def maintain_undeclared(branch):
    dry, report = maintain(branch, POLICY, dry_run=True), maintain(branch, POLICY)
    assert (report.outcome, report.done["indices_refreshed"]) == ("done", 1)
    assert (dry.outcome, dry.done["indices_refreshed"]) == ("done", 1)


def maintain_declared(branch):
    (index,) = describe_index_health(branch)
    kind = "FTS" if index.kind == "Inverted" else index.kind
    policy = MaintenancePolicy(indices={index.column: {"kind": kind}}, cleanup_older_than=None)
    assert maintain(branch, policy).outcome == "done"
    assert maintain(branch, policy).outcome == "healthy"


def cover(branch):
    assert len(cover_rows(branch).covered) == 1


@pytest.mark.variants(5)
@pytest.mark.parametrize("mend", [maintain_undeclared, maintain_declared, cover])
@pytest.mark.parametrize("kind", COLUMNS)
def test_they_are_named_and_mended(tmp_path, kind, mend):
    branch = write_branch(tmp_path / "t.lance", kind)
    with pytest.raises(Exception, match="Not found"):
        search(branch, kind)
    problems = verify(branch)
    assert {each.message for each in problems} == {"is missing"}
    assert all("/t.lance/_indices/" in each.path for each in problems)
    assert [index.covered for index in describe_index_health(branch)] == [0.0]
    segments = list_segments(branch)
    mend(branch)
    if mend is not maintain_declared:
        assert list_segments(branch) == segments, "the record is corrected, and nothing is built"
    hits = [i for i in range(300) if str(i).startswith("7")] if kind == "NGRAM" else [7]
    assert sorted(search(branch, kind)) == hits
    assert verify(branch) == []
    assert (maintain(branch, POLICY).outcome, cover_rows(branch).covered) == ("healthy", ())


@pytest.mark.parametrize("mend", [maintain_undeclared, cover])
def test_files_that_are_nowhere_are_built_again(tmp_path, mend):
    branch = write_branch(tmp_path / "t.lance", "BTREE")
    shutil.rmtree(Path(branch.uri, "_indices"))
    mend(branch)
    assert search(branch, "BTREE") == [7]
    assert (verify(branch), maintain(branch, POLICY).outcome) == ([], "healthy")
