"""The conditions that are tried for the slices of a branch: dates and times at the ends of what Python has."""

import datetime as dt

import pyarrow as pa
import pytest

import lance_core
from lance_core.verbs.refs.promotion.recognized_slices import _windows

LAST, FIRST = dt.date(9999, 12, 31), dt.date(1, 1, 1)


def test_windows_contain_their_value():
    for value in (
        dt.date(2024, 2, 29),
        dt.date(9999, 12, 30),
        FIRST,
        dt.datetime(2023, 12, 31, 23, 59),
        dt.datetime.min,
    ):
        found = list(_windows(value))
        assert found
        assert all(start <= value < end for start, end in found)
    assert list(_windows(LAST)) == list(_windows(dt.datetime(9999, 12, 31, 23, 59))) == []
    assert (dt.date(2024, 2, 1), dt.date(2024, 3, 1)) in _windows(dt.date(2024, 2, 29))
    assert (dt.date(2024, 1, 1), dt.date(2025, 1, 1)) in _windows(dt.date(2024, 2, 29))


TIMES = {
    "date32": (pa.date32(), LAST, FIRST, 2**31 - 1),
    "date64": (pa.date64(), LAST, FIRST, None),
    "seconds": (pa.timestamp("s"), dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), 2**40),
    "microseconds": (pa.timestamp("us"), dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), 2**62),
    "zone": (pa.timestamp("us", "Asia/Tokyo"), None, None, 253_402_300_799 * 10**6),
}


@pytest.mark.parametrize("kind", TIMES)
def test_dates_and_times_at_the_ends_are_promoted_after_a_cleanup(tmp_path, kind):
    of, last, first, beyond = TIMES[kind]
    number = pa.int32() if kind == "date32" else pa.int64()
    values = [pa.scalar(one, of) for one in (last, first) if one is not None]
    values += [] if beyond is None else [pa.scalar(beyond, number).cast(of)]
    end = pa.array([one.cast(number).as_py() for one in values], number).cast(of)
    rows = pa.table({"when": end, "part": ["a"] * len(end), "other": ["b"] * len(end)})
    main = lance_core.write_dataset(rows, tmp_path / "t")
    branch = main.create_branch("draft")
    conditions = {"other": lance_core.Equals("b"), "part": lance_core.Equals("a")}
    if last is not None:
        conditions = {"when": lance_core.Equals(last)}
        rows = rows.slice(0, 1)
    slices = lance_core.Slices([lance_core.Slice(name="one", conditions=conditions)])
    fragments = lance_core.write_fragments(rows, branch.uri, mode="append")
    lance_core.commit_fragments(branch.uri, fragments, rows.schema, mode="replace", slices=slices)
    others = end.slice(1, 1)
    words = pa.array(["c"] * len(others), pa.string())
    main.insert(pa.table({"when": others, "part": words, "other": words}))
    main.update_config({"a": "b"})
    main.cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
    assert [one["version"] for one in main.versions()] == [1, 3]
    lance_core.dataset(main.uri).branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows() == len(end) + len(others)
