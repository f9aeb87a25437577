"""Compute a merge on one version: join by key, then move, delete and insert rows, or rewrite columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.errors import InvalidInputError
from lance_core.file.pool import in_order
from lance_core.index.selection.candidates import Selection
from lance_core.index.selection.claims import Claim
from lance_core.row_addresses import bitmap_of
from lance_core.schema import Schema, schema_to_arrow, typed_schema
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.operations import KeyExistenceFilter, Update, UpdateMode
from lance_core.table.rowids import U64Array, decode_row_ids_of
from lance_core.verbs.context.bases import WriteTarget
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.column_files import patch_rows, replace_columns, write_column_file
from lance_core.verbs.files.conform import check_external, external_prefixes
from lance_core.verbs.files.null_rows import check_lacking_columns
from lance_core.verbs.rows.merge_clauses import (
    MergeClauses,
    MergeSource,
    WhenMatched,
    is_updated,
    primary_key,
    with_old_fields,
)
from lance_core.verbs.rows.removal import MovedRows, Removal, live_rows, matching_rows, remove_rows
from lance_core.verbs.rows.source_rows import KeyIndex, inserted_keys
from lance_core.verbs.rows.write_mode import (
    WriteMode,
    can_replace_columns,
    check_columns_can_be_replaced,
    writes_less_by_columns,
)
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.plan import parts_of, until_consistent
from lance_core.verbs.scan.projection import described_columns
from lance_core.verbs.scan.read_fragment import parallel_requests, read_fragment

Rows = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class MergeStats:
    """How many rows a merge inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counters under pylance's names."""
        return {"num_inserted_rows": self.inserted, "num_updated_rows": self.updated, "num_deleted_rows": self.deleted}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merge that is ready to be committed.

    Attributes:
        operation: The change.
        removal: The rows that the change removes, including updated rows, which move; None if it rewrites columns.
        stats: Numbers of inserted, updated and deleted rows.
    """

    operation: Update
    removal: Removal | None
    stats: MergeStats

    def new_files(self, base: Snapshot) -> list[DataFile]:
        """The data files that were written: those of new fragments, and of columns that were rewritten."""
        old = {file.path for fragment in base.manifest.fragments for file in fragment.files}
        fragments = (*self.operation.updated_fragments, *self.operation.new_fragments)
        return [file for fragment in fragments for file in fragment.files if file.path not in old]


@dataclass(frozen=True, slots=True)
class _Match:
    """The rows of a fragment whose key is in the source.

    Attributes:
        fragment: The fragment.
        offsets: The ascending offsets of the rows; a row is repeated if several source rows have its key.
        source_rows: For each of them, the number of the source row.
        unmatched_rows: Live rows whose key is not in the source; empty unless the merge deletes such rows.
    """

    fragment: Fragment
    offsets: Rows
    source_rows: Rows
    unmatched_rows: BitMap


@dataclass(slots=True, kw_only=True)
class MergeAttempt:
    """One attempt at a merge.

    Attributes:
        base: The version.
        clauses: What to do.
        rows: The source.
        files: Collects the files that are written.
        targets: The targets to which new files are written, round-robin; None for the dataset's root.
        data_storage_version: Version of new files; None for the dataset's.
        stats: Numbers of rows so far.
    """

    base: Snapshot
    clauses: MergeClauses
    rows: MergeSource
    files: UncommittedFiles
    targets: Sequence[WriteTarget] | None
    data_storage_version: str | None
    stats: MergeStats = field(default_factory=MergeStats)

    def run(self) -> Merged:
        """Compute the merge and write its files.

        Raises:
            InvalidInputError: The clauses forbid a match, or several source rows match one row of the dataset.
        """
        index = KeyIndex(self.rows.rows.select(self.clauses.on), self.clauses.on)
        self.rows.rows.release()
        deletes = self.clauses.source_deletes
        if deletes is not None and len(deletes) != len(index.codes):
            raise InvalidInputError(
                f"source_deletes has {len(deletes)} values, but the source has {len(index.codes)} rows"
            )
        matches = self._join(index)
        present = np.zeros(len(index.counts), np.bool_)
        for match in matches:
            present[index.codes[match.source_rows]] = True
        matches = [self._find_acting(index, match) for match in matches]
        self._check(matches)
        new = np.flatnonzero(~np.append(present, False)[index.codes]) if self.clauses.inserts else np.zeros(0, np.int64)
        new = new if deletes is None else new[~deletes[new]]
        self._check_inserted(index, new)
        return (
            self._rewrite_columns(matches, new) if self._writes_columns(matches) else self._rewrite_rows(matches, new)
        )

    def _writes_columns(self, matches: Sequence[_Match]) -> bool:
        """Whether updated rows are stored as new files with only the source's columns, so that the rows do not move.

        An index of the key then stays complete; pylance does the same if it looks the keys up in an index.
        """
        mode, clauses, manifest = self.clauses.write_mode, self.clauses, self.base.manifest
        changed = [match.fragment for match in matches if len(match.offsets)]
        if mode is WriteMode.FEWEST_BYTES:
            changes = [(match.fragment, match.offsets) for match in matches if len(match.offsets)]
            return self.rows.fits_columns and writes_less_by_columns(self.base, changes, self._value_columns())
        if mode is WriteMode.REWRITE_COLUMNS:
            check_columns_can_be_replaced(manifest, changed, self._value_columns())
        if mode is not WriteMode.AUTO:
            return mode is WriteMode.REWRITE_COLUMNS
        deletes = clauses.deletes_others or clauses.source_deletes is not None
        if not self.rows.missing.fields or deletes or clauses.matched is WhenMatched.DELETE:
            return False
        if clauses.inserts and manifest.data_storage_version == "0.1":
            return False  # files of 0.1 have all columns
        if not can_replace_columns(manifest, changed, self._value_columns()):
            return False
        exact = {i.fields for i in manifest.indices if i.kind in ("BTree", "Bitmap")}
        return clauses.use_index and all((field_id,) in exact for field_id in self._field_ids(clauses.on))

    def _join(self, index: KeyIndex) -> list[_Match]:
        """Look up the keys of live rows, several fragments at a time; an index may exclude fragments."""

        def look(part: tuple[Fragment, BitMap | None], claim: Claim | None) -> _Match:
            fragment, possible = part
            offsets, codes, unmatched_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], BitMap()
            for batch, places in live_rows(self.base, fragment, self.clauses.on, possible):
                rows, numbers = index.look_up(pa.Table.from_batches([batch]))
                if claim is not None and len(rows) < len(places):
                    strange = np.setdiff1d(np.arange(len(places)), rows)
                    claim.reject(fragment.id, int(places[strange[0]]))
                offsets.append(rows + places.start if isinstance(places, range) else places[rows])
                codes.append(numbers)
                if self.clauses.deletes_others:
                    unmatched_rows |= BitMap(places) if isinstance(places, range) else bitmap_of(places)
            matched_offsets = np.concatenate(offsets)
            unmatched_rows -= bitmap_of(matched_offsets)
            if unmatched_rows and self.clauses.delete_condition is not None:
                described = described_columns(self.base.manifest)
                condition = to_condition(self.clauses.delete_condition, described or self.base.manifest.schema)
                unmatched_rows &= matching_rows(self.base, fragment, condition, described)
            repeats, source_rows = index.rows_of(np.concatenate(codes))
            return _Match(fragment, np.repeat(matched_offsets, repeats), source_rows, unmatched_rows)

        def join() -> list[_Match]:
            selection = self._find_possible(index)
            parts = parts_of(self.base, self.base.manifest.fragments, selection)
            claims = [self._find_claim(selection, fragment) for fragment, _ in parts]
            requests = parallel_requests(self.base.store) if len(parts) > 1 else 0
            return list(in_order(lambda pair: look(*pair), zip(parts, claims, strict=True), requests=requests))

        return until_consistent(join)

    def _find_claim(self, selection: Selection | None, fragment: Fragment) -> Claim | None:
        """The claim of an index that rows of a fragment have a key of the source; None if no index claims it.

        With several key columns, a row can have a value of the source in each column, but no key of it; floats have two
        zeros.
        """
        claims = selection.claims_of(fragment.id) if selection is not None and len(self.clauses.on) == 1 else ()
        is_float = pa.types.is_floating(self.rows.rows.schema.field(self.clauses.on[0]).type)
        return claims[0] if claims and not is_float else None

    def _find_possible(self, index: KeyIndex) -> Selection | None:
        """The rows that can have a key of the source according to indices; None if any row can."""
        clauses = self.clauses
        keys = index.values() if clauses.use_index and not clauses.deletes_others else None
        if keys is None or not self.base.manifest.indices:
            return None
        expression = reduce(and_, (pc.field(name).isin(values) for name, values in keys.items()))
        return self.base.select(expression)

    def _check(self, matches: Sequence[_Match]) -> None:
        """Reject matches that the clauses forbid, and rows that several source rows change."""
        for match in matches:
            if self.clauses.matched is WhenMatched.FAIL and len(match.source_rows):
                raise InvalidInputError(
                    f"Merge insert failed: found matching row with key values: {self._key(match.source_rows[0])}"
                )
            twice = np.flatnonzero(match.offsets[1:] == match.offsets[:-1])
            if len(twice):
                raise InvalidInputError(
                    "Ambiguous merge inserts are prohibited: multiple source rows match the same target row on "
                    f"({self._key(match.source_rows[twice[0]])}). Please ensure each target row is matched by at most "
                    "one source row."
                )
            self._check_within(match)

    def _check_inserted(self, index: KeyIndex, new: Rows) -> None:
        """Reject a key that several source rows would insert; a key with a null equals no other."""
        with_keys = new[index.codes[new] >= 0]
        codes, first, counts = np.unique(index.codes[with_keys], return_index=True, return_counts=True)
        if len(codes) < len(with_keys):
            raise InvalidInputError(
                "Ambiguous merge inserts are prohibited: multiple source rows insert the same new key "
                f"({self._key(with_keys[first[counts > 1].min()])}). Please ensure that the source has each key once."
            )

    def _find_acting(self, index: KeyIndex, match: _Match) -> _Match:
        """The matches that change a row: the condition of the update is true, or a source row with the key deletes."""
        clauses = self.clauses
        acts = self._is_changed(match) if clauses.matched is not WhenMatched.NOTHING else np.zeros(1, np.bool_)
        if clauses.source_deletes is not None:
            deleting = np.zeros(len(index.counts) + 1, np.bool_)  # the last one is for keys with a null
            deleting[index.codes[clauses.source_deletes]] = True
            acts = acts | deleting[index.codes[match.source_rows]]
        return self._select_matches(match, np.broadcast_to(acts, match.offsets.shape))

    def _check_within(self, match: _Match) -> None:
        """Reject the match of a row that is outside of the slices of `within`."""
        within = self.clauses.within
        if within is None or set(within.columns) <= set(self.clauses.on) or not len(match.offsets):
            return  # the slices contain the rows of the source, and thus rows with the same key
        for part in self._split_match(match):
            rows = self._read_target_rows(part, self._select_columns(within.columns))
            outside = np.flatnonzero(within.assign(rows) < 0)
            if len(outside):
                key, row = self._key(part.source_rows[outside[0]]), rows.slice(outside[0], 1).to_pylist()[0]
                within.reject_match(key, row, self.base.store.root)

    def _key(self, row: int) -> str:
        keys = self.rows.rows.select(self.clauses.on)
        return ", ".join(f"{name} = {keys.column(name)[row].as_py()!r}" for name in self.clauses.on)

    def _rewrite_rows(self, matches: Sequence[_Match], new: Rows) -> Merged:
        """Move updated rows to new fragments, followed by the inserted rows."""
        removed_rows: list[tuple[Fragment, BitMap]] = []
        with MovedRows(
            self.base, self.files, data_storage_version=self.data_storage_version, targets=self.targets
        ) as moved:
            for match in matches:
                rows = self._take_away(match, moved)
                if rows:
                    removed_rows.append((match.fragment, rows))
            for part in self.rows.rows.steps(new):
                moved.write(self._complete(self._take_source(part), None))
            fragments = moved.finish()
            removal = remove_rows(self.base, removed_rows, self.files)
        self.stats.inserted = len(new)
        operation = Update(
            removed_fragment_ids=removal.removed_fragment_ids,
            updated_fragments=removal.updated_fragments,
            new_fragments=fragments,
            fields_for_preserving_frag_bitmap=tuple(node.id for node, _ in self.base.manifest.schema.walk()),
            inserted_rows=self._guard(new),
        )
        return Merged(operation=operation, removal=removal, stats=self.stats)

    def _guard(self, new: Rows) -> KeyExistenceFilter | None:
        """The record of new keys for concurrent writers, if the key is the declared primary key, or `records_keys`."""
        key = primary_key(self.base.manifest.schema)
        if set(self.clauses.on) != set(key):
            key = self.clauses.on if self.clauses.records_keys else ()
        if not self.clauses.inserts or not key:
            return None
        return inserted_keys(self.rows.rows.select(key).take(pa.array(new)), key, self._field_ids(key))

    def _write_partial_rows(self, new: Rows) -> tuple[Fragment, ...]:
        """Write inserted rows with only the source's columns; the other columns are null."""
        source_names = set(self.rows.schema.names)
        version = self.data_storage_version or self.base.manifest.data_storage_version
        check_lacking_columns(self.base.manifest.schema, source_names, version)
        schema = self._select_columns([name for name in self.base.manifest.schema.names if name in source_names])
        with MovedRows(
            self.base, self.files, data_storage_version=self.data_storage_version, targets=self.targets, schema=schema
        ) as writer:
            for rows in self.rows.rows.steps(new):
                writer.write(self._take_source(rows).select(schema.names))
            return writer.finish()

    def _take_away(self, match: _Match, moved: MovedRows) -> BitMap:
        """Write the updated rows of a fragment to new fragments, and return all rows to remove from the fragment."""
        removed_rows = match.unmatched_rows
        if self.clauses.source_deletes is not None:
            deletes = self.clauses.source_deletes[match.source_rows]
            removed_rows = removed_rows | bitmap_of(match.offsets[deletes])
            match = self._select_matches(match, ~deletes)
        self.stats.deleted += len(removed_rows)
        if self.clauses.matched is WhenMatched.DELETE:
            self.stats.deleted += len(match.offsets)
            return removed_rows | bitmap_of(match.offsets)
        if self.clauses.matched is not WhenMatched.UPDATE or not len(match.offsets):
            return removed_rows
        for part in self._split_match(match):
            table = self._complete(self._take_source(part.source_rows), part)
            moved.write(table, _row_ids(part.fragment, part.offsets))
        self.stats.updated += len(match.offsets)
        return removed_rows | bitmap_of(match.offsets)

    def _split_match(self, match: _Match) -> Iterator[_Match]:
        """Split the matches into parts whose rows fit into memory."""
        for places in self.rows.rows.steps(np.arange(len(match.offsets))):
            yield replace(match, offsets=match.offsets[places], source_rows=match.source_rows[places])

    def _is_changed(self, match: _Match) -> npt.NDArray[np.bool_]:
        """For each match, whether the condition of the update is true."""
        condition = self.clauses.condition
        if condition is None or not len(match.offsets):
            return np.ones(len(match.offsets), np.bool_)
        schema, masks = self.base.manifest.schema, []
        for part in self._split_match(match):
            rows, places = np.unique(part.offsets, return_inverse=True)
            target = self._read_target_rows(replace(part, offsets=rows), schema)
            target = target if len(rows) == len(places) else target.take(pa.array(places))
            masks.append(is_updated(condition, self.rows.rows.take(part.source_rows), target, schema))
        return np.concatenate(masks)

    @staticmethod
    def _select_matches(match: _Match, mask: npt.NDArray[np.bool_]) -> _Match:
        """Some of the matches."""
        return replace(match, offsets=match.offsets[mask], source_rows=match.source_rows[mask])

    def _take_source(self, numbers: Rows) -> pa.Table:
        """Rows of the source by their numbers, after a check that base paths contain their external blobs."""
        rows = self.rows.rows.take(numbers)
        check_external(rows, self.rows.schema, external_prefixes(self.base.manifest.base_paths))
        return rows

    def _complete(self, rows: pa.Table, match: _Match | None) -> pa.Table:
        """Rows of the source with all columns of the dataset; others have the old values, or nulls for new rows."""
        for missing in typed_schema(self.rows.missing):
            if match is None:
                rows = rows.append_column(missing, pa.nulls(rows.num_rows, missing.type))
        if match is not None and (self.rows.missing.fields or self.rows.partial):
            old = self._read_target_rows(match, self._select_columns([*self.rows.missing.names, *self.rows.partial]))
            rows = with_old_fields(rows, old, self.rows.partial)
            for name in self.rows.missing.names:
                rows = rows.append_column(old.schema.field(name), old.column(name))
        return rows.select(self.base.manifest.schema.names)

    def _read_target_rows(self, match: _Match, schema: Schema) -> pa.Table:
        batches = read_fragment(self.base, match.fragment, schema, match.offsets)
        return pa.Table.from_batches(batches, schema=schema_to_arrow(schema))

    def _rewrite_columns(self, matches: Sequence[_Match], new: Rows) -> Merged:
        """Rewrite the source's columns in fragments with updated rows; inserted rows have only the source's columns."""
        schema = self._value_columns()
        updated, offsets = [], {}
        is_update = self.clauses.matched is WhenMatched.UPDATE
        for match in matches if is_update else ():
            if not len(match.offsets):
                continue
            fragment = match.fragment
            if schema.fields:
                tables = self._patch_fragment(match, schema)
                fragment = replace_columns(fragment, write_column_file(self.base, fragment, schema, tables, self.files))
            updated.append(fragment)
            if self.base.manifest.uses_stable_row_ids:
                offsets[match.fragment.id] = bitmap_of(match.offsets).serialize()
            self.stats.updated += len(match.offsets)
        operation = Update(
            updated_fragments=tuple(updated),
            new_fragments=self._write_partial_rows(new) if len(new) else (),
            fields_modified=tuple(node.id for node, _ in schema.walk()) if updated else (),
            update_mode=UpdateMode.REWRITE_COLUMNS,
            updated_fragment_offset_bitmaps=offsets,
            inserted_rows=self._guard(new),
        )
        self.stats.inserted = len(new)
        return Merged(operation=operation, removal=None, stats=self.stats)

    def _patch_fragment(self, match: _Match, schema: Schema) -> Iterator[pa.Table]:
        """Yield the columns of a fragment with the source's values in the matched rows."""

        def new(old: pa.RecordBatch, first: int, last: int) -> pa.Table:
            rows = self._take_source(match.source_rows[first:last]).select(schema.names)
            self.rows.rows.release()
            return with_old_fields(rows, old, self.rows.partial)

        return patch_rows(self.base, match.fragment, schema, match.offsets, new)

    def _value_columns(self) -> Schema:
        """The columns of the source that are not in the key."""
        return self._select_columns([name for name in self.rows.schema.names if name not in self.clauses.on])

    def _select_columns(self, columns: Sequence[str]) -> Schema:
        return self.base.manifest.schema.project(list(columns))

    def _field_ids(self, columns: Sequence[str]) -> list[int]:
        return [self.base.manifest.schema.column(name).id for name in columns]


def _row_ids(fragment: Fragment, offsets: Rows) -> U64Array | None:
    """The stable row ids at some offsets; None if the fragment has none."""
    ids = decode_row_ids_of(fragment)
    return None if ids is None else ids[offsets]
