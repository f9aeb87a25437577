"""Recognizes pages of 2.2 files in the draft form of 2.2, which pylance 0.35 to 1.0 wrote.

    mini-block, has_large_chunk     2.2: chunks are described by u32
    mini-block without it           the draft, and 2.1: chunks are described by u16

This library reads both; the reference library rejects files of 2.2 with such pages.
"""

from __future__ import annotations

from google.protobuf.message import Message

from lance_core._proto.encodings_v2_1_pb2 import PageLayout

__all__ = ["is_draft"]


def is_draft(description: Message) -> bool:
    """Whether a page of a 2.2 file has the chunks of 2.1."""
    if not isinstance(description, PageLayout):
        return False
    if description.HasField("blob_layout"):
        description = description.blob_layout.inner_layout
    return description.HasField("mini_block_layout") and not description.mini_block_layout.has_large_chunk
