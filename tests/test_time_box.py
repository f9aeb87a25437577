"""A run of some minutes takes one variant of each test, then the next one of each, and keeps classes together."""

from pathlib import Path
from types import SimpleNamespace

from tests.conftest import TimeBox

COLLECTED = ["a::f[0]", "a::f[1]", "a::g", "b::f[0]", "b::f[1]", "b::f[2]", "c::Story::one[0]", "c::Story::two[0]"]


def order(seed, collected=COLLECTED):
    items = [
        SimpleNamespace(nodeid=name, path=Path(name.split("::")[0]), cls=object if "Story" in name else None)
        for name in collected
    ]
    TimeBox(1, seed).pytest_collection_modifyitems(items)
    return [item.nodeid for item in items]


def test_one_variant_of_each_comes_before_another():
    seen = order(0)
    assert sorted(seen) == sorted(COLLECTED)
    assert set(seen[:5]) == {"a::f[0]", "a::g", "b::f[0]", "c::Story::one[0]", "c::Story::two[0]"}
    assert seen.index("c::Story::two[0]") == seen.index("c::Story::one[0]") + 1
    assert set(seen[5:7]) == {"a::f[1]", "b::f[1]"}
    assert seen[7] == "b::f[2]"


def test_the_seed_says_which_module_begins():
    assert order(1) == order(1)
    assert len({order(seed)[0] for seed in range(20)}) == 3
