"""Runs the examples of docstrings, each docstring in an empty folder: `python -m tests.examples MODULE ...` with Spark."""

import doctest
import importlib
import os
import sys
import tempfile
import warnings
from pathlib import Path


def run_examples(module: str, **names: object) -> str:
    """Run the examples of a module; returns the differences from what they show, an empty string if there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    import lance_core

    names |= {"lance": lance_core, "os": os, "pa": pa, "pc": pc}
    differences: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    before = Path.cwd()
    for examples in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module), extraglobs=names):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                runner.run(examples, out=differences.append)
            finally:
                os.chdir(before)
    return "".join(differences)


if __name__ == "__main__":
    import pyspark_lance

    warnings.simplefilter("ignore")
    spark = pyspark_lance.local_session("local[2]", config={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("OFF")
    found = "".join(run_examples(module, pyspark_lance=pyspark_lance, spark=spark) for module in sys.argv[1:])
    spark.stop()
    sys.exit(found or 0)
