"""What filters find by indices: the same as without, and with less work."""

import shutil

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

import lance_core

NUM_ROWS = 400
ROWS = pa.table({
    "p": [f"d{i // 50}" for i in range(NUM_ROWS)],
    "f": [float("nan") if i % 50 == 0 else i / 3 - 40 for i in range(NUM_ROWS)],
    "i": pa.array([None if i % 7 == 0 or i < 30 else i for i in range(NUM_ROWS)], pa.int32()),
    "t": pa.array([i * 1000 for i in range(NUM_ROWS)], pa.timestamp("ms")),
    "b": [i > 200 for i in range(NUM_ROWS)],
    "s": pa.array([{"a": i, "b": -i} for i in range(NUM_ROWS)], pa.struct([("a", pa.int64()), ("b", pa.int16())])),
})  # fmt: skip
COLUMNS = ("p", "f", "i", "t", "b", "s.b")
FILTERS = [
    "p = 'd3'",
    "p > 'd5'",
    "p IN ('d1', 'd7')",
    "NOT p = 'd2'",
    "p NOT IN ('d1', 'd2')",
    "p != 'd1'",
    "p LIKE 'd1%'",
    "p LIKE '%1'",
    "NOT p LIKE 'd1_%'",
    "starts_with(p, 'd4')",
    "p = 'none'",
    "p = 'd1' AND i IS NULL",
    "p = 'd1' OR i = 377",
    "p = 'd1' OR s.a = 3",
    "f > 60",
    "f < 3",
    "f <= 0.0",
    "f = 0.0",
    "NOT f < 5",
    "f != 2",
    "isnan(f)",
    "i IS NULL",
    "i IS NOT NULL",
    "NOT i > 40",
    "i BETWEEN 120 AND 125",
    "i NOT IN (31, 32)",
    "i IN (1, NULL)",
    "t < timestamp '1970-01-01 00:00:07'",
    "b",
    "NOT b",
    "s.b = -77",
    "s.b IS NULL",
    "true",
    "i = 31 AND false",
    "_rowid < 20 OR p = 'd7'",
]


def found(dataset, text, **options):
    return sorted(map(repr, dataset.scanner(filter=text, **options).to_table().to_pylist()))


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable ids"])
def uri(request, tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("zones") / "t")
    dataset = lance.write_dataset(ROWS, uri, max_rows_per_file=75, enable_stable_row_ids=request.param)
    dataset.delete("i = 100 OR (i >= 150 AND i < 165) OR p = 'd6'")
    for column in COLUMNS:
        dataset.create_scalar_index(column, IndexConfig("zonemap", {"rows_per_zone": 10}))
    dataset.delete("i = 35 OR (i >= 225 AND i < 240)")
    lance.write_dataset(ROWS.slice(5, 60), uri, mode="append")
    return uri


@pytest.mark.variants(18)
@pytest.mark.parametrize("text", FILTERS)
def test_zone_maps_of_pylance_change_no_result(uri, text):
    ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
    expected = found(theirs, text, use_scalar_index=False)
    assert found(ours, text, use_scalar_index=False) == expected
    assert found(ours, text) == expected
    assert found(ours, text, columns=["p"]) == found(theirs, text, columns=["p"], use_scalar_index=False)
    assert ours.count_rows(filter=text) == len(expected)
    assert ours.scanner(filter=text, limit=7, offset=3).to_table().num_rows == max(0, min(7, len(expected) - 3))
    fragments = ours.get_fragments()[::-2]
    assert found(ours, text, fragments=fragments) == found(ours, text, fragments=fragments, use_scalar_index=False)


def test_plans_name_the_index_that_was_used(uri):
    ours = lance_core.dataset(uri)
    plan = ours.scanner(filter="p = 'd3'").explain_plan()
    assert "indices=[p_idx (ZoneMap)], ruled out=" in plan
    ran = ours.scanner(filter="p = 'none'", columns=["p"]).analyze_plan()
    # The zone map, the fragment that was appended after it, and what is deleted of two that it does not wholly know.
    assert "ruled out=4 of 7 fragments" in ran
    assert "objects=4" in ran
    assert "unused indices=[p_idx (ZoneMap)]" in ours.scanner(filter="p = 'd3'", use_scalar_index=False).explain_plan()


def test_a_fragment_that_is_not_committed_is_not_taken_for_one_that_is(tmp_path):
    dataset = lance_core.write_dataset(ROWS.select(["p", "t"]), tmp_path / "t", max_rows_per_file=50)
    dataset.create_scalar_index("p", "ZONEMAP")
    rows = pa.table({"t": ROWS["t"].slice(0, 30), "p": ["new"] * 30})
    fragment = dataset.get_fragment(0)
    updated, _ = fragment.update_columns(rows, "t", "t")
    changed = lance_core.LanceFragment(dataset.snapshot, updated.to_record())
    for text, count in (("p = 'new'", 30), ("p = 'd0'", 20)):
        assert dataset.scanner(filter=text, fragments=[changed]).to_table().num_rows == count
        assert dataset.scanner(filter=text, fragments=[changed]).count_rows() == count
        assert changed.count_rows(filter=text) == count


def test_scans_say_which_fragments_they_look_at(uri):
    ours = lance_core.dataset(uri)
    assert ours.scanner(filter="p = 'd1'").fragment_ids() == [0, 1, 2, 4, 6]
    assert ours.scanner(limit=80).fragment_ids() == [0, 1]


@pytest.mark.filterwarnings("ignore:index 'a_idx'")  # that it is wrong is seen when it names rows
@pytest.mark.parametrize("kind", ["BITMAP", "ZONEMAP"])
def test_nothing_is_counted_by_segments_that_cover_the_same_fragment(tmp_path, kind):
    places = {value: str(tmp_path / str(value)) for value in (1, 2)}
    made = {}
    for value, place in places.items():
        dataset = lance_core.write_dataset(pa.table({"a": [value] * 10}), place)
        dataset.create_scalar_index("a", kind)
        (made[value],) = dataset.read_transaction(dataset.version).operation.new_indices
    shutil.copytree(f"{places[2]}/_indices/{made[2].uuid}", f"{places[1]}/_indices/{made[2].uuid}")
    dataset = lance_core.dataset(places[1])
    dataset = lance_core.LanceDataset.commit(
        dataset,
        lance_core.LanceOperation.CreateIndex(new_indices=[made[2]], removed_indices=[]),
        read_version=dataset.version,
    )
    assert len(dataset.describe_indices()[0].segments) == 2
    for text, count in {"a = 1": 10, "a = 2": 0, "a <> 2": 10, "NOT a = 1": 0}.items():
        assert dataset.count_rows(text) == count == len(dataset.to_table(filter=text))
