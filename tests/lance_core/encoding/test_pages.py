"""Pages of every layout: whole, by range and by row, without a file."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.choosing.strategy import Limits
from lance_core.encoding.decoder import decode_pages, group_key
from lance_core.encoding.encoder import encode_field
from lance_core.encoding.page import PageInfo, RowRuns, lock_step, run_steps
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import schema_from_arrow

LIMITS = Limits(large_chunks=True)
N = 20_000


class Bytes:
    """Page buffers back to back, as a file would hold them; counts requests."""

    def __init__(self):
        self.data = bytearray()
        self.requests = []

    def add(self, page, first_row=0):
        ranges = []
        for buffer in page.buffers:
            start = len(self.data)
            self.data += bytes(memoryview(buffer).cast("B")) if memoryview(buffer).nbytes else b""
            ranges.append((start, len(self.data)))
            self.data += b"H" * (-len(self.data) % 64)
        encoding = PageLayout.FromString(page.encoding.SerializeToString())
        return PageInfo(
            first_row=first_row, num_rows=page.num_rows, length=page.length, encoding=encoding, buffers=tuple(ranges)
        )

    def fetch(self, ranges):
        self.requests.append(list(ranges))
        return [bytes(self.data[start:end]) for start, end in ranges]


def field_of(array, metadata=None):
    return schema_from_arrow(pa.schema([pa.field("c", array.type, metadata=metadata)])).fields[0]


def encode(array, metadata=None, limits=LIMITS):
    field = field_of(array, metadata)
    ((page,),) = encode_field(field, array, limits)
    return field, page


ARRAYS = {
    "constant_layout": pa.array([3] * N),
    "constant_layout nulls": pa.nulls(N, pa.int32()),
    "full_zip_layout": pa.array(np.random.default_rng(0).integers(-(2**62), 2**62, N)),
    "full_zip_layout vectors": pa.array(
        [None if i % 4 == 0 else [i] * 100 for i in range(2000)], pa.list_(pa.int32(), 100)
    ),
    "full_zip_layout strings": pa.array([None if i % 4 == 0 else str(i) * 5000 for i in range(200)]),
    "full_zip_layout lists": pa.array([[str(i) * 40_000] * (i % 4) if i % 3 else None for i in range(60)]),
    "mini_block_layout": pa.array(np.arange(N) % 1000),
    "mini_block_layout nulls": pa.array([None if i % 4 == 0 else i * 977 % 100_003 for i in range(N)]),
    "mini_block_layout strings": pa.array([f"text {i}" for i in range(N)]),
    "mini_block_layout dictionary": pa.array([f"text {i % 20}" for i in range(N)]),
    "mini_block_layout lists": pa.array([None if i % 7 == 0 else list(range(i % 5)) for i in range(N)]),
    "mini_block_layout long lists": pa.array([list(range(i % 3 * 9000)) for i in range(12)]),
    "mini_block_layout nested": pa.array([[[str(i * 977)] * (i % 3), []] if i % 5 else [] for i in range(N)]),
    "mini_block_layout bits": pa.array([i % 3 == 0 for i in range(N)]),
}


@pytest.mark.parametrize("name", list(ARRAYS))
def test_layout_rows_and_ranges(name):
    array = ARRAYS[name]
    field, page = encode(array)
    assert page.encoding.WhichOneof("layout") == name.split()[0]
    assert page.num_rows == len(array)
    source = Bytes()
    info = source.add(page)
    expected = array.to_pylist()
    rng = np.random.default_rng(1)
    picked = np.sort(rng.choice(len(array), min(len(array), 25), replace=False))
    for rows in [
        RowRuns.of_range(0, len(array)),
        RowRuns.of_range(len(array) // 3, len(array) // 3 + 5),
        RowRuns.of_range(len(array) - 1, len(array)),
        RowRuns.of_rows(picked),
        RowRuns.of_rows(np.arange(0, len(array), 2)),
    ]:
        decoded = run_steps(decode_pages([info], (field,) if not field.children else _path(field), rows), source.fetch)
        decoded.validate(full=True)
        assert decoded.to_pylist() == [expected[i] for i in rows.rows()]


def _path(field):
    return (field, *(_path(field.children[0]) if field.children else ()))


@pytest.mark.parametrize("name", [name for name in ARRAYS if name.startswith("mini_block")])
def test_groups_of_pages_equal_single_pages(name):
    array = ARRAYS[name]
    third = len(array) // 3
    field = field_of(array)
    source = Bytes()
    # The statistics of other rows might choose other encodings, which make no group.
    pages = [encode_field(field, array.slice(0, third), LIMITS)[0][0] for _ in range(3)]
    infos = [source.add(page) for page in pages]
    assert len({group_key(info, field, is_whole=True) for info in infos}) == 1
    expected = array.slice(0, third).to_pylist() * 3
    for rows in (RowRuns.of_range(0, third * 3), RowRuns.of_rows(np.arange(1, third * 3, max(1, third // 4)))):
        decoded = run_steps(decode_pages(infos, _path(field), rows), source.fetch)
        assert decoded.to_pylist() == [expected[i] for i in rows.rows()]


def test_few_rows_cost_few_bytes():
    array = pa.array([f"some text {i * 7919}" for i in range(200_000)])
    field, page = encode(array)
    source = Bytes()
    info = source.add(page)
    decoded = run_steps(decode_pages([info], (field,), RowRuns.of_rows(np.array([5, 150_000]))), source.fetch)
    assert decoded.to_pylist() == [array[5].as_py(), array[150_000].as_py()]
    assert sum(end - start for request in source.requests for start, end in request) < 200_000
    assert len(source.requests) == 2


def test_vectors_are_read_without_an_index():
    array = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(128 * 1000, dtype="f4")), 128)
    field, page = encode(array)
    source = Bytes()
    decoded = run_steps(decode_pages([source.add(page)], (field,), RowRuns.of_rows(np.array([7, 900]))), source.fetch)
    assert decoded.to_pylist() == [array[7].as_py(), array[900].as_py()]
    assert source.requests == [[(7 * 512, 8 * 512), (900 * 512, 901 * 512)]]


def test_rows_of_large_pages_are_cut_out_together_and_whole_pages_are_not():
    values = np.random.default_rng(0).standard_normal(3 * 1000 * 128).astype("f4")
    array = pa.FixedSizeListArray.from_arrays(pa.array(values), 128)
    field = field_of(array)
    source = Bytes()
    infos = [source.add(encode(array.slice(start, 1000))[1]) for start in (0, 1000, 2000)]
    assert [group_key(info, field, is_whole=True) for info in infos] == [None] * 3
    assert len({group_key(info, field, is_whole=False) for info in infos} - {None}) == 1
    for rows in (np.array([0, 999, 1000, 2999]), np.arange(3, 3000, 7), np.array([1500])):
        decoded = run_steps(decode_pages(infos, _path(field), RowRuns.of_rows(rows)), source.fetch)
        assert decoded.equals(array.take(pa.array(rows)))


def test_raw_values_are_not_copied():
    values = np.random.default_rng(0).standard_normal(10_000)
    _, page = encode(pa.array(values))
    assert np.shares_memory(page.buffers[0], values)


def test_more_levels_than_a_chunk_can_count_split_the_page():
    kind = pa.list_(pa.list_(pa.bool_(), 3))
    array = pa.array([[[True] * 3] if i % 70_000 == 0 else [] for i in range(140_001)], kind)
    field = field_of(array)
    (pages,) = encode_field(field, array, LIMITS)
    assert len(pages) > 1
    assert sum(page.num_rows for page in pages) == len(array)
    source = Bytes()
    parts = [
        run_steps(decode_pages([source.add(page)], _path(field), RowRuns.of_range(0, page.num_rows)), source.fetch)
        for page in pages
    ]
    assert pa.concat_arrays(parts).equals(array)


def test_lock_step_asks_for_everything_together():
    def steps(name, rounds):
        seen = []
        for number in range(rounds):
            seen += yield [(number, number + 1)]
        return name, seen

    asked = []

    def fetch(ranges):
        asked.append(len(ranges))
        return [b"x"] * len(ranges)

    result = run_steps(lock_step([steps("a", 1), steps("b", 3), steps("c", 0)]), fetch)
    assert result == [("a", [b"x"]), ("b", [b"x"] * 3), ("c", [])]
    assert asked == [2, 1, 1]


def test_unknown_wishes_are_rejected():
    with pytest.raises(InvalidInputError, match="brotli"):
        encode(pa.array([1]), {"lance-encoding:compression": "brotli"})


def test_unknown_layouts_are_rejected():
    page = PageInfo(first_row=0, num_rows=1, length=1, encoding=PageLayout(), buffers=())
    with pytest.raises(UnsupportedError, match="layout"):
        run_steps(decode_pages([page], (field_of(pa.array([1])),), RowRuns.of_range(0, 1)), lambda _: [])


def test_nulls_hide_no_values():
    values = np.array([1, 2, 3, 4], np.int64) * 10**15
    validity = pa.py_buffer(bytes([0b0101]))
    array = pa.Array.from_buffers(pa.int64(), 4, [validity, pa.py_buffer(values)])
    _, page = encode(array, {"lance-encoding:compression": "none"})
    stored = b"".join(bytes(memoryview(buffer).cast("B")) for buffer in page.buffers)
    assert values[0].tobytes() in stored
    assert values[1].tobytes() not in stored
