"""Changes for a reader of some columns: updates of others are left out, and none of its own is."""

import datetime as dt

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_core
from lance_core.errors import SchemaError
from tests.support.deltas import table, take_step
from tests.support.hypothesis_settings import examples
from tests.support.moves import move_all


def create(uri, library=lance_core):
    library.write_dataset(table(*range(8)), uri, enable_stable_row_ids=True, max_rows_per_file=3)
    return lance_core.dataset(uri)


def vectors(*ids):
    return {"id": pa.array(ids, pa.int64()), "vec": [float(i) for i in ids]}


def updated(uri, begin=1, columns=("id", "n"), **options):
    feed = lance_core.dataset(uri).delta(begin).get_changes(["id"], updates_of=columns, **options).read_all()
    return sorted(row["id"] for row in feed.to_pylist() if row["_change_type"] == "update_postimage")


@pytest.fixture
def uri(tmp_path):
    uri = str(tmp_path / "t")
    create(uri)
    return uri


def test_a_column_that_is_written_beside_others_is_no_change_of_these(uri):
    lance_core.dataset(uri).write_columns(vectors(*range(8)), on="id")
    lance.dataset(uri).add_columns({"q": "n + 1"})
    assert updated(uri) == []
    assert updated(uri, columns=("vec",)) == updated(uri, columns=("q",)) == updated(uri, columns=None) == [*range(8)]
    lance_core.dataset(uri).write_columns({"id": [5], "n": [7]}, on="id", missing="keep")
    assert set(updated(uri)) >= {5}
    assert updated(uri, begin=2, columns=("vec",)) == []


@pytest.mark.parametrize("library", [lance, lance_core])
def test_rows_that_a_compaction_moves_stay_what_they_were(uri, library):
    lance_core.dataset(uri).write_columns(vectors(*range(8)), on="id")
    library.dataset(uri).optimize.compact_files()
    assert updated(uri) == []
    lance_core.dataset(uri).update({"n": "n + 1"}, "id = 4")
    library.dataset(uri).optimize.compact_files()
    assert updated(uri) == [4]
    assert updated(uri, filter="n >= 0") == [4]


@pytest.mark.parametrize("stable", [False, True])
def test_files_that_move_are_no_change(tmp_path, stable):
    uri = str(tmp_path / "t")
    lance.write_dataset(table(*range(8)), uri, enable_stable_row_ids=stable, max_rows_per_file=3)
    lance.dataset(uri).delete("id = 1")
    begin = lance.dataset(uri).version
    lance_core.dataset(uri).write_columns(vectors(0, *range(2, 8)), on="id", missing="keep")
    move_all(uri)
    lance.dataset(uri).delete("id = 7")
    move_all(uri)
    lance.dataset(uri, version=begin + 2).restore()
    lance_core.write_dataset(table(20), uri, mode="append")
    move_all(uri)
    delta = lance_core.dataset(uri).delta(begin + 1)
    assert delta.get_inserted_rows().read_all()["id"].to_pylist() == [20]
    assert delta.get_deleted_rows().read_all()["id"].to_pylist() == []
    if stable:
        assert updated(uri, begin=begin) == []
        assert updated(uri, begin=begin, columns=("vec",)) == [0, 2, 3, 4, 5, 6, 7]
        assert updated(uri, begin=begin + 1, columns=("vec",)) == []


def test_what_deleted_versions_did_is_not_known(uri):
    lance_core.dataset(uri).write_columns(vectors(*range(8)), on="id")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).tags.create("begin", 1)
    lance.dataset(uri).cleanup_old_versions(dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    assert updated(uri) == [*range(8)]


def test_values_that_are_written_without_a_note_of_it_are_changes(uri):
    """An update of one column is recorded, that of the other is not: pylance replaces files so."""
    dataset = lance_core.dataset(uri)
    dataset.write_columns(vectors(*range(8)), on="id")
    fragment = lance.dataset(uri).get_fragments()[0]
    old = {row["id"]: row["n"] for row in fragment.to_table().to_pylist()}
    new = pa.table({"n": pa.array([value + 100 for value in old.values()], pa.int64())})
    changed, _ = (
        lance.dataset(uri)
        .get_fragments()[0]
        .update_columns(
            pa.table({"_rowaddr": pa.array(range(len(old)), pa.uint64()), "n": new["n"]}), left_on="_rowaddr"
        )[:2]
    )
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=[1])
    lance.LanceDataset.commit(uri, operation, read_version=lance.dataset(uri).version)
    assert updated(uri) == sorted(old)


def test_columns_of_a_filter_count(uri):
    lance_core.dataset(uri).write_columns(vectors(*range(8)), on="id")
    assert updated(uri, filter="vec is not null") == [*range(8)]
    assert updated(uri, filter="n = 0") == []


def test_a_column_that_does_not_exist(uri):
    with pytest.raises(SchemaError, match="nothing"):
        updated(uri, columns=("nothing",))


STEPS = st.lists(
    st.sampled_from(
        [
            *("append", "delete", "update", "merge", "compact", "restore", "column", "move"),
            *("vec", "vec", "narrow", "partial"),
        ]
    ),
    min_size=1,
    max_size=7,
)


@examples(40)
@given(steps=STEPS, seed=st.integers(0, 1 << 16), ours=st.booleans(), cleaned=st.booleans())
def test_no_change_of_the_columns_is_lost(tmp_path_factory, steps, seed, ours, cleaned):
    uri = str(tmp_path_factory.mktemp("t") / "t")
    rng = np.random.default_rng(seed)
    library = lance_core if ours else lance
    create(uri, library).write_columns(vectors(1, 2), on="id")
    for number, step in enumerate(steps):
        start = 10 * number + 10
        some = sorted({int(i) for i in rng.integers(0, start + 5, 4)})
        dataset = lance_core.dataset(uri)
        if step == "vec":
            known = [i for i in some if dataset.count_rows(f"id = {i}") == 1]
            if "vec" in dataset.schema.names and known:
                dataset.write_columns(vectors(*known), on="id", missing="keep")
        elif step == "narrow":
            dataset.update({"n": f"n + {start}"}, f"id in ({','.join(map(str, some))})", write_mode="rewrite_columns")
        elif step == "partial":
            merge = library.dataset(uri).merge_insert("id").when_matched_update_all()
            merge.execute(pa.table({"id": pa.array(some, pa.int64()), "n": pa.array([start] * len(some), pa.int64())}))
        else:
            take_step(library, uri, step, rng, start)
    dataset = lance_core.dataset(uri)
    begin = int(rng.integers(1, dataset.version + 1))
    if cleaned:
        dataset.checkout_version(begin).readers.hold("reader")
        dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)

    def version(number):
        found = dataset.checkout_version(number).to_table(["id", "n"], with_row_id=True).to_pylist()
        return {row["_rowid"]: (row["id"], row["n"]) for row in found}

    for each in (False,) if cleaned else (False, True):
        options = {"updates_of": ["id", "n"], "with_row_id": True, "each_version": each}
        state = version(begin)
        for row in dataset.delta(begin).get_changes(["id", "n"], **options).read_all().to_pylist():
            if row["_change_type"] == "delete":
                del state[row["_rowid"]]
            else:
                state[row["_rowid"]] = row["id"], row["n"]
        assert state == version(dataset.version)


@pytest.mark.parametrize("mode", ["", "rewrite_columns"])
@pytest.mark.parametrize("library", [lance_core, lance])
def test_columns_of_fragments_that_update_columns_wrote(tmp_path, library, mode):
    """Their rows record no update; all live rows of the fragment have written values."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": [1, 2, 3, 4], "b": [1, 2, 3, 4]})
    lance_core.write_dataset(rows, uri, enable_stable_row_ids=True, max_rows_per_file=3)
    table = library.dataset(uri)
    table.delete("id = 2")
    (first, _), new = table.get_fragments(), pa.table({"id": [1], "b": [100]})
    fragment, fields = first.update_columns(new, left_on="id", right_on="id")
    update = library.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields, update_mode=mode)
    library.LanceDataset.commit(uri, update, read_version=table.version)
    for options in ({}, {"each_version": True}):
        changes = lance_core.dataset(uri).delta(2).get_changes(**options).read_all().to_pylist()
        assert [(row["_change_type"], row["id"], row["b"]) for row in changes] == [
            ("update_postimage", 1, 100),
            ("update_postimage", 3, 3),
        ]
