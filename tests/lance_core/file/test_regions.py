"""Regions of a file: together they hold the wanted buffers, aligned, with little else."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lance_core.file.copy import regions_of

SIZE = 1_000_000

buffers = st.builds(
    lambda start, length: (start, min(start + length, SIZE)),
    st.integers(0, SIZE // 64 - 1).map(lambda number: number * 64),
    st.sampled_from([0, 1, 63, 64, 65, 4_000, 50_000]),
)


@given(pages=st.lists(st.lists(buffers, max_size=3), max_size=12), least=st.sampled_from([0, 5_000, 200_000]))
def test_buffers_move_with_their_regions(pages, least):
    data = bytes(number // 64 % 251 for number in range(SIZE))
    before = [list(ranges) for ranges in pages]
    regions = regions_of(pages, SIZE, least)
    used = sum(end - start + -end % 64 for ranges in before for start, end in ranges)
    assert sum(region.num_bytes for region in regions) <= used * 33 / 32
    assert all(one.end < two.start for one, two in itertools.pairwise(regions))
    target = bytearray()
    for region in reversed(regions):  # any order will do
        assert region.start % 64 == 0
        target += bytes(-len(target) % 64)
        region.move_to(len(target))
        target += data[region.start : region.end]
    for old, new in zip(before, pages, strict=True):
        for (start, end), (low, high) in zip(old, new, strict=True):
            assert target[low:high] == data[start:end]
            assert start == end or low % 64 == 0


def test_small_regions_are_joined_across_small_gaps():
    def ends(*ranges, least):
        return [(region.start, region.end) for region in regions_of([list(ranges)], SIZE, least)]

    apart = (0, 6_400), (6_464, 12_736)
    assert ends(*apart, least=0) == list(apart)
    assert ends(*apart, least=6_272) == list(apart)
    assert ends(*apart, least=6_273) == [(0, 12_736)]
    assert ends((0, 6_400), (12_800, 19_200), least=20_000) == [(0, 6_400), (12_800, 19_200)]
    assert ends((0, 6_390), (6_400, 6_401), least=0) == [(0, 6_464)]
    assert ends((999_936, 999_990), least=0) == [(999_936, 1_000_000)]
