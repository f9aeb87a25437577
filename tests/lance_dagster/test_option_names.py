"""Options that the plugin and Spark both take have the same values in both."""

from typing import get_args

from lance_dagster import settings
from pyspark_lance import modes


def test_both_take_the_same_values():
    assert get_args(settings.SchemaMode) == get_args(modes.SchemaMode)
    assert get_args(settings.OutOfPartition) == get_args(modes.Outside)
    assert set(get_args(settings.EmptyOutput)) == set(get_args(modes.Empty))
