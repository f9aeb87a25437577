"""The snippets of the guides run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def snippets(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["retries.md"])
def test_snippets_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = snippets(name)
    assert found
    for text in found:
        exec(compile(text, name, "exec"), {"__name__": "__main__"})  # noqa: S102 -- our own text
