"""A Dagster deployment whose daemons are ticked by hand: real backfills, runs, retries, re-executions and sensors.

A launched run is executed in this process at the end of the tick or request, unless it is held.
"""

import asyncio
import importlib
import json
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.selector import JobSubsetSelector
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.execution.plan.resume_retry import ReexecutionStrategy
from dagster._core.execution.submit_asset_runs import submit_asset_run
from dagster._core.instance import InstanceType
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher.base import RunLauncher
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.remote_representation.grpc_server_registry import GrpcServerRegistry
from dagster._core.run_coordinator import DefaultRunCoordinator
from dagster._core.storage.event_log import InMemoryEventLogStorage
from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
from dagster._core.storage.root import TemporaryLocalArtifactStorage
from dagster._core.storage.runs import InMemoryRunStorage
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import retry_run
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._serdes import ConfigurableClass

import lance_core

MODULE = "tests.lance_dagster.branches.deployment_definitions"
VARIABLE = "LANCE_TEST_DEPLOYMENT"
SETTINGS = {"run_retries": {"enabled": True}, "python_logs": {"python_log_level": "CRITICAL"}}
LOG = logging.getLogger("tests.deployment")
LOG.propagate = False


class Launcher(RunLauncher, ConfigurableClass):
    """Executes runs when they are launched, or keeps them."""

    def __init__(self, inst_data=None) -> None:
        super().__init__()
        self._inst_data = inst_data
        self.holds = False
        self.held: list[str] = []

    @property
    def inst_data(self):
        return self._inst_data

    @classmethod
    def config_type(cls):
        return {}

    @classmethod
    def from_config_value(cls, inst_data, config_value):
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context) -> None:
        self.held.append(context.dagster_run.run_id)

    def execute(self) -> None:
        """Execute the runs that were launched, unless they are held."""
        while self.held and not self.holds:
            run = self._instance.get_run_by_id(self.held.pop(0))
            repository = ReconstructableRepository.for_module(MODULE, "defs")
            execute_run(repository.get_reconstructable_job(run.job_name), run, self._instance)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self.held = [one for one in self.held if one != run_id]
        self._instance.report_run_canceled(run)
        return True


class NoServers(GrpcServerRegistry):
    """The code location is loaded in this process."""

    def __init__(self) -> None:
        pass


def _in_memory():
    return dg.DagsterInstance(
        instance_type=InstanceType.EPHEMERAL,
        local_artifact_storage=TemporaryLocalArtifactStorage(),
        run_storage=InMemoryRunStorage(),
        event_storage=InMemoryEventLogStorage(),
        compute_log_manager=NoOpComputeLogManager(),
        run_coordinator=DefaultRunCoordinator(),
        run_launcher=Launcher(),
        settings=SETTINGS,
    )


@dataclass
class Deployment:
    """A code location, and the instance that runs it."""

    root: str
    monkeypatch: object
    policy: tuple = ("per_backfill",)
    failing: list = field(default_factory=list)
    value: int = 1
    is_on_disk: bool = False
    namespace: dict = field(default_factory=dict)

    def __enter__(self):
        self.instance = self._on_disk() if self.is_on_disk else _in_memory()
        self.launcher = self.instance.run_launcher
        self.says()
        target = LoadableTargetOrigin(executable_path=sys.executable, module_name=MODULE, attribute="defs")
        origin = InProcessCodeLocationOrigin(target, location_name="here")
        self.process = WorkspaceProcessContext(
            self.instance, InProcessWorkspaceLoadTarget([origin]), grpc_server_registry=NoServers()
        )
        self.process.__enter__()
        return self

    def _on_disk(self):
        overrides = {
            "run_launcher": {"module": __name__, "class": "Launcher"},
            "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
            "compute_logs": {
                "module": "dagster._core.storage.noop_compute_log_manager",
                "class": "NoOpComputeLogManager",
            },
            "telemetry": {"enabled": False},
            **SETTINGS,
        }
        home = Path(f"{self.root}-home")
        home.mkdir()
        return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides=overrides))

    def __exit__(self, *exc):
        self.process.__exit__(*exc)
        self.instance.dispose()
        # A run leaves the level of its instance in the logger of the whole process.
        dg.get_dagster_logger().setLevel(logging.NOTSET)

    def says(self, *, failing=None, value=None, policy=None):
        """Change what the code location does."""
        self.failing = self.failing if failing is None else failing
        self.value = self.value if value is None else value
        self.policy = self.policy if policy is None else policy
        settings = {"root": self.root, "policy": self.policy, "failing": self.failing, "value": self.value} | {
            "namespace": self.namespace
        }
        self.monkeypatch.setenv(VARIABLE, json.dumps(settings))
        sys.modules.pop(MODULE, None)
        importlib.import_module(MODULE)
        return self

    def workspace(self):
        return self.process.create_request_context()

    def run(self, *assets, partition=None, checks=(), tags=None):
        """Launch a run as the UI does; its record."""
        request = dg.RunRequest(
            asset_selection=[dg.AssetKey(name) for name in assets],
            asset_check_keys=[dg.AssetCheckKey(dg.AssetKey(asset), check) for asset, check in checks],
            partition_key=partition,
            tags={**({} if partition is None else {"dagster/partition": partition}), **(tags or {})},
        )
        workspace = self.workspace()
        made = submit_asset_run(None, request, 0, self.instance, self.process, workspace, {}, {}, LOG)
        run_id = asyncio.run(made).run_id
        self.launcher.execute()
        return self.instance.get_run_by_id(run_id)

    def backfill(self, *assets, keys=("x", "y", "z"), tags=None, backfill_id="b1"):
        """Request a backfill; `tick` goes on with it."""
        workspace = self.workspace()
        made = PartitionBackfill.from_asset_partitions(
            backfill_id=backfill_id,
            asset_graph=workspace.asset_graph,
            partition_names=list(keys),
            asset_selection=[dg.AssetKey(name) for name in assets],
            backfill_timestamp=time.time(),
            tags=tags or {},
            dynamic_partitions_store=self.instance,
            all_partitions=False,
            title=None,
            description=None,
            run_config=None,
        )
        self.instance.add_backfill(made)

    def re_execute_backfill(self, backfill_id="b1", new_id="b2", *, from_failure=True):
        """Request the re-execution of a backfill, as the UI does."""
        old = self.instance.get_backfill(backfill_id)
        data = old.get_asset_backfill_data(self.workspace().asset_graph)
        subset = data.target_subset - data.materialized_subset if from_failure else data.target_subset
        made = PartitionBackfill.from_asset_graph_subset(
            backfill_id=new_id,
            asset_graph_subset=subset,
            dynamic_partitions_store=self.instance,
            tags={
                **old.tags,
                "dagster/parent_backfill_id": backfill_id,
                "dagster/root_backfill_id": old.tags.get("dagster/root_backfill_id", backfill_id),
            },
            backfill_timestamp=time.time(),
            title=None,
            description=None,
            run_config=None,
        )
        self.instance.add_backfill(made)

    def cancel_backfill(self, backfill_id="b1"):
        self.instance.update_backfill(self.instance.get_backfill(backfill_id).with_status(BulkActionStatus.CANCELING))

    def tick(self, times=10):
        """Turns of the daemon of backfills, until all have ended."""
        for _ in range(times):
            for error in execute_backfill_iteration(self.process, LOG):
                assert error is None, error
            self.launcher.execute()

    def re_execute(self, run_id, strategy="FROM_FAILURE", tags=None):
        """Re-execute a run as the UI does; its record."""
        parent = self.instance.get_run_by_id(run_id)
        workspace = self.workspace()
        location = workspace.get_code_location("here")
        selector = JobSubsetSelector(
            location_name="here",
            repository_name="__repository__",
            job_name=parent.job_name,
            op_selection=parent.op_selection,
            asset_selection=list(parent.asset_selection) if parent.asset_selection is not None else None,
            asset_check_selection=(
                list(parent.asset_check_selection) if parent.asset_check_selection is not None else None
            ),
        )
        made = self.instance.create_reexecuted_run(
            parent_run=parent,
            request_context=workspace,
            code_location=location,
            remote_job=location.get_job(selector),
            strategy=ReexecutionStrategy[strategy],
            extra_tags=tags,
            use_parent_run_tags=True,
        )
        self.instance.submit_run(made.run_id, workspace)
        self.launcher.execute()
        return self.instance.get_run_by_id(made.run_id)

    def re_execute_step(self, run_id, *steps):
        """Re-execute steps of a run by `dg.execute_job`; its record."""
        repository = ReconstructableRepository.for_module(MODULE, "defs")
        job = repository.get_reconstructable_job(self.instance.get_run_by_id(run_id).job_name)
        options = dg.ReexecutionOptions(parent_run_id=run_id, step_selection=list(steps))
        partition = self.instance.get_run_by_id(run_id).tags.get("dagster/partition")
        tags = {} if partition is None else {"dagster/partition": partition}
        with dg.execute_job(job, instance=self.instance, reexecution_options=options, tags=tags) as result:
            return self.instance.get_run_by_id(result.run_id)

    def retry(self, run_id):
        """Retry a failed run, as Dagster's daemon does."""
        retry_run(self.instance.get_run_by_id(run_id), self.process)
        self.launcher.execute()

    def sensor(self, **options):
        """One tick of the sensor of branches: the jobs that it requests, each with its branch, and what it reports."""
        from lance_dagster import build_branch_sensor

        module = sys.modules[MODULE]
        sensor = build_branch_sensor([module.first, module.second], module.branch_jobs, **options)
        with dg.build_sensor_context(
            instance=self.instance, resources={"io_manager": module.defs.resources["io_manager"]}
        ) as context:
            result = sensor(context)
        requests = getattr(result, "run_requests", None) or []
        events = getattr(result, "asset_events", None) or []
        return [(one.job_name, one.tags["lance/branch"]) for one in requests], sorted(
            {event.metadata["lance/branch_state"].value for event in events}
        )

    def promote(self, branch, **config):
        return self._job("lance_promote", branch, **config)

    def discard(self, branch):
        return self._job("lance_discard", branch)

    def _job(self, name, branch, **config):
        job = sys.modules[MODULE].defs.resolve_job_def(name)
        return job.execute_in_process(
            run_config={"ops": {f"{name}_op": {"config": config}}},
            instance=self.instance,
            tags={"lance/branch": branch},
            raise_on_error=False,
        )

    def runs(self, **tags):
        return self.instance.get_runs(filters=dg.RunsFilter(tags={f"dagster/{k}": v for k, v in tags.items()}))

    def status(self, backfill_id="b1"):
        return self.instance.get_backfill(backfill_id).status.value

    def table(self, name):
        return lance_core.dataset(f"{self.root}/public/{name}.lance")

    def rows(self, name, branch=None):
        """The rows of a table, as partition to number; None if there is no such table or branch."""
        try:
            table = self.table(name).checkout_version((branch, None))
        except lance_core.errors.NotFoundError:
            return None
        return {row["key"]: row["n"] for row in table.to_table().to_pylist()}

    def branches(self, name):
        return sorted(self.table(name).branches.list())

    def errors(self, run):
        """The messages of the errors of a run."""
        found = []
        for record in self.instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records:
            error = record.event_log_entry.dagster_event.step_failure_data.error
            while error is not None:
                found.append(error.message)
                error = error.cause
        return "\n".join(found)
