"""The grammar of OPTIMIZE, VACUUM, RESTORE, and of indices, branches and tags.

CREATE BRANCH dev ON lake.nyc.t            or    ALTER TABLE lake.nyc.t CREATE BRANCH dev
CREATE INDEX i ON lake.nyc.t USING btree (id)    ALTER TABLE lake.nyc.t CREATE INDEX i USING btree (id)
"""

from __future__ import annotations

from typing import Final

from pyspark_lance.catalog.tables import TableName
from pyspark_lance.statements import records
from pyspark_lance.statements.tables_grammar import travel
from pyspark_lance.statements.tokens import Cursor

__all__ = ["alter_refs", "create_or_drop", "optimize", "restore", "vacuum"]


_INDICES: Final = frozenset(
    {"btree", "bitmap", "zonemap", "zone_map", "bloomfilter", "bloom", "bloom_filter", "label_list"}
)
"""Types of indices that Spark builds."""
_MOST_HOURS: Final = 10_000_000
"""Most hours that a point in time can lie in the past: more would be before the year 1000."""


def optimize(cursor: Cursor) -> records.Optimize:
    """Read an OPTIMIZE."""
    cursor.expect("OPTIMIZE")
    cursor.takes("TABLE")
    table = cursor.table()
    if cursor.sees("WHERE") or cursor.sees("ZORDER"):
        cursor.fail("WITH (options): all fragments that are worth it are rewritten, in their order")
    return records.Optimize(table=table, options=cursor.arguments())


def vacuum(cursor: Cursor) -> records.Vacuum:
    """Read a VACUUM."""
    cursor.expect("VACUUM")
    cursor.takes("TABLE")
    table = cursor.table()
    hours, versions, dry = None, None, False
    while not cursor.is_done:
        if cursor.takes("RETAIN"):
            start = cursor.peek()
            hours = cursor.number()
            if not hours <= _MOST_HOURS:
                cursor.fail(f"at most {_MOST_HOURS} HOURS", start)
            if not cursor.takes("HOURS", "HOUR"):
                cursor.fail("HOURS")
        elif cursor.takes("DRY RUN"):
            dry = True
        elif cursor.takes("FULL"):
            continue
        elif cursor.sees("WITH"):
            start = cursor.peek()
            options = dict(cursor.arguments())
            retain_versions = options.pop("retain_versions", options.pop("retainVersions", None))
            if options:
                cursor.fail(f"retain_versions, and not {', '.join(options)}", start)
            if retain_versions is not None and not retain_versions.isdecimal():
                cursor.fail(f"a number of versions, and not {retain_versions!r}", start)
            versions = None if retain_versions is None else int(retain_versions)
        else:
            cursor.fail("RETAIN n HOURS, DRY RUN or WITH (retain_versions = n)")
    return records.Vacuum(table=table, retain_hours=hours, dry_run=dry, retain_versions=versions)


def restore(cursor: Cursor) -> records.Restore:
    """Read a RESTORE."""
    cursor.expect("RESTORE")
    cursor.takes("TABLE")
    table = cursor.table()
    cursor.expect("TO")
    version, timestamp = travel(cursor)
    if version is None and timestamp is None:
        cursor.fail("VERSION AS OF or TIMESTAMP AS OF")
    return records.Restore(table=table, version=version, timestamp=timestamp)


def create_or_drop(cursor: Cursor) -> records.Statement:
    """Read CREATE, DROP or PROMOTE of an index, a branch or a tag, with the table after ON."""
    return _of(cursor, None)


def alter_refs(cursor: Cursor) -> records.Statement:
    """Read CREATE, DROP or PROMOTE of an index, a branch or a tag as a clause of ALTER TABLE."""
    cursor.expect("ALTER TABLE")
    return _of(cursor, cursor.table())


def _of(cursor: Cursor, table: TableName | None) -> records.Statement:
    if cursor.takes("PROMOTE BRANCH"):
        name = cursor.ref()
        return records.PromoteBranch(table=_on(cursor, table), name=name)
    if cursor.takes("DROP"):
        return _drop(cursor, table)
    cursor.expect("CREATE")
    replaces = cursor.takes("OR REPLACE")
    if cursor.takes("INDEX"):
        return _index(cursor, table, replaces=replaces)
    kind = "TAG" if cursor.takes("TAG") else "BRANCH"
    if kind == "BRANCH":
        if replaces:
            cursor.fail("TAG: a branch is dropped before it is created again")
        cursor.expect("BRANCH")
    if_not_exists = cursor.takes("IF NOT EXISTS")
    name = cursor.ref()
    table = _on(cursor, table)
    source = _ref_source(cursor)
    if kind == "BRANCH":
        return records.CreateBranch(table=table, name=name, source=source, if_not_exists=if_not_exists)
    return records.CreateTag(table=table, name=name, source=source, if_not_exists=if_not_exists, replaces=replaces)


def _ref_source(cursor: Cursor) -> records.RefSource:
    """Read the version that a branch or a tag begins with."""
    if cursor.takes("AS OF VERSION", "VERSION AS OF"):
        return records.RefSource(version=cursor.token().value)
    if cursor.takes("AS OF TAG"):
        return records.RefSource(tag=cursor.ref())
    if not cursor.takes("AS OF BRANCH"):
        return records.RefSource()
    branch = cursor.ref()
    version = str(cursor.whole_number("the number of a version")) if cursor.takes("VERSION") else None
    return records.RefSource(branch=branch, version=version)


def _on(cursor: Cursor, table: TableName | None) -> TableName:
    if table is not None:
        return table
    if not cursor.takes("ON", "IN", "FROM"):
        cursor.fail("ON and a table")
    cursor.takes("TABLE")
    return cursor.table()


def _drop(cursor: Cursor, table: TableName | None) -> records.Statement:
    kind = cursor.token().upper
    if kind not in ("INDEX", "BRANCH", "TAG"):
        cursor.fail("INDEX, BRANCH or TAG", cursor.peek(-1))
    if_exists = cursor.takes("IF EXISTS")
    name = cursor.identifier("the name of an index") if kind == "INDEX" else cursor.ref()
    table = _on(cursor, table)
    if kind == "INDEX":
        return records.DropIndex(table=table, name=name, if_exists=if_exists)
    return records.DropRef(table=table, name=name, kind=kind, if_exists=if_exists)


def _index(cursor: Cursor, table: TableName | None, *, replaces: bool) -> records.CreateIndex:
    if_not_exists = cursor.takes("IF NOT EXISTS")
    name = None if cursor.sees("ON") or cursor.sees("USING") else cursor.identifier("the name of the index")
    if table is None:
        cursor.expect("ON")
        cursor.takes("TABLE")
        table = cursor.table()
    kind = cursor.identifier("the type of the index") if cursor.takes("USING") else "btree"
    if kind.lower() not in _INDICES:
        cursor.fail("btree, bitmap, zonemap, bloomfilter or label_list; pylance builds others", cursor.peek(-1))
    start = cursor.peek()
    columns = cursor.identifiers()
    if len(columns) != 1:
        cursor.fail("one column: an index covers one", start)
    return records.CreateIndex(
        table=table,
        name=name,
        kind=kind,
        column=columns[0],
        if_not_exists=if_not_exists,
        replaces=replaces,
        options=cursor.arguments(),
    )
