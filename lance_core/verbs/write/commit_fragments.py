"""Commit fragments that were written: create, append, overwrite, or replace slices, in one version.

    create      Overwrite     there must be no dataset
    append      Append        a dataset is created if there is none
    overwrite   Overwrite     the same
    replace     Update        the fragments replace the rows of the slices; a dataset is created if there is none
                Merge         append and replace, where the fragments bring columns that the dataset gets with them

A replacement that loses a race against a commit that merely moved rows (a compaction) is computed again on the latest
version. One that loses against a replacement of the same slice fails: the table cannot decide which of the two should
win. With `require_empty` the write of slices that have rows fails, whoever has put them there (`vacancy`).

Of several attempts of one write (`WriteAttempt`) the last one's rows are in the table, once: overwrite and replace do
that by themselves; append commits an Update that removes the rows of earlier attempts and adds its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lance_core.commit import (
    REPLACES_KEY,
    CommitOptions,
    Committed,
    ConflictPolicy,
    Rebased,
    WriteAttempt,
    already_exists,
    commit,
    committed_version,
    find_idempotent_commit,
    find_transaction,
    load_following,
    load_latest,
    load_manifest,
    reject_another,
    reject_overruled,
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
from lance_core.schema import Field, Schema, schema_to_bytes
from lance_core.store import ObjectStore, canonical_uri, make_durable
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Merge, Operation, Overwrite, Update, UpdateConfig, UpdateMap
from lance_core.table.operations.base import next_fragment_id, number_fragments
from lance_core.table.transaction import FIRST_ADDED_KEY, SLICES_KEY, Transaction
from lance_core.verbs.columns.add import lacking_fields, with_null_columns
from lance_core.verbs.context.bases import numbered
from lance_core.verbs.context.handle import TableTarget
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.dictionaries import check_dictionaries, with_dictionaries
from lance_core.verbs.files.fragment_writer import lance_schema
from lance_core.verbs.files.presence import check_present
from lance_core.verbs.rows.removal import Removal, RowsByFragment, with_deletions
from lance_core.verbs.write.earlier_attempts import committed_attempts, gap_error, rows_of_attempts
from lance_core.verbs.write.facts import CommitOutcome
from lance_core.verbs.write.replace import remove_slices
from lance_core.verbs.write.request import CommitRequest
from lance_core.verbs.write.vacancy import check_empty

__all__ = ["commit_request"]

REPLACE_ATTEMPTS: Final = 10
"""How often a replacement is computed again before its conflict is reported."""


def commit_request(
    target: TableTarget, request: CommitRequest, ready: Callable[[], None] | None = None
) -> CommitOutcome:
    """Make fragments part of a dataset; see `lance_core.commit_fragments`.

    Args:
        target: Where to; its base need not be read again.
        request: What to commit.
        ready: Waits for the files of the fragments, which the caller has just written; None to look whether they are
            there before a version refers to them.

    Raises:
        ObjectNotFoundError: A file of the fragments is not there.
    """
    request.check()
    fragments = request.records()
    return _Commit(
        target=target,
        request=request,
        fragments=fragments,
        properties=request.properties(),
        ready=ready if ready is not None else lambda: check_present(target.store, fragments),
    ).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """One call of `commit_request`."""

    target: TableTarget
    request: CommitRequest
    fragments: tuple[Fragment, ...]
    properties: Mapping[str, str]
    ready: Callable[[], None] | None = None
    overruled: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)

    @property
    def mode(self) -> str:
        """How existing rows are treated."""
        return self.request.mode

    @property
    def write(self) -> WriteAttempt | None:
        """The write and the number of the attempt."""
        return self.request.options.write_attempt

    @property
    def table_config(self) -> Mapping[str, str]:
        """The configuration to set."""
        return dict(self.request.table_config or {})

    @property
    def uri(self) -> str:
        """The dataset's root."""
        return canonical_uri(self.target.uri)

    @property
    def store(self) -> ObjectStore:
        """Its store."""
        return self.target.store

    def run(self) -> CommitOutcome:
        """Commit, on the dataset that is there or as a new one."""
        base = self._base()
        attempts = set(self.write.earlier if self.write is not None else ())
        if base is None:
            try:
                return self._create()
            except DatasetExistsError:
                # Somebody else created it since the caller looked.
                base = load_latest(self.store)
                if base is None:
                    raise
                adopted = self._adopt(base)
                if adopted is not None:
                    return adopted
                attempts |= committed_attempts(self.store, self.write, 0, base)
                self._follow_creation(base, attempts)
        if self.mode == "create" and len(attempts) < base.version:  # somebody else has written to it, too
            raise already_exists(self.uri)
        base = self._configured(base)
        if self.mode in ("append", "replace"):
            schema = self._grown(base)
            lance_schema(self.request.schema, schema)
            if any(file.file_major_version == 0 for one in self.fragments for file in one.files):
                check_dictionaries(schema, self.fragments, self.store)
        return self._follow(base, attempts)

    def _base(self) -> Manifest | None:
        known, read_version = self.target.base, self.request.read_version
        if known is not None and read_version in (None, known.version):
            base: Manifest | None = known
        elif read_version is None:
            return load_latest(self.store)
        else:
            base = load_manifest(self.store, read_version) if read_version else None
        if base is not None and self.request.identity is not None:
            reject_another(self.store, base, self.request.identity)
        return base

    def _follow_creation(self, latest: Manifest, attempts: set[int]) -> None:
        """Make sure that fragments written for a new dataset can go into one that was created meanwhile.

        Raises:
            RetryableConflictError: The dataset has rows in the same slices, or other column ids.
        """
        if self.mode in ("create", "overwrite"):
            return
        own = _field_ids(self._new_schema())
        if own != _field_ids(lance_schema(self.request.schema, schema_to_bytes(latest.schema))):
            raise RetryableConflictError(f"{self.uri} was created meanwhile, with columns in another order")
        if self.mode == "replace" and not self._may_follow(0, latest, attempts):
            raise RetryableConflictError(f"{self.uri} was created meanwhile, with rows in the same slices")

    def _create(self) -> CommitOutcome:
        operation = replace(self._overwrite(), initial_bases=numbered(self.request.initial_bases))
        transaction = Transaction(read_version=0, operation=operation, properties=self.properties)
        return self._outcome(
            None, commit(self.store, transaction, base=None, options=self.request.options, ready=self.ready)
        )

    def _overwrite(self) -> Overwrite:
        return Overwrite(
            fragments=self.fragments,
            schema=with_dictionaries(self._new_schema(self.request.first_field_id), self.fragments, self.store),
            config_upserts=self.table_config,
        )

    def _new_schema(self, first_field_id: int = 0) -> Schema:
        """The schema of a new dataset of these fragments."""
        return lance_schema(self.request.schema, None, self.request.file_version(), first_field_id)

    def _follow(self, base: Manifest, attempts: set[int]) -> CommitOutcome:
        """Commit on top of a version; compute the change again if rows merely moved or an earlier attempt committed."""
        return retrying(
            (base, attempts),
            lambda begin, _: self._attempt(*begin),
            self._following,
            conflict_retries=REPLACE_ATTEMPTS - 1,
            is_retryable=self._is_retryable,
        )

    def _is_retryable(self, error: CommitConflictError) -> bool:
        return not isinstance(error, SupersededError) and (error.retryable or self._replaces_others)

    def _attempt(self, base: Manifest, attempts: set[int]) -> CommitOutcome:
        """Compute the change for a version, and commit it; its files are deleted if the commit fails."""
        source = Snapshot(self.store, base, self.target.options)
        files = UncommittedFiles(source)
        try:
            adopted, operation, removal = self._computed(source, files, attempts)
        except ObjectNotFoundError:
            files.discard()
            load_following(self.store, base)  # says so if the table is gone, or another one
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
        """The latest version, and the earlier attempts up to it, to compute the change again.

        Raises:
            CommitConflictError: The conflict remains, whatever version the change is computed for.
        """
        base, attempts = begin
        latest = load_following(self.store, base)
        committed = committed_attempts(self.store, self.write, base.version, latest)
        others = latest.version > base.version + len(committed)
        excluded = others and self.write is not None and self.write.conflict_policy == "exclusive"
        replaces = self.mode == "replace" or (self.mode == "append" and bool(attempts))
        depends = replaces or self._grows(base) or isinstance(error, EarlierAttemptCommittedError)
        if excluded or not (depends or self._replaces_others or self.request.require_empty):
            raise error
        if not self._may_follow(base.version, latest, attempts | committed):
            raise error
        self._check_columns(base, latest)
        return latest, attempts | committed

    def _computed(
        self, source: Snapshot, files: UncommittedFiles, attempts: set[int]
    ) -> tuple[CommitOutcome | None, Operation, Removal | None]:
        """The operation for a version, or the outcome of an earlier attempt that is kept instead."""
        if self.mode in ("create", "overwrite"):
            return None, self._overwrite(), None
        grows = self._grows(source.manifest)
        append: Operation = Append(fragments=self.fragments)
        if grows:
            append = self._growing(source, files, Removal.none())
        rows: RowsByFragment = {}
        if self.write is not None and (self.mode == "append" or self.write.outside_slices):
            rows, kept, beside = rows_of_attempts(source, self.write, attempts)
            self.beside.update(beside)
            if kept is not None:
                return self._outcome(None, committed_version(self.store, source.manifest, kept)), append, None
        self._check_empty(source, attempts)
        if self.mode == "append" and not attempts:
            return None, append, None
        removal = remove_slices(source, self.request.slices, files, rows)
        if grows:
            return None, self._growing(source, files, removal), removal
        operation = Update(
            removed_fragment_ids=removal.removed_fragment_ids,
            updated_fragments=removal.updated_fragments,
            new_fragments=self.fragments,
        )
        return None, operation, removal

    def _growing(self, source: Snapshot, files: UncommittedFiles, removal: Removal) -> Merge:
        """The operation that adds columns and fragments, and hides rows, in one version.

        No other operation changes schema and fragments. It has to keep each fragment, also those without a row left.
        """
        base = source.manifest
        emptied = [
            with_deletions(source, fragment, removal.affected_rows[fragment.id], files)
            for fragment in base.fragments
            if fragment.id in removal.removed_fragment_ids
        ]
        make_durable(source.store, [one.deletion_file.key(one.id) for one in emptied if one.deletion_file is not None])
        changed = {fragment.id: fragment for fragment in (*removal.updated_fragments, *emptied)}
        new = number_fragments(self.fragments, next_fragment_id(base))
        kept = tuple(changed.get(fragment.id, fragment) for fragment in base.fragments)
        return Merge(fragments=(*kept, *new), schema=self._grown(base), preserves_nullability=True)

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
        if self.write is not None:
            policy: ConflictPolicy = "exclusive" if self.mode == "create" else self.write.conflict_policy
            options = replace(options, write_attempt=replace(self.write, earlier=replaced, conflict_policy=policy))
        transaction = Transaction(read_version=base.version, operation=operation, properties=properties)
        affected = removal.affected_rows if removal is not None else None

        def still_empty(rebased: Transaction, latest: Manifest) -> Rebased:
            if latest.version != base.version:
                self._check_empty(Snapshot(self.store, latest, self.target.options), attempts)
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
        return self._outcome(base, done, removal, tuple(one for one in replaced if one not in self.beside))

    def _check_empty(self, source: Snapshot, attempts: set[int]) -> None:
        """Make sure that slices which have to be empty are, but for rows of earlier attempts.

        Raises:
            DatasetExistsError: A slice has rows of other writes.
        """
        if not self.request.require_empty:
            return
        assert self.request.slices is not None
        rows: RowsByFragment = {}
        if self.write is not None and attempts:
            if self.write.on_earlier_attempt == "append":
                return  # rows that cannot be identified may stay
            rows, _, _ = rows_of_attempts(source, self.write, attempts)
        check_empty(source, self.request.slices, rows)

    @property
    def _replaces_others(self) -> bool:
        """Whether rows that other writes have put into the same slices meanwhile are replaced."""
        if self.request.require_empty:
            return False
        later_wins = self.write is not None and self.write.conflict_policy == "later_wins"
        return later_wins and self.mode in ("overwrite", "replace")

    def _may_follow(self, since: int, latest: Manifest, attempts: set[int]) -> bool:
        """Whether no other write has filled the same slices after a version, or only ones that may be replaced.

        Raises:
            SupersededError: A later write has filled them, which is not to be replaced.
        """
        if self.request.require_empty:
            return True  # the rows themselves are looked at
        clashes = self._clashes(since, latest, attempts)
        if clashes and self._replaces_others:
            assert self.write is not None
            reject_overruled(self.write, self.uri, clashes)
            self.overruled.update(clashes)
        return not clashes or self._replaces_others

    def _clashes(self, since: int, latest: Manifest, attempts: set[int]) -> dict[int, Transaction]:
        """The commits after a version, other than those of earlier attempts, that filled the same rows.

        Raises:
            IncompatibleConflictError: A version in between was cleaned up that may be one of them.
        """
        own = set(json.loads(self.properties.get(SLICES_KEY, "[]")))
        found = {}
        for version in range(since + 1, latest.version + 1) if own or self._replaces_others else ():
            if version in attempts:
                continue
            other = find_transaction(self.store, version)
            if other is None:
                raise gap_error(self.uri, since, version)
            same = not own.isdisjoint(json.loads(other.properties.get(SLICES_KEY, "[]")))
            if same or (not own and isinstance(other.operation, Overwrite)):
                found[version] = other
        return found

    def _check_columns(self, base: Manifest, latest: Manifest) -> None:
        """Make sure that fragments that were written for a version fit a later one.

        Raises:
            RetryableConflictError: The later version has other columns.
        """
        if self.mode in ("append", "replace") and _field_ids(base.schema) != _field_ids(latest.schema):
            raise RetryableConflictError(f"{self.uri}: its columns were changed meanwhile; do the write again")

    def _configured(self, base: Manifest) -> Manifest:
        """Set configuration that a dataset lacks; Overwrite brings it along.

        Returns:
            The version to continue from: the new one, unless other commits came between, which have to be checked for
            conflicts.
        """
        missing = {key: value for key, value in self.table_config.items() if base.config.get(key) != value}
        if not missing or self.mode == "overwrite":
            return base
        self._check_files()
        operation = UpdateConfig(config=UpdateMap(entries=missing))
        transaction = Transaction(
            read_version=base.version, operation=operation, properties=self.request.side_properties()
        )
        made = commit(self.store, transaction, base=base, options=CommitOptions()).manifest
        return made if made.version == base.version + 1 else base

    def _grown(self, base: Manifest) -> Schema:
        """The schema with the columns that a dataset lacks, if they are to be added; Overwrite brings them along."""
        new = lacking_fields(base.schema, self.request.schema) if self.request.add_columns else []
        return base.schema if not new or self.mode == "overwrite" else with_null_columns(base, new)

    def _grows(self, base: Manifest) -> bool:
        """Whether columns are added to a dataset, so that fragments and schema change in one version."""
        return self.mode in ("append", "replace") and self._grown(base) is not base.schema

    def _check_files(self) -> None:
        """Make sure that the files of the fragments are there before another version is made for them."""
        if self.ready is not None:
            self.ready()

    def _adopt(self, latest: Manifest) -> CommitOutcome | None:
        """The commit that carries our `idempotency_key` property, if one does."""
        if self.request.options.idempotency_key is None:
            return None
        committed = find_idempotent_commit(self.store, latest, self.request.options.idempotency_key)
        return None if committed is None else self._outcome(None, committed)

    def _outcome(
        self,
        base: Manifest | None,
        done: Committed,
        removal: Removal | None = None,
        replaced: tuple[int, ...] = (),
    ) -> CommitOutcome:
        return CommitOutcome(
            base=base, done=done, removal=removal, replaced=replaced, overruled=tuple(sorted(self.overruled))
        )


def _field_ids(schema: Schema) -> list[tuple[str, int]]:
    """The ids of all fields, each with the name of its column."""
    return [(column.name, field.id) for column in schema.fields for field in _subtree(column)]


def _subtree(field: Field) -> Iterator[Field]:
    yield field
    for child in field.children:
        yield from _subtree(child)
