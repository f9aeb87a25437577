"""The name and version of this library, as written into manifests and files."""

from __future__ import annotations

from typing import Final

LIBRARY: Final = "lance_core"
LIBRARY_VERSION: Final = "0.1.0"
"""Three numbers, as readers expect."""
