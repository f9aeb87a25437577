"""Freshness and missing partitions are those of main, though Dagster counts writes to branches and discards."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy, build_branch_jobs, build_lance_freshness_checks, build_undo_job
from lance_dagster.checks import freshness
from lance_dagster.events.published import find_published_partitions
from tests.lance_dagster.lake import QUIET, errors

PARTS = dg.StaticPartitionsDefinition(["a", "b"])
TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}
WORK = {"tags": {"lance/branch": "work"}, **TAGGED}


@dg.asset(metadata={"lance/write_mode": "append"})
def plain() -> pa.Table:
    return pa.table({"n": [1]})


@dg.asset(partitions_def=PARTS, metadata={"partition_expr": "part"})
def parts(context) -> pa.Table:
    return pa.table({"part": [context.partition_key]})


def looked_at(lake, *checks, **options):
    """Whether the check passed, and the version of main that it names."""
    result = lake.run(plain, *checks, select=dg.AssetSelection.checks_for_assets(plain), **options)
    (found,) = result.get_asset_check_evaluations()
    return found.passed, found.metadata["lance/version"].value


def run_job(lake, job, *assets, **tags):
    defs = dg.Definitions(list(assets), jobs=[job], resources={"io_manager": lake.manager(**TAGGED)})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, tags=tags, run_config=QUIET, raise_on_error=False
    )
    assert result.success, errors(result)


def test_what_counts_as_an_update_of_main(lake, monkeypatch):
    checks = build_lance_freshness_checks(plain, "1d")
    lake.run(plain, **TAGGED)
    assert looked_at(lake, *checks) == (True, 1)
    lake.run(plain, **WORK)
    assert looked_at(lake, *checks) == (True, 1)
    assert looked_at(lake, *checks, **WORK) == (True, 1)
    undone = lake.run(plain, **TAGGED)
    assert looked_at(lake, *checks) == (True, 2)
    run_job(lake, build_undo_job([plain]), plain, **{"lance/undo_run": undone.run_id})
    assert looked_at(lake, *checks) == (True, 1)
    main = lake.table("plain")
    main.create_scalar_index("n", "BTREE")
    main.update_config({"mine": "1"})
    assert looked_at(lake, *checks) == (True, 1)
    lake.run(plain, tags={"lance/branch": "next"}, **TAGGED)
    run_job(lake, build_branch_jobs([plain])[0], plain, **{"lance/branch": "next"})
    published = lake.table("plain").find_transaction("promoted_from", "next")[0]  # the next version extends the index
    assert looked_at(lake, *checks) == (True, published) == (True, lake.table("plain").version - 1)
    later = datetime.now(UTC) + timedelta(days=2)
    monkeypatch.setattr(
        freshness, "datetime", SimpleNamespace(now=lambda _: later, fromtimestamp=datetime.fromtimestamp)
    )
    lake.run(plain, tags={"lance/branch": "other"}, **TAGGED)
    assert looked_at(lake, *checks)[0] is False


class TestCommitsOfNoRows:
    """Runs and others whose commits write no row and remove none."""

    @pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
    def test_they_do_not_count(self, lake, mode):
        @dg.asset(
            metadata={"lance/write_mode": mode, "lance/merge_on": ["n"]}
            if mode == "merge"
            else {"lance/write_mode": mode}
        )
        def plain(context) -> pa.Table:
            return pa.table({"n": pa.array([1] * int(context.run.tags["n"]), pa.int64())})

        checks = build_lance_freshness_checks(plain, "1d")
        lake.run(plain, tags={"n": "1"})
        written = [looked_at(lake, *checks)]
        if mode == "overwrite":  # the overwrite that removes the rows counts
            lake.run(plain, tags={"n": "0"})
            written = [looked_at(lake, *checks)]
            assert written == [(True, 2)]
        lake.run(plain, tags={"n": "0"})
        lake.table("plain").delete("n = 99")
        lake.table("plain").insert(pa.table({"n": pa.array([], pa.int64())}))
        assert lake.table("plain").version > written[0][1]
        assert [looked_at(lake, *checks)] == written

    def test_a_partition_without_rows_does_not_count(self, lake):
        @dg.asset(partitions_def=PARTS, metadata={"partition_expr": "part"})
        def plain(context) -> pa.Table:
            keys = [context.partition_key] * (context.partition_key == "a")
            return pa.table({"part": pa.array(keys, pa.string())})

        lake.run(plain, partition="a")
        lake.run(plain, partition="b")
        assert lake.table("plain").version == 2
        assert looked_at(lake, *build_lance_freshness_checks(plain, "1d")) == (True, 1)

    def test_a_table_that_never_had_rows_is_not_fresh(self, lake):
        @dg.asset
        def plain() -> pa.Table:
            return pa.table({"n": pa.array([], pa.int64())})

        for _ in range(2):
            lake.run(plain)
        (found,) = lake.run(
            plain, *build_lance_freshness_checks(plain), select=dg.AssetSelection.checks_for_assets(plain)
        ).get_asset_check_evaluations()
        assert not found.passed
        assert "no commit to" in found.description


def test_the_version_was_cleaned_up(lake):
    lake.run(plain)
    lake.run(plain)
    main = lake.table("plain")
    main.optimize.compact_files()
    main.cleanup_old_versions(timedelta(0))
    assert next(one["version"] for one in main.versions()) > 2
    assert looked_at(lake, *build_lance_freshness_checks(plain, "1d"))[0]


def test_the_version_was_cleaned_up_and_an_older_one_stays(lake):
    lake.run(plain)
    lake.table("plain").tags.create("first", 1)
    lake.run(plain)
    main = lake.table("plain")
    main.update_config({"mine": "1"})
    main.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    assert [one["version"] for one in main.versions()] == [1, 3]
    assert looked_at(lake, *build_lance_freshness_checks(plain, "1d")) == (True, 2)


@pytest.mark.parametrize("max_age", ["0d", "soon", timedelta(0)])
def test_a_wrong_age(max_age):
    with pytest.raises(ValueError):
        build_lance_freshness_checks(plain, max_age)


def test_a_partition_of_a_branch_alone_is_missing_on_main(lake):
    got = []

    @dg.asset(partitions_def=PARTS)
    def reader(parts: pa.Table) -> None:
        got.append(parts.num_rows)

    def read(**options):
        return lake.run(parts, reader, select=[reader], partition="b", **options)

    lake.run(parts, partition="a", **TAGGED)
    lake.run(parts, partition="b", **WORK)
    assert "partition 'b' was never materialized" in errors(read(fails=True, **TAGGED))
    read(**WORK)
    assert got == [1]
    assert find_published_partitions(lake.instance, parts.key, ["a", "b"]) == {"a"}
    assert find_published_partitions(lake.instance, parts.key, ["a", "b"], branch="work") == {"a", "b"}
    run_job(lake, build_branch_jobs([parts])[1], parts, **{"lance/branch": "work"})
    assert "partition 'b' was never materialized" in errors(read(fails=True, **TAGGED))
    assert find_published_partitions(lake.instance, parts.key, ["a", "b"]) == {"a"}
    (newest,) = lake.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=parts.key, asset_partitions=["b"]), limit=1
    ).records
    metadata = newest.asset_materialization.metadata
    assert (metadata["lance/published"].value, metadata["dagster/partition_row_count"].value) == (False, 0)
    lake.run(parts, partition="b", **TAGGED)
    read(**TAGGED)
    assert find_published_partitions(lake.instance, parts.key, ["a", "b"]) == {"a", "b"}


def test_a_discard_of_a_partition_that_main_has(lake):
    lake.run(parts, partition="a", **TAGGED)
    lake.run(parts, partition="a", **WORK)
    run_job(lake, build_branch_jobs([parts])[1], parts, **{"lance/branch": "work"})
    assert find_published_partitions(lake.instance, parts.key, ["a"]) == {"a"}
    newest = lake.instance.get_latest_materialization_event(parts.key).asset_materialization
    assert "lance/published" not in newest.metadata
