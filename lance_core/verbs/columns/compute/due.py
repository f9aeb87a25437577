"""Find the rows whose cells are due: those that lack cells, or whose code or inputs have changed.

fragment   all versions of its rows are settled or own, same code     nothing is read
           its inputs may have been set otherwise (`input_files`)     all rows with cells are compared
row        no record                                                  due: new
           another code version                                       due: code changed
           last updated after its inputs were read, by no own commit  its inputs are read and compared
           failed, and failed rows are asked for                      due: failed, if its inputs have not changed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core._proto import table_pb2
from lance_core.row_addresses import offsets_of
from lance_core.schema import Field, Schema
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import decode_row_ids_of, decode_versions, list_versions_of_rows
from lance_core.verbs.columns.compute.computation import Computation, Record
from lance_core.verbs.columns.compute.digests import digest_rows
from lance_core.verbs.columns.compute.estimates import DueRows
from lance_core.verbs.columns.compute.input_files import ColumnFile, is_in_step, records_rows, transactions_since
from lance_core.verbs.columns.compute.results import find_staged
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.projection import AS_BYTES, described_columns
from lance_core.verbs.scan.read_fragment import live_offsets, read_fragment
from lance_core.verbs.scan.take import take_offsets

_READ_BYTES: Final = 32 * 1024 * 1024
"""About how many bytes of inputs are read at a time."""
_FIRST_ROWS: Final = 1024
_MOST_ROWS: Final = 131_072

UNKNOWN_VERSION: Final = 0xFFFFFFFFFFFFFFFF
"""Stands for the version that changed a row where its fragment does not record one: the row is compared."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueFragment:
    """Rows of a fragment that are due, or may be.

    Attributes:
        fragment: The fragment.
        offsets: Their offsets, ascending.
        compared: Those whose inputs are compared with the digest.
        failed: Those on which the function failed, which are due in any case; the others that are compared are due only
            if their inputs have changed.
        digests: The recorded digests of these; any number for the others.
        updated: The version that last changed each row; `UNKNOWN_VERSION` where the fragment does not record it.
        counts: How many rows are due for a reason that does not depend on their inputs.
    """

    fragment: Fragment
    offsets: Offsets
    compared: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]
    digests: npt.NDArray[np.int64]
    updated: npt.NDArray[np.uint64]
    counts: dict[str, int]

    def take(self, rows: slice | npt.NDArray[np.bool_] | Offsets) -> DueFragment:
        """Some of the rows."""
        names = ("offsets", "compared", "failed", "digests", "updated")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclass(slots=True)
class _Steps:
    """Whether the cells of fragments belong to their inputs, unless the versions of rows say otherwise."""

    snapshot: Snapshot
    record: Record
    state_ids: frozenset[int]
    input_ids: tuple[int, ...]
    partial: set[int]
    _are_new_trusted: bool | None = field(default=None, init=False)

    def has(self, fragment_id: int, files: Collection[ColumnFile]) -> bool:
        """Whether they do in a fragment with these files."""
        return is_in_step(files, self.state_ids, self.input_ids, lambda: self._is_trusted(fragment_id))

    def _is_trusted(self, fragment_id: int) -> bool:
        if self.record.checked is None:
            return True
        version, highest_id, input_ids = self.record.checked
        if input_ids != self.input_ids or fragment_id <= highest_id:
            return input_ids == self.input_ids
        if self._are_new_trusted is None:
            self._are_new_trusted = all(map(records_rows, transactions_since(self.snapshot, version)))
        return self._are_new_trusted


def trust_fragments(snapshot: Snapshot, computation: Computation, record: Record) -> Record:
    """The record by which other processes find the same rows as due, also if a cleanup removes versions meanwhile."""
    highest_id, input_ids = snapshot.manifest.max_fragment_id or 0, computation.input_ids(snapshot.manifest)
    if record.checked is None or record.checked[1:] == (highest_id, input_ids):
        return record
    if record.checked[2] == input_ids and all(map(records_rows, transactions_since(snapshot, record.checked[0]))):
        return replace(record, checked=(snapshot.manifest.version, highest_id, input_ids))
    return record


def find_due_rows(
    snapshot: Snapshot,
    computation: Computation,
    record: Record,
    where: str | pc.Expression | None,
    *,
    retry_failed: bool,
    fragment_ids: Container[int] | None = None,
    partial: set[int] | None = None,
) -> Iterator[DueFragment]:
    """Yield the rows that are due in each fragment that has such rows.

    Args:
        snapshot: The version.
        computation: The computation.
        record: What the version records of it.
        where: The rows that are looked at; None for all.
        retry_failed: Whether rows are due on which the function has failed.
        fragment_ids: The fragments that are looked at; None for all.
        partial: Takes the fragments whose rows have to be compared, and of which not all rows are looked at.
    """
    everything, names = snapshot.manifest.fragments, set(computation.output.names)
    columns = Schema(fields=tuple(field for field in snapshot.manifest.schema.fields if field.name in names))
    state = Schema(fields=tuple(field for field in columns.fields if field.name == computation.state_name))
    input_ids = computation.input_ids(snapshot.manifest)
    steps = _Steps(snapshot, record, frozenset(state.by_id()), input_ids, set() if partial is None else partial)
    is_skipping = len(columns.fields) == len(names) and record.code == computation.code_version and not retry_failed
    places = [
        place
        for place, message in enumerate(everything.messages())
        if (fragment_ids is None or message.id in fragment_ids)
        and not (is_skipping and _is_settled(message, record) and steps.has(message.id, message.files))
    ]
    fragments = everything if len(places) == len(everything) else [everything[place] for place in places]
    described = described_columns(snapshot.manifest)
    condition = None if where is None else to_condition(where, described or snapshot.manifest.schema)
    for fragment, rows in each_matching(snapshot, condition, described, fragments):
        due = _judge(snapshot, fragment, columns, offsets_of(rows), computation, steps, retry_failed)
        if due is not None:
            yield due


def count_due_rows(
    snapshot: Snapshot,
    computation: Computation,
    where: str | pc.Expression | None,
    *,
    retry_failed: bool,
) -> DueRows:
    """The number of rows that are due, by reason, with the arguments of `find_due_rows`."""
    counts: Counter[str] = Counter()
    staged, record = find_staged(snapshot, computation), Record.read(snapshot, computation.name)
    for due in find_due_rows(snapshot, computation, record, where, retry_failed=retry_failed):
        counts.update(due.counts)
        counts["failed"] += int((due.failed & ~due.compared).sum())
        ids = decode_row_ids_of(due.fragment)
        assert ids is not None
        read = due.take(due.compared | np.isin(ids[due.offsets], staged.ids))
        for offsets, rows in read_inputs(snapshot, computation, due.fragment, read.offsets):
            part, digests = read.take(np.searchsorted(read.offsets, offsets)), digest_rows(rows)
            is_changed = part.compared & (digests != part.digests)
            is_same = part.compared & ~is_changed
            counts.update({"inputs changed": int(is_changed.sum()), "failed": int((part.failed & is_same).sum())})
            places = staged.find(ids[offsets], digests, with_failed=not retry_failed)
            counts["staged"] += int(((places >= 0) & (part.failed | ~is_same)).sum())
    num_staged = counts.pop("staged", 0)
    return DueRows({reason: count for reason, count in counts.items() if count}, num_staged, snapshot, computation.name)


def read_inputs(
    snapshot: Snapshot, computation: Computation, fragment: Fragment, offsets: Offsets
) -> Iterator[tuple[Offsets, pa.Table]]:
    """Yield the inputs of rows of a fragment, some megabytes at a time, with their offsets."""
    options = scan_options(snapshot.manifest, list(computation.inputs), blob_handling=AS_BYTES)
    start, count = 0, _FIRST_ROWS
    while start < len(offsets):
        window = offsets[start : start + count]
        rows = take_offsets(snapshot, fragment, window, options)
        yield window, rows
        start += count
        count = max(1, min(_MOST_ROWS, count * _READ_BYTES // max(rows.nbytes, 1)))


def _is_settled(message: table_pb2.DataFragment, record: Record) -> bool:
    """Whether no row of a fragment has changed since a version in which none was due, as far as it records versions."""
    if not record.settled:
        return False  # cells of own versions may be by another code version
    versions = list_versions_of_rows(message.inline_last_updated_at_versions)
    return bool(versions) and all(version <= record.settled or version in record.own_versions for version in versions)


def _judge(
    snapshot: Snapshot,
    fragment: Fragment,
    columns: Schema,
    offsets: Offsets,
    computation: Computation,
    steps: _Steps,
    retry_failed: bool,
) -> DueFragment | None:
    state = Schema(fields=tuple(field for field in columns.fields if field.name == computation.state_name))
    is_complete = len(columns.fields) == len(computation.output) and all(
        _is_stored(fragment, field) for field in columns.fields
    )
    is_in_step = steps.has(fragment.id, fragment.files)
    if not is_in_step and len(offsets) < len(live_offsets(snapshot, fragment)):
        steps.partial.add(fragment.id)
    if not is_complete and any(_is_stored(fragment, field) for field in state.fields):
        # As a whole: the other rows have a record, by which they would not be due, and would lack the column.
        offsets = offsets_of(live_offsets(snapshot, fragment))
    none = np.zeros(len(offsets), np.bool_)
    updated, record = _read_versions(fragment, offsets), steps.record
    if not is_complete:
        is_new, is_other, is_failed, compared = ~none, none, none, none
        digests = np.zeros(len(offsets), np.int64)
    else:
        batches = read_fragment(snapshot, fragment, state, offsets)
        cells = pa.concat_arrays([batch.column(0) for batch in batches])
        codes, inputs, read, failed = cells.flatten()
        is_new = np.asarray(inputs.is_null())
        digests = inputs.fill_null(0).to_numpy()
        is_other = ~is_new & np.asarray(pc.fill_null(pc.not_equal(codes, computation.code_version), True))
        is_failed = ~is_new & ~is_other & np.asarray(failed.fill_null(False)) & retry_failed
        changed = updated > read.fill_null(0).to_numpy().astype(np.uint64)
        changed &= ~np.isin(updated, np.array(sorted(record.own_versions | record.own_otherwise), np.uint64))
        compared = (changed | (not is_in_step)) & ~is_new & ~is_other
    chosen = is_new | is_other | is_failed | compared
    if not chosen.any():
        return None
    counts = {"new": is_new, "code changed": is_other}
    return DueFragment(
        fragment=fragment,
        offsets=offsets[chosen],
        compared=compared[chosen],
        failed=is_failed[chosen],
        digests=digests[chosen],
        updated=updated[chosen],
        counts={reason: int(mask.sum()) for reason, mask in counts.items()},
    )


def _is_stored(fragment: Fragment, field: Field) -> bool:
    """Whether a file of a fragment has a column, or a part of it."""
    field_ids = {node.id for node, _ in field.walk()}
    return any(field_ids.intersection(file.fields) for file in fragment.files)


def _read_versions(fragment: Fragment, offsets: Offsets) -> npt.NDArray[np.uint64]:
    """The version that last changed each of some rows; `UNKNOWN_VERSION` where the fragment does not record it."""
    data = fragment.last_updated_at_versions
    if data is None:
        return np.full(len(offsets), UNKNOWN_VERSION, np.uint64)
    return decode_versions(data, fragment.physical_rows)[offsets]
