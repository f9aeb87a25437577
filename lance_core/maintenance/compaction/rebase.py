"""Moves results of compaction tasks to a later version, so that they can be committed as if planned there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.plan import collect_facts
from lance_core.maintenance.compaction.rewrite import RewriteResult, discard
from lance_core.verbs.context.handle import Handle


def rebase_results(dataset: Handle, results: Sequence[RewriteResult]) -> list[RewriteResult]:
    """The results that can be committed in the version of a handle; the files of the others are deleted.

    A result is kept if its fragments have not changed. If the commit does not extend all indices, each index segment
    must also cover either all of these fragments or none. An index that was extended between plan and commit covers
    rewritten rows: a commit on the plan's own version would conflict.

    Args:
        dataset: The handle, at the version of the plan or a later one.
        results: Results of tasks of one plan.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> results = [task.execute(table) for task in maintenance.Compaction.plan(table).tasks]
        >>> table.create_scalar_index("id", "BTREE")
        >>> [one.read_version for one in maintenance.rebase_results(table, results)]
        [3]
        >>> deleted = table.delete("id = 1")
        >>> maintenance.rebase_results(table, results)
        []
    """
    snapshot = dataset.snapshot
    options = replace(CompactionOptions.of(None, snapshot.manifest.config), partition_by=())
    indices = {fact.fragment_id: fact.indices for fact in collect_facts(snapshot, options)}
    unchanged = []
    for result in results:
        old = result.original_records
        is_same = all(snapshot.manifest.fragments.get(record.id) == record for record in old)
        if is_same and len({indices[record.id] for record in old}) == 1:
            unchanged.append(replace(result, read_version=snapshot.manifest.version))
        else:
            discard(snapshot.store, result.new_records)
    return unchanged
