"""Watermarks: how far a table has consumed its inputs, kept in the table itself by the commits that consumed them.

A commit moves watermarks by transaction properties, and the table's configuration holds their positions. Rows and
watermark are therefore committed in one version: neither can be lost alone, whoever cleans up, compacts or commits
later.

    transaction property   lance-dagster.watermark.<name>   [{"parts": ["p"], "from": "7", "to": "9", "by": "run"}, ...]
    configuration          lance-dagster.watermark.<name>   [["9", "run", ["p", "q"]], ...]

A part is a share of the table that consumes the input separately, such as a partition. `from` and `to` are positions
that only the reader of the input interprets; a `to` of null removes the watermark of the part. `by` is the writer: a
move conflicts if its `from` is not the present position, unless the same writer made the last move. A restore brings
back the watermarks of the restored version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from lance_core.errors import CorruptFileError, IncompatibleConflictError, InvalidInputError

_Result = TypeVar("_Result")

PREFIX: Final = "lance-dagster.watermark."


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How far a part of a table has consumed an input.

    Attributes:
        position: The position, as the writer gave it.
        by: The writer.
    """

    position: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkMove:
    """A move of the watermarks of some parts of a table, which a commit makes along with its rows.

    Attributes:
        name: The input.
        parts: The parts that move.
        before: The position before the move; None if the parts have no watermark yet.
        after: The position after the move; None to remove the watermarks.
        by: The writer; a later attempt of the same writer may move the watermarks again.
    """

    name: str
    parts: tuple[str, ...]
    before: str | None
    after: str | None
    by: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.parts:
            raise InvalidInputError("a move of watermarks needs a name and at least one part")

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> list[WatermarkMove]:
        """The moves that the transaction properties of a commit make.

        Raises:
            CorruptFileError: A property cannot be parsed.

        Examples:
            >>> move = lance.WatermarkMove(name="orders", parts=("all",), before=None, after="7")
            >>> lance.WatermarkMove.of(lance.WatermarkMove.properties([move])) == [move]
            True
        """
        return [move for moves in _read_moves(properties).values() for move in moves]

    @classmethod
    def properties(cls, moves: Iterable[WatermarkMove]) -> dict[str, str]:
        """The transaction properties of a commit that makes moves.

        Examples:
            >>> move = lance.WatermarkMove(name="orders", parts=("all",), before=None, after="7")
            >>> rows, properties = {"id": [1]}, lance.WatermarkMove.properties([move])
            >>> table = lance.write_dataset(rows, "t.lance", transaction_properties=properties)
            >>> table.watermarks("orders")["all"].position
            '7'
        """
        rows_by_key: dict[str, list[dict[str, object]]] = {}
        for move in moves:
            row: dict[str, object] = {"parts": list(move.parts), "from": move.before, "to": move.after, "by": move.by}
            rows_by_key.setdefault(PREFIX + move.name, []).append(row)
        return {key: json.dumps(rows, separators=(",", ":")) for key, rows in rows_by_key.items()}


def is_watermark(key: str) -> bool:
    """Whether an entry of the configuration, or a transaction property, is about watermarks."""
    return key.startswith(PREFIX)


def watermarks(config: Mapping[str, str], name: str) -> dict[str, Watermark]:
    """The watermarks of an input by part.

    Raises:
        CorruptFileError: The entry cannot be parsed.
    """
    return _read_positions(PREFIX + name, config)


def moved(config: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """A configuration after the moves of watermarks in the transaction properties of a commit."""
    result = dict(config)
    for key, moves in _read_moves(properties).items():
        positions = _read_positions(key, config)
        for move in moves:
            for part in move.parts:
                if move.after is None:
                    positions.pop(part, None)
                else:
                    positions[part] = Watermark(position=move.after, by=move.by)
        result.pop(key, None)
        if positions:
            result[key] = _format_entry(positions)
    return result


def reject_moved(config: Mapping[str, str], properties: Mapping[str, str], root: str) -> None:
    """Reject moves that do not begin at the present position of their watermark.

    Args:
        config: The configuration of the latest version.
        properties: The transaction properties of the commit.
        root: The dataset, for messages.

    Raises:
        IncompatibleConflictError: Another writer has moved a watermark.
    """
    for key, moves in _read_moves(properties).items():
        positions = _read_positions(key, config)
        for move in moves:
            for part in move.parts:
                now = positions.get(part)
                is_own = now is not None and bool(move.by) and now.by == move.by
                if (None if now is None else now.position) != move.before and not is_own:
                    by = "was removed since" if now is None else f"was moved since by {now.by or 'another writer'}"
                    raise IncompatibleConflictError(
                        f"{root}: the changes of {key.removeprefix(PREFIX)!r} were read from a watermark of {part!r}"
                        f" that {by}. Nothing was committed; run the write again, so that it reads the changes from the"
                        " present watermark"
                    )


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The transaction properties that move the watermarks of `before` to those of `after`."""
    moves = []
    for key in sorted({*filter(is_watermark, before), *filter(is_watermark, after)}):
        old, new = _read_positions(key, before), _read_positions(key, after)
        groups: dict[tuple[str | None, str | None, str], list[str]] = {}
        for part in sorted({*old, *new}):
            if old.get(part) != new.get(part):
                start, end = old.get(part), new.get(part)
                places = [None if watermark is None else watermark.position for watermark in (start, end)]
                where = (places[0], places[1], "" if end is None else end.by)
                groups.setdefault(where, []).append(part)
        moves += [
            WatermarkMove(name=key.removeprefix(PREFIX), parts=tuple(parts), before=start, after=end, by=by)
            for (start, end, by), parts in groups.items()
        ]
    return WatermarkMove.properties(moves)


def _read_positions(key: str, config: Mapping[str, str]) -> dict[str, Watermark]:
    def read(rows: Any) -> dict[str, Watermark]:
        return {
            str(part): Watermark(position=str(position), by=str(by)) for position, by, parts in rows for part in parts
        }

    return _parse("configuration", key, config.get(key, "[]"), read)


def _format_entry(watermarks: Mapping[str, Watermark]) -> str:
    groups: dict[Watermark, list[str]] = {}
    for part, watermark in watermarks.items():
        groups.setdefault(watermark, []).append(part)
    return json.dumps(
        [[watermark.position, watermark.by, sorted(parts)] for watermark, parts in groups.items()],
        separators=(",", ":"),
    )


def _read_moves(properties: Mapping[str, str]) -> dict[str, list[WatermarkMove]]:
    def read(rows: Any, name: str) -> list[WatermarkMove]:
        return [
            WatermarkMove(name=name, parts=tuple(row["parts"]), before=row["from"], after=row["to"], by=row["by"])
            for row in rows
        ]

    return {
        key: _parse("property", key, value, partial(read, name=key.removeprefix(PREFIX)))
        for key, value in properties.items()
        if is_watermark(key)
    }


def _parse(what: str, key: str, value: str, convert: Callable[[Any], _Result]) -> _Result:
    try:
        return convert(json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFileError(
            f"{what} {key!r} cannot be read, so that it is not known which changes were consumed: {value[:80]!r}. It"
            " is written by commits only; restore its value from an earlier version"
        ) from error
