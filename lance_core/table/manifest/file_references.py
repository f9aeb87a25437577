"""Reads from a manifest only the names of the files that the version refers to, for cleanup.

Cleanup reads every manifest of a dataset, and needs only names of files. The schema, the configuration and the
transaction are not parsed, and the fragments stay serialized. The bytes are drawn in `table.manifest.manifest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table import flags
from lance_core.table.index import IndexMetadata, decode_index_section
from lance_core.table.manifest.manifest import message_range, section_at, timestamp_ns_of
from lance_core.table.partial_message import partial_message

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = (
    "fragments",
    "version",
    "index_section",
    "timestamp",
    "reader_feature_flags",
    "writer_feature_flags",
    "max_allocated_field_id",
    "transaction_file",
)
_PartialManifest: Final = partial_message(table_pb2.Manifest.DESCRIPTOR, dict.fromkeys(_FIELDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReferences:
    """The files that a version refers to.

    Attributes:
        version: Its number.
        timestamp: Time of the commit, in UTC.
        raw_fragments: Its serialized fragments.
        transaction_file: Name of the transaction file; empty if there is none.
        indices: Its indices.
        uses_stable_row_ids: Whether rows keep their ids when they are moved.
        fault: Why the manifest cannot be read: then the files are unknown, and the time is that of the manifest file;
            empty if it can be read.
    """

    version: int
    timestamp: datetime
    raw_fragments: tuple[bytes, ...]
    transaction_file: str = ""
    indices: tuple[IndexMetadata, ...] = ()
    uses_stable_row_ids: bool = False
    fault: str = ""

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, key: str) -> FileReferences:
        """Read a manifest file.

        Args:
            data: The whole file.
            key: Its key, for error messages.

        Raises:
            CorruptFileError: The bytes are not a manifest file.
            UnsupportedError: The manifest has unknown features, and with them possibly unknown references.
        """
        try:
            view = memoryview(data)
            start, end = message_range(view)
            message = _PartialManifest.FromString(bytes(view[start:end]))
            reader, writer = message.reader_feature_flags, message.writer_feature_flags
            flags.check_writable(reader, writer)
            flags.check_field_id_flag(writer, has_mark=message.HasField("max_allocated_field_id"))
            return _references_of(message, view)
        except (CorruptFileError, DecodeError, ValueError) as error:
            raise CorruptFileError(f"{key}: {error}") from error


def _references_of(message: Any, view: memoryview) -> FileReferences:
    at = Timestamp.FromString(message.timestamp)
    if not isinstance(message.transaction_file, str):
        raise CorruptFileError("the name of the transaction file is not UTF-8")  # proto2 leaves such bytes as they are
    has_indices = message.HasField("index_section")
    return FileReferences(
        version=message.version,
        timestamp=_EPOCH + timedelta(microseconds=timestamp_ns_of(at) // 1000),
        raw_fragments=tuple(message.fragments),
        transaction_file=message.transaction_file,
        indices=decode_index_section(section_at(view, message.index_section)) if has_indices else (),
        uses_stable_row_ids=bool(message.reader_feature_flags & flags.STABLE_ROW_IDS),
    )
