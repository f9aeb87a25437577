"""Take rows by their row ids, and check the row ids and addresses that users give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.row_addresses import fragment_ids_of, make_row_addresses, row_offsets
from lance_core.table.rowids import U64Array, decode_row_ids_of
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.read_fragment import count_file_rows
from lance_core.verbs.scan.take import take_addresses, whole_numbers


def take_ids(snapshot: Snapshot, row_ids: Any, options: ScanOptions) -> pa.Table:
    """Take rows by their row ids, which `with_row_id` returns, in the given order.

    Raises:
        InvalidInputError: There is no row with an id, or its row with a stable row id was deleted.
        UnsupportedError: A row without a stable row id was deleted.
    """
    where = unsigned("row ids", row_ids)
    if snapshot.manifest.uses_stable_row_ids:
        where = _find_addresses(snapshot, where)
    check_live(snapshot, where)
    return take_addresses(snapshot, snapshot.manifest.fragments, where, options)


def unsigned(name: str, numbers: Any) -> U64Array:
    """Row ids or addresses as an array.

    Raises:
        InvalidInputError: The numbers are not integers, or one is negative.
    """
    integers = whole_numbers(name, numbers)
    if len(integers) and integers.min() < 0:
        raise InvalidInputError(f"{name} must not be negative: {integers.min()}")
    return integers.astype(np.uint64)


def _find_addresses(snapshot: Snapshot, ids: U64Array) -> U64Array:
    """The addresses of the rows with some stable row ids."""
    addresses: dict[int, int] = {}
    for fragment in snapshot.manifest.fragments:
        row_ids = decode_row_ids_of(fragment)
        if row_ids is None:
            raise UnsupportedError(f"fragment {fragment.id} has no row ids")
        deletions = snapshot.deletions(fragment)
        offsets = np.flatnonzero(np.isin(row_ids, ids))
        if deletions is not None:
            offsets = offsets[deletions.live_rows(len(row_ids))[offsets]]
        addresses.update(zip(row_ids[offsets].tolist(), make_row_addresses(fragment.id, offsets).tolist(), strict=True))
    missing = [number for number in ids.tolist() if number not in addresses]
    if missing:
        raise InvalidInputError(f"there is no row with the id {missing[0]}")
    return np.array([addresses[number] for number in ids.tolist()], np.uint64)


def check_live(snapshot: Snapshot, addresses: U64Array) -> None:
    """Check that there is a live row at each address.

    Raises:
        InvalidInputError: There is no row at an address.
        UnsupportedError: A row was deleted.
    """
    by_id = {fragment.id: fragment for fragment in snapshot.manifest.fragments}
    owners, all_offsets = fragment_ids_of(addresses), row_offsets(addresses)
    for number in np.unique(owners).tolist():
        fragment = by_id.get(number)
        offsets = all_offsets[owners == number]
        if fragment is None:
            raise InvalidInputError(f"row address {addresses[owners == number][0]}: there is no fragment {number}")
        total = count_file_rows(snapshot, fragment)
        if offsets.max() >= total:
            raise InvalidInputError(f"row {offsets.max()} is outside the {total} rows of fragment {number}")
        deletions = snapshot.deletions(fragment)
        if deletions is not None and not deletions.live_rows(total)[offsets].all():
            raise UnsupportedError("A take operation that includes row addresses must not target deleted rows")
