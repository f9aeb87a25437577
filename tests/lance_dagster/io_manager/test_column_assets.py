"""Assets that own columns of the table of another asset: `write_mode` columns."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dagster as dg
import lance as pylance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_lance_missing_values_checks, build_maintenance_job, stamp_lance_metadata
from lance_dagster.io_manager.manager import LanceTableIOManager
from tests.lance_dagster.lake import QUIET, errors
from tests.support.column_assets import (
    DAYS,
    ROWS,
    assert_vectors,
    cells,
    day_of,
    embeddings_asset,
    ids_of,
    images_asset,
    logged,
    losing_the_event,
    vector,
    with_vectors,
)


def test_a_run_sets_the_cells_of_its_partitions_in_one_commit(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, span=("2024-01-01", "2024-01-03"))
    before = lake.table("images")
    result = lake.run(images, embeddings, select=[embeddings], span=("2024-01-01", "2024-01-02"))
    assert_vectors(lake, "2024-01-01", "2024-01-02")
    assert lake.table("images").version == before.version + 1
    made = lake.properties("images")[-1]
    assert made["dagster.asset_key"] == "embeddings"
    assert json.loads(made["dagster.columns"]) == ["vector"]
    assert json.loads(made["dagster.partition_keys"]) == ["2024-01-01", "2024-01-02"]
    assert json.loads(made["dagster.input.images"])["version"] == before.version
    events = result.asset_materializations_for_node("embeddings")
    assert sorted(event.partition for event in events) == ["2024-01-01", "2024-01-02"]
    shown = events[-1].metadata
    commit = shown["lance/commit"].value
    entries = {**{key: value.value for key, value in shown.items()}, **{f"lance/{k}": v for k, v in commit.items()}}
    assert entries["lance/columns"] == ["vector"]
    assert entries["lance/columns_added"] == ["vector"]
    assert entries["lance/version"] == before.version + 1
    assert entries["lance/rows_updated"] == 2 * ROWS
    column = 2 * ROWS * 8 * 4
    assert column <= entries["lance/bytes_written"] <= column + 4000
    assert lake.instance.get_latest_data_version_record(dg.AssetKey("embeddings")) is not None


def test_the_event_shows_the_columns_and_their_lineage(lake):
    """Of the table's columns it shows the key and those that the asset owns."""
    images = images_asset()
    embeddings = embeddings_asset(**{"lance/column_lineage": {"vector": "images.blob"}})
    lake.run(images, partition="2024-01-01")
    result = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    (event,) = result.asset_materializations_for_node("embeddings")
    assert [column.name for column in event.metadata["dagster/column_schema"].value.columns] == ["id", "vector"]
    lineage = event.metadata["dagster/column_lineage"].value.deps_by_column
    assert list(lineage) == ["vector"]
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in lineage["vector"]] == [("images", "blob")]
    result = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    (event,) = result.asset_materializations_for_node("embeddings")
    assert [column.name for column in event.metadata["dagster/column_schema"].value.columns] == ["id", "vector"]


def test_bytes_written_are_those_of_the_column(lake):
    @dg.asset(metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id"})
    def wide(images: pa.Table) -> pa.Table:
        ids = images["id"].to_pylist()
        flat = pa.array([float(i % 97) for i in range(len(ids) * 256)], pa.float32())
        return pa.table({"id": ids, "wide": pa.FixedSizeListArray.from_arrays(flat, 256)})

    rows = pa.table({"id": range(2000), "blob": pa.array([b"y" * 2000] * 2000, pa.large_binary())})
    lance_core.write_dataset(rows, lake.uri("images"))
    before = lake.table("images").total_bytes

    @dg.asset
    def images() -> pa.Table:
        return rows

    lake.run(images, wide, select=[wide])
    written = lake.table("images").total_bytes - before
    assert written == pytest.approx(2000 * 256 * 4, rel=0.1)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_of_other_libraries(lake, kind):
    library = pytest.importorskip(kind)
    images = images_asset()

    def make(_, frame):
        vectors = [vector(i) for i in frame["id"]]
        return library.DataFrame({"id": list(frame["id"]), "vector": vectors})

    embeddings = embeddings_asset(make, kind=library.DataFrame, **{"lance/vector_columns": {"vector": 8}})
    lake.run(images, embeddings, partition="2024-01-01")
    assert_vectors(lake, "2024-01-01")
    assert lake.table("images").schema.field("vector").type.list_size == 8


@pytest.mark.parametrize("name", ["_rowaddr", "_rowid"])
def test_names_of_rows_that_were_kept_from_the_input(lake, name):
    images = images_asset()

    def make(_, frame):
        return with_vectors(frame).drop_columns(["id"])

    embeddings = embeddings_asset(make, columns=("id", name), **{"lance/key": "other"})
    lake.run(images, partition="2024-01-01")
    lake.run(images, embeddings, partition="2024-01-02")
    assert_vectors(lake, "2024-01-02")


def test_row_addresses_of_a_version_that_was_compacted_meanwhile(lake):
    images = images_asset()

    def make(_, frame):
        lake.table("images").optimize.compact_files()
        return with_vectors(frame).drop_columns(["id"])

    embeddings = embeddings_asset(make, columns=("id", "_rowaddr"))
    lake.run(images, partition="2024-01-01")
    lake.run(images, embeddings, partition="2024-01-02")
    assert_vectors(lake, "2024-01-02")


def test_row_addresses_without_an_input_are_rejected(lake):
    images = images_asset()
    lake.run(images, partition="2024-01-01")

    @dg.asset(
        partitions_def=DAYS,
        deps=[images],
        metadata={"lance/write_mode": "columns", "lance/table": "images", "partition_expr": "day"},
    )
    def loose() -> pa.Table:
        return pa.table({"_rowaddr": pa.array([0], pa.uint64()), "v": [1]})

    assert "identifies rows of an unknown version" in errors(
        lake.run(images, loose, select=[loose], partition="2024-01-01", fails=True)
    )


def missing_half(context, images):
    return with_vectors(images.slice(0, ROWS // 2))


@pytest.mark.parametrize("missing", ["null", "keep", "error"])
def test_rows_that_the_output_lacks(lake, missing):
    lake.run(images_asset(), embeddings_asset(), partition="2024-01-01")
    half = embeddings_asset(missing_half, **{"lance/missing": missing})
    result = lake.run(images_asset(), half, select=[half], partition="2024-01-01", fails=missing == "error")
    values = list(cells(lake).values())
    assert sum(value is None for value in values) == (ROWS // 2 if missing == "null" else 0)
    if missing == "error":
        assert "lacks 25 of 50 rows" in errors(result)


class TestRowsThatTheStepHasNotLoaded:
    """With `lance/missing` null, the default, their cells stay as they are."""

    def run(self, lake, *, make=None, definition=DAYS, fails=False, entries=None, **metadata):
        images = dg.AssetSpec("images", partitions_def=definition, metadata={"partition_expr": "day"})

        @dg.asset(
            ins={"images": dg.AssetIn(metadata={"columns": ["id"], **(entries or {})})},
            metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", **metadata},
        )
        def scores(images: pa.Table) -> pa.Table:
            lake.loaded = images["id"].to_pylist()
            return make(images)

        return lake.run(images, scores, select=[scores], fails=fails)

    @pytest.fixture
    def images(self, lake):
        days = [None, *(day_of(f"2024-01-0{day}") for day in (1, 2, 3))]
        rows = pa.table({"id": range(4), "day": pa.array(days, pa.date32()), "score": [10, 11, 12, 13]})
        lance_core.write_dataset(rows, lake.uri("images"), enable_stable_row_ids=True)
        return {"lance/shared_table": True}

    def scored(self, images):
        rows = images.slice(0, images.num_rows - 1)
        return rows.append_column("score", pa.array([100 + i for i in rows["id"].to_pylist()], pa.int64()))

    def test_rows_outside_of_the_defined_partitions(self, lake, images):
        later = dg.DailyPartitionsDefinition("2024-01-02", end_date="2024-01-05")
        self.run(lake, make=self.scored, definition=later, **images)
        assert lake.loaded == [2, 3]
        assert cells(lake, "score") == {0: 10, 1: 11, 2: 102, 3: None}

    @pytest.mark.parametrize("missing", ["null", "keep"])
    def test_rows_that_a_filter_leaves_out(self, lake, images, missing):
        self.run(lake, make=self.scored, entries={"lance/filter": "id >= 2"}, **images, **{"lance/missing": missing})
        assert cells(lake, "score") == {0: 10, 1: 11, 2: 102, 3: None if missing == "null" else 13}

    def test_a_key_of_such_a_row_is_an_error_that_names_keep(self, lake, images):
        def make(_):
            return pa.table({"id": [1, 2], "score": [101, 102]})

        entries = {"lance/filter": "id >= 2"}
        failed = self.run(lake, make=make, entries=entries, fails=True, **images)
        assert "lance/missing: keep to set other rows, too" in errors(failed)
        assert list(cells(lake, "score").values()) == [10, 11, 12, 13]
        self.run(lake, make=make, entries=entries, **images, **{"lance/missing": "keep"})
        assert list(cells(lake, "score").values()) == [10, 101, 102, 13]

    def test_an_input_of_changes_needs_keep(self, lake, images):
        def make(images):
            return pa.table({"id": images["id"], "score": images["id"]})

        entries = {"lance/changes": "since_last_run"}
        self.run(lake, make=make, definition=None, entries=entries, **images)
        lake.table("images").insert({"id": [4], "day": [day_of("2024-01-04")]})
        failed = self.run(lake, make=make, definition=None, entries=entries, fails=True, **images)
        assert "Give the asset the metadata lance/missing: keep" in errors(failed)
        assert list(cells(lake, "score").values()) == [0, 1, 2, 3, None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _, t: with_vectors(pa.table({"id": [*t["id"].to_pylist(), 7]})), "not among the rows of the scope"),
        (lambda _, t: with_vectors(pa.concat_tables([t, t.slice(0, 1)])), "twice|several"),
        (lambda *_: with_vectors(pa.table({"id": ids_of("2024-01-02")})), "not among the rows of the scope"),
        (lambda _, t: t, "and none to set"),
        (lambda _, t: with_vectors(t).rename_columns(["key", "vector"]), "lacks the key column 'id'"),
        (lambda _, t: t.append_column("vector", pa.nulls(len(t))), "its type is not known"),
        (lambda _, t: t.append_column("blob", pa.nulls(len(t), pa.large_binary())), "asset that writes the rows"),
    ],
)
def test_what_changes_nothing(lake, make, message):
    images = images_asset()
    lake.run(images, span=("2024-01-01", "2024-01-02"))
    version = lake.table("images").version
    result = lake.run(images, broken := embeddings_asset(make), select=[broken], partition="2024-01-01", fails=True)
    assert lake.table("images").version == version
    found = errors(result)
    assert any(part in found for part in message.split("|")), found


def test_a_table_that_is_not_there(lake):
    no_input = dg.asset(
        name="embeddings",
        partitions_def=DAYS,
        metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", "partition_expr": "day"},
    )(lambda: with_vectors(pa.table({"id": [1]})))
    assert "materialize asset images first" in errors(lake.run(no_input, partition="2024-01-01", fails=True))


def test_retries_replace_the_earlier_attempt(lake):
    images = images_asset(**{"lance/stable_row_ids": False})
    lake.run(images, partition="2024-01-01")
    attempts = []

    def make(context, frame):
        attempts.append(context.retry_number)
        return with_vectors(frame if context.retry_number else frame.slice(0, 10))

    embeddings = embeddings_asset(make, retries=1)
    report = LanceTableIOManager._report

    def failing(self, output, *others):
        if len(attempts) == 1 and output.sets_columns:
            raise RuntimeError("after the commit")
        return report(self, output, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanceTableIOManager, "_report", failing)
        result = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    assert attempts == [0, 1]
    assert_vectors(lake, "2024-01-01")
    (event,) = result.asset_materializations_for_node("embeddings")
    assert event.metadata["lance/replaced_attempt"].value["attempt"] == 0
    keep = embeddings_asset(make, retries=1, **{"lance/missing": "keep"})
    attempts.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanceTableIOManager, "_report", failing)
        found = errors(lake.run(images, keep, select=[keep], partition="2024-01-01", fails=True))
    assert "lance/missing is keep" in found


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("key", "message"), [(None, '"lance/key": "column"'), ("zz", "lacks the key column 'zz' of lance/key")]
)
def test_a_key_that_is_missing_is_named_before_the_owners_of_columns(lake, shared, key, message):
    images, frame = images_asset(), lambda _, images: images.append_column("score", images["id"])
    lake.run(images, partition="2024-01-01")
    embeddings = embeddings_asset(frame, **{"lance/key": key, "lance/shared_table": shared})
    found = errors(lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", fails=True))
    assert message in found
    assert "belongs to" not in found


def test_a_key_that_the_table_lacks_is_named_before_the_owners_of_columns(lake):
    images, frame = images_asset(), lambda _, images: images.append_column("zz", images["id"])
    lake.run(images, partition="2024-01-01")
    embeddings = embeddings_asset(frame, **{"lance/key": "zz"})
    found = errors(lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", fails=True))
    assert "lance/key names ['zz'], which are not among the table's columns" in found
    assert "belongs to" not in found


@pytest.mark.parametrize("again", ["retry", "re-execution"])
def test_a_retry_of_an_incremental_asset_replaces_cells_beside_those_that_it_keeps(lake, again, monkeypatch):
    """It gets the same changes, so that nothing that the first attempt has set stays."""
    lance_core.write_dataset(
        pa.table({"id": [1, 2, 3], "n": [1, 2, 3]}), lake.uri("images"), enable_stable_row_ids=True
    )
    attempts = []

    @dg.asset(
        ins={"images": dg.AssetIn(metadata={"lance/changes": "since_last_run", "columns": ["id", "n"]})},
        metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", "lance/missing": "keep"},
        retry_policy=dg.RetryPolicy(max_retries=1) if again == "retry" else None,
    )
    def scores(images: pa.Table) -> pa.Table:
        attempts.append(sorted(images["id"].to_pylist()))
        values = [n + 100 * len(attempts) for n in images["n"].to_pylist()]
        return pa.table({"id": images["id"], "score": values, "_change_type": images["_change_type"]})

    images = dg.AssetSpec("images")
    run = {"select": ["scores"]}
    lake.run(images, scores, **run)
    lake.table("images").update({"n": "20"}, "id = 2")
    attempts.clear()
    losing_the_event(monkeypatch, attempts)
    result = lake.run(images, scores, **run, fails=None)
    if again == "re-execution":
        assert not result.success
        tags = {"dagster/parent_run_id": result.run_id, "dagster/root_run_id": result.run_id}
        lake.table("images").update({"n": "30"}, "id = 3")
        result = lake.run(images, scores, **run, tags=tags)
    assert result.success
    assert attempts == [[2], [2]]
    assert cells(lake, "score") == {1: 101, 2: 220, 3: 103}
    assert any("are replaced in version" in one for one in logged(lake, result))
    lake.run(images, scores, **run)
    assert attempts[2:] == ([[]] if again == "retry" else [[3]])


STAYS = {
    "fewer rows": (lambda t: t.slice(0, 2), "would stay, in 1 rows"),
    "other columns": (lambda t: t.rename_columns(["id", "other"]), "would stay, in the columns ['score']"),
    "all rows": (lambda t: t, None),
    "a row that was deleted since": (lambda t: t.slice(1), None),
}


@pytest.mark.parametrize(("second", "message"), STAYS.values(), ids=STAYS)
def test_a_retry_that_keeps_cells_is_rejected_where_those_of_the_first_attempt_would_stay(
    lake, second, message, monkeypatch
):
    lance_core.write_dataset(pa.table({"id": [1, 2, 3, 4]}), lake.uri("images"), enable_stable_row_ids=True)
    attempts = []

    @dg.asset(
        metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", "lance/missing": "keep"},
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    def scores() -> pa.Table:
        attempts.append(1)
        table = pa.table({"id": [1, 2, 3], "score": [10 * len(attempts)] * 3})
        if len(attempts) == 1:
            return table
        if second is STAYS["a row that was deleted since"][0]:
            lake.table("images").delete("id = 1")
        return second(table)

    losing_the_event(monkeypatch, attempts)
    result = lake.run(dg.AssetSpec("images"), scores, select=["scores"], fails=message is not None)
    if message is None:
        assert {i: score for i, score in cells(lake, "score").items() if i != 1} == {2: 20, 3: 20, 4: None}
    else:
        assert message in errors(result)
        assert cells(lake, "score") == {1: 10, 2: 10, 3: 10, 4: None}


@pytest.mark.variants(3)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("missing", ["null", "keep", "error"])
@pytest.mark.parametrize("name", ["id", "_rowid"])
def test_rows_that_were_deleted_since_the_input_was_loaded_are_left_out(lake, stable, missing, name):
    """A row of another key, which the version that was read has not either, is an error all the same."""
    lance_core.write_dataset(
        pa.table({"id": [1, 2, 3], "day": [day_of("2024-01-01")] * 3}), lake.uri("images"), enable_stable_row_ids=stable
    )
    made, others = [], [[], [7]]

    def make(context, images):
        if not made:
            lake.table("images").delete("id = 3")
        made.append(images)
        values = pa.array([10 * i for i in images["id"].to_pylist()], pa.int64())
        table = pa.table({name: images[name], "score": values})
        more = others[len(made) - 1]
        return pa.concat_tables([table, pa.table({name: more, "score": more}, table.schema)])

    embeddings = embeddings_asset(make, columns=("id", "_rowid"), **{"lance/missing": missing})
    images = images_asset()
    result = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    assert cells(lake, "score") == {1: 10, 2: 20}
    found = [one for one in logged(lake, result) if "rows deleted since version 1 of /" in one]
    followed = name == "_rowid" and not stable  # by the core, from the version that was read
    assert [one.partition("are left out ")[2] for one in found] == ([] if followed else ["(at most 1 keys)"])
    lake.table("images").insert({"id": [4], "day": [day_of("2024-01-01")]})
    failed = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", fails=True)
    assert "1 of 4 rows of the data are not among the rows" in errors(failed)


def test_rows_that_were_moved_out_of_the_scope_or_replaced_are_no_deleted_ones(lake):
    one, two = (day_of(f"2024-01-0{day}") for day in (1, 2))
    uri = lake.uri("images")
    lance_core.write_dataset(pa.table({"id": [1, 2], "day": [one, one]}), uri, enable_stable_row_ids=True)
    meanwhile = [
        lambda: lake.table("images").update({"day": "date '2024-01-02'"}, "id = 2"),
        lambda: lance_core.write_dataset(pa.table({"id": [1, 5], "day": [one, two]}), uri, mode="overwrite"),
    ]

    def make(context, images):
        meanwhile.pop(0)()
        return pa.table({"id": images["id"], "score": images["id"]})

    embeddings, images = embeddings_asset(make), images_asset()
    failed = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", fails=True)
    assert "1 of 2 rows of the data are not among the rows" in errors(failed)
    lake.table("images").update({"day": "date '2024-01-01'"}, "id = 2")
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    assert cells(lake, "score") == {1: 1, 5: None}


def test_a_retry_leaves_rows_out_that_were_deleted_since_an_incremental_input_was_read(lake):
    lance_core.write_dataset(pa.table({"id": [1, 2, 3]}), lake.uri("images"), enable_stable_row_ids=True)
    given = []

    @dg.asset(
        ins={"images": dg.AssetIn(metadata={"lance/changes": "since_last_run", "columns": ["id"]})},
        metadata={"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", "lance/missing": "keep"},
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    def scores(images: pa.Table) -> pa.Table:
        given.append(images["id"].to_pylist())
        if len(given) == 1:
            lake.table("images").delete("id = 3")
            raise RuntimeError("once")
        return pa.table({"id": images["id"], "score": images["id"], "_change_type": images["_change_type"]})

    images = dg.AssetSpec("images")
    lake.run(images, scores, select=["scores"])
    assert given == [[1, 2, 3], [1, 2, 3]]
    assert cells(lake, "score") == {1: 1, 2: 2}
    lake.run(images, scores, select=["scores"])
    assert given[-1] == [3]  # a delete
    assert cells(lake, "score") == {1: 1, 2: 2}


def test_the_asset_of_the_rows_goes_on_beside_the_column(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition="2024-01-01")
    lake.run(images, partition="2024-01-02")
    assert_vectors(lake, "2024-01-01")
    lake.run(images, partition="2024-01-01")
    assert_vectors(lake)
    lake.run(images, embeddings, select=[embeddings], span=("2024-01-01", "2024-01-02"))
    assert_vectors(lake, "2024-01-01", "2024-01-02")
    merging = images_asset(**{"lance/write_mode": "merge", "lance/merge_on": "id"})
    lake.run(merging, partition="2024-01-01")
    assert_vectors(lake, "2024-01-01", "2024-01-02")


@pytest.mark.parametrize("is_new", [True, False], ids=["new columns", "columns that are there"])
def test_two_assets_at_the_same_time(lake, is_new):
    """Both compute on one version; the second commit is made again, without computing its values again."""
    days, computed, barrier = ("2024-01-01", "2024-01-02"), [], threading.Barrier(2, timeout=60)

    def make(context, images):
        name = context.asset_key.to_user_string()
        computed.append(name)
        if context.run.tags.get("waits"):
            barrier.wait()
        return with_vectors(images, name)

    def run(asset):
        with dg.DagsterInstance.ephemeral() as instance:  # an instance that two threads share runs one at a time
            mine = replace(lake, instance=instance)
            mine.run(images, asset, span=days, select=[asset.key], tags={"waits": "yes"})

    images, assets = images_asset(), [embeddings_asset(make, name=name) for name in ("first", "second")]
    lake.run(images, *([] if is_new else assets), span=days)
    before = lake.table("images").version
    computed.clear()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, assets))
    assert sorted(computed) == ["first", "second"]
    assert lake.table("images").version == before + 2
    for name in ("first", "second"):
        assert cells(lake, name) == {i: vector(i) for key in days for i in ids_of(key)}


def test_two_assets_cannot_own_the_same_column(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition="2024-01-01")
    other = embeddings_asset(name="other")
    found = errors(lake.run(images, other, select=[other], partition="2024-01-01", fails=True))
    assert "column 'vector'" in found
    assert "belongs to asset embeddings" in found
    scores = embeddings_asset(lambda _, t: with_vectors(t, "scores"), name="scores")
    lake.run(images, scores, select=[scores], partition="2024-01-01")
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    assert_vectors(lake, "2024-01-01")

    @dg.asset(name="images", partitions_def=DAYS, metadata={"partition_expr": "day"})
    def grabbing() -> pa.Table:
        return lake.table("images").to_table()

    assert "belongs to asset" in errors(lake.run(grabbing, partition="2024-01-01", fails=True))


@pytest.mark.parametrize("missing", ["keep", "null"])
@pytest.mark.parametrize("branch", [None, "b"])
@pytest.mark.parametrize("partitioned", [True, False])
def test_a_column_asset_sets_no_partition_column(lake, missing, branch, partitioned):
    """Also one that may set columns of other assets, and one without partitions of its own."""
    metadata = {
        "lance/write_mode": "columns",
        "lance/table": "images",
        "lance/key": "id",
        "lance/missing": missing,
        "lance/shared_table": True,
    }

    @dg.asset(
        partitions_def=DAYS if partitioned else None,
        metadata=metadata | ({"partition_expr": "day"} if partitioned else {}),
    )
    def moving() -> pa.Table:
        return pa.table({"id": ids_of("2024-01-01")[:1], "day": [day_of("2024-01-02")], "new": [1]})

    images = images_asset()
    lake.run(images, span=("2024-01-01", "2024-01-02"))
    before = lake.table("images")
    on = {} if branch is None else {"tags": {"lance/branch": branch}, "branching": BranchPolicy.from_tag()}
    day = "2024-01-01" if partitioned else None
    result = lake.run(images, moving, select=[moving], partition=day, fails=True, **on)
    found = errors(result)
    assert "asset moving: column 'day' of" in found
    assert "is a partition column of asset" in found
    assert "return a frame without it" in found
    after = lake.table("images")
    assert (after.version, after.schema) == (before.version, before.schema)
    assert after.count_rows("day = date '2024-01-01'") == ROWS


def test_a_partition_column_in_the_key_names_rows(lake):
    images = images_asset()
    lake.run(images, span=("2024-01-01", "2024-01-02"))
    options = {"lance/key": ["id", "day"], "lance/shared_table": True}
    embeddings = embeddings_asset(columns=("id", "day"), **options)
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    assert_vectors(lake, "2024-01-01")


def test_what_a_column_asset_commits_beside_its_columns_makes_it_no_owner_of_the_rows(lake):
    """The zone maps of its partitions, and that it has read changes from which nothing came."""

    @dg.asset(metadata={"lance/stable_row_ids": True})
    def images() -> pa.Table:
        ids = ids_of("2024-01-01")
        return pa.table({"id": ids, "day": pa.array([day_of("2024-01-01")] * ROWS, pa.date32())})

    embeddings = embeddings_asset()
    changes = {"lance/changes": "since_last_run", "lance/filter": "id < 0"}
    metadata = {"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", "lance/missing": "keep"}
    kinds = {"lance/schema": {"label": "string"}}

    @dg.asset(ins={"images": dg.AssetIn(metadata=changes)}, metadata={**metadata, **kinds})
    def labels(images: pa.Table) -> pa.Table:
        return images.select(["id"]).append_column("label", pa.array([""] * len(images)))

    lake.run(images)
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", max_unindexed_fragments=0)
    lake.run(images, labels, select=[labels])
    lake.table("images").insert({"id": [1], "day": [day_of("2024-01-01")]})
    lake.run(images, labels, select=[labels])
    made = [one["dagster.asset_key"] for one in lake.properties("images") if "dagster.asset_key" in one]
    operations = [one.operation.name for one in lake.table("images").get_transactions()]
    assert made == ["images", "embeddings", "embeddings", "labels", "labels"]
    assert {"CreateIndex", "UpdateConfig"} <= set(operations)
    lake.run(images)


def test_the_column_asset_as_an_input(lake):
    images, embeddings = images_asset(), embeddings_asset()
    got = []

    @dg.asset(partitions_def=DAYS)
    def reader(embeddings: pa.Table) -> None:
        got.append(embeddings)

    lake.run(images, embeddings, span=("2024-01-01", "2024-01-02"))
    lake.run(images, embeddings, reader, select=[reader], partition="2024-01-02")
    assert got[0].column_names == ["id", "vector"]
    assert sorted(got[0]["id"].to_pylist()) == ids_of("2024-01-02")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"lance/write_mode": "columns"}, "needs the table whose columns are set"),
        ({"lance/table": "images"}, 'is for "lance/write_mode": "columns"'),
        ({"lance/missing": "keep"}, "is for write_mode columns"),
        ({"lance/key": "id"}, "is for write_mode columns"),
        ({"lance/write_mode": "columns", "lance/table": "t"}, "names the asset itself"),
        ({"lance/write_mode": "columns", "lance/table": 7}, "must be the key of the asset"),
        (
            {"lance/write_mode": "columns", "lance/table": "images", "lance/schema_mode": "add_columns"},
            "schema_mode must be strict",
        ),
    ],
)
def test_definitions_that_do_not_go_together(lake, metadata, message):
    @dg.asset(metadata=metadata)
    def t() -> pa.Table:
        return pa.table({"id": [1]})

    assert message in errors(lake.run(t, fails=True))


@pytest.mark.parametrize("table", ["nyc.images", "nyc/images", dg.AssetKey(["nyc", "images"])])
def test_names_of_the_table(lake, table):
    lance_core.write_dataset(pa.table({"id": [1, 2]}), lake.uri("nyc/images"))

    @dg.asset(metadata={"lance/write_mode": "columns", "lance/table": table, "lance/key": "id"})
    def labels() -> pa.Table:
        return pa.table({"id": [2], "label": ["b"]})

    lake.run(labels)
    assert lake.table("nyc/images").to_table(["label"])["label"].to_pylist() == [None, "b"]


def test_the_check_of_missing_values_counts_rows_that_came_later(lake):
    images, embeddings = images_asset(), embeddings_asset()
    (check,) = build_lance_missing_values_checks([embeddings])
    lake.run(images, span=("2024-01-01", "2024-01-03"))
    lake.run(images, embeddings, select=[embeddings], span=("2024-01-01", "2024-01-02"))

    def found(**options):
        selection = dg.AssetSelection.checks(check)
        (one,) = lake.run(images, embeddings, check, select=selection, **options).get_asset_check_evaluations()
        return one.passed, one.metadata["lance/rows_missing"].value, one.metadata.get("lance/missing_by_partition")

    assert found() == (True, 0, None)  # the third day was never asked for
    rows = [(7, day_of("2024-01-01")), (8, day_of("2024-01-02")), (9, day_of("2024-01-02")), (10, day_of("2024-01-03"))]
    later = {"id": [i for i, _ in rows], "day": pa.array([day for _, day in rows], pa.date32())}
    pylance.write_dataset(
        pa.table({**later, "blob": pa.nulls(4, pa.large_binary())}), lake.uri("images"), mode="append"
    )
    passed, total, named = found()
    assert (passed, total, named.value) == (False, 3, {"2024-01-01": 1, "2024-01-02": 2})
    lake.run(images, embeddings, select=[embeddings], span=("2024-01-02", "2024-01-02"))
    assert found()[1:] == (1, dg.MetadataValue.json({"2024-01-01": 1}))
    lake.run(images, embeddings, select=[embeddings], span=("2024-01-01", "2024-01-01"))
    assert found() == (True, 0, None)


def test_the_check_of_missing_values_is_about_what_the_asset_returns(lake):
    """A column that it returns no more stays null in new rows, whatever runs."""

    def both(_, table):
        return with_vectors(table).append_column("norm", pa.array([0.5] * len(table)))

    images, wide, narrow = images_asset(), embeddings_asset(both), embeddings_asset()
    lake.run(images, wide, partition="2024-01-01")

    def found(asset):
        (check,) = build_lance_missing_values_checks([asset])
        selection = dg.AssetSelection.checks(check)
        (one,) = lake.run(images, asset, check, select=selection).get_asset_check_evaluations()
        return one.passed, one.metadata["lance/columns"].value, one.metadata["lance/rows_missing"].value

    lake.run(images, partition="2024-01-01")
    assert found(wide) == (False, ["vector", "norm"], ROWS)
    lake.run(images, narrow, select=[narrow], partition="2024-01-01")
    assert found(narrow) == (True, ["vector"], 0)
    assert set(cells(lake, "norm").values()) == {None}
    lake.run(images, partition="2024-01-01")
    assert found(narrow) == (False, ["vector"], ROWS)
    lake.run(images, wide, select=[wide], partition="2024-01-01")
    assert found(wide) == (True, ["vector", "norm"], 0)


def test_messages_name_the_metadata_of_the_asset(lake):
    half = embeddings_asset(missing_half, **{"lance/missing": "error"})
    found = errors(lake.run(images_asset(), half, partition="2024-01-01", fails=True))
    assert "lacks 25 of 50 rows" in found
    assert "lance/missing: null or lance/missing: keep allows that" in found


@pytest.mark.parametrize("kind", ["pyarrow.Table", "pandas.DataFrame", "polars.DataFrame"])
@pytest.mark.parametrize("key", ["id", "_rowid"])
def test_the_change_type_is_no_column(lake, kind, key):
    """An asset may pass on the frame of its incremental input; rows that were deleted have no cells to set."""
    module, _, name = kind.rpartition(".")
    frame = getattr(pytest.importorskip(module), name)
    metadata = {"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id", "lance/missing": "keep"}
    columns = ["id", "n"] if key == "id" else ["_rowid", "n"]

    @dg.asset(metadata={"lance/stable_row_ids": True})
    def images() -> pa.Table:
        return pa.table({"id": [1, 2, 3], "n": [1, 2, 3]})

    @dg.asset(
        ins={"images": dg.AssetIn(metadata={"lance/changes": "since_last_run", "columns": columns})}, metadata=metadata
    )
    def doubled(images: frame) -> frame:
        if name == "Table":
            return images.rename_columns({"n": "twice"})
        names = {"n": "twice"}
        return images.rename(columns=names) if module == "pandas" else images.rename(names)

    lake.run(images)
    lake.run(images, doubled, select=[doubled])
    assert lake.table("images").schema.names == ["id", "n", "twice"]
    assert cells(lake, "twice") == {1: 1, 2: 2, 3: 3}
    if key == "id":
        table = lake.table("images")
        table.delete("id = 2")
        table.update({"n": "30"}, "id = 3")
        lake.run(images, doubled, select=[doubled])
        assert cells(lake, "twice") == {1: 1, 3: 30}


@pytest.mark.parametrize("below", [{}, {"root": True}])
def test_maintenance_looks_after_the_shared_table_once(lake, below):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, span=("2024-01-01", "2024-01-02"))
    for i in range(6):
        lance_core.dataset(lake.uri("images")).insert(
            {"id": [i], "day": [day_of("2024-01-01")], "blob": pa.nulls(1, pa.large_binary())}
        )
    job = build_maintenance_job([embeddings, images], **below)
    defs = stamp_lance_metadata(
        dg.Definitions(assets=[embeddings, images], jobs=[job], resources={"io_manager": lake.manager()})
    )
    result = defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET)
    assert [event.asset_key.to_user_string() for event in result.get_asset_observation_events()] == ["images"]
    assert result.output_for_node("summarize")["done"] == ["images"]
    assert_vectors(lake, "2024-01-01", "2024-01-02")


def test_an_asset_of_columns_that_wants_its_table_left_alone_has_it_left_alone(lake):
    images, embeddings = images_asset(), embeddings_asset(**{"lance/maintenance": False})
    lake.run(images, embeddings, span=("2024-01-01", "2024-01-02"))
    before = lake.table("images").version
    defs = dg.Definitions(
        assets=[images, embeddings],
        jobs=[build_maintenance_job([images, embeddings])],
        resources={"io_manager": lake.manager()},
    )
    result = defs.resolve_job_def("lance_maintenance").execute_in_process(instance=lake.instance, run_config=QUIET)
    assert result.output_for_node("summarize")["left_alone"] == ["embeddings"]
    assert lake.table("images").version == before


def test_definitions_are_stamped_with_the_table_of_the_rows(lake):
    resources = {"io_manager": lake.manager()}
    defs = stamp_lance_metadata(dg.Definitions(assets=[images_asset(), embeddings_asset()], resources=resources))
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert {name: spec.metadata["dagster/uri"] for name, spec in specs.items()} == dict.fromkeys(
        ("images", "embeddings"), lake.uri("images")
    )
