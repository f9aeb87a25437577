"""Reads the number, time and transaction of a version, even if the version has unknown features.

If a version has an unknown feature flag, its rows cannot be read. Its time and its transaction can: no feature changes
how they are recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.manifest.manifest import message_range, timestamp_ns_of, transaction_section
from lance_core.times import since_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionHeader:
    """A version without its content.

    Attributes:
        version: Its number.
        timestamp_ns: Time of the commit, nanoseconds since the epoch.
        transaction_file: Name of the transaction file; empty if there is none.
        transaction_bytes: The inline transaction, serialized; None if there is none.
    """

    version: int
    timestamp_ns: int
    transaction_file: str = ""
    transaction_bytes: bytes | None = field(default=None, repr=False)

    @property
    def timestamp(self) -> datetime:
        """When the version was committed, in UTC."""
        return since_epoch(self.timestamp_ns)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, key: str) -> VersionHeader:
        """Read a manifest file, whatever its feature flags are.

        Args:
            data: The whole file.
            key: Its key, for error messages.

        Raises:
            CorruptFileError: The bytes are not a manifest file.
        """
        try:
            view = memoryview(data)
            start, end = message_range(view)
            message = table_pb2.Manifest.FromString(bytes(view[start:end]))
            return cls(
                version=message.version,
                timestamp_ns=timestamp_ns_of(message.timestamp),
                transaction_file=message.transaction_file,
                transaction_bytes=transaction_section(message, view),
            )
        except (CorruptFileError, DecodeError) as error:
            raise CorruptFileError(f"{key}: {error}") from error
