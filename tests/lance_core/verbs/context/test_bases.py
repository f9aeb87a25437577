"""The numbers of base paths."""

import pytest

from lance_core import DatasetBasePath
from lance_core.errors import InvalidInputError
from lance_core.verbs.context.bases import numbered


def base(name, number=None):
    return DatasetBasePath(f"/elsewhere/{name}", name=name, id=number)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([None, None], [1, 2]),
        ([1, None], [1, 2]),
        ([None, 1], [2, 1]),
        ([2, None, None], [2, 1, 3]),
        ([None, 2, None, 1], [3, 2, 4, 1]),
    ],
)
def test_free_numbers_are_those_that_nobody_has(given, expected):
    bases = [base(f"b{index}", number) for index, number in enumerate(given)]
    assert [record.id for record in numbered(bases)] == expected


def test_numbers_paths_and_names_are_taken_once():
    with pytest.raises(InvalidInputError, match="the same id"):
        numbered([base("a", 3), base("b", 3)])
    with pytest.raises(InvalidInputError, match="the same path"):
        numbered([DatasetBasePath("/x", name="a"), DatasetBasePath("/x", name="b")])
    with pytest.raises(InvalidInputError, match="the same name"):
        numbered([DatasetBasePath("/x", name="a"), DatasetBasePath("/y", name="a")])
