"""Methods of `LanceDataset` that return the rows that changed between two versions."""

from __future__ import annotations

from lance_core.verbs.context.handle import Handle
from lance_core.verbs.delta.dataset_delta import DatasetDelta, delta_between


class ChangeVerbs(Handle):
    """Methods for the changes between two versions of a dataset."""

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> DatasetDelta:
        """The rows that were inserted, updated and deleted between two versions.

        They are exact if the table has stable row ids (`enable_stable_row_ids`, when it is created). Without them,
        inserted and deleted rows are known, and an error names a version that updated rows. Compaction, indices and
        configuration change no row; neither do columns that are dropped, renamed, or added without values.

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
