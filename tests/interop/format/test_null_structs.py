"""Null structs whose fields have no null of their own: a single field is null there, whoever wrote the table.

Arrow hides a value below each null struct. A reader of one field alone must not see it.
"""

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.encoding import repdef
from lance_core.maintenance.verify.files import verify

ROWS = 1200
MASK = np.arange(ROWS) % 3 == 1
OUTER = np.arange(ROWS) % 7 == 2
LIBRARIES = {"ours": lance_core, "theirs": lance}
DIRECTIONS = [("ours", "theirs"), ("theirs", "ours")]


def _struct(values, mask=MASK, name="a", metadata=None):
    fields = [pa.field(name, values.type, metadata=metadata)]
    return pa.StructArray.from_arrays([values], fields=fields, mask=None if mask is None else pa.array(mask))


def _vectors(dimension):
    items = pa.array(np.arange(ROWS * dimension, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(items, dimension)


def _packed():
    pair = pa.StructArray.from_arrays([pa.array(range(ROWS)), pa.array(range(ROWS), pa.int32())], ["p", "q"])
    return _struct(pair, metadata={"lance-encoding:packed": "true"})


FULLZIP = {"lance-encoding:structural-encoding": "fullzip"}
LEAVES = {
    "numbers": _struct(pa.array(range(ROWS))),
    "one number": _struct(pa.array([5] * ROWS)),
    "flags": _struct(pa.array([i % 2 == 0 for i in range(ROWS)])),
    "strings": _struct(pa.array([f"text {i}" for i in range(ROWS)])),
    "few strings": _struct(pa.array([f"text {i % 5}" for i in range(ROWS)])),
    "long strings": _struct(pa.array([f"{i}" * 1500 for i in range(ROWS)])),
    "decimals": _struct(pa.array(range(ROWS), pa.decimal128(20, 2))),
    "dictionary": _struct(pa.array([f"text {i % 5}" for i in range(ROWS)]).dictionary_encode()),
    "zipped numbers": _struct(pa.array(range(ROWS)), metadata=FULLZIP),
    "zipped strings": _struct(pa.array([f"text {i}" for i in range(ROWS)]), metadata=FULLZIP),
    "short vectors": _struct(_vectors(2)),
    "long vectors": _struct(_vectors(600)),
    "packed": _packed(),
    "lists": _struct(pa.array([[i, i] for i in range(ROWS)])),
    "all null": _struct(pa.array(range(ROWS)), mask=np.ones(ROWS, np.bool_)),
    "few rows": _struct(pa.array([1, 7, 3]), mask=np.array([False, True, False])),
    "nothing": _struct(pa.nulls(ROWS, pa.int64())),
}


@pytest.fixture(params=["2.1", "2.2"])
def version(request):
    return request.param


def _write(path, writer, array, version, name="st"):
    table = pa.table({"id": pa.array(range(len(array))), name: array})
    LIBRARIES[writer].write_dataset(table, path, data_storage_version=version)
    return table


def _check(path, reader, table, leaf, steps):
    """Project and filter one leaf, and compare with what Python makes of the whole rows."""

    def of(row):
        value = row["st"]
        for step in steps:
            value = None if value is None else value[step]
        return value

    expected = [of(row) for row in table.to_pylist()]
    dataset = LIBRARIES[reader].dataset(path)
    assert dataset.to_table(columns={"x": leaf}).column("x").to_pylist() == expected
    assert dataset.count_rows(filter=f"{leaf} IS NOT NULL") == sum(value is not None for value in expected)
    assert dataset.count_rows(filter=f"{leaf} IS NULL") == sum(value is None for value in expected)
    rows = [row for row in (0, 1, 2, len(expected) - 2) if row < len(expected)]
    assert dataset.take(rows, columns={"x": leaf}).column("x").to_pylist() == [expected[row] for row in rows]
    assert dataset.to_table() == table


@pytest.mark.variants(17)
@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize(("writer", "reader"), DIRECTIONS)
def test_a_leaf_is_null_where_its_struct_is(tmp_path, version, name, writer, reader):
    path = str(tmp_path / "t")
    table = _write(path, writer, LEAVES[name], version)
    _check(path, reader, table, "st.a", ["a"])


@pytest.mark.parametrize(("writer", "reader"), DIRECTIONS)
def test_at_every_depth(tmp_path, version, writer, reader):
    inner = _struct(pa.array(range(ROWS)), mask=None)
    array = inner
    for depth in range(1, 5):
        array = _struct(array, mask=OUTER if depth % 2 else None, name="s")
        path = str(tmp_path / f"t{depth}")
        table = _write(path, writer, array, version)
        steps = ["s"] * depth + ["a"]
        _check(path, reader, table, ".".join(["st", *steps]), steps)


@pytest.mark.parametrize(("writer", "reader"), DIRECTIONS)
def test_structs_that_are_null_at_several_depths(tmp_path, version, writer, reader):
    values = pa.StructArray.from_arrays(
        [pa.array(range(ROWS)), pa.array([None if i % 5 == 0 else f"t{i}" for i in range(ROWS)])],
        ["a", "b"],
        mask=pa.array(MASK),
    )
    array = pa.StructArray.from_arrays([values, pa.array(range(ROWS))], ["s", "n"], mask=pa.array(OUTER))
    path = str(tmp_path / "t")
    table = _write(path, writer, array, version)
    for steps in (["s", "a"], ["s", "b"], ["n"]):
        _check(path, reader, table, ".".join(["st", *steps]), steps)


def _lists(items):
    offsets = pa.array(np.arange(0, len(items) + 1, 4, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, items)


@pytest.mark.parametrize(("writer", "reader"), DIRECTIONS)
def test_structs_in_lists_in_structs(tmp_path, version, writer, reader):
    lists = _lists(_struct(_struct(pa.array(range(ROWS)), mask=OUTER, name="b"), mask=MASK))
    array = _struct(lists, mask=np.arange(len(lists)) % 3 == 0, name="l")
    path = str(tmp_path / "t")
    table = _write(path, writer, array, version)
    dataset = LIBRARIES[reader].dataset(path)
    assert dataset.to_table() == table
    found = dataset.to_table(columns={"x": "array_element(st.l, 2)['a']['b']"}).column("x").to_pylist()
    expected = []
    for row in table.column("st").to_pylist():
        item = row and row["l"][1]
        expected.append(item and item["a"] and item["a"]["b"])
    assert found == expected


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_delete_by_pylance_takes_no_null_struct(tmp_path, version):
    path = str(tmp_path / "t")
    _write(path, "ours", _struct(pa.array([0, 0, 3]), mask=np.array([False, True, False])), version)
    lance.dataset(path).delete("st.a = 0")
    assert lance_core.dataset(path).to_table().column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_small_pages_one_after_the_other(tmp_path, version):
    """Pages with and without null structs in one column, and compacted by both libraries."""
    path = str(tmp_path / "t")
    tables = []
    for start in range(6):
        mask = np.arange(40) % 3 == 1 if start % 2 else np.zeros(40, np.bool_)
        array = _struct(pa.array(range(start, start + 40)), mask=mask)
        tables.append(pa.table({"id": pa.array(range(40)), "st": array}))
        lance_core.write_dataset(tables[-1], path, mode="append", data_storage_version=version)
    table = pa.concat_tables(tables).combine_chunks()
    _check(path, "theirs", table, "st.a", ["a"])
    lance_core.dataset(path).optimize.compact_files()
    _check(path, "theirs", table, "st.a", ["a"])
    lance.dataset(path).optimize.compact_files(target_rows_per_fragment=7)
    _check(path, "ours", table, "st.a", ["a"])


@pytest.fixture
def as_earlier_releases(monkeypatch):
    """Write as releases before this one did: "all valid" for fields below null structs."""
    with monkeypatch.context() as patch:
        patch.setattr(repdef, "_is_below_null", lambda _: False)
        yield patch


@pytest.mark.parametrize("mode", ["try_binary_copy", "force_binary_copy", "reencode"])
def test_tables_of_earlier_releases_are_found_and_mended(tmp_path, version, mode, as_earlier_releases):
    path = str(tmp_path / "t")
    inner = _struct(pa.array(range(ROWS)), mask=None)
    misread = pa.StructArray.from_arrays([inner, pa.array(range(ROWS))], ["s", "n"], mask=pa.array(MASK))
    fine = pa.StructArray.from_arrays([inner, pa.array(range(ROWS))], ["s", "n"])
    first, second = (pa.table({"id": pa.array(range(ROWS)), "st": array}) for array in (fine, misread))
    for table in (first, second):
        lance_core.write_dataset(table, path, mode="append", data_storage_version=version, max_rows_per_file=ROWS)
    as_earlier_releases.undo()
    table = pa.concat_tables([first, second]).combine_chunks()

    problems = verify(lance_core.dataset(path))
    assert [(one.fragment_id, one.message.split("'")[1]) for one in problems] == [(1, "st.s.a"), (1, "st.n")]
    assert all("repair_pages=True" in one.message for one in problems)

    # Nothing else asks for a rewrite: fragments have as many rows as they are to have.
    options = {"target_rows_per_fragment": ROWS, "compaction_mode": mode}
    dataset = lance_core.dataset(path)
    assert dataset.optimize.compact_files(**options).fragments_removed == 0
    assert (
        dataset.optimize.compact_files(**options, repair_pages=True, excluded_fragment_ids=[1]).fragments_removed == 0
    )
    assert dataset.optimize.compact_files(**options, repair_pages=True).fragments_removed == 1
    assert dataset.optimize.compact_files(**options, repair_pages=True).fragments_removed == 0
    assert verify(lance_core.dataset(path)) == []
    _check(path, "theirs", table, "st.s.a", ["s", "a"])
    _check(path, "theirs", table, "st.n", ["n"])


def test_merging_fragments_mends_them(tmp_path, version, as_earlier_releases):
    path = str(tmp_path / "t")
    tables = [pa.table({"id": pa.array(range(ROWS)), "st": LEAVES[name]}) for name in ("numbers", "one number")]
    for table in tables:
        lance_core.write_dataset(table, path, mode="append", data_storage_version=version)
    as_earlier_releases.undo()
    dataset = lance_core.dataset(path)
    assert dataset.optimize.compact_files(compaction_mode="force_binary_copy").fragments_removed == 2
    assert verify(dataset) == []
    _check(path, "theirs", pa.concat_tables(tables).combine_chunks(), "st.a", ["a"])


def test_tables_of_the_reference_are_not_reported(tmp_path, version):
    for index, array in enumerate(LEAVES.values()):
        path = str(tmp_path / f"t{index}")
        _write(path, "theirs", array, version)
        assert verify(lance_core.dataset(path)) == []


def test_the_commands_find_and_mend_them(tmp_path, as_earlier_releases):
    path = str(tmp_path / "t")
    _write(path, "ours", LEAVES["numbers"], "2.2")
    as_earlier_releases.undo()
    run = CliRunner()
    found = run.invoke(cli, ["verify", path])
    assert found.exit_code != 0
    assert "st.a" in found.output
    assert run.invoke(cli, ["compact", path, "--repair-pages"]).exit_code == 0
    assert run.invoke(cli, ["verify", path]).exit_code == 0
