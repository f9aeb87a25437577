"""Random changes of a table, and the queries that say what is in it afterwards.

    UPDATE t a SET k = v WHERE c    rows that are kept:  SELECT ... FROM rows_t a WHERE rid NOT IN (SELECT rid ... WHERE c)
                                    rows that are new:   SELECT id, v, ... FROM rows_t a WHERE c

Spark stores both in a table of its own with the target's columns, and so decides which values fit.
"""

from dataclasses import dataclass

from tests.pyspark_lance.statements.drawn_statements import COLUMNS

NAMES = {
    "t": ["id", "k", "x", "f", "d", "ts", "n", "s", "b", "p", "`Odd Name`", "bin", "arr", "m"],
    "u": ["id", "k", "x", "d", "ts", "s", "p", "extra"],
}
SETTABLE = ["id", "k", "x", "d", "ts", "s"]


@dataclass(frozen=True)
class DrawnChange:
    """A statement, and what it means.

    Attributes:
        target: The table.
        statement: The statement.
        stored: Statements that insert what is in the table afterwards into `own_result`.
        repeats: A query with the rows of the target that several rows of the source change, which is an error.
    """

    target: str
    statement: str
    stored: tuple[str, ...]
    repeats: str | None = None


def _rows(target, alias, where):
    return f"rows_{target} AS {alias} WHERE {where}"


def _without(target, changed):
    names = ", ".join(NAMES[target])
    return f"INSERT INTO own_result SELECT {names} FROM rows_{target} WHERE rid NOT IN ({changed})"


def _with(target, alias, values, place):
    if "p.a" in values:
        kept = {"t": f", 'b', {alias}.p.b, 'q', {alias}.p.q", "u": ""}[target]
        values = {**values, "p": f"named_struct('a', {values['p.a']}{kept})"}
    cells = ", ".join(values.get(name, f"{alias}.{name}") for name in NAMES[target])
    return f"INSERT INTO own_result SELECT {cells} FROM {place}"


def _assigned(draw, scope, target, count=2, *, fields=True):
    """Values of columns, most of them of the column's own kind, and of a field of a struct."""
    found = {}
    for name in draw.random.sample(SETTABLE, draw.random.randint(1, count)):
        kind = COLUMNS[target][name] if draw.random.random() < 0.8 else draw.kind(scope)
        found[name] = draw.value(scope, kind)
    if fields and draw.random.random() < 0.2:
        found["p.a"] = draw.value(scope, COLUMNS[target]["p.a"])
    return found


def delete(draw):
    target = draw.one("t", "u")
    where = draw.condition([("a", target)], 2, subqueries=True)
    statement = f"DELETE FROM <<{target}|>> {draw.maybe('AS ')}a WHERE {where}"
    return DrawnChange(target, statement, (_without(target, f"SELECT a.rid FROM {_rows(target, 'a', where)}"),))


def update(draw):
    target = draw.one("t", "u")
    scope = [("a", target)]
    where = draw.condition(scope, 1, subqueries=True)
    values = _assigned(draw, scope, target)
    if draw.random.random() < 0.2:
        values["k"] = "(SELECT max(z.k) FROM <<u|>> z WHERE z.id = a.id)"
    sets = ", ".join(f"{draw.maybe('a.')}{draw.spelled(name)} = {value}" for name, value in values.items())
    changed = _without(target, f"SELECT a.rid FROM {_rows(target, 'a', where)}")
    stored = (changed, _with(target, "a", values, _rows(target, "a", where)))
    return DrawnChange(target, f"UPDATE <<{target}|>> a SET {sets} WHERE {where}", stored)


def insert(draw):
    target, other = draw.one("t", "u"), draw.one("t", "u")
    scope = [("", other)]
    names = draw.random.sample(SETTABLE, draw.random.randint(1, 4))
    values = [
        draw.value(scope, COLUMNS[target][name] if draw.random.random() < 0.75 else draw.kind(scope)) for name in names
    ]
    where = draw.condition(scope, 1, subqueries=True)
    all_ = f"INSERT INTO own_result SELECT * FROM own_{target}"
    form = draw.one("columns", "names", "values", "overwrite", "all", "cte")
    if form == "columns":
        rest = f"({', '.join(map(draw.spelled, names))}) SELECT {', '.join(values)} FROM <<{other}>> WHERE {where}"
    elif form == "names":
        named = ", ".join(f"{value} AS {draw.spelled(name)}" for name, value in zip(names, values, strict=True))
        rest = f"BY NAME SELECT {named} FROM <<{other}>> WHERE {where}"
    elif form == "values":
        row = ", ".join(draw.literal(COLUMNS[target][name]) for name in names)
        rest = f"({', '.join(names)}) VALUES ({row}), ({', '.join('NULL' for _ in names)})"
    elif form == "cte":
        rest = f"WITH c AS (SELECT * FROM <<{target}>> WHERE {draw.condition([('', target)], 1)}) SELECT * FROM c"
    else:
        rest = f"SELECT * FROM <<{target}|>> a WHERE {draw.condition([('a', target)], 1, subqueries=True)}"
    if form == "overwrite":
        return DrawnChange(
            target, f"INSERT OVERWRITE {draw.maybe('TABLE ')}<<{target}|>> {rest}", (f"INSERT INTO own_result {rest}",)
        )
    return DrawnChange(
        target, f"INSERT INTO {draw.maybe('TABLE ')}<<{target}|>> {rest}", (all_, f"INSERT INTO own_result {rest}")
    )


def _source(draw):
    return draw.random.choice(
        [
            ("u", "<<u|>>"),
            ("u", "(SELECT * FROM <<u>> WHERE id > 1)"),
            ("u", "(SELECT id, max(k) AS k, max(x) AS x, max(d) AS d, max(ts) AS ts, max(s) AS s, max(p) AS p, max(extra) AS extra FROM <<u>> GROUP BY id)"),
            ("u", "(SELECT id, max(k) AS k, max(x) AS x, max(d) AS d, max(ts) AS ts, max(s) AS s, max(p) AS p, max(extra) AS extra FROM <<u>> GROUP BY id)"),
            ("t", "(SELECT * FROM <<t>> WHERE k = 2 AND id IS NOT NULL)"),
        ]
    )  # fmt: skip


def _chosen(clauses):
    """For each clause the condition under which it is the one that is applied."""
    found, before = [], "true"
    for condition in clauses:
        own = f"coalesce({condition}, false)" if condition else "true"
        found.append(f"({before} AND {own})")
        before = f"{before} AND NOT {own}"
    return found


def merge(draw):
    target, (other, source) = "t", _source(draw)
    both, own, new = [("a", target), ("b", other)], [("a", target)], [("b", other)]
    on = draw.one(
        "a.id = b.id",
        "b.id = a.id",
        "a.id = b.id",
        "a.k = b.id",
        "a.s = b.s",
        "a.x = b.x",
        "a.d = b.d",
        "a.ts = b.ts",
        "a.id = b.x",
        "a.f = b.k",
        "A.ID = B.Id",
        "a.id = b.id AND a.k = b.k",
        "a.p.a = b.p.a",
        "a.id = b.id + 1 AND a.k = b.k",
        "a.n = b.ts",
        "a.d = b.ts",
        "a.ts = b.d",
        "a.`Odd Name` = b.s",
    )
    on += draw.maybe(f" AND {draw.condition(both, 1)}", 0.3)
    text, changed, stored = [], [], []
    matched = [(draw.condition(both, 1), draw.one("DELETE", "UPDATE")) for _ in range(draw.random.randint(0, 2))]
    matched += [("", draw.one("DELETE", "UPDATE"))] if draw.random.random() < 0.6 else []
    joined = f"rows_{target} AS a JOIN {source} AS b ON {on}"
    for (condition, action), chosen in zip(matched, _chosen([c for c, _ in matched]), strict=True):
        values = _assigned(draw, both, target)
        sets = (
            "DELETE"
            if action == "DELETE"
            else "UPDATE SET " + ", ".join(f"{draw.maybe('a.')}{name} = {value}" for name, value in values.items())
        )
        text.append(f"WHEN MATCHED {f'AND {condition} ' if condition else ''}THEN {sets}")
        changed.append(f"SELECT a.rid FROM {joined} WHERE {chosen}")
        if action == "UPDATE":
            stored.append(_with(target, "a", values, f"{joined} WHERE {chosen}"))
    repeats = None
    if changed and matched != [("", "DELETE")]:
        repeats = f"SELECT rid FROM ({' UNION ALL '.join(changed)}) GROUP BY rid HAVING count(*) > 1"
    inserts = [draw.condition(new, 1) for _ in range(draw.random.randint(0, 1))] + (
        [""] if draw.random.random() < 0.6 else []
    )
    for condition, chosen in zip(inserts, _chosen(inserts), strict=True):
        values = _assigned(draw, new, target, 3, fields=False)
        text.append(
            f"WHEN NOT MATCHED {draw.maybe('BY TARGET ')}{f'AND {condition} ' if condition else ''}THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        )
        stored.append(
            f"INSERT INTO own_result ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source} AS b LEFT ANTI JOIN rows_{target} AS a ON {on} WHERE {chosen}"
        )
    others = [(draw.condition(own, 1), draw.one("DELETE", "UPDATE")) for _ in range(draw.random.randint(0, 1))]
    alone = f"rows_{target} AS a LEFT ANTI JOIN {source} AS b ON {on}"
    for (condition, action), chosen in zip(others, _chosen([c for c, _ in others]), strict=True):
        values = _assigned(draw, own, target)
        sets = (
            "DELETE"
            if action == "DELETE"
            else "UPDATE SET " + ", ".join(f"{name} = {value}" for name, value in values.items())
        )
        text.append(f"WHEN NOT MATCHED BY SOURCE AND {condition} THEN {sets}")
        changed.append(f"SELECT a.rid FROM {alone} WHERE {chosen}")
        if action == "UPDATE":
            stored.append(_with(target, "a", values, f"{alone} WHERE {chosen}"))
    if not text:
        text = ["WHEN MATCHED THEN DELETE"]
        changed = [f"SELECT a.rid FROM {joined}"]
    kept = (
        _without(target, " UNION ALL ".join(changed))
        if changed
        else f"INSERT INTO own_result SELECT * FROM own_{target}"
    )
    statement = (
        f"MERGE INTO <<{target}|>> {draw.maybe('AS ')}a USING {source} {draw.maybe('AS ')}b ON {on} " + " ".join(text)
    )
    return DrawnChange(target, statement, (kept, *stored), repeats)


def change(draw):
    return draw.random.choice([delete, update, update, insert, merge, merge, merge])(draw)
