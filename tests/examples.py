"""Runs the examples of docstrings, each docstring in an empty folder."""

import doctest
import importlib
import os
import tempfile
from pathlib import Path

from tests.processes import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("lance_core", "pyspark_lance", "lance_dagster")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text()
)
"""The modules with examples."""


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
