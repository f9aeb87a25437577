"""Random merges of whole rows: tasks that look up keys do what Spark's joins do, errors included."""

import datetime as dt
import decimal
import math
import random

import pytest

import lance_core
import pyspark_lance
from lance_core.errors import LanceError
from pyspark_lance import LanceTable
from pyspark_lance.changing import merge_frames

UTC = dt.UTC
KEYS = {
    "bigint": [-(2**63), -1, 0, 1, 2, 2**63 - 1, None],
    "int": [-5, 0, 1, 2, None],
    "string": ["", "a", "A", "a ", "ä", "\x00", None],
    "string collate UTF8_LCASE": ["a", "A", "ß", "b", None],
    "binary": [b"", b"\x00", b"\x00\x00", b"a", None],
    "double": [0.0, -0.0, math.nan, math.inf, 1.5, None],
    "float": [0.0, -0.0, math.nan, 0.5, None],
    "decimal(10,2)": [decimal.Decimal(one) for one in ("0.00", "1.10", "-1.10")] + [None],
    "boolean": [True, False, None],
    "date": [dt.date(1, 1, 1), dt.date(2024, 2, 29), None],
    "timestamp": [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2024, 3, 10, 7, 0, 0, 1, tzinfo=UTC), None],
    "timestamp_ntz": [dt.datetime(1970, 1, 1), dt.datetime(2024, 3, 10, 2, 30), None],
}
WAYS = ("upsert", "update", "insert", "delete and insert", "SQL upsert", "SQL update")


def frame(spark, draw, kinds, count, first):
    rows = [(*(draw.choice(KEYS[kind]) for kind in kinds), first + n, f"v{first + n}") for n in range(count)]
    schema = ", ".join([*(f"k{i} {kind}" for i, kind in enumerate(kinds)), "n long", "s string"])
    return spark.createDataFrame(rows, schema).repartition(draw.randint(1, 3))


def merge(spark, source, uri, keys, way):
    if way.startswith("SQL"):
        on = " AND ".join(f"t.{key} = n.{key}" for key in keys)
        begun = LanceTable.forPath(spark, uri).alias("t").merge(source.alias("n"), on).whenMatchedUpdateAll()
        done = (begun.whenNotMatchedInsertAll() if way == "SQL upsert" else begun).execute()
    else:
        clauses = {
            "upsert": {},
            "update": {"when_not_matched": None},
            "insert": {"when_matched": None},
            "delete and insert": {"when_matched": "delete"},
        }
        done = pyspark_lance.merge(source, uri, on=keys, **clauses[way])
    return done.rows_inserted, done.rows_updated, done.rows_deleted


def outcome(spark, source, uri, keys, way):
    before = lance_core.dataset(uri).version
    try:
        counts = merge(spark, source, uri, keys, way)
    except LanceError as error:
        assert lance_core.dataset(uri).version == before, "an error changes nothing"
        counts = type(error)
    table = lance_core.dataset(uri)
    table.validate()
    return counts, sorted(map(repr, table.to_table().to_pylist()))


def check(spark, tmp_path, monkeypatch, seed):
    draw = random.Random(seed)
    kinds = [draw.choice(list(KEYS)) for _ in range(draw.choice([1, 1, 2]))]
    keys = [f"k{i}" for i in range(len(kinds))]
    old, new = frame(spark, draw, kinds, draw.randint(0, 9), 0), frame(spark, draw, kinds, draw.randint(0, 6), 100)
    new = new if draw.random() < 0.3 else new.dropDuplicates(keys)
    way, stable, has_index = draw.choice(WAYS), draw.random() < 0.5, draw.random() < 0.3
    found = []
    for most in (0, 1 << 20):
        uri = str(tmp_path / f"{seed}-{most}.lance")
        pyspark_lance.write(old, uri, max_rows_per_file=3, enable_stable_row_ids=stable)
        lance_core.dataset(uri).delete("n = 1")
        if lance_core.dataset(uri).version == 1:
            lance_core.dataset(uri).update_config({"nothing": "deleted"})
        if has_index and kinds[0] == "bigint":
            lance_core.dataset(uri).create_scalar_index("k0", "BTREE")
        monkeypatch.setattr(merge_frames, "_LOOKUP_ROWS", most)
        found.append(outcome(spark, new.cache(), uri, keys, way))
    assert found[0] == found[1], f"seed {seed}: {way} by {kinds}, stable ids: {stable}"
    return way, found[0][0]


def test_lookups_do_what_joins_do(spark, tmp_path, monkeypatch):
    for seed in range(3):
        check(spark, tmp_path, monkeypatch, seed)


@pytest.mark.slow
def test_many_lookups_do_what_joins_do(spark, tmp_path, monkeypatch):
    seen = [check(spark, tmp_path, monkeypatch, seed) for seed in range(100, 180)]
    assert {way for way, counts in seen if isinstance(counts, tuple)} == set(WAYS)
    assert any(not isinstance(counts, tuple) for _, counts in seen)
