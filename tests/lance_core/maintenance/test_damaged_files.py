"""Damaged files, and machines that lack something, cost their index alone: it is named, or built again."""

import sys
from dataclasses import replace
from pathlib import Path

import lance as pylance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import MaintenanceFailedError
from lance_core.maintenance import MaintenancePolicy, cover_rows, describe_index_health, keep_indices, maintain
from tests import processes

FULL = """
import resource, sys
import lance_core
from lance_core.errors import MaintenanceFailedError
from lance_core.maintenance import MaintenancePolicy, maintain

resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    maintain(lance_core.dataset(sys.argv[1]), MaintenancePolicy(indices={"v": "IVF_FLAT", "id": "BTREE"}))
except MaintenanceFailedError as error:
    assert {work["index"]: bool(work["error"]) for work in error.reports[0].indices} == {"v_idx": True, "id_idx": True}
    assert "index 'v_idx': to build it failed: " in str(error), error
    assert "index 'id_idx': to build it failed: " in str(error), error
else:
    raise AssertionError("the records were written")
"""
FILES = {
    "BTREE": "page_data.lance",
    "BITMAP": "bitmap_page_lookup.lance",
    "LABEL_LIST": "bitmap_page_lookup.lance",
    "ZONEMAP": "zonemap.lance",
    "BLOOMFILTER": "bloomfilter.lance",
}
WAYS = ("declared", "undeclared", "optimize", "compact", "cover", "on_write")
CASES = [(kind, work) for kind in FILES for work in (WAYS[:4] if kind == "ZONEMAP" else WAYS)]  # none is covered alone


def rows(start, count):
    ids = range(start, start + count)
    values = np.random.default_rng(start).random((count, 8), np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(values.ravel(), 8)
    return pa.table({"id": ids, "tags": [[f"tag{i % 7}", f"own{i}"] for i in ids], "v": vectors})


def damage_index(table, kind):
    """Overwrite the beginning of the pages of the newest index; the sizes stay."""
    (file,) = Path(table.uri.removeprefix("file://"), "_indices").glob(f"*/{FILES[kind]}")
    with file.open("r+b") as pages:
        pages.write(b"\xff" * 64)


def check_rows(table):
    """Both libraries find each row, and the index covers all of them."""
    assert all(index.covered == 1 for index in describe_index_health(lance_core.dataset(table.uri)))
    for library in (lance_core, pylance):
        opened = library.dataset(table.uri.removeprefix("file://"))
        for number in (0, 299, 300, 400, opened.count_rows() - 1):
            for condition in (f"id = {number}", f"array_has(tags, 'own{number}')"):
                assert opened.count_rows(filter=condition) == 1


class TestIndices:
    @pytest.mark.filterwarnings("ignore:index .* is ignored")
    @pytest.mark.variants(4)
    @pytest.mark.parametrize(("kind", "work"), CASES)
    def test_pages_that_cannot_be_read_are_made_again_from_the_rows(self, tmp_path, kind, work):
        table = lance_core.write_dataset(rows(0, 300), str(tmp_path / "t.lance"))
        column = "tags" if kind == "LABEL_LIST" else "id"
        declared = MaintenancePolicy(indices={column: kind})
        if work == "undeclared":
            table.create_scalar_index(column, kind)
        else:
            maintain(table, declared)
        damage_index(table, kind)
        table = lance_core.write_dataset(rows(300, 200), table.uri, mode="append")
        if work == "cover":
            assert not cover_rows(table).problems
        elif work == "on_write":
            assert not keep_indices(table, declared).problems
        elif work == "optimize":
            table.optimize.optimize_indices()
        elif work == "compact":
            table.optimize.compact_files()
        else:
            policy = declared if work == "declared" else MaintenancePolicy()
            assert (maintain(table, policy).outcome, maintain(table, policy).outcome) == ("done", "healthy")
        check_rows(table)


class TestVectors:
    @pytest.mark.variants(1)
    @pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"nothing")])
    def test_a_data_file_that_cannot_be_read_stops_no_other_step(self, tmp_path, damage):
        policy = MaintenancePolicy(indices={"v": "IVF_FLAT", "id": "BTREE"}, materialize_deletions_threshold=0.9)
        table = lance_core.write_dataset(rows(0, 300), str(tmp_path / "t.lance"))
        (file,) = table.get_fragments()[0].data_files()
        for start in (300, 310):
            table = lance_core.write_dataset(rows(start, 10), table.uri, mode="append")
        damage(tmp_path / "t.lance" / "data" / file.path)
        assert maintain(table, policy, dry_run=True).error is None
        with pytest.raises(MaintenanceFailedError) as caught:  # by the compaction
            maintain(table, policy)
        errors = {work["index"]: work.get("error") for work in caught.value.reports[0].indices}
        assert errors.keys() == {"v_idx", "id_idx"}
        assert all(errors.values())
        version = table.latest_version
        with pytest.raises(MaintenanceFailedError, match="rewrite: "):
            maintain(table, policy)
        assert table.latest_version == version

    def test_a_full_disk_hides_no_index_although_nothing_can_be_recorded(self, tmp_path):
        table = lance_core.write_dataset(rows(0, 300), str(tmp_path / "t.lance"))
        processes.run([sys.executable, "-c", FULL, table.uri], check=True)
        assert table.latest_version == 1
        assert not list(Path(tmp_path, "t.lance").glob("_indices/*"))

    @pytest.mark.parametrize("executable", [None, ""])
    def test_without_an_interpreter_the_others_are_built(self, tmp_path, monkeypatch, executable):
        table = lance_core.write_dataset(rows(0, 300), str(tmp_path / "t.lance"))
        policy = MaintenancePolicy(indices={"v": "IVF_FLAT", "id": "BTREE"})
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", executable)
            report = maintain(table, policy)
        assert (report.outcome, report.done["indices_built"]) == ("partly done", 1)
        assert "index 'v_idx': to build it failed: no process can be started" in report.reason
        assert "set sys.executable" in report.reason
        maintain(table, replace(policy, index_timeout="1h"))
        table = lance_core.write_dataset(rows(300, 10), table.uri, mode="append")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", executable)
            coverage = cover_rows(table)
        assert coverage.covered == ("id_idx",)
        assert "set sys.executable" in coverage.problems["v_idx"]
