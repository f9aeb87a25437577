"""Dictionaries whose indices count few values (a pandas Categorical has `int8`) are read, changed and maintained.

Fragments whose rows have together more values than one dictionary counts are not merged: pylance writes a file of them
that nobody can read.
"""

import itertools

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.maintenance.verify.files import verify
from lance_core.verbs.scan.options import ColumnOrdering

INT8 = pa.dictionary(pa.int8(), pa.string())


def categories(names, kind=INT8):
    return pa.array(names, kind.value_type).dictionary_encode().cast(kind)


def rows(piece, names):
    return pa.table({"id": range(piece * 100, piece * 100 + len(names)), "c": categories(names)})


def nested(table):
    ids, column = table.columns
    column = column.chunk(0)
    offsets = pa.array(range(len(column) + 1), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, column)
    return pa.table({"id": ids, "c": column, "s": pa.StructArray.from_arrays([column], ["x"]), "l": lists})


@pytest.fixture(params=["2.0", "2.1", "2.2", "nested"])
def table(request, tmp_path):
    """Five fragments of 100 rows: the values of the first three overlap, those of the others are their own."""
    for piece in range(5):
        prefix = "v" if piece < 3 else f"w{piece}_"
        part = rows(piece, [f"{prefix}{number}" for number in range(100)])
        version = "2.2" if request.param == "nested" else request.param
        part = nested(part) if request.param == "nested" else part
        table = lance_core.write_dataset(part, tmp_path / "t.lance", mode="append", data_storage_version=version)
    return table


def values(table, lib=lance):
    """The rows by id, as pylance and this library read them."""
    found = [
        sorted(one.dataset(table.uri).to_table().to_pylist(), key=lambda row: row["id"]) for one in (lance, lance_core)
    ]
    assert found[0] == found[1]
    return found[0]


def test_reading_needs_no_common_dictionary(table):
    everything = table.to_table()
    assert table.take(range(500)).to_pylist() == everything.to_pylist()
    backwards = table.take(range(499, -1, -1), ["c"])
    assert backwards["c"].to_pylist() == everything["c"].to_pylist()[::-1]
    assert backwards["c"].type == INT8
    assert table.take(range(499, -1, -1)).to_pylist() == everything.to_pylist()[::-1]
    assert table.sample(400, columns=["id", "c"]).num_rows == 400
    ordered = table.scanner(columns=["c"], order_by=[ColumnOrdering("id", ascending=False)])
    assert ordered.to_table()["c"].to_pylist() == everything["c"].to_pylist()[::-1]
    with pytest.raises(InvalidInputError, match="column 'c'"):
        table.scanner(columns=["c"], batch_size=500, strict_batch_size=True).to_table()


def test_compaction_merges_what_fits_and_then_nothing(table):
    before = values(table)
    table.optimize.compact_files()
    assert sorted(fragment.count_rows() for fragment in table.get_fragments()) == [100, 100, 300]
    assert values(table) == before
    version = table.version
    table.optimize.compact_files()
    assert table.version == version
    assert verify(table) == []


def test_deletions_make_room(table):
    table.delete("id % 100 >= 40 and id >= 300")
    before = values(table)
    table.optimize.compact_files()
    assert len(table.get_fragments()) < 5
    assert values(table) == before
    assert len(set(table.to_table()["c"].to_pylist())) == 180


@pytest.mark.parametrize("where", ["id in (5, 305, 405)", "id % 2 = 0", None])
def test_updates(table, where):
    expected = {row["id"]: row["c"] for row in values(table)}
    table.update({"id": "id + 1000"}, where=where)
    found = {row["id"] % 1000: row["c"] for row in values(table)}
    assert found == expected
    table.optimize.compact_files()
    assert {row["id"] % 1000: row["c"] for row in values(table)} == expected


def test_merges_and_columns(table):
    source = table.to_table(columns=["id", "c"], filter="id % 3 = 0").set_column(
        1, "c", categories([f"new{number}" for number in range(100)] + ["x"] * 67)
    )
    source = nested(source.combine_chunks()) if "s" in table.schema.names else source
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
    found = {row["id"]: row["c"] for row in values(table)}
    assert [found[number] for number in (0, 3, 300, 303)] == ["new0", "new1", "x", "x"]
    table.add_columns({"d": "c"})
    assert all(row["c"] == row["d"] for row in values(table))


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_a_write_that_no_file_can_hold_names_the_column(tmp_path, version):
    parts = [rows(piece, [f"v{piece}_{number}" for number in range(100)]) for piece in range(2)]
    with pytest.raises((InvalidInputError, SchemaError), match="column 'c'"):
        lance_core.write_dataset(pa.concat_tables(parts), tmp_path / "t.lance", data_storage_version=version)
    assert not list(tmp_path.rglob("*.lance/data/*"))
    if version == "0.1":  # all files share one dictionary
        table = lance_core.write_dataset(parts[0], tmp_path / "t.lance", data_storage_version=version)
        with pytest.raises(SchemaError, match="column 'c'"):
            table.insert(parts[1])


def test_values_that_no_row_has_take_no_room(tmp_path):
    """A slice has the dictionary of the whole, as pyarrow filters do."""
    wide = [categories([f"v{piece}_{number}" for number in range(120)]).slice(0, 20) for piece in range(6)]
    data = pa.table({"c": pa.chunked_array(wide)})
    for version in ("0.1", "2.0", "2.2"):
        table = lance_core.write_dataset(data, tmp_path / version, data_storage_version=version)
        assert table.to_table()["c"].to_pylist() == data["c"].to_pylist()
        assert lance.dataset(table.uri).to_table()["c"].to_pylist() == data["c"].to_pylist()


TYPES = [
    pa.string(),
    pa.large_string(),
    pa.int64(),
    pa.binary(),
    INT8,
    pa.dictionary(pa.uint16(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
    pa.dictionary(pa.int8(), pa.int64()),
]


@pytest.mark.parametrize(
    ("old", "new"), [pair for pair in itertools.permutations(TYPES, 2) if any(map(pa.types.is_dictionary, pair))]
)
def test_casts_are_those_of_pylance(tmp_path, old, new):
    plain = pa.array(["1", "2", None, "3", "1"]).cast(old.value_type if pa.types.is_dictionary(old) else old)
    data = pa.table({"c": categories(plain, old) if pa.types.is_dictionary(old) else plain})
    outcomes = []
    for library in (lance, lance_core):
        table = library.write_dataset(data, str(tmp_path / library.__name__))
        try:
            table.alter_columns({"path": "c", "data_type": new})
        except (OSError, SchemaError) as error:
            outcomes.append(str(error).count("Cannot cast column"))
            continue
        found = lance.dataset(table.uri).to_table()
        outcomes.append((found.schema, found.to_pylist()))
    assert outcomes[0] == outcomes[1]


def test_a_cast_to_indices_that_are_too_narrow(tmp_path):
    table = lance_core.write_dataset({"c": [f"v{number}" for number in range(300)]}, tmp_path / "t.lance")
    with pytest.raises(InvalidInputError, match="column 'c'"):
        table.alter_columns({"path": "c", "data_type": INT8})
    table.alter_columns({"path": "c", "data_type": pa.dictionary(pa.int16(), pa.string())})
    assert lance.dataset(table.uri).to_table()["c"].to_pylist() == [f"v{number}" for number in range(300)]


FULL = [(pa.int8(), 128), (pa.uint8(), 256), (pa.int16(), 32_768), (pa.uint16(), 65_536)]


def full_dictionary(indices, numbers, first_id=0):
    kind = pa.dictionary(indices, pa.string())
    return pa.table(
        {
            "id": range(first_id, first_id + len(numbers)),
            "c": categories([f"w{number}" for number in numbers], kind),
        }
    )


@pytest.mark.variants(2)
@pytest.mark.parametrize(("indices", "size"), FULL, ids=str)
def test_a_full_dictionary_is_not_too_full(tmp_path, indices, size):
    """Arrow itself cannot unify as many values as the indices count."""
    half = size // 2
    parts = [range(size), range(size - 1, -1, -1)]
    both = pa.concat_tables(full_dictionary(indices, part, size * number) for number, part in enumerate(parts))
    table = lance_core.write_dataset(both, tmp_path / "written")
    assert values(table) == both.to_pylist()

    table = lance_core.write_dataset(full_dictionary(indices, range(half)), tmp_path / "changed")
    table.insert(full_dictionary(indices, range(half, size), half))
    table.update({"id": "id + 1"})
    table.merge_insert("id").when_not_matched_insert_all().execute(full_dictionary(indices, range(half), size + 1))
    table.optimize.compact_files()
    assert len(table.get_fragments()) == 1
    names = [f"w{number}" for number in (*range(size), *range(half))]
    assert values(table) == [{"id": number + 1, "c": name} for number, name in enumerate(names)]
    assert table.take(range(size + half - 1, -1, -1), ["c"])["c"].to_pylist() == names[::-1]

    path = str(tmp_path / "rows.lance")
    with lance_core.file.LanceFileWriter(path) as writer:
        for part in parts:
            writer.write_batch(full_dictionary(indices, part).select(["c"]))
    for library in (lance, lance_core):
        assert library.file.LanceFileReader(path).read_all().to_table().to_pylist() == both.select(["c"]).to_pylist()


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_a_full_dictionary_in_each_version_and_nested(tmp_path, version):
    parts = [full_dictionary(pa.int8(), range(128)), full_dictionary(pa.int8(), range(127, -1, -1))]
    parts = [nested(part) for part in parts] if version == "2.2" else parts
    written = pa.concat_tables(parts)
    table = lance_core.write_dataset(written, tmp_path / "t.lance", data_storage_version=version)
    for library in (lance, lance_core):
        assert library.dataset(table.uri).to_table().to_pylist() == written.to_pylist()


def test_one_value_more_than_a_full_dictionary_names_the_column(tmp_path):
    parts = [full_dictionary(pa.int8(), range(128)), full_dictionary(pa.int8(), [128])]
    with pytest.raises(InvalidInputError, match="column 'c'"):
        lance_core.write_dataset(pa.concat_tables(parts), tmp_path / "t.lance")
    assert not list(tmp_path.rglob("*.lance/data/*"))
