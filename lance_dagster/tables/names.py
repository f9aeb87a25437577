"""Names of jobs, ops, dynamic outputs and their folder; and the nearest known name of a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from hashlib import sha256
from typing import Final

import dagster as dg

__all__ = ["RECEIPTS_FOLDER", "RESERVED", "RESERVED_FOLDER", "checked_job_name", "mapping_key", "near_name"]

RESERVED_FOLDER: Final = "_ops"
"""Below the root, for outputs of ops."""

RECEIPTS_FOLDER: Final = "_maintenance"
"""Below the root, for the log of maintenance."""

RESERVED: Final = (f"{RESERVED_FOLDER}/", f"{RECEIPTS_FOLDER}/")
"""Beginnings of the paths of tables that are no assets."""

_NOT_IN_KEYS: Final = re.compile(r"[^A-Za-z0-9_]")


def mapping_key(asset: str, suffix: str = "") -> str:
    """A key of a dynamic output, equal for equal tables and different for different ones."""
    plain = _NOT_IN_KEYS.sub("_", asset.replace("/", "__"))
    if plain != asset:
        plain += "_" + sha256(asset.encode()).hexdigest()[:6]
    return plain + suffix


def checked_job_name(name: str, where: str) -> str:
    """A name that a job can have, whose ops are named by it.

    Args:
        name: The name.
        where: The argument or key that gives it, for messages.

    Raises:
        DagsterInvalidDefinitionError: No job can have that name.
    """
    if not name or _NOT_IN_KEYS.search(name):
        raise dg.DagsterInvalidDefinitionError(
            f"{where} must be made of ASCII letters, digits and underscores, not {name!r}"
        )
    return name


def near_name(name: str, names: Collection[str]) -> str:
    """`; is 'x' meant?`, naming the nearest of the known names; nothing if none is near."""
    plain = {one.removeprefix("lance/").lower(): one for one in sorted(names)}
    found = get_close_matches(name.removeprefix("lance/").lower(), plain, n=1, cutoff=0.5)
    return f"; is {plain[found[0]]!r} meant?" if found else ""
