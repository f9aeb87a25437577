"""Conditions of any length and depth as trees of few levels."""

import pyarrow.compute as pc
import pytest

from lance_core.index import conditions
from lance_core.index.conditions import All, AnyOf, Compare, Not, Unknown, condition_of

TESTS = [pc.field("a") == number for number in range(3000)]


def joined(parts, join, *, to_the_left):
    found, *others = parts if to_the_left else reversed(parts)
    for part in others:
        found = join(found, part) if to_the_left else join(part, found)
    return found


@pytest.mark.parametrize("to_the_left", [True, False])
@pytest.mark.parametrize(("join", "kind"), [(pc.Expression.__and__, All), (pc.Expression.__or__, AnyOf)])
def test_a_chain_is_one_node(join, kind, to_the_left):
    found = condition_of(joined(TESTS, join, to_the_left=to_the_left))
    assert type(found) is kind
    assert [part.value.as_py() for part in found.parts] == list(range(3000))


def test_chains_of_the_other_kind_stay_apart():
    a, b, c, d = TESTS[:4]
    found = condition_of((a & b) | (c & ~(d | a)))
    assert found == AnyOf((All(parts(a, b)), All((*parts(c), Not(AnyOf(parts(d, a)))))))


def parts(*expressions):
    return tuple(map(condition_of, expressions))


@pytest.mark.parametrize("levels", [50, 3000])
def test_what_is_too_deep_is_not_understood(levels):
    deep = TESTS[0]
    for number in range(levels // 2):
        deep = ~(deep & TESTS[number])
    found = condition_of(deep | TESTS[7])
    if levels == 50:
        assert Unknown() not in list(walk(found))
        assert len(list(conditions.tests_of(found))) == levels // 2 + 2
    else:
        assert isinstance(found, AnyOf)
        assert Unknown() in list(walk(found))
        assert found.parts[-1] == Compare(("a",), "equal", condition_of(TESTS[7]).value)


def walk(condition):
    yield condition
    for part in (condition.part,) if isinstance(condition, Not) else getattr(condition, "parts", ()):
        yield from walk(part)
