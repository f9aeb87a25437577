"""Commit fragments that were written: create, append, overwrite, or replace slices, in one version.

    create      Overwrite     there must be no dataset
    append      Append        a dataset is created if there is none
    overwrite   Overwrite     the same
    replace     Update        rows of the slices go, the fragments come; a dataset is created if there is none

A replacement that loses a race against something that merely moved rows (a compaction) is worked out again on the
latest version. One that loses against a replacement of the same slice fails: which of the two should win is not for
the table to say.

Of several tries of one write (`WriteTry`) the last one's rows are in the table, once: overwrite and replace do that by
themselves; append commits an Update that takes out the rows of the tries before it and brings its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Final

import pyarrow as pa

from lance_core.commit import (
    REPLACES_KEY,
    CommitOptions,
    Committed,
    EarlierTryLandedError,
    WriteTry,
    commit,
    find_by_property,
    load_following,
    load_latest,
    load_manifest,
    load_transaction,
)
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.errors import CommitConflictError, DatasetExistsError, InvalidInputError, RetryableConflictError
from lance_core.file import FileVersion
from lance_core.schema import Field, Schema, schema_to_bytes
from lance_core.store import ObjectStore, StorageOptions, canonical_uri
from lance_core.table.fragment import BasePath, Fragment
from lance_core.table.manifest import Manifest
from lance_core.table.operations import Append, Operation, Overwrite, Update, UpdateConfig, UpdateMap
from lance_core.table.paths import Naming
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, SLICES_KEY, Transaction
from lance_core.verbs.columns.add import add_null_columns
from lance_core.verbs.files.dictionaries import check_dictionaries, with_dictionaries
from lance_core.verbs.files.fragment_writer import lance_schema
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.records.fragments import FragmentMetadata
from lance_core.verbs.rows.removal import Removal
from lance_core.verbs.version.bases import DatasetBasePath, numbered
from lance_core.verbs.version.destination import Destination, destination
from lance_core.verbs.version.handle import Handle
from lance_core.verbs.version.source import Source
from lance_core.verbs.version.staged import Staged
from lance_core.verbs.write.earlier_tries import Rows, landed_tries, recorded, rows_of_tries
from lance_core.verbs.write.replace import remove_slices

__all__ = ["CommitResult", "commit_fragments"]

MODES: Final = ("create", "append", "overwrite", "replace")

REPLACE_ATTEMPTS: Final = 10
"""How often a replacement is worked out anew before its conflict is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What a commit did.

    Attributes:
        dataset: The dataset at the version that was committed.
        operation: Name of the operation.
        transaction_uuid: Names the transaction.
        read_version: Version that it was worked out from; 0 for a new dataset.
        rows_added: Rows in the new fragments.
        rows_deleted: Rows that went; None if an earlier commit was adopted and its history does not say.
        fragments_added: New fragments.
        fragments_removed: Fragments that went; None as for `rows_deleted`.
        attempts: How often a manifest was put; 0 if an earlier commit was adopted.
        deduplicated: Whether an earlier commit carried the `once` property, or is that of an earlier try of the same
            write, and was adopted.
        replaced_versions: What earlier tries of the same write had committed, and what this commit takes the place of.
    """

    dataset: LanceDataset
    operation: str
    transaction_uuid: str
    read_version: int
    rows_added: int
    rows_deleted: int | None
    fragments_added: int
    fragments_removed: int | None
    attempts: int
    deduplicated: bool
    replaced_versions: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        """Number of the version that was committed."""
        return self.dataset.version


def commit_fragments(
    uri: str | PathLike[str] | Handle,
    fragments: Sequence[FragmentMetadata],
    schema: pa.Schema,
    *,
    mode: str = "append",
    slices: Slices | None = None,
    read_version: int | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    once: tuple[str, str] | None = None,
    write_try: WriteTry | None = None,
    storage_options: Mapping[str, str] | None = None,
    data_storage_version: str | None = None,
    enable_stable_row_ids: bool = False,
    table_config: Mapping[str, str] | None = None,
    add_columns: bool = False,
    max_retries: int = 20,
    initial_bases: Sequence[DatasetBasePath] = (),
    enable_v2_manifest_paths: bool = True,
) -> CommitResult:
    """Make fragments part of a dataset.

    Args:
        uri: The dataset's root, or a dataset, whose version then need not be read again.
        fragments: What `FragmentWriter.finish` or `write_fragments` gave; all must have the same schema.
        schema: The Arrow schema they were written with.
        mode: "create", "append", "overwrite" or "replace".
        slices: For "replace": the rows that go.
        read_version: Version that the data was worked out from; concurrent changes since then are judged. None: the
            latest now, or that of the dataset given. 0: there was no dataset yet.
        transaction_properties: Texts for the history, by key.
        commit_message: A text for the history.
        once: A transaction property (key, value) that at most one commit may carry: if one that is newer than
            `read_version` does, it is adopted and nothing is committed. It is set on the commit.
        write_try: Which try of which write this is, if the write may be tried several times: what earlier tries
            committed is replaced, and a later one that has committed stops this one.
        storage_options: Where and who, under object_store's names; None for those of the dataset given.
        data_storage_version: Version of the files; for a dataset that is created.
        enable_stable_row_ids: Give rows ids that survive compaction; for a dataset that is created.
        table_config: Table configuration to set; keys that are there with that value are left alone.
        add_columns: Add the columns that the dataset lacks, as nulls for the rows that are there, in a version of
            their own before. The fragments were written with `LanceDataset.lance_schema_with`.
        max_retries: How often a commit that loses a race is rebased and put again.
        initial_bases: Base paths of a dataset that is created.
        enable_v2_manifest_paths: False gives a dataset that is created the old names of manifests.

    Raises:
        DatasetExistsError: `mode` is "create" and there is a dataset.
        RetryableConflictError: A concurrent commit changed what this one changes; do the write again.
        IncompatibleConflictError: A concurrent commit leaves no place for this one.
        SupersededError: A later try of the same write has committed.
        EarlierTryError: The rows that an earlier try appended cannot be told from others any more.
        SchemaError: The fragments do not fit the dataset.
    """
    properties = _properties(transaction_properties, commit_message, once, write_try)
    properties |= _checked(schema, mode, slices)
    work = _Commit(
        place=destination(uri, storage_options),
        fragments=tuple(fragment.to_record() for fragment in fragments),
        arrow_schema=schema,
        mode=mode,
        slices=slices,
        properties=properties,
        once=once,
        write=write_try,
        table_config=dict(table_config or {}),
        add_columns=add_columns,
        initial_bases=numbered(initial_bases),
        settings=CommitOptions(
            naming=Naming.V2 if enable_v2_manifest_paths else Naming.V1,
            max_retries=max_retries,
            once=once,
            write=write_try,
            data_storage_version=data_storage_version and FileVersion.from_string(data_storage_version).value,
            stable_row_ids=enable_stable_row_ids,
        ),
    )
    return work.run(read_version)


def _checked(schema: pa.Schema, mode: str, slices: Slices | None) -> dict[str, str]:
    """The property that says which slices are replaced, if any are."""
    if mode not in MODES:
        raise InvalidInputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if (mode == "replace") != (slices is not None):
        raise InvalidInputError('slices belong to mode "replace", and it needs them')
    if slices is None:
        return {}
    slices.check(schema)
    return {SLICES_KEY: json.dumps(slices.identities())}


def _properties(
    given: Mapping[str, str] | None,
    commit_message: str | None,
    once: tuple[str, str] | None,
    write: WriteTry | None,
) -> dict[str, str]:
    if once is not None and write is not None:
        raise InvalidInputError("once keeps the first of several commits, write_try the last one: give one of them")
    properties = dict(given or {}) | ({} if write is None else write.properties)
    if commit_message is not None:
        properties[COMMIT_MESSAGE_KEY] = commit_message
    if once is not None:
        properties[once[0]] = once[1]
    return properties


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """One call of `commit_fragments`."""

    place: Destination
    fragments: tuple[Fragment, ...]
    arrow_schema: pa.Schema
    mode: str
    slices: Slices | None
    properties: Mapping[str, str]
    once: tuple[str, str] | None
    write: WriteTry | None
    table_config: Mapping[str, str]
    add_columns: bool
    initial_bases: tuple[BasePath, ...]
    settings: CommitOptions

    @property
    def uri(self) -> str:
        """The dataset's root."""
        return canonical_uri(self.place.uri)

    @property
    def store(self) -> ObjectStore:
        """Its store."""
        return self.place.store

    @property
    def options(self) -> StorageOptions:
        """Storage options."""
        return self.place.options

    def run(self, read_version: int | None) -> CommitResult:
        """Commit, on the dataset that is there or as a new one."""
        base = self._base(read_version)
        tries = set(self.write.earlier if self.write is not None else ())
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
                tries |= landed_tries(self.store, self.write, 0, base)
                self._follow_creation(base, tries)
        if self.mode == "create" and not tries:
            raise DatasetExistsError(f"Dataset already exists: {self.uri}")
        base = self._with_new_columns(self._configured(base))
        if self.mode in ("append", "replace"):
            lance_schema(self.arrow_schema, base.schema)
            check_dictionaries(base.schema, self.fragments, self.store)
        return self._follow(base, tries)

    def _base(self, read_version: int | None) -> Manifest | None:
        known = self.place.base
        if known is not None and read_version in (None, known.version):
            return known
        if read_version is None:
            return load_latest(self.store)
        return load_manifest(self.store, read_version) if read_version else None

    def _follow_creation(self, latest: Manifest, tries: set[int]) -> None:
        """Make sure that fragments written for a new dataset can go into one that was created meanwhile.

        Raises:
            RetryableConflictError: They replace slices that it already has, or number its columns otherwise.
        """
        if self.mode in ("create", "overwrite"):
            return
        own = _field_ids(self._new_schema())
        if own != _field_ids(lance_schema(self.arrow_schema, schema_to_bytes(latest.schema))):
            raise RetryableConflictError(f"{self.uri} was created meanwhile, with columns in another order")
        if self.mode == "replace" and self._clashes(0, latest, tries):
            raise RetryableConflictError(f"{self.uri} was created meanwhile, with rows in the same slices")

    def _create(self) -> CommitResult:
        operation = replace(self._overwrite(), initial_bases=self.initial_bases)
        transaction = Transaction(read_version=0, operation=operation, properties=self.properties)
        return self._result(None, commit(self.store, transaction, base=None, options=self.settings))

    def _overwrite(self) -> Overwrite:
        return Overwrite(
            fragments=self.fragments,
            schema=with_dictionaries(self._new_schema(), self.fragments, self.store),
            config_upserts=self.table_config,
        )

    def _new_schema(self) -> Schema:
        """The schema of a new dataset of these fragments."""
        version = FileVersion.from_string(self.settings.data_storage_version)
        for fragment in self.fragments[:1]:
            for file in fragment.files[:1]:
                version = FileVersion.from_numbers(file.file_major_version, file.file_minor_version)
        return lance_schema(self.arrow_schema, None, version)

    def _follow(self, base: Manifest, tries: set[int]) -> CommitResult:
        """Commit on top of a version; work it out again when rows were merely moved, or an earlier try landed."""
        for attempt in range(REPLACE_ATTEMPTS):
            source = Source(self.store, base, self.options)
            files = Staged(source)
            adopted, operation, removal = self._worked_out(source, files, tries)
            if adopted is not None:
                return adopted
            try:
                return self._commit(base, operation, removal, tries)
            except CommitConflictError as error:
                files.discard()
                latest = load_following(self.store, base)
                if attempt + 1 == REPLACE_ATTEMPTS or not error.retryable:
                    raise
                landed = landed_tries(self.store, self.write, base.version, latest)
                if not isinstance(error, EarlierTryLandedError) and (
                    removal is None or self._clashes(base.version, latest, tries | landed)
                ):
                    raise
                self._check_columns(base, latest)
                base, tries = latest, tries | landed
        raise AssertionError("the last attempt returns or raises")

    def _worked_out(
        self, source: Source, files: Staged, tries: set[int]
    ) -> tuple[CommitResult | None, Operation, Removal | None]:
        """What to commit on top of a version, or the commit of an earlier try that is kept instead."""
        if self.mode in ("create", "overwrite"):
            return None, self._overwrite(), None
        append = Append(fragments=self.fragments)
        rows: Rows = {}
        if self.write is not None and (self.mode == "append" or self.write.whole):
            rows, kept = rows_of_tries(source, self.write, tries)
            if kept is not None:
                return self._kept(kept), append, None
        if self.mode == "append" and not tries:
            return None, append, None
        removal = remove_slices(source, self.slices, files, rows)
        operation = Update(
            removed_fragment_ids=removal.removed_fragment_ids,
            updated_fragments=removal.updated_fragments,
            new_fragments=self.fragments,
        )
        return None, operation, removal

    def _kept(self, version: int) -> CommitResult:
        manifest = load_manifest(self.store, version)
        transaction = load_transaction(self.store, manifest)
        assert transaction is not None  # it was found by its properties
        return self._result(None, Committed(manifest=manifest, transaction=transaction, attempts=0, deduplicated=True))

    def _commit(self, base: Manifest, operation: Operation, removal: Removal | None, tries: set[int]) -> CommitResult:
        replaced = tuple(sorted(tries))
        properties = dict(self.properties)
        if replaced:
            properties[REPLACES_KEY] = ",".join(map(str, replaced))
        settings = self.settings
        if self.write is not None:
            settings = replace(settings, write=replace(self.write, earlier=replaced))
        transaction = Transaction(read_version=base.version, operation=operation, properties=properties)
        affected = removal.affected_rows if removal is not None else None
        done = commit(self.store, transaction, base=base, options=settings, affected_rows=affected)
        return self._result(base, done, removal, replaced)

    def _clashes(self, since: int, latest: Manifest, tries: set[int]) -> bool:
        """Whether a commit after a version, other than an earlier try, replaced one of our slices."""
        own = set(json.loads(self.properties.get(SLICES_KEY, "[]")))
        for version in range(since + 1, latest.version + 1) if own else ():
            other = recorded(self.store, version) if version not in tries else None
            if other is not None and not own.isdisjoint(json.loads(other.properties.get(SLICES_KEY, "[]"))):
                return True
        return False

    def _check_columns(self, base: Manifest, latest: Manifest) -> None:
        """Make sure that fragments that were written for a version fit a later one.

        Raises:
            RetryableConflictError: Its columns are others.
        """
        if self.mode in ("append", "replace") and _field_ids(base.schema) != _field_ids(latest.schema):
            raise RetryableConflictError(f"{self.uri}: its columns were changed meanwhile; do the write again")

    def _configured(self, base: Manifest) -> Manifest:
        """Set configuration that a dataset lacks; Overwrite brings it along.

        Returns:
            The version to go on from: the one that this made, unless others came between, which are to be judged.
        """
        missing = {key: value for key, value in self.table_config.items() if base.config.get(key) != value}
        if not missing or self.mode == "overwrite":
            return base
        operation = UpdateConfig(config=UpdateMap(entries=missing))
        transaction = Transaction(read_version=base.version, operation=operation, properties=self._side_properties())
        made = commit(self.store, transaction, base=base, options=CommitOptions()).manifest
        return made if made.version == base.version + 1 else base

    def _with_new_columns(self, base: Manifest) -> Manifest:
        """Add the columns that a dataset lacks, if that is wanted; Overwrite brings them along.

        Raises:
            RetryableConflictError: The dataset has changed since `base`, so that the files may name other columns.
        """
        known = set(base.schema.names)
        new = [field for field in self.arrow_schema if field.name not in known]
        if not new or not self.add_columns or self.mode == "overwrite":
            return base
        latest = load_latest(self.store, base)
        if latest is not None and latest.version != base.version:
            raise RetryableConflictError(f"{self.uri} was changed while columns were to be added; do the write again")
        return add_null_columns(Source(self.store, base, self.options), new, self._side_properties())

    def _side_properties(self) -> dict[str, str]:
        """What describes a version that is made on the way: all but what stands for the write itself."""
        own = {SLICES_KEY, *(self.once[:1] if self.once is not None else ())}
        own |= set(self.write.properties if self.write is not None else ())
        return {key: value for key, value in self.properties.items() if key not in own}

    def _adopt(self, latest: Manifest) -> CommitResult | None:
        """The commit that carries our `once` property, if one does."""
        if self.once is None:
            return None
        found = find_by_property(self.store, *self.once, newest=latest)
        if found is None:
            return None
        return self._result(None, Committed(manifest=found[0], transaction=found[1], attempts=0, deduplicated=True))

    def _result(
        self,
        base: Manifest | None,
        done: Committed,
        removal: Removal | None = None,
        replaced: tuple[int, ...] = (),
    ) -> CommitResult:
        operation = done.transaction.operation
        added = operation.new_fragments if isinstance(operation, Update) else ()
        if isinstance(operation, Append | Overwrite):
            added = operation.fragments
        rows_deleted: int | None = 0
        removed: int | None = 0
        if done.deduplicated:
            rows_deleted = removed = None
        elif removal is not None:
            rows_deleted, removed = removal.num_rows, len(removal.removed_fragment_ids)
        elif isinstance(operation, Overwrite) and base is not None:
            rows_deleted = sum(fragment.num_rows for fragment in base.fragments)
            removed = len(base.fragments)
        return CommitResult(
            dataset=LanceDataset(self.uri, storage_options=self.options, manifest=done.manifest),
            operation=operation.name,
            transaction_uuid=done.transaction.uuid,
            read_version=done.transaction.read_version,
            rows_added=sum(fragment.physical_rows for fragment in added),
            rows_deleted=rows_deleted,
            fragments_added=len(added),
            fragments_removed=removed,
            attempts=done.attempts,
            deduplicated=done.deduplicated,
            replaced_versions=replaced,
        )


def _field_ids(schema: Schema) -> list[tuple[str, int]]:
    """The ids of all fields, each with the name of its column."""
    return [(column.name, field.id) for column in schema.fields for field in _subtree(column)]


def _subtree(field: Field) -> Iterator[Field]:
    yield field
    for child in field.children:
        yield from _subtree(child)
