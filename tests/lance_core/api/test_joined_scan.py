"""Small fragments that are read together come out as if each had been read by itself."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.api import joined_scan
from lance_core.errors import CorruptFileError
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

    def counted(scans):
        found = rows_of(scans)
        counts.append(-len(scans) if found is None else len(scans))
        return found

    rows_of = joined_scan._rows_of
    monkeypatch.setattr(joined_scan, "_rows_of", counted)
    return counts


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


def test_groups_grow_and_stay_small(uri, joins, monkeypatch):
    monkeypatch.setattr(joined_scan, "FIRST_BYTES", 60_000)
    monkeypatch.setattr(joined_scan, "MOST_BYTES", 150_000)
    assert lance_core.dataset(uri).to_table().num_rows == lance_core.dataset(uri).count_rows()
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
    ours = lance_core.dataset(tmp_path / "table").to_table()
    assert ours["b"].to_pylist() == table["b"].to_pylist()
    assert not joins
