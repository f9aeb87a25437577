"""`build_lance_index_checks`: whether the declared indices of tables are built, cover their rows, and find them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster.checks.health import apply_own_policy, choose_checked_tables, fit_policy
from lance_dagster.checks.table_check import Finding, describe_missing_table, open_and_record_read, parse_limit
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.tables.names import mapping_key
from lance_dagster.tables.refs import TableLike, TableRef, table_refs

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import IndexDeclaration, IndexHealth, MaintenancePolicy

DECLARED: Final = "lance_indices_declared"
BUILT: Final = "lance_indices_built"
COVERED: Final = "lance_indices_covered"
RECALL: Final = "lance_index_recall"
AGE: Final = "lance_index_age"
SIZE: Final = "lance_index_size"

_DESCRIPTIONS: Final = {
    DECLARED: "Indices are declared, and each index of vectors or words is one of them.",
    BUILT: "Each declared index is there, as it is declared.",
    COVERED: "Each declared index covers enough of the rows.",
    RECALL: "The measured recall of each declared index is high enough.",
    AGE: "No segment of a declared index was built too long ago.",
    SIZE: "The files of no declared index are too large.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexLimits:
    """What the checks compare with; None for what they do not."""

    min_coverage: float
    min_recall: float | None
    max_age: timedelta | None
    max_bytes: int | None

    def names(self) -> list[str]:
        """The names of the checks."""
        optional_names = {AGE: self.max_age, SIZE: self.max_bytes}
        return [name for name in _DESCRIPTIONS if optional_names.get(name, name) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexFindings:
    """What the checks see in a version: problems by check, numbers, and sentences on indices that are not due yet."""

    problems: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in _DESCRIPTIONS})
    numbers: dict[str, Any] = field(default_factory=dict)
    not_due: list[str] = field(default_factory=list)


def build_lance_index_checks(  # noqa: PLR0913 - each is a choice of its own, most by keyword only
    assets: Iterable[TableLike] | TableLike = (),
    policy: LanceMaintenancePolicy | None = None,
    *,
    min_coverage: float = 0.95,
    min_recall: float | None = None,
    max_age: str | timedelta | None = None,
    max_bytes: int | None = None,
    root: str | bool | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    policies: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    schema: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
    namespace: Mapping[str, Any] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Checks of the declared indices of tables: declared, built, covered, recall; age and size if there is a limit.

    No file of an index is opened: recall is what the last maintenance has measured. A table with fewer rows than the
    `min_rows` of an index passes without that index.

    Args:
        assets: Assets, specs or keys.
        policy: The policy of the maintenance job, which may declare `indices`; the metadata `lance/indices` of an asset
            stand in place of them.
        min_coverage: The share of the rows that each index covers at least.
        min_recall: The least recall of each index; None for the `min_recall` of its declaration.
        max_age: The longest time since the oldest segment of an index was built: a string such as "90d", or a
            timedelta; None for no such check.
        max_bytes: The most bytes of the files of an index; None for no such check.
        root: As in `build_lance_health_checks`; tables below it for which no index is declared have no checks.
        include: As in `build_maintenance_job`.
        exclude: As in `build_maintenance_job`.
        policies: As in `build_maintenance_job`.
        storage_options: The options by which the root is reached; values can be `EnvVar`.
        schema: The IO manager's `schema`, by which the tables of assets below the root are located.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the tables are.
        namespace: As in `lance_external_assets`.

    Raises:
        DagsterInvalidDefinitionError: A declaration or the arguments of a root are invalid.
        ValueError: A limit is out of range.

    Examples:
        >>> checks = lance_dagster.build_lance_index_checks(["nyc/flights"])
        >>> sorted(key.name for check in checks for key in check.check_keys)
        ['lance_index_recall', 'lance_indices_built', 'lance_indices_covered', 'lance_indices_declared']
    """
    for name, share in (("min_coverage", min_coverage), ("min_recall", 1 if min_recall is None else min_recall)):
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ValueError(f"{name} must be a share between 0 and 1, not {share!r}")
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0):
        raise ValueError(f"max_bytes must be a positive number of bytes, not {max_bytes!r}")
    age = None if max_age is None else parse_limit(max_age)
    limits = _IndexLimits(min_coverage=min_coverage, min_recall=min_recall, max_age=age, max_bytes=max_bytes)
    choice = {"include": include, "exclude": exclude, "policies": policies, "namespace": namespace}
    refs, chosen = table_refs(assets), LanceMaintenancePolicy() if policy is None else policy
    pairs = choose_checked_tables(
        "build_lance_index_checks", refs, chosen, storage_options, schema, root=root, **choice
    )
    names = {ref.name for ref in refs}
    return [
        _build_check(ref, table_policy, limits, severity, io_manager_key, refs, is_listed=ref.name not in names)
        for ref, table_policy in pairs
        if ref.name in names or apply_own_policy(table_policy, ref).indices
    ]


def _build_check(
    ref: TableRef,
    policy: LanceMaintenancePolicy,
    limits: _IndexLimits,
    severity: dg.AssetCheckSeverity,
    io_manager_key: str,
    refs: Sequence[TableRef],
    *,
    is_listed: bool,
) -> dg.AssetChecksDefinition:
    """The checks of a table; if it is only listed below a root, it may lack the columns of the declared indices."""
    names = limits.names()

    @dg.multi_asset_check(
        name=f"lance_indices_{mapping_key(ref.name)}",
        specs=[dg.AssetCheckSpec(name, asset=ref.key, description=_DESCRIPTIONS[name]) for name in names],
        required_resource_keys={io_manager_key},
        can_subset=True,
    )
    def indices(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected = [name for name in names if dg.AssetCheckKey(ref.key, name) in context.selected_asset_check_keys]
        dataset = open_and_record_read(context, ref, io_manager_key)
        if dataset is None:
            finding = describe_missing_table(context, ref, severity)
            yield from (finding.to_result(severity, check_name=name, asset_key=ref.key) for name in selected)
            return
        table_policy = fit_policy(context, policy, ref, dataset, io_manager_key, refs)
        if not (table_policy.indices or is_listed):
            table_policy = replace(table_policy, indices=None)
        look = _look(dataset, table_policy, limits)
        for name in selected:
            problems = look.problems[name]
            notes = [_DESCRIPTIONS[name], *(look.not_due if name in (BUILT, COVERED) else ())]
            finding = Finding(not problems, "; ".join(problems) or " ".join(notes), look.numbers)
            yield finding.to_result(severity, check_name=name, asset_key=ref.key)

    return indices


def _look(dataset: "lance_core.LanceDataset", policy: "MaintenancePolicy", limits: _IndexLimits) -> _IndexFindings:
    """Look at the indices of a version."""
    from lance_core import maintenance  # noqa: PLC0415 - heavy imports at first use

    look = _IndexFindings(numbers={"lance/version": dataset.version})
    survey = maintenance.survey_declared(dataset, policy)
    if survey is None:
        look.problems[DECLARED].append(
            "no index is declared on a column of the table: give the asset the metadata lance/indices"
        )
        return look
    facts, due_actions = survey.facts, {action.name: action for action in survey.actions}
    undeclared = [
        name
        for name, index in facts.present.items()
        if name not in survey.names and maintenance.IndexDeclaration(column="", kind=index.kind).needs_pylance
    ]
    look.problems[DECLARED].extend(f"index {name!r} is not declared" for name in undeclared)
    built_at = {index.name: [each.created_at for each in index.segments] for index in dataset.describe_indices()}
    states = {state.name: state for state in maintenance.describe_index_health(dataset)}
    for name, declaration in survey.names.items():
        index, action = facts.present.get(name), due_actions.get(name)
        if index is not None and (index.kind, index.metric) != (declaration.kind, declaration.metric):
            look.problems[BUILT].append(f"index {name!r} is of kind {index.kind}, metric {index.metric}")
        elif action is not None and (index is None or action.action in ("rebuild", "reject")):
            look.problems[BUILT].append(f"index {name!r}: {action.reason}")
        if index is None and action is None:
            least = declaration.min_rows
            look.not_due.append(f"Index {name!r} is missing until {least:,} rows have a value: each row is searched.")
        if index is not None:
            oldest = min((each for each in built_at[name] if each is not None), default=None)
            _compare(look, declaration, states[name], oldest, limits)
    return look


def _compare(
    look: _IndexFindings,
    declaration: "IndexDeclaration",
    state: "IndexHealth",
    oldest: datetime | None,
    limits: _IndexLimits,
) -> None:
    """Compare an index that is built with the limits."""
    name, recall, size = state.name, state.recall, state.size_bytes
    value = None if recall is None else recall["value"]
    least = declaration.min_recall if limits.min_recall is None else limits.min_recall
    look.numbers[f"lance/index_unindexed_fraction/{name}"] = 1 - state.covered
    numbers = {f"lance/index_recall/{name}": value, f"lance/index_bytes/{name}": size}
    look.numbers.update({key: number for key, number in numbers.items() if number is not None})
    if state.covered < limits.min_coverage:
        look.problems[COVERED].append(f"index {name!r} covers {state.covered:.1%} of the rows")
    if recall is None and (declaration.is_vector or declaration.kind == "FTS"):
        look.problems[RECALL].append(f"the recall of index {name!r} was never measured")
    elif recall is not None and value is not None and least is not None and value < least:
        attempts = f"; with other settings: {recall['note']}" if recall["note"] else ""
        look.problems[RECALL].append(f"the recall of index {name!r} is {value:.3f}, below {least}{attempts}")
    if limits.max_age is not None and oldest is not None and datetime.now(UTC) - oldest > limits.max_age:
        look.problems[AGE].append(f"a segment of index {name!r} was built at {oldest:%Y-%m-%d %H:%M}")
    if limits.max_bytes is not None and size is not None and size > limits.max_bytes:
        look.problems[SIZE].append(f"the files of index {name!r} have {size:,} bytes")
