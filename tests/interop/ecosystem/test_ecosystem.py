"""DuckDB, Polars and pandas scan a dataset as it is, and push columns and filters down where they can."""

import pickle
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import UnsupportedError
from lance_core.verbs.scan.scanner import LanceScanner
from tests import processes


@pytest.fixture
def dataset(tmp_path):
    table = pa.table(
        {"id": range(1000), "name": [f"n{i % 7}" for i in range(1000)], "v": [[float(i)] for i in range(1000)]}
    )
    return lance_core.write_dataset(table, tmp_path / "t", max_rows_per_file=300)


@pytest.fixture
def scans(monkeypatch):
    """Schemas of the scans that are run."""
    seen = []
    batches = LanceScanner._batches

    def recording(self, schema):
        seen.append((schema.names, str(self._options.filter)))
        return batches(self, schema)

    monkeypatch.setattr(LanceScanner, "_batches", recording)
    return seen


def test_duckdb(dataset, scans):
    import duckdb

    assert duckdb.sql("SELECT count(*), sum(id) FROM dataset WHERE name = 'n3'").fetchall() == [(143, 71500)]
    assert duckdb.from_arrow(dataset).filter("id < 3").project("id").fetchall() == [(0,), (1,), (2,)]
    scans.clear()
    pushed = dataset.to_arrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("SELECT sum(id) FROM pushed WHERE name = 'n3'").fetchall() == [(71500,)]
    (names, filter_), *_ = scans
    assert "v" not in names
    assert "n3" in filter_


@pytest.mark.parametrize("way", ["dataset", "arrow dataset"])
def test_polars(dataset, scans, way):
    import polars as pl

    assert pl.DataFrame(dataset).shape == (1000, 3)
    scans.clear()
    source = dataset if way == "dataset" else dataset.to_arrow_dataset()
    lazy = pl.scan_pyarrow_dataset(source)
    found = lazy.filter((pl.col("id") > 990) & (pl.col("name") == "n3")).select("id").collect()
    assert found["id"].to_list() == [i for i in range(991, 1000) if i % 7 == 3]
    assert any(names == ["id"] or "v" not in names for names, _ in scans)
    assert lazy.head(3).collect().shape == (3, 3)


def test_pandas_and_arrow(dataset):
    assert dataset.to_pandas(columns=["id"])["id"].tolist() == list(range(1000))
    assert pa.table(dataset).num_rows == 1000
    assert pa.RecordBatchReader.from_stream(dataset).read_all().num_rows == 1000
    assert pa.table(dataset.scanner(columns=["id"])).column_names == ["id"]


def test_a_handle_is_an_arrow_dataset(dataset, scans):
    import duckdb
    import polars as pl

    for handle in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.checkout_version(1)):
        assert isinstance(handle, pa.dataset.Dataset)
        assert isinstance(handle, lance_core.LanceDataset)
        assert handle.schema == dataset.schema
        assert repr(handle) == repr(dataset)
        scans.clear()
        assert duckdb.sql("SELECT sum(id) FROM handle WHERE name = 'n3' AND id > 10").fetchall() == [(71487,)]
        (names, filter_), *_ = scans
        assert set(names) <= {"id", "name"}
        assert "n3" in filter_
        assert duckdb.from_arrow(handle).filter("id < 3").project("id").fetchall() == [(0,), (1,), (2,)]
        scans.clear()
        assert pl.scan_pyarrow_dataset(handle).filter(pl.col("id") > 990).select("id").collect().shape == (9, 1)
        assert all("v" not in names and "990" in filter_ for names, filter_ in scans)
    for name, arguments in (
        ("filter", (pc.field("id") > 1,)), ("join", (dataset, "id")), ("join_asof", (dataset, "id", "id", 1)),
        ("replace_schema", (dataset.schema,)), ("sort_by", ("id",)),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=name):
            getattr(dataset, name)(*arguments)
    with pytest.raises(NotImplementedError, match="partition_expression"):
        _ = dataset.partition_expression


def test_a_handle_opened_before_arrows_datasets_are_imported(tmp_path):
    program = """if True:
        import pickle, sys
        import pyarrow as pa
        import lance_core
        handle = lance_core.write_dataset(pa.table({"id": [1, 2, 3]}), sys.argv[1])
        assert "pyarrow.dataset" not in sys.modules
        import pyarrow.dataset, duckdb
        assert isinstance(handle, pyarrow.dataset.Dataset)
        assert duckdb.sql("SELECT sum(id) FROM handle WHERE id > 1").fetchall() == [(5,)]
        assert isinstance(pickle.loads(pickle.dumps(handle)), lance_core.LanceDataset)
    """
    processes.run([sys.executable, "-c", program, str(tmp_path / "t.lance")], check=True)


def test_the_arrow_interface(dataset):
    arrow = dataset.to_arrow_dataset()
    few = arrow.filter(pc.field("id") < 10)
    assert isinstance(arrow, pa.dataset.Dataset)
    assert arrow.schema == dataset.schema
    assert few.count_rows(filter=pc.field("id") > 5) == 4
    assert few.to_table(columns=["id"], use_threads=True).column("id").to_pylist() == list(range(10))
    assert few.head(2, columns={"x": pc.field("id") * 2}).to_pydict() == {"x": [0, 2]}
    assert few.take([3, 1], columns=["id"]).to_pydict() == arrow.take([3, 1], columns=["id"]).to_pydict()
    assert sum(batch.num_rows for batch in arrow.to_batches(batch_size=100)) == 1000
    assert pickle.loads(pickle.dumps(few)).count_rows() == 10
    for verb, arguments in (
        ("get_fragments", ()), ("replace_schema", (arrow.schema,)), ("sort_by", ("id",)),
        ("join", (arrow, "id")), ("join_asof", (arrow, "id", "id", 1)),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=verb):
            getattr(arrow, verb)(*arguments)
    with pytest.raises(UnsupportedError, match="fragment_scan_options"):
        arrow.to_table(fragment_scan_options=1)
