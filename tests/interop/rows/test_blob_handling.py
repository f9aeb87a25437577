"""How columns of blobs come from scans: descriptions and payloads, as from pylance."""

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import LanceError

PAYLOADS = [b"a" * 10, None, b"", b"q" * 5000, b"zz"]
FIELD = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true", "note": "kept"})
SCHEMA = pa.schema([pa.field("id", pa.int64()), FIELD, pa.field("x", pa.binary())])
VERSIONS = ["2.0", "2.1", "2.2"]
HANDLINGS = [None, "all_binary", "blobs_descriptions", "all_descriptions"]


def rows(payloads=PAYLOADS):
    count = len(payloads)
    return pa.table([pa.array(range(count)), pa.array(payloads, pa.large_binary()), [b"1"] * count], schema=SCHEMA)


@pytest.fixture(params=[lance, lance_core], ids=["pylance", "lance_core"])
def write(request, tmp_path):
    def written(version, table=None):
        table = rows() if table is None else table
        request.param.write_dataset(table, tmp_path / "t", data_storage_version=version, max_rows_per_file=3)
        return lance.dataset(tmp_path / "t"), lance_core.dataset(tmp_path / "t")

    return written


def same(ours, theirs, version):
    """The same rows and columns; but nulls of 2.0 are null in ours."""
    assert ours.schema.equals(theirs.schema, check_metadata=True), (ours.schema, theirs.schema)
    found, wanted = ours.to_pylist(), theirs.to_pylist()
    if version == "2.0":
        wanted = [
            {k: None if isinstance(v, dict) and v == {"position": 1, "size": 0} else v for k, v in row.items()}
            for row in wanted
        ]
    assert found == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_all_readers_give_what_pylance_gives(write, version):
    theirs, ours = write(version)
    for handling in HANDLINGS:
        for columns in (None, ["b"], ["id"], ["b", "id"], {"c": "b", "id": "id + 1"}):
            asked = {"columns": columns, "blob_handling": handling}
            same(ours.to_table(**asked), theirs.to_table(**asked), version)
        for asked in ({"filter": "id > 1"}, {"with_row_id": True}, {"limit": 2, "offset": 1}, {"order_by": ["id"]}):
            same(
                ours.to_table(blob_handling=handling, **asked),
                theirs.to_table(blob_handling=handling, **asked),
                version,
            )
        batches = list(ours.to_batches(blob_handling=handling))
        same(pa.Table.from_batches(batches), theirs.to_table(blob_handling=handling), version)
        fragment, other = ours.get_fragments()[1], theirs.get_fragments()[1]
        same(fragment.to_table(blob_handling=handling), other.to_table(blob_handling=handling), version)
        scanner, other = ours.scanner(blob_handling=handling), theirs.scanner(blob_handling=handling)
        assert scanner.projected_schema.equals(other.projected_schema, check_metadata=True)
        assert scanner.dataset_schema.names == other.dataset_schema.names
        assert scanner.count_rows() == 5
    same(ours.take([4, 0, 1]), theirs.take([4, 0, 1]), version)
    same(ours.take([4, 0], columns=["b"]), theirs.take([4, 0], columns=["b"]), version)
    same(ours._take_rows([0, 1]), theirs._take_rows([0, 1]), version)
    same(ours.head(2), theirs.head(2), version)
    same(ours.get_fragments()[0].head(2), theirs.get_fragments()[0].head(2), version)
    assert ours.sample(2).schema.equals(theirs.sample(2).schema, check_metadata=True)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    for module in (lance, lance_core):
        with pytest.raises(ValueError, match="Invalid blob_handling: nope"):
            module.dataset(ours.uri).scanner(blob_handling="nope")


@pytest.mark.parametrize("version", VERSIONS)
def test_default_options_of_scans_decide(write, version):
    _, ours = write(version)
    for handling in ("all_binary", "blobs_descriptions"):
        made = [
            module.dataset(ours.uri, default_scan_options={"blob_handling": handling}) for module in (lance_core, lance)
        ]
        same(made[0].to_table(), made[1].to_table(), version)
        same(made[0].head(1), made[1].head(1), version)
        assert made[0].schema.field("b").type == made[0].to_table().schema.field("b").type


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_see_descriptions(write, version):
    theirs, ours = write(version)
    wanted = {"b IS NULL": [1], "b IS NOT NULL": [0, 2, 3, 4], "b.size > 5": [0, 3], "b IS NOT NULL AND id < 3": [0, 2]}
    for text, ids in wanted.items():
        assert ours.to_table(["id"], filter=text)["id"].to_pylist() == ids, text
        assert ours.count_rows(text) == len(ids)
        asked = ours.to_table(["b"], filter=text)["b"].to_pylist()
        assert asked == ours.take(ids)["b"].to_pylist()
        if version == "2.2" or (version == "2.1" and "size" not in text):
            assert theirs.to_table(["id"], filter=text)["id"].to_pylist() == ids, text
    assert ours.to_table(filter=pc.field("id") > 2).num_rows == 2
    assert ours.to_table({"n": "b.size"})["n"].to_pylist() == [10, None, 0, 5000, 2]
    assert ours.to_table(["b.size"])["b.size"].to_pylist() == [10, None, 0, 5000, 2]
    with pytest.raises(LanceError):
        ours.to_table(filter="b = X'7a7a'")
    # Payloads can be asked for, and are then what the filter sees.
    binary = ours.to_table(["id", "b"], filter="b = X'7a7a'", blob_handling="all_binary")
    assert binary.to_pylist() == [{"id": 4, "b": b"zz"}]
    assert ours.to_table({"n": "b > X'70'"}, blob_handling="all_binary")["n"].to_pylist() == [
        False,
        None,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_are_deleted_by_descriptions(write, version):
    _, ours = write(version)
    with pytest.raises(LanceError):
        ours.delete("b = X'7a7a'")
    ours.delete("b IS NULL")
    ours.delete("b.size > 1000")
    assert ours.get_fragments()[0].delete("b.size = 10") is not None
    assert ours.to_table(blob_handling="all_binary")["b"].to_pylist() == [b"a" * 10, b"", b"zz"]
    assert [blob.read() for blob in lance.dataset(ours.uri).take_blobs("b", indices=range(3))] == [
        b"a" * 10,
        b"",
        b"zz",
    ]


def changed(dataset):
    """The rows that a change has changed."""
    return sorted(dataset.to_table(["id"], filter="x = X'32'")["id"].to_pylist())


@pytest.mark.parametrize("mode", ["rewrite_rows", "rewrite_columns"])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_are_updated_by_descriptions(write, version, mode):
    _, ours = write(version)
    with pytest.raises(LanceError):
        ours.update({"x": "X'32'"}, where="b = X'7a7a'", write_mode=mode)
    assert ours.update({"x": "X'32'"}, where="b.size > 5", write_mode=mode) == {"num_rows_updated": 2}
    assert changed(ours) == [0, 3]
    ours.update({"x": "X'32'"}, where=pc.field("b", "size") == 2, write_mode=mode)
    ours.update({"x": "X'32'"}, where="b IS NULL", write_mode=mode)
    assert changed(ours) == [0, 1, 3, 4]
    assert ours.to_table(blob_handling="all_binary").sort_by("id")["b"].to_pylist() == PAYLOADS


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_are_written_in_a_scope_of_descriptions(write, version):
    _, ours = write(version)
    source = pa.table({"id": [0, 3], "x": [b"2"] * 2})
    ours.write_columns(source, "id", where="b.size > 5")
    assert changed(lance_core.dataset(ours.uri)) == [0, 3]


@pytest.mark.parametrize("condition", ["b.size > 5", "b IS NULL", "b.size = 0 OR b IS NULL"])
@pytest.mark.parametrize("version", VERSIONS)
def test_merges_delete_by_descriptions(write, version, condition):
    _, ours = write(version)
    source = pa.table({"id": [0]})
    found = ours.to_table(["id"], filter=condition)["id"].to_pylist()
    kept = [row for row in range(5) if row == 0 or row not in found]
    merge = ours.merge_insert("id").when_not_matched_by_source_delete(condition)
    assert merge.execute(source)["num_deleted_rows"] == 5 - len(kept)
    assert ours.to_table(["id"])["id"].to_pylist() == kept
    with pytest.raises(LanceError):
        ours.merge_insert("id").when_not_matched_by_source_delete("b = X'7a7a'").execute(source)


@pytest.mark.parametrize("condition", ["b.size > 5", "b IS NULL", "b.size = 0 OR b IS NULL"])
def test_changes_by_descriptions_are_those_of_pylance(tmp_path, condition):
    """pylance knows the sizes of blobs whose type declares them."""
    schema = pa.schema([pa.field("id", pa.int64()), lance_core.blob_field("b"), pa.field("n", pa.int64())])
    data = pa.table([range(5), lance_core.blob_array(PAYLOADS), [0] * 5], schema=schema)
    both = [library.write_dataset(data, tmp_path / library.__name__) for library in (lance, lance_core)]
    updated, deleted = set(), set()
    for dataset in both:
        dataset.update({"n": "1"}, where=condition)
        updated.add(tuple(sorted(dataset.to_table(["id"], filter="n = 1")["id"].to_pylist())))
        merge = dataset.merge_insert("id").when_not_matched_by_source_delete(condition)
        merge.execute(pa.table({"id": [0]}))
        deleted.add(tuple(sorted(dataset.to_table(["id"])["id"].to_pylist())))
    assert len(updated) == len(deleted) == 1
    assert updated != {()}


@pytest.mark.parametrize("version", VERSIONS)
def test_pandas_frames_hold_what_pylances_hold(write, version):
    theirs, ours = write(version)
    for modes in ({}, {"blob_mode": "lazy"}):
        frames = ours.to_pandas(**modes), theirs.to_pandas(**modes)
        found, wanted = ([None if b is None else b.read() for b in frame["b"]] for frame in frames)
        assert found == wanted == PAYLOADS
        assert [list(frame.columns) for frame in frames] == [["id", "b", "x"]] * 2
    assert ours.to_pandas(blob_mode="bytes")["b"].tolist() == theirs.to_pandas(blob_mode="bytes")["b"].tolist()
    assert ours.to_pandas(["b"], blob_mode="descriptions")["b"][0]["size"] == 10
    assert ours.get_fragments()[1].to_pandas()["b"][1].read() == b"zz"
    frame = ours.scanner({"c": "b"}, filter="id > 2", with_row_address=True).to_pandas()
    assert [blob.read() for blob in frame["c"]] == PAYLOADS[3:]
    assert "_rowaddr" in frame
    with pytest.raises(ValueError, match="blob_mode"):
        ours.to_pandas(blob_mode="nope")


@pytest.mark.parametrize("version", VERSIONS)
def test_engines_are_given_what_they_ask_for(write, version):
    import duckdb

    _, ours = write(version)
    arrow = ours.to_arrow_dataset()
    assert arrow.schema.field("b").type == arrow.to_table().schema.field("b").type
    with duckdb.connect() as connection:
        connection.register("t", arrow)
        assert connection.sql("SELECT b.size FROM t ORDER BY id").fetchall() == [(10,), (None,), (0,), (5000,), (2,)]
        connection.register("bytes", lance_core.dataset(ours.uri, default_scan_options={"blob_handling": "all_binary"}))
        assert connection.sql("SELECT b FROM bytes ORDER BY id").fetchall() == [(b,) for b in PAYLOADS]
        connection.register("handle", ours)
        assert connection.sql("SELECT id FROM handle WHERE id = 1").fetchall() == [(1,)]
    query = ours.sql("SELECT b FROM dataset ORDER BY id")
    assert query.build().to_stream_reader().read_all()["b"][3].as_py()["size"] == 5000
    found = query.blob_handling("all_binary").build().to_stream_reader().read_all()
    assert found["b"].to_pylist() == PAYLOADS
    with pytest.raises(ValueError, match="blob_handling"):
        query.blob_handling("nope")


@pytest.mark.parametrize("version", VERSIONS)
def test_verbs_that_move_rows_keep_the_payloads(write, version, tmp_path):
    _, ours = write(version)
    ours.delete("id = 2")
    ours.update({"x": "X'99'"}, "id = 3")
    ours.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.table([[4, 9], pa.array([b"new", b"nine"], pa.large_binary()), [b"", b""]], schema=SCHEMA)
    )
    ours.add_columns({"y": "id * 2"})
    ours.optimize.compact_files()
    copy = ours.deep_clone(str(tmp_path / "copy"), None)
    written = lance_core.write_dataset(ours, tmp_path / "written", data_storage_version=version)
    lance_core.write_dataset(ours.get_fragments()[0], tmp_path / "part", data_storage_version=version)
    with pytest.raises(LanceError, match="all_binary"):
        lance_core.write_dataset(ours.to_table(), tmp_path / "no", data_storage_version=version)
    assert (
        lance_core.dataset(tmp_path / "part").schema.field("b").type == lance.dataset(ours.uri).schema.field("b").type
    )
    wanted = {0: PAYLOADS[0], 1: None, 3: PAYLOADS[3], 4: b"new", 9: b"nine"}
    for dataset in (ours, copy, written):
        table = lance_core.dataset(dataset.uri).to_table(blob_handling="all_binary")
        assert dict(zip(table["id"].to_pylist(), table["b"].to_pylist(), strict=True)) == wanted
    theirs = lance.dataset(ours.uri).to_table(blob_handling="all_binary")
    assert dict(zip(theirs["id"].to_pylist(), theirs["b"].to_pylist(), strict=True)) == wanted


def test_payloads_in_other_files_are_described(tmp_path):
    """pylance puts large payloads into files beside the data file, which are described here as well."""
    lance.write_dataset(rows([b"x" * 100_000, b"y"]), tmp_path / "t", data_storage_version="2.2")
    theirs, ours = lance.dataset(tmp_path / "t"), lance_core.dataset(tmp_path / "t")
    same(ours.to_table(), theirs.to_table(), "2.2")
    assert ours.count_rows("b.kind = 1") == 1


def test_blob_arrays_of_pylance(tmp_path):
    table = pa.table({"id": range(5), "b": lance.blob_array(PAYLOADS)})
    lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    theirs, ours = lance.dataset(tmp_path / "t"), lance_core.dataset(tmp_path / "t")
    for handling in HANDLINGS:
        same(ours.to_table(blob_handling=handling), theirs.to_table(blob_handling=handling), "2.2")


def test_columns_of_0_1_hold_payloads(tmp_path):
    """pylance panics unless it is asked for bytes."""
    lance.write_dataset(rows([b"abc", b"d"]), tmp_path / "t", data_storage_version="0.1")
    assert lance_core.dataset(tmp_path / "t").to_table()["b"].to_pylist() == [b"abc", b"d"]
