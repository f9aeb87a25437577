"""`CALL lake.system.<verb>(table => 'nyc.t', name => value)`: the Python verbs that Spark's own SQL has no words for.

    CALL lake.system.create_scalar_index('nyc.t', column => 'id', index_type => 'BTREE')
    create_scalar_index(spark, uri, column="id", index_type="BTREE")        the answer has the fields of what it returns

The first argument is the table; the others are those of the Python function, with its order, defaults and checks. Spark
evaluates their values. A table can be spelled with a branch and a version, as in a query.
"""

from __future__ import annotations

import dataclasses
import decimal
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.tables import CatalogTable
from pyspark_lance.distributed.cloning import deep_clone
from pyspark_lance.distributed.compaction import compact
from pyspark_lance.distributed.indices import create_scalar_index
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.lazy import DataFrame, functions
from pyspark_lance.statements.context import Context, Statement
from pyspark_lance.statements.names import Mention, names_lance, read_mention
from pyspark_lance.statements.run_tables import list_table, new_table, respell_column
from pyspark_lance.statements.tokens import Cursor, Piece
from pyspark_lance.types.column_names import quoted

_ON_TABLE: Final = {
    **{verb: verb for verb in ("cleanup_old_versions", "explain_cleanup_old_versions", "drop_index", "restore")},
    **{verb: verb for verb in ("create_branch", "ensure_branch", "shallow_clone", "migrate_to_stable_row_ids")},
    **{f"{verb}_branch": f"branches.{verb}" for verb in ("promote", "delete", "discard")},
    **{f"{verb}_tag": f"tags.{verb}" for verb in ("create", "update", "delete")},
}
"""Verbs of `LanceDataset`, and where it has them."""
_ON_EXECUTORS: Final[Mapping[str, Callable[..., Any]]] = {
    "compact": lambda spark, uri, *, storage_options=None, transaction_properties=None, **options: compact(
        spark, uri, options, storage_options=storage_options, transaction_properties=transaction_properties
    ),
    "create_scalar_index": create_scalar_index,
    "deep_clone": deep_clone,
}
"""Verbs that run on Spark's executors."""
_VERBS: Final = sorted([*_ON_TABLE, *_ON_EXECUTORS])
_OF_VERSIONS: Final = ("restore", "create_branch", "ensure_branch", "create_tag", "update_tag")
"""Verbs that begin with the version that the name of the table says; others change the latest version of a branch."""
_CLONES: Final = {"shallow_clone": ("target_path", "reference"), "deep_clone": ("target", "version")}
"""Verbs that create a table: the argument with its name, and the one with the version that the source's name says."""
_OF_CATALOGS: Final = frozenset({"storage_options", "target_storage_options", "progress"})
"""Arguments that a statement does not give."""
_WORDS: Final = {"CREATE": "create", "CREATE OR REPLACE": "update", "DROP": "delete", "PROMOTE": "promote"}
_OLD_FORMS: Final = {
    "OPTIMIZE": "compact",
    "VACUUM": "cleanup_old_versions",
    "RESTORE": "restore",
    **dict.fromkeys(("CREATE INDEX", "CREATE OR REPLACE INDEX"), "create_scalar_index"),
    "DROP INDEX": "drop_index",
    **{f"{word} BRANCH": f"{verb}_branch" for word, verb in _WORDS.items()},
    **{f"{word} TAG": f"{verb}_tag" for word, verb in _WORDS.items()},
    **{f"{kind}CLONE": f"{verb}_clone" for kind, verb in {"": "deep", "DEEP ": "deep", "SHALLOW ": "shallow"}.items()},
}
"""How Delta, Iceberg and others begin statements, also as clauses of ALTER TABLE, and the verbs that do the same."""


def parse_call(cursor: Cursor) -> Statement:
    """Read a CALL."""
    cursor.expect("CALL")
    start = cursor.peek()
    parts = cursor.table().parts
    verb = parts[-1].lower()
    if len(parts) != 3 or parts[1].lower() != "system" or verb not in _VERBS:
        cursor.fail(f"{parts[0]}.system.<verb>(table => '...', ...), with one of the verbs {', '.join(_VERBS)}", start)
    cursor.expect("(")
    pieces: dict[Any, Piece] = {}
    while cursor.take_if(",") if pieces else not cursor.sees(")"):
        token = cursor.peek()
        name: Any = len(pieces)
        if token.is_name and cursor.peek(1).text + cursor.peek(2).text == "=>":
            name = cursor.identifier().lower()
            cursor.expect("= >")
            if name in pieces:
                cursor.fail("each argument once", token)
        elif any(isinstance(earlier, str) for earlier in pieces):
            cursor.fail("name => value, as the arguments before it")
        pieces[name] = cursor.piece(",")
    cursor.expect(")")
    table = pieces.pop("table", None) or pieces.pop(0, None)
    if table is None:
        cursor.fail("the table, as first argument or table => '...'", cursor.peek(-1))
    return partial(run, catalog=parts[0], verb=verb, table=table, pieces=pieces)


def reject_old_form(cursor: Cursor, catalog: str) -> None:
    """Reject a statement, or a clause of ALTER TABLE or CREATE TABLE, for which there is a CALL.

    Raises:
        InvalidInputError: The message names the CALL.
    """
    for words, verb in _OLD_FORMS.items():
        if cursor.sees(words):
            cursor.fail(f"CALL {catalog}.system.{verb}(table => '...', ...)")


def run(context: Context, *, catalog: str, verb: str, table: Piece, pieces: Mapping[Any, Piece]) -> DataFrame:
    """Run a CALL, whose arguments are numbered or named."""
    if names_lance(Cursor(table.text), context.finder):
        name, values = table.text, _evaluate(context, pieces.values())
    else:
        name, *values = _evaluate(context, [table, *pieces.values()])
    mention = _read_table_name(context, name, catalog)
    dataset, location = _open(context, verb, mention, context.describe_position(table.start))
    supplied: dict[str, Any] = {}
    if verb in _CLONES:
        supplied[_CLONES[verb][1]] = (dataset.branch, dataset.version)
    if verb in _ON_TABLE:
        function: Callable[..., Any] = attrgetter(_ON_TABLE[verb])(dataset)
    else:
        uri = location.uri if verb in _CLONES else dataset.uri
        function = partial(_ON_EXECUTORS[verb], context.spark, uri, storage_options=location.storage_options)
    signed = dataset.optimize.compact_files if verb == "compact" else function
    arguments = _bind(f"CALL {catalog}.system.{verb}", signed, dict(zip(pieces, values, strict=True)), supplied)
    if "column" in arguments:
        arguments["column"] = respell_column(context, dataset, arguments["column"])
    if verb not in _CLONES:
        return _report(context, dataset, function(**arguments))
    target = _read_table_name(context, arguments.pop(_CLONES[verb][0]), catalog)
    if target.version is not None or target.timestamp is not None:
        raise InvalidInputError(f"{target.name} is a new table, which has no versions yet: leave out AS OF")
    new_location, exists = new_table(context, target.name)
    if exists:
        raise context.finder.exists_error(target.name, new_location)
    new_location = new_location.declared()
    options = "target_storage_options" if verb == "deep_clone" else "storage_options"
    clone = function(new_location.uri, **supplied, **{options: new_location.storage_options})
    list_table(new_location, is_new=True)
    return _report(context, clone, clone)


def _bind(
    what: str, function: Callable[..., Any], values: Mapping[Any, Any], supplied: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a function by name.

    Args:
        what: The function, as messages name it.
        function: The function.
        values: What the statement gives, by position or name.
        supplied: What the statement does not give.

    Raises:
        InvalidInputError: The function has no such argument, or needs another one.
    """
    parameters = inspect.signature(function).parameters
    accepted = [parameters[name] for name in parameters if name not in _OF_CATALOGS and name not in supplied]
    positional = [value for key, value in values.items() if isinstance(key, int)]
    named = {key: value for key, value in values.items() if isinstance(key, str)}
    problem = next((f"no argument {name!r}" for name in named if name in _OF_CATALOGS or name in supplied), "")
    try:
        arguments = inspect.Signature(accepted).bind(*positional, **named).arguments
    except TypeError as error:
        problem = str(error)
    if problem:
        names = ", ".join(["table", *(parameter.name for parameter in accepted)])
        raise InvalidInputError(f"{what}: {problem}; it takes {names}. Nothing was done")
    variable = [parameter.name for parameter in accepted if parameter.kind is parameter.VAR_KEYWORD]
    for name in variable:
        arguments.update(arguments.pop(name, {}))
    return arguments


def _evaluate(context: Context, pieces: Iterable[Piece]) -> list[Any]:
    """The values of arguments, which Spark evaluates, as Python has them."""
    from pyspark.sql import Row

    expressions = [context.expression(piece) or "" for piece in pieces]
    if not expressions:
        return []
    with short_errors("CALL"):
        columns = [functions.expr(expression) for expression in expressions]
        values = context.spark.range(1).select(functions.struct(*columns)).collect()[0][0]
    as_python = {decimal.Decimal: float, Row: tuple}
    return [as_python.get(type(value), lambda same: same)(value) for value in values]


def _read_table_name(context: Context, name: Any, catalog: str) -> Mention:
    """The name of a table, with or without the catalog before it.

    Raises:
        InvalidInputError: The value is not the name of a table.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"CALL: {name!r} is not the name of a table, which is a string. Nothing was done")
    cursor = Cursor(name)
    if not names_lance(cursor, context.finder):
        cursor = Cursor(f"{quoted(catalog)}.{name}")
        if not names_lance(cursor, context.finder):
            cursor.fail("a table of a catalog, or a path in backticks")
    mention = read_mention(cursor)
    cursor.finish()
    return mention


def _open(context: Context, verb: str, mention: Mention, at: str) -> tuple[LanceDataset, CatalogTable]:
    """The version of a table that a verb takes, and the location of the table.

    Raises:
        InvalidInputError: The verb changes the latest version, and the name says another one; or a restore would
            change another branch than the name says.
    """
    is_travel = mention.version is not None or mention.timestamp is not None
    if verb not in _OF_VERSIONS and verb not in _CLONES:
        if is_travel:
            raise InvalidInputError(f"{at}: {verb} takes the latest version: leave out AS OF. Nothing was done")
        return context.target(mention.name)
    dataset = context.version_of(mention, at)
    branch = mention.name.ref if mention.name.ref in dataset.branches.list() else None
    if verb == "restore" and dataset.branch != branch:
        raise InvalidInputError(
            f"{at}: {mention.name} is restored to a version of its own, and this one is of branch"
            f" {dataset.branch or 'main'}. Nothing was done"
        )
    return dataset, context.finder.locate(mention.name)


def _report(context: Context, dataset: LanceDataset, report: Any) -> DataFrame:
    """The fields of what a verb returns; without any the version that the table has then."""
    if not dataclasses.is_dataclass(report):
        version = report.version if isinstance(report, LanceDataset) else dataset.version
        return context.answer("version long", [(version,)])
    return context.answer(_name_type(type(report))[7:-1], [_convert_value(report)])


_TYPES: Final = {
    int: "bigint",
    str: "string",
    bool: "boolean",
    float: "double",
    LanceDataset: "struct<version: bigint>",
}


def _name_type(hint: Any) -> str:
    """The type in Spark of a value with a type of Python."""
    if dataclasses.is_dataclass(hint):
        fields = [f"{name}: {_name_type(kind)}" for name, kind in typing.get_type_hints(hint).items()]
        return f"struct<{', '.join(fields)}>"
    if typing.get_origin(hint) is tuple:
        return f"array<{_name_type(typing.get_args(hint)[0])}>"
    if isinstance(hint, types.UnionType):
        return _name_type(next(kind for kind in typing.get_args(hint) if kind is not types.NoneType))
    return _TYPES[hint]


def _convert_value(value: Any) -> Any:
    """A value as `_name_type` says."""
    if isinstance(value, LanceDataset):
        return (value.version,)
    if dataclasses.is_dataclass(value):
        return tuple(_convert_value(getattr(value, field.name)) for field in dataclasses.fields(value))
    return [_convert_value(item) for item in value] if isinstance(value, tuple) else value
