"""A Dagster instance whose runs are threads that stop where a script says; one of them runs at a time.

A run that stops and is never continued is a process that was killed. One that is continued after its re-execution has ended is
an attempt that was given up and writes late. Two that stop and go on by turns are two runs at a time. Since the driver alone
decides who goes on, each interleaving can be repeated.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.selector import JobSubsetSelector
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.execution.plan.resume_retry import ReexecutionStrategy
from dagster._core.execution.submit_asset_runs import submit_asset_run
from dagster._core.launcher.base import RunLauncher
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.remote_representation.grpc_server_registry import GrpcServerRegistry
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import retry_run
from dagster._daemon.backfill import execute_backfill_iteration

LOCATION = "life"
LIMIT_S = 60
_actor = threading.local()
LOG = logging.getLogger("dagster_life")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False


class Abandoned(BaseException):
    """Ends the thread of a run that was never continued, when its stage is taken down."""


@dataclass
class Script:
    """What a run does.

    Attributes:
        pauses: The points where it stops.
        says: What the bodies of assets and checks look up.
        clock_s: How far the clock of its machine is ahead.
    """

    pauses: set[str] = field(default_factory=set)
    says: dict = field(default_factory=dict)
    clock_s: float = 0.0


class Actor(threading.Thread):
    """The thread of a run."""

    def __init__(self, stage: "Stage", work: Callable[[], object], script: Script, run_id: str | None) -> None:
        super().__init__(daemon=True)
        self.stage, self.work, self.script, self.run_id = stage, work, script, run_id
        self.at: str | None = None
        self.error: BaseException | None = None
        self.result: object = None
        self.ended = False
        self.abandoned = False
        self.interrupted = False
        self._go = threading.Semaphore(0)

    def run(self) -> None:
        self._go.acquire()
        _actor.me = self
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - the driver looks at it
            self.error = error
        finally:
            self.ended, self.at = True, None
            self.stage.turn.release()

    def proceed(self) -> None:
        """Continue until the next point where it stops, or its end."""
        self.at = None
        self._go.release()
        assert self.stage.turn.acquire(timeout=LIMIT_S), f"run {self.run_id} neither stops nor ends"

    def reach(self, point: str) -> None:
        """Stop at a point if the script says so."""
        if self.abandoned:
            raise Abandoned
        if point in self.script.pauses:
            self.script.pauses.discard(point)
            self.at = point
            self.stage.turn.release()
            self._go.acquire()
            if self.abandoned:
                raise Abandoned
            if self.interrupted:
                self.interrupted = False
                raise dg.DagsterExecutionInterruptedError

    def interrupt(self) -> None:
        """Interrupt the run where it stopped, as its launcher does when the run is canceled."""
        self.interrupted = True
        self.proceed()

    def abandon(self) -> None:
        self.abandoned = True
        if not self.ended:
            self.proceed()


def me() -> Actor | None:
    """The run of this thread."""
    return getattr(_actor, "me", None)


class Launcher(RunLauncher):
    """Keeps launched runs until the driver starts them."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []

    def launch_run(self, context) -> None:
        self.launched.append(context.dagster_run.run_id)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        return True


class NoServers(GrpcServerRegistry):
    """The code location is loaded in this process, so that no server of code is started."""

    def __init__(self) -> None:
        pass


@contextlib.contextmanager
def clocks() -> Iterator[None]:
    """Each run has the clock of its machine."""
    now_ns, now = time.time_ns, time.time

    def ahead() -> float:
        actor = me()
        return actor.script.clock_s if actor is not None else 0.0

    def time_ns() -> int:
        return now_ns() + int(ahead() * 1e9)

    def time_s() -> float:
        return now() + ahead()

    def dagster_now() -> dt.datetime:
        return dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=ahead())

    with (
        mock.patch.object(time, "time_ns", time_ns),
        mock.patch.object(time, "time", time_s),
        mock.patch("dagster._time._mockable_get_current_datetime", dagster_now),
    ):
        yield


class Stage:
    """An instance, the code location, and the runs in it."""

    def __init__(self, module: str, attribute: str) -> None:
        from dagster._core.instance import InstanceType
        from dagster._core.run_coordinator import DefaultRunCoordinator
        from dagster._core.storage.event_log import InMemoryEventLogStorage
        from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
        from dagster._core.storage.root import TemporaryLocalArtifactStorage
        from dagster._core.storage.runs import InMemoryRunStorage

        self.turn = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.launcher = Launcher()
        self.instance = dg.DagsterInstance(
            instance_type=InstanceType.EPHEMERAL,
            local_artifact_storage=TemporaryLocalArtifactStorage(),
            run_storage=InMemoryRunStorage(),
            event_storage=InMemoryEventLogStorage(),
            compute_log_manager=NoOpComputeLogManager(),
            run_coordinator=DefaultRunCoordinator(),
            run_launcher=self.launcher,
            settings={"run_retries": {"enabled": True}, "python_logs": {"python_log_level": "CRITICAL"}},
        )
        self.process = None
        self.load(module, attribute)

    def load(self, module: str, attribute: str) -> None:
        """Load a code location, in place of the one before."""
        if self.process is not None:
            self.process.__exit__(None, None, None)
        self.repository = ReconstructableRepository.for_module(module, attribute)
        target = InProcessWorkspaceLoadTarget(
            [
                InProcessCodeLocationOrigin(
                    LoadableTargetOrigin(executable_path=sys.executable, module_name=module, attribute=attribute),
                    location_name=LOCATION,
                )
            ]
        )
        self.process = WorkspaceProcessContext(self.instance, target, grpc_server_registry=NoServers())
        self.process.__enter__()
        self.cache: dict = {}
        self.repo_name = next(iter(self.location().get_repositories()))

    def close(self) -> None:
        for actor in self.actors:
            actor.abandon()
        self.process.__exit__(None, None, None)
        self.instance.dispose()
        # A run leaves the level of its instance in the logger of the whole process.
        dg.get_dagster_logger().setLevel(logging.NOTSET)

    def workspace(self):
        return self.process.create_request_context()

    def location(self):
        return self.workspace().get_code_location(LOCATION)

    def request(self, **request) -> str:
        """Create a run of assets and checks, as the daemon and the UI do; its id."""
        run = asyncio.run(
            submit_asset_run(
                None, dg.RunRequest(**request), 0, self.instance, self.process, self.workspace(), self.cache, {}, LOG
            )
        )
        return run.run_id

    def _job(self, workspace, name: str, assets=None, checks=None):
        return workspace.get_code_location(LOCATION).get_job(
            JobSubsetSelector(
                location_name=LOCATION,
                repository_name=self.repo_name,
                job_name=name,
                op_selection=None,
                asset_selection=assets,
                asset_check_selection=checks,
            )
        )

    def launch_job(
        self, name: str, tags: dict, *, assets=None, checks=None, parent: str | None = None, config: dict | None = None
    ) -> str:
        """Create a run of a job as the UI does, a re-execution of `parent` if one is given; its id."""
        workspace = self.workspace()
        job = self._job(workspace, name, assets, checks)
        first = None if parent is None else self.instance.get_run_by_id(parent)
        root = None if first is None else (first.root_run_id or first.run_id)
        chain = {} if parent is None else {"dagster/parent_run_id": parent, "dagster/root_run_id": root}
        plan = workspace.get_code_location(LOCATION).get_execution_plan(job, config or {}, None, None, self.instance)
        run = self.instance.create_run(
            job_snapshot=job.job_snapshot,
            execution_plan_snapshot=plan.execution_plan_snapshot,
            parent_job_snapshot=job.parent_job_snapshot,
            job_name=job.name,
            run_id=None,
            resolved_op_selection=None,
            op_selection=None,
            run_config=config or {},
            step_keys_to_execute=None,
            tags={**job.tags, **tags, **chain},
            root_run_id=root,
            parent_run_id=parent,
            status=dg.DagsterRunStatus.NOT_STARTED,
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
            asset_selection=None if not assets else frozenset(assets),
            asset_check_selection=None if checks is None else frozenset(checks),
            asset_graph=workspace.asset_graph,
        )
        self.instance.submit_run(run.run_id, workspace)
        return run.run_id

    def backfill(self, backfill_id: str, assets, partitions, tags: dict) -> None:
        """Request a backfill, as the UI does."""
        self.instance.add_backfill(
            PartitionBackfill.from_asset_partitions(
                backfill_id,
                self.workspace().asset_graph,
                list(partitions),
                list(assets),
                time.time(),
                tags,
                self.instance,
                False,
                None,
                None,
                {},
            )
        )

    def cancel_backfill(self, backfill_id: str) -> None:
        self.instance.update_backfill(self.instance.get_backfill(backfill_id).with_status(BulkActionStatus.CANCELING))

    def re_execute_backfill(self, backfill_id: str, again: str, *, from_failure: bool) -> bool:
        """Request the re-execution of a backfill, as the UI does; False if nothing of it is left."""
        backfill = self.instance.get_backfill(backfill_id)
        data = backfill.get_asset_backfill_data(self.workspace().asset_graph)
        subset = data.target_subset - data.materialized_subset if from_failure else data.target_subset
        if subset.num_partitions_and_non_partitioned_assets == 0:
            return False
        root = backfill.tags.get("dagster/root_backfill_id", backfill_id)
        self.instance.add_backfill(
            PartitionBackfill.from_asset_graph_subset(
                backfill_id=again,
                asset_graph_subset=subset,
                dynamic_partitions_store=self.instance,
                tags={
                    **backfill.tags,
                    "dagster/parent_backfill_id": backfill_id,
                    "dagster/root_backfill_id": root,
                },
                backfill_timestamp=time.time(),
                title=None,
                description=None,
                run_config={},
            )
        )
        return True

    def tick_sensor(self, name: str, cursor: str | None, resources: dict):
        """One turn of a sensor: what it asks for."""
        repository = self.repository.get_definition()
        sensor = repository.get_sensor_def(name)
        with dg.build_sensor_context(
            instance=self.instance, repository_def=repository, cursor=cursor, resources=resources
        ) as context:
            return sensor.evaluate_tick(context)

    def re_execute(self, run_id: str, strategy: str, tags: dict | None = None) -> str:
        """Create the re-execution of a run that the UI makes; its id."""
        parent = self.instance.get_run_by_id(run_id)
        workspace = self.workspace()
        location = workspace.get_code_location(LOCATION)
        selector = JobSubsetSelector(
            location_name=LOCATION,
            repository_name=self.repo_name,
            job_name=parent.job_name,
            op_selection=parent.op_selection,
            asset_selection=None if parent.asset_selection is None else list(parent.asset_selection),
            asset_check_selection=None if parent.asset_check_selection is None else list(parent.asset_check_selection),
        )
        run = self.instance.create_reexecuted_run(
            parent_run=parent,
            request_context=workspace,
            code_location=location,
            remote_job=location.get_job(selector),
            strategy=ReexecutionStrategy[strategy],
            extra_tags=tags,
            use_parent_run_tags=True,
        )
        self.instance.submit_run(run.run_id, workspace)
        return run.run_id

    def retry(self, run_id: str) -> str:
        """Retry a failed run, as Dagster's daemon does; the id of the retry."""
        retry_run(self.instance.get_run_by_id(run_id), self.process)
        return self.launcher.launched[-1]

    def start(self, run_id: str, script: Script) -> Actor:
        """Begin to execute a launched run."""
        self.launcher.launched.remove(run_id)

        def work() -> object:
            run = self.instance.get_run_by_id(run_id)
            return execute_run(self.repository.get_reconstructable_job(run.job_name), run, self.instance)

        return self.act(work, script, run_id)

    def act(self, work: Callable[[], object], script: Script, run_id: str | None = None) -> Actor:
        actor = Actor(self, work, script, run_id)
        self.actors.append(actor)
        actor.start()
        actor.proceed()
        return actor

    def tick_backfills(self) -> None:
        """One turn of the daemon of backfills."""
        for error in execute_backfill_iteration(self.process, LOG):
            assert error is None, error
