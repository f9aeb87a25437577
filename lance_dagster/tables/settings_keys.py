"""Which keys of metadata are read, and the rejection of those that nothing reads.

`lance/...` in            read                                          else
-------------             ----                                          ----
definition of an asset    settings, and what jobs and checks read       rejected, naming the nearest key
output at run time        settings, lance/schema, lance/column_lineage  rejected; the keys of events are the user's
input                     pins, filter                                  rejected
output of an op           lance/commit_message, lance/vector_columns,   rejected
                          lance/cluster
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

import dagster as dg

__all__ = [
    "EVENT_KEYS",
    "FOREIGN_INPUT_KEYS",
    "FOREIGN_OUTPUT_KEYS",
    "OF_DEFINITIONS",
    "PREFIX",
    "READ_ELSEWHERE",
    "meant",
    "plain_metadata",
    "reject_at_run_time",
    "reject_foreign",
    "reject_of_ops",
    "reject_unknown",
]

PREFIX: Final = "lance/"
READ_ELSEWHERE: Final = {"lance/maintenance", "lance/column_lineage", "lance/schema", "lance/shared_table"}
"""Definition metadata that jobs, checks and lineage read."""

_OF_OUTPUTS: Final = frozenset({"lance/column_lineage", "lance/schema"})
"""Those of them that an output may say as well."""

OF_DEFINITIONS: Final = ("partition_expr", "schema", "table")
"""Known entries of definitions without the prefix."""

EVENT_KEYS: Final = frozenset(
    PREFIX + name
    for name in (
        "bytes_written",
        "commit_attempts",
        "deduplicated",
        "deleted_fraction",
        "fragments",
        "fragments_added",
        "fragments_removed",
        "inputs",
        "kept_try",
        "operation",
        "replaced_try",
        "rows_deleted",
        "rows_inserted",
        "rows_updated",
        "rows_written",
        "small_fragments",
        "table_log",
        "transaction_uuid",
    )
)
"""Entries that the IO manager itself adds to events; an asset may say them in its place."""

_OP_OUTPUT_KEYS: Final = frozenset({"lance/commit_message", "lance/vector_columns", "lance/cluster"})

FOREIGN_OUTPUT_KEYS: Final[Mapping[str, str]] = {
    "mode": "lance/write_mode",
    "upsert_options": "lance/write_mode merge with lance/merge_on",
    "upsert_keys": "lance/merge_on",
    "overwrite_schema": "lance/schema_mode overwrite",
    "schema_mode": "lance/schema_mode",
    "schema_update_mode": "lance/schema_mode",
    "custom_metadata": "lance/commit_message",
}
"""Keys of other table IO managers in the metadata of an asset, and their equivalents here."""

_AMBIGUOUS: Final = frozenset({"mode", "schema_mode"})
"""Those of them that may be anything in the metadata of an output."""

FOREIGN_INPUT_KEYS: Final[Mapping[str, str]] = {
    "filter": "lance/filter",
    "version": "lance/version",
    "tag": "lance/tag",
}
"""The same in the metadata of an input."""


def plain_metadata(value: object) -> object:
    """The Python value of a metadata entry, given plain or in one of Dagster's metadata classes."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def meant(name: str, known: Collection[str]) -> str:
    """`; is 'x' meant?`, naming the nearest of the known names; nothing if none is near."""
    plain = {one.removeprefix(PREFIX).lower(): one for one in sorted(known)}
    found = get_close_matches(name.removeprefix(PREFIX).lower(), plain, n=1, cutoff=0.5)
    return f"; is {plain[found[0]]!r} meant?" if found else ""


def reject_unknown(
    metadata: Mapping[str, object],
    known: Collection[str],
    *,
    where: str,
    plain: tuple[str, ...] = (),
    others: Collection[str] = (),
) -> None:
    """Reject `lance/...` entries that nothing reads.

    Args:
        metadata: The entries.
        known: Those that are read.
        where: The asset, input or output, for messages.
        plain: Entries without the prefix that are read, for the message.
        others: Entries that are let through and not recommended.

    Raises:
        DagsterInvalidDefinitionError: there is one; names it, and the nearest known one.
    """
    for key in sorted(metadata):
        if key.startswith(PREFIX) and key not in known and key not in others:
            raise dg.DagsterInvalidDefinitionError(
                f"{where}: metadata {key!r} is not offered; known here: {', '.join([*plain, *sorted(known)])}"
                f"{meant(key, known)}"
            )


def reject_foreign(metadata: Mapping[str, object], foreign: Mapping[str, str], *, where: str) -> None:
    """Reject the keys of other IO managers, which would be ignored here.

    Raises:
        DagsterInvalidDefinitionError: there is one.
    """
    for key, own in foreign.items():
        if key in metadata:
            raise dg.DagsterInvalidDefinitionError(
                f"{where}: metadata {key!r} is another IO manager's, and LanceIOManager does not read it; use {own}"
            )


def reject_at_run_time(
    metadata: Mapping[str, object], known: Collection[str], choices: Mapping[str, Collection[str]], *, where: str
) -> None:
    """Reject entries of an output's metadata at run time that look like settings and are not followed.

    Args:
        metadata: The output's.
        known: The settings, each with the prefix.
        choices: The values of those that have a few.
        where: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: there is one.
    """
    late = sorted(({"partition_expr"} | (READ_ELSEWHERE - _OF_OUTPUTS)) & set(metadata))
    if late:
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: metadata {late[0]!r} is read from the definition of the asset, and this output says it at run "
            f'time; move it to @asset(metadata={{"{late[0]}": ...}})'
        )
    reject_unknown(metadata, {*known, *_OF_OUTPUTS}, where=where, others=EVENT_KEYS)
    foreign = {
        key: own
        for key, own in FOREIGN_OUTPUT_KEYS.items()
        if key not in _AMBIGUOUS or plain_metadata(metadata.get(key)) in _values(own, choices)
    }
    reject_foreign(metadata, foreign, where=where)


def _values(key: str, choices: Mapping[str, Collection[str]]) -> tuple[Any, ...]:
    return tuple(choices.get(key, ()))


def reject_of_ops(metadata: Mapping[str, object], settings: Collection[str], *, where: str) -> None:
    """Reject entries in the metadata of an op's output, which is no asset, that are not followed.

    Args:
        metadata: The output's, of its definition or at run time.
        settings: The settings of outputs, each with the prefix.
        where: The output, for messages.

    Raises:
        DagsterInvalidDefinitionError: there is one.
    """
    for key in sorted(set(metadata) & ({*settings, *READ_ELSEWHERE} - _OP_OUTPUT_KEYS)):
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: metadata {key!r} is for assets, and this output is none: a frame on its way to another op, "
            "written once per run. Make it an asset, or leave the entry out"
        )
    reject_unknown(metadata, _OP_OUTPUT_KEYS, where=where, others=EVENT_KEYS)
