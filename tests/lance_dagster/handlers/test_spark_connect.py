"""The IO manager on Spark Connect: the same tests in a process of its own, which can have one kind of session only."""

import os
import sys
from pathlib import Path

from tests import processes

TESTS = Path(__file__).parents[1]
FILES = ("handlers/test_spark.py", "test_spark_resource.py")
SAME = "replaces_that_day or vectors_and_times or another_day or step_retry or resource"


def test_the_same_on_spark_connect():
    # SPARK_TESTING lets the server listen on a free port, and the client find it.
    environment = {**os.environ, "LANCE_TEST_CONNECT": "1", "SPARK_TESTING": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-k", SAME, *(str(TESTS / name) for name in FILES)]
    done = processes.run(command, cwd=TESTS.parents[1], env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 14 passed" in f" {done.stdout.splitlines()[-1]}", done.stdout
