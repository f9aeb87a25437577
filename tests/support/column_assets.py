"""Assets of images and of columns that other assets add to them, and what their tables and events say."""

import datetime as dt

import dagster as dg
import lance as pylance
import pyarrow as pa

from lance_dagster import build_branch_jobs
from lance_dagster.io_manager.manager import LanceTableIOManager
from tests.lance_dagster.lake import QUIET

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")


BLOB = b"x" * 20_000


ROWS = 50


def day_of(key):
    return dt.date.fromisoformat(key)


def ids_of(key):
    start = 1000 * day_of(key).day
    return list(range(start, start + ROWS))


def images_asset(extra=(), **metadata):
    @dg.asset(name="images", partitions_def=DAYS, metadata={"partition_expr": "day", **metadata})
    def images(context) -> pa.Table:
        ids = [(i, day_of(key)) for key in context.partition_keys for i in [*ids_of(key), *extra]]
        return pa.table(
            {
                "id": [i for i, _ in ids],
                "day": pa.array([day for _, day in ids], pa.date32()),
                "blob": pa.array([BLOB] * len(ids), pa.large_binary()),
            }
        )

    return images


def vector(i):
    return [float(i + k) for k in range(8)]


def embeddings_asset(make=None, name="embeddings", columns=("id",), kind=pa.Table, retries=0, **metadata):
    metadata = {"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", **metadata}
    metadata = {key: value for key, value in metadata.items() if value is not None}

    @dg.asset(
        name=name,
        partitions_def=DAYS,
        ins={"images": dg.AssetIn(metadata={"columns": list(columns)})},
        metadata={"partition_expr": "day", **metadata},
        retry_policy=dg.RetryPolicy(max_retries=retries) if retries else None,
    )
    def embeddings(context, images: kind):
        return make(context, images) if make is not None else with_vectors(images)

    return embeddings


def with_vectors(images, name="vector"):
    if not isinstance(images, pa.Table):
        images = pa.table({"id": list(images["id"])})
    ids = images["id"].to_pylist()
    values = pa.array([vector(i) for i in ids], pa.list_(pa.float32(), 8))
    return images.append_column(name, values)


def cells(lake, name="vector", key="id"):
    return {row[key]: row[name] for row in lake.table("images").to_table([key, name]).to_pylist()}


def assert_vectors(lake, *keys):
    wanted = {i for key in keys for i in ids_of(key)}
    found = cells(lake)
    assert {i for i, value in found.items() if value is not None} == wanted
    assert all(found[i] == vector(i) for i in wanted)
    read = pylance.dataset(lake.uri("images")).to_table(columns=["id", "vector"]).to_pylist()
    assert {row["id"]: row["vector"] for row in read} == found


def losing_the_event(patch, attempts):
    """Let the first attempt fail after its commit."""
    report = LanceTableIOManager._report

    def failing(self, output, *others):
        if len(attempts) == 1 and output.sets_columns:
            raise RuntimeError("after the commit")
        return report(self, output, *others)

    patch.setattr(LanceTableIOManager, "_report", failing)


def logged(lake, result):
    return [entry.user_message for entry in lake.instance.all_logs(result.run_id)]


def promoted(lake, branch, *assets):
    """The materializations and the observed assets of a run of the job that promotes."""
    defs = dg.Definitions(assets=list(assets), jobs=build_branch_jobs(assets), resources={"io_manager": lake.manager()})
    result = defs.resolve_job_def("lance_promote").execute_in_process(
        instance=lake.instance, tags={"lance/branch": branch}, run_config=QUIET
    )
    made, observed = {}, set()
    for event in result.all_events:
        if event.is_step_materialization:
            entries = {key: value.value for key, value in event.materialization.metadata.items()}
            made[event.asset_key.to_user_string(), event.partition] = entries
        elif event.is_asset_observation:
            observed.add(event.asset_key.to_user_string())
    return made, observed
