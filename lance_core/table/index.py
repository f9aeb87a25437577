"""Records of index segments in manifests, and the rules by which commits change the fragments that they cover.

Fragment bitmaps are immutable facts about the index's content: ids of deleted fragments stay in them, and are masked by
the live fragments when an index is used. An index that no longer covers a fragment is merely slower.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.fragment import WireRecord

_LAST_MS = 250_000_000_000_000  # the year 9892
_UUID_BYTES = 16

FRAGMENT_REUSE_INDEX = "__lance_frag_reuse"
MEM_WAL_INDEX = "__lance_mem_wal"

SYSTEM_PREFIX = "__lance_"
"""Start of the names of Lance's own indices, which both libraries read by their names."""

RECORD_PREFIX = "lance-dagster.index."
"""Start of the entries of a configuration in which maintenance records what it did to an index; its name follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile(WireRecord):
    """A file of an index.

    Attributes:
        path: Path below the index's directory.
        size_bytes: Its size.
    """

    path: str
    size_bytes: int

    message = table_pb2.IndexFile


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMetadata(WireRecord):
    """One segment of an index.

    Attributes:
        uuid: Name of its directory below `_indices/`.
        name: Name of the index; several segments can share it.
        fields: Ids of the indexed fields; empty for system indices.
        dataset_version: Version that the index was built on.
        fragment_bitmap: Serialized 32-bit roaring bitmap of the fragments that it covers; None if not recorded.
        details_type_url: Type of `details`; empty if the index has none.
        details: Serialized details, which depend on the index's type.
        index_version: Version of the index's own format.
        created_at_ms: Time of creation, milliseconds since the epoch.
        base_id: Base path of its files; None for the dataset itself.
        files: Its files.
        covering_fields: Ids of stored fields besides the indexed ones.
    """

    uuid: uuid.UUID
    name: str
    fields: tuple[int, ...]
    dataset_version: int
    fragment_bitmap: bytes | None = None
    details_type_url: str = ""
    details: bytes = b""
    index_version: int | None = None
    created_at_ms: int | None = None
    base_id: int | None = None
    files: tuple[IndexFile, ...] = ()
    covering_fields: tuple[int, ...] = ()

    message = table_pb2.IndexMetadata

    @property
    def is_system(self) -> bool:
        """Whether the index holds bookkeeping data rather than values of columns."""
        return self.name in (FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX)

    @property
    def is_vector(self) -> bool:
        """Whether the index is for vector search."""
        return self.details_type_url.endswith("VectorIndexDetails")

    @property
    def kind(self) -> str:
        """The kind of the index, by the type of its details: `/lance.table.BTreeIndexDetails` is a BTree.

        A vector index is named by its details, for example IVF_PQ; without details it is a Vector.
        """
        kind = self.details_type_url.rpartition(".")[2].removesuffix("IndexDetails") or "Unknown"
        if not (self.is_vector and self.details):
            return kind
        try:
            details = table_pb2.VectorIndexDetails.FromString(self.details)
        except DecodeError as error:
            raise CorruptFileError(f"index {self.name!r}: its details cannot be parsed") from error
        compression = details.WhichOneof("compression") or "flat"
        return "_".join(["IVF", *(["HNSW"] if details.HasField("hnsw") else []), compression.upper()])

    @property
    def holds_row_ids(self) -> bool:
        """Whether, in a dataset with stable row ids, the index holds row ids rather than row addresses."""
        kind = self.details_type_url.rpartition(".")[2]
        if kind == "BTreeIndexDetails":
            return (self.index_version or 0) < 1
        return kind not in ("ZoneMapIndexDetails", "BloomFilterIndexDetails")

    def covered_fragments(self) -> BitMap | None:
        """Return the ids of the fragments that the index covers; None if not recorded."""
        if self.fragment_bitmap is None:
            return None
        try:
            return BitMap.deserialize(self.fragment_bitmap)
        except ValueError as error:
            raise CorruptFileError(f"index {self.name!r}: its fragment bitmap is not a roaring bitmap") from error

    def to_protobuf(self) -> table_pb2.IndexMetadata:
        """Return the message of the wire."""
        message = table_pb2.IndexMetadata(
            uuid=table_pb2.UUID(uuid=self.uuid.bytes),
            fields=self.fields,
            name=self.name,
            dataset_version=self.dataset_version,
            fragment_bitmap=self.fragment_bitmap or b"",
            index_version=self.index_version,
            created_at=self.created_at_ms,
            base_id=self.base_id,
            files=[file.to_protobuf() for file in self.files],
            covering_fields=self.covering_fields,
        )
        if self.details_type_url:
            message.index_details.type_url, message.index_details.value = self.details_type_url, self.details
        return message

    @classmethod
    def from_protobuf(cls, message: table_pb2.IndexMetadata) -> IndexMetadata:
        """Build the record from its protobuf message.

        Raises:
            CorruptFileError: The UUID or the time is invalid.
        """
        if len(message.uuid.uuid) != _UUID_BYTES:
            raise CorruptFileError(f"index {message.name!r}: its UUID has {len(message.uuid.uuid)} bytes instead of 16")
        if message.created_at >= _LAST_MS:
            raise CorruptFileError(
                f"index {message.name!r}: its time of creation, {message.created_at} ms after 1970, is too late"
            )
        return cls(
            uuid=uuid.UUID(bytes=message.uuid.uuid),
            name=message.name,
            fields=tuple(message.fields),
            dataset_version=message.dataset_version,
            fragment_bitmap=message.fragment_bitmap or None,
            details_type_url=message.index_details.type_url,
            details=message.index_details.value,
            index_version=message.index_version if message.HasField("index_version") else None,
            created_at_ms=message.created_at if message.HasField("created_at") else None,
            base_id=message.base_id if message.HasField("base_id") else None,
            files=tuple(IndexFile.from_protobuf(file) for file in message.files),
            covering_fields=tuple(message.covering_fields),
        )


def encode_index_section(indices: Iterable[IndexMetadata]) -> bytes:
    """Serialize the index section of a manifest file, without its length."""
    return table_pb2.IndexSection(indices=[index.to_protobuf() for index in indices]).SerializeToString()


def decode_index_section(data: bytes) -> tuple[IndexMetadata, ...]:
    """Read the index section of a manifest file, without its length."""
    return tuple(IndexMetadata.from_protobuf(message) for message in table_pb2.IndexSection.FromString(data).indices)


def with_bitmap(index: IndexMetadata, change: Callable[[BitMap], BitMap]) -> IndexMetadata:
    """Return the index with a changed fragment bitmap; an index without a bitmap stays as it is."""
    covered = index.covered_fragments()
    return index if covered is None else replace(index, fragment_bitmap=change(covered).serialize())
