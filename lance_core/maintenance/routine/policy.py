"""`MaintenancePolicy`, the steps of maintenance with their thresholds, and `MaintenanceBudget`, the limits of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

from lance_core.errors import InvalidInputError
from lance_core.maintenance.search.declaration import IndexDeclaration, parse_declarations
from lance_core.times import parse_duration

TOGETHER: Final = (("expire_rows_older_than", "expire_by"), ("move_older_than", "move_by", "move_to"))
"""The fields of a policy that are given together, or not at all."""

_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?i?B)?", re.IGNORECASE)
_UNITS: Final = {
    f"{prefix}{middle}B": base**power
    for power, prefix in enumerate(("", "K", "M", "G", "T"))
    for middle, base in (("", 1000), ("I", 1024))
}


def _field_with_description(default: Any, description: str) -> Any:
    """A field with the description that `lance maintain` shows for its option."""
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """The steps of maintenance, and the thresholds from which a table needs it.

    Attributes:
        target_rows_per_fragment: Fragments with fewer rows are small, and are merged with their neighbours; None for
            the table's own configuration, else 1,048,576.
        max_bytes_per_file: Bytes after which a new file is started; None for the table's configuration, else no limit.
        materialize_deletions_threshold: A fragment is rewritten if more than this share of its rows is deleted.
        cleanup_older_than: Versions that a newer one replaced longer ago than this are removed, with the files that
            only they need: a string such as "7d" or "1h 30m", a timedelta, or None (as a string, "never") for no limit
            of age. Tagged versions, and versions that branches need, are kept.
        retain_versions: The number of newest versions that are kept, whatever their age; without `cleanup_older_than`
            all others are removed. With neither, nothing is removed.
        refresh_indices: Whether indices are extended to the rows that they do not cover.
        stable_row_ids: Whether a table without stable row ids gets them (`LanceDataset.migrate_to_stable_row_ids`);
            branches stay as they are.
        expire_rows_older_than: Rows of main older than this are deleted, in one commit per run: a string such as
            "400d", a timedelta, or None ("never"). Needs `expire_by`. Tags and branches keep their versions.
        expire_by: The column of dates or timestamps by which rows expire; a null never does. A timestamp without a
            time zone is in UTC.
        move_older_than: The data files of fragments of main all of whose rows are older than this are moved to the base
            path `move_to`: a string such as "90d", a timedelta, or None ("never"). Needs `move_by` and `move_to`.
        move_by: The column of dates or timestamps whose largest value in a fragment is the fragment's age.
        move_to: The name of a base path of the table, or "." for the table's own folder.
        max_parallel_tasks: The most rewrites that run at a time; None for a number that fits the machine.
        dry_run: Whether to report only what would be done.
        max_small_fragments: With more small fragments than this, a table needs maintenance.
        max_versions: With more versions than this, a table needs maintenance.
        target_bytes_per_fragment: Fragments with at least as many bytes are large enough, even with few rows; None for
            the table's own configuration, else no such limit.
        delete_rate_limit: The most files that cleanup deletes per second; None for no limit.
        delete_concurrency: The number of concurrent requests by which cleanup deletes, on S3 of 1,000 files each; None
            for 32 on object storage and one on disks.
        receipts_older_than: Rows of the log of maintenance older than this are deleted: a string, a timedelta, or None
            ("never").
        indices: The indices that a table is to have, by column: a kind such as "FTS", or a mapping with `kind` and
            fields of an `IndexDeclaration`; None for no declarations.
        drop_undeclared: Whether indices that `indices` does not have are dropped; zone maps stay.
        require_search: Whether a declared index that could not be built or kept is an error.
        index_memory: The most memory of a process that builds an index: bytes, a string such as "4GB", or None for no
            limit.
        index_timeout: The longest that one build of an index may take: seconds, a string such as "2h", a timedelta, or
            None ("never").

    Raises:
        InvalidInputError: A value is of the wrong type or out of range.

    Examples:
        >>> maintenance.MaintenancePolicy(cleanup_older_than="1d").age
        datetime.timedelta(days=1)
    """

    target_rows_per_fragment: int | None = _field_with_description(
        None, "Fragments with fewer rows are merged.  [1048576]"
    )
    max_bytes_per_file: int | None = _field_with_description(None, "Bytes after which a new file is started.")
    materialize_deletions_threshold: float = _field_with_description(
        0.1, "Rewrite a fragment if more than this share of its rows is deleted.  [0.1]"
    )
    cleanup_older_than: str | timedelta | None = _field_with_description(
        "7d", 'Remove versions that a newer one replaced longer ago than this; "never" for no limit.  [7d]'
    )
    retain_versions: int | None = _field_with_description(None, "The number of newest versions that are kept.")
    refresh_indices: bool = _field_with_description(
        True, "Extend indices to rows that they do not cover.  [refresh-indices]"
    )
    max_parallel_tasks: int | None = _field_with_description(None, "The most rewrites that run at a time.")
    dry_run: bool = _field_with_description(False, "Only say what would be done.")
    max_small_fragments: int = _field_with_description(4, "With more small fragments, a table needs maintenance.  [4]")
    max_versions: int = _field_with_description(50, "With more versions, a table needs maintenance.  [50]")
    target_bytes_per_fragment: int | None = _field_with_description(
        None, "Fragments with at least as many bytes are large enough."
    )
    delete_rate_limit: int | None = _field_with_description(None, "The most files that cleanup deletes per second.")
    delete_concurrency: int | None = _field_with_description(None, "The number of concurrent delete requests.")
    receipts_older_than: str | timedelta | None = _field_with_description(
        "1y", 'Delete rows of the log of maintenance of this age; "never" for no limit.  [1y]'
    )
    stable_row_ids: bool = _field_with_description(False, "Give stable row ids to tables that lack them.")
    expire_rows_older_than: str | timedelta | None = _field_with_description(
        None, "Delete rows of this age by the column --expire-by."
    )
    expire_by: str | None = _field_with_description(None, "The column of dates or timestamps by which rows expire.")
    move_older_than: str | timedelta | None = _field_with_description(
        None, "Move files whose rows all have this age by --move-by to the base path --move-to."
    )
    move_by: str | None = _field_with_description(None, "The column of dates or timestamps by which files move.")
    move_to: str | None = _field_with_description(
        None, 'The name of the base path that files move to; "." for the table\'s own folder.'
    )
    indices: Mapping[str, Any] | None = _field_with_description(
        None, "The indices that the table is to have: kinds and parameters by column."
    )
    drop_undeclared: bool = _field_with_description(False, "Drop indices that are not declared; zone maps stay.")
    require_search: bool = _field_with_description(False, "Fail if a declared index could not be built or kept.")
    index_memory: str | int | None = _field_with_description(
        None, 'The most memory of a process that builds an index, such as "4GB".'
    )
    index_timeout: str | float | timedelta | None = _field_with_description(
        "1d", 'The longest that one build of an index may take, such as "2h"; "never" for no limit.  [1d]'
    )

    def __post_init__(self) -> None:
        """Reject invalid values."""
        _check_fields(self)
        share = self.materialize_deletions_threshold
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidInputError(f"materialize_deletions_threshold must be a share between 0 and 1, not {share!r}")
        for names in TOGETHER:
            missing = [name for name in names if getattr(self, name) is None]
            if 0 < len(missing) < len(names):
                raise InvalidInputError(f"{' and '.join(names)} go together: give {' and '.join(missing)} as well")
        if self.drop_undeclared and self.indices is None:
            raise InvalidInputError("drop_undeclared needs indices: {} declares none")
        _ = self.declarations, self.index_memory_bytes, self.index_timeout_s

    @property
    def declarations(self) -> tuple[IndexDeclaration, ...]:
        """`indices` as records."""
        return parse_declarations(self.indices)

    @property
    def index_memory_bytes(self) -> int | None:
        """`index_memory` as a number of bytes; None for no limit."""
        return None if self.index_memory is None else _parse_bytes("index_memory", self.index_memory)

    @property
    def index_timeout_s(self) -> float | None:
        """`index_timeout` in seconds; None for no limit."""
        limit = self.index_timeout
        age = _parse_age("index_timeout", f"{limit:f}s" if isinstance(limit, int | float) else limit)
        return None if age is None else age.total_seconds()

    @property
    def age(self) -> timedelta | None:
        """`cleanup_older_than` as a timedelta; None for no limit of age."""
        return _parse_age("cleanup_older_than", self.cleanup_older_than)

    @property
    def age_of_log(self) -> timedelta | None:
        """`receipts_older_than` as a timedelta; None for no limit of age."""
        return _parse_age("receipts_older_than", self.receipts_older_than)

    @property
    def age_of_rows(self) -> timedelta | None:
        """`expire_rows_older_than` as a timedelta; None for no limit of age."""
        return _parse_age("expire_rows_older_than", self.expire_rows_older_than)

    @property
    def age_of_files(self) -> timedelta | None:
        """`move_older_than` as a timedelta; None for no limit of age."""
        return _parse_age("move_older_than", self.move_older_than)

    @property
    def cleans_up(self) -> bool:
        """Whether old versions are removed."""
        return self.age is not None or self.retain_versions is not None

    def without_columns(self) -> MaintenancePolicy:
        """The policy for a table that does not have its columns, such as the log or the manifest of a namespace."""
        return replace(
            self,
            expire_rows_older_than=None,
            expire_by=None,
            move_older_than=None,
            move_by=None,
            move_to=None,
            indices=None,
            drop_undeclared=False,
            require_search=False,
        )

    def compaction_options(self, **options: Any) -> dict[str, Any]:
        """The options of a compaction by this policy; the table's configuration replaces those that are None."""
        return {
            "target_rows_per_fragment": self.target_rows_per_fragment,
            "target_bytes_per_fragment": self.target_bytes_per_fragment,
            "max_bytes_per_file": self.max_bytes_per_file,
            "materialize_deletions_threshold": self.materialize_deletions_threshold,
            "merge_results": True,
            **options,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceBudget:
    """The limits of a run; work beyond them is put off, and comes first in the next run.

    Attributes:
        max_bytes_rewritten: The most bytes of data files that all rewrites of the run read.
        max_duration: The time after which no further rewrite or step of a table begins: a string such as "2h", or a
            timedelta.
        max_tables: The most tables that the run works on.

    Raises:
        InvalidInputError: A value is of the wrong type or out of range.

    Examples:
        >>> maintenance.MaintenanceBudget(max_duration="2h").duration
        datetime.timedelta(seconds=7200)
    """

    max_bytes_rewritten: int | None = _field_with_description(None, "The most bytes that all rewrites read.")
    max_duration: str | timedelta | None = _field_with_description(
        None, 'The time after which nothing further begins, such as "2h".'
    )
    max_tables: int | None = _field_with_description(None, "The most tables to work on.")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        _check_fields(self)
        if self.max_duration is not None and self.duration is None:
            raise InvalidInputError(f"max_duration must be a positive duration or None, not {self.max_duration!r}")

    @property
    def duration(self) -> timedelta | None:
        """`max_duration` as a timedelta; None for no limit."""
        return _parse_age("max_duration", self.max_duration)


def change_policy(policy: MaintenancePolicy, changes: object, *, where: str) -> MaintenancePolicy | None:
    """A policy with some fields changed; None if `changes` is False, with which a table is not maintained.

    Args:
        policy: The policy.
        changes: A whole policy, a mapping of fields, True for no change, or False.
        where: Where the changes come from, for messages.

    Raises:
        InvalidInputError: A field is unknown, a value is invalid, or the changes are of another type.
    """
    if isinstance(changes, bool):
        return policy if changes else None
    if isinstance(changes, MaintenancePolicy):
        return changes
    if not isinstance(changes, Mapping):
        raise InvalidInputError(f"{where} must be fields of a policy, True or False, not {changes!r}")
    names = [each.name for each in fields(policy)]
    unknown = sorted(map(str, set(changes) - set(names)))
    if unknown:
        nearest = get_close_matches(unknown[0], names, n=1, cutoff=0.5)
        hint = f"; is {nearest[0]!r} meant?" if nearest else ""
        raise InvalidInputError(
            f"{where}: {', '.join(map(repr, unknown))} is not a field of a MaintenancePolicy; its fields are "
            f"{', '.join(names)}{hint}"
        )
    try:
        return replace(policy, **changes)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from error


def _check_fields(record: MaintenancePolicy | MaintenanceBudget) -> None:
    """Reject counts that are not positive, flags that are not booleans, and ages that are no durations.

    Raises:
        InvalidInputError: A value is of the wrong type or out of range.
    """
    for each in fields(record):
        value, kind = getattr(record, each.name), str(each.type)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if kind in ("int", "int | None") and not is_count and (value is not None or kind == "int"):
            or_none = " or None" if kind != "int" else ""
            raise InvalidInputError(f"{each.name} must be a positive number{or_none}, not {value!r}")
        if kind == "bool" and not isinstance(value, bool):
            raise InvalidInputError(f"{each.name} must be True or False, not {value!r}")
        if kind == "str | None" and value is not None and not (isinstance(value, str) and value):
            raise InvalidInputError(f"{each.name} must be a name or None, not {value!r}")
        is_number = is_count or (isinstance(value, float) and value > 0)
        if "timedelta" in kind and not (is_number and "float" in kind):
            _parse_age(each.name, value)


def _parse_age(name: str, value: str | timedelta | None) -> timedelta | None:
    """A duration of a policy or budget; None for no limit.

    Raises:
        InvalidInputError: The value is neither a positive duration nor None nor "never".
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == "never"):
        return None
    age = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(age, timedelta) or age <= timedelta(0):
        raise InvalidInputError(f"{name} must be a positive duration, not {value!r}")
    return age


def _parse_bytes(name: str, value: int | str) -> int:
    """A number of bytes, such as 4000000000 or "4GB".

    Raises:
        InvalidInputError: The value is no positive number of bytes.
    """
    parts = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is not None:
        value = int(float(parts[1]) * _UNITS[(parts[2] or "B").upper()])
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidInputError(f'{name} must be a number of bytes or a string such as "4GB", not {value!r}')
    return value
