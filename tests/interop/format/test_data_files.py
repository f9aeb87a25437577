"""Data files in both directions: pylance reads what we write, we read what pylance writes."""

import random

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter

import lance_core
from lance_core.errors import UnsupportedError
from lance_core.file import DataFileWriter, FileVersion
from lance_core.schema import schema_from_arrow
from lance_core.store import open_store
from tests.arrow_data import random_table
from tests.support.data_files import read_ours, write_ours

VERSIONS = ["2.0", "2.1", "2.2"]
EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
MANY = settings(EXAMPLES, max_examples=400)


def table_for(seed, version, **arguments):
    return random_table(seed, maps=version == "2.2", null_structs=version != "2.0", requests=seed % 2 == 1, **arguments)


def pylance_can_write(path, table, version):
    """pylance 14 panics on slices of structs and writes nested nothing in a few shapes: those are no oracle."""
    try:
        with LanceFileWriter(str(path), table.schema, version=version) as writer:
            writer.write_batch(table)
        return LanceFileReader(str(path)).read_all().to_table().to_pylist()
    except (BaseException,) as error:  # noqa: B013  # the panic of a Rust extension is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def check_pylance_reads_ours(root, seed, version):
    table = table_for(seed, version)
    written = write_ours(root, table, version)
    expected = table.to_pylist()
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(table.num_rows), min(table.num_rows, 7)))
    start = rng.randint(0, table.num_rows - 1)
    stop = rng.randint(start + 1, table.num_rows)
    path = str(root / written.key)
    assert LanceFileReader(path).read_all(batch_size=64).to_table().to_pylist() == expected
    assert LanceFileReader(path).take_rows(rows).to_table().to_pylist() == [expected[i] for i in rows]
    assert LanceFileReader(path).read_range(start, stop - start).to_table().to_pylist() == expected[start:stop]
    assert read_ours(root, written.key).to_pylist() == expected
    assert read_ours(root, written.key, rows=np.array(rows)).to_pylist() == [expected[i] for i in rows]
    assert read_ours(root, written.key, rows=range(start, stop), batch_rows=7).to_pylist() == expected[start:stop]


def check_we_read_pylance(root, seed, version):
    table = table_for(seed, version)
    expected = pylance_can_write(root / "theirs.lance", table, version)
    if expected is None:
        return
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(table.num_rows), min(table.num_rows, 7)))
    result = read_ours(root, "theirs.lance")
    # Views come back as what they are views of.
    kind = table.schema.field("c").type
    assert result.schema.field("c").type == kind or "_view" in str(kind)
    assert result.to_pylist() == expected
    assert read_ours(root, "theirs.lance", rows=np.array(rows)).to_pylist() == [expected[i] for i in rows]


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32))
@EXAMPLES
def test_pylance_reads_random_columns_of_ours(tmp_path, version, seed):
    check_pylance_reads_ours(tmp_path, seed, version)


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32))
@EXAMPLES
def test_we_read_random_columns_of_pylance(tmp_path, version, seed):
    check_we_read_pylance(tmp_path, seed, version)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32))
@MANY
def test_many_random_columns(tmp_path, version, seed):
    check_pylance_reads_ours(tmp_path, seed, version)
    check_we_read_pylance(tmp_path, seed, version)


def shapes():
    rng = np.random.default_rng(0)
    n = 6000
    words = np.array(["alpha", "beta", "gamma", "delta"])
    return {
        "sequence": pa.array(np.arange(n)),
        "random integers": pa.array(rng.integers(-(2**62), 2**62, n)),
        "few integers": pa.array(rng.integers(0, 40, n) * 10**12),
        "runs": pa.array(np.repeat(np.arange(n // 60), 60)),
        "constant": pa.array(np.full(n, 7)),
        "constant with nulls": pa.array([None if i % 3 else 7 for i in range(n)]),
        "constant string": pa.array(["hello"] * n),
        "constant lists": pa.array([["hello"] if i % 3 else [] for i in range(n)]),
        "constant decimal": pa.array([5] * n, pa.decimal256(60)),
        "constant true": pa.array([True] * n),
        "floats": pa.array(rng.random(n)),
        "small floats": pa.array(rng.random(n).astype("f4")),
        "timestamps": pa.array(np.arange(n) * 1_000_003 + 1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        "words": pa.array(words[rng.integers(0, 4, n)]),
        "strings": pa.array([f"the quick brown fox number {i} jumps over {i * 7}" for i in range(n)]),
        "large strings": pa.array([f"text {i} " * (i % 50) for i in range(n)], pa.large_string()),
        "one long text": pa.array(["x" * 3000 if i == 77 else f"v{i}" for i in range(n)]),
        "documents": pa.array([f"line {i} of a document " * (100 + i % 900) for i in range(200)]),
        "huge values": pa.array([bytes([i]) * 50_000 for i in range(40)], pa.binary()),
        "nullable bytes": pa.array([None if i % 5 == 0 else b"x" * (i % 7) for i in range(n)], pa.binary()),
        "vectors": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(n * 16).astype("f4")), 16),
        "wide vectors": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(600 * 128).astype("f4")), 128),
        "null vectors": pa.array(
            [None if i % 4 == 0 else [1.0, None] * 64 for i in range(500)], pa.list_(pa.float32(), 128)
        ),
        "lists of vectors": pa.array(
            [[[float(j)] * 128 for j in range(i % 4)] if i % 5 else None for i in range(400)],
            pa.list_(pa.list_(pa.float32(), 128)),
        ),
        "lists of strings": pa.array(
            [["x" * 300 * (i % 3) + str(i)] * (i % 4) if i % 5 else None for i in range(2000)]
        ),
        "long lists": pa.array([list(range(i * 3000)) for i in range(5)]),
        "matrices": pa.array([[[1.0, i], [2.0, 3.0]] for i in range(n)], pa.list_(pa.list_(pa.float32(), 2), 2)),
        "nothing": pa.array([[None] * 3] * n, pa.list_(pa.null(), 3)),
        "nothing or null": pa.array([[None] * 3 if i % 3 else None for i in range(n)], pa.list_(pa.null(), 3)),
        "dictionary": pa.array(words[rng.integers(0, 4, n)]).dictionary_encode(),
        "fixed size lists of lists": pa.array(
            [[[1, 2, i]] * 2 if i % 5 else None for i in range(1000)], pa.list_(pa.list_(pa.int32(), 3), 2)
        ),
    }


@pytest.mark.variants(24)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", list(shapes()))
def test_shapes_both_ways(tmp_path, version, name):
    array = shapes()[name]
    table = pa.table({"c": array})
    expected = table.to_pylist()
    write_ours(tmp_path, table, version, batch_rows=1000, page_bytes=40_000)
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == expected
    assert read_ours(tmp_path, "ours.lance").to_pylist() == expected
    with LanceFileWriter(
        str(tmp_path / "theirs.lance"), table.schema, version=version, data_cache_bytes=40_000
    ) as writer:
        for batch in table.to_batches(max_chunksize=1000):
            writer.write_batch(batch)
    assert read_ours(tmp_path, "theirs.lance").to_pylist() == expected
    rows = np.arange(0, len(array), 37)
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(tmp_path, key, rows=rows).to_pylist() == [expected[i] for i in rows]
        assert read_ours(tmp_path, key, rows=range(3, len(array) - 1), batch_rows=None).to_pylist() == expected[3:-1]


FIELD_METADATA = [
    {"lance-encoding:compression": "zstd"},
    {"lance-encoding:compression": "lz4"},
    {"lance-encoding:compression": "none"},
    {"lance-encoding:structural-encoding": "fullzip"},
    {"lance-encoding:structural-encoding": "miniblock"},
]


@pytest.mark.variants(11)
@pytest.mark.parametrize("metadata", FIELD_METADATA, ids=str)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values",
    [[f"hello world {i % 1000}" for i in range(5000)], [i * i for i in range(5000)]],
    ids=["strings", "integers"],
)
def test_field_metadata(tmp_path, version, metadata, values):
    array = pa.array(values)
    table = pa.table([array], pa.schema([pa.field("c", array.type, metadata=metadata)]))
    write_ours(tmp_path, table, version)
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == table.to_pylist()
    assert read_ours(tmp_path, "ours.lance").to_pylist() == table.to_pylist()
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version=version) as writer:
        writer.write_batch(table)
    assert read_ours(tmp_path, "theirs.lance").to_pylist() == table.to_pylist()


POINT = pa.struct([("x", pa.int32())])
PATH = pa.struct([("x", pa.int32()), ("steps", pa.list_(pa.int16()))])


def points(i):
    return [{"x": i}, None if i % 7 == 0 else {"x": None if i % 5 == 0 else -i}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([("a", pa.list_(POINT, 2))]), lambda i: None if i % 11 == 0 else {"a": points(i) if i % 3 else None}),
        (pa.struct([("a", pa.struct([("b", pa.list_(POINT, 2))]))]), lambda i: {"a": {"b": points(i)} if i % 3 else None}),
        (pa.list_(pa.struct([("a", pa.list_(POINT, 2))]), 3), lambda i: [{"a": points(i)}, None, {"a": None}]),
        (pa.list_(pa.struct([("s", POINT)]), 2), lambda i: [{"s": {"x": i}}, {"s": None} if i % 3 else None]),
        (pa.list_(PATH, 2), lambda i: [{"x": i, "steps": [1] * (i % 3)}, {"x": 1, "steps": None} if i % 3 else None]),
    ],
    ids=["in structs", "deeper in structs", "in each other", "of structs of structs", "of lists"],
)  # fmt: skip
def test_fixed_size_lists_of_structs_at_every_level(tmp_path, kind, value):
    table = pa.table({"c": pa.array([value(i) for i in range(700)], kind)})
    expected = table.to_pylist()
    write_ours(tmp_path, table, batch_rows=300)
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version="2.2") as writer:
        writer.write_batch(table)
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == expected
    rows = np.array([3, 7, 500, 699])
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(tmp_path, key).to_pylist() == expected
        assert read_ours(tmp_path, key, rows=rows).to_pylist() == [expected[i] for i in rows]
        assert read_ours(tmp_path, key, rows=range(100, 350)).to_pylist() == expected[100:350]


def test_fixed_size_lists_of_structs_beside_other_fields(tmp_path):
    """pylance 14 writes them, but cannot read them."""
    kind = pa.struct([("a", pa.list_(POINT, 2)), ("b", pa.int8())])
    table = pa.table({"c": pa.array([{"a": points(i), "b": i % 100} if i % 3 else None for i in range(700)], kind)})
    write_ours(tmp_path, table)
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version="2.2") as writer:
        writer.write_batch(table)
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(tmp_path, key).to_pylist() == table.to_pylist()


@pytest.mark.variants(14)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "most"), [(pa.int8(), 128), (pa.uint8(), 256)], ids=str)
@pytest.mark.parametrize("less", [0, 1, 2])
@pytest.mark.parametrize("nulls", [False, True])
def test_dictionaries_as_large_as_their_indices_allow(tmp_path, version, kind, most, less, nulls):
    count = most - less
    indices = pa.array([None if nulls and i % 7 == 0 else i % count for i in range(2000)], kind)
    items = pa.array([f"value {i}" for i in range(count)])
    table = pa.table({"c": pa.DictionaryArray.from_arrays(indices, items)})
    if nulls and version == "2.0" and not less:
        # There null is one more item.
        with pytest.raises(UnsupportedError, match=r"use a wider index type, or version 2\.1 or later"):
            write_ours(tmp_path, table, version)
        assert pylance_can_write(tmp_path / "theirs.lance", table, version) is None
        return
    write_ours(tmp_path, table, version)
    assert pylance_can_write(tmp_path / "theirs.lance", table, version) == table.to_pylist()
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == table.to_pylist()
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(tmp_path, key).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("version", VERSIONS)
def test_structs_without_fields_beside_others(tmp_path, version):
    table = pa.table({"c": pa.array([{"b": [i], "a": {}} for i in range(50)])})
    write_ours(tmp_path, table, version)
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version=version) as writer:
        writer.write_batch(table)
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == table.to_pylist()
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(tmp_path, key).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("version", [*VERSIONS, "0.1"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string(), 2),
        pa.list_(pa.dictionary(pa.int8(), pa.string()), 2),
        pa.list_(pa.list_(pa.int8()), 2),
        pa.list_(pa.int8(), 0),
        pa.list_(POINT, 0),
        pa.dictionary(pa.int8(), pa.timestamp("us")),
        pa.dictionary(pa.int8(), pa.decimal128(5)),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_types_that_the_reference_library_cannot_hold_are_rejected(tmp_path, version, kind):
    """It panics, writes what it cannot read, or rejects them."""
    table = pa.table({"c": pa.nulls(3, kind)})
    with pytest.raises(UnsupportedError, match=r"(column|field) 'c'"):
        write_ours(tmp_path, table, version)
    assert not list(tmp_path.iterdir())


def test_a_dictionary_inside_of_another_type_of_a_legacy_file_is_rejected_before_anything_is_written(tmp_path):
    kind = pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))])
    with pytest.raises(UnsupportedError, match=r"field 'd': a 0\.1 file cannot hold a dictionary inside"):
        DataFileWriter(
            open_store(str(tmp_path)), "f", schema_from_arrow(pa.schema([("c", kind)])), version=FileVersion.V0_1
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["0.1", "2.0"])
@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.int8()), pa.list_(pa.map_(pa.string(), pa.int8())), pa.list_(POINT, 2)], ids=str
)
def test_types_that_an_old_version_cannot_hold_are_rejected_before_anything_is_written(tmp_path, version, kind):
    schema = schema_from_arrow(pa.schema([("c", kind)]))
    with pytest.raises(UnsupportedError, match=f"field '.*cannot be stored in a {version} file: write version 2.2"):
        DataFileWriter(open_store(str(tmp_path)), "f", schema, version=FileVersion(version))
    assert not list(tmp_path.iterdir())


def test_fixed_size_lists_of_structs(tmp_path):
    structs = pa.StructArray.from_arrays(
        [pa.array(range(5000)), pa.array([str(i) if i % 3 else None for i in range(5000)])], ["x", "y"]
    )
    nulls = pa.array([i % 7 == 0 for i in range(1000)])
    table = pa.table({"c": pa.FixedSizeListArray.from_arrays(structs, 5, mask=nulls)})
    write_ours(tmp_path, table)
    rows = np.array([3, 7, 500, 999])
    expected = table.to_pylist()
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == expected
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version="2.2") as writer:
        writer.write_batch(table)
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(tmp_path, key).to_pylist() == expected
        assert read_ours(tmp_path, key, rows=rows).to_pylist() == [expected[i] for i in rows]


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, pa.bool_()), ([True] * 3, pa.list_(pa.bool_(), 3)), ([True, False] * 4, pa.list_(pa.bool_(), 8))],
    ids=["boolean", "threes", "eights"],
)
@pytest.mark.parametrize("rows", ["many rows", "one row"])
def test_booleans_after_more_empty_lists_than_a_chunk_can_have(tmp_path, version, value, kind, rows):
    lists, kind = [[]] * 70_000 + [[value, value]] + [[]] * 70_000, pa.list_(kind)
    array = pa.array(lists, kind) if rows == "many rows" else pa.array([lists], pa.list_(kind))
    table = pa.table({"c": array})
    if rows == "one row" and value == [True] * 3:
        # pylance rejects them, too.
        with pytest.raises(UnsupportedError, match="one row has more consecutive null or empty lists"):
            write_ours(tmp_path, table, version)
        return
    write_ours(tmp_path, table, version)
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version=version) as writer:
        writer.write_batch(table)
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table()["c"].combine_chunks().equals(array)
    assert read_ours(tmp_path, "ours.lance")["c"].combine_chunks().equals(array)
    assert read_ours(tmp_path, "theirs.lance")["c"].combine_chunks().equals(array)


@pytest.mark.parametrize("version", VERSIONS)
def test_blobs_of_pylance(tmp_path, version):
    values = [None if i % 5 == 0 else b"" if i % 7 == 0 else b"ab" * i for i in range(300)]
    schema = pa.schema([pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    table = pa.table([pa.array(values, pa.large_binary())], schema)
    with LanceFileWriter(str(tmp_path / "theirs.lance"), schema, version=version) as writer:
        writer.write_batch(table)
    assert read_ours(tmp_path, "theirs.lance").column("c").to_pylist() == values
    rows = np.array([5, 6, 7, 100, 299])
    assert read_ours(tmp_path, "theirs.lance", rows=rows).column("c").to_pylist() == [values[i] for i in rows]


def as_legacy(value, kind):
    """What 0.1 makes of a value: it has no nulls but those of strings, and no empty strings."""
    types = pa.types
    if types.is_struct(kind):
        return {f.name: as_legacy(None if value is None else value[f.name], f.type) for f in kind}
    if types.is_list(kind) or types.is_large_list(kind):
        return [as_legacy(v, kind.value_type) for v in value or []]
    return None if value in ("", b"") else value


def legacy_table():
    n = 20_000
    return pa.table(
        {
            "i": pa.array(range(n)),
            "f": pa.array([float("nan") if i == 5 else -0.0 if i == 6 else i / 3 for i in range(n)]),
            "s": pa.array([None if i % 9 == 0 else "x" * (i % 100) + str(i) for i in range(n)]),
            "b": pa.array([i % 3 == 0 for i in range(n)]),
            "l": pa.array([list(range(i % 4)) for i in range(n)]),
            "t": pa.array([{"x": i, "y": str(i)} for i in range(n)]),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(n * 2, dtype="f4")), 2),
            "d": pa.array(range(n), pa.timestamp("us")),
            "e": pa.array([i % 100 for i in range(n)], pa.int32()).cast(pa.decimal128(12, 2)),
        }
    )


def test_pylance_reads_and_filters_legacy_files_of_ours(tmp_path):
    table = legacy_table()
    written = write_ours(tmp_path, table, "0.1", batch_rows=700)
    root = str(tmp_path / "dataset")
    lance.write_dataset(table.slice(0, 3), root, data_storage_version="legacy")
    (tmp_path / "ours.lance").rename(tmp_path / "dataset" / "data" / "ours.lance")
    data_file = lance.fragment.DataFile("ours.lance", list(written.field_ids), [], 0, 2)
    fragment = lance.fragment.FragmentMetadata(0, [data_file], table.num_rows)
    dataset = lance.LanceDataset.commit(root, lance.LanceOperation.Overwrite(table.schema, [fragment]), read_version=1)
    assert dataset.to_table(["i", "s", "l", "t", "v", "d", "e"]).to_pylist() == table.drop(["f", "b"]).to_pylist()
    assert dataset.to_table(filter="i > 12345").num_rows == table.num_rows - 12346
    assert dataset.to_table(filter="f < 1").num_rows == 3 + 1
    wanted = table["s"][777].as_py()
    assert dataset.to_table(columns=["i"], filter=f"s = '{wanted}'").column("i").to_pylist() == [777]
    assert (
        dataset.take([3, 19_999], columns=["i", "l"]).to_pylist()
        == table.select(["i", "l"]).take([3, 19_999]).to_pylist()
    )


@given(seed=st.integers(0, 2**32))
@EXAMPLES
def test_we_read_random_legacy_columns_of_pylance(tmp_path, seed):
    table = random_table(seed, maps=False)
    root = tmp_path / "dataset"
    try:
        dataset = lance.write_dataset(
            table, str(root), data_storage_version="legacy", mode="overwrite", max_rows_per_group=64
        )
        expected = dataset.to_table().to_pylist()
    except (BaseException,) as error:  # noqa: B013  # the panic of a Rust extension is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return
    path = dataset.get_fragments()[0].data_files()[0].path
    assert read_ours(root / "data", path).to_pylist() == expected
    rows = np.arange(0, table.num_rows, 3)
    assert read_ours(root / "data", path, rows=rows).to_pylist() == [expected[i] for i in rows]


def test_legacy_round_trip_of_dictionaries(tmp_path):
    arrays = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c", "b"]).dictionary_encode()]
    table = pa.table({"c": pa.chunked_array(arrays).unify_dictionaries()})
    written = write_ours(tmp_path, table, "0.1", batch_rows=2)
    assert read_ours(tmp_path, "ours.lance").to_pylist() == table.to_pylist()
    assert written.dictionaries[0].to_pylist() == ["a", "b", "c"]


def test_pylance_compacts_and_filters_ours(tmp_path):
    table = pa.table(
        {
            "i": pa.array(range(20_000)),
            "s": pa.array([None if i % 11 == 0 else f"name {i % 500}" for i in range(20_000)]),
            "l": pa.array([[i, i + 1] if i % 3 else None for i in range(20_000)]),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(40_000, dtype="f4")), 2),
        }
    )
    root = str(tmp_path / "dataset")
    lance.write_dataset(table.slice(0, 10), root, data_storage_version="2.2")
    fragments = []
    for index in range(2):
        key = f"data/part{index}.lance"
        written = write_ours(tmp_path / "dataset", table.slice(index * 10_000, 10_000), key=key, batch_rows=1024)
        data_file = lance.fragment.DataFile(
            f"part{index}.lance", list(written.field_ids), list(written.column_indices), 2, 2, written.size_bytes
        )
        fragments.append(lance.fragment.FragmentMetadata(index, [data_file], 10_000))
    dataset = lance.LanceDataset.commit(root, lance.LanceOperation.Overwrite(table.schema, fragments), read_version=1)
    assert dataset.to_table().to_pylist() == table.to_pylist()
    assert dataset.count_rows("i >= 15000 and s is not null") == sum(1 for i in range(15_000, 20_000) if i % 11)
    dataset.delete("i % 5 = 0")
    dataset.optimize.compact_files(target_rows_per_fragment=100_000)
    expected = [row for row in table.to_pylist() if row["i"] % 5]
    assert sorted(dataset.to_table().to_pylist(), key=lambda row: row["i"]) == expected


BLOBS = [None if i % 5 == 0 else b"" if i % 7 == 0 else b"ab" * i for i in range(300)]
BLOB_SCHEMA = pa.schema([pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])


@pytest.mark.parametrize("version", VERSIONS)
def test_pylance_reads_blobs_of_ours(tmp_path, version):
    table = pa.table([pa.array(BLOBS, pa.large_binary())], BLOB_SCHEMA)
    written = write_ours(tmp_path, table, version, batch_rows=100, page_bytes=1000)
    assert read_ours(tmp_path, written.key).column("c").to_pylist() == BLOBS
    if version == "2.2":
        return  # there pylance's datasets want blobs of 2.2
    root = str(tmp_path / "dataset")
    lance.write_dataset(table.slice(0, 1), root, data_storage_version=version)
    (tmp_path / written.key).rename(tmp_path / "dataset" / "data" / written.key)
    numbers = FileVersion(version).manifest_numbers
    data_file = lance.fragment.DataFile(written.key, list(written.field_ids), list(written.column_indices), *numbers)
    fragment = lance.fragment.FragmentMetadata(0, [data_file], table.num_rows)
    dataset = lance.LanceDataset.commit(root, lance.LanceOperation.Overwrite(table.schema, [fragment]), read_version=1)
    rows = [1, 2, 7, 299]
    assert [blob.readall() for blob in dataset.take_blobs("c", indices=rows)] == [BLOBS[i] for i in rows]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["struct", "list"])
def test_blobs_inside_of_other_types(tmp_path, version, kind):
    item = BLOB_SCHEMA.field("c")
    values = pa.array(BLOBS, pa.large_binary())
    if kind == "struct":
        column = pa.StructArray.from_arrays([values], fields=[item])
    else:
        column = pa.ListArray.from_arrays([0, *range(1, 301, 13), 300], values, type=pa.list_(item))
    table = pa.table({"n": column})
    with pytest.raises(UnsupportedError, match=r"field 'c' of column 'n': blobs of 2\.0 and 2\.1 inside"):
        write_ours(tmp_path, table, version, batch_rows=100, page_bytes=1000)
    if kind == "list" and version != "2.0":
        return  # pylance cannot read its own
    with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version=version) as writer:
        writer.write_batch(table)
    assert read_ours(tmp_path, "theirs.lance").to_pylist() == table.to_pylist()


def test_we_read_blobs_of_2_2(tmp_path):
    table = pa.table([pa.array(BLOBS, pa.large_binary())], BLOB_SCHEMA)
    root = tmp_path / "dataset"
    dataset = lance.write_dataset(table, str(root), data_storage_version="2.2")
    metadata = {"ARROW:extension:name": "lance.blob.v2"}
    path = dataset.get_fragments()[0].data_files()[0].path
    found = lance_core.dataset(root).to_table(blob_handling="all_binary")
    assert found["c"].to_pylist() == BLOBS
    parts = ["kind", "position", "size", "blob_id", "blob_uri"]
    types = [pa.uint8(), pa.uint64(), pa.uint64(), pa.uint32(), pa.string()]
    kind = pa.struct([pa.field(name, of) for name, of in zip(parts, types, strict=True)])
    schema = schema_from_arrow(pa.schema([pa.field("c", kind, metadata=metadata)]))
    found = read_ours(root / "data", path, schema=schema, columns={0: 0}).column("c").to_pylist()
    assert [None if value is None else value["size"] for value in found] == [
        None if value is None else len(value) for value in BLOBS
    ]


def test_truths_of_which_one_differs(tmp_path):
    for count in (8, 9, 16, 17, 63, 72):
        columns = {
            f"{odd}{base}": [bool(base) ^ (row == odd) for row in range(count)]
            for odd in range(count)
            for base in (0, 1)
        }
        table = pa.table({name: pa.array(column, pa.bool_()) for name, column in columns.items()})
        uri = str(tmp_path / f"{count}")
        lance_core.write_dataset(table, uri)
        assert lance_core.dataset(uri).to_table() == lance.dataset(uri).to_table() == table
