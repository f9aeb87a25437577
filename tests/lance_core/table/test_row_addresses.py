"""Row addresses: fragment id and offset, alone and in arrays."""

import numpy as np

from lance_core.table.row_addresses import by_fragment, fragment_ids, row_address, row_addresses, row_offsets

LAST = 2**32 - 1


def test_halves_come_back():
    addresses = np.concatenate([row_addresses(0, np.array([0, LAST])), row_addresses(LAST, np.array([1, LAST]))])
    assert addresses.tolist() == [
        row_address(0, 0),
        row_address(0, LAST),
        row_address(LAST, 1),
        row_address(LAST, LAST),
    ]
    assert fragment_ids(addresses).tolist() == [0, 0, LAST, LAST]
    assert row_offsets(addresses).tolist() == [0, LAST, 1, LAST]


def test_groups_ascend_and_offsets_keep_their_order():
    addresses = np.array([row_address(*pair) for pair in ((7, 2), (1, 5), (7, 0), (1, 9))], np.uint64)
    found = [(fragment, offsets.tolist()) for fragment, offsets in by_fragment(addresses)]
    assert found == [(1, [5, 9]), (7, [2, 0])]
    assert list(by_fragment(addresses[:0])) == []
