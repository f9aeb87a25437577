"""Tables of version 0.1, whose manifest repeats their dictionaries: Spark adds rows in the terms of these."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import SchemaError

ROWS = {"id": [0, 1, 2, 3], "d": ["d0", "d1", "d0", "d1"]}
VERBS = {
    "append": pyspark_lance.write,
    "replace": lambda frame, uri: pyspark_lance.write(frame, uri, mode="overwrite", replace_where="id > 2"),
    "merge": lambda frame, uri: pyspark_lance.merge(frame, uri, on="id"),
    "clauses": lambda frame, uri: pyspark_lance.merge(
        frame,
        uri,
        on="id",
        clauses={"when_matched": {"then": "update", "condition": "source.id >= 0"}, "when_not_matched": "insert"},
    ),
}


def rows_of(table):
    return sorted(zip(table["id"].to_pylist(), table["d"].to_pylist(), strict=True))


@pytest.fixture
def early(uri, lance):
    table = pa.table({**ROWS, "d": pa.array(ROWS["d"]).dictionary_encode()})
    lance.write_dataset(table, uri, data_storage_version="0.1")
    return uri


@pytest.mark.variants(2)
@pytest.mark.parametrize("verb", VERBS)
def test_rows_have_their_values_in_another_order(spark, lance, early, verb):
    more = {"id": [3, 4, 5], "d": ["d1", "d1", "d0"]}
    if verb == "append":
        more["id"][0] = 6
    VERBS[verb](spark.createDataFrame(pa.table(more)), early)
    expected = sorted({**dict(zip(*ROWS.values(), strict=True)), **dict(zip(*more.values(), strict=True))}.items())
    assert rows_of(lance_core.dataset(early).to_table()) == expected
    assert rows_of(lance.dataset(early).to_table()) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_other_values_are_rejected(spark, lance, early, verb):
    more = {"id": [7, 8], "d": ["new", "d1"]}
    with pytest.raises(SchemaError, match="share one dictionary"):
        VERBS[verb](spark.createDataFrame(pa.table(more)), early)
    assert lance_core.dataset(early).version == 1
    assert rows_of(lance.dataset(early).to_table()) == sorted(zip(*ROWS.values(), strict=True))


def test_updates_with_known_values(spark, lance, early):
    pyspark_lance.update(early, {"d": "'d1'"}, "id = 2", spark=spark)
    assert rows_of(lance.dataset(early).to_table()) == [(0, "d0"), (1, "d1"), (2, "d1"), (3, "d1")]


def test_an_operation_by_hand_is_checked(early):
    dataset = lance_core.dataset(early)
    new = pa.table({"id": [9], "d": pa.array(["new"]).dictionary_encode()})
    schema = dataset.lance_schema_bytes
    fragments = lance_core.write_fragments(new, early, dataset_schema=schema, data_storage_version="0.1")
    with pytest.raises(SchemaError, match="share one dictionary"):
        lance_core.LanceDataset.commit(dataset, lance_core.LanceOperation.Append(fragments), read_version=1)
