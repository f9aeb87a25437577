"""Outlines of manifests: the files that a version refers to, at a fraction of the cost of `table.manifest.manifest`.

A cleanup reads every manifest that there is and asks each for names of files only. The schema, the configuration and
the transaction stay unread, and the fragments serialized; see there for the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table import flags
from lance_core.table.index import IndexMetadata, decode_index_section
from lance_core.table.manifest.manifest import message_range, section_at, timestamp_ns_of

__all__ = ["FileReferences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReferences:
    """The files that a version refers to.

    Attributes:
        version: Its number.
        timestamp: When it was committed, in UTC.
        raw_fragments: Its fragments, serialized.
        transaction_file: Name of the transaction file; empty if there is none.
        indices: Its indices.
    """

    version: int
    timestamp: datetime
    raw_fragments: tuple[bytes, ...]
    transaction_file: str = ""
    indices: tuple[IndexMetadata, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, key: str) -> FileReferences:
        """Read a manifest file.

        Args:
            data: The whole file.
            key: Where it lies, for errors.

        Raises:
            CorruptFileError: The bytes are no manifest file.
            UnsupportedError: The manifest needs features that this library does not know, so that what it refers to
                is not known either.
        """
        try:
            view = memoryview(data)
            start, end = message_range(view)
            message = _Outline.FromString(bytes(view[start:end]))
            reader, writer = message.reader_feature_flags, message.writer_feature_flags  # type: ignore[attr-defined]
            flags.check_writable(reader, writer)
            flags.check_field_id_mark(writer, has_mark=message.HasField("max_allocated_field_id"))
            return _outline_of(message, view)
        except (CorruptFileError, DecodeError, ValueError) as error:
            raise CorruptFileError(f"{key}: {error}") from error


def _outline_of(message: Message, view: memoryview) -> FileReferences:
    at = Timestamp.FromString(message.timestamp)  # type: ignore[attr-defined]
    if not isinstance(message.transaction_file, str):  # type: ignore[attr-defined]
        raise CorruptFileError("the name of the transaction file is no text")  # proto2 leaves such bytes as they are
    has_indices = message.HasField("index_section")
    return FileReferences(
        version=message.version,  # type: ignore[attr-defined]
        timestamp=_EPOCH + timedelta(microseconds=timestamp_ns_of(at) // 1000),
        raw_fragments=tuple(message.fragments),  # type: ignore[attr-defined]
        transaction_file=message.transaction_file,  # type: ignore[attr-defined]
        indices=decode_index_section(section_at(view, message.index_section)) if has_indices else (),  # type: ignore[attr-defined]
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _outline_message_class() -> type[Message]:
    """Make a message that has the few fields of a Manifest that are wanted, those of messages as plain bytes."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/manifest_outline.proto", package="lance_core")
    message = file.message_type.add(name="FileReferences")
    for name, kind in (
        ("fragments", kinds.TYPE_BYTES),
        ("version", kinds.TYPE_UINT64),
        ("index_section", kinds.TYPE_UINT64),
        ("timestamp", kinds.TYPE_BYTES),
        ("reader_feature_flags", kinds.TYPE_UINT64),
        ("writer_feature_flags", kinds.TYPE_UINT64),
        ("max_allocated_field_id", kinds.TYPE_INT32),
        ("transaction_file", kinds.TYPE_STRING),
    ):
        number = table_pb2.Manifest.DESCRIPTOR.fields_by_name[name].number
        label = kinds.LABEL_REPEATED if name == "fragments" else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lance_core.FileReferences"))


_Outline = _outline_message_class()
