"""Maintenance by the executors of a Spark session."""

import lance
import numpy as np
import pyarrow as pa

import lance_core
from lance_dagster import LanceMaintenancePolicy, LanceSparkResource, LanceTableResource, build_maintenance_job
from tests.lance_dagster.maintenance.test_maintenance import failures, fill, observations, run


def test_spark_rewrites_in_waves(lake, spark):
    fill(lake, "nyc/flights", fragments=8)
    fill(lake, "nyc/boats", fragments=3)
    policy = LanceMaintenancePolicy(target_rows_per_fragment=4, max_parallel_tasks=2)
    job = build_maintenance_job(["nyc/flights", "nyc/boats"], policy, engine="spark")
    result = run(lake, job, resources={"io_manager": lake.manager(spark=LanceSparkResource())})
    assert result.success
    assert [f.count_rows() for f in lake.table("nyc/flights").get_fragments()] == [4, 4, 4, 4]
    assert lake.rows("nyc/flights") == [(n,) for n in range(16)]
    assert observations(result)["nyc/boats"]["lance/fragments_after"] == 1


def test_without_a_session_the_remedy_is_named(lake):
    fill(lake, "nyc/boats", fragments=3)
    job = build_maintenance_job(["nyc/boats"], engine="spark")
    result = run(lake, job, resources={"io_manager": LanceTableResource(root_uri=lake.root)})
    assert not result.success
    assert 'has no Spark session; use engine="process"' in failures(result)["summarize"]


def test_executors_build_declared_indices_in_parts(lake, spark):
    vectors = np.random.default_rng(1).random((24_000, 8), np.float32)
    uri = lake.uri("nyc/flights")
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 8)
    lance_core.write_dataset(pa.table({"v": column}), uri, max_rows_per_file=6_000)
    policy = LanceMaintenancePolicy(
        indices={"v": {"kind": "IVF_FLAT", "min_recall": 0.5}}, cleanup_older_than=None, target_rows_per_fragment=6_000
    )
    job = build_maintenance_job(["nyc/flights"], policy, engine="spark")
    result = run(lake, job, resources={"io_manager": lake.manager(spark=LanceSparkResource())})
    assert result.success
    assert observations(result)["nyc/flights"]["lance/index_recall/v_idx"] >= 0.5
    (index,) = lance.dataset(uri).describe_indices()
    assert len(index.segments) > 1
    assert sorted(n for part in index.segments for n in part.fragment_ids) == [0, 1, 2, 3]
