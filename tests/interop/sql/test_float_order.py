"""One order of floats for SQL, Arrow expressions, indices, statistics and deletes: pylance's.

NaN equals NaN and is above every number; a literal zero equals both zeros; between columns and keys -0.0 is below 0.0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import InvalidInputError

NAN = float("nan")
VALUES = [NAN, -0.0, 0.0, math.inf, -math.inf, 1.5, 100.5, 200.0, -3.25, None]
LITERALS = [NAN, -0.0, 0.0, 1.5, 100.5, math.inf]
KINDS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _rank(value: float, *, by_sign: bool) -> tuple[bool, float, bool]:
    """The place of a float in the order; zeros by their sign, or as one."""
    if math.isnan(value):
        return True, 0.0, False
    return False, value, by_sign and value == 0 and math.copysign(1, value) > 0


def _holds(sign: str, one: float | None, other: float | None, *, by_sign: bool) -> bool:
    if one is None or other is None:
        return False
    return bool(OPERATORS[sign](_rank(one, by_sign=by_sign), _rank(other, by_sign=by_sign)))


def _column(values: list[float | None], kind: str) -> pa.Array:
    numbers = [None if value is None else KINDS[kind](value) for value in values]
    return pa.array(numbers, pa.type_for_alias(kind))


def _rows(kind: str, seed: int) -> tuple[pa.Table, list[float | None], list[float | None]]:
    random = np.random.default_rng(seed)
    a, b = ([VALUES[i] for i in random.integers(0, len(VALUES), 60)] for _ in range(2))
    columns = {"id": pa.array(range(60), pa.int64()), "a": _column(a, kind), "b": _column(b, kind)}
    return pa.table(columns), a, b


def _sql(value: float) -> str:
    return f"cast('{value}' as double)" if math.isnan(value) or math.isinf(value) else repr(value)


def _ids(dataset: Any, filter_: Any) -> list[int]:
    return dataset.to_table(columns=["id"], filter=filter_)["id"].to_pylist()


@pytest.mark.variants(6)
@pytest.mark.parametrize("index", ["", "ZONEMAP", "BTREE", "BITMAP", "BLOOMFILTER", "0.1", "2.0"])
@pytest.mark.parametrize("kind", KINDS)
def test_comparisons_with_literals(tmp_path: Path, kind: str, index: str) -> None:
    rows, values, _ = _rows(kind, seed=len(index))
    version = index if index in ("0.1", "2.0") else None
    if version == "0.1":  # it stores no nulls
        values = [0.0 if value is None else value for value in values]
        rows = rows.set_column(1, "a", _column(values, kind)).drop_columns(["b"])
    made = lance_core.write_dataset(rows, tmp_path / "t", data_storage_version=version, max_rows_per_file=20)
    if index and version is None:
        try:
            made.create_scalar_index("a", index)
        except InvalidInputError:
            assert kind == "float16", "only columns of 16 bits have no index of some kinds"
    for literal in LITERALS:
        for sign, compare in OPERATORS.items():
            right = [i for i, value in enumerate(values) if _holds(sign, value, literal, by_sign=False)]
            wrong = [i for i, value in enumerate(values) if value is not None and i not in right]
            scalar = pa.scalar(KINDS[kind](literal), rows.schema.field("a").type)
            assert _ids(made, f"a {sign} {_sql(literal)}") == right
            assert _ids(made, compare(pc.field("a"), scalar)) == right, (sign, literal)
            assert _ids(made, ~compare(pc.field("a"), scalar)) == wrong, (sign, literal)
        equal = [i for i, value in enumerate(values) if _holds("=", value, literal, by_sign=False)]
        assert _ids(made, pc.field("a").isin([literal, 7.0])) == equal


@pytest.mark.parametrize("kind", KINDS)
def test_pylance_gives_the_same(tmp_path: Path, kind: str) -> None:
    rows, a, b = _rows(kind, seed=7)
    made = lance_core.write_dataset(rows, tmp_path / "t")
    peer = lance.dataset(made.uri)
    for sign, compare in OPERATORS.items():
        between = [i for i in range(60) if _holds(sign, a[i], b[i], by_sign=True)]
        assert _ids(peer, f"a {sign} b") == between
        assert _ids(made, f"a {sign} b") == between
        assert _ids(made, compare(pc.field("a"), pc.field("b"))) == between
        for literal in LITERALS:
            assert _ids(made, f"a {sign} {_sql(literal)}") == _ids(peer, f"a {sign} {_sql(literal)}")
    for condition in (
        "a IS NOT DISTINCT FROM b",
        "a IN (b, 1.5)",
        "nullif(a, 0.0) IS NULL",
        "greatest(a, b) = a",
        "least(a, b) = a",
        "abs(a) = 0.0",
        "a BETWEEN b AND 100.5",
        "a NOT IN (-0.0, 1.5)",
    ):
        assert _ids(made, condition) == _ids(peer, condition), condition


@pytest.mark.parametrize("kind", KINDS)
def test_deletes_and_updates_take_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows, values, _ = _rows(kind, seed=3)
    scalar = pa.scalar(KINDS[kind](100.5), rows.schema.field("a").type)
    above = [i for i, value in enumerate(values) if _holds(">", value, 100.5, by_sign=False)]
    assert any(math.isnan(values[i] or 0) for i in above)
    for number, condition in enumerate((pc.field("a") > scalar, "a > 100.5")):
        made = lance_core.write_dataset(rows, tmp_path / f"delete{number}")
        made.delete(condition)
        assert made.to_table()["id"].to_pylist() == [i for i in range(60) if i not in above]
        if isinstance(condition, str):
            made = lance_core.write_dataset(rows, tmp_path / f"update{number}")
            assert made.update({"id": "-1"}, where=condition)["num_rows_updated"] == len(above)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [NAN, -0.0, 0.0, 1.5])
def test_merges_match_the_same_keys(tmp_path: Path, kind: str, key: float) -> None:
    target = pa.table({"k": _column([NAN, -0.0, 1.5, None, 0.0], kind), "v": [0] * 5})
    source = pa.table({"k": _column([key], kind), "v": [1]})
    found = []
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        made = library.write_dataset(target, uri)
        merge = made.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(source)
        found.append(lance.dataset(uri).to_table().sort_by("v")["k"].to_pylist()[-1:])
    assert repr(found[0]) == repr(found[1]) == repr([float(KINDS[kind](key))])


def test_computed_and_nested_floats(tmp_path: Path) -> None:
    structs = pa.array([{"x": value} for value in VALUES], pa.struct([("x", pa.float64())]))
    rows = pa.table({"id": range(len(VALUES)), "s": structs, "i": range(len(VALUES))})
    made = lance_core.write_dataset(rows, tmp_path / "t")
    above = [i for i, value in enumerate(VALUES) if _holds(">", value, 100.5, by_sign=False)]
    assert _ids(made, pc.field("s", "x") > 100.5) == above
    assert _ids(made, (pc.field("s", "x") > 100.5) & (pc.field("i") >= 0)) == above
    assert _ids(made, pc.multiply(pc.field("s", "x"), 2.0) > 201.0) == above
    assert _ids(made, pc.divide(pc.field("i").cast("float64"), 0.0) > 1.0) == list(range(len(VALUES)))
    assert _ids(made, pc.field("i") < NAN) == list(range(len(VALUES)))
    computed = made.to_table(columns={"above": pc.field("s", "x") > 100.5})["above"].to_pylist()
    assert computed == [None if v is None else i in above for i, v in enumerate(VALUES)]


def test_a_column_by_its_place_is_rejected(tmp_path: Path) -> None:
    made = lance_core.write_dataset(pa.table({"a": [1.0]}), tmp_path / "t")
    with pytest.raises(InvalidInputError, match="refers to a column by its position"):
        made.to_table(filter=pc.field(0) > 1)


def _as_double(value: Any) -> Any:
    """The value as a double; pylance takes only unsafe casts."""
    return value.cast(pa.float64(), safe=False)


FLOATS_OF_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "acos(number) > 1": lambda number: pc.acos(_as_double(number)) > 1.0,
    "asin(number) > 1": lambda number: pc.asin(_as_double(number)) > 1.0,
    "number < cast('NaN' as double)": lambda number: _as_double(number) < NAN,
    "number + cast('NaN' as double) >= 5": lambda number: _as_double(number) + NAN >= 5.0,
    "sqrt(number) < acos(number)": lambda number: pc.sqrt(_as_double(number)) < pc.acos(_as_double(number)),
}


@pytest.mark.parametrize("condition", FLOATS_OF_INTEGERS)
def test_floats_in_a_table_without_columns_of_floats(tmp_path: Path, condition: str) -> None:
    made = lance_core.write_dataset(pa.table({"id": range(5), "number": [1, 2, 3, None, 0]}), tmp_path / "t")
    expression = FLOATS_OF_INTEGERS[condition](pc.field("number"))
    right = _ids(lance.dataset(made.uri), condition)
    assert right
    assert _ids(lance.dataset(made.uri), expression) == right
    assert _ids(made, condition) == right
    assert _ids(made, expression) == right


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        (pc.acos(pc.field("number")) > 1, "acos(number) > 1"),
        (pc.asin(pc.field("number")) > 1, "asin(number) > 1"),
        (pc.field("number") < pa.scalar(NAN), "number < cast('NaN' as double)"),
        (pc.field("parts", "number") < pa.scalar(NAN), "number < cast('NaN' as double)"),
        (pc.add(pc.field("number"), pa.scalar(NAN)) >= 5, "number + cast('NaN' as double) >= 5"),
        (pc.coalesce(pc.field("number"), pa.scalar(NAN)) > 5, "coalesce(number, cast('NaN' as double)) > 5"),
    ],
)
def test_floats_of_integers_without_a_cast(tmp_path: Path, expression: pc.Expression, condition: str) -> None:
    numbers = pa.array([1, 2, 3, None, 0])
    parts = pa.StructArray.from_arrays([numbers], ["number"])
    made = lance_core.write_dataset(pa.table({"id": range(5), "number": numbers, "parts": parts}), tmp_path / "t")
    right = _ids(lance.dataset(made.uri), condition)
    assert right
    assert _ids(made, expression) == right
