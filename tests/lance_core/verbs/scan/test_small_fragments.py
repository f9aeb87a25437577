"""Small fragments that are read together come out as if each had been read by itself."""

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core import Equals, Slice, Slices
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.verbs.rows import removal
from lance_core.verbs.scan import fragment_scan
from lance_core.verbs.scan import small_fragments as joined_scan
from tests.interop.format.wire import edit_latest
from tests.interop.shapes import rows

FRAGMENTS = 30
ROWS = 60


@pytest.fixture(
    params=[("2.1", lance), ("2.2", lance), ("2.1", lance_core), ("2.2", lance_core)], ids=str, scope="module"
)
def uri(request, tmp_path_factory):
    """Fragments of all shapes, some with deletions, one with a column in a file of its own."""
    version, library = request.param
    uri = str(tmp_path_factory.mktemp("joined") / "table")
    table = pa.concat_tables([rows(number * ROWS, ROWS, version=version) for number in range(FRAGMENTS)])
    library.write_dataset(table, uri, max_rows_per_file=ROWS, max_rows_per_group=ROWS, data_storage_version=version)
    dataset = lance_core.dataset(uri)
    dataset.delete(f"id >= {3 * ROWS} and id < {3 * ROWS + 7} or id = {20 * ROWS + 1}")
    dataset.update({"real": "real + 1"}, where=f"id = {12 * ROWS}")
    return uri


@pytest.fixture
def joins(monkeypatch):
    """How many files were read together, each time; negative if that failed and they were read one by one."""
    counts = []

    def counted(scans, *more):
        found = rows_of(scans, *more)
        counts.append(-len(scans) if found is None else len(scans))
        return found

    rows_of = joined_scan._read_rows
    monkeypatch.setattr(joined_scan, "_read_rows", counted)
    return counts


@pytest.mark.variants(7)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ["word", "id"]},
        {"columns": ["pairs", "numbers"], "batch_size": 17},
        {"columns": {"double": "real * 2"}},
        {"with_row_id": True, "with_row_address": True},
        {"with_row_id": True, "include_deleted_rows": True},
        {"columns": ["maybe"], "batch_size": 1000, "strict_batch_size": True},
    ],
    ids=str,
)
def test_batches_are_those_of_single_reads(uri, joins, monkeypatch, options):
    together = list(lance_core.dataset(uri).scanner(**options).to_batches())
    assert sum(joins) >= FRAGMENTS - 5
    joins.clear()
    monkeypatch.setattr(joined_scan, "FEWEST", 10**9)
    alone = list(lance_core.dataset(uri).scanner(**options).to_batches())
    assert not joins
    assert together == alone
    for batch in together:
        batch.validate(full=True)
    if "columns" not in options and "include_deleted_rows" not in options:
        options = {name: value for name, value in options.items() if name != "with_row_address"}
        names = lance.dataset(uri).schema.names
        assert lance_core.dataset(uri).to_table(names, **options) == lance.dataset(uri).to_table(names, **options)


@pytest.mark.variants(7)
@pytest.mark.parametrize(
    "options",
    [
        {"filter": f"id = {5 * ROWS + 3}"},
        {"filter": f"id = {5 * ROWS + 3} OR id >= {20 * ROWS} AND id < {20 * ROWS + 4}", "with_row_id": True},
        {"filter": "id % 2 = 0", "columns": ["text", "pairs"]},
        {"filter": "id % 7 = 0", "columns": ["id"], "with_row_address": True},
        {"filter": "real > 0 AND id % 5 = 1", "late_materialization": False},
        {"filter": f"id < {4 * ROWS}", "with_row_id": True, "include_deleted_rows": True},
        {"filter": "id < 0"},
    ],
    ids=str,
)
def test_filters_keep_the_rows_that_they_keep_alone(uri, joins, monkeypatch, options):
    together = list(lance_core.dataset(uri).scanner(**options).to_batches())
    count = lance_core.dataset(uri).count_rows(options["filter"])
    assert sum(joins) >= FRAGMENTS - 5
    joins.clear()
    monkeypatch.setattr(joined_scan, "FEWEST", 10**9)
    assert together == list(lance_core.dataset(uri).scanner(**options).to_batches())
    assert not joins
    if "include_deleted_rows" not in options:
        assert count == sum(batch.num_rows for batch in together)
        options.setdefault("columns", lance.dataset(uri).schema.names)
        assert lance_core.dataset(uri).to_table(**options) == lance.dataset(uri).to_table(**options)


def test_files_without_a_match_are_read_for_the_filter_only(uri, joins, monkeypatch):
    read = []

    def noted(source, fragment, schema, rows, **options):
        read.append((fragment.id, sorted(schema.names)))
        return read_fragment(source, fragment, schema, rows, **options)

    read_fragment = fragment_scan.read_fragment
    monkeypatch.setattr(fragment_scan, "read_fragment", noted)
    found = lance_core.dataset(uri).to_table(["id", "text"], filter=f"id = {5 * ROWS + 3}")
    assert found.num_rows == 1
    assert sum(joins) >= FRAGMENTS - 5
    assert (5, ["text"]) in read
    assert len([names for _, names in read if names == ["text"]]) == 1


@pytest.mark.parametrize(
    "columns", [None, ["text", "id"], ["pairs"], ["id", "_rowid", "_rowoffset"], {"more": "real + id"}]
)
def test_rows_are_those_of_single_reads(uri, joins, monkeypatch, columns):
    dataset = lance_core.dataset(uri)
    numbers = [5, 700, 61, 1700, 60, 700, 1000, 1001, 1002, 1003, 59]
    together = dataset.take(numbers, columns)
    assert joins
    assert min(joins) > 1
    joins.clear()
    monkeypatch.setattr(joined_scan, "MOST_FILES", 1)
    assert together == dataset.take(numbers, columns)
    assert not joins
    if columns is None or (isinstance(columns, list) and "_rowoffset" not in columns):
        assert together == lance.dataset(uri).take(numbers, columns or lance.dataset(uri).schema.names)


def test_rows_of_very_many_files_are_read_some_files_at_a_time(uri, joins, monkeypatch):
    monkeypatch.setattr(joined_scan, "MOST_FILES", 4)
    dataset = lance_core.dataset(uri)
    numbers = list(range(dataset.count_rows() // 2, 0, -37))
    assert dataset.take(numbers) == lance.dataset(uri).take(numbers, lance.dataset(uri).schema.names)
    assert len(joins) > 2
    assert max(joins) == 4


def test_an_order_over_many_fragments(uri, joins):
    options = {"columns": ["text", "id"], "order_by": ["real", "id"], "limit": 50}
    found = lance_core.dataset(uri).to_table(**options)
    assert joins
    assert found == lance_core.dataset(uri).to_table(columns=["text", "id", "real"]).sort_by(
        [("real", "ascending"), ("id", "ascending")]
    ).slice(0, 50).drop_columns(["real"])


@pytest.mark.variants(8)
@pytest.mark.parametrize(
    "predicate", ["id % 9 = 4", f"id = {7 * ROWS}", f"id >= {2 * ROWS} AND id < {4 * ROWS}", "id < 0"]
)
@pytest.mark.parametrize("verb", ["delete", "update"])
def test_rows_change_as_with_pylance(uri, joins, tmp_path, predicate, verb):
    changed = []
    for library in (lance_core, lance):
        copy = str(tmp_path / library.__name__)
        shutil.copytree(uri, copy)
        dataset = library.dataset(copy)
        dataset.delete(predicate) if verb == "delete" else dataset.update({"real": "-real"}, where=predicate)
        dataset = lance.dataset(copy)
        counts = [(f.count_rows(), f.metadata.num_deletions) for f in dataset.get_fragments()]
        changed.append((dataset.to_table(dataset.schema.names), counts))
    assert sum(joins) >= FRAGMENTS - 5
    assert changed[0] == changed[1]


def test_slices_are_replaced_in_small_fragments(tmp_path, joins):
    names = ["a", "b", "c", "d", "e"]
    table = pa.table({"key": [names[n // 45 % 5] for n in range(900)], "n": range(900)})
    dataset = lance_core.write_dataset(table, tmp_path / "table", max_rows_per_file=30)
    dataset.delete("n < 100 AND n % 3 = 0")
    kept = dataset.to_table().filter(~pc.is_in(pc.field("key"), pa.array(["b", "e"])))
    joins.clear()
    slices = Slices(Slice(name=key, conditions={"key": Equals(key)}) for key in ("b", "e"))
    new = pa.table({"key": ["e", "b"], "n": [1000, 1001]})
    fragments = lance_core.write_fragments(new, tmp_path / "table")
    result = lance_core.commit_fragments(tmp_path / "table", fragments, new.schema, mode="replace", slices=slices)
    assert joins == [30]
    assert lance_core.dataset(tmp_path / "table").to_table() == pa.concat_tables([kept, new])
    assert result.rows_deleted == 900 - 34 - kept.num_rows


def test_a_filter_that_fails_for_a_deleted_row_only_does_not_fail(tmp_path, joins):
    dataset = lance_core.write_dataset(
        pa.table({"id": range(100), "text": ["oops" if n == 33 else str(n) for n in range(100)]}),
        tmp_path / "table",
        max_rows_per_file=10,
    )
    number = pc.field("text").cast(pa.int64())
    with pytest.raises(InvalidInputError, match="oops"):
        dataset.to_table(filter=number > 97)
    dataset.delete("id = 33")
    joins.clear()
    assert dataset.to_table(filter=number > 97)["id"].to_pylist() == [98, 99]
    assert joins == [10]


@pytest.mark.parametrize("columns", [None, ["id"]], ids=str)
def test_groups_grow_and_stay_small(uri, joins, monkeypatch, columns):
    monkeypatch.setattr(joined_scan, "FIRST_BYTES", 60_000)
    monkeypatch.setattr(joined_scan, "MOST_BYTES", 150_000)
    assert lance_core.dataset(uri).to_table(columns).num_rows == lance_core.dataset(uri).count_rows()
    assert len(joins) > 2
    assert joins[0] < max(joins) < FRAGMENTS


def test_files_of_other_columns_and_versions_are_kept_apart(tmp_path, joins):
    uri = str(tmp_path / "table")
    one = rows(0, 100)
    lance_core.write_dataset(one, uri, max_rows_per_file=10)
    lance_core.dataset(uri).add_columns({"more": "id + 1"})
    both = lance_core.dataset(uri).to_table()
    lance_core.write_dataset(both, uri, mode="append", max_rows_per_file=10)
    assert not joins
    found = lance_core.dataset(uri).to_table()
    assert joins == [10]
    assert found == lance.dataset(uri).to_table()


@pytest.mark.parametrize("version", ["0.1", "2.0"])
def test_older_files_are_not_joined(tmp_path, joins, version):
    table = rows(0, 100, nulls=False).select(["id", "real", "text"])
    lance_core.write_dataset(table, tmp_path / "table", max_rows_per_file=10, data_storage_version=version)
    assert lance_core.dataset(tmp_path / "table").to_table() == lance.dataset(tmp_path / "table").to_table()
    assert not joins


def test_damage_is_reported_with_the_file_that_has_it(tmp_path, joins):
    uri = tmp_path / "table"
    table = pa.table({"word": [f"some {n % 97} words {n}" for n in range(3000)]})
    dataset = lance_core.write_dataset(table, uri, max_rows_per_file=300)
    name = dataset.get_fragments()[6].data_files()[0].path
    path = Path(uri) / "data" / name
    data = bytearray(path.read_bytes())
    data[0:64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=name):
        lance_core.dataset(uri).to_table()
    assert joins == [-10]
    with pytest.raises(CorruptFileError, match=name):
        lance_core.dataset(uri).take([5, 1900])
    assert joins == [-10, -2]
    batches = iter(lance_core.dataset(uri).to_batches())
    assert pa.Table.from_batches([next(batches) for _ in range(6)]) == table.slice(0, 1800)


def test_dictionaries_stay_those_of_their_files(tmp_path, joins):
    values = [pa.array([f"{n}", f"{n + 1}", f"{n}"]).dictionary_encode() for n in range(8)]
    table = pa.table({"d": pa.chunked_array(values)})
    lance_core.write_dataset(table, tmp_path / "table", max_rows_per_file=3)
    batches = list(lance_core.dataset(tmp_path / "table").to_batches())
    assert [batch.column(0).to_pylist() for batch in batches] == [value.to_pylist() for value in values]
    assert not joins


def test_blobs_are_read_file_by_file(tmp_path, joins):
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table([pa.array([bytes([n]) * 100 for n in range(80)], pa.large_binary())], pa.schema([field]))
    lance_core.write_dataset(table, tmp_path / "table", max_rows_per_file=8, data_storage_version="2.1")
    dataset = lance_core.dataset(tmp_path / "table")
    assert dataset.to_table(blob_handling="all_binary")["b"].to_pylist() == table["b"].to_pylist()
    assert [one["size"] for one in dataset.to_table()["b"].to_pylist()] == [100] * 80
    assert not joins


def first_scan(uri):
    scanner = lance_core.dataset(uri).scanner()
    return fragment_scan.FragmentScan(scanner._snapshot, scanner._snapshot.manifest.fragments[0], scanner._options)


@pytest.mark.parametrize("row_bytes", [0, 8])
@pytest.mark.parametrize("unknown", [0, 1])
def test_a_fragment_with_a_file_of_unknown_size_is_not_small(tmp_path, unknown, row_bytes):
    """It may be of any size: nothing of it is kept in memory, or read together with others."""
    uri = str(tmp_path)
    lance_core.write_dataset(pa.table({"a": [1, 2]}), uri)
    assert joined_scan._estimate_bytes(first_scan(uri), None, row_bytes) > 0
    lance_core.dataset(uri).add_columns({"b": "a + 1"})
    assert first_scan(uri).is_small
    edit_latest(uri, lambda message: message.fragments[0].files[unknown].ClearField("file_size_bytes"))
    assert not first_scan(uri).is_small
    lance_core.dataset(uri, version=1).restore()
    edit_latest(uri, lambda message: message.fragments[0].files[0].ClearField("file_size_bytes"))
    assert joined_scan._estimate_bytes(first_scan(uri), None, row_bytes) is None
    assert lance_core.dataset(uri).to_table() == pa.table({"a": [1, 2]})


def test_narrow_columns_of_large_files_are_read_together(tmp_path, joins, monkeypatch):
    monkeypatch.setattr(joined_scan, "SMALL_FILE_ROWS", 1_000)
    count = 2_000
    ids, words = range(6 * count), [f"word {number % 97}" for number in range(6 * count)]
    uri = str(tmp_path / "wide")
    made = lance_core.write_dataset(pa.table({"id": ids, "word": words}), uri, max_rows_per_file=count)
    made.delete("id >= 3 and id < 2007")
    joins.clear()
    dataset = lance_core.dataset(uri)
    assert dataset.delete("id % 100 = 5")["num_deleted_rows"] == 99
    assert joins == [6]
    assert dataset.to_table(filter="id % 100 = 6") == lance.dataset(uri).to_table(filter="id % 100 = 6")
    joins.clear()
    assert dataset.to_table() == lance.dataset(uri).to_table()
    assert not joins  # strings have no fixed width, and the files have too many rows
    assert dataset.count_rows() == 6 * count - 2_004 - 99


@pytest.mark.parametrize("stable", [False, True])
def test_updated_rows_of_several_fragments_are_read_together(tmp_path, joins, monkeypatch, stable):
    made = rows(0, 6 * ROWS, version="2.2")
    ours, theirs = (str(tmp_path / name) for name in ("ours", "theirs"))
    for uri in (ours, theirs):
        lance.write_dataset(made, uri, max_rows_per_file=ROWS, enable_stable_row_ids=stable)
    for step, limit in enumerate([joined_scan.SMALL_FILE_ROWS, 1]):  # the new fragment is the seventh
        monkeypatch.setattr(removal, "SMALL_FILE_ROWS", limit)
        joins.clear()
        changes = {"real": "real + 1"}, f"id % 5 = {step}"
        assert lance_core.dataset(ours).update(*changes) == lance.dataset(theirs).update(*changes)
        assert (sum(joins), len(joins)) == ((12, 2) if step == 0 else (7, 1))  # the filter, then the rows
        found, expected = (lance.dataset(uri).to_table(with_row_id=stable) for uri in (ours, theirs))
        assert found == expected
