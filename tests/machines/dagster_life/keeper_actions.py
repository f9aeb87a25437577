"""The steps of those who keep tables: pylance that writes and compacts in between, maintenance, undo."""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from unittest import mock

import dagster as dg
import lance

from lance_core.store.local import LocalStore
from tests.machines.dagster_life.actions import begin
from tests.machines.dagster_life.judging import run_again, run_job, snapshot
from tests.machines.dagster_life.model import MAIN, Commit, Line, Run, of_partitions
from tests.machines.dagster_life.project import PARTITIONS, TABLES, to_table
from tests.machines.dagster_life.stage import Script
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


def commit_of_another(world: World, rows: Counter, mode: str) -> None:
    """Another library writes rows to main of `events`."""
    made = lance.write_dataset(to_table(rows), uri(world, "events"), mode=mode)
    line = world.model.lines["events"].setdefault(MAIN, Line())
    removed = line.rows.copy() if mode == "overwrite" else Counter()
    line.rows = line.rows - removed + rows
    line.changed = made.version
    line.versions[made.version] = line.rows.copy()
    line.commits.append(
        Commit(
            at=world.model.tick(),
            version=made.version,
            run=STRANGER,
            attempt=0,
            asset="",
            partitions=None if mode == "overwrite" else frozenset(row[0] for row in rows),
            added=rows,
            removed=removed,
            replaces_all=mode == "overwrite",
        )
    )


def pylance_append(world: World, rng: random.Random) -> str | None:
    """Another library appends a row to main."""
    if not is_written(world, "events"):
        return None
    rows = Counter([(rng.choice(PARTITIONS), 100 + world.model.now, next(world.numbers))])
    commit_of_another(world, rows, "append")
    return f"pylance appends {sorted(rows)}"


def pylance_overwrite(world: World, rng: random.Random) -> str | None:
    """Another library replaces all rows of main."""
    if not is_written(world, "events"):
        return None
    rows = Counter([(rng.choice(PARTITIONS), 100 + world.model.now, next(world.numbers))])
    commit_of_another(world, rows, "overwrite")
    return f"pylance overwrites with {sorted(rows)}"


def pylance_compact(world: World, rng: random.Random) -> str | None:
    """Another library compacts main."""
    table = rng.choice(TABLES)
    if not is_written(world, table):
        return None
    metrics = lance.dataset(uri(world, table)).optimize.compact_files()
    world.model.compacted.add(table)
    return f"pylance compacts {table}: {metrics.fragments_removed} fragments to {metrics.fragments_added}"


def numbers(world: World, table: str, branch: str | None) -> list[int]:
    dataset = world.open(table, branch)
    return [] if dataset is None else [one["version"] for one in dataset.version_refs()]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """There is no room for data files, and enough for the rest."""
    real = LocalStore.open_writer

    def full(store, key, *arguments, **options):
        if key.startswith("data/"):
            raise OSError(28, "No space left on device")
        return real(store, key, *arguments, **options)

    with (
        mock.patch.object(LocalStore, "open_writer", full),
        mock.patch("lance_dagster.maintenance.ops._RETRIES", 0),
    ):
        yield


def maintain(world: World, rng: random.Random) -> str | None:
    """A run of the maintenance job, with a short age; the disk may be full."""
    if any(actor.at is not None for actor in world.actors.values()):
        return None
    is_full = rng.random() < 0.4
    branch = "staging" if world.config.policy == "env" else MAIN
    before = {table: numbers(world, table, MAIN) for table in TABLES}
    places = [table for table in TABLES if branch in world.model.lines[table]]
    removable = {table: removable_versions(world, table, branch) for table in places}
    with full_disk() if is_full else contextlib.nullcontext():
        run = run_job(world, "lance_maintenance", {})
    world.model.compacted |= set(TABLES)
    world.model.cleaned |= set(TABLES)
    world.excuses.add(run.run_id)
    if run.state != "succeeded" and not (is_full and "No space left" in world.why(run)):
        world.problems.append(f"maintenance failed: {world.why(run)}")
    for table in places:
        if removable[table] and removable[table] <= set(numbers(world, table, branch)):
            world.problems.append(f"maintenance removed none of the versions {removable[table]} of {table}, {branch}")
    for table in TABLES:
        if branch is not MAIN and numbers(world, table, MAIN) != before[table]:
            world.problems.append(f"maintenance in the environment of staging changed main of {table}")
    if not is_full and run.state == "succeeded" and rng.random() < 0.5:
        run_again(world, "lance_maintenance", {})
    return f"maintain{' with a full disk' if is_full else ''}: {run.state}"


def removable_versions(world: World, table: str, branch: str | None) -> set[int]:
    """Versions that nothing needs; none where events keep versions, or where a clock was ahead, so that none is old."""
    dataset = world.open(table, branch)
    now = datetime.now()
    if dataset is None or world.config.read == "materialized" or any(v["timestamp"] > now for v in dataset.versions()):
        return set()
    needed = {one["parent_version"] for one in dataset.branches.list().values()} if branch is MAIN else set()
    needed |= {one["version"] for one in dataset.tags.list().values()}
    return {number for number in numbers(world, table, branch)[:-1] if number not in needed}


def clean(world: World, rng: random.Random) -> str | None:
    """Remove all versions of main but the newest."""
    table = rng.choice(TABLES)
    stopped = any(actor.at is not None for actor in world.actors.values())
    if not is_written(world, table) or world.config.read == "materialized" or stopped:
        return None
    removed = world.open(table).cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    world.model.cleaned.add(table)
    return f"clean {table}: {removed.old_versions} versions"


def is_promoted(world: World, run: Run) -> bool:
    """Whether main has rows of a run that wrote to a branch."""
    return run.branch is not MAIN and any(
        commit.run is run for lines in world.model.lines.values() if MAIN in lines for commit in lines[MAIN].commits
    )


def undo(world: World, rng: random.Random) -> str | None:
    """Undo a run."""
    runs = [run for run in world.model.runs.values() if run.selection and run.state in ("succeeded", "failed")]
    if not runs or any(actor.at is not None for actor in world.actors.values()):
        return None
    promoted = [run for run in runs if is_promoted(world, run)]
    return undo_run(world, rng, rng.choice(promoted if promoted and rng.random() < 0.5 else runs[-4:]))


def undo_cleaned(world: World, rng: random.Random) -> str | None:
    """A run writes two tables, the version of one is removed, and the run is undone."""
    busy = any(actor.at is not None for actor in world.actors.values())
    if world.config.policy not in ("off", "from_tag") or world.config.read == "materialized" or busy:
        return None
    said = []
    for _ in range(2):
        tags = world.scope(world.keys[:1] if world.config.partitioned else None)
        run_id = world.stage.request(asset_selection=[dg.AssetKey(table) for table in TABLES], tags=tags)
        run = world.adopt(run_id)
        said.append(f"run {run.number} on main: {begin(world, run_id, Script())}")
    said.append(str(pylance_append(world, rng)))
    world.open("events").cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    world.model.cleaned.add("events")
    said += ["clean events", undo_run(world, rng, run)]
    return "; ".join(said)


def list_undone_commits(line: Line, branch: str | None, wanted: Run) -> list[Commit]:
    """The commits that the undo of a run takes back: its own, and those that it published as an audited run."""
    return [
        commit
        for commit in line.own_commits()
        if commit.run is wanted or (branch is MAIN and wanted.is_audited and commit.publisher is wanted)
    ]


def undo_run(world: World, rng: random.Random, wanted: Run) -> str:
    before = {
        (table, branch): world.version(table, branch) for table, lines in world.model.lines.items() for branch in lines
    }
    tags = {"lance/undo_run": wanted.run_id}
    run = run_job(world, "lance_undo", tags)
    changed = [place for place, version in before.items() if world.version(*place) != version]
    said = f"undo run {wanted.number}: {run.state}, changed {changed}"
    world.excuses.add(run.run_id)
    wrote = [
        (table, branch)
        for table, lines in world.model.lines.items()
        for branch, line in lines.items()
        if list_undone_commits(line, branch, wanted) and (branch is not MAIN or world.config.policy != "env")
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
        commits = list_undone_commits(line, branch, wanted)
        for commit in reversed(commits):
            line.rows = line.rows - commit.added + commit.removed
            commit.is_undone = True
        if any(commit.added or commit.removed for commit in commits):
            line.changed = version
        line.is_stuck = line.promoted
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
                "codes": world.model.codes(line, table, partition, without=wanted),
            }
            world.due.append((None, run, table, partition, facts))
    world.compare()
    if not world.problems and rng.random() < 0.5:
        run_again(world, "lance_undo", tags)
    return said


def erase(world: World, rng: random.Random) -> str | None:
    """Erase rows in the environment of staging, which is rejected, as it would be those of main."""
    if world.config.policy != "env" or any(actor.at is not None for actor in world.actors.values()):
        return None
    before = snapshot(world)
    config = {"ops": {"lance_erasure_op": {"config": {"where": {"plain": "k >= 0"}}}}}
    run = run_job(world, "lance_erasure", {}, config=config)
    world.excuses.add(run.run_id)
    if run.state == "succeeded" or snapshot(world) != before:
        world.problems.append(f"an erasure in the environment of staging: {run.state}, {snapshot(world)}")
    return f"erase: {run.state}"


def drop(world: World, rng: random.Random) -> str | None:
    """Somebody removes a table with its branches; another library may make it again."""
    table = rng.choice(TABLES)
    if not is_written(world, table) or any(actor.at is not None for actor in world.actors.values()):
        return None
    shutil.rmtree(uri(world, table))
    world.forget(table)
    if table == "totals" or rng.random() < 0.5:
        return f"drop {table}"
    rows = Counter([(rng.choice(PARTITIONS), 100 + world.model.now, next(world.numbers))])
    commit_of_another(world, rows, "create")
    return f"drop {table}; pylance makes it again with {sorted(rows)}"


KEEPER_ACTIONS = {
    pylance_append: 2,
    pylance_overwrite: 1,
    pylance_compact: 2,
    clean: 1,
    maintain: 2,
    undo: 2,
    undo_cleaned: 1,
    erase: 1,
    drop: 1,
}
