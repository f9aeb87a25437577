"""An overwrite by an attempt that was given up does not replace the rows of a later attempt."""

from datetime import timedelta

import pytest

import lance_core
import pyspark_lance
from lance_core import Equals, Slice, Slices
from lance_core.errors import SupersededError

TOKEN = ("token", "a")


@pytest.mark.variants(2)
@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("kind", ["table", "slices", "dynamic", "where"])
def test_it_fails_and_leaves_no_file(spark, uri, kind, cleaned):
    options = {
        "table": {"mode": "overwrite"},
        "slices": {"mode": "replace", "slices": Slices([Slice(name="a", conditions={"p": Equals("a")})])},
        "where": {"mode": "overwrite", "replace_where": "p = 'a'"},
        "dynamic": {"mode": "overwrite", "partition_by": ["p"], "partition_overwrite": "dynamic"},
    }[kind]

    def write(value, **more):
        frame = spark.sql(f"select 'a' as p, {value} as n")
        return pyspark_lance.write(frame, uri, **{"mode": "append", **more})

    write(0)
    write(2, **options, write_attempt=lance_core.WriteAttempt(token=TOKEN, number=(1,)))
    if cleaned:
        write(5)
        lance_core.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    before = lance_core.dataset(uri)
    with pytest.raises(SupersededError, match="version 2 was committed by a later attempt"):
        write(1, **options, write_attempt=lance_core.WriteAttempt(token=TOKEN, number=(0,)))
    assert lance_core.dataset(uri).version == before.version
    assert sorted(before.to_table()["n"].to_pylist()) == ([2, 5] if cleaned else [2])
