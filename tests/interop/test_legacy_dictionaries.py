"""Dictionary columns of 0.1 datasets, whose values stand in every manifest: written by us, read by pylance."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError


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


def test_new_values_in_an_append_are_refused_as_pylance_refuses_them(tmp_path):
    lance_core.write_dataset(rows(0, 100), tmp_path, data_storage_version="legacy")
    with pytest.raises(OSError, match="dictionary"):
        lance.write_dataset(rows(90, 100), tmp_path, mode="append", data_storage_version="legacy")
    with pytest.raises(SchemaError, match="'text'"):
        lance_core.write_dataset(rows(90, 100), tmp_path, mode="append")
    assert lance_core.dataset(tmp_path).count_rows() == 100
