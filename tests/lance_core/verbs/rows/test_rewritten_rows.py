"""The rows of fragments that were rewritten, held against a list of all rows."""

import numpy as np
from pyroaring import BitMap

from lance_core.verbs.rows.rewritten_rows import rewritten_rows


def test_rows_keep_their_order_among_the_live_ones():
    for seed in range(20):
        random = np.random.default_rng(seed)
        counts = random.integers(0, 30, random.integers(1, 5)).tolist()
        live = [BitMap(np.flatnonzero(random.random(count) < 0.7).tolist()) for count in counts]
        rows = [BitMap(np.flatnonzero(random.random(count) < 0.4).tolist()) for count in counts]
        total = sum(map(len, live))
        cuts = sorted(random.integers(0, total + 1, random.integers(0, 4)).tolist())
        sizes = np.diff([0, *cuts, total]).tolist()

        listed = [(place, row) for place, alive in enumerate(live) for row in alive]
        moved = [row in rows[place] for place, row in listed]
        new = [(number, offset) for number, size in enumerate(sizes) for offset in range(size)]
        expected = [BitMap() for _ in sizes]
        for (number, offset), is_one in zip(new, moved, strict=True):
            if is_one:
                expected[number].add(offset)
        assert rewritten_rows(live, rows, sizes) == expected, seed
        assert rewritten_rows(live, rows, [*sizes, 1]) is None, seed


def test_fragments_without_a_live_row_become_none():
    assert rewritten_rows([BitMap()], [BitMap([3])], []) == []
    assert rewritten_rows([BitMap([1])], [BitMap()], []) is None
