"""The fragment reuse index: which fragments took the place of which, for indices that were not rewritten along.

Its details, a FragmentReuseIndexDetails message, list per compaction the groups of fragments that were replaced:

    version { dataset_version, groups { changed_row_addrs, old_fragments, new_fragments } }

An index that covers all old fragments of a group covers its new ones by way of this mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.index import FRAGMENT_REUSE_INDEX, IndexMetadata

__all__ = ["live_coverage"]


def live_coverage(indices: Sequence[IndexMetadata]) -> Iterator[tuple[IndexMetadata, BitMap]]:
    """Yield the indices of columns, each with the fragments that it covers by now; one without a record covers none."""
    moves = [move for index in indices if index.name == FRAGMENT_REUSE_INDEX for move in _moves(index)]
    for index in indices:
        if index.is_system:
            continue
        covered = index.covered_fragments() or BitMap()
        for old, new in moves:
            if old <= covered:
                covered = (covered - old) | new
        yield index, covered


def _moves(index: IndexMetadata) -> list[tuple[BitMap, BitMap]]:
    """Old and new fragments of each group, oldest first; none where the details lie in a file of their own."""
    try:
        details = table_pb2.FragmentReuseIndexDetails.FromString(index.details)
    except DecodeError as error:
        raise CorruptFileError("the details of the fragment reuse index cannot be parsed") from error
    return [
        (BitMap(f.id for f in group.old_fragments), BitMap(f.id for f in group.new_fragments))
        for version in details.inline.versions
        for group in version.groups
        if group.old_fragments
    ]
