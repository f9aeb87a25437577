"""The operations of transactions, a module each, those of plain writes in `base`; a line in `OPERATIONS` adds one."""

from lance_core.table.operations.base import Append, ApplyContext, Operation, Overwrite
from lance_core.table.operations.clone import Clone
from lance_core.table.operations.create_index import CreateIndex
from lance_core.table.operations.data_replacement import DataReplacement
from lance_core.table.operations.delete import Delete
from lance_core.table.operations.merge import Merge
from lance_core.table.operations.project import Project
from lance_core.table.operations.reserve_fragments import ReserveFragments
from lance_core.table.operations.restore import Restore
from lance_core.table.operations.rewrite import Rewrite, RewriteGroup, RewrittenIndex
from lance_core.table.operations.unknown import UnknownOperation
from lance_core.table.operations.update import MAX_EXACT_KEYS, CompactedSsTable, KeyExistenceFilter, Update, UpdateMode
from lance_core.table.operations.update_bases import UpdateBases
from lance_core.table.operations.update_config import UpdateConfig, UpdateMap
from lance_core.table.operations.update_mem_wal_state import UpdateMemWalState

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
