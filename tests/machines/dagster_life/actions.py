"""The steps: each does one thing that is possible now, and says what it did; None if nothing was."""

import random

import dagster as dg

from tests.machines.dagster_life.model import Run
from tests.machines.dagster_life.project import PARTITIONS
from tests.machines.dagster_life.stage import Script
from tests.machines.dagster_life.world import World

EVENTS, TOTALS = dg.AssetKey("events"), dg.AssetKey("totals")


def draw_script(world: World, rng: random.Random) -> Script:
    """What a run will do: mostly all goes well."""
    says: dict = {}
    races, audits = (world.config.focus == focus for focus in ("races", "audits"))
    for asset in ("events", "totals"):
        mine: dict = {"size": rng.choice((1, 1, 2))}
        if rng.random() < (0.1 if audits else 0.25):
            mine["fail"] = rng.choice(("before", "after", "after", "retry before", "retry after"))
        if rng.random() < 0.12:
            mine["empty"] = rng.choice((PARTITIONS, PARTITIONS[:1]))
        mine["stream"] = rng.random() < (0.9 if races else 0.3)
        mine["first key"] = rng.choice((0, 1, 2, 3)) if races else 0
        if world.config.mode == "merge" and "merges at once" not in world.config.switches:
            mine["stream"] = False
        says[asset] = mine
    says["good"] = rng.choice(("passes", *(() if audits else ("passes", "passes")), "fails", "crashes"))
    points = ["events begins", "events writes", "events streams", "events committed", "good runs", "totals begins"]
    clocks = (0, 0, 0, -90, *(() if world.config.focus == "keepers" else (90,)))  # of a clock ahead nothing is old
    pauses = set(rng.sample(points, rng.choice((0, 0, 1, 2) if races else (0, 0, 0, 1, 2))))
    if races and rng.random() < 0.4:
        pauses.add("events streams")
    return Script(pauses=pauses, says=says, clock_s=rng.choice(clocks))


def describe(script: Script) -> str:
    said = {
        name: {k: v for k, v in mine.items() if v and (k, v) != ("size", 1)} if isinstance(mine, dict) else mine
        for name, mine in script.says.items()
    }
    return f"pauses={sorted(script.pauses)} clock={script.clock_s} {said}"


def begin(world: World, run_id: str, script: Script) -> str:
    """Begin with a launched run, and say what it does and where it stops."""
    said = describe(script)
    actor = world.start(run_id, script)
    return f"{said}: {actor.at or world.model.runs[run_id].state}"


def draw_partitions(world: World, rng: random.Random) -> tuple[str, ...] | None:
    if not world.config.partitioned:
        return None
    keys = world.keys
    first = 0 if world.config.focus == "races" and rng.random() < 0.5 else rng.randrange(len(keys))
    last = first if rng.random() < 0.7 else rng.randrange(first, len(keys))
    return keys[first : last + 1]


def draw_tags(world: World, rng: random.Random) -> dict[str, str]:
    retries = {"dagster/max_retries": "1"} if rng.random() < 0.3 else {}
    return {**retries, **draw_branch(world, rng)}


def draw_branch(world: World, rng: random.Random) -> dict[str, str]:
    if world.config.policy == "from_tag":
        name = rng.choice((None, "auto", "feature", "feature"))
        return {} if name is None else {"lance/branch": name}
    return {}


def launch(world: World, rng: random.Random) -> str:
    """Create a run, which starts later."""
    selection = rng.choice(([EVENTS], [EVENTS], [EVENTS, TOTALS], [EVENTS, TOTALS], [TOTALS]))
    partitions = draw_partitions(world, rng)
    without = world.config.checks and rng.random() < 0.2
    tags = {**draw_tags(world, rng), **world.scope(partitions)}
    if without:
        run_id = world.stage.launch_job("__ASSET_JOB", tags, assets=selection, checks=[])
    else:
        run_id = world.stage.request(asset_selection=selection, tags=tags)
    run = world.adopt(run_id)
    said = f"{[key.path[-1] for key in selection]}{' without checks' if without else ''} {partitions}"
    return f"launch run {run.number} of {said} on {run.branch or 'main'}"


def run_all_at_once(world: World, rng: random.Random) -> str | None:
    """A run of assets with partitions that names no partition, which is rejected."""
    if not world.config.partitioned:
        return None
    selection = rng.choice(([EVENTS], [EVENTS, TOTALS]))
    run_id = world.stage.launch_job("__ASSET_JOB", draw_branch(world, rng), assets=selection, checks=[])
    run = world.adopt(run_id)
    said = begin(world, run_id, draw_script(world, rng))
    return f"run {run.number} of {[key.path[-1] for key in selection]} without a partition: {said}"


def audited(world: World, rng: random.Random) -> str | None:
    """A run of the job that writes, audits and publishes."""
    if not world.config.audited:
        return None
    partitions = draw_partitions(world, rng)
    run = world.adopt(world.stage.launch_job("audited", world.scope(partitions)))
    said = f"audited run {run.number} {partitions}: {begin(world, run.run_id, draw_script(world, rng))}"
    if run.state == "failed" and rng.random() < 0.3:
        said += f"; {publish_alone(world, rng)}"
    return said


def publish_alone(world: World, rng: random.Random) -> str | None:
    """The last step of an audited job, executed again by itself."""
    ended = [run for run in re_executable(world) if run.is_audited]
    if not ended:
        return None
    failed = [run for run in ended if run.state == "failed"]
    parent = (failed or ended)[-1]
    tags = world.tags_of(parent) | world.scope(parent.partitions)
    run_id = world.stage.launch_job(
        "audited", tags, assets=[dg.AssetKey("audited_publish")], checks=[], parent=parent.run_id
    )
    run = world.adopt(run_id)
    run.steps = ()
    return f"publish run {parent.number} alone: {begin(world, run_id, Script())}"


def one_step(world: World, rng: random.Random) -> str | None:
    """One asset of a run, executed again without its checks."""
    ended = [run for run in re_executable(world) if not run.is_audited and len(run.steps) > 1]
    if not ended:
        return None
    parent, asset = rng.choice(ended[-4:]), rng.choice((EVENTS, TOTALS))
    tags = world.tags_of(parent) | world.scope(parent.partitions)
    run_id = world.stage.launch_job("__ASSET_JOB", tags, assets=[asset], checks=[], parent=parent.run_id)
    run = world.adopt(run_id)
    said = begin(world, run_id, draw_script(world, rng))
    return f"re-execute {asset.path[-1]} of run {parent.number} as run {run.number}: {said}"


def stopped_runs(world: World) -> list[Run]:
    """The runs that wait at a point where they were stopped."""
    return [
        run for run in world.model.runs.values() if run.state == "running" and world.actors[run.run_id].at is not None
    ]


def cancel(world: World, rng: random.Random) -> str | None:
    """Cancel a run that stopped: its process ends, or only Dagster takes it for canceled."""
    stopped = stopped_runs(world)
    if not stopped:
        return None
    run, is_safe = rng.choice(stopped), rng.random() < 0.6
    instance, actor = world.stage.instance, world.actors[run.run_id]
    world.excuses.add(run.run_id)
    record = instance.get_run_by_id(run.run_id)
    if is_safe:
        instance.report_run_canceling(record)
        if str(actor.at).endswith(" committed"):  # it ends before its event, which the re-execution records
            world.due = [due for due in world.due if due[1] is not run]
        actor.interrupt()
    else:
        instance.report_run_canceled(record)
    world.sync()
    return f"cancel run {run.number}{'' if is_safe else ' by force'}: {actor.at or run.state}"


def start(world: World, rng: random.Random) -> str | None:
    """Begin with a launched run."""
    if not world.stage.launcher.launched:
        return None
    run_id = rng.choice(world.stage.launcher.launched)
    script = draw_script(world, rng)
    return f"start run {world.model.runs[run_id].number}: {begin(world, run_id, script)}"


def run(world: World, rng: random.Random) -> str:
    """Create a run, and begin with it at once."""
    said = launch(world, rng)
    run_id = world.stage.launcher.launched[-1]
    script = draw_script(world, rng)
    return f"{said}; start: {begin(world, run_id, script)}"


def proceed(world: World, rng: random.Random) -> str | None:
    """Continue a run that stopped."""
    stopped = [actor for actor in world.actors.values() if actor.at is not None]
    if not stopped:
        return None
    actor = rng.choice(stopped)
    place = actor.at
    world.proceed(actor)
    run = world.model.runs[actor.run_id]
    return f"continue run {run.number} from {place}: {actor.at or run.state}"


def give_up(world: World, rng: random.Random) -> str | None:
    """Take a run that stopped for dead."""
    stopped = stopped_runs(world)
    if not stopped:
        return None
    run = rng.choice(stopped)
    world.excuses.add(run.run_id)
    world.stage.instance.report_run_failed(world.stage.instance.get_run_by_id(run.run_id))
    world.sync()
    again = re_execute_run(world, rng, run) if rng.random() < 0.5 and run in re_executable(world) else None
    return f"give run {run.number} up{'' if again is None else f'; {again}'}"


def re_executable(world: World) -> list[Run]:
    """Runs that have ended, newest last."""
    return [
        run
        for run in world.model.runs.values()
        if run.state in ("succeeded", "failed", "canceled")
        and run.selection
        and (run.backfill is None or "backfills" in world.config.switches)
        and set(run.partitions or ()) <= set(world.keys)
    ]


def re_execute(world: World, rng: random.Random) -> str | None:
    """Re-execute a run that has ended."""
    ended = re_executable(world)
    if not ended:
        return None
    return re_execute_run(world, rng, rng.choice(ended[-4:]))


def re_execute_run(world: World, rng: random.Random, run: Run) -> str | None:
    strategy = "ALL_STEPS" if run.state == "succeeded" else rng.choice(("ALL_STEPS", "FROM_FAILURE", "FROM_FAILURE"))
    try:
        again = world.adopt(world.stage.re_execute(run.run_id, strategy))
    except dg.DagsterInvalidSubsetError:  # no step of it has failed
        return None
    said = f"re-execute run {run.number} as run {again.number} {strategy}"
    if rng.random() < 0.7:
        script = draw_script(world, rng)
        said += f"; start: {begin(world, again.run_id, script)}"
    return said


def retry(world: World, rng: random.Random) -> str | None:
    """Dagster's daemon retries a run that has failed."""
    runs = [run for run in re_executable(world) if world.will_retry(run)]
    if not runs:
        return None
    run = rng.choice(runs)
    again = world.adopt(world.stage.retry(run.run_id))
    return f"retry run {run.number} as run {again.number}: {begin(world, again.run_id, draw_script(world, rng))}"


ACTIONS = {
    retry: 2,
    run: 10,
    launch: 2,
    run_all_at_once: 1,
    start: 3,
    proceed: 6,
    give_up: 2,
    cancel: 1,
    re_execute: 5,
    one_step: 1,
    audited: 3,
    publish_alone: 2,
}
"""The steps, and how often each is drawn."""
