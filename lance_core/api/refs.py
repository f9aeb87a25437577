"""Tags: names for versions, kept beside the dataset as small JSON files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lance_core.commit import load_manifest
from lance_core.errors import AlreadyExistsError, InvalidInputError, ObjectNotFoundError, VersionNotFoundError
from lance_core.store import ObjectStore
from lance_core.table.paths import TAGS_PREFIX, tag_of_ref_key, tag_ref_key
from lance_core.table.refs import TagRef, check_tag_name, timestamp_text

__all__ = ["Tags"]


class Tags:
    """The tags of a dataset. They are shared by all handles and have no history of their own.

    Args:
        store: Store of the dataset's root.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list(self) -> dict[str, dict[str, Any]]:
        """All tags by name: version, branch, size of the manifest, times, metadata."""
        names = sorted(name for meta in self._store.list(TAGS_PREFIX) if (name := tag_of_ref_key(meta.key)) is not None)
        return {name: _describe(self._load(name)) for name in names}

    def get_version(self, tag: str) -> int:
        """The version that a tag names.

        Raises:
            VersionNotFoundError: There is no such tag.
            UnsupportedError: It names a version of a branch.
        """
        ref = self._load(tag)
        if ref.branch is not None:
            raise InvalidInputError(f"tag {tag!r} names a version of branch {ref.branch!r}, not of this line")
        return ref.version

    def create(self, tag: str, reference: int) -> None:
        """Name a version.

        Raises:
            InvalidInputError: The name is not allowed, or the tag exists.
            VersionNotFoundError: There is no such version.
        """
        check_tag_name(tag)
        now = timestamp_text(datetime.now(UTC))
        ref = TagRef(version=reference, manifest_size=self._manifest_size(reference), created_at=now, updated_at=now)
        try:
            self._store.put_if_absent(tag_ref_key(tag), ref.to_bytes())
        except AlreadyExistsError as error:
            raise InvalidInputError(f"Ref conflict error: tag {tag} already exists") from error

    def update(self, tag: str, reference: int) -> None:
        """Let a tag name another version.

        Raises:
            VersionNotFoundError: There is no such tag or version.
        """
        old = self._load(tag)
        size = self._manifest_size(reference)
        new = TagRef(
            version=reference,
            manifest_size=size,
            created_at=old.created_at,
            updated_at=timestamp_text(datetime.now(UTC)),
            metadata=old.metadata,
        )
        self._store.put(tag_ref_key(tag), new.to_bytes())

    def delete(self, tag: str) -> None:
        """Remove a tag; the version stays.

        Raises:
            VersionNotFoundError: There is no such tag.
        """
        self._load(tag)
        self._store.delete(tag_ref_key(tag))

    def _load(self, tag: str) -> TagRef:
        check_tag_name(tag)
        try:
            return TagRef.from_bytes(self._store.get(tag_ref_key(tag)))
        except ObjectNotFoundError as error:
            raise VersionNotFoundError(f"Ref not found error: tag {tag} does not exist") from error

    def _manifest_size(self, version: int) -> int:
        location = load_manifest(self._store, version).location
        return 0 if location is None else location.size_bytes


def _describe(ref: TagRef) -> dict[str, Any]:
    return {
        "version": ref.version,
        "branch": ref.branch,
        "manifest_size": ref.manifest_size,
        "created_at": ref.created_at,
        "updated_at": ref.updated_at,
        "metadata": dict(ref.metadata),
    }
