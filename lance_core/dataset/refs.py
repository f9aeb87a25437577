"""Methods of `LanceDataset` for tags, branches, clones and base paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Self

from lance_core.arguments import reject
from lance_core.commit.loop import commit
from lance_core.store import StorageOptions
from lance_core.table.operations import UpdateBases
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import Reference
from lance_core.verbs.files.conform import external_prefixes
from lance_core.verbs.refs.branches import Branches, create_branch
from lance_core.verbs.refs.clone import Copier, deep_clone, shallow_clone
from lance_core.verbs.refs.clones import Clones
from lance_core.verbs.refs.ensure import ensure_branch
from lance_core.verbs.refs.readers import Readers
from lance_core.verbs.refs.tags import Tags


class RefVerbs(Handle):
    """Tags, branches and clones of this dataset, and the base paths of this version."""

    @property
    def tags(self) -> Tags:
        """The tags of the dataset."""
        return Tags(self._refs)

    @property
    def branches(self) -> Branches:
        """The branches of the dataset, except main."""
        return Branches(self._refs, self.move_to)

    @property
    def clones(self) -> Clones:
        """The shallow clones of this dataset, known by the tags that keep the files they refer to. Not in pylance."""
        return Clones(self._refs)

    @property
    def readers(self) -> Readers:
        """The readers of changes, whose tags keep the versions that they consumed last from cleanup. Not in pylance."""
        return Readers(self._refs)

    def create_branch(
        self, branch: str, reference: Reference = None, storage_options: Mapping[str, str] | None = None
    ) -> Self:
        """Create a branch, and open it. No file is copied; the fork version is tagged, so that cleanup keeps it.

        Args:
            branch: ASCII letters, digits, '.', '-' and '_', with single slashes between parts.
            reference: A version of this branch, a tag, or (branch, version); None for this version.
            storage_options: Storage options of the handle on the branch; None for those of this handle.

        Raises:
            InvalidInputError: The name is not allowed, or the branch exists.
            VersionNotFoundError: There is no such version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> deleted = branch.delete("id = 2")
            >>> branch.count_rows(), table.count_rows()
            (2, 3)
        """
        refs = self._refs
        manifest = create_branch(refs, branch, reference, self._manifest)
        options = self._options if storage_options is None else StorageOptions(storage_options)
        return type(self)(refs.store_of(branch).root, storage_options=options, manifest=manifest)

    def ensure_branch(self, branch: str, reference: Reference = None, *, renew_promoted: bool = False) -> Self:
        """Open the latest version of a branch, which is created if there is none.

        Any number of processes may call this at once.

        Args:
            branch: As for `create_branch`.
            reference: The version that a new branch begins with, as for `create_branch`.
            renew_promoted: Whether a branch that was promoted, and has no changes since, is created again at
                `reference`. Maintenance, restores, and commits with the property `lance.takes_back`, which an undo of
                `lance_dagster` sets, do not count as changes.

        Raises:
            InvalidInputError: The name is not allowed.
            VersionNotFoundError: There is no such version.
            DatasetExistsError: Files of a removed branch of that name still exist.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.ensure_branch("fix").version
            1
            >>> table.ensure_branch("fix").version  # the existing branch
            1
        """
        refs = self._refs
        latest = ensure_branch(refs, branch, reference, self._manifest, renew_promoted=renew_promoted)
        return type(self)(refs.store_of(branch).root, storage_options=self._options, manifest=latest)

    def shallow_clone(
        self,
        target_path: str | PathLike[str],
        reference: Reference,
        storage_options: Mapping[str, str] | None = None,
        **unsupported: Any,
    ) -> Self:
        """Create a dataset that refers to the files of this dataset.

        A tag `clone.<id>` keeps the version from any cleanup until the clone is dropped, or `clones.release` is called.
        If this dataset cannot be written to, no tag is made, and a warning says that its cleanup can break the clone.
        The clone's handle has no commit lock.

        Args:
            target_path: Root of the new dataset.
            reference: A version of this branch, a tag, or (branch, version).
            storage_options: Storage options of the new dataset; None for those of this one.
            **unsupported: Arguments of pylance that are not offered.

        Raises:
            DatasetExistsError: There is a dataset at the target.
            VersionNotFoundError: There is no such version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> clone = table.shallow_clone("clone.lance", table.version)
            >>> deleted = clone.delete("id = 2")
            >>> clone.count_rows(), table.count_rows()
            (2, 3)
        """
        reject("shallow_clone", unsupported)
        options = self._options if storage_options is None else StorageOptions(storage_options)
        self._refs.reject_successor()
        manifest = shallow_clone(self._refs, self._refs.resolve(reference), target_path, options)
        return type(self)(target_path, storage_options=dict(options), manifest=manifest)

    def deep_clone(
        self,
        target_path: str | PathLike[str],
        reference: Reference,
        storage_options: Mapping[str, str] | None = None,
        *,
        copier: Copier | None = None,
        **unsupported: Any,
    ) -> Self:
        """Create a dataset with copies of all files of a version.

        Args:
            target_path: As in `shallow_clone`.
            reference: As in `shallow_clone`.
            storage_options: As in `shallow_clone`.
            copier: Runs the copies, for example on other machines; by default threads of this process do.
            **unsupported: Arguments of pylance that are not offered.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.deep_clone("copy.lance", table.version).count_rows()
            3
        """
        reject("deep_clone", unsupported)
        options = self._options if storage_options is None else StorageOptions(storage_options)
        self._refs.reject_successor()
        manifest = deep_clone(self._refs.resolve(reference), target_path, options, copier)
        return type(self)(target_path, storage_options=dict(options), manifest=manifest)

    def base_paths(self) -> dict[int, DatasetBasePath]:
        """The base paths of this version, by id: further places for its files.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.base_paths()
            {}
        """
        return {base.id: DatasetBasePath.from_record(base) for base in self._manifest.base_paths}

    @property
    def external_places(self) -> tuple[str, ...]:
        """Prefixes of the URIs that blobs may have: base paths that are not datasets. Not in pylance.

        Examples:
            >>> table = lance.write_dataset({"id": [1]}, "t.lance")
            >>> table.add_bases([lance.DatasetBasePath("/photos", "photos")]).external_places
            ('/photos/',)
        """
        return external_prefixes(self._manifest.base_paths)

    def add_bases(
        self, new_bases: Sequence[DatasetBasePath], transaction_properties: Mapping[str, str] | None = None
    ) -> Self:
        """Add base paths, in a new version; returns this handle.

        Args:
            new_bases: The base paths; names, paths and ids must be new.
            transaction_properties: Strings for the history, by key.

        Raises:
            InvalidInputError: A name, path or id is taken.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table = table.add_bases([lance.DatasetBasePath("memory://archive", name="archive")])
            >>> [base.name for base in table.base_paths().values()]
            ['archive']
        """
        operation = UpdateBases(new_bases=tuple(base.to_record() for base in new_bases))
        transaction = Transaction(
            read_version=self.version, operation=operation, properties=dict(transaction_properties or {})
        )
        self._manifest = commit(self._store, transaction, base=self._manifest).manifest
        return self
