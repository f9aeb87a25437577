"""The steps of branches: backfills, promotion, discarding, the sensor, and checks that run alone."""

import random

import dagster as dg
import lance

from tests.machines.dagster_life import judging, keeper_actions
from tests.machines.dagster_life.actions import begin, draw_partitions, draw_script, draw_tags, re_executable
from tests.machines.dagster_life.project import PARTITIONS
from tests.machines.dagster_life.stage import Script
from tests.machines.dagster_life.watch_actions import narrow
from tests.machines.dagster_life.world import World

EVENTS, TOTALS = dg.AssetKey("events"), dg.AssetKey("totals")
GOOD = dg.AssetCheckKey(EVENTS, "good")
BRANCH = "lance/branch"


def branches(world: World) -> list[str]:
    """The branches, but those of audited jobs, which publish them; oldest first, as their names are random."""
    audited = {run.branch for run in world.model.runs.values() if run.is_audited}
    names = {name for lines in world.model.lines.values() for name in lines if name is not None} - audited
    return sorted(names, key=lambda name: first_run(world, name))


def first_run(world: World, branch: str) -> int:
    """The number of the first run of a branch."""
    return min((run.number for run in world.model.runs.values() if run.branch == branch), default=0)


def is_open(world: World, branch: str) -> bool:
    lines = [lines[branch] for lines in world.model.lines.values() if branch in lines]
    return any(line.own_commits() and not line.promoted for line in lines)


def backfill(world: World, rng: random.Random) -> str | None:
    """Request a backfill."""
    if not world.config.partitioned:
        return None
    name = f"backfill{len(world.backfills) + 1}"
    assets = rng.choice(([EVENTS], [EVENTS, TOTALS]))
    keys = draw_partitions(world, rng)
    tags = draw_tags(world, rng)
    world.stage.backfill(name, assets, keys, tags)
    world.backfills[name] = {"root": name, "mains": world.model.mains(), "at": world.model.tick()}
    return f"request {name} of {[key.path[-1] for key in assets]} {keys} {tags}; {tick(world, rng)}"


def tick(world: World, rng: random.Random) -> str | None:
    """A turn of the daemon of backfills."""
    if not world.backfills:
        return None
    world.stage.tick_backfills()
    new = [run_id for run_id in world.stage.launcher.launched if run_id not in world.model.runs]
    runs = [world.adopt(run_id) for run_id in new]
    states = {name: world.stage.instance.get_backfill(name).status.value for name in world.backfills}
    return f"tick backfills: {states}, new runs {[(run.number, run.partitions, run.branch) for run in runs]}"


def finish(world: World, rng: random.Random) -> str | None:
    """Run what is launched, and continue what stopped, to their ends; then a turn of the daemon of backfills."""
    said = []
    for run_id in [run_id for run_id in world.stage.launcher.launched if run_id in world.model.runs]:
        script = draw_script(world, rng)
        script.pauses.clear()
        said.append(f"run {world.model.runs[run_id].number}: {begin(world, run_id, script)}")
    more = tick(world, rng)
    return "; ".join([*said, *([more] if more else [])]) or None


def cancel_backfill(world: World, rng: random.Random) -> str | None:
    """Cancel a backfill that is under way."""
    live = [name for name in world.backfills if world.stage.instance.get_backfill(name).status.value == "REQUESTED"]
    if not live:
        return None
    name = rng.choice(live)
    world.stage.cancel_backfill(name)
    return f"cancel {name}; {tick(world, rng)}"


def re_execute_backfill(world: World, rng: random.Random) -> str | None:
    """Re-execute a backfill that has ended."""
    ended = [
        name
        for name in world.backfills
        if world.stage.instance.get_backfill(name).status.value not in ("REQUESTED", "CANCELING", "FAILING")
    ]
    if not ended:
        return None
    failed = [name for name in ended if world.stage.instance.get_backfill(name).status.value != "COMPLETED_SUCCESS"]
    name = rng.choice(failed if failed and rng.random() < 0.7 else ended)
    again = f"backfill{len(world.backfills) + 1}"
    from_failure = rng.random() < 0.6
    if not world.stage.re_execute_backfill(name, again, from_failure=from_failure):
        return None
    root = world.backfills[name]["root"]
    world.backfills[again] = {"root": root, "mains": world.backfills[root]["mains"], "at": world.model.tick()}
    said = f"re-execute {name} as {again}{' from failure' if from_failure else ''}"
    said = f"{said}; {tick(world, rng)}"
    if rng.random() < 0.6:
        said = f"{said}; {finish(world, rng)}; {sensor(world, rng)}"
    return said


def check_alone(world: World, rng: random.Random) -> str | None:
    """Run the check without its asset, as a re-execution or by itself."""
    if not world.config.checks:
        return None
    ended = re_executable(world)
    parent = rng.choice(ended[-4:]) if ended and rng.random() < 0.7 else None
    if parent is not None:
        tags = world.tags_of(parent) | world.scope(parent.partitions)
    else:
        tags = {**draw_tags(world, rng), **world.scope(draw_partitions(world, rng))}
    job = "__ASSET_JOB"
    run_id = world.stage.launch_job(
        job, tags, assets=[], checks=[GOOD], parent=None if parent is None else parent.run_id
    )
    run = world.adopt(run_id)
    script = draw_script(world, rng)
    script.pauses.clear()
    whose = "" if parent is None else f" of run {parent.number}"
    return f"check{whose} alone, {run.partitions} on {run.branch or 'main'}: {begin(world, run_id, script)}"


def promote(world: World, rng: random.Random) -> str | None:
    """Promote a branch by hand."""
    names = branches(world)
    if not names:
        return None
    waiting = [name for name in names if is_open(world, name)]
    branch, said = rng.choice(waiting if waiting and rng.random() < 0.8 else names), []
    forced, is_disturbed = rng.random() < 0.1, rng.random() < 0.3
    stopped = any(actor.at is not None for actor in world.actors.values())

    def between() -> None:
        said.append(f"; meanwhile {write_again(world, rng, branch)}")

    done = judging.promote(world, branch, forced=forced, between=between if is_disturbed and not stopped else None)
    if world.version("events", branch) and not is_open(world, branch) and not world.problems and rng.random() < 0.3:
        world.compare()
        judging.run_again(world, "lance_promote", {"lance/branch": branch})
    return f"{done}{''.join(said)}"


def read_again(world: World, rng: random.Random) -> str | None:
    """A run that reads main on its branch fails, a writer whose clock is behind commits to main, the run goes on.

    The version that the run has read may be cleaned up meanwhile.
    """
    if world.config.policy != "from_tag" or any(actor.at is not None for actor in world.actors.values()):
        return None
    said, runs = [], []
    for asset, tags, clock_s in ((TOTALS, {"lance/branch": "auto"}, 0), (EVENTS, {}, -90)):
        run_id = world.stage.request(asset_selection=[asset], tags=tags | world.scope(draw_partitions(world, rng)))
        run = world.adopt(run_id)
        script = Script(says={"totals": {"fail": "before"}}, clock_s=clock_s)
        runs.append(run)
        said.append(
            f"run {run.number} of {run.steps} {run.partitions} on {run.branch or 'main'}: {begin(world, run_id, script)}"
        )
    versions = keeper_actions.numbers(world, "events", None)
    if len(versions) > 2 and world.config.read != "materialized" and rng.random() < 0.5:
        table = world.open("events")
        table.tags.create(f"old.{world.model.now}", versions[0])  # so that one older than what the run has read stays
        table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
        world.model.cleaned.add("events")
        said.append(f"clean all of events but version {versions[0]}")
    if runs[0] in re_executable(world):
        again = world.adopt(world.stage.re_execute(runs[0].run_id, "ALL_STEPS"))
        said.append(f"re-execute run {runs[0].number}: {begin(world, again.run_id, Script())}")
    return "; ".join(said)


def audit_fewer(world: World, rng: random.Random) -> str | None:
    """A branch has rows of a partition that new code lacks, and the check of all partitions that are left passes."""
    config = world.config
    if config.policy not in ("from_tag", "env") or not (config.narrowed and config.checks) or world.keys != PARTITIONS:
        return None
    if any(actor.at is not None for actor in world.actors.values()):
        return None
    tags = {"lance/branch": "feature"} if config.policy == "from_tag" else {}
    said = []
    for assets, checks in (([EVENTS], []), ([], [GOOD])):
        partitions = PARTITIONS if assets else world.keys
        run_id = world.stage.launch_job("__ASSET_JOB", tags | world.scope(partitions), assets=assets, checks=checks)
        run = world.adopt(run_id)
        said.append(f"run {run.number} of {partitions} on {run.branch}: {begin(world, run_id, Script())}")
        new_code = narrow(world, rng) if assets else judging.promote(world, run.branch, forced=False)
        if new_code is None:
            break
        said.append(new_code)
    return "; ".join(said)


def promote_compacted(world: World, rng: random.Random) -> str | None:
    """A run without rows writes to a branch, another library compacts the branch, and it is promoted."""
    config = world.config
    if config.policy not in ("from_tag", "per_run") or config.empty_output != "write":
        return None
    if any(actor.at is not None for actor in world.actors.values()):
        return None
    tags = {"lance/branch": "feature"} if config.policy == "from_tag" else {}
    tags |= world.scope(draw_partitions(world, rng))
    run = world.adopt(world.stage.request(asset_selection=[EVENTS], tags=tags))
    begun = begin(world, run.run_id, Script(says={"events": {"empty": PARTITIONS}}))
    said = f"run {run.number} without rows, {run.partitions} on {run.branch}: {begun}"
    branch = world.open("events", run.branch)
    if run.state != "succeeded" or branch is None or not is_open(world, run.branch):
        return said
    metrics = lance.dataset(branch.root_uri).checkout_version((run.branch, None)).optimize.compact_files()
    world.model.compacted.add("events")
    return (
        f"{said}; pylance compacts {metrics.fragments_removed} fragments of the branch to {metrics.fragments_added}; "
        f"{judging.promote(world, run.branch, forced=False)}"
    )


def write_again(world: World, rng: random.Random, branch: str) -> str | None:
    """Re-execute a run that wrote to a branch, to its end."""
    runs = [run for run in re_executable(world) if run.branch == branch and "events" in run.steps]
    if not runs:
        return None
    again = world.adopt(world.stage.re_execute(runs[-1].run_id, "ALL_STEPS"))
    script = draw_script(world, rng)
    script.pauses.clear()
    return f"re-execute run {runs[-1].number}: {begin(world, again.run_id, script)}"


def discard(world: World, rng: random.Random) -> str | None:
    """Discard a branch by hand."""
    names = branches(world)
    if not names or any(actor.at is not None for actor in world.actors.values()):
        return None
    branch = rng.choice(names)
    said = judging.discard(world, branch)
    if not world.problems and rng.random() < 0.5:
        world.compare()
        judging.run_again(world, "lance_discard", {BRANCH: branch})
    return said


def sensor(world: World, rng: random.Random) -> str | None:
    """A turn of the sensor of branches, and what it asks for."""
    result = world.stage.tick_sensor("lance_branches", world.cursor, {"io_manager": world.manager})
    world.cursor = result.cursor or world.cursor
    said = []
    for request in sorted(result.run_requests, key=lambda request: first_run(world, request.tags[BRANCH])):
        branch = request.tags[BRANCH]
        if request.run_key in world.run_keys:
            continue
        world.run_keys.add(request.run_key)
        said.append(f"asks for {request.job_name} of {branch}")
        judging.judge_request(world, request.job_name, branch)
        said.append(
            judging.promote(world, branch, forced=False)
            if request.job_name == "lance_promote"
            else judging.discard(world, branch)
        )
    judging.judge_silence(world, {request.tags[BRANCH] for request in result.run_requests})
    if not world.problems and rng.random() < 0.3:
        again = world.stage.tick_sensor("lance_branches", world.cursor, {"io_manager": world.manager})
        new = [request.run_key for request in again.run_requests if request.run_key not in world.run_keys]
        if not result.run_requests and new and "twice" in world.config.switches:
            world.problems.append(f"the sensor asks for {new}, though nothing has changed since its last turn")
    return f"tick the sensor: {'; '.join(said) or 'nothing'}"


BRANCH_ACTIONS = {
    backfill: 3,
    tick: 1,
    finish: 5,
    cancel_backfill: 1,
    re_execute_backfill: 2,
    check_alone: 4,
    promote: 6,
    read_again: 2,
    audit_fewer: 2,
    promote_compacted: 2,
    discard: 1,
    sensor: 4,
}
