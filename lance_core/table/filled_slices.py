"""The slices, such as partitions, that a commit fills, as its transaction properties record them.

    lance.slices         [[["day", "Equals", ["str", "'d1'"]]], ...]    for each slice its columns, each with the kind
                                                                      of condition, and the type and text of its values
    lance.slice_names    ["d1", ...]                                  for people, in the same order

Two slices are the same if their conditions are. They are compared by digest: older commits record a digest, a string,
in place of the conditions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

SLICES_KEY: Final = "lance.slices"
SLICE_NAMES_KEY: Final = "lance.slice_names"


class FilledSlice(NamedTuple):
    """A slice that a commit filled: its name, and its conditions, or their digest, as recorded."""

    name: str
    conditions: Any


def slice_digest(conditions: Any) -> str:
    """Return the digest of the conditions of a slice; a digest stays as it is."""
    if isinstance(conditions, str):
        return conditions
    return hashlib.blake2b(json.dumps(conditions).encode(), digest_size=10).hexdigest()


def read_slices(properties: Mapping[str, str]) -> Mapping[str, FilledSlice]:
    """Return the slices that a commit filled, by digest; the digest is the name of one without a name."""
    return _read(properties.get(SLICES_KEY), properties.get(SLICE_NAMES_KEY))


@lru_cache(maxsize=64)  # a pending commit is compared with many others
def _read(slices: str | None, slice_names: str | None) -> Mapping[str, FilledSlice]:
    recorded, names = _read_list(slices), _read_list(slice_names)
    digests = [slice_digest(conditions) for conditions in recorded]
    pairs = zip(digests, recorded, names if len(names) == len(recorded) else digests, strict=True)
    return {digest: FilledSlice(str(name), conditions) for digest, conditions, name in pairs}


def slice_properties(slices: Iterable[FilledSlice]) -> dict[str, str]:
    """Return the transaction properties that record slices; none without slices."""
    parts = list(slices)
    if not parts:
        return {}
    return {
        SLICES_KEY: json.dumps([part.conditions for part in parts]),
        SLICE_NAMES_KEY: json.dumps([part.name for part in parts]),
    }


def _read_list(value: str | None) -> list[Any]:
    """The items of a JSON list; an empty list for any other JSON."""
    try:
        content = json.loads(value) if value else []
    except ValueError:
        return []
    return content if isinstance(content, list) else []
