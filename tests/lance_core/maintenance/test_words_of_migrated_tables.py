"""Full text of tables that were given stable row ids: segments from before have the words that rows had then."""

import lance as pylance
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, cover_rows, describe_index_health, maintain

pytestmark = pytest.mark.usefixtures("local_children")

POLICY = MaintenancePolicy(indices={"t": {"kind": "FTS", "stem": False}})


def rows(ids, word):
    return {"id": list(ids), "t": [f"word{i} {word}" for i in ids], "n": [0 for _ in ids]}


def find(table, word):
    query = {"columns": ["t"], "query": word}
    hits = pylance.dataset(table.uri).to_table(columns=["id"], full_text_query=query, limit=10_000)
    return sorted(hits["id"].to_pylist())


def migrate(table):
    table.checkout_latest()
    table.migrate_to_stable_row_ids()


def migrate_by_maintenance(table):
    maintain(table, MaintenancePolicy(indices=POLICY.indices, stable_row_ids=True))


def update(table):
    table.update({"t": "'changed'"}, where="id in (4, 7, 130)")


def update_in_place(table):
    table.update({"t": "'changed'"}, where="id in (4, 7, 130)", write_mode="rewrite_columns")


def update_by_pylance(table):
    pylance.dataset(table.uri).update({"t": "'changed'"}, where="id in (4, 7, 130)")


def merge(table):
    table.merge_insert("id").when_matched_update_all().execute({"id": [4, 7, 130], "t": ["changed"] * 3, "n": [1] * 3})


def merge_some_columns(table):
    table.merge_insert("id").when_matched_update_all().execute({"id": [4, 7, 130], "t": ["changed"] * 3})


def merge_segments_by_pylance(table):
    pylance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=10)


def extend_by_pylance(table):
    pylance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)


def compact(table):
    table.checkout_latest()
    table.optimize.compact_files()


def compact_by_pylance(table):
    pylance.dataset(table.uri).optimize.compact_files()


def append(table):
    table.insert(rows(range(300, 310), "first"))


UPDATES = [update, update_in_place, update_by_pylance, merge, merge_some_columns]
STEPS = {
    "migrated first": [migrate, "update"],
    "by maintenance": [migrate_by_maintenance, "update"],
    "updated first": ["update", migrate],
    "appended before": [append, migrate, "update"],
    "compacted after": [migrate, "update", compact],
    "updated, compacted": ["update", migrate, compact],
    "compacted by pylance": ["update", migrate, compact_by_pylance],
    "extended by pylance": [migrate, "update", extend_by_pylance],
    "merged by pylance": [migrate, "update", merge_segments_by_pylance],
    "extended by pylance before": ["update", extend_by_pylance, migrate],
    "merged by pylance before": ["update", merge_segments_by_pylance, migrate],
}


@pytest.mark.variants(6)
@pytest.mark.parametrize("mend", [lambda table: maintain(table, POLICY), cover_rows])
@pytest.mark.parametrize("change", UPDATES)
@pytest.mark.parametrize("steps", STEPS)
def test_rows_are_not_found_by_old_words(tmp_path, steps, change, mend):
    table = lance_core.write_dataset(rows(range(300), "first"), tmp_path / "t.lance", max_rows_per_file=100)
    maintain(table, MaintenancePolicy(indices=POLICY.indices, target_rows_per_fragment=100))
    for step in STEPS[steps]:
        (change if step == "update" else step)(table)
        table.checkout_latest()
    mend(table)
    table.checkout_latest()
    texts = dict(zip(*table.to_table(columns=["id", "t"]).to_pydict().values(), strict=True))
    for word in ("first", "changed", "word7"):
        assert find(table, word) == sorted(i for i, text in texts.items() if word in text.split()), word
    assert cover_rows(table).covered == ()


def test_rows_that_came_before_the_migration_are_one_more_segment(tmp_path):
    table = lance_core.write_dataset(rows(range(300), "first"), tmp_path / "t.lance")
    maintain(table, POLICY)
    append(table)
    migrate(table)
    (work,) = maintain(table, MaintenancePolicy(indices=POLICY.indices, target_rows_per_fragment=10)).indices[:1]
    assert work["action"] == "extend"
    (index,) = describe_index_health(table)
    assert (index.covered, len(table.describe_indices()[0].segments)) == (1.0, 2)
