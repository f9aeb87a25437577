"""Operations that this library does not know: they occur in histories and conflict with every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from lance_core.errors import UnsupportedError
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperation:
    """An operation of a newer library, or one with parts that this library does not read.

    Attributes:
        described: A description for error messages.
    """

    described: str

    name: ClassVar[str] = "Unknown"
    wire_name: ClassVar[str] = ""

    def to_protobuf(self) -> NoReturn:
        """Reject writing an operation that is not known.

        Raises:
            UnsupportedError: The operation is not known.
        """
        raise UnsupportedError(f"operation {self.described} cannot be written")

    @classmethod
    def from_protobuf(cls, message: object) -> NoReturn:
        """Reject reading an operation that is not known.

        Raises:
            UnsupportedError: The operation is not known.
        """
        raise UnsupportedError(f"operation {type(message).__name__} cannot be read")

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> NoReturn:
        """Reject applying an operation that is not known.

        Raises:
            UnsupportedError: The operation is not known.
        """
        del manifest, context
        raise UnsupportedError(f"operation {self.described} cannot be applied")
