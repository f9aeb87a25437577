"""`build_lance_freshness_checks`: whether main has got new rows lately, whatever branches were written meanwhile."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

import dagster as dg

from lance_dagster.checks.table_check import Finding, parse_limit, table_check
from lance_dagster.tables.refs import TableLike, TableRef, table_refs, table_root
from lance_dagster.tables.write_events import read_write_events

if TYPE_CHECKING:
    import lance_core

_EVENTS: Final = 100
"""The most events that are read to find when a version was recorded that was cleaned up."""


def build_lance_freshness_checks(
    assets: Iterable[TableLike] | TableLike,
    max_age: str | timedelta = "1d",
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that the rows of assets on main have been written within some time.

    The table itself is asked: the newest commit that wrote or removed rows counts, of Dagster or of others, and a
    promotion when it was made. Commits that write no row and remove none, maintenance, undos, erasures and new types of
    columns do not count, and neither do writes to a branch and discards, which Dagster's own freshness takes for
    updates. In a run on a branch main is looked at as well.

    Args:
        assets: Assets, specs or keys.
        max_age: Time after which the rows are too old: a string such as "1d" or "36h", or a timedelta.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the tables are.

    Raises:
        ValueError: `max_age` is not a length of time, or not positive.

    Examples:
        >>> checks = lance_dagster.build_lance_freshness_checks(["nyc/flights"], "36h")
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_freshness']
    """
    limit = parse_limit(max_age)
    return [_build_freshness_check(ref, limit, severity, io_manager_key) for ref in table_refs(assets)]


def _build_freshness_check(
    ref: TableRef, limit: timedelta, severity: dg.AssetCheckSeverity, io_manager_key: str
) -> dg.AssetChecksDefinition:
    description = f"The rows on main were written within {limit}."

    @table_check(ref, "lance_freshness", description, severity, io_manager_key)
    def freshness(context: dg.AssetCheckExecutionContext) -> Finding | None:
        main = table_root(getattr(context.resources, io_manager_key)).open_or_none(ref.resolved(context))
        if main is None:
            return None
        written = _find_last_write(context.instance, main, ref)
        if written is None:
            said = f"no commit to {main.uri} that wrote rows of the asset is known: none was made, or it was cleaned up"
            return Finding(False, said)
        version, time = written
        age = datetime.now(UTC) - time
        return Finding(
            passed=age <= limit,
            description=(
                f"version {version} of main wrote rows {timedelta(seconds=int(age.total_seconds()))} ago, the limit is "
                f"{limit}"
            ),
            metadata={
                "lance/version": version,
                "lance/age_s": age.total_seconds(),
                "dagster/last_updated_timestamp": dg.TimestampMetadataValue(time.timestamp()),
            },
        )

    return freshness


def _find_last_write(
    instance: dg.DagsterInstance, main: "lance_core.LanceDataset", ref: TableRef
) -> tuple[int, datetime] | None:
    """The newest version of main that wrote rows of an asset, and when; None if it is not known.

    If that version was cleaned up, it counts as written when Dagster recorded its event.
    """
    from lance_dagster.lineage.history import is_change_lost, last_data_change, read_history  # noqa: PLC0415 - heavy
    from lance_dagster.lineage.table_life import is_about_another  # noqa: PLC0415 - heavy imports
    from lance_dagster.properties import BEGUN_EMPTY, ERASURE, MAINTENANCE  # noqa: PLC0415 - heavy imports

    undone: set[int] = set()
    seen: set[int] = set()
    for commit in read_history(main):
        seen.add(commit.version)
        undone.update(commit.undone_versions)
        is_other = (
            commit.keeps_rows
            or commit.touches_no_rows
            or commit.undid is not None
            or commit.properties.keys() & {ERASURE, MAINTENANCE}
            or commit.version in undone
        )
        begins = commit.properties.get(BEGUN_EMPTY[0]) == BEGUN_EMPTY[1]
        if not is_other and not begins and (not commit.assets or ref.name in commit.assets):
            if is_change_lost(main, commit.version):
                break
            return commit.version, commit.time
    version = last_data_change(main)
    if version in seen:
        return None
    for event in islice(read_write_events(instance, ref.key, _EVENTS), _EVENTS):
        if event.branch is None and event.version == version and not is_about_another(event.data_version, main):
            return version, datetime.fromtimestamp(event.record.timestamp, UTC)
    return None
