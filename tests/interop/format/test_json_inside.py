"""JSON inside of structs, lists and maps beside pylance: each library reads and changes what the other wrote."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from tests.interop.pairs import sorted_rows

LIBRARIES = {"ours": lance_core, "theirs": lance}
DOCUMENTS = ['{"b":2,"a":1}', None, '[1,2,{"b":null}]', '"s"', '{"a":{"c":[true]}}', '{"a":7}']
OFFSETS = pa.array([0, 2, 2, 3, 4, 6], pa.int32())


def documents(strings=DOCUMENTS) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(strings, pa.string()))


def struct(strings=DOCUMENTS[1:], mask=None) -> pa.Array:
    return pa.StructArray.from_arrays([documents(strings), pa.array(range(len(strings)))], names=["j", "n"], mask=mask)


SHAPES = {
    "struct": struct(),
    "null struct": struct(mask=pa.array([False, True, False, False, False])),
    "struct of struct": pa.StructArray.from_arrays([struct()], names=["s"]),
    "list": pa.ListArray.from_arrays(OFFSETS, documents()),
    "large list": pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), documents()),
    "list of struct": pa.ListArray.from_arrays(OFFSETS, struct(DOCUMENTS)),
    "struct of list": pa.StructArray.from_arrays([pa.ListArray.from_arrays(OFFSETS, documents())], names=["l"]),
    "map": pa.MapArray.from_arrays(OFFSETS, pa.array(list("abcdef")), documents()),
}
# The map of 2.2 alone; structs without validity in 2.0; pylance fails to read lists of JSON in files of 0.1.
CASES = [
    (version, shape)
    for version in ("legacy", "2.0", "2.1", "2.2")
    for shape in SHAPES
    if not (shape == "map" and version != "2.2")
    and not (shape == "null struct" and version in ("legacy", "2.0"))
    and not (version == "legacy" and shape in ("list", "large list", "struct of list"))
]
# By either library in turn; by the other one, the same cases are slow.
WRITTEN = [
    pytest.param(*case, writer, marks=[pytest.mark.slow] * ((place + turn) % 2))
    for place, case in enumerate(CASES)
    for turn, writer in enumerate(LIBRARIES)
]


def rows(shape: str, start: int = 0) -> pa.Table:
    return pa.table({"id": range(start, start + 5), "c": SHAPES[shape]})


@pytest.mark.variants(7)
@pytest.mark.parametrize(("version", "shape", "writer"), WRITTEN)
def test_life_of_a_table(tmp_path, writer, version, shape):
    """The table is written by one library, and changed by both."""
    uri, table = str(tmp_path / "t"), rows(shape)
    LIBRARIES[writer].write_dataset(table, uri, data_storage_version=version)

    def check(expected_ids):
        read = [library.dataset(uri).to_table(columns=["id", "c"]) for library in (lance_core, lance)]
        assert read[0].schema == read[1].schema == table.schema
        assert sorted_rows(read[0]) == sorted_rows(read[1])
        assert sorted(read[0]["id"].to_pylist()) == expected_ids

    # Keys of an object are stored in ascending order.
    assert repr(lance_core.dataset(uri).to_table().to_pylist()) == repr(table.to_pylist()).replace(
        '{"b":2,"a":1}', '{"a":1,"b":2}'
    )
    check([*range(5)])
    for library in (lance, lance_core):
        library.dataset(uri).insert(rows(shape, 10 if library is lance else 20))
    check([*range(5), *range(10, 15), *range(20, 25)])
    assert lance_core.dataset(uri).take([7], columns=["c"]) == lance.dataset(uri).take([7], columns=["c"])
    for library in (lance, lance_core):
        library.dataset(uri).delete(f"id = {11 if library is lance else 12}")
        if not (library is lance and shape in ("list", "list of struct", "struct of list", "large list", "map")):
            library.dataset(uri).update({"id": "id + 100"}, where="id = 3 or id = 103")
        clauses = library.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        clauses.execute(rows(shape, 24 if library is lance else 28))
    ids = lance.dataset(uri).to_table(columns=["id"])["id"].to_pylist()
    check(sorted(ids))
    for library in (lance, lance_core):
        library.dataset(uri).optimize.compact_files()
        check(sorted(ids))
        library.dataset(uri).insert(rows(shape, 50))
        ids += range(50, 55)
    check(sorted(ids))


@pytest.fixture
def uri(tmp_path) -> str:
    place = str(tmp_path / "t")
    lance_core.write_dataset(
        pa.table({"id": range(5), "s": struct(), "l": SHAPES["list"]}), place, data_storage_version="2.2"
    )
    return place


@pytest.mark.parametrize(
    "query",
    [
        {"filter": "json_extract(s.j, '$.a') = '7'"},
        {"filter": "s.j is null"},
        {"columns": ["s.j"]},
        {"columns": {"x": "json_exists(s.j, '$.a')"}},
        {"columns": {"x": "s"}},
        {"columns": {"x": "s.j"}},
        {"columns": {"x": "l"}},
        {"columns": {"x": "l[1]"}},
    ],
)
def test_queries(uri, query):
    assert lance_core.dataset(uri).to_table(**query) == lance.dataset(uri).to_table(**query)


def test_columns(uri):
    dataset = lance_core.dataset(uri)
    dataset.add_columns({"copy": "s", "list": "l"})
    dataset.add_columns(pa.field("null", struct().type))
    dataset.update({"s": "named_struct('j', s.j, 'n', 5)"}, where="id = 2")
    dataset.merge(pa.table({"id": range(5), "merged": struct()}), "id")
    dataset.drop_columns(["s.n"])
    dataset.alter_columns({"path": "s.j", "name": "k"})
    ours, theirs = (library.dataset(uri).to_table() for library in (lance_core, lance))
    assert ours.schema == theirs.schema
    assert sorted_rows(ours) == sorted_rows(theirs)
    assert ours.sort_by("id")["copy"].combine_chunks() == struct()
    with pytest.raises(SchemaError, match=r'Cannot cast column "s\.k" of JSON'):
        dataset.alter_columns({"path": "s.k", "data_type": pa.string()})


def test_slices(tmp_path):
    table = pa.table({name: array for name, array in SHAPES.items() if name != "null struct"})
    lance_core.write_dataset(table.slice(2, 3), tmp_path / "t", data_storage_version="2.2")
    assert lance.dataset(tmp_path / "t").to_table() == table.slice(2, 3)


def test_files_alone(tmp_path):
    from lance.file import LanceFileReader

    from lance_core.file import LanceFileReader as OurReader
    from lance_core.file import LanceFileWriter

    table = pa.table({"s": struct(), "l": SHAPES["list"]})
    with LanceFileWriter(str(tmp_path / "a.lance")) as file:
        file.write_batch(table)
    stored = LanceFileReader(str(tmp_path / "a.lance")).read_all().to_table()
    assert OurReader(str(tmp_path / "a.lance")).read_all().to_table() == stored


@pytest.mark.parametrize(
    "column", [struct(["{a"]), pa.ListArray.from_arrays([0, 1], documents(["{a"]))], ids=["struct", "list"]
)
def test_what_is_no_json(tmp_path, column):
    with pytest.raises(InvalidInputError, match="column 'c': value 0 in it is not valid JSON"):
        lance_core.write_dataset(pa.table({"c": column}), tmp_path / "t")
    assert not list((tmp_path / "t").rglob("*.lance"))


@pytest.mark.parametrize("shape", ["list", "large list", "struct of list"])
def test_lists_in_files_of_0_1_are_rejected(tmp_path, shape):
    """Pylance writes them, and cannot read them."""
    with pytest.raises(UnsupportedError, match=r"0\.1 file cannot hold JSON inside of a list"):
        lance_core.write_dataset(rows(shape), tmp_path / "t", data_storage_version="legacy")
    lance.write_dataset(rows(shape), tmp_path / "t", data_storage_version="legacy")
    assert lance_core.dataset(tmp_path / "t").count_rows() == 5
    with pytest.raises((OSError, pa.ArrowInvalid), match=r"column types must match|terminated before end|panicked"):
        lance.dataset(tmp_path / "t").to_table()
