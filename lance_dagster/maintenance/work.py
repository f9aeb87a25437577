"""Records that the ops of a maintenance job exchange: the work on one table, and the survey of all tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.properties import ASSET_KEY, MAINTENANCE_METADATA

if TYPE_CHECKING:
    from lance_core.maintenance import MaintenanceReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """The work on one table, and what Dagster knows of it.

    Attributes:
        report: The report of the steps so far.
        owners: The assets to which the table belongs, by a definition or by its commits; empty if they are unknown.
        other_assets: Further known assets that share the table, such as one that owns columns of it.
        is_asset: Whether the job or the code location has an asset for the table, which otherwise is only in a listing.
        is_defined: Whether the owners come from a definition that the run knows, and not from the table's commits.
        expired_partitions: The partitions of which the last row was deleted, by asset.
        maintenance_metadata: The metadata `lance/maintenance` of the owner, as JSON; None if it has none.
    """

    report: MaintenanceReport
    owners: Sequence[str] = ()
    other_assets: Sequence[str] = ()
    is_asset: bool = True
    is_defined: bool = True
    expired_partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    maintenance_metadata: str | None = None

    @property
    def asset(self) -> str:
        """The key of the asset by which the run knows the table."""
        return self.report.plan.table

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do; with `require_search` also where an index that is due cannot be built."""
        report, plan = self.report, self.report.plan
        must_fail = plan.policy.require_search and not plan.policy.dry_run
        return plan.is_due or (must_fail and bool(plan.indices_missing or report.index_problems))

    def owner_properties(self) -> dict[str, str]:
        """The transaction properties that name the owners of the table; empty if they are unknown."""
        if not self.owners:
            return {}
        owners = self.owners[0] if len(self.owners) == 1 else json.dumps(list(self.owners))
        metadata = {} if self.maintenance_metadata is None else {MAINTENANCE_METADATA: self.maintenance_metadata}
        return {ASSET_KEY: owners, **metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSurvey:
    """The result of the op `plan` of a maintenance job; each table is in exactly one list.

    Attributes:
        policy: The policy of the job, as changed by the configuration of the run.
        due: The tables to work on.
        finished: The reports of tables that end with the survey: healthy, put off as a whole, or of a dry run.
        absent: The tables that do not exist.
        left_alone: The tables that their metadata or policy excludes.
    """

    policy: LanceMaintenancePolicy
    due: list[TableWork] = field(default_factory=list)
    finished: list[MaintenanceReport] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
