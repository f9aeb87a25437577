"""Traps in our stores, and clocks of our writers.

A trap counts the calls of stores, in whichever thread. At its call the process fails, dies before or after it, or loses the
answer; or another writer goes first. A process that has died makes no further call.
"""

import datetime as dt
import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lance_core import times
from lance_core.errors import OutcomeUnknownError, StoreError
from lance_core.maintenance.cleanup import plan
from lance_core.store.local import LocalStore, LocalWriter
from lance_core.store.memory import MemoryStore
from lance_core.store.s3_client import S3Client
from lance_core.verbs.refs import tags

KINDS = ("fail", "full", "lose", "kill before", "kill after", "meanwhile")
FULL = "No space left on device"
AFTER_PUT = -1
_CALLS = ("get", "read", "get_tail", "get_ranges", "head", "put", "put_if_absent", "delete", "copy", "list")
_WRITES = ("put", "put_if_absent", "delete", "copy")


class Killed(BaseException):
    """The process died here."""


@dataclass
class Trap:
    """A trap; `at` is the number of the call, counted from 0, or AFTER_PUT for the one after a manifest was put.

    A writer that loses may lack the right to delete.
    """

    kind: str
    at: int
    work: Callable[[], None] | None = None
    may_delete: bool = True
    calls: int = 0
    fired: bool = False
    dead: bool = False


_set: list[Trap | None] = [None]
_lock = threading.Lock()
_passing = threading.local()


def _before(name: str) -> str | None:
    """Count a call; returns what is to happen after it."""
    trap = _set[-1]
    if trap is None or getattr(_passing, "on", False):
        return None
    with _lock:
        number = trap.calls
        trap.calls += 1
    if trap.dead:
        raise Killed
    if name == "delete" and not trap.may_delete:
        raise StoreError("delete: denied by the machine")
    if trap.kind == "full" and number >= trap.at and name in ("put", "put_if_absent", "copy"):
        trap.fired = True
        raise StoreError(errno.ENOSPC, f"{name}: {FULL}")
    if number != trap.at or trap.kind == "full":
        return None
    trap.fired = True
    if trap.kind == "kill before":
        trap.dead = True
        raise Killed
    if trap.kind == "fail" or (trap.kind == "lose" and name not in _WRITES):
        raise StoreError(f"{name}: failed by the machine")
    if trap.kind == "meanwhile" and trap.work is not None:
        with untrapped():
            trap.work()
        return None
    return trap.kind


def _aim(name: str, args: tuple[Any, ...]) -> None:
    """A trap that waits for a manifest fires at the next call, by which its writer looks where its version stands."""
    trap = _set[-1]
    is_passing = getattr(_passing, "on", False)
    if (
        trap is not None
        and trap.at == AFTER_PUT
        and not is_passing
        and name == "put_if_absent"
        and "_versions/" in args[0]
    ):
        trap.at = trap.calls


def _after(kind: str | None, name: str) -> None:
    trap = _set[-1]
    if kind == "kill after" and trap is not None:
        trap.dead = True
        raise Killed
    if kind == "lose":
        raise (OutcomeUnknownError if name == "put_if_absent" else StoreError)(f"{name}: the machine lost the answer")


@contextmanager
def untrapped() -> Iterator[None]:
    """Calls in this thread pass the trap: another process makes them."""
    before = getattr(_passing, "on", False)
    _passing.on = True
    try:
        yield
    finally:
        _passing.on = before


def _hook(owner: type, name: str, called: str) -> tuple[type, str, Any]:
    real = vars(owner)[name]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        kind = _before(called)
        result = real(self, *args, **kwargs)
        _aim(called, args)
        if called == "list" and kind is not None:
            result = iter(list(result))
        _after(kind, called)
        return result

    setattr(owner, name, call)
    return owner, name, real


@contextmanager
def installed() -> Iterator[None]:
    """Let the stores of our library look for traps."""
    calls = [(store, name, name) for store in (LocalStore, MemoryStore) for name in _CALLS if name in vars(store)]
    hooked = [_hook(*call) for call in (*calls, (LocalWriter, "close", "put"), (S3Client, "run", "request"))]
    try:
        yield
    finally:
        for owner, name, real in hooked:
            setattr(owner, name, real)


@contextmanager
def set_trap(trap: Trap | None) -> Iterator[Trap | None]:
    """Set a trap for a step."""
    _set.append(trap)
    try:
        yield trap
    finally:
        _set.pop()


_time, _time_ns = time.time, time.time_ns


class _Datetime(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
        return dt.datetime.fromtimestamp(time.time(), tz)


@contextmanager
def clock(offset_s: float) -> Iterator[None]:
    """Our library's clock is ahead by some seconds."""
    modules = (times, plan, tags)
    time.time = lambda: _time() + offset_s
    time.time_ns = lambda: _time_ns() + int(offset_s * 1e9)
    for module in modules:
        module.datetime = _Datetime  # type: ignore[attr-defined]
    try:
        yield
    finally:
        time.time, time.time_ns = _time, _time_ns
        for module in modules:
            module.datetime = dt.datetime  # type: ignore[attr-defined]
