"""Search for the nearest vectors beside pylance, which looks at all of them too where there is no index."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, LanceError

DIMENSIONS = 16


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("nearest") / "t")
    values = np.random.default_rng(4).random((600, DIMENSIONS), np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), DIMENSIONS)
    vectors = pa.array([None if i % 50 == 0 else vectors[i].as_py() for i in range(600)], vectors.type)
    rows = pa.table({"id": range(600), "kind": [str(i % 3) for i in range(600)], "v": vectors})
    made = lance.write_dataset(rows, uri, max_rows_per_file=200)
    made.delete("id % 7 = 3")
    return lance_core.dataset(uri), lance.dataset(uri)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot", None])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ["id"]},
        {"columns": ["_rowid", "id"], "with_row_address": True},
        {"with_row_id": True, "with_row_address": True},
        {"columns": ["id"], "disable_scoring_autoprojection": True},
        {"columns": ["_distance", "_rowid", "id"]},
        {"columns": ["id", "_distance"], "disable_scoring_autoprojection": True, "with_row_id": True},
        {"filter": "kind = '1'"},
        {"filter": "id = 50", "prefilter": True},
        {"filter": "kind = '1'", "prefilter": True},
        {"filter": "kind = '1' AND id > 100", "prefilter": True, "columns": ["id"], "limit": 4, "offset": 2},
    ],
    ids=str,
)
def test_the_same_rows_and_distances(both, metric, options):
    query = {"column": "v", "q": np.linspace(0, 1, DIMENSIONS), "k": 12, "metric": metric or "l2", "nprobes": 4}
    ours, theirs = (dataset.to_table(nearest=query, **options) for dataset in both)
    assert ours.schema.names == theirs.schema.names
    for name in ours.schema.names:
        if name == "_distance":
            assert np.allclose(ours[name].to_numpy(), theirs[name].to_numpy(), rtol=1e-4, atol=1e-5)
        else:
            assert ours[name].to_pylist() == theirs[name].to_pylist()
    scanner = both[0].scanner(nearest=query, **options)
    assert pa.Table.from_batches(scanner.to_batches(), schema=scanner.projected_schema) == ours
    assert scanner.count_rows() == ours.num_rows
    assert "KNNVectorDistance" in scanner.explain_plan()


def test_forms_of_the_vector(both):
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [4]), pa.array([[1.0, 2, 3, 4]], pa.list_(pa.float32(), 4))
    )
    made = lance_core.write_dataset(pa.table({"t": tensor}), "memory://")
    for q in (tensor[0], [1, 2, 3, 4], pa.array([1.0, 2, 3, 4]), np.array([1, 2, 3, 4])):
        assert made.to_table(nearest={"column": "t", "q": q})["_distance"].to_pylist() == [0.0]
    assert both[0].to_table(nearest={"column": "v", "q": [0.5] * DIMENSIONS}).num_rows == 10


@pytest.mark.parametrize(
    "wrong",
    [
        5, {}, {"column": "v"}, {"column": "id", "q": [1]}, {"column": "nope", "q": [1]}, {"column": "v", "q": [1, 2]},
        {"column": "v", "q": "abc"}, {"column": "v", "q": [0] * DIMENSIONS, "k": 0},
        {"column": "v", "q": [0] * DIMENSIONS, "metric": "hamming"}, {"column": "v", "q": [0] * DIMENSIONS, "else": 1},
        {"column": "v", "q": [[0] * DIMENSIONS] * 2}, {"column": "v", "q": [10**400] * DIMENSIONS},
        {"column": 5, "q": [1]}, {"column": None, "q": [1]}, {"column": ["v"], "q": [1]}, {1: 2, "x": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_searched(both, wrong):
    with pytest.raises(LanceError):
        both[0].to_table(nearest=wrong)


@pytest.mark.parametrize("bounds", [(None, None), (1.0, None), (None, 1.5), (1.0, 1.5), (1, 2), (2, 1), (True, 2)])
def test_ranges_of_distances(both, bounds):
    query = {"column": "v", "q": np.linspace(0, 1, DIMENSIONS), "k": 50, "distance_range": bounds}
    ours, theirs = (dataset.to_table(columns=["id"], nearest=query)["id"].to_pylist() for dataset in both)
    assert ours == theirs


@pytest.mark.parametrize(
    "bounds",
    [5, 0, (1,), (), "ab", (None, "x"), (1, 2, 3), (0, "5"), (0, float("nan")), {1, 2}, np.zeros((2, 2))],
    ids=str,
)
def test_what_is_no_range_of_distances(both, bounds):
    query = {"column": "v", "q": [0] * DIMENSIONS, "distance_range": bounds}
    with pytest.raises(InvalidInputError, match="distance_range must be"):
        both[0].to_table(nearest=query)


def test_a_plan_reads_vectors_and_then_the_rows_that_are_nearest(both):
    query = {"column": "v", "q": [0] * DIMENSIONS, "k": 5}

    def steps(**options):
        lines = both[0].scanner(columns=["id"], nearest=query, **options).explain_plan().splitlines()
        return [line.strip().split(":")[0] for line in lines], lines

    names, lines = steps()
    assert names == ["Take", "KNNVectorDistance", "LanceRead"]
    assert "columns=[id]" in lines[0]
    assert "projection=[v]" in lines[-1]
    names, lines = steps(limit=1, filter="kind = '1'")
    assert names == ["Take", "Limit", "Filter", "KNNVectorDistance", "LanceRead"]
    assert "rows=0 to 1" in lines[1]
    assert "columns=[kind]" in lines[2]
    rows = both[0].count_rows()
    assert "projection=[v]" in lines[-1]
    assert f"rows={rows}," in lines[-1]
    names, lines = steps(filter="kind = '1'", prefilter=True)
    assert names == ["Take", "KNNVectorDistance", "Take", "Filter", "LanceRead"]
    assert "columns=[v]" in lines[2]
    assert "projection=[kind]" in lines[-1]
