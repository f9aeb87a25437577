"""The clauses of `lance/merge_on` that lance_core runs: for Arrow, pandas, polars and other frames than Spark's.

    clauses                                              lance_core's merge_insert
    -------                                              -------------------------
    when_matched: update [condition] | delete            when_matched_update_all(condition) | when_matched_delete()
    when_not_matched: insert                             when_not_matched_insert_all()
    when_not_matched_by_source: delete [condition]       when_not_matched_by_source_delete(condition)

All other clauses need Spark. Conditions are in Lance's SQL here, and in Spark's SQL for Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_core.errors import UnsupportedError

if TYPE_CHECKING:
    from lance_dagster.tables.settings import OutputSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMerge:
    """A merge that lance_core runs.

    Attributes:
        matched: The action for rows in both the output and the table: update, delete or nothing.
        condition: The condition of the rows in both that are updated; None for all of them.
        inserts: Whether rows only in the output are inserted.
        deletes_others: Whether rows only in the table are deleted.
        unmatched_condition: The condition of the rows only in the table that are deleted; None for all of them.
    """

    matched: str
    condition: str | None = None
    inserts: bool
    deletes_others: bool
    unmatched_condition: str | None = None


def parse_simple_merge(output: OutputSettings) -> PlainMerge:
    """The merge of an output, for lance_core.

    Raises:
        UnsupportedError: A clause needs Spark; the message names it.
    """
    if output.merge_clauses is None:
        return PlainMerge(
            matched=output.when_matched,
            inserts=output.when_not_matched == "insert",
            deletes_others=output.when_not_matched_by_source == "delete",
        )
    from pyspark_lance import parse_merge_clauses  # noqa: PLC0415 - few outputs have clauses

    clauses_by_side = {}
    for clause in parse_merge_clauses(output.merge_clauses):
        plain = clause.condition is None or (clause.side, clause.then) in _CONDITIONS
        if (
            clause.side in clauses_by_side
            or clause.values is not None
            or not plain
            or (clause.side, clause.then) == _NEVER
        ):
            why = f"{clause}" + ("" if clause.condition is None else f", condition {clause.condition!r}")
            raise UnsupportedError(
                f"lance/merge_on: the clause {why} needs Spark: return a Spark DataFrame. Other frames can have one"
                " clause for each side, without values: update, with a condition or without, or delete where matched,"
                " insert where not matched, delete where not matched by source. Nothing was written"
            )
        clauses_by_side[clause.side] = clause
    matched, unmatched = clauses_by_side.get("matched"), clauses_by_side.get("not matched by source")
    return PlainMerge(
        matched="nothing" if matched is None else matched.then,
        condition=None if matched is None else _text(matched.condition),
        inserts="not matched" in clauses_by_side,
        deletes_others=unmatched is not None,
        unmatched_condition=None if unmatched is None else _text(unmatched.condition),
    )


def check_plain(output: OutputSettings) -> None:
    """Reject clauses that lance_core cannot run.

    Raises:
        UnsupportedError: A clause needs Spark; the message names it.
    """
    if output.write_mode == "merge":
        parse_simple_merge(output)


_CONDITIONS = (("matched", "update"), ("not matched by source", "delete"))
_NEVER = ("not matched by source", "update")


def _text(condition: object) -> str | None:
    return None if condition is None else str(condition)


def inserts_rows(output: OutputSettings) -> bool:
    """Whether a merge inserts rows."""
    clauses = output.merge_clauses
    return output.when_not_matched == "insert" if clauses is None else bool(clauses.get("when_not_matched"))


def changes_others(output: OutputSettings) -> bool:
    """Whether a merge changes rows that are only in the table."""
    name, clauses = "when_not_matched_by_source", output.merge_clauses
    return getattr(output, name) == "delete" if clauses is None else bool(clauses.get(name))


def is_idempotent(output: OutputSettings) -> bool:
    """Whether merging the same rows a second time changes nothing."""
    if output.merge_clauses is None:
        return output.when_matched == "update"
    from pyspark_lance import parse_merge_clauses  # noqa: PLC0415 - few outputs have clauses

    clauses = parse_merge_clauses(output.merge_clauses)
    plain = all(clause.condition is None and clause.values is None for clause in clauses)
    return plain and any((clause.side, clause.then) == ("matched", "update") for clause in clauses)
