"""Row addresses: fragment id and offset, alone and in arrays."""

import numpy as np
import pytest
from pyroaring import BitMap

from lance_core.row_addresses import (
    bitmaps_by_fragment,
    fragment_ids_of,
    group_by_fragment,
    make_row_address,
    make_row_addresses,
    row_offsets,
)

LAST = 2**32 - 1


def test_halves_come_back():
    addresses = np.concatenate(
        [make_row_addresses(0, np.array([0, LAST])), make_row_addresses(LAST, np.array([1, LAST]))]
    )
    assert addresses.tolist() == [
        make_row_address(0, 0),
        make_row_address(0, LAST),
        make_row_address(LAST, 1),
        make_row_address(LAST, LAST),
    ]
    assert fragment_ids_of(addresses).tolist() == [0, 0, LAST, LAST]
    assert row_offsets(addresses).tolist() == [0, LAST, 1, LAST]


def test_groups_ascend_and_offsets_keep_their_order():
    addresses = np.array([make_row_address(*pair) for pair in ((7, 2), (1, 5), (7, 0), (1, 9))], np.uint64)
    found = [(fragment, offsets.tolist()) for fragment, offsets in group_by_fragment(addresses)]
    assert found == [(1, [5, 9]), (7, [2, 0])]
    assert list(group_by_fragment(addresses[:0])) == []


@pytest.mark.parametrize("kind", [np.uint64, np.int64])
def test_rows_are_gathered_by_fragment_in_any_order(kind):
    parts = [
        make_row_addresses(2, np.array([9, 1])),
        make_row_addresses(0, np.array([4])),
        make_row_addresses(2, np.array([5])),
    ]
    addresses = np.concatenate(parts).astype(kind)
    assert bitmaps_by_fragment(addresses) == {0: BitMap([4]), 2: BitMap([1, 5, 9])}
    assert bitmaps_by_fragment(addresses[:0]) == {}
