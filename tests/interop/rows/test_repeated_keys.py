"""A key that comes several times in the rows of a merge or of a join; pylance inserts each of them, and joins the last."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError


def upsert(merge):
    return merge.when_matched_update_all().when_not_matched_insert_all()


CLAUSES = {
    "upsert": upsert,
    "insert": lambda merge: merge.when_not_matched_insert_all(),
    "conditional": lambda merge: merge.when_matched_update_all("source.v > 5").when_not_matched_insert_all(),
    "mirror": lambda merge: upsert(merge).when_not_matched_by_source_delete(),
    "partial": upsert,
}


@pytest.mark.parametrize("keys", [["k"], ["k", "s"]])
@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("clauses", CLAUSES)
def test_a_new_key_twice_is_rejected_each_time(tmp_path, clauses, has_index, keys):
    table = lance_core.write_dataset(pa.table({"k": [1], "s": ["x"], "v": [0], "w": [0]}), tmp_path / "t")
    if has_index:
        table.create_scalar_index("k", "BTREE")
    version, files = table.version, sorted(tmp_path.rglob("*.lance"))
    source = pa.table({"k": [1, 7, 7, 8], "s": ["x", "y", "y", "y"], "v": [9, 1, 2, 3]})
    source = source if clauses == "partial" else source.append_column("w", pa.array([0] * 4))
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"multiple source rows insert the same new key \(k = 7"):
            CLAUSES[clauses](table.merge_insert(keys)).execute(source)
    assert (table.latest_version, sorted(tmp_path.rglob("*.lance"))) == (version, files)


def test_keys_that_are_no_key_twice(tmp_path):
    """A null equals no key, a row that deletes inserts nothing, and a key that matches is not inserted."""
    rows = pa.table({"k": [1], "v": [0]})
    table = lance_core.write_dataset(rows, tmp_path / "t")
    nulls = pa.table({"k": pa.nulls(2, pa.int64()), "v": [1, 2]})
    assert upsert(table.merge_insert("k")).execute(nulls)["num_inserted_rows"] == 2
    deletes = upsert(table.merge_insert("k")).source_deletes([True, False])
    assert deletes.execute(pa.table({"k": [7, 7], "v": [1, 2]}))["num_inserted_rows"] == 1
    inserts = table.merge_insert("k").when_not_matched_insert_all()
    assert inserts.execute(pa.table({"k": [1, 1], "v": [1, 2]}))["num_inserted_rows"] == 0


@pytest.mark.parametrize("keys", [[1, 1, None], [2, None, None], ["a", "b", "a"], [1.5, 1.5]])
def test_a_join_with_a_key_twice_is_rejected(tmp_path, keys):
    right = pa.table({"k": keys, "z": range(len(keys))})
    left = pa.table({"k": right["k"].slice(0, 1), "z": [0]})
    table = lance_core.write_dataset(left, tmp_path / "t")
    repeated = next(key for key in keys if keys.count(key) > 1)
    message = f"the data has the key k = {repeated!r} in several rows"
    with pytest.raises(InvalidInputError, match=message):
        table.merge(right.rename_columns(["k", "y"]), "k")
    with pytest.raises(InvalidInputError, match=message):
        table.get_fragments()[0].merge(right.rename_columns(["k", "y"]), "k")
    with pytest.raises(InvalidInputError, match=message):
        table.get_fragments()[0].update_columns(right, "k")
    assert table.latest_version == 1


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64(), pa.dictionary(pa.int8(), pa.string())])
def test_null_joins_null_as_in_pylance(tmp_path, kind):
    def column(values):
        plain = pa.array(values).cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
        return plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain

    right = pa.table({"k": column([2, None, 9]), "z": [20, 30, 90]})
    found = []
    for library in (lance, lance_core):
        table = library.write_dataset(
            pa.table({"k": column([1, None, 2, None]), "z": [0, 1, 2, 3]}), str(tmp_path / library.__name__)
        )
        table.merge(right.rename_columns(["k", "y"]), "k")
        fragment, fields = table.get_fragments()[0].update_columns(right, "k")
        operation = library.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
        done = library.LanceDataset.commit(table.uri, operation, read_version=table.version)
        found.append(done.to_table(columns=["y", "z"]).to_pylist())
    assert found[0] == found[1]
    assert [row["y"] for row in found[0]] == [None, 30, 20, 30]
