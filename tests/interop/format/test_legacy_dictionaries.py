"""Dictionary columns of 0.1 datasets, whose values stand in every manifest: written by us, read by pylance."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError


def rows(start=0, count=3000):
    numbers = range(start, start + count)
    return pa.table(
        {
            "x": pa.array(numbers),
            "text": pa.array([f"v{i % 500}" for i in numbers]).dictionary_encode(),
            "number": pa.array([i % 7 * 10 for i in numbers]).dictionary_encode(),
        }
    )


def values(table):
    return {name: table[name].to_pylist() for name in table.column_names}


@pytest.mark.parametrize("files", [1, 15])
def test_pylance_reads_dictionaries_whatever_file_they_came_up_in(tmp_path, files):
    data = rows()
    lance_core.write_dataset(
        data.to_batches(max_chunksize=170),
        tmp_path,
        schema=data.schema,
        data_storage_version="legacy",
        max_rows_per_file=3000 // files,
    )
    for library in (lance_core, lance):
        assert values(library.dataset(tmp_path).to_table()) == values(data)


def test_later_versions_repeat_the_values(tmp_path):
    lance_core.write_dataset(rows(), tmp_path, data_storage_version="legacy")
    lance_core.write_dataset(rows(1234, 100), tmp_path, mode="append")
    lance_core.dataset(tmp_path).delete("x < 100")
    expected = values(pa.concat_tables([rows(100, 2900), rows(1234, 100)]))
    for library in (lance_core, lance):
        assert values(library.dataset(tmp_path).to_table()) == expected


def test_we_append_to_what_pylance_wrote(tmp_path):
    lance.write_dataset(rows(), tmp_path, data_storage_version="legacy")
    lance_core.write_dataset(rows(77, 9), tmp_path, mode="append")
    expected = values(pa.concat_tables([rows(), rows(77, 9)]))
    for library in (lance_core, lance):
        assert values(library.dataset(tmp_path).to_table()) == expected


def test_new_values_in_an_append_are_rejected_as_pylance_rejects_them(tmp_path):
    lance_core.write_dataset(rows(0, 100), tmp_path, data_storage_version="legacy")
    with pytest.raises(OSError, match="dictionary"):
        lance.write_dataset(rows(90, 100), tmp_path, mode="append", data_storage_version="legacy")
    with pytest.raises(SchemaError, match="'text'"):
        lance_core.write_dataset(rows(90, 100), tmp_path, mode="append")
    assert lance_core.dataset(tmp_path).count_rows() == 100


def test_an_empty_text_stays_itself(tmp_path):
    """It is read as null, which must not become the first value when the rows are written again."""
    texts = pa.array(["x", "", "y", "x"] * 5).dictionary_encode()
    data = pa.table({"x": range(20), "text": texts})
    lance.write_dataset(data, tmp_path, data_storage_version="legacy", max_rows_per_file=7)
    dataset = lance_core.dataset(tmp_path)
    expected = {"x": list(range(20)), "text": ["x", None, "y", "x"] * 5}
    assert values(dataset.to_table()) == expected
    assert dataset.take([9, 1, 17])["text"].to_pylist() == [None, None, None]
    dataset.insert(data.slice(0, 2))
    dataset.optimize.compact_files()
    for library in (lance_core, lance):
        found = values(library.dataset(tmp_path).to_table())
        assert found == {"x": [*range(20), 0, 1], "text": [*expected["text"], "x", None]}


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_null_among_the_values_of_several_dictionaries(tmp_path, version):
    def part(indices, dictionary):
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), dictionary)

    column = pa.chunked_array([part([0, 1, 0], ["x", ""]), part([1, 0, 2], ["y", None, "x"])])
    table = pa.table({"k": range(6), "text": column})
    dataset = lance_core.write_dataset(table, tmp_path, data_storage_version=version)
    dataset.update({"k": "k + 10"}, "k < 2")
    dataset.optimize.compact_files()
    empty = None if version == "0.1" else ""
    expected = {"k": [2, 3, 4, 5, 10, 11], "text": ["x", None, "y", "x", "x", empty]}
    for library in (lance_core, lance):
        assert values(library.dataset(tmp_path).to_table()) == expected


def letters():
    texts = pa.array(["x", "y", "z"] * 4).dictionary_encode()
    return pa.table({"x": range(12), "text": texts, "more": ["q", "r", "s"] * 4})


def some(keys, texts):
    encoded = pa.array(texts).dictionary_encode()
    return pa.table({"x": pa.array(keys, pa.int64()), "text": encoded, "more": ["m"] * len(keys)})


def upsert(dataset, texts):
    merge = dataset.merge_insert("x").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(some([1, 20], texts))


def update_columns(dataset, texts):
    fragment, modified = dataset.get_fragments()[0].update_columns(some([1, 2], texts).drop_columns("more"), "x", "x")
    operation = lance_core.LanceOperation.Update(updated_fragments=[fragment], fields_modified=modified)
    lance_core.LanceDataset.commit(dataset, operation, read_version=dataset.version)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda d, texts: d.update({"text": f"'{texts[0]}'"}, "x = 1"), "xzzxyzxyzxyz"),
        (upsert, "xzzxyzxyzxyzy"),
        (update_columns, "xzyxyzxyzxyz"),
    ],
)
def test_rows_that_move_keep_to_the_values_of_the_dataset(tmp_path, change, found):
    lance.write_dataset(letters(), tmp_path, data_storage_version="legacy", max_rows_per_file=5)
    change(lance_core.dataset(tmp_path), ["z", "y"])
    for library in (lance_core, lance):
        texts = library.dataset(tmp_path).to_table().sort_by("x")["text"].to_pylist()
        assert "".join(texts) == found
    with pytest.raises(SchemaError, match="'text'"):
        change(lance_core.dataset(tmp_path), ["w", "w"])
    assert lance_core.dataset(tmp_path).version == 2


def test_a_dictionary_cannot_be_added(tmp_path):
    dataset = lance_core.write_dataset(letters(), tmp_path, data_storage_version="legacy")
    with pytest.raises(UnsupportedError, match="new"):
        dataset.add_columns({"new": "text"})
    with pytest.raises(OSError, match="new"):
        lance.dataset(tmp_path).add_columns({"new": "text"})


def test_all_columns_are_needed(tmp_path):
    """Other readers take a fragment without a column, but let nobody drop or rename one afterwards."""
    lance_core.write_dataset(letters(), tmp_path, data_storage_version="legacy")
    for library in (lance_core, lance):
        with pytest.raises((InvalidInputError, OSError), match="text"):
            library.dataset(tmp_path).insert(letters().drop_columns("text"))
    assert lance_core.dataset(tmp_path).version == 1


def test_texts_below_nulls_are_not_stored(tmp_path):
    """Arrow allows a null to cover characters; in a page of 0.1 the offsets alone say what is null."""
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32).tobytes())
    array = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"abbc")])
    assert array.to_pylist() == ["a", None, "c"]
    lance_core.write_dataset(pa.table({"t": array}), tmp_path, data_storage_version="legacy")
    for library in (lance, lance_core):
        assert library.dataset(str(tmp_path)).to_table().to_pylist() == [{"t": "a"}, {"t": None}, {"t": "c"}]
