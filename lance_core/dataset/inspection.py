"""Methods of `LanceDataset` that show its metadata and files."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lance_core.schema.lance_schema import LanceSchema
from lance_core.store import has_object
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.inspect.statistics import LanceStats
from lance_core.verbs.inspect.tables import DEREGISTERED
from lance_core.verbs.inspect.tracked_files import all_files, tracked_files
from lance_core.verbs.inspect.validation import validate


class InspectionVerbs(Handle):
    """Methods that show a dataset without reading rows."""

    @property
    def lance_schema(self) -> LanceSchema:
        """The columns with their field ids."""
        return LanceSchema(self._manifest.schema)

    @property
    def is_deregistered(self) -> bool:
        """Whether the table is deregistered in its directory namespace; its data stays. Not in pylance.

        Examples:
            >>> lance.write_dataset({"id": [1]}, "t.lance").is_deregistered
            False
        """
        return has_object(self.snapshot.store, DEREGISTERED)

    @property
    def stats(self) -> LanceStats:
        """Statistics of this version."""
        return LanceStats(self.snapshot)

    def validate(self) -> None:
        """Check that this version is consistent: ids, files, row counts and deletions.

        Raises:
            CorruptFileError: The version is not consistent; the message names the first problem.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.validate()
        """
        validate(self.snapshot)

    def fragment_ids(self) -> set[int]:
        """Ids of this version's fragments.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.fragment_ids()
            {0, 1}
        """
        return set(self._manifest.fragments.ids)

    def tracked_files(
        self, *, min_version: int | None = None, progress: Callable[[int, int | None], object] | None = None
    ) -> pa.RecordBatchReader:
        """All files that versions of this branch refer to: version, base_uri, path, type.

        Args:
            min_version: Leave out older versions.
            progress: Called after each version with the number of versions done and their total.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.tracked_files().read_all().num_rows > 0
            True
        """
        return tracked_files(self.snapshot, min_version, progress)

    def all_files(self) -> pa.RecordBatchReader:
        """All files below this branch's root: base_uri, path, size_bytes, last_modified.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> sorted(path.split("/")[0] for path in table.all_files().read_all()["path"].to_pylist())
            ['_transactions', '_versions', '_versions', 'data']
        """
        return all_files(self._store)
