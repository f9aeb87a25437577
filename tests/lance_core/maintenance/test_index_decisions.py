"""Declarations of indices, and what is due for them: pure functions of a table's facts."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInputError
from lance_core.maintenance import MaintenancePolicy, parse_declarations
from lance_core.maintenance.search.decide import (
    MOST_SEGMENTS,
    PresentIndex,
    PresentSegment,
    TableFacts,
    choose_segments_to_merge,
    decide,
)
from lance_core.maintenance.search.facts import find_pylance
from lance_core.maintenance.search.record import RECORD_PREFIX, IndexRecord, describe_failure, read_records

NOW = datetime(2026, 11, 30, tzinfo=UTC)
VECTORS = pa.list_(pa.float32(), 32)
COLUMNS = {"v": (1, VECTORS), "t": (2, pa.string()), "id": (3, pa.int64()), "b": (4, pa.list_(pa.uint8(), 32))}


def segment(number, rows, fragments=None):
    ids = frozenset([number] if fragments is None else fragments)
    return PresentSegment(uuid=f"segment {number}", fragment_ids=ids, rows=rows)


def index(name="v_idx", kind="IVF_PQ", metric="l2", field=1, segments=None):
    segments = [segment(0, 1000)] if segments is None else segments
    return PresentIndex(name=name, kind=kind, metric=metric, field_ids=(field,), segments=segments)


def record(declaration, rows=1000, **more):
    recall = {"value": 0.9, "settings": declaration.search_settings, "rows": rows, "fresh_value": 0.9, "note": None}
    recall |= {"queries": 100, "at": NOW.isoformat()}
    more = {"recall": recall, "trained_at": NOW.isoformat(), **more}
    return IndexRecord(column=declaration.column, build=declaration.build_key, trained_rows=rows, **more)


def facts(fragments=(1000,), present=(), records=()):
    return TableFacts(
        columns=COLUMNS,
        fragments=dict(enumerate(fragments)),
        present={each.name: each for each in present},
        records=dict(records),
    )


def due(indices, table, pylance="14", now=NOW, **options):
    actions = decide(parse_declarations(indices), table, now=now, pylance=pylance, **options)
    return [(action.name, action.action) for action in actions]


(PQ,) = parse_declarations({"v": "IVF_PQ"})
BUILT = {"present": [index()], "records": {"v_idx": record(PQ)}}


@pytest.mark.parametrize(
    ("indices", "part"),
    [
        ("FTS", "must be a mapping"),
        ({"v": "IVF_PG"}, "is 'IVF_PQ' meant"),
        ({"v": 1}, "must be a kind"),
        ({"v": {"metric": "l2"}}, "must be a kind"),
        ({"": "FTS"}, "named by a string"),
        ({"v": {"kind": "IVF_PQ", "num_sub_vector": 4}}, "is 'num_sub_vectors' meant"),
        ({"v": {"kind": "IVF_FLAT", "num_sub_vectors": 4}}, "IVF_FLAT has no field"),
        ({"v": {"kind": "IVF_FLAT", "m": 4}}, "IVF_FLAT has no field"),
        ({"v": {"kind": "IVF_FLAT", "metric": "cosin"}}, "is 'cosine' meant"),
        ({"v": {"kind": "IVF_PQ", "metric": "hamming"}}, "which only IVF_FLAT takes"),
        ({"v": {"kind": "IVF_PQ", "min_recall": 1.5}}, "a share above 0"),
        ({"v": {"kind": "IVF_PQ", "k": True}}, "a positive whole number"),
        ({"v": {"kind": "IVF_PQ", "retrain_growth": 1}}, "above 1"),
        ({"t": {"kind": "FTS", "metric": "l2"}}, "FTS has no field 'metric'"),
        ({"t": {"kind": "FTS", "with_position": 1}}, "True or False"),
        ({"id": {"kind": "BTREE", "zone_size": 0}}, "zone_size"),
        ({"id": {"kind": "BTREE", "min_recall": 0.5}}, "BTREE has no field"),
        ({"v": {"kind": "IVF_PQ", "num_bits": 7}}, "IVF_PQ has no num_bits 7; there are 4, 8"),
        ({"v": {"kind": "IVF_RQ", "num_bits": 16}}, "IVF_RQ has no num_bits 16"),
        ({"t": {"kind": "FTS", "base_tokenizer": "foo"}}, "no base_tokenizer 'foo'; there are simple, whitespace"),
        ({"t": {"kind": "FTS", "language": "english"}}, "is 'English' meant"),
        ({"t": {"kind": "FTS", "language": "Klingon"}}, "no language 'Klingon'; there are Arabic"),
        ({"t": {"kind": "FTS", "block_size": 64}}, "no block_size 64"),
        ({"t": {"kind": "FTS", "min_ngram_length": 9, "max_ngram_length": 2}}, "min_ngram_length, 9, is above"),
        ({"t": {"kind": "FTS", "max_ngram_length": 2}}, "min_ngram_length, 3, is above max_ngram_length, 2"),
        ({"t": {"kind": "FTS", "name": "__lance_frag_reuse"}}, "Lance's own indices"),
        ({"id": {"kind": "BTREE", "name": "__lance_x"}}, "Lance's own indices"),
        ({"a": {"kind": "FTS", "name": "x"}, "b": {"kind": "FTS", "name": "x"}}, "given to two columns"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_rejected_at_once(indices, part):
    with pytest.raises(InvalidInputError, match=part):
        MaintenancePolicy(indices=indices)


@pytest.mark.parametrize(
    "fields",
    [{"drop_undeclared": True}, {"index_memory": "much"}, {"index_memory": 0}, {"index_timeout": "soon"}, {"index_timeout": 0}, {"index_timeout": 10**30}, {"index_timeout": float("nan")}, {"index_timeout": float("inf")}, {"index_timeout": True}],
)  # fmt: skip
def test_limits_are_checked(fields):
    with pytest.raises(InvalidInputError):
        MaintenancePolicy(**fields)


def test_limits_are_numbers():
    policy = MaintenancePolicy(index_memory="1.5 GiB", index_timeout=90)
    assert (policy.index_memory_bytes, policy.index_timeout_s) == (3 * 2**29, 90.0)
    assert MaintenancePolicy(index_memory="4GB", index_timeout="2h").index_memory_bytes == 4 * 10**9
    assert MaintenancePolicy(index_timeout=0.5).index_timeout_s == 0.5
    assert MaintenancePolicy(index_timeout="never").index_timeout_s is None


@pytest.mark.parametrize(
    ("entry", "rows", "dimensions", "expected"),
    [
        ("IVF_FLAT", 100, 32, {"num_partitions": 1}),
        ("IVF_SQ", 1_000_000, 32, {"num_partitions": 245}),
        ("IVF_RQ", 10**9, 32, {"num_partitions": 4096}),
        ("IVF_HNSW_SQ", 1_000_000, 32, {"num_partitions": 1}),
        ("IVF_PQ", 100, 768, {"num_partitions": 1, "num_sub_vectors": 96}),
        ("IVF_PQ", 100, 100, {"num_partitions": 1, "num_sub_vectors": 10}),
        ("IVF_PQ", 100, 7, {"num_partitions": 1, "num_sub_vectors": 1}),
        ({"kind": "IVF_FLAT", "num_partitions": 256}, 10_000, 8, {"num_partitions": 256}),
        ("FTS", 10, 0, {}),
    ],
)
def test_parameters_follow_the_rule(entry, rows, dimensions, expected):
    (declaration,) = parse_declarations({"c": entry})
    assert declaration.choose_parameters(rows, dimensions) == expected


@pytest.mark.parametrize(
    ("indices", "table", "expected"),
    [
        ({"v": "IVF_PQ"}, facts(), [("v_idx", "build")]),
        ({"v": "IVF_PQ"}, facts([255]), []),
        ({"v": {"kind": "IVF_PQ", "min_rows": 2000}}, facts(), []),
        ({"t": "FTS", "id": "BTREE"}, facts([1]), [("t_idx", "build"), ("id_idx", "build")]),
        ({"t": "FTS"}, facts([]), []),
        ({"v": "IVF_PQ"}, facts(**BUILT), []),
        ({"v": "IVF_PQ"}, facts(present=[index("mine")]), [("mine", "adopt")]),
        ({"v": "IVF_PQ"}, facts(present=[index(kind="IVF_SQ")]), [("v_idx_2", "build")]),
        ({"v": "IVF_PQ"}, facts(present=[index(metric="dot")]), [("v_idx_2", "build")]),
        ({"v": {"kind": "IVF_PQ", "name": "v_idx"}}, facts(present=[index(metric="dot")]), [("v_idx", "rebuild")]),
        ({"v": {"kind": "IVF_PQ", "name": "v_idx"}}, facts(present=[index(field=9)]), [("v_idx", "reject")]),
        ({"v": {"kind": "IVF_PQ", "num_partitions": 3}}, facts(**BUILT), [("v_idx", "rebuild")]),
        ({"v": "IVF_SQ"}, facts(**BUILT), [("v_idx", "rebuild")]),
        ({"v": {"kind": "IVF_PQ", "nprobes": 3}}, facts(**BUILT), [("v_idx", "measure")]),
        ({"v": {"kind": "IVF_PQ", "min_recall": 0.8}}, facts(**BUILT), []),
        ({"v": {"kind": "IVF_PQ", "min_recall": 0.95}}, facts(**BUILT), []),  # a build does not reach it
        ({"v": "IVF_PQ"}, facts([1000, 50], **BUILT), [("v_idx", "extend")]),
        ({"v": "IVF_PQ"}, facts([1000, 2999], **BUILT), [("v_idx", "extend")]),
        ({"v": "IVF_PQ"}, facts([1000, 3000], **BUILT), [("v_idx", "rebuild")]),
        ({"v": {"kind": "IVF_PQ", "retrain_growth": 2}}, facts([1000, 1000], **BUILT), [("v_idx", "rebuild")]),
        ({"v": "IVF_PQ"}, facts([0, 1000], [index(segments=[segment(0, 0)])], {"v_idx": record(PQ)}), [("v_idx", "rebuild")]),
        ({"x": "FTS"}, facts(), [("x_idx", "reject")]),
        ({"id": "FTS"}, facts(), [("id_idx", "reject")]),
        ({"b": "IVF_FLAT"}, facts(), [("b_idx", "reject")]),
        ({"b": {"kind": "IVF_FLAT", "metric": "hamming"}}, facts(), [("b_idx", "build")]),
        ({"v": {"kind": "IVF_PQ", "num_sub_vectors": 5}}, facts(), [("v_idx", "reject")]),
    ],
)  # fmt: skip
def test_what_is_due(indices, table, expected):
    assert due(indices, table) == expected


def test_recall_that_a_build_can_raise_is_a_reason_to_build():
    declared = {"v": {"kind": "IVF_PQ", "min_recall": 0.95}}
    (declaration,) = parse_declarations(declared)
    known = record(declaration)
    grown = replace(known, recall={**known.recall, "fresh_value": 0.97})
    unknown = replace(known, recall={**known.recall, "fresh_value": None})
    for each in (grown, unknown):
        assert due(declared, facts(present=[index()], records={"v_idx": each})) == [("v_idx", "rebuild")]


def test_without_pylance_only_scalar_indices_are_built():
    assert due({"v": "IVF_PQ", "id": "BTREE"}, facts(), pylance=None) == [("v_idx", "install"), ("id_idx", "build")]


def test_undeclared_indices_are_dropped_on_demand_and_zone_maps_stay():
    present = [index(), index("t_idx", "FTS", None, 2), index("id_idx", "ZONEMAP", None, 3)]
    table = facts(present=present, records={"v_idx": record(PQ)})
    assert due({"v": "IVF_PQ"}, table) == []
    assert due({"v": "IVF_PQ"}, table, drop_undeclared=True) == [("t_idx", "drop")]


def failed(action="build", count=1, needs_build=True, is_error=False):
    failure = {"action": action, "reason": "x", "pylance": "14", "build": PQ.build_key, "needs_build": needs_build}
    failure["is_error"] = is_error
    earlier = None
    for _ in range(count):
        earlier = describe_failure(earlier, NOW, **failure)
    return earlier


@pytest.mark.parametrize(("count", "hours"), [(1, 1), (2, 2), (4, 8), (30, 24 * 7)])
def test_the_waits_after_failures_grow(count, hours):
    table = facts(records={"v_idx": IndexRecord(column="v", build=PQ.build_key, failure=failed(count=count))})
    wait = timedelta(hours=hours)
    assert due({"v": "IVF_PQ"}, table, now=NOW + wait - timedelta(seconds=1)) == [("v_idx", "wait")]
    assert due({"v": "IVF_PQ"}, table, now=NOW + wait) == [("v_idx", "build")]
    assert due({"v": "IVF_PQ"}, table, pylance="15") == [("v_idx", "build")]
    assert due({"v": {"kind": "IVF_PQ", "num_bits": 4}}, table) == [("v_idx", "build")]


def test_what_failed_is_built_again():
    def table(failure):
        return facts([1000, 50], [index()], {"v_idx": record(PQ, failure=failure)})

    assert due({"v": "IVF_PQ"}, table(failed("extend"))) == [("v_idx", "wait")]
    later = NOW + timedelta(hours=1)
    assert due({"v": "IVF_PQ"}, table(failed("extend")), now=later) == [("v_idx", "rebuild")]
    for action in ("extend", "merge", "measure"):
        assert due({"v": "IVF_PQ"}, table(failed(action, is_error=True))) == [("v_idx", "rebuild")]  # at once
    assert due({"v": "IVF_PQ"}, table(failed("rebuild", is_error=True))) == [("v_idx", "wait")]
    assert due({"v": "IVF_PQ"}, table(failed("measure", needs_build=False))) == [("v_idx", "extend")]


def test_small_segments_are_merged_as_the_index_doubles():
    sizes, merges = [1000], 0
    for _ in range(300):
        merged = choose_segments_to_merge(index(segments=[segment(i, rows) for i, rows in enumerate(sizes)]), 10)
        merges += sum(each.rows for each in merged) + 10
        sizes = [rows for i, rows in enumerate(sizes) if f"segment {i}" not in {each.uuid for each in merged}]
        sizes.append(sum(each.rows for each in merged) + 10)
        assert len(sizes) < 8
    assert sum(sizes) == 4000
    assert merges < 8 * sum(sizes)


def test_many_segments_are_merged():
    segments = [segment(i, 1000) for i in range(MOST_SEGMENTS + 1)]
    table = facts([1000] * len(segments), [index(segments=segments)], {"v_idx": record(PQ, 17_000)})
    (action,) = decide((PQ,), table, now=NOW, pylance="14")
    assert (action.action, len(action.replaced), len(action.fragment_ids)) == ("merge", 17, 17)


def test_records_are_read_from_the_configuration():
    known = record(PQ, failure=failed())
    broken = {f"{RECORD_PREFIX}broken{number}": value for number, value in enumerate(("{", "null", "[" * 100_000))}
    changes = ({"failure": 1}, {"failure": {}}, {"recall": 5}, {"recall": {}}, {"build": 3}, {"trained_rows": "many"})
    broken |= {
        f"{RECORD_PREFIX}changed{number}": json.dumps({**json.loads(known.to_json()), **change})
        for number, change in enumerate(changes)
    }
    config = {RECORD_PREFIX + "v_idx": known.to_json(), **broken, "other": "x"}
    assert read_records(config) == {"v_idx": known}


def test_pylance_that_a_finder_of_modules_hides_is_not_installed(monkeypatch):
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "lance":
                raise ModuleNotFoundError("No module named 'lance'", name=name)

    monkeypatch.delitem(sys.modules, "lance", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert find_pylance() is None


def test_words_of_rows_that_were_set_again_are_built_again():
    (words,) = parse_declarations({"t": "FTS"})
    segments = [replace(segment(i, 100), version=version) for i, version in enumerate((3, 7))]
    table = facts([100, 100, 10], [index("t_idx", "FTS", None, 2, segments)], {"t_idx": record(words, 200)})
    for oldest, expected in (
        (8, ("extend", set())),
        (7, ("merge", {"segment 1"})),
        (2, ("merge", {"segment 0", "segment 1"})),
    ):
        (action,) = decide((words,), replace(table, created={2: oldest}), now=NOW, pylance="14")
        assert (action.action, set(action.replaced)) == expected
    assert due({"t": "FTS"}, table) == [("t_idx", "extend")]  # without stable row ids a row that is set again moves


def test_of_two_indices_by_others_the_one_that_fits_is_adopted():
    first, second = (
        replace(index(name, "FTS", None, 2), parameters={"stem": stem}) for name, stem in (("a", True), ("b", False))
    )
    for declared, name in (({"stem": True}, "a"), ({"stem": False}, "b")):
        table = facts([1000], [first, second])
        assert due({"t": {"kind": "FTS", **declared}}, table) == [(name, "adopt")]
