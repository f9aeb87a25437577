"""Docstrings of public functions have examples, and examples run as they are shown."""

import inspect
import re
import warnings

import dagster as dg
import pytest

import lance_core
import lance_core.maintenance
import lance_dagster
import pyspark_lance
from lance_core.dataset.maintenance import DatasetOptimizer
from lance_core.verbs.delta.dataset_delta import DatasetDelta
from lance_core.verbs.refs.branches import Branches
from lance_core.verbs.refs.readers import Readers
from lance_core.verbs.refs.tags import Tags
from tests.examples import MODULES, run_examples

NOT_OFFERED = "raises an UnsupportedError"
WITHOUT = {
    "LanceDataset.create_index": NOT_OFFERED,
    "LanceDataset.filter": NOT_OFFERED,
    "LanceDataset.join": NOT_OFFERED,
    "LanceDataset.join_asof": NOT_OFFERED,
    "LanceDataset.replace_schema": NOT_OFFERED,
    "LanceDataset.sort_by": NOT_OFFERED,
    "LanceDataset.move_to": "takes a manifest, which is not a public class",
}


def functions():
    """Names and functions: those of the packages, and the methods of what `lance_core.dataset` returns."""
    for package in (lance_core, lance_core.maintenance, pyspark_lance, lance_dagster):
        for name in package.__all__:
            if inspect.isfunction(getattr(package, name)):
                yield f"{package.__name__}.{name}", getattr(package, name)
    for cls in (lance_core.LanceDataset, DatasetDelta, Tags, Branches, Readers, DatasetOptimizer):
        for name in dir(cls):
            value = getattr(cls, name)
            value = getattr(value, "__func__", value)
            if not name.startswith("_") and inspect.isfunction(value) and value.__module__.startswith("lance_core."):
                yield f"{cls.__name__}.{name}", value


def test_public_functions_have_examples():
    found = dict(functions())
    lacking = {name for name, value in found.items() if not re.search(r"(?m)^Examples:\n +>>> ", inspect.getdoc(value))}
    assert lacking == set(WITHOUT)


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("pyspark_lance")])
def test_examples_show_what_happens(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        found = run_examples(module, dg=dg, lance_dagster=lance_dagster, maintenance=lance_core.maintenance)
    assert found == ""


def test_a_wrong_example_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "wrong.py").write_text(
        'def double(number):\n    """>>> double(2)\n    5\n    """\n    return 2 * number\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "+ 4" in run_examples("wrong")
