"""Integers beyond 53 and 63 bits are compared, looked up and stored exactly, as pylance does it or more exactly."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import InvalidInputError

HASH = 12345678901234567890
UNSIGNED = [0, 2**63 - 1, 2**63, 2**63 + 1, HASH, HASH + 1, 2**64 - 1, None]
SIGNED = [0, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, 5, None, 7]
OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
REJECTED = r"out of the range of|cannot be compared exactly"
KINDS = ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"]


def _rows() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(8), pa.int64()),
            "h": pa.array(UNSIGNED, pa.uint64()),
            "i64": pa.array(SIGNED, pa.int64()),
            "d": pa.array([None if v is None else Decimal(v * 10**15 + 1) for v in UNSIGNED], pa.decimal128(38, 0)),
            "m": pa.array([None if v is None else Decimal(v) + Decimal("0.5") for v in UNSIGNED], pa.decimal128(25, 2)),
        }
    )


def _ids(dataset: Any, filter_: Any) -> list[int]:
    return dataset.to_table(columns=["id"], filter=filter_)["id"].to_pylist()


@pytest.fixture
def dataset(tmp_path: Path) -> lance_core.LanceDataset:
    """The rows."""
    return lance_core.write_dataset(_rows(), tmp_path / "t")


@pytest.mark.parametrize("kind", ["", *KINDS])
def test_comparisons_of_64_bits_are_exact(dataset: lance_core.LanceDataset, kind: str) -> None:
    for column, values, literals in (("h", UNSIGNED, UNSIGNED[2:5]), ("i64", SIGNED, SIGNED[1:4])):
        if kind:
            dataset.create_scalar_index(column, kind)
        for literal in [v for v in literals if v is not None]:
            for operator, holds in OPERATORS.items():
                right = [i for i, v in enumerate(values) if v is not None and holds(v, literal)]
                assert _ids(dataset, f"{column} {operator} {literal}") == right
                assert _ids(dataset, f"({column} {operator} {literal}) IS TRUE") == right
            equal = [i for i, v in enumerate(values) if v == literal]
            others = [i for i, v in enumerate(values) if v is not None and v != literal]
            assert _ids(dataset, f"{column} IN ({literal}, 1)") == equal
            assert _ids(dataset, f"{column} NOT IN ({literal}, 1)") == others
            assert _ids(dataset, f"NOT ({column} = {literal})") == others
            assert _ids(dataset, f"{column} BETWEEN {literal} AND {literal}") == equal
            assert _ids(dataset, pc.field(column) == pa.scalar(literal, dataset.schema.field(column).type)) == equal


@pytest.mark.parametrize(
    ("column", "literal"),
    [("i64", 2**63), ("i64", -(2**63) - 1), ("h", 2**64), ("h", -1), ("h", 10**30), ("i64", -(10**40)), ("h", "1e25")],
)
def test_what_the_column_cannot_hold_is_rejected_or_never_true(
    dataset: lance_core.LanceDataset, column: str, literal: Any
) -> None:
    for operator in OPERATORS:
        with pytest.raises(InvalidInputError, match=REJECTED):
            dataset.delete(f"{column} {operator} {literal}")
    for condition in (f"{column} IN (1, {literal})", f"{column} BETWEEN 0 AND {literal}"):
        with pytest.raises(InvalidInputError, match=REJECTED):
            dataset.delete(condition)
        with pytest.raises((ValueError, OSError)):
            lance.dataset(dataset.uri).delete(condition)
    if isinstance(literal, int):
        assert _ids(dataset, f"({column} = {literal}) IS TRUE") == []
    assert dataset.version == dataset.latest_version
    assert dataset.count_rows() == 8


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_narrow_columns_reject_what_pylance_rejects(tmp_path: Path, kind: str) -> None:
    bits = int(kind.removeprefix("u").removeprefix("int"))
    low, high = (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    made = lance_core.write_dataset(pa.table({"id": [0, 1], "n": pa.array([low, high], kind)}), tmp_path / "t")
    peer = lance.dataset(made.uri)
    for value in (low - 1, low, high, high + 1):
        for condition in (f"n = {value}", f"n < {value}", f"n IN ({value})", f"n BETWEEN {value} AND {value}"):
            try:
                expected = _ids(peer, condition)
            except ValueError:
                with pytest.raises(InvalidInputError, match="out of the range of"):
                    _ids(made, condition)
            else:
                assert _ids(made, condition) == expected, condition


def test_decimals_are_compared_digit_by_digit(dataset: lance_core.LanceDataset) -> None:
    wanted = HASH * 10**15 + 1
    assert _ids(dataset, f"d = {wanted}") == [4]
    assert _ids(dataset, f"d = {wanted + 1}") == []
    assert _ids(dataset, f"d > {wanted}") == [5, 6]
    assert _ids(dataset, f"m = {HASH}.5") == [4]
    assert _ids(dataset, f"m = {HASH}.50") == [4]
    assert _ids(dataset, f"m < {HASH}.5") == [0, 1, 2, 3]
    assert _ids(dataset, f"m = {HASH}.51") == []
    assert _ids(dataset, f"m = {HASH}.5000000000000000000000001") == []
    assert _ids(dataset, f"m IN ({HASH}.5, 1)") == [4]
    assert _ids(dataset, f"m = -{HASH}.5") == []


def test_numbers_with_exponents_are_exact_too(dataset: lance_core.LanceDataset) -> None:
    assert _ids(dataset, "h = 9223372036854775808.0") == [2]
    assert _ids(dataset, "(h = 9223372036854775808.0) IS TRUE") == [2]
    assert _ids(dataset, "i64 >= 9.223372036854775807e18") == [1]


def test_a_delete_takes_one_of_two_neighbours(tmp_path: Path) -> None:
    for number, literal in enumerate((HASH, 2**63, 2**64 - 1)):
        made = lance_core.write_dataset(_rows(), tmp_path / str(number))
        made.delete(f"h = {literal}")
        assert made.to_table()["h"].to_pylist() == [v for v in UNSIGNED if v != literal]


@pytest.mark.parametrize("value", [HASH + 1, 2**63, 2**64 - 1, 2**64, -1, 2**63 - 1, -(2**63), 2**63 + 1])
def test_updates_store_the_number_that_was_written(tmp_path: Path, value: int) -> None:
    for column, low, high in (("h", 0, 2**64 - 1), ("i64", -(2**63), 2**63 - 1)):
        made = lance_core.write_dataset(_rows(), tmp_path / column)
        if not low <= value <= high:
            with pytest.raises(InvalidInputError):
                made.update({column: str(value)}, where="id = 0")
            assert made.latest_version == 1
            continue
        made.update({column: str(value)}, where="id = 0")
        assert made.to_table(filter="id = 0")[column].to_pylist() == [value]


def test_conditions_of_merges_are_exact(tmp_path: Path) -> None:
    source = pa.table({"id": pa.array([4, 5, 6], pa.int64()), "h": pa.array([1, 2, 3], pa.uint64())})
    rows = _rows().select(["id", "h"])
    made = lance_core.write_dataset(rows, tmp_path / "update")
    made.merge_insert("id").when_matched_update_all(f"target.h = {HASH}").execute(source)
    assert made.to_table(filter="id IN (4, 5)").sort_by("id")["h"].to_pylist() == [1, HASH + 1]
    made = lance_core.write_dataset(rows, tmp_path / "delete")
    merge = made.merge_insert("id").when_matched_update_all()
    merge.when_not_matched_by_source_delete(f"h = {2**63}").execute(source)
    assert sorted(made.to_table()["id"].to_pylist()) == [0, 1, 3, 4, 5, 6, 7]
