"""The steps of a merge for `explain_plan`, in the layout of pylance's plans: the last step first.

MergeInsert: on=[id], when_matched=UpdateAll, when_not_matched=InsertAll, when_not_matched_by_source=Keep
  HashJoin: on=[id], keys=of the source in memory
    LanceRead: uri=/lake/t.lance, version=3, projection=[id], fragments=4, rows=1000
    Source: columns=[id, value]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.rows.merge_clauses import MergeClauses, WhenMatched
from lance_core.verbs.scan.explain import PlanStep
from lance_core.verbs.scan.read_fragment import live_counts

_MATCHED: Final = {
    WhenMatched.NOTHING: "DoNothing",
    WhenMatched.UPDATE: "UpdateAll",
    WhenMatched.DELETE: "Delete",
    WhenMatched.FAIL: "Fail",
}


def merge_steps(source: Snapshot, clauses: MergeClauses, schema: pa.Schema, *, metrics: Sequence[str] = ()) -> PlanStep:
    """The steps of a merge.

    Args:
        source: The version of the dataset.
        clauses: The clauses of the merge.
        schema: Columns of the source.
        metrics: Measurements of a run; empty if the merge did not run.
    """
    manifest = source.manifest
    keys = ", ".join(clauses.on)
    matched = _MATCHED[clauses.matched]
    if clauses.matched is WhenMatched.UPDATE and clauses.condition is not None:
        matched = f"UpdateIf({clauses.condition})"
    by_source = "Keep"
    if clauses.deletes_others:
        by_source = "Delete" if clauses.delete_condition is None else f"DeleteIf({clauses.delete_condition})"
    facts = [
        f"on=[{keys}]",
        f"when_matched={matched}",
        f"when_not_matched={'InsertAll' if clauses.inserts else 'DoNothing'}",
        f"when_not_matched_by_source={by_source}",
    ]
    if metrics:
        facts.append(f"metrics=[{', '.join(metrics)}]")
    read = PlanStep(
        name="LanceRead",
        facts=(
            f"uri={source.store.root}",
            f"version={manifest.version}",
            f"projection=[{keys}]",
            f"fragments={len(manifest.fragments)}",
            f"rows={sum(live_counts(source, manifest.fragments))}",
        ),
    )
    rows = PlanStep(name="Source", facts=(f"columns=[{', '.join(schema.names)}]",))
    join = PlanStep(name="HashJoin", facts=(f"on=[{keys}]", "keys=of the source in memory"), inputs=(read, rows))
    return PlanStep(name="MergeInsert", facts=tuple(facts), inputs=(join,))
