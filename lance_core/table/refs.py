"""Tags and branches: the JSON files below `_refs/`.

    tag      {"branch":null,"version":2,"createdAt":"2026-01-01T00:00:00.000000000Z","updatedAt":...,"manifestSize":N,
              "metadata":{}}
    branch   {"parentBranch":null,"identifier":{"version_mapping":[[4,"<32 hex>"]]},"parentVersion":4,
              "createAt":1767225600,"manifestSize":N,"metadata":{}}

The identifier is the branch's lineage: the identifier of its parent, and then the fork version with a new UUID. A
branch descends from another if its identifier starts with the other's. Unknown keys are kept when a file is changed.

New names are ASCII. pylance allows letters of all scripts: it uses and lists branches with such names, but fails to
list such tags. Such branches and tags can be read; in the names of files their bytes are percent-encoded.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from lance_core.errors import CorruptFileError, InvalidInputError, TornFileError
from lance_core.table.paths import FOLDERS

MAIN = "main"
"""The name of the branch at the dataset's root."""

_PART = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST = {"tag": 230, "branch": 216}
"""Most characters of a new name: the name of a file on a local disk has at most 255, of which `.json` and the name for
staging take 25. The tag that keeps a branch's fork version has 14 characters more than the branch's name."""
_KNOWN_PART = re.compile("[A-Za-z0-9._\\-\u0080-\ud7ff\ue000-\U0010ffff]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRef:
    """The target of a tag.

    Attributes:
        version: The tagged version.
        branch: Its branch; None for main.
        manifest_size: Size of the version's manifest in bytes.
        created_at: Time of creation, RFC 3339.
        updated_at: Time of the last change, RFC 3339.
        metadata: Strings of the user.
        unknown_keys: Unknown keys of the file.
    """

    version: int
    branch: str | None = None
    manifest_size: int = 0
    created_at: str | None = None
    updated_at: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    unknown_keys: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the JSON file."""
        return _dump(
            {
                **self.unknown_keys,
                "branch": self.branch,
                "version": self.version,
                "createdAt": self.created_at,
                "updatedAt": self.updated_at,
                "manifestSize": self.manifest_size,
                "metadata": dict(self.metadata),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> TagRef:
        """Read the JSON file.

        Raises:
            CorruptFileError: The file is not JSON, lacks a key, or has a value of a wrong type.
        """
        content = _load(data, "tag", _TAG_KEYS, ("version", "manifestSize"))
        return cls(
            version=content["version"],
            branch=_branch_or_none(content.get("branch")),
            manifest_size=content["manifestSize"],
            created_at=content.get("createdAt"),
            updated_at=content.get("updatedAt"),
            metadata=content.get("metadata") or {},
            unknown_keys={key: value for key, value in content.items() if key not in _TAG_KEYS},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRef:
    """The origin of a branch.

    Attributes:
        parent_version: The fork version.
        parent_branch: The parent branch; None for main.
        identifier: Lineage: pairs of fork version and UUID, from main down.
        created_at: Time of creation, seconds since the epoch.
        manifest_size: Size of its first manifest in bytes.
        metadata: Strings of the user.
        unknown_keys: Unknown keys of the file.
    """

    parent_version: int
    parent_branch: str | None = None
    identifier: tuple[tuple[int, str], ...] = ()
    created_at: int = 0
    manifest_size: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    unknown_keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What a later branch of the same name does not have: the UUID, or without one the time of creation."""
        return self.identifier[-1][1] if self.identifier else str(self.created_at)

    def descends_from(self, other: BranchRef) -> bool:
        """Whether the branch was forked from another, directly or not."""
        length = len(other.identifier)
        return 0 < length < len(self.identifier) and self.identifier[:length] == other.identifier

    def to_bytes(self) -> bytes:
        """Return the JSON file."""
        return _dump(
            {
                **self.unknown_keys,
                "parentBranch": self.parent_branch,
                "identifier": {"version_mapping": [list(pair) for pair in self.identifier]},
                "parentVersion": self.parent_version,
                "createAt": self.created_at,
                "manifestSize": self.manifest_size,
                "metadata": dict(self.metadata),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> BranchRef:
        """Read the JSON file.

        Raises:
            CorruptFileError: The file is not JSON, lacks a key, or has a value of a wrong type.
        """
        content = _load(data, "branch", _BRANCH_KEYS, ("parentVersion", "createAt", "manifestSize"))
        mapping = (content.get("identifier") or {}).get("version_mapping") or []
        return cls(
            parent_version=content["parentVersion"],
            parent_branch=_branch_or_none(content.get("parentBranch")),
            identifier=tuple((version, name) for version, name in mapping),
            created_at=content["createAt"],
            manifest_size=content["manifestSize"],
            metadata=content.get("metadata") or {},
            unknown_keys={key: value for key, value in content.items() if key not in _BRANCH_KEYS},
        )


def new_identifier(parent: BranchRef | None, fork_version: int) -> tuple[tuple[int, str], ...]:
    """Return the lineage of a new branch off `parent`, or off main."""
    return (*(parent.identifier if parent is not None else ()), (fork_version, uuid.uuid4().hex))


def check_branch_name(name: str) -> str:
    """Return the name, if a new branch may have it.

    Raises:
        InvalidInputError: The name has characters other than ASCII letters, digits, '.', '-' and '_', or a form that
            readers reject; or a part after the first is a folder of the format, such as `data`.
    """
    parts = _check_name(_reject_main(name), name.split("/"), "branch").split("/")
    folder = next((part for part in parts[1:] if f"{part}/" in FOLDERS), None)
    if folder is not None:
        raise InvalidInputError(
            f"Ref is invalid: the branch {name!r} would lie in the folder {folder!r} of another one, whose cleanup "
            f"deletes files there; {name.replace('/', '-')!r} is possible"
        )
    return name


def check_known_branch_name(name: str) -> str:
    """Return the name, if a branch that any tool made can have it.

    Raises:
        InvalidInputError: No branch can have the name.
    """
    if not is_branch_name(_reject_main(name)):
        raise InvalidInputError(f"Ref is invalid: no branch can have the name {name!r}")
    return name


def is_branch_name(name: str) -> bool:
    """Whether a branch that any tool made can have a name; False for main."""
    return name != MAIN and all(map(_is_possible_part, name.split("/")))


def check_tag_name(name: str) -> str:
    """Return the name, if a new tag may have it; slashes are not allowed.

    Raises:
        InvalidInputError: The name has characters other than ASCII letters, digits, '.', '-' and '_', or a form that
            readers reject.
    """
    return _check_name(name, [name], "tag")


def check_known_tag_name(name: str) -> str:
    """Return the name, if a tag that any tool made can have it.

    Raises:
        InvalidInputError: No tag can have the name.
    """
    if not is_tag_name(name):
        raise InvalidInputError(f"Ref is invalid: no tag can have the name {name!r}")
    return name


def is_tag_name(name: str) -> bool:
    """Whether a tag that any tool made can have a name."""
    return _is_possible_part(name)


def name_in_tag(branch: str) -> str:
    """The name of a branch as part of a tag's name: '-' for slashes, _XX for the bytes that a tag may not have."""
    string = quote(branch.replace("/", "-"), safe="").replace("%", "_")
    bare = string.strip(".")
    before, after = string.index(bare), len(string) - string.index(bare) - len(bare)
    return "_2E" * before + bare + "_2E" * after


def timestamp_string(when: datetime) -> str:
    """Return a time as tags store it: RFC 3339 in UTC with nine decimals."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def _reject_main(name: str) -> str:
    if name == MAIN:
        raise InvalidInputError(f"Ref is invalid: {MAIN!r} is reserved for the branch at the dataset's root")
    return name


def _branch_or_none(name: str | None) -> str | None:
    """The branch that a file names; None for main, which the file can name or leave out."""
    return None if name == MAIN else name


def _is_possible_part(part: str) -> bool:
    return _KNOWN_PART.fullmatch(part) is not None and part != "." and ".." not in part


def _check_name(name: str, parts: Sequence[str], kind: str) -> str:
    length = len(name if kind == "tag" else name_in_tag(name)) if name.strip(".") else 0
    if length > _LONGEST[kind]:
        raise InvalidInputError(
            f"Ref is invalid: {kind} name {name[:20]!r}... has {length} characters, and at most {_LONGEST[kind]} are "
            "possible, as it becomes the name of a file"
        )
    good = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    dotted = kind == "tag" and (name.startswith(".") or name.endswith("."))
    if not good or ".." in name or name.endswith(".lock") or dotted:
        raise InvalidInputError(
            f"Ref is invalid: {kind} name {name!r} must be made of ASCII letters, digits, '.', '-' and '_'"
            + (", with single slashes between its parts" if kind == "branch" else ", not begin or end with a dot")
            + ", without '..', and not end with '.lock'"
        )
    return name


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode()


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_string_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return value is None
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_metadata(value: object) -> bool:
    # The keys of a JSON object are strings.
    return value is None or (isinstance(value, dict) and all(isinstance(string, str) for string in value.values()))


def _is_identifier(value: object) -> bool:
    if value is None:
        return True
    pairs = (value.get("version_mapping") or []) if isinstance(value, dict) else None
    return isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _is_number(pair[0]) and isinstance(pair[1], str) for pair in pairs
    )


_TAG_KEYS: Final[Mapping[str, Callable[[object], bool]]] = {
    "branch": _is_string_or_null,
    "version": _is_number,
    "manifestSize": _is_number,
    "metadata": _is_metadata,
    "createdAt": _is_time,
    "updatedAt": _is_time,
}
_BRANCH_KEYS: Final[Mapping[str, Callable[[object], bool]]] = {
    "parentBranch": _is_string_or_null,
    "identifier": _is_identifier,
    "parentVersion": _is_number,
    "createAt": _is_number,
    "manifestSize": _is_number,
    "metadata": _is_metadata,
}


def _load(
    data: bytes | memoryview, kind: str, keys: Mapping[str, Callable[[object], bool]], required: Sequence[str]
) -> dict[str, Any]:
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise TornFileError(f"{kind} file: not JSON") from error
    if not isinstance(content, dict):
        raise TornFileError(f"{kind} file: not a JSON object; lacks {', '.join(required)}")
    missing = [key for key in required if key not in content]
    if missing:
        raise CorruptFileError(f"{kind} file: lacks {', '.join(missing)}")
    result: dict[str, Any] = content
    for key, is_good in keys.items():
        if key in result and not is_good(result[key]):
            raise CorruptFileError(f"{kind} file: {key} is {result[key]!r:.100}")
    return result
