"""The condition of an erasure: evaluated on stored rows, deleted ones included, and searched for in records.

A record (a manifest, a transaction, a tag) mentions the condition if it holds one of the condition's values: a string
of at least four characters anywhere in the bytes of the record; a shorter string, or a number, as a word of the
predicate or of a property of a transaction. In either case JSON, SQL and URIs can have escaped the string; see
`escapes`. A transaction also mentions the condition if a string of its predicate is another value of the rows: a delete
by `email = 'bob@example.org'` names a row that `id = 1` erases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.encoding.levels.paths import is_blob_v2
from lance_core.errors import InvalidInputError, LanceError
from lance_core.maintenance.erasure.escapes import in_bytes, in_words
from lance_core.schema import Field, Schema
from lance_core.table.fragment import Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.operations import Delete
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.session import Session
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.expressions.arrow import columns_of
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.blob_view import described_columns
from lance_core.verbs.scan.conditions import to_condition

__all__ = ["ErasureCondition", "stored_rows", "strings_of"]

_ROW_COLUMNS: Final = re.compile(r"_row(id|addr|offset|_created_at_version|_last_updated_at_version)")
_STRINGS: Final = re.compile(r"'((?:[^']|'')*)'")
_NUMBERS: Final = re.compile(r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?![\w.])")
_BLOB: Final = ("lance-encoding:blob", b"true")
_FORMAT_METADATA: Final = (_BLOB, ("lance-encoding:packed", b"true"))
_LONG: Final = 4
"""The fewest characters of a string that is searched for in the bytes of records."""


@dataclass(frozen=True)
class ErasureCondition:
    """The condition that selects the rows to erase.

    Attributes:
        where: The condition, in SQL.
        row_values: Strings of predicates in the history that are values of the rows; see `named_values`.
    """

    where: str = field(repr=False)
    row_values: frozenset[str] = field(default=frozenset(), repr=False)

    def of(self, columns: Schema) -> pc.Expression:
        """The condition over the columns of a version.

        Raises:
            InvalidInputError: The condition does not test values of columns.
            UnsupportedError: The SQL is not supported.
        """
        condition = to_condition(self.where, columns)
        names = columns_of(condition)
        if not names or any(_ROW_COLUMNS.match(name) for name in names):
            raise InvalidInputError(
                "an erasure needs a condition on values of columns, which identify rows in all versions; row ids and "
                "addresses do not"
            )
        return condition

    def columns(self, source: Snapshot) -> tuple[str, ...] | None:
        """The top-level columns of the condition; None if it cannot be evaluated in a version."""
        try:
            return tuple(columns_of(self.of(described_columns(source.manifest) or source.manifest.schema)))
        except LanceError:
            return None

    def stored(self, source: Snapshot, fragments: Sequence[Fragment]) -> dict[int, int]:
        """The number of stored rows that match, deleted rows included, by the id of each fragment with such rows.

        Args:
            source: The version, in which the condition can be evaluated.
            fragments: Fragments of the version.
        """
        return {fragment.id: len(rows) for fragment, rows in self.matching(stored_rows(source, fragments))}

    def count_live(self, source: Snapshot) -> int:
        """The number of rows of a version that match."""
        live = source.at(replace(source.manifest, indices=()))
        return sum(len(rows) for _, rows in self.matching(live))

    def matching(self, source: Snapshot) -> Iterator[tuple[Fragment, BitMap]]:
        """The fragments of a version with live rows that match, and the offsets of these rows."""
        columns = described_columns(source.manifest)
        return each_matching(source, self.of(columns or source.manifest.schema), columns)

    @cached_property
    def _values(self) -> tuple[str, ...]:
        """The strings and numbers of the condition."""
        strings = _strings(self.where)
        numbers = _NUMBERS.findall(_STRINGS.sub(" ", self.where))
        return tuple(dict.fromkeys(value for value in (*strings, *numbers) if value))

    @cached_property
    def _long(self) -> tuple[re.Pattern[bytes], ...]:
        return tuple(in_bytes(string) for string in _strings(self.where) if len(string) >= _LONG)

    def is_in_bytes(self, data: bytes | memoryview) -> bool:
        """Whether a string of the condition, of at least `_LONG` characters, is in the bytes of a record."""
        return any(string.search(data) for string in self._long)

    def is_in_schema(self, columns: Schema) -> bool:
        """Whether a string of the condition, of at least `_LONG` characters, is in metadata or names of a schema.

        What the format adds to the schemas of files with blobs does not count.
        """
        nodes = list(_named_fields(columns.fields))
        maps = [columns.metadata, *(node.metadata for node in nodes)]
        pairs = [pair for metadata in maps for pair in metadata.items() if pair not in _FORMAT_METADATA]
        strings = [node.name.encode() for node in nodes] + [
            text for key, value in pairs for text in (key.encode(), value)
        ]
        return any(map(self.is_in_bytes, strings))

    def is_in_transaction(self, transaction: Transaction | None) -> bool:
        """Whether a transaction contains a value of the condition, or its predicate another value of the rows."""
        if transaction is None:
            return False
        strings = (_predicate(transaction), *transaction.properties.values())
        named = any(self.is_in_string(string) for string in strings)
        return named or not self.row_values.isdisjoint(strings_of(transaction))

    def is_in_string(self, string: str) -> bool:
        """Whether a value of the condition is a word of a string."""
        return any(word.search(string) for word in self._words)

    @cached_property
    def _words(self) -> tuple[re.Pattern[str], ...]:
        return tuple(in_words(value) for value in self._values)


def _named_fields(fields: Iterable[Field]) -> Iterator[Field]:
    """The fields that users name, at any depth: those of a blob have the names of the format."""
    for node in fields:
        yield node
        if not is_blob_v2(node) and _BLOB not in node.metadata.items():
            yield from _named_fields(node.children)


def strings_of(transaction: Transaction | None) -> list[str]:
    """The strings of the predicate that a transaction records."""
    return [] if transaction is None else _strings(_predicate(transaction))


def _predicate(transaction: Transaction) -> str:
    return transaction.operation.predicate if isinstance(transaction.operation, Delete) else ""


def _strings(sql: str) -> list[str]:
    """The strings of a condition, without the wildcards at their ends."""
    return [string.replace("''", "'").strip("%") for string in _STRINGS.findall(sql)]


def stored_rows(source: Snapshot, fragments: Sequence[Fragment]) -> Snapshot:
    """A version with all rows that its files store: without deletion files, and without indices, which may be wrong."""
    whole = [replace(fragment, deletion_file=None) for fragment in fragments]
    manifest = replace(source.manifest, fragments=FragmentList.of(whole), indices=())
    return Snapshot(source.store, manifest, source.options, Session())
