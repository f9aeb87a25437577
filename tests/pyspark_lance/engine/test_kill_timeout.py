"""The setting `spark.python.task.killTimeout`, read as Spark reads it."""

import pytest

from pyspark_lance.engine.jobs import _seconds


@pytest.mark.parametrize("given", ["2s", "500ms", "1500", "1h", "2m", "3min", "1D", "5000us", " 7s "])
def test_durations_are_those_of_spark(spark, given):
    conf = spark.sparkContext._jvm.org.apache.spark.SparkConf(False).set("spark.python.task.killTimeout", given)
    entries = getattr(getattr(spark.sparkContext._jvm.org.apache.spark.internal.config, "Python$"), "MODULE$")
    assert _seconds(given) == pytest.approx(conf.get(entries.PYTHON_TASK_KILL_TIMEOUT()) / 1000)
