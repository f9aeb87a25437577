"""A dataset: a handle on one version, with the verbs as methods of a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from os import PathLike
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.fragment import LanceFragment
from lance_core.api.refs import Tags
from lance_core.api.scan import LanceScanner, ScanOptions
from lance_core.api.schema_evolution import add_null_columns, fields_of
from lance_core.api.source import Source
from lance_core.api.take import take_rows
from lance_core.api.unsupported import refuse
from lance_core.commit import (
    find_by_property,
    latest_version,
    list_versions,
    load_latest,
    load_manifest,
    load_transaction,
)
from lance_core.errors import DatasetNotFoundError, InvalidInputError, VersionNotFoundError
from lance_core.schema import resolve_extensions, schema_to_arrow, schema_to_bytes
from lance_core.store import StorageOptions, canonical_uri, open_store
from lance_core.table.manifest import Manifest
from lance_core.table.transaction import Transaction

__all__ = ["LanceDataset", "dataset"]

Timestamp = datetime | date | str
"""A point in time; without a zone it is local time, as in pylance."""


def dataset(
    uri: str | PathLike[str],
    version: int | str | None = None,
    asof: Timestamp | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> LanceDataset:
    """Open a dataset.

    Args:
        uri: Its root: a path, or a URI such as `s3://bucket/path`.
        version: A version number or a tag; None for the latest version.
        asof: The latest version at or before this time; not together with `version`.
        storage_options: Where and who, under object_store's names.

    Raises:
        DatasetNotFoundError: There is no dataset.
        VersionNotFoundError: There is no such version or tag, or none as old as `asof`.
    """
    opened = LanceDataset(uri, storage_options=storage_options)
    if version is not None and asof is not None:
        raise InvalidInputError("version and asof cannot be given together")
    if asof is not None:
        return opened.checkout_version(opened._version_as_of(asof))  # noqa: SLF001 - the class is of this module
    return opened if version is None else opened.checkout_version(version)


class LanceDataset:
    """A handle on one version of a dataset.

    Reading sees that version for ever; `checkout_latest` moves the handle. It can be pickled and sent elsewhere.

    Args:
        uri: The dataset's root.
        storage_options: Where and who, under object_store's names.
        manifest: The version; None opens the latest.

    Raises:
        DatasetNotFoundError: There is no dataset.
    """

    def __init__(
        self,
        uri: str | PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        self._uri = canonical_uri(uri)
        self._options = StorageOptions(storage_options)
        self._store = open_store(self._uri, self._options)
        found = manifest if manifest is not None else load_latest(self._store)
        if found is None:
            raise DatasetNotFoundError(f"Dataset at path {self._uri} was not found")
        self._manifest: Manifest = found

    def __repr__(self) -> str:
        """Tell where and which version."""
        return f"LanceDataset({self._uri!r}, version={self.version})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as URI and version: the process elsewhere reads the manifest itself."""
        return _reopen, (self._uri, self.version, self._options)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """The dataset's root, in its canonical spelling."""
        return self._uri

    @property
    def version(self) -> int:
        """Number of this version."""
        return self._manifest.version

    @property
    def latest_version(self) -> int:
        """Number of the latest version, looked up now."""
        found = latest_version(self._store)
        if found is None:
            raise DatasetNotFoundError(f"Dataset at path {self._uri} was not found")
        return found

    @property
    def schema(self) -> pa.Schema:
        """The columns, as Arrow."""
        return resolve_extensions(schema_to_arrow(self._manifest.schema))

    @property
    def lance_schema_bytes(self) -> bytes:
        """The schema with its field ids, to hand to a `FragmentWriter` elsewhere."""
        return schema_to_bytes(self._manifest.schema)

    @property
    def data_storage_version(self) -> str:
        """Version of the data files."""
        return self._manifest.data_storage_version

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows have ids that survive compaction."""
        return self._manifest.uses_stable_row_ids

    @property
    def max_field_id(self) -> int:
        """Highest field id that was ever used."""
        return self._manifest.max_field_id

    @property
    def timestamp(self) -> datetime:
        """When this version was committed, in UTC."""
        return self._manifest.timestamp

    @property
    def total_bytes(self) -> int:
        """Bytes of this version's data files, as far as their sizes are recorded."""
        return sum(file.file_size_bytes for message in self._manifest.fragments.messages() for file in message.files)

    def config(self) -> dict[str, str]:
        """The table's configuration."""
        return dict(self._manifest.config)

    @property
    def metadata(self) -> dict[str, str]:
        """Free texts about the table."""
        return dict(self._manifest.table_metadata)

    @property
    def source(self) -> Source:
        """What readers of this version need."""
        return Source(self._store, self._manifest, self._options)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        batch_size: int | None = None,
        fragments: Iterable[LanceFragment] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        **others: Any,
    ) -> LanceScanner:
        """Prepare a scan.

        Args:
            columns: Columns to read, in order; a dotted path reads part of a struct. None reads all.
            filter: Keep the rows for which this `pyarrow.compute` expression is true.
            limit: Most rows to return.
            offset: Rows to leave out first.
            batch_size: Most rows of a batch; None leaves it to the files.
            fragments: Read only these.
            with_row_id: Add a column `_rowid`.
            with_row_address: Add a column `_rowaddr`: fragment id << 32 | row offset.
            **others: Arguments of pylance's that are not offered; None is ignored, as it means their default.

        Raises:
            SchemaError: A column does not exist.
            UnsupportedError: An argument is not offered.
        """
        options = ScanOptions.of(
            self._manifest.schema, columns, filter, limit, offset, batch_size, with_row_id, with_row_address
        )
        refuse("scanner", others)
        chosen = self._manifest.fragments if fragments is None else [one.record for one in fragments]
        return LanceScanner(self.source, chosen, options)

    def to_table(self, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        """All rows as one table; arguments as `scanner`."""
        return self.scanner(columns, **options).to_table()

    def to_batches(self, columns: Sequence[str] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, with bounded memory; arguments as `scanner`."""
        return self.scanner(columns, **options).to_batches()

    def to_reader(self, columns: Sequence[str] | None = None, **options: Any) -> pa.RecordBatchReader:
        """The rows as an Arrow reader; arguments as `scanner`."""
        return self.scanner(columns, **options).to_reader()

    def to_pandas(self, columns: Sequence[str] | None = None, **options: Any) -> Any:
        """All rows as a pandas frame; arguments as `scanner`."""
        return self.to_table(columns, **options).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Serve the rows to whatever speaks Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count_rows(self, filter: pc.Expression | None = None) -> int:  # noqa: A002 - pylance's name
        """Number of rows; without a filter only metadata is read."""
        return self.scanner(filter=filter).count_rows()

    def count_deleted_rows(self) -> int:
        """Rows that deletion files hide."""
        return sum(message.deletion_file.num_deleted_rows for message in self._manifest.fragments.messages())

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """The first rows; arguments as `scanner`."""
        return self.scanner(limit=num_rows, **options).to_table()

    def take(self, indices: Sequence[int] | pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by position, in the order asked for.

        Args:
            indices: Positions among the rows of the dataset, from 0.
            columns: Columns to read; None for all.

        Raises:
            InvalidInputError: A position lies outside the dataset.
        """
        options = ScanOptions.of(self._manifest.schema, columns)
        return take_rows(self.source, self._manifest.fragments, indices, options)

    # -- fragments -----------------------------------------------------------------------------------------------------

    def get_fragments(self) -> list[LanceFragment]:
        """The fragments, in order."""
        source = self.source
        return [LanceFragment(source, record) for record in self._manifest.fragments]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """The fragment of that id; None if there is none."""
        record = self._manifest.fragments.get(fragment_id)
        return None if record is None else LanceFragment(self.source, record)

    # -- history -------------------------------------------------------------------------------------------------------

    def versions(self) -> list[dict[str, Any]]:
        """All versions, oldest first: number, local time of the commit, and counters as texts."""
        manifests = (load_manifest(self._store, number) for number in list_versions(self._store))
        return [_describe(manifest) for manifest in manifests]

    def checkout_version(self, version: int | str) -> Self:
        """A handle on another version, given by number or tag.

        Raises:
            VersionNotFoundError: There is none.
        """
        number = self.tags.get_version(version) if isinstance(version, str) else version
        if number == self.version:
            return self
        manifest = load_manifest(self._store, number)
        return type(self)(self._uri, storage_options=self._options, manifest=manifest)

    def checkout_latest(self) -> None:
        """Move this handle to the latest version."""
        self._manifest = load_latest(self._store, self._manifest) or self._manifest

    @property
    def tags(self) -> Tags:
        """The tags of the dataset."""
        return Tags(self._store)

    def read_transaction(self, version: int) -> Transaction | None:
        """What the commit of a version changed; None if it recorded nothing.

        Raises:
            VersionNotFoundError: There is no such version.
        """
        return load_transaction(self._store, self.checkout_version(version).source.manifest)

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """What the latest commits up to this version changed, newest first."""
        numbers = [number for number in list_versions(self._store) if number <= self.version]
        return [self.read_transaction(number) for number in reversed(numbers[-recent_transactions:])]

    def find_transaction(
        self, key: str, value: str, *, not_before: datetime | None = None
    ) -> tuple[int, Transaction] | None:
        """The newest commit up to this version that carries a transaction property.

        Args:
            key: The property.
            value: What it must be.
            not_before: Do not look at older commits.

        Returns:
            Version and transaction; None if there is none.
        """
        found = find_by_property(self._store, key, value, newest=self._manifest, not_before=not_before)
        return None if found is None else (found[0].version, found[1])

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_columns(self, transforms: pa.Field | pa.Schema | Iterable[pa.Field]) -> None:
        """Add columns that are null in all rows, in a new version; this handle moves to it.

        Raises:
            SchemaError: A column exists, or does not allow nulls.
            UnsupportedError: Columns with values are asked for.
        """
        self._manifest = add_null_columns(self.source, fields_of(transforms))

    def _version_as_of(self, asof: Timestamp) -> int:
        """The latest version that is not newer than a time."""
        limit = _utc(asof)
        for number in reversed(list_versions(self._store)):
            if load_manifest(self._store, number).timestamp <= limit:
                return number
        raise VersionNotFoundError(f"{self._uri} has no version as old as {limit.isoformat()}")


def _reopen(uri: str, version: int, options: Mapping[str, str]) -> LanceDataset:
    return dataset(uri, version, storage_options=options)


def _utc(time: Timestamp) -> datetime:
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day)  # noqa: DTZ001 - local midnight is meant
    return time.astimezone(UTC)


def _describe(manifest: Manifest) -> dict[str, Any]:
    messages = list(manifest.fragments.messages())
    files = [file for message in messages for file in message.files]
    rows = sum(message.physical_rows for message in messages)
    deleted = sum(message.deletion_file.num_deleted_rows for message in messages)
    counters = {
        "total_data_file_rows": rows,
        "total_data_files": len(files),
        "total_deletion_file_rows": deleted,
        "total_deletion_files": sum(message.HasField("deletion_file") for message in messages),
        "total_files_size": sum(file.file_size_bytes for file in files),
        "total_fragments": len(messages),
        "total_rows": rows - deleted,
    }
    return {
        "version": manifest.version,
        "timestamp": manifest.timestamp.astimezone().replace(tzinfo=None),
        "metadata": {name: str(value) for name, value in counters.items()},
    }
