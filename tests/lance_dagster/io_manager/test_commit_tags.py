"""What a commit says about its run, and when two writes are the same write."""

import json

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster._context.steps import RunFacts
from lance_dagster.io_manager.write_attempts import describe_commit, made_by

ASSET = dg.AssetKey(["analytics", "events"])
FACTS = RunFacts(
    run_id="r2",
    root_run_id="r1",
    parent_run_id="r1",
    job_name="daily",
    step_key="s",
    attempt=1,
    number=7,
    tags={"dagster/backfill": "bf"},
)


def tags_of(facts=FACTS, **changes):
    arguments = {
        "asset_key": ASSET,
        "output_name": "result",
        "partition_keys": ["b", "a"],
        "code_version": None,
        "metadata": {},
    } | changes
    return describe_commit(facts, **arguments)


def test_the_run_is_on_the_commit():
    tags = tags_of(code_version="7")
    assert tags.properties == {
        "dagster.asset_key": "analytics/events",
        "dagster.partition_keys": '["a", "b"]',
        "dagster.partition_hash": tags.properties["dagster.partition_hash"],
        "dagster.code_version": "7",
        "dagster.run_id": "r2",
        "dagster.root_run_id": "r1",
        "dagster.job_name": "daily",
        "dagster.step_key": "s",
        "dagster.attempt": "1",
        "dagster.backfill_id": "bf",
        "dagster.write_token": tags.write_attempt.token[1],
    }
    assert tags.write_attempt.properties == {
        "dagster.write_token": tags.write_attempt.token[1],
        "lance.write_attempt": "7.1",
    }


def test_what_does_not_apply_is_left_out():
    properties = tags_of(RunFacts(run_id="r", root_run_id="r"), partition_keys=None).properties
    assert not {"dagster.partition_keys", "dagster.backfill_id", "dagster.code_version"} & set(properties)


def test_outside_of_a_run_each_write_is_one_of_its_own():
    tags = tags_of(None)
    assert tags.write_attempt is None
    assert tags.properties["dagster.asset_key"] == "analytics/events"


def test_retries_and_re_executions_have_the_same_token():
    first = tags_of(RunFacts(run_id="r1", root_run_id="r1"))
    assert tags_of(FACTS).write_attempt.token == first.write_attempt.token
    assert tags_of(RunFacts(run_id="r1", root_run_id="r1", attempt=3)).write_attempt.token == first.write_attempt.token
    assert tags_of(FACTS, partition_keys=["a", "b"]).write_attempt.token == first.write_attempt.token
    assert tags_of(FACTS, code_version="2").write_attempt.token == first.write_attempt.token


@pytest.mark.parametrize(
    "changes",
    [
        {"partition_keys": ["a"]},
        {"partition_keys": None},
        {"partition_keys": []},
        {"partition_keys": ['a", "b']},
        {"output_name": "other"},
        {"asset_key": dg.AssetKey(["events"])},
        {"facts": RunFacts(run_id="r3", root_run_id="r3")},
    ],
)
def test_other_writes_have_other_tokens(changes):
    assert tags_of(**changes).write_attempt.token != tags_of().write_attempt.token


def test_many_partition_keys_are_described_instead_of_listed():
    keys = [f"2024-01-01-{hour:05}" for hour in range(1000)]
    properties = tags_of(partition_keys=keys).properties
    shown = json.loads(properties["dagster.partition_keys"])
    assert shown == {"count": 1000, "first": keys[0], "last": keys[-1], "sha256": properties["dagster.partition_hash"]}
    long = tags_of(partition_keys=["x" * 10_000]).properties["dagster.partition_keys"]
    assert len(long) < 4096


@pytest.mark.parametrize(
    ("facts", "is_retry"),
    [
        (RunFacts(run_id="r1", root_run_id="r1"), False),
        (RunFacts(run_id="r1", root_run_id="r1", attempt=1), True),
        (RunFacts(run_id="r2", root_run_id="r1", parent_run_id="r1"), True),
        (RunFacts(run_id="r2", root_run_id="r1"), True),
    ],
)
def test_only_retries_look_into_the_history(facts, is_retry):
    assert facts.is_retry is is_retry


def test_the_committer_of_a_version_that_was_cleaned_up_is_not_made_up(tmp_path):
    for _ in range(2):
        table = lance_core.write_dataset(pa.table({"n": [1]}), str(tmp_path / "t.lance"), mode="append")
    assert made_by(table, 1) == "a writer that is not a run of Dagster"
    table.cleanup_old_versions(retain_versions=1)
    assert made_by(lance_core.dataset(table.uri), 1) == ("an unknown writer, as the version was cleaned up")
