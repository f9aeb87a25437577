"""Options for a table that is created: version of its data files, stable row ids, names of its manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lance_core.table.paths import Naming

__all__ = ["TableFormat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """The format of a table that a commit creates; a table that exists keeps its own.

    Attributes:
        data_storage_version: Version of data files; None for the version of the given files, or the default if there
            are none. An Overwrite can change it.
        stable_row_ids: Whether rows have ids that survive compaction.
        v2_manifest_paths: Whether the newest manifest is the first in a listing.
    """

    data_storage_version: str | None = None
    stable_row_ids: bool = False
    v2_manifest_paths: bool = True

    @classmethod
    def of(
        cls,
        data_storage_version: str | None,
        enable_stable_row_ids: bool | None,
        enable_v2_manifest_paths: bool | None,
    ) -> Self:
        """The format for arguments of pylance's functions, where None stands for the default."""
        return cls(
            data_storage_version=data_storage_version,
            stable_row_ids=bool(enable_stable_row_ids),
            v2_manifest_paths=enable_v2_manifest_paths is not False,
        )

    @property
    def naming(self) -> Naming:
        """The scheme of manifest names."""
        return Naming.V2 if self.v2_manifest_paths else Naming.V1
