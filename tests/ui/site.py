"""A running Dagster to test with: a webserver and a daemon on loopback, on an instance and a lake of their own."""

import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import dagster as dg

from tests import processes

__all__ = ["QUIET_YAML", "Site", "dagster_site", "wait_for"]

ROOT = Path(__file__).parents[2]
QUIET_YAML = "telemetry: {enabled: false}\nnux: {enabled: false}\n"
BACKFILL = """
mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
} }
"""
CANCEL = "mutation($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"
RUN = """
mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
} }
"""
LIMIT_S = 900  # of a machine that is busy with other things; stories have a limit of their own
LOCATIONS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"


def wait_for(url, process):
    """Wait until a webserver answers."""
    for _ in range(240):
        assert process.poll() is None, "the webserver ended"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(url)


@dataclass
class Site:
    """The webserver's address, the instance, the lake, a folder for logs and pictures, and the environment."""

    url: str
    instance: dg.DagsterInstance
    lake: Path
    folder: Path
    env: dict[str, str] = field(default_factory=dict, repr=False)

    def ask(self, query, **variables):
        """The data of a GraphQL answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer_data = json.load(answer)
        assert "errors" not in answer_data, answer_data
        return answer_data["data"]

    def repository(self):
        """How GraphQL names the code location."""
        (node,) = self.ask(LOCATIONS)["repositoriesOrError"]["nodes"]
        return {"repositoryName": node["name"], "repositoryLocationName": node["location"]["name"]}

    def backfill(self, asset, partitions, **tags):
        """Ask for a backfill; its id."""
        listed = [{"key": key, "value": value} for key, value in tags.items()]
        params = {"assetSelection": [{"path": asset.split("/")}], "partitionNames": partitions, "tags": listed}
        answer_data = self.ask(BACKFILL, p=params)["launchPartitionBackfill"]
        assert answer_data["__typename"] == "LaunchBackfillSuccess", answer_data
        return answer_data["backfillId"]

    def launch(self, job, config=None):
        """Ask for a run of a job; its id."""
        selector = {**self.repository(), "jobName": job}
        answer_data = self.ask(RUN, p={"selector": selector, "runConfigData": config or {}})["launchRun"]
        assert answer_data["__typename"] == "LaunchRunSuccess", answer_data
        return answer_data["run"]["runId"]

    def status(self, run_id):
        """The status of a run, as a string."""
        return self.instance.get_run_by_id(run_id).status.value

    def backfill_status(self, backfill):
        """The status of a backfill, as a string."""
        return self.instance.get_backfill(backfill).status.value

    def cancel(self, backfill):
        """Cancel a backfill."""
        self.ask(CANCEL, id=backfill)

    def until(self, what, holds, limit_s=LIMIT_S):
        """Wait until something holds, and return it."""
        end = time.monotonic() + limit_s
        while not (found := holds()):
            assert time.monotonic() < end, f"{what}: still not so; logs are in {self.folder}"
            time.sleep(0.3)
        return found

    def until_done(self, run_id):
        """Wait for the end of a run, which must be a good one."""
        self.until(f"the end of run {run_id}", lambda: self.instance.get_run_by_id(run_id).is_finished)
        assert self.status(run_id) == "SUCCESS", self.why(run_id)

    def why(self, run_id):
        """What the log of a run says of failures."""
        return [log.user_message for log in self.instance.all_logs(run_id) if log.level >= 40]


_Site = TypeVar("_Site", bound=Site)


@contextlib.contextmanager
def dagster_site(
    folder: Path,
    definitions: Path,
    *,
    yaml: str = "",
    daemon: bool = True,
    env: Sequence[tuple[str, str]] = (),
    kind: type[_Site] = Site,
) -> Iterator[_Site]:
    """Run webserver and daemon on a code location.

    Args:
        folder: For the instance, the lake and logs.
        definitions: The file of the code location; it finds the lake in LANCE_TEST_ROOT.
        yaml: More of `dagster.yaml`.
        daemon: Whether there is a daemon.
        env: More of the environment.
        kind: What is given, with questions of its own.
    """
    home, lake = folder / "home", folder / "lake"
    home.mkdir()
    (home / "dagster.yaml").write_text(QUIET_YAML + yaml)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "LANCE_TEST_ROOT": str(lake),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "DAGSTER_GRPC_TIMEOUT_SECONDS": "240",  # a busy machine takes longer than 60 to launch a run
        "DAGSTER_AUTOMATION_TICK_SETTLE_SECONDS": "0.5",  # as docs/backfills.md advises
        **dict(env),
    }
    with contextlib.ExitStack() as stack:
        # First, as it makes the tables of the storages: servers that start at once do so at once, and one fails.
        instance = stack.enter_context(dg.DagsterInstance.from_config(str(home)))
        port = stack.enter_context(processes.held_port())
        server_command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", port, "-f", definitions]
        server = stack.enter_context(processes.running(server_command, env=environment, log=folder / "webserver.log"))
        if daemon:
            daemon_command = [sys.executable, "-m", "dagster._daemon", "run", "-f", definitions]
            stack.enter_context(processes.running(daemon_command, env=environment, log=folder / "daemon.log"))
        wait_for(f"http://127.0.0.1:{port}/server_info", server)
        yield kind(f"http://127.0.0.1:{port}", instance, lake, folder, environment)
