"""Indices on lists miss the rows of a fragment whose lists were set again, although its files name the items alone."""

import uuid
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance

LISTS = pa.list_(pa.string())


def rows(word, ids):
    column = pa.array([[word]] * len(ids), LISTS)
    return pa.table({"id": pa.array(ids, pa.int64()), "tags": column, "words": column})


@pytest.fixture
def table(tmp_path):
    """20 rows with an index of lance_core and one of pylance on lists."""
    table = lance_core.write_dataset(rows("old", range(20)), tmp_path / "t.lance", enable_stable_row_ids=True)
    table.create_scalar_index("tags", "LABEL_LIST")
    lance.dataset(table.uri).create_scalar_index("words", "INVERTED")
    table.checkout_latest()
    return table


def count(table, word):
    """The rows with a word: by lance_core, by pylance, and by full text."""
    condition, searched = f"array_has(tags, '{word}')", lance.dataset(table.uri)
    return (
        lance_core.dataset(table.uri).count_rows(condition),
        searched.to_table(filter=condition).num_rows,
        searched.to_table(columns=["id"], full_text_query=word).num_rows,
    )


def check(table, new):
    for _ in range(2):
        assert (count(table, "new"), count(table, "old")) == ((new,) * 3, (20 - new,) * 3)
        assert not maintenance.cover_rows(lance_core.dataset(table.uri)).problems


@pytest.mark.variants(4)
@pytest.mark.parametrize("on_branch", [False, True])
@pytest.mark.parametrize("verb", ["write_columns", "update", "merge_insert"])
def test_rows_that_were_set_again_on_a_branch(table, verb, on_branch):
    target = table.create_branch("work") if on_branch else table
    new = rows("new", range(5))
    if verb == "write_columns":
        target.write_columns(new, on="id", missing="keep")
    elif verb == "update":
        words = dict.fromkeys(("tags", "words"), "make_array('new')")
        target.update(words, where="id < 5", write_mode="rewrite_columns")
    else:
        target.merge_insert("id").when_matched_update_all().execute(new)
    if on_branch:
        table.branches.promote("work")
    check(table, 5)


@pytest.mark.parametrize("operation", ["DataReplacement", "Update", "Merge"])
def test_a_file_in_place_of_another(table, operation):
    """A new file names the items, not the lists; so does an Update by others."""
    fields = {field.name: field for field in lance_core.dataset(table.uri).snapshot.manifest.schema.fields}
    for name in ("tags", "words"):
        dataset, (item,) = lance_core.dataset(table.uri), fields[name].children
        path = Path(table.uri, "data", f"{uuid.uuid4()}.lance")
        with lance.file.LanceFileWriter(str(path), version=dataset.data_storage_version) as writer:
            writer.write_batch(pa.table({name: pa.array([["new"]] * 20, LISTS)}))
        major, minor = map(int, dataset.data_storage_version.split("."))
        file = lance_core.fragment.DataFile(path.name, [item.id], [0], major, minor, path.stat().st_size)
        if operation == "DataReplacement":
            group = lance_core.LanceOperation.DataReplacementGroup(0, file)
            change = lance_core.LanceOperation.DataReplacement([group])
        else:
            (fragment,) = (each.metadata for each in dataset.get_fragments())
            files = [replace(old, fields=[-2 if i == item.id else i for i in old.fields]) for old in fragment.files]
            changed = replace(fragment, files=[*files, file])
            if operation == "Merge":
                change = lance_core.LanceOperation.Merge([changed], dataset.lance_schema)
            else:
                change = lance_core.LanceOperation.Update(
                    updated_fragments=[changed], fields_modified=[item.id], update_mode="rewrite_columns"
                )
        lance_core.LanceDataset.commit(table.uri, change, read_version=dataset.version)
    check(table, 20)
