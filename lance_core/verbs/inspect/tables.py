"""The tables below a folder or object-store prefix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Final

from lance_core.arguments import checked
from lance_core.store import ObjectStore, StorageOptions, open_store
from lance_core.table.paths import VERSIONS_PREFIX

__all__ = ["list_tables"]

SUFFIX: Final = ".lance"
_AFTER_EVERYTHING: Final = "\U0010ffff"


@checked
def list_tables(
    root_uri: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None, unfinished: bool = False
) -> list[str]:
    """Find the tables below a root: folders called `*.lance` that have versions.

    Nothing inside of a table is listed: on a local disk the walk stops at its folder, on object storage it costs two
    requests for each table.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        storage_options: Credentials and options of the storage, under object_store's names.
        unfinished: Whether to list those instead that have files but no version, as writers leave them that are at
            work, or were killed, before the first commit.

    Returns:
        Paths relative to the root, such as "nyc/flights.lance", in ascending order; empty if the root does not exist.

    Examples:
        >>> written = lance.write_dataset({"id": [1]}, "lake/public/t.lance")
        >>> lance.list_tables("lake")
        ['public/t.lance']
    """
    store = open_store(root_uri, StorageOptions(storage_options))
    found = _walk(store.root, "") if store.is_local else _skip(store)
    return sorted(path for path, has_versions in found if has_versions is not unfinished)


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, bool]]:
    """The tables below a folder, and whether they have versions."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.is_dir():
            continue
        if entry.name.endswith(SUFFIX):
            yield prefix + entry.name, os.path.isdir(os.path.join(entry.path, VERSIONS_PREFIX))  # noqa: PTH112, PTH118 - as scandir gives it
        else:
            yield from _walk(entry.path, f"{prefix}{entry.name}/")


def _skip(store: ObjectStore) -> Iterator[tuple[str, bool]]:
    """Go through the keys in order, and skip the rest of a table as soon as one of its keys is seen."""
    after: str | None = None
    while (table := _next_table(store, after)) is not None:
        yield table, next(iter(store.list(f"{table}/{VERSIONS_PREFIX}", limit=1)), None) is not None
        after = f"{table}/{_AFTER_EVERYTHING}"


def _next_table(store: ObjectStore, after: str | None) -> str | None:
    for found in store.list("", start_after=after):
        parts = found.key.split("/")
        depth = next((i for i, part in enumerate(parts[:-1]) if part.endswith(SUFFIX)), None)
        if depth is not None:
            return "/".join(parts[: depth + 1])
    return None
