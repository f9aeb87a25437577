"""The operations of transactions, those of plain writes in `base`; a line in `OPERATIONS` adds one."""

from lance_core.table.operations.base import Append, ApplyContext, Operation, Overwrite
from lance_core.table.operations.data_replacement import DataReplacement
from lance_core.table.operations.manifest_changes import (
    Clone,
    CreateIndex,
    Delete,
    Project,
    ReserveFragments,
    Restore,
    UnknownOperation,
    UpdateBases,
    UpdateMemWalState,
)
from lance_core.table.operations.merge import Merge
from lance_core.table.operations.rewrite import Rewrite, RewriteGroup, RewrittenIndex
from lance_core.table.operations.update import MAX_EXACT_KEYS, CompactedSsTable, KeyExistenceFilter, Update, UpdateMode
from lance_core.table.operations.update_config import UpdateConfig, UpdateMap

__all__ = [
    "MAX_EXACT_KEYS",
    "OPERATIONS",
    "Append",
    "ApplyContext",
    "Clone",
    "CompactedSsTable",
    "CreateIndex",
    "DataReplacement",
    "Delete",
    "KeyExistenceFilter",
    "Merge",
    "Operation",
    "Overwrite",
    "Project",
    "ReserveFragments",
    "Restore",
    "Rewrite",
    "RewriteGroup",
    "RewrittenIndex",
    "UnknownOperation",
    "Update",
    "UpdateBases",
    "UpdateConfig",
    "UpdateMap",
    "UpdateMemWalState",
    "UpdateMode",
]

OPERATIONS: dict[str, type[Operation]] = {
    operation.wire_name: operation
    for operation in (
        Append,
        Delete,
        Overwrite,
        CreateIndex,
        Rewrite,
        Merge,
        Restore,
        ReserveFragments,
        Update,
        Project,
        UpdateConfig,
        DataReplacement,
        UpdateMemWalState,
        Clone,
        UpdateBases,
    )
}
"""Every operation that is read, by the name of its member in the wire's `Transaction`."""
