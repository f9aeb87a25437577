"""Commit fragments that were written: create, append, overwrite, or replace slices, in one version.

    create      Overwrite     there must be no dataset
    append      Append        a dataset is created if there is none
    overwrite   Overwrite     a dataset is created if there is none
    replace     Update        the fragments replace the rows of the slices; a dataset is created if there is none
                Merge         append and replace, where the fragments have columns that the commit adds to the dataset

A replacement that conflicts with a commit that only moved rows (a compaction) is computed again on the latest version.
A replacement that conflicts with a replacement of the same slice fails, because the table cannot decide which of the
two should win. With `require_empty`, a write to slices with rows of another write fails (module `require_empty`).

Of several attempts of one write (`WriteAttempt`), only the rows of the last one remain in the table: overwrite and
replace remove the earlier rows anyway; append commits an Update that removes them and adds the new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lance_core.commit import (
    REPLACES_KEY,
    CommitOptions,
    Committed,
    ConflictPolicy,
    Rebased,
    already_exists,
    commit,
    committed_version,
    find_idempotent_commit,
    load_following,
    load_latest,
    load_manifest,
    reject_another,
)
from lance_core.errors import (
    CommitConflictError,
    DatasetExistsError,
    EarlierAttemptCommittedError,
    ObjectNotFoundError,
    RetryableConflictError,
    SupersededError,
)
from lance_core.retry import retrying
from lance_core.schema import Schema
from lance_core.store import ObjectStore, canonical_uri, check_present
from lance_core.table.fragment import own_data_keys
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Merge, Operation, Overwrite, Update, UpdateConfig, UpdateMap
from lance_core.table.operations.base import data_files, next_fragment_id
from lance_core.table.transaction import FIRST_ADDED_KEY, Transaction
from lance_core.verbs.context.bases import numbered
from lance_core.verbs.context.handle import TableTarget
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.dictionaries import check_dictionaries, with_dictionaries
from lance_core.verbs.files.fragment_writer import lance_schema
from lance_core.verbs.rows.removal import Removal, RowsByFragment
from lance_core.verbs.write.added_columns import adds_columns, merge_with_added_columns, schema_with_added_columns
from lance_core.verbs.write.commit_outcome import CommitOutcome
from lance_core.verbs.write.concurrent_writes import (
    check_columns,
    check_creation,
    overruled_fills,
    replaceable_commits,
)
from lance_core.verbs.write.earlier_attempts import committed_attempts, rows_of_attempts
from lance_core.verbs.write.replace import remove_slices
from lance_core.verbs.write.request import CommitRequest
from lance_core.verbs.write.require_empty import check_required_empty

__all__ = ["commit_request"]

REPLACE_ATTEMPTS: Final = 10
"""How often a replacement is computed, the first time included, before its conflict is raised."""


def commit_request(
    target: TableTarget, request: CommitRequest, ready: Callable[[], None] | None = None
) -> CommitOutcome:
    """Commit fragments to a dataset; see `lance_core.commit_fragments`.

    Args:
        target: The dataset; its base, if there is one, is not read again.
        request: What to commit.
        ready: Waits until the files of the fragments are durable, if the caller has just written them. It is called
            before a version refers to them, and then it is checked that the files exist.

    Raises:
        ObjectNotFoundError: A file of the fragments does not exist.
    """
    request.check()
    request = replace(request, options=replace(request.options, fills=request.filled_slices()))

    def begin() -> None:
        if ready is not None:
            ready()
        check_present(target.store, own_data_keys(data_files(request.fragments)))

    return _Commit(
        target=target,
        request=request,
        properties=request.properties(),
        ready=begin,
    ).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """One call of `commit_request`."""

    target: TableTarget
    request: CommitRequest
    properties: Mapping[str, str]
    ready: Callable[[], None]
    overruled: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)

    @property
    def uri(self) -> str:
        """The dataset's root."""
        return canonical_uri(self.target.uri)

    @property
    def store(self) -> ObjectStore:
        """The store of the dataset."""
        return self.target.store

    def run(self) -> CommitOutcome:
        """Commit to the existing dataset, or create one."""
        base = self._base()
        write = self.request.write
        attempts = set(write.earlier if write is not None else ())
        if base is not None and write is not None and write.begun is not None:
            self.overruled.update(overruled_fills(self.request, write, base))
        if base is None:
            try:
                return self._create()
            except DatasetExistsError as error:
                # Another writer has created the dataset in the meantime.
                base = load_latest(self.store)
                if base is None:
                    raise
                key = self.request.options.idempotency_key
                adopted = None if key is None else find_idempotent_commit(self.store, base, key)
                if adopted is not None:
                    return self._outcome(None, adopted)
                attempts |= committed_attempts(self.store, self.request.write, 0, base)
                check_creation(self.request, self.uri, self._new_schema(), base)
                if self.request.mode == "replace" and not self._may_follow(0, base, attempts):
                    raise RetryableConflictError(
                        f"{self.uri} was created meanwhile, with rows in the same slices; do the write again"
                    ) from error
        if self.request.mode == "create" and len(attempts) < base.version:  # another write has committed, too
            raise already_exists(self.uri)
        if self.request.mode in ("append", "replace"):
            schema = schema_with_added_columns(self.request, base)
            lance_schema(self.request.schema, schema)
            if any(file.file_major_version == 0 for fragment in self.request.fragments for file in fragment.files):
                check_dictionaries(schema, self.request.fragments, self.store)
        return self._follow(self._configured(base), attempts)

    def _base(self) -> Manifest | None:
        opened, read_version = self.target.base, self.request.read_version
        if opened is not None and read_version in (None, opened.version):
            base: Manifest | None = opened
        elif read_version is None:
            return load_latest(self.store)
        else:
            base = load_manifest(self.store, read_version) if read_version else None
        if base is not None and self.request.identity is not None:
            reject_another(self.store, base, self.request.identity)
        return base

    def _create(self) -> CommitOutcome:
        operation = replace(self._overwrite(), initial_bases=numbered(self.request.initial_bases))
        transaction = Transaction(read_version=0, operation=operation, properties=self.properties)
        return self._outcome(
            None, commit(self.store, transaction, base=None, options=self.request.options, ready=self.ready)
        )

    def _overwrite(self) -> Overwrite:
        return Overwrite(
            fragments=self.request.fragments,
            schema=with_dictionaries(self._new_schema(self.request.first_field_id), self.request.fragments, self.store),
            config_upserts=dict(self.request.table_config or {}),
        )

    def _new_schema(self, first_field_id: int = 0) -> Schema:
        """The schema of a new dataset with only these fragments."""
        return lance_schema(self.request.schema, None, self.request.file_version(), first_field_id)

    def _follow(self, base: Manifest, attempts: set[int]) -> CommitOutcome:
        """Commit on top of a version; compute the change again if rows moved, or an earlier attempt committed."""
        return retrying(
            (base, attempts),
            lambda begin, _: self._attempt(*begin),
            self._following,
            conflict_retries=REPLACE_ATTEMPTS - 1,
            is_retryable=self._is_retryable,
        )

    def _is_retryable(self, error: CommitConflictError) -> bool:
        return not isinstance(error, SupersededError) and (error.retryable or self.request.replaces_others)

    def _attempt(self, base: Manifest, attempts: set[int]) -> CommitOutcome:
        """Compute the change for a version, and commit it; its files are deleted if the commit fails."""
        source = Snapshot(self.store, base, self.target.options)
        files = UncommittedFiles(source)
        try:
            adopted, operation, removal = self._computed(source, files, attempts)
        except ObjectNotFoundError:
            files.discard()
            load_following(self.store, base)  # raises a clearer error if the table was dropped or replaced
            raise
        except DatasetExistsError:
            files.discard()
            raise
        if adopted is not None:
            return adopted
        try:
            return self._commit(base, operation, removal, attempts)
        except (ObjectNotFoundError, DatasetExistsError, CommitConflictError):
            files.discard()
            raise

    def _following(self, begin: tuple[Manifest, set[int]], error: CommitConflictError) -> tuple[Manifest, set[int]]:
        """The latest version, and the versions of earlier attempts up to it, for the next computation of the change.

        Raises:
            CommitConflictError: The conflict is not resolved if the change is computed again.
        """
        base, attempts = begin
        latest = load_following(self.store, base)
        if latest.version == base.version:  # the conflict is in the fragments themselves
            raise error
        committed = committed_attempts(self.store, self.request.write, base.version, latest)
        raced = latest.version > base.version + len(committed)
        excluded = raced and self.request.write is not None and self.request.write.conflict_policy == "exclusive"
        replaces = self.request.mode == "replace" or (self.request.mode == "append" and bool(attempts))
        depends = replaces or adds_columns(self.request, base) or isinstance(error, EarlierAttemptCommittedError)
        if excluded or not (depends or self.request.replaces_others or self.request.require_empty):
            raise error
        if not self._may_follow(base.version, latest, attempts | committed):
            raise error
        check_columns(self.request, self.uri, base, latest)
        return latest, attempts | committed

    def _computed(
        self, source: Snapshot, files: UncommittedFiles, attempts: set[int]
    ) -> tuple[CommitOutcome | None, Operation, Removal | None]:
        """The operation on a version, or the outcome of an earlier attempt that is kept instead."""
        if self.request.mode in ("create", "overwrite"):
            return None, self._overwrite(), None
        adds = adds_columns(self.request, source.manifest)
        append: Operation = Append(fragments=self.request.fragments)
        if adds:
            append = merge_with_added_columns(self.request, self.request.fragments, source, files, Removal.none())
        rows: RowsByFragment = {}
        only_own = self.request.mode == "append" or self.request.require_empty
        if self.request.write is not None and (only_own or self.request.write.outside_slices):
            rows, kept_version, beside = rows_of_attempts(source, self.request.write, attempts)
            self.beside.update(beside)
            if kept_version is not None:
                return (
                    self._outcome(None, committed_version(self.store, source.manifest, kept_version)),
                    append,
                    None,
                )
        check_required_empty(self.request, source, attempts)
        if self.request.mode == "append" and not attempts:
            return None, append, None
        removal = remove_slices(source, None if only_own else self.request.slices, files, rows)
        if adds:
            return None, merge_with_added_columns(self.request, self.request.fragments, source, files, removal), removal
        operation = Update(
            removed_fragment_ids=removal.removed_fragment_ids,
            updated_fragments=removal.updated_fragments,
            new_fragments=self.request.fragments,
        )
        return None, operation, removal

    def _commit(
        self, base: Manifest, operation: Operation, removal: Removal | None, attempts: set[int]
    ) -> CommitOutcome:
        replaced = tuple(sorted(attempts))
        properties = dict(self.properties)
        if replaced:
            properties[REPLACES_KEY] = ",".join(map(str, replaced))
        if isinstance(operation, Merge):
            properties[FIRST_ADDED_KEY] = str(next_fragment_id(base))
        options = self.request.options
        if self.request.write is not None:
            policy: ConflictPolicy = (
                "exclusive" if self.request.mode == "create" else self.request.write.conflict_policy
            )
            options = replace(
                options, write_attempt=replace(self.request.write, earlier=replaced, conflict_policy=policy)
            )
        transaction = Transaction(read_version=base.version, operation=operation, properties=properties)
        affected = removal.affected_rows if removal is not None else None

        def still_empty(rebased: Transaction, latest: Manifest) -> Rebased:
            if latest.version != base.version:
                check_required_empty(self.request, Snapshot(self.store, latest, self.target.options), attempts)
            return Rebased(transaction=rebased)

        done = commit(
            self.store,
            transaction,
            base=base,
            options=options,
            affected_rows=affected,
            prepare=still_empty if self.request.require_empty else None,
            ready=self.ready,
        )
        return self._outcome(base, done, removal, tuple(version for version in replaced if version not in self.beside))

    def _may_follow(self, since: int, latest: Manifest, attempts: set[int]) -> bool:
        """Whether all other writes that filled the same slices after a version, if any, may be replaced."""
        overruled = replaceable_commits(self.store, self.uri, self.request, since, latest, attempts)
        self.overruled.update(overruled or ())
        return overruled is not None

    def _configured(self, base: Manifest) -> Manifest:
        """Commit the configuration of the request that the dataset lacks; an Overwrite contains it.

        Returns:
            The version to continue from: the new version, or `base` if there were other commits before it, which have
            to be checked for conflicts.
        """
        config = self.request.table_config or {}
        missing = {key: value for key, value in config.items() if base.config.get(key) != value}
        if not missing or self.request.mode == "overwrite":
            return base
        self.ready()
        operation = UpdateConfig(config=UpdateMap(entries=missing))
        transaction = Transaction(
            read_version=base.version, operation=operation, properties=self.request.side_properties()
        )
        configured = commit(self.store, transaction, base=base, options=CommitOptions()).manifest
        return configured if configured.version == base.version + 1 else base

    def _outcome(
        self,
        base: Manifest | None,
        done: Committed,
        removal: Removal | None = None,
        replaced: tuple[int, ...] = (),
    ) -> CommitOutcome:
        return CommitOutcome(
            base=base, committed=done, removal=removal, replaced=replaced, overruled=tuple(sorted(self.overruled))
        )
