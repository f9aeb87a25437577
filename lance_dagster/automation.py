"""Conditions of declarative automation: changes that are published on main, and tables with many changed rows."""

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dagster as dg

from lance_dagster.tables.branch_policy import BRANCH_TAG, PUBLISHES_TAG
from lance_dagster.tables.refs import TableRef, TableRoot, remembered_root

if TYPE_CHECKING:
    import lance_core

__all__ = ["lance_changed_rows", "lance_eager"]

_NOWHERE: Final = "/"
"""The root of tables that name their own URI."""


def lance_changed_rows(*, at_least: int) -> Any:
    """The condition that this many rows of an asset's table have changed since it was last true.

    It is for `any_deps_match`, and for a sensor that runs user code, which is a beta feature of Dagster:
    `dg.AutomationConditionSensorDefinition(..., use_user_code_server=True)`. The table is that of
    `stamp_lance_metadata`, or of an external asset's `lance/uri`, whoever writes it. The first evaluation counts from
    the version that the table has then, and from its first version if there is no table yet.

    Each commit counts the larger of its numbers of added and removed rows, so that an update counts its rows once;
    values that are set in place and maintenance count nothing. Commits whose rows cannot be counted, since a version
    between was cleaned up, count as enough. For a partitioned asset the condition holds for the partitions that the
    commits name, and for all if a commit names none.

    Args:
        at_least: The number of rows; at least 1.

    Raises:
        ValueError: `at_least` is below 1.

    Examples:
        >>> many = dg.AutomationCondition.any_deps_match(lance_dagster.lance_changed_rows(at_least=1000))
        >>> @dg.asset(deps=["flights"], automation_condition=many.since_last_handled())
        ... def late_flights(): ...
    """
    if not isinstance(at_least, int) or isinstance(at_least, bool) or at_least < 1:
        raise ValueError(f"at_least is a number of rows from 1 on, not {at_least!r}")
    return _EnoughChangedRows(at_least)


class _Count(NamedTuple):
    """What is counted since the condition was last true; the condition's cursor, as a list in JSON.

    Attributes:
        version: The version up to which commits are counted; 0 for none.
        identity: The identity of the table that has it, which another table of the name lacks; None for no table.
        rows: The changed rows.
        partitions: The partitions that the commits name; None if one names none.
    """

    version: int
    identity: str | None
    rows: int = 0
    partitions: list[str] | None = []  # noqa: RUF012 - a tuple's default, which nothing changes


class _EnoughChangedRows(dg.AutomationCondition[dg.AssetKey]):
    """See `lance_changed_rows`; the cursor is a `_Count`, so that each evaluation reads the new commits alone."""

    def __init__(self, at_least: int) -> None:
        self._at_least = at_least

    @property
    def name(self) -> str:
        return "lance_changed_rows"

    @property
    def description(self) -> str:
        return f"at least {self._at_least:,} rows of the table have changed since this was last true"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """Whether enough rows have changed, by the table's commits.

        Raises:
            DagsterInvalidDefinitionError: The asset's metadata names no table.
        """
        subset = context.get_empty_subset()
        dataset = _open_table(context)
        newest = _Count(0, None) if dataset is None else _Count(dataset.version, dataset.identity)
        count = _Count(*json.loads(context.cursor)) if context.cursor else newest
        if dataset is not None and not context.candidate_subset.is_empty:
            count = _add_commits(dataset, count, self._at_least)
            if count.rows >= self._at_least:
                subset, count = _changed_partitions(context, count), newest
        return dg.AutomationResult(context, subset, cursor=json.dumps(count))


def _add_commits(dataset: "lance_core.LanceDataset", count: _Count, enough: int) -> _Count:
    """The count with the commits since; commits that cannot be counted are `enough` rows."""
    from lance_dagster.lineage.history import is_change_lost, read_history  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.table_life import has_version  # noqa: PLC0415 - heavy imports at first use

    if not has_version(dataset, count.version, count.identity):
        count = _Count(0, None)
    commits = [commit for commit in read_history(dataset, after=count.version) if commit.changes_rows]
    rows, partitions = count.rows, count.partitions
    for commit in commits:
        rows += enough if commit.rows_added is None else max(commit.rows_added, commit.rows_removed or 0)
        if partitions is not None:
            partitions = sorted({*partitions, *commit.partitions}) if isinstance(commit.partitions, list) else None
    if is_change_lost(dataset, count.version):
        rows, partitions = rows + enough, None
    return _Count(dataset.version, dataset.identity, rows, partitions)


def _open_table(context: dg.AutomationContext[dg.AssetKey]) -> "lance_core.LanceDataset | None":
    """The table of the asset that is evaluated; None if there is none yet.

    Raises:
        DagsterInvalidDefinitionError: The asset's metadata names no table.
    """
    metadata = context.asset_graph.get(context.key).metadata
    root = remembered_root(context.key, metadata.get("dagster/uri"))
    if root is None and "lance/uri" not in metadata:
        raise dg.DagsterInvalidDefinitionError(
            f"lance_changed_rows: asset {context.key.to_user_string()} names no table: pass the definitions of the "
            "code location to stamp_lance_metadata, or give the asset the metadata lance/uri"
        )
    place = TableRoot(root_uri=_NOWHERE) if root is None else root
    return place.open_or_none(TableRef(key=context.key, metadata=metadata))


def _changed_partitions(context: dg.AutomationContext[dg.AssetKey], count: _Count) -> Any:
    """The candidates that the commits name; all if one names none."""
    if context.partitions_def is None or count.partitions is None:
        return context.candidate_subset
    candidates: Any = context.candidate_subset.expensively_compute_asset_partitions()
    partitions = {candidate for candidate in candidates if candidate.partition_key in count.partitions}
    return context.asset_graph_view.get_asset_subset_from_asset_partitions(context.key, partitions)


def lance_eager(*, allow_missing_deps: bool = False) -> Any:  # a condition has `replace` and other methods of Dagster's
    """`AutomationCondition.eager()` that ignores runs on a branch of a table until the branch is promoted.

    A partition that only a branch has, or had, is missing, as one that was never materialized. Dagster itself counts it
    as there, so that this holds for partitions that came to be after the condition was evaluated for the first time.

    A run on a branch has the tag `lance/branch`. If an event is recorded while a tick evaluates conditions, the tick
    may see it without its tags; to prevent this, set DAGSTER_AUTOMATION_TICK_SETTLE_SECONDS in the environment of
    Dagster's daemon. If an instance has no event at one tick, and those of several partitions on branches at the next
    one, all but the newest count as main's.

    Args:
        allow_missing_deps: Whether the asset is materialized although partitions of its dependencies are missing, as
            with `eager().without(~AutomationCondition.any_deps_missing())`.

    Examples:
        >>> @dg.asset(deps=["flights"], automation_condition=lance_dagster.lance_eager())
        ... def late_flights(): ...
    """
    condition = dg.AutomationCondition
    newest_on_branch: Any = condition.executed_with_tags(tag_keys={BRANCH_TAG}) & ~condition.executed_with_tags(
        tag_keys={PUBLISHES_TAG}
    )
    on_branch = newest_on_branch
    if hasattr(condition, "all_new_updates_have_run_tags"):
        all_on_branch = condition.all_new_updates_have_run_tags(tag_keys={BRANCH_TAG})
        # While the instance had no event at the last tick, both conditions on new updates hold for nothing, and Dagster
        # knows the run of the asset's newest event alone.
        is_first_event = condition.newly_updated() & ~condition.any_new_update_has_run_tags(tag_keys={BRANCH_TAG})
        on_branch = (is_first_event & newest_on_branch) | (
            all_on_branch & ~condition.any_new_update_has_run_tags(tag_keys={PUBLISHES_TAG})
        )
    published = condition.newly_updated() & ~on_branch
    eager: Any = condition.eager()
    if allow_missing_deps:
        eager = eager.without(~condition.any_deps_missing())
    deps_missing = condition.any_deps_match(_missing_on_main(on_branch, published) & ~condition.will_be_requested())
    return eager.replace("newly_updated", published).replace("any_deps_missing", deps_missing)


def _missing_on_main(on_branch: Any, published: Any) -> Any:
    """The condition that main lacks a partition, though Dagster takes it for materialized once a branch has it.

    Args:
        on_branch: The condition that all new updates are those of a branch.
        published: The condition that main was updated.
    """
    missing = dg.AutomationCondition.missing()
    appeared = (~missing).newly_true()
    never_published = missing.since(published)
    branch_alone = (on_branch & (never_published | appeared)).since(published)
    # A tick may see that a partition is there before it sees by which run.
    return missing | branch_alone | (appeared & ~published)
