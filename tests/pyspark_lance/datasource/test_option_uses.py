"""The options of each of the four uses of the data source: one that is accepted is used, all others are rejected."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError
from pyspark_lance.datasource.options import OPTIONS, SourceOptions
from pyspark_lance.datasource.source import DefaultSource
from pyspark_lance.types.arrow_types import from_arrow

ROWS = pa.table({"id": [1, 2], "day": [1, 2], "v": pa.array([[0.5, 1.0], [1.5, 2.0]], pa.list_(pa.float32()))})
USES = ("read", "readStream", "write", "writeStream")
LATER, FEED = "2999-01-01T00:00:00Z", {"readChangeFeed": "true", "startingVersion": "1"}
DYNAMIC = {"partition_by": "day", "partitionOverwriteMode": "dynamic", "overwrites": ""}

# option: its value, and the options without which it cannot be given
VALUES = {
    "version": ("1", {}),
    "versionAsOf": ("1", {}),
    "tag": ("july", {}),
    "asof": (LATER, {}),
    "timestampAsOf": (LATER, {}),
    "timeZone": ("Asia/Tokyo", {"filter": "id = 1", "replaceWhere": "day = 1", "overwrites": ""}),
    "branch": ("dev", {}),
    "columns": ("id", {}),
    "filter": ("id = 1", {}),
    "blobs": ("bytes", {}),
    "parallelism": ("3", {}),
    "readChangeFeed": ("true", FEED),
    "startingVersion": ("1", FEED),
    "startingTimestamp": ("2020-01-01T00:00:00Z", {"readChangeFeed": "true"}),
    "endingVersion": ("2", FEED),
    "endingTimestamp": (LATER, FEED),
    "netChanges": ("true", FEED),
    "maxVersionsPerTrigger": ("1", {}),
    "ignoreChanges": ("true", {}),
    "undecidedBatch": ("skip", {}),
    "checkpointLocation": ("check", {}),
    "vector_columns": ("v=2", {"schema_mode": "overwrite", "overwrites": ""}),
    "schema_mode": ("add_columns", {}),
    "mergeSchema": ("true", {}),
    "overwriteSchema": ("true", {"overwrites": ""}),
    "merge_on": ("id", {}),
    "replaceWhere": ("day = 1", {"overwrites": ""}),
    "partition_by": ("day", {}),
    "partitionOverwriteMode": ("dynamic", DYNAMIC),
    "commit_message": ("hello", {}),
    "idempotency_key": ("a=b", {}),
    "idempotency_since": ("1", {"idempotency_key": "a=b"}),
    "max_rows_per_file": ("5", {}),
    "max_bytes_per_file": ("5000", {}),
    "data_storage_version": ("2.1", {}),
    "enable_stable_row_ids": ("true", {}),
    "allow_external_blob_outside_bases": ("true", {}),
    "transaction_properties": ('{"a": "b"}', {}),
    "transaction.<key>": ("b", {}),
    "storage.<key>": ("b", {}),
}


@pytest.fixture
def uri(tmp_path):
    place = str(tmp_path / "t.lance")
    table = lance_core.write_dataset(ROWS, place, enable_stable_row_ids=True, data_storage_version="2.1")
    table.tags.create("july", 1)
    table.insert(ROWS)
    lance_core.dataset(place).create_branch("dev")
    return place


def use(kind, uri, options):
    """What Spark does with the data source, up to the tasks."""
    overwrites = "overwrites" in options
    source = DefaultSource({"path": uri, **{name: value for name, value in options.items() if name != "overwrites"}})
    rows = from_arrow(ROWS.schema)
    if kind == "read":
        return source.reader(source.schema()).partitions()
    if kind == "write":
        return source.writer(rows, overwrites)
    if kind == "writeStream":
        return source.streamWriter(rows, overwrites)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    return reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))


def accepted():
    return [(kind, option.name) for option in OPTIONS for kind in option.used_by.split(", ")]


def given(kind, name):
    """The value of an option, and those of the other options that the use accepts."""
    value, others = VALUES[name]
    return value, {one: other for one, other in others.items() if (kind, one) in accepted() or one == "overwrites"}


@pytest.mark.parametrize(("kind", "name"), accepted())
def test_each_option_that_a_use_accepts_is_looked_up(uri, monkeypatch, kind, name):
    seen = set()
    for method in ("value", "_with_prefix"):
        real = getattr(SourceOptions, method)

        def spied(self, given, real=real):
            seen.add(given)
            return real(self, given)

        monkeypatch.setattr(SourceOptions, method, spied)
    value, others = given(kind, name)
    use(kind, uri, {**others, name.replace("<key>", "a"): value})
    assert name.removesuffix("<key>") in seen or name == "checkpointLocation"  # Spark uses it


@pytest.mark.parametrize("kind", USES)
def test_each_option_of_another_use_is_rejected_by_name(uri, kind):
    before = lance.dataset(uri).version
    for option in OPTIONS:
        if kind in option.used_by.split(", "):
            continue
        value, others = given(kind, option.name)
        with pytest.raises(InvalidInputError, match=rf"^option {option.name} is not for {kind}: \w+"):
            use(kind, uri, {**others, option.name.replace("<key>", "a"): value})
    assert lance.dataset(uri).version == before


@pytest.mark.parametrize(
    ("kind", "options", "remedy"),
    [
        ("readStream", {"version": "1"}, "startingVersion gives the number of the first one"),
        ("readStream", {"versionAsOf": "1"}, "startingVersion"),
        ("readStream", {"tag": "july"}, "startingVersion"),
        ("readStream", {"asof": LATER}, "startingVersion"),
        ("readStream", {"endingVersion": "2", **FEED}, r"trigger\(availableNow=True\) ends the query"),
        ("readStream", {"merge_on": "id"}, "it is an option of write; leave it out"),
        ("read", {"ignoreChanges": "true"}, "it is an option of readStream"),
        ("write", {"version": "1"}, "it is an option of read"),
        ("writeStream", {"merge_on": "id"}, r"foreachBatch, with batch.write or pyspark_lance.write"),
    ],
)
def test_the_message_names_the_remedy(uri, kind, options, remedy):
    with pytest.raises(InvalidInputError, match=remedy):
        use(kind, uri, options)


def test_options_of_partitions_hold_for_batches_of_a_stream(uri):
    writer = use("writeStream", uri, DYNAMIC)
    assert writer._job.options.is_dynamic
    assert writer._job.options.partition_by == ("day",)
    assert not use("writeStream", uri, {"partition_by": "day"})._job.options.is_dynamic
