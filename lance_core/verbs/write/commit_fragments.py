"""Commit fragments that were written: create, append, overwrite, or replace slices, in one version.

    create      Overwrite     there must be no dataset
    append      Append        a dataset is created if there is none
    overwrite   Overwrite     a dataset is created if there is none
    replace     Update        the fragments replace the rows of the slices; a dataset is created if there is none
                Merge         append and replace, where the fragments have columns that the commit adds to the dataset

A replacement that conflicts with a commit that only moved rows (a compaction) is computed again on the latest version.
A replacement that conflicts with a replacement of the same slice fails, because the table cannot decide which of the
two should win. With `require_empty`, a write to slices with rows of another write fails (see `concurrent_writes`).

Of several attempts of one write (`WriteAttempt`), only the rows of the last one remain in the table: overwrite and
replace remove the earlier rows anyway; append commits an Update that removes them and adds the new rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from lance_core.commit.attempts import REPLACES_KEY, WriteAttempt
from lance_core.commit.loop import commit, commit_change
from lance_core.commit.proofs import committed_version, find_idempotent_commit
from lance_core.commit.rebase import Rebased
from lance_core.commit.records import Change, Commit, Committed, Lost, Outcome
from lance_core.commit.versions import (
    check_identity_string,
    load_latest,
    load_manifest,
    make_already_exists_error,
    reload_latest,
)
from lance_core.errors import (
    CommitConflictError,
    DatasetExistsError,
    EarlierAttemptCommittedError,
    InvalidInputError,
    ObjectNotFoundError,
    RetryableConflictError,
)
from lance_core.file import FileVersion
from lance_core.schema import Schema, schema_to_bytes
from lance_core.store import ObjectStore, PendingWrites, canonical_uri, make_durable
from lance_core.table.filled_slices import SLICE_NAMES_KEY, SLICES_KEY
from lance_core.table.fragment import Fragment, data_files, own_data_keys
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Merge, Operation, Overwrite, Update, UpdateConfig, UpdateMap
from lance_core.table.operations.base import next_fragment_id, number_fragments
from lance_core.table.transaction import FIRST_ADDED_KEY, Transaction
from lance_core.verbs.columns.add import lacking_fields, with_null_columns
from lance_core.verbs.context.handle import Snapshot, TableTarget
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.conform import check_dictionaries, with_dictionaries
from lance_core.verbs.files.fragment_writer import FileOptions, resolve_field_ids
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.rows.removal import Removal, RowsByFragment, with_deletions
from lance_core.verbs.write.concurrent_writes import check_empty, has_same_fields, overruled_fills, replaceable_commits
from lance_core.verbs.write.earlier_attempts import committed_attempts, rows_of_attempts
from lance_core.verbs.write.replace import remove_slices

COMMIT_MODES: Final = ("create", "append", "overwrite", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What is written: which rows the new ones replace, and what the table must be like.

    Attributes:
        mode: "create", "append", "overwrite" or "replace".
        slices: For "replace": the slices whose rows are replaced. For `require_empty`: the slices that must be empty.
        add_columns: Whether columns that the table lacks are added.
        require_empty: Whether the slices must have no rows other than those of earlier attempts.

    Raises:
        InvalidInputError: The mode is unknown, or two attributes cannot be combined.
    """

    mode: str = "append"
    slices: Slices | None = None
    add_columns: bool = False
    require_empty: bool = False

    def __post_init__(self) -> None:
        if self.mode not in COMMIT_MODES:
            raise InvalidInputError(f"mode must be one of {', '.join(COMMIT_MODES)}, not {self.mode!r}")
        if self.require_empty and self.mode not in ("append", "replace"):
            raise InvalidInputError(f'require_empty needs mode "append" or "replace", not {self.mode!r}')
        if (self.mode == "replace" or self.require_empty) != (self.slices is not None):
            raise InvalidInputError('mode "replace" and require_empty need slices, and nothing else accepts slices')

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties that name the slices."""
        return {} if self.slices is None else self.slices.properties()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What to commit: the arguments of `lance_core.commit_fragments`, which describes them.

    Attributes:
        files: The options by which a dataset is created.
        first_field_id: Id of the first field, if the fragments define the columns of the dataset.
    """

    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    write: Write
    commit: Commit = field(default_factory=Commit)
    files: FileOptions = field(default_factory=FileOptions)
    read_version: int | None = None
    identity: str | None = None
    table_config: Mapping[str, str] | None = None
    first_field_id: int = 0

    @property
    def attempt(self) -> WriteAttempt | None:
        """The attempt of a write that the commit is, if any."""
        return self.commit.write_attempt

    @property
    def replacing(self) -> WriteAttempt | None:
        """The attempt, if the commit replaces rows that other writes have added to the same slices meanwhile."""
        later_wins = self.attempt is not None and self.attempt.conflict_policy == "later_wins"
        replaces = not self.write.require_empty and self.write.mode in ("overwrite", "replace")
        return self.attempt if later_wins and replaces else None

    def filled_slices(self) -> tuple[str, ...] | None:
        """The slices whose rows the write replaces, whoever wrote them: empty for all rows; None if there are none."""
        if self.attempt is None or self.write.require_empty or self.write.mode not in ("overwrite", "replace"):
            return None
        return () if self.write.slices is None else tuple(self.write.slices.identities())

    def check(self) -> None:
        """Check that the arguments fit together.

        Raises:
            InvalidInputError: The identity of no version is given.
            SchemaError: The slices cannot be distinguished in data of this schema.
        """
        if self.write.slices is not None:
            self.write.slices.check(self.schema)
        if self.identity is not None and not self.read_version:
            raise InvalidInputError("identity needs read_version, the number of the version that it identifies")

    def properties(self) -> dict[str, str]:
        """The transaction properties of the commit."""
        return {**self.commit.texts, **self.commit.identity, **self.write.properties}

    def side_properties(self) -> dict[str, str]:
        """The properties of a commit of the configuration before the write, without those that identify the write."""
        identity_keys = {SLICES_KEY, SLICE_NAMES_KEY, *self.commit.identity}
        return {key: value for key, value in self.commit.texts.items() if key not in identity_keys}

    def schema_after(self, base: Manifest) -> Schema:
        """The dataset's schema, with the new columns of the request if it adds columns and is not an overwrite."""
        new = lacking_fields(base.schema, self.schema) if self.write.add_columns else []
        return base.schema if not new or self.write.mode == "overwrite" else with_null_columns(base, new)

    def adds_columns(self, base: Manifest) -> bool:
        """Whether an append or replacement adds columns, so that fragments and schema change in one version."""
        return self.write.mode in ("append", "replace") and self.schema_after(base) is not base.schema

    def file_version(self) -> FileVersion:
        """The file version of the fragments; if they have no file, the requested version or the default."""
        for fragment in self.fragments[:1]:
            for file in fragment.files[:1]:
                return FileVersion.from_numbers(file.file_major_version, file.file_minor_version)
        return FileVersion.from_string(self.files.data_storage_version)


def commit_request(target: TableTarget, request: CommitRequest, pending: PendingWrites | None = None) -> Outcome:
    """Commit fragments to a dataset; see `lance_core.commit_fragments`. No error is raised.

    Args:
        target: The dataset; its base, if there is one, is not read again.
        request: What to commit.
        pending: The writes of the fragments' files, if these may not be durable yet. That the files exist is checked
            before a version refers to them.
    """
    try:
        request.check()
        work = _FragmentsCommit(target=target, request=request, pending=pending)
        first = work.first_change()
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        return Lost(error=error)
    if isinstance(first, Committed):
        return first
    return commit_change(target.store, first, options=work.how, next_change=work.next_change)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsChange(Change):
    """The commit of fragments, as it was computed on a version.

    Attributes:
        attempts: Versions of earlier attempts of the write, whose rows the commit replaces.
        beside: Those of them whose rows stay, since they cannot be identified any more.
        overruled: Versions of other writes whose rows the commit replaces.
        removal: The rows that the commit removes; None if it removes none, or all rows of the version.
    """

    attempts: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    overruled: frozenset[int] = frozenset()
    removal: Removal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FragmentsCommit:
    """The arguments of `commit_request`, from which the change is computed on one version after the other."""

    target: TableTarget
    request: CommitRequest
    pending: PendingWrites | None

    @property
    def uri(self) -> str:
        """The dataset's root."""
        return canonical_uri(self.target.uri)

    @property
    def store(self) -> ObjectStore:
        """The store of the dataset."""
        return self.target.store

    @property
    def how(self) -> Commit:
        """How the change is committed: a table that is created must have no rows of other writes."""
        commit, attempt = self.request.commit, self.request.attempt
        if attempt is None or self.request.write.mode != "create":
            return commit
        return replace(commit, write_attempt=replace(attempt, conflict_policy="exclusive"))

    def first_change(self) -> FragmentsChange | Committed:
        """The change on the version that the request is based on."""
        base, write = self._base(), self.request.attempt
        if base is None:
            operation = replace(self._overwrite(), initial_bases=self.request.files.base_records)
            return self._change(None, operation, self.request.properties())
        replacing, slices, overruled = self.request.replacing, self.request.filled_slices(), frozenset[int]()
        if replacing is not None and slices is not None:
            overruled = overruled_fills(replacing, slices, base)
        return self._begin(base, frozenset(() if write is None else write.earlier), overruled)

    def next_change(
        self, before: Change, latest: Manifest, conflict: CommitConflictError | DatasetExistsError
    ) -> FragmentsChange | Committed:
        """The change on the latest version, if rows were moved, or if an earlier attempt or another write committed.

        Raises:
            CommitConflictError: The conflict is not resolved if the change is computed again.
            DatasetExistsError: The mode is "create", and another write has created the dataset.
        """
        assert isinstance(before, FragmentsChange)
        request, write, base = self.request, self.request.attempt, before.base
        if base is None:
            return self._after_creation(before, latest, conflict)
        if request.replacing is None and not (isinstance(conflict, CommitConflictError) and conflict.retryable):
            raise conflict
        committed = committed_attempts(self.store, write, base.version, latest)
        attempts = before.attempts | committed
        raced = latest.version > base.version + len(committed)
        is_exclusive = write is not None and write.conflict_policy == "exclusive"
        excluded = raced and (is_exclusive or not request.commit.max_retries)
        replaces = request.write.mode == "replace" or (request.write.mode == "append" and bool(before.attempts))
        depends = replaces or request.adds_columns(base) or isinstance(conflict, EarlierAttemptCommittedError)
        if excluded or not (depends or request.replacing is not None or request.write.require_empty):
            raise conflict
        overruled = self._find_replaceable(base.version, latest, attempts)
        if overruled is None:
            raise conflict
        if request.write.mode in ("append", "replace") and not has_same_fields(base.schema, latest.schema):
            raise RetryableConflictError(f"{self.uri}: its columns were changed meanwhile; do the write again")
        return self._compute(latest, attempts, before.overruled.union(overruled))

    def _find_replaceable(self, since: int, latest: Manifest, attempts: Collection[int]) -> Collection[int] | None:
        """The versions of other writes that the write may replace (`replaceable_commits`)."""
        request = self.request
        if request.write.require_empty:
            return ()  # `check_empty` checks the rows themselves
        return replaceable_commits(
            self.store, self.uri, request.write.slices, request.replacing, since, latest, attempts
        )

    def _check_empty(self, snapshot: Snapshot, attempts: Collection[int]) -> None:
        write = self.request.write
        if write.require_empty and write.slices is not None:
            check_empty(snapshot, write.slices, self.request.attempt, attempts)

    def _base(self) -> Manifest | None:
        opened, read_version = self.target.base, self.request.read_version
        if opened is not None and read_version in (None, opened.version):
            base: Manifest | None = opened
        elif read_version is None:
            return load_latest(self.store)
        else:
            base = load_manifest(self.store, read_version) if read_version else None
        if base is not None and self.request.identity is not None:
            check_identity_string(self.store, base, self.request.identity)
        return base

    def _after_creation(
        self, before: FragmentsChange, latest: Manifest, conflict: CommitConflictError | DatasetExistsError
    ) -> FragmentsChange | Committed:
        """The change on a dataset that another writer has created meanwhile."""
        request, key = self.request, self.request.commit.idempotency_key
        if not isinstance(conflict, DatasetExistsError):
            raise conflict
        adopted = None if key is None else find_idempotent_commit(self.store, latest, key)
        if adopted is not None:
            return adopted
        earlier = () if request.attempt is None else request.attempt.earlier
        attempts = before.attempts.union(earlier, committed_attempts(self.store, request.attempt, 0, latest))
        if request.write.mode in ("append", "replace") and not has_same_fields(
            self._new_schema(), resolve_field_ids(request.schema, schema_to_bytes(latest.schema))
        ):
            raise RetryableConflictError(
                f"{self.uri} was created meanwhile, with columns in another order; do the write again"
            )
        overruled: Collection[int] | None = ()
        if request.write.mode == "replace":
            overruled = self._find_replaceable(0, latest, attempts)
        if overruled is None:
            raise RetryableConflictError(
                f"{self.uri} was created meanwhile, with rows in the same slices; do the write again"
            ) from conflict
        return self._begin(latest, attempts, frozenset(overruled))

    def _begin(
        self, base: Manifest, attempts: frozenset[int], overruled: frozenset[int]
    ) -> FragmentsChange | Committed:
        """The change on the first version of the dataset that the write finds."""
        request = self.request
        if request.write.mode == "create" and len(attempts) < base.version:  # another write has committed, too
            raise make_already_exists_error(self.uri)
        if request.write.mode in ("append", "replace"):
            schema = request.schema_after(base)
            resolve_field_ids(request.schema, schema)
            if any(file.file_major_version == 0 for fragment in request.fragments for file in fragment.files):
                check_dictionaries(schema, request.fragments, self.store)
        return self._compute(self._configured(base), attempts, overruled)

    def _overwrite(self) -> Overwrite:
        return Overwrite(
            fragments=self.request.fragments,
            schema=with_dictionaries(self._new_schema(self.request.first_field_id), self.request.fragments, self.store),
            config_upserts=dict(self.request.table_config or {}),
        )

    def _new_schema(self, first_field_id: int = 0) -> Schema:
        """The schema of a new dataset with only these fragments."""
        return resolve_field_ids(self.request.schema, None, self.request.file_version(), first_field_id)

    def _compute(
        self, base: Manifest, attempts: frozenset[int], overruled: frozenset[int]
    ) -> FragmentsChange | Committed:
        """The change on a version, or the commit of an earlier attempt that is kept instead."""
        snapshot = Snapshot(self.store, base, self.target.options)
        files = UncommittedFiles(snapshot)
        beside, removal = frozenset[int](), None
        try:
            if self.request.write.mode in ("create", "overwrite"):
                operation: Operation = self._overwrite()
            else:
                rows, kept_version, beside = self._attempt_rows(snapshot, attempts)
                if kept_version is not None:
                    return committed_version(self.store, snapshot.manifest, kept_version)
                self._check_empty(snapshot, attempts)
                operation, removal = self._addition(snapshot, files, attempts, rows)
        except BaseException as error:
            files.discard()
            if isinstance(error, ObjectNotFoundError):
                reload_latest(self.store, base)  # raises a clearer error if the table was dropped or replaced
            raise
        properties = self.request.properties()
        if attempts:
            properties[REPLACES_KEY] = ",".join(map(str, sorted(attempts)))
        if isinstance(operation, Merge):
            properties[FIRST_ADDED_KEY] = str(next_fragment_id(base))
        change = self._change(base, operation, properties)
        return replace(
            change,
            affected_rows=None if removal is None else removal.affected_rows,
            replaces=tuple(sorted(attempts)),
            written=files.keys,
            prepare=partial(self._check_still_empty, base=base, attempts=attempts)
            if self.request.write.require_empty
            else None,
            attempts=attempts,
            beside=beside,
            overruled=overruled,
            removal=removal,
        )

    def _change(self, base: Manifest | None, operation: Operation, properties: Mapping[str, str]) -> FragmentsChange:
        read_version = 0 if base is None else base.version
        return FragmentsChange(
            transaction=Transaction(read_version=read_version, operation=operation, properties=properties),
            base=base,
            new_files=self._new_files,
            pending=self.pending,
            table_format=self.request.files.table_format,
            fills=self.request.filled_slices(),
        )

    @property
    def _new_files(self) -> tuple[str, ...]:
        return tuple(own_data_keys(data_files(self.request.fragments)))

    def _attempt_rows(
        self, snapshot: Snapshot, attempts: frozenset[int]
    ) -> tuple[RowsByFragment, int | None, frozenset[int]]:
        """The rows of earlier attempts that an append, or a replacement, removes; see `rows_of_attempts`."""
        write = self.request.attempt
        if write is None or not (self._adds_only or write.outside_slices):
            return {}, None, frozenset()
        return rows_of_attempts(snapshot, write, attempts)

    @property
    def _adds_only(self) -> bool:
        """Whether the write removes no rows but those of its earlier attempts."""
        return self.request.write.mode == "append" or self.request.write.require_empty

    def _addition(
        self, snapshot: Snapshot, files: UncommittedFiles, attempts: frozenset[int], rows: RowsByFragment
    ) -> tuple[Operation, Removal | None]:
        """The operation of an append or a replacement, and the rows that it removes."""
        request = self.request
        adds = request.adds_columns(snapshot.manifest)
        if request.write.mode == "append" and not attempts:
            if not adds:
                return Append(fragments=request.fragments), None
            return self._merge(snapshot, files, Removal.none()), None
        removal = remove_slices(snapshot, None if self._adds_only else request.write.slices, files, rows)
        if adds:
            return self._merge(snapshot, files, removal), removal
        operation = Update(
            removed_fragment_ids=removal.removed_fragment_ids,
            updated_fragments=removal.updated_fragments,
            new_fragments=request.fragments,
        )
        return operation, removal

    def _merge(self, snapshot: Snapshot, files: UncommittedFiles, removal: Removal) -> Merge:
        """The Merge that adds columns and fragments, and deletes rows, in one version.

        Only a Merge changes both schema and fragments. It keeps every fragment, even if all of its rows are deleted.

        Args:
            snapshot: The version that the Merge follows.
            files: Collects the new deletion files.
            removal: The rows to delete.
        """
        base, removed = snapshot.manifest, frozenset(removal.removed_fragment_ids)
        emptied = [
            with_deletions(snapshot, fragment, removal.affected_rows[fragment.id], files)
            for fragment in base.fragments
            if fragment.id in removed
        ]
        make_durable(
            snapshot.store,
            [fragment.deletion_file.key(fragment.id) for fragment in emptied if fragment.deletion_file is not None],
        )
        changed = {fragment.id: fragment for fragment in (*removal.updated_fragments, *emptied)}
        fragments = [changed.get(fragment.id, fragment) for fragment in base.fragments]
        fragments += number_fragments(self.request.fragments, next_fragment_id(base))
        return Merge(fragments=tuple(fragments), schema=self.request.schema_after(base), preserves_nullability=True)

    def _check_still_empty(
        self, transaction: Transaction, latest: Manifest, *, base: Manifest, attempts: frozenset[int]
    ) -> Rebased:
        if latest.version != base.version:
            self._check_empty(Snapshot(self.store, latest, self.target.options), attempts)
        return Rebased(transaction=transaction)

    def _configured(self, base: Manifest) -> Manifest:
        """Commit the configuration of the request that the dataset lacks; an Overwrite contains it.

        Returns:
            The version to continue from: the new version, or `base` if there were other commits before it, which have
            to be checked for conflicts.
        """
        config = self.request.table_config or {}
        missing = {key: value for key, value in config.items() if base.config.get(key) != value}
        if not missing or self.request.write.mode == "overwrite":
            return base
        if self.pending is not None:
            self.pending.wait()
        operation = UpdateConfig(config=UpdateMap(entries=missing))
        transaction = Transaction(
            read_version=base.version, operation=operation, properties=self.request.side_properties()
        )
        configured = commit(self.store, transaction, base=base, new_files=self._new_files).manifest
        return configured if configured.version == base.version + 1 else base
