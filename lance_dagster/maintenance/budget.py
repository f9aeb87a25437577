"""`LanceMaintenanceBudget`: the limits of a run of a maintenance job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster.health.policy import check_fields, parse_age
from lance_dagster.tables.arguments import field_with_description

if TYPE_CHECKING:
    from lance_core.maintenance import MaintenanceBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceMaintenanceBudget:
    """The limits of a run; work beyond them is put off, and comes first in the next run.

    Attributes:
        max_bytes_rewritten: The most bytes of data files that all rewrites of the run read.
        max_duration: The time after which no further rewrite or step of a table begins: a string such as "2h", or a
            timedelta.
        max_tables: The most tables that the run works on.

    Raises:
        ValueError: A value is of the wrong type or out of range.
    """

    max_bytes_rewritten: int | None = field_with_description(None, "The most bytes that all rewrites of a run read.")
    max_duration: str | timedelta | None = field_with_description(
        None, 'The time after which no rewrite or step begins, such as "2h".'
    )
    max_tables: int | None = field_with_description(None, "The most tables that a run works on.")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        check_fields(self)
        if self.max_duration is not None and self.duration is None:
            raise ValueError(f"max_duration must be a positive duration or None, not {self.max_duration!r}")

    @property
    def duration(self) -> timedelta | None:
        """`max_duration` as a timedelta; None for no limit."""
        return parse_age(self.max_duration)

    def changed(self, overrides: Mapping[str, Any]) -> LanceMaintenanceBudget:
        """This budget with some fields changed."""
        return replace(self, **overrides)

    def to_core(self) -> MaintenanceBudget:
        """The budget for `lance_core.maintenance`, which has the same fields."""
        from lance_core.maintenance import MaintenanceBudget  # noqa: PLC0415 - code locations load without it

        return MaintenanceBudget(**asdict(self))


def checked_budget(
    budget: LanceMaintenanceBudget | Mapping[str, Any] | None, label: str = "budget"
) -> LanceMaintenanceBudget:
    """The budget for an argument: the budget itself, or one from a mapping of its fields; without limits for None.

    Raises:
        DagsterInvalidDefinitionError: The value is neither a budget nor a mapping of its fields, or a limit is invalid.
    """
    if budget is None or isinstance(budget, LanceMaintenanceBudget):
        return budget or LanceMaintenanceBudget()
    field_names = [field.name for field in fields(LanceMaintenanceBudget)]
    if not isinstance(budget, Mapping) or set(budget) - set(field_names):
        raise dg.DagsterInvalidDefinitionError(
            "budget must be a LanceMaintenanceBudget, or a mapping of its fields "
            f"{', '.join(field_names)}, not {budget!r}"
        )
    try:
        return LanceMaintenanceBudget(**budget)
    except ValueError as error:
        raise dg.DagsterInvalidDefinitionError(f"{label}: {error}") from error
