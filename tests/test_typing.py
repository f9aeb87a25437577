"""The public API is typed: examples pass mypy, and run."""

import importlib.util
import sys
from pathlib import Path

from tests import processes

EXAMPLES = Path(__file__).parent / "typing" / "examples.py"


def test_the_examples_are_well_typed():
    done = processes.run(
        [sys.executable, "-m", "mypy", "--strict", str(EXAMPLES)],
        cwd=EXAMPLES.parent.parent.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_run(tmp_path):
    spec = importlib.util.spec_from_file_location("typed_examples", EXAMPLES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(str(tmp_path / "t")) == 1 + 1 + 1 + 3 + 2 + 2
