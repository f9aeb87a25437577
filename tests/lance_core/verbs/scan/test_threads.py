"""Reads and changes whose work is divided among threads, beside the same with one thread."""

import threading

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError
from lance_core.file import pool
from lance_core.verbs.scan import fragment_scan, scanner

ROWS = 3_000


@pytest.fixture
def use_threads(monkeypatch):
    """Sets the number of threads, each of which reads at least 100 rows."""
    before = pool._pools.copy()
    pool._pools.clear()
    monkeypatch.setattr(fragment_scan, "LEAST_PART", (100, 1 << 30))
    monkeypatch.setattr(fragment_scan, "STAGED_ROWS", 50)

    def use(number):
        monkeypatch.setenv("LANCE_CPU_THREADS", number)

    yield use
    for opened in pool._pools.values():
        opened.shutdown()
    pool._pools.clear()
    pool._pools.update(before)


def rows():
    rng = np.random.default_rng(3)
    return pa.table({
        "id": pa.array(np.arange(ROWS)),
        "double": rng.random(ROWS),
        "group": pa.array([f"g{n}" if n else None for n in rng.integers(0, 9, ROWS)]),
        "text": pa.array([f"text {n} of many" for n in rng.integers(0, 10**6, ROWS)]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * 4, dtype=np.float32)), 4),
    })  # fmt: skip


def make_table(uri, rows_per_file, version):
    table = lance_core.write_dataset(rows(), uri, max_rows_per_file=rows_per_file, data_storage_version=version)
    table.delete("id % 10 = 3")
    return table


READS = {
    "all": {},
    "two columns": {"columns": ["id", "double"]},
    "few rows": {"filter": "double > 0.98 and group = 'g3'"},
    "many rows": {"filter": "double > 0.2"},
    "columns of the filter": {"filter": "double > 0.9 or group = 'g1'", "columns": ["double", "group"]},
    "row columns": {"filter": "double > 0.5", "with_row_id": True, "with_row_address": True, "columns": ["text"]},
    "a row column in the filter": {"filter": "_rowaddr % 7 = 1", "columns": ["text"]},
    "no row": {"filter": "double > 2"},
    "a limit": {"filter": "double > 0.5", "limit": 17, "offset": 400},
    "without a second read": {"filter": "double > 0.9", "late_materialization": False},
    "deleted rows": {"filter": "double > 0.9", "include_deleted_rows": True, "with_row_id": True},
    "in order": {"filter": "double > 0.7", "order_by": ["double"]},
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("version", ["0.1", "2.0", "2.2"])
@pytest.mark.parametrize("rows_per_file", [ROWS, 700, 90])
def test_reads_do_not_depend_on_the_number_of_threads(tmp_path, use_threads, rows_per_file, version):
    use_threads("1")
    table = make_table(tmp_path / "t", rows_per_file, version)
    expected = {name: table.scanner(**options).to_table() for name, options in READS.items()}
    counts = {name: table.count_rows(options.get("filter")) for name, options in READS.items()}
    assert expected["all"].num_rows == counts["all"] == ROWS * 9 // 10
    for threads in ("2", "16"):
        use_threads(threads)
        opened = lance_core.dataset(tmp_path / "t")
        for name, options in READS.items():
            assert opened.scanner(**options).to_table().combine_chunks() == expected[name].combine_chunks(), name
            assert opened.count_rows(options.get("filter")) == counts[name], name


@pytest.mark.parametrize("rows_per_file", [ROWS, 700, 90])
def test_changes_do_not_depend_on_the_number_of_threads(tmp_path, use_threads, rows_per_file):
    source = rows().slice(0, 50).set_column(0, "id", pa.array(np.arange(ROWS - 25, ROWS + 25)))
    results = []
    for threads in ("1", "2", "16"):
        use_threads(threads)
        table = make_table(tmp_path / threads, rows_per_file, "2.2")
        table.delete("double < 0.1 and group = 'g2'")
        table.update({"text": "'new'"}, "double > 0.9 and group = 'g5'")
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
        table.add_columns({"sum": "double + id"})
        table.update({"double": "double * 2"}, "id % 50 = 1", write_mode="rewrite_columns")
        table.alter_columns({"path": "sum", "data_type": pa.float32()})
        table.create_scalar_index("double", "BTREE")
        table.create_scalar_index("group", "BITMAP")
        found = table.to_table(filter="double > 0.4 and double < 0.41").sort_by("id")
        numbers = np.random.default_rng(8).permutation(table.count_rows())[:900]
        results.append((
            table.to_table(), found, table.count_rows("group = 'g4'"), len(table.get_fragments()), table.take(numbers),
        ))  # fmt: skip
        assert found.num_rows > 0
    for result in results[1:]:
        assert result == results[0]


@pytest.mark.parametrize("rows_per_file", [ROWS, 700, 90])
def test_an_error_of_a_thread_is_that_of_one_thread_and_leaves_no_job(tmp_path, use_threads, rows_per_file):
    use_threads("1")
    table = make_table(tmp_path / "t", rows_per_file, "2.2")
    errors = set()
    for threads in ("1", "2", "16"):
        use_threads(threads)
        for wrong in (table.count_rows, lambda condition: table.to_table(filter=condition), table.delete):
            with pytest.raises(InvalidInputError) as error:
                wrong("id / (id - 2000) > 0")
            errors.add(str(error.value))
    assert len(errors) == 1
    assert len(table.get_fragments()) == len(lance_core.dataset(tmp_path / "t").get_fragments())
    assert not list((tmp_path / "t" / "_deletions").glob("*tmp*"))
    files = sorted((tmp_path / "t" / "data").iterdir())
    for threads in ("1", "2", "16"):
        use_threads(threads)
        with pytest.raises(InvalidInputError):
            table.add_columns({"wrong": "id / (id - 2000)"})
    assert sorted((tmp_path / "t" / "data").iterdir()) == files


def test_one_file_occupies_all_threads(tmp_path, use_threads, monkeypatch):
    use_threads("4")
    table = make_table(tmp_path / "t", ROWS, "2.2")
    together = threading.Barrier(4, timeout=100)
    look = fragment_scan.FragmentScan._find_rows

    def wait_for_others(self, *arguments):
        together.wait()
        return look(self, *arguments)

    monkeypatch.setattr(fragment_scan.FragmentScan, "_find_rows", wait_for_others)
    assert table.count_rows("double > 0.5") > 0
    assert table.to_table(filter="double > 0.99").num_rows > 0


def test_more_threads_than_a_reader_of_pages_occupies_divide_a_scan(tmp_path, use_threads, monkeypatch):
    use_threads("16")
    table = make_table(tmp_path / "t", ROWS, "2.2")
    threads = set()
    all_batches = scanner._all_batches
    monkeypatch.setattr(
        scanner,
        "_all_batches",
        lambda scan: threads.add((scan.window, threading.current_thread())) or all_batches(scan),
    )
    assert table.to_table().num_rows == table.count_rows()
    assert len(threads) == 16
    assert threading.current_thread() not in {thread for _, thread in threads}
