"""Compares Dagster's marks `out of sync` of `totals` with the rows that it was made from."""

from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from tests.machines.dagster_life.model import MAIN, Commit, of_partitions

if TYPE_CHECKING:
    from tests.machines.dagster_life.world import World


def note_origin(world: "World", table: str, partition: str | None, commit: Commit | None, facts: dict) -> None:
    """An event says what the rows of `totals` are made from: which event of `events` Dagster has to hold for that one."""
    world.newest_events[table, partition] = world.seen[table]
    if table != "totals":
        return
    world.made_from.pop(partition, None)
    if facts["branch"] is not MAIN:
        return
    if commit is not None and commit.run.branch is MAIN:
        world.made_from[partition] = commit.seen_events.get(partition)
    elif facts.get("made_from") is not None:
        world.made_from[partition] = world.newest_events.get(("events", partition))


def compare_marks(world: "World") -> list[str]:
    """What differs between the marks and the model."""
    instance = world.stage.instance
    graph = world.definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    problems = []
    for partition, event in world.made_from.items():
        if event is None or (partition is not None and partition not in world.keys):
            continue
        main = world.model.lines["totals"].get(MAIN)
        write = None if main is None else world.model.newest_write(main, "totals", partition)
        if write is None or world.model.shown.get(("events", partition)) is not MAIN:
            continue
        causes = resolver.get_stale_causes(dg.AssetKey("totals"), partition)
        is_marked = resolver.get_status(dg.AssetKey("totals"), partition) is StaleStatus.STALE
        said = [f"{cause.asset_key.path[-1]}: {cause.reason}" for cause in causes]
        scope = None if partition is None else {partition}
        rows = of_partitions(world.model.rows("events", MAIN), scope)
        is_as_read = of_partitions(write.read_rows, scope) == rows
        is_old_code = write.run.code != str(world.code)
        is_newest = world.newest_events["events", partition] == event
        if is_newest and is_as_read and not is_old_code and is_marked:
            problems.append(f"totals {partition} is marked as out of sync, though nothing has changed: {said}")
        must_be_marked = is_old_code or (not is_as_read and not is_newest and has_event(world, partition))
        if must_be_marked and not is_marked:
            problems.append(f"totals {partition} is not out of sync, though events or the code have changed")
    return problems


def has_event(world: "World", partition: str | None) -> bool:
    """Whether the last change of `events` on main is one of a run whose event is recorded."""
    main = world.model.lines["events"][MAIN]
    scope = None if partition is None else {partition}
    changes = [
        commit for commit in main.commits if of_partitions(commit.added, scope) or of_partitions(commit.removed, scope)
    ]
    recorded = world.model.recorded.get(("events", MAIN, partition), 0)
    return bool(changes) and bool(changes[-1].asset) and main.changed <= recorded
