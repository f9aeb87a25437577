"""What the package loads, and what it says when something is missing from the machine."""

import os
import sys

import pytest

import pyspark_lance
from pyspark_lance import releases
from pyspark_lance.session import JavaMissingError, ensure_java, ensure_python
from tests import processes

STATEMENTS = {
    "import pyspark_lance": {"pyspark", "pyarrow", "numpy", "lance_core", "dagster"},
    "from pyspark_lance import read, write, WriteResult, local_session": {"pyspark"},
    "import pyspark_lance.writing.task, pyspark_lance.reading.plan, pyspark_lance.engine.partitions": {
        "pyspark", "pandas", "dagster", "lance", "s3fs", "grpc"
    },
}  # fmt: skip
"""Statements, in the order in which a process runs them, and modules that none has loaded up to there."""


def test_the_package_and_tasks_load_what_they_need():
    program = "import sys\n" + "".join(f"{statement}\nprint(*sys.modules)\n" for statement in STATEMENTS)
    done = processes.run([sys.executable, "-c", program], check=True)
    for line, absent in zip(done.stdout.splitlines(), STATEMENTS.values(), strict=True):
        assert not {name.split(".")[0] for name in line.split()} & absent


def test_spark_finds_the_source_by_attribute():
    # As pyspark.sql.worker.lookup_data_sources does.
    from pyspark.sql.datasource import DataSource

    assert hasattr(pyspark_lance, "DefaultSource")
    assert issubclass(pyspark_lance.DefaultSource, DataSource)
    assert pyspark_lance.DefaultSource.name() == "lance"


def test_all_public_names_are_there():
    assert {name for name in pyspark_lance.__all__ if getattr(pyspark_lance, name, None) is None} == set()
    assert set(pyspark_lance.__all__) <= set(dir(pyspark_lance))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        pyspark_lance.nothing_like_this  # noqa: B018


def fake_java(folder, version):
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return folder


def test_without_java_the_error_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"(?s)Java 17.*PATH.*apt-get install openjdk-17"):
        ensure_java()
    with pytest.raises(JavaMissingError):
        pyspark_lance.local_session()


@pytest.mark.parametrize(
    ("version", "enough"), [("1.8.0_402", False), ("11.0.2", False), ("17.0.15", True), ("21", True)]
)
def test_the_version_of_java_is_checked(monkeypatch, tmp_path, version, enough):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, version)))
    if enough:
        assert ensure_java() == tmp_path / "bin" / "java"
    else:
        with pytest.raises(JavaMissingError, match="17 or newer"):
            ensure_java()


def test_workers_get_this_python_unless_pyspark_python_is_set(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    ensure_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/somewhere/python")
    ensure_python()
    assert os.environ["PYSPARK_PYTHON"] == "/somewhere/python"


@pytest.mark.parametrize("old", ["3.4.4", "3.0.0.dev1", "2.4.8"])
def test_an_old_spark_is_rejected_in_one_sentence(monkeypatch, old):
    monkeypatch.setattr(releases, "installed_spark", lambda: old)
    for name in pyspark_lance.__all__:
        monkeypatch.delitem(vars(pyspark_lance), name, raising=False)
        with pytest.raises(
            ImportError, match=rf"^pyspark_lance\.{name} needs Spark 3\.5 or newer, and pyspark {old} is"
        ):
            getattr(pyspark_lance, name)
