"""Indices that contradict themselves or the table are ignored with a warning; honest ones never are."""

import dataclasses
import random
import warnings
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import LanceOperation
from lance_core.file.lance_file import LanceFileReader, LanceFileWriter
from lance_core.maintenance.verify.files import verify

FILTERS = {
    "p": ("p = 'd3'", "p IS NULL", "p IN ('d1', 'd36')", "p != 'd3'", "p > 'd30'", "NOT (p = 'd3')"),
    "tags": ("array_has(tags, 't1')", "NOT array_has(tags, 't1')"),
}


def rows(start: int, stop: int) -> pa.Table:
    """Rows with nulls among their strings, and lists of which some are empty."""
    return pa.table({
        "p": pa.array([f"d{i % 37}" if i % 11 else None for i in range(start, stop)]),
        "n": range(start, stop),
        "tags": [[f"t{i % 5}"] if i % 3 else [] for i in range(start, stop)],
    })  # fmt: skip


def replaced(uri: str, **changes) -> None:
    """Commit the record of the only index with other values."""
    dataset = lance_core.dataset(uri)
    (one,) = dataset.checkout_version(2).read_transaction(2).operation.new_indices
    change = LanceOperation.CreateIndex(new_indices=[dataclasses.replace(one, **changes)], removed_indices=[one])
    lance_core.LanceDataset.commit(uri, change, read_version=dataset.version)


def check(uri: str, column: str, *, warned: bool) -> None:
    """Filters find what they find without an index."""
    for text in FILTERS[column]:
        dataset = lance_core.dataset(uri)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found = dataset.to_table(filter=text)
            count = dataset.count_rows(filter=text)
        assert found == dataset.scanner(filter=text, use_scalar_index=False).to_table(), text
        assert count == found.num_rows
        assert warned or not given, [str(one.message) for one in given]


def renamed_lengths(table: pa.Table) -> pa.Table:
    return table.rename_columns([{"zone_length": "zone_size"}.get(name, name) for name in table.column_names])


@pytest.mark.filterwarnings("ignore:index .* is ignored:UserWarning")
@pytest.mark.parametrize("remedy", ["optimize_indices", "create_scalar_index"])
def test_a_zone_map_of_pylance_0_34_is_left_aside_named_and_rebuilt(tmp_path, remedy):
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 600), uri, max_rows_per_file=200)
    lance.dataset(uri).create_scalar_index("p", "ZONEMAP", name="p_idx")
    forge(uri, "zonemap.lance", renamed_lengths, {"zonemap_size": "8192"})
    check(uri, "p", warned=True)
    with pytest.warns(UserWarning, match="zone map of pylance 0.34 or 0.35"):
        lance_core.dataset(uri).to_table(filter="p = 'd3'")
    (problem,) = verify(lance_core.dataset(uri))
    assert "cannot be used: a zone map of pylance 0.34 or 0.35" in problem.message
    with pytest.raises(Exception, match="missing 'zone_length' column"):
        lance.dataset(uri).to_table(filter="p = 'd3'")

    if remedy == "optimize_indices":
        lance_core.dataset(uri).optimize.optimize_indices()
    else:
        lance_core.dataset(uri).create_scalar_index("p", "ZONEMAP", name="p_idx", replace=True)
    check(uri, "p", warned=False)
    assert verify(lance_core.dataset(uri)) == []
    expected = lance_core.dataset(uri).to_table(filter="p = 'd3'")
    assert lance.dataset(uri).to_table(filter="p = 'd3'") == expected


@pytest.mark.variants(5)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize("kind", ["ZONEMAP", "BITMAP", "BTREE", "BLOOMFILTER", "LABEL_LIST"])
def test_a_record_that_claims_a_fragment_too_many(tmp_path, kind, library, stable):
    uri, column = str(tmp_path / "t"), "tags" if kind == "LABEL_LIST" else "p"
    lance_core.write_dataset(rows(0, 600), uri, max_rows_per_file=200, enable_stable_row_ids=stable)
    library.dataset(uri).create_scalar_index(column, kind)
    check(uri, column, warned=False)
    lance_core.write_dataset(rows(600, 800), uri, mode="append")
    replaced(uri, fragment_ids={0, 1, 2, 3})
    check(uri, column, warned=True)


def forge(uri: str, name: str, change, metadata: dict[str, str]) -> None:
    """Rewrite a file of the only index, and commit its size."""
    (path,) = Path(uri).glob(f"_indices/*/{name}")
    found = LanceFileReader(str(path)).read_all().to_table()
    with LanceFileWriter(f"{uri}_forged") as writer:
        writer.write_batch(change(found))
        for key, value in metadata.items():
            writer.add_schema_metadata(key, value)
    Path(f"{uri}_forged").replace(path)
    (one,) = lance_core.dataset(uri).read_transaction(2).operation.new_indices
    files = [dataclasses.replace(file, size_bytes=(path.parent / file.path).stat().st_size) for file in one.files]
    replaced(uri, files=files)


def turned(table: pa.Table) -> pa.Table:
    return table.take(list(range(len(table)))[::-1])


def shuffled(table: pa.Table) -> pa.Table:
    places = list(range(len(table)))
    random.Random(1).shuffle(places)
    return table.take(places)


def column_of(name: str, values) -> object:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        made = pa.array(values(table.column(name).to_pylist()), table.schema.field(name).type)
        return table.set_column(place, table.schema.field(name), made)

    return change


def swapped(table: pa.Table) -> pa.Table:
    return table.rename_columns([{"min": "max", "max": "min"}.get(name, name) for name in table.column_names])


DATA = {
    "turned": turned,
    "shuffled": shuffled,
    "half": lambda table: table.slice(0, 300),
    "twice": lambda table: pa.concat_tables([table, table]),
    "one row": column_of("ids", lambda ids: [ids[0]] * len(ids)),
    "other values": column_of("values", lambda values: [value and f"x{value}" for value in values]),
    "no ids": lambda table: table.drop_columns(["ids"]),
}
LOOKUP = {
    "turned": turned,
    "swapped": swapped,
    "few": lambda table: table.slice(0, 3),
    "no nulls": column_of("null_count", lambda counts: [0] * len(counts)),
    "high": column_of("max", lambda values: [value and "z" for value in values]),
    "all null": column_of("min", lambda values: [None] * len(values)),
}


@pytest.mark.variants(7)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize(
    ("name", "change"),
    [("page_data.lance", name) for name in DATA] + [("page_lookup.lance", name) for name in LOOKUP],
)
def test_a_btree_that_contradicts_itself(tmp_path, name, change, stable):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(rows(0, 600), uri, max_rows_per_file=200, enable_stable_row_ids=stable)
    dataset.create_scalar_index("p", "BTREE", zone_size=64)
    check(uri, "p", warned=False)
    change = (DATA if name == "page_data.lance" else LOOKUP)[change]
    forge(uri, name, change, {"batch_size": "64", "range_partitioned": "false"})
    check(uri, "p", warned=True)


def next_ones(values: list) -> list:
    """Each in the place of the one before it."""
    return values[1:] + values[:1]


NUM_ROWS = 600
NEVER = 1000 << 32
LIES = {
    "BITMAP": ("bitmap_page_lookup.lance", column_of("keys", next_ones)),
    "LABEL_LIST": ("bitmap_page_lookup.lance", column_of("keys", next_ones)),
    "BTREE": ("page_data.lance", column_of("ids", next_ones)),
    "BTREE of no fragments": ("page_data.lance", column_of("ids", lambda ids: [NEVER + one for one in ids])),
    "ZONEMAP of no fragments": ("zonemap.lance", column_of("fragment_id", lambda ids: [ids[0], 1000, ids[2]])),
}
MORE_FILTERS = ("p = 'd3' AND n > 300", "p IN ('d3', 'd5') AND n % 2 = 0")


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def lying(request, tmp_path):
    """Makes a table with an index whose rows are those of other values."""

    def make(lie: str) -> str:
        uri, kind = str(tmp_path / "t"), lie.partition(" ")[0]
        dataset = lance_core.write_dataset(
            rows(0, NUM_ROWS), uri, max_rows_per_file=200, enable_stable_row_ids=request.param
        )
        dataset.create_scalar_index("tags" if kind == "LABEL_LIST" else "p", kind)
        forge(uri, *LIES[lie], {})
        return uri

    return make


READS = {
    "table": lambda dataset, text: dataset.to_table(filter=text),
    "batches": lambda dataset, text: pa.Table.from_batches(dataset.to_batches(filter=text)),
    "count": lambda dataset, text: dataset.count_rows(filter=text),
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("lie", LIES)
def test_rows_that_do_not_match_give_an_index_away(lying, lie):
    uri = lying(lie)
    for text in FILTERS["tags"] if lie == "LABEL_LIST" else (*FILTERS["p"], *MORE_FILTERS):
        plain = lance_core.dataset(uri).scanner(filter=text, use_scalar_index=False).to_table()
        for name, read in READS.items():
            if (name, lie) == ("count", "BITMAP"):
                continue  # of which counts are taken as they are
            dataset = lance_core.dataset(uri)
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                found = read(dataset, text)
                assert dataset.to_table(filter=text) == plain
            assert found == (plain.num_rows if name == "count" else plain), text
            assert len(given) <= 1


@pytest.mark.parametrize("stable", [False, True])
def test_a_btree_that_names_rows_of_a_deleted_fragment(tmp_path, stable):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(rows(0, NUM_ROWS), uri, max_rows_per_file=200, enable_stable_row_ids=stable)
    dataset.create_scalar_index("p", "BTREE")
    dataset.delete("n < 200 OR n = 240")
    check(uri, "p", warned=False)
    second = 1 << 32
    moved_ids = column_of("ids", lambda ids: [one - second if second + 5 <= one < second + 20 else one for one in ids])
    forge(uri, "page_data.lance", moved_ids, {})
    check(uri, "p", warned=True)


NEW = pa.table({"p": ["d3"], "n": [-1], "tags": [["new"]]})


def replace_d3(dataset: lance_core.LanceDataset) -> None:
    one = lance_core.Slice(name="d3", conditions={"p": lance_core.Equals("d3")})
    made = lance_core.write_fragments(NEW, dataset)
    lance_core.commit_fragments(dataset, made, NEW.schema, mode="replace", slices=lance_core.Slices([one]))


VERBS = {
    "delete": lambda dataset: dataset.delete("p = 'd3'"),
    "update": lambda dataset: dataset.update({"n": "-1"}, "p = 'd3'"),
    "merge": lambda dataset: (
        dataset.merge_insert("p").when_matched_update_all().when_not_matched_insert_all().execute(NEW)
    ),
    "replace": replace_d3,
}


@pytest.mark.parametrize("lie", ["BITMAP", "BTREE", "BTREE of no fragments"])
@pytest.mark.parametrize("verb", VERBS)
def test_verbs_do_not_follow_a_wrong_index(lying, lie, verb):
    uri = lying(lie)
    dataset = lance_core.dataset(uri)
    plain = dataset.scanner(use_scalar_index=False).to_table()
    others = plain.filter(pa.compute.fill_null(pa.compute.not_equal(plain["p"], "d3"), True))["n"].to_pylist()
    with pytest.warns(UserWarning, match="p_idx"):
        VERBS[verb](dataset)
    found = lance_core.dataset(uri).scanner(use_scalar_index=False).to_table()
    more = {"delete": 0, "replace": 1}.get(verb, NUM_ROWS - len(others))
    assert sorted(found["n"].to_pylist()) == sorted([*others, *[-1] * more])


ZONE = datetime(2024, 1, 2, tzinfo=UTC)
VALUES = {
    "bool": pa.array([True, False, None] * 30),
    "uint8": pa.array([*range(80), None], pa.uint8()),
    "int64": pa.array([*range(-40, 40), None], pa.int64()),
    "float64": pa.array([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, None] * 12),
    "decimal": pa.array([Decimal(n) for n in range(-40, 40)], pa.decimal128(20, 2)),
    "string": pa.array([*"zyxäöü", "", "a" * 5_000, None, "Z", "\U0001f600", "\uffff"] * 8),
    "binary": pa.array([b"\xff", b"", b"a\x00", None, b"\x80"] * 20),
    "date": pa.array([date(1900, 1, 1) + timedelta(days=n) for n in range(80)]),
    "time": pa.array([time(n % 24, n % 60) for n in range(80)], pa.time64("us")),
    "timestamp": pa.array([ZONE + timedelta(hours=n) for n in range(-40, 40)], pa.timestamp("us", "UTC")),
    "duration": pa.array([timedelta(seconds=n) for n in range(-40, 40)], pa.duration("ms")),
}


@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize("kind", VALUES)
def test_an_honest_btree_is_used(tmp_path, kind, library):
    uri, values = str(tmp_path / "t"), VALUES[kind]
    lance_core.write_dataset(pa.table({"v": values}), uri, max_rows_per_file=40)
    index = lance.indices.IndexConfig("btree", {"zone_size": 16})
    library.dataset(uri).create_scalar_index("v", index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for condition in (
            pa.compute.field("v").is_null(),
            pa.compute.field("v") == values[3],
            ~pa.compute.field("v").is_null(),
        ):
            dataset = lance_core.dataset(uri)
            found = dataset.to_table(filter=condition)
            plain = dataset.scanner(filter=condition, use_scalar_index=False).to_table()
            assert str(found.to_pylist()) == str(plain.to_pylist())
            assert "indices=[v_idx (BTree)]" in dataset.scanner(filter=condition).explain_plan()
