"""What a conversion has done already, from the table's own history.

Each commit of a conversion carries three or four texts:

    pyspark_lance.convert          a digest of the commit's files, which lands once
    pyspark_lance.convert.source   a digest of the URI of the source, by which the commits are found
    pyspark_lance.convert.files    20 characters for each file: a digest of its name, and one of its size and time
    pyspark_lance.convert.begins   on the first commit: older ones are not of this conversion

How many such commits there are is kept in the table's own state, as the batches of a stream: where versions of them
were cleaned up, it is not known any more which files they brought.

A file whose name is known and whose size or time differ was changed: the table has rows of it that the source has not.
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
from pyspark_lance.writing.landed_batches import STREAM_BATCH

__all__ = ["IDEMPOTENCY_KEY", "ConversionHistory"]

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
        dataset: The table; None if there is none.
        files: What was converted: states by names, as digests.
        runs: How many conversions were begun.
        newest: Version of the last commit; 0 if there is none.
        commits: Commits of the last conversion.
        landed: Commits of all conversions.
        gone: Version of the last commit, if some of them were cleaned up.
    """

    source: str
    dataset: LanceDataset | None
    files: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    newest: int = 0
    commits: int = 0
    landed: int = 0
    gone: int | None = None

    @classmethod
    def of(cls, uri: str | PathLike[str], source: str, storage_options: Mapping[str, str] | None) -> ConversionHistory:
        """The history of a table."""
        digest = _digest(lance_core.canonical_uri(source), 16)
        try:
            dataset = lance_core.dataset(uri, storage_options=storage_options)
        except DatasetNotFoundError:
            return cls(source=digest, dataset=None)
        found, _ = dataset.find_transactions(_SOURCE, digest)
        known = dataset.landed_batch(_stream(digest))
        texts = [one.transaction_properties or {} for _, one in sorted(found.items())]
        begun = [number for number, properties in enumerate(texts) if _BEGINS in properties]
        last = texts[begun[-1] if begun else 0 :]
        files: dict[str, str] = {}
        for properties in last:
            files.update(_known(properties.get(_FILES, "")))
        return cls(
            source=digest,
            dataset=dataset,
            files=files,
            runs=len(begun),
            newest=max(found, default=0),
            commits=len(last),
            landed=max(len(found), known.number if known is not None else 0),
            gone=known.version if known is not None and known.number > len(found) else None,
        )

    def left(self, files: SourceFiles, source: str, mode: str) -> tuple[list[str], bool]:
        """The files that are still to be converted, and whether the first commit of them begins a conversion.

        Raises:
            DatasetExistsError: The mode is "create", and the table is not one of a conversion of this source.
            InvalidInputError: The source is not what it was when the conversion was begun.
            UndecidedWriteError: Which files were converted is not known any more.
        """
        if self.gone is not None and self.dataset is not None:
            if mode == "overwrite":
                return list(files.sizes), True
            raise UndecidedWriteError(
                f"which files of {source} were converted to {self.dataset.uri} before is not known any more: versions "
                f"that did so were cleaned up (the last one was {self.gone}). Nothing was written. mode='overwrite' "
                "converts all files again, in the place of all rows; pyspark_lance.write adds the rows of some"
            )
        if self.dataset is None or (mode == "append" and not self.newest):
            return list(files.sizes), True
        if mode == "create" and not self.newest:
            raise DatasetExistsError(
                f"there is a table at {self.dataset.uri} already, and not one of a conversion of {source}"
            )
        now = {name: (_digest(name, _NAME_BYTES), _digest(files.state(name), _STATE_BYTES)) for name in files.sizes}
        left = [name for name, (key, _) in now.items() if key not in self.files]
        changed = [name for name, (key, state) in now.items() if self.files.get(key, state) != state]
        gone = len(self.files.keys() - {key for key, _ in now.values()})
        if mode == "overwrite":
            goes_on = not changed and not gone and self.dataset.version == self.newest
            return (left, False) if goes_on else (list(files.sizes), True)
        if changed or (gone and mode == "create"):
            what = f"{changed[0]} and {len(changed) - 1} more files" if changed else f"{gone} of its files"
            raise InvalidInputError(
                f"{source} is not what it was when its conversion to {self.dataset.uri} was begun: {what} have changed"
                " or gone, and the table has their rows. mode='overwrite' begins again"
            )
        return left, False

    def properties(self, files: SourceFiles, names: Sequence[str], *, begins: bool, number: int) -> dict[str, str]:
        """The texts of a commit of some files.

        Args:
            files: All files of the source.
            names: Those of the commit.
            begins: Whether it begins a conversion.
            number: Number of the commit in this run, from 0.
        """
        known = [_digest(name, _NAME_BYTES) + _digest(files.state(name), _STATE_BYTES) for name in names]
        batch = json.dumps([_stream(self.source), self.landed + number + 1])
        texts = {_SOURCE: self.source, _FILES: "".join(known), STREAM_BATCH: batch}
        return texts | ({_BEGINS: "true"} if begins else {})

    def token(self, files: SourceFiles, names: Iterable[str], *, run: int) -> str:
        """The text that only one commit of these files in a run can carry."""
        return _digest("\n".join([self.source, str(run), *(f"{name}\t{files.state(name)}" for name in names)]), 18)


def _stream(source: str) -> str:
    return f"{IDEMPOTENCY_KEY}.{source}"


def _known(text: str) -> Iterable[tuple[str, str]]:
    parts = [text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS)]
    middle = _NAME_BYTES * 4 // 3
    return [(part[:middle], part[middle:]) for part in parts]


def _digest(text: str, size: int) -> str:
    """So many bytes as text, in four characters for each three."""
    return base64.urlsafe_b64encode(hashlib.blake2b(text.encode(), digest_size=size).digest()).decode().rstrip("=")
