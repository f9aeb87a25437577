"""The facts of a version for `decide`: columns, fragments, indices and records; no file is opened for them.

Data files are read only where an index on vectors is to be built, until there are enough vectors to train it on.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

import pyarrow.compute as pc

from lance_core.errors import LanceError
from lance_core.maintenance.search.decide import IndexAction, PresentIndex, PresentSegment, TableFacts
from lance_core.maintenance.search.declaration import IndexDeclaration
from lance_core.maintenance.search.old_words import (
    SegmentHistory,
    find_migration,
    find_newest_change,
    find_old_words,
    find_oldest_creation,
)
from lance_core.maintenance.search.recall import read_batches
from lance_core.maintenance.search.record import read_records
from lance_core.row_addresses import make_row_address
from lance_core.schema import arrow_type_of
from lance_core.store import has_object
from lance_core.table.fragment import Fragment
from lance_core.table.index import SYSTEM_PREFIX
from lance_core.table.reuse import find_broken_graphs
from lance_core.table.rowids import decode_row_ids_of
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.inspect.indices import IndexDescription, describe_indices
from lance_core.verbs.scan.read_fragment import count_live_each

_COUNTS: Final[dict[tuple[str, int, int], int]] = {}
"""Counts of vectors by data files and rows: each tick of a sensor, and each survey of a run, asks for the same ones."""

_MOST_COUNTS: Final = 1000
_BROKEN_GRAPH: Final = "pylance cannot search it: rows of its graph were left out by a compaction that recorded moves"
_LOST_FILES: Final = "pylance cannot search it: its files are missing"
_OLD_WORDS: Final = "pylance finds rows by words that they no longer have"


def find_pylance() -> str | None:
    """The version of pylance, which builds indices of vectors and words; None if it is not installed."""
    try:
        return importlib.metadata.version("pylance") if find_spec("lance") is not None else None
    except ImportError:  # of its metadata, or as a finder of modules hides it
        return None


def read_facts(snapshot: Snapshot, declarations: Sequence[IndexDeclaration]) -> TableFacts:
    """The facts of a version.

    Args:
        snapshot: The version.
        declarations: Declarations, of which the columns are looked up.
    """
    manifest = snapshot.manifest
    fragments = manifest.fragments
    rows = dict(zip(fragments.ids, count_live_each(snapshot, fragments), strict=True))
    columns = {}
    for declaration in declarations:
        try:
            node = manifest.schema.column(declaration.column)
        except LanceError:
            continue
        columns[declaration.column] = (node.id, arrow_type_of(node))
    history = SegmentHistory(snapshot)
    broken = find_broken_graphs(manifest.indices, manifest.schema, history.find_fragment)
    faults = dict.fromkeys(broken, _BROKEN_GRAPH) | dict.fromkeys(find_lost_segments(snapshot), _LOST_FILES)
    present = {
        index.name: _to_present(index, rows, faults)
        for index in (describe_indices(snapshot) if manifest.indices else ())
        if not index.name.startswith(SYSTEM_PREFIX)
    }
    facts = TableFacts(columns=columns, fragments=rows, present=present, records=read_records(manifest.config))
    missed = frozenset().union(*(facts.missed_by(index) for index in present.values()))
    uncovered = [each for each in fragments if each.id in missed]
    migration = find_migration(manifest)
    created = {each.id: oldest for each in uncovered if (oldest := _find_oldest_row(each, migration)) is not None}
    set_again = [oldest for each in uncovered if find_newest_change(each) > (oldest := created.get(each.id, 0)) > 0]
    present = {name: _mark_old_words(snapshot, index, history) for name, index in present.items()}
    if set_again:
        present = {name: _raise_versions(index, min(set_again), history) for name, index in present.items()}
    return replace(facts, present=present, created=created)


def find_faults(snapshot: Snapshot) -> dict[str, str]:
    """Why searches by an index fail, or find wrong rows, by its name; empty if they do not.

    Args:
        snapshot: The version.
    """
    indices = snapshot.manifest.indices
    if not any(each.base_id is not None or each.kind == "Inverted" or "HNSW" in each.kind for each in indices):
        return {}
    present = read_facts(snapshot, ()).present
    faults = {name: index.fault or _OLD_WORDS * index.has_old_words for name, index in present.items()}
    return {name: fault for name, fault in faults.items() if fault}


def find_lost_segments(snapshot: Snapshot) -> list[str]:
    """The uuids of segments whose files are not in the base path that their records name.

    pylance's compaction of a branch or a clone writes such files into the folder of the branch. Segments of the table's
    own folder are not looked at, as that costs a request for each.
    """
    indices = [index for index in snapshot.manifest.indices if index.base_id is not None and index.files]
    lost = []
    for index in indices:
        store, folder = snapshot.indices.folder(index)
        if not has_object(store, folder + index.files[0].path):
            lost.append(str(index.uuid))
    return lost


def _mark_old_words(snapshot: Snapshot, index: PresentIndex, history: SegmentHistory) -> PresentIndex:
    old = find_old_words(snapshot, index, history)
    segments = [replace(each, has_old_words=True) if each.uuid in old else each for each in index.segments]
    return replace(index, segments=segments) if old else index


def _raise_versions(index: PresentIndex, version: int, history: SegmentHistory) -> PresentIndex:
    """The index of words with segments that may have rows of a version: a merge by pylance keeps the lowest version."""
    if index.kind != "FTS" or all(segment.version >= version for segment in index.segments):
        return index
    segments = [
        replace(segment, version=max(segment.version, version))
        if history.is_made_after(segment, version, otherwise=True)
        else segment
        for segment in index.segments
    ]
    return replace(index, segments=segments)


def require_vectors(actions: Iterable[IndexAction], snapshot: Snapshot, facts: TableFacts) -> list[IndexAction]:
    """The actions without builds for which too few rows have a vector to train on; a rebuild says why it has to wait.

    Args:
        actions: What is due.
        snapshot: The version, or an earlier one with the same values.
        facts: The facts of the version.
    """
    possible = [_require_vectors(action, snapshot, facts) for action in actions]
    return [action for action in possible if action is not None]


def _require_vectors(action: IndexAction, snapshot: Snapshot, facts: TableFacts) -> IndexAction | None:
    declaration = action.declaration
    if declaration is None or not declaration.is_vector or action.action not in ("build", "rebuild"):
        return action
    least = declaration.min_rows if action.action == "build" else declaration.least_vectors
    try:
        count = count_vectors(snapshot, declaration.column, facts, least)
    except (LanceError, OSError):  # the build fails by it as well, which is recorded
        return action
    if count >= least:
        return action
    reason = (
        f"{action.reason}; it is built again once {least:,} rows have a vector of finite numbers; {count:,} have one"
    )
    return None if action.action == "build" else replace(action, action="wait", reason=reason)


def count_vectors(snapshot: Snapshot, column: str, facts: TableFacts, most: int) -> int:
    """How many rows have a vector of finite numbers, counted up to a number of them.

    Args:
        snapshot: The version, or an earlier one with the same values.
        column: The column.
        facts: The facts of the version.
        most: The number at which counting ends.
    """
    key = _digest_files(snapshot.manifest.fragments, facts.columns[column][0]), facts.rows, most
    if key not in _COUNTS:
        count = 0
        for batch in read_batches(snapshot, column):
            vectors = batch.column(0).drop_null()
            if len(vectors):
                finite = pc.is_finite(vectors.flatten()).to_numpy(zero_copy_only=False)
                count += int(finite.reshape(len(vectors), -1).all(axis=1).sum())
            if count >= most:
                break
        if len(_COUNTS) >= _MOST_COUNTS:
            _COUNTS.clear()
        _COUNTS[key] = min(count, most)
    return _COUNTS[key]


def _digest_files(fragments: Iterable[Fragment], field_id: int) -> str:
    """A digest of the data files with a column, which changes as rows come or values are set."""
    paths = sorted(file.path for each in fragments for file in each.files if field_id in file.fields)
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()


def _find_oldest_row(fragment: Fragment, migration: int) -> int | None:
    """The version in which the oldest row of a fragment was created; 0 if it is not known, None for a new fragment.

    Where rows had no stable ids, values may have been set again if a column has a file of its own.
    """
    oldest = find_oldest_creation(fragment)
    if oldest > migration:
        return oldest
    row_ids = decode_row_ids_of(fragment)
    # A migration gives rows their addresses as ids: rows with other ids have moved since.
    is_at_place = row_ids is None or (migration > 0 and int(row_ids[0]) == make_row_address(fragment.id, 0))
    is_as_written = len(fragment.files) == 1 and find_newest_change(fragment) <= migration and is_at_place
    return None if is_as_written else 0


def _to_present(index: IndexDescription, rows: dict[int, int], faults: Mapping[str, str]) -> PresentIndex:
    segments = []
    for segment in index.segments:
        fault = faults.get(segment.uuid, "")
        live = frozenset[int]() if fault else frozenset(segment.fragment_ids) & rows.keys()
        count, version = sum(rows[each] for each in live), segment.dataset_version_at_last_update
        made_ms = None if segment.created_at is None else int(1000 * segment.created_at.timestamp())
        present = PresentSegment(uuid=segment.uuid, fragment_ids=live, rows=count, version=version)
        segments.append(replace(present, created_at_ms=made_ms, fault=fault))
    metric, kind = index.details.get("metric_type"), name_kind(index.index_type)
    return PresentIndex(
        name=index.name,
        kind=kind,
        metric=None if metric is None else str(metric).lower(),
        field_ids=tuple(index.fields),
        segments=segments,
        size_bytes=index.total_size_bytes,
        parameters={name: value for name, value in index.details.items() if kind == "FTS" and value is not None},
    )


def name_kind(index_type: str) -> str:
    """The name in declarations of a kind as manifests have it, such as "BTREE" of "BTree"."""
    return {"Inverted": "FTS", "LabelList": "LABEL_LIST"}.get(index_type, index_type.upper())
