"""Random statements over columns of all kinds: Spark on its own tables says what comes out, or that nothing does.

A statement that Spark's own tables accept is run with the same result, or rejected with the place of what is not
understood; one that Spark rejects is rejected, and changes nothing.
"""

import datetime as dt
import decimal
import math
import os
import re
import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import LanceError
from tests.pyspark_lance.statements.drawn_changes import change
from tests.pyspark_lance.statements.drawn_statements import MARK, Drawn

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string()), ("q", pa.struct([("c", pa.decimal128(5, 1))]))])
T = pa.schema(
    [
        ("id", pa.int64()), ("k", pa.int32()), ("x", pa.decimal128(10, 2)), ("f", pa.float64()), ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")), ("s", pa.string()), ("b", pa.bool_()), ("p", STRUCT),
        ("Odd Name", pa.string()), ("bin", pa.binary()), ("arr", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32())),
    ]
)  # fmt: skip
U = pa.schema(
    [
        ("id", pa.int32()), ("k", pa.int64()), ("x", pa.decimal128(12, 3)), ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")), ("s", pa.string()), ("p", pa.struct([("a", pa.int32())])), ("extra", pa.string()),
    ]
)  # fmt: skip
POOLS = {
    "id": [0, 1, 2, 2, 3, 4, 5, None],
    "k": [1, 2, 2, 3, None],
    "x": [decimal.Decimal(one) for one in ("0", "0.25", "1.10", "-3.00", "2")] + [None],
    "f": [0.0, -0.0, math.nan, math.inf, 1.5, -2.0, None],
    "d": [dt.date(2024, 3, 10), dt.date(2024, 1, 31), dt.date(2024, 2, 29), None],
    "ts": [
        dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC), dt.datetime(2024, 3, 10, 7, 0, tzinfo=dt.UTC),
        dt.datetime(2024, 11, 3, 5, 30, tzinfo=dt.UTC), dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC), None,
    ],
    "n": [dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 3, 10, 1, 30), None],
    "s": ["a", "it's", "", "B", "%", "dq", "back\\slash", "ä-ß", "{x}", None],
    "b": [True, False, None],
    "Odd Name": ["a", "B", None],
    "bin": [b"", b"\x00\xff", b"a", None],
    "arr": [[], [1, 2], [2, None, 5], None],
    "m": [[("one", 1)], [], None],
    "extra": ["a", "e", None],
}  # fmt: skip

ACCEPTED, REJECTED, NAMED = "as Spark", "rejected as by Spark", "rejected by name"


def rows_of(schema, draw, count):
    def cell(field):
        if field.name != "p":
            return draw.random.choice(POOLS[field.name])
        if draw.random.random() < 0.2:
            return None
        found = {
            "a": draw.one(1, 2, None),
            "b": draw.one("a", "B", None),
            "q": draw.one({"c": decimal.Decimal("1.5")}, {"c": None}, None),
        }
        return {one.name: found[one.name] for one in field.type}

    return pa.Table.from_pylist([{field.name: cell(field) for field in schema} for _ in range(count)], schema)


class Engines:
    """The tables `t` and `u` of each engine, each with two versions."""

    def __init__(self, spark, root):
        self.spark = spark
        self.root = root
        self.files = 0
        self.filled = {}
        pyspark_lance.register_catalog(spark, "rnd", root)

    def fill(self, draw):
        for name, schema in (("t", T), ("u", U)):
            first, second = rows_of(schema, draw, 9), rows_of(schema, draw, 7)
            self.write(name, first, second)
            self.plain(f"own_{name}_1", first)
            self.filled[name] = (first, second)
            both = pa.concat_tables([first, second])
            self.plain(f"own_{name}", both)
            self.plain(f"rows_{name}", both.append_column("rid", pa.array(range(len(both)))))

    def write(self, name, first, second):
        """A table of two versions."""
        shutil.rmtree(f"{self.root}/s/{name}.lance", ignore_errors=True)
        lance_core.write_dataset(first, f"{self.root}/s/{name}.lance", max_rows_per_file=4)
        lance_core.write_dataset(second, f"{self.root}/s/{name}.lance", mode="append", max_rows_per_file=4)

    def plain(self, name, table):
        """A temporary view of Spark's own."""
        self.files += 1
        path = f"{self.root}/plain_{self.files}.parquet"
        pq.write_table(table, path)
        self.spark.read.parquet(path).createOrReplaceTempView(name)

    def in_lance(self, text):
        def spelled(found):
            return f"rnd.s.{found['name']}" + (f" VERSION AS OF {found['version']}" if found["version"] else "")

        return MARK.sub(spelled, text)

    def in_spark(self, text):
        def spelled(found):
            own = f"own_{found['name']}" + (f"_{found['version']}" if found["version"] else "")
            return (
                found["name"] if found["is_qualifier"] else own if found["has_alias"] else f"{own} AS {found['name']}"
            )

        return MARK.sub(spelled, text)

    def run(self, which, text, params):
        """The types and rows of an answer, or the error that is given instead."""
        try:
            frame = (
                pyspark_lance.sql(self.spark, self.in_lance(text), **params)
                if which == "lance"
                else self.spark.sql(self.in_spark(text), args=params or None)
            )
            return frame.dtypes, in_order(frame.collect())
        except Exception as error:  # noqa: BLE001 - which of them is compared
            return error


def in_order(rows):
    return sorted(repr(row) for row in map(tuple, rows))


@pytest.fixture(scope="module")
def engines(spark, tmp_path_factory):
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")  # it finds no NaN
    yield Engines(spark, str(tmp_path_factory.mktemp("drawn")))
    spark.conf.unset("spark.sql.parquet.filterPushdown")


def used(text, params):
    """The parameters that a statement names."""
    return {name: value for name, value in params.items() if re.search(rf":{name}\b", text)}


def check_query(engines, seed):
    draw = Drawn(seed)
    text = draw.query()
    params = used(text, {**draw.params, "k": 2, "s": "it's"})
    expected = engines.run("spark", text, params)
    found = engines.run("lance", text, params)
    return verdict(f"seed {seed}: {engines.in_lance(text)} {params}", expected, found)


def verdict(shown, expected, found):
    """Compare what two engines did, each an answer or an error."""
    if isinstance(expected, Exception):
        assert isinstance(found, Exception), f"{shown}\nSpark rejects it: {str(expected)[:400]}\nLance gives {found}"
        return REJECTED
    if isinstance(found, Exception):
        assert is_named(found), f"{shown}\n{type(found).__name__} {found}"
        return NAMED
    assert found == expected, f"{shown}\nnot as Spark: {found}\n{expected}"
    return ACCEPTED


def stored_by_spark(engines, drawn, params):
    """What Spark says is in the table afterwards, or its error."""
    run = engines.spark.sql
    run("DROP TABLE IF EXISTS own_result")
    run(f"CREATE TABLE own_result USING parquet AS SELECT * FROM own_{drawn.target} WHERE false")
    try:
        for text in drawn.stored:
            run(engines.in_spark(text), args=used(text, params) or None)
        repeats = (
            drawn.repeats and run(engines.in_spark(drawn.repeats), args=used(drawn.repeats, params) or None).collect()
        )
        return (
            ValueError(f"several rows of the source for {repeats}")
            if repeats
            else in_order(run("SELECT * FROM own_result").collect())
        )
    except Exception as error:  # noqa: BLE001 - which of them is compared
        return error


def check_change(engines, seed):
    draw = Drawn(seed)
    drawn = change(draw)
    text, params = drawn.statement, used(drawn.statement, draw.params)
    expected = stored_by_spark(engines, drawn, draw.params)
    uri = f"{engines.root}/s/{drawn.target}.lance"
    before = lance_core.dataset(uri).version
    found = engines.run("lance", text, params)
    after = lance_core.dataset(uri).version
    shown = f"seed {seed}: {engines.in_lance(text)} {params}"
    most = before if isinstance(found, Exception) else before + 1
    assert after <= most, f"{shown}\ncommits {before}, {after}: {found}"
    rows = engines.run("lance", f"SELECT * FROM <<{drawn.target}>>", {})[1]
    if after != before:
        engines.write(drawn.target, *engines.filled[drawn.target])
    return verdict(shown, expected, found if isinstance(found, Exception) else rows)


def is_named(error):
    """Whether an error says what was not understood, or which value of which column cannot be stored."""
    return isinstance(error, LanceError) and bool(
        re.search(r"line \d+, column \d+: |column '.*does not fit the table's type", str(error))
    )


def run_all(engines, check, seeds):
    """Run the statements of some seeds, of which most are accepted by both engines."""
    done = Counter()
    for seed in seeds:
        if seed % 25 == 0 or not done:
            engines.fill(Drawn(seed))
        done[check(engines, seed)] += 1
    print(check.__name__, seeds, dict(done))
    assert done[ACCEPTED] > 0.6 * len(seeds), done


@pytest.mark.parametrize(("check", "seeds"), [(check_query, range(12)), (check_change, range(8, 12))])
def test_statements_do_what_spark_s_own_tables_do(engines, check, seeds):
    run_all(engines, check, seeds)


@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(("check", "count"), [(check_query, 200), (check_change, 100)])
def test_many_statements_do_what_spark_s_own_tables_do(engines, check, count, ansi):
    start = int(os.environ.get("LANCE_TEST_SEED", "1000"))
    before = engines.spark.conf.get("spark.sql.ansi.enabled")
    engines.spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        run_all(engines, check, range(start, start + count))
    finally:
        engines.spark.conf.set("spark.sql.ansi.enabled", before)
