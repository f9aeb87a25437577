"""Scans: steps, sizes of batches, orders, rejections."""

from threading import Barrier

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.file.reader import DataFileReader
from lance_core.verbs.expressions import arrow
from lance_core.verbs.scan import fragment_scan
from lance_core.verbs.scan.options import ColumnOrdering, order_of

ROWS = 100_000
FILTERS = [
    "x < 5",
    "x = 500 AND y > 0",
    "id BETWEEN 70000 AND 70100",
    "y > -9",
    "x < 0",
    "text LIKE '%77' AND x > 100 AND y < 0.5 AND true",
    "x < 0 AND y > 0",
    "id > 10 AND id < 30 AND pair.a > 0",
    "kind = 'bb'",
    "kind IS NULL AND x < 3",
    "upper(kind) = 'CCC' AND text LIKE '%7' AND y > 0",
    "NOT (kind IN ('a', 'bb') OR x = 5)",
    "kind = substr(text, 5, 2)",
    "kind = '12' AND CAST(kind AS INT) = 12",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(3)
    table = pa.table({
        "id": range(ROWS),
        "x": pa.array(rng.integers(0, 1000, ROWS), mask=rng.random(ROWS) < 0.1),
        "y": rng.normal(size=ROWS),
        "text": [f"row {i}" for i in range(ROWS)],
        "kind": pa.array(rng.choice(["", "a", "bb", "Ccc", "12"], ROWS), mask=rng.random(ROWS) < 0.2),
        "pair": pa.StructArray.from_arrays(
            [pa.array(range(ROWS)), pa.array(rng.normal(size=ROWS))], names=["a", "b"]
        ),
    })  # fmt: skip
    return lance_core.write_dataset(table, tmp_path_factory.mktemp("scan") / "t", max_rows_per_file=40_000)


@pytest.mark.variants(70)
@pytest.mark.parametrize(
    ("late", "share"),
    [(None, 0.0), (None, 2.0), (True, 2.0), (False, 0.0)],
    ids=["in stages, cut out of ranges", "in stages, by offset", "rows by offset", "all columns together"],
)
@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize(
    "columns", [None, ["text", "kind", "x"], ["x"], ["pair.a", "id"], {"z": "id + pair.a", "x": "x"}]
)
def test_every_way_to_filter_gives_the_same(dataset, monkeypatch, filter_, columns, late, share):
    monkeypatch.setattr(fragment_scan, "TWO_STEP_SHARE", share)
    monkeypatch.setattr(fragment_scan, "STAGED_ROWS", 1)
    monkeypatch.setattr(fragment_scan, "ENTRY_ROWS", 1)
    everything = dataset.to_table()
    keep = pc.fill_null(dataset.to_table(columns={"keep": filter_}).column("keep"), False)
    expected = everything.filter(keep)
    found = dataset.to_table(columns=columns, filter=filter_, late_materialization=late)
    assert found.num_rows == expected.num_rows
    for name in found.column_names:
        if name in expected.column_names:
            assert found.column(name).equals(expected.column(name))
    if found.num_columns == 2 and "z" in found.column_names:
        assert found.column("z").equals(pc.add(expected.column("id"), pc.struct_field(expected.column("pair"), "a")))
    assert dataset.count_rows(filter_) == expected.num_rows


def test_conditions_are_evaluated_once_per_entry_of_a_dictionary(dataset, monkeypatch):
    lengths = []
    evaluated = arrow.evaluated

    def noting(rows, expressions):
        lengths.append(rows.num_rows)
        return evaluated(rows, expressions)

    monkeypatch.setattr(arrow, "evaluated", noting)
    kinds = dataset.to_table(columns=["kind"])["kind"].to_pylist()
    assert dataset.count_rows("upper(kind) = 'CCC'") == kinds.count("Ccc")
    assert lengths == [6, 6, 6]


def test_columns_of_the_filter_are_read_again_if_they_are_too_large_to_keep(dataset, monkeypatch):
    expected = dataset.to_table(filter="text LIKE '%7'")
    monkeypatch.setattr(fragment_scan, "KEPT_BYTES", 100)
    assert dataset.to_table(filter="text LIKE '%7'").equals(expected)


def test_a_limit_stops_the_scan_early(dataset, monkeypatch):
    looked_at = []
    read = fragment_scan.read_fragment

    def recording(source, fragment, schema, rows, **options):
        looked_at.append((fragment.id, len(rows)))
        return read(source, fragment, schema, rows, **options)

    monkeypatch.setattr(fragment_scan, "read_fragment", recording)
    monkeypatch.setattr(fragment_scan, "FIRST_WINDOW_ROWS", 1_000)
    found = dataset.to_table(filter="x < 500", limit=20, offset=5, columns=["id"])
    assert found.num_rows == 20
    assert {fragment for fragment, _ in looked_at} == {0}
    assert max(rows for _, rows in looked_at) <= 1_000
    assert found.equals(dataset.to_table(filter="x < 500", columns=["id"]).slice(5, 20))


def test_a_limit_reads_the_other_columns_of_its_rows_only(dataset, monkeypatch):
    expected = dataset.to_table(filter="x < 500", columns=["id", "x"])
    second = []
    read = fragment_scan.read_fragment

    def recording(source, fragment, schema, rows, **options):
        if schema.names == ["id"]:
            second.append(len(rows))
        return read(source, fragment, schema, rows, **options)

    monkeypatch.setattr(fragment_scan, "read_fragment", recording)
    assert dataset.to_table(filter="x < 500", limit=20, offset=5, columns=["id", "x"]) == expected.slice(5, 20)
    assert len(second) == 1
    assert second[0] < 100


@pytest.mark.parametrize(("offset", "limit"), [(0, 1), (3, 30_000), (17_000, 10_000), (44_990, 100), (50_000, 5)])
@pytest.mark.parametrize("late", [None, False])
def test_limits_cut_what_a_filter_keeps(dataset, monkeypatch, offset, limit, late):
    monkeypatch.setattr(fragment_scan, "FIRST_WINDOW_ROWS", 1_500)
    options = {"filter": "x < 500", "columns": ["text", "x"], "late_materialization": late}
    expected = dataset.to_table(**options).slice(offset, limit)
    assert dataset.to_table(**options, offset=offset, limit=limit) == expected


def test_both_steps_of_a_scan_open_a_file_once(dataset, monkeypatch):
    opened = []
    open_file = DataFileReader.open.__func__

    def recording(cls, store, key, **options):
        opened.append(key)
        return open_file(cls, store, key, **options)

    monkeypatch.setattr(DataFileReader, "open", classmethod(recording))
    assert dataset.to_table(filter="x < 5", columns=["text"]).num_rows == dataset.count_rows("x < 5")
    assert sorted(opened) == sorted(opened[:3] * 2)


def test_small_fragments_that_are_far_away_are_read_side_by_side(tmp_path, monkeypatch):
    dataset = lance_core.write_dataset(pa.table({"id": range(200)}), tmp_path / "t", max_rows_per_file=10)
    monkeypatch.setattr(fragment_scan, "_NEAR", ("nowhere",))
    both = Barrier(2, timeout=100)
    read = fragment_scan.read_fragment
    waited = set()

    def meeting(source, fragment, *others, **options):
        if fragment.id < 2 and fragment.id not in waited:
            waited.add(fragment.id)
            both.wait()  # breaks unless two fragments are read at once
        return read(source, fragment, *others, **options)

    monkeypatch.setattr(fragment_scan, "read_fragment", meeting)
    assert dataset.to_table().column("id").to_pylist() == list(range(200))
    monkeypatch.setattr(fragment_scan, "read_fragment", read)
    assert dataset.to_table(filter="id % 2 = 0").column("id").to_pylist() == list(range(0, 200, 2))
    for readahead in (0, 1, 3, 50):
        batches = dataset.to_batches(fragment_readahead=readahead)
        assert next(batches).column("id").to_pylist() == list(range(10))
        batches.close()
        assert dataset.to_table(fragment_readahead=readahead, with_row_id=True).num_rows == 200
    monkeypatch.setattr(fragment_scan, "SMALL_BYTES", 10)
    assert dataset.to_table().column("id").to_pylist() == list(range(200))


def test_sizes_of_batches(dataset):
    sizes = [batch.num_rows for batch in dataset.to_batches(batch_size=3_000, strict_batch_size=True)]
    assert sizes == [3_000] * 33 + [1_000]
    assert next(dataset.to_batches(columns=["id"], strict_batch_size=True)).num_rows == 8_192
    assert max(batch.num_rows for batch in dataset.to_batches(batch_size=3_000)) == 3_000
    assert max(batch.nbytes for batch in dataset.to_batches(columns=["id"], batch_size_bytes=4_096)) <= 4_096
    filtered = list(dataset.to_batches(filter="x < 900", batch_size=777))
    assert max(batch.num_rows for batch in filtered) == 777
    assert sum(batch.num_rows for batch in filtered) == dataset.count_rows("x < 900")


def test_a_scan_without_columns_counts(dataset):
    assert dataset.to_table(columns=[]).num_rows in (0, ROWS)
    assert sum(batch.num_rows for batch in dataset.to_batches(columns=[])) == ROWS
    assert sum(batch.num_rows for batch in dataset.to_batches(columns=[], filter="x = 7")) == dataset.count_rows(
        "x = 7"
    )


def test_ordered_rows_with_and_without_a_limit(dataset):
    whole = dataset.to_table(columns=["id", "y"], order_by=["y"])
    assert whole.column("id").to_pylist() == np.argsort(whole_y(dataset), kind="stable").tolist()
    first = dataset.to_table(
        columns=["text", "id"], order_by=[ColumnOrdering("y", ascending=False)], limit=50, offset=3
    )
    assert first.column("id").to_pylist() == np.argsort(-whole_y(dataset), kind="stable")[3:53].tolist()
    assert first.column("text").to_pylist() == [f"row {i}" for i in first.column("id").to_pylist()]
    nested = dataset.to_table(columns=["id"], order_by=[ColumnOrdering("pair.a", ascending=False)], limit=3)
    assert nested.column("id").to_pylist() == [ROWS - 1, ROWS - 2, ROWS - 3]
    filtered = dataset.to_table(columns=["x"], filter="x > 990", order_by=["x"])
    assert filtered.column("x").to_pylist() == sorted(filtered.column("x").to_pylist())


def whole_y(dataset):
    return dataset.to_table(columns=["y"]).column("y").to_numpy()


def test_order_of_nan_null_and_ties():
    values = pa.chunked_array([[2.0, float("nan"), None, -1.0, 2.0]])
    assert order_of([values], [ColumnOrdering("a")]).tolist() == [3, 0, 4, 1, 2]
    assert order_of([values], [ColumnOrdering("a", ascending=False)]).tolist() == [1, 0, 4, 3, 2]
    assert order_of([values], [ColumnOrdering("a", nulls_first=True)]).tolist() == [2, 3, 0, 4, 1]
    many = pa.chunked_array([np.tile([5, 3, 3, 9], 100)])
    assert order_of([many], [ColumnOrdering("a")], 3)[:3].tolist() == [1, 2, 5]
    with pytest.raises(UnsupportedError, match="order_by"):
        order_of([pa.chunked_array([[[1], [2]]])], [ColumnOrdering("l")])


def test_a_sample_has_no_row_twice(dataset):
    found = dataset.sample(500, ["id"]).column("id").to_pylist()
    assert len(set(found)) == 500
    assert found != sorted(found)
    ordered = dataset.sample(500, ["id"], randomize_order=False).column("id").to_pylist()
    assert ordered == sorted(set(ordered))
    with pytest.raises(InvalidInputError, match="100001"):
        dataset.sample(ROWS + 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": ["nope"]}, SchemaError, r"nope.*\['id', 'x'"),
        ({"columns": ["id", "id"]}, InvalidInputError, "Duplicate column name: id"),
        ({"columns": "id"}, InvalidInputError, "columns must be a list"),
        ({"columns": {"a": "nope + 1"}}, SchemaError, r"nope.*\['id', 'x'"),
        ({"columns": ["pair.nope"]}, SchemaError, "nope"),
        ({"filter": "nope > 1"}, SchemaError, r"nope.*\['id', 'x'"),
        ({"filter": pc.field("nope") > 1}, SchemaError, r"nope.*\['id', 'x'"),
        ({"filter": "id + 1"}, InvalidInputError, "boolean"),
        ({"filter": 5}, InvalidInputError, "filter must be a string"),
        ({"filter": {"search_filter": 1}}, UnsupportedError, "search_filter"),
        ({"limit": -1}, InvalidInputError, "limit"),
        ({"offset": -1}, InvalidInputError, "offset"),
        ({"batch_size": 0}, InvalidInputError, "batch_size"),
        ({"batch_readahead": -1}, InvalidInputError, "batch_readahead"),
        ({"order_by": ["nope"]}, SchemaError, "nope"),
        ({"order_by": [3]}, InvalidInputError, "order_by"),
        ({"late_materialization": ["nope"]}, SchemaError, "nope"),
        ({"include_deleted_rows": True}, InvalidInputError, "with_row_id"),
        ({"include_deleted_rows": True, "with_row_id": True, "order_by": ["id"]}, UnsupportedError, "order_by"),
        ({"strict_batch_size": True, "batch_size_bytes": 10}, InvalidInputError, "strict_batch_size"),
        ({"blob_handling": "nope"}, InvalidInputError, "blob_handling"),
        ({"nearest": {"column": "y"}}, InvalidInputError, "nearest"),
        ({"full_text_query": "a"}, UnsupportedError, "full_text_query"),
        ({"fast_search": True}, UnsupportedError, "fast_search"),
        ({"index_segments": []}, UnsupportedError, "index_segments"),
        ({"scan_stats_callback": print}, UnsupportedError, "scan_stats_callback"),
        ({"row_addr_allowlist": b""}, UnsupportedError, "row_addr_allowlist"),
    ],
    ids=str,
)
def test_rejections_name_what_is_wrong(dataset, arguments, error, message):
    with pytest.raises(error, match=message):
        dataset.scanner(**arguments).to_table()


def test_what_only_pylance_has_or_makes_no_sense(dataset):
    with pytest.raises(UnsupportedError, match="filter"):
        dataset.get_fragments(filter=pc.field("id") > 1)
    with pytest.raises(InvalidInputError, match="outside"):
        dataset.scanner(limit=5).take([5])
    assert dataset.scanner(offset=5, limit=5).take([4, 0]).column("id").to_pylist() == [9, 5]


@pytest.mark.parametrize("directions", [(True, False), (False, True), (False, False)])
def test_the_first_rows_by_two_columns(dataset, directions):
    orders = [ColumnOrdering(name, ascending=up) for name, up in zip(("x", "id"), directions, strict=True)]
    found = dataset.scanner(columns=["x", "id"], order_by=orders, limit=20).to_table().to_pylist()
    signs = [1 if up else -1 for up in directions]
    rows = [row for row in dataset.to_table(columns=["x", "id"]).to_pylist() if row["x"] is not None]
    assert found == sorted(rows, key=lambda row: (signs[0] * row["x"], signs[1] * row["id"]))[:20]


@pytest.mark.parametrize("ahead", [1, 2, 10])
def test_the_history_of_a_handle(tmp_path, ahead):
    for number in range(5):
        lance_core.write_dataset(pa.table({"a": [number]}), tmp_path, mode="append" if number else "create")
    handle = lance_core.dataset(tmp_path, version=4)
    versions = [(one.version, one.count_rows(), record.operation.name) for one, record in handle.history(ahead=ahead)]
    assert versions == [(4, 4, "Append"), (3, 3, "Append"), (2, 2, "Append"), (1, 1, "Overwrite")]


def test_rows_without_columns_are_taken(tmp_path):
    vectors = pa.array([[1.0], [2.0], [3.0]], pa.list_(pa.float32(), 1))
    dataset = lance_core.write_dataset(pa.table({"i": [1, 2, 3], "v": vectors}), tmp_path / "t")
    for rows in ([0, 0, 2], [2, 0], [1, 2], []):
        assert dataset.take(rows, columns=[]).num_rows == len(rows)
        assert dataset.get_fragments()[0].take(rows, columns=[]).num_rows == len(rows)
        assert dataset.scanner(columns=[]).take(rows).num_rows == len(rows)
        assert dataset.to_arrow_dataset().take(rows, columns=[]).num_rows == len(rows)
    plain = {"columns": [], "disable_scoring_autoprojection": True, "nearest": {"column": "v", "q": [1], "k": 2}}
    assert dataset.to_table(**plain).num_rows == 2
    assert sum(batch.num_rows for batch in dataset.to_batches(**plain)) == 2
    assert dataset.to_table(columns=[], order_by=["i"], limit=2).num_rows == 2
