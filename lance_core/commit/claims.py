"""Claims on versions: small files by which cleanups and restores learn of each other.

    cleanup    plan  ->  claim the versions  ->  look at references and claims again  ->  remove  ->  release
    restore    claim the version  ->  look at the claims of cleanups  ->  commit  ->  release
    tag        write the tag      ->  look at the claims of cleanups, and whether the version is there

Whoever writes second sees what the other has written: either the cleanup keeps the version, or the reference is taken
back. A branch or shallow clone has a tag, so that it is as safe.

    _refs/claims/removal-<uuid>.json    {"versions": [1, 2, 3]}, below the root of the branch; use-<uuid>.json

A claim of a process that was killed counts for a day, and is removed by a later cleanup. A cleanup that takes longer
writes its claim again. Other libraries do not know claims.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from lance_core.commit.handler import Clock
from lance_core.errors import ObjectNotFoundError, OutcomeUnknownError, StoreError, VersionNotFoundError
from lance_core.store import ObjectMeta, ObjectStore
from lance_core.table.paths import CLAIMS_PREFIX

_logger = logging.getLogger(__name__)

CLAIM_AGE: Final = timedelta(days=1)
"""The age from which a claim does not count any more."""

RENEWED_AFTER: Final = CLAIM_AGE / 4

Purpose = Literal["removal", "use"]


@dataclass(slots=True, kw_only=True)
class VersionClaim:
    """A claim of this process.

    Attributes:
        store: The store of the branch.
        purpose: "removal" for a cleanup, "use" for a restore.
        versions: The numbers of the versions.
    """

    store: ObjectStore
    purpose: Purpose
    versions: frozenset[int]
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _written: Clock = field(default_factory=Clock.now)

    @property
    def key(self) -> str:
        """The key of its file."""
        return f"{CLAIMS_PREFIX}{self.purpose}-{self._id}.json"

    def write(self) -> None:
        """Write the claim.

        Raises:
            StoreError: The storage failed.
        """
        self._written = Clock.now()
        self.store.put(self.key, json.dumps({"versions": sorted(self.versions)}, separators=(",", ":")).encode())

    def renew(self) -> None:
        """Write the claim again if it is some hours old, so that it goes on to count.

        Raises:
            StoreError: The storage failed.
        """
        if self._written.age() > RENEWED_AFTER:
            self.write()

    def release(self) -> None:
        """Give the versions up; a claim that may not be deleted is left without versions."""
        try:
            self.store.delete(self.key)
        except StoreError as error:
            _logger.info("%s/%s was left behind: %s", self.store.root, self.key, error)
            self.versions = frozenset()
            with contextlib.suppress(StoreError):  # it counts for a day
                self.write()


@contextlib.contextmanager
def keeping(store: ObjectStore, version: int) -> Iterator[None]:
    """Keep a version from cleanups until the body has committed what needs the files of the version.

    The claim stays if the commit may still arrive: its outcome is unknown, or its request was interrupted.

    Raises:
        VersionNotFoundError: A cleanup is removing the version.
    """
    claim = VersionClaim(store=store, purpose="use", versions=frozenset({version}))
    claim.write()
    try:
        reject_claimed(store, version)
        yield
    except BaseException as error:
        is_interrupted = not isinstance(error, Exception)
        if not isinstance(error, OutcomeUnknownError) and not (is_interrupted and store.put_is_a_request):
            claim.release()
        raise
    claim.release()


def list_claims(store: ObjectStore, purpose: Purpose) -> dict[int, ObjectMeta]:
    """The versions that processes claim for a purpose, each with the file of a claim."""
    return {
        version: meta
        for meta in store.list(CLAIMS_PREFIX)
        if meta.key.startswith(f"{CLAIMS_PREFIX}{purpose}-") and time.time() - meta.modified < CLAIM_AGE.total_seconds()
        for version in _versions(store, meta.key)
    }


def reject_claimed(store: ObjectStore, version: int) -> None:
    """Make sure that no cleanup is removing a version.

    Raises:
        VersionNotFoundError: A cleanup is removing it, or has been interrupted less than a day ago.
    """
    meta = list_claims(store, "removal").get(version)
    if meta is None:
        return
    when = datetime.fromtimestamp(meta.modified, UTC).isoformat(timespec="seconds")
    raise VersionNotFoundError(
        f"{store.root}: version {version} is being removed by a cleanup that began at {when}. If the cleanup was "
        f"interrupted, another one finishes it, or {store.root}/{meta.key} can be deleted; then `lance verify` shows "
        "whether the version is whole"
    )


def _versions(store: ObjectStore, key: str) -> Iterable[int]:
    """The versions that a file of a claim names; a torn file names none, as its writer was killed."""
    try:
        content = json.loads(bytes(store.get(key)))
    except (ObjectNotFoundError, ValueError):
        return ()
    versions = content.get("versions") if isinstance(content, dict) else None
    return versions if isinstance(versions, list) else ()
