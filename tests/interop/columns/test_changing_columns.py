"""Columns added, altered, dropped and merged against pylance: the same calls on two copies of one table."""

import warnings

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from tests.interop.pairs import Pair, described


def table(rows: int = 30) -> pa.Table:
    return pa.table(
        {
            "a": pa.array(range(rows), pa.int64()),
            "b": [str(i) for i in range(rows)],
            "s": [{"x": i, "y": "q"} for i in range(rows)],
            "f": pa.array([i / 4 for i in range(rows)], pa.float64()),
            "l": [[i] * (i % 3) for i in range(rows)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array([float(i) for i in range(2 * rows)], pa.float32()), 2),
        }
    )


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def pair(request, tmp_path):
    made = Pair(tmp_path, table(), max_rows_per_file=12, enable_stable_row_ids=request.param)
    made.run(lambda d, _: d.delete("a in (1, 2, 8, 13) or a > 24"))
    return made


def doubled(batch):
    return pa.record_batch([pc.multiply(batch["a"], 2)], ["twice"])


@pytest.mark.variants(4)
@pytest.mark.parametrize(
    "transforms",
    [
        {"e": "a * 2", "g": "b"},
        {"e": "s.x + a"},
        doubled,
        pa.table({"r": range(21)}),
        pa.field("n", pa.int32()),
        [pa.field("n", pa.int32()), pa.field("m", pa.list_(pa.string()))],
        pa.schema([pa.field("n", pa.struct([pa.field("z", pa.int8())]))]),
        pa.field("s", pa.struct([pa.field("z", pa.int32())])),
    ],
    ids=[
        "expressions",
        "nested",
        "function",
        "table",
        "null column",
        "null columns",
        "null struct",
        "null in a struct",
    ],
)
def test_add_columns(pair, transforms):
    pair.run(lambda d, _: d.add_columns(transforms))
    pair.run(lambda d, _: d.update({"a": "a + 1"}, "a < 5") and None)


@pytest.mark.parametrize(
    "transforms",
    [
        {"a": "a * 2"},
        {"e": "nope"},
        pa.table({"r": range(20)}),
        pa.table({"r": range(22)}),
        pa.field("n", pa.int32(), nullable=False),
        3,
    ],
)
def test_what_cannot_be_added(pair, transforms):
    pair.run(lambda d, _: d.add_columns(transforms), check=False)
    assert pair.ours.latest_version == 2


def test_a_constant_allows_nulls_although_it_has_none(pair):
    # pylance makes it non-nullable, so that concurrent appends without it conflict.
    pair.ours.add_columns({"one": "1"})
    pair.theirs.add_columns({"one": "1"})
    assert pair.ours.to_table() == pair.theirs.to_table().cast(pair.ours.schema)


def test_a_function_reads_some_columns_and_row_ids(pair):
    def rows(batch):
        assert batch.schema.names == ["a", "_rowid"]
        assert batch.num_rows <= 5
        return pa.record_batch([pc.add(batch["a"], pc.cast(batch["_rowid"], pa.int64()))], ["sum"])

    pair.run(lambda d, _: d.add_columns(rows, read_columns=["a", "_rowid"], batch_size=5))


def test_a_run_that_failed_goes_on_from_its_checkpoint(pair, tmp_path):
    calls = []

    def step(batch):
        calls.append(batch["a"][0].as_py())
        if len(calls) == 4:
            raise RuntimeError("the fourth batch fails")
        return pa.record_batch([pc.multiply(batch["a"], 3)], ["three"])

    def udf():
        return lance_core.batch_udf(pa.schema([("three", pa.int64())]), tmp_path / "kept.sqlite")(step)

    with pytest.raises(RuntimeError, match="fourth"):
        pair.ours.add_columns(udf(), batch_size=6)
    assert pair.ours.latest_version == 2
    first = len(calls)
    pair.ours.add_columns(udf(), batch_size=6)
    assert len(set(calls)) == len(calls) - 1, "only the batch that failed was done again"
    assert len(calls) > first
    assert pair.ours.to_table(columns=["a", "three"]).to_pylist() == [
        {"a": a, "three": 3 * a} for a in pair.ours.to_table()["a"].to_pylist()
    ]
    assert not (tmp_path / "kept.sqlite").exists()
    assert lance.dataset(pair.ours.uri).to_table() == pair.ours.to_table()


@pytest.mark.variants(6)
@pytest.mark.parametrize(
    "alterations",
    [
        [{"path": "a", "name": "A"}],
        [{"path": "s.x", "name": "X"}],
        [{"path": "a", "name": "b"}, {"path": "b", "name": "a"}],
        [{"path": "a", "nullable": False}],
        [{"path": "a", "data_type": pa.int32(), "name": "A"}],
        [{"path": "b", "data_type": pa.large_string()}],
        [{"path": "s.x", "data_type": pa.int16()}],
        [{"path": "a", "data_type": pa.uint8()}, {"path": "f", "data_type": pa.float32()}],
        [{"path": "l", "data_type": pa.large_list(pa.int64())}],
        [{"path": "v", "data_type": pa.list_(pa.float64(), 2)}],
        [{"path": "a", "name": "A"}, {"path": "a", "data_type": pa.int32()}],
        [{"path": "s.x", "name": "X"}, {"path": "s.x", "data_type": pa.int16()}, {"path": "s", "name": "S"}],
    ],
    ids=lambda value: "+".join(",".join(map(str, each.values())) for each in value),
)
def test_alter_columns(pair, alterations):
    pair.run(lambda d, _: d.alter_columns(*alterations))
    pair.run(lambda d, _: d.delete("f < 3") and None)


def test_a_cast_does_not_drop_other_changes_of_its_column(tmp_path):
    """Where pylance panics: the cast gives the column a new id."""
    dataset = lance_core.write_dataset(table(), tmp_path / "t")
    dataset.alter_columns({"path": "a", "data_type": pa.int32()}, {"path": "a", "name": "A"})
    dataset.alter_columns({"path": "s.x", "data_type": pa.int16()}, {"path": "s.x", "name": "X", "nullable": True})
    found = lance.dataset(dataset.uri).to_table(columns=["A", "s"])
    assert found["A"].to_pylist() == list(range(30))
    assert found["A"].type == pa.int32()
    assert found["s"].to_pylist() == [{"X": i, "y": "q"} for i in range(30)]


@pytest.mark.parametrize(
    ("alterations", "message"),
    [
        ([{"path": "a", "data_type": pa.int32()}, {"path": "a", "data_type": pa.int16()}], '"a" is changed'),
        (
            [{"path": "l", "data_type": pa.large_list(pa.int64())}, {"path": "l.item", "name": "x"}],
            '"l.item" is changed',
        ),
        ([{"path": "l.item", "nullable": False}], '"l.item" lies in a list or map'),
        ([{"path": "m.entries.value", "nullable": False}], '"m.entries.value" lies in a list or map'),
    ],
    ids=["two casts", "in a list", "list", "map"],
)
def test_what_a_cast_would_replace_or_a_list_cannot_have_is_named(tmp_path, alterations, message):
    rows = table().append_column("m", pa.array([[("k", 1)]] * 30, pa.map_(pa.string(), pa.int64())))
    dataset = lance_core.write_dataset(rows, tmp_path / "t")
    with pytest.raises((lance_core.errors.InvalidInputError, lance_core.errors.UnsupportedError), match=message):
        dataset.alter_columns(*alterations)
    assert dataset.latest_version == 1


@pytest.mark.parametrize(
    "alterations",
    [
        [{"path": "nope", "name": "A"}],
        [{"path": "a", "name": "b"}],
        [{"path": "b", "data_type": pa.int32()}],
        [{"path": "a", "data_type": pa.float64()}],
        [{"path": "a", "data_type": pa.int32(), "nullable": False}],
    ],
)
def test_what_cannot_be_altered(pair, alterations):
    pair.run(lambda d, _: d.alter_columns(*alterations), check=False)
    assert pair.ours.latest_version == 2


def test_a_column_with_nulls_cannot_forbid_them(pair):
    pair.run(lambda d, _: d.add_columns(pa.field("n", pa.int32())))
    pair.run(lambda d, _: d.alter_columns({"path": "n", "nullable": False}), check=False)
    assert pair.ours.schema.field("n").nullable
    with pytest.raises(ValueError, match="keys"):
        pair.ours.alter_columns({"path": "n", "nulable": False})


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_a_field_of_a_struct_is_cast_in_every_version(tmp_path, version):
    """In 0.1 and 2.0 the reference library can leave a table behind that nobody reads."""
    dataset = lance_core.write_dataset(table(), tmp_path, data_storage_version=version, max_rows_per_file=12)
    dataset.delete("a = 3")
    dataset.alter_columns({"path": "s.x", "data_type": pa.int16()})
    dataset.alter_columns({"path": "s.y", "data_type": pa.large_string(), "name": "z"})
    expected = [{"x": i, "z": "q"} for i in range(30) if i != 3]
    for library in (lance_core, lance):
        found = library.dataset(tmp_path)
        found.validate()
        assert found.to_table()["s"].type == pa.struct([("x", pa.int16()), ("z", pa.large_string())])
        assert found.to_table(columns=["s"])["s"].to_pylist() == expected


def test_values_that_do_not_fit_the_new_type_are_not_cast(pair):
    pair.run(lambda d, _: d.update({"a": "100000"}, "a = 5"))
    pair.run(lambda d, _: d.alter_columns({"path": "a", "data_type": pa.int8()}), check=False)
    assert pair.ours.latest_version == 3


@pytest.mark.parametrize(
    "columns", [["a"], ["s.y"], ["a", "s"], ["s.x", "s.y"], ["nope"], ["a", "b", "s", "f", "l", "v"]]
)
def test_drop_columns(pair, columns):
    pair.run(lambda d, _: d.drop_columns(columns), check=columns[0] != "s.x")
    if columns != ["nope"] and len(columns) < 3:
        pair.run(lambda d, _: d.add_columns({"late": "f * 2"}), check=columns[0] != "s.x")


def test_merge(pair):
    more = pa.table({"k": [0, 3, 4, 300], "m": ["x", "y", "z", "-"]})
    pair.run(lambda d, _: d.merge(more, "a", "k"))
    pair.run(lambda d, _: d.merge(more.rename_columns(["a", "o"]), "a"))
    pair.run(lambda d, _: d.merge(more, "a", "k"), check=False)
    pair.run(lambda d, _: d.merge(more.set_column(0, "k", more["k"].cast(pa.int32())), "a", "k"), check=False)
    assert pair.ours.latest_version == 4


def test_fragments_apart(pair):
    """Columns and deletions computed per fragment, committed at once."""

    def add(dataset, library):
        made = [f.merge_columns({"e": "a + 1"}) for f in dataset.get_fragments()]
        operation = library.LanceOperation.Merge([m for m, _ in made], made[0][1], True)
        return type(dataset).commit(dataset, operation, read_version=dataset.version)

    def delete(dataset, library):
        made = [(f.fragment_id, f.delete("a < 14")) for f in dataset.get_fragments()]
        operation = library.LanceOperation.Delete(
            [m for _, m in made if m is not None], [i for i, m in made if m is None], "a < 14"
        )
        return type(dataset).commit(dataset, operation, read_version=dataset.version)

    def update(dataset, library):
        rows = pa.table({"a": [15, 16, 300], "b": ["new"] * 3})
        made = [f.update_columns(rows, "a") for f in dataset.get_fragments()]
        operation = library.LanceOperation.Update(
            updated_fragments=[m for m, _ in made], fields_modified=made[0][1], update_mode="rewrite_columns"
        )
        return type(dataset).commit(dataset, operation, read_version=dataset.version)

    for verb in (add, delete, update):
        pair.ours, pair.theirs = verb(pair.ours, lance_core), verb(pair.theirs, lance)
        pair.check()
    fragment = pair.ours.get_fragments()[0]
    assert fragment.delete("a < 1000") is None
    with pytest.raises(ValueError, match="out of range"):
        fragment.delete_rows([99])
    with pytest.raises(ValueError, match="checkpoint"):
        fragment.merge_columns(lance_core.batch_udf(checkpoint_file=pair.uris["ours"] + "/x")(doubled))


def test_configuration_and_metadata(pair):
    warnings.simplefilter("ignore", DeprecationWarning)
    for verb in (
        lambda d, _: d.update_config({"k": "v", "l": "m"}),
        lambda d, _: d.update_config({"k": None}),
        lambda d, _: d.update_config({"q": "1", "r": "2"}, replace=True),
        lambda d, _: d.delete_config_keys(["q", "nope"]),
        lambda d, _: d.update_metadata({"author": "me"}),
        lambda d, _: d.update_metadata({"author": None, "title": "t"}),
        lambda d, _: d.update_schema_metadata({"x": "y"}),
        lambda d, _: d.replace_schema_metadata({"z": "1"}),
        lambda d, _: d.update_field_metadata({"a": {"unit": "m"}, "s.x": {"w": "2"}}),
        lambda d, _: d.replace_field_metadata("a", {"other": "o"}),
    ):
        pair.run(verb)
    pair.run(lambda d, _: d.update_field_metadata({"nope": {"q": "1"}}), check=False)
    assert pair.ours.config() == pair.theirs.config() == {"r": "2"}
    assert pair.ours.metadata == pair.theirs.metadata
    assert pair.ours.schema_metadata == pair.theirs.schema_metadata == {"z": "1"}


def test_restore(pair):
    pair.run(lambda d, _: d.update_config({"k": "v"}))
    pair.run(lambda d, _: d.drop_columns(["a"]))
    ours, theirs = pair.ours.checkout_version(2), pair.theirs.checkout_version(2)
    ours.restore()
    theirs.restore()
    pair.check()
    assert ours.version == 5
    assert described(pair.uris["ours"])["operation"][0] == "Restore"


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1"])
def test_older_files(tmp_path, version):
    rows = table().select(["a", "b", "s"])
    pair = Pair(tmp_path, rows, max_rows_per_file=12, data_storage_version=version)
    more = rows.slice(3, 2).set_column(0, "a", pa.array([4, 400]))
    for verb in (
        lambda d, _: d.delete("a in (1, 20)"),
        lambda d, _: d.update({"b": "'u'"}, "a < 5"),
        lambda d, _: d.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(more),
        lambda d, _: d.add_columns({"w": "a * 2"}),
        lambda d, _: d.alter_columns({"path": "w", "data_type": pa.int32()}),
        lambda d, _: d.alter_columns({"path": "b", "name": "B"}),
        lambda d, _: d.drop_columns(["w"]),
    ):
        pair.run(verb)
    pair.run(lambda d, _: d.add_columns(pa.field("n", pa.int32())), check=version != "legacy")
    assert ("n" in pair.ours.schema.names) == (version != "legacy")


@pytest.mark.parametrize("emptied", ["made so", "all rows deleted"])
@pytest.mark.parametrize(
    "change",
    [
        lambda d, _: d.add_columns({"n": "a + 1"}),
        lambda d, _: d.add_columns(pa.field("n", pa.int32())),
        lambda d, _: d.add_columns(pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), [])),
        lambda d, library: d.add_columns(library.batch_udf(output_schema=pa.schema([("twice", pa.int64())]))(doubled)),
        lambda d, _: d.alter_columns({"path": "a", "data_type": pa.int32()}),
        lambda d, _: d.drop_columns(["b"]),
    ],
    ids=["expression", "field", "reader", "function", "cast", "drop"],
)
def test_columns_of_tables_without_fragments(tmp_path, change, emptied):
    pair = Pair(tmp_path, table(0 if emptied == "made so" else 3))
    if emptied != "made so":
        pair.run(lambda d, _: d.delete("true"))
    pair.run(change)
    schema = pair.theirs.schema
    assert pair.ours.schema == schema
    values = {"int64": 5, "int32": 5, "string": "t", "double": 1.5}
    data = {field.name: [values.get(str(field.type))] for field in schema}
    pair.run(lambda d, library: library.write_dataset(pa.table(data, schema=schema), d, mode="append").count_rows())
