"""Random queries, conditions and values over two tables with columns of all kinds, from a seed.

Names of tables are drawn as `Table` and spelled by each engine: `rnd.s.t@v1` for Lance, a temporary view for Spark.
"""

import random
import re

MARK = re.compile(r"<<(?P<is_qualifier>=?)(?P<name>\w+)(?:@(?P<version>\d))?(?P<has_alias>\|?)>>")
"""<<t>> a table without an alias; <<t@1>> its first version; <<t|>> one whose alias follows; <<=t>> before a column."""

COLUMNS = {
    "t": {
        "id": "long", "k": "int", "x": "decimal", "f": "double", "d": "date", "ts": "time", "n": "ntz", "s": "string",
        "b": "bool", "p.a": "int", "p.q.c": "decimal", "p.b": "string", "Odd Name": "string", "bin": "binary",
    },
    "u": {"id": "long", "k": "int", "x": "decimal", "d": "date", "ts": "time", "s": "string", "p.a": "int", "extra": "string"},
}  # fmt: skip
STRINGS = ["'a'", "'it''s'", "''", "'B'", "'%'", '"dq"', r"'back\\slash'", "'ä-ß'", "'{x}'", "'--no'", "'?'", "r'\\d'"]


class Drawn:
    """One sequence of random choices.

    Attributes:
        params: Values of the parameters that were drawn.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.params = {}

    def one(self, *choices):
        return self.random.choice(choices)

    def maybe(self, text, share=0.5):
        return text if self.random.random() < share else ""

    def spelled(self, name):
        """A column's name in some case, with or without backticks."""
        parts = name.split(".")
        made = []
        for part in parts:
            cased = self.one(part, part, part.upper(), part.title())
            made.append(f"`{cased}`" if " " in part or self.random.random() < 0.15 else cased)
        return ".".join(made)

    def column(self, scope, kind):
        """A column of a kind, of one of the tables in scope: pairs of a qualifier and a table."""
        found = [(qualifier, name) for qualifier, table in scope for name, one in COLUMNS[table].items() if one == kind]
        if not found:
            return None
        qualifier, name = self.random.choice(found)
        return (f"{qualifier}." if qualifier else "") + self.spelled(name)

    def param(self, value):
        name = f"p{len(self.params)}"
        self.params[name] = value
        return f":{name}"

    def literal(self, kind):
        import datetime as dt
        import decimal

        number = self.random.randint(-3, 6)
        if self.random.random() < 0.12 and kind not in ("binary", "ntz"):
            return self.param(
                {
                    "int": number, "long": number, "double": number / 2, "decimal": decimal.Decimal(number) / 4,
                    "string": self.one("a", "it's", "B", "x\\y", ""), "bool": self.one(True, False),
                    "date": dt.date(2024, 3, 10), "time": dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC),
                }[kind]
            )  # fmt: skip
        if self.random.random() < 0.06:
            return "NULL"
        return {
            "int": self.one(str(number), f"({number})", "cast(2 AS tinyint)"),
            "long": self.one(str(number), f"{number}L", "3000000000", "cast('2' AS bigint)"),
            "double": self.one(f"{number}.5D", "0D", "-0D", "double('NaN')", "1e0", "double('Infinity')"),
            "decimal": self.one(f"{number}.25", f"{number}.1BD", "0.005", str(number)),
            "string": self.one(*STRINGS),
            "bool": self.one("true", "false"),
            "date": self.one("DATE'2024-03-10'", "DATE '2024-01-31'", "'2024-03-10'", "cast('2024-02-29' AS date)"),
            "time": self.one(
                "TIMESTAMP'2024-03-10 01:30:00'", "TIMESTAMP '2024-03-10 06:30:00Z'", "'2024-11-03 01:30:00'",
                "DATE'2024-03-10'", "TIMESTAMP_NTZ'2024-03-10 01:30:00'",
            ),
            "ntz": self.one("TIMESTAMP_NTZ'2024-03-10 02:30:00'", "'2024-03-10 02:30:00'", "TIMESTAMP'2024-03-10 01:30:00'"),
            "binary": self.one("x'00ff'", "X''", "'a'"),
        }[kind]  # fmt: skip

    def value(self, scope, kind, depth=1):
        """An expression of a kind."""
        column = self.column(scope, kind)
        if column is None or self.random.random() < 0.25:
            return self.literal(kind)
        if depth == 0 or self.random.random() < 0.5:
            return column
        deeper = self.value(scope, kind, depth - 1)
        when = self.condition(scope, depth - 1)
        own = {
            "int": [f"{column} + 1", f"abs({deeper})", f"coalesce({column}, {deeper})", f"{column} % 3"],
            "long": [f"{column} * 2", f"coalesce({column}, {deeper})", f"nullif({column}, {deeper})"],
            "decimal": [f"{column} + 0.01", f"cast({deeper} AS decimal(10,2))", f"coalesce({column}, 0)"],
            "double": [f"{column} / 2D", f"coalesce({column}, {deeper})", f"-{column}"],
            "string": [f"{column} || 'z'", f"upper({column})", f"concat({column}, {deeper})", f"coalesce({column}, 'none')"],
            "date": [f"date_add({column}, 1)", f"{column} + INTERVAL 1 MONTH", f"coalesce({column}, {self.literal(kind)})"],
            "time": [f"{column} + INTERVAL 1 HOUR", f"coalesce({column}, TIMESTAMP'2024-01-01 00:00:00')"],
            "ntz": [f"{column} + INTERVAL '1' DAY"],
            "bool": [f"NOT {column}", f"({deeper} OR {column})"],
            "binary": [f"concat({column}, x'01')"],
        }[kind]  # fmt: skip
        own.append(f"CASE WHEN {when} THEN {column} ELSE {deeper} END")
        return self.random.choice(own)

    def kind(self, scope):
        return self.random.choice([kind for _, table in scope for kind in COLUMNS[table].values()])

    def condition(self, scope, depth=2, subqueries=False):
        """A condition over the tables in scope."""
        pick = self.random.random()
        if depth > 0 and pick < 0.35:
            one, other = self.condition(scope, depth - 1, subqueries), self.condition(scope, depth - 1, subqueries)
            return self.one(f"{one} AND {other}", f"({one} OR {other})", f"NOT ({one})", f"({one}) AND ({other})")
        if subqueries and pick < 0.55:
            return self.subquery(scope)
        kind = self.kind(scope)
        column = self.column(scope, kind)
        literal = self.literal(kind)
        choices = [
            f"{column} {self.one('=', '<', '>=', '<>', '!=', '<=>', '==')} {literal}",
            f"{column} {self.one('=', '<', '<=')} {literal}",
            f"{literal} {self.one('<', '=', '>=')} {column}",
            f"{column} {self.one('=', '>')} {self.value(scope, kind)}",
            f"{column} IS {self.maybe('NOT ')}NULL",
            f"{column} {self.maybe('NOT ')}IN ({literal}, {self.literal(kind)})",
            f"{column} {self.maybe('NOT ')}BETWEEN {literal} AND {self.literal(kind)}",
        ]
        if kind == "string":
            choices.append(f"{column} {self.maybe('NOT ')}LIKE {self.one(repr('a%'), repr('%_s'), repr('%'))}")
            choices.append(f"length({column}) > 1")
        if kind == "bool":
            choices.append(str(column))
        return self.random.choice(choices)

    def subquery(self, scope):
        """A condition with a subquery, plain or correlated."""
        inner = self.one("t", "u")
        outer = self.random.choice(scope)[0]
        where = self.condition([("z", inner)], 1)
        key = self.one("id", "k")
        own = (f"{outer}." if outer else "") + key
        choices = [
            f"{own} {self.maybe('NOT ')}IN (SELECT z.{key} FROM <<{inner}|>> z WHERE {where})",
            f"{own} {self.one('=', '<', '>')} (SELECT {self.one('max', 'min')}({key}) FROM <<{inner}|>> z WHERE {where})",
            f"{own} IN (SELECT {key} FROM <<{inner}>> WHERE {self.condition([('', inner)], 1)})",
        ]
        if outer:
            choices += [
                f"{self.maybe('NOT ')}EXISTS (SELECT {self.one('1', '*', 'z.id')} FROM <<{inner}|>> AS z WHERE z.{key} = {outer}.{key} AND {where})",
                f"{own} >= (SELECT max(z.{key}) FROM <<{inner}|>> AS z WHERE z.id = {outer}.id)",
            ]
        return self.random.choice(choices)

    def table(self, name, alias=""):
        version = self.maybe("@1", 0.2)
        return f"<<{name}{version}{'|' if alias else ''}>>" + (f" {self.maybe('AS ')}{alias}" if alias else "")

    def query(self):
        """A query whose rows have no order."""
        return self.random.choice(QUERIES)(self)


def _items(draw, scope, count=3):
    kinds = [draw.kind(scope) for _ in range(draw.random.randint(1, count))]
    return ", ".join(f"{draw.value(scope, kind)} AS c{i}" for i, kind in enumerate(kinds))


def _plain(draw):
    alias = draw.one("", "a", "T", "lake", "p")
    name = draw.one("t", "u")
    scope = [(draw.one(alias, ""), name)] if alias != "p" else [("p", name)]
    items = draw.one("*", f"{alias}.*" if alias else "*", _items(draw, scope))
    return f"SELECT {items} FROM {draw.table(name, alias)} WHERE {draw.condition(scope, 2, subqueries=True)}"


def _full_names(draw):
    name = draw.one("t", "u")
    column = draw.one("id", "k", "s", "p.a")
    return f"SELECT <<={name}>>.{column}, {name}.id FROM <<{name}>> WHERE <<={name}>>.k > 1 OR {name}.{column} IS NULL"


def _join(draw):
    one, other = draw.one("t", "u"), draw.one("t", "u")
    scope = [("a", one), ("b", other)]
    how = draw.one(
        "JOIN",
        "INNER JOIN",
        "LEFT JOIN",
        "RIGHT OUTER JOIN",
        "FULL JOIN",
        "CROSS JOIN",
        "LEFT SEMI JOIN",
        "LEFT ANTI JOIN",
        ",",
    )
    on = (
        ""
        if how in ("CROSS JOIN", ",")
        else f"ON {draw.one('a.id = b.id', 'a.k = b.k', 'a.k = b.id', 'a.s = b.s')}"
        + draw.maybe(f" AND {draw.condition(scope, 1)}")
    )
    seen = [("a", one)] if "SEMI" in how or "ANTI" in how else scope
    items = (
        _items(draw, seen)
        if "SEMI" in how or "ANTI" in how
        else draw.one(_items(draw, seen), "a.*, b.id", "count(*), max(b.s), sum(a.k)", "b.*")
    )
    return f"SELECT {items} FROM {draw.table(one, 'a')} {how} {draw.table(other, 'b')} {on} WHERE {draw.condition(seen, 1, subqueries=True)}"


def _using(draw):
    return f"SELECT {draw.one('id, a.s, b.d', '*', 'id')} FROM <<t|>> a {draw.one('JOIN', 'LEFT JOIN', 'FULL JOIN')} <<u|>> b USING ({draw.one('id', 'id, k')}) WHERE {draw.one('id > 1', 'a.k = 2', 'b.id = 2', 'id IS NULL')}"


def _renamed(draw):
    name, columns = "t", ["id", "k", "x", "f", "d", "ts", "n", "s", "b", "p", "`Odd Name`", "bin", "arr", "m"]
    shuffled = list(columns)
    draw.random.shuffle(shuffled)
    return f"SELECT q.{draw.one('id', 's', 'd')}, q.k FROM <<{name}|>> AS q({', '.join(shuffled)}) WHERE q.{draw.one('id IS NOT NULL', 'k IS NULL')}"


def _renamed_matching(draw):
    """Columns of one type change places: a filter that is pushed by name concerns another one."""
    return f"SELECT q.id, q.s FROM <<u|>> AS q(k, id, x, d, ts, {draw.one('extra, p, s', 's, p, extra')}) WHERE q.{draw.one('id = 2', 'k > 1', chr(39) + 'a' + chr(39) + ' = q.s')}"


def _grouped(draw):
    scope = [("", "t")]
    kind = draw.kind(scope)
    key = draw.value(scope, kind)
    more = draw.one("", f" HAVING count(*) {draw.one('>', '<')} 1", " HAVING max(id) > 2")
    return f"SELECT {key} AS g, count(*), count(DISTINCT k), sum(x), max(ts), min(s) FROM {draw.table('t')} WHERE {draw.condition(scope, 1, subqueries=True)} GROUP BY {draw.one('1', 'g', 'ALL') if 'CASE' in key else draw.one(key, '1') if ':' not in key else '1'}{more}"


def _cte(draw):
    scope = [("", "t")]
    name = draw.one("c", "t", "rnd", "u")
    return f"WITH {name} AS (SELECT id, k, s FROM <<t>> WHERE {draw.condition(scope, 1)}) SELECT w.id, z.s FROM {name} w {draw.one('JOIN', 'LEFT JOIN')} <<u|>> z ON w.id = z.id WHERE {draw.one('w.k = 2', 'z.k = 2 OR w.k = 1', 'w.s IS NOT NULL')}"


def _shadows(draw):
    """Names of a catalog and of tables that are those of something else here."""
    return draw.one(
        "WITH rnd AS (SELECT id, k FROM <<t>> WHERE k = 2) SELECT rnd.id, rnd.k FROM rnd WHERE rnd.id > 1",
        "SELECT rnd.id, rnd.p.a FROM <<u|>> AS rnd WHERE rnd.p.a = 1 OR rnd.k = 2",
        "WITH t AS (SELECT 7 AS id, 'a' AS s) SELECT t.id, z.k FROM t JOIN <<t|>> z ON t.s = z.s WHERE t.id = 7",
        "SELECT t.id FROM (SELECT id AS k, k AS id FROM <<t>>) AS t WHERE t.id = 2",
        "SELECT id FROM <<t>> WHERE k = 2 AND id IN (SELECT t.id FROM <<u|>> t WHERE t.k = 2)",
        "SELECT p.a, p.id FROM <<t|>> p WHERE p.id = 2 OR p.a = 1",
        "SELECT s.id, s.s FROM <<t|>> s WHERE s.s = 'a' OR s.k = 2",
        "SELECT id FROM <<t|>> a WHERE EXISTS (SELECT 1 FROM <<u>> WHERE extra = a.s AND a.k = 2 AND b)",
        "SELECT id FROM <<u|>> a WHERE EXISTS (SELECT 1 FROM <<t|>> z WHERE extra = 'a' AND f IS NULL)",
    )


def _cte_columns(draw):
    return f"WITH c(k, id) AS (SELECT id, k FROM <<t>>), e AS (SELECT * FROM c WHERE id = 2) SELECT e.*, (SELECT count(*) FROM <<u|>> z WHERE z.k = e.k) FROM e WHERE k > {draw.random.randint(0, 3)}"


def _sets(draw):
    both = [
        f"SELECT {draw.value([('', name)], 'long')} AS v, {draw.value([('', name)], 'string')} AS w FROM {draw.table(name)} WHERE {draw.condition([('', name)], 1)}"
        for name in ("t", "u")
    ]
    return f" {draw.one('UNION', 'UNION ALL', 'INTERSECT', 'EXCEPT', 'EXCEPT ALL', 'MINUS')} ".join(both)


def _derived(draw):
    within = f"SELECT id AS k, k AS id, s, d FROM <<t>> WHERE {draw.condition([('', 't')], 1)}"
    return f"SELECT k, s FROM ({within}) {draw.one('AS q', 'q')} WHERE {draw.one('id = 2', 'k > 1 AND id < 3', 'q.d > DATE' + chr(39) + '2024-01-01' + chr(39))}"


def _windows(draw):
    return f"SELECT id, sum(k) OVER (PARTITION BY s) AS w, rank() OVER (ORDER BY k, id, s, x) FROM <<t>> WHERE {draw.condition([('', 't')], 1)}"


def _exploded(draw):
    return draw.one(
        f"SELECT id, e FROM <<t>> LATERAL VIEW explode(arr) q AS e WHERE {draw.one('e > 1', 'id > 1', 'k = 2 AND e < 5')}",
        f"SELECT id, k FROM <<t>> LATERAL VIEW OUTER explode(arr) q AS k WHERE {draw.one('id < 4', 'q.k IS NULL', 'q.k > 1')}",
        "SELECT a.id, z.c FROM <<t|>> a, LATERAL (SELECT count(*) AS c FROM <<u|>> b WHERE b.id = a.id AND b.k = 2) z WHERE a.k IS NOT NULL",
        f"SELECT id, m['one'], arr[0], transform(arr, e -> e + k) FROM <<t>> WHERE size(arr) > {draw.random.randint(0, 2)}",
        "SELECT id, p, struct(k, s).s, named_struct('z', p.a).z FROM <<t>> WHERE p.a = 2 OR p IS NULL",
    )


def _stars(draw):
    return draw.one(
        "SELECT * EXCEPT (p, arr, m, bin) FROM <<t>> WHERE k = 2",
        "SELECT count(*), count(1), count(id), count(DISTINCT id, k) FROM <<t>>",
        "SELECT struct(*) FROM <<u>>",
        "SELECT a.p.*, a.p.q.* FROM <<t|>> a",
        "SELECT DISTINCT * FROM (SELECT u.* FROM <<u>>) WHERE id > 1",
        "FROM <<t>> SELECT id, s WHERE k > 1",
        "FROM <<u>>",
        "SELECT (SELECT max(id) FROM <<u>>) AS m, id FROM <<t>> WHERE (id, k) IN (SELECT id, k FROM <<u>>)",
        "SELECT x, grouping(k), sum(id) FROM <<t>> GROUP BY x, k GROUPING SETS ((x), (x, k), ())",
        "SELECT * FROM (SELECT k, s, id FROM <<t>>) PIVOT (sum(id) FOR k IN (1, 2, 3))",
        "SELECT * FROM <<u>> NATURAL JOIN (SELECT id, k FROM <<t>>) w",
        "SELECT * FROM <<t|>> a NATURAL LEFT JOIN <<u|>> b WHERE a.k = 2",
        "SELECT id FROM <<t>> ORDER BY id DESC NULLS LAST, k, s LIMIT 3",
        "SELECT id FROM <<t>> WHERE k = 2 ORDER BY x, id, s OFFSET 1",
        "SELECT sum(c) FROM (SELECT count(*) AS c FROM <<t>> UNION ALL SELECT count(*) FROM <<u>>)",
        "SELECT id AS k, k + 1 AS w FROM <<t>> WHERE k = 2 GROUP BY id, k HAVING w = 3",
        "SELECT /* <<t>> */ id -- FROM <<u>>\n FROM <<t>> WHERE s <> '<<u>>'",
        "SELECT k, id lid, lid + 1 FROM <<t>> WHERE id BETWEEN 1 AND 3",
        "SELECT a.id FROM (<<t|>> a JOIN <<u|>> b ON a.id = b.id) WHERE b.k = 2 AND a.k IS NOT NULL",
        "SELECT ts, date_trunc('day', ts), cast(ts AS date), hour(ts) FROM <<t>> WHERE ts >= '2024-03-10' AND cast(ts AS date) = DATE'2024-03-10'",
        "SELECT t.id, t.p.a, t.p.q.c FROM <<t>> WHERE t.p.q.c > 1.0 AND t.p.a IS NOT NULL",
        "SELECT id FROM <<t>> WHERE k = :k AND s = :s",
        "VALUES (1, (SELECT max(id) FROM <<t>>))",
    )  # fmt: skip


QUERIES = [
    _plain, _plain, _plain, _full_names, _join, _join, _join, _using, _renamed, _renamed_matching, _grouped, _cte, _shadows, _shadows,
    _cte_columns, _sets, _derived, _windows, _exploded, _stars, _stars, _stars,
]  # fmt: skip
