"""Conditions of any length and depth as trees of few levels."""

import itertools
import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.index.query import conditions
from lance_core.index.query.conditions import (
    All,
    AnyOf,
    CaseWhen,
    Compare,
    Constant,
    IsNull,
    Not,
    UnknownCondition,
    parse_condition,
)

TESTS = [pc.field("a") == number for number in range(3000)]


def joined(parts, join, *, to_the_left):
    found, *others = parts if to_the_left else reversed(parts)
    for part in others:
        found = join(found, part) if to_the_left else join(part, found)
    return found


@pytest.mark.parametrize("to_the_left", [True, False])
@pytest.mark.parametrize(("join", "kind"), [(pc.Expression.__and__, All), (pc.Expression.__or__, AnyOf)])
def test_a_chain_is_one_node(join, kind, to_the_left):
    found = parse_condition(joined(TESTS, join, to_the_left=to_the_left))
    assert type(found) is kind
    assert [part.value.as_py() for part in found.parts] == list(range(3000))


def test_chains_of_the_other_kind_stay_apart():
    a, b, c, d = TESTS[:4]
    found = parse_condition((a & b) | (c & ~(d | a)))
    assert found == AnyOf((All(parts(a, b)), All((*parts(c), Not(AnyOf(parts(d, a)))))))


def plain(name, *arguments):
    """AND or OR as Arrow has them beside those of three truth values: null wherever an argument is null."""
    return pc.Expression._call(name, list(arguments), None)


@pytest.mark.parametrize(("name", "kind"), [("and", All), ("or", AnyOf)])
def test_what_is_null_with_an_argument_is_never_more_than_that(name, kind):
    a, b, nan = pc.field("a") > 1.0, pc.field("b") > 1.0, pc.field("a").is_nan()
    assert parse_condition(plain(name, a, nan)) == kind(parts(a, nan))  # null together
    assert parse_condition(plain(name, pc.field("a") > pc.scalar(None), nan)) == Constant(None)
    either = parse_condition(plain(name, a, b))
    assert either == CaseWhen(All((Not(IsNull(("a",))), Not(IsNull(("b",))))), kind(parts(a, b)), Constant(None))
    assert parse_condition(plain(name, a, pc.field("b").is_null())) == CaseWhen(
        All((Not(IsNull(("a",))),)), kind(parts(a, pc.field("b").is_null())), Constant(None)
    )
    unknown = plain(name, a, pc.field("b") + pc.field("a") > 1.0)
    assert parse_condition(unknown) == CaseWhen(
        UnknownCondition(), kind((*parts(a), UnknownCondition())), Constant(None)
    )


@pytest.mark.parametrize("kind", ["BITMAP", "BTREE"])
def test_a_row_for_which_a_filter_is_null_is_no_wrong_claim(tmp_path, kind):
    numbers = [math.nan, None, 1.0, 7.0, math.nan, None, -1.0, 7.0]
    rows = pa.table({"a": numbers, "b": [None, 1.0, None, 7.0, 2.0, None, 0.0, math.nan], "n": range(8)})
    made = lance_core.write_dataset(rows, tmp_path / "t")
    for name in "ab":
        made.create_scalar_index(name, kind)
    a, b, missing = pc.field("a"), pc.field("b"), pa.scalar(None, pa.float64())
    tests = [a > 1.0, b > 1.0, a > missing, a.is_nan(), a.is_null(), b.isin([7.0]), ~(b == 2.0)]
    for one, other in itertools.combinations(tests, 2):
        for name in ("or", "and"):
            found = plain(name, one, other)
            for filter_ in (found, ~found):
                expected = made.scanner(filter=filter_, use_scalar_index=False).to_table()
                assert made.to_table(["n"], filter_)["n"] == expected["n"], filter_  # a warning would be an error


def parts(*expressions):
    return tuple(map(parse_condition, expressions))


@pytest.mark.parametrize("levels", [50, 3000])
def test_what_is_too_deep_is_not_understood(levels):
    deep = TESTS[0]
    for number in range(levels // 2):
        deep = ~(deep & TESTS[number])
    found = parse_condition(deep | TESTS[7])
    if levels == 50:
        assert UnknownCondition() not in list(walk(found))
        assert len(list(conditions.list_tests(found))) == levels // 2 + 2
    else:
        assert isinstance(found, AnyOf)
        assert UnknownCondition() in list(walk(found))
        assert found.parts[-1] == Compare(("a",), "equal", parse_condition(TESTS[7]).value)


def walk(condition):
    yield condition
    for part in (condition.part,) if isinstance(condition, Not) else getattr(condition, "parts", ()):
        yield from walk(part)
