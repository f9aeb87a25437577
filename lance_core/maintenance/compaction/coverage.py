"""Keeps the coverage of indices through a compaction: each index covers at least the rows that it covered before.

An index of a kind that is built here is extended to the new fragments by a version after the Rewrite. Any other kind
(vector, full-text, ...) holds row addresses that only pylance can rewrite: for these the Rewrite itself records how
rows moved, in the fragment reuse index, which pylance follows when it searches. Where that is not possible either,
fragments that such an index covers stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from pyroaring import BitMap

from lance_core.commit.loop import commit
from lance_core.errors import LanceError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.compaction.plan import FragmentFacts
from lance_core.maintenance.compaction.rewrite import RewriteResult
from lance_core.store import ObjectStore
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import RewriteGroup, UpdateConfig, UpdateMap
from lance_core.table.reuse import DEFER_KEY, GraphEntries, can_record_moves, live_coverage
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.indices.optimize import optimize_indices

_logger = logging.getLogger(__name__)

_EMPTIED = ("Inverted", "NGram")
"""Kinds that pylance rewrites without entries once moves are recorded."""


def needs_moves(manifest: Manifest, rewrites: Iterable[RewriteResult]) -> bool:
    """Whether an index that cannot be extended here covers fragments that are replaced."""
    if manifest.uses_stable_row_ids:
        return False
    replaced_ids = BitMap(record.id for result in rewrites for record in result.original_records)
    return any(
        covered & replaced_ids for index, covered in live_coverage(manifest.indices) if _is_fixed(index, manifest)
    )


def keep_moves_deferred(store: ObjectStore, base: Manifest) -> Manifest:
    """Configure a table with an index on words so that later compactions, also pylance's, record how rows moved.

    Once moves are recorded, a compaction of pylance that rewrites such an index writes one without entries,
    unless that compaction records its moves as well. pylance and this library follow the table's configuration.

    Returns:
        The version with that configuration: a new one, or `base` if nothing has to be changed.
    """
    operation = plan_deferred_moves(base)
    if operation is None:
        return base
    return commit(store, Transaction(read_version=base.version, operation=operation), base=base).manifest


def plan_deferred_moves(base: Manifest) -> UpdateConfig | None:
    """The change of the configuration that `keep_moves_deferred` commits; None if no change is needed."""
    if DEFER_KEY in base.config or not any(index.kind in _EMPTIED for index in base.indices):
        return None
    return UpdateConfig(config=UpdateMap(entries={DEFER_KEY: "true"}))


def split_to_keep_coverage(snapshot: Snapshot, groups: list[list[FragmentFacts]]) -> list[list[FragmentFacts]]:
    """The groups of fragments that can be rewritten without an index losing coverage.

    If groups are left out, a warning names the indices that would lose coverage.
    """
    manifest = snapshot.manifest
    if manifest.uses_stable_row_ids:
        return groups
    if can_record_moves(manifest.indices):
        names = {index.name for index in manifest.indices if "HNSW" in index.kind}
        graphs = [GraphEntries(manifest.indices, name, manifest.schema) for name in sorted(names)]
        deleted_from = {fact.fragment_id for group in groups for fact in group if fact.deleted_rows}
        fixed_ids = {i for i in deleted_from if any(each.may_have(i, manifest.fragments.get) for each in graphs)}
        why = "pylance cannot search a graph of which rows were removed by recorded moves"
    else:  # the reuse index itself covers the fragments to which rows moved
        fixed = [index for index in manifest.indices if _is_fixed(index, manifest)]
        names = {index.name for index in fixed if not index.is_system}
        fixed_ids = {i for index in fixed for i in index.covered_fragments() or ()}
        why = "moves of rows cannot be recorded in a fragment reuse index with an external file"
    allowed = [group for group in groups if not any(fact.fragment_id in fixed_ids for fact in group)]
    if len(allowed) < len(groups):
        _logger.warning(
            "%s: %d groups of fragments are not compacted, as the indices %s would no longer cover them: %s. pylance's "
            "%s updates the indices",
            snapshot.store.root, len(groups) - len(allowed), ", ".join(sorted(names)), why,
            "compact_files" if can_record_moves(manifest.indices) else "optimize_indices",
        )  # fmt: skip
    return allowed


def _is_fixed(index: IndexMetadata, manifest: Manifest) -> bool:
    """Whether only pylance can rewrite an index."""
    return not is_supported(index, manifest.schema)


def extend_after_compaction(
    dataset: Handle,
    replaced: Sequence[RewriteGroup],
    before: Sequence[IndexMetadata],
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """Extend the indices that covered the replaced fragments of a compaction, in one version for all indices.

    Zones of a zone map are derived from those of the old fragments where possible, without reading rows. An index that
    cannot be extended is logged: queries are merely slower.

    Args:
        dataset: The handle, after the compaction; it moves to the version that is made.
        replaced: The groups of fragments that were replaced.
        before: The indices before the compaction.
        properties: Transaction properties of the commit.

    Returns:
        The names of the indices.
    """
    names = sorted(find_indices_to_extend(dataset.snapshot.manifest, replaced, before))
    if not names:
        return []
    try:
        extended = optimize_indices(dataset.snapshot, index_names=names, replaced=replaced, properties=properties)
    except LanceError as error:
        _logger.warning("the indices %s of %s were not extended: %s", ", ".join(names), dataset.uri, error)
        return []
    dataset.move_to(extended)
    return names


def find_indices_to_extend(
    manifest: Manifest, replaced: Sequence[RewriteGroup], before: Sequence[IndexMetadata]
) -> set[str]:
    """The names of the indices that `extend_after_compaction` extends.

    Args:
        manifest: The version after the compaction.
        replaced: The groups of fragments that were replaced.
        before: The indices before the compaction.
    """
    replaced_ids = BitMap(fragment.id for group in replaced for fragment in group.old_fragments)
    built = [index for index in manifest.indices if is_supported(index, manifest.schema)]
    names = {index.name for index in built if (index.covered_fragments() or BitMap()) & replaced_ids}
    if manifest.uses_stable_row_ids:
        # The commit itself has extended indices to the new fragments of groups that they covered as a whole.
        had = {index.name for index in before if (index.covered_fragments() or BitMap()) & replaced_ids}
        names |= had & {
            index.name
            for index in built
            if _find_new_fragments(manifest, replaced) - _find_covered_fragments(built, index.name)
        }
    return names


def _find_covered_fragments(indices: Iterable[IndexMetadata], name: str) -> BitMap:
    """The fragments that the segments of an index cover."""
    return BitMap().union(*(index.covered_fragments() or BitMap() for index in indices if index.name == name))


def _find_new_fragments(manifest: Manifest, replaced: Sequence[RewriteGroup]) -> BitMap:
    """The fragments of a compaction, as the commit has numbered them."""
    paths = {file.path for group in replaced for fragment in group.new_fragments for file in fragment.files}
    return BitMap(
        fragment.id for fragment in manifest.fragments.messages() if any(file.path in paths for file in fragment.files)
    )
