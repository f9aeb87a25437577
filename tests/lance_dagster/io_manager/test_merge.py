"""`write_mode` merge: policies, partitions, attempts, in one commit, for Arrow, pandas, polars and Spark."""

import datetime as dt
import threading
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster.checks.uniqueness import count_duplicates
from lance_dagster.tables.refs import TableRef
from lance_dagster.undo.plan import plan_undo
from tests.lance_dagster.lake import errors
from tests.support.parallel_runs import in_parallel

SCHEMA = pa.schema({"day": pa.date32(), "k": pa.int64(), "v": pa.string()})
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
ONE, TWO = dt.date(2024, 1, 1), dt.date(2024, 1, 2)


def frame(*rows, kind="arrow"):
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    if kind == "pandas":
        return table.to_pandas()
    if kind == "polars":
        return pytest.importorskip("polars").from_arrow(table)
    return table.to_reader() if kind == "reader" else table


def merging(value, *, partitions=None, retries=0, **metadata):
    metadata = {f"lance/{key}": entry for key, entry in {"write_mode": "merge", "merge_on": "k", **metadata}.items()}
    if partitions is not None:
        metadata["partition_expr"] = "day"

    @dg.asset(name="t", metadata=metadata, partitions_def=partitions, retry_policy=dg.RetryPolicy(max_retries=retries))
    def t(context):
        return value(context) if callable(value) else value

    return t


@pytest.fixture
def table(lake):
    return lance_core.write_dataset(frame((ONE, 1, "a"), (ONE, 2, "b"), (TWO, 3, "c")), lake.uri("t"))


NEW = ((ONE, 2, "B"), (TWO, 4, "D"))


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "reader"])
def test_rows_are_updated_and_inserted_in_one_commit(lake, table, kind):
    result = lake.run(merging(lambda _: frame(*NEW, kind=kind), commit_message="hello"))
    assert lake.rows("t") == [(ONE, 1, "a"), (ONE, 2, "B"), (TWO, 3, "c"), (TWO, 4, "D")]
    assert lake.table("t").version == table.version + 1
    properties = lake.properties("t")[-1]
    assert properties["dagster.run_id"] == result.run_id
    assert properties["__lance_commit_message"] == "hello"
    assert properties["dagster.write_token"]
    (event,) = result.asset_materializations_for_node("t")
    said = event.metadata["lance/commit"].value
    assert {key: said[key] for key in said if key.startswith("rows_")} == {
        "rows_inserted": 1,
        "rows_updated": 1,
        "rows_deleted": 0,
    }
    assert event.metadata["lance/operation"].value == "Update"


def test_the_first_write_makes_the_table(lake):
    lake.run(merging(frame(*NEW)))
    assert lake.rows("t") == sorted(NEW)
    assert "has no rows to merge" not in errors(lake.run(merging(frame(*NEW), when_not_matched="nothing")))
    other = merging(frame(*NEW), when_not_matched="nothing", cluster=False)
    lake.root += "/elsewhere"
    assert "the merge inserts no rows" in errors(lake.run(other, fails=True))


@pytest.mark.parametrize(
    ("policies", "rows"),
    [
        ({"when_matched": "nothing"}, "1a 2b 3c 4D"),
        ({"when_matched": "delete", "when_not_matched": "nothing"}, "1a 3c"),
        ({"when_not_matched": "nothing"}, "1a 2B 3c"),
        ({"when_not_matched_by_source": "delete"}, "2B 4D"),
        ({"merge_on": ["day", "k"]}, "1a 2B 3c 4D"),
    ],
)
def test_policies(lake, table, policies, rows):
    lake.run(merging(frame(*NEW), **policies))
    assert " ".join(f"{k}{v}" for _, k, v in lake.rows("t")) == rows


def test_only_the_runs_partitions_lose_what_the_source_lacks(lake, table):
    asset = merging(frame((ONE, 2, "B")), partitions=DAYS, when_not_matched_by_source="delete")
    lake.run(asset, partition="2024-01-01")
    assert lake.rows("t") == [(ONE, 2, "B"), (TWO, 3, "c")]
    said = errors(lake.run(merging(frame((TWO, 2, "B")), partitions=DAYS), partition="2024-01-01", fails=True))
    assert "outside of the run's 1 partitions" in said


@pytest.mark.parametrize(
    ("asset", "said"),
    [
        (merging(frame((ONE, 1, "a"), (ONE, 1, "b"))), "several rows with the key {'k': 1}"),
        (merging(frame(*NEW), merge_on="x"), "lance/merge_on names ['x']"),
        (merging(frame(*NEW), merge_on=None), "must be a column"),
        (merging(frame(*NEW), schema_mode="add_columns"), "keeps the columns of the table"),
        (merging(frame(*NEW), write_mode="append"), "lance/merge_on is for write_mode merge"),
        (merging(frame(*NEW), when_matched="replace"), "lance/when_matched must be one of update, nothing, delete"),
    ],
)
def test_what_cannot_be_merged_is_rejected(lake, table, asset, said):
    assert said in errors(lake.run(asset, fails=True))
    assert lake.table("t").version == table.version


def keyed(keys, texts, **other):
    return pa.table({"day": [ONE] * len(keys), "k": keys, "v": list(texts), **other})


@pytest.mark.parametrize(
    ("keys", "third"),
    [
        (pa.array([bytes([n] * 16) for n in range(3)], pa.uuid()), "02020202-0202-0202-0202-020202020202"),
        (pa.array(["1", "2", "3"], pa.json_()), "'3'"),
    ],
    ids=["uuid", "json"],
)
def test_keys_of_types_that_arrow_does_not_group_by(lake, keys, third):
    kinds = {"_change_type": ["insert", "delete"]}
    for value in (
        keyed(keys.take([0, 1]), "ab"),
        keyed(keys.take([1, 2]), "BC"),
        keyed(keys.take([2, 0]), "D-", **kinds),
    ):
        lake.run(merging(value))
    assert lake.table("t").to_table()["v"].to_pylist() == ["B", "D"]
    repeated = merging(keyed(keys.take([2, 2]), "xy"))
    assert f"several rows with the key {{'k': {third}}}" in errors(lake.run(repeated, fails=True))
    assert count_duplicates(lake.table("t"), ["k"], TableRef(key=dg.AssetKey("t")), None).duplicates == 0


@pytest.mark.parametrize("keys", [pa.array([{"a": 1}]), pa.array([[1]])], ids=lambda keys: str(keys.type))
def test_keys_of_nested_types_are_rejected(lake, keys):
    for other in ({}, {"_change_type": ["delete"]}):
        said = errors(lake.run(merging(keyed(keys, "a", **other)), fails=True))
        assert f"UnsupportedError: column 'k' is of type {keys.type}, which cannot be a key" in said
    assert not Path(lake.uri("t")).exists()


INSERT = {"when_not_matched": "insert"}


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize(
    ("clauses", "rows"),
    [
        ({"when_matched": "update", **INSERT}, "1a 2B 3c 4D"),
        ({"when_matched": {"then": "update", "condition": "source.v > target.v"}, **INSERT}, "1a 2b 3c 4D"),
        ({"when_matched": [{"then": "update", "condition": "source.v < target.v"}]}, "1a 2B 3c"),
        ({"when_matched": "delete", "when_not_matched_by_source": {"then": "delete", "condition": "v = 'a'"}}, "3c"),
        ({**INSERT, "when_not_matched_by_source": "delete"}, "2b 4D"),
    ],
)
def test_clauses(lake, table, kind, clauses, rows):
    lake.run(merging(lambda _: frame(*NEW, kind=kind), merge_on={"on": "k", **clauses}))
    assert " ".join(f"{k}{v}" for _, k, v in lake.rows("t")) == rows


def test_clauses_change_rows_of_the_runs_partitions_only(lake, table):
    clauses = {
        "on": ["k"],
        "when_matched": "update",
        "when_not_matched_by_source": {"then": "delete", "condition": "v <> 'a'"},
    }
    lake.run(merging(frame(), partitions=DAYS, merge_on=clauses), partition="2024-01-01")
    assert lake.rows("t") == [(ONE, 1, "a"), (TWO, 3, "c")]


@pytest.mark.parametrize(
    ("clauses", "said"),
    [
        ({"when_matched": "update"}, "needs the key as 'on'"),
        ({"on": "k"}, "there is no clause"),
        ({"on": "k", "when_macthed": "update"}, "not for 'when_macthed'"),
        ({"on": "k", "when_matched": "insert"}, "then must be one of update, delete"),
        ({"on": "k", "when_matched": {"if": "x", "then": "update"}}, "'if' is not understood"),
        ({"on": "k", "when_matched": {"then": "update", "set": {}}}, "set must map columns"),
        ({"on": "k", "when_matched": {"then": "delete", "condition": 5}}, "the condition must be a string"),
        ({"on": "k", "when_matched": ["update", "delete"]}, "only the last clause"),
        ({"on": "k", "when_not_matched_by_source": "update"}, "these rows have no source"),
        ({"on": "k", "when_matched": {"then": "update", "set": {"v": "upper(source.v)"}}}, "needs Spark"),
        ({"on": "k", "when_matched": {"then": "delete", "condition": "source.v = 'a'"}}, "needs Spark"),
        ({"on": "x", "when_matched": "update"}, "lance/merge_on names ['x']"),
    ],
)
def test_clauses_that_are_not_understood_change_nothing(lake, table, clauses, said):
    assert said in errors(lake.run(merging(frame(*NEW), merge_on=clauses), fails=True))
    assert lake.table("t").version == table.version


def test_clauses_and_policies_exclude_each_other(lake, table):
    asset = merging(frame(*NEW), merge_on={"on": "k", **INSERT}, when_matched="delete")
    assert "say it in a clause" in errors(lake.run(asset, fails=True))


class TestRetries:
    """The first attempt commits, and its check fails."""

    def run(self, lake, first, second, *, undone=False, **metadata):
        @dg.asset(
            name="t",
            metadata={"lance/write_mode": "merge", "lance/merge_on": "k", **metadata},
            retry_policy=dg.RetryPolicy(max_retries=1),
        )
        def t(context):
            if undone and context.retry_number:
                plan_undo(lake.table("t"), context.run.run_id).commit()
            yield dg.Output(frame(*(second if context.retry_number else first)))
            if not context.retry_number:
                raise dg.Failure("after the write")

        return lake.run(t, fails=None)

    def test_a_retry_merges_the_rows_of_the_last_attempt(self, lake, table):
        result = self.run(lake, [(ONE, 2, "bad"), (ONE, 9, "bad")], [(ONE, 2, "B"), (ONE, 9, "Z"), (TWO, 4, "D")])
        assert result.success
        assert lake.rows("t") == [(ONE, 1, "a"), (ONE, 2, "B"), (ONE, 9, "Z"), (TWO, 3, "c"), (TWO, 4, "D")]
        event = result.asset_materializations_for_node("t")[-1]
        assert event.metadata["lance/replaced_attempt"].value["version"] == 2

    def test_keys_that_only_the_earlier_attempt_had_are_not_left_silently(self, lake, table):
        result = self.run(lake, [(ONE, 9, "bad")], [(ONE, 2, "B")])
        assert "merged 1 keys that this attempt lacks" in errors(result)

    def test_a_run_that_succeeded_has_replaced_the_attempts_before_it(self, lake, table):
        def t(*rows):
            return merging(frame(*rows))

        @dg.asset_check(asset="t", blocking=True)
        def never() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=False)

        first = lake.run(t((ONE, 9, "bad")), never, fails=True).run_id
        again = {"tags": {"dagster/root_run_id": first, "dagster/parent_run_id": first}}
        lake.run(t((ONE, 9, "Z")), **again)
        lake.run(t((ONE, 2, "B")), **again)
        assert lake.rows("t") == [(ONE, 1, "a"), (ONE, 2, "B"), (ONE, 9, "Z"), (TWO, 3, "c")]

    @pytest.mark.parametrize("policy", ["replace", "adopt", "append"])
    def test_an_earlier_attempt_that_was_undone_does_not_count(self, lake, table, policy):
        metadata = {"lance/on_earlier_attempt": policy}
        assert self.run(lake, [(ONE, 9, "bad")], [(ONE, 2, "B")], undone=True, **metadata).success
        assert lake.rows("t") == [(ONE, 1, "a"), (ONE, 2, "B"), (TWO, 3, "c")]

    def test_a_table_that_the_earlier_attempt_made(self, lake):
        assert self.run(lake, [(ONE, 9, "bad")], [(ONE, 2, "B")]).success
        assert lake.rows("t") == [(ONE, 2, "B")]

    @pytest.mark.parametrize(("policy", "values"), [("append", "abcBx"), ("adopt", "abcx")])
    def test_policies(self, lake, table, policy, values):
        self.run(lake, [(ONE, 9, "x")], [(ONE, 2, "B")], **{"lance/on_earlier_attempt": policy})
        found = "".join(sorted(v for _, _, v in lake.rows("t")))
        assert found == "".join(sorted(values.replace("b", "") if policy == "append" else values))

    @pytest.mark.parametrize("policy", ["replace", "adopt"])
    def test_clauses_are_not_applied_twice(self, lake, table, policy):
        clauses = {"on": "k", "when_matched": {"then": "update", "condition": "target.v = 'b'"}}
        rows = [(ONE, 2, "B")]
        result = self.run(lake, rows, rows, **{"lance/merge_on": clauses, "lance/on_earlier_attempt": policy})
        assert result.success is (policy == "adopt")
        assert policy == "adopt" or "the clauses of lance/merge_on would be applied twice" in errors(result)
        assert (lake.table("t").version, lake.rows("t")[1]) == (2, (ONE, 2, "B"))

    def test_clauses_without_conditions_are_applied_again(self, lake, table):
        clauses = {"on": "k", "when_matched": "update", "when_not_matched": "insert"}
        result = self.run(lake, [(ONE, 2, "bad")], [(ONE, 2, "B"), (TWO, 4, "D")], **{"lance/merge_on": clauses})
        assert result.success
        assert lake.rows("t") == [(ONE, 1, "a"), (ONE, 2, "B"), (TWO, 3, "c"), (TWO, 4, "D")]


class TestTwoAtOnce:
    """A run that was taken for dead, and its re-execution."""

    def run(self, lake, older_commits, older, newer, **metadata):
        begun, written = threading.Barrier(2), threading.Event()
        tags = {"dagster/root_run_id": "root", "dagster/parent_run_id": "root"}

        def run(own, rows, later, first):
            def batches():
                begun.wait(timeout=100)
                assert first or written.wait(timeout=100)
                yield from frame(*rows).to_batches()

            @dg.asset
            def nothing() -> None: ...

            for _ in range(3 if later else 0):
                own.run(nothing)  # so that this run is the later one
            asset = merging(lambda _: pa.RecordBatchReader.from_batches(SCHEMA, batches()), **metadata)
            result = own.run(asset, tags=tags, fails=None)
            if first:
                written.set()
            return result

        return in_parallel(
            lake,
            lambda own: run(own, older, later=False, first=older_commits),
            lambda own: run(own, newer, later=True, first=not older_commits),
        )

    @pytest.mark.parametrize("there", [False, True])
    @pytest.mark.parametrize("older_commits", [False, True])
    def test_the_later_attempt_wins(self, lake, there, older_commits):
        if there:
            lance_core.write_dataset(frame((ONE, 2, "b"), (TWO, 3, "c")), lake.uri("t"))
        bad, good = [(ONE, 2, "bad"), (TWO, 4, "bad")], [(ONE, 2, "B"), (TWO, 4, "D")]
        older, newer = self.run(lake, older_commits, bad, good)
        assert newer.success
        assert older.success is older_commits
        assert lake.rows("t") == sorted([*good, *([(TWO, 3, "c")] if there else [])])
        if older_commits:
            (event,) = newer.asset_materializations_for_node("t")
            assert event.metadata["lance/replaced_attempt"].value["run_id"] == older.run_id
        else:
            assert "SupersededError" in errors(older)

    def test_keys_that_only_the_older_attempt_has_are_not_left_silently(self, lake, table):
        older, newer = self.run(lake, True, [(ONE, 9, "bad")], [(ONE, 2, "B")])
        assert older.success
        assert "merged 1 keys that this attempt lacks" in errors(newer)


def test_a_table_that_another_run_makes_meanwhile_is_merged_into(lake):
    def batches():
        lance_core.write_dataset(frame((ONE, 2, "b"), (TWO, 3, "c")), lake.uri("t"))
        yield from frame(*NEW).to_batches()

    lake.run(merging(lambda _: pa.RecordBatchReader.from_batches(SCHEMA, batches())))
    assert lake.rows("t") == [(ONE, 2, "B"), (TWO, 3, "c"), (TWO, 4, "D")]


def test_a_key_that_another_run_inserts_meanwhile_is_updated(lake, table):
    def batches():
        lake.run(merging(frame((TWO, 4, "x"), (TWO, 5, "e"))))
        yield from frame((TWO, 4, "D"), (TWO, 6, "F")).to_batches()

    before = lake.rows("t")
    lake.run(merging(lambda _: pa.RecordBatchReader.from_batches(SCHEMA, batches())))
    assert lake.rows("t") == [*before, (TWO, 4, "D"), (TWO, 5, "e"), (TWO, 6, "F")]


def test_events_of_several_partitions_do_not_repeat_the_rows_of_all(lake):
    value = frame((ONE, 1, "a"), (ONE, 2, "b"), (TWO, 3, "c"))
    said = []
    for _ in range(2):
        result = lake.run(merging(value, partitions=DAYS, merge_on=["day", "k"]), span=("2024-01-01", "2024-01-02"))
        events = result.asset_materializations_for_node("t")
        said.append(
            [one.metadata["lance/rows_written"].value for one in events if "lance/rows_written" in one.metadata]
        )
    assert said == [[2, 1], []]
    assert {one.metadata["lance/commit"].value["rows_written"] for one in events} == {3}


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "reader"])
@pytest.mark.parametrize("matched", ["update", "delete"])
def test_a_key_of_another_partition_is_rejected(lake, table, kind, matched):
    asset = merging(lambda _: frame((TWO, 3, "C"), (TWO, 2, "B"), kind=kind), partitions=DAYS, when_matched=matched)
    found = errors(lake.run(asset, partition="2024-01-02", fails=True))
    assert "the key k = 2 is in the table in a row with day = 2024-01-01" in found
    assert "Add 'day' to the key" in found
    assert lake.table("t").version == table.version
    lake.run(asset, partition="2024-01-02", out_of_partition="allow")
    changed = [(TWO, 2, "B"), (TWO, 3, "C")] if matched == "update" else []
    assert lake.rows("t") == [(ONE, 1, "a"), *changed]


def test_a_key_of_the_own_partitions_may_move_between_them(lake, table):
    asset = merging(frame((TWO, 2, "B")), partitions=DAYS)
    lake.run(asset, span=("2024-01-01", "2024-01-02"))
    assert lake.rows("t") == [(ONE, 1, "a"), (TWO, 2, "B"), (TWO, 3, "c")]


def test_a_key_that_comes_into_another_partition_meanwhile_is_rejected(lake, table):
    def rows(_):
        def batches():
            lance_core.dataset(table.uri).merge_insert("k").when_matched_update_all().execute(frame((ONE, 3, "moved")))
            yield from frame((TWO, 3, "C")).to_batches()

        return pa.RecordBatchReader.from_batches(SCHEMA, batches())

    result = lake.run(merging(rows, partitions=DAYS), partition="2024-01-02", fails=True)
    assert "the key k = 3 is in the table in a row with day = 2024-01-01" in errors(result)
    assert (ONE, 3, "moved") in lake.rows("t")
