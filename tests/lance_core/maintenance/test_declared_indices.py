"""Declared indices of tables are built, kept and measured by maintenance; pylance's searches are the judge."""

import json
import os
import signal
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import lance as pylance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.errors import InvalidInputError, MaintenanceFailedError, StoreError, UnsupportedError
from lance_core.maintenance import (
    MaintenanceBudget,
    MaintenancePolicy,
    cover_rows,
    describe_index_health,
    keep_indices,
    maintain,
    maintain_lake,
)
from lance_core.maintenance.routine import declared
from lance_core.maintenance.search import child, parts
from lance_core.maintenance.search.record import read_records
from lance_core.maintenance.verify.files import verify
from tests import processes
from tests.support.local_child import LocalChild

DIMENSIONS = 16
SEARCH = {"v": {"kind": "IVF_FLAT", "metric": "cosine"}, "t": "FTS"}
VECTOR_KINDS = ("IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ")


def vectors(start, count):
    values = np.random.default_rng(start).random((count, DIMENSIONS), np.float32)
    return pa.FixedSizeListArray.from_arrays(values.ravel(), DIMENSIONS)


def rows(start, count):
    ids = range(start, start + count)
    words = [f"word{i} common{i % 7} and more" for i in ids]
    return pa.table({"id": ids, "v": vectors(start, count), "t": words})


def fill(uri, start=0, count=300, pieces=1, **options):
    for piece in range(pieces):
        first = start + piece * count
        lance_core.write_dataset(rows(first, count), str(uri), mode="append", **options)
    return lance_core.dataset(str(uri))


@contextmanager
def unlimited():
    """As if a process needed no memory, so that the limits of a policy can stay as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "measure_memory", lambda _pid: 0)
        yield


def states(table):
    return {index.name: index for index in describe_index_health(lance_core.dataset(table.uri))}


def work(report):
    return [(each["index"], each["action"]) for each in report.indices]


def folders(table):
    path = Path(table.uri.removeprefix("file://"), "_indices")
    return {each.name for each in path.iterdir()} if path.is_dir() else set()


def used_folders(table):
    """Without that of recorded moves, which stand in the manifest."""
    indices = [index for index in table.describe_indices() if not index.name.startswith("__lance_")]
    return {segment.uuid for index in indices for segment in index.segments}


def exact(table, query, k, column="v"):
    """Ids of the nearest rows by cosine, of all rows of the version."""
    everything = table.to_table(columns=["id", column])
    matrix = np.stack(everything[column].to_numpy(zero_copy_only=False)).astype(np.float64)
    distances = 1 - matrix @ query / np.linalg.norm(matrix, axis=1) / np.linalg.norm(query)
    order = np.argsort(distances, kind="stable")[:k]
    return np.asarray(everything["id"])[order].tolist(), distances[order]


def check_searches(uri, column="v", text="t"):
    """What pylance finds by the indices, and lance_core without, against all rows."""
    theirs, ours = pylance.dataset(uri), lance_core.dataset(uri)
    for query in np.random.default_rng(5).random((3, DIMENSIONS), np.float32):
        expected, distances = exact(theirs, query.astype(np.float64), 10, column)
        nearest = {"column": column, "q": query, "k": 10, "nprobes": 50, "metric": "cosine"}
        for table, extra in ((theirs, ["_distance"]), (ours, [])):
            result = table.to_table(columns=["id", *extra], nearest=nearest)
            assert result["id"].to_pylist() == expected
            assert np.allclose(result["_distance"], distances, atol=1e-5)
    everything = theirs.to_table(columns=["id", text])
    for word in ("word7", "word310", "changed", "common3"):
        query = {"columns": [text], "query": word}
        result = theirs.to_table(columns=["id"], full_text_query=query, limit=10_000)
        hits = [row["id"] for row in everything.to_pylist() if word in (row[text] or "").split()]
        assert sorted(result["id"].to_pylist()) == sorted(hits), word


@pytest.mark.usefixtures("local_children")
class TestBuilding:
    def test_each_kind_is_built_measured_and_found_by_pylance(self, tmp_path):
        table = rows(0, 300)
        for kind in VECTOR_KINDS:
            table = table.append_column(kind, vectors(0, 300))
        table = table.append_column(
            "bits", pa.array([[i % 256, i // 256] for i in range(300)], pa.list_(pa.uint8(), 2))
        )
        table = table.append_column("words", table["t"])
        uri = str(tmp_path / "t.lance")
        lance_core.write_dataset(table, uri)
        indices = {kind: {"kind": kind, "metric": "dot", "name": f"on_{kind}"} for kind in VECTOR_KINDS}
        indices |= {"bits": {"kind": "IVF_FLAT", "metric": "hamming"}}
        indices |= {"t": {"kind": "INVERTED", "with_position": True}, "words": "NGRAM", "id": "BTREE", "v": "IVF_FLAT"}
        policy, table = MaintenancePolicy(indices=indices), lance_core.dataset(uri)
        dry = maintain(table, policy, dry_run=True)
        report = maintain(table, policy)
        assert (report.outcome, report.reason) == ("done", None)
        assert report.done["indices_built"] == dry.done["indices_built"] == len(indices)
        found = states(table)
        assert {name for name, index in found.items() if index.built and index.covered == 1.0 and index.declared} == {
            *(f"on_{kind}" for kind in VECTOR_KINDS), "bits_idx", "t_idx", "words_idx", "id_idx", "v_idx",
        }  # fmt: skip
        assert {found[f"on_{kind}"].kind for kind in VECTOR_KINDS} == set(VECTOR_KINDS)
        assert found["on_IVF_FLAT"].recall["value"] == found["t_idx"].recall["value"] == 1.0
        assert all(found[f"on_{kind}"].recall["value"] > 0.3 for kind in VECTOR_KINDS)
        assert found["bits_idx"].recall["value"] is None
        assert "cannot be measured" in found["bits_idx"].recall["note"]
        assert found["on_IVF_PQ"].trained_rows == 300
        check = pylance.dataset(uri)
        assert (
            "ANNSubIndex" in check.scanner(nearest={"column": "IVF_PQ", "q": [0.5] * DIMENSIONS, "k": 3}).explain_plan()
        )
        assert check.to_table(columns=["id"], full_text_query=pylance.query.PhraseQuery("word7 common0", "t"))[
            "id"
        ].to_pylist() == [7]
        assert check.to_table(columns=["id"], filter="contains(words, 'ord299 ')")["id"].to_pylist() == [299]
        assert folders(table) == used_folders(table)
        version, again = table.version, maintain(table, policy)
        assert (again.outcome, again.indices, lance_core.dataset(uri).version) == ("healthy", (), version)
        shown = CliRunner().invoke(cli, ["indices", uri])
        assert (shown.exit_code, "on_IVF_HNSW_SQ" in shown.output) == (0, True)
        printed = {row["name"]: row for row in json.loads(CliRunner().invoke(cli, ["indices", uri, "--json"]).output)}
        assert printed["on_IVF_PQ"]["recall"]["queries"] == 100

    @pytest.mark.variants(1)
    @pytest.mark.parametrize("stable", [False, True])
    def test_rows_that_are_added_are_covered_and_their_fragments_merged(self, tmp_path, stable):
        policy = MaintenancePolicy(indices={"v": {"kind": "IVF_PQ", "metric": "cosine"}, "t": "FTS"})
        table = fill(tmp_path / "t.lance", enable_stable_row_ids=stable)
        maintain(table, policy)
        for turn in range(3):
            fill(tmp_path / "t.lance", 300 + 40 * turn, 20, pieces=2)
            report = maintain(table, policy, dry_run=turn == 2)
            assert (report.outcome, report.reason) == ("done", None)
            if turn < 2:
                assert {index.covered for index in states(table).values()} == {1.0}
                assert len(table.get_fragments()) <= 3
        check = pylance.dataset(table.uri)
        nearest = {"column": "v", "q": rows(325, 1)["v"][0].as_py(), "k": 1, "refine_factor": 10}
        stored = check.to_table(columns=["id", "v"], filter="id = 325").to_pylist()[0]["v"]
        assert check.to_table(columns=["id"], nearest={**nearest, "q": stored})["id"].to_pylist() == [325]
        assert check.to_table(columns=["id"], full_text_query="word325")["id"].to_pylist() == [325]

    def test_another_declaration_replaces_the_index_in_one_commit(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        pylance.dataset(table.uri).create_index("v", "IVF_SQ", metric="cosine", num_partitions=2, name="theirs")
        first = MaintenancePolicy(indices={"v": {"kind": "IVF_SQ", "metric": "cosine"}, "id": "BITMAP"})
        report = maintain(table, first)
        assert work(report)[:2] == [("theirs", "adopt"), ("theirs", "measure")]
        second = {"v": {"kind": "IVF_FLAT", "metric": "cosine", "num_partitions": 3}, "id": "BTREE"}
        begun = table.version
        report = maintain(table, MaintenancePolicy(indices=second, cleanup_older_than=None))
        assert (("theirs", "rebuild") in work(report), report.outcome) == (True, "done")
        for version in range(begun, table.version + 1):
            kinds = {index.name: index.index_type for index in table.checkout_version(version).describe_indices()}
            assert set(kinds) == {"theirs", "id_idx"}
        assert kinds == {"theirs": "IVF_FLAT", "id_idx": "BTree"}
        assert read_records(table.config())["theirs"].parameters["num_partitions"] == 3
        lance_core.dataset(table.uri).create_scalar_index("id", "ZONEMAP", name="zones")
        third = MaintenancePolicy(indices={"id": "BTREE"}, drop_undeclared=True)
        assert maintain(table, third).done["indices_dropped"] == 1
        assert {index.name for index in table.describe_indices()} == {"id_idx", "zones"}
        assert list(read_records(table.config())) == ["id_idx"]

    @pytest.mark.parametrize("is_table", [False, True])
    def test_queries_of_a_user_are_searched_for_too(self, tmp_path, is_table):
        table = fill(tmp_path / "t.lance", count=2000)
        declaration = {"kind": "IVF_FLAT", "num_partitions": 40, "nprobes": 1}
        maintain(table, MaintenancePolicy(indices={"v": declaration}))
        stored = states(table)["v_idx"].recall
        # Between all stored vectors: the nearest rows are in many partitions.
        queries = np.full((300, DIMENSIONS), 0.5) + np.random.default_rng(1).random((300, DIMENSIONS)) / 100
        uri = str(tmp_path / "queries.lance")
        if is_table:
            column = pa.FixedSizeListArray.from_arrays(queries.astype(np.float32).ravel(), DIMENSIONS)
            lance_core.write_dataset(pa.table({"v": column}), uri)
        chosen = {**declaration, "queries": uri if is_table else queries.tolist()}
        report = maintain(table, MaintenancePolicy(indices={"v": chosen}))
        assert work(report) == [("v_idx", "measure")]
        recall = states(table)["v_idx"].recall
        assert (stored["queries"], recall["queries"]) == (100, 400)

        searched = pylance.dataset(table.uri)
        values = np.stack(searched.to_table(columns=["v"])["v"].to_pylist())
        hits = 0
        for query in queries.astype(np.float32):
            exact = set(np.argsort(((values - query) ** 2).sum(axis=1))[:10].tolist())
            nearest = {"column": "v", "q": query, "k": 10, "nprobes": 1}
            hits += len(exact & set(searched.to_table(columns=["id"], nearest=nearest)["id"].to_pylist()))
        assert recall["value"] == pytest.approx((stored["value"] * 100 + hits / 3000 * 300) / 400, abs=0.005)
        assert not maintain(table, MaintenancePolicy(indices={"v": chosen})).indices

    def test_queries_that_do_not_fit_are_named(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        report = maintain(table, MaintenancePolicy(indices={"v": {"kind": "IVF_FLAT", "queries": [[1.0, 2.0]]}}))
        assert "its queries have 2 dimensions, not 16" in report.index_problems[0]
        for wrong in ([], [[]], [[1.0], [1.0, 2.0]], [1.0], [["a"]], [[float("nan")]], ""):
            with pytest.raises(InvalidInputError, match="queries must be vectors of one length"):
                MaintenancePolicy(indices={"v": {"kind": "IVF_FLAT", "queries": wrong}})

    def test_dimensions_that_no_codes_fit_are_named(self, tmp_path):
        vectors_of_12 = pa.FixedSizeListArray.from_arrays(np.zeros(300 * 12, np.float32), 12)
        table = lance_core.write_dataset(pa.table({"v": vectors_of_12}), tmp_path / "t.lance")
        report = maintain(table, MaintenancePolicy(indices={"v": "IVF_RQ"}))
        assert "it needs a number of dimensions that 8 divides, not 12" in report.index_problems[0]
        assert (report.indices, read_records(table.config())) == ((), {})

    @pytest.mark.parametrize("length", [39, 40, 41])
    def test_words_that_the_tokenizer_drops_are_not_sampled(self, tmp_path, length):
        words = [f"{i:03d}".ljust(length, "x") + f" short{i}" for i in range(100)]
        table = lance_core.write_dataset({"t": words}, tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices={"t": {"kind": "FTS", "min_recall": 0.9}}))
        assert states(table)["t_idx"].recall["value"] == 1.0

    def test_measurements_are_in_the_log_even_of_an_earlier_release(self, tmp_path):
        fill(tmp_path / "notes.lance")
        log, policy = str(tmp_path / "_maintenance/log.lance"), MaintenancePolicy(indices=SEARCH)
        maintain_lake(tmp_path, MaintenancePolicy())
        lance_core.dataset(log).drop_columns(["index_work"])
        maintain_lake(tmp_path, policy)
        maintain_lake(tmp_path, policy)
        entries = lance_core.dataset(log).to_table(filter="step = 'table'").sort_by("time")["index_work"].to_pylist()
        assert (entries[0], entries[2]) == (None, None)
        measured = {each["index"]: each for each in json.loads(entries[1]) if each["action"] == "measure"}
        recall = states(lance_core.dataset(str(tmp_path / "notes.lance")))["v_idx"].recall
        names = ("settings", "queries", "rows", "at")
        assert {name: measured["v_idx"][name] for name in names} == {name: recall[name] for name in names}
        assert measured["v_idx"]["recall"] == recall["value"]
        assert measured["t_idx"]["recall"] == 1.0

    def test_full_text_by_somebody_else_is_extended_by_its_own_parameters(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        for parameters, declaration, action in (
            ({"with_position": True, "base_tokenizer": "whitespace"}, "FTS", "adopt"),
            ({"with_position": True, "stem": False}, "FTS", "extend"),
            ({}, {"kind": "FTS", "with_position": True}, "rebuild"),
            ({}, {"kind": "FTS", "with_position": True}, "rebuild"),
        ):
            pylance.dataset(table.uri).create_scalar_index("t", "FTS", replace=True, **parameters)
            fill(tmp_path / "t.lance", table.count_rows(), 20)
            report = maintain(lance_core.dataset(table.uri), MaintenancePolicy(indices={"t": declaration}))
            assert (("t_idx", action) in work(report), report.outcome) == (True, "done")
            table.checkout_latest()
            check_searches(table.uri)

    def test_the_record_of_an_index_that_was_dropped_goes_with_its_declaration(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices={"t": "FTS", "id": "BTREE"}))
        table.drop_index("t_idx")
        maintain(table, MaintenancePolicy(indices={"id": "BITMAP"}))
        assert sorted(states(table)) == ["id_idx"]

    def test_an_index_with_low_recall_is_built_again(self, tmp_path):
        table = fill(tmp_path / "t.lance", count=600)
        pylance.dataset(table.uri).create_index("v", "IVF_FLAT", metric="l2", num_partitions=64)
        declaration = {"kind": "IVF_FLAT", "min_recall": 0.95, "nprobes": 1}
        report = maintain(table, MaintenancePolicy(indices={"v": declaration}))
        assert work(report) == [("v_idx", action) for action in ("adopt", "measure", "rebuild", "measure")]
        assert (report.indices[1]["recall"] < 0.7, report.indices[3]["recall"], report.outcome) == (True, 1.0, "done")
        hard = {"kind": "IVF_PQ", "num_sub_vectors": 1, "min_recall": 0.99}
        report = maintain(table, MaintenancePolicy(indices={"v": hard}))
        assert report.outcome == "partly done"
        assert "is below min_recall 0.99; with other settings: nprobes=20, refine_factor=5: 0." in report.reason
        assert maintain(table, MaintenancePolicy(indices={"v": hard})).outcome == "healthy"

    def test_an_index_is_trained_again_when_the_table_has_grown(self, tmp_path):
        policy = MaintenancePolicy(indices={"v": {"kind": "IVF_FLAT", "retrain_growth": 2}})
        table = fill(tmp_path / "t.lance", count=256)
        maintain(table, policy)
        fill(tmp_path / "t.lance", 256, 256)
        report = maintain(table, policy)
        assert ("v_idx", "rebuild") in work(report)
        assert (states(table)["v_idx"].trained_rows, states(table)["v_idx"].segments) == (512, 1)

    def test_segments_are_merged_in_the_run_that_measures_them(self, tmp_path):
        policy = MaintenancePolicy(indices=SEARCH)
        table = fill(tmp_path / "t.lance", enable_stable_row_ids=True)
        maintain(table, policy)
        for start in (300, 350, 400):
            fill(tmp_path / "t.lance", start, 50)
            cover_rows(table)
        assert {action for _, action in work(maintain(table, policy))} == {"merge", "measure"}
        assert maintain(table, policy).outcome == "healthy"

    @pytest.mark.variants(2)
    @pytest.mark.parametrize("stable", [False, True])
    @pytest.mark.parametrize("columns", [["v", "t", "id"], ["v"], ["t"], ["id"]], ids=str)
    @pytest.mark.parametrize("is_declared", [True, False])
    def test_segments_of_covered_rows_keep_no_fragments_apart(self, tmp_path, is_declared, columns, stable):
        policy = MaintenancePolicy(indices={name: {**SEARCH, "id": "BTREE"}[name] for name in columns})
        table = fill(tmp_path / "t.lance", enable_stable_row_ids=stable)
        if not stable:  # as an earlier run of maintenance does for vectors and words
            table.update_config({"lance.compaction.defer_index_remap": "true"})
        maintain(table, policy)
        policy = policy if is_declared else MaintenancePolicy()
        for start in (300, 320, 340):
            fill(tmp_path / "t.lance", start, 20)
            assert not cover_rows(table).problems
        dry = maintain(table, policy, dry_run=True)
        report = maintain(table, policy)
        assert len(table.get_fragments()) == dry.after.fragments == (1 if columns == ["id"] and stable else 2)
        assert (report.outcome, report.done["fragments_removed"]) == ("done", dry.done["fragments_removed"])
        again = maintain(table, policy)
        assert (again.outcome, again.indices) == ("healthy", ())
        assert {index.covered for index in states(table).values()} == {1.0}
        check_searches(table.uri)
        for reader in (table, pylance.dataset(table.uri)):
            assert reader.to_table(columns=["id"], filter="id in (5, 299, 300, 359)")["id"].to_pylist() == [
                5,
                299,
                300,
                359,
            ]

    @pytest.mark.parametrize("metric", ["l2", "cosine"])
    def test_recall_is_that_of_the_declared_index(self, tmp_path, metric):
        """Another index of the same metric may answer the searches."""
        table = fill(tmp_path / "t.lance", count=600)
        options = {"metric": metric, "num_partitions": 1, "num_sub_vectors": 2, "name": "by_hand"}
        pylance.dataset(table.uri).create_index("v", "IVF_PQ", **options)
        indices = {"v": {"kind": "IVF_FLAT", "num_partitions": 1, "min_recall": 0.95}}
        assert maintain(table, MaintenancePolicy(indices=indices)).outcome == "done"
        recall = states(table)["v_idx"].recall
        assert recall is None if metric == "l2" else recall["value"] == 1
        assert maintain(table, MaintenancePolicy(indices=indices)).outcome == "healthy"
        maintain(table, MaintenancePolicy(indices=indices, drop_undeclared=True))
        assert states(table)["v_idx"].recall["value"] == 1

    def test_what_another_run_has_built_meanwhile_is_not_lost(self, tmp_path, monkeypatch):
        table, policy = fill(tmp_path / "t.lance"), MaintenancePolicy(indices=SEARCH)

        def run_another(when, _job):
            monkeypatch.setattr(LocalChild, "trouble", None)
            maintain(lance_core.dataset(table.uri), policy)

        monkeypatch.setattr(LocalChild, "trouble", staticmethod(run_another))
        report = maintain(table, policy)
        assert "a writer committed first" in report.indices[0]["error"]
        assert (report.outcome, report.lost) == ("done", 0)
        assert maintain(table, policy).outcome == "healthy"

    @pytest.mark.parametrize("moves", [False, True])
    def test_old_words_of_a_fragment_that_came_later_are_not_found(self, tmp_path, moves):
        """pylance's merged segment keeps the version of its oldest part."""

        def old(ids):
            return pa.table({"id": pa.array(ids, pa.int64()), "t": ["old"] * len(ids)})

        uri = str(tmp_path / "t.lance")
        table = lance_core.write_dataset(old(range(60)), uri, enable_stable_row_ids=True, max_rows_per_file=20)
        pylance.dataset(uri).create_scalar_index("t", "INVERTED")
        lance_core.dataset(uri).insert(old(range(100, 120)))
        for value, where in (("mid", "id < 5"), ("new", "id >= 100")):
            if moves and value == "new":
                pylance.dataset(uri).update({"t": f"'{value}'"}, where=where)
            else:
                lance_core.dataset(uri).update({"t": f"'{value}'"}, where, write_mode="rewrite_columns")
            assert not cover_rows(table).problems
        counts = {word: len(pylance.dataset(uri).to_table(full_text_query=word)) for word in ("old", "mid", "new")}
        assert counts == {"old": 55, "mid": 5, "new": 20}

    def test_a_branch_has_indices_of_its_own(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        branch = table.create_branch("work")
        assert maintain(branch, MaintenancePolicy(indices=SEARCH)).done["indices_built"] == 2
        assert lance_core.dataset(table.uri).describe_indices() == []
        check_searches(branch.uri)

    @pytest.mark.parametrize(("kind", "change"), [("IVF_FLAT", "extended"), ("IVF_SQ", "changed")])
    def test_what_a_branch_has_done_to_an_index_stays_there_by_its_name(self, tmp_path, kind, change):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices={"v": "IVF_FLAT"}))
        branch = table.create_branch("work")
        branch.insert(rows(300, 20))
        maintain(branch, MaintenancePolicy(indices={"v": kind}))
        assert lance_core.dataset(table.uri).branches.diff("work").left_behind == (f"index 'v_idx' ({change})",)

    @pytest.mark.slow
    def test_tables_on_s3_are_built_and_kept(self, s3):
        uri, options = f"s3://{s3.new_bucket()}/t.lance", s3.storage_options
        policy = MaintenancePolicy(indices={"v": "IVF_PQ", "t": "FTS"})
        lance_core.write_dataset(rows(0, 300), uri, storage_options=options)
        table = lance_core.dataset(uri, storage_options=options)
        for start in (300, 320):
            assert maintain(table, policy).outcome == "done"
            assert {index.covered for index in describe_index_health(table)} == {1.0}
            lance_core.write_dataset(rows(start, 20), uri, mode="append", storage_options=options)
        report = maintain(table, MaintenancePolicy(indices={"v": "IVF_SQ"}, index_timeout=timedelta(milliseconds=1)))
        assert report.outcome == "partly done"


KILLED = """
import os, signal, sys
from lance_core.maintenance import MaintenancePolicy, keep_indices
from lance_core.maintenance.search.child import ChildProcess
from tests.lance_core.maintenance.test_declared_indices import SEARCH, fill

uri = sys.argv[1]
run = ChildProcess.run

def end(child, name, request):
    if name == "build":
        run(child, name, request)
    os.kill(os.getpid(), signal.SIGKILL)

ChildProcess.run = end
keep_indices(fill(uri, 300, 300), MaintenancePolicy(indices=SEARCH))
"""


class TestProblems:
    @pytest.mark.variants(1)
    @pytest.mark.parametrize("work_left", ["build", "extend"])
    def test_a_write_that_is_killed_before_its_indices_is_covered_by_maintenance(self, tmp_path, work_left):
        """Until then pylance compares its rows one by one; for words that needs an index, which may miss them."""
        table, policy = fill(tmp_path / "t.lance"), MaintenancePolicy(indices=SEARCH)
        is_extended = work_left == "extend"
        maintain(table, policy if is_extended else MaintenancePolicy(indices={"t": "FTS"}))
        version = table.latest_version
        killed = processes.run([sys.executable, "-c", KILLED, table.uri])
        assert (killed.returncode, table.latest_version) == (-signal.SIGKILL, version + 1), killed.stderr
        assert {name: index.covered for name, index in states(table).items()} == dict.fromkeys(
            ["v_idx", "t_idx"] if is_extended else ["t_idx"], 0.5
        )
        check_searches(table.uri)
        assert maintain(table, policy).outcome == "done"
        assert {index.covered for index in states(table).values()} == {1}
        check_searches(table.uri)

    def test_a_build_that_is_killed_costs_its_index_alone(self, tmp_path):
        table = fill(tmp_path / "t.lance", count=600, pieces=2)
        slow = {"kind": "IVF_HNSW_FLAT", "ef_construction": 300}
        kill = threading.Thread(target=kill_child, args=(table.uri,), daemon=True)
        kill.start()
        policy = MaintenancePolicy(indices={"v": slow, "id": "BTREE"})
        report = maintain(table, policy)
        kill.join()
        assert (report.outcome, report.done["indices_failed"], report.after.fragments) == ("partly done", 1, 1)
        assert "index 'v_idx': to build it failed: its process was killed by signal 9" in report.reason
        assert [index.name for index in table.describe_indices()] == ["id_idx"]
        assert folders(table) == used_folders(table)
        version = table.version
        again = maintain(table, policy)
        assert (again.outcome, again.indices, table.version) == ("partly done", (), version)
        assert "attempt 1 to build it failed" in again.reason
        assert states(table)["v_idx"].failure["count"] == 1
        assert (
            "v_idx: to build it failed: its process was killed"
            in CliRunner().invoke(cli, ["indices", table.uri]).output
        )
        mended = maintain(table, MaintenancePolicy(indices={"v": "IVF_FLAT", "id": "BTREE"}))
        assert (mended.outcome, states(table)["v_idx"].failure) == ("done", None)

    @pytest.mark.parametrize(
        ("limit", "part"),
        [({"index_memory": "1MB"}, r"index_memory"), ({"index_timeout": timedelta(milliseconds=1)}, "index_timeout")],
    )
    def test_builds_end_at_their_limits(self, tmp_path, limit, part):
        table = fill(tmp_path / "t.lance")
        report = maintain(table, MaintenancePolicy(indices={"t": "FTS", "id": "BTREE"}, **limit))
        assert report.outcome == "partly done"
        assert part in report.reason
        assert folders(table) == used_folders(table)
        with pytest.raises(MaintenanceFailedError, match=part):
            maintain(table, MaintenancePolicy(indices={"t": "FTS"}, require_search=True, **limit))

    @pytest.mark.parametrize("storage", ["fails", "hangs"])
    def test_a_folder_that_cannot_be_removed_hides_no_cause_and_takes_no_minutes(
        self, tmp_path, monkeypatch, caplog, storage
    ):
        def delete(*_, **__):
            if storage == "hangs":
                time.sleep(60)
            raise StoreError("no answer")

        monkeypatch.setattr(parts, "delete_uncommitted_files", delete)
        monkeypatch.setattr(parts, "_LONGEST_REMOVAL_S", 0.1)
        table, started = fill(tmp_path / "t.lance"), time.monotonic()
        report = maintain(table, MaintenancePolicy(indices={"t": "FTS"}, index_timeout=timedelta(milliseconds=1)))
        assert report.reason.endswith("it took longer than 0.001 s (index_timeout)")
        assert "left behind" in caplog.text
        assert time.monotonic() - started < 50

    def test_cleanup_removes_the_folders_of_indices_that_it_empties(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices={"t": "FTS", "id": "BTREE"}))
        killed = Path(tmp_path, "t.lance", "_indices", str(uuid.uuid4()))
        killed.mkdir()
        (killed / "page.lance").write_bytes(b"part")
        os.utime(killed / "page.lance", times=(time.time() - 8 * 86_400,) * 2)
        fill(tmp_path / "t.lance", 300, 400)
        indices = {"t": "NGRAM", "id": "BTREE"}
        maintain(table, MaintenancePolicy(indices=indices, retain_versions=1, cleanup_older_than="never"))
        assert folders(table) == used_folders(table)

    def test_temporary_files_go_with_their_process(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        table = fill(tmp_path / "t.lance")
        policy = MaintenancePolicy(indices={"t": "FTS"})
        report = maintain(table, policy)
        assert "no temporary folder can be made for it" in report.reason
        assert str(tmp_path / "tmp") in report.reason
        Path(tmp_path, "tmp", "lance-index-abandoned", "shuffle").mkdir(parents=True)
        Path(tmp_path, "tmp", "lance-index-new").mkdir()
        Path(tmp_path, "tmp", "lance-index-link").symlink_to(tmp_path / "t.lance")
        os.utime(tmp_path / "tmp" / "lance-index-abandoned", (0, 0))
        process = child.ChildProcess()
        with pytest.raises(child.ChildFailedError):
            process.run("none", {})
        during = {path.name for path in Path(tmp_path, "tmp").iterdir()}
        process.close()
        after = {path.name for path in Path(tmp_path, "tmp").iterdir()}
        assert after == {"lance-index-new", "lance-index-link"}
        assert len(during - after) == 1

    def test_an_undeclared_index_that_pylance_passes_over_counts_as_not_refreshed(self, tmp_path, caplog):
        """Its `optimize_indices` returns without an error where it cannot read the index."""
        table = fill(tmp_path / "t.lance")
        pylance.dataset(table.uri).create_scalar_index("t", "INVERTED")
        (file,) = Path(tmp_path, "t.lance", "_indices").glob("*/*tokens*")
        file.write_bytes(file.read_bytes()[:100])
        fill(tmp_path / "t.lance", 300, 50)
        report = maintain(table, MaintenancePolicy())
        assert (report.done["indices_not_refreshed"], report.done.get("indices_refreshed", 0)) == (1, 0)
        assert "index 't_idx' was not refreshed" in caplog.text
        assert "drop it, or create it again" in caplog.text
        assert states(table)["t_idx"].covered < 1

    def test_truncated_files_of_full_text_are_named_and_built_again(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        policy = MaintenancePolicy(indices={"t": "FTS"})
        maintain(table, policy)
        (segment,) = table.describe_indices()[0].segments
        folder = Path(table.uri.removeprefix("file://"), "_indices", segment.uuid)
        paths = [path for path in folder.iterdir() if path.is_file()]
        for path in paths:
            path.write_bytes(path.read_bytes()[:20])
        assert {Path(problem.path).name for problem in verify(table)} == {path.name for path in paths}
        fill(tmp_path / "t.lance", 300, 40)
        report = maintain(table, policy)
        assert ("t_idx", "rebuild") in work(report)
        check_searches(table.uri)
        assert not verify(lance_core.dataset(table.uri))

    def test_a_corrupt_index_is_built_again_and_the_healthy_one_kept(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        policy = MaintenancePolicy(indices=SEARCH)
        maintain(table, policy)
        (segment,) = next(index for index in table.describe_indices() if index.name == "v_idx").segments
        for file in Path(table.uri.removeprefix("file://"), "_indices", segment.uuid).iterdir():
            file.write_bytes(b"nothing")
        fill(tmp_path / "t.lance", 300, 40)
        report = maintain(table, policy)
        assert ("v_idx", "rebuild") in work(report)
        assert ("t_idx", "rebuild") not in work(report)
        assert (report.outcome, report.done.get("indices_failed", 0)) == ("done", 0)
        check_searches(table.uri)
        assert maintain(table, policy).outcome == "healthy"

    @pytest.mark.variants(2)
    @pytest.mark.parametrize("rest", [None, [float("nan")] * DIMENSIONS])
    @pytest.mark.parametrize(("kind", "usable"), [("IVF_FLAT", 0), ("IVF_PQ", 200), ("IVF_HNSW_SQ", 255)])
    def test_rows_count_once_they_have_a_vector(self, tmp_path, kind, usable, rest):
        values = pa.array(
            [*vectors(0, usable).to_pylist(), *[rest] * (300 - usable)], pa.list_(pa.float32(), DIMENSIONS)
        )
        table = lance_core.write_dataset(pa.table({"id": range(300), "v": values}), str(tmp_path / "t.lance"))
        policy = MaintenancePolicy(indices={"v": kind}, require_search=True)
        for dry_run in (False, True):
            assert maintain(table, policy, dry_run=dry_run).outcome == "healthy"
        assert (table.latest_version, folders(table)) == (1, set())
        table.merge_insert("id").when_matched_update_all().execute(rows(0, 300).select(["id", "v"]))
        assert maintain(table, policy).index_problems == []
        assert states(table)["v_idx"].covered == 1

    def test_an_index_is_kept_where_too_few_vectors_are_left_for_another(self, tmp_path):
        table = fill(tmp_path / "t.lance", count=100)
        flat = {"kind": "IVF_FLAT", "min_rows": 10}
        maintain(table, MaintenancePolicy(indices={"v": flat}))
        version = table.latest_version
        report = maintain(table, MaintenancePolicy(indices={"v": "IVF_PQ"}))
        (problem,) = report.index_problems
        assert problem.endswith("it is built again once 256 rows have a vector of finite numbers; 100 have one")
        assert (table.latest_version, states(table)["v_idx"].kind) == (version, "IVF_FLAT")

    def test_few_vectors_in_many_rows_have_few_partitions(self, tmp_path):
        values = pa.array([*vectors(0, 5).to_pylist(), *[None] * 40_000], pa.list_(pa.float32(), DIMENSIONS))
        table = lance_core.write_dataset(pa.table({"v": values}), str(tmp_path / "t.lance"))
        report = maintain(table, MaintenancePolicy(indices={"v": {"kind": "IVF_FLAT", "min_rows": 5}}))
        assert report.index_problems == []
        assert states(table)["v_idx"].covered == 1

    def test_a_scalar_index_that_cannot_be_built_makes_no_version_in_the_next_run(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        table.add_columns({"n": "id + 1"})
        file = table.get_fragments()[0].data_files()[-1].path
        Path(tmp_path, "t.lance", "data", file).write_bytes(b"nothing")
        policy = MaintenancePolicy(indices={"n": "BTREE"})
        assert "to build it failed" in maintain(table, policy).index_problems[0]
        version = table.latest_version
        assert "the next one is due at" in maintain(table, policy).index_problems[0]
        assert table.latest_version == version

    def test_a_table_without_the_column_is_named_and_a_folder_skips_it(self, tmp_path):
        table = fill(tmp_path / "shop" / "t.lance", count=10)
        indices = {"x": "FTS", "v": {"kind": "IVF_FLAT", "metric": "hamming"}, "id": "BTREE"}
        report = maintain(table, MaintenancePolicy(indices=indices))
        assert report.outcome == "partly done"
        assert "index 'x_idx': there is no column 'x'" in report.reason
        assert "hamming is for uint8" in report.reason
        assert [index.name for index in table.describe_indices()] == ["id_idx"]
        (report,) = maintain_lake(str(tmp_path), policies={"shop": {"indices": {"x": "FTS"}}})
        assert (report.outcome, report.reason) == ("healthy", None)
        (report,) = maintain_lake(str(tmp_path), policies={"shop/t": {"indices": {"x": "FTS"}}})
        assert report.outcome == "partly done"

    def test_without_pylance_the_others_are_built_and_these_counted(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(declared, "find_pylance", lambda: None)
        table = fill(tmp_path / "t.lance")
        policy = MaintenancePolicy(indices={**SEARCH, "id": "BTREE"})
        assert maintain(table, policy, dry_run=True).done["indices_not_refreshed"] == 2
        report = maintain(table, policy)
        assert (report.outcome, report.done["indices_not_refreshed"]) == ("done", 2)
        assert [index.name for index in table.describe_indices()] == ["id_idx"]
        assert caplog.text.count("lance-dagster[search]") == 1
        for dry_run in (True, False):
            report = maintain(table, policy, dry_run=dry_run)
            assert (report.outcome, report.done) == ("healthy", {"indices_not_refreshed": 2})
        with pytest.raises(MaintenanceFailedError, match=r"lance-dagster.search"):
            maintain(table, replace(policy, require_search=True))

    def test_a_budget_puts_builds_off(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        budget = MaintenanceBudget(max_bytes_rewritten=300 * 4 * DIMENSIONS - 1)
        for dry_run in (True, False):
            report = maintain(table, MaintenancePolicy(indices={"v": "IVF_FLAT"}), budget=budget, dry_run=dry_run)
            assert report.outcome == "put off"
            assert "to build index 'v_idx' reads 19,200 bytes" in report.reason

    def test_a_dry_run_puts_off_the_builds_that_the_run_does(self, tmp_path):
        """The rewrites come first, and each build leaves less of the budget."""
        table = fill(tmp_path / "t.lance", pieces=2)
        size = sum(file.stat().st_size for file in Path(tmp_path, "t.lance", "data").iterdir())
        budget = MaintenanceBudget(max_bytes_rewritten=size + 600 * 4 * DIMENSIONS + size // 4)
        policy = MaintenancePolicy(indices={"t": "FTS", "v": "IVF_FLAT", "id": "BTREE"})
        dry = maintain(table, policy, budget=budget, dry_run=True)
        report = maintain(table, policy, budget=budget)
        assert dry.outcome == report.outcome == "partly done"
        assert dry.done["indices_built"] == report.done["indices_built"] < 3
        assert work(dry) == work(report)

    @pytest.mark.variants(1)
    @pytest.mark.parametrize("retained", [None, 2])
    def test_a_dry_run_counts_the_versions_of_builds_and_of_their_records(self, tmp_path, retained):
        table = fill(tmp_path / "t.lance", pieces=2)
        scalar = {"id": "BTREE"}
        declarations = [{**SEARCH, **scalar}, {**SEARCH, **scalar}, {"t": "NGRAM"}, scalar, {"v": "IVF_SQ", **scalar}]
        for number, indices in enumerate(declarations):
            policy = MaintenancePolicy(indices=indices, drop_undeclared=True, retain_versions=retained)
            dry, report = maintain(table, policy, dry_run=True), maintain(table, policy)
            assert work(dry) == work(report)
            assert (dry.outcome, dry.after.versions) == (report.outcome, report.after.versions)
            assert dry.after.fragments == report.after.fragments
            fill(table.uri, 600 + 100 * number, 100)

    def test_a_dry_run_with_required_search_fails_as_the_run_does(self, tmp_path, monkeypatch):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices=SEARCH, index_timeout="1ms"))
        required = MaintenancePolicy(indices=SEARCH, index_timeout="1ms", require_search=True)
        without = replace(required, index_timeout="1h")
        for policy in (required, without):
            for dry_run in (True, False):
                with pytest.raises(MaintenanceFailedError, match=r"index 'v_idx'|which v_idx, t_idx need"):
                    maintain(table, policy, dry_run=dry_run)
            monkeypatch.setattr(declared, "find_pylance", lambda: None)

    def test_secrets_are_in_no_list_of_processes(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        opened = lance_core.dataset(table.uri, storage_options={"aws_secret_access_key": "very-secret-key"})
        seen = []
        watch = threading.Thread(target=watch_children, args=(seen,), daemon=True)
        watch.start()
        maintain(opened, MaintenancePolicy(indices={"t": "FTS"}))
        watch.join()
        assert ["very-secret" in line for line in seen] == [False, False]


def children():
    """The ids of the processes that this one has started."""
    listed = processes.run(["ps", "-o", "pid=,command=", "--ppid", str(os.getpid())]).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "maintenance.search.child" in line]


def kill_child(uri):
    """Kill the child once it has begun to write a segment, or ends."""
    until = time.monotonic() + 100
    while not any(Path(uri, "_indices").glob("*")) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in children():
        os.kill(pid, 9)


def watch_children(seen):
    until = time.monotonic() + 100
    while not (pids := children()) and time.monotonic() < until:
        time.sleep(0.05)
    for name in ("cmdline", "environ"):
        seen.append(Path(f"/proc/{pids[0]}/{name}").read_bytes().decode(errors="replace"))


def set_words(table):
    table.update({"t": "'changed'"}, where="id % 3 = 0")


def set_vectors(table):
    changed = rows(5000, 300).drop_columns(["t"]).set_column(0, "id", pa.array(range(300)))
    table.merge_insert("id").when_matched_update_all().execute(changed)


def write_columns(table):
    ids = table.to_table(columns=["id"])["id"]
    table.write_columns(pa.table({"id": ids, "v": vectors(7000, len(ids)), "t": ["changed"] * len(ids)}), "id")


def overwrite(table):
    lance_core.write_dataset(rows(5000, 300), table.uri, mode="overwrite")


def delete_rows(table):
    table.delete("id % 4 = 1")


def restore(table):
    table.delete("id > 100")
    lance_core.write_dataset(rows(8000, 30), table.uri, mode="append")
    lance_core.dataset(table.uri).checkout_version(1).restore()


CHANGES = [set_words, set_vectors, write_columns, overwrite, delete_rows, restore]


@pytest.mark.usefixtures("local_children")
class TestStale:
    @pytest.mark.variants(2)
    @pytest.mark.parametrize("stable", [True, False])
    @pytest.mark.parametrize("change", CHANGES)
    def test_values_that_were_set_again_are_never_found(self, tmp_path, change, stable):
        policy = MaintenancePolicy(indices=SEARCH)
        table = fill(tmp_path / "t.lance", enable_stable_row_ids=stable)
        maintain(table, policy)
        change(table)
        if change not in (overwrite, restore):  # full-text search of pylance needs an index
            check_searches(table.uri)
        assert maintain(table, policy).outcome == "done"
        check_searches(table.uri)
        assert {index.covered for index in states(table).values()} == {1.0}

    @pytest.mark.parametrize("indices", [{"t": "FTS"}, {}], ids=["declared", "undeclared"])
    @pytest.mark.parametrize("cover", [True, False], ids=["cover_rows", "maintain"])
    def test_words_that_were_set_again_in_place(self, tmp_path, cover, indices):
        table = fill(tmp_path / "t.lance", count=150, pieces=2)
        pylance.dataset(table.uri).create_scalar_index("t", "FTS")
        fill(tmp_path / "t.lance", 300, 20)
        pylance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)
        table.checkout_latest()
        table.update({"t": "'changed common3'"}, where="id < 50", write_mode="rewrite_columns")
        if cover:
            assert not cover_rows(table).problems
        else:
            assert maintain(table, MaintenancePolicy(indices=indices)).done["indices_refreshed"] == 1
        assert states(table)["t_idx"].covered == 1.0
        check_searches(table.uri)

    @pytest.mark.variants(2)
    @pytest.mark.parametrize("stable", [True, False])
    @pytest.mark.parametrize("options", [{}, {"write_mode": "rewrite_columns"}], ids=["moved", "in place"])
    @pytest.mark.parametrize("merged", [{"num_indices_to_merge": 0}, {}], ids=["segment", "merge"])
    @pytest.mark.parametrize("cover", [True, False], ids=["cover_rows", "maintain"])
    def test_words_that_pylance_has_covered_again(self, tmp_path, stable, options, merged, cover):
        policy = MaintenancePolicy(indices={"t": "FTS"})
        table = fill(tmp_path / "t.lance", count=150, pieces=2, enable_stable_row_ids=stable)
        maintain(table, policy)
        fill(tmp_path / "t.lance", 300, 20)
        assert not cover_rows(table).problems
        table.update({"t": "'changed common3'"}, where="id < 50 or id > 310", **options)
        pylance.dataset(table.uri).optimize.optimize_indices(**merged)
        table.checkout_latest()
        if cover:
            assert not cover_rows(table).problems
        else:
            assert not maintain(table, policy).index_problems
        check_searches(table.uri)
        maintain(table, policy)
        version = table.version
        assert cover_rows(table).covered == ()
        assert maintain(table, policy).outcome == "healthy"
        assert lance_core.dataset(table.uri).version == version

    def test_columns_that_were_cast_or_renamed(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices=SEARCH))
        cast = {"path": "v", "data_type": pa.list_(pa.float64(), DIMENSIONS)}
        with pytest.raises(UnsupportedError, match="drop the index 'v_idx' first"):
            table.alter_columns(cast)
        table.drop_index("v_idx")
        table.alter_columns(cast)
        table.alter_columns({"path": "t", "name": "words"})
        renamed = MaintenancePolicy(indices={"v": SEARCH["v"], "words": "FTS"})
        report = maintain(table, renamed)
        assert report.outcome == "done"
        check_searches(table.uri, text="words")
        assert {name: state.column for name, state in states(table).items()} == {"t_idx": "words", "v_idx": "v"}


class TestAttemptsAgain:
    """Builds that failed are tried again when it can help."""

    STARVED = MaintenancePolicy(indices=SEARCH, index_memory=1000)

    @pytest.mark.parametrize("lifted", [{}, {"index_memory": "8GB"}, {"index_memory": 1000, "index_timeout": "1h"}])
    def test_other_limits_are_tried_at_once(self, tmp_path, lifted):
        table = fill(tmp_path / "t.lance")
        assert len(maintain(table, self.STARVED).index_problems) == 2
        assert "the next one is due at" in maintain(table, self.STARVED).index_problems[0]
        report = maintain(table, MaintenancePolicy(indices=SEARCH, **lifted))
        starved = lifted.get("index_memory") == 1000
        assert [problem.count("index_memory") for problem in report.index_problems] == [1, 1] * starved
        assert "the next one is due at" not in str(report.index_problems)
        assert (report.done.get("indices_built", 0), bool(states(table)["v_idx"].failure)) == (2 - 2 * starved, starved)

    @pytest.mark.parametrize("required", [True, False])
    def test_a_write_that_requires_search_tries_at_once(self, tmp_path, required):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices=SEARCH))
        fill(tmp_path / "t.lance", 300, 20)
        assert set(keep_indices(table, self.STARVED).problems) == {"v_idx", "t_idx"}
        healthy = MaintenancePolicy(indices=SEARCH, index_memory=1000, require_search=required)
        with unlimited():
            coverage = keep_indices(table, healthy)
        assert set(coverage.covered) == ({"v_idx", "t_idx"} if required else set())
        assert set(coverage.problems) == (set() if required else {"v_idx", "t_idx"})

    def test_an_index_that_the_run_mends_is_no_problem(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        maintain(table, MaintenancePolicy(indices=SEARCH))
        (index,) = [each for each in table.describe_indices() if each.name == "v_idx"]
        for file in Path(table.uri, "_indices", str(index.segments[0].uuid)).iterdir():
            file.write_bytes(file.read_bytes()[:10])
        fill(tmp_path / "t.lance", 300, 60)
        report = maintain(table, MaintenancePolicy(indices=SEARCH, require_search=True))
        assert [action for name, action in work(report) if name == "v_idx"] == ["extend", "rebuild", "measure"]
        assert (report.outcome, report.index_problems) == ("done", [])
        check_searches(table.uri)
