"""Resolve a reference (a version number, a tag, or a branch and a number) to a version; read the files of `_refs/`.

The file of a tag or branch is torn if it is empty or cut off, because its writer was interrupted. One with a name that
no tag or branch can have, such as `july (1).json` of a tool that synchronises folders, is treated like a torn file.

A branch has its root at `tree/<branch>` below the root of its dataset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from lance_core.commit.claims import reject_claimed
from lance_core.commit.versions import (
    check_identity,
    check_identity_string,
    identity_of,
    latest_version,
    load_manifest,
    reject_dropped_dataset,
)
from lance_core.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    TornFileError,
    VersionNotFoundError,
)
from lance_core.store import ObjectStore, delete_durably, join_uri, open_store, uri_above
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import (
    BRANCHES_PREFIX,
    TAGS_PREFIX,
    branch_of_ref_key,
    branch_ref_key,
    branch_root,
    tag_of_ref_key,
    tag_ref_key,
)
from lance_core.table.refs import (
    MAIN,
    BranchRef,
    TagRef,
    check_known_branch_name,
    check_known_tag_name,
    is_branch_name,
    is_tag_name,
)

_logger = logging.getLogger(__name__)

Reference = Annotated[
    int | str | tuple[str | None, int | None] | None, "a number, the name of a tag, or a pair (branch, version)"
]
"""A version on the current branch, a tag, or a pair of a branch (None or "main" for main) and a version (None for its
latest). None is the current version."""

_PAIR: Final = 2

_PUT_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A version that a reference names.

    Attributes:
        branch: Its branch; None for main.
        version: Its number.
        store: Store of the branch.
        opened: The manifest of the handle, if the reference names the handle's version; None otherwise.
    """

    branch: str | None
    version: int
    store: ObjectStore
    opened: Manifest | None = None

    def manifest(self) -> Manifest:
        """Read the manifest of the version.

        Raises:
            DatasetNotFoundError: The dataset was dropped.
            VersionNotFoundError: The version was cleaned up, or never existed.
            IncompatibleConflictError: The dataset was dropped and created again after the handle was opened.
        """
        try:
            manifest = load_manifest(self.store, self.version)
        except VersionNotFoundError as error:
            reject_dropped_dataset(self.store)
            raise VersionNotFoundError(
                f"Version not found error: version {self.branch or MAIN}:{self.version} does not exist in the table "
                f"{self.store.root}; versions() lists those that do"
            ) from error
        if self.opened is not None:
            check_identity_string(self.store, manifest, identity_of(self.opened))
        return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRefs:
    """The tags and branches of a table, and the version that references are resolved from.

    Attributes:
        root: Store of the dataset's root.
        current: The version that references are resolved from.
    """

    root: ObjectStore
    current: Manifest

    @property
    def branch(self) -> str | None:
        """The current branch; None for main."""
        return self.current.branch

    @property
    def version(self) -> int:
        """Number of the current version."""
        return self.current.version

    def resolve(self, reference: Reference) -> Resolved:
        """Find the version that a reference names; a missing version is found out when its manifest is read.

        Raises:
            VersionNotFoundError: There is no such tag, or, if the version is None, no such branch.
            InvalidInputError: The argument is not a reference, or no tag or branch can have the name.
        """
        if reference is None:
            return self._resolve_at(self.branch, self.version)
        if isinstance(reference, str):
            tag = load_tag(self.root, reference)
            return self._resolve_at(tag.branch, tag.version)
        if isinstance(reference, int | np.integer):
            return self._resolve_at(self.branch, int(reference))
        if isinstance(reference, tuple | list) and len(reference) == _PAIR:
            branch, version = reference
            return self._resolve_at(None if branch == MAIN else branch, version)
        raise InvalidInputError(f"a version is given by number, tag or (branch, number), not by {reference!r}")

    def reject_successor(self) -> None:
        """Make sure that tags and branches are those of the dataset of the current version, before they are changed.

        Raises:
            DatasetNotFoundError: The dataset was dropped.
            IncompatibleConflictError: The dataset was dropped and created again.
        """
        store = self.store_of(self.branch)
        location = self.current.location
        try:
            if location is not None and location.e_tag and store.head(location.key).e_tag == location.e_tag:
                return
        except ObjectNotFoundError:
            pass  # it was cleaned up or has another name, if the dataset was not dropped
        latest = latest_version(store)
        if latest is not None:
            check_identity(store, self.current, latest=latest)
        else:  # a branch may have been deleted
            reject_dropped_dataset(self.root)

    def store_of(self, branch: str | None) -> ObjectStore:
        """Store of a branch."""
        return store_of_branch(self.root, branch)

    def _resolve_at(self, branch: str | None, version: int | None) -> Resolved:
        if branch is not None:
            if not isinstance(branch, str):
                raise InvalidInputError(f"the name of a branch is a string, not {branch!r}; table {self.root.root}")
            check_known_branch_name(branch)
        store = self.store_of(branch)
        if version is None:
            version = latest_version(store)
        if version is None:
            reject_dropped_dataset(self.root)
            raise VersionNotFoundError(_no_branch_message(branch or MAIN, self.root))
        is_current = (branch, version) == (self.branch, self.version)
        return Resolved(branch=branch, version=version, store=store, opened=self.current if is_current else None)


def reject_removed(table: TableRefs, branch: str | None, manifest: Manifest) -> None:
    """Make sure that a version to which a reference was just written is still there.

    Raises:
        VersionNotFoundError: The version was or is being cleaned up, or its branch was deleted.
        IncompatibleConflictError: The dataset was dropped and created again since the version was read.
    """
    if branch is not None:
        load_branch(table.root, branch)
    store, location = table.store_of(branch), manifest.location
    reject_claimed(store, manifest.version)  # first, as a cleanup gives its claim up when the versions are removed
    try:
        if location is not None and store.head(location.key).e_tag == location.e_tag:
            return
    except ObjectNotFoundError:
        pass  # it may have another name meanwhile
    Resolved(branch=branch, version=manifest.version, store=store, opened=manifest).manifest()


def put_reference(root: ObjectStore, key: str, data: bytes) -> None:
    """Write the file of a new tag or branch; if the storage's answer is lost, the file shows who wrote it.

    Raises:
        AlreadyExistsError: Somebody else has written the file.
        OutcomeUnknownError: The storage failed, and whether the file was written is not known.
    """
    for attempt in range(1, _PUT_ATTEMPTS + 1):
        try:
            root.put_if_absent(key, data)
        except (AlreadyExistsError, OutcomeUnknownError) as error:
            is_unknown = isinstance(error, OutcomeUnknownError)
            try:
                stored = bytes(root.get(key))
            except ObjectNotFoundError:
                if is_unknown and attempt < _PUT_ATTEMPTS:
                    continue  # the same bytes under the same key: it does no harm if the first put arrives as well
                raise error from None
            except StoreError as failure:
                raise OutcomeUnknownError(
                    f"{root.root}/{key}: whether it was written is not known: {failure}"
                ) from failure
            if stored != data:
                raise AlreadyExistsError(f"{root.root}/{key} exists") from error
        return


def load_tag(root: ObjectStore, tag: str) -> TagRef:
    """Read a tag of a dataset that was opened.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
        VersionNotFoundError: There is no such tag.
    """
    ref = find_tag(root, tag)
    if ref is None:
        reject_dropped_dataset(root)
        raise VersionNotFoundError(
            f"Ref not found error: tag {tag} does not exist in the table {root.root}; tags.list() lists those that do"
        )
    return ref


def find_tag(root: ObjectStore, tag: str) -> TagRef | None:
    """Read a tag; None if there is none.

    Raises:
        CorruptFileError: The file of the tag is torn or invalid.
    """
    check_known_tag_name(tag)
    key = tag_ref_key(tag)
    try:
        return TagRef.from_bytes(root.get(key))
    except ObjectNotFoundError:
        return None
    except CorruptFileError as error:
        raise _torn_error(root, key, f"tags.delete({tag!r}) removes the tag", error) from error


def read_tags(root: ObjectStore) -> tuple[dict[str, TagRef], list[str]]:
    """Read all tags by name, and a message for each tag whose file is torn.

    Raises:
        CorruptFileError: A file is complete but invalid.
    """
    tags: dict[str, TagRef] = {}
    torn = []
    for meta in root.list(TAGS_PREFIX):
        name = tag_of_ref_key(meta.key)
        if name is None:
            continue
        try:
            reject_misnamed(root, meta.key)
            tag = find_tag(root, name)
        except TornFileError as error:
            torn.append(str(error))
        else:
            if tag is not None:  # None if it was deleted after it was listed
                tags[name] = tag
    return dict(sorted(tags.items())), torn


def read_branches(root: ObjectStore) -> tuple[dict[str, BranchRef], dict[str, str]]:
    """Read the references of all branches by name, and a message for each branch whose file is torn, by name.

    Raises:
        CorruptFileError: A file is complete but invalid.
    """
    refs: dict[str, BranchRef] = {}
    torn = {}
    for meta in root.list(BRANCHES_PREFIX):
        name = branch_of_ref_key(meta.key)
        if name is None or name == MAIN:
            continue
        try:
            reject_misnamed(root, meta.key)
            refs[name] = _read_branch(root, name)
        except ObjectNotFoundError:
            continue  # it was deleted after it was listed
        except TornFileError as error:
            torn[name] = str(error)
    return refs, torn


def check_references(root: ObjectStore) -> tuple[dict[str, TagRef], dict[str, BranchRef], dict[str, str]]:
    """Read the tags and branches whose files are valid, by name, and the fault of each other file, by its key."""
    tags: dict[str, TagRef] = {}
    branches: dict[str, BranchRef] = {}
    problems: dict[str, str] = {}
    for meta in (*root.list(TAGS_PREFIX), *root.list(BRANCHES_PREFIX)):
        tag, branch = tag_of_ref_key(meta.key), branch_of_ref_key(meta.key)
        try:
            reject_misnamed(root, meta.key)
            if (
                tag is not None and (ref := find_tag(root, tag)) is not None
            ):  # None if it was deleted after it was listed
                tags[tag] = ref
            elif branch not in (None, MAIN):
                branches[branch] = _read_branch(root, branch)
        except ObjectNotFoundError:
            continue  # it was deleted after it was listed
        except CorruptFileError as error:
            problems[meta.key] = str(error)
    return tags, branches, problems


def report_torn(messages: Iterable[str]) -> None:
    """Log the tags and branches that were left out because their files are torn."""
    for message in messages:
        _logger.warning("%s", message)


def reject_torn(messages: Iterable[str]) -> None:
    """Raise the first message, for callers that need all references.

    Raises:
        TornFileError: There is a message: the file of a tag or branch is torn.
    """
    for message in messages:
        raise TornFileError(message)


def reject_misnamed(root: ObjectStore, key: str) -> None:
    """Reject a file of a tag or branch with a name that none can have.

    Raises:
        TornFileError: No tag or branch can have the name.
    """
    tag, branch = tag_of_ref_key(key), branch_of_ref_key(key)
    if not (tag is None or is_tag_name(tag)):
        kind, remedy = "tag", f"tags.delete({tag!r})"
    elif not (branch is None or branch == MAIN or is_branch_name(branch)):
        kind, remedy = "branch", f"branches.delete({branch!r})"
    else:
        return
    raise TornFileError(
        f"{root.root}/{key}: no {kind} can have this name: another tool made the file, perhaps as a copy. "
        f"{remedy} removes the file"
    )


def remove_misnamed(root: ObjectStore, prefix: str, name: str) -> bool:
    """Remove the file of a tag or branch with a name that none can have; False if there is no such file.

    Args:
        root: The store of the dataset.
        prefix: The folder of tags or that of branches.
        name: The name of the file without `.json`.
    """
    if name == MAIN or (is_tag_name if prefix == TAGS_PREFIX else is_branch_name)(name):
        return False
    keys = [meta.key for meta in root.list(prefix) if name in (tag_of_ref_key(meta.key), branch_of_ref_key(meta.key))]
    for key in keys:
        delete_durably(root, key)
    return bool(keys)


def _read_branch(root: ObjectStore, branch: str) -> BranchRef:
    key = branch_ref_key(branch)
    try:
        return BranchRef.from_bytes(root.get(key))
    except CorruptFileError as error:
        raise _torn_error(root, key, f"branches.delete({branch!r}) removes the branch", error) from error


def _torn_error(root: ObjectStore, key: str, remedy: str, error: CorruptFileError) -> CorruptFileError:
    return type(error)(f"{root.root}/{key}: {error}. {remedy}")


def load_branch(root: ObjectStore, branch: str) -> BranchRef:
    """Read the reference of a branch of a dataset that was opened.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
        VersionNotFoundError: There is no such branch.
        CorruptFileError: The file of the branch is torn or invalid.
    """
    check_known_branch_name(branch)
    try:
        return _read_branch(root, branch)
    except ObjectNotFoundError as error:
        reject_dropped_dataset(root)
        raise VersionNotFoundError(_no_branch_message(branch, root)) from error


def _no_branch_message(branch: str, root: ObjectStore) -> str:
    return (
        f"Ref not found error: Branch {branch} does not exist in the table {root.root}; "
        "branches.list() lists those that do"
    )


def store_of_branch(root: ObjectStore, branch: str | None) -> ObjectStore:
    """The store of a branch.

    Args:
        root: The store of the dataset.
        branch: The branch; None for main.
    """
    return root if branch is None else open_store(join_uri(root.root, branch_root(branch)), root.options)


def dataset_uri(uri: str, branch: str | None) -> str:
    """The root of the dataset that a branch belongs to.

    Args:
        uri: The root of the branch. If it does not lie below `tree/`, it is a dataset of its own.
        branch: The branch; None for main.
    """
    above = None if branch is None else uri_above(uri, branch_root(branch))
    return uri if above is None else above


def dataset_store(store: ObjectStore, branch: str | None) -> ObjectStore:
    """The store of the dataset that a branch belongs to, with the arguments of `dataset_uri`."""
    root = dataset_uri(store.root, branch)
    return store if root == store.root else open_store(root, store.options)
