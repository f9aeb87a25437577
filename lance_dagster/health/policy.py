"""`LanceMaintenancePolicy`: the steps of maintenance, and the thresholds from which a table needs it.

The policy of a job is changed for one asset by its metadata `lance/maintenance`: a mapping of fields of the policy, a
whole policy, or False, with which the table is not maintained. Its metadata `lance/indices` stand in place of the
`indices` of all these. Then the configuration of a run changes the policy for the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import dagster as dg

from lance_dagster.tables.arguments import field_with_description
from lance_dagster.tables.names import near_name, plain_metadata
from lance_dagster.tables.refs import INDEX_ON_WRITE_KEY, INDICES_KEY, MAINTENANCE_KEY

if TYPE_CHECKING:
    from lance_core.maintenance import MaintenancePolicy

NEVER: Final = "never"

_TOGETHER: Final = (("expire_rows_older_than", "expire_by"), ("move_older_than", "move_by", "move_to"))
"""The fields of a policy that are given together, or not at all."""

_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Zµ]+)\s*")
# Those of lance_core.times, as a code location does not import the core: "m" are minutes, "M" months.
_SECONDS: Final = {
    **dict.fromkeys(("ns", "nsec", "nanos"), 1e-9),
    **dict.fromkeys(("us", "usec", "µs", "micros"), 1e-6),
    **dict.fromkeys(("ms", "msec", "millis"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 7 * 86_400.0),
    **dict.fromkeys(("M", "month", "months"), 2_630_016.0),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), 31_557_600.0),
}


@dataclass(frozen=True, slots=True)
class LanceMaintenancePolicy:
    """The steps of maintenance, and the thresholds from which a table needs it.

    Attributes:
        target_rows_per_fragment: Fragments with fewer rows are small, and are merged with their neighbours; None for
            the table's own configuration, else 1,048,576.
        target_bytes_per_fragment: Fragments with at least as many bytes are large enough, even with few rows; None for
            the table's own configuration, else no such limit.
        max_bytes_per_file: Bytes after which a new file is started; None for the table's configuration, else no limit.
        materialize_deletions_threshold: A fragment is rewritten if more than this share of its rows is deleted.
        cleanup_older_than: Versions that a newer one replaced longer ago than this are removed, with the files that
            only they need: a string such as "7d" or "1h 30m", a timedelta, or None (as a string, "never") for no limit
            of age. Tagged versions, and versions that branches need, are kept.
        retain_versions: The number of newest versions that are kept, whatever their age; without `cleanup_older_than`
            all others are removed. With neither, nothing is removed.
        refresh_indices: Whether indices are extended to the rows that they do not cover.
        stable_row_ids: Whether a table without stable row ids gets them, in one commit that moves no row; branches stay
            as they are.
        expire_rows_older_than: Rows of main older than this are deleted, in one commit per run: a string such as
            "400d", a timedelta, or None ("never"). Needs `expire_by`. Tags and branches keep their versions.
        expire_by: The column of dates or timestamps by which rows expire, such as a partition column of these types; a
            null never does. A timestamp without a time zone is in UTC.
        move_older_than: The data files of fragments of main all of whose rows are older than this are moved to the base
            path `move_to`: a string such as "90d", a timedelta, or None ("never"). Needs `move_by` and `move_to`.
        move_by: The column of dates or timestamps whose largest value in a fragment is the fragment's age.
        move_to: The name of a base path of the table, or "." for the table's own folder.
        delete_rate_limit: The most files that cleanup deletes per second; None for no limit.
        delete_concurrency: The number of concurrent requests by which cleanup deletes, on S3 of 1,000 files each; None
            for 32 on object storage and one on disks.
        receipts_older_than: Rows of the log of maintenance older than this are deleted: a string, a timedelta, or None
            ("never"). Only the policy of the job counts.
        max_parallel_tasks: The most rewrites that run at a time; None lets the executor of the job decide.
        dry_run: Whether to report only what would be done.
        max_small_fragments: With more small fragments than this, a table needs maintenance.
        max_versions: With more versions than this, a table needs maintenance; a sensor counts only versions since the
            last maintenance.
        indices: The indices that a table is to have, by column: a kind such as "FTS", or a mapping with `kind`, fields
            and parameters; None for no declarations.
        drop_undeclared: Whether indices that `indices` does not have are dropped; zone maps stay.
        require_search: Whether a declared index that could not be built or kept is an error.
        index_memory: The most memory of a process that builds an index: bytes, a string such as "4GB", or None for no
            limit.
        index_timeout: The longest that one build of an index may take: seconds, a string such as "2h", a timedelta, or
            None ("never").

    Raises:
        ValueError: A value is of the wrong type or out of range.
    """

    target_rows_per_fragment: int | None = field_with_description(None, "Fragments with fewer rows are merged.")
    max_bytes_per_file: int | None = field_with_description(None, "Bytes after which a new file is started.")
    materialize_deletions_threshold: float = field_with_description(
        0.1, "Rewrite a fragment if more than this share of its rows is deleted."
    )
    cleanup_older_than: str | timedelta | None = field_with_description(
        "7d", 'Time after which versions that a newer one replaced are removed, such as "7d"; "never" for no limit.'
    )
    retain_versions: int | None = field_with_description(None, "The number of newest versions that are kept.")
    refresh_indices: bool = field_with_description(True, "Extend indices to rows that they do not cover.")
    max_parallel_tasks: int | None = field_with_description(None, "The most rewrites that run at a time.")
    dry_run: bool = field_with_description(False, "Report only what would be done.")
    max_small_fragments: int = field_with_description(4, "With more small fragments, a table needs maintenance.")
    max_versions: int = field_with_description(50, "With more versions, a table needs maintenance.")
    target_bytes_per_fragment: int | None = field_with_description(
        None, "Fragments with at least as many bytes are large enough."
    )
    delete_rate_limit: int | None = field_with_description(None, "The most files that cleanup deletes per second.")
    delete_concurrency: int | None = field_with_description(None, "The number of concurrent delete requests.")
    receipts_older_than: str | timedelta | None = field_with_description(
        "1y", 'Age after which rows of the log of maintenance are deleted; "never" for no limit.'
    )
    stable_row_ids: bool = field_with_description(False, "Give stable row ids to tables that lack them.")
    expire_rows_older_than: str | timedelta | None = field_with_description(
        None, "Delete rows of this age by the column expire_by."
    )
    expire_by: str | None = field_with_description(None, "The column of dates or timestamps by which rows expire.")
    move_older_than: str | timedelta | None = field_with_description(
        None, "Move files whose rows all have this age by the column move_by to the base path move_to."
    )
    move_by: str | None = field_with_description(None, "The column of dates or timestamps by which files move.")
    move_to: str | None = field_with_description(
        None, 'The name of the base path that files move to; "." for the table\'s own folder.'
    )
    indices: Mapping[str, Any] | None = field_with_description(
        None, "The indices that the table is to have: kinds and parameters by column."
    )
    drop_undeclared: bool = field_with_description(False, "Drop indices that are not declared; zone maps stay.")
    require_search: bool = field_with_description(False, "Fail if a declared index could not be built or kept.")
    index_memory: str | int | None = field_with_description(
        None, 'The most memory of a process that builds an index, such as "4GB".'
    )
    index_timeout: str | float | timedelta | None = field_with_description(
        "1d", 'The longest that one build of an index may take, such as "2h"; "never" for no limit.'
    )

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        """Reject unknown arguments, naming the nearest known argument."""
        field_names = [field.name for field in fields(cls)]
        unknown = [name for name in arguments if name not in field_names]
        if unknown:
            raise TypeError(
                f"LanceMaintenancePolicy has no argument {unknown[0]!r}; it has {', '.join(field_names)}"
                f"{near_name(unknown[0], field_names)}"
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Reject invalid values."""
        check_fields(self)
        share = self.materialize_deletions_threshold
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ValueError(f"materialize_deletions_threshold must be a share between 0 and 1, not {share!r}")
        for names in _TOGETHER:
            missing = [name for name in names if getattr(self, name) is None]
            if 0 < len(missing) < len(names):
                raise ValueError(f"{' and '.join(names)} go together: give {' and '.join(missing)} as well")
        if self.indices is not None or self.index_memory is not None:
            self.to_core()  # which checks them

    @property
    def age(self) -> timedelta | None:
        """`cleanup_older_than` as a timedelta; None for no limit of age."""
        return parse_age(self.cleanup_older_than)

    def changed(self, overrides: Mapping[str, Any], *, where: str) -> LanceMaintenancePolicy:
        """This policy with some fields changed.

        Args:
            overrides: Fields and values.
            where: The source of the fields, for messages.

        Raises:
            DagsterInvalidDefinitionError: A field is unknown, or its value is invalid.
        """
        field_names = [field.name for field in fields(self)]
        unknown = sorted(set(overrides) - set(field_names))
        if unknown:
            raise dg.DagsterInvalidDefinitionError(
                f"{where}: {', '.join(map(repr, unknown))} is not a field of a LanceMaintenancePolicy; its fields are "
                f"{', '.join(field_names)}{near_name(unknown[0], field_names)}"
            )
        try:
            return replace(self, **overrides)
        except ValueError as error:
            raise dg.DagsterInvalidDefinitionError(f"{where}: {error}") from error

    def to_core(self) -> MaintenancePolicy:
        """The policy for `lance_core.maintenance`, of the same fields; assets may declare the indices of a job."""
        from lance_core.maintenance import MaintenancePolicy  # noqa: PLC0415 - code locations load without it

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return MaintenancePolicy(**values | {"drop_undeclared": self.drop_undeclared and self.indices is not None})


def parse_age(age: str | timedelta | None) -> timedelta | None:
    """Read an age such as "14d" or "1h 30m"; "never" is None. A value that is no string is returned as it is.

    Raises:
        ValueError: The string is not a duration.
    """
    if not isinstance(age, str):
        return age
    if age.strip().lower() == NEVER:
        return None
    parts = list(_PART.finditer(age))
    if not parts or "".join(part[0] for part in parts) != age or any(part[2] not in _SECONDS for part in parts):
        raise ValueError(f'{age!r} is not a duration; write "7d", "12h" or "1h 30m", or "{NEVER}"')
    try:
        return timedelta(seconds=sum(float(part[1]) * _SECONDS[part[2]] for part in parts))
    except OverflowError as error:
        raise ValueError(f'{age!r} is longer than {timedelta.max.days:,} days; write "{NEVER}"') from error


def policy_of(
    policy: LanceMaintenancePolicy, metadata: Mapping[str, Any] | None, *, label: str
) -> LanceMaintenancePolicy | None:
    """The policy for one asset; None if its metadata `lance/maintenance` is False.

    Args:
        policy: The policy of the job.
        metadata: The asset's definition metadata; `lance/maintenance` and `lance/indices` are used.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: `lance/maintenance` is neither a policy, a mapping of its fields, True nor False,
            `lance/indices` declares no indices that are possible, or `lance/index_on_write` is invalid.
    """
    policy_of_writes(metadata, label=label)
    return _apply_metadata(policy, metadata, label)


def policy_of_writes(metadata: Mapping[str, Any] | None, *, label: str) -> MaintenancePolicy | None:
    """The policy by which writes of an asset build and extend indices; None without `lance/index_on_write`.

    Args:
        metadata: The asset's definition metadata.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: `lance/index_on_write` is not a bool, or the asset declares no indices.
    """
    value: Any = plain_metadata((metadata or {}).get(INDEX_ON_WRITE_KEY, False))
    if not isinstance(value, bool):
        raise dg.DagsterInvalidDefinitionError(f"{label}: metadata {INDEX_ON_WRITE_KEY} must be a bool, not {value!r}")
    if not value:
        return None
    defaults = LanceMaintenancePolicy()
    indices = {INDICES_KEY: (metadata or {}).get(INDICES_KEY)}
    policy = _apply_metadata(defaults, metadata, label) or _apply_metadata(defaults, indices, label)
    if policy is None or not policy.indices:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {INDEX_ON_WRITE_KEY} needs indices: declare them by the metadata {INDICES_KEY}"
        )
    return policy.to_core()


def _apply_metadata(
    policy: LanceMaintenancePolicy, metadata: Mapping[str, Any] | None, label: str
) -> LanceMaintenancePolicy | None:
    value: Any = plain_metadata((metadata or {}).get(MAINTENANCE_KEY))
    indices: Any = plain_metadata((metadata or {}).get(INDICES_KEY))
    if indices is not None:
        where = f"{label}: metadata {INDICES_KEY}"
        policy = policy.changed({"indices": indices}, where=where)
        if isinstance(value, LanceMaintenancePolicy):
            value = value.changed({"indices": indices}, where=where)
        elif isinstance(value, Mapping):
            value = {**value, "indices": indices}
    if value is None or value is True:
        return policy
    if value is False:
        return None
    if isinstance(value, LanceMaintenancePolicy):
        return value
    if not isinstance(value, Mapping):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {MAINTENANCE_KEY} must be a LanceMaintenancePolicy, a mapping of its fields, True or "
            f"False, not {value!r}"
        )
    return policy.changed(value, where=f"{label}: metadata {MAINTENANCE_KEY}")


def recorded_metadata(metadata: Mapping[str, Any] | None) -> str | None:
    """The metadata `lance/maintenance` of an asset as JSON, for runs without its definition; None if it has none.

    `lance/indices` are their `indices`.
    """
    value: Any = plain_metadata((metadata or {}).get(MAINTENANCE_KEY))
    indices: Any = plain_metadata((metadata or {}).get(INDICES_KEY))
    if isinstance(value, LanceMaintenancePolicy):
        value = asdict(value)
    if indices is not None and value is not False:
        value = {**(value if isinstance(value, Mapping) else {}), "indices": indices}
    return None if value is None else json.dumps(value, default=_to_json, sort_keys=True)


def _to_json(value: object) -> object:
    """A value for JSON: a timedelta as an age, a mapping as a dict, any other value as a string."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.6f}s"
    return dict(value) if isinstance(value, Mapping) else str(value)


def check_fields(record: Any) -> None:
    """Reject counts that are not positive, flags that are not booleans, and ages that are no durations.

    Args:
        record: A policy or a budget.

    Raises:
        ValueError: A value is of the wrong type or out of range.
    """
    for each in fields(record):
        value, kind = getattr(record, each.name), str(each.type)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if kind in ("int", "int | None") and not is_count and (value is not None or kind == "int"):
            or_none = " or None" if kind != "int" else ""
            raise ValueError(f"{each.name} must be a positive number{or_none}, not {value!r}")
        if kind == "bool" and not isinstance(value, bool):
            raise ValueError(f"{each.name} must be True or False, not {value!r}")
        if kind == "str | None" and value is not None and not (isinstance(value, str) and value):
            raise ValueError(f"{each.name} must be a name or None, not {value!r}")
        is_number = is_count or (isinstance(value, float) and value > 0)
        if "timedelta" in kind and not (is_number and "float" in kind):
            age = parse_age(value)
            if age is not None and (not isinstance(age, timedelta) or age <= timedelta(0)):
                raise ValueError(f"{each.name} must be a positive duration, not {value!r}")
