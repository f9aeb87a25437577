"""The code location under test: `events`, `totals` that reads it, their checks and the jobs of branches.

What the bodies do is said by the script of the run; what they read and write is reported to the model.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import dagster as dg
import pyarrow as pa

from lance_core.verbs.refs.branches import Branches
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceMaintenancePolicy,
    build_branch_jobs,
    build_branch_sensor,
    build_maintenance_job,
    build_undo_job,
)
from tests.machines.dagster_life.stage import me

PARTITIONS = ("a", "b", "c")
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("n", pa.int64())])
TABLES = ("events", "totals")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a code location is made with; drawn once for each seed."""

    partitioned: bool
    mode: str
    policy: str
    empty_output: str
    read: str
    stable_row_ids: bool
    check_partitioned: bool
    checks: bool
    on_failure: str
    switches: frozenset[str] = frozenset()

    def branching(self) -> BranchPolicy:
        if self.policy == "from_tag":
            return BranchPolicy.from_tag()
        if self.policy == "env":
            return BranchPolicy.env("LANCE_LIFE_BRANCH")
        return getattr(BranchPolicy, self.policy)()

    def blocking(self, table: str) -> list[tuple[str, bool]]:
        """The blocking checks of an asset, and whether each is partitioned."""
        return [("good", self.partitioned and self.check_partitioned)] if self.checks and table == "events" else []


WORLD: list = []
"""The world whose runs are executed, at most one: resources are made from their configuration alone."""


class WatchedManager(LanceIOManager):
    """Reports each write to the world, before and after it."""

    def create_io_manager(self, context):
        manager = super().create_io_manager(context)
        handle = manager.handle_output

        def watched(context, value):
            actor, world = me(), WORLD[0]
            asset = context.asset_key.path[-1]
            write = world.writes[context.run_id, asset]
            actor.reach(f"{asset} writes")
            world.begin_write(write)
            try:
                handle(context, value)
            except BaseException as error:
                world.end_write(write, error)
                raise
            world.end_write(write, None)
            actor.reach(f"{asset} committed")

        manager.handle_output = watched
        return manager


@contextlib.contextmanager
def watched_promotions() -> Iterator[None]:
    """A run can stop before it promotes a table, after its gate was judged."""
    promote = Branches.promote

    def watched(self, *args, **options):
        actor = me()
        if actor is not None and not options.get("dry_run"):
            actor.reach("promotes")
        return promote(self, *args, **options)

    with mock.patch.object(Branches, "promote", watched):
        yield


def to_table(rows: Counter) -> pa.Table:
    columns = zip(*sorted(rows.elements()), strict=True) if rows else ((), (), ())
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def to_rows(table: pa.Table) -> Counter:
    return Counter(zip(*(table[name].to_pylist() for name in SCHEMA.names), strict=True))


def manager(config: Config, root: str) -> WatchedManager:
    return WatchedManager(
        root_uri=root,
        default_load_type="pyarrow",
        branching=config.branching(),
        read=config.read,
        stable_row_ids=config.stable_row_ids,
    )


def definitions(config: Config, root: str) -> dg.Definitions:
    """The code location."""
    partitions = dg.StaticPartitionsDefinition(list(PARTITIONS)) if config.partitioned else None
    metadata = {"partition_expr": "p"} if config.partitioned else {}
    backfills = {"backfill_policy": dg.BackfillPolicy.multi_run(1)} if config.partitioned else {}

    @dg.asset(
        partitions_def=partitions,
        metadata={
            **metadata,
            **({"lance/merge_on": ["p", "k"]} if config.mode == "merge" else {}),
            "lance/write_mode": config.mode,
            "lance/empty_output": config.empty_output,
        },
        **backfills,
    )
    def events(context):
        yield from WORLD[0].compute(context, "events", None)

    @dg.asset(partitions_def=partitions, metadata=metadata, **backfills)
    def totals(context, events: pa.Table):
        yield from WORLD[0].compute(context, "totals", events)

    options = {"partitions_def": partitions} if config.check_partitioned and config.partitioned else {}

    @dg.asset_check(asset=events, blocking=True, **options)
    def good(context, events: pa.Table) -> dg.AssetCheckResult:
        return WORLD[0].check(context, "good", events)

    assets = [events, totals]
    jobs = build_branch_jobs(assets)
    policy = LanceMaintenancePolicy(cleanup_older_than="1ms", max_small_fragments=1, max_versions=1)
    others = [build_maintenance_job(assets, policy), build_undo_job(assets)]
    return dg.Definitions(
        assets=assets,
        asset_checks=[good] if config.checks else [],
        jobs=[*jobs, *others],
        sensors=[build_branch_sensor(assets, jobs, on_failure=config.on_failure)],
        resources={"io_manager": manager(config, root)},
        executor=dg.in_process_executor,
    )
