"""The version that last changed rows or columns, kept in the state of a table that keeps proofs of writes.

    lance-dagster.idempotency.rows   "<version> <version>": that of the change, and that up to which it is the last one

Versions cannot be asked once they are cleaned up. A commit of another library leaves the entry as it was: one such
commit is made up for by the next commit of this one. After several, the entry holds up to the version before them,
until rows change again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lance_core.errors import CorruptFileError

__all__ = ["ROWS_KEY", "RowChange"]

ROWS_KEY: Final = "lance-dagster.idempotency.rows"


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
