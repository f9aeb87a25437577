"""Tests of sessions once more over Spark Connect, in a process of their own: one process has one kind of session.

A test of each way between a client and its server is in `make test`, with the IO manager in the same process; whole files
are slow ones.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from pyspark_lance.releases import is_at_least
from tests import processes

NOT_AGAIN = "not (schemas_are_rejected or wrong_options or wrong_reads or dropped)"
"""What is decided before a session has a part in it."""

OF_EACH_WAY = (
    "every_type or modes or carries_message or committed_once or without_rows or another_length or are_replaced"
    " or add_columns or pinned_and_pruned or filter_in_sql or spark_lacks or as_many_threads"
    " or stays_on_its_version or options_of_the_data_source or made_again_since or observations or variants"
)
"""One test of each way between a client and its server: the others take a minute more."""

OF_THE_IO_MANAGER = (
    "replaces_that_day or vectors_and_times or another_day or step_retry or types_that_are_known or resource"
)

TESTS = Path(__file__).parent

IS_THAT = pytest.mark.skipif(
    os.environ.get("LANCE_TEST_CONNECT") == "1" or not is_at_least((4, 0)),
    reason="this is that process, or a Spark without sessions of Connect",
)


@IS_THAT
def test_sessions_over_connect():
    of_dagster = TESTS.parent / "lance_dagster"
    files = [TESTS / "test_sessions.py", of_dagster / "handlers/test_spark.py", of_dagster / "test_spark_resource.py"]
    run(files, 30, f"{OF_EACH_WAY} or {OF_THE_IO_MANAGER}")


@IS_THAT
@pytest.mark.slow
def test_all_over_connect():
    run(
        [
            "test_sessions.py",
            "distributed/test_compaction.py",
            "distributed/test_computing.py",
            "distributed/test_indices.py",
            "changing/test_changes.py",
            "datasource/test_source.py",
            "conversion/test_conversion.py",
            "reading/test_pruned_frame.py",
            "statements/test_sql.py",
            "statements/test_drawn_statements.py",
            "statements/test_lance_spark_cases.py",
            "datasource/test_writers_by_name.py",
            "test_lance_table.py",
        ],
        110,
    )


def run(names, least, chosen=NOT_AGAIN):
    """Run the chosen tests of some files, and see that at least `least` tests were there."""
    pytest.importorskip("pyspark.sql.connect.session")
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-k", chosen, *(TESTS / name for name in names)],
        cwd=Path(__file__).parents[2],
        # SPARK_TESTING lets the server listen on a free port, and the client find it.
        env={**os.environ, "LANCE_TEST_CONNECT": "1", "SPARK_TESTING": "1", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    code = done.returncode
    if code:
        print(done.stdout[-8000:], done.stderr[-2000:])  # in a message it could name what an early Spark lacks
    assert code == 0
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed.group(1)) > least
