"""Storage options: endpoints and credentials, under object_store's names.

The canonical names are those that pylance, deltalake and object_store take (`aws_access_key_id`, `aws_endpoint`, ...),
in upper or lower case. The spellings of s3fs and short spellings are accepted as well (`key`, `secret`, ...).
Values are strings; numbers and booleans are converted to strings. Secrets appear in no `repr` and no error: an error
names a key, never a value. Pickling keeps the values, because another process cannot open the dataset without them.

A commit lock is kept with the options, so that it reaches every commit to the storage. It is not pickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Any, TypeAlias

from lance_core.errors import ArgumentTypeError, InvalidInputError
from lance_core.times import parse_duration

CommitLock: TypeAlias = Callable[[int], AbstractContextManager[object]]
"""A function of the version that returns a context manager, which is held while the version's manifest is put."""

S3_OPTIONS: dict[str, tuple[str, ...]] = {
    "aws_access_key_id": ("access_key_id", "key"),
    "aws_secret_access_key": ("secret_access_key", "secret"),
    "aws_session_token": ("aws_token", "session_token", "token"),
    "aws_region": ("region", "aws_default_region", "default_region", "region_name"),
    "aws_endpoint": ("endpoint", "aws_endpoint_url", "endpoint_url", "aws_endpoint_url_s3"),
    "aws_profile": ("profile",),
    "aws_allow_http": ("allow_http",),
    "aws_skip_signature": ("skip_signature", "anon"),
    "aws_virtual_hosted_style_request": ("virtual_hosted_style_request",),
    "aws_server_side_encryption": (),
    "aws_sse_kms_key_id": (),
    "aws_conditional_put": ("conditional_put",),
    "allow_invalid_certificates": (),
    "timeout": ("read_timeout", "request_timeout"),
    "connect_timeout": (),
    "client_max_retries": ("max_retries",),
    "dynamodb_endpoint": (),
    "base_path_schemes": (),
    "manifest_store": (),
    "namespace_table": (),
}
"""Each canonical S3 option with its other accepted spellings."""

NAMESPACE_TABLE = "namespace_table"
"""The option by which a table's options are renewed (`store.namespace`)."""

OWN_OPTIONS = ("base_path_schemes", "dynamodb_endpoint", "manifest_store", "s3_client", NAMESPACE_TABLE)
"""Options of this library, which are not passed to the file systems of other libraries."""

OTHER_CLOUDS = ("azure_", "google_")
"""How options begin that only other services than S3 have."""

_CANONICAL = {alias: name for name, aliases in S3_OPTIONS.items() for alias in (name, *aliases)}
_NESTED = ("client_kwargs", "config_kwargs")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class StorageOptions(Mapping[str, str]):
    """Immutable storage options, with keys in lower case.

    Args:
        options: The options; `None` for none.
        commit_lock: The lock that is held while a manifest is put; None for the lock of `options`, if these are
            `StorageOptions`. Equality ignores the lock.

    Raises:
        InvalidInputError: A key is not a string, a value is not a string, number or boolean, or a key occurs twice
            with different values.
        ArgumentTypeError: The lock is not callable.
    """

    __slots__ = ("_commit_lock", "_values")

    def __init__(self, options: Mapping[str, Any] | None = None, *, commit_lock: CommitLock | None = None) -> None:
        if commit_lock is not None and not callable(commit_lock):
            raise ArgumentTypeError(f"commit_lock must be a function, got {type(commit_lock)}")
        if commit_lock is None and isinstance(options, StorageOptions):
            commit_lock = options.commit_lock
        self._commit_lock = commit_lock
        values: dict[str, str] = {}
        for key, value in _flatten(options or {}):
            string = _to_string(key, value)
            if values.setdefault(key, string) != string:
                raise InvalidInputError(f"storage option {key!r} is given twice with different values")
        self._values = values

    @property
    def commit_lock(self) -> CommitLock | None:
        """The lock that is held while a manifest is put; None if there is none."""
        return self._commit_lock

    def __reduce__(self) -> tuple[Any, ...]:
        return StorageOptions, (dict(self._values),)

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{key}=***' for key in sorted(self._values))})"

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._values == other._values

    def for_s3(self) -> dict[str, str]:
        """Return the options under their canonical S3 names.

        Raises:
            InvalidInputError: A key is unknown, or two spellings of one option have different values.
        """
        result: dict[str, str] = {}
        for key, value in self._values.items():
            if key.startswith(OTHER_CLOUDS):
                continue  # one set of options serves all stores of a dataset
            if key not in _CANONICAL:
                hint = suggest_option(key, _CANONICAL, S3_OPTIONS)
                raise InvalidInputError(f"unknown S3 storage option {key!r}; {hint}")
            name = _CANONICAL[key]
            if result.setdefault(name, value) != value:
                raise InvalidInputError(f"storage option {name!r} is given under two names with different values")
        return result


def suggest_option(key: str, spellings: Iterable[str], names: Iterable[str]) -> str:
    """What may be meant by an unknown option: the nearest of the accepted spellings, or else all names."""
    near = get_close_matches(key, spellings, n=1)
    return f"is {near[0]!r} meant?" if near else f"known are {', '.join(names)}"


def parse_seconds(key: str, string: str) -> float:
    """Return the seconds of a duration in pylance's notation, such as `30s`, `500ms` or `1h 30m`.

    A number alone is a number of seconds, as in the options of s3fs.

    Raises:
        InvalidInputError: The string is not a duration.
    """
    duration = f"{string}s" if _NUMBER.fullmatch(string.strip()) else string
    try:
        return parse_duration(duration).total_seconds()
    except InvalidInputError:
        raise InvalidInputError(
            f"storage option {key!r} is not a duration, such as 30, 30s, 500ms or 1h 30m"
        ) from None  # the value, which the cause names, appears in no error


def _flatten(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield options with lower-case keys, including those of s3fs's nested mappings."""
    for key, value in options.items():
        if not isinstance(key, str):
            raise InvalidInputError("the keys of storage options must be strings")
        if key in _NESTED and isinstance(value, Mapping):
            yield from _flatten(value)
        elif value is not None:
            yield key.lower(), value


def _to_string(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidInputError(f"storage option {key!r} must be a string, not {type(value).__name__}")
