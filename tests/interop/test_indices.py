"""What is told of indices that pylance built, through all that can happen to the rows that they cover."""

import warnings

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import NotFoundError

NUM_ROWS = 900
VECTORS = pa.FixedSizeListArray.from_arrays(pa.array([float(i % 131) for i in range(NUM_ROWS * 8)], pa.float32()), 8)
ROWS = pa.table({
    "id": range(NUM_ROWS),
    "s": [f"word{i % 7} more" for i in range(NUM_ROWS)],
    "tags": [["a", str(i % 3)] for i in range(NUM_ROWS)],
    "st": pa.array([{"x": i} for i in range(NUM_ROWS)], pa.struct([("x", pa.int64())])),
    "v": VECTORS,
})  # fmt: skip
SCALAR = {
    "BTREE": "id",
    "ZONEMAP": "id",
    "BLOOMFILTER": "id",
    "BITMAP": "s",
    "NGRAM": "s",
    "INVERTED": "s",
    "LABEL_LIST": "tags",
}
VECTOR = {
    "IVF_FLAT": {},
    "IVF_SQ": {},
    "IVF_RQ": {},
    "IVF_PQ": {"num_sub_vectors": 2},
    "IVF_HNSW_FLAT": {},
    "IVF_HNSW_SQ": {},
    "IVF_HNSW_PQ": {"num_sub_vectors": 2},
}
DESCRIBED = ("name", "index_type", "type_url", "fields", "field_names", "num_rows_indexed", "total_size_bytes")
SEGMENT = (
    "uuid",
    "dataset_version_at_last_update",
    "index_version",
    "created_at",
    "size_bytes",
    "base_id",
    "covering_fields",
)


def check(uri):
    """Both libraries tell the same; returns our statistics by name."""
    ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
    assert ours.has_index == theirs.has_index
    for mine, other in zip(ours.describe_indices(), theirs.describe_indices(), strict=True):
        for name in DESCRIBED:
            assert getattr(mine, name) == getattr(other, name), (mine.name, name)
        for segment, its in zip(mine.segments, other.segments, strict=True):
            assert segment.fragment_ids == set(its.fragment_ids), mine.name
            for name in SEGMENT:
                assert getattr(segment, name) == getattr(its, name), (mine.name, name)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        listed = [
            [{**one, "fragment_ids": set(one["fragment_ids"])} for one in d.list_indices()] for d in (ours, theirs)
        ]
        assert listed[0] == listed[1]
        for name in {one["name"] for one in listed[0]}:
            expected = theirs.stats.index_stats(name)
            found[name] = ours.stats.index_stats(name)
            # These are in the index's own files.
            assert found[name] == {key: value for key, value in expected.items() if key not in ("indices", "segments")}
            assert ours.index_statistics(name) == found[name]
    return found


def counts(statistics):
    return {
        name: (one["num_indexed_rows"], one["num_unindexed_rows"])
        for name, one in statistics.items()
        if "num_indexed_rows" in one
    }


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_coverage_through_the_life_of_a_table(tmp_path, stable):
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(ROWS, uri, max_rows_per_file=300, enable_stable_row_ids=stable)
    assert check(uri) == {}
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("s", "BITMAP", name="words")
    dataset.create_scalar_index("st.x", "BTREE", name="nested")
    assert set(counts(check(uri)).values()) == {(900, 0)}
    lance_core.write_dataset(ROWS.slice(0, 50), uri, mode="append")
    assert set(counts(check(uri)).values()) == {(900, 50)}
    lance_core.dataset(uri).delete("id >= 300 AND id < 600 OR id = 1")
    assert set(counts(check(uri)).values()) == {(599, 49)}
    lance_core.dataset(uri).update({"s": "'b'"}, "id = 5")
    assert counts(check(uri))["id_idx"] == (598, 50)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0, index_names=["id_idx", "words"])
    assert check(uri)["id_idx"]["num_segments"] == 2
    lance_core.dataset(uri).optimize.compact_files()
    check(uri)
    lance.write_dataset(ROWS.slice(0, 20), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()
    check(uri)
    lance_core.dataset(uri).drop_index("words")
    assert set(check(uri)) == {"id_idx", "nested"}
    lance_core.dataset(uri).delete("true")
    assert set(counts(check(uri)).values()) == {(0, 0)}


@pytest.mark.parametrize("library", [lance, lance_core])
def test_coverage_follows_compactions_that_left_the_index_alone(tmp_path, library):
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(ROWS, uri, max_rows_per_file=300)
    dataset.create_scalar_index("id", "BTREE")
    lance.dataset(uri).optimize.compact_files(defer_index_remap=True)
    assert check(uri)["__lance_frag_reuse"] == {"num_versions": 1}
    for _ in range(2):
        library.write_dataset(ROWS.slice(0, 20), uri, mode="append")
    library.dataset(uri).optimize.compact_files()
    assert counts(check(uri)) == {"id_idx": (900, 40)}


def test_kinds(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(ROWS, uri)
    for kind, column in SCALAR.items():
        dataset.create_scalar_index(column, kind, name=kind)
    for kind, options in VECTOR.items():
        dataset.create_index("v", kind, name=kind, num_partitions=1, **options)
    found = check(uri)
    assert {name: one["index_type"] for name, one in found.items() if name in VECTOR} == {kind: kind for kind in VECTOR}
    assert len(found) == len(SCALAR) + len(VECTOR)


def test_an_index_that_there_is_not(tmp_path):
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    with pytest.raises(KeyError, match="nope"):
        lance.dataset(uri).stats.index_stats("nope")
    with pytest.raises(NotFoundError, match="nope"):
        lance_core.dataset(uri).stats.index_stats("nope")
