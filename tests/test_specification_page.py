"""The page about the specification names existing tests and modules, and a test for each statement."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "specification.md"
STATEMENTS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| |")
]


def _tests_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda cells: f"{cells[0]} {cells[1]}"[:60])
def test_a_statement_is_done_and_held_where_the_page_says(statement):
    _, _, module, held, _ = statement
    for name in re.findall(r"`([^`]+)`", module):
        place = ROOT / "lance_core" / Path(*name.split("."))
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), name
    tests = re.findall(r"`([^`]+?)::([^`]+)`", held)
    assert tests, "no test holds it"
    for path, name in tests:
        assert name in _tests_of(ROOT / "tests" / path), f"{path}::{name}"


def test_the_page_has_the_five_pages_and_a_line_for_each_statement():
    _, *pages = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    numbers = [re.findall(r"^\| (\d+|fields|latest|step 5) \|", page, re.MULTILINE) for page in pages]
    assert numbers == [
        [str(n) for n in range(1, 23)],
        [str(n) for n in range(1, 63)],
        ["21", "fields", "latest", "step 5"],  # the others are as on the newer page
        [str(n) for n in range(1, 26)],
        [str(n) for n in range(1, 10)],
    ]
    assert sum(map(len, numbers)) == len(STATEMENTS)
