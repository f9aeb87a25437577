"""Indices of words that are extended or built again, as values were set: what they were made with, and what it costs."""

import lance as pylance
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, cover_rows, describe_index_health, maintain
from lance_core.maintenance.routine.health import measure
from lance_core.maintenance.search import old_words

pytestmark = pytest.mark.usefixtures("local_children")

POLICY = MaintenancePolicy(indices={"t": "FTS"})


def rows(start, count):
    return {"id": list(range(start, start + count)), "t": [f"kilo word{i}" for i in range(start, start + count)]}


def count_hits(table, word):
    query = {"columns": ["t"], "query": word}
    return len(pylance.dataset(table.uri).to_table(columns=["id"], full_text_query=query, limit=10_000))


def set_words_again(table):
    table.update({"t": "'kilo changed'"}, where="id < 10")


def cover_by_pylance(table):
    set_words_again(table)
    pylance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)
    table.checkout_latest()


@pytest.mark.parametrize("stop_words", [["kilo"], None])
@pytest.mark.parametrize("change", [lambda table: table.insert(rows(300, 200)), set_words_again, cover_by_pylance])
@pytest.mark.parametrize("is_declared", [True, False])
def test_stop_words_are_those_of_the_index(tmp_path, is_declared, change, stop_words):
    """They are in the files of the index alone, which somebody else has built."""
    table = lance_core.write_dataset(rows(0, 300), tmp_path / "t.lance", enable_stable_row_ids=True)
    pylance.dataset(table.uri).create_scalar_index(
        "t", "INVERTED", name="t_idx", custom_stop_words=stop_words, remove_stop_words=True
    )
    table.checkout_latest()
    if is_declared:
        maintain(table, POLICY)
    change(table)
    problems = maintain(table, POLICY).index_problems if is_declared else cover_rows(table).problems
    assert not problems
    indices = pylance.dataset(table.uri).stats.index_stats("t_idx")["indices"]
    assert {str(index["params"]["custom_stop_words"]) for index in indices} == {str(stop_words)}
    expected = 0 if stop_words else table.count_rows()
    assert (count_hits(table, "kilo"), count_hits(table, "word299")) == (expected, 1)


@pytest.mark.parametrize("merged", [{"num_indices_to_merge": 0}, {}])
@pytest.mark.parametrize("change", ["update", "merge_insert"])
def test_words_of_an_index_that_nobody_declares_are_those_of_the_rows(tmp_path, change, merged):
    """pylance's optimize_indices keeps old words; a merge_insert of other columns moves the rows as well."""
    table = lance_core.write_dataset({**rows(0, 300), "x": [0] * 300}, tmp_path / "t.lance", enable_stable_row_ids=True)
    pylance.dataset(table.uri).create_scalar_index("t", "INVERTED")
    table.checkout_latest()
    if change == "update":
        set_words_again(table)
    else:
        table.merge_insert("id").when_matched_update_all().execute({"id": [5], "x": [1]})
    pylance.dataset(table.uri).optimize.optimize_indices(**merged)
    table.checkout_latest()
    policy = MaintenancePolicy()
    problems = measure(table, policy).problems(policy, indices=False)
    assert problems == ["index 't_idx': pylance finds rows by words that they no longer have"]
    dry, report = maintain(table, policy, dry_run=True), maintain(table, policy)
    assert dry.done["indices_refreshed"] == report.done["indices_refreshed"] == 1
    assert count_hits(table, "word5") == (change != "update")
    assert (maintain(table, policy).outcome, cover_rows(table).covered) == ("healthy", ())


def test_declared_stop_words_stay(tmp_path):
    policy = MaintenancePolicy(indices={"t": {"kind": "FTS", "custom_stop_words": ["kilo"], "remove_stop_words": True}})
    table = lance_core.write_dataset(rows(0, 300), tmp_path / "t.lance")
    for start in (300, 350, 400):
        maintain(table, policy)
        table.insert(rows(start, 50))
    maintain(table, policy)
    assert (count_hits(table, "kilo"), count_hits(table, "word449")) == (0, 1)


def test_one_manifest_is_read_where_each_fragment_was_changed_by_itself(tmp_path, monkeypatch):
    table = lance_core.write_dataset(
        {**rows(0, 300), "x": [0] * 300}, tmp_path / "t.lance", max_rows_per_file=10, enable_stable_row_ids=True
    )
    maintain(table, MaintenancePolicy(indices={"t": "FTS"}, target_rows_per_fragment=10))
    for start in range(0, 300, 10):
        table.update({"x": "1"}, where=f"id >= {start} AND id < {start + 10}", write_mode="rewrite_columns")
    versions, find_manifest = [], old_words.find_manifest

    def find_and_record(store, version):
        versions.append(version)
        return find_manifest(store, version)

    monkeypatch.setattr(old_words, "find_manifest", find_and_record)
    (index,) = describe_index_health(table)
    assert (index.covered, len(versions)) == (1.0, 1)
