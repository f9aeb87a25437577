"""The code location under test: `events`, `totals` that reads it, `letters` that waits for it, two assets in one table,
their checks and jobs.

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
    build_audited_job,
    build_branch_jobs,
    build_branch_sensor,
    build_erasure_job,
    build_lance_freshness_checks,
    build_lance_health_checks,
    build_maintenance_job,
    build_undo_job,
    lance_eager,
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
    single_run: bool
    audited: bool
    automated: bool
    shared: str
    health: bool
    narrowed: bool = False
    loads_in_body: bool = False
    focus: str = ""
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

    @property
    def shares_overwrite(self) -> bool:
        """Whether two assets without partitions would replace each other's rows."""
        return self.shared == "overwrite"


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
            if asset not in TABLES:
                return handle(context, value)
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
            return None

        manager.handle_output = watched
        return manager


@contextlib.contextmanager
def watched_promotions() -> Iterator[None]:
    """A run can stop before it promotes a table, after its gate was judged; those of audited jobs are reported."""
    promote = Branches.promote

    def watched(self, *args, **options):
        actor = me()
        if actor is None or options.get("dry_run"):
            return promote(self, *args, **options)
        actor.reach("promotes")
        table = next(name for name in TABLES if f"/{name}.lance" in self._refs.root.root)
        return WORLD[0].publish(actor, table, lambda: promote(self, *args, **options))

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


def sharing(mode: str) -> list[dg.AssetsDefinition]:
    """Two assets that write rows to one table: of all rows, of two partitions each, or of the same two partitions."""
    metadata = {"table": "common", "lance/shared_table": True}

    def make(name: str) -> dg.AssetsDefinition:
        parts, more = None, {"lance/write_mode": mode}
        if "partitions" in mode:
            prefix = name if mode == "partitions" else "common"
            parts = dg.StaticPartitionsDefinition([f"{prefix}1", f"{prefix}2"])
            more = {"partition_expr": "p"}

        @dg.asset(name=name, partitions_def=parts, metadata={**metadata, **more})
        def one(context) -> pa.Table:
            return to_table(WORLD[0].shares[context.run_id])

        return one

    return [make("left"), make("right")]


def definitions(config: Config, root: str, code: int = 0, keys: tuple[str, ...] = PARTITIONS) -> dg.Definitions:
    """The code location, with the code and the partitions of a time."""
    partitions = dg.StaticPartitionsDefinition(list(keys)) if config.partitioned else None
    metadata = {"partition_expr": "p"} if config.partitioned else {}
    policy = dg.BackfillPolicy.single_run() if config.single_run else dg.BackfillPolicy.multi_run(1)
    options = {"partitions_def": partitions, "code_version": str(code)}
    if config.partitioned:
        options["backfill_policy"] = policy

    @dg.asset(
        metadata={
            **metadata,
            **({"lance/merge_on": ["p", "k"]} if config.mode == "merge" else {}),
            "lance/write_mode": config.mode,
            "lance/empty_output": config.empty_output,
        },
        **options,
    )
    def events(context):
        yield from WORLD[0].compute(context, "events", None)

    if config.loads_in_body:

        @dg.asset(deps=[events], metadata=metadata, **options)
        def totals(context):
            rows = context.load_asset_value(dg.AssetKey("events"), python_type=pa.Table)
            yield from WORLD[0].compute(context, "totals", rows)
    else:

        @dg.asset(metadata=metadata, **options)
        def totals(context, events: pa.Table):
            yield from WORLD[0].compute(context, "totals", events)

    @dg.asset(deps=[events], partitions_def=partitions, automation_condition=lance_eager())
    def letters() -> None: ...

    of_check = {"partitions_def": partitions} if config.check_partitioned and config.partitioned else {}

    @dg.asset_check(asset=events, blocking=True, **of_check)
    def good(context, events: pa.Table) -> dg.AssetCheckResult:
        return WORLD[0].check(context, "good", events)

    assets, checks = [events, totals], [good] if config.checks else []
    jobs = build_branch_jobs(assets)
    rules = LanceMaintenancePolicy(cleanup_older_than="1ms", max_small_fragments=1, max_versions=1)
    others = [build_maintenance_job(assets, rules), build_undo_job(assets), build_erasure_job(assets)]
    if config.audited:
        others.append(build_audited_job([*assets, *checks], name="audited", allow_unaudited=not checks))
    health = [*build_lance_health_checks([events], rules), *build_lance_freshness_checks([events], max_age="1d")]
    return dg.Definitions(
        assets=[*assets, *([letters] if config.automated else []), *(sharing(config.shared) if config.shared else [])],
        asset_checks=[*checks, *(health if config.health else [])],
        jobs=[*jobs, *others],
        sensors=[build_branch_sensor(assets, jobs, on_failure=config.on_failure)],
        resources={"io_manager": manager(config, root)},
        executor=dg.in_process_executor,
    )
