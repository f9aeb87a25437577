"""The parts of a table that consume an input, and which rows of the input each of them reads.

part     <partition of the asset>                             all rows, or the partition of the input with the same key
         <partition of the asset>/<partition of the input>    another partition of the input
         by the first digits of the digest of each key; "all" for an asset without partitions
rows     "all <digest>" or "keys <digest>" in a part's position: what kind of part it is, and the digest of what selects
         rows besides the keys: the input's filter, and the columns and time zone by which keys select rows

A part never continues where another one stopped that read other rows: these rows would be lost, or read twice.
Positions without `rows` are of earlier versions of this library and continue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from lance_core.errors import IncompatibleConflictError
from lance_dagster.lineage.watermarks import FULL_REFRESH, InputPosition
from lance_dagster.properties import hashed
from lance_dagster.tables.filters import LanceFilter
from lance_dagster.tables.names import plain_metadata

_WHOLE: Final = "all"
"""The part of a table without partitions."""
_ALL, _KEYS = "all", "keys"
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPart:
    """A part of a table that consumes an input.

    Attributes:
        name: The part's name in watermarks.
        key: The partition of the input that the part reads; None for all rows.
        rows: What the part reads, for its position.
        stored: The stored position of the part; None if it has none.
        begin: The position from which the part continues; None to begin with all rows.
        continues: The part whose position of an earlier version of this library `begin` is; else None.
    """

    name: str
    key: str | None
    rows: str
    stored: str | None
    begin: InputPosition | None
    continues: str | None = None

    @property
    def is_current(self) -> bool:
        """Whether the stored position says that these rows were consumed."""
        return self.stored is not None and InputPosition.of(self.stored).rows == self.rows

    @property
    def may_continue(self) -> bool:
        """Whether the stored position is of these rows, or of an earlier version of this library."""
        return self.stored is not None and InputPosition.of(self.stored).rows in (None, self.rows)


def digest_of_rows(
    input_filter: object, partition_expr: object = None, definition: dg.PartitionsDefinition[Any] | None = None
) -> str:
    """A digest of what selects the rows of an input.

    Args:
        input_filter: The entry `lance/filter` of the input.
        partition_expr: The entry `partition_expr` of the input's asset.
        definition: The partitions of the input's asset.
    """
    described = [_described_filter(input_filter), plain_metadata(partition_expr), _described_times(definition)]
    return hashed(json.dumps(described, default=str, sort_keys=True))[:_DIGITS]


def _described_filter(value: object) -> object:
    if isinstance(value, LanceFilter) and "..." in value:  # Arrow leaves out some of many values
        return [str(value), value.expression.__reduce__()[1][0].to_pybytes().hex()]
    return value


def _described_times(definition: dg.PartitionsDefinition[Any] | None) -> object:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return {part.name: _described_times(part.partitions_def) for part in definition.partitions_defs}
    return [str(getattr(definition, name, None)) for name in ("cron_schedule", "timezone")]


def input_parts(
    positions: Mapping[str, Mapping[str, str]],
    partition: str | None,
    keys: Sequence[str] | None,
    digest: str | None,
    label: str,
    *,
    refresh: bool = False,
) -> list[InputPart]:
    """The parts by which a partition of an asset consumes an input.

    Args:
        positions: The stored positions of the asset's table, of `positions_by_partition`.
        partition: The partition of the asset; None if it has no partitions.
        keys: The partitions of the input that it reads; None to read all rows.
        digest: The digest of what selects rows besides the keys; None if that is not known, to check nothing.
        label: The input, for messages.
        refresh: Whether all parts begin with all rows.

    Raises:
        IncompatibleConflictError: Other rows were consumed than those that the input now selects.
    """
    whole, kind = _whole(partition), _ALL if keys is None else _KEYS
    rows = f"{kind} {digest or ''}"
    names = {whole: None} if keys is None else {_name(whole, partition, key): key for key in sorted(keys)}
    of_partition = positions_of_partition(positions, partition)
    earlier = of_partition.get(whole)
    is_unmarked = earlier is not None and InputPosition.of(earlier).rows is None
    if not refresh:
        _check_kind(of_partition, kind, label)
    parts = []
    for name, key in names.items():
        stored = of_partition.get(name)
        continues = whole if stored is None and is_unmarked else None
        begins = earlier if continues else stored
        begin = None if refresh or begins is None else InputPosition.of(begins)
        if digest is not None and begin is not None and begin.rows not in (None, rows):
            raise IncompatibleConflictError(
                f"{label}: its lance/filter, or what selects the rows of a partition (partition_expr, time zone), is "
                "not that of the last run that consumed changes, so that rows which were left out would never be read; "
                f"run it with the tag {FULL_REFRESH}=true to read all rows"
            )
        parts.append(InputPart(name=name, key=key, rows=rows, stored=stored, begin=begin, continues=continues))
    return parts


def positions_by_partition(positions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The stored positions of the parts of a table, by the digest of the partition of the asset."""
    by_partition: dict[str, dict[str, str]] = {}
    for name, stored in positions.items():
        by_partition.setdefault(name.partition("/")[0], {})[name] = stored
    return by_partition


def positions_of_partition(positions: Mapping[str, Mapping[str, str]], partition: str | None) -> Mapping[str, str]:
    """The stored positions of all parts of a partition of an asset."""
    return positions.get(_whole(partition), {})


def _check_kind(positions: Mapping[str, str], kind: str, label: str) -> None:
    kinds = {rows.split()[0] for stored in positions.values() if (rows := InputPosition.of(stored).rows) is not None}
    if kinds - {kind}:
        now, before = ("all rows", "some partitions") if kind == _ALL else ("some partitions", "all rows")
        raise IncompatibleConflictError(
            f"{label}: its partition mapping now names {now} of the input, and named {before} in the last run that "
            f"consumed changes; run it with the tag {FULL_REFRESH}=true to read what it names now"
        )


def _whole(partition: str | None) -> str:
    return _WHOLE if partition is None else hashed(partition)[:_DIGITS]


def _name(whole: str, partition: str | None, key: str) -> str:
    return whole if key == partition else f"{whole}/{hashed(key)[:_DIGITS]}"
