"""Indices and copies that executors make, on a real session, classic or Connect, with pylance reading the result."""

import pathlib

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, LanceError, SchemaError


@pytest.fixture
def table(uri):
    rows = pa.table({"id": range(900), "name": [str(i % 7) for i in range(900)]})
    dataset = lance_core.write_dataset(rows, uri, max_rows_per_file=100, enable_stable_row_ids=True)
    dataset.delete("id = 5")
    return dataset


def files_of(uri, folder):
    return sorted(str(path.relative_to(uri)) for path in pathlib.Path(uri, folder).rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["ZONEMAP", "BITMAP", "BTREE", "BLOOMFILTER"])
def test_executors_build_an_index_that_both_libraries_use(spark, table, uri, lance, kind):
    column = "name" if kind == "BITMAP" else "id"
    calls = []
    made = pyspark_lance.create_scalar_index(
        spark, uri, column, kind, progress=lambda done, total: calls.append((done, total))
    )
    assert (made.version, calls[-1][0]) == (3, calls[-1][1])
    assert calls[-1][1] > 1
    (index,) = lance.dataset(uri).describe_indices()
    (segment,) = index.segments
    assert (index.name, set(segment.fragment_ids)) == (f"{column}_idx", set(range(9)))
    assert {path.split("/")[1] for path in files_of(uri, "_indices")} == {segment.uuid}
    condition = "name = '3'" if kind == "BITMAP" else "id in (4, 5, 899)"
    assert index.name in made.scanner(filter=condition).explain_plan()
    for one in (made, lance.dataset(uri)):
        found = one.to_table(filter=condition).column("id").to_pylist()
        assert sorted(found) == [
            i for i in range(900) if i != 5 and (i % 7 == 3 if kind == "BITMAP" else i in (4, 899))
        ]


def test_an_index_of_that_name_is_replaced_or_rejected(spark, table, uri):
    pyspark_lance.create_scalar_index(spark, uri, "id", "ZONEMAP", "mine", rows_per_zone=64)
    with pytest.raises(InvalidInputError, match="'mine' already"):
        pyspark_lance.create_scalar_index(spark, uri, "id", "ZONEMAP", "mine", replace=False)
    before = files_of(uri, "_indices")
    made = pyspark_lance.create_scalar_index(spark, uri, "id", "BTREE", "mine")
    assert [(index.name, index.index_type) for index in made.describe_indices()] == [("mine", "BTree")]
    assert len(files_of(uri, "_indices")) == len(before) + 2


def test_invalid_arguments_are_rejected_before_a_job_runs(spark, table, uri, monkeypatch):
    import pyspark_lance.distributed.indices as module

    monkeypatch.setattr(module, "run_all_tasks", None)
    with pytest.raises(SchemaError, match="nope"):
        pyspark_lance.create_scalar_index(spark, uri, "nope", "BTREE")
    with pytest.raises(InvalidInputError, match="'FOO'"):
        pyspark_lance.create_scalar_index(spark, uri, "id", "FOO")
    with pytest.raises(InvalidInputError, match="no parameter 'x'"):
        pyspark_lance.create_scalar_index(spark, uri, "id", "ZONEMAP", x=1)
    assert files_of(uri, "_indices") == []


def test_a_build_that_fails_leaves_nothing(spark, table, uri):
    (file,) = table.get_fragment(4).metadata.files
    whole = pathlib.Path(uri, "data", file.path)
    whole.rename(f"{whole}.away")
    with pytest.raises(LanceError, match="tasks failed; the first"):
        pyspark_lance.create_scalar_index(spark, uri, "id", "BTREE")
    pathlib.Path(f"{whole}.away").rename(whole)
    assert files_of(uri, "_indices") == []
    assert lance_core.dataset(uri).version == 2


def test_an_index_on_a_table_without_rows(spark, uri, lance):
    lance_core.write_dataset(pa.table({"id": pa.array([], pa.int64())}), uri)
    made = pyspark_lance.create_scalar_index(spark, uri, "id", "BTREE")
    lance_core.write_dataset(pa.table({"id": [1, 2]}), uri, mode="append")
    assert made.version == 2
    assert lance.dataset(uri).to_table(filter="id = 2").num_rows == 1


def test_executors_copy_a_table(spark, table, uri, lance, tmp_path):
    table.create_scalar_index("id", "BTREE")
    target = tmp_path / "copy.lance"
    calls = []
    copy = pyspark_lance.deep_clone(spark, uri, target, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] > 1
    for folder in ("data", "_deletions"):
        assert files_of(target, folder) == files_of(uri, folder)
    pathlib.Path(uri).rename(f"{uri}.away")
    assert copy.to_table(filter="id < 7").column("id").to_pylist() == [0, 1, 2, 3, 4, 6]
    assert lance.dataset(str(target)).to_table(filter="id < 7").num_rows == 6
    pathlib.Path(f"{uri}.away").rename(uri)
    with pytest.raises(DatasetExistsError):
        pyspark_lance.deep_clone(spark, uri, target)
    first = pyspark_lance.deep_clone(spark, uri, tmp_path / "first.lance", version=1)
    assert first.count_rows() == 900


def test_a_copy_that_fails_is_no_table(spark, table, uri, tmp_path):
    (file,) = table.get_fragment(4).metadata.files
    whole = pathlib.Path(uri, "data", file.path)
    whole.rename(f"{whole}.away")
    target = tmp_path / "copy.lance"
    with pytest.raises(LanceError, match=r"1 of \d tasks failed"):
        pyspark_lance.deep_clone(spark, uri, target)
    with pytest.raises(DatasetNotFoundError):
        lance_core.dataset(target)
    pathlib.Path(f"{whole}.away").rename(whole)
    assert pyspark_lance.deep_clone(spark, uri, target).count_rows() == 899
