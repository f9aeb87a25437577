"""Methods of `LanceDataset` for its history: versions, their transactions, proofs of writes, and changed rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal, Self, get_args

from lance_core.commit.history import find_all_by_property, find_by_property, summaries
from lance_core.commit.loop import commit
from lance_core.commit.proofs import find_idempotent_commit
from lance_core.commit.versions import (
    existing_versions,
    load_manifest,
    load_transaction,
    load_version_header,
    migrate_to_v2_names,
    newest_versions,
    reject_dropped_dataset,
    reload_latest,
)
from lance_core.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_core.table import transaction as transaction_records
from lance_core.table.idempotency import CommittedAttempt, CommittedBatch, CommittedFill, Kind, Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.manifest.version_summary import FragmentCounter, VersionSummary
from lance_core.table.operations import Restore
from lance_core.table.row_changes import TABLE_KEY, RowChange
from lance_core.table.watermarks import Watermark, watermarks
from lance_core.threads import ThreadPool
from lance_core.times import moment, since_epoch
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.delta.dataset_delta import DatasetDelta, delta_between
from lance_core.verbs.pylance_types.transactions import Transaction

Timestamp = datetime | date | str
"""A point in time, as in pylance. A day or a string without a zone is UTC, a `datetime` without one local time."""

_READS_AT_A_TIME: Final = 16
_logger = logging.getLogger(__name__)


class HistoryVerbs(Handle):
    """List, open, restore and compare versions, and look up the writes that made them."""

    def versions(self) -> list[dict[str, Any]]:
        """All versions, oldest first: number, local time of the commit, and counters as strings.

        A version with unknown features has no counters. A version whose manifest is torn has instead an "error", and
        the time of that file; it is named in the log.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> [one["version"] for one in table.versions()]
            [1, 2]
        """
        return [_describe(version) for version in summaries(self._store)]

    def restore(self) -> None:
        """Make this version the latest again, as a new version; the handle moves to it.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> deleted = table.delete("id > 1")
            >>> table.checkout_version(1).restore()
            >>> lance.dataset("t.lance").count_rows()
            3
        """
        latest = reload_latest(self._store, self._manifest)
        transaction = transaction_records.Transaction(
            read_version=latest.version, operation=Restore(version=self._manifest.version)
        )
        self._manifest = commit(self._store, transaction, base=latest).manifest

    def get_version(self) -> dict[str, Any]:
        """This version: number, local time of the commit, and counters as strings.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.get_version()["version"]
            1
        """
        opened = self._manifest
        counters = FragmentCounter().totals(opened.fragments.raw)
        return _describe(VersionSummary(version=opened.version, timestamp_ns=opened.timestamp_ns, counters=counters))

    def version_refs(self) -> list[dict[str, int]]:
        """The numbers of all versions of this branch, oldest first, without reading them.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> [one["version"] for one in table.version_refs()]
            [1, 2]
        """
        return [{"version": number} for number in existing_versions(self._store)]

    def migrate_manifest_paths_v2(self) -> None:
        """Give the manifests of this branch the names that sort newest first.

        It must run to its end before anybody else uses the dataset; after an interruption run it again. Two different
        manifests of one number both stay.

        Raises:
            CorruptFileError: A number has two different manifests; nothing is renamed.
            DatasetNotFoundError: The dataset was dropped.
            IncompatibleConflictError: The dataset was dropped and made again.
            UnsupportedError: The version has writer flags that are not known.

        Examples:
            >>> table = lance.write_dataset({"id": [1]}, "t.lance", enable_v2_manifest_paths=False)
            >>> table.migrate_manifest_paths_v2()
        """
        self._manifest.check_writable()
        reload_latest(self._store, self._manifest)  # raises if the dataset was dropped, or made again
        migrate_to_v2_names(self._store)
        self._manifest = load_manifest(self._store, self.version)

    def read_transaction(self, version: int) -> Transaction | None:
        """The transaction of a version; None if none is recorded.

        Raises:
            VersionNotFoundError: There is no such version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.read_transaction(1).operation.name
            'Overwrite'
        """
        try:
            record = load_version_header(self._store, int(version))
        except VersionNotFoundError:
            reject_dropped_dataset(self._store)
            raise
        transaction = load_transaction(self._store, record)
        return None if transaction is None else Transaction.from_record(transaction)

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """The transactions of the latest versions up to this one, newest first.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> [transaction.operation.name for transaction in table.get_transactions()]
            ['Append', 'Overwrite']
        """
        numbers = (number for number in newest_versions(self._store) if number <= self.version)
        return [self.read_transaction(number) for number in islice(numbers, max(recent_transactions, 0))]

    def history(self, *, ahead: int = 1) -> Iterator[tuple[Self, Transaction | None]]:
        """Handles on this and earlier versions, newest first, each with its transaction, or None if none is recorded.

        A version is read when it is needed. Versions that were cleaned up are left out, and so are versions whose
        manifests are torn, which the log names. Not in pylance.

        Args:
            ahead: Number of versions that are read at once; above 1 they are read in parallel.

        Raises:
            InvalidInputError: `ahead` is less than 1.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> [(one.version, transaction.operation.name) for one, transaction in table.history()]
            [(2, 'Append'), (1, 'Overwrite')]
        """
        if ahead < 1:
            raise InvalidInputError(f"ahead must be at least 1, not {ahead}")
        return self._walk_back(ahead)

    def _walk_back(self, ahead: int) -> Iterator[tuple[Self, Transaction | None]]:
        numbers = (number for number in newest_versions(self._store) if number <= self.version)
        counts: dict[bytes, int | None] = {}
        while next_numbers := list(islice(numbers, ahead)):
            if ahead == 1:
                records = [self._open_recorded(number) for number in next_numbers]
            else:
                with ThreadPool(min(_READS_AT_A_TIME, len(next_numbers))) as pool:
                    records = list(pool.map(self._open_recorded, next_numbers))
            for record in records:
                if record is not None:
                    record[0]._manifest.fragments.share_live_counts(counts)  # noqa: SLF001 - its own kind
                    yield record

    def _open_recorded(self, number: int) -> tuple[Self, Transaction | None] | None:
        """A handle on a version and its transaction; None if the version was cleaned up since, or is torn."""
        try:
            manifest = self._manifest if number == self.version else load_manifest(self._store, number)
        except VersionNotFoundError:
            return None
        except CorruptFileError as error:
            _logger.warning("version %d of %s cannot be read: %s", number, self._uri, error)
            return None
        transaction = load_transaction(self._store, manifest)
        handle = type(self)(self._uri, storage_options=self._options, manifest=manifest)
        return handle, None if transaction is None else Transaction.from_record(transaction)

    def find_transaction(
        self, key: str, value: str, *, not_before: datetime | None = None, newer_than: int = 0
    ) -> tuple[int, Transaction] | None:
        """The newest commit up to this version that carries a transaction property with a given value.

        Args:
            key: The property.
            value: What it must be.
            not_before: Do not look at older commits.
            newer_than: Do not look at this version or older ones; they are not read.

        Returns:
            Version and transaction; None if there is none.

        Examples:
            >>> rows = {"id": [1, 2, 3]}
            >>> table = lance.write_dataset(rows, "t.lance", transaction_properties={"run": "a"})
            >>> version, transaction = table.find_transaction("run", "a")
            >>> version, transaction.operation.name
            (1, 'Overwrite')
        """
        matching = find_by_property(
            self._store, key, value, newest=self._manifest, not_before=not_before, newer_than=newer_than
        )
        return None if matching is None else (matching[0].version, Transaction.from_record(matching[1]))

    def find_transactions(
        self, key: str, value: str, *, not_before: datetime | None = None
    ) -> tuple[dict[int, Transaction], list[int]]:
        """All commits up to this version that carry a transaction property with a given value.

        Args:
            key: The property.
            value: What it must be.
            not_before: Do not look at older commits.

        Returns:
            The transactions by version, newest first; and the versions in between whose transactions are unknown,
            because they were cleaned up or cannot be read.

        Examples:
            >>> rows = {"id": [1, 2, 3]}
            >>> table = lance.write_dataset(rows, "t.lance", transaction_properties={"run": "a"})
            >>> found, missing = table.find_transactions("run", "a")
            >>> sorted(found), missing
            ([1], [])
        """
        records, missing = find_all_by_property(self._store, key, value, newest=self._manifest, not_before=not_before)
        return {version: Transaction.from_record(record) for version, record in records.items()}, missing

    def find_idempotent_commit(
        self, key: str, value: str, *, newer_than: int = 0
    ) -> tuple[int, Transaction | None] | None:
        """The commit up to this version that carries a given `idempotency_key`, a property that one commit may carry.

        The proofs in the table's own state are checked first: they show the commit even after its version was cleaned
        up.

        Args:
            key: The property.
            value: What it must be.
            newer_than: A version that is older than the commit: it and older versions are not read.

        Returns:
            The version and the transaction of the commit; this version and None if the commit's version was cleaned up.
            None if there is no such commit.

        Raises:
            UndecidedWriteError: A version after `newer_than` was cleaned up that may have been the commit.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> fragments, key = lance.write_fragments(pa.table({"id": [4]}), "t.lance"), ("batch", "2026-01-01")
            >>> once = lance.Commit(idempotency_key=key)
            >>> done = lance.commit_fragments("t.lance", fragments, table.schema, commit=once)
            >>> version, transaction = lance.dataset("t.lance").find_idempotent_commit(*key)
            >>> version, transaction.operation.name
            (2, 'Append')
        """
        matching_commit = find_idempotent_commit(self._store, self._manifest, (key, value), newer_than=newer_than)
        if matching_commit is None:
            return None
        record = matching_commit.transaction
        return matching_commit.manifest.version, None if record is None else Transaction.from_record(record)

    def committed_batch(self, stream: str) -> CommittedBatch | None:
        """The last batch of a stream that the table knows to be committed (`stream_batch`); None if it knows none.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> print(table.committed_batch("events"))
            None
        """
        return Proofs.of(self._manifest.config).streams.get(stream)

    def committed_attempts(self, token: tuple[str, str] | None = None) -> tuple[CommittedAttempt, ...]:
        """The attempts that the table knows to have added rows, oldest first.

        Attempts that replace all rows, or those of slices, are in `committed_fills`.

        Args:
            token: The write (`WriteAttempt.token`); None for all writes.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.committed_attempts(("run", "a"))
            ()
        """
        proofs = Proofs.of(self._manifest.config)
        return proofs.attempts if token is None else proofs.attempts_of(token)

    def recorded_row_change(self) -> tuple[int, int] | None:
        """The version that last changed rows as the table has recorded it, and the version up to which that is known.

        None if the table has no such record, which it keeps together with proofs of writes.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> print(table.recorded_row_change())
            None
        """
        change = RowChange.of(self._manifest.config)
        return None if change is None else (change.version, change.known_to)

    def recorded_table_id(self) -> str | None:
        """An id that the table has until it is dropped; a table that is made again in its place has another one.

        None if the table has no id: it gets one by the first change of rows for which it keeps proofs of writes.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> print(table.recorded_table_id())
            None
        """
        return self._manifest.config.get(TABLE_KEY)

    def committed_fills(self) -> tuple[CommittedFill, ...]:
        """The attempts that the table knows to have replaced all rows, or those of slices; of each write the newest.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.committed_fills()
            ()
        """
        return Proofs.of(self._manifest.config).fills

    def watermarks(self, name: str) -> Mapping[str, Watermark]:
        """How far parts of this table have consumed an input, as recorded by the commits that did (`WatermarkMove`).

        Watermarks are in the table's configuration: they stay when versions are cleaned up, and a restore sets them
        back.

        Args:
            name: The input.

        Examples:
            >>> move = lance.WatermarkMove(name="orders", parts=("all",), before=None, after="7")
            >>> properties = lance.WatermarkMove.properties([move])
            >>> table = lance.write_dataset({"id": [1]}, "t.lance", transaction_properties=properties)
            >>> [(part, one.position) for part, one in table.watermarks("orders").items()]
            [('all', '7')]
        """
        return watermarks(self._manifest.config, name)

    def known_after(self, kind: Literal["streams", "keys", "attempts", "fills"]) -> int | None:
        """The version after which the table's state records all writes of a kind; None if it never recorded one.

        Writes up to that version are known from the history alone, as far as it was not cleaned up.

        Args:
            kind: "streams" are batches of a stream, "keys" idempotency keys, "attempts" attempts of a write, and
                "fills" attempts that replaced all rows, or those of slices.

        Raises:
            InvalidInputError: The kind is unknown.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> print(table.known_after("keys"))  # the whole history is known
            None
        """
        if kind not in get_args(Kind):
            raise InvalidInputError(f"kind is {kind!r}; there are {', '.join(map(repr, get_args(Kind)))}")
        return Proofs.of(self._manifest.config).complete_after(kind)

    def version_as_of(self, asof: Timestamp, *, clock: Literal["writer", "storage"] = "writer") -> int:
        """The latest version that is not newer than a time, such as one that `versions` lists.

        Args:
            asof: A day, or a string without a zone, is in UTC; a `datetime` without a zone is local time, as in
                `versions`.
            clock: "writer" compares the times that `versions` lists, which writers took from their clocks; "storage"
                the times at which the storage got the manifests, as writers' clocks may be ahead or behind.

        Raises:
            VersionNotFoundError: All versions are newer, or the version that was the newest then may be one that was
                cleaned up.

        Examples:
            >>> from datetime import datetime, timezone
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.version_as_of(datetime.now(timezone.utc))
            1
        """
        try:
            limit = moment(_add_local_zone(asof))
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._uri}: {error}") from error
        later = None
        for number in newest_versions(self._store):
            header = load_version_header(self._store, number)
            commit_time = since_epoch(min(header.timestamp_ns, _round_like_pylance(header.timestamp_ns)))
            if clock == "storage" and isinstance(header, Manifest) and header.location is not None:
                commit_time = datetime.fromtimestamp(self._store.head(header.location.key).modified, UTC)
            if commit_time <= limit:
                if later not in (None, number + 1):
                    raise VersionNotFoundError(
                        f"{self._uri}: which version was the newest at {limit.isoformat()} is not known, as versions "
                        f"{number + 1} to {later - 1} were cleaned up; name a version, such as {number} or {later}"
                    )
                return number
            later = number
        raise VersionNotFoundError(f"{self._uri} has no version as old as {limit.isoformat()}")

    def delta(
        self, compared_against: int | None = None, *, begin_version: int | None = None, end_version: int | None = None
    ) -> DatasetDelta:
        """The rows that were inserted, updated and deleted between two versions.

        They are exact if both versions have stable row ids (`migrate_to_stable_row_ids`). Without them, inserted and
        deleted rows are known, and an error names a version that updated rows. Compaction, indices and configuration
        change no row; neither do columns that are dropped, renamed, or added without values.

        Args:
            compared_against: The earlier version, which is compared with this one.
            begin_version: The earlier version, whose own changes are left out; 0 stands for an empty table. Needs
                `end_version`.
            end_version: The later version, whose changes are included. Needs `begin_version`.

        Raises:
            InvalidInputError: The versions are incomplete, given twice, or in the wrong order.
            VersionNotFoundError: The later version does not exist.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.delta(compared_against=1).get_inserted_rows().read_all()["id"].to_pylist()
            [4]
        """
        return delta_between(self, compared_against, begin_version, end_version)


def _add_local_zone(time: Timestamp) -> Timestamp:
    """A `datetime` without a zone as local time, with the offset that was valid at that time."""
    if isinstance(time, datetime) and time.tzinfo is None:
        return datetime.fromisoformat(time.isoformat()).astimezone()
    return time


def _describe(version: VersionSummary) -> dict[str, Any]:
    return {
        "version": version.version,
        "timestamp": _local_time(version.timestamp_ns),
        "metadata": {"error": version.fault} if version.fault else {k: str(n) for k, n in version.counters.items()},
    }


def _local_time(ns: int) -> datetime:
    """The time as pylance returns it: local and naive."""
    listed = _round_like_pylance(ns)
    return datetime.fromtimestamp(listed // 10**9) + timedelta(microseconds=listed % 10**9 // 1000)  # noqa: DTZ006 - pylance returns local time


def _round_like_pylance(ns: int) -> int:
    """Round a time in nanoseconds to microseconds as pylance does, by floating point: it may give a neighbour."""
    return int(ns // 1e9) * 10**9 + int((ns % 1e9) // 1e3) * 1000
