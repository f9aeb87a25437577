"""Names of reserved folders, jobs and dynamic outputs; and the known name that is nearest to a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, Final

import dagster as dg

RESERVED_FOLDER: Final = "_ops"
"""The folder below the root that holds the outputs of ops."""

LOG_FOLDER: Final = "_maintenance"
"""The folder below the root that holds the log of maintenance."""

FAILED_FOLDER: Final = "_failed"
"""The folder below the root that holds the rows on which functions of computed columns failed."""

RESERVED: Final = (f"{RESERVED_FOLDER}/", f"{LOG_FOLDER}/", f"{FAILED_FOLDER}/")
"""Prefixes of the paths of tables that belong to no asset."""

_NOT_IN_KEYS: Final = re.compile(r"[^A-Za-z0-9_]")


def mapping_key(asset: str, suffix: str = "") -> str:
    """The mapping key of a dynamic output for an asset; different assets have different keys."""
    plain = _NOT_IN_KEYS.sub("_", asset.replace("/", "__"))
    if plain != asset:
        plain += "_" + sha256(asset.encode()).hexdigest()[:6]
    return plain + suffix


def checked_job_name(name: str, label: str) -> str:
    """Check the name of a job, after which its ops are named, and return it.

    Args:
        name: The name.
        label: The argument or key that gives it, for messages.

    Raises:
        DagsterInvalidDefinitionError: No job can have that name.
    """
    if not name or _NOT_IN_KEYS.search(name):
        raise dg.DagsterInvalidDefinitionError(
            f"{label} must be made of ASCII letters, digits and underscores, not {name!r}"
        )
    return name


def plain_metadata(value: object) -> object:
    """The Python value of a metadata entry, which is a plain value or one of Dagster's metadata classes."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def listed_columns(value: object) -> list[str]:
    """The columns that a metadata entry names: one, or a list of columns; empty for None."""
    columns: Any = plain_metadata(value)
    return [columns] if isinstance(columns, str) else list(columns) if isinstance(columns, list | tuple) else []


def near_name(name: str, names: Collection[str]) -> str:
    """`; is 'x' meant?` with the known name that is nearest; an empty string if none is near."""
    plain = {known_name.removeprefix("lance/").lower(): known_name for known_name in sorted(names)}
    nearest = get_close_matches(name.removeprefix("lance/").lower(), plain, n=1, cutoff=0.5)
    return f"; is {plain[nearest[0]]!r} meant?" if nearest else ""
