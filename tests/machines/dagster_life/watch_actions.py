"""The steps of code, automation and checks: new code versions, `lance_eager`, health, and assets that share a table."""

import random
from collections import Counter

import dagster as dg

from tests.machines.dagster_life.actions import EVENTS, begin
from tests.machines.dagster_life.events import compare_events
from tests.machines.dagster_life.keeper_actions import numbers
from tests.machines.dagster_life.marks import compare_marks
from tests.machines.dagster_life.model import MAIN
from tests.machines.dagster_life.project import PARTITIONS
from tests.machines.dagster_life.stage import Script
from tests.machines.dagster_life.world import World

LETTERS = dg.AssetKey("letters")


def deploy(world: World, rng: random.Random) -> str | None:
    """New code of all assets."""
    world.deploy()
    return f"deploy code {world.code}"


def narrow(world: World, rng: random.Random) -> str | None:
    """New code whose assets lack a partition, or have it again."""
    is_busy = any(run.state in ("launched", "running") or world.will_retry(run) for run in world.model.runs.values())
    if not world.config.narrowed or is_busy:
        return None
    world.keys = PARTITIONS[1:] if world.keys == PARTITIONS else PARTITIONS
    world.deploy()
    return f"deploy code {world.code} with the partitions {world.keys}"


def automate(world: World, rng: random.Random) -> str | None:
    """A turn of automation: `letters` waits for rows on main."""
    if not world.config.automated:
        return None
    compare_events(world)
    result = dg.evaluate_automation_conditions(
        world.definitions,
        world.stage.instance,
        asset_selection=dg.AssetSelection.keys(LETTERS),
        cursor=world.automation,
    )
    if world.automation is None:  # the first turn takes note of what is there
        world.perhaps_woken |= world.woken
    world.automation = result.cursor
    requested: set[str | None] = set(result.get_requested_partitions(LETTERS))
    is_busy = any(run.state in ("launched", "running") for run in world.model.runs.values() if run.selection)
    is_busy |= any(
        world.stage.instance.get_backfill(name).status.value in ("REQUESTED", "CANCELING", "FAILING")
        for name in world.backfills
    )
    if world.automation_began_empty:  # Dagster knows the run of the newest event alone
        newest = world.stage.instance.get_latest_materialization_event(dg.AssetKey("events"))
        world.perhaps_woken |= requested - {newest.asset_materialization.partition if newest else None}
    world.automation_began_empty = not world.stage.instance.event_log_storage.get_maximum_record_id()
    wrong = requested - world.woken - world.perhaps_woken
    if wrong:
        world.problems.append(f"automation wakes for {wrong}, of which nothing is new on main")
    missed = world.woken - requested - world.perhaps_woken
    if missed and not is_busy:
        world.problems.append(f"automation does not wake for {missed}, which are new on main")
    if is_busy:  # waits for runs, whose partitions it requests later
        world.perhaps_woken |= world.woken - requested
    else:
        world.perhaps_woken.clear()
    world.woken.clear()
    world.perhaps_woken -= requested
    return f"automation: {sorted(map(str, requested))}"


def look_at_marks(world: World, rng: random.Random) -> str | None:
    """Dagster marks `totals` as out of sync if, and only if, it was made from other rows or by other code."""
    compare_events(world)
    world.problems += compare_marks(world)
    return "marks"


def look_at_health(world: World, rng: random.Random) -> str | None:
    """The checks of health and freshness look at the branch of the environment, or at main."""
    if not world.config.health or any(actor.at is not None for actor in world.actors.values()):
        return None
    names = ("lance_versions", "lance_freshness")
    run_id = world.stage.launch_job(
        "__ASSET_JOB", {}, assets=[], checks=[dg.AssetCheckKey(EVENTS, name) for name in names]
    )
    run = world.adopt(run_id)
    run.selection, run.branch = (), MAIN
    world.excuses.add(run_id)
    said = begin(world, run_id, Script())
    records = world.stage.instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ).records
    results = {
        (data := record.event_log_entry.dagster_event.event_specific_data).check_name: data for record in records
    }
    lines = world.model.lines["events"]
    branch = "staging" if world.config.policy == "env" and "staging" in lines else MAIN
    versions = len(numbers(world, "events", branch))
    seen = results.get("lance_versions")
    total = None if seen is None else seen.metadata["lance/versions_total"].value if seen.metadata else None
    if versions and total != versions:
        world.problems.append(f"the check of health sees {total} versions of events, {branch}, not {versions}")
    fresh = results.get("lance_freshness")
    has_rows = MAIN in lines and any(commit.added for commit in lines[MAIN].commits)
    is_there = world.open("events") is not None  # without a table, checks that only warn pass
    if fresh is not None and is_there and world.config.policy != "env" and fresh.passed and not has_rows:
        world.problems.append("the check of freshness passes, though nobody has written rows to main")
    return f"health: {said.rpartition(': ')[2]}, {total} versions"


def share(world: World, rng: random.Random) -> str | None:
    """One of two assets writes to the table that they share."""
    config = world.config
    if not config.shared:
        return None
    name = rng.choice(("left", "right"))
    part = f"{'common' if config.shared == 'same partitions' else name}{rng.choice((1, 2))}"
    has_partitions = "partitions" in config.shared
    rows = Counter([(part if has_partitions else name, 0, next(world.numbers))])
    tags = {"dagster/partition": part} if has_partitions else {}
    run_id = world.stage.request(asset_selection=[dg.AssetKey(name)], tags=tags)
    run = world.adopt(run_id)
    run.selection, run.branch = (), MAIN
    world.shares[run_id] = rows
    begin(world, run_id, Script())
    if config.shares_overwrite:
        world.excuses.add(run_id)
        if run.state != "failed" or "replaces all its rows" not in world.why(run):
            world.problems.append(f"{name} overwrites the table that it shares: {run.state}, {world.why(run)}")
        return f"share {name}: {run.state}"
    if config.shared == "same partitions" and world.share_writers.setdefault(part, name) != name:
        world.excuses.add(run_id)
        if run.state != "failed" or "has written to the run's partitions" not in world.why(run):
            world.problems.append(f"{name} overwrites a partition of the other asset: {run.state}, {world.why(run)}")
        return f"share {name} {part}: {run.state}"
    replaced = {row for row in world.common if row[0] == part} if has_partitions else set()
    world.common = Counter({row: n for row, n in world.common.items() if row not in replaced}) + rows
    if run.state != "succeeded":
        world.problems.append(f"{name} does not write to the table that it shares: {world.why(run)}")
    world.compare_common()
    return f"share {name} {part}: {run.state}"


def draw_sharing(rng: random.Random, *, is_on: bool) -> str:
    """How two assets share a table; empty for no such assets."""
    return rng.choice(("", "overwrite", "append", "partitions", "same partitions", "same partitions")) if is_on else ""


WATCH_ACTIONS = {deploy: 1, narrow: 3, automate: 2, look_at_marks: 3, look_at_health: 1, share: 5}
