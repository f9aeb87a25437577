"""Protect the versions that shallow clones at other roots refer to: a tag for each clone keeps its version.

    _refs/tags/clone.<id>.json      metadata: lance.clone = root of the clone

Any library's cleanup keeps tagged versions. The tag is created before the clone, and removed when the clone is dropped
or released (`Clones.release`). A clone of a clone refers to files of both datasets, and has a tag in each.
"""

from __future__ import annotations

import errno
import logging
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lance_core.arguments import checked_methods
from lance_core.commit.versions import load_latest
from lance_core.errors import InvalidInputError, LanceError, OutcomeUnknownError, StoreError, VersionNotFoundError
from lance_core.store import ObjectStore, canonical_uri, delete_durably, open_store, remove_leftovers
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import DATA_PREFIX, TAGS_PREFIX, branch_root, tag_of_ref_key, tag_ref_key
from lance_core.table.refs import TagRef
from lance_core.verbs.context.references import TableRefs, find_tag, reject_misnamed
from lance_core.verbs.refs.tags import describe_tag, load_tags, write_tag

CLONE_TAG_PREFIX: Final = "clone."
CLONE_KEY: Final = "lance.clone"

Names = list[str]

_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)

_logger = logging.getLogger(__name__)


def is_clone_tag(name: str, ref: TagRef) -> bool:
    """Whether a tag keeps the version that a shallow clone refers to."""
    return name.startswith(CLONE_TAG_PREFIX) and CLONE_KEY in ref.metadata


@checked_methods
class Clones:
    """The shallow clones of a dataset that are known to it.

    Args:
        table: Where its tags are.
    """

    def __init__(self, table: TableRefs) -> None:
        self._refs = table

    def list(self) -> dict[str, dict[str, Any]]:
        """The clones by the tags that keep their versions: `uri` of the clone, branch, version, times."""
        clone_tags = {name: ref for name, ref in load_tags(self._refs).items() if is_clone_tag(name, ref)}
        return {name: {"uri": ref.metadata[CLONE_KEY], **describe_tag(ref)} for name, ref in clone_tags.items()}

    def release(self, clone: str) -> Names:
        """Let cleanup remove the version that a clone refers to, which breaks a clone that still exists.

        Args:
            clone: The tag or the root of the clone.

        Returns:
            The tags that were deleted.

        Raises:
            VersionNotFoundError: There is no such clone.
        """
        self._refs.reject_successor()
        listed = self.list()
        names = [name for name, record in listed.items() if name == clone or record["uri"] == canonical_uri(clone)]
        if not names:
            raise VersionNotFoundError(
                f"{self._refs.root.root} has no clone {clone!r}; its clones are {', '.join(sorted(listed)) or 'none'}"
            )
        for name in names:
            delete_durably(self._refs.root, tag_ref_key(name))
        return names


@contextmanager
def protect_by_tags(table: TableRefs, branch: str | None, manifest: Manifest, target: ObjectStore) -> Iterator[None]:
    """Tag the versions that a clone will refer to; the tags are removed again if the body, which clones, fails.

    The tags stay if the outcome is unknown, for instance after an interruption: the clone may exist.

    Args:
        table: The source's references.
        branch: The branch that is cloned.
        manifest: The version that is cloned.
        target: The clone's store.
    """
    written_tags: list[tuple[ObjectStore, str]] = []
    may_exist = False
    try:
        for refs, where, version in [(table, branch, manifest), *_find_further(table, manifest)]:
            name = f"{CLONE_TAG_PREFIX}{uuid.uuid4().hex[:12]}"
            try:
                write_tag(refs, name, where, version, {CLONE_KEY: canonical_uri(target.root)})
            except StoreError as error:
                if error.errno not in _DENIED:
                    raise
                _warn(refs, version, target, error)
                continue
            written_tags.append((refs.root, name))
        may_exist = True
        yield
    except OutcomeUnknownError:
        raise
    except BaseException as error:
        for store, name in () if may_exist and not isinstance(error, LanceError) else written_tags:
            remove_leftovers(store, [tag_ref_key(name)])
        raise


def _warn(table: TableRefs, manifest: Manifest, target: ObjectStore, error: Exception) -> None:
    warnings.warn(
        f"version {manifest.version} of {table.root.root} cannot be tagged ({error}): a cleanup there can remove files "
        f"that the shallow clone {target.root} needs. deep_clone copies them",
        stacklevel=6,
    )


def _find_further(table: TableRefs, manifest: Manifest) -> Iterator[tuple[TableRefs, str | None, Manifest]]:
    """Yield, if the source is itself a clone, the versions of other datasets that are tagged for it."""
    own_uris = {canonical_uri(table.root.root)}
    for root in sorted(_find_roots(manifest) - own_uris):
        store = open_store(root, table.root.options)
        latest = load_latest(store)
        if latest is None:
            continue
        other = TableRefs(root=store, current=latest)
        for name, ref in load_tags(other).items():
            if is_clone_tag(name, ref) and ref.metadata[CLONE_KEY] in own_uris:
                resolved = other.resolve(name)
                yield other, ref.branch, resolved.manifest()


def _find_roots(manifest: Manifest) -> set[str]:
    """The roots of the datasets to whose files a version refers; the base path of a branch has the branch's name."""
    bases = [base for base in manifest.base_paths if base.is_dataset_root]
    return {
        canonical_uri(base.path.removesuffix(f"/{branch_root(base.name)}") if base.name else base.path)
        for base in bases
    }


def is_clone_of(manifest: Manifest, root_uri: str) -> bool:
    """Whether a version may refer to files of a dataset."""
    return canonical_uri(root_uri) in _find_roots(manifest)


def reject_clones(root: ObjectStore) -> None:
    """Make sure that no shallow clone needs the files of a dataset that is about to be dropped.

    Raises:
        InvalidInputError: There is such a clone, or it is not known whether there is; the message names it.
        CorruptFileError: The file of a tag of a clone is torn or invalid.
    """
    keys = [meta.key for meta in root.list(TAGS_PREFIX)]
    names = {key: name for key in keys if (name := tag_of_ref_key(key)) and name.startswith(CLONE_TAG_PREFIX)}
    for key in names:
        reject_misnamed(root, key)
    tags = ((name, find_tag(root, name)) for name in names.values())
    uris = sorted({ref.metadata[CLONE_KEY] for name, ref in tags if ref is not None and is_clone_tag(name, ref)})
    for uri in uris:
        try:
            latest = load_latest(open_store(uri, root.options))
            is_there = latest is not None and is_clone_of(latest, root.root)
            reason = "needs its files" if is_there else "is not at its place, and needs its files if it was moved"
        except (LanceError, OSError) as error:
            reason = f"may need its files ({error})"
        raise InvalidInputError(
            f"{root.root}: the shallow clone {uri} {reason}. Drop the clone first, or copy it by deep_clone and drop "
            f"it; clones.release({uri!r}) gives up a clone that may break. Nothing was done"
        )


def release_tags(store: ObjectStore, manifest: Manifest) -> None:
    """Remove the tags of a clone that was dropped; the log names tags that cannot be removed.

    Args:
        store: The store of the clone.
        manifest: The latest version of the clone.
    """
    clone_uri = canonical_uri(store.root)
    for root in sorted(_find_roots(manifest) - {clone_uri}):
        try:
            source = open_store(root, store.options)
            latest = load_latest(source)
            if latest is None:
                continue
            for name, ref in load_tags(TableRefs(root=source, current=latest)).items():
                if is_clone_tag(name, ref) and ref.metadata[CLONE_KEY] == clone_uri:
                    delete_durably(source, tag_ref_key(name))
        except (LanceError, OSError) as error:
            _logger.warning("the tag of the clone %s at %s was not removed: %s", clone_uri, root, error)


def find_missing_bases(store: ObjectStore, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the path of each base path in use that was deleted or cannot be reached, with a message."""
    for base in manifest.base_paths:
        used = sum(any(file.base_id == base.id for file in fragment.files) for fragment in manifest.fragments)
        if not used:
            continue
        try:
            other = open_store(base.path, store.options)
            folder = DATA_PREFIX if base.is_dataset_root else ""  # the root of a dataset, or a place for files alone
            is_there = any(True for _ in other.list(folder, limit=1))
        except (InvalidInputError, StoreError) as error:
            yield base.path, f"base path {base.path!r} (id {base.id}) cannot be reached: {error}"
            continue
        if not is_there:
            where = f"nothing is there{f' below {folder}' if folder else ''}"
            yield base.path, f"base path {base.path!r} (id {base.id}), where files of {used} fragments lie: {where}"
