"""The options of an erasure, and its report: versions that held the rows, what was done and read, and what remains.

No record holds a value of a row, or the condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOptions:
    """The options of an erasure: what it may change.

    Attributes:
        dry_run: Report what would be done, and change nothing.
        retag: Move tags of versions that hold rows to the version of the same branch after the erasure. Tags of
            readers of changes are deleted in any case.
        release_branches: Remove versions that branches were forked from. These branches cannot be promoted any more.
        drop_indices: Drop indices that can hold values of the rows and cannot be built here, such as vector and
            full-text indices.
        delete_unverified: Remove files that nothing refers to whatever their age, and on object storage versions of
            the last five minutes. Only safe if no other process uses the dataset.
        in_use: Versions of the main branch that must stay, by the name of their user.
        transaction_properties: Transaction properties of the commits.
        check: Called before each commit and each cleanup; its `DatasetNotFoundError` ends the erasure.
    """

    dry_run: bool = False
    retag: bool = False
    release_branches: bool = False
    drop_indices: bool = False
    delete_unverified: bool = False
    in_use: Mapping[str, int] = field(default_factory=dict)
    transaction_properties: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingVersion:
    """A version that holds rows of the erasure, or traces of them.

    Attributes:
        branch: Its branch; "main" for the main branch.
        version: Its number.
        is_latest: Whether it is the latest version of the branch.
        fragments: Its fragments with data files that hold a row.
        reasons: Why it cannot stay: "rows", "columns" (the condition cannot be evaluated in it), "files" (files of it
            are missing, as after a cleanup that was killed), "index", "record" (its transaction has the predicate by
            which rows were deleted).
        tags: The tags that name it.
    """

    branch: str
    version: int
    is_latest: bool
    fragments: int
    reasons: tuple[str, ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureFinding:
    """An obstacle to an erasure, or a place that can still hold rows.

    Attributes:
        kind: "tag", "branch", "clone", "in use", "orphan branch", "renamed", "blobs" for obstacles; "version",
            "index", "data", "record", "unknown", "base", "clone", "upload", "versioning" for places.
        path: The tag, the branch, the clone, the version as "branch:number", or the file.
        message: What is wrong, and the remedy.
    """

    kind: str
    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReading:
    """What was read to prove an erasure.

    Attributes:
        files: Files below the root.
        bytes: Bytes of these files.
        versions: Versions.
        branches: Branches, main included.
        rows: Rows, deleted ones included, for which the condition was evaluated.
    """

    files: int = 0
    bytes: int = 0
    versions: int = 0
    branches: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """The result of an erasure, or of its dry run.

    Attributes:
        uri: Root of the dataset.
        dry_run: Whether it was a dry run, which changes nothing.
        proven: Whether no file below the root, and none of another dataset that is known to share files with this
            one, holds the rows any more.
        holding: The versions that held the rows when the erasure began.
        obstacles: What stopped the erasure before anything was changed.
        rows_deleted: Rows that were deleted, or would be, by branch.
        fragments_rewritten: Fragments that were written again.
        indices_rebuilt: Indices that were built again, as "branch:name".
        indices_dropped: Indices that were dropped, as "branch:name".
        versions_removed: Versions that were deleted, or would be, by branch.
        tags_moved: Tags that were moved, with their new versions.
        readers_released: Readers of changes (`LanceDataset.readers`) whose versions were deleted, or would be: their
            next run needs a full refresh.
        branches_released: Branches that cannot be promoted any more, as their fork version was deleted.
        files_removed: Files that were removed.
        bytes_removed: Bytes of these files.
        uploads_aborted: Unfinished uploads of object storage that were aborted, or would be, by their keys.
        clones: Known shallow clones of the dataset.
        bases: Base paths of versions outside of the root.
        remaining: Places that can still hold rows.
        read: What was read as the proof.
    """

    uri: str
    dry_run: bool
    proven: bool
    holding: tuple[HoldingVersion, ...] = ()
    obstacles: tuple[ErasureFinding, ...] = ()
    rows_deleted: Mapping[str, int] = field(default_factory=dict)
    fragments_rewritten: int = 0
    indices_rebuilt: tuple[str, ...] = ()
    indices_dropped: tuple[str, ...] = ()
    versions_removed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tags_moved: Mapping[str, int] = field(default_factory=dict)
    readers_released: tuple[str, ...] = ()
    branches_released: tuple[str, ...] = ()
    files_removed: int = 0
    bytes_removed: int = 0
    uploads_aborted: tuple[str, ...] = ()
    clones: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    remaining: tuple[ErasureFinding, ...] = ()
    read: ErasureReading = field(default_factory=ErasureReading)
