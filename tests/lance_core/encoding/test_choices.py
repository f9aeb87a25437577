"""Choices of encodings that later pages of a writer take over: the rows are the same, and pages stay small."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.encoding.choosing.strategy import Limits
from lance_core.encoding.encoder import encode_field
from lance_core.encoding.repeat import Choices
from lance_core.schema import schema_from_arrow

LIMITS = Limits(large_chunks=True)
RNG = np.random.default_rng(7)
SMALL = pa.array(RNG.integers(0, 1000, 900))
LARGE = pa.array(RNG.integers(-(2**62), 2**62, 900))
CONSTANT = pa.array(np.full(900, 7))
FEW = pa.array(RNG.choice([10**12, 2 * 10**12, 3 * 10**12], 900))
NULLS = pa.array(RNG.integers(0, 1000, 900), mask=RNG.random(900) < 0.5)
NUMBERS = [SMALL, LARGE, CONSTANT, FEW, NULLS]
TEXTS = [
    pa.array([f"v{i % 5}" for i in range(900)]),
    pa.array([f"some text, and more of it {i}" for i in range(900)]),
    pa.array(["same"] * 900),
    pa.array([None if i % 3 else str(i) for i in range(900)]),
    pa.array(["x" * (i % 90) for i in range(900)]),
]


def _layout(array: pa.Array, choices: Choices | None = None) -> tuple[str, int]:
    field = schema_from_arrow(pa.schema([pa.field("c", array.type)])).fields[0]
    page = encode_field(field, array, LIMITS, choices)[0][0]
    return str(page.encoding.WhichOneof("layout")), page.size_bytes


@pytest.mark.parametrize("kinds", [NUMBERS, TEXTS], ids=["numbers", "strings"])
def test_pages_are_no_larger_than_their_values_whatever_came_before(kinds: list[pa.Array]) -> None:
    for first in kinds:
        for then in kinds:
            choices = Choices()
            assert _layout(first, choices) == _layout(first)
            alone, after = _layout(then), _layout(then, choices)
            assert after[1] <= max(1.3 * alone[1] + 64, 1.05 * then.nbytes), (alone, after)


def test_a_choice_is_looked_at_afresh_now_and_then() -> None:
    choices = Choices()
    _layout(LARGE, choices)
    found = {_layout(FEW, choices) for _ in range(40)}
    assert _layout(FEW) in found


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_rows_of_many_small_files_are_read_by_both(tmp_path: Path, version: str) -> None:
    columns = {
        "small": pa.concat_arrays([SMALL, SMALL, CONSTANT, LARGE, FEW, NULLS]),
        "text": pa.concat_arrays([TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[3], TEXTS[4], TEXTS[0]]),
        "flag": pa.array(RNG.random(5400) < 0.5),
        "vector": pa.FixedSizeListArray.from_arrays(RNG.random(10_800, np.float32), 2),
        "list": pa.array([[i] * (i % 4) if i % 7 else None for i in range(5400)]),
    }
    table = pa.table(columns)
    for rows in (900, 64, 7):
        uri = tmp_path / str(rows)
        lance_core.write_dataset(table[: 20 * rows], uri, max_rows_per_file=rows, data_storage_version=version)
        assert lance.dataset(uri).to_table() == table[: 20 * rows]
        assert lance_core.dataset(uri).to_table() == table[: 20 * rows]
        assert lance.dataset(uri).take([3, 5, 6 * rows - 1]) == table.take([3, 5, 6 * rows - 1])
        lance.dataset(uri).optimize.compact_files()
        assert lance.dataset(uri).to_table() == table[: 20 * rows]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.float32(), pa.int64(), pa.timestamp("us", "UTC")])
def test_a_few_numbers_are_written_as_they_are(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array([3, 1, 2, 7, 5], pa.int64()).cast(pa.int8() if kind == pa.int8() else pa.int64()).cast(kind)
    for name, array in {
        "all": values,
        "part": values[1:4],
        "same": values[2:3],
        "null": pa.array([None, 4], kind),
    }.items():
        table = pa.table({"x": array, "y": array})
        lance_core.write_dataset(table, tmp_path / name)
        lance_core.write_dataset(table, tmp_path / name, mode="append")
        assert lance.dataset(tmp_path / name).to_table() == pa.concat_tables([table, table])
        assert lance_core.dataset(tmp_path / name).to_table() == pa.concat_tables([table, table])
