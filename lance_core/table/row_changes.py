"""The version that last changed rows or columns, and the table's id, in the state of a table that keeps proofs.

    lance-dagster.idempotency.rows   "<version> <version>": that of the change, and that up to which it is the last one
    lance-dagster.idempotency.table  an id: a table that is dropped and made again gets another one

Versions cannot be asked once they are cleaned up. A commit of another library leaves the entry as it was: one such
commit is made up for by the next commit of this one. After several, the entry holds up to the version before them,
until rows change again. A table gets its id by the first change of rows that keeps proofs, and has it until it is
dropped, on all branches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lance_core.errors import CorruptFileError

ROWS_KEY: Final = "lance-dagster.idempotency.rows"
TABLE_KEY: Final = "lance-dagster.idempotency.table"

_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """The last change of rows that a table has recorded.

    Attributes:
        version: The version that changed rows.
        known_to: The version up to which no other version did.
    """

    version: int
    known_to: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> RowChange | None:
        """Read the entry of a table's configuration; None without an entry.

        Raises:
            CorruptFileError: The entry cannot be parsed.
        """
        value = config.get(ROWS_KEY)
        if value is None:
            return None
        parts = value.split(" ")
        if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
            raise CorruptFileError(
                f"configuration {ROWS_KEY!r} cannot be read: {value[:80]!r}. It is written by commits only; remove it"
            )
        return cls(version=int(parts[0]), known_to=int(parts[1]))

    @property
    def entry(self) -> dict[str, str]:
        """The entry of the configuration."""
        return {ROWS_KEY: f"{self.version} {self.known_to}"}

    def identified(self, config: Mapping[str, str], version: int, made_by: str) -> dict[str, str]:
        """The entry with the table's id, and a new one if this change of rows is the first that keeps proofs.

        Args:
            config: The configuration before the change.
            version: The version that is committed.
            made_by: What only this commit has, such as its time and the file of its transaction.
        """
        if TABLE_KEY in config:
            return {TABLE_KEY: config[TABLE_KEY]}
        return {TABLE_KEY: hashlib.sha256(made_by.encode()).hexdigest()[:_ID_DIGITS]} if self.version == version else {}

    def kept_in(self, version: int, before_changes_rows: bool | None) -> RowChange:
        """The entry of a version that changes no rows.

        Args:
            version: The version.
            before_changes_rows: Whether the version before it changed rows, if the entry is known to the version before
                that one only; None if that is not known.
        """
        if self.known_to == version - 1:
            return RowChange(version=self.version, known_to=version)
        if self.known_to == version - 2 and before_changes_rows is not None:
            return RowChange(version=version - 1 if before_changes_rows else self.version, known_to=version)
        return self
