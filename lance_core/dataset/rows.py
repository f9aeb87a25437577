"""Methods of `LanceDataset` that insert, delete, update and merge rows in a new version; the handle moves to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict

import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.arguments import reject
from lance_core.commit.attempts import AttemptProperties
from lance_core.errors import InvalidInputError
from lance_core.retry import CONFLICT_RETRIES, RETRY_TIMEOUT
from lance_core.table.operations import KeyExistenceFilter
from lance_core.verbs.context.handle import Handle, resolve_target
from lance_core.verbs.context.uncommitted_files import collecting_files
from lance_core.verbs.files.fragment_writer import ReaderLike
from lance_core.verbs.pylance_types.fragments import FragmentMetadata
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.rows.delete import delete_rows, truncate
from lance_core.verbs.rows.merge_insert import MergeInsertBuilder
from lance_core.verbs.rows.removal import remove_rows
from lance_core.verbs.rows.update import update_rows
from lance_core.verbs.rows.write_mode import WriteMode
from lance_core.verbs.write.write_version import OPTION_NAMES, WriteOptions, write_version


class DeleteResult(TypedDict):
    """The result of `delete`."""

    num_deleted_rows: int


class UpdateResult(TypedDict):
    """The result of `update`."""

    num_rows_updated: int


class RowVerbs(Handle):
    """Methods that change rows. The handle moves to the new version.

    A change is computed on the handle's version and rebased on the latest one if others committed meanwhile. If others
    changed the same rows, the change is computed again on the latest version, at most `conflict_retries` times.
    """

    def insert(self, data: ReaderLike, *, mode: str = "append", **options: Any) -> None:
        """Write rows, with the arguments of `write_dataset`. The handle moves to the version that was made.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.count_rows()
            4
        """
        if isinstance(options.get("transaction_properties"), AttemptProperties):
            raise InvalidInputError(
                "these transaction properties belong to a write that may be attempted several times: give them to "
                "lance_core.write_dataset(data, dataset, mode=...), which replaces what an earlier attempt has written"
            )
        schema, storage_options, commit_lock = (
            options.pop(name, None) for name in ("schema", "storage_options", "commit_lock")
        )
        options.pop("max_rows_per_group", None)  # it changes no result
        reject("write_dataset", {name: value for name, value in options.items() if name not in OPTION_NAMES})
        target = resolve_target(self, storage_options, commit_lock)
        new_target = write_version(data, schema, target, WriteOptions.of(mode, options))
        assert new_target.base is not None  # the version that was made
        self.move_to(new_target.base)

    def update_operation(
        self,
        new_fragments: Sequence[FragmentMetadata],
        deleted_rows: Mapping[int, BitMap],
        *,
        inserted_rows: KeyExistenceFilter | None = None,
    ) -> LanceOperation.Update:
        """The operation that adds fragments and deletes rows of this version, for `commit_transaction`. Not in pylance.

        Args:
            new_fragments: The fragments to add.
            deleted_rows: Offsets of the rows to delete, by fragment id; the deletion files are written.
            inserted_rows: The inserted keys, by `lance_core.key_filter`: concurrent inserts of one of them conflict.

        Raises:
            InvalidInputError: The version has no such fragment.

        Examples:
            >>> from pyroaring import BitMap
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> new = lance.write_fragments(pa.table({"id": [4]}), "t.lance")
            >>> update = table.update_operation(new, {0: BitMap([1])})
            >>> lance.commit_transaction(table, lance.Transaction(1, update)).rows_added
            1
            >>> lance.dataset("t.lance").to_table()["id"].to_pylist()
            [1, 3, 4]
        """
        rows = []
        for number, offsets in sorted(deleted_rows.items()):
            fragment = self._manifest.fragments.get(number)
            if fragment is None:
                raise InvalidInputError(f"version {self.version} of {self.uri} has no fragment {number}")
            rows.append((fragment, offsets))
        with collecting_files(self.snapshot) as files:
            removal = remove_rows(files.snapshot, rows, files)
        return LanceOperation.Update(
            removed_fragment_ids=list(removal.removed_fragment_ids),
            updated_fragments=list(map(FragmentMetadata.from_record, removal.updated_fragments)),
            new_fragments=list(new_fragments),
            fields_for_preserving_frag_bitmap=[field.id for field, _ in self._manifest.schema.walk()],
            inserted_rows=inserted_rows,
        )

    def delete(
        self,
        predicate: str | pc.Expression,
        *,
        conflict_retries: int = CONFLICT_RETRIES,
        retry_timeout: timedelta = RETRY_TIMEOUT,
    ) -> DeleteResult:
        """Delete the rows for which a predicate is true; a version is made even if no row is deleted.

        Args:
            predicate: SQL or a pyarrow expression.
            conflict_retries: How often the deletion is done again after a conflict with a commit of others.
            retry_timeout: Time after which no further attempt begins.

        Raises:
            InvalidInputError: The predicate does not fit the columns.
            RetryableConflictError: Others changed the same rows each time.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.delete("delay < 5")
            {'num_deleted_rows': 1}
            >>> flights.to_table().to_pylist()
            [{'carrier': 'UA', 'delay': 11}]
        """
        self._manifest, rows = delete_rows(
            self.snapshot, predicate, conflict_retries=conflict_retries, retry_timeout=retry_timeout
        )
        return {"num_deleted_rows": rows}

    def truncate_table(self) -> None:
        """Delete all rows; the columns stay.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.truncate_table()
            >>> table.count_rows()
            0
        """
        self._manifest = truncate(self.snapshot)

    def update(
        self,
        updates: Mapping[str, str | pc.Expression],
        where: str | pc.Expression | None = None,
        conflict_retries: int = CONFLICT_RETRIES,
        retry_timeout: timedelta = RETRY_TIMEOUT,
        data_storage_version: str | None = None,
        write_mode: str = "auto",
    ) -> UpdateResult:
        """Set columns in the rows for which a predicate is true.

        The rows move to new fragments at the end of the dataset, unless `write_mode` says otherwise.

        Args:
            updates: New value by column, as SQL or pyarrow expression over the row's old values. The result of SQL
                is cast to the column's type as CAST does. A struct is given as a whole, with `named_struct`.
            where: SQL or a pyarrow expression; None for all rows.
            conflict_retries: How often the update is done again after a conflict with a commit of others.
            retry_timeout: Time after which no further attempt begins.
            data_storage_version: Version of the new files; None for the dataset's.
            write_mode: How the rows are stored: "rewrite_rows", and "auto" as in pylance, move them; "rewrite_columns"
                rewrites the columns that change, for all rows of the fragments with such rows, and keeps the other
                columns; "fewest_bytes" chooses what writes fewer bytes. Not in pylance.

        Raises:
            InvalidInputError: A column does not exist, an expression does not fit, or there is no such mode.
            RetryableConflictError: Others changed the same rows each time.
            UnsupportedError: `updates` names a field of a struct rather than a column.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.update({"delay": "delay + 1"}, where="carrier = 'UA'")
            {'num_rows_updated': 1}
            >>> flights.to_table().sort_by("delay").to_pylist()
            [{'carrier': 'AA', 'delay': 4}, {'carrier': 'UA', 'delay': 12}]
        """
        self._manifest, rows = update_rows(
            self.snapshot,
            updates,
            where,
            conflict_retries=conflict_retries,
            retry_timeout=retry_timeout,
            data_storage_version=data_storage_version,
            write_mode=WriteMode.parse(write_mode),
        )
        return {"num_rows_updated": rows}

    def merge_insert(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Prepare a merge of rows by key: an upsert, an insert of new rows, or a replacement of part of the table.

        Args:
            on: Columns that make up the key; None for the primary key.

        Raises:
            InvalidInputError: A column does not exist, or there is no primary key.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> new = pa.table({"carrier": ["AA", "DL"], "delay": [7, 0]})
            >>> merge = flights.merge_insert("carrier").when_matched_update_all().when_not_matched_insert_all()
            >>> counts = merge.execute(new)
            >>> counts["num_inserted_rows"], counts["num_updated_rows"]
            (1, 1)
        """
        return MergeInsertBuilder(self, on)
