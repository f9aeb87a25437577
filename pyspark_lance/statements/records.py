"""Statements about Lance tables as records, with pieces of the user's SQL for the parts that Spark parses.

    statement text  ->  grammar: a record  ->  run: functions of this package

Nothing is opened or looked up before the whole statement is a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_lance.catalog.tables import TableName
from pyspark_lance.statements.tokens import Piece

__all__ = [
    "AddColumns",
    "AlterColumn",
    "CloneTable",
    "Column",
    "CreateBranch",
    "CreateIndex",
    "CreateTable",
    "CreateTag",
    "CreateView",
    "Delete",
    "Describe",
    "DropColumns",
    "DropIndex",
    "DropRef",
    "DropTable",
    "Insert",
    "Merge",
    "MergeWhen",
    "Optimize",
    "PromoteBranch",
    "Query",
    "RenameColumn",
    "Restore",
    "SetProperties",
    "Show",
    "ShowTables",
    "Statement",
    "Truncate",
    "UnsetProperties",
    "Update",
    "Vacuum",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Any statement about Lance tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(Statement):
    """A query, or another statement of Spark's that reads Lance tables; `prefix` characters precede the query."""

    query: Piece
    prefix: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateView(Statement):
    """CREATE [OR REPLACE] [GLOBAL] TEMPORARY VIEW name [(columns)] AS query."""

    name: str
    columns: tuple[str, ...]
    query: Piece
    replaces: bool
    is_global: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(Statement):
    """INSERT INTO | OVERWRITE table [(columns)] [BY NAME] [REPLACE WHERE condition] query."""

    table: TableName
    query: Piece
    columns: tuple[str, ...] | None = None
    by_name: bool = False
    overwrites: bool = False
    replace_where: Piece | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Statement):
    """UPDATE table [alias] SET column = value, ... [WHERE condition]."""

    table: TableName
    alias: str | None
    values: Mapping[str, Piece]
    where: Piece | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Statement):
    """DELETE FROM table [alias] [WHERE condition]."""

    table: TableName
    alias: str | None
    where: Piece | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWhen:
    """WHEN [NOT] MATCHED [BY SOURCE] [AND condition] THEN UPDATE | DELETE | INSERT."""

    side: str
    action: str
    condition: Piece | None
    values: Mapping[str, Piece] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Statement):
    """MERGE INTO table [alias] USING source [alias [(columns)]] ON condition WHEN ..."""

    table: TableName
    alias: str | None
    source: Piece
    source_is_query: bool
    source_alias: str | None
    source_columns: tuple[str, ...]
    on: Piece
    clauses: tuple[MergeWhen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of CREATE TABLE or ADD COLUMNS."""

    name: str
    type: Piece
    nullable: bool = True
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable(Statement):
    """CREATE [OR REPLACE] | REPLACE TABLE [IF NOT EXISTS] table [(columns)] [clauses] [AS query]."""

    table: TableName
    columns: tuple[Column, ...] | None
    query: Piece | None
    if_not_exists: bool
    replaces: bool
    must_exist: bool
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str] = field(repr=False)
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable(Statement):
    """DROP TABLE [IF EXISTS] table [PURGE]."""

    table: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(Statement):
    """TRUNCATE TABLE table."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumns(Statement):
    """ALTER TABLE table ADD COLUMN[S] (...)."""

    table: TableName
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns(Statement):
    """ALTER TABLE table DROP COLUMN[S] [IF EXISTS] (...)."""

    table: TableName
    columns: tuple[str, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn(Statement):
    """ALTER TABLE table RENAME COLUMN a TO b."""

    table: TableName
    column: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumn(Statement):
    """ALTER TABLE table ALTER COLUMN a TYPE type | SET NOT NULL | DROP NOT NULL | COMMENT string."""

    table: TableName
    column: str
    type: Piece | None = None
    nullable: bool | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProperties(Statement):
    """ALTER TABLE table SET TBLPROPERTIES (...)."""

    table: TableName
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsetProperties(Statement):
    """ALTER TABLE table UNSET TBLPROPERTIES [IF EXISTS] (...)."""

    table: TableName
    keys: tuple[str, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(Statement):
    """OPTIMIZE table [WITH (options)]."""

    table: TableName
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum(Statement):
    """VACUUM table [RETAIN n HOURS] [DRY RUN] [WITH (options)]."""

    table: TableName
    retain_hours: float | None
    dry_run: bool
    retain_versions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex(Statement):
    """CREATE [OR REPLACE] INDEX [IF NOT EXISTS] [name] ON table [USING kind] (column) [WITH (options)]."""

    table: TableName
    name: str | None
    kind: str
    column: str
    if_not_exists: bool
    replaces: bool
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropIndex(Statement):
    """DROP INDEX [IF EXISTS] name ON table."""

    table: TableName
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RefSource:
    """The version that a branch or a tag begins with; the latest version if all attributes are None.

    Attributes:
        version: A version of the branch, or of the table that is named.
        branch: A branch.
        tag: A tag.
    """

    version: str | None = None
    branch: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBranch(Statement):
    """ALTER TABLE table CREATE BRANCH [IF NOT EXISTS] name [AS OF VERSION n | BRANCH b [VERSION n] | TAG t]."""

    table: TableName
    name: str
    source: RefSource
    if_not_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTag(Statement):
    """ALTER TABLE table CREATE [OR REPLACE] TAG [IF NOT EXISTS] name [AS OF ...]."""

    table: TableName
    name: str
    source: RefSource
    if_not_exists: bool
    replaces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRef(Statement):
    """ALTER TABLE table DROP BRANCH | TAG [IF EXISTS] name."""

    table: TableName
    name: str
    kind: str
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteBranch(Statement):
    """ALTER TABLE table PROMOTE BRANCH name."""

    table: TableName
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe(Statement):
    """DESCRIBE TABLE [EXTENDED] | DETAIL table, DESCRIBE HISTORY table [LIMIT n]."""

    table: TableName
    what: str
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Show(Statement):
    """SHOW CREATE TABLE | TBLPROPERTIES [(key)] | COLUMNS | INDEXES | BRANCHES | TAGS of a table."""

    table: TableName
    what: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTables(Statement):
    """SHOW TABLES | NAMESPACES IN catalog[.schema] [LIKE pattern]."""

    parts: tuple[str, ...]
    what: str
    pattern: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Statement):
    """RESTORE TABLE table TO VERSION AS OF n | TIMESTAMP AS OF t."""

    table: TableName
    version: str | None
    timestamp: Piece | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneTable(Statement):
    """CREATE [OR REPLACE] TABLE [IF NOT EXISTS] table [SHALLOW | DEEP] CLONE source."""

    table: TableName
    source: TableName
    shallow: bool
    if_not_exists: bool
    version: str | None
    timestamp: Piece | None
