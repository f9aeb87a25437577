"""The examples of the README run as they stand."""

import json
import re
from pathlib import Path

import dagster as dg
import pytest

import lance_core
from lance_core.store import open_store

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_four_examples():
    assert len(EXAMPLES) == 4


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_the_dagster_example_replaces_the_days_of_a_run(spark, here):
    rows = [{"id": i, "day": f"2026-01-{1 + i % 4:02}", "kind": "a"} for i in range(40)]
    raw = here / "raw" / "events"
    raw.mkdir(parents=True)
    (raw / "part.json").write_text("\n".join(map(json.dumps, rows)))
    names: dict[str, object] = {}
    # The asset lives in a Spark of this process, whose working directory is not the test's.
    exec(EXAMPLES[0].replace('"raw/events"', repr(str(raw))), names)
    job = (
        names["defs"].resolve_implicit_global_asset_job_def()
        if hasattr(names["defs"], "resolve_implicit_global_asset_job_def")
        else names["defs"].get_implicit_global_asset_job_def()
    )
    with dg.DagsterInstance.ephemeral() as instance:
        span = {"dagster/asset_partition_range_start": "2026-01-02", "dagster/asset_partition_range_end": "2026-01-03"}
        for _ in range(2):
            assert job.execute_in_process(instance=instance, tags=span).success
    dataset = lance_core.dataset(here / "lake" / "public" / "events.lance")
    assert dataset.version == 2
    assert sorted(dataset.to_table()["id"].to_pylist()) == [row["id"] for row in rows if row["day"][-1] in "23"]
    assert "dagster.run_id" in dataset.read_transaction(2).transaction_properties


def test_the_example_of_s3_gives_options_that_are_known(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    names: dict[str, object] = {}
    exec(EXAMPLES[1], names)
    given = {
        key: value.get_value() if isinstance(value, dg.EnvVar) else value for key, value in names["options"].items()
    }
    store = open_store("s3://bucket/lake/events.lance", given)
    assert store.root == "s3://bucket/lake/events.lance"
    assert "hidden" not in repr(names["io_manager"]) + repr(store)


def test_the_example_of_spark_alone(spark, here):
    # The session is that of all tests of this process.
    assert "\nspark.stop()" in EXAMPLES[2]
    example = EXAMPLES[2].replace("\nspark.stop()", "\n")
    exec(example.replace('"numbers.lance"', repr(str(here / "numbers.lance"))), {})
    assert lance_core.dataset(here / "numbers.lance").count_rows() == 1000


def test_the_plain_example(here):
    exec(EXAMPLES[3], {})
    assert lance_core.dataset("delays.lance").version == 1
