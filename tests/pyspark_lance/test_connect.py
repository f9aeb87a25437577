"""`test_sessions.py`, `test_compaction.py` and `test_indices.py` once more over Spark Connect, in a process of its own: one process has one kind of session."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests import processes

NOT_AGAIN = "not (schemas_are_rejected or wrong_options or wrong_reads or dropped)"
"""What is decided before a session has a part in it."""

OF_EACH_WAY = (
    "every_type or modes or carries_message or committed_once or without_rows or another_length or are_replaced"
    " or add_columns or pinned_and_pruned or filter_in_sql or spark_lacks or as_many_threads"
    " or stays_on_its_version"
)
"""One test of each way between a client and its server: the others take a minute more."""


IS_THAT = pytest.mark.skipif(os.environ.get("LANCE_TEST_CONNECT") == "1", reason="this is that process")


@IS_THAT
def test_sessions_over_connect():
    run(["test_sessions.py"], 10, OF_EACH_WAY)


@IS_THAT
@pytest.mark.slow
def test_all_over_connect():
    run(
        [
            "test_sessions.py",
            "distributed/test_compaction.py",
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
        [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-k", chosen, *(str(Path(__file__).parent / name) for name in names)],
        cwd=Path(__file__).parents[2],
        # SPARK_TESTING lets the server listen on a free port, and the client find it.
        env={**os.environ, "LANCE_TEST_CONNECT": "1", "SPARK_TESTING": "1", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed.group(1)) > least
