"""Write rows that move to new fragments, with their stable row ids if the dataset has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pyarrow as pa

from lance_core.encoding.concatenate import has_narrow_dictionary
from lance_core.schema import Schema, schema_to_arrow, typed_schema
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array, encode_row_ids
from lance_core.verbs.context.bases import WriteTarget
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.conform import check_dictionaries
from lance_core.verbs.files.fragment_writer import FragmentWriter

__all__ = ["MovedRows"]


class MovedRows:
    """Writes rows into new fragments of a version.

    Args:
        source: The version.
        files: Collects the new files.
        data_storage_version: Version of the files; None for the dataset's.
        targets: The targets to which files are written, round-robin; None for the dataset's root.
        schema: The columns that are written; None for all.
    """

    def __init__(
        self,
        source: Snapshot,
        files: UncommittedFiles,
        *,
        data_storage_version: str | None = None,
        targets: Sequence[WriteTarget] | None = None,
        schema: Schema | None = None,
    ) -> None:
        manifest = source.manifest
        self._files = files
        self._schema = manifest.schema if schema is None else schema
        self._stable = manifest.uses_stable_row_ids
        self._ids: list[U64Array] = []
        self._is_finished = False
        self._writer = FragmentWriter(
            source.store.root,
            typed_schema(self._schema),
            storage_options=source.options,
            data_storage_version=data_storage_version or manifest.data_storage_version,
            dataset_schema=self._schema,
            targets=targets or [WriteTarget(store=source.store)],
            external_places=None,  # rows of the table may refer to any external blob
            divides_dictionaries=any(has_narrow_dictionary(kind) for kind in schema_to_arrow(self._schema).types),
        )

    def write(self, rows: pa.Table | pa.RecordBatch, row_ids: U64Array | None = None) -> None:
        """Append rows that have all columns.

        Args:
            rows: The rows.
            row_ids: Stable ids of rows that are moved; None for new rows, which are written after all moved rows.

        Raises:
            SchemaError: The rows do not fit the dataset.
        """
        self._writer.write(rows)
        if self._stable and row_ids is not None:
            self._ids.append(row_ids)

    def finish(self) -> tuple[Fragment, ...]:
        """End the last file, and return the new fragments without fragment ids, with the row ids of moved rows.

        Raises:
            SchemaError: The rows have new values for a dictionary of version 0.1.
        """
        fragments = self._writer.finish_records(self._files.pending)
        # From now on `UncommittedFiles` deletes the files after a failure.
        self._is_finished = True
        self._files.add_fragments(fragments)
        check_dictionaries(self._schema, fragments, self._files.source.store)
        if not self._ids:
            return fragments
        ids, start, result = np.concatenate(self._ids), 0, []
        for fragment in fragments:
            row_ids = ids[start : start + fragment.physical_rows]
            start += fragment.physical_rows
            result.append(replace(fragment, row_ids=encode_row_ids(row_ids)) if len(row_ids) else fragment)
        return tuple(result)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Delete the files if the body raised before `finish`."""
        if kind is not None and not self._is_finished:
            self._writer.discard()
