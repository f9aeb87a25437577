"""Every Python snippet of the documentation runs as it stands: the snippets of a page in order, in one process.

Pages that start Spark share a process and its session, which takes ten seconds to start: each has a folder without files.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from tests import processes

DOCS = processes.ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "```python" in path.read_text())

WITH_SPARK = [page for page in PAGES if "local_session(" in page.read_text()]
GROUPS = {page.relative_to(DOCS).as_posix(): [page] for page in PAGES if page not in WITH_SPARK} | {
    "with Spark": WITH_SPARK
}

# A page's snippets share their names, as a reader types them; a fault is shown at its line of the page. Workers of Spark
# stay in the folder in which they began: it is emptied before the next page.
RUNNER = """
import pathlib, re, shutil, sys
pages = list(map(pathlib.Path, sys.argv[1:]))
if len(pages) > 1:
    from pyspark.sql import SparkSession
    SparkSession.stop = lambda session: None
for page in pages:
    for place in pathlib.Path().iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    text = page.read_text()
    names = {"__name__": "__main__"}
    for found in re.finditer(r"^```python\\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        before = text.count("\\n", 0, found.start(1))
        exec(compile("\\n" * before + found[1], str(page), "exec"), names)
"""


@pytest.mark.parametrize("pages", GROUPS.values(), ids=GROUPS)
def test_the_snippets_of_a_page_run(pages, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(processes.ROOT), "DAGSTER_HOME": ""}
    processes.run([sys.executable, "-c", RUNNER, *pages], env=environment, cwd=tmp_path, check=True)


def test_most_pages_of_spark_are_one_group():
    assert {page.name for page in WITH_SPARK} >= {"spark.md", "spark-sql.md", "columns.md", "changes.md"}


def test_pages_name_pages_that_exist():
    missing = [
        f"{page.name}: {target}"
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\(([^)#:]+\.(?:md|png|svg))", page.read_text())
        if not (page.parent / target).exists() and Path(target).name not in MADE
    ]
    assert missing == []


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"(?:- |: )([\w/-]+\.md)", (processes.ROOT / "mkdocs.yml").read_text()))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not page.startswith("registry/")} <= listed  # files for others' registries


def test_modules_and_names_of_how_it_works_exist():
    found = set(
        re.findall(r"`((?:lance_core|pyspark_lance|lance_dagster)(?:\.\w+)+)`", (DOCS / "how-it-works.md").read_text())
    )
    assert len(found) > 25
    missing = []
    for name in found:
        module, _, last = name.rpartition(".")
        if importlib.util.find_spec(module) is None or not (
            importlib.util.find_spec(name) or hasattr(importlib.import_module(module), last)
        ):
            missing.append(name)
    assert missing == []


MADE = {"format.md", "architecture.md", "architecture.svg"}


def test_each_term_of_the_glossary_links_the_page_that_defines_it():
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if re.match(r"\| (?!term )\w", line)]
    assert len(rows) > 35
    links = [
        re.search(
            r"\| \[[^\]]+\]\((https://(?:lance\.org/format|docs\.dagster\.io|spark\.apache\.org)/\S+|\w+\.md)\) \|$",
            row,
        )
        for row in rows
    ]
    assert [row for row, link in zip(rows, links, strict=True) if link is None] == []
