"""The driver: draws a code location and steps by a seed, and shrinks what it finds."""

import argparse
import random
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace

from tests.machines.dagster_life.actions import (
    ACTIONS,
    audited,
    give_up,
    proceed,
    publish_alone,
    re_execute,
    run,
    run_all_at_once,
    start,
)
from tests.machines.dagster_life.branch_actions import (
    BRANCH_ACTIONS,
    backfill,
    cancel_backfill,
    check_alone,
    finish,
    promote,
    re_execute_backfill,
    sensor,
    tick,
)
from tests.machines.dagster_life.keeper_actions import KEEPER_ACTIONS, clean, erase, maintain, undo, undo_cleaned
from tests.machines.dagster_life.killed import play_killed
from tests.machines.dagster_life.project import Config
from tests.machines.dagster_life.watch_actions import (
    WATCH_ACTIONS,
    automate,
    draw_sharing,
    look_at_health,
    narrow,
    share,
)
from tests.machines.dagster_life.world import World
from tests.processes import processor_seconds

STEPS = 25
SEEDS_PER_KILLED = 60
FOCUS = {
    "": (),
    "audits": (audited, publish_alone),
    "backfills": (backfill, finish, re_execute_backfill, sensor),
    "gates": (check_alone, promote),
    "keepers": (maintain, clean, undo, undo_cleaned, erase, promote, re_execute),
    "races": (run, start, proceed, give_up, re_execute),
}
"""The steps that a seed takes more often than others, so that what needs several of them comes about."""
FOCUSED = 4
SWITCHES = {
    "skip": True,  # empty outputs that are skipped
    "discarded branches": True,  # a re-execution whose branch was discarded says so
    "backfills": True,  # re-executions go on with the branch of their backfill
    "checks": True,  # every blocking check has to pass on what is promoted
    "sensor": True,  # of a re-executed backfill the newest one counts
    "idle promotions": True,  # a promotion that changes no rows reports no other partitions
    "event order": True,  # the newest version counts that an event records, not the newest event
    "promoted attempts": True,  # rows of an earlier attempt are found after the branch was promoted
    "undo": True,  # all tables of a run are undone, or none
    "restarts": True,  # a promotion that began before a branch was restarted does not publish the new rows
    "rivals": True,  # of two runs whose steps overlap, the one that was created later wins
    "merges at once": True,  # of two merges at a time, each key is inserted once
    "maintained branches": True,  # partitioned checks count after versions of their branch were cleaned up
    "twice": True,  # a second identical step changes nothing
    "origin": True,  # events name the code and the inputs of the runs that wrote the rows
    "late overwrites": True,  # an attempt that was given up does not overwrite its re-execution
}
"""What the machine looks at; what is off is not judged."""
POLICIES = {
    "": ("off", "off", "per_run", "per_backfill", "from_tag", "from_tag", "env"),
    "audits": ("off", "per_run", "per_backfill", "from_tag"),
    "backfills": ("per_backfill", "per_backfill", "from_tag"),
    "gates": ("per_run", "per_backfill", "from_tag", "from_tag", "env"),
    "keepers": ("off", "from_tag", "env", "env"),
}
"""The branches of runs, by the steps that a seed takes more often."""


def draw_config(seed: int) -> Config:
    rng = random.Random(f"{seed}:config")
    switches = frozenset(name for name, is_on in SWITCHES.items() if is_on)
    focus = rng.choice(tuple(FOCUS))
    mode = rng.choice(("overwrite", "overwrite", "append", "merge", *(("merge",) if focus == "races" else ("error",))))
    policy = rng.choice(POLICIES.get(focus, POLICIES[""]))
    config = Config(
        focus=focus,
        partitioned=mode == "error" or focus == "backfills" or rng.random() < 0.7,
        mode=mode,
        policy=policy,
        empty_output=rng.choice(("write", "write", *(("skip",) if "skip" in switches else ()), "error")),
        read=rng.choice(("latest", "materialized")),
        stable_row_ids=rng.random() < 0.3,
        check_partitioned=rng.random() < 0.5,
        checks=rng.random() < (0.9 if focus == "audits" else 0.7),
        on_failure=rng.choice(("report", "discard")),
        single_run=rng.random() < 0.25,
        audited=policy != "env" and rng.random() < (1 if focus == "audits" else 0.3),
        automated=rng.random() < 0.3,
        shared=draw_sharing(rng, is_on=policy == "off" and rng.random() < 0.4),
        health=rng.random() < (0.5 if policy == "env" else 0.1),
        switches=switches,
    )
    is_narrowed = config.partitioned and not config.automated and policy != "per_backfill" and rng.random() < 0.4
    loads_in_body = not config.partitioned and random.Random(f"{seed}:loads").random() < 0.5
    return replace(config, narrowed=is_narrowed, loads_in_body=loads_in_body)


def possible_actions(config: Config) -> dict:
    """The steps, with their weights; those that a code location rules out are left out."""
    actions = ACTIONS | KEEPER_ACTIONS | WATCH_ACTIONS | (BRANCH_ACTIONS if config.policy != "off" else {})
    excluded = set()
    if not config.audited:
        excluded |= {audited, publish_alone}
    if not config.automated:
        excluded.add(automate)
    if not config.health:
        excluded.add(look_at_health)
    if not config.shared:
        excluded.add(share)
    if not config.narrowed:
        excluded.add(narrow)
    if not config.partitioned or config.narrowed:
        excluded |= {backfill, tick, cancel_backfill, re_execute_backfill, run_all_at_once}
    if config.policy != "env":
        excluded.add(erase)
    if not config.checks:
        excluded.add(check_alone)
    if config.read == "materialized":
        excluded |= {clean, undo_cleaned}
    more = FOCUS[config.focus]
    return {
        action: weight * (FOCUSED if action in more else 1)
        for action, weight in actions.items()
        if action not in excluded
    }


def play(seed: int, steps: list[int]) -> tuple[list[str], list[str], int | None]:
    """Take the steps with these numbers: what was done, what differed, and the number of the step after which it did."""
    done: list[str] = []
    with World(draw_config(seed)) as world:
        for number in steps:
            rng = random.Random(f"{seed}:{number}")
            actions = possible_actions(world.config)
            action = rng.choices(list(actions), list(actions.values()))[0]
            try:
                said = action(world, rng)
                problems = [] if world.is_lost else world.compare()
            except Exception:  # noqa: BLE001 - a finding too
                said, problems = action.__name__, [traceback.format_exc()]
            if said is not None:
                done.append(f"{number:3} {said}")
            if world.is_lost:
                break
            if problems:
                return done, list(problems), number
    return done, [], None


def shrink(seed: int, steps: list[int], until: float) -> list[int]:
    """Fewer steps that fail as well."""
    size = max(1, len(steps) // 2)
    while size:
        place = 0
        while place < len(steps) and time.monotonic() < until:
            fewer = steps[:place] + steps[place + size :]
            _, problems, last = play(seed, fewer)
            if problems:
                steps = [step for step in fewer if step <= last]
            else:
                place += size
        size //= 2
    return steps


def replay_arguments(seed: int, steps: list[int]) -> str:
    return f"--seed {seed} --steps {','.join(map(str, steps))}"


def report(seed: int, steps: list[int], first_problems: Sequence[str]) -> None:
    """Print what a seed finds by these steps, or if they find nothing when played again, what it found at first."""
    done, problems, _ = play(seed, steps)
    problems = problems or [f"(not again by fewer steps) {problem}" for problem in first_problems]
    print(draw_config(seed))
    print("\n".join(done))
    print("\n".join(f"  differs: {problem}" for problem in problems))
    print(f"replay: {replay_arguments(seed, steps)}", flush=True)


def find(seed: int, steps: list[int], *, patience_s: float = 60) -> bool:
    """Play a seed; print what it finds."""
    _, problems, last = play(seed, steps)
    if problems:
        fewer = shrink(seed, [step for step in steps if step <= last], time.monotonic() + patience_s)
        report(seed, fewer, problems)
    return bool(problems)


def find_killed(seed: int) -> bool:
    """Play a seed of runs whose processes are killed; print what it finds."""
    done, problems = play_killed(seed)
    if problems:
        print(
            "\n".join([*done, *(f"  differs: {problem}" for problem in problems), f"replay: --killed {seed}"]),
            flush=True,
        )
    return bool(problems)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="The random machine of Dagster's lifecycle.")
    parser.add_argument("--minutes", type=float, default=1, help="of processor time")
    parser.add_argument("--seed", type=int, help="play this seed alone")
    parser.add_argument("--from", type=int, dest="first", help="the first of the seeds; any by default")
    parser.add_argument("--steps", help="numbers of steps, with commas between; all by default")
    parser.add_argument("--killed", type=int, help="play this seed of runs whose processes are killed")
    parser.add_argument("--patience", type=float, default=60, help="seconds in which a failure is made shorter")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first seed that finds something")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        steps = [int(step) for step in arguments.steps.split(",")] if arguments.steps else list(range(STEPS))
        if arguments.steps:
            report(arguments.seed, steps, ())
            sys.exit(bool(play(arguments.seed, steps)[1]))
        sys.exit(find(arguments.seed, steps, patience_s=arguments.patience))
    if arguments.killed is not None:
        sys.exit(find_killed(arguments.killed))
    end, seeds, failures = processor_seconds() + 60 * arguments.minutes, 0, 0
    seed = random.randrange(10**6) if arguments.first is None else arguments.first
    while processor_seconds() < end:
        failures += find(seed, list(range(STEPS)), patience_s=arguments.patience)
        failures += seed % SEEDS_PER_KILLED == 0 and find_killed(seed)
        seeds, seed = seeds + 1, seed + 1
        if failures and not arguments.go_on:
            break
    print(f"{seeds} seeds of {STEPS} steps, {failures} found something")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
