"""A frame or a view of a table that was dropped and made again is an error; it shows no row of the other table."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance

FEED = {"readChangeFeed": "true", "startingVersion": "1"}


@pytest.mark.variants(3)
@pytest.mark.parametrize("way", ["load", "view", "feed", "read", "read_changes"])
@pytest.mark.parametrize("versions", [1, 3], ids=["as many versions", "more"])
def test_a_frame_made_before(spark, uri, way, versions):
    lance_core.write_dataset(pa.table({"id": [1, 2]}), uri)
    frames = {
        "load": lambda: spark.read.format("lance").load(uri),
        "view": lambda: spark.read.format("lance").load(uri),
        "feed": lambda: spark.read.format("lance").options(**FEED).load(uri),
        "read": lambda: pyspark_lance.read(spark, uri),
        "read_changes": lambda: pyspark_lance.read_changes(spark, uri, begin_version=0),
    }
    frame = frames[way]()
    if way == "view":
        frame.createOrReplaceTempView("made_before")
        frame = spark.table("made_before")
    lance_core.LanceDataset.drop(uri)
    for number in range(versions):
        lance_core.write_dataset(pa.table({"id": [number]}), uri, mode="append" if number else "create")
    with pytest.raises(Exception, match=r"was dropped and (made|created) again"):
        frame.collect()
    assert frames[way]().count() == versions
