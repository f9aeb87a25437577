"""What `commit_fragments` commits: the fragments, what is written (`Write`), and how it is committed (`Commit`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from lance_core.commit import Commit, WriteAttempt
from lance_core.errors import InvalidInputError
from lance_core.file import FileVersion
from lance_core.table.fragment import Fragment
from lance_core.table.table_format import TableFormat
from lance_core.table.transaction import SLICE_NAMES_KEY, SLICES_KEY
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.files.slices import Slices

__all__ = ["CommitRequest", "Write"]

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
        if self.slices is None:
            return {}
        return {SLICES_KEY: json.dumps(self.slices.identities()), SLICE_NAMES_KEY: json.dumps(self.slices.names)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What to commit: the arguments of `lance_core.commit_fragments`, which describes them.

    Attributes:
        first_field_id: Id of the first field, if the fragments define the columns of the dataset.
    """

    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    write: Write
    commit: Commit = field(default_factory=Commit)
    read_version: int | None = None
    identity: str | None = None
    table_config: Mapping[str, str] | None = None
    table_format: TableFormat = field(default_factory=TableFormat)
    initial_bases: Sequence[DatasetBasePath] = ()
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
        return FileVersion.from_string(self.table_format.data_storage_version)
