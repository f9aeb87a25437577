"""The gate of checks: which results of checks allow the promotion of a version of a branch. A pure function of records.

    rows      the versions that changed and that replaced each part of the rows of an asset: a partition, or REST
    results   what checks said, and the version and partitions of the branch that each of them read

A passed result counts for a part of the rows if it read the part at the version that changed it last, or later. A
failure counts until the part is replaced. Of the results that count for a part, the newest one decides, whatever else
their runs have read. Each part that the branch changed needs a result of each blocking check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

Part = str | None

REST: Final = None
"""The part of the rows that is in no named partition; only a result that read all rows counts for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The conditions for the promotion of a branch.

    Attributes:
        require_checks: Whether checks count: a failed one, and a blocking one that has not passed on the version of the
            branch.
        max_commit_drift: The most commits that main may have had since the fork; None for any number.
        min_row_ratio: The fewest rows that the branch may have, as a fraction of main's; None for any number.
        max_row_ratio: The most rows that the branch may have, as a fraction of main's; None for any number.
    """

    require_checks: bool = True
    max_commit_drift: int | None = None
    min_row_ratio: float | None = None
    max_row_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRows:
    """The rows of an asset that a branch has changed.

    Attributes:
        changed: The parts that the branch has changed, each with the newest version that did.
        replaced: The parts that the branch has replaced, each with the newest version that did.
        table_replaced: The newest version that replaced the whole table; 0 if none did.
    """

    changed: Mapping[Part, int]
    replaced: Mapping[Part, int] = field(default_factory=dict)
    table_replaced: int = 0

    def changed_at(self, part: Part) -> int:
        """The newest version that changed a part; 0 if the branch has not changed it."""
        return max(self.changed.get(part, 0), self.table_replaced)

    def replaced_at(self, part: Part) -> int:
        """The newest version that replaced all rows of a part; 0 if the branch has not replaced them."""
        return max(self.replaced.get(part, 0), self.table_replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A result of a check in a run on the branch.

    Attributes:
        check: The name of the check.
        order: Orders results: the number of the run, and that of the event in its log.
        run_id: The run.
        passed: Whether the check passed, or only warned.
        version: The version of the branch that was read; None if what was read is not known.
        partitions: The partitions whose rows were read; None for all rows.
    """

    check: str
    order: tuple[int, int]
    run_id: str
    passed: bool
    version: int | None
    partitions: Collection[str] | None = None

    def covers(self, part: Part) -> bool:
        """Whether the check read a part of the rows, at any version."""
        return self.partitions is None or part in self.partitions

    def counts_for(self, part: Part, rows: ChangedRows) -> bool:
        """Whether the result is about a part of the rows as it is now; if what was read is not known, a failure is."""
        if self.version is None:
            return not self.passed
        return self.version >= (rows.changed_at(part) if self.passed else rows.replaced_at(part))

    def overrules(self, before: CheckResult) -> bool:
        """Whether this result decides instead of another one: it read a later version, or the same one later."""
        if self.version is None or before.version is None:
            return self.order > before.order
        return (self.version, self.order) > (before.version, before.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProblem:
    """The reason why a check rejects a branch.

    Attributes:
        check: The name of the check.
        result: The failure; None if there is no result.
        partitions: The partitions that it is about; empty for all rows.
        last: The newest result of the check if none is about the rows as they are; None if there is no result at all.
    """

    check: str
    result: CheckResult | None
    partitions: tuple[str, ...] = ()
    last: CheckResult | None = None


def check_problems(
    rows: ChangedRows, blocking: Collection[str], results: Iterable[CheckResult]
) -> Iterator[CheckProblem]:
    """The checks of an asset that reject a version of a branch: those that failed, and blocking ones without a result.

    Args:
        rows: The rows that the branch has changed, up to that version.
        blocking: The names of the asset's blocking checks.
        results: The results of all checks of the asset in runs on the branch.
    """
    by_check: dict[str, list[CheckResult]] = {name: [] for name in blocking}
    for result in sorted(results, key=lambda result: result.order):
        by_check.setdefault(result.check, []).append(result)
    for name, same in sorted(by_check.items()):
        deciding = _find_deciding_results(rows, same)
        failures = {result.order: result for result in deciding.values() if not result.passed}
        for failure in failures.values():
            parts = [part for part, result in deciding.items() if result is failure]
            yield CheckProblem(check=name, result=failure, partitions=_name_partitions(parts))
        missing = [part for part in rows.changed if part not in deciding] if name in blocking else []
        if missing:
            yield CheckProblem(
                check=name, result=None, partitions=_name_partitions(missing), last=same[-1] if same else None
            )


def _find_deciding_results(rows: ChangedRows, results: Collection[CheckResult]) -> dict[Part, CheckResult]:
    """The result of one check that decides about each part of the rows; a part without a result is missing.

    Args:
        rows: The rows that the branch has changed.
        results: The results of the check, oldest first.
    """
    failed = {part for result in results if not result.passed for part in result.partitions or ()}
    deciding: dict[Part, CheckResult] = {}
    for part in {REST, *rows.changed, *failed}:
        for result in results:
            before = deciding.get(part)
            if not result.covers(part):
                continue
            if result.counts_for(part, rows):
                if before is None or result.overrules(before):
                    deciding[part] = result
            elif result.version is None and before is not None and before.version is None:
                del deciding[part]  # the check passed after a failure, and of neither it is known what was read
    return deciding


def _name_partitions(parts: Iterable[Part]) -> tuple[str, ...]:
    """The partitions among parts, in order; none if the rest of the rows is among them."""
    listed = list(parts)
    return () if REST in listed else tuple(sorted(part for part in listed if part is not None))
