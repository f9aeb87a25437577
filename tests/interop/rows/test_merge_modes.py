"""Merges of rows that lack columns, into tables whose keys are indexed: what is rewritten, and what is said of it."""

import lance
import pyarrow as pa
import pytest

import lance_core
from tests.interop.pairs import Pair

ROWS = pa.table({"a": [1, 2, 3], "b": [4, 5, 6], "c": ["x", "y", "z"]})
SOME = pa.table({"a": [2, 3, 9], "b": [50, 60, 90]})
ALL = pa.table({"a": [2, 9], "b": [50, 90], "c": ["p", "q"]})

MERGES = {
    "update": lambda m: m.when_matched_update_all().execute(SOME),
    "upsert": lambda m: m.when_matched_update_all().when_not_matched_insert_all().execute(SOME),
    "insert": lambda m: m.when_not_matched_insert_all().execute(SOME),
    "update where": lambda m: m.when_matched_update_all("source.b < 60").execute(SOME),
    "no match": lambda m: m.when_matched_update_all().execute(SOME.slice(2)),
    "fail": lambda m: m.when_matched_fail().when_not_matched_insert_all().execute(SOME.slice(2)),
    "key only": lambda m: m.when_matched_update_all().execute(SOME.select(["a"])),
    "delete others": lambda m: m.when_matched_update_all().when_not_matched_by_source_delete().execute(SOME),
    "delete": lambda m: m.when_matched_delete().execute(SOME),
    "all columns": lambda m: m.when_matched_update_all().when_not_matched_insert_all().execute(ALL),
    "no index": lambda m: m.when_matched_update_all().use_index(False).execute(SOME),
    "rows": lambda m: m.when_matched_update_all().write_mode("rewrite_rows").execute(SOME),
}


def indexed(folder, kind="BTREE", column="a", **options):
    pair = Pair(folder, ROWS, **options)
    if kind is not None:
        lance.dataset(pair.uris["theirs"]).create_scalar_index(column, kind)
    lance.write_dataset(pa.table({"a": [11], "b": [1], "c": ["w"]}), pair.uris["theirs"], mode="append")
    pair.take_over("theirs")
    return pair


@pytest.mark.variants(6)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
def test_an_index_of_the_key_makes_columns_of_rows(tmp_path, merge, stable):
    pair = indexed(tmp_path, enable_stable_row_ids=stable)
    pair.run(lambda dataset, _: merge(dataset.merge_insert("a")))
    pair.run(lambda dataset, _: merge(dataset.merge_insert("a").conflict_retries(0)))


@pytest.mark.parametrize("kind", ["BITMAP", "ZONEMAP", None])
def test_only_exact_indices_do(tmp_path, kind):
    pair = indexed(tmp_path, kind)
    pair.run(lambda dataset, _: MERGES["upsert"](dataset.merge_insert("a")))


@pytest.mark.parametrize("both", [False, True])
def test_each_column_of_the_key_needs_one(tmp_path, both):
    pair = indexed(tmp_path)
    if both:
        lance.dataset(pair.uris["theirs"]).create_scalar_index("b", "BTREE")
        pair.take_over("theirs")
    source = pa.table({"a": [2], "b": [5]})
    pair.run(lambda dataset, _: dataset.merge_insert(["a", "b"]).when_matched_update_all().execute(source))


@pytest.mark.parametrize("version", ["2.0", "2.1", "legacy"])
def test_in_every_format(tmp_path, version):
    pair = indexed(tmp_path, data_storage_version=version)
    pair.run(lambda dataset, _: MERGES["update"](dataset.merge_insert("a")))


@pytest.mark.parametrize("mode", ["rewrite_rows", "rewrite_columns"])
def test_a_plan_counts_the_files_that_the_merge_writes(tmp_path, mode):
    made = lance_core.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=2)
    before = set((tmp_path / "t" / "data").iterdir())
    merge = made.merge_insert("a").when_matched_update_all().write_mode(mode).use_index(False)
    ran = merge.analyze_plan(SOME)
    merge.execute(SOME)
    written = set((tmp_path / "t" / "data").iterdir()) - before
    assert len(written) == (1 if mode == "rewrite_rows" else 2)
    assert f"num_files_written={len(written)}," in ran
    assert f"bytes_written={sum(file.stat().st_size for file in written)}," in ran
