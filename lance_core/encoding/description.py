"""The description of a page in the column metadata: a google.protobuf.Any message inside of another."""

from __future__ import annotations

from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding
from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core._proto.file2_pb2 import Encoding

__all__ = ["TYPES", "page_encoding"]

TYPES: Final[dict[str, type[Message]]] = {
    "/lance.encodings.ArrayEncoding": ArrayEncoding,
    "/lance.encodings21.PageLayout": PageLayout,
}
"""The messages that describe pages, by the name in the description."""
_TYPE_URLS: Final = {kind: url for url, kind in TYPES.items()}


def page_encoding(description: Message) -> Encoding:
    """The description of a page for the column metadata; one that has this form already is returned as it is."""
    if isinstance(description, Encoding):
        return description
    wrapped = AnyMessage(type_url=_TYPE_URLS[type(description)], value=description.SerializeToString())
    encoding = Encoding()
    encoding.direct.encoding = wrapped.SerializeToString()
    return encoding
