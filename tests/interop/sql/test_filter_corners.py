"""Corners of filters in which results once differed from pylance's: the rows that it deletes are those deleted here."""

from __future__ import annotations

import datetime as dt
import operator
from decimal import Decimal
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    # A truth value that is never null is not computed, a division by zero in it is not an error.
    "((1 / (id * 0) = 1) IS FALSE) IS NULL",
    "((1 / (id * 0) = 1) IS FALSE AND t IS NULL) IS NOT NULL",
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
        for sign in ("=", "<>", "<", "<=", ">", ">="):
            condition = f"t {sign} timestamp '{text}'"
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


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_days_of_the_first_and_the_last_timestamps(tmp_path: Path, unit: str) -> None:
    """The day before the first timestamp of a unit would begin out of its range."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    far = min(2**63 - 1, 8_000_000_000_000 * per_second)
    moments = pa.array([-far, -1, 0, far], pa.timestamp(unit))
    made = lance_core.write_dataset(pa.table({"t": moments, "i": range(4)}), tmp_path / "t")
    theirs = lance.dataset(str(tmp_path / "t"))
    for condition in ("cast(t as date) > date '2000-01-01'", "cast(t as date) = date '1969-12-31'", "t > now()"):
        assert made.to_table(filter=condition) == theirs.to_table(filter=condition), condition


def test_a_timestamp_beyond_all_dates_is_no_date(tmp_path: Path) -> None:
    made = lance_core.write_dataset(pa.table({"t": pa.array([2**62], pa.timestamp("s"))}), tmp_path / "t")
    with pytest.raises(InvalidInputError, match="out of bounds"):
        made.count_rows("cast(t as date) > date '2000-01-01'")
    assert made.count_rows("t > timestamp '2000-01-01 00:00:00'") == 1


_UNSIGNED = [2**63 + 1, 0, None, 2**64 - 1, 2**63, 5]
_SIGNED = [-1, 0, None, 2**63 - 1, -(2**63), 5]
_DECIMALS = [None if one is None else Decimal(one) for one in ("1.5", "2.5", None, "-3", "0.01", "99")]


@pytest.mark.parametrize("indexed", [False, True])
def test_arrow_expressions_over_numbers_of_different_types(tmp_path: Path, indexed: bool) -> None:
    """Python's integers, exact at every size, say what each comparison finds."""
    columns = {
        "u": pa.array(_UNSIGNED, pa.uint64()),
        "i": pa.array(_SIGNED, pa.int64()),
        "d": pa.array(_DECIMALS, pa.decimal128(6, 2)),
    }
    made = lance_core.write_dataset(pa.table(columns), tmp_path / "t")
    if indexed:
        for name in columns:
            made.create_scalar_index(name, "BTREE")
    values = {name: column.to_pylist() for name, column in columns.items()}
    numbers = [-1, 0, 5, 99, 2**63 - 1, pa.scalar(2**63, pa.uint64()), pa.scalar(2**64 - 1, pa.uint64())]
    others = [(pc.scalar(one), [one.as_py() if isinstance(one, pa.Scalar) else one] * 6) for one in numbers]
    others += [(pc.field(name), values[name]) for name in columns]
    for name, column in values.items():
        for other, right in others:
            for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
                expected = [
                    x is not None and y is not None and compare(x, y) for x, y in zip(column, right, strict=True)
                ]
                condition = compare(pc.field(name), other)
                found = made.to_table(filter=condition).num_rows
                assert found == sum(expected), condition
        assert made.count_rows(pc.field(name).isin([-1, 5, 99])) == sum(x in (-1, 5, 99) for x in column)


def test_functions_and_arithmetic_of_half_floats(tmp_path: Path) -> None:
    halves = pa.array(np.array([1.5, -2.25, 0.0, np.nan], np.float16))
    made = lance_core.write_dataset(pa.table({"h": halves, "g": pa.array(np.ones(4, np.float16))}), tmp_path / "t")
    theirs = lance.dataset(str(tmp_path / "t"))
    for value in (
        "trunc(h)",
        "round(h)",
        "sqrt(h)",
        "exp(h)",
        "sin(h)",
        "signum(h)",
        "h + g",
        "h - g",
        "h * g",
        "h / 2",
    ):
        ours, reference = (one.to_table(columns={"x": value})["x"] for one in (made, theirs))
        assert ours.type == reference.type, value
        np.testing.assert_allclose(ours.to_numpy(), reference.to_numpy(), rtol=1e-12, err_msg=value)


@pytest.mark.parametrize("index", [None, "BTREE", "BITMAP"])
def test_is_in_of_arrow_is_the_in_of_sql(tmp_path: Path, index: str | None) -> None:
    columns = {
        "i": pa.array([1, 2, None, 3]),
        "s": pa.array(["a", "b", None, "c"]),
        "f": pa.array([1.0, float("nan"), None, 0.0]),
        "b": pa.array([True, False, None, True]),
    }
    made = lance_core.write_dataset(pa.table({"id": range(4), **columns}), tmp_path / "t")
    if index is not None:
        for name in ("i", "s"):
            made.create_scalar_index(name, index)
    theirs = lance.dataset(str(tmp_path / "t"))
    for name, column in columns.items():
        first = column.slice(0, 1)
        for values in (first, pa.concat_arrays([first, pa.nulls(1, column.type)]), pa.nulls(1, column.type), first[:0]):
            for skip_nulls in (False, True):
                found = pc.is_in(pc.field(name), values, skip_nulls=skip_nulls)
                for condition in (found, ~found, found.is_null(), found | (pc.field("id") == 3)):
                    ours, reference = (one.to_table(["id"], filter=condition) for one in (made, theirs))
                    assert ours == reference, condition
    made.delete(pc.field("i").isin([1, None]))
    assert theirs.checkout_version(made.version).to_table()["id"].to_pylist() == [1, 2, 3]
