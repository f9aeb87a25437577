"""The steps of those who keep tables: pylance that writes and compacts in between, maintenance, undo."""

import random
from collections import Counter
from pathlib import Path

import lance

from tests.machines.dagster_life.judging import run_job
from tests.machines.dagster_life.model import MAIN, Commit, Run, of_partitions
from tests.machines.dagster_life.project import PARTITIONS, TABLES, to_table
from tests.machines.dagster_life.world import World

STRANGER = Run(
    run_id="",
    number=0,
    root="stranger",
    parent=None,
    branch=MAIN,
    main_at_begin={},
    selection=(),
    partitions=None,
    state="succeeded",
)
"""The writer of rows that no run wrote."""


def uri(world: World, table: str) -> str:
    return f"{world.root}/public/{table}.lance"


def is_written(world: World, table: str) -> bool:
    return Path(uri(world, table), "_versions").exists()


def pylance_append(world: World, rng: random.Random) -> str | None:
    """Another library appends a row to main."""
    if not is_written(world, "events"):
        return None
    rows = Counter([(rng.choice(PARTITIONS), 100 + world.model.now, next(world.numbers))])
    made = lance.write_dataset(to_table(rows), uri(world, "events"), mode="append")
    line = world.model.lines["events"][MAIN]
    line.rows += rows
    line.changed = made.version
    line.versions[made.version] = line.rows.copy()
    line.commits.append(
        Commit(
            at=world.model.tick(),
            version=made.version,
            run=STRANGER,
            attempt=0,
            asset="",
            partitions=frozenset(row[0] for row in rows),
            added=rows,
            removed=Counter(),
        )
    )
    return f"pylance appends {sorted(rows)}"


def pylance_compact(world: World, rng: random.Random) -> str | None:
    """Another library compacts main."""
    table = rng.choice(TABLES)
    if not is_written(world, table):
        return None
    metrics = lance.dataset(uri(world, table)).optimize.compact_files()
    world.model.compacted.add(table)
    return f"pylance compacts {table}: {metrics.fragments_removed} fragments to {metrics.fragments_added}"


def maintain(world: World, rng: random.Random) -> str | None:
    """A run of the maintenance job, with a short age."""
    if any(actor.at is not None for actor in world.actors.values()):
        return None
    before = {table: world.version(table, MAIN) for table in TABLES}
    run = run_job(world, "lance_maintenance", {})
    if run.state != "succeeded":
        world.problems.append(f"maintenance failed: {world.why(run)}")
    world.model.compacted |= set(TABLES)
    world.model.cleaned |= set(TABLES)
    if world.config.policy == "env" and "environment" in world.config.switches:
        for table in TABLES:
            if world.version(table, MAIN) != before[table]:
                world.problems.append(f"maintenance in the environment of staging changed main of {table}")
    return "maintain"


def clean(world: World, rng: random.Random) -> str | None:
    """Remove all versions of main but the newest."""
    table = rng.choice(TABLES)
    stopped = any(actor.at is not None for actor in world.actors.values())
    if not is_written(world, table) or world.config.read == "materialized" or stopped:
        return None
    removed = world.open(table).cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    world.model.cleaned.add(table)
    return f"clean {table}: {removed.old_versions} versions"


def undo(world: World, rng: random.Random) -> str | None:
    """Undo a run."""
    runs = [run for run in world.model.runs.values() if run.selection and run.state in ("succeeded", "failed")]
    if not runs or any(actor.at is not None for actor in world.actors.values()):
        return None
    wanted = rng.choice(runs[-4:])
    before = {
        (table, branch): world.version(table, branch) for table, lines in world.model.lines.items() for branch in lines
    }
    run = run_job(world, "lance_undo", {"lance/undo_run": wanted.run_id})
    changed = [place for place, version in before.items() if world.version(*place) != version]
    said = f"undo run {wanted.number}: {run.state}, changed {changed}"
    world.excuses.add(run.run_id)
    wrote = [
        (table, branch)
        for table, lines in world.model.lines.items()
        for branch, line in lines.items()
        if any(commit.run is wanted for commit in line.own_commits())
    ]
    if not changed:
        return said
    if "undo" not in world.config.switches:
        world.is_lost = True
        return said
    if set(changed) != set(wrote):
        world.problems.append(f"undo of run {wanted.number} changed {changed}, though the run wrote {wrote}")
    newest = dict(world.model.shown)
    for table, branch in changed:
        line = world.model.lines[table][branch]
        version = world.version(table, branch)
        commits = [commit for commit in line.own_commits() if commit.run is wanted]
        for commit in reversed(commits):
            line.rows = line.rows - commit.added + commit.removed
        line.changed = version
        line.versions[version] = line.rows.copy()
        line.commits.append(
            Commit(
                at=world.model.tick(),
                version=version,
                run=STRANGER,
                attempt=0,
                asset="",
                partitions=wanted.partitions and frozenset(wanted.partitions),
                added=sum((commit.removed for commit in commits), Counter()),
                removed=sum((commit.added for commit in commits), Counter()),
            )
        )
        for partition in wanted.partitions or (None,):
            if branch is not MAIN and newest.get((table, partition)) != branch:
                continue  # Dagster shows main, or another branch
            newest[table, partition] = branch
            facts = {
                "version": version,
                "branch": branch,
                "rows": line.rows.total(),
                "partition_rows": of_partitions(line.rows, None if partition is None else {partition}).total(),
                "changed": line.changed,
            }
            world.due.append((None, run, table, partition, facts))
    return said


KEEPER_ACTIONS = {pylance_append: 2, pylance_compact: 2, clean: 1, maintain: 2, undo: 1}
