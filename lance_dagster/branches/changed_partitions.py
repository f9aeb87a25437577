"""Partitions whose rows differ between two versions, where their commit does not name all: others wrote to a branch.

version before    version after
fragment 0        fragment 0, another deletion file     rows that only one of them has
fragment 1        fragment 1, other data files          all rows
fragment 2                                              all rows
                  fragment 3                            all rows
"""

from __future__ import annotations

import dagster as dg
import numpy as np

import lance_core
from lance_core.errors import LanceError
from lance_core.row_addresses import fragment_ids_of
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.partitions import slices_of
from lance_dagster.tables.refs import TableRef


def find_changed_partitions(
    instance: dg.DagsterInstance, ref: TableRef, before: lance_core.LanceDataset, after: lance_core.LanceDataset
) -> list[str]:
    """The partitions of an asset whose rows differ; none if the asset has no partition columns, or only owns columns.

    Args:
        instance: The instance, which knows the dynamic partitions.
        ref: The asset.
        before: The table at a version.
        after: The table at the next version, which is no overwrite.
    """
    partitions = ref.partitions_def
    keys = [] if partitions is None else list(partitions.get_partition_keys(dynamic_partitions_store=instance))
    if not keys or TABLE_KEY in (ref.metadata or {}):
        return []
    try:
        slices = slices_of(ref, keys, after.schema)
    except LanceError:  # such as for an asset without `partition_expr`, whose body writes the table
        return []
    old, new = ({part.fragment_id: part for part in dataset.get_fragments()} for dataset in (before, after))
    touched = {key for key in old | new if key not in old or key not in new or old[key].metadata != new[key].metadata}
    rewritten = [key for key in touched & old.keys() & new.keys() if old[key].metadata.files != new[key].metadata.files]
    addresses, slice_numbers = [], []
    for dataset, fragments in ((before, old), (after, new)):
        scanner = dataset.scanner(
            columns=list(slices.columns),
            fragments=[fragments[key] for key in touched & fragments.keys()],
            with_row_address=True,
        )
        table = scanner.to_table()
        addresses.append(table.column("_rowaddr").to_numpy())
        batches = table.select(list(slices.columns)).combine_chunks().to_batches()
        slice_numbers += [np.concatenate([np.empty(0, np.int64), *(slices.assign(batch) for batch in batches)])]
    changed: set[int] = set()
    for mine, other, numbers in zip(addresses, reversed(addresses), slice_numbers, strict=True):
        differs = ~np.isin(mine, other) | np.isin(fragment_ids_of(mine), rewritten)
        changed |= set(numbers[differs].tolist())
    return sorted(slices.names[number] for number in changed if number >= 0)
