"""What pylance finds by its indices, of every kind, after each of our verbs: the same as without an index."""

import shutil
import uuid

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core import LanceOperation

NUM_ROWS = 120
ROWS = pa.table({
    "id": pa.array(range(NUM_ROWS), pa.int64()),
    "p": [f"d{i // 30}" for i in range(NUM_ROWS)],
    "text": [f"word{i % 5} more" for i in range(NUM_ROWS)],
    "tags": [[f"t{i % 7}", "all"] for i in range(NUM_ROWS)],
    "other": pa.array(range(NUM_ROWS), pa.int64()),
})  # fmt: skip
KINDS = {
    "ZONEMAP": "p",
    "BLOOMFILTER": "p",
    "BITMAP": "p",
    "BTREE": "p",
    "LABEL_LIST": "tags",
    "NGRAM": "text",
    "INVERTED": "text",
}
FILTERS = {
    "p": ["p = 'd0'", "p = 'd2'", "p = 'new'", "p IN ('d1', 'd3')", "p IS NULL", "p > 'd1'"],
    "tags": ["array_has_any(tags, ['t1'])", "array_has_all(tags, ['t2', 'all'])", "array_has_any(tags, ['new'])"],
    "text": ["contains(text, 'word3')", "contains(text, 'new value')"],
}
NEW = {"p": "'new'", "text": "'new value'", "tags": "['new']"}


def append(dataset, column):
    lance_core.write_dataset(ROWS.slice(0, 7), dataset.uri, mode="append")


def delete(dataset, column):
    dataset.delete("id % 3 = 1")
    dataset.delete("id >= 30 AND id < 60")


def update_it(dataset, column):
    dataset.update({column: NEW[column]}, "id % 4 = 0")


def update_another(dataset, column):
    dataset.update({"other": "other + 1000"}, "id < 75")


def upsert(dataset, column):
    rows = pa.concat_tables([ROWS.slice(20, 40), ROWS.slice(0, 5).set_column(0, "id", pa.array(range(500, 505)))])
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def upsert_some_columns(dataset, column):
    rows = ROWS.select(["id", column]).slice(80, 30).take(pa.array(np.arange(29, -1, -1)))
    dataset.merge_insert("id").when_matched_update_all().execute(rows)


def rewrite_the_column(dataset, column):
    fragment = dataset.get_fragment(1)
    kind = ROWS.schema.field(column).type
    values = pa.array([["new"] if column == "tags" else NEW[column].strip("'")] * 30, kind)
    updated, fields = fragment.update_columns(pa.table({"id": range(30, 60), column: values}), "id", "id")
    operation = LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    lance_core.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def add_drop_and_rename_columns(dataset, column):
    dataset.add_columns({"more": "other * 2"})
    dataset.drop_columns(["other"])
    dataset.alter_columns({"path": "more", "name": "other"})


def compact(dataset, column):
    dataset.optimize.compact_files()


def compact_after_changes(dataset, column):
    dataset.delete("id % 3 = 1")
    update_another(dataset, column)
    append(dataset, column)
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0)


def replace_a_slice(dataset, column):
    rows = ROWS.slice(30, 30).set_column(4, "other", pa.array([7] * 30))
    made = lance_core.fragment.write_fragments(rows, dataset)
    one = lance_core.Slice(name="d1", conditions={"p": lance_core.Equals("d1")})
    lance_core.commit_fragments(dataset, made, rows.schema, mode="replace", slices=lance_core.Slices([one]))


def restore(dataset, column):
    version = dataset.version
    dataset.delete("id < 40")
    dataset.checkout_version(version).restore()


VERBS = (
    append,
    delete,
    update_it,
    update_another,
    upsert,
    upsert_some_columns,
    rewrite_the_column,
    add_drop_and_rename_columns,
    compact,
    compact_after_changes,
    replace_a_slice,
    restore,
)


def check(uri, column):
    dataset = lance.dataset(uri)
    assert dataset.has_index
    dataset.validate()
    for text in FILTERS[column]:
        found, expected = (
            sorted(dataset.scanner(["id"], filter=text, use_scalar_index=use).to_table()["id"].to_pylist())
            for use in (True, False)
        )
        assert found == expected, text


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    made = {}

    def table(kind, stable):
        if (kind, stable) not in made:
            uri = tmp_path_factory.mktemp("tables") / f"{kind}_{stable}"
            dataset = lance.write_dataset(ROWS, uri, max_rows_per_file=30, enable_stable_row_ids=stable)
            dataset.create_scalar_index(KINDS[kind], kind)
            made[kind, stable] = uri
        return made[kind, stable]

    return table


@pytest.mark.variants(42)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_pylance_finds_the_same_with_its_index_as_without(tmp_path, tables, kind, verb, stable):
    uri = str(tmp_path / f"t{uuid.uuid4().hex[:4]}")
    shutil.copytree(tables(kind, stable), uri)
    column = KINDS[kind]
    check(uri, column)
    verb(lance_core.dataset(uri), column)
    check(uri, column)
    lance.write_dataset(lance.dataset(uri).to_table().slice(0, 5), uri, mode="append")
    lance.dataset(uri).optimize.optimize_indices()
    check(uri, column)
    lance_core.dataset(uri).update({"other": "other + 1"}, "id < 50")
    check(uri, column)
