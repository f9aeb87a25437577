"""Delete, update and merge_insert against pylance: the same calls on two copies of one table."""

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from tests.interop.pairs import Pair, described


def flights(rows: int = 40) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "carrier": pa.array([("UA", "AA", None, "DL")[i % 4] for i in range(rows)]),
            "delay": pa.array(np.arange(rows) * 0.5),
            "at": pa.array([{"gate": i % 7, "hall": f"h{i % 3}"} for i in range(rows)]),
        }
    )


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def pair(request, tmp_path):
    return Pair(tmp_path, flights(), max_rows_per_file=12, enable_stable_row_ids=request.param)


@pytest.mark.parametrize(
    "predicate",
    [
        "id = 5",
        "id < 12",
        "id % 2 = 0",
        "carrier IS NULL and delay > 3",
        "false",
        "true",
        "at.gate = 3",
        "id > 11 and id < 30",
    ],
)
def test_delete(pair, predicate):
    pair.run(lambda d, _: d.delete(predicate))
    pair.run(lambda d, _: d.delete(predicate))


def test_delete_by_an_arrow_expression(pair):
    pair.run(lambda d, _: d.delete(pc.field("id") < 7) == {"num_deleted_rows": 7}, check=False)
    assert pair.ours.count_rows() == pair.theirs.count_rows() == 33


def test_many_deletions_become_a_bitmap(tmp_path):
    pair = Pair(tmp_path, pa.table({"a": range(20_000)}))
    pair.run(lambda d, _: d.delete("a % 2 = 1"))
    assert pair.ours.get_fragments()[0].deletion_file().endswith(".bin")
    assert [
        one.get_fragments()[0].metadata.deletion_file.path(0) for one in (pair.ours, lance.dataset(pair.ours.uri))
    ] == [pair.ours.get_fragments()[0].deletion_file()] * 2


@pytest.mark.parametrize("verb", ["delete", "update"])
@pytest.mark.parametrize("text", ["nope = 1", "id", "id ==== 1"])
def test_a_predicate_that_does_not_fit_is_rejected_and_nothing_changes(pair, verb, text):
    before = pair.ours.latest_version
    with pytest.raises((ValueError, NotImplementedError)):
        pair.ours.delete(text) if verb == "delete" else pair.ours.update({"delay": "1"}, where=text)
    assert pair.ours.latest_version == before


@pytest.mark.parametrize(
    ("updates", "where"),
    [
        ({"delay": "delay + 1"}, "id = 5"),
        ({"delay": "id * 2", "carrier": "'new'"}, "id > 30"),
        ({"carrier": "NULL"}, None),
        ({"delay": "1.5"}, "id > 100"),
        ({"id": "id + 1000"}, "carrier = 'UA'"),
        ({"carrier": "concat(carrier, '!')"}, "id < 12"),
    ],
)
def test_update(pair, updates, where):
    pair.run(lambda d, _: d.update(updates, where))


@pytest.mark.parametrize("updates", [{"nope": "1"}, {"id": "'text'"}, {"id": "nope"}, {}])
def test_an_update_that_does_not_fit_is_rejected(pair, updates):
    pair.run(lambda d, _: d.update(updates), check=False)
    assert pair.ours.latest_version == 1


def test_truncate(pair):
    pair.run(lambda d, _: d.truncate_table())
    assert pair.ours.count_rows() == 0


def source(ids, **columns) -> pa.Table:
    full = flights(200).take(pa.array([i % 200 for i in ids], pa.int64()))
    delays = pa.array([100.0 + i for i in ids], full.schema.field("delay").type)
    table = full.set_column(0, "id", pa.array(ids, pa.int64())).set_column(2, "delay", delays)
    return table.select(columns["only"]) if "only" in columns else table


CLAUSES = {
    "upsert": lambda b: b.when_matched_update_all().when_not_matched_insert_all(),
    "insert new": lambda b: b.when_not_matched_insert_all(),
    "update only": lambda b: b.when_matched_update_all(),
    "update if": lambda b: b.when_matched_update_all("source.delay > target.delay + 120").when_not_matched_insert_all(),
    "delete matched": lambda b: b.when_matched_delete(),
    "delete matched, insert": lambda b: b.when_matched_delete().when_not_matched_insert_all(),
    "replace all": lambda b: (
        b.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete()
    ),
    "replace part": lambda b: (
        b.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete("id < 20")
    ),
    "delete others": lambda b: b.when_not_matched_by_source_delete("carrier = 'UA'"),
    "fail": lambda b: b.when_matched_fail().when_not_matched_insert_all(),
}


@pytest.mark.variants(10)
@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([3, 4, 25, 100, 101], id="mixed"),
        pytest.param(list(range(12)), id="a fragment"),
        pytest.param([200, 201], id="new", marks=pytest.mark.slow),
        pytest.param([], id="none", marks=pytest.mark.slow),
        pytest.param([39, 13, 1], id="unordered", marks=pytest.mark.slow),
    ],
)
def test_merge_insert(pair, clause, ids):
    pair.run(lambda d, _: CLAUSES[clause](d.merge_insert("id")).execute(source(ids)))


@pytest.mark.parametrize("clause", ["upsert", "update only", "update if"])
def test_merge_insert_of_some_columns(pair, clause):
    pair.run(lambda d, _: CLAUSES[clause](d.merge_insert("id")).execute(source([3, 4, 25, 100], only=["id", "delay"])))


def test_merge_insert_that_deletes_needs_only_the_key(pair):
    pair.run(lambda d, _: d.merge_insert("id").when_matched_delete().execute(pa.table({"id": [3, 4, 300]})))


def test_merge_insert_by_several_columns(pair):
    rows = source([3, 4, 25, 100])
    pair.run(lambda d, _: CLAUSES["upsert"](d.merge_insert(["id", "carrier"])).execute(rows))


def test_merge_insert_rewrites_columns(pair):
    rows = source([3, 4, 25], only=["id", "delay"])
    pair.run(lambda d, _: d.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(rows))
    pair.run(lambda d, _: d.delete("id = 4"))
    pair.run(lambda d, _: d.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(rows))


def test_nulls_match_nothing(tmp_path):
    pair = Pair(tmp_path, pa.table({"k": pa.array([1, None, 3]), "v": [1, 2, 3]}))
    rows = pa.table({"k": pa.array([None, 1]), "v": [20, 10]})
    pair.run(lambda d, _: CLAUSES["upsert"](d.merge_insert("k")).execute(rows))
    assert pair.ours.count_rows() == 4


def test_several_rows_of_the_dataset_with_one_key_are_all_updated(tmp_path):
    pair = Pair(tmp_path, pa.table({"k": [1, 1, 2], "v": [1, 2, 3]}))
    pair.run(lambda d, _: CLAUSES["upsert"](d.merge_insert("k")).execute(pa.table({"k": [1], "v": [9]})))
    assert sorted(pair.ours.to_table()["v"].to_pylist()) == [3, 9, 9]


def test_what_a_merge_forbids(pair):
    twice = source([3, 3])
    with pytest.raises(ValueError, match=r"multiple source rows match the same target row on \(id = 3\)"):
        CLAUSES["upsert"](pair.ours.merge_insert("id")).execute(twice)
    with pytest.raises(ValueError, match="found matching row with key values: id = 3"):
        CLAUSES["fail"](pair.ours.merge_insert("id")).execute(source([3]))
    with pytest.raises(ValueError, match="not configured"):
        pair.ours.merge_insert("id").execute(source([3]))
    with pytest.raises(ValueError, match="join keys"):
        pair.ours.merge_insert()
    with pytest.raises(ValueError, match="'nope' does not exist"):
        pair.ours.merge_insert("nope")
    with pytest.raises(ValueError, match="unexpected"):
        CLAUSES["upsert"](pair.ours.merge_insert("id")).execute(source([3]).append_column("more", pa.array([1])))
    with pytest.raises(ValueError, match="covers every dataset column"):
        pair.ours.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source([3]))
    with pytest.raises(ValueError, match="not configured"):
        pair.ours.merge_insert("id").explain_plan()
    assert pair.ours.latest_version == 1
    assert len(list((pair_path(pair) / "data").iterdir())) == len(pair.ours.get_fragments())


def pair_path(pair):
    from pathlib import Path

    return Path(pair.uris["ours"])


def test_an_uncommitted_merge_is_committed_by_either_library(pair):
    transaction, stats = CLAUSES["upsert"](pair.ours.merge_insert("id")).execute_uncommitted(source([3, 100]))
    assert stats == {"num_inserted_rows": 1, "num_updated_rows": 1, "num_deleted_rows": 0}
    assert pair.ours.latest_version == 1
    transaction.transaction_properties = {"run": "7"}
    after = lance_core.LanceDataset.commit(pair.ours, transaction)
    assert after.read_transaction(2).transaction_properties == {"run": "7"}
    assert lance.dataset(after.uri).to_table() == after.to_table()
    CLAUSES["upsert"](pair.theirs.merge_insert("id")).execute(source([3, 100]))
    assert described(pair.uris["ours"])["fragments"] == described(pair.uris["theirs"])["fragments"]


class TestIndices:
    """Others' indices stay true: pylance's filters, which use them, find what a scan finds."""

    @pytest.fixture(params=["BTREE", "BITMAP", "ZONEMAP"])
    def pair(self, request, tmp_path):
        self.kind = request.param
        made = Pair(tmp_path, flights(), max_rows_per_file=12, enable_stable_row_ids=tmp_path.name[-2] in "02468")
        for column in ("id", "delay"):
            lance.dataset(made.uris["theirs"]).create_scalar_index(column, self.kind)
            lance.dataset(made.uris["ours"]).create_scalar_index(column, self.kind)
        made.ours.checkout_latest()
        made.theirs.checkout_latest()
        return made

    @pytest.mark.variants(6)
    @pytest.mark.parametrize(
        "verb",
        [
            lambda d, _: d.delete("id < 15"),
            lambda d, _: d.update({"delay": "delay + 100"}, "id = 5 or id = 25"),
            lambda d, _: CLAUSES["upsert"](d.merge_insert("id")).execute(source([3, 4, 25, 100])),
            lambda d, _: (
                d.merge_insert("id")
                .when_matched_update_all()
                .write_mode("rewrite_columns")
                .execute(source([3, 25], only=["id", "delay"]))
            ),
            lambda d, _: d.drop_columns(["delay"]),
            lambda d, _: d.alter_columns({"path": "delay", "name": "late"}),
            lambda d, _: d.add_columns({"double": "delay * 2"}),
            lambda d, _: d.truncate_table(),
        ],
        ids=["delete", "update", "upsert", "rewrite columns", "drop column", "rename", "add column", "truncate"],
    )
    def test_bitmaps_and_results(self, pair, verb):
        pair.run(lambda d, library: verb(d, library) and None)
        table = lance.dataset(pair.uris["ours"]).to_table()
        for predicate in ("id = 5", "id > 20", "id = 25"):
            found = lance.dataset(pair.uris["ours"]).to_table(filter=predicate)
            plain = lance.dataset(pair.uris["ours"]).scanner(filter=predicate, use_scalar_index=False).to_table()
            assert sorted(found["id"].to_pylist()) == sorted(plain["id"].to_pylist()), (predicate, table.num_rows)


def test_new_values_are_made_of_the_old_ones(tmp_path):
    """The reference library sets one column after the other, in any order."""
    dataset = lance_core.write_dataset(pa.table({"a": [1], "b": [10]}), tmp_path)
    dataset.update({"a": "b", "b": "a"})
    assert lance.dataset(tmp_path).to_table().to_pylist() == [{"a": 10, "b": 1}]
