"""Report what a branch changed since its fork (`Branches.diff`): fragments, rows, partitions and columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core.commit.versions import latest_version
from lance_core.row_addresses import offsets_of
from lance_core.schema import Schema
from lance_core.table.filled_slices import read_slices
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.references import TableRefs
from lance_core.verbs.refs.changes import (
    Branch,
    BranchChanges,
    describe_changes_left_behind,
    describe_extended_indices,
    load_branch_ends,
)
from lance_core.verbs.refs.promotion.files import BranchFiles
from lance_core.verbs.refs.promotion.record import merge_properties, read_commits_between
from lance_core.verbs.rows.removal import live_rows

_NULL: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentDiff:
    """Ids of the fragments that a branch changed; new fragments get other ids when they are promoted."""

    added: tuple[int, ...]
    removed: tuple[int, ...]
    updated: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """How many rows a branch changed.

    Attributes:
        at_fork: Rows of the fork version.
        on_branch: Rows of the branch.
        added: Rows in new fragments, including rows that were only moved there.
        removed: Rows that were deleted from the parent's fragments.
    """

    at_fork: int
    on_branch: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanges:
    """Names of top-level columns that a branch changed. A promotion can only add columns, which must allow nulls."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether there is any change of columns."""
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDiff:
    """The changes of a branch since it was forked.

    Attributes:
        branch: The branch.
        parent: The branch that it was forked from; "main" for main.
        fork_version: Version of the parent that it was forked from.
        branch_version: Its latest version.
        parent_version: Latest version of the parent.
        fragments: Changes of fragments.
        rows: Changes of rows.
        partitions: Names of the partitions that changed, sorted. They come from the branch's commits, or with
            `partition_by` from the changed rows: the values are joined by `|`, and `null` stands for null. The string
            `null`, and a value with `|` or `"`, is a JSON string in double quotes.
        partition_rows: With `partition_by`: rows (removed, added) of each partition.
        schema: Changes of columns.
        left_behind: Changes that a promotion leaves on the branch: configuration, metadata and indices.
        num_bytes: Bytes of the files that a promotion copies.
        commits: Commits on the branch.
        committed: The time of the latest commit.
    """

    branch: str
    parent: str
    fork_version: int
    branch_version: int
    parent_version: int
    fragments: FragmentDiff
    rows: RowChanges
    partitions: tuple[str, ...]
    partition_rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    schema: SchemaChanges
    left_behind: tuple[str, ...] = ()
    num_bytes: int
    commits: int
    committed: datetime

    @property
    def drift(self) -> int:
        """Commits on the parent since the fork."""
        return self.parent_version - self.fork_version


def branch_diff(table: TableRefs, name: str, partition_by: Sequence[str] | None = None) -> BranchDiff:
    """Compare a branch with the version that it was forked from, with the arguments of `Branches.diff`."""
    branch = load_branch_ends(table, name)
    changes = BranchChanges.of(branch)
    fork, head = branch.parent.manifest, branch.head.manifest
    rows: Mapping[str, tuple[int, int]] = {}
    if partition_by is not None:
        rows = _count_partition_rows(branch, changes, list(partition_by))
        names = list(rows)
    else:
        commits = read_commits_between(branch.head.store, fork.version, head.version)
        slices = read_slices(merge_properties(commits.values()))
        names = sorted(part.name for part in slices.values())
    return BranchDiff(
        branch=name,
        parent=branch.parent_name,
        fork_version=fork.version,
        branch_version=head.version,
        parent_version=latest_version(branch.parent.store) or fork.version,
        fragments=FragmentDiff(
            added=tuple(fragment.id for fragment in changes.added),
            removed=tuple(fragment.id for fragment in changes.removed),
            updated=tuple(before.id for before, _ in changes.updated),
        ),
        rows=RowChanges(
            at_fork=sum(fragment.num_rows for fragment in fork.fragments),
            on_branch=sum(fragment.num_rows for fragment in head.fragments),
            added=changes.rows_added,
            removed=changes.rows_removed,
        ),
        partitions=tuple(names),
        partition_rows=rows,
        schema=_compare_schemas(fork.schema, head.schema),
        left_behind=(*describe_changes_left_behind(branch), *describe_extended_indices(branch)),
        num_bytes=BranchFiles.of(table.root, branch, changes).num_bytes,
        commits=head.version - fork.version,
        committed=head.timestamp,
    )


def _compare_schemas(before: Schema, after: Schema) -> SchemaChanges:
    old, new = ({top.name: top for top in schema.fields} for schema in (before, after))
    return SchemaChanges(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and new[name] != old[name]),
    )


def _count_partition_rows(branch: Branch, changes: BranchChanges, columns: list[str]) -> dict[str, tuple[int, int]]:
    """Numbers of removed and of added rows, by the values of columns."""
    branch.head.manifest.schema.project(columns)
    branch.parent.manifest.schema.project(columns)
    removed_rows = changes.rows_taken(branch)
    deleted: Counter[str] = Counter()
    came: Counter[str] = Counter()
    for fragment in changes.removed:
        deleted += _count(branch.parent, fragment, columns, None)
    for before, after in changes.updated:
        if branch.as_seen(before).files == after.files:
            deleted += _count(branch.parent, before, columns, removed_rows[before.id])
        else:
            deleted += _count(branch.parent, before, columns, None)
            came += _count(branch.head, after, columns, None)
    for fragment in changes.added:
        came += _count(branch.head, fragment, columns, None)
    return {name: (deleted[name], came[name]) for name in sorted(deleted.keys() | came.keys())}


def _count(snapshot: Snapshot, fragment: Fragment, columns: Sequence[str], only: BitMap | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch, offsets in live_rows(snapshot, fragment, columns):
        rows = batch
        if only is not None:
            mask = np.isin(np.asarray(offsets), offsets_of(only))
            rows = batch.filter(pa.array(mask))
        counts.update(_name_partitions(rows, columns))
    return counts


def _name_partitions(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[str]:
    for values in zip(*(rows.column(name).to_pylist() for name in columns), strict=True):
        yield "|".join(map(_format_value, values))


def _format_value(value: object) -> str:
    """A value in the name of a partition; a string that could be read as null, or as two values, is quoted (JSON)."""
    if value is None:
        return _NULL
    plain = str(value)
    return json.dumps(plain, ensure_ascii=False) if plain == _NULL or "|" in plain or '"' in plain else plain
