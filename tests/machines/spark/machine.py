"""Random steps on one Lance table by Spark and by lance_core, beside a model of plain rows.

    step        appends, overwrites, merges, updates, deletes, columns that come, go and take each other's names,
                a table that is dropped and made again; each by one of the ways that users have
    after it    the table has the model's rows
    now and then   frames and views made earlier show their version, or an error if the table is another one;
                a replica that applies the change feed equals the table; so does one that a stream with a checkpoint keeps

All random choices come from the seed, so that a seed repeats a failure.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_core
import pyspark_lance
from lance_core.errors import LanceError

STEPS = 14
DYNAMIC = "spark.sql.sources.partitionOverwriteMode"
WORDS = ["plain", "a\\b", "a\bx", "it's", "tab\tx", "C:\\new", "", None]
"""Strings of the column `s`."""
TYPES = {"long": pa.int64(), "string": pa.string()}


class Finding(AssertionError):  # noqa: N818 - what a machine finds
    """The table is not what the model says."""


@dataclass
class Model:
    """What the table has to hold: rows by their `id`, and the columns with their types, in order."""

    columns: dict[str, str] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def row(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: values.get(name) for name in self.columns}


@dataclass
class Shown:
    """A frame that was made earlier, and the rows that it shows."""

    frame: Any
    way: str
    table: int
    rows: list[str]


class Machine:
    """One table, its model, and the replicas that follow its change feed."""

    def __init__(self, spark: Any, place: Path, seed: int) -> None:
        self.spark, self.place, self.draw = spark, place, random.Random(seed)
        self.uri = str(place / "t.lance")
        self.table = 0
        self.next_id = 0
        self.shown: list[Shown] = []
        self.log: list[str] = []
        pyspark_lance.register_catalog(spark, "machine", str(place))
        self.make()

    # The table, its frames and its replicas.

    def make(self) -> None:
        """Make the table, with rows of its own."""
        self.table += 1
        self.model = Model(
            columns={"id": "long", "p": "long", "s": "string", "v": "string", "w": "string", "st": "struct"}
        )
        config = {"lance-dagster.partitioned_by": "p"} if self.draw.random() < 0.5 else None
        self.declared = config is not None
        self.grown = False
        rows = [self.new_row() for _ in range(6)]
        pyspark_lance.write(self.frame(rows), self.uri, enable_stable_row_ids=True, table_config=config)
        self.keep(rows)
        self.replica: dict[int, dict[str, Any]] = {}
        self.read_through = 0
        self.followed: dict[int, dict[str, Any]] = {}
        self.follows = False

    def dataset(self) -> Any:
        return lance_core.dataset(self.uri)

    def new_row(self, key: int | None = None) -> dict[str, Any]:
        if key is None:
            key, self.next_id = self.next_id, self.next_id + 1
        words = {
            name: self.draw.choice(["x", "y", None]) for name, kind in self.model.columns.items() if kind == "string"
        }
        made = {"id": key, "p": self.draw.randrange(3), **words, "st": {"a": self.draw.randrange(9), "b": "b"}}
        if "s" in made:
            made["s"] = self.draw.choice(WORDS)
        return self.model.row(
            {
                **made,
                **{
                    name: self.draw.randrange(5)
                    for name, kind in self.model.columns.items()
                    if name not in made and kind == "long"
                },
            }
        )

    def keep(self, rows: list[dict[str, Any]]) -> None:
        self.model.rows |= {row["id"]: row for row in rows}

    def frame(self, rows: list[dict[str, Any]], *, without: str | None = None) -> Any:
        names = [name for name in self.model.columns if name != without]
        kinds = {"long": "long", "string": "string", "struct": "struct<a: long, b: string>"}
        schema = ", ".join(f"{name} {kinds[self.model.columns[name]]}" for name in names)
        return self.spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)

    # Steps.

    def append(self) -> None:
        rows = [self.new_row() for _ in range(self.draw.randrange(1, 4))]
        frame = self.frame(rows)
        way = self.draw.choice(["function", "source", "SQL", "without a field"])
        if way == "function":
            pyspark_lance.write(frame, self.uri)
        elif way == "source":
            frame.write.format("lance").mode("append").save(self.uri)
        elif way == "SQL":
            frame.createOrReplaceTempView("given")
            pyspark_lance.sql(self.spark, "INSERT INTO machine.t BY NAME SELECT * FROM given")
        else:  # a nullable field of the struct is missing
            less = frame.selectExpr(*[name for name in frame.columns if name != "st"], "named_struct('a', st.a) AS st")
            less.write.format("lance").mode("append").option("mergeSchema", "true").save(self.uri)
            rows = [{**row, "st": {"a": row["st"]["a"], "b": None}} for row in rows]
        self.keep(rows)

    def overwrite(self) -> None:
        rows = [self.new_row() for _ in range(2)]
        frame = self.frame(rows)
        is_dynamic = self.draw.random() < 0.6
        way = self.draw.choice(["function", "source", "SQL"])
        self.spark.conf.set(DYNAMIC, "dynamic" if is_dynamic else "static")
        names = self.draw.random() < 0.5
        try:
            if way == "function":
                pyspark_lance.write(frame, self.uri, mode="overwrite", partition_by="p" if names else None)
            elif way == "source":
                writer = frame.write.format("lance").mode("overwrite")
                (writer.option("partition_by", "p") if names else writer).save(self.uri)
            else:
                names = False
                frame.createOrReplaceTempView("given")
                pyspark_lance.sql(self.spark, "INSERT OVERWRITE machine.t BY NAME SELECT * FROM given")
        finally:
            self.spark.conf.unset(DYNAMIC)
        parts = {row["p"] for row in rows}
        stay = is_dynamic and (names or self.declared)
        self.model.rows = {key: row for key, row in self.model.rows.items() if stay and row["p"] not in parts}
        self.keep(rows)

    def merge(self) -> None:
        """An upsert that takes only changes with a greater `p`, of which a key may have two."""
        known = self.draw.sample(sorted(self.model.rows), min(2, len(self.model.rows)))
        changes = [self.new_row(key) for key in known for _ in range(self.draw.choice([1, 2]))] + [self.new_row()]
        passing = [
            row for row in changes if row["id"] in self.model.rows and row["p"] > self.model.rows[row["id"]]["p"]
        ]
        is_ambiguous = len({row["id"] for row in passing}) < len(passing)
        way = self.draw.choice(["condition", "clauses", "SQL", "core"])
        frame, before = self.frame(changes), self.dataset().version
        condition = "source.p > target.p"
        try:
            if way == "condition":
                pyspark_lance.merge(frame, self.uri, on="id", condition=condition)
            elif way == "clauses":
                clauses = {"when_matched": {"then": "update", "condition": condition}, "when_not_matched": "insert"}
                pyspark_lance.merge(frame, self.uri, on="id", clauses=clauses)
            elif way == "core":
                merge = self.dataset().merge_insert("id").when_matched_update_all(condition)
                merge.when_not_matched_insert_all().execute(frame.toArrow())
            else:
                frame.createOrReplaceTempView("given")
                pyspark_lance.sql(
                    self.spark,
                    "MERGE INTO machine.t AS target USING given AS source ON target.id = source.id"
                    f" WHEN MATCHED AND {condition} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
                )
        except LanceError as error:
            if not is_ambiguous or "mbiguous" not in str(error) or self.dataset().version != before:
                raise
            return
        if is_ambiguous:
            raise Finding(f"merge by {way}: two changes of one key passed, and there is no error")
        self.keep([*passing, changes[-1]])

    def condition(self) -> tuple[str, Callable[[dict[str, Any]], bool | None]]:
        """A condition in SQL, with strings as Spark writes them, and the same in Python."""
        words = {r"'a\\b'": "a\\b", r"'a\bx'": "a\bx", r"'it''s'": "it's", r"'it\'s'": "it's", r"'C:\\new'": "C:\\new"}
        kind = self.draw.choice(["word", "words", "words", "range", "not in", "many"])
        stored = {row.get("s") for row in self.model.rows.values()}
        likely = [text for text in sorted(words) if words[text] in stored]
        chosen = self.draw.sample(likely if len(likely) > 1 else sorted(words), 2)
        if kind == "word" and "s" in self.model.columns:
            return f"s = {chosen[0]}", lambda row: row["s"] == words[chosen[0]]
        if kind == "words" and "s" in self.model.columns:
            return f"s IN ({', '.join(chosen)})", lambda row: row["s"] in [words[one] for one in chosen]
        if kind == "not in" and "v" in self.model.columns:
            return "v NOT IN ('x')", lambda row: row["v"] is not None and row["v"] != "x"
        if kind == "many":
            step = self.draw.choice([2, 3])
            return f"id IN ({','.join(map(str, range(0, 40_000, step)))})", lambda row: row["id"] % step == 0
        low = self.draw.randrange(self.next_id)
        return f"id BETWEEN {low} AND {low + 2}", lambda row: low <= row["id"] <= low + 2

    def delete(self) -> None:
        condition, holds = self.condition()
        way = self.draw.choice(["function", "function", "SQL", "core", "table"])
        if way == "function":
            pyspark_lance.delete(self.uri, condition, spark=self.spark)
        elif way == "SQL":
            pyspark_lance.sql(self.spark, f"DELETE FROM machine.t WHERE {condition}")
        elif way == "table":
            pyspark_lance.LanceTable.forPath(self.spark, self.uri).delete(condition)
        else:
            keys = [key for key, row in self.model.rows.items() if holds(row)]
            self.dataset().delete(f"id IN ({', '.join(map(str, keys or [-1]))})")
        self.model.rows = {key: row for key, row in self.model.rows.items() if not holds(row)}

    def update(self) -> None:
        condition, holds = self.condition()
        way = self.draw.choice(["function", "function", "SQL", "table"])
        value = self.draw.randrange(3)
        if way == "function":
            pyspark_lance.update(self.uri, {"p": str(value)}, condition, spark=self.spark)
        elif way == "SQL":
            pyspark_lance.sql(self.spark, f"UPDATE machine.t SET p = {value} WHERE {condition}")
        else:
            pyspark_lance.LanceTable.forPath(self.spark, self.uri).update(condition, {"p": str(value)})
        self.model.rows = {key: {**row, "p": value} if holds(row) else row for key, row in self.model.rows.items()}

    def columns(self) -> None:
        """One or two columns come, go, or take the name of one that went."""
        loose = [name for name, kind in self.model.columns.items() if name in ("s", "v", "w", "x")]
        verb = self.draw.choice(["drop", "swap", "swap", "swap", "add"])
        if verb == "swap" and len(loose) > 1:
            dropped, renamed = self.draw.sample(loose, 2)
            self.drop(dropped)
            self.dataset().alter_columns({"path": renamed, "name": dropped})
            self.rename(renamed, dropped)
        elif verb == "drop" and len(loose) > 1:
            self.drop(self.draw.choice(loose))
        elif missing := [name for name in ("s", "v", "w", "x") if name not in self.model.columns]:
            name = self.draw.choice(missing)
            self.dataset().add_columns(pa.field(name, pa.string()))
            self.model.columns[name] = "string"
            for row in self.everywhere():
                row[name] = None

    def drop(self, name: str) -> None:
        self.dataset().drop_columns([name])
        del self.model.columns[name]
        for row in self.everywhere():
            row.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        self.model.columns = {new if name == old else name: kind for name, kind in self.model.columns.items()}
        for row in self.everywhere():
            row[new] = row.pop(old, None)

    def everywhere(self) -> list[dict[str, Any]]:
        """The rows of the model and of the replicas, which follow a change of columns as the table does."""
        self.replica, self.followed = copy.deepcopy(self.replica), copy.deepcopy(self.followed)
        self.model.rows = copy.deepcopy(self.model.rows)
        return [*self.model.rows.values(), *self.replica.values(), *self.followed.values()]

    def compact(self) -> None:
        self.dataset().optimize.compact_files()

    def make_again(self) -> None:
        versions = self.dataset().version
        self.look()
        lance_core.LanceDataset.drop(self.uri)
        self.make()
        while self.dataset().version < versions:  # an earlier frame's version is there again
            rows = [self.new_row()]
            pyspark_lance.write(self.frame(rows), self.uri)
            self.keep(rows)
        self.check_shown()

    # Views of the table.

    def look(self) -> None:
        """Make a frame, which is computed later."""
        way = self.draw.choice(["load", "view", "read"])
        if way == "read":
            frame = pyspark_lance.read(self.spark, self.uri)
        else:
            frame = self.spark.read.format("lance").load(self.uri)
        if way == "view":
            frame.createOrReplaceTempView(f"seen{len(self.shown)}")
            frame = self.spark.table(f"seen{len(self.shown)}")
        self.shown.append(Shown(frame=frame, way=way, table=self.table, rows=printed(self.model.rows.values())))

    def check_shown(self) -> None:
        """Compute an earlier frame: it shows its version, or an error if that is of another table."""
        for shown in self.draw.sample(self.shown, min(2, len(self.shown))):
            try:
                rows = printed(row.asDict(recursive=True) for row in shown.frame.collect())
            except Exception as error:
                if shown.table == self.table or ("dropped and" not in str(error) and "NotFound" not in str(error)):
                    raise
                continue
            if rows != shown.rows:
                raise Finding(f"a frame ({shown.way}) of table {shown.table} shows {rows}, not {shown.rows}")

    def feed(self) -> None:
        """Apply the change feed to the replica, which then equals the table."""
        latest = self.dataset().version
        if latest == self.read_through:
            return
        way = self.draw.choice(["net", "net", "net", "each", "source"]) if self.read_through else "net"
        if way == "source":
            options = {"readChangeFeed": "true", "startingVersion": str(self.read_through + 1)}
            frame = self.spark.read.format("lance").options(**options).load(self.uri)
        else:
            frame = pyspark_lance.read_changes(
                self.spark, self.uri, begin_version=self.read_through, preimages=True, each_version=way == "each"
            )
        apply_changes(self.replica, [row.asDict(recursive=True) for row in frame.collect()], exact=way == "net")
        self.read_through = latest
        self.compare(self.replica, f"the replica by the feed ({way})")

    def stream(self) -> None:
        """Let a stream with a checkpoint follow the change feed: a query that is begun again at each call."""
        found: list[dict[str, Any]] = []
        query = (
            self.spark.readStream.format("lance")
            .option("readChangeFeed", "true")
            .load(self.uri)
            .writeStream.foreachBatch(
                lambda batch, _: found.extend(row.asDict(recursive=True) for row in batch.collect())
            )
            .option("checkpointLocation", str(self.place / f"checkpoint{self.table}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        apply_changes(self.followed, found, exact=False)
        self.compare(self.followed, "the replica of the stream")

    def compare(self, rows: dict[int, dict[str, Any]], what: str) -> None:
        if printed(rows.values()) != printed(self.model.rows.values()):
            raise Finding(f"{what} has {printed(rows.values())}, the model {printed(self.model.rows.values())}")

    def check(self) -> None:
        """The table has the model's columns and rows."""
        table = self.dataset().to_table()
        if set(table.column_names) != set(self.model.columns):
            raise Finding(f"the table has the columns {table.column_names}, the model {list(self.model.columns)}")
        rows = table.to_pylist()
        if printed(rows) != printed(self.model.rows.values()):
            raise Finding(f"the table has {printed(rows)}, the model {printed(self.model.rows.values())}")

    def run(self, steps: int = STEPS) -> None:
        """Take steps, and compare after each."""
        for _ in range(steps):
            name = self.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.log.append(name)
            print(name, end=" ", flush=True)
            getattr(self, name)()
            self.check()
        self.log.append("end")
        print(flush=True)
        self.feed()
        self.check_shown()


WEIGHTS = {
    "append": 3, "overwrite": 3, "merge": 4, "delete": 3, "update": 2, "columns": 4, "compact": 1, "make_again": 1,
    "look": 2, "check_shown": 1, "feed": 3, "stream": 1,
}  # fmt: skip


def printed(rows: Any) -> list[str]:
    """Rows in an order, whatever the order of their columns."""
    return sorted(repr(sorted(row.items())) for row in rows)


def apply_changes(replica: dict[int, dict[str, Any]], changes: list[dict[str, Any]], *, exact: bool) -> None:
    """Apply rows of a change feed to a replica.

    Args:
        replica: Rows by id.
        changes: The rows of the feed.
        exact: Whether old values must be those of the replica, whose columns have followed the table's.

    Raises:
        Finding: An old row of the feed is not the replica's.
    """
    changes = sorted(
        changes,
        key=lambda row: (row["_commit_version"], "insert" in row["_change_type"] or "post" in row["_change_type"]),
    )
    if exact:
        changes.sort(key=lambda row: "insert" in row["_change_type"] or "post" in row["_change_type"])
    for change in changes:
        kind = change.pop("_change_type")
        del change["_commit_version"], change["_commit_timestamp"]
        key = change["id"]
        if kind in ("insert", "update_postimage"):
            replica[key] = change
            continue
        old = replica.pop(key, None)
        if exact and (old is None or sorted(old.items()) != sorted(change.items())):
            raise Finding(f"the feed's old row ({kind}) is {change}, the replica's {old}")
