"""Reads what lists of versions show of a version, and what can be read of a version with unknown features.

The entry of a list has the version's number, its time, and counters over its fragments. Most fragments of a version are
those of the version before. Manifests are parsed by a message that keeps fragments as bytes, and each distinct fragment
is counted once.

If a version has an unknown feature flag, its rows cannot be read. Its time and its transaction can: no feature changes
how they are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table import flags
from lance_core.table.manifest.manifest import message_range, timestamp_ns_of, transaction_section
from lance_core.table.partial_message import partial_message
from lance_core.times import since_epoch

_COUNTERS: Final = (
    "total_data_file_rows",
    "total_data_files",
    "total_deletion_file_rows",
    "total_deletion_files",
    "total_files_size",
)
_PartialManifest: Final = partial_message(
    table_pb2.Manifest.DESCRIPTOR,
    {
        "version": None,
        "reader_feature_flags": None,
        "writer_version": None,
        "fragment_tree": None,
        "fragments": None,
        "timestamp": {"seconds": None, "nanos": None},
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One version in a list of versions.

    Attributes:
        version: Its number.
        timestamp_ns: Time of the commit, nanoseconds since the epoch.
        counters: Numbers of files, rows and bytes, under pylance's names; empty if the version has unknown features.
        fault: Why the manifest cannot be read; the time is then that of the file. Empty if it can be read.
    """

    version: int
    timestamp_ns: int
    counters: dict[str, int]
    fault: str = ""

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, counter: FragmentCounter) -> VersionSummary | None:
        """Read a manifest file.

        Args:
            data: The whole file.
            counter: The counter of its fragments.

        Returns:
            The summary; None if the counters need the whole manifest.

        Raises:
            CorruptFileError: The bytes are not a manifest file.
        """
        view = memoryview(data)
        start, end = message_range(view)
        try:
            message: Any = _PartialManifest.FromString(bytes(view[start:end]))
        except DecodeError as error:
            raise CorruptFileError(str(error)) from error
        # Writers without a recorded version wrote wrong numbers of rows.
        if not flags.is_readable(message.reader_feature_flags) or message.fragment_tree or not message.writer_version:
            return None
        return cls(
            version=message.version,
            timestamp_ns=timestamp_ns_of(message.timestamp),
            counters=counter.totals(message.fragments),
        )


class FragmentCounter(dict[bytes, tuple[int, int, int, int, int]]):
    """Adds up counters of serialized fragments, and caches those of each fragment."""

    def __missing__(self, raw: bytes) -> tuple[int, int, int, int, int]:
        try:
            message = table_pb2.DataFragment.FromString(raw)
        except DecodeError as error:
            raise CorruptFileError("a fragment of the manifest cannot be parsed") from error
        counts = self[raw] = (
            message.physical_rows,
            len(message.files),
            message.deletion_file.num_deleted_rows,
            int(message.HasField("deletion_file")),
            sum(file.file_size_bytes for file in message.files),
        )
        return counts

    def totals(self, fragments: Iterable[bytes]) -> dict[str, int]:
        """The counters of a version with these fragments."""
        columns = list(zip(*map(self.__getitem__, fragments), strict=True)) or [()] * len(_COUNTERS)
        totals = dict(zip(_COUNTERS, map(sum, columns), strict=True))
        totals["total_fragments"] = len(columns[0])
        totals["total_rows"] = totals["total_data_file_rows"] - totals["total_deletion_file_rows"]
        return totals


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
