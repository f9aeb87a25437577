"""A look after the put: is the version at the end of the history, or under a number that cleanup had freed?

    look at the latest version N  ->  put N + 1 unless it exists  ->  look again

A put of N + 1 succeeds as well after other writers have committed N + 1 and more, and cleanup has removed it. Nothing
was ever made from such a version, so that it must not be acknowledged. The last version is never cleaned up: where
there is none above N + 1 the version is in the history. Otherwise the version above shows whether it was made from it.

The second look is always made where it costs no request. On object storage it is made if the first one is more than
`LOOK_AGAIN_AFTER` old, and cleanup keeps younger versions there for a few times as long. An external index that gives
no number twice needs none.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lance_core.commit.relation import Relation, new_files, refers_to, relation
from lance_core.commit.versions import Listed, load_manifest, load_transaction, locate_latest
from lance_core.errors import (
    LanceError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    VersionNotFoundError,
)
from lance_core.store import ObjectStore, gives_numbers_once
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Overwrite, Restore
from lance_core.table.paths import data_key

__all__ = ["LOOK_AGAIN_AFTER", "Clock", "Put", "is_in_history"]

LOOK_AGAIN_AFTER: Final = timedelta(minutes=1)
"""Age of a look at the latest version from which a put on object storage is followed by another look."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A moment, by both clocks: one stands still while a machine sleeps, the other can be set.

    Attributes:
        monotonic_s: Seconds since some start.
        wall_ns: Nanoseconds since the epoch.
    """

    monotonic_s: float
    wall_ns: int

    @classmethod
    def now(cls) -> Clock:
        """The present moment."""
        return cls(monotonic_s=time.monotonic(), wall_ns=time.time_ns())

    def age(self) -> timedelta:
        """How long ago that was; the longer of both answers."""
        now = Clock.now()
        passed = max(now.monotonic_s - self.monotonic_s, (now.wall_ns - self.wall_ns) / 1e9)
        return timedelta(seconds=passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A version that was put.

    Attributes:
        manifest: The version, with its location.
        base: The version that it was made from; None for the first one of a dataset.
        looked: When the latest version was looked for.
        began_ns: When the put began, nanoseconds since the epoch.
    """

    manifest: Manifest
    base: Manifest | None
    looked: Clock
    began_ns: int


def is_in_history(store: ObjectStore, put: Put) -> bool:
    """Look whether a version that was put is part of the history; it is removed if not.

    Args:
        store: The dataset's store.
        put: The version.

    Raises:
        OutcomeUnknownError: The history does not show whether the version is part of it.
    """
    if gives_numbers_once(store) or (store.put_is_a_request and put.looked.age() < LOOK_AGAIN_AFTER):
        return True
    try:
        is_there = _found_in_history(store, put)
        if not is_there and put.manifest.location is not None:
            store.delete(put.manifest.location.key)
    except OutcomeUnknownError:
        raise
    except LanceError as error:
        raise _unknown(store, put, str(error)) from error
    if not is_there:
        _logger.info(
            "version %d of %s was put under a number that cleanup had freed, and is taken away",
            put.manifest.version,
            store.root,
        )
    return is_there


def _found_in_history(store: ObjectStore, put: Put) -> bool:
    """Whether it is; raises OutcomeUnknownError if that cannot be decided."""
    own = put.manifest
    listed = Listed.of(store)
    if listed.latest is None:
        return True  # it was there, and the dataset was dropped since
    if listed.latest[0] <= own.version and not store.put_is_a_request:
        # A listing of a folder may leave out both what is removed and what is added while it is made.
        again = locate_latest(store)
        if again is not None and again[0] > own.version:
            listed = Listed.of(store)
    above = sorted(version for version in listed.seen if version > own.version)
    if not above:
        return not _was_dropped(store, put, listed)
    following = _load(store, own.version + 1)
    others = [other for other in (following or _load(store, above[0]), _load(store, above[-1])) if other is not None]
    mine = new_files(own, put.base)
    if any(refers_to(other, mine) for other in others):
        return True
    made_by = load_transaction(store, following) if following is not None else None
    if following is not None and made_by is not None:
        found = relation(own, following, made_by)
        if found is not Relation.UNKNOWN:
            return found is Relation.FOLLOWS
    if any(_was_there_before(store, other, put, listed) for other in others):
        return False
    if made_by is not None and isinstance(made_by.operation, Overwrite | Restore):
        return True  # whatever was in that place, all of it was replaced
    raise _unknown(store, put, f"version {above[-1]} does not show whether it was made from that one")


def _was_there_before(store: ObjectStore, other: Manifest, put: Put, listed: Listed) -> bool:
    """Whether a version above was there before the put, so that another one had been in the own one's place."""
    if not store.put_is_a_request and 0 < other.timestamp_ns < put.began_ns:
        return True  # of one machine: its own clock
    theirs, own = (listed.seen.get(version) for version in (other.version, put.manifest.version))
    if theirs is None or own is None or theirs.modified is None or own.modified is None:
        return False
    return theirs.modified < own.modified  # of the storage's clock


def _was_dropped(store: ObjectStore, put: Put, listed: Listed) -> bool:
    """Whether the dataset that the version belongs to is gone; another one may be in its place."""
    base = put.base
    if base is None or base.version in listed.seen:
        return False
    kept = set(put.manifest.fragments.ids)
    for fragment in base.fragments:
        own = [file for file in fragment.files if file.base_id is None] if fragment.id in kept else []
        if own:
            try:
                store.head(data_key(own[0].path))
            except ObjectNotFoundError:
                return True
            return False
    return False


def _load(store: ObjectStore, version: int) -> Manifest | None:
    try:
        return load_manifest(store, version)
    except VersionNotFoundError:
        return None


def _unknown(store: ObjectStore, put: Put, reason: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{store.root}: version {put.manifest.version} was put, but other writers and a cleanup went on meanwhile, and "
        f"whether it became part of the history is not known: {reason}. Open the dataset again, and look whether the "
        "change is there before it is made again"
    )
