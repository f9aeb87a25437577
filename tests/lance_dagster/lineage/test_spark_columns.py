"""Column lineage that is read from Spark's plan: which columns the values of a column come from."""

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 -- Dagster resolves the annotations of assets

STEP = ("run", "step")


@pytest.fixture
def frames(spark, connect):
    """Two frames that a step was given."""
    if connect:
        pytest.skip("the plan of a Connect session is on the server")
    from lance_dagster.lineage.spark_columns import remember_frame

    left = spark.createDataFrame([(1, 2.0, [3], "s")], "k long, x double, many array<int>, s string")
    right = spark.createDataFrame([(1, 4.0)], "k long, y double")
    remember_frame(STEP, "db/a", left)
    remember_frame(STEP, "db/b", right)
    left.createOrReplaceTempView("one")
    right.createOrReplaceTempView("two")
    return left, right


def lineage(frame):
    from lance_dagster.lineage.spark_columns import plan_lineage

    found = plan_lineage(STEP, frame)
    deps = {} if found is None else found.deps_by_column
    return {
        column: {f"{dep.asset_key.to_user_string()}.{dep.column_name}" for dep in sources}
        for column, sources in deps.items()
    }


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select *, z * k as w from (select k, x + 1 as z from one)", {"k": "a.k", "z": "a.x", "w": "a.k a.x"}),
        ("select one.k, x + y as t from one join two using (k) where s > 't' order by y", {"k": "a.k", "t": "a.x b.y"}),
        ("select k, sum(x) as t, count(1) as c from one group by k", {"k": "a.k", "t": "a.x"}),
        ("select k, s, max(x) as m from one group by rollup (k, s)", {"k": "a.k", "s": "a.s", "m": "a.x"}),
        ("select k, row_number() over (partition by k order by x) as r from one", {"k": "a.k", "r": "a.k a.x"}),
        ("select k, x from one union all select * from two", {"k": "a.k b.k", "x": "a.x b.y"}),
        ("select explode(many) as each from one", {"each": "a.many"}),
        ("with c as (select k, x * 2 as d from one) select d, y from c join two using (k)", {"d": "a.x", "y": "b.y"}),
        ("select id from range(3)", {}),
    ],
)
def test_it_follows(frames, sql, expected):
    found = lineage(frames[0].sparkSession.sql(sql))
    assert found == {column: {f"db/{name}" for name in names.split()} for column, names in expected.items()}


def test_python_that_makes_columns_is_given_all_of_them(frames):
    found = lineage(frames[0].select("k", "x").mapInArrow(lambda batches: batches, "q double"))
    assert found == {"q": {"db/a.k", "db/a.x"}}


@dg.asset
def boats() -> pa.Table:
    return pa.table({"n": [5], "m": [6]})


@dg.asset
def fast(boats: DataFrame) -> DataFrame:
    return boats.selectExpr("n + m as speed", "n")


@dg.asset(metadata={"lance/column_lineage": {"n": "boats.m"}})
def said(boats: DataFrame) -> DataFrame:
    return boats.select("n")


def test_events_have_it_if_the_io_manager_is_configured_to(lake, spark, connect):
    def found(asset, **options):
        result = lake.run(boats, asset, **options)
        entry = result.asset_materializations_for_node(asset.key.path[-1])[0].metadata.get("dagster/column_lineage")
        deps = {} if entry is None else entry.value.deps_by_column
        return {column: {dep.column_name for dep in sources} for column, sources in deps.items()}

    assert found(fast) == {}
    derived = {} if connect else {"speed": {"n", "m"}, "n": {"n"}}
    assert found(fast, derive_column_lineage=True) == derived
    assert found(said, derive_column_lineage=True) == {"n": {"m"}}
