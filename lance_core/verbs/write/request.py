"""What `commit_fragments` commits: the fragments, what is written (`Write`), and how it is committed (`Commit`).

Writes that add columns: they commit a Merge, which changes the schema and the rows in one version.

Check that slices are empty, for writes with `require_empty`.

The slices may have no rows except those of earlier attempts of the same write. The check is made in the version that
the write is based on, and again in each later version that the write would follow, before the manifest is put.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from lance_core.commit import Commit, WriteAttempt
from lance_core.errors import DatasetExistsError, InvalidInputError
from lance_core.file import FileVersion
from lance_core.schema import Schema
from lance_core.store import make_durable
from lance_core.table.filled_slices import SLICE_NAMES_KEY, SLICES_KEY
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge
from lance_core.table.operations.base import next_fragment_id, number_fragments
from lance_core.verbs.columns.add import lacking_fields, with_null_columns
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.fragment_writer import FileOptions
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.rows.removal import Removal, RowsByFragment, with_deletions
from lance_core.verbs.write.earlier_attempts import rows_of_attempts
from lance_core.verbs.write.replace import rows_in_slices

__all__ = [
    "CommitRequest",
    "Write",
    "adds_columns",
    "check_required_empty",
    "merge_with_added_columns",
    "schema_with_added_columns",
]

COMMIT_MODES: Final = ("create", "append", "overwrite", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What is written: which rows the new ones replace, and what the table must be like.

    Attributes:
        mode: "create", "append", "overwrite" or "replace".
        slices: For "replace": the slices whose rows are replaced. For `require_empty`: the slices that must be empty.
        add_columns: Whether columns that the table lacks are added.
        require_empty: Whether the slices must have no rows other than those of earlier attempts.

    Raises:
        InvalidInputError: The mode is unknown, or two attributes cannot be combined.
    """

    mode: str = "append"
    slices: Slices | None = None
    add_columns: bool = False
    require_empty: bool = False

    def __post_init__(self) -> None:
        if self.mode not in COMMIT_MODES:
            raise InvalidInputError(f"mode must be one of {', '.join(COMMIT_MODES)}, not {self.mode!r}")
        if self.require_empty and self.mode not in ("append", "replace"):
            raise InvalidInputError(f'require_empty needs mode "append" or "replace", not {self.mode!r}')
        if (self.mode == "replace" or self.require_empty) != (self.slices is not None):
            raise InvalidInputError('mode "replace" and require_empty need slices, and nothing else accepts slices')

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties that name the slices."""
        return {} if self.slices is None else self.slices.properties()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What to commit: the arguments of `lance_core.commit_fragments`, which describes them.

    Attributes:
        files: The options by which a dataset is created.
        first_field_id: Id of the first field, if the fragments define the columns of the dataset.
    """

    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    write: Write
    commit: Commit = field(default_factory=Commit)
    files: FileOptions = field(default_factory=FileOptions)
    read_version: int | None = None
    identity: str | None = None
    table_config: Mapping[str, str] | None = None
    first_field_id: int = 0

    @property
    def attempt(self) -> WriteAttempt | None:
        """The attempt of a write that the commit is, if any."""
        return self.commit.write_attempt

    @property
    def replaces_others(self) -> bool:
        """Whether the commit replaces rows that other writes have added to the same slices meanwhile."""
        later_wins = self.attempt is not None and self.attempt.conflict_policy == "later_wins"
        return later_wins and not self.write.require_empty and self.write.mode in ("overwrite", "replace")

    def filled_slices(self) -> tuple[str, ...] | None:
        """The slices whose rows the write replaces, whoever wrote them: empty for all rows; None if there are none."""
        if self.attempt is None or self.write.require_empty or self.write.mode not in ("overwrite", "replace"):
            return None
        return () if self.write.slices is None else tuple(self.write.slices.identities())

    def check(self) -> None:
        """Check that the arguments fit together.

        Raises:
            InvalidInputError: The identity of no version is given.
            SchemaError: The slices cannot be distinguished in data of this schema.
        """
        if self.write.slices is not None:
            self.write.slices.check(self.schema)
        if self.identity is not None and not self.read_version:
            raise InvalidInputError("identity needs read_version, the number of the version that it identifies")

    def properties(self) -> dict[str, str]:
        """The transaction properties of the commit."""
        return {**self.commit.texts, **self.commit.identity, **self.write.properties}

    def side_properties(self) -> dict[str, str]:
        """The properties of a commit of the configuration before the write, without those that identify the write."""
        identity_keys = {SLICES_KEY, SLICE_NAMES_KEY, *self.commit.identity}
        return {key: value for key, value in self.commit.texts.items() if key not in identity_keys}

    def file_version(self) -> FileVersion:
        """The file version of the fragments; if they have no file, the requested version or the default."""
        for fragment in self.fragments[:1]:
            for file in fragment.files[:1]:
                return FileVersion.from_numbers(file.file_major_version, file.file_minor_version)
        return FileVersion.from_string(self.files.data_storage_version)


def schema_with_added_columns(request: CommitRequest, base: Manifest) -> Schema:
    """The dataset's schema, with the new columns of the request if it adds columns and is not an overwrite."""
    new = lacking_fields(base.schema, request.schema) if request.write.add_columns else []
    return base.schema if not new or request.write.mode == "overwrite" else with_null_columns(base, new)


def adds_columns(request: CommitRequest, base: Manifest) -> bool:
    """Whether an append or replacement adds columns, so that fragments and schema change in one version."""
    return request.write.mode in ("append", "replace") and schema_with_added_columns(request, base) is not base.schema


def merge_with_added_columns(
    request: CommitRequest,
    fragments: Sequence[Fragment],
    source: Snapshot,
    files: UncommittedFiles,
    removal: Removal,
) -> Merge:
    """The Merge that adds columns and fragments, and deletes rows, in one version.

    Only a Merge changes both schema and fragments. It keeps every fragment, even if all of its rows are deleted.

    Args:
        request: The write.
        fragments: The new fragments.
        source: The version that the Merge follows.
        files: Collects the new deletion files.
        removal: The rows to delete.
    """
    base, removed = source.manifest, frozenset(removal.removed_fragment_ids)
    emptied = [
        with_deletions(source, fragment, removal.affected_rows[fragment.id], files)
        for fragment in base.fragments
        if fragment.id in removed
    ]
    make_durable(
        source.store,
        [fragment.deletion_file.key(fragment.id) for fragment in emptied if fragment.deletion_file is not None],
    )
    changed = {fragment.id: fragment for fragment in (*removal.updated_fragments, *emptied)}
    new = number_fragments(fragments, next_fragment_id(base))
    base_fragments = tuple(changed.get(fragment.id, fragment) for fragment in base.fragments)
    return Merge(
        fragments=(*base_fragments, *new), schema=schema_with_added_columns(request, base), preserves_nullability=True
    )


_NAMED = 5
"""The most slices that a message names."""


def check_required_empty(request: CommitRequest, source: Snapshot, attempts: Collection[int]) -> None:
    """Check that the slices of a write with `require_empty` have no rows except those of its earlier attempts.

    Args:
        request: The write.
        source: The version.
        attempts: Versions of earlier attempts of the write.

    Raises:
        DatasetExistsError: A slice has rows of other writes.
    """
    if not request.write.require_empty:
        return
    assert request.write.slices is not None
    rows: RowsByFragment = {}
    if request.attempt is not None and attempts:
        rows, _, beside = rows_of_attempts(source, request.attempt, attempts)
        if beside:
            return  # the caller lets rows stay that cannot be distinguished from those of other writes
    _check_empty(source, request.write.slices, rows)


def _check_empty(source: Snapshot, slices: Slices, attempt_rows: RowsByFragment) -> None:
    """Check that no other rows are in the slices.

    Args:
        source: The version.
        slices: The slices.
        attempt_rows: Rows that are allowed in the slices, as offsets by fragment id.

    Raises:
        DatasetExistsError: Another row is in the slices.
    """
    num_rows = sum(
        len(rows - attempt_rows.get(fragment.id, BitMap())) for fragment, rows in rows_in_slices(source, slices)
    )
    if num_rows:
        names = ", ".join(map(repr, slices.names[:_NAMED])) + (" ..." if len(slices.names) > _NAMED else "")
        raise DatasetExistsError(
            f"{source.store.root}: version {source.manifest.version} has rows in {names} ({num_rows} in all), and "
            "require_empty writes only to empty slices; nothing was written"
        )
