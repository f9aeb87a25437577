"""Names of ops and of dynamic outputs, made of asset keys; and of the folder of their outputs."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

__all__ = ["RESERVED_FOLDER", "mapping_key"]

RESERVED_FOLDER: Final = "_ops"
"""Below the root, for outputs of ops."""

_NOT_IN_KEYS: Final = re.compile(r"[^A-Za-z0-9_]")


def mapping_key(asset: str, suffix: str = "") -> str:
    """A key of a dynamic output: the same for the same table, another for another one."""
    plain = _NOT_IN_KEYS.sub("_", asset.replace("/", "__"))
    if plain != asset:
        plain += "_" + sha256(asset.encode()).hexdigest()[:6]
    return plain + suffix
