"""The Airflow DAG of docs/without-dagster.md: its task maintains a lake, and Airflow takes the file."""

import re
import sys
import types

import pytest

from tests import processes
from tests.lance_core.maintenance.test_maintain import fill

PAGE = processes.ROOT / "docs/without-dagster.md"
(DAG,) = re.findall(r'^```python title="dags/\w+\.py"\n(.*?)^```', PAGE.read_text(), re.DOTALL | re.MULTILINE)

LOAD = """
import sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
(dag,) = bag.dags.values()
print(dag.dag_id, [task.task_id for task in dag.tasks])
"""


def test_its_task_maintains_a_lake(tmp_path, monkeypatch):
    fill(tmp_path / "shop/orders.lance")
    tasks = {}

    def task(**options):
        def decorate(function):
            tasks[function.__name__] = function
            return types.SimpleNamespace(expand=lambda **_: None)

        return decorate

    sdk = types.ModuleType("airflow.sdk")
    sdk.task, sdk.dag = task, lambda **_: lambda function: function
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    exec(compile(DAG, str(PAGE), "exec"), {})
    assert tasks["maintain"](str(tmp_path)) == {"shop/orders": "done"}


@pytest.mark.slow
def test_airflow_takes_it(tmp_path):
    """The newest Airflow, in an environment of its own."""
    environment = tmp_path / "airflow"
    processes.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    processes.run([python, "-m", "pip", "install", "-q", "apache-airflow"], check=True, limit_s=900)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/lance_maintenance.py").write_text(DAG)
    home = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PATH": "/usr/bin:/bin"}
    done = processes.run([python, "-c", LOAD, tmp_path / "dags"], check=True, env=home, limit_s=300)
    assert done.stdout.strip().endswith("lance_maintenance ['maintain']")
