"""The leases by which one run at a time computes the cells of a row.

    _refs/computations/<name>-<number>.json    {"owner", "host", "pid", "started", "seconds", "beside": [3],
                                                "fragments": [[0, 7], [9, 9]], "newest": 12}

The next number is created by `put_if_absent`: of many runs one gets it. Its owner writes it again every third of its
time; the storage's own time of that write, and `seconds`, say until when it holds. A dead process of the same host
holds nothing. A run holds the whole table while it looks for due rows, and then the fragments that have some; fragments
that are newer than its version, above `newest`, may have rows of these, and it holds them too.

`beside` has the leases whose fragments a run leaves to others. A run that was paused finds a higher number that is not
beside its own before it stages or commits; what it committed nevertheless would be rejected by the watermark of the
computation.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from lance_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    LanceError,
    ObjectNotFoundError,
    RetryableConflictError,
    SupersededError,
)
from lance_core.store import ObjectStore
from lance_core.table.paths import COMPUTATIONS_PREFIX
from lance_core.verbs.columns.compute.computation import to_ranges

_logger = logging.getLogger(__name__)

LEASE_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 1.0

OnRunning = Literal["reject", "wait", "split"]
"""What happens while another run computes the same columns."""


class Lease:
    """A lease of this process; created by `hold_lease`."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        number: int,
        seconds: float,
        owner: str = "",
        beside: Mapping[int, dict[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.owner, self.beside = owner or uuid.uuid4().hex, beside
        self._fragments: list[list[int]] | None = None
        self._newest: int | None = None
        self.claim = name, number, seconds, self.owner
        """The arguments of `Lease`, beside the store, by which another process may check it."""
        self._store, self._prefix, self._number, self._seconds = store, _prefix_of(name), number, seconds
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._renew, name="lance-lease", daemon=True)

    def begin(self) -> bool:
        """Create the object of the lease; False if another run has created it."""
        try:
            self._store.put_if_absent(self._key, self._describe())
        except AlreadyExistsError:
            return False
        self._thread.start()
        return True

    def check(self) -> None:
        """Check that no other run has taken the lease over.

        Raises:
            SupersededError: Another run has, as this one was paused for longer than the lease holds.
        """
        higher = [key for number, key in _list_numbers(self._store, self._prefix) if number > self._number]
        leases = [_read_lease(self._store, key)[0] for key in higher]
        is_over = any(self._number not in lease["beside"] for lease in leases if lease)
        if is_over or _read_lease(self._store, self._key)[0].get("owner") != self.owner:
            raise SupersededError(
                f"another run computes the columns of {self.claim[0]!r} now, as this one was paused for more than "
                f"{self._seconds:.0f} s, or the table was dropped: nothing more was written; run it again to continue"
            )

    def hold(self, fragment_ids: Iterable[int], newest: int) -> None:
        """Hold these fragments alone from now on, of a version whose highest fragment id is given.

        Raises:
            SupersededError: Another run has taken the lease over.
        """
        self.check()
        with self._lock:
            self._newest, self._fragments = newest, to_ranges(fragment_ids)
            self._store.put(self._key, self._describe())

    def leaves(self, fragment_id: int) -> bool:
        """Whether another run holds a fragment, which this one leaves to it."""
        return any(
            fragment_id > other["newest"] or any(first <= fragment_id <= last for first, last in other["fragments"])
            for other in self.beside.values()
        )

    def wait_for_others(self) -> None:
        """Wait until one of the runs has ended, or has a new share, whose fragments were left to them."""
        while all(_read_owner(self._store, f"{self._prefix}{number}.json") is not None for number in self.beside):
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Release the lease, and remove those of runs that have ended without doing so."""
        self._ended.set()
        self._thread.join()
        for number, key in _list_numbers(self._store, self._prefix):
            if number <= self._number and number not in self.beside:
                self._store.delete(key)

    @property
    def _key(self) -> str:
        return f"{self._prefix}{self._number}.json"

    def _describe(self) -> bytes:
        place = {"host": socket.gethostname(), "pid": os.getpid(), "started": _start_of(os.getpid())}
        held = {"beside": list(self.beside), "fragments": self._fragments, "newest": self._newest}
        return json.dumps({"owner": self.owner, **place, "seconds": self._seconds, **held}).encode()

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            try:
                self.check()
                with self._lock:
                    self._store.put(self._key, self._describe())
            except SupersededError:
                return
            except LanceError as error:
                _logger.warning("the lease %s could not be renewed: %s", self._key, error)


@contextlib.contextmanager
def hold_lease(store: ObjectStore, name: str, on_running: str, seconds: float = LEASE_SECONDS) -> Iterator[Lease]:
    """Hold the lease of a computation.

    Args:
        store: The table's store.
        name: The computation.
        on_running: "reject", "wait" or "split".
        seconds: How long the lease holds after its owner was last seen.

    Raises:
        RetryableConflictError: Another run computes these columns, and `on_running` is "reject".
    """
    if on_running not in get_args(OnRunning):
        raise InvalidInputError(f"on_running is one of {', '.join(get_args(OnRunning))}, not {on_running!r}")
    while True:
        leases = dict(_list_numbers(store, _prefix_of(name)))
        owners = {number: owner for number, key in leases.items() if (owner := _read_owner(store, key)) is not None}
        if on_running == "split" or not owners:
            if all(owner["fragments"] is not None for owner in owners.values()):
                lease = Lease(store, name, max(leases, default=0) + 1, seconds, beside=owners)
                if lease.begin():
                    break
                continue
        elif on_running == "reject":
            (owner, *_) = owners.values()
            raise RetryableConflictError(
                f"computation {name!r} of {store.root} is running on {owner['host']} (process {owner['pid']}): wait "
                "for its end, or pass on_running='wait' or 'split'"
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield lease
    finally:
        lease.end()


def _prefix_of(name: str) -> str:
    return f"{COMPUTATIONS_PREFIX}{name.encode().hex()}-"


def _list_numbers(store: ObjectStore, prefix: str) -> list[tuple[int, str]]:
    keys = [meta.key for meta in store.list(prefix)]
    numbers = [(key.removeprefix(prefix).removesuffix(".json"), key) for key in keys]
    return [(int(number), key) for number, key in numbers if number.isdecimal()]


def _read_owner(store: ObjectStore, key: str) -> dict[str, Any] | None:
    """The owner of a lease; None if it does not hold any more."""
    owner, modified = _read_lease(store, key)
    is_here = owner.get("host") == socket.gethostname()
    is_dead = not owner or (is_here and _start_of(owner["pid"]) != owner["started"])
    return None if is_dead or time.time() > modified + owner["seconds"] else owner


def _read_lease(store: ObjectStore, key: str) -> tuple[dict[str, Any], float]:
    """What a lease says, and when it was written; nothing if it was removed."""
    try:
        data, meta = store.read(key)
    except ObjectNotFoundError:
        return {}, 0.0
    return json.loads(bytes(data)), meta.modified


def _start_of(pid: int) -> str | None:
    """When a process of this host began, as its system counts; None if there is no such process, or it is unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return status.rpartition(")")[2].split()[19]
