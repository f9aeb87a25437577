"""What is reported of indices that pylance built, through all that can happen to the rows that they cover."""

import uuid
import warnings
from dataclasses import replace

import lance
import lance.query
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.loop import commit
from lance_core.commit.versions import load_latest
from lance_core.errors import NotFoundError
from lance_core.store import open_store
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction

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
DESCRIBED = (
    "name",
    "index_type",
    "type_url",
    "fields",
    "field_names",
    "num_rows_indexed",
    "total_size_bytes",
    "details",
)
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
    """Both libraries report the same; returns our statistics by name."""
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
            if "segments" not in found[name]:
                expected = {key: value for key, value in expected.items() if key not in ("indices", "segments")}
            assert found[name] == expected
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


FULL_TEXT = (
    {"with_position": True, "stem": False, "base_tokenizer": "whitespace", "language": "French", "lower_case": False},
    {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 5, "prefix_only": True},
    {"base_tokenizer": "code"},
    {"base_tokenizer": "code", "split_identifiers": True, "index_operators": True, "split_on_numerics": False},
    {"max_token_length": None, "remove_stop_words": False, "ascii_folding": False, "custom_stop_words": ["the"]},
    {"block_size": 256},
)


def test_how_indices_were_built(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(ROWS, uri)
    for options in FULL_TEXT:
        dataset.create_scalar_index("s", "INVERTED", name=str(options), **options)
    elements = lance.query.DocumentGranularity.LIST_ELEMENT
    dataset.create_scalar_index("tags", "INVERTED", name="elements", document_granularity=elements)
    for metric in ("cosine", "dot"):
        dataset.create_index("v", "IVF_FLAT", name=metric, metric=metric, num_partitions=1)
    dataset.create_index("v", "IVF_FLAT", name="sized", target_partition_size=1000)
    graph = {"m": 10, "ef_construction": 50, "max_level": 3, "num_sub_vectors": 2}
    dataset.create_index("v", "IVF_HNSW_PQ", name="graph", num_partitions=1, **graph)
    check(uri)


VECTOR_DETAILS = {
    "nothing": b"",
    "unknown metric": b"\x08\x07\x42\x00",
    "metric alone": b"\x08\x01",
    "rotation": b"\x32\x04\x08\x01\x10\x01",
    "unknown rotation": b"\x32\x04\x08\x01\x10\x02",
    "empty quantization": b"\x22\x00",
    "empty graph": b"\x1a\x00",
    "unknown compression": b"\x3a\x00",
}
TEXT_DETAILS = {
    "nothing": b"",
    "no tokenizer": b"\x18\x01",
    "tokenizer alone": b"\x0a\x06simple",
    "few": b'\x0a\x05ngram\x12\x09"English"\x58\x01',
}


@pytest.mark.parametrize(
    ("column", "kind", "details"),
    [
        *(pytest.param("v", "IVF_FLAT", details, id=f"vector: {name}") for name, details in VECTOR_DETAILS.items()),
        *(pytest.param("s", "INVERTED", details, id=f"text: {name}") for name, details in TEXT_DETAILS.items()),
    ],
)
def test_details_that_other_versions_may_have_written(tmp_path, column, kind, details):
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(ROWS, uri)
    if kind == "INVERTED":
        dataset.create_scalar_index(column, kind, name="x")
    else:
        dataset.create_index(column, kind, name="x", num_partitions=1)
    store = open_store(uri)
    manifest = load_latest(store)
    (index,) = manifest.indices
    changed = replace(index, details=details, uuid=uuid.uuid4())
    operation = CreateIndex(new_indices=(changed,), removed_indices=(index,))
    commit(store, Transaction(read_version=manifest.version, operation=operation), base=manifest)
    (ours,), (theirs,) = (library.dataset(uri).describe_indices() for library in (lance_core, lance))
    assert (ours.index_type, ours.details) == (theirs.index_type, theirs.details)


def test_an_index_that_there_is_not(tmp_path):
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    with pytest.raises(KeyError, match="nope"):
        lance.dataset(uri).stats.index_stats("nope")
    with pytest.raises(KeyError, match="nope") as raised:
        lance_core.dataset(uri).stats.index_stats("nope")
    assert isinstance(raised.value, NotFoundError)
