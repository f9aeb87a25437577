"""Dictionaries: values as indices into a list of distinct items.

In 2.1 and 2.2 pages the list of items is a buffer of the page (`MiniBlockLayout.dictionary`), and the indices are in
the chunks; `assemble` looks the items up. The format has a `CompressiveEncoding` for dictionaries as well,
but no writer uses it and its bytes are not specified. Its entry in the table of compressions offers no function, so
that reading or writing it is an error that names it.
"""

from __future__ import annotations

from lance_core.encoding.compression.registry import Compression

COMPRESSION = Compression(name="dictionary")
