"""The context in which a statement runs: the Lance tables that it reads, and the DataFrames that answer it.

One version of each table is read, with the columns and rows that the statement needs:

    query        SELECT ... FROM lake.nyc.t@dev VERSION AS OF 3 WHERE ...
    Spark gets   SELECT ... FROM {lance0} AS `t`                WHERE ...      lance0 = the frame of the version

The user's own text goes to Spark, with the names of tables replaced. A frame takes the place of a name in a query, and
a temporary view that lives as long as the statement in a condition or a value.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from lance_core import LanceDataset
from lance_core.errors import DatasetNotFoundError, InvalidInputError
from lance_core.retry import CONFLICT_RETRIES
from pyspark_lance.catalog.reads import report_read
from pyspark_lance.catalog.tables import CatalogTable, TableFinder, TableName
from pyspark_lance.changing.job import ChangeOptions
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.lexing import find_pipe, has_usual_settings, position, tokens_of
from pyspark_lance.engine.sessions import check_frame
from pyspark_lance.lazy import Column, DataFrame, SparkSession, functions, types
from pyspark_lance.reading.read import read_version
from pyspark_lance.releases import require_feature
from pyspark_lance.statements.names import Mention, find_mentions, is_path, names_lance
from pyspark_lance.statements.parameters import bind_parameters, replace_parts
from pyspark_lance.statements.tokens import Cursor, Piece
from pyspark_lance.statements.trees import Need, needs_of
from pyspark_lance.types.column_names import case_sensitive, quoted
from pyspark_lance.types.spark_types import ROW_COLUMNS
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.write import write_with


class Context:
    """The session of one statement, and the tables that it reads.

    Attributes:
        spark: The session.
        finder: Finds tables by name.
        params: Values of parameters, by name.
        spelled: What the statement calls a table, by what Spark's messages call it: its URI, or the name of a view.
        columns: The columns of the tables that were read.
        changed: The version of the table that the statement changes; None until it is known.
        reads_target: Whether the statement reads that version, so that its commit must follow it.
        target_location: Where that table is; without a catalog as long as it is not known.
    """

    def __init__(self, spark: SparkSession, statement: str, params: Mapping[str, Any]) -> None:
        self.spark = spark
        self.finder = TableFinder(spark)
        self.params = params
        self._statement = statement
        self._opened: dict[TableName, LanceDataset] = {}
        self._views: list[str] = []
        self.spelled: dict[str, str] = {}
        self.columns: list[str] = []
        self.changed: LanceDataset | None = None
        self.reads_target = False
        self.target_location = CatalogTable(uri="")

    @contextmanager
    def drop_views_at_end(self) -> Iterator[None]:
        """Drop the temporary views of the statement when it is over."""
        try:
            yield
        finally:
            while self._views:
                self.spark.catalog.dropTempView(self._views.pop())

    def describe_position(self, start: int) -> str:
        """Return "line 3, column 7" of an offset in the statement, for messages."""
        return position(self._statement, start)

    def target(self, name: TableName) -> tuple[LanceDataset, CatalogTable]:
        """The table, or branch, that a statement changes; a query that reads it reads the same version."""
        self.changed, self.target_location = self.finder.target(name)
        return self.changed, self.target_location

    def checked(self, answer: DataFrame) -> DataFrame:
        """The answer of a statement, whose target must still have its id."""
        self.target_location.check_still_listed()
        return answer

    def options(self, location: CatalogTable) -> ChangeOptions:
        """The options of a change of a table.

        Where the statement reads the table, a change cannot be computed again without the statement.
        """
        retries = 0 if self.reads_target else CONFLICT_RETRIES
        return ChangeOptions(storage_options=location.storage_options, conflict_retries=retries)

    def write(self, rows: DataFrame, uri: str, **arguments: Any) -> int:
        """Write the rows of a query, as `pyspark_lance.write` does, and return their number.

        Where the query reads rows of the table, and others are replaced, the commit follows the version that it reads.
        """
        target = self.changed
        if target is not None and self.reads_target and arguments["mode"] == "overwrite":
            arguments |= {"read_version": target.version, "identity": target.identity, "max_retries": 0}
        done = write_with(rows, uri, WriteArguments.of(arguments))
        self.reads_target = False  # a conflict of what follows must not run the statement again
        return 0 if done is None else done.rows_written

    def answer(self, schema: str, rows: Iterable[tuple[Any, ...]] = ()) -> DataFrame:
        """A frame with the rows of the answer to a statement."""
        return self.spark.createDataFrame(list(rows), schema)

    def nothing(self) -> DataFrame:
        """The answer to a statement without a result: a frame without columns, as Spark returns it."""
        return self.spark.createDataFrame([], types.StructType([]))

    def counts(self, **counts: int) -> DataFrame:
        """A frame with one row: numbers of rows, each in a column of its name."""
        return self.answer(", ".join(f"{name} long" for name in counts), [tuple(counts.values())])

    def rows(self, piece: Piece) -> DataFrame:
        """The frame of a query whose rows go to a table.

        Raises:
            UnsupportedError: A column has a type that Spark 3.5 does not describe.
        """
        frame = self.query(piece)
        check_frame("the query must give", frame)
        return frame

    def query(self, piece: Piece, *, parsed_from: int = 0) -> DataFrame:
        """The frame of a query, or of another statement of Spark's that reads Lance tables.

        Args:
            piece: The query.
            parsed_from: Characters of the piece before the query, such as those of EXPLAIN.

        Raises:
            InvalidInputError: The query is not understood, or Spark rejects it.
        """
        piece = Piece(_replace_table_clauses(piece.text, self.finder), piece.start)
        changes, frames = self._replace_tables(piece, parsed_from)
        text = replace_parts(piece.text, changes, escape=bool(frames))
        with short_errors(f"{position(self._statement, piece.start)}"):
            return self.spark.sql(text, args=dict(self.params) or None, **frames)

    def expression(self, piece: Piece | None, target: TableName | None = None, alias: str | None = None) -> str | None:
        """Build a condition or a value for `pyspark.sql.functions.expr`, with its parameters bound; None without one.

        The tables of its subqueries become temporary views of the session, which `drop_views_at_end` drops.

        Args:
            piece: The expression.
            target: The table that is changed, whose name may qualify columns.
            alias: The name by which Spark knows its columns.

        Raises:
            InvalidInputError: The piece has `${variable}`, or a subquery that is not understood.
        """
        if piece is None:
            return None
        if "${" in piece.text:
            raise InvalidInputError(
                f"{self.describe_position(piece.start + piece.text.index('${'))}: Spark puts the value of a setting for"
                " ${...} into queries, and not into conditions and values: put it into a parameter, :name. Nothing was"
                " done"
            )
        changes, frames = self._replace_tables(piece, 0, target, alias)
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
            self._views.append(name)
        changes = [(start, end, new.replace(f"{{{name}}}", name)) for start, end, new, name in changes]
        literals = [
            literal
            for literal in bind_parameters(piece.text, self.params)
            if not any(start <= literal[0] < end for start, end, *_ in changes)  # the version of a table
        ]
        return replace_parts(piece.text, [*changes, *literals], escape=False)

    def dataset(self, mention: Mention, start: int) -> LanceDataset:
        """The version that a name stands for, the same for each mention in a statement."""
        dataset = self._as_target(mention, self.version_of(mention, self.describe_position(start)))
        report_read(dataset)
        return dataset

    def _as_target(self, mention: Mention, dataset: LanceDataset) -> LanceDataset:
        """The version that is changed, if a name without a version stands for the table that the statement changes."""
        target, ref = self.changed, mention.name.ref
        is_latest = mention.version is None and mention.timestamp is None and ref in (None, "main", dataset.branch)
        if target is None or not is_latest or (dataset.uri != target.uri and dataset.identity != target.identity):
            return dataset
        self.reads_target = True
        return dataset.checkout_version((target.branch, target.version))

    def version_of(self, mention: Mention, at: str) -> LanceDataset:
        """The version that a name stands for, without a report of the read; `at` is the position that messages name."""
        if mention.version is None and mention.timestamp is None:
            if mention.name not in self._opened:
                self._opened[mention.name] = self._open(mention.name, at)
            return self._opened[mention.name]
        base = self._open(mention.name, at)
        if mention.version is not None:
            return base.checkout_version(self._version(mention.version, base))
        assert mention.timestamp is not None, "one of the two"
        return base.checkout_version(base.version_as_of(self.moment(mention.timestamp)))

    def _open(self, name: TableName, at: str) -> LanceDataset:
        try:
            return self.finder.open(name)
        except DatasetNotFoundError as error:
            raise DatasetNotFoundError(f"{at}: {error}") from None

    def _version(self, piece: Piece, base: LanceDataset) -> Any:
        version: Any = tokens_of(piece.text)[0].value
        if piece.text.startswith(":"):
            if piece.text[1:] not in self.params:
                raise InvalidInputError(f"the statement has a parameter {piece.text}, which has no value")
            version = self.params[piece.text[1:]]
        if piece.text.startswith("("):
            version = self._evaluate(piece, "VERSION AS OF", lambda value: value)
            if version is None:
                raise InvalidInputError(f"VERSION AS OF {piece.text} is null, and not a version or a tag")
        if isinstance(version, str) and version.isdecimal():
            version = int(version)
        return (base.branch, version) if isinstance(version, int) else version

    def moment(self, piece: Piece) -> dt.datetime:
        """The time of an expression, which Spark evaluates in the zone of the session."""
        micros = self._evaluate(piece, "TIMESTAMP AS OF", lambda value: functions.unix_micros(value.cast("timestamp")))
        if micros is None:
            raise InvalidInputError(f"TIMESTAMP AS OF {piece.text} is not a time")
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)

    def _evaluate(self, piece: Piece, clause: str, convert: Callable[[Column], Column]) -> Any:
        """The value of an expression, which may have subqueries over Lance tables."""
        text = self.expression(piece) or ""
        with short_errors(f"{clause} {piece.text}"):
            return self.spark.range(1).select(convert(functions.expr(text))).collect()[0][0]

    def frame(self, mention: Mention, start: int) -> DataFrame:
        """A frame with all columns and rows of a table."""
        dataset = self.dataset(mention, start)
        options = self.finder.locate(mention.name).storage_options
        return read_version(self.spark, dataset, storage_options=options)

    def _replace_tables(
        self, piece: Piece, parsed_from: int, target: TableName | None = None, alias: str | None = None
    ) -> tuple[list[Any], dict[str, DataFrame]]:
        """Find the replacements of names in a piece, and the frames that they stand for.

        Returns:
            The replacements, each as start and end in the piece, new text, and name of the frame (empty without one);
            and the frames by name.

        Raises:
            UnsupportedError: The piece has pipes, which this Spark lacks.
        """
        pipe = find_pipe(piece.text)
        if pipe is not None:
            require_feature("a query with pipes", self.describe_position(piece.start + pipe))
        mentions = find_mentions(piece.text, self.finder)
        if not mentions:
            return [], {}
        plain = (
            " " * parsed_from + replace_parts(piece.text, [(m.name_end, m.end, None) for m in mentions])[parsed_from:]
        )
        starts = {mention.start: len(mention.name.parts) for mention in mentions}
        aligned = self._statement[: piece.start] + piece.text
        before = "".join(char if char == "\n" else " " for char in self._statement[: piece.start])
        shifted = {piece.start + start: parts for start, parts in starts.items()}
        exact, usual = case_sensitive(self.spark), has_usual_settings(self.spark)
        needs = needs_of(before + plain, shifted, self.params, aligned, usual=usual, exact=exact)
        # Double quotes enclose strings, or names if a setting of the session says so.
        words = {token.value.lower() for token in tokens_of(piece.text) if token.is_name or token.text.startswith('"')}
        changes: list[Any] = []
        frames: dict[str, DataFrame] = {}
        aliases = [] if target is None else [(target, alias or target.last)]
        seen: set[tuple[int, str]] = set()
        for mention in mentions:
            need = needs.get(piece.start + mention.start)
            if need is None:
                continue
            name = f"lance_{uuid.uuid4().hex}"
            frames[name] = self._frame(mention, need, words, piece.start + mention.start)
            changes.append((mention.start, mention.end, f"{{{name}}}", name))
            if not need.alias:
                short = _short(mention.name)
                self._check_once(seen, need.scope, short, mention, piece)
                changes.append((mention.sample_end, mention.sample_end, f" AS {quoted(short)}", name))
                self.spelled[f"{name} AS {quoted(short)}"] = str(mention.name)
                aliases.append((mention.name, short))
            self.spelled[name] = str(mention.name)
        for mention in mentions:
            if piece.start + mention.start not in needs:
                changes += self._replace_qualifier(mention, aliases)
        return changes, frames

    def _frame(self, mention: Mention, need: Need, words: set[str], start: int) -> DataFrame:
        dataset = self.dataset(mention, start)
        self.columns += dataset.schema.names
        columns = None
        if not need.has_all:
            column_names = [*dataset.schema.names, *ROW_COLUMNS]
            columns = [name for name in column_names if name.lower() in words] or ["_rowaddr"]
        options = self.finder.locate(mention.name).storage_options
        return read_version(
            self.spark, dataset, columns=columns, filter=need.filter(dataset.schema), storage_options=options
        )

    def _check_once(self, seen: set[tuple[int, str]], scope: int, short: str, mention: Mention, piece: Piece) -> None:
        if (scope, short.lower()) in seen:
            where = position(self._statement, piece.start + mention.start)
            raise InvalidInputError(f"{where}: two tables are called {short}: give each an alias, ... AS other")
        seen.add((scope, short.lower()))

    def _replace_qualifier(self, mention: Mention, aliases: Sequence[tuple[TableName, str]]) -> list[Any]:
        """The replacement of a table's full name before a column."""
        exact = case_sensitive(self.spark)
        parts = mention.name.parts
        for name, short in aliases:
            count = len(name.parts)
            pairs = zip(parts[:count], name.parts, strict=False)
            if count < len(parts) and all(a == b or (not exact and a.lower() == b.lower()) for a, b in pairs):
                return [(mention.start, mention.ends[count - 1], quoted(short), "")]
        return []


Statement: TypeAlias = "Callable[[Context], DataFrame]"
"""A statement that was read as a whole: the function that runs it, with its table and its other parts."""

_QUERIES: Final = frozenset({"", "AS", "FROM", "IN", "EXISTS", "JOIN", "UNION", "ALL", "DISTINCT", "("})
"""Tokens before a parenthesis that encloses a query; any other token precedes arguments."""
_ARGUMENTS: Final = frozenset({">", ","})
"""Tokens, beside such a parenthesis, before a TABLE that is an argument of a function."""
_NO_QUERIES: Final = frozenset({"INTO", "OVERWRITE", "CREATE", "REPLACE", "EXTERNAL"})
"""Tokens before a TABLE that begins no query."""


def _replace_table_clauses(text: str, finder: TableFinder) -> str:
    """A query that has, for each Lance table t, in place of `TABLE t` and `TABLE(t)` what means the same.

    TABLE t, a query                 FROM t
    f(TABLE t), f(TABLE(t))          f(TABLE(SELECT * FROM t))
    """
    cursor, changes = Cursor(text), []
    while not cursor.is_done:
        word = cursor.token()
        if word.upper != "TABLE":
            continue
        before, outer, name = cursor.peek(-2), cursor.peek(-3), cursor.copy()
        in_parentheses = name.take_if("(")
        if not names_lance(name, finder):
            continue
        is_argument = before.text in _ARGUMENTS or (before.text == "(" and outer.upper not in _QUERIES)
        if in_parentheses or is_argument:
            start = name.peek().start
            name.table()
            end = name.peek(-1).end
            if not in_parentheses or name.take_if(")"):
                changes.append((word.start, name.peek(-1).end, f"TABLE(SELECT * FROM {text[start:end]})"))  # noqa: S608 - a name of the statement
        elif before.upper not in _NO_QUERIES:
            changes.append((word.start, word.end, "FROM "))
    return replace_parts(text, changes)


def _short(name: TableName) -> str:
    """The name by which columns of a table without an alias are qualified."""
    return name.last.rstrip("/").rpartition("/")[2].removesuffix(".lance") if is_path(name) else name.last
