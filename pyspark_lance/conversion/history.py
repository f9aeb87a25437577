"""The files that a conversion has already converted, from the table's own history.

Each commit of a conversion has these transaction properties:

    pyspark_lance.convert          a digest of the commit's files: the idempotency key, which is committed once
    pyspark_lance.convert.source   a digest of the URI of the source, by which the commits are found
    pyspark_lance.convert.files    20 characters for each file: a digest of its name, and one of its size and time
    pyspark_lance.convert.begins   on the first commit only: older commits do not belong to this conversion
    ... `STREAM_BATCH`             the number of the commit, as that of a batch of a stream

The table's own state keeps the number of the last of these commits. If the versions of some commits were cleaned up,
the files of these commits are unknown.

A file whose name is known, but whose size or time differs, was changed: the table has rows of it that the source lacks.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

import lance_core
from lance_core import LanceDataset
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, UndecidedWriteError
from pyspark_lance.conversion.sources import SourceFiles
from pyspark_lance.writing.committed_batches import STREAM_BATCH

IDEMPOTENCY_KEY: Final = "pyspark_lance.convert"
_SOURCE: Final = f"{IDEMPOTENCY_KEY}.source"
_FILES: Final = f"{IDEMPOTENCY_KEY}.files"
_BEGINS: Final = f"{IDEMPOTENCY_KEY}.begins"
_NAME_BYTES: Final = 9
_STATE_BYTES: Final = 6
_CHARACTERS: Final = (_NAME_BYTES + _STATE_BYTES) * 4 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionHistory:
    """The commits of conversions of a source into a table.

    Attributes:
        source: Digest of the URI of the source.
        dataset: The table; None if it does not exist.
        files: The converted files: digests of their states by digests of their names.
        runs: Number of conversions.
        newest: Version of the last commit; 0 without commits.
        commits: Number of commits of the last conversion.
        committed: Number of commits of all conversions.
        cleaned_up: Version of the last commit, if versions of some commits were cleaned up; None otherwise.
    """

    source: str
    dataset: LanceDataset | None
    files: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    newest: int = 0
    commits: int = 0
    committed: int = 0
    cleaned_up: int | None = None

    @classmethod
    def of(cls, uri: str | PathLike[str], source: str, storage_options: Mapping[str, str] | None) -> ConversionHistory:
        """The history of a table."""
        digest = _digest(lance_core.canonical_uri(source), 16)
        try:
            dataset = lance_core.dataset(uri, storage_options=storage_options)
        except DatasetNotFoundError:
            return cls(source=digest, dataset=None)
        transactions, _ = dataset.find_transactions(_SOURCE, digest)
        last_batch = dataset.committed_batch(_stream(digest))
        commits = [transaction.transaction_properties or {} for _, transaction in sorted(transactions.items())]
        first = [number for number, properties in enumerate(commits) if _BEGINS in properties]
        last = commits[first[-1] if first else 0 :]
        files: dict[str, str] = {}
        for properties in last:
            files.update(_parse_states(properties.get(_FILES, "")))
        return cls(
            source=digest,
            dataset=dataset,
            files=files,
            runs=len(first),
            newest=max(transactions, default=0),
            commits=len(last),
            committed=max(len(transactions), last_batch.number if last_batch is not None else 0),
            cleaned_up=last_batch.version if last_batch is not None and last_batch.number > len(transactions) else None,
        )

    def find_files_to_convert(self, files: SourceFiles, source: str, mode: str) -> tuple[list[str], bool]:
        """The files that remain to be converted, and whether their first commit begins a conversion.

        Raises:
            DatasetExistsError: The mode is "create", and the table was not made by a conversion of this source.
            InvalidInputError: Files of the source were changed or deleted since the conversion began.
            UndecidedWriteError: The files of earlier commits are unknown, because versions were cleaned up.
        """
        if self.cleaned_up is not None and self.dataset is not None:
            if mode == "overwrite":
                return list(files.sizes), True
            raise UndecidedWriteError(
                f"it is unknown which files of {source} were converted to {self.dataset.uri} before: their versions "
                f"were cleaned up (the last one was {self.cleaned_up}). Nothing was written. mode='overwrite' "
                "converts all files again and replaces all rows; pyspark_lance.write adds the rows of some files"
            )
        if self.dataset is None or (mode == "append" and not self.newest):
            return list(files.sizes), True
        if mode == "create" and not self.newest:
            raise DatasetExistsError(
                f"the table {self.dataset.uri} exists, and was not converted from {source}: choose another URI, or"
                " mode='append' or 'overwrite'"
            )
        now = {name: (_digest(name, _NAME_BYTES), _digest(files.state(name), _STATE_BYTES)) for name in files.sizes}
        left = [name for name, (key, _) in now.items() if key not in self.files]
        changed = [name for name, (key, state) in now.items() if self.files.get(key, state) != state]
        deleted = len(self.files.keys() - {key for key, _ in now.values()})
        if mode == "overwrite":
            continues = not changed and not deleted and self.dataset.version == self.newest
            return (left, False) if continues else (list(files.sizes), True)
        # Files of a table format disappear when their rows are written again, in other files.
        if changed or (deleted and (mode == "create" or (left and files.is_table))):
            raise InvalidInputError(_describe_changes(files, source, self.dataset.uri, changed, deleted))
        return left, False

    def properties(self, files: SourceFiles, names: Sequence[str], *, begins: bool, number: int) -> dict[str, str]:
        """The transaction properties of a commit of some files.

        Args:
            files: All files of the source.
            names: Names of the files of the commit.
            begins: Whether the commit begins a conversion.
            number: Number of the commit in this run, from 0.
        """
        file_states = [_digest(name, _NAME_BYTES) + _digest(files.state(name), _STATE_BYTES) for name in names]
        batch = json.dumps([_stream(self.source), self.committed + number + 1])
        properties = {_SOURCE: self.source, _FILES: "".join(file_states), STREAM_BATCH: batch}
        return properties | ({_BEGINS: "true"} if begins else {})

    def token(self, files: SourceFiles, names: Iterable[str], *, run: int) -> str:
        """The value of the idempotency key of the commit of these files in a run."""
        return _digest("\n".join([self.source, str(run), *(f"{name}\t{files.state(name)}" for name in names)]), 18)


def _describe_changes(files: SourceFiles, source: str, uri: str, changed: Sequence[str], deleted: int) -> str:
    """The message about files that were changed or deleted after they were converted."""
    if files.is_whole:
        return (
            f"{source} has another version than the one that was converted to {uri}, and Spark's reader does not say"
            " which of its rows are new. mode='overwrite' converts all rows again; pyspark_lance.write(rows, uri,"
            " mode='append') adds rows that you select. Nothing was written"
        )
    what = f"{len(changed)} files were changed, such as {changed[0]}" if changed else f"{deleted} files were deleted"
    return (
        f"{source} has changed since its conversion to {uri} began: {what}, and the table has their old rows."
        " mode='overwrite' converts all files again"
    )


def _stream(source: str) -> str:
    return f"{IDEMPOTENCY_KEY}.{source}"


def _parse_states(value: str) -> Iterable[tuple[str, str]]:
    parts = [value[start : start + _CHARACTERS] for start in range(0, len(value), _CHARACTERS)]
    middle = _NAME_BYTES * 4 // 3
    return [(part[:middle], part[middle:]) for part in parts]


def _digest(value: str, size: int) -> str:
    """A digest of `size` bytes, in four characters for each three."""
    return base64.urlsafe_b64encode(hashlib.blake2b(value.encode(), digest_size=size).digest()).decode().rstrip("=")
