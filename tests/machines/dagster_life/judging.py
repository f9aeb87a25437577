"""Promotes and discards branches, and judges what came of it and what the sensor asks for."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import dagster as dg

from tests.machines.dagster_life.model import MAIN, Run, of_partitions
from tests.machines.dagster_life.project import TABLES
from tests.machines.dagster_life.stage import Script

if TYPE_CHECKING:
    from tests.machines.dagster_life.world import World

STATES = {
    "REQUESTED": "running",
    "CANCELING": "running",
    "FAILING": "running",
    "COMPLETED": "succeeded",
    "COMPLETED_SUCCESS": "succeeded",
    "COMPLETED_FAILED": "failed",
    "FAILED": "failed",
    "CANCELED": "canceled",
}


def snapshot(world: "World") -> dict:
    """What a step that is taken a second time must leave as it is."""
    versions = {
        (table, branch): world.version(table, branch) for table, lines in world.model.lines.items() for branch in lines
    }
    events = world.stage.instance.get_event_records(
        dg.EventRecordsFilter(dg.DagsterEventType.ASSET_MATERIALIZATION), limit=1
    )
    return {**versions, "newest event": events[0].storage_id if events else 0}


def run_again(world: "World", name: str, tags: dict[str, str]) -> None:
    """Run a job a second time, which must change nothing."""
    if "twice" not in world.config.switches:
        return
    before = snapshot(world)
    run = run_job(world, name, tags)
    world.excuses.add(run.run_id)
    changed = {key: value for key, value in snapshot(world).items() if before.get(key) != value}
    if changed:
        world.problems.append(f"{name}, run a second time, has changed {changed}")


def run_job(
    world: "World",
    name: str,
    tags: dict[str, str],
    between: Callable[[], object] | None = None,
    config: dict | None = None,
) -> Run:
    """Run a job to its end; `between` is called while it stops before it promotes the first table."""
    run_id = world.stage.launch_job(name, tags, config=config)
    run = world.adopt(run_id)
    run.branch, run.selection = MAIN, ()
    actor = world.start(run_id, Script(pauses=set() if between is None else {"promotes"}))
    if actor.at is not None:
        between()
        world.proceed(actor)
    return run


def reasons_against(world: "World", branch: str) -> list[str]:
    """Why the checks do not let a branch pass."""
    return [
        f"{table}: {reason}"
        for table in TABLES
        if branch in world.model.lines[table]
        and world.model.lines[table][branch].own_commits()
        and (not world.model.lines[table][branch].promoted or world.model.lines[table][branch].has_late_rows)
        for reason in world.model.unaudited(table, branch, world.config.blocking(table))
    ]


def was_maintained(world: "World") -> bool:
    """Whether versions of a branch were cleaned up, after which results of partitioned checks do not suffice."""
    is_by_partitions = world.config.partitioned and world.config.check_partitioned and world.config.checks
    is_off = "maintained branches" not in world.config.switches
    return is_off and is_by_partitions and world.config.policy == "env" and bool(world.model.cleaned)


def has_idle_undo(world: "World", branch: str) -> bool:
    """Whether an undo on a branch changed no rows, after which the checks may have to run again."""
    lines = [lines[branch] for lines in world.model.lines.values() if branch in lines]
    return any(
        not commit.asset and not commit.added and not commit.removed for line in lines for commit in line.own_commits()
    )


def verdict(world: "World", branch: str) -> tuple[list[str], bool]:
    """Why a branch must not be published, by its checks or by what main has changed; and whether that is sure."""
    lines = world.model.lines
    due = [table for table in TABLES if branch in lines[table] and lines[table][branch].own_commits()]
    conflicts = {table: world.model.conflict(table, branch, world.mode(table)) for table in due}
    reasons = reasons_against(world, branch) if "checks" in world.config.switches else []
    reasons += [f"{table}: main has changed the same" for table, is_so in conflicts.items() if is_so == "yes"]
    return reasons, "perhaps" not in conflicts.values()


def has_failed_results(world: "World", branch: str) -> bool:
    """Whether checks failed on a branch: on any table if checks are not judged, else on one that it has not changed."""
    lines, judged = world.model.lines, "checks" in world.config.switches
    return any(
        result.branch == branch
        and not result.passed
        and not (judged and branch in lines[result.asset] and lines[result.asset][branch].own_commits())
        for result in world.model.results
    )


def promote(world: "World", branch: str, *, forced: bool, between: Callable[[], object] | None = None) -> str:
    """Promote a branch, and judge whether that had to succeed."""
    model = world.model
    due = [
        table
        for table in TABLES
        if branch in model.lines[table]
        and not model.lines[table][branch].promoted
        and model.lines[table][branch].own_commits()
    ]
    reasons = [] if forced else reasons_against(world, branch)
    lost = {table: is_so for table, is_so in model.lost.get(branch, {}).items() if branch not in model.lines[table]}
    conflicts = {table: model.conflict(table, branch, world.mode(table)) for table in due}
    before = {table: world.version(table, MAIN) for table in TABLES}
    tags = {"lance/branch": branch, **({"lance/force": "true"} if forced else {})}
    judged = {table: model.lines[table][branch].rows.copy() for table in due}
    lines = {table: model.lines[table].get(branch) for table in TABLES}
    heads = {table: len(line.commits) for table, line in lines.items() if line is not None}
    run = run_job(world, "lance_promote", tags, between)
    published = [table for table in due if is_published(world, table, branch, before[table])]
    said = f"promote {branch}{' by force' if forced else ''}: {run.state}, published {published}"
    moved = [table for table in published if model.lines[table][branch].rows != judged[table]]
    if moved:
        world.problems.append(f"{branch} of {moved} was published with rows that came after its gate")
    is_moved = any(
        model.lines[table].get(branch) is not line or (line is not None and len(line.commits) != heads[table])
        for table, line in lines.items()
    )
    if reasons and published and "checks" in world.config.switches:
        world.problems.append(f"{branch} was published, though {reasons}")
    if published and set(published) != set(due) and not is_moved:
        changed = [table for table in due if model.lines[table][branch].fork != model.lines[table][branch].rows]
        if set(changed) - set(published):
            world.problems.append(f"{branch} was published in {published} alone, not in {changed}")
    if published and any(lost.values()) and not is_moved:
        world.problems.append(f"{branch} was published in {published}, though {list(lost)} were dropped with it")
    if published and "yes" in conflicts.values():
        world.problems.append(f"{branch} was published, though main has changed the same: {conflicts}")
    is_sure = (
        not reasons
        and not lost
        and not any(line is not None and line.is_stuck for line in lines.values())
        and not was_maintained(world)
        and not has_idle_undo(world, branch)
        and (forced or not has_failed_results(world, branch))
    )
    if due and is_sure and not is_moved and set(conflicts.values()) == {"no"} and run.state != "succeeded":
        world.problems.append(f"{branch} was not published: {world.why(run)}")
    for table in published:
        expect_promotion(world, table, branch, run)
    if "idle promotions" not in world.config.switches:
        world.idle_promotions |= {(run.run_id, table) for table in TABLES if table not in published}
    elif run.state == "succeeded" and not is_moved:
        for table in set(due) - set(published):
            expect_idle_promotion(world, table, branch, run)
    else:
        written = TABLES if is_moved else due  # a table may have got its first rows on the branch meanwhile
        world.idle_promotions |= {(run.run_id, table) for table in set(written) - set(published)}
    if run.state == "failed":
        world.excuses.add(run.run_id)
    return said


def is_published(world: "World", table: str, branch: str, before: int) -> bool:
    version = world.version(table, MAIN)
    if version == before:
        return False
    made = world.open(table).read_transaction(version)
    return made is not None and dict(made.transaction_properties or {}).get("promoted_from") == branch


def expect_promotion(
    world: "World", table: str, branch: str, run: Run, *, partitions: Iterable[str | None] | None = None
) -> None:
    """Events of a promotion are due: of the partitions that were written to the branch, or of those of a run."""
    version = world.version(table, MAIN)
    partitions = partitions or world.model.written_partitions(table, branch)
    line = world.model.lines[table][branch]
    world.model.promote(table, branch, version, run)
    main = world.model.lines[table][MAIN]
    for partition in partitions:
        facts = {
            "version": version,
            "branch": MAIN,
            "rows": main.rows.total(),
            "partition_rows": of_partitions(main.rows, None if partition is None else {partition}).total(),
            "changed": {main.changed, version},
            "codes": world.model.codes(line, table, partition),
            "made_from": world.model.published_input(table, branch, partition),
        }
        world.due.append((None, run, table, partition, facts))


def expect_idle_promotion(world: "World", table: str, branch: str, run: Run) -> None:
    """Events of a promotion that changes no rows are due: of partitions of which main has no event."""
    version, main = world.version(table, MAIN), world.model.lines[table][MAIN]
    recorded = {(*due[2:4], due[-1]["branch"]) for due in world.due}  # by promotions of this step
    recorded |= {(name, partition, line) for name, line, partition in world.model.recorded}
    for partition in world.model.written_partitions(table, branch):
        if (table, partition, MAIN) in recorded:
            continue
        if (table, partition) in world.perhaps_recorded:
            world.idle_promotions.add((run.run_id, table))
            continue
        facts = {
            "version": version,
            "branch": MAIN,
            "rows": main.rows.total(),
            "partition_rows": of_partitions(main.rows, None if partition is None else {partition}).total(),
            "changed": main.changed,
            "codes": world.model.codes(world.model.lines[table][branch], table, partition),
        }
        world.due.append((None, run, table, partition, facts))


def discard(world: "World", branch: str) -> str:
    """Discard a branch."""
    run = run_job(world, "lance_discard", {"lance/branch": branch})
    if run.state != "succeeded":
        world.problems.append(f"{branch} was not discarded: {world.why(run)}")
    world.model.lost.pop(branch, None)
    for table in TABLES:
        line = world.model.lines[table].pop(branch, None)
        if line is not None and not line.promoted:
            world.model.discarded.setdefault(branch, []).extend(line.own_commits())
    world.model.results = [result for result in world.model.results if result.branch != branch]
    for key in [key for key in world.model.recorded if key[1] == branch]:
        del world.model.recorded[key]
    return f"discard {branch}: {run.state}"


def state_of(world: "World", branch: str) -> str:
    """How the backfill or the chain of runs that writes a branch has ended; `unknown` where no page says so."""
    runs = [run for run in world.model.runs.values() if run.branch == branch and run.selection]
    if any(run.state in ("launched", "running") for run in runs) or (runs and world.will_retry(runs[-1])):
        return "running"
    if any(world.will_retry(run) for run in runs):
        return "unknown"  # somebody re-executed it before Dagster did
    if branch.startswith("dagster/backfill/"):
        root = branch.removeprefix("dagster/backfill/")
        chain = [name for name, backfill in world.backfills.items() if backfill["root"] == root]
        if any(run.parent is not None for run in runs):
            return "unknown"  # one of its runs was re-executed by itself
        return STATES[world.stage.instance.get_backfill(chain[-1]).status.value]
    if branch.startswith("dagster/run/") and runs:
        return runs[-1].state
    return "unknown"


def judge_request(world: "World", job: str, branch: str) -> None:
    """The sensor asks for a promotion, or for a branch to be discarded."""
    if "sensor" not in world.config.switches:
        return
    state, reasons = state_of(world, branch), reasons_against(world, branch)
    if job == "lance_promote" and (state not in ("succeeded", "unknown") or reasons):
        world.problems.append(f"the sensor promotes {branch}, which is {state}; {reasons}")
    fails = state == "failed" or (state == "succeeded" and (reasons or has_failed_results(world, branch)))
    if job == "lance_discard" and not (world.config.on_failure == "discard" and (fails or state == "unknown")):
        world.problems.append(f"the sensor discards {branch}, which is {state}")


def judge_silence(world: "World", requested: set[str]) -> None:
    """The sensor has asked for what is due."""
    if "sensor" not in world.config.switches:
        return
    for branch in {name for lines in world.model.lines.values() for name in lines if name is not None}:
        lines = [lines[branch] for lines in world.model.lines.values() if branch in lines]
        is_open = any(line.own_commits() and not line.promoted for line in lines)
        key = (branch, tuple(len(line.own_commits()) for line in lines))
        if key in world.asked or branch in requested:
            world.asked.add(key)
            continue
        is_clean = not reasons_against(world, branch) and not has_idle_undo(world, branch)
        is_clean &= not has_failed_results(world, branch)
        is_clean &= not any(line.promoted and line.has_late_rows for line in lines)
        if is_open and state_of(world, branch) == "succeeded" and is_clean:
            world.problems.append(f"the sensor never promotes {branch}")
