"""The examples of the types of the public API run; tests/test_wheel.py checks them by mypy."""

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parent / "typing" / "examples.py"


def test_the_examples_run(tmp_path):
    spec = importlib.util.spec_from_file_location("typed_examples", EXAMPLES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(str(tmp_path / "t")) == 1 + 1 + 1 + 3 + 2 + 2
