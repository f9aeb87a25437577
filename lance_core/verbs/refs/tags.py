"""Tags: names for versions, stored as small JSON files below the dataset's root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lance_core.arguments import checked_methods
from lance_core.commit.versions import reject_dropped_dataset
from lance_core.errors import AlreadyExistsError, CorruptFileError, InvalidInputError, LanceError
from lance_core.store import delete_durably, remove_leftovers, replace_durably
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import TAGS_PREFIX, tag_ref_key
from lance_core.table.refs import TagRef, check_tag_name, timestamp_string
from lance_core.verbs.context.references import (
    Reference,
    TableRefs,
    load_tag,
    put_reference,
    read_tags,
    reject_removed,
    reject_torn,
    remove_misnamed,
    report_torn,
)

Ordered = list[tuple[str, dict[str, Any]]]


@checked_methods
class Tags:
    """The tags of a dataset. They are shared by all handles and branches and have no history of their own.

    Args:
        table: Where references are resolved.
    """

    def __init__(self, table: TableRefs) -> None:
        self._refs = table

    def list(self) -> dict[str, dict[str, Any]]:
        """All tags by name: branch, version, times, size of the manifest, metadata.

        A tag whose file is torn, or has a name that no tag can have, is left out; the log names it.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> table.tags.list()["july"]["version"]
            1
        """
        return {name: describe_tag(ref) for name, ref in self._load().items()}

    def list_ordered(self, order: str | None = None) -> Ordered:
        """All tags by version, then name.

        Args:
            order: "asc" or "desc"; None for "desc", the newest version first.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> table.tags.create("august", 1)
            >>> [name for name, _ in table.tags.list_ordered("asc")]
            ['august', 'july']
        """
        sign = parse_order(order)
        refs = sorted(self._load().items(), key=lambda pair: (sign * pair[1].version, pair[0]))
        return [(name, describe_tag(ref)) for name, ref in refs]

    def _load(self) -> dict[str, TagRef]:
        refs, torn = read_tags(self._refs.root)
        report_torn(torn)
        if not refs and not torn:
            reject_dropped_dataset(self._refs.root)  # raises if the dataset was dropped
        return refs

    def get_version(self, tag: str) -> int:
        """The version that a tag names; it may be on any branch.

        Raises:
            VersionNotFoundError: There is no such tag.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> table.tags.get_version("july")
            1
        """
        return load_tag(self._refs.root, tag).version

    def create(self, tag: str, reference: Reference = None) -> None:
        """Name a version.

        Args:
            tag: ASCII letters, digits, '.', '-' and '_'.
            reference: A version of this branch, a tag, or (branch, version); None for this version.

        Raises:
            InvalidInputError: The name is not allowed, or the tag exists.
            VersionNotFoundError: There is no such version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> lance.dataset("t.lance", version="july").count_rows()
            3
        """
        self._refs.reject_successor()
        resolved = self._refs.resolve(reference)
        write_tag(self._refs, tag, resolved.branch, resolved.manifest())

    def update(self, tag: str, reference: Reference = None) -> None:
        """Move a tag to another version, with the arguments of `create`.

        Raises:
            VersionNotFoundError: There is no such tag or version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.tags.update("july", 2)
            >>> table.tags.get_version("july")
            2
        """
        self._refs.reject_successor()
        old = load_tag(self._refs.root, tag)
        resolved = self._refs.resolve(reference)
        manifest = resolved.manifest()
        new = replace(
            old,
            version=resolved.version,
            branch=resolved.branch,
            manifest_size=manifest_size(manifest),
            updated_at=timestamp_string(datetime.now(UTC)),
        )
        replace_durably(self._refs.root, tag_ref_key(tag), new.to_bytes())
        try:
            reject_removed(self._refs, resolved.branch, manifest)
        except LanceError:
            replace_durably(self._refs.root, tag_ref_key(tag), old.to_bytes())
            raise

    def replace_metadata(self, tag: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a tag.

        Raises:
            VersionNotFoundError: There is no such tag.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> table.tags.replace_metadata("july", {"checked": "yes"})
            >>> table.tags.list()["july"]["metadata"]
            {'checked': 'yes'}
        """
        self._refs.reject_successor()
        old = load_tag(self._refs.root, tag)
        replace_durably(self._refs.root, tag_ref_key(tag), replace(old, metadata=dict(metadata)).to_bytes())

    def delete(self, tag: str) -> None:
        """Remove a tag, even if its file is torn or has a name that no tag can have; the version stays.

        Raises:
            VersionNotFoundError: There is no such tag.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tags.create("july", 1)
            >>> table.tags.delete("july")
            >>> table.tags.list()
            {}
        """
        self._refs.reject_successor()
        if remove_misnamed(self._refs.root, TAGS_PREFIX, tag):
            return
        try:
            load_tag(self._refs.root, tag)
        except CorruptFileError as error:
            report_torn([str(error)])
        delete_durably(self._refs.root, tag_ref_key(tag))


def write_tag(
    table: TableRefs, tag: str, branch: str | None, manifest: Manifest, metadata: Mapping[str, str] | None = None
) -> None:
    """Name a version of a branch.

    A version can be cleaned up until it is named: that it still exists is checked once the tag is there.

    Raises:
        InvalidInputError: The name is not allowed, or the tag exists.
        VersionNotFoundError: The version was cleaned up, or its branch was deleted.
        OutcomeUnknownError: The storage failed, and whether the tag was made is not known.
    """
    check_tag_name(tag)
    now = timestamp_string(datetime.now(UTC))
    ref = TagRef(
        version=manifest.version,
        branch=branch,
        manifest_size=manifest_size(manifest),
        created_at=now,
        updated_at=now,
        metadata=dict(metadata or {}),
    )
    try:
        put_reference(table.root, tag_ref_key(tag), ref.to_bytes())
    except AlreadyExistsError as error:
        raise InvalidInputError(
            f"Ref conflict error: tag {tag} already exists in the table {table.root.root}; tags.update moves it"
        ) from error
    try:
        reject_removed(table, branch, manifest)
    except LanceError:
        remove_leftovers(table.root, [tag_ref_key(tag)])
        raise


def load_tags(table: TableRefs) -> dict[str, TagRef]:
    """All tags by name.

    Raises:
        CorruptFileError: The file of a tag is torn.
    """
    refs, torn = read_tags(table.root)
    reject_torn(torn)
    return refs


def manifest_size(manifest: Manifest) -> int:
    """Size of a manifest's file in bytes."""
    return 0 if manifest.location is None else manifest.location.size_bytes


def parse_order(order: str | None) -> int:
    """1 for "asc", -1 for "desc" or None.

    Raises:
        InvalidInputError: The order is another value.
    """
    if order not in (None, "asc", "desc"):
        raise InvalidInputError(f"Invalid sort order {order!r}. Valid values are: asc, desc")
    return 1 if order == "asc" else -1


def describe_tag(ref: TagRef) -> dict[str, Any]:
    """A tag as `Tags.list` returns it."""
    return {
        "branch": ref.branch,
        "version": ref.version,
        "created_at": _parse_time(ref.created_at),
        "updated_at": _parse_time(ref.updated_at),
        "manifest_size": ref.manifest_size,
        "metadata": dict(ref.metadata),
    }


def _parse_time(string: str | None) -> datetime | None:
    return None if string is None else datetime.fromisoformat(string)
