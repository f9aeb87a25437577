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
for statement in {statements!r}:
    try:
        exec(statement)
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("no error")
"""

S3, GCS, AZURE = "lance-dagster[s3]", "lance-dagster[gcs]", "lance-dagster[azure]"
SPARK, DAGSTER, POSTGRES = "lance-dagster[spark]", "lance-dagster[dagster]", "lance-dagster[postgres]"
SQL = "the function lpad needs DataFusion: pip install 'lance-dagster[sql]'"


@pytest.mark.parametrize(
    ("missing", "errors"),
    [
        (
            ["pyspark"],
            {
                "from pyspark_lance import DefaultSource": SPARK,
                "import pyspark_lance; pyspark_lance.local_session()": SPARK,
            },
        ),
        (
            ["dagster"],
            {
                "from lance_dagster import LanceIOManager": DAGSTER,
                "import lance_dagster.components": DAGSTER,
                "from lance_dagster.components import LanceMaintenanceComponent": DAGSTER,
            },
        ),
        (["botocore", "s3fs"], {"import lance_core; lance_core.dataset('s3://b/t')": S3}),
        (
            ["botocore", "s3fs", "aiobotocore"],
            {"import lance_core; lance_core.dataset('s3+ddb://b/t?ddbTableName=x')": S3},
        ),
        (
            ["obstore", "psycopg", "datafusion"],
            {
                "import lance_core; lance_core.dataset('gs://b/t')": GCS,
                "import lance_core; lance_core.dataset('az://b/t')": AZURE,
                "lance_core.dataset('/x', storage_options={'manifest_store': 'postgresql://h/x'})": POSTGRES,
                "import pyarrow; lance_core.write_dataset(pyarrow.table({'s': ['a']}), 'memory://x').delete('lpad(s, 2)')": SQL,
            },
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_an_extra_that_is_missing_is_named(missing, errors):
    program = WITHOUT.format(missing=missing, statements=list(errors))
    done = run([sys.executable, "-c", program])
    lines = done.stdout.splitlines()
    assert len(lines) == len(errors), done.stdout + done.stderr
    for line, expected in zip(lines, errors.values(), strict=True):
        assert expected in line


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
