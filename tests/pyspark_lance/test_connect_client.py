"""A client environment that has only `pyspark-client`, and a Spark Connect server in another one.

`make test-connect-client` makes the client's environment, and then runs this.
"""

import os
import sys
from pathlib import Path

import pytest

from tests import processes

CLIENT = Path(os.environ.get("LANCE_TEST_CLIENT", processes.ROOT / ".venv-client")) / "bin" / "python"
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(not CLIENT.exists(), reason="make test-connect-client makes the environment of the client")
def test_the_public_api_without_a_classic_pyspark(tmp_path):
    with processes.held_port() as port:
        server = [sys.executable, HERE / "connect_server.py", port]
        with processes.running(server, log=tmp_path / "server.log", talks=True) as running:
            assert running.stdout is not None
            assert running.stdout.readline().strip() == "ready", (tmp_path / "server.log").read_text()[-4000:]
            driver = [CLIENT, HERE / "client_driver.py", f"sc://127.0.0.1:{port}", tmp_path]
            done = processes.run(driver, env={**os.environ, "PYSPARK_PYTHON": sys.executable})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
