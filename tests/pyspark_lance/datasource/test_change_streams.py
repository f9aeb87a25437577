"""A stream of a change feed gives every change once, whatever is updated, deleted, compacted or restarted."""

import datetime as dt
import random

import lance
import pytest

import lance_core
from lance_core.errors import InvalidInputError, LanceError, SchemaError, UnsupportedError
from tests.support.change_feeds import rows, write
from tests.support.streams import Query


class ChangeQuery(Query):
    """A query whose batches are applied to a state, which has to have every preimage."""

    def __init__(self, uri, **options):
        self.state = {}
        super().__init__(uri, readChangeFeed="true", **options)

    def batch(self):
        self.rows = []
        found = super().batch()
        is_net = self.options.get("netChanges") == "true"
        for version in [None] if is_net else sorted({row["_commit_version"] for row in self.rows}):
            changes = [row for row in self.rows if version in (None, row["_commit_version"])]
            for row in changes:
                if row["_change_type"] in ("delete", "update_preimage"):
                    assert self.state.pop(row["id"]) == row["n"]
            for row in changes:
                if row["_change_type"] in ("insert", "update_postimage"):
                    assert self.state.setdefault(row["id"], row["n"]) == row["n"]
        return found


@pytest.mark.variants(5)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("net", ["true", "false"])
def test_the_state_is_that_of_the_table(uri, seed, net):
    states = write(lance, uri, seed, versions=9)
    rng, query = random.Random(seed), ChangeQuery(uri, netChanges=net, maxVersionsPerTrigger="2")
    query.start = {"version": 1}
    query.state = dict(states[1])
    while query.batch():
        assert query.state == states[query.start["version"]]
        if rng.random() < 0.5:
            query.load()
    assert query.state == states[max(states)]


def test_the_first_batch_has_the_rows_as_inserts(uri):
    states = write(lance, uri, 1)
    query = ChangeQuery(uri)
    query.batch()
    assert {row["_change_type"] for row in query.rows} == {"insert"}
    assert query.state == states[max(states)]
    lance.dataset(uri).delete("true")
    query.batch()
    assert query.state == {}
    assert {row["_change_type"] for row in query.rows} == {"delete"}


def test_a_version_or_a_time_to_begin_with(uri):
    states = write(lance, uri, 2)
    last = max(states)
    times = {one["version"]: one["timestamp"].astimezone(dt.UTC) for one in lance_core.dataset(uri).versions()}
    for options in ({"startingVersion": "4"}, {"startingTimestamp": times[4].isoformat()}):
        query = ChangeQuery(uri, **options)
        query.state = dict(states[3])
        query.batch()
        assert query.state == states[last]
    query = ChangeQuery(uri, startingVersion="latest")
    assert not query.batch()
    assert query.rows == []


def test_a_column_that_is_added_meanwhile(uri):
    """The query ends; when it is restarted, changes of older versions have null in the column."""
    lance.write_dataset(rows(1, 2), uri, enable_stable_row_ids=True)
    query = ChangeQuery(uri)
    query.batch()
    start = query.start
    lance.dataset(uri).delete("id = 1")
    end = query.reader.latestOffset(start)
    lance.dataset(uri).add_columns({"m": "n + 7"})
    with pytest.raises(SchemaError, match="added m"):
        query.batch()
    query.load()
    query.rows = []
    query.replay(start, end)
    assert [(row["id"], row["m"], row["_change_type"]) for row in query.rows] == [(1, None, "delete")]
    query.start = end
    query.batch()
    assert [(row["id"], row["m"]) for row in query.rows if row["_change_type"] == "update_postimage"] == [(2, 7)]


def test_a_table_that_does_not_record_updates_is_rejected_by_version(uri):
    lance.write_dataset(rows(1, 2), uri)
    query = ChangeQuery(uri)
    query.batch()
    lance.dataset(uri).delete("id = 1")
    query.batch()
    assert query.state == {2: 0}
    lance.dataset(uri).update({"n": "5"})
    with pytest.raises(UnsupportedError, match="version 3"):
        query.batch()


def test_versions_that_were_cleaned_up_end_the_query(uri):
    lance.write_dataset(rows(1, 2), uri)
    query = ChangeQuery(uri)
    query.batch()
    for i in (3, 4):
        lance.write_dataset(rows(i), uri, mode="append")
    lance.dataset(uri).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    with pytest.raises(LanceError, match="was cleaned up"):
        query.batch()


@pytest.mark.parametrize(
    "options",
    [{"endingVersion": "1"}, {"ignoreChanges": "true"}, {"filter": "id = 1"}, {"startingVersion": "x"}],
)
def test_options_that_are_not_for_streams_of_changes(uri, options):
    lance.write_dataset(rows(1, 2), uri)
    with pytest.raises(InvalidInputError):
        ChangeQuery(uri, **options).batch()


@pytest.mark.slow
def test_spark_keeps_a_copy_by_merging_each_batch(spark, uri, tmp_path):
    """A real query: updates and deletes of the source reach a copy, over a restart with the same checkpoint."""
    from pyspark.sql import functions

    import pyspark_lance

    copy = str(tmp_path / "copy.lance")
    lance.write_dataset(rows(1, 2, 3), uri, enable_stable_row_ids=True)

    def apply(batch, _):
        batch = batch.where("_change_type != 'update_preimage'").drop("_commit_version", "_commit_timestamp").persist()
        deleted = batch.where("_change_type = 'delete'")
        pyspark_lance.merge(batch.where("_change_type != 'delete'").drop("_change_type"), copy, on="id")
        pyspark_lance.delete(copy, deleted.select("id"), on="id")
        batch.unpersist()

    def run():
        stream = spark.readStream.format("lance").option("readChangeFeed", "true").load(uri)
        stream = stream.withColumn("id", functions.col("id"))
        query = stream.writeStream.foreachBatch(apply).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        return sorted(map(tuple, (row.values() for row in lance.dataset(copy).to_table().to_pylist())))

    assert run() == [(1, 0), (2, 0), (3, 0)]
    lance.dataset(uri).update({"n": "9"}, where="id = 2")
    lance.dataset(uri).delete("id = 1")
    lance.write_dataset(rows(4), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()
    assert run() == [(2, 9), (3, 0), (4, 0)]
    assert run() == [(2, 9), (3, 0), (4, 0)]
