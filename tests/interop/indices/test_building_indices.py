"""Indices that we build: pylance uses, merges, remaps and drops them, and we do so with those of pylance."""

import uuid
import warnings
from datetime import date, timedelta
from decimal import Decimal

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.file import LanceFileReader
from lance.indices import IndexConfig
from pyroaring import BitMap

import lance_core
import lance_core.indices
from lance_core.commit.loop import commit
from lance_core.errors import (
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
    RetryableConflictError,
    SchemaError,
    UnsupportedError,
)
from lance_core.index.kinds import bitmap, btree
from lance_core.index.kinds.registry import KINDS as CONTENTS
from lance_core.index.kinds.registry import SegmentTarget
from lance_core.maintenance.verify.files import verify
from lance_core.table.index import IndexMetadata
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction

NUM_ROWS = 240
DAYS = [date(2024, 1, 1) + timedelta(days=i // 30) for i in range(NUM_ROWS)]
ROWS = pa.table({
    "id": pa.array(range(NUM_ROWS), pa.int64()),
    "day": pa.array(DAYS, pa.date32()),
    "p": [f"d{i // 30}" for i in range(NUM_ROWS)],
    "f": [float("nan") if i % 40 == 0 else i / 7 - 9 for i in range(NUM_ROWS)],
    "st": pa.array([{"x": i} for i in range(NUM_ROWS)], pa.struct([("x", pa.int64())])),
})  # fmt: skip
KINDS = {
    "ZONEMAP": ({"rows_per_zone": 25}, "ZoneMap"),
    "BITMAP": ({}, "Bitmap"),
    "BTREE": ({"zone_size": 16}, "BTree"),
    "BLOOMFILTER": ({"number_of_items": 25, "probability": 0.01}, "BloomFilter"),
}
FILTERS = ["p = 'd3'", "p > 'd5'", "p IN ('d1', 'd7')", "p IS NULL", "p IS NOT NULL", "p LIKE 'd1%'"]
VALUES = {
    "int8": (pa.int8(), lambda i: i - 20),
    "uint64": (pa.uint64(), lambda i: 2**64 - 1 - i),
    "float32": (pa.float32(), lambda i: i / 2),
    "bool": (pa.bool_(), lambda i: i > 20),
    "string": (pa.string(), lambda i: "x" * 5000 + f"{i:02}"),
    "large_string": (pa.large_string(), lambda i: f"é{i:02}"),
    "binary": (pa.binary(), lambda i: bytes([200, i])),
    "large_binary": (pa.large_binary(), lambda i: bytes([i, 255])),
    "date32": (pa.date32(), lambda i: date(2020, 1, 1) + timedelta(days=i)),
    "date64": (pa.date64(), lambda i: date(2020, 1, 1) + timedelta(days=i)),
    "time32": (pa.time32("ms"), lambda i: i * 1000),
    "time64": (pa.time64("ns"), lambda i: i * 1000),
    "timestamp": (pa.timestamp("us", "UTC"), lambda i: i * 1000),
    "duration": (pa.duration("s"), lambda i: i),
    "decimal128": (pa.decimal128(12, 3), lambda i: Decimal(i) / 4),
    "decimal256": (pa.decimal256(40, 3), lambda i: Decimal(i) / 4),
}


def rows_of(dataset, text, **options):
    return sorted(dataset.scanner(["id"], filter=text, **options).to_table()["id"].to_pylist())


def check(uri, filters=FILTERS):
    ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
    for text in filters:
        expected = rows_of(theirs, text, use_scalar_index=False)
        assert rows_of(theirs, text) == expected, text
        assert rows_of(ours, text) == expected, text


@pytest.fixture(params=["2.0", "2.2", pytest.param("2.1", marks=pytest.mark.slow), "0.1"])
def uri(request, tmp_path):
    uri = str(tmp_path / "t")
    rows = ROWS.drop_columns(["f", "st"]) if request.param == "0.1" else ROWS
    lance_core.write_dataset(rows, uri, max_rows_per_file=60, data_storage_version=request.param)
    return uri


@pytest.mark.variants(3)
@pytest.mark.parametrize("kind", KINDS)
def test_pylance_uses_merges_and_drops_ours(uri, kind):
    parameters, shown = KINDS[kind]
    dataset = lance_core.dataset(uri)
    dataset.create_scalar_index("p", kind, **parameters)
    assert dataset.version == 2
    check(uri)
    theirs = lance.dataset(uri)
    assert f"@p_idx({shown})" in theirs.scanner(filter="p = 'd3'").explain_plan()
    (described,) = theirs.describe_indices()
    assert (described.name, described.field_names, described.num_rows_indexed) == ("p_idx", ["p"], NUM_ROWS)
    assert theirs.stats.index_stats("p_idx") == dataset.stats.index_stats("p_idx")
    assert (
        theirs.stats.index_stats("p_idx")["segments"]
        == {
            "ZONEMAP": [{"num_zones": 12, "rows_per_zone": 25}],
            "BITMAP": [{"num_bitmaps": 8}],
            "BTREE": [{"num_pages": 15, "min": "d0", "max": "d7"}],
            "BLOOMFILTER": [{"type": "BloomFilter", "num_blocks": 12, "number_of_items": 25, "probability": 0.01}],
        }[kind]
    )
    lance.write_dataset(ROWS.slice(10, 70).select(theirs.schema.names), uri, mode="append")
    theirs = lance.dataset(uri)
    theirs.optimize.optimize_indices()
    check(uri)
    assert lance_core.dataset(uri).stats.index_stats("p_idx")["num_unindexed_rows"] == 0
    theirs.optimize.compact_files()
    check(uri)
    lance_core.dataset(uri).optimize.optimize_indices()
    assert lance_core.dataset(uri).stats.index_stats("p_idx")["num_unindexed_rows"] == 0
    check(uri)
    lance.dataset(uri).drop_index("p_idx")
    assert not lance_core.dataset(uri).has_index


@pytest.mark.variants(6)
@pytest.mark.parametrize("merge", [None, 0, pytest.param(2, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("kind", KINDS)
def test_merging_segments(tmp_path, stable, merge, kind):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60, enable_stable_row_ids=stable)
    dataset.create_scalar_index("p", kind, **KINDS[kind][0])
    version = dataset.version
    dataset.optimize.optimize_indices(num_indices_to_merge=merge)
    assert dataset.version == version  # there was nothing to do
    for start in (0, 100):
        lance_core.write_dataset(ROWS.slice(start, 20), uri, mode="append")
        dataset = lance_core.dataset(uri)
        dataset.optimize.optimize_indices(num_indices_to_merge=0)
    assert dataset.stats.index_stats("p_idx")["num_segments"] == 3
    lance_core.write_dataset(ROWS.slice(50, 9), uri, mode="append")
    dataset = lance_core.dataset(uri)
    dataset.delete("id % 2 = 0 AND p = 'd3'")
    dataset.update({"p": "'d5'"}, "id = 1 OR id = 52")
    dataset.update({"id": "id + 1000"}, "id = 3 OR id = 53")
    dataset.optimize.optimize_indices(num_indices_to_merge=merge)
    statistics = dataset.stats.index_stats("p_idx")
    assert statistics["num_segments"] == {None: 3, 0: 4, 2: 2, 5: 1}[merge]
    assert statistics["num_unindexed_rows"] == 0
    check(uri)
    dataset.optimize.optimize_indices(retrain=True)
    assert dataset.stats.index_stats("p_idx")["num_segments"] == 1
    check(uri)


def commit_index(dataset, kind, content):
    """Commit an index on `p` whose content was made by hand, written as it was before there were later versions."""
    snapshot, key = dataset.snapshot, uuid.uuid4()
    target = SegmentTarget(
        store=snapshot.store, prefix=f"_indices/{key}/", data_storage_version="2.2", stable_row_ids=False
    )
    written = CONTENTS[kind].write(content, target)
    index = IndexMetadata(
        uuid=key,
        name="p_idx",
        fields=(dataset.schema.get_field_index("p"),),
        dataset_version=dataset.version,
        fragment_bitmap=BitMap(snapshot.manifest.fragments.ids).serialize(),
        details_type_url=CONTENTS[kind].type_url,
        index_version=written.index_version,
        files=written.files,
    )
    transaction = Transaction(read_version=dataset.version, operation=CreateIndex(new_indices=(index,)))
    commit(snapshot.store, transaction, base=snapshot.manifest)


def test_a_btree_of_row_ids_is_merged_by_address(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60, enable_stable_row_ids=True)
    dataset.update({"p": "'d9'"}, "id % 7 = 0")
    rows = dataset.to_table(columns=["p"], with_row_id=True).sort_by([("p", "ascending"), ("_rowid", "ascending")])
    content = btree.BTree.of(rows["p"].combine_chunks(), rows["_rowid"].to_numpy(), 16)
    commit_index(dataset, "BTree", content)
    filters = [f"p = 'd{i}'" for i in range(10)]
    check(uri, filters)
    lance_core.dataset(uri).update({"id": "id"}, "id = 43")
    lance_core.write_dataset(ROWS.slice(20, 30), uri, mode="append")
    lance_core.dataset(uri).optimize.optimize_indices()
    assert lance_core.dataset(uri).stats.index_stats("p_idx")["num_unindexed_rows"] == 0
    check(uri, filters)


@pytest.mark.parametrize("place", ["branch", "shallow clone"])
def test_what_pylance_rewrites_of_a_base_and_loses_is_read_and_rebuilt(tmp_path, place):
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(ROWS, uri, max_rows_per_file=60)
    dataset.create_scalar_index("p", "BTREE")
    if place == "branch":
        lance.dataset(uri).create_branch("b")
        uri = f"{uri}/tree/b"
    else:
        lance.dataset(uri).shallow_clone(f"{uri}_clone", 2)
        uri = f"{uri}_clone"
    lance.dataset(uri).optimize.compact_files()
    with pytest.raises(OSError, match="page_lookup"):
        lance.dataset(uri).count_rows("p = 'd3'")
    with pytest.warns(UserWarning, match="p_idx"):
        assert len(rows_of(lance_core.dataset(uri), "p = 'd3'")) == 30
    with pytest.warns(UserWarning, match="p_idx"):
        lance_core.dataset(uri).optimize.optimize_indices()
    assert lance_core.dataset(uri).stats.index_stats("p_idx")["num_unindexed_rows"] == 0
    check(uri)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_compaction_makes_new_zones_of_old_ones(tmp_path, stable):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=15, enable_stable_row_ids=stable)
    dataset.create_scalar_index("day", "ZONEMAP", rows_per_zone=2**20)
    dataset.create_scalar_index("f", "ZONEMAP", rows_per_zone=2**20)
    dataset.delete("id % 5 = 1 OR p = 'd2' OR p = 'd6' AND id % 2 = 0")
    dataset.optimize.compact_files(target_rows_per_fragment=100)
    statistics = dataset.stats.index_stats("day_idx")
    # Zones of rows that are read would be as large as fragments; those of a day are one.
    assert statistics["num_unindexed_fragments"] == 0
    assert 7 <= statistics["segments"][0]["num_zones"] < 7 + len(dataset.get_fragments())
    check(uri, [*FILTERS, *(f"day = date '{day}'" for day in sorted(set(DAYS))), "f > 5", "f < 0", "isnan(f)"])
    assert dataset.count_rows(filter=f"day = date '{DAYS[60]}'") == 0


def test_only_new_fragments_are_read_to_refresh(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60)
    dataset.create_scalar_index("day", "ZONEMAP")
    for file in (tmp_path / "t" / "data").iterdir():
        file.rename(file.with_suffix(".away"))
    lance_core.write_dataset(ROWS, uri, mode="append")
    dataset = lance_core.dataset(uri)
    dataset.optimize.optimize_indices()
    assert dataset.stats.index_stats("day_idx")["num_unindexed_fragments"] == 0
    assert dataset.count_rows(filter="day = date '2030-01-01'") == 0


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "index", ["ZONEMAP", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("BITMAP", "BTREE", "BLOOMFILTER"))]
)
def test_every_type(tmp_path, name, index):
    kind, make = VALUES[name]
    if index == "BLOOMFILTER" and name in ("bool", "duration", "decimal128", "decimal256"):
        pytest.skip("pylance rejects it too")
    values = [None if i % 9 == 0 else make(i) for i in range(50)]
    table = pa.table({"id": range(50), "v": pa.array(values, kind)})
    uris = [str(tmp_path / who) for who in ("ours", "theirs")]
    for uri, library in zip(uris, (lance_core, lance), strict=True):
        dataset = library.write_dataset(table, uri, max_rows_per_file=25)
        dataset.delete("id = 0 OR id = 30")
        dataset.create_scalar_index("v", IndexConfig("zonemap", {"rows_per_zone": 10}) if index == "ZONEMAP" else index)
        assert dataset.describe_indices()[0].index_type == KINDS[index][1]
    for uri in uris:
        check(uri, ["v IS NULL", "v IS NOT NULL"])
        ours = lance_core.dataset(uri)
        for i in (1, 13, 31, 49) if name != "duration" else ():
            condition = pc.field("v") == pa.scalar(make(i), kind)
            assert rows_of(ours, condition) == rows_of(ours, condition, use_scalar_index=False) != []
            assert (
                "ruled out=1 of 2" in ours.scanner(filter=condition).explain_plan()
                or uri != uris[0]
                or name == "bool"
                or index == "BITMAP"
            )


@pytest.mark.parametrize("name", [n for n in VALUES if n not in ("bool", "duration", "decimal128", "decimal256")])
def test_bloom_filters_are_those_of_pylance(tmp_path, name):
    kind, make = VALUES[name]
    values = pa.array([None if i % 9 == 0 else make(i) for i in range(50)], kind)
    table = pa.table({"v": pa.concat_arrays([values, values])})
    found = []
    for who, library in (("ours", lance_core), ("theirs", lance)):
        dataset = library.write_dataset(table, str(tmp_path / who), max_rows_per_file=60)
        parameters = {"number_of_items": 30, "probability": 0.02}
        dataset.create_scalar_index("v", IndexConfig("bloomfilter", parameters))
        (file,) = (tmp_path / who).glob("_indices/*/bloomfilter.lance")
        found.append(LanceFileReader(str(file)).read_all().to_table().replace_schema_metadata(None))
    assert found[0] == found[1]


LISTS = {
    "list<string>": (pa.list_(pa.string()), [None, [], ["a"], ["a", "b"], ["b", None], [None], ["c", "a", "c"]]),
    "large_list<int64>": (pa.large_list(pa.int64()), [None, [], [1], [1, 2], [2, None], [None], [3, 1, 3]]),
}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("name", LISTS)
def test_pylance_uses_merges_and_remaps_our_labels(tmp_path, name, stable):
    kind, lists = LISTS[name]
    uri = str(tmp_path / "t")
    table = pa.table({"id": range(70), "t": pa.array(lists * 10, kind)})
    one, other = ("'a'", "'b'") if name == "list<string>" else ("1", "2")
    filters = [f"array_has(t, {one})", f"NOT array_has(t, {one})", f"array_has_any(t, [{one}, {other}])",
               f"array_has_all(t, [{one}, {other}])", f"NOT array_has_any(t, [{other}])", "t IS NULL"]  # fmt: skip
    dataset = lance_core.write_dataset(table, uri, max_rows_per_file=20, enable_stable_row_ids=stable)
    dataset.create_scalar_index("t", "LABEL_LIST")
    theirs = lance.dataset(uri)
    assert "@t_idx(LabelList)" in theirs.scanner(filter=filters[1]).explain_plan()
    assert theirs.stats.index_stats("t_idx") == dataset.stats.index_stats("t_idx")
    check(uri, filters)
    lance.write_dataset(table.slice(3, 30), uri, mode="append")
    lance.dataset(uri).optimize.optimize_indices()
    check(uri, filters)
    lance_core.write_dataset(table.slice(0, 9), uri, mode="append")
    dataset = lance_core.dataset(uri)
    dataset.delete("id % 4 = 0")
    dataset.optimize.optimize_indices()
    assert dataset.stats.index_stats("t_idx")["num_unindexed_rows"] == 0
    check(uri, filters)
    lance.dataset(uri).optimize.compact_files()
    check(uri, filters)
    lance_core.dataset(uri).optimize.optimize_indices(retrain=True)
    check(uri, filters)


def test_names(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri)
    dataset.create_scalar_index("p", "zonemap")
    dataset.create_scalar_index("p", "ZONEMAP")
    dataset.create_scalar_index("st.x", "ZONEMAP")
    dataset.create_scalar_index("p", lance_core.indices.IndexConfig("zonemap", {"rows_per_zone": 3}), name="mine")
    names = {one.name: one.field_names for one in dataset.describe_indices()}
    assert names == {"mine": ["p"], "p_idx": ["p"], "st.x_idx": ["st.x"]}
    assert names == {one.name: one.field_names for one in lance.dataset(uri).describe_indices()}
    with pytest.raises(InvalidInputError, match="mine"):
        dataset.create_scalar_index("p", "ZONEMAP", "mine", replace=False)
    with pytest.raises(InvalidInputError, match="mine"):
        dataset.create_scalar_index("day", "ZONEMAP", "mine")
    check(uri, [*FILTERS, "st.x = 3", "st.x > 200"])
    dataset.prewarm_index("mine")
    dataset.drop_index("mine")
    with pytest.raises(NotFoundError, match="mine"):
        dataset.prewarm_index("mine")
    with pytest.raises(NotFoundError, match="mine"):
        dataset.drop_index("mine")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"column": "nope", "index_type": "ZONEMAP"}, SchemaError, "nope"),
        ({"column": "p", "index_type": "NOPE"}, InvalidInputError, "NOPE"),
        ({"column": "p", "index_type": "NGRAM"}, UnsupportedError, "NGRAM"),
        ({"column": "p", "index_type": "INVERTED"}, UnsupportedError, "INVERTED"),
        ({"column": "p", "index_type": 3}, InvalidInputError, "int"),
        ({"column": "st", "index_type": "ZONEMAP"}, SchemaError, "st"),
        ({"column": "half", "index_type": "ZONEMAP"}, SchemaError, "halffloat"),
        ({"column": "p", "index_type": "ZONEMAP", "rows_per_zone": 0}, InvalidInputError, "rows_per_zone"),
        ({"column": "p", "index_type": "ZONEMAP", "rows_per_zone": "7"}, InvalidInputError, "rows_per_zone"),
        ({"column": "p", "index_type": "ZONEMAP", "zone_size": 5}, InvalidInputError, "zone_size"),
        ({"column": "p", "index_type": "BLOOMFILTER", "probability": 1.0}, InvalidInputError, "probability"),
        ({"column": "p", "index_type": "BLOOMFILTER", "probability": 0}, InvalidInputError, "probability"),
        ({"column": "p", "index_type": "BLOOMFILTER", "number_of_items": 2.5}, InvalidInputError, "number_of_items"),
        ({"column": "st.x", "index_type": "LABEL_LIST"}, SchemaError, "int64"),
        ({"column": "half", "index_type": "BLOOMFILTER"}, SchemaError, "halffloat"),
        ({"column": "p", "index_type": "ZONEMAP", "use_seeds": True}, UnsupportedError, "use_seeds"),
        ({"column": "p", "index_type": "ZONEMAP", "fragment_ids": [0]}, UnsupportedError, "fragment_ids"),
        ({"column": ["p", "id"], "index_type": "ZONEMAP"}, UnsupportedError, "several columns"),
    ],
)
def test_what_cannot_be_built(tmp_path, arguments, error, text):
    rows = ROWS.append_column("half", pa.nulls(NUM_ROWS, pa.float16()))
    dataset = lance_core.write_dataset(rows, tmp_path / "t")
    with pytest.raises(error, match=text):
        dataset.create_scalar_index(**arguments)
    assert lance_core.dataset(tmp_path / "t").version == 1
    assert not (tmp_path / "t" / "_indices").exists()


def test_an_empty_index_is_filled_later(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60)
    dataset.create_scalar_index("p", "ZONEMAP", train=False)
    assert dataset.stats.index_stats("p_idx")["num_indexed_rows"] == 0
    check(uri)
    dataset.optimize.optimize_indices()
    assert dataset.stats.index_stats("p_idx")["num_indexed_rows"] == NUM_ROWS
    check(uri)


def test_of_two_builds_of_a_name_one_is_committed(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(ROWS, uri)
    first, second = lance_core.dataset(uri), lance_core.dataset(uri)
    first.create_scalar_index("p", "ZONEMAP")
    with pytest.raises(RetryableConflictError, match="p_idx"):
        second.create_scalar_index("p", "ZONEMAP")
    assert len(list((tmp_path / "t").glob("_indices/*/*"))) == 1
    check(uri)


def test_a_build_that_dies_leaves_nothing(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60)
    next((tmp_path / "t" / "data").iterdir()).unlink()
    with pytest.raises(lance_core.errors.LanceError):
        dataset.create_scalar_index("p", "ZONEMAP")
    assert lance_core.dataset(uri).version == 1
    assert not list((tmp_path / "t").glob("_indices/*/*"))


@pytest.mark.variants(5)
@pytest.mark.parametrize("damage", ["deleted", "cut", "garbage", "changed"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ZONEMAP", "zonemap.lance"),
        ("BITMAP", "bitmap_page_lookup.lance"),
        ("BTREE", "page_data.lance"),
        ("BTREE", "page_lookup.lance"),
        ("BLOOMFILTER", "bloomfilter.lance"),
    ],
)
def test_an_index_that_cannot_be_read_is_left_aside_with_one_warning(tmp_path, damage, kind, name):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60)
    dataset.create_scalar_index("p", kind)
    (file,) = (tmp_path / "t").glob(f"_indices/*/{name}")
    data = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(
            {"cut": data[:-10], "garbage": b"x" * len(data), "changed": data[:40] + b"\xff" * 300 + data[340:]}[damage]
        )
    dataset = lance_core.dataset(uri)
    with pytest.warns(UserWarning, match="p_idx"):
        assert len(rows_of(dataset, "p = 'd3'")) == 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(rows_of(dataset, "p = 'd4'")) == 30
        assert dataset.delete("p = 'd3'")["num_deleted_rows"] == 30
    if damage != "changed":
        with pytest.raises(CorruptFileError):
            lance_core.dataset(uri).prewarm_index("p_idx")
    if damage != "changed":
        assert any("_indices/" in problem.path for problem in verify(lance_core.dataset(uri)))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        lance_core.dataset(uri).optimize.optimize_indices(retrain=True)
    assert all("p_idx" in str(one.message) for one in given)
    assert verify(lance_core.dataset(uri)) == []
    check(uri)


@pytest.fixture
def unreadable(tmp_path):
    """A table, a day per fragment, whose data files are away; two of the days have lost a row."""
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=30)
    dataset.create_scalar_index("day", "ZONEMAP", rows_per_zone=7)
    dataset.create_scalar_index("p", "ZONEMAP")
    dataset.delete("id = 31 OR id = 65")
    for file in (tmp_path / "t" / "data").iterdir():
        file.rename(file.with_suffix(".away"))
    return lance_core.dataset(uri)


def test_a_day_is_counted_without_its_file(unreadable):
    assert unreadable.count_rows(filter="day = date '2024-01-01'") == 30
    assert unreadable.count_rows(filter="day IN (date '2024-01-02', date '2024-01-03')") == 58
    assert unreadable.count_rows(filter="day <> date '2024-01-02' AND p > 'd5'") == 60
    assert unreadable.count_rows(filter="date_part('day', day) = 3 OR p = 'd1'") == 58
    assert "objects=1" in unreadable.scanner(filter="day = date '2024-01-02'").analyze_plan(count_rows=True)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_bitmaps_count_without_files(tmp_path, stable):
    uri = str(tmp_path / "t")
    rows = ROWS.set_column(2, "p", pa.array([None if i % 9 == 0 else f"d{i % 4}" for i in range(NUM_ROWS)]))
    dataset = lance_core.write_dataset(rows, uri, max_rows_per_file=60, enable_stable_row_ids=stable)
    dataset.create_scalar_index("p", "BITMAP")
    dataset.delete("id = 31 OR id = 65 OR id >= 180")
    filters = [*FILTERS, "p = 'd1'", "p != 'd2'", "NOT p = 'd2'", "p IN ('d1', 'd2')", "p = 'd1' OR p = 'd3'"]
    expected = [dataset.scanner(filter=text, use_scalar_index=False).count_rows() for text in filters]
    for file in (tmp_path / "t" / "data").iterdir():
        file.rename(file.with_suffix(".away"))
    dataset = lance_core.dataset(uri)
    assert [dataset.count_rows(filter=text) for text in filters] == expected
    with pytest.raises(lance_core.errors.LanceError, match="data"):
        dataset.count_rows(filter="p = 'd1' AND id > 3")


def test_a_bitmap_that_has_rows_twice_counts_nothing(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=60)
    sets = [{0: BitMap(range(60))}, {0: BitMap(range(60)), **{i: BitMap(range(60)) for i in (1, 2, 3)}}]
    content = bitmap.BitmapIndex.of(pa.array(["d0", "d1"]), sets, by_id=False)
    commit_index(dataset, "Bitmap", content)
    with pytest.warns(UserWarning, match="has another value than it says"):
        assert lance_core.dataset(uri).count_rows(filter="p = 'd1'") == 30


def test_a_day_is_deleted_without_its_file(unreadable):
    assert unreadable.delete("day = date '2024-01-02'") == {"num_deleted_rows": 29}
    assert unreadable.count_rows() == NUM_ROWS - 31


def test_a_day_is_replaced_without_its_file(unreadable, tmp_path):
    rows = ROWS.slice(30, 12)
    slices = lance_core.Slices([lance_core.Slice(name="b", conditions={"day": lance_core.Equals(DAYS[30])})])
    made = lance_core.write_fragments(rows, unreadable)
    result = lance_core.commit_fragments(unreadable, made, rows.schema, mode="replace", slices=slices)
    assert (result.rows_deleted, result.fragments_removed, result.rows_added) == (29, 1, 12)
    for file in (tmp_path / "t" / "data").glob("*.away"):
        file.rename(file.with_suffix(".lance"))
    check(unreadable.uri)
    assert lance.dataset(unreadable.uri).count_rows() == NUM_ROWS - 31 + 12


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_a_merge_are_looked_up(tmp_path, kind):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=30)
    dataset.create_scalar_index("id", kind)
    dataset.delete("id = 33")
    files = sorted((tmp_path / "t" / "data").iterdir())
    wanted = {file.path for i in (1, 2) for file in dataset.get_fragment(i).data_files()}
    for file in files:
        if file.name not in wanted:
            file.rename(file.with_suffix(".away"))
    dataset = lance_core.dataset(uri)
    rows = ROWS.take(pa.array([31, 33, 70])).set_column(2, "p", pa.array(["a", "b", "c"]))
    result = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
    assert (result["num_updated_rows"], result["num_inserted_rows"]) == (2, 1)
    for file in (tmp_path / "t" / "data").glob("*.away"):
        file.rename(file.with_suffix(".lance"))
    assert rows_of(dataset, "p IN ('a', 'b', 'c')") == [31, 33, 70]
    check(uri, [*FILTERS, "id = 31", "id = 33", "id < 40"])
    plain = dataset.merge_insert("id").when_matched_update_all().use_index(False).execute(rows)
    assert plain["num_updated_rows"] == 3
