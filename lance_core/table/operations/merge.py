"""Merge: add columns, or replace them by others with new ids; it may also add fragments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from pyroaring import BitMap

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.schema import Schema
from lance_core.table import flags
from lance_core.table.fragment import Fragment, WireRecord
from lance_core.table.fragment_list import FragmentList
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, check_not_empty_files, retained_indices, the_manifest
from lance_core.table.reuse import trimmed, without_replaced
from lance_core.table.rowids import assign_row_ids, decode_row_ids, encode_versions, with_last_updated, with_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(WireRecord):
    """Replace the schema and the complete fragment list.

    Attributes:
        fragments: All fragments of the new version, with their ids.
        schema: The new schema.
        preserves_nullability: Whether new columns are nullable, so that concurrent appends stay valid.
        updated_rows: Offsets of the rows that got values, by fragment id; None for all rows of each fragment whose
            files changed. It is not part of the message of the wire.
        first_row_id: The stable row id of the next new row in a dataset that gets stable row ids, those of its rows
            being in `fragments`; None for any other change. It is not part of the message of the wire.
    """

    fragments: tuple[Fragment, ...]
    schema: Schema
    preserves_nullability: bool = False
    updated_rows: Mapping[int, BitMap] | None = field(default=None, compare=False)
    first_row_id: int | None = field(default=None, compare=False)

    name: ClassVar[str] = "Merge"
    wire_name: ClassVar[str] = "merge"
    message = transaction_pb2.Transaction.Merge

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Set schema and fragments; all fragments must be kept. Rows that got values count as updated."""
        base = the_manifest(manifest, self.name)
        check_not_empty_files(self.fragments)
        lost = set(base.fragments.ids) - {fragment.id for fragment in self.fragments}
        if lost:
            raise InvalidInputError(f"Merge operation must keep all fragments, but fragment {min(lost)} is missing")
        merged = (fragment.without_dead_files() for fragment in self.fragments)
        touched = [
            self._record_change(fragment, base.fragments.get(fragment.id), context.version) for fragment in merged
        ]
        next_row_id = base.next_row_id
        if base.uses_stable_row_ids:
            touched, next_row_id = _assign_row_ids(touched, base, context.version)
        fragments = FragmentList([]).changed(added=touched)
        result = replace(
            base,
            schema=self.schema,
            fragments=fragments,
            next_row_id=next_row_id,
            indices=without_replaced(base.indices, base.fragments, fragments, base.schema),
        )
        if self.first_row_id is not None:
            result = replace(
                result,
                next_row_id=max(base.next_row_id, self.first_row_id),
                reader_flags=base.reader_flags | flags.STABLE_ROW_IDS,
                writer_flags=base.writer_flags | flags.STABLE_ROW_IDS,
                indices=trimmed(result.indices),
            )
        return replace(result, indices=retained_indices(result))

    def _record_change(self, fragment: Fragment, before: Fragment | None, version: int) -> Fragment:
        """Record this version as the last change of the rows of a fragment whose files changed."""
        unchanged = before is not None and before.files == fragment.files
        if unchanged or fragment.last_updated_at_versions is None:
            return fragment
        if self.updated_rows is not None and before is not None:
            return with_last_updated(fragment, self.updated_rows.get(fragment.id, BitMap()), version)
        versions = encode_versions(np.full(fragment.physical_rows, version, np.uint64))
        return replace(fragment, last_updated_at_versions=versions)


def _assign_row_ids(fragments: list[Fragment], base: Manifest, version: int) -> tuple[list[Fragment], int]:
    """Give ids to the rows of fragments that are new."""
    base_ids = set(base.fragments.ids)
    added = [fragment for fragment in fragments if fragment.id not in base_ids]
    new = [fragment for fragment in added if fragment.row_ids is None]
    assigned_ids = [decode_row_ids(fragment.row_ids) for fragment in added if fragment.row_ids is not None]
    # Rows of a branch have ids of their own, which are in use from now on.
    free = max([base.next_row_id, *(int(ids.max()) + 1 for ids in assigned_ids if len(ids))])
    numbered, next_row_id = assign_row_ids(new, free)
    numbered_by_id = {fragment.id: with_versions(fragment, version) for fragment in numbered}
    return [numbered_by_id.get(fragment.id, fragment) for fragment in fragments], next_row_id
