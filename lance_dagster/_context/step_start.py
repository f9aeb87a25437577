"""Calls a function as a step starts, before its inputs are loaded and its body runs.

Dagster reports to the listeners of a run that a step starts, with the step's name, but gives nobody its context before
the outputs are stored. The context is that of the frame that records the event, in the thread that runs the step. A
version of Dagster in which it is not there is warned of; which writes overlap is then judged more strictly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import dagster as dg

from lance_dagster._context.steps import output_contexts

_MISSED: Final = (
    "step %s: Dagster %s does not show the context of a step that starts, so that its writes count as begun before all "
    "others: they fail if a run that was created later has written the same rows. Use another version of Dagster"
)
_STARTS: Final = (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED)


def call_at_step_start(
    context: dg.InitResourceContext,
    call: Callable[[list[tuple[dg.OutputContext, Any]]], None],
    miss: Callable[[tuple[str, str]], None],
) -> None:
    """Call a function at the start of each attempt of a step that this process runs for the run of a context.

    Args:
        context: The context in which a resource is created; without a run, nothing is called.
        call: Gets the context and the IO manager of each asset that the step writes. If it raises, the step fails.
        miss: Gets the run and the step in place of that, if Dagster does not show the context of the step.
    """
    instance, run = context.instance, context.run
    if instance is None or run is None:
        return

    def listen(entry: dg.EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None or event.event_type not in _STARTS:
            return
        step = _starting_step(event.step_key)
        if step is None:
            (context.log or dg.get_dagster_logger()).warning(_MISSED, event.step_key, dg.__version__)
            miss((run.run_id, str(event.step_key)))
        else:
            written = step.selected_output_names
            call([(output, manager) for output, manager in output_contexts(step) if output.name in written])

    instance.add_event_listener(run.run_id, listen)


def _starting_step(step_key: str | None) -> Any | None:
    """The context of the step whose start is being recorded in this thread; None if no frame has it."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - see the head of the module
    while frame is not None:
        step = frame.f_locals.get("step_context")
        if getattr(getattr(step, "step", None), "key", None) == step_key and hasattr(step, "get_output_context"):
            return step
        frame = frame.f_back
    return None
