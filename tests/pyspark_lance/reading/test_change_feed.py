"""Change feeds by Spark, of tables that pylance wrote: against `lance_core`'s feed, and against pandas."""

import datetime as dt
import random

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, SchemaError, VersionNotFoundError
from tests.support.change_feeds import rows, write

FEED = ["_change_type", "_commit_version", "_commit_timestamp"]


def applied(state, feed):
    """The rows after the changes of a feed, version by version; preimages have to be there."""
    import pandas as pd

    frame = pd.Series(state, dtype="int64")
    for _, changes in feed.sort_values("_commit_version", kind="stable").groupby("_commit_version"):
        kinds = {kind: part.set_index("id")["n"] for kind, part in changes.groupby("_change_type")}
        for kind in ("delete", "update_preimage"):
            deleted = kinds.get(kind, pd.Series(dtype="int64"))
            assert frame[deleted.index].to_dict() == deleted.to_dict()
            frame = frame.drop(deleted.index)
        for kind in ("update_postimage", "insert"):
            new = kinds.get(kind, pd.Series(dtype="int64"))
            assert not frame.index.intersection(new.index).size
            frame = pd.concat([frame, new])
    return frame.to_dict()


def sorted_rows(frame, names=("id", "n", *FEED)):
    return sorted(tuple(row[name] for name in names) for row in frame.toArrow().select(list(names)).to_pylist())


@pytest.mark.parametrize("seed", range(2))
def test_feeds_are_those_of_the_core_and_lead_from_state_to_state(spark, lance, uri, seed):
    states = write(lance, uri, seed)
    last = max(states)
    rng = random.Random(seed)
    for _ in range(2):
        begin = rng.randrange(last)
        end = rng.randint(begin + 1, last)
        dataset = lance_core.dataset(uri, end)
        for options in ({}, {"preimages": True, "each_version": True}):
            frame = pyspark_lance.read_changes(spark, uri, begin_version=begin, end_version=end, **options)
            core = dataset.delta(begin_version=begin, end_version=end).get_changes(**options).read_all()
            assert frame.columns == core.column_names
            expected = sorted(tuple(row.values()) for row in core.to_pylist())
            assert sorted_rows(frame) == expected
        feed = spark.read.format("lance").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", begin + 1).option("endingVersion", end).load(uri)
        assert sorted_rows(feed) == expected
        assert applied(states[begin], feed.toArrow().to_pandas()) == states[end]


def test_an_option_gives_net_changes_with_preimages(spark, lance, uri):
    lance.write_dataset(rows(1, 2), uri, enable_stable_row_ids=True)
    for _ in range(2):
        lance.dataset(uri).update({"n": "n + 1"}, where="id = 1")
    reader = spark.read.format("lance").option("readChangeFeed", "true").option("startingVersion", "2")
    wanted = ["id", "n", "_change_type"]
    assert reader.load(uri).count() == 4
    assert sorted_rows(reader.option("netChanges", "true").load(uri), wanted) == [
        (1, 0, "update_preimage"),
        (1, 2, "update_postimage"),
    ]


def test_times_name_the_first_and_the_last_version(spark, lance, uri):
    lance.write_dataset(rows(1), uri)
    for i in (2, 3, 4):
        lance.write_dataset(rows(i), uri, mode="append")
    times = {one["version"]: one["timestamp"].astimezone(dt.UTC) for one in lance_core.dataset(uri).versions()}
    tick = dt.timedelta(microseconds=1)

    def ids(**options):
        frame = spark.read.format("lance").options(readChangeFeed="true", **options).load(uri)
        return [row[0] for row in sorted_rows(frame, ["id"])]

    assert ids(startingTimestamp=(times[2] + tick).isoformat()) == [3, 4]
    assert ids(startingTimestamp=(times[1] - dt.timedelta(days=1)).isoformat()) == [1, 2, 3, 4]
    assert ids(startingVersion="2", endingTimestamp=(times[3] + tick).isoformat()) == [2, 3]
    assert ids(startingVersion="0", endingVersion="1") == [1]
    with pytest.raises(Exception, match="startingTimestamp"):
        ids(startingTimestamp=(times[4] + dt.timedelta(days=1)).isoformat())


def test_a_window_of_times_without_a_version_has_no_rows(spark, lance, uri):
    lance.write_dataset(rows(1), uri)
    for i in (2, 3):
        lance.write_dataset(rows(i), uri, mode="append")
    times = {one["version"]: one["timestamp"].astimezone(dt.UTC) for one in lance_core.dataset(uri).versions()}
    tick, day = dt.timedelta(microseconds=10), dt.timedelta(days=1)

    def read(start, end, **options):
        options |= {"startingTimestamp": start.isoformat(), "endingTimestamp": end.isoformat()}
        return spark.read.format("lance").options(readChangeFeed="true", **options).load(uri)

    def ids(*window):
        return [row[0] for row in sorted_rows(read(*window), ["id"])]

    quiet = [
        (times[2] + tick, times[3] - tick),
        (times[3] + day, times[3] + 2 * day),
        (times[1] - 2 * day, times[1] - day),
    ]
    assert [ids(*window) for window in quiet] == [[], [], []]
    assert read(*quiet[0]).columns == ["id", "n", *FEED]
    assert read(*quiet[1], netChanges="true").count() == 0
    assert (ids(times[1] - day, times[2] + tick), ids(times[2] + tick, times[3] + tick)) == ([1, 2], [3])
    with pytest.raises(Exception, match=r"option endingTimestamp: .* is before startingTimestamp"):
        read(times[3], times[2]).count()
    lance.dataset(uri).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    with pytest.raises(Exception, match="no version as old as"):
        read(*quiet[2]).count()


def test_columns_and_row_ids(spark, lance, uri):
    lance.write_dataset(rows(1, 2), uri, enable_stable_row_ids=True)
    lance.dataset(uri).delete("id = 1")
    frame = pyspark_lance.read_changes(spark, uri, begin_version=1, columns=["ID", "_rowid"])
    assert frame.columns == ["id", *FEED, "_rowid"]
    assert sorted_rows(frame, ["id", "_rowid"]) == [(1, 0)]
    with pytest.raises(SchemaError, match="no columns \\['m'\\]"):
        pyspark_lance.read_changes(spark, uri, begin_version=1, columns=["m"])
    with pytest.raises(InvalidInputError, match="at least one name"):
        pyspark_lance.read_changes(spark, uri, begin_version=1, columns=[])


def test_no_changes_are_a_frame_without_rows(spark, lance, uri):
    lance.write_dataset(rows(1), uri)
    frame = pyspark_lance.read_changes(spark, uri, begin_version=1)
    assert frame.columns == ["id", "n", *FEED]
    assert frame.count() == 0


def test_versions_that_were_cleaned_up_are_named(spark, lance, uri):
    lance.write_dataset(rows(1), uri)
    for i in (2, 3):
        lance.write_dataset(rows(i), uri, mode="append")
    lance.dataset(uri).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    with pytest.raises(VersionNotFoundError, match="begin_version=3"):
        pyspark_lance.read_changes(spark, uri, begin_version=1)
    with pytest.raises(Exception, match="was cleaned up"):
        spark.read.format("lance").options(readChangeFeed="true", startingVersion="2").load(uri).count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readChangeFeed": "true"}, "needs option startingVersion or startingTimestamp"),
        ({"readChangeFeed": "true", "startingVersion": "9"}, "no version from 9 on"),
        (
            {"readChangeFeed": "true", "startingVersion": "2", "endingVersion": "1"},
            "'endingVersion'.: the last version is 1",
        ),
        ({"readChangeFeed": "true", "startingVersion": "1", "endingVersion": "9"}, "version main:9"),
        ({"readChangeFeed": "true", "startingVersion": "1", "filter": "id = 1"}, "DataFrame.where"),
        ({"readChangeFeed": "true", "startingVersion": "1", "version": "1"}, "do not go together"),
        ({"endingVersion": "1"}, "need option readChangeFeed"),
        ({"startingVersion": "1"}, "need option readChangeFeed"),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "startingTimestamp": "2026-01-01T00:00:00Z"},
            "only one of the options",
        ),
    ],
)
def test_options_that_do_not_go_together_are_rejected(spark, lance, uri, options, message):
    lance.write_dataset(rows(1), uri)
    lance.write_dataset(rows(2), uri, mode="append")
    with pytest.raises(Exception, match=message):
        spark.read.format("lance").options(**options).load(uri).count()


def test_updates_of_other_columns_are_left_out(lance, spark, tmp_path):
    uri = str(tmp_path / "t")
    table = lance_core.write_dataset(rows(1, 2, 3), uri, enable_stable_row_ids=True)
    table.write_columns({"id": [1, 2, 3], "vec": [1.0, 2.0, 3.0]}, on="id")

    def changed(*columns):
        options = {"columns": ["id"], "updates_of": columns or None, "filter": "id > 1"}
        return sorted(row.id for row in pyspark_lance.read_changes(spark, uri, begin_version=1, **options).collect())

    assert (changed("n"), changed("vec"), changed()) == ([], [2, 3], [2, 3])


def test_updates_are_split_where_that_is_asked_for(lance, spark, uri):
    lance.write_dataset(rows(1, 2, 3), uri, enable_stable_row_ids=True)
    lance.dataset(uri).update({"n": "id * 10"}, where="id < 3")
    names = ["id", "n", "_change_type"]

    def split(**options):
        options = {"begin_version": 1, "split_updates": True, **options}
        return sorted_rows(pyspark_lance.read_changes(spark, uri, **options), names)

    assert split() == [(1, 0, "delete"), (1, 10, "insert"), (2, 0, "delete"), (2, 20, "insert")]
    assert split(filter="n < 15", key=["id"]) == [(1, 0, "delete"), (1, 10, "insert"), (2, 0, "delete")]
    for options in ({"preimages": True}, {"each_version": True}):
        with pytest.raises(InvalidInputError, match="split_updates need net changes"):
            split(**options)


def write_audit_log(lance, uri):
    """A table that keeps a feed: two of its own columns have names of a feed's columns."""
    log = pa.table({"id": [1, 2], "_change_type": ["delete", "insert"], "_commit_version": [42, 43]})
    lance.write_dataset(log, uri, enable_stable_row_ids=True)


OWN_COLUMN = "the table's own column '_c[a-z_]*' has the name of a column of the change feed"


def read_feed(spark, uri, **options):
    return spark.read.format("lance").options(readChangeFeed="true", startingVersion="1", **options).load(uri)


def start_feed(spark, uri, **options):
    feed = spark.readStream.format("lance").options(readChangeFeed="true", **options).load(uri)
    return feed.writeStream.format("noop").start()


AUDIT_READS = {
    "option readChangeFeed": read_feed,
    "its columns": lambda spark, uri: read_feed(spark, uri, columns="id,_change_type"),
    "a schema": lambda spark, uri: (
        spark.read.format("lance")
        .options(readChangeFeed="true", startingVersion="1")
        .schema("id long, _change_type string, _commit_version long, _commit_timestamp timestamp")
        .load(uri)
        .collect()
    ),
    "a stream": start_feed,
    "its streamed columns": lambda spark, uri: start_feed(spark, uri, columns="id,_commit_version"),
    "read_changes": lambda spark, uri: pyspark_lance.read_changes(spark, uri, begin_version=0),
    "its read columns": lambda spark, uri: pyspark_lance.read_changes(
        spark, uri, begin_version=0, columns=["_change_type", "id"]
    ),
    "its key": lambda spark, uri: pyspark_lance.read_changes(
        spark, uri, begin_version=0, columns=["id"], key="_change_type"
    ),
    "its filter": lambda spark, uri: pyspark_lance.read_changes(
        spark, uri, begin_version=0, columns=["id"], filter="_commit_version = 42"
    ),
}


@pytest.mark.parametrize("way", AUDIT_READS)
def test_the_feed_of_a_table_with_columns_of_a_feed_is_rejected_before_it_runs(spark, lance, uri, way):
    write_audit_log(lance, uri)
    with pytest.raises(Exception, match=OWN_COLUMN):
        AUDIT_READS[way](spark, uri)


def test_the_feed_of_other_columns_of_such_a_table_is_read(spark, lance, uri):
    write_audit_log(lance, uri)
    expected = [(1, "insert", 1), (2, "insert", 1)]
    feeds = [
        read_feed(spark, uri, columns="id"),
        pyspark_lance.read_changes(spark, uri, begin_version=0, columns=["id"]),
    ]
    for feed in feeds:
        assert feed.columns == ["id", *FEED]
        assert sorted_rows(feed, ("id", "_change_type", "_commit_version")) == expected
