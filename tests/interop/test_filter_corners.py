"""Corners of filters in which results once differed from pylance's: the rows that it deletes are those deleted here."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError

MOMENTS = [dt.datetime(2024, 1, 1, 4), dt.datetime(2024, 1, 1, 6), dt.datetime(2023, 12, 31, 23)]
CORNERS = [
    # A date begins at midnight UTC, whatever the zone of the column.
    "zoned >= date '2024-01-01'",
    "zoned < date '2024-01-01'",
    "zoned = day",
    "zoned >= day",
    "zoned IN (date '2024-01-01')",
    "zoned BETWEEN date '2024-01-01' AND date '2024-01-02'",
    # Columns of times are compared in the coarser unit.
    "seconds = micros",
    "seconds < micros",
    "micros >= seconds",
    "micros IN (seconds)",
    "micros = nanos",
    # Letters that become two.
    "upper(t) = 'SS'",
    "lower(t) = 'ß'",
    "upper(t) = 'ABC'",
    # Nothing stands between all characters.
    "replace(t, '', '-') = '-a-b-c-'",
    "replace(t, '', '-') = '-'",
    "replace(t, 'b', '') = 'ac'",
    # Zeros of two columns differ by their sign, not those that are written.
    "zero = other",
    "zero = 0.0",
    "zero < other",
]


def _rows() -> pa.Table:
    return pa.table(
        {
            "id": [0, 1, 2],
            "zoned": pa.array(MOMENTS, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "America/New_York")),
            "day": pa.array([dt.date(2024, 1, 1)] * 3),
            "seconds": pa.array([1, 2, -1], pa.timestamp("s")),
            "micros": pa.array([1_000_000, 2_000_001, -1_500_000], pa.timestamp("us")),
            "nanos": pa.array([1_000_000_999, 1, -1_500_000_001], pa.timestamp("ns")),
            "t": ["ß", "abc", ""],
            "i": pa.array([-(2**63), 1, 2]),
            "zero": [-0.0, 0.0, 1.0],
            "other": [0.0, 0.0, 1.0],
        }
    )


@pytest.mark.parametrize("condition", CORNERS)
def test_deletes_take_the_rows_that_pylance_takes(tmp_path: Path, condition: str) -> None:
    left = []
    for library in (lance, lance_core):
        made = library.write_dataset(_rows(), str(tmp_path / library.__name__))
        made.delete(condition)
        left.append(made.to_table()["id"].to_pylist())
    assert left[1] == left[0]


def test_the_least_integer_has_no_absolute_value(tmp_path: Path) -> None:
    made = lance_core.write_dataset(_rows(), tmp_path / "t")
    with pytest.raises(InvalidInputError, match="overflow"):
        made.delete("abs(i) < 0")
    with pytest.raises((ValueError, OSError), match="overflow"):
        lance.dataset(made.uri).to_table(filter="abs(i) < 0")


_MOMENTS = ["1969-12-31 23:59:58.5", "1969-12-31 23:59:59.999999", "2019-12-31 23:59:59", "2019-12-31 23:59:59.123456"]


@pytest.mark.parametrize("index", [None, "BTREE", "ZONEMAP"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_timestamp_literal_takes_the_coarser_unit_of_its_column(tmp_path: Path, unit: str, index: str | None) -> None:
    stored = pa.array(_MOMENTS).cast(pa.timestamp("ns")).cast(pa.timestamp(unit), safe=False)
    made = lance_core.write_dataset(pa.table({"t": stored}), tmp_path / "t")
    if index is not None:
        made.create_scalar_index("t", index)
    theirs = lance.dataset(str(tmp_path / "t"))
    for text in [*_MOMENTS, "2019-12-31 23:59:59.123456789", "1969-12-31 23:59:58.4999999"]:
        for operator in ("=", "<>", "<", "<=", ">", ">="):
            condition = f"t {operator} timestamp '{text}'"
            assert made.to_table(filter=condition) == theirs.to_table(filter=condition), condition


def test_a_literal_of_nanoseconds_is_exact_beside_nanoseconds(tmp_path: Path) -> None:
    """pylance cuts the literal to microseconds, and finds no row by `=`."""
    exact = pa.array([1_577_836_799_123_456_789, 1_577_836_799_123_456_000], pa.timestamp("ns"))
    made = lance_core.write_dataset(pa.table({"t": exact}), tmp_path / "t")
    assert made.count_rows("t = timestamp '2019-12-31 23:59:59.123456789'") == 1
    assert made.count_rows("t < timestamp '2019-12-31 23:59:59.123456789'") == 1


def test_a_value_that_a_function_cannot_take_is_an_error_that_names_it(tmp_path: Path) -> None:
    made = lance_core.write_dataset(pa.table({"i": [65, -1]}), tmp_path / "t")
    with pytest.raises(InvalidInputError, match="the function chr cannot be evaluated"):
        made.count_rows("chr(i) = 'A'")
