"""The operations of transactions, those of plain writes in `base`; a line in `OPERATIONS` adds one."""

from lance_core.table.operations.base import Append as Append
from lance_core.table.operations.base import ApplyContext as ApplyContext
from lance_core.table.operations.base import Operation as Operation
from lance_core.table.operations.base import Overwrite as Overwrite
from lance_core.table.operations.data_replacement import DataReplacement as DataReplacement
from lance_core.table.operations.manifest_changes import Clone as Clone
from lance_core.table.operations.manifest_changes import CreateIndex as CreateIndex
from lance_core.table.operations.manifest_changes import Delete as Delete
from lance_core.table.operations.manifest_changes import Project as Project
from lance_core.table.operations.manifest_changes import ReserveFragments as ReserveFragments
from lance_core.table.operations.manifest_changes import Restore as Restore
from lance_core.table.operations.manifest_changes import UnknownOperation as UnknownOperation
from lance_core.table.operations.manifest_changes import UpdateBases as UpdateBases
from lance_core.table.operations.manifest_changes import UpdateMemWalState as UpdateMemWalState
from lance_core.table.operations.merge import Merge as Merge
from lance_core.table.operations.rewrite import Rewrite as Rewrite
from lance_core.table.operations.rewrite import RewriteGroup as RewriteGroup
from lance_core.table.operations.rewrite import RewrittenIndex as RewrittenIndex
from lance_core.table.operations.update import MAX_EXACT_KEYS as MAX_EXACT_KEYS
from lance_core.table.operations.update import CompactedSsTable as CompactedSsTable
from lance_core.table.operations.update import KeyExistenceFilter as KeyExistenceFilter
from lance_core.table.operations.update import Update as Update
from lance_core.table.operations.update import UpdateMode as UpdateMode
from lance_core.table.operations.update_config import UpdateConfig as UpdateConfig
from lance_core.table.operations.update_config import UpdateMap as UpdateMap

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
