"""Interruptible Spark jobs: when the wait for a job ends, its tasks are ended too, before files are cleaned up.

    caller    wait ------------------ Ctrl-C: cancel by tag, wait for the thread, then for the tasks, raise
    thread    tag, job -------------- ends with the job's result or error

The job runs in a thread of its own, so that an interruption never reaches a call into the JVM, which would make the
connection unusable. After a job has failed, its other tasks run on for some seconds. Without the wait for them, they
would write files while the files of the job are deleted.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from pyspark_lance.engine.errors import find_lost_spark_error, unwrap_lance_error
from pyspark_lance.engine.sessions import is_connect
from pyspark_lance.lazy import DataFrame, SparkSession
from pyspark_lance.releases import is_at_least

_Result = TypeVar("_Result")

_LOGGER = logging.getLogger("pyspark_lance")

_POLL_SECONDS: Final = 0.1
_STILL_POLLS: Final = 3
"""Polls in a row that must see no task: the status store lags behind by one poll."""
_LONGEST_WAIT: Final = 60.0
"""Seconds after which tasks that do not end are left running."""


def run_job(session: SparkSession, call: Callable[[], _Result], timeout_s: float | None = None) -> _Result:
    """Run a function that starts Spark jobs, and leave none of their tasks behind.

    Args:
        session: The session that the jobs run in.
        call: What to run; it is run once, in another thread that has this thread's local properties.
        timeout_s: The seconds after which the jobs are canceled; None for no limit.

    Returns:
        Its result.

    Raises:
        SparkLostError: Spark went away, and its tasks are not waited for; or a worker or an executor did.
        LanceError: A task raised this error.
        TimeoutError: The call took too long.
        BaseException: The call raised another error, or an interruption ended the wait for it. As far as Spark reports,
            no task of its jobs runs any more.
    """
    job = _SparkJob(session, call)
    job.start()
    is_over = False
    try:
        is_over = job.over.wait(timeout_s)
    finally:
        if not is_over:
            job.cancel()
            job.wait_for_tasks()
    if not is_over:
        raise TimeoutError(f"Spark has not ended the job within {timeout_s:g} s")
    if job.error is not None:
        lost = find_lost_spark_error(job.error, session)
        if lost is not None:
            raise lost from job.error
        job.wait_for_tasks()
        raised_error = unwrap_lance_error(job.error)
        if raised_error is not job.error:
            raise raised_error from None  # Spark's report is in the log
        raise job.error
    return job.result


def collect_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a frame, in this process, by one job; Spark's `toArrow`, also before 4.0."""
    session = frame.sparkSession
    if is_at_least((4, 0)):
        return run_job(session, frame.toArrow)
    from pyspark.sql.pandas.types import to_arrow_schema

    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))  # names may hold dots
    messages = run_job(session, numbered.mapInArrow(_pack_batches, "batch binary").collect)
    batches = [batch for message in messages for batch in pa.ipc.open_stream(bytes(message.batch))]
    table = pa.Table.from_batches(batches, None if batches else to_arrow_schema(numbered.schema))
    return table.rename_columns(frame.columns)


def _pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()])], ["batch"])


class _SparkJob(Generic[_Result]):
    """A call and its outcome."""

    result: _Result

    def __init__(self, session: SparkSession, call: Callable[[], _Result]) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._session = session
        self._call = call
        self._tag = f"lance-{uuid.uuid4().hex}"
        self._connect = is_connect(session)

    def start(self) -> None:
        from pyspark.util import inheritable_thread_target

        # Before 4.0, it wraps the function alone.
        wrap = inheritable_thread_target(self._session) if is_at_least((4, 0)) else inheritable_thread_target
        target = wrap(self._run)
        threading.Thread(target=target, name=self._tag, daemon=True).start()

    def cancel(self) -> None:
        """Cancel the jobs until the call has ended: it may start another one at any time."""
        end = time.monotonic() + _LONGEST_WAIT
        while not self.over.is_set() and time.monotonic() < end:
            if self._connect:
                self._session.interruptTag(self._tag)
            else:
                self._session.sparkContext.cancelJobsWithTag(self._tag)
            self.over.wait(_POLL_SECONDS)

    def wait_for_tasks(self) -> None:
        """Wait until no task of the jobs runs any more."""
        try:
            stages = None if self._connect else self._stages()
        except Exception as error:  # noqa: BLE001 - any error of Spark's own object; waiting for a fixed time replaces it
            _LOGGER.debug("the stages of job %s are not known: %s", self._tag, error)
            stages = None
        if stages is None:
            # Tasks cannot be observed here: Spark kills the worker of a task that does not end within this time.
            time.sleep(_seconds(self._session.conf.get("spark.python.task.killTimeout", "2s") or "2s") + 1)
            return
        tracker, end, still = self._session.sparkContext.statusTracker(), time.monotonic() + _LONGEST_WAIT, 0
        while still < _STILL_POLLS and time.monotonic() < end:
            stage_infos = [tracker.getStageInfo(stage) for stage in stages]
            still = 0 if any(info is not None and info.numActiveTasks for info in stage_infos) else still + 1
            time.sleep(_POLL_SECONDS)
        if still < _STILL_POLLS:
            _LOGGER.warning("tasks of job %s did not end within %g s of its failure", self._tag, _LONGEST_WAIT)

    def _run(self) -> None:
        try:
            if self._connect:
                self._session.addTag(self._tag)
            else:
                self._session.sparkContext.addJobTag(self._tag)
                # The thread of Java has none, so that Spark's analysis would take the defaults for its settings.
                session: Any = self._session
                name = "org.apache.spark.sql.classic.SparkSession" if is_at_least((4, 0)) else "SparkSession"
                getattr(session._jvm, name).setActiveSession(session._jsparkSession)  # noqa: SLF001 - as Spark's own
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error
        finally:
            self.over.set()

    def _stages(self) -> list[int]:
        """Ids of the stages of the jobs. The tracker of the JVM knows tags, that of Python does not."""
        context: Any = self._session.sparkContext
        tracker = context.statusTracker()
        jobs = context._jsc.sc().statusTracker().getJobIdsForTag(self._tag)  # noqa: SLF001 - see above
        return [stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds]


def _seconds(duration: str) -> float:
    """A duration in Spark's notation, such as 2s or 500ms; a number alone is in milliseconds, the setting's unit."""
    match = re.fullmatch(r"\s*([0-9]+)([a-z]*)\s*", duration.lower())
    if match is None or match[2] not in _UNITS:  # Spark rejects it when it starts a task of Python
        return 2.0
    return int(match[1]) * _UNITS[match[2]]


_UNITS: Final = {"": 1e-3, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
