"""Calls a function as a step starts, before its inputs are loaded and its body runs.

Dagster reports to the listeners of a run that a step starts, with the step's name, but gives nobody its context before
the outputs are stored. The context is that of the frame that records the event, in the thread that runs the step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import dagster as dg

from lance_dagster._context.steps import output_contexts

__all__ = ["call_at_step_start"]

_STARTS = (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED)


def call_at_step_start(
    context: dg.InitResourceContext, call: Callable[[list[tuple[dg.OutputContext, Any]]], None]
) -> None:
    """Call a function at the start of each attempt of a step that this process runs for the run of a context.

    Args:
        context: The context in which a resource is created; without a run, nothing is called.
        call: Gets the context and the IO manager of each asset that the step writes. If it raises, the step fails.
    """
    instance, run = context.instance, context.run
    if instance is None or run is None:
        return

    def listen(entry: dg.EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None or event.event_type not in _STARTS:
            return
        step = _starting_step(event.step_key)
        if step is not None:
            written = step.selected_output_names
            call([(output, manager) for output, manager in output_contexts(step) if output.name in written])

    instance.add_event_listener(run.run_id, listen)


def _starting_step(step_key: str | None) -> Any | None:
    """The context of the step whose start is being recorded in this thread; None if another process runs the step."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - see the head of the module
    while frame is not None:
        step = frame.f_locals.get("step_context")
        if getattr(getattr(step, "step", None), "key", None) == step_key and hasattr(step, "get_output_context"):
            return step
        frame = frame.f_back
    return None
