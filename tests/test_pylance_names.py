"""Each name of pylance is offered, or listed in the documentation with the reason why it is not."""

import re
import sys
from pathlib import Path

import lance
import lance.file
import lance.fragment
import lance.optimize
import lance.progress
import pytest

import lance_core
import lance_core.optimize

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"

PLACES = {
    "lance": (lance, lance_core, lance.__all__),
    "LanceDataset": (lance.LanceDataset, lance_core.LanceDataset, None),
    "LanceFragment": (lance.LanceFragment, lance_core.LanceFragment, None),
    "LanceScanner": (lance.LanceScanner, lance_core.LanceScanner, None),
    "LanceOperation": (lance.LanceOperation, lance_core.LanceOperation, None),
    "MergeInsertBuilder": (lance.MergeInsertBuilder, lance_core.MergeInsertBuilder, None),
    "DatasetDelta": (vars(sys.modules["lance.dataset"])["DatasetDelta"], lance_core.DatasetDelta, None),
    "FragmentMetadata": (lance.FragmentMetadata, lance_core.FragmentMetadata, None),
}


def listed() -> dict[str, set[str]]:
    """The names that the documentation says are not offered, by place."""
    found: dict[str, set[str]] = {}
    for place, names in re.findall(
        r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text().partition("## Not offered")[2], re.MULTILINE
    ):
        found.setdefault(place, set()).update(re.findall(r"`(\w+)`", names))
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_name_is_offered_or_the_page_says_why_not(place):
    theirs, ours, names = PLACES[place]
    public = set(names if names is not None else (name for name in dir(theirs) if not name.startswith("_")))
    missing = {name for name in public if not hasattr(ours, name)}
    said = listed().get(place, set())
    assert missing - said == set(), "add the name, or say in docs/compatibility.md why it is not offered"
    assert said - missing == set(), "the documentation says that these are not offered, but they are"
