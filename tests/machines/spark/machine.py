"""Random steps on one Lance table by Spark and by lance_core, beside a model of plain rows.

    step        appends, overwrites, merges, updates, deletes, columns and fields of structs that come, go and take each
                other's names, a table that is dropped and made again, versions that are cleaned up, settings of the session;
                each by one of the ways that users have, a stream that is restarted among them
    after it    the table has the model's rows, and so has a replica: the rows of an earlier version, to which a change
                feed was applied
    now and then   frames and views made earlier show their version, or an error if it was removed or the table is another one;
                a stream with a checkpoint keeps a replica, or says that it fell behind a cleanup

What Spark's SQL means is asked of Spark, over a temporary view of the model's rows. All random choices come from the seed,
so that a seed repeats a failure.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

import lance_core
import pyspark_lance
from lance_core.errors import LanceError
from tests.machines.spark.model import LOOSE, Finding, Model, apply_changes, printed
from tests.machines.spark.statements import (
    SETTINGS,
    chosen_keys,
    draw_condition,
    draw_value,
    odd_values,
    word_values,
)

MORE = 6
"""Steps of a seed beside one of each kind."""
DYNAMIC = "spark.sql.sources.partitionOverwriteMode"
CASE = "spark.sql.caseSensitive"
APPENDS = ("append", "compact")
"""Steps after which a change feed does not need the version before."""


@dataclass
class Shown:
    """A frame that was made earlier, and the rows that it shows."""

    frame: Any
    way: str
    table: int
    version: int
    rows: list[str]


class Machine:
    """One table, its model, and the replicas that follow its change feed.

    Args:
        spark: The session.
        place: A folder for the table.
        seed: What all choices come from.
        many: The values of a long list in a condition; Spark takes seconds for as many as end a process.
    """

    def __init__(self, spark: Any, place: Path, seed: int, *, many: int = 20_000) -> None:
        self.spark, self.place, self.draw, self.many = spark, place, random.Random(seed), many
        self.uri = str(place / "t.lance")
        self.table = 0
        self.next_id = 0
        self.shown: list[Shown] = []
        self.log: list[str] = []
        pyspark_lance.register_catalog(spark, "machine", str(place))
        self.words = word_values(spark)
        self.make()

    # The table.

    def make(self) -> None:
        """Make the table, with rows of its own."""
        self.table += 1
        columns = {"id": "long", "p": "long", "s": "string", "v": "string", "w": "string", "t": "timestamp"}
        self.model = Model(columns={**columns, "st": "struct"}, fields={"a": "long", "b": "string"})
        self.declared = self.draw.random() < 0.5
        config = {"lance-dagster.partitioned_by": "p"} if self.declared else None
        rows = self.new_rows(6)
        pyspark_lance.write(self.frame(rows), self.uri, enable_stable_row_ids=True, table_config=config)
        self.model.keep(rows)
        self.oldest, self.made_by = 1, {1: "append"}
        self.checkpoint, self.streamed = 0, 0

    def dataset(self) -> Any:
        return lance_core.dataset(self.uri)

    def new_rows(self, number: int) -> list[dict[str, Any]]:
        self.next_id += number
        return [self.model.draw_row(self.draw, key) for key in range(self.next_id - number, self.next_id)]

    def frame(self, rows: Any) -> Any:
        return self.spark.createDataFrame(
            [tuple(row[name] for name in self.model.columns) for row in rows], self.model.ddl()
        )

    def sql(self, statement: str) -> None:
        pyspark_lance.sql(self.spark, statement)

    def passes(self, change: Callable[[], Any], reason: str | None, *, clue: str = "") -> bool:
        """Make a change, which must fail without a version if there is a reason for it; whether it was made."""
        before = self.dataset().version
        try:
            change()
        except Exception as error:
            is_ours = isinstance(error, LanceError) or "pyspark" in type(error).__module__
            if reason is None or not is_ours or clue not in str(error):
                raise
            if self.dataset().version != before:
                raise Finding(f"a version was made, although there was an error: {error}") from error
            return False
        if reason is not None:
            raise Finding(f"there was no error, although {reason}")
        return True

    # Steps.

    def settings(self) -> None:
        name = self.draw.choice(list(SETTINGS))
        value = self.draw.choice(SETTINGS[name])
        self.log.append(f"{name}={value}")
        self.spark.conf.set(name, value)
        self.words = word_values(self.spark)

    def append(self) -> None:
        rows = self.new_rows(self.draw.randrange(1, 4))
        way = self.draw.choice(["function", "source", "SQL", "stream", "stream", "without a field", "respelled"])
        self.log.append(way)
        if way == "stream":
            self.append_by_stream(rows)
        elif way == "without a field":
            rows = self.append_less(rows)
        elif way == "respelled":
            if not self.append_respelled(rows):
                return
        elif way == "function":
            pyspark_lance.write(self.frame(rows), self.uri)
        elif way == "source":
            self.frame(rows).write.format("lance").mode("append").save(self.uri)
        else:
            self.insert(rows)
        self.model.keep(rows)

    def insert(self, rows: list[dict[str, Any]]) -> None:
        """By names, by positions, and with columns in another order."""
        self.frame(rows).createOrReplaceTempView("given")
        names = list(self.model.columns)
        shuffled = ", ".join(self.draw.sample(names, len(names)))
        clauses = [f"BY NAME SELECT {shuffled} FROM given", f"({shuffled}) SELECT {shuffled} FROM given"]
        clauses.append(f"SELECT {', '.join(self.dataset().schema.names)} FROM given")
        self.sql(f"INSERT INTO machine.t {self.draw.choice(clauses)}")

    def append_less(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Append structs that lack a field, which is null then."""
        lacking = self.draw.choice(list(self.model.fields)) if len(self.model.fields) > 1 else None
        parts = ", ".join(f"'{name}', st.{name}" for name in self.model.fields if name != lacking)
        others = [name for name in self.model.columns if name != "st"]
        frame = self.frame(rows).selectExpr(*others, f"IF(st IS NULL, NULL, named_struct({parts})) AS st")
        if self.draw.random() < 0.5:
            frame.write.format("lance").mode("append").option("mergeSchema", "true").save(self.uri)
        else:
            pyspark_lance.write(frame, self.uri, schema_mode="add_columns")
        return [{**row, "st": row["st"] and {**row["st"], **({lacking: None} if lacking else {})}} for row in rows]

    def append_respelled(self, rows: list[dict[str, Any]]) -> bool:
        frame = self.frame(rows)
        frame = frame.toDF(*[name.upper() for name in frame.columns])
        is_strict = self.spark.conf.get(CASE) == "true"
        if self.draw.random() < 0.5:
            change = lambda: pyspark_lance.write(frame, self.uri)  # noqa: E731
        else:
            change = lambda: frame.write.format("lance").mode("append").save(self.uri)  # noqa: E731
        return self.passes(change, "names differ in case" if is_strict else None)

    def append_by_stream(self, rows: list[dict[str, Any]]) -> None:
        """Let a stream write; then, sometimes, repeat its batch, as after a crash before the checkpoint was written."""
        shape = "-".join([*self.model.columns, *self.model.fields])
        folder = self.place / f"sink-{self.table}-{shape}"
        (folder / "arrivals").mkdir(parents=True, exist_ok=True)
        pa.parquet.write_table(self.model.arrow(rows), folder / "arrivals" / f"{rows[0]['id']}.parquet")
        self.run_sink(folder)
        if self.draw.random() < 0.4:
            commits = sorted((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
                path.unlink(missing_ok=True)
            self.run_sink(folder)

    def run_sink(self, folder: Path) -> None:
        arrivals = self.spark.readStream.schema(self.model.ddl()).parquet(str(folder / "arrivals"))
        writer = arrivals.writeStream.format("lance").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(self.uri).awaitTermination()

    def overwrite(self) -> None:
        rows = self.new_rows(2)
        frame = self.frame(rows)
        is_dynamic, names = self.draw.random() < 0.75, self.draw.random() < 0.5
        way = self.draw.choice(["function", "source", "source", "SQL"])
        self.log.append(f"{way} {is_dynamic=} {names=}")
        self.spark.conf.set(DYNAMIC, "dynamic" if is_dynamic else "static")
        try:
            if way == "function":
                pyspark_lance.write(frame, self.uri, mode="overwrite", partition_by="p" if names else None)
            elif way == "source":
                writer = frame.write.format("lance").mode("overwrite")
                (writer.option("partition_by", "p") if names else writer).save(self.uri)
            else:
                names = False
                frame.createOrReplaceTempView("given")
                self.sql("INSERT OVERWRITE machine.t BY NAME SELECT * FROM given")
        finally:
            self.spark.conf.unset(DYNAMIC)
        parts = {row["p"] for row in rows}
        stay = is_dynamic and (names or self.declared)
        self.model.rows = {key: row for key, row in self.model.rows.items() if stay and row["p"] not in parts}
        self.model.keep(rows)

    def merge(self) -> None:
        """An upsert that takes only changes with a greater `p`, of which a key may have two."""
        old = self.model.rows
        matched = self.draw.sample(sorted(old), min(2, len(old)))
        changes = [self.model.draw_row(self.draw, key) for key in matched for _ in range(self.draw.choice([1, 2]))]
        changes += self.new_rows(1)
        passing = [row for row in changes if row["id"] in old and _is_above(row["p"], old[row["id"]]["p"])]
        is_ambiguous = len({row["id"] for row in passing}) < len(passing)
        condition = "source.p > target.p"
        clauses = {"when_matched": {"then": "update", "condition": condition}, "when_not_matched": "insert"}
        way = self.draw.choice(["condition", "clauses", "SQL", "core"])
        self.log.append(way)

        def change() -> None:
            if way == "core":
                merge = self.dataset().merge_insert("id").when_matched_update_all(condition)
                merge.when_not_matched_insert_all().execute(self.model.arrow(changes))
                return
            frame = self.frame(changes)
            if way == "condition":
                pyspark_lance.merge(frame, self.uri, on="id", condition=condition)
            elif way == "clauses":
                pyspark_lance.merge(frame, self.uri, on="id", clauses=clauses)
            else:
                frame.createOrReplaceTempView("given")
                self.sql(
                    "MERGE INTO machine.t AS target USING given AS source ON target.id = source.id"
                    f" WHEN MATCHED AND {condition} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )

        if self.passes(change, "two changes of one key passed" if is_ambiguous else None, clue="mbiguous"):
            self.model.keep([*passing, changes[-1]])

    def condition(self) -> tuple[str, Callable[[dict[str, Any]], bool]]:
        """A condition in Lance's SQL, with strings as Spark writes them, and the same in Python."""
        kind = self.draw.choice(["word", "words", "words", "range", "not in", "many"])
        stored = {row.get("s") for row in self.model.rows.values()}
        likely = [text for text, word in self.words.items() if word in stored]
        chosen = self.draw.sample(likely if len(likely) > 1 else list(self.words), 2)
        if kind == "word" and "s" in self.model.columns:
            return f"s = {chosen[0]}", lambda row: row["s"] == self.words[chosen[0]]
        if kind == "words" and "s" in self.model.columns:
            return f"s IN ({', '.join(chosen)})", lambda row: row["s"] in [self.words[text] for text in chosen]
        if kind == "not in" and "v" in self.model.columns:
            return "v NOT IN ('x')", lambda row: row["v"] is not None and row["v"] != "x"
        if kind == "many":
            step = self.draw.choice([2, 3])
            return f"id IN ({','.join(map(str, range(0, 2 * self.many, step)))})", lambda row: row["id"] % step == 0
        low = self.draw.randrange(self.next_id)
        return f"id BETWEEN {low} AND {low + 2}", lambda row: low <= row["id"] <= low + 2

    def delete(self) -> None:
        way = self.draw.choice(["function", "function", "SQL", "table", "core"])
        self.log.append(way)
        if way in ("SQL", "table"):
            condition = draw_condition(self.draw, self.model, self.many)
            keys = self.change_by_spark(condition, None, way)
        else:
            condition, holds = self.condition()
            keys = {key: None for key, row in self.model.rows.items() if holds(row)}
            if way == "function":
                pyspark_lance.delete(self.uri, condition, spark=self.spark)
            else:
                self.dataset().delete(f"id IN ({', '.join(map(str, keys or [-1]))})")
        self.log.append(condition[:99])
        self.model.rows = {key: row for key, row in self.model.rows.items() if key not in keys}

    def update(self) -> None:
        way = self.draw.choice(["function", "SQL", "table"])
        if way == "function":
            condition, holds = self.condition()
            value = self.draw.randrange(3)
            name, changed = "p", {key: value for key, row in self.model.rows.items() if holds(row)}
            pyspark_lance.update(self.uri, {"p": str(value)}, condition, spark=self.spark)
        else:
            condition, (name, text) = (
                draw_condition(self.draw, self.model, self.many),
                draw_value(self.draw, self.model),
            )
            self.log.append(f"{way}: {name} = {text}")
            changed = self.change_by_spark(condition, (name, text), way)
        self.log.append(condition[:99])
        self.model.rows |= {key: {**self.model.rows[key], name: value} for key, value in changed.items()}

    def change_by_spark(self, condition: str, change: tuple[str, str] | None, way: str) -> dict[int, Any]:
        """Delete or update rows under the session's settings; the rows that Spark chooses, with its new values."""
        name, value = change or (None, None)
        problem, picked = None, {}
        try:
            picked = chosen_keys(self.spark, self.frame(self.model.rows.values()), condition, value)
        except Exception as error:  # noqa: BLE001 - whatever it is, the table's statement fails as well
            problem = f"Spark said {str(error)[:300]}"
        table = pyspark_lance.LanceTable.forPath(self.spark, self.uri)
        runs = {
            ("SQL", True): lambda: self.sql(f"UPDATE machine.t SET {name} = {value} WHERE {condition}"),
            ("SQL", False): lambda: self.sql(f"DELETE FROM machine.t WHERE {condition}"),
            ("table", True): lambda: table.update(condition, {name: value}),
            ("table", False): lambda: table.delete(condition),
        }
        return picked if self.passes(runs[way, change is not None], problem) else {}

    def columns(self) -> None:
        """One or two columns come, go, or take the name of one that went."""
        loose = [name for name in self.model.columns if name in LOOSE]
        verb = self.draw.choice(["drop", "swap", "swap", "swap", "add"])
        if verb == "swap" and len(loose) > 1:
            dropped, renamed = self.draw.sample(loose, 2)
            self.drop_column(dropped)
            self.rename_column(renamed, dropped)
            self.model.drop(dropped)
            self.model.rename(renamed, dropped)
        elif verb == "drop" and len(loose) > 1:
            name = self.draw.choice(loose)
            self.drop_column(name)
            self.model.drop(name)
        elif missing := [name for name in LOOSE if name not in self.model.columns]:
            name = self.draw.choice(missing)
            self.log.append(f"add {name}")
            if self.draw.random() < 0.5:
                self.sql(f"ALTER TABLE machine.t ADD COLUMNS ({name} string)")
            else:
                self.dataset().add_columns(pa.field(name, pa.string()))
            self.model.add(name)

    def drop_column(self, path: str) -> None:
        self.log.append(f"drop {path}")
        if self.draw.random() < 0.5:
            self.sql(f"ALTER TABLE machine.t DROP COLUMN {path}")
        else:
            self.dataset().drop_columns([path])

    def rename_column(self, path: str, name: str) -> None:
        self.log.append(f"{path} to {name}")
        if self.draw.random() < 0.5:
            self.sql(f"ALTER TABLE machine.t RENAME COLUMN {path} TO {name}")
        else:
            self.dataset().alter_columns({"path": path, "name": name})

    def fields(self) -> None:
        """A field of the struct comes, goes, or takes the name of one that went."""
        loose = [name for name in self.model.fields if name != "a"]
        verb = self.draw.choice(["drop", "swap", "add", "add"])
        if verb == "drop" and loose:
            name = self.draw.choice(loose)
            self.drop_column(f"st.{name}")
            self.model.drop_field(name)
        elif verb == "swap" and len(loose) > 1:
            dropped, renamed = self.draw.sample(loose, 2)
            self.drop_column(f"st.{dropped}")
            self.rename_column(f"st.{renamed}", dropped)
            self.model.drop_field(dropped)
            self.model.rename_field(renamed, dropped)
        elif missing := [name for name in ("b", "c", "d") if name not in self.model.fields]:
            self.model.add_field(self.draw.choice(missing), "string")
            rows = self.new_rows(2)
            if self.draw.random() < 0.5:
                self.frame(rows).write.format("lance").mode("append").option("mergeSchema", "true").save(self.uri)
            else:
                pyspark_lance.write(self.frame(rows), self.uri, schema_mode="add_columns")
            self.model.keep(rows)

    def compact(self) -> None:
        self.dataset().optimize.compact_files()

    def cleanup(self) -> None:
        """Remove old versions, sometimes right behind a stream that has read the one before the last."""
        is_behind = self.draw.random() < 0.6
        if is_behind:
            self.stream()
            rows = self.new_rows(1)
            self.dataset().insert(self.model.arrow(rows))
            self.model.keep(rows)
            self.note("append")
        kept = 1 if is_behind else self.draw.choice([1, 3])
        dataset = self.dataset()
        dataset.cleanup_old_versions(older_than=timedelta(0), retain_versions=kept)
        self.oldest = dataset.versions()[0]["version"]
        if self.oldest != max(1, dataset.version - kept + 1) and self.oldest != 1:
            raise Finding(f"cleanup kept the versions from {self.oldest} on, not {kept} of {dataset.version}")
        self.model.versions = {version: rows for version, rows in self.model.versions.items() if version >= self.oldest}
        if is_behind:
            self.stream()

    def make_again(self) -> None:
        versions = self.dataset().version
        self.look()
        lance_core.LanceDataset.drop(self.uri)
        self.make()
        while (dataset := self.dataset()).version < versions:  # an earlier frame's version is there again
            rows = self.new_rows(1)
            dataset.insert(self.model.arrow(rows))
            self.model.keep(rows)
        self.note("append")
        self.check_shown()

    # Views of the table.

    def look(self) -> None:
        """Make a frame, which is computed later."""
        way, rows = self.draw.choice(["load", "view", "read", "where", "where"]), self.model.rows
        if way == "where":
            rows = {key: row for key, row in rows.items() if key % 2}
            frame = pyspark_lance.read(self.spark, self.uri).where(f"id IN ({odd_values(self.many)})")
        elif way == "read":
            frame = pyspark_lance.read(self.spark, self.uri)
        else:
            frame = self.spark.read.format("lance").load(self.uri)
        if way == "view":
            frame.createOrReplaceTempView(f"seen{len(self.shown)}")
            frame = self.spark.table(f"seen{len(self.shown)}")
        shown = Shown(
            frame=frame, way=way, table=self.table, version=self.dataset().version, rows=printed(rows.values())
        )
        self.shown.append(shown)

    def check_shown(self, most: int = 2) -> None:
        """Compute earlier frames: each shows its version, or an error if that was removed or is of another table."""
        for shown in self.draw.sample(self.shown, min(most, len(self.shown))):
            was_removed = shown.table != self.table or shown.version < self.oldest
            try:
                rows = printed(row.asDict(recursive=True) for row in shown.frame.collect())
            except Exception as error:
                if not was_removed or not any(text in str(error) for text in ("dropped and", "NotFound")):
                    raise
                continue
            if rows != shown.rows:
                raise Finding(f"a frame ({shown.way}) of table {shown.table} shows {rows}, not {shown.rows}")

    def feed(self) -> None:
        """Apply the changes since an earlier version to its rows, which then equal the table."""
        latest = self.dataset().version
        earlier = sorted(version for version in self.model.versions if version < latest)
        if not earlier:
            return
        begin = self.draw.choice([earlier[-1], *earlier])
        way = self.draw.choice(["core"] * 5 + ["net", "each", "source"])
        if way == "core":
            changes = self.dataset().delta(begin).get_changes(preimages=True).read_all().to_pylist()
        elif way == "source":
            options = {"readChangeFeed": "true", "startingVersion": str(begin + 1)}
            changes = self.spark.read.format("lance").options(**options).load(self.uri).collect()
        else:
            is_each = way == "each"
            changes = pyspark_lance.read_changes(
                self.spark, self.uri, begin_version=begin, preimages=True, each_version=is_each
            ).collect()
        if way != "core":
            changes = [row.asDict(recursive=True) for row in changes]
        replica = copy.deepcopy(self.model.versions[begin])
        try:
            apply_changes(replica, changes, exact=way in ("core", "net"))
        except Finding as error:
            raise Finding(f"feed ({way}) from {begin} to {latest}: {error}") from None
        self.compare(replica, f"the rows of version {begin} after the feed ({way}) to version {latest}")

    def stream(self) -> None:
        """Let a stream follow the change feed from its checkpoint; if it fell behind a cleanup, it says so and is started again."""
        latest, gathered = self.dataset().version, []
        needed = self.streamed + 1 if self.made_by.get(self.streamed + 1) in APPENDS else self.streamed
        try:
            self.run_stream(gathered)
        except Exception as error:
            if self.streamed == 0 or needed >= self.oldest or "cleaned up" not in str(error):
                raise
            self.checkpoint += 1
            self.model.followed = {}
            gathered.clear()
            self.run_stream(gathered)
        self.streamed = latest
        apply_changes(self.model.followed, gathered, exact=False)
        self.compare(self.model.followed, "the replica of the stream")

    def run_stream(self, gathered: list[dict[str, Any]]) -> None:
        query = (
            self.spark.readStream.format("lance")
            .option("readChangeFeed", "true")
            .load(self.uri)
            .writeStream.foreachBatch(
                lambda batch, _: gathered.extend(row.asDict(recursive=True) for row in batch.collect())
            )
            .option("checkpointLocation", str(self.place / f"checkpoint-{self.table}-{self.checkpoint}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

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

    def note(self, name: str) -> None:
        """Note the rows of the latest version, and which step made the versions since the last one."""
        latest = self.dataset().version
        self.made_by |= dict.fromkeys(range(max(self.made_by) + 1, latest + 1), name)
        self.model.versions[latest] = copy.deepcopy(self.model.rows)

    def draw_steps(self) -> list[str]:
        """Each step at least once."""
        names = [*WEIGHTS, *self.draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=MORE)]
        self.draw.shuffle(names)
        return names

    def run(self, names: Sequence[str] = ()) -> None:
        """Take steps, drawn ones or those that are named, and compare after each; settings are then as before."""
        before = {name: self.spark.conf.get(name) for name in SETTINGS}
        try:
            self.note("append")
            for name in names or self.draw_steps():
                self.log.append(name)
                print(name, end=" ", flush=True)
                getattr(self, name)()
                self.check()
                self.note(name)
                self.feed()
            self.log.append("end")
            print(flush=True)
            self.stream()
            self.check_shown(most=len(self.shown))
        finally:
            for name, value in before.items():
                self.spark.conf.set(name, value)


WEIGHTS = {
    "append": 3, "overwrite": 4, "merge": 2, "delete": 4, "update": 4, "columns": 4, "fields": 2, "compact": 1,
    "make_again": 1, "cleanup": 2, "settings": 2, "look": 2, "check_shown": 1, "stream": 1,
}  # fmt: skip


def _is_above(value: int | None, other: int | None) -> bool:
    return value is not None and other is not None and value > other
