"""Blobs inside of structs and lists: in 2.2 as pylance writes, reads and changes them; those of older files are read."""

import lance
import numpy as np
import pandas as pd  # noqa: TID253 -- compares frames
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.verbs.scan import blob_payloads

MARK = {"lance-encoding:blob": "true"}
MARKED = pa.field("b", pa.large_binary(), metadata=MARK)
TYPED = blob_field("b", inline_size_threshold=10, dedicated_size_threshold=100)
PAYLOADS = [b"abc", None, b"", b"m" * 50, b"l" * 500, b"x"]
STRUCT = pa.struct([MARKED, pa.field("n", pa.int64())])
ITEM = {"b": b"abc", "n": 1}
SHAPES = {
    "struct": (STRUCT, [ITEM, {"b": None, "n": 2}, None, {"b": b"", "n": 3}, {"b": b"q" * 70_000, "n": None}]),
    "struct of structs": (pa.struct([("s", STRUCT)]), [{"s": ITEM}, None, {"s": None}, {"s": {"b": b"", "n": 0}}]),
    "list": (pa.list_(MARKED), [[b"abc", None], [], None, [b""], [b"q" * 70_000, b"r"]]),
    "large list": (pa.large_list(MARKED), [[b"abc", None], [], None, [b""]]),
    "list of structs": (pa.list_(STRUCT), [[ITEM, None, {"b": None, "n": 2}], [], None, [ITEM]]),
    "struct of lists": (pa.struct([("s", pa.list_(MARKED))]), [{"s": [b"abc", None]}, None, {"s": None}, {"s": []}]),
    "list of lists": (pa.list_(pa.list_(MARKED)), [[[b"abc"], [], None, [None, b"x"]], [], None, [[b""]]]),
    "only nulls": (STRUCT, [{"b": None, "n": 1}, None]),
    "binary": (pa.struct([MARKED.with_type(pa.binary())]), [{"b": b"abc"}, None]),
}


def rows_of(shape):
    kind, values = SHAPES[shape]
    return pa.table({"id": range(len(values)), "s": pa.array(values, kind)})


def typed(shape):
    """Blobs in the file, packed into a file, and in files of their own; in the last row by URI."""
    field, count = pa.field("b", TYPED.type, metadata=TYPED.metadata), len(PAYLOADS)
    blobs = blob_array(PAYLOADS)
    if shape == "struct":
        children = [blobs, pa.array(range(count))]
        column = pa.StructArray.from_arrays(children, fields=[field, pa.field("n", pa.int64())])
    else:
        offsets = pa.array([0, 2, None, 2, 4, count], pa.int32())
        column = pa.ListArray.from_arrays(offsets, blobs, type=pa.list_(field))
    return pa.table({"id": range(len(column)), "s": column})


def sizes(value):
    """A scanned value with the kind and the size of each description, since positions in files may differ."""
    if isinstance(value, dict):
        return (
            (value["kind"], value["size"]) if "kind" in value else {name: sizes(part) for name, part in value.items()}
        )
    return [sizes(part) for part in value] if isinstance(value, list | tuple) else value


def check_alike(ours, theirs):
    """Both libraries read the same from a table of ours and one of pylance's."""
    read = []
    for uri in (ours, theirs):
        for library in (lance_core, lance):
            dataset = library.dataset(uri)
            tables = [dataset.to_table(blob_handling=handling) for handling in ("all_binary", None)]
            assert dataset.count_rows() == tables[0].num_rows
            rows = [sorted(table.to_pylist(), key=lambda row: row["id"]) for table in tables]
            read.append((rows[0], sizes(rows[1]), *(table.schema for table in tables), dataset.schema))
    assert read[0] == read[1] == read[2] == read[3]
    return read[0][0]


@pytest.mark.parametrize("shape", SHAPES)
def test_blobs_are_written_and_read_as_by_pylance(tmp_path, shape):
    rows = rows_of(shape)
    for library, name in ((lance_core, "ours"), (lance, "theirs")):
        library.write_dataset(rows, tmp_path / name, data_storage_version="2.2")
        library.write_dataset(rows, tmp_path / name, mode="append")
    for library, name in ((lance_core, "theirs"), (lance, "ours")):
        library.write_dataset(rows, tmp_path / name, mode="append")
    assert check_alike(tmp_path / "ours", tmp_path / "theirs") == sorted(
        rows.to_pylist() * 3, key=lambda row: row["id"]
    )


@pytest.mark.parametrize("shape", ["struct", "list"])
def test_each_place_of_a_payload(tmp_path, shape):
    rows, files = typed(shape), []
    for library, name in ((lance_core, "ours"), (lance, "theirs")):
        library.write_dataset(rows, tmp_path / name)
        files.append(sorted(path.stat().st_size for path in (tmp_path / name / "data").glob("*/*.blob")))
    assert files == [[50, 500], [50, 500]]
    for library, name in ((lance, "ours"), (lance_core, "theirs")):
        library.write_dataset(rows, tmp_path / name, mode="append")
    check_alike(tmp_path / "ours", tmp_path / "theirs")


def test_hidden_payloads_are_not_stored(tmp_path):
    """Below a null struct, and in a null list."""
    blobs = pa.array([b"x", b"hidden" * 1000], pa.large_binary())
    struct = pa.StructArray.from_arrays([blobs], fields=[MARKED], mask=pa.array([False, True]))
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), blobs, type=pa.list_(MARKED), mask=pa.array([False, True])
    )
    lance_core.write_dataset(pa.table({"s": struct, "l": lists}).slice(0), tmp_path / "t")
    assert all(b"hidden" not in path.read_bytes() for path in (tmp_path / "t" / "data").iterdir())
    for library in (lance_core, lance):
        table = library.dataset(tmp_path / "t").to_table(blob_handling="all_binary")
        assert table.to_pylist() == [{"s": {"b": b"x"}, "l": [b"x"]}, {"s": None, "l": None}]


def test_sliced_rows_and_small_batches_of_payloads(tmp_path, monkeypatch):
    monkeypatch.setattr(blob_payloads, "_BATCH_BYTES", 100)
    values = [[b"%d" % i * 20, None][: i % 3] if i % 5 else None for i in range(60)]
    rows = pa.table({"id": range(60), "s": pa.array(values, pa.list_(MARKED))}).slice(7, 40)
    lance_core.write_dataset(rows, tmp_path / "t")
    dataset = lance_core.dataset(tmp_path / "t")
    batches = list(dataset.to_batches(blob_handling="all_binary"))
    assert len(batches) > 5
    assert pa.Table.from_batches(batches).to_pylist() == rows.to_pylist()
    where = {"filter": "s is not null and id % 2 = 0", "blob_handling": "all_binary"}
    assert dataset.to_table(**where).to_pylist() == [
        row for row in rows.to_pylist() if row["s"] is not None and row["id"] % 2 == 0
    ]
    assert dataset.take([39, 0], columns=["s"]).num_rows == 2


VERBS = {
    "delete": lambda d: d.delete("id = 1"),
    "update": lambda d: d.update({"id": "id + 100"}, where="id = 0"),
    "merge": lambda d: d.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(moved(d)),
    "subset": lambda d: d.merge_insert("id").when_matched_update_all().execute(pa.table({"id": [1], "n": [7]})),
    "compact": lambda d: d.optimize.compact_files(),
    "computed column": lambda d: d.add_columns({"z": "id * 2"}),
    "rename": lambda d: d.alter_columns({"path": "s", "name": "q"}),
    "drop": lambda d: d.drop_columns(["s"]),
}


def moved(dataset):
    """Its first rows with ids of which one is new; pylance cannot merge slices with blobs."""
    return dataset.rows.set_column(0, "id", pa.array(range(1, dataset.rows.num_rows + 1)))


@pytest.mark.variants(13)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("shape", ["struct", "list", "list of structs", "typed struct", "typed list"])
def test_verbs_change_tables_as_pylance_does(tmp_path, verb, shape):
    rows = typed(shape.split()[-1]) if shape.startswith("typed") else rows_of(shape)
    if shape != "struct":  # pylance cannot read rows of which all have empty lists
        rows = rows.take([i for i, value in enumerate(rows["s"].to_pylist()) if value])
    columns = {"id": range(rows.num_rows), "s": rows["s"].combine_chunks(), "n": range(rows.num_rows)}
    for library, name in ((lance_core, "ours"), (lance, "theirs")):
        library.write_dataset(pa.table(columns), tmp_path / name)
        dataset = library.write_dataset(pa.table(columns), tmp_path / name, mode="append")
        dataset.rows = pa.table(columns)
        VERBS[verb](dataset)
    check_alike(tmp_path / "ours", tmp_path / "theirs")


def test_where_pylance_panics_or_rejects(tmp_path):
    """Rows with empty lists change, slices are merged, and a whole value is set."""
    rows = rows_of("list")
    theirs = lance.write_dataset(rows, tmp_path / "t")
    with pytest.raises(OSError, match="panicked"):
        theirs.update({"id": "id + 10"}, where="id = 1")
    ours = lance_core.dataset(tmp_path / "t")
    assert ours.update({"id": "id + 10"}, where="id in (1, 2)") == {"num_rows_updated": 2}
    ours.merge_insert("id").when_matched_update_all().execute(rows.slice(3, 1).set_column(0, "id", pa.array([0])))
    ours.update({"s": "null"}, where="id = 3")
    expected = {0: [b""], 11: [], 12: None, 3: None, 4: [b"q" * 70_000, b"r"]}
    for library in (lance_core, lance):
        found = library.dataset(tmp_path / "t").to_table(blob_handling="all_binary").to_pylist()
        assert {row["id"]: row["s"] for row in found} == expected


def test_rows_with_blobs_move_rather_than_their_columns(tmp_path):
    rows = rows_of("struct").append_column("wide", pa.array([str(i) * 10_000 for i in range(5)]))
    dataset = lance_core.write_dataset(rows, tmp_path / "t")
    dataset.update({"s": "null"}, write_mode="fewest_bytes")
    assert [fragment.fragment_id for fragment in dataset.get_fragments()] == [1]
    dataset.update({"id": "id + 1"}, write_mode="fewest_bytes")
    assert [fragment.fragment_id for fragment in dataset.get_fragments()] == [1]


@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize("writer", [lance_core, lance])
def test_parts_of_structs(tmp_path, library, writer):
    writer.write_dataset(rows_of("struct"), tmp_path / "t")
    dataset = library.dataset(tmp_path / "t")
    expected = [b"abc", None, None, b"", b"q" * 70_000]
    files = dataset.take_blobs("s.b", indices=range(5))
    assert [None if file is None else file.readall() for file in files] == expected
    assert [payload for _, payload in dataset.read_blobs("s.b", indices=[4, 0])] == [expected[4], expected[0]]
    for columns in (["s.b"], {"s.b": "s.b"}):
        assert dataset.to_table(columns=columns, blob_handling="all_binary")["s.b"].to_pylist() == expected
    assert dataset.to_table(columns=["s.n"])["s.n"].to_pylist() == [1, 2, None, 3, None]
    counts = {where: dataset.count_rows(where) for where in ("s is null", "s.b is null", "s.n > 1", "s.b.size > 2")}
    assert counts == {"s is null": 1, "s.b is null": 2, "s.n > 1": 2, "s.b.size > 2": 2}
    dataset.drop_columns(["s.n"])
    table = library.dataset(tmp_path / "t").to_table(blob_handling="all_binary")
    assert table["s"].to_pylist() == [None if i == 2 else {"b": b} for i, b in enumerate(expected)]
    with pytest.raises((ValueError, InvalidInputError), match="is not a blob column"):
        dataset.take_blobs("s", indices=[0])


def test_frames_of_pandas(tmp_path):
    for shape in ("struct", "list"):
        lance_core.write_dataset(rows_of(shape), tmp_path / shape)
        for mode in ("lazy", "bytes", "descriptions"):
            frames = [library.dataset(tmp_path / shape).to_pandas(blob_mode=mode) for library in (lance_core, lance)]
            values = [frame["s"].tolist() for frame in frames]
            assert repr(plain(values[0])) == repr(plain(values[1]))
    frame = lance_core.dataset(tmp_path / "struct").to_pandas(columns=["s.b"])
    assert frame["s.b"][0].readall() == b"abc"


def plain(value):
    """Values of pandas without the numbers that its conversion of nulls makes floats."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | np.ndarray):
        return [plain(part) for part in value]
    if hasattr(value, "readall"):
        return value.readall()
    return None if pd.isna(value) else int(value) if isinstance(value, float) else value


def test_blobs_by_uri(tmp_path):
    (tmp_path / "photo.bin").write_bytes(b"0123456789")
    uri = (tmp_path / "photo.bin").as_uri()
    field = pa.field("b", TYPED.type, metadata=TYPED.metadata)
    blobs = blob_array([uri, Blob.from_uri(uri, 2, 3), b"x"])
    column = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), blobs, type=pa.list_(field))
    rows = pa.table({"id": [0, 1], "s": column})
    with pytest.raises(InvalidInputError, match=r"column 'b': the blob 'file:.*' lies outside of the dataset's base"):
        lance_core.write_dataset(rows, tmp_path / "ours")
    for library, name in ((lance_core, "ours"), (lance, "theirs")):
        library.write_dataset(rows, tmp_path / name, allow_external_blob_outside_bases=True)
    expected = [[b"0123456789", b"234"], [b"x"]]
    assert [row["s"] for row in check_alike(tmp_path / "ours", tmp_path / "theirs")] == expected
    ours = lance_core.dataset(tmp_path / "ours")
    report = ours.erase_rows("id = 0", dry_run=True)
    assert [finding.kind for finding in report.obstacles] == ["blobs"]
    assert not ours.erase_rows("id = 1", dry_run=True).obstacles
    ours.update({"id": "id + 1"})
    assert [row["s"] for row in ours.to_table(blob_handling="all_binary").to_pylist()] == expected


def test_rejected_by_name(tmp_path):
    vector = pa.table({"s": pa.array([[ITEM, ITEM]], pa.list_(STRUCT, 2))})
    kind = pa.map_(pa.string(), MARKED)
    mapped = pa.table([pa.nulls(1, kind)], schema=pa.schema([("s", kind)]))
    text = pa.table({"s": pa.array([{"b": "x"}], pa.struct([MARKED.with_type(pa.string())]))})
    packed = pa.field("s", STRUCT, metadata={"packed": "true"})
    cases = [
        (mapped, UnsupportedError, "field 's' of column 's': blobs cannot be inside of a map; use a list of structs"),
        (vector, UnsupportedError, "blobs cannot be inside of a fixed size list; use a list of any length"),
        (text, SchemaError, r"column 's\.b' with the metadata .* must be of type large_binary, not string"),
        (pa.table([pa.array([ITEM], STRUCT)], schema=pa.schema([packed])), UnsupportedError, "cannot be packed"),
    ]
    for rows, error, message in cases:
        with pytest.raises(error, match=message):
            lance_core.write_dataset(rows, tmp_path / "t")
        assert not (tmp_path / "t").exists()
    dataset = lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "u")
    rows = rows_of("struct").slice(0, 1)
    for add in (
        rows.schema.field("s"),
        pa.RecordBatchReader.from_batches(rows.select(["s"]).schema, rows.select(["s"]).to_batches()),
    ):
        with pytest.raises(
            UnsupportedError, match=r"field 's\.b': blobs inside of other types are offered in new tables"
        ):
            dataset.add_columns(add)
    described = lance_core.write_dataset(rows, tmp_path / "v").to_table()
    with pytest.raises(SchemaError, match=r"column 's\.b' holds descriptions of blobs"):
        lance_core.write_dataset(described, tmp_path / "w")


OLD = pa.struct([MARKED, pa.field("n", pa.int64())])
OLD_STRUCTS = (OLD, [{"b": b"abc", "n": 1}, {"b": None, "n": 2}])
OLD_LISTS = (pa.list_(MARKED), [[b"abc"], [b"x" * 100, b""]])


def old_tables(tmp_path, version, kind, values):
    rows = pa.table({"id": [1, 2], "s": pa.array(values, kind)})
    theirs = lance.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    lance.write_dataset(rows, tmp_path / "t", mode="append")
    theirs.checkout_latest()
    return rows, theirs, lance_core.dataset(tmp_path / "t")


@pytest.mark.parametrize(("version", "shape"), [("2.0", OLD_STRUCTS), ("2.0", OLD_LISTS), ("2.1", OLD_STRUCTS)])
def test_rows_of_older_files_are_read_and_deleted(tmp_path, version, shape):
    rows, theirs, ours = old_tables(tmp_path, version, *shape)
    assert ours.to_table(blob_handling="all_binary").to_pylist() == rows.to_pylist() * 2
    if version != "2.0":  # of whose nulls pylance returns the positions
        assert ours.to_table().to_pylist() == theirs.to_table().to_pylist()
    assert ours.to_table().schema == theirs.to_table().schema
    ours.delete("id = 1")
    theirs.checkout_latest()
    assert theirs.count_rows() == 2
    assert [row["id"] for row in theirs.to_table().to_pylist()] == [2, 2]


@pytest.mark.parametrize(("version", "shape"), [("2.0", OLD_STRUCTS), ("2.0", OLD_LISTS), ("2.1", OLD_STRUCTS)])
def test_rows_of_older_files_are_not_written(tmp_path, version, shape):
    rows, theirs, ours = old_tables(tmp_path, version, *shape)
    before = theirs.to_table().to_pylist()
    changes = {
        "insert": lambda: ours.insert(rows),
        "compact": ours.optimize.compact_files,
        "update": lambda: ours.update({"s": "null"}, where="id = 1"),
        "merge": lambda: ours.merge_insert("id").when_matched_update_all().execute(rows),
    }
    message = r"blobs of 2\.0 and 2\.1 inside of other types cannot be|are not stored as struct"
    for change in changes.values():
        with pytest.raises((UnsupportedError, SchemaError), match=message):
            change()
    theirs.checkout_latest()
    assert theirs.version == 2
    assert theirs.to_table().to_pylist() == before
    data = {path.name for path in (tmp_path / "t" / "data").iterdir() if path.suffix == ".lance"}
    assert len(data) == 2
