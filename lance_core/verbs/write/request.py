"""The arguments of `commit_fragments` as one record, with their checks and the values derived from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from lance_core.commit import CommitOptions, WriteAttempt
from lance_core.errors import InvalidInputError
from lance_core.file import FileVersion
from lance_core.table.fragment import Fragment
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, SLICE_NAMES_KEY, SLICES_KEY
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.files.slices import Slices

__all__ = ["CommitRequest"]

COMMIT_MODES: Final = ("create", "append", "overwrite", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What to commit: the arguments of `lance_core.commit_fragments`, which describes them."""

    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    mode: str = "append"
    slices: Slices | None = None
    read_version: int | None = None
    identity: str | None = None
    transaction_properties: Mapping[str, str] | None = None
    commit_message: str | None = None
    options: CommitOptions = field(default_factory=CommitOptions)
    table_config: Mapping[str, str] | None = None
    add_columns: bool = False
    initial_bases: Sequence[DatasetBasePath] = ()
    require_empty: bool = False
    first_field_id: int = 0
    """Id of the first field, if the fragments define the columns of the dataset."""

    @property
    def write(self) -> WriteAttempt | None:
        """The attempt of a write that the commit is, if any."""
        return self.options.write_attempt

    @property
    def replaces_others(self) -> bool:
        """Whether the commit replaces rows that other writes have added to the same slices meanwhile."""
        later_wins = self.write is not None and self.write.conflict_policy == "later_wins"
        return later_wins and not self.require_empty and self.mode in ("overwrite", "replace")

    def filled_slices(self) -> tuple[str, ...] | None:
        """The slices whose rows the write replaces, whoever wrote them: empty for all rows; None if there are none."""
        if self.write is None or self.require_empty or self.mode not in ("overwrite", "replace"):
            return None
        return () if self.slices is None else tuple(self.slices.identities())

    def check(self) -> None:
        """Check that the arguments fit together.

        Raises:
            InvalidInputError: The mode is unknown, or two arguments cannot be combined.
            SchemaError: The slices cannot be distinguished in data of this schema.
        """
        if self.mode not in COMMIT_MODES:
            raise InvalidInputError(f"mode must be one of {', '.join(COMMIT_MODES)}, not {self.mode!r}")
        if self.require_empty and self.mode not in ("append", "replace"):
            raise InvalidInputError(f'require_empty needs mode "append" or "replace", not {self.mode!r}')
        if (self.mode == "replace" or self.require_empty) != (self.slices is not None):
            raise InvalidInputError('mode "replace" and require_empty need slices, and nothing else accepts slices')
        if self.slices is not None:
            self.slices.check(self.schema)
        if self.options.idempotency_key is not None and self.options.write_attempt is not None:
            raise InvalidInputError(
                "idempotency_key keeps the first of several commits, write_attempt the last one: give one of them"
            )
        if self.identity is not None and not self.read_version:
            raise InvalidInputError("identity needs read_version, the number of the version that it identifies")

    def properties(self) -> dict[str, str]:
        """The transaction properties of the commit."""
        slices = self.slices
        named = {}
        if slices is not None:
            named = {SLICES_KEY: json.dumps(slices.identities()), SLICE_NAMES_KEY: json.dumps(slices.names)}
        message = {} if self.commit_message is None else {COMMIT_MESSAGE_KEY: self.commit_message}
        return {**dict(self.transaction_properties or {}), **message, **self.options.properties, **named}

    def side_properties(self) -> dict[str, str]:
        """The properties of a commit of the configuration before the write, without those that identify the write."""
        identity_keys = {SLICES_KEY, SLICE_NAMES_KEY, *self.options.properties}
        return {key: value for key, value in self.properties().items() if key not in identity_keys}

    def file_version(self) -> FileVersion:
        """The file version of the fragments; if they have no file, the requested version or the default."""
        for fragment in self.fragments[:1]:
            for file in fragment.files[:1]:
                return FileVersion.from_numbers(file.file_major_version, file.file_minor_version)
        return FileVersion.from_string(self.options.table_format.data_storage_version)
