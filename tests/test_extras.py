"""Errors for a missing extra."""

import sys

import pytest

from tests.processes import run

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
for name in {missing!r}:
    del sys.modules[name]
sys.meta_path.insert(0, Finder())
try:
    {statement}
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("missing", "statement", "expected"),
    [
        (["pyspark"], "from pyspark_lance import DefaultSource", "lance-dagster[spark]"),
        (["pyspark"], "import pyspark_lance; pyspark_lance.local_session()", "lance-dagster[spark]"),
        (["dagster"], "from lance_dagster import LanceIOManager", "lance-dagster[dagster]"),
        (["dagster"], "import lance_dagster.components", "lance-dagster[dagster]"),
        (["dagster"], "from lance_dagster.components import LanceMaintenanceComponent", "lance-dagster[dagster]"),
        (["botocore", "s3fs"], "import lance_core; lance_core.dataset('s3://b/t')", "lance-dagster[s3]"),
        (
            ["botocore", "s3fs", "aiobotocore"],
            "import lance_core; lance_core.dataset('s3+ddb://b/t?ddbTableName=x')",
            "lance-dagster[s3]",
        ),
        (["obstore"], "import lance_core; lance_core.dataset('gs://b/t')", "lance-dagster[gcs]"),
        (["obstore"], "import lance_core; lance_core.dataset('az://b/t')", "lance-dagster[azure]"),
        (
            ["psycopg"],
            "import lance_core; lance_core.dataset('/x', storage_options={'manifest_store': 'postgresql://h/x'})",
            "lance-dagster[postgres]",
        ),
        (
            ["datafusion"],
            "import lance_core, pyarrow; lance_core.write_dataset(pyarrow.table({'s': ['a']}), 'memory://x').delete('lpad(s, 2)')",
            "the function lpad needs DataFusion: pip install 'lance-dagster[sql]'",
        ),
    ],
)
def test_an_extra_that_is_missing_is_named(missing, statement, expected):
    program = WITHOUT.format(missing=missing, statement=statement)
    done = run([sys.executable, "-c", program])
    assert expected in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("said", "expected"),
    [("pyarrow requires NumPy 2.0 or newer, found 1.26.4", "pip install 'pyarrow<26'"), ("libarrow.so: not found", "")],
)
def test_a_numpy_that_is_too_old_for_pyarrow_has_a_remedy(tmp_path, said, expected):
    (tmp_path / "pyarrow.py").write_text(f"raise ImportError({said!r})")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport lance_core"
    done = run([sys.executable, "-c", program])
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: {said}")
    assert expected in last
    assert expected or last.endswith(said)


def test_dynamodb_without_a_region_names_the_option(monkeypatch, tmp_path):
    from lance_core.errors import InvalidInputError, LanceError
    from lance_core.store import open_store
    from lance_core.store.dynamodb import _new_client

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidInputError, match="aws_region"):
        _new_client({})
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert _new_client({}).meta.region_name == "eu-west-1"
    with pytest.raises(LanceError):
        _new_client({"aws_profile": "none"})
    assert open_store("s3+ddb://b/t?ddbTableName=x").root.startswith("s3+ddb://")
