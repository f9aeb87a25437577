"""Keep the versions that readers of the change feed consumed last from cleanup, by tags.

    _refs/tags/changes.<reader>-<digest>.<version>.json      metadata: lance.reader = name of the reader

Any library's cleanup keeps tagged versions. If the table has no stable row ids, cleanups of this library keep all later
versions as well, since changes can then be found only with every version in between. A tag on a version of a branch is
removed with the branch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, Final

from lance_core.arguments import checked_methods
from lance_core.errors import InvalidInputError, VersionNotFoundError
from lance_core.store import delete_durably
from lance_core.table.paths import tag_ref_key
from lance_core.table.refs import TagRef
from lance_core.times import ago
from lance_core.verbs.context.references import TableRefs, find_tag, read_tags, report_torn
from lance_core.verbs.refs.tags import Tags, describe_tag, write_tag

READER_TAG_PREFIX: Final = "changes."
READER_KEY: Final = "lance.reader"
_SHOWN: Final = 150  # characters of a reader's name in the name of its tag: names of files have at most 255

Names = list[str]


def is_reader_tag(name: str, ref: TagRef) -> bool:
    """Whether a tag keeps the version that a reader of changes has consumed last."""
    return name.startswith(READER_TAG_PREFIX) and READER_KEY in ref.metadata


@checked_methods
class Readers:
    """The readers of a dataset's changes that hold versions of it.

    Args:
        table: The references of the dataset, at the version to hold.
    """

    def __init__(self, table: TableRefs) -> None:
        self._refs = table

    def list(self) -> dict[str, dict[str, Any]]:
        """The versions that readers hold by the tags that keep them: `reader`, branch, version, times.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.readers.hold("report")
            >>> [(one["reader"], one["version"]) for one in table.readers.list().values()]
            [('report', 1)]
        """
        return {name: {"reader": ref.metadata[READER_KEY], **describe_tag(ref)} for name, ref in self._load().items()}

    def hold(self, reader: str) -> None:
        """Keep this version, whose changes a reader has consumed, from cleanup; the age of an existing tag restarts.

        Args:
            reader: The name of the reader.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.readers.hold("report")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False).old_versions
            0
        """
        self._refs.reject_successor()
        name, branch = self._tag_name(reader), self._refs.branch
        version, metadata = self._refs.resolve(None).manifest(), {READER_KEY: reader}
        try:
            write_tag(self._refs, name, branch, version, metadata)
        except InvalidInputError:
            if find_tag(self._refs.root, name) is None:
                raise
            try:
                Tags(self._refs).update(name)
            except VersionNotFoundError:  # another run of the reader has released it meanwhile
                write_tag(self._refs, name, branch, version, metadata)

    def release(self, reader: str, needed: Collection[int] = ()) -> Names:
        """Let cleanup remove versions of this branch before this one that a reader does not need.

        Args:
            reader: The name of the reader.
            needed: Versions that the reader still needs.

        Returns:
            The tags that were deleted.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.readers.hold("report")
            >>> table.insert(pa.table({"id": [4]}))
            >>> len(table.readers.release("report"))
            1
        """
        return self._delete(
            name
            for name, ref in self._load().items()
            if (ref.metadata[READER_KEY], ref.branch) == (reader, self._refs.branch)
            and ref.version < self._refs.version
            and ref.version not in needed
        )

    def release_older_than(self, age: timedelta) -> Names:
        """Let cleanup remove versions that readers last held longer than `age` ago, and return the deleted tags.

        Args:
            age: The time since a reader last held the version.

        Examples:
            >>> from datetime import timedelta
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.readers.hold("report")
            >>> table.readers.release_older_than(timedelta(days=30))
            []
        """
        return self._delete(self.list_older_than(age))

    def list_older_than(self, age: timedelta) -> Names:
        """The tags that `release_older_than` removes.

        Args:
            age: The time since a reader last held the version.

        Examples:
            >>> from datetime import timedelta
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.readers.hold("report")
            >>> table.readers.list_older_than(timedelta(days=30))
            []
        """
        oldest = ago(age)
        tags = {name: describe_tag(ref) for name, ref in self._load().items()}
        times = {name: tag["updated_at"] or tag["created_at"] for name, tag in tags.items()}
        return [name for name, time in times.items() if time is not None and time < oldest]

    def _load(self) -> dict[str, TagRef]:
        refs, torn = read_tags(self._refs.root)
        report_torn(torn)
        return {name: ref for name, ref in refs.items() if is_reader_tag(name, ref)}

    def _tag_name(self, reader: str) -> str:
        """The name of the tag of a reader on this version."""
        branch = self._refs.branch
        digest = hashlib.sha256((reader if branch is None else json.dumps([reader, branch])).encode()).hexdigest()[:8]
        shown = re.sub("[^A-Za-z0-9_-]+", "-", reader)[:_SHOWN]
        return f"{READER_TAG_PREFIX}{shown}-{digest}.{self._refs.version}"

    def _delete(self, names: Iterable[str]) -> Names:
        self._refs.reject_successor()
        released = list(names)
        for name in released:
            delete_durably(self._refs.root, tag_ref_key(name))
        return released
