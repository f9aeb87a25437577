"""Checks of declared indices: what each finds before and after maintenance, on main, on branches and below a root."""

from datetime import timedelta

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance
from lance_dagster import (
    BranchPolicy,
    LanceMaintenancePolicy,
    build_lance_health_checks,
    build_lance_index_checks,
    lance_external_assets,
)
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_indices_of_assets import DECLARED, declaring, notes

LIMITS = {"max_age": "30d", "max_bytes": 10_000_000}
LABELS = {"label": "FTS"}
ALL = {"declared", "built", "covered", "recall", "age", "size"}


def evaluate(lake, checks, assets, tags=None, **config):
    """The results of checks, by their short names."""
    defs = dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
        resources={"io_manager": lake.manager(**config)},
    )
    job = defs.resolve_job_def("check")
    result = job.execute_in_process(instance=lake.instance, run_config=QUIET, raise_on_error=False, tags=tags)
    return {found.check_name.rpartition("_")[2]: found for found in result.get_asset_check_evaluations()}


def failed(results):
    return {name: found.description for name, found in results.items() if not found.passed}


def maintain(uri, indices=DECLARED, **fields):
    maintenance.maintain(lance_core.dataset(uri), maintenance.MaintenancePolicy(indices=indices, **fields))


def test_each_check_finds_what_it_is_for(lake):
    docs = declaring()
    checks, uri = build_lance_index_checks([docs], **LIMITS), lake.uri("docs")
    missing = evaluate(lake, checks, [docs])
    assert set(missing) == ALL
    assert not failed(missing)
    lake.run(docs)
    problems = failed(evaluate(lake, checks, [docs]))
    assert set(problems) == {"built"}
    assert "index 'embedding_idx': there is none for 300 rows" in problems["built"]
    maintain(uri)
    results = evaluate(lake, checks, [docs])
    assert not failed(results)
    numbers = {key: entry.value for key, entry in results["recall"].metadata.items()}
    assert numbers["lance/index_recall/embedding_idx"] >= 0.9
    assert numbers["lance/index_unindexed_fraction/body_idx"] == 0
    assert numbers["lance/index_bytes/embedding_idx"] > 16 * 4 * 300
    lance.write_dataset(notes(300, 20), uri, mode="append")
    problems = failed(evaluate(lake, checks, [docs]))
    assert set(problems) == {"covered"}
    assert "index 'body_idx' covers 93.8% of the rows" in problems["covered"]
    assert not failed(evaluate(lake, build_lance_index_checks([docs], min_coverage=0.9), [docs]))
    lance.dataset(uri).create_scalar_index("body", "NGRAM", name="others")
    strict = build_lance_index_checks([docs], min_coverage=0.9, min_recall=1, max_age="1us", max_bytes=10)
    problems = failed(evaluate(lake, strict, [docs]))
    assert set(problems) == {"declared", "age", "size"}
    assert problems["declared"] == "index 'others' is not declared"
    other = declaring({**DECLARED, "embedding": {"kind": "IVF_FLAT", "metric": "l2"}})
    assert failed(evaluate(lake, build_lance_index_checks([other], min_coverage=0.9), [other]))["built"] == (
        "index 'embedding_idx' is of kind IVF_FLAT, metric cosine"
    )


def test_an_index_below_min_rows_is_named_and_fails_no_check(lake):
    docs = declaring({"embedding": {"kind": "IVF_FLAT", "min_rows": 1000}})
    lake.run(docs)
    results = evaluate(lake, build_lance_index_checks([docs]), [docs])
    assert not failed(results)
    for check in ("built", "covered"):
        assert "Index 'embedding_idx' is missing until 1,000 rows have a value" in results[check].description
    assert "embedding_idx" not in results["recall"].description


def test_a_recall_that_is_too_low_is_shown_with_the_setting_that_reaches_it(lake):
    settings = {"kind": "IVF_FLAT", "num_partitions": 30, "nprobes": 1, "min_recall": 0.9}
    docs = declaring({"embedding": settings})
    lake.run(docs)
    checks, uri = build_lance_index_checks([docs], severity=dg.AssetCheckSeverity.ERROR), lake.uri("docs")
    lance.dataset(uri).create_index("embedding", "IVF_FLAT", num_partitions=30, metric="l2")
    assert "was never measured" in failed(evaluate(lake, checks, [docs]))["recall"]
    maintain(uri, {"embedding": settings})
    results = evaluate(lake, checks, [docs])
    assert set(failed(results)) == {"recall"}
    assert results["recall"].severity is dg.AssetCheckSeverity.ERROR
    assert "below 0.9; with other settings: nprobes=" in results["recall"].description


def test_assets_that_share_a_table_are_checked_by_what_all_declare(lake):
    @dg.asset(
        deps=["docs"],
        metadata={"lance/write_mode": "columns", "lance/table": "docs", "lance/key": "id", "lance/indices": LABELS},
    )
    def labels() -> pa.Table:
        return pa.table({"id": range(300), "label": [f"label{i}" for i in range(300)]})

    assets = [declaring(), labels]
    lake.run(*assets)
    defs = dg.Definitions(
        assets=assets,
        asset_checks=build_lance_index_checks(assets),
        jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
        resources={"io_manager": lake.manager()},
    )
    job = defs.resolve_job_def("check")
    for indices, problem in ((DECLARED, "index 'label_idx': there is none for 300 rows"), (DECLARED | LABELS, None)):
        maintain(lake.uri("docs"), indices)
        result = job.execute_in_process(instance=lake.instance, run_config=QUIET)
        problems = [each.description for each in result.get_asset_check_evaluations() if not each.passed]
        assert problems == ([problem] * 2 if problem else [])


def test_without_a_declaration_there_is_something_to_find(lake):
    lake.run(declaring())
    docs = dg.AssetSpec("docs")
    for policy in (None, LanceMaintenancePolicy(indices={"no_column": "FTS"})):
        problems = failed(evaluate(lake, build_lance_index_checks(["docs"], policy), [docs]))
        assert "give the asset the metadata lance/indices" in problems["declared"]
    by_policy = build_lance_index_checks(["docs"], LanceMaintenancePolicy(indices={"no_column": "FTS", "id": "BTREE"}))
    assert failed(evaluate(lake, by_policy, [docs])) == {"built": "index 'id_idx': there is none for 300 rows"}


def test_health_checks_know_a_missing_index_and_rows_that_one_misses(lake):
    docs = declaring()
    checks, uri = build_lance_health_checks([docs]), lake.uri("docs")
    lake.run(docs)
    results = evaluate(lake, checks, [docs])
    assert set(failed(results)) == {"indices"}
    assert "there is no index embedding_idx, body_idx, id_idx, which is declared" in results["indices"].description
    maintain(uri)
    assert not failed(evaluate(lake, checks, [docs]))
    lance.write_dataset(notes(300, 20), uri, mode="append")
    assert set(failed(evaluate(lake, checks, [docs]))) == {"indices"}


def test_a_run_on_a_branch_is_checked_on_the_branch(lake):
    docs, branching = declaring({"id": "BTREE"}), BranchPolicy.from_tag()
    lake.run(docs)
    maintain(lake.uri("docs"), {"id": "BTREE"})
    tags = {"lance/branch": "trial"}
    lake.run(docs, tags=tags, branching=branching)
    checks = build_lance_index_checks([docs])
    assert not failed(evaluate(lake, checks, [docs], branching=branching))
    problems = failed(evaluate(lake, checks, [docs], tags, branching=branching))
    assert problems == {"covered": "index 'id_idx' covers 50.0% of the rows"}


def test_tables_below_a_root_have_checks_where_an_index_is_declared(lake):
    for name in ("a/notes", "a/none", "b/notes"):
        rows = pa.table({"n": [1]}) if name == "a/none" else notes()
        lance.write_dataset(rows, f"{lake.root}/{name}.lance")
    checks = build_lance_index_checks(root=lake.root, policies={"a": {"indices": {"id": "BTREE"}}})
    assert {key.asset_key.to_user_string() for check in checks for key in check.check_keys} == {"a/notes", "a/none"}
    assets = lance_external_assets(lake.root)
    for check in checks:
        has_column = any("notes" in key.asset_key.path for key in check.check_keys)
        assert set(failed(evaluate(lake, [check], assets))) == ({"built"} if has_column else set())
    maintain(f"{lake.root}/a/notes.lance", {"id": "BTREE"})
    assert not failed(evaluate(lake, checks, assets))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_coverage": 95}, "min_coverage must be a share"),
        ({"min_recall": -0.1}, "min_recall must be a share"),
        ({"max_bytes": 0}, "max_bytes must be a positive"),
        ({"max_age": timedelta(0)}, "max_age must be a positive"),
    ],
)
def test_limits_out_of_range_are_rejected(limits, message):
    with pytest.raises(ValueError, match=message):
        build_lance_index_checks(["docs"], **limits)
