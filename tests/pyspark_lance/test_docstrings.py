"""The examples of docstrings with Spark show what happens."""

import warnings

import pytest

import pyspark_lance
from tests.examples import MODULES, run_examples


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("pyspark_lance")])
def test_examples_show_what_happens(spark, connect, module):
    if connect:
        pytest.skip("a classic session is needed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run_examples(module, pyspark_lance=pyspark_lance, spark=spark.newSession()) == ""
