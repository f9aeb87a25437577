"""Records what a step that evaluates checks reads of the branch of its run, so that promotions know what was checked.

The IO manager records the inputs that it loads and the versions that it writes, `LanceTableResource` the tables that it
opens, and the checks of this package the table that they look at. A read of a chosen version, tag or time is not
recorded, because it does not follow the branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lance_dagster._context.check_log import CHECK_READ, log_entry
from lance_dagster._context.steps import RunFacts

if TYPE_CHECKING:
    import lance_core


def record_check_read(
    facts: RunFacts | None,
    branch: str | None,
    dataset: lance_core.LanceDataset,
    partitions: Sequence[str] | None,
    *,
    is_whole: bool = False,
    wrote: str | None = None,
) -> None:
    """Record that a step has read or written a version of the branch of its run, if it evaluates checks.

    Args:
        facts: The run and the step; None outside of a run.
        branch: The branch of the run; None for main, of which nothing is recorded.
        dataset: The version.
        partitions: The partitions whose rows were read; None for all rows.
        is_whole: Whether no row lies outside of the partitions.
        wrote: The asset for which the step has committed the version; the step's checks of the asset are about this
            version alone.
    """
    if facts is None or not facts.evaluates_checks or branch is None or dataset.branch != branch:
        return
    entry = {
        "uri": dataset.root_uri,
        "branch": branch,
        "branch_id": branch_id(dataset, branch),
        "version": dataset.version,
        "partitions": None if partitions is None else sorted(partitions),
        "is_whole": is_whole or partitions is None,
        "wrote": wrote,
    }
    message = (
        f"{'read' if wrote is None else 'wrote'} version {dataset.version} of branch {branch} of {dataset.root_uri}"
    )
    log_entry(facts, CHECK_READ, entry, message)


def branch_id(dataset: lance_core.LanceDataset, branch: str) -> str | None:
    """An identifier of a branch, which a later branch of the same name does not have; None if there is no branch."""
    described = dataset.branches.list().get(branch)
    if described is None:
        return None
    lineage = described["branch_identifier"]
    return str(lineage[-1][1]) if lineage else str(described["create_at"])
