"""docs/errors.md has a paragraph for each error code, and errors link it."""

import importlib
import pickle
import re
import tomllib
import traceback
from pathlib import Path

import pytest

from lance_core import errors
from lance_core.errors import CorruptFileError, LanceError

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/errors.md").read_text()
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))

# Errors that stand beside what raises them.
OTHER_MODULES = (
    "lance_dagster.lineage.runs",
    "lance_dagster.undo.plan",
    "pyspark_lance.engine.errors",
    "pyspark_lance.session",
)


def classes():
    for module in (errors, *map(importlib.import_module, OTHER_MODULES)):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, LanceError) and "code" in vars(value):
                yield value


@pytest.mark.parametrize("error", sorted(set(classes()), key=lambda error: error.code), ids=lambda error: error.code)
def test_a_code_has_cause_remedy_and_example(error):
    section = SECTIONS[error.code]
    assert error.__name__ in section.partition("**Remedy.**")[0]
    assert len(section.partition("**Remedy.**")[2].partition("```text")[0].strip()) > 20
    assert error is LanceError or re.search(r"^```text\n.+\n```$", section, re.MULTILINE)


def test_no_module_with_codes_of_its_own_is_left_out():
    own = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("lance_core", "pyspark_lance", "lance_dagster")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r'^    code(: ClassVar\[str\])? = "', path.read_text(), re.MULTILINE)
    }
    assert own == {"lance_core.errors", *OTHER_MODULES}
    assert set(SECTIONS) == {error.code for error in classes()}


def test_the_page_is_where_the_documentation_is():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"].replace("/tree/", "/blob/") + "/errors.md" == errors.PAGE


def test_an_error_links_its_paragraph_below_its_message():
    error = CorruptFileError("data/a.lance: too short")
    assert error.url.endswith("docs/errors.md#corrupt-file")
    assert str(error) == "data/a.lance: too short"
    for each in (error, pickle.loads(pickle.dumps(error))):
        shown = "".join(traceback.format_exception_only(each))
        assert shown.endswith(f"CorruptFileError: data/a.lance: too short\nCause and remedy: {error.url}\n")
