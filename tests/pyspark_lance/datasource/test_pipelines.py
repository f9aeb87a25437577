"""Declarative pipelines of Spark write to a table as to a sink: each run adds the new rows, in commits of its own."""

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_core
from tests import processes

ROOT = Path(__file__).parents[3]

SPEC = "name: lake\nstorage: file://{folder}/storage\nlibraries:\n  - glob:\n      include: flows/**\n"

FLOW = re.search(r"```py\n(.*?create_sink.*?)```", (ROOT / "docs/spark.md").read_text(), re.DOTALL)[1]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyspark.pipelines") is None, reason="Spark has pipelines from 4.1 on")
def test_a_sink_gets_each_row_once(tmp_path, lance):
    for folder in ("flows", "landing/arrivals"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    flow = FLOW.replace("/lake/", f"{tmp_path}/").replace("/landing/", f"{tmp_path}/landing/").replace(", day int", "")
    (tmp_path / "flows/flow.py").write_text(flow)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    for number in range(2):
        pq.write_table(
            pa.table({"id": range(10 * number, 10 * number + 10)}), tmp_path / f"landing/arrivals/{number}.parquet"
        )
        command = [shutil.which("spark-pipelines", path=environment["PATH"]), "run", "--conf", "spark.ui.enabled=false"]
        done = processes.run(command, cwd=tmp_path, env=environment, check=True)
        assert "Run is COMPLETED" in done.stdout + done.stderr
        ids = lance.dataset(str(tmp_path / "arrivals.lance")).to_table()["id"].to_pylist()
        assert sorted(ids) == list(range(10 * number + 10))
    assert lance_core.dataset(str(tmp_path / "arrivals.lance")).version == 2
