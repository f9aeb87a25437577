"""Conditions of thousands of parts are evaluated, or rejected by name; they never end the process."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import InvalidInputError

MANY = 600
LONG: dict[str, Callable[[int], Any]] = {
    "or": lambda n: " OR ".join(f"a = {i + 1}" for i in range(n)),
    "and": lambda n: " AND ".join(f"a <> {-i}" for i in range(3, n + 3)),
    "or of and": lambda n: " OR ".join(f"a = {i + 1} AND b >= {i}" for i in range(n)),
    "casts": lambda n: " OR ".join(f"cast(a as string) = '{i + 1}'" for i in range(n)),
    "in": lambda n: f"a IN ({','.join(str(i + 1) for i in range(n))})",
    "in columns": lambda n: f"a IN ({','.join(str(i + 1) for i in range(n))}, b)",
    "case": lambda n: f"CASE {' '.join(f'WHEN a = {i + 1} THEN true' for i in range(n))} ELSE false END",
    "or, Arrow": lambda n: reduce(operator.or_, [pc.field("a") == i + 1 for i in range(n)]),
    "and, Arrow": lambda n: reduce(operator.and_, [pc.field("a") != -i for i in range(3, n + 3)]),
    "or to the right": lambda n: reduce(lambda one, other: other | one, [pc.field("a") == i + 1 for i in range(n)]),
    "floats": lambda n: reduce(operator.or_, [pc.field("f") == i + 1.0 for i in range(n)]),
}
DEEP: dict[str, Callable[[int], Any]] = {
    "not": lambda n: "NOT " * n + "a = 1",
    "parentheses": lambda n: "(" * n + "a = 1" + ")" * n,
    "to the right": lambda n: "".join(f"a = {i} OR (" for i in range(n)) + "a = 1" + ")" * n,
    "sums": lambda n: "a" + " + 1" * n + " > 0",
    "not, Arrow": lambda n: reduce(lambda one, _: ~one, range(n), pc.field("a") == 1),
    "sums, Arrow": lambda n: reduce(lambda one, _: one + 1, range(n), pc.field("a")) > 0,
}


@pytest.fixture
def dataset(tmp_path: Path) -> lance_core.LanceDataset:
    """Two rows that match, and one that does not."""
    rows = pa.table({"id": [0, 1, 2], "a": [1, 2, -3], "b": [0, 5, 6], "f": [1.0, 2.0, float("nan")]})
    return lance_core.write_dataset(rows, tmp_path / "t")


@pytest.mark.parametrize("kind", LONG)
def test_long_conditions(dataset: lance_core.LanceDataset, kind: str) -> None:
    condition = LONG[kind](MANY)
    assert dataset.to_table(filter=condition)["id"].to_pylist() == [0, 1]


def test_every_verb_takes_them(dataset: lance_core.LanceDataset) -> None:
    for kind in ("or", "or, Arrow"):
        condition = LONG[kind](MANY)
        assert dataset.count_rows(condition) == 2
        assert dataset.get_fragments()[0].count_rows(filter=condition) == 2
    assert dataset.update({"b": "b + 1"}, where=LONG["or"](MANY))["num_rows_updated"] == 2
    target = LONG["or"](MANY).replace("a =", "target.a =")
    source = pa.table({"id": [0], "a": [7], "b": [7], "f": [7.0]})
    dataset.merge_insert("id").when_matched_update_all(target).execute(source)
    dataset.delete(LONG["or, Arrow"](MANY))
    assert dataset.to_table()["id"].to_pylist() == [2]


@pytest.mark.parametrize("kind", DEEP)
def test_deep_conditions_are_rejected(dataset: lance_core.LanceDataset, kind: str) -> None:
    with pytest.raises(InvalidInputError, match="nested too deep"):
        dataset.delete(DEEP[kind](5000))
    assert dataset.latest_version == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_conditions_of_20_000_parts(dataset: lance_core.LanceDataset, kind: str) -> None:
    assert dataset.to_table(filter=LONG[kind](20_000))["id"].to_pylist() == [0, 1]


@pytest.mark.slow
def test_lists_of_100_000_values(dataset: lance_core.LanceDataset) -> None:
    assert dataset.count_rows(LONG["in"](100_000)) == 2
