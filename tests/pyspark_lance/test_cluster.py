"""A standalone cluster with workers in processes of their own: one commit or none; the library is shipped."""

import contextlib
import datetime as dt
import json
import os
import socket
import sys
import sysconfig
import time
from pathlib import Path

import pyspark  # noqa: TID253 - what the tests are about
import pytest

import lance_core
from tests import processes

pytestmark = pytest.mark.slow

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DRIVER = Path(__file__).with_name("cluster_driver.py")


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def await_port(port, process, log):
    while not answers(port):
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)


@pytest.fixture(params=["installed", "bare"])
def python(request, tmp_path):
    """The Python of executors: this one, or one that has the libraries below this package and not the package."""
    if request.param == "installed":
        return sys.executable
    # Without `site`, the file that makes an editable installation known is not looked at.
    script = tmp_path / "bare-python"
    site = sysconfig.get_path("purelib")
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def cluster(tmp_path, python):
    """A master and two workers; gives the master's URL and the environment of a driver."""
    env = {
        **os.environ,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "PYTHONWARNINGS": "ignore",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(processes.held_port())
        log = tmp_path / "master.log"
        start = [SPARK_CLASS, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port]
        master = stack.enter_context(
            processes.running([str(one) for one in [*start, "--webui-port", 0]], env=env, cwd=tmp_path, log=log)
        )
        await_port(port, master, log)
        url = f"spark://127.0.0.1:{port}"
        for number in (2, 3):
            start = [SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", "--host", f"127.0.0.{number}", "--cores", 1]
            more = ["--memory", "600m", "--webui-port", 0, "--work-dir", tmp_path / f"work-{number}", url]
            stack.enter_context(
                processes.running(
                    [str(one) for one in [*start, *more]],
                    env={**env, "SPARK_LOCAL_IP": f"127.0.0.{number}"},
                    cwd=tmp_path,
                    log=tmp_path / f"worker-{number}.log",
                )
            )
        yield url, env


def drive(what, place, env, folder):
    done = processes.run([sys.executable, str(DRIVER), what, place, str(folder)], env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def orphans(uri):
    command = [sys.executable, "-m", "lance_core.cli", "files", uri, "--orphans", "--json"]
    found = json.loads(processes.run(command, check=True).stdout)
    return {file["path"].removeprefix("data/") for file in found if file["kind"] == "data"}


def data_files(uri):
    return {path.name for path in Path(uri, "data").iterdir()}


@pytest.mark.parametrize("python", ["installed"], indirect=True)
@pytest.mark.parametrize("what", ["killed", "speculated", "cancelled"])
def test_one_commit_or_none(cluster, tmp_path, what):
    drive(what, *cluster, tmp_path)
    check_leftovers(str(tmp_path / f"{what}.lance"))


@pytest.mark.parametrize("python", ["installed"], indirect=True)
def test_statements(cluster, tmp_path):
    drive("statements", *cluster, tmp_path)
    table = lance_core.dataset(str(tmp_path / "lake" / "a" / "t.lance"))
    table.cleanup_old_versions(older_than=dt.timedelta(0), delete_unverified=True)
    assert data_files(table.uri) == {file.path for one in table.get_fragments() for file in one.metadata.files}


def check_leftovers(uri):
    """What a killed executor leaves after the driver has cleaned up is listed, and nothing else; a clean-up takes it."""
    table = lance_core.dataset(uri)
    used = {file.path for one in table.get_fragments() for file in one.metadata.files}
    assert orphans(uri) == data_files(uri) - used
    table.cleanup_old_versions(older_than=dt.timedelta(days=1), delete_unverified=True)
    assert data_files(uri) == used


@pytest.mark.parametrize("python", ["bare"], indirect=True)
def test_a_connect_server_beside_it(cluster, tmp_path):
    with processes.held_port() as port:
        drive_connected(*cluster, port, tmp_path)
    check_leftovers(str(tmp_path / "connected.lance"))


def drive_connected(url, env, port, tmp_path):
    log = tmp_path / "connect.log"
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
    }
    start = [SPARK_CLASS, "org.apache.spark.deploy.SparkSubmit", "--master", url]
    start += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    start += [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    command = [str(one) for one in [*start, "spark-internal"]]
    with processes.running(command, env={**env, "SPARK_DAEMON_MEMORY": "700m"}, cwd=tmp_path, log=log) as server:
        await_port(port, server, log)
        drive("connected", f"sc://127.0.0.1:{port}", env, tmp_path)


@pytest.mark.parametrize("python", ["bare"], indirect=True)
def test_the_library_is_shipped(cluster, tmp_path):
    url, env = cluster
    drive("shipped", url, env, tmp_path)
