"""Blobs inside of the data file, in files beside it and in objects by URI: read and written by both libraries."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.blob import Blob, blob_array, blob_field

import lance_core
from lance_core.encoding.structural.blob import Descriptor
from lance_core.errors import CorruptFileError, InvalidInputError, ObjectNotFoundError, UnsupportedError
from lance_core.store import open_store

LARGE = bytes(range(256)) * 20_000  # a file of its own by pylance's own thresholds
PACKED = bytes(range(255)) * 300
SMALL = {"inline_size_threshold": 10, "dedicated_size_threshold": 100, "pack_file_size_threshold": 150}
RESULTS = [b"small", PACKED, LARGE, None, b"", PACKED[::-1], b"object", b"ject"]


def values(folder, results=RESULTS):
    """Values of all kinds, whose payloads are `RESULTS`."""
    folder.mkdir(exist_ok=True)
    (folder / "a b%20.bin").write_bytes(b"an object")
    (folder / "whole.bin").write_bytes(b"object")
    by_range = Blob.from_uri("file://" + quote(str(folder / "a b%20.bin")), 5, 4)
    return [*results[:-2], f"file://{folder}/whole.bin", by_range]


def table(payloads, first=0, **thresholds):
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("b", **thresholds)])
    return pa.table([pa.array(range(first, first + len(payloads))), blob_array(payloads)], schema=schema)


def descriptions(uri):
    """Descriptions, without the position of blobs that have no bytes."""
    found = lance.dataset(uri).to_table(["b"])["b"].to_pylist()
    return [one if one is None or one["size"] else {**one, "position": 0} for one in found]


def blob_files(uri):
    """The sizes of the files of blobs, by data file in the order of fragments."""
    stems = [fragment.data_files()[0].path.removesuffix(".lance") for fragment in lance.dataset(uri).get_fragments()]
    return [{path.name: path.stat().st_size for path in Path(uri, "data", stem).glob("*.blob")} for stem in stems]


def check_reads(uri, expected, **options):
    """All ways to read give the payloads, in ours as in pylance."""
    ours, theirs = lance_core.dataset(uri, **options), lance.dataset(uri, **options)
    count = len(expected)
    asked = list(range(count))
    assert ours.to_table().equals(theirs.to_table())
    assert theirs.to_table(blob_handling="all_binary")["b"].to_pylist() == expected
    read = ours.to_table(blob_handling="all_binary")
    assert read["b"].to_pylist() == expected
    assert [payload for _, payload in theirs.read_blobs("b", indices=asked)] == expected
    assert ours.read_blobs("b", indices=asked[::-1]) == theirs.read_blobs("b", indices=asked)[::-1]
    files = ours.take_blobs("b", indices=asked)
    assert [None if file is None else file.readall() for file in files] == expected
    long = [row for row in asked if expected[row] and len(expected[row]) > 3]
    assert ours.read_blob_ranges("b", [(row, 1, 2) for row in long], selector="indices") == theirs.read_blob_ranges(
        "b", [(row, 1, 2) for row in long], selector="indices"
    )
    addresses = theirs.to_table(["id"], with_row_address=True)["_rowaddr"].to_pylist()
    assert ours.read_blobs("b", addresses=addresses) == theirs.read_blobs("b", addresses=addresses)
    lazy = ours.to_pandas()["b"]
    assert [None if file is None else file.readall() for file in lazy] == expected
    scanner = ours.scanner(["b"], blob_handling="all_binary", batch_size=3)
    assert [payload for batch in scanner.to_batches() for payload in batch["b"].to_pylist()] == expected


@pytest.mark.variants(2)
@pytest.mark.parametrize("thresholds", [{}, SMALL], ids=["default", "small"])
@pytest.mark.parametrize("writers", [(lance, lance), (lance_core, lance), (lance_core, lance_core)], ids=str)
def test_all_kinds_are_read_by_both(tmp_path, writers, thresholds):
    uri = str(tmp_path / "t")
    given = values(tmp_path / "objects")
    for writer, first in zip(writers, (0, 100), strict=True):
        rows = table(given, first, **thresholds)
        writer.write_dataset(rows, uri, mode="append", allow_external_blob_outside_bases=True)
    kinds = [None if one is None else one["kind"] for one in descriptions(uri)]
    assert kinds == [0, *((2, 2) if thresholds else (1, 2)), None, 0, 2 if thresholds else 1, 3, 3] * 2
    check_reads(uri, RESULTS * 2)
    lance_core.dataset(uri).delete("id in (0, 2, 6, 100)")
    check_reads(uri, [RESULTS[row] for row in (1, 3, 4, 5, 7, 1, 2, 3, 4, 5, 6, 7)])


PAYLOADS = [b"x" * 11, b"y" * 100, b"z" * 50, b"w" * 101, b"v" * 10, b"u" * 60, b"t" * 90, b"", None]


def test_ours_writes_the_files_that_pylance_writes(tmp_path):
    for thresholds in ({}, SMALL):
        found = []
        for library in (lance, lance_core):
            uri = str(tmp_path / f"{library.__name__} {len(thresholds)}")
            payloads = [*values(tmp_path / "objects"), *PAYLOADS]
            library.write_dataset(table(payloads, **thresholds), uri, allow_external_blob_outside_bases=True)
            found.append((descriptions(uri), blob_files(uri), lance.dataset(uri).schema))
        assert found[0] == found[1]


def test_a_column_of_bytes_that_is_marked_as_blobs_takes_thresholds_too(tmp_path):
    metadata = {"lance-encoding:blob": "true", "lance-encoding:blob-inline-size-threshold": "3"}
    schema = pa.schema([pa.field("b", pa.large_binary(), metadata=metadata)])
    found = []
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        library.write_dataset(pa.table([pa.array([b"abc", b"abcd", None], pa.large_binary())], schema=schema), uri)
        found.append((descriptions(uri), blob_files(uri), lance.dataset(uri).schema))
        check = lance_core.dataset(uri).to_table(blob_handling="all_binary")["b"].to_pylist()
        assert check == [b"abc", b"abcd", None]
    assert found[0] == found[1]


def test_payloads_filter_and_are_stored_again(tmp_path):
    uri, folder = str(tmp_path / "t"), tmp_path / "objects"
    lance.write_dataset(table(values(folder), **SMALL), uri, allow_external_blob_outside_bases=True)
    ours = lance_core.dataset(uri)
    for condition in (pc.field("id") > 4, "id in (1, 3, 7)"):
        read = ours.to_table(["b"], filter=condition, blob_handling="all_binary")
        assert read.equals(lance.dataset(uri).to_table(["b"], filter=condition, blob_handling="all_binary"))
    stored = ours.to_table(blob_handling="as_stored")["b"].to_pylist()
    assert stored[1] == {"data": PACKED, "uri": None, "position": None, "size": None}
    assert stored[6] == {"data": None, "uri": f"file://{folder}/whole.bin", "position": None, "size": None}
    assert stored[7]["size"] == 4
    assert stored[7]["uri"].endswith("a%20b%2520.bin")
    with pytest.raises(InvalidInputError, match="allow_external_blob_outside_bases"):
        lance_core.write_dataset(ours, str(tmp_path / "rejected"))
    assert not list((tmp_path / "rejected").rglob("*.*"))
    lance_core.write_dataset(ours, str(tmp_path / "copy"), allow_external_blob_outside_bases=True)
    check_reads(str(tmp_path / "copy"), RESULTS)


def test_objects_below_base_paths(tmp_path):
    folder = tmp_path / "ob jects"
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        place = library.DatasetBasePath("file://" + quote(str(folder)), "media")
        rows = table([value.replace(" ", "%20") if isinstance(value, str) else value for value in values(folder)])
        library.write_dataset(rows, uri, initial_bases=[place])
        check_reads(uri, RESULTS)
        copy = lance_core.write_dataset(lance_core.dataset(uri), f"{uri} copy", allow_external_blob_outside_bases=True)
        check_reads(copy.uri, RESULTS)


KIND = blob_field("b").type.storage_type
WRONG = {
    "neither": {},
    "both": {"data": b"x", "uri": "file:///tmp/x"},
    "empty": {"uri": ""},
    "half": {"uri": "file:///tmp/x", "position": 1},
    "nothing": {"uri": "file:///tmp/x", "position": 1, "size": 0},
    "range of data": {"data": b"x", "position": 0, "size": 1},
    "a path": {"uri": "/tmp/x"},
    "relative": {"uri": "x"},
    "credentials": {"uri": "s3://key:secret@bucket/x"},
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_are_no_blobs_are_rejected_and_leave_nothing(tmp_path, name):
    field = pa.field("b", KIND, metadata={"ARROW:extension:name": "lance.blob.v2"})
    rows = pa.table([pa.array([{"data": LARGE}, {"data": PACKED}, WRONG[name]], KIND)], schema=pa.schema([field]))
    for library in (lance_core, lance) if name != "credentials" else (lance_core,):
        with pytest.raises((InvalidInputError, OSError)) as failure:
            library.write_dataset(rows, str(tmp_path / library.__name__), allow_external_blob_outside_bases=True)
        assert "secret" not in str(failure.value)
    assert not [path for path in (tmp_path / "lance_core").rglob("*") if path.is_file()]


@pytest.mark.parametrize("threshold", ["abc", "-1", ""])
def test_thresholds_that_are_no_numbers_are_rejected(tmp_path, threshold):
    field = blob_field("b").with_metadata({"lance-encoding:blob-inline-size-threshold": threshold})
    rows = pa.table([blob_array([b"x"])], schema=pa.schema([field]))
    for library in (lance, lance_core):
        with pytest.raises((InvalidInputError, OSError), match="blob-inline-size-threshold"):
            library.write_dataset(rows, str(tmp_path / library.__name__))


def test_lost_files_of_blobs_are_named(tmp_path):
    uri, folder = str(tmp_path / "t"), tmp_path / "objects"
    lance.write_dataset(table(values(folder)), uri, allow_external_blob_outside_bases=True)
    ours = lance_core.dataset(uri)
    (folder / "whole.bin").unlink()
    with pytest.raises(ObjectNotFoundError, match=r"whole\.bin"):
        ours.read_blobs("b", indices=[6])
    blobs = sorted((tmp_path / "t" / "data").rglob("*.blob"))
    blobs[0].write_bytes(b"short")
    blobs[1].unlink()
    with pytest.raises((CorruptFileError, ObjectNotFoundError, OSError), match=r"\.blob"):
        ours.to_table(blob_handling="all_binary")
    assert ours.count_rows() == len(RESULTS)
    assert ours.read_blobs("b", indices=[0, 7]) == [(0, b"small"), (7, b"ject")]


def test_managed_blobs_are_rejected_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("lance_core.file.writer.external", lambda _, __: Descriptor(4, 0, 0, 0, "x"))
    rows = table(["file:///tmp/x"])
    lance_core.write_dataset(rows, str(tmp_path / "t"), allow_external_blob_outside_bases=True)
    with pytest.raises(UnsupportedError, match="managed blobs"):
        lance_core.dataset(str(tmp_path / "t")).read_blobs("b", indices=[0])


@pytest.mark.variants(2)
@pytest.mark.parametrize("writer", [lance, lance_core])
@pytest.mark.parametrize("below", [False, True], ids=["absolute", "below a base path"])
def test_objects_and_files_of_blobs_on_s3(s3, writer, below):
    """Objects in another bucket, read with the storage options of the table; names with escapes."""
    place, options = open_store(f"s3://{s3.new_bucket()}/media", s3.storage_options), s3.storage_options
    place.put("a b%20.bin", b"escaped")
    place.put("a b .bin", b"another object")
    place.put("whole.bin", b"0123456789")
    results = [b"escaped", b"0123456789", b"234", PACKED, LARGE, b"", None]
    by_uri = [f"{place.root}/a%20b%2520.bin", f"{place.root}/whole.bin", Blob.from_uri(f"{place.root}/whole.bin", 2, 3)]
    uri = f"s3://{s3.new_bucket()}/t"
    how = {"allow_external_blob_outside_bases": True}
    if below:
        how = {"initial_bases": [writer.DatasetBasePath(place.root, "media")]}
    if below and writer is lance:
        by_uri[0] = f"{place.root}/a b%2520.bin"
    writer.write_dataset(table([*by_uri, *results[3:]]), uri, storage_options=options, **how)
    check_reads(uri, results, storage_options=options)
    ours = lance_core.dataset(uri, storage_options=options)
    ours.update({"id": "id + 10"}, where="id != 4")
    ours.optimize.compact_files()
    order = sorted(range(7), key=lambda row: row if row == 4 else row + 10)
    read = lance.dataset(uri, storage_options=options).to_table(blob_handling="all_binary").sort_by("id")
    assert read["b"].to_pylist() == [results[row] for row in order]
    ours.cleanup_old_versions(timedelta(0), delete_unverified=True)
    check_reads(uri, ours.to_table(blob_handling="all_binary")["b"].to_pylist(), storage_options=options)


def test_objects_of_unknown_size_are_read_a_few_at_a_time(tmp_path):
    (tmp_path / "object").write_bytes(b"payload")
    rows = table([(tmp_path / "object").as_uri()] * 20)
    made = lance_core.write_dataset(rows, tmp_path / "t", allow_external_blob_outside_bases=True)
    batches = list(made.to_batches(columns=["b"], blob_handling="all_binary"))
    assert pa.Table.from_batches(batches)["b"].to_pylist() == [b"payload"] * 20
    assert max(batch.num_rows for batch in batches) <= 8
    assert len(list(made.to_batches(columns=["b"], blob_handling="as_stored"))) == 1
