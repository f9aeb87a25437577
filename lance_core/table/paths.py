"""Names of all files of a dataset, relative to its root, and the format of a dataset that is created.

    data/<name>.lance                                     data files
    _versions/<20 digits>.manifest                        manifests, V2: the digits are 2^64 - 1 - version
    _versions/<version>.manifest                          manifests, V1
    _versions/d<version>.manifest                         detached manifests: versions with the top bit set
    _versions/latest_version_hint.json                    {"version":3}; only a hint
    _transactions/<read version>-<uuid>.txn
    _transactions/removed/<version>                       what made a removed version (`commit.history`)
    _deletions/<fragment>-<read version>-<id>.arrow|.bin
    _indices/<uuid>/...
    _refs/tags/<name>.json, _refs/branches/<name, quoted>.json
    tree/<branch>/...                                     the same again for a branch

V2 names sort newest first, so that one short listing finds the latest version. One dataset uses one scheme.

Options for a table that is created: version of its data files, stable row ids, names of its manifests.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import quote, unquote

from lance_core.errors import CorruptFileError

VERSIONS_PREFIX = "_versions/"
TRANSACTIONS_PREFIX = "_transactions/"
DATA_PREFIX = "data/"
DELETIONS_PREFIX = "_deletions/"
INDICES_PREFIX = "_indices/"
REFS_PREFIX = "_refs/"
TAGS_PREFIX = "_refs/tags/"
BRANCHES_PREFIX = "_refs/branches/"
CLAIMS_PREFIX = "_refs/claims/"
MOVES_PREFIX = "_refs/moves/"
COMPUTATIONS_PREFIX = "_refs/computations/"
TREE_PREFIX = "tree/"
FOLDERS = frozenset(
    {VERSIONS_PREFIX, TRANSACTIONS_PREFIX, DATA_PREFIX, DELETIONS_PREFIX, INDICES_PREFIX, REFS_PREFIX, TREE_PREFIX}
)
"""The folders of a dataset, and of each branch."""
HINT_KEY = "_versions/latest_version_hint.json"

DETACHED_BIT = 1 << 63
_LAST = (1 << 64) - 1
_SUFFIX = ".manifest"
_MOVED = re.compile(r"^[0-9a-f]{12}\.(?=[^/]+\.lance$)")


class Naming(StrEnum):
    """How a dataset names its manifests."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestName:
    """The parsed name of a manifest.

    Attributes:
        version: The version; the number of a detached version has the top bit set.
        naming: The scheme; detached manifests occur with V2 only.
    """

    version: int
    naming: Naming


def manifest_key(version: int, naming: Naming = Naming.V2) -> str:
    """Key of the manifest of a version, detached or not."""
    if is_detached(version):
        return f"{VERSIONS_PREFIX}d{version}{_SUFFIX}"
    if naming is Naming.V1:
        return f"{VERSIONS_PREFIX}{version}{_SUFFIX}"
    return f"{VERSIONS_PREFIX}{_LAST - version:020d}{_SUFFIX}"


def parse_manifest_key(key: str) -> ManifestName | None:
    """Parse a key below `_versions/`; None if it is not a manifest's key."""
    stem = key.removeprefix(VERSIONS_PREFIX)
    if not stem.endswith(_SUFFIX):
        return None
    digits = stem.removesuffix(_SUFFIX)
    if digits.startswith("d") and _is_number(digits[1:]) and is_detached(int(digits[1:])):
        return ManifestName(version=int(digits[1:]), naming=Naming.V2)
    if not _is_number(digits):
        return None
    if len(digits) == 20:
        return ManifestName(version=_LAST - int(digits), naming=Naming.V2)
    return ManifestName(version=int(digits), naming=Naming.V1)


def is_detached(version: int) -> bool:
    """Whether a version number belongs to a detached version."""
    return bool(version & DETACHED_BIT)


def transaction_key(file_name: str) -> str:
    """Key of a transaction file, from the name in the manifest.

    Raises:
        CorruptFileError: The name is not a path below the folder.
    """
    return TRANSACTIONS_PREFIX + checked_path(file_name, "transaction file")


def data_key(path: str) -> str:
    """Key of a data file, from the path in the fragment.

    Raises:
        CorruptFileError: The path is not below the folder.
    """
    return DATA_PREFIX + checked_path(path, "data file")


def checked_path(path: str, kind: str) -> str:
    """Return a path from a manifest, if it stays below its folder.

    Raises:
        CorruptFileError: The path is empty or absolute, has an empty, `.` or `..` part, or has a NUL character.
    """
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
        raise CorruptFileError(f"the manifest names the {kind} {path!r}, which is not a path below its folder")
    return path


def new_data_file_name() -> str:
    """Return a new name for a data file: 24 binary digits, which spread keys over S3's partitions, and 26 hex ones."""
    raw = uuid.uuid4().bytes
    return f"{int.from_bytes(raw[:3], 'big'):024b}{raw[3:].hex()}.lance"


def moved_file_name(path: str) -> str:
    """Return a new name for a copy of a data file, which shows of which file it is: `<12 hex digits>.<name>`."""
    return f"{uuid.uuid4().hex[:12]}.{origin_of(path).rpartition('/')[2]}"


def origin_of(path: str) -> str:
    """The path under which the content of a data file was written first, before moves to base paths."""
    return _MOVED.sub("", path)


def branch_root(branch: str) -> str:
    """Prefix of a branch's own files, without a slash at the end."""
    return TREE_PREFIX + branch


def tag_ref_key(tag: str) -> str:
    """Key of the file that describes a tag; characters outside ASCII are percent-encoded."""
    return f"{TAGS_PREFIX}{quote(tag, safe='')}.json"


def branch_ref_key(branch: str) -> str:
    """Key of the file that describes a branch; slashes in the name are percent-encoded."""
    return f"{BRANCHES_PREFIX}{quote(branch, safe='')}.json"


def tag_of_ref_key(key: str) -> str | None:
    """Return the tag of a tag file's key; None for other keys."""
    name = _ref_name(key, TAGS_PREFIX)
    return None if name is None else unquote(name)


def branch_of_ref_key(key: str) -> str | None:
    """Return the branch of a branch file's key; None for other keys."""
    name = _ref_name(key, BRANCHES_PREFIX)
    return None if name is None else unquote(name)


def branch_of_manifest_key(key: str) -> str | None:
    """Return the branch of a manifest's key; None for other keys."""
    name, separator, _ = key.removeprefix(TREE_PREFIX).partition(f"/{VERSIONS_PREFIX}")
    return name if separator and key.startswith(TREE_PREFIX) else None


def _ref_name(key: str, prefix: str) -> str | None:
    if not (key.startswith(prefix) and key.endswith(".json")):
        return None
    name = key.removeprefix(prefix).removesuffix(".json")
    return name if name and "/" not in name else None


def _is_number(string: str) -> bool:
    return string.isascii() and string.isdigit()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """The format of a table that a commit creates; a table that exists keeps its own.

    Attributes:
        data_storage_version: Version of data files; None for the version of the given files, or the default if there
            are none. An Overwrite can change it.
        stable_row_ids: Whether rows have ids that survive compaction.
        v2_manifest_paths: Whether the newest manifest is the first in a listing.
    """

    data_storage_version: str | None = None
    stable_row_ids: bool = False
    v2_manifest_paths: bool = True

    @classmethod
    def of(
        cls, data_storage_version: str | None, enable_stable_row_ids: bool | None, enable_v2_manifest_paths: bool | None
    ) -> Self:
        """The format for arguments of pylance's functions, where None stands for the default."""
        return cls(
            data_storage_version=data_storage_version,
            stable_row_ids=bool(enable_stable_row_ids),
            v2_manifest_paths=enable_v2_manifest_paths is not False,
        )

    @property
    def naming(self) -> Naming:
        """The scheme of manifest names."""
        return Naming.V2 if self.v2_manifest_paths else Naming.V1
