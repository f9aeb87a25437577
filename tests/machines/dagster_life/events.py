"""Compares what Dagster's events say with what the model says."""

from typing import TYPE_CHECKING

import dagster as dg

from tests.machines.dagster_life.marks import note_origin
from tests.machines.dagster_life.model import MAIN
from tests.machines.dagster_life.project import TABLES

if TYPE_CHECKING:
    from tests.machines.dagster_life.world import World

INPUT = "dagster/input_data_version/events"


def compare_events(world: "World") -> None:
    """Look at the events that were recorded since the last time."""
    for table in TABLES:
        records = world.stage.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=dg.AssetKey(table), after_storage_id=world.seen[table]),
            limit=100,
            ascending=True,
        ).records
        for record in records:
            world.seen[table] = record.storage_id
            compare_event(world, table, record)


def compare_due(world: "World") -> None:
    """Find events that runs which have ended have not recorded."""
    for commit, run, asset, partition, _ in world.due:
        actor = world.actors.get(run.run_id)
        if actor is not None and actor.ended:
            version = None if commit is None else commit.version
            world.problems.append(f"run {run.number} has no event of {asset} {partition}, version {version}")


def compare_event(world: "World", table: str, record) -> None:
    """Compare one event with the write, promotion or undo that it is about."""
    event = record.asset_materialization
    metadata = {key: entry.value for key, entry in event.metadata.items()}
    if "lance/discarded" in metadata or (record.run_id, table) in world.idle_promotions:
        world.perhaps_woken.add(event.partition)
        world.perhaps_recorded.add((table, event.partition))
        return
    shown = f"event of {table} {event.partition} of run {record.run_id[:8]}"
    about = (record.run_id, table, event.partition)
    due = next((due for due in world.due if (due[1].run_id, *due[2:4]) == about), None)
    if due is None:
        world.problems.append(f"{shown}: nothing was written")
        return
    world.due.remove(due)
    facts = due[-1]
    note_origin(world, table, event.partition, due[0], facts)
    compare_numbers(world, shown, event.partition, metadata, facts)
    compare_origin(world, shown, event.tags or {}, facts)
    if table == "events":
        is_idle = facts.get("is_skipped") or (due[0] is not None and not changes_rows(due[0]))
        woken = world.perhaps_woken if is_idle else world.woken
        if facts["branch"] is MAIN:
            woken.add(event.partition)
    if facts["version"] is None:
        return
    where = (table, facts["branch"], event.partition)
    compare_data_version(world, shown, due[0], event.tags or {}, facts, where)
    newest = max((v for key, v in world.model.recorded.items() if key[:2] == where[:2]), default=0)
    world.model.shown[table, event.partition] = facts["branch"]
    world.model.is_unordered |= facts["version"] < newest
    world.model.recorded[where] = max(world.model.recorded.get(where, 0), facts["version"])


def compare_numbers(world: "World", shown: str, partition: str | None, metadata: dict, facts: dict) -> None:
    """Version, branch and rows."""
    says = {"lance/version": facts["version"], "lance/branch": facts["branch"], "dagster/row_count": facts["rows"]}
    if partition is not None:
        says["dagster/partition_row_count"] = facts["partition_rows"]
    for key, value in says.items():
        if metadata.get(key) != value:
            world.problems.append(f"{shown}: {key} is {metadata.get(key)}, not {value}")


def changes_rows(commit) -> bool:
    """Whether a write adds or removes rows; one that was skipped has no commit."""
    return commit is not None and bool(commit.added or commit.removed)


def compare_data_version(world: "World", shown: str, commit, tags: dict, facts: dict, where: tuple) -> None:
    """The data version is that of the version which last changed rows."""
    data_version = tags.get("dagster/data_version", "")
    changed = facts["changed"] if isinstance(facts["changed"], set) else {facts["changed"]}
    if 0 in changed:
        changed = set(range(1, facts["version"] + 1))  # a fork, or a table that never had rows
    if not changes_rows(commit):
        changed = {*changed, world.model.reported_changes.get(where)}  # nothing has changed in the partition
    if not data_version.endswith(tuple(f":{facts['branch'] or 'main'}:{version}" for version in changed)):
        world.problems.append(f"{shown}: its data version is {data_version}, rows changed in {changed}")
    changed_at = data_version.rpartition(":")[2]
    world.model.reported_changes[where] = int(changed_at) if changed_at.isdecimal() else None


def compare_origin(world: "World", shown: str, tags: dict, facts: dict) -> None:
    """The code version, and the data version of the input, are those of the run that wrote the rows."""
    codes = facts.get("codes") or ()
    if "origin" in world.config.switches and codes and tags.get("dagster/code_version") not in codes:
        world.problems.append(f"{shown}: its code version is {tags.get('dagster/code_version')}, not {sorted(codes)}")
    made_from = facts.get("made_from")
    if "origin" in world.config.switches and made_from is not None:
        said = tags.get(INPUT, "")
        if not said.endswith(f":main:{made_from}"):
            world.problems.append(f"{shown}: it is made from {said!r} of events, which is version {made_from} of main")
