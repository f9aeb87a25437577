"""Conditions and values of statements, in Spark's SQL, and what Spark itself makes of them under the session's settings."""

from __future__ import annotations

import random
from typing import Any

from tests.machines.spark.model import Model, Rows

__all__ = ["SETTINGS", "chosen_keys", "draw_condition", "draw_value", "odd_values", "respelled", "word_values"]

SETTINGS = {
    "spark.sql.ansi.enabled": ["true", "false"],
    "spark.sql.caseSensitive": ["true", "false", "false"],
    "spark.sql.session.timeZone": ["America/New_York", "UTC", "Asia/Kolkata"],
    "spark.sql.storeAssignmentPolicy": ["ANSI", "LEGACY", "STRICT"],
    "spark.sql.execution.arrow.maxRecordsPerBatch": ["2", "10000"],
    "spark.sql.parser.escapedStringLiterals": ["true", "false", "false"],
}
"""Settings of the session that statements and writes follow, or must not."""


def odd_values(number: int) -> str:
    """The values of a condition: the first odd numbers."""
    return ",".join(map(str, range(1, 2 * number, 2)))


LITERALS = [r"'a\\b'", r"'a\bx'", "'it''s'", r"'it\'s'", r"'C:\\new'", "'plain'"]


def word_values(spark: Any) -> dict[str, str]:
    """What Spark takes each of the literals for; without those that it rejects."""
    values = {}
    for text in LITERALS:
        if spark.conf.get("spark.sql.parser.escapedStringLiterals") == "true" and r"\'" in text:
            continue  # no end of the string
        values[text] = spark.sql(f"SELECT {text}").first()[0]
    return values


def respelled(draw: random.Random, name: str) -> str:
    return name.upper() if draw.random() < 0.15 else name


def draw_condition(draw: random.Random, model: Model, many: int) -> str:
    """A condition that only Spark evaluates; a long list has `many` values."""
    text, time, name = draw.choice([*_of_kind(model, "string"), "v"]), "t", respelled(draw, "p")
    choices = [
        [f"{name} = '1'", f"{name} + 1 > 2", f"{name} IN (0, 2)", f"{name} / ({name} - 1) > 0", f"NOT ({name} <=> 1)"],
        [f"{time} < TIMESTAMP '2026-03-08 02:30:00'", f"{time} = '2026-03-08 03:00:00'", f"hour({time}) IN (1, 2)",
         f"date({time}) = DATE '2026-03-08'", f"{time} >= TIMESTAMP '2026-03-08 07:00:00Z'"],
        [f"id IN ({odd_values(many)})", f"NOT (id IN ({odd_values(many)}))", "id % 2 = 1"],
        [f"st.{respelled(draw, 'a')} > 1", "st IS NULL", *[f"st.{one} IS NULL" for one in model.fields]],
    ]  # fmt: skip
    if text in model.columns:
        text, words = respelled(draw, text), draw.sample(LITERALS[:3], 2)
        choices += [
            [f"{text} IN ({', '.join(words)})", f"{text} LIKE 'a%'", f"upper({text}) = 'X'", f"{text} <=> 'x'"],
            [f"NOT ({text} = 'x')", f"length({text}) > 1", f"CAST({text} AS INT) = 1", f"{text} <> {words[0]}"],
        ]
    return draw.choice(draw.choice(choices))


def draw_value(draw: random.Random, model: Model) -> tuple[str, str]:
    """A column, and a value for it that has its type."""
    name = draw.choice(["p", "t", *_of_kind(model, "string")])
    texts = [other for other in _of_kind(model, "string") if other != name] or ["'z'"]
    values = {
        "long": ["p + 1", "p % (p - 1)", "length(CAST(t AS STRING))", "coalesce(st.a, 7L)", "CAST('4' AS BIGINT)"],
        "string": ["CAST(t AS STRING)", f"upper({texts[0]})", r"concat('a\\b', p)", "NULL", "date_format(t, 'HH:mm')"],
        "timestamp": ["t + INTERVAL 1 DAY", "TIMESTAMP '2026-03-08 02:30:00'", "date_trunc('DAY', t)"],
    }
    return name, draw.choice(values[model.columns[name]])


def chosen_keys(spark: Any, frame: Any, condition: str, value: str | None = None) -> Rows:
    """The rows that a condition chooses, by id, with a value: Spark's own answer over plain rows.

    Raises:
        Exception: Whatever Spark says.
    """
    frame.createOrReplaceTempView("model_rows")
    picked = spark.sql(f"SELECT id, {value or 'NULL'} AS value FROM model_rows WHERE {condition}").collect()
    return {row.id: row.value for row in picked}


def _of_kind(model: Model, kind: str) -> list[str]:
    return [name for name, own in model.columns.items() if own == kind]
