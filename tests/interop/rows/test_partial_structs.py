"""Rows whose structs lack fields of the table: appended with nulls, merged with the old values, as by pylance."""

import itertools

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError
from tests.interop.pairs import Pair

A, B = ("a", pa.int64()), ("b", pa.string())
INNER = pa.struct([("d", pa.int64()), ("e", pa.float64())])
WHOLE = pa.struct([A, B, ("c", INNER)])
VALUES = [{"a": 1, "b": "x", "c": {"d": 1, "e": 1.5}}, {"a": 2, "b": "y"}, None, {"a": None}]
TABLE = pa.table({"id": [1, 2, 3, 4], "s": pa.array(VALUES, WHOLE), "n": [10, 20, 30, 40]})
PARTS = {
    "without a field": pa.struct([A, ("c", INNER)]),
    "without a struct": pa.struct([B, A]),
    "without a field of a struct": pa.struct([A, B, ("c", pa.struct([("d", pa.int64())]))]),
    "one field": pa.struct([A]),
}
NEW = {"a": 70, "b": "new", "c": {"d": 7, "e": 7.5}}


def narrowed(value, kind):
    if value is None:
        return None
    return {f.name: narrowed(value[f.name], f.type) if pa.types.is_struct(f.type) else value[f.name] for f in kind}


def rows(kind, *, with_n):
    """New values, and nulls, for the table's rows with and without values, and for new rows."""
    values = [narrowed(value, kind) for value in (NEW, None, NEW, NEW, NEW, None)]
    table = pa.table({"id": [1, 2, 3, 4, 5, 6], "s": pa.array(values, kind)})
    return table.append_column("n", pa.array(range(6))) if with_n else table


def merge(d, source, clauses="both"):
    builder = d.merge_insert("id")
    if clauses != "insert":
        builder = builder.when_matched_update_all()
    if clauses != "update":
        builder = builder.when_not_matched_insert_all()
    builder.execute(source)


VERBS = {
    "append": lambda d, library, source: library.write_dataset(source, d, mode="append") and None,
    "insert": lambda d, _, source: d.insert(source),
    "merge": lambda d, _, source: merge(d, source),
    "update": lambda d, _, source: merge(d, source, "update"),
    "insert of new rows": lambda d, _, source: merge(d, source, "insert"),
}


def both(pair, *order):
    return [
        lance.dataset(uri).to_table().sort_by([(name, "ascending") for name in order]) for uri in pair.uris.values()
    ]


@pytest.mark.variants(20)
@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("with_n", [True, False])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_gives_what_pylance_gives(tmp_path, verb, part, with_n, version):
    pair = Pair(tmp_path, TABLE, data_storage_version=version)
    pair.run(lambda d, library: VERBS[verb](d, library, rows(PARTS[part], with_n=with_n)), check=False)
    ours, reference = both(pair, "id", "n")
    assert ours.to_pylist() == reference.to_pylist()
    read = lance_core.dataset(pair.uris["ours"]).to_table()
    assert read.sort_by([("id", "ascending"), ("n", "ascending")]).equals(ours)


@pytest.mark.parametrize("part", PARTS)
def test_new_files_of_columns_keep_the_old_values_too(tmp_path, part):
    source = rows(PARTS[part], with_n=False)
    expected = lance_core.write_dataset(TABLE, tmp_path / "rows")
    merge(expected, source, "update")
    dataset = lance_core.write_dataset(TABLE, tmp_path / "columns")
    dataset.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source)
    assert lance.dataset(dataset.uri).to_table().equals(expected.to_table().sort_by("id"))


STRICT = pa.struct([pa.field(*A), pa.field(*B, nullable=False)])
LACKING = pa.table({"id": [1, 3], "s": pa.array([{"a": 5}, {"a": 6}])})


@pytest.mark.parametrize("verb", VERBS)
def test_a_field_that_cannot_be_null_can_only_be_kept(tmp_path, verb):
    pair = Pair(tmp_path, pa.table({"id": [1, 2], "s": pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], STRICT)}))
    if verb == "update":
        pair.run(lambda d, library: VERBS[verb](d, library, LACKING), check=False)
        ours, reference = both(pair, "id")
        assert ours["s"].to_pylist() == reference["s"].to_pylist() == [{"a": 5, "b": "x"}, {"a": 2, "b": "y"}]
        return
    with pytest.raises(SchemaError, match=r"missing=.'b'."):
        VERBS[verb](pair.ours, lance_core, LACKING)
    with pytest.raises(OSError, match=r"s\.b"):
        VERBS[verb](pair.theirs, lance, LACKING)


@pytest.mark.parametrize("verb", VERBS)
def test_structs_in_lists_are_filled_but_cannot_keep_values(tmp_path, verb):
    """The items of two lists do not correspond; pylance panics where it would have to keep values."""
    pair = Pair(tmp_path, pa.table({"id": [1, 2], "s": pa.array([[{"a": 1, "b": "x"}], []])}))
    source = pa.table({"id": [2, 3], "s": pa.array([[{"a": 5}], [{"a": 6}]])})
    if verb in ("merge", "update"):
        with pytest.raises(SchemaError, match=r"`s.item` did not match, missing=.'b'."):
            VERBS[verb](pair.ours, lance_core, source)
        return
    pair.run(lambda d, library: VERBS[verb](d, library, source), check=False)
    ours, reference = both(pair, "id")
    assert ours.to_pylist() == reference.to_pylist()


@pytest.mark.parametrize("version", ["0.1", "2.0"])
def test_versions_without_null_structs(tmp_path, version):
    whole = pa.table({"id": [1], "s": pa.array([{"a": 1, "b": "x"}])})
    dataset = lance.write_dataset(whole, tmp_path / "t", data_storage_version=version)
    source = pa.table({"id": [1, 2], "s": pa.array([{"a": 5}, {"a": 6}])})
    merge(lance_core.dataset(dataset.uri), source.slice(0, 1))
    lance_core.write_dataset(source.slice(1), dataset.uri, mode="append")
    read = lance.dataset(dataset.uri).to_table().sort_by("id")
    assert read["s"].to_pylist() == [{"a": 5, "b": "x"}, {"a": 6, "b": None}]


def test_other_fields_and_partial_structs_of_write_columns_are_rejected(tmp_path):
    dataset = lance_core.write_dataset(TABLE, tmp_path / "t")
    files = sorted(tmp_path.rglob("*.*"))
    extra = pa.table({"id": [1], "s": pa.array([{"a": 1, "z": 2}])})
    for verb in VERBS.values():
        with pytest.raises(SchemaError, match=r"unexpected=.'z'."):
            verb(dataset, lance_core, extra)
    with pytest.raises(SchemaError, match="missing"):
        dataset.write_columns(rows(PARTS["one field"], with_n=False), on="id")
    assert sorted(tmp_path.rglob("*.*")) == files


def test_every_pair_of_null_and_value(tmp_path):
    kind = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    old = [None, {"a": None, "b": 1}, {"a": 1, "b": None}, {"a": 1, "b": 1}]
    pairs = list(itertools.product(old, [None, {"a": None}, {"a": 2}]))
    ids = pa.array(range(len(pairs)))
    pair = Pair(tmp_path, pa.table({"id": ids, "s": pa.array([value for value, _ in pairs], kind)}))
    source = pa.table({"id": ids, "s": pa.array([value for _, value in pairs], pa.struct([("a", pa.int64())]))})
    pair.run(lambda d, _: merge(d, source), check=False)
    ours, reference = both(pair, "id")
    assert ours.to_pylist() == reference.to_pylist()
