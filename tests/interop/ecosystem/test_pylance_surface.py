"""Names, arguments and words that code for pylance uses, held against pylance itself."""

import inspect
import pickle
import warnings

import lance
import lance.debug
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.lance import manifest_needs_migration
from lance_core.store.options import parse_seconds
from lance_core.vector import vec_to_table

BOTH = pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
ROWS = pa.table({"id": range(100), "s": [str(i % 7) for i in range(100)]})

TYPES = [
    pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
    pa.binary(), pa.large_binary(), pa.binary(5), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("ms"), pa.decimal128(10, 2), pa.decimal256(40, 3),
    pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.float16(), 3),
    pa.struct([("a", pa.int8()), pa.field("b", pa.string(), nullable=False)]), pa.dictionary(pa.int8(), pa.string()),
    pa.map_(pa.string(), pa.int32()), pa.string_view(), pa.json_(), pa.fixed_shape_tensor(pa.float32(), [2, 2]),
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_schemas_as_json(kind):
    schema = pa.schema([pa.field("x", kind, nullable=False, metadata={"k": "v"})], metadata={"m": "n"})
    try:
        theirs = lance.schema_to_json(schema)
    except ValueError:
        with pytest.raises(UnsupportedError, match="has no form in JSON"):
            lance_core.schema_to_json(schema)
        return
    assert lance_core.schema_to_json(schema) == theirs
    assert lance_core.json_to_schema(theirs) == lance.json_to_schema(theirs)


@pytest.mark.parametrize(
    "wrong",
    [5, {}, {"fields": 5}, {"fields": [{"name": "x"}]}, {"fields": [{"name": "x", "type": {"type": "foo"}, "nullable": True}]}],
    ids=str,
)  # fmt: skip
@BOTH
def test_json_that_is_no_schema(library, wrong):
    with pytest.raises(ValueError, match="Failed to convert json to schema"):
        library.json_to_schema(wrong)


@BOTH
def test_words_of_errors(library, tmp_path):
    made = library.write_dataset(pa.table({"a": [1, 2, 1024], "b": ["x", "y", "z"]}), tmp_path / "t")
    for wrong, words in [
        (lambda: made.to_table(limit=-1), "Limit must be non-negative"),
        (lambda: made.to_table(offset=-1), "Offset must be non-negative"),
        (lambda: made.alter_columns({"path": "a", "data_type": pa.int8()}), "Can't cast value 1024 to type Int8"),
        (lambda: made.alter_columns({"path": "a", "data_type": pa.string()}), 'column "a" from Int64 to Utf8'),
        (lambda: made.alter_columns({"path": "q", "name": "z"}), 'Column "q" does not exist'),
        (lambda: made.alter_columns({"path": "a", "type": "string"}), "Unknown key: type"),
        (lambda: made.alter_columns({"path": "a"}), "At least one of name, nullable, or data_type must be specified"),
        (lambda: made.to_table(filter="b > 10"), "Invalid user input: "),
        (lambda: made.to_table(filter="🥞"), "Invalid user input: "),
        (lambda: made.to_table(filter="foo = 7"), "No field named foo"),
        (lambda: made.to_table(filter="a"), "does not return a boolean"),
    ]:
        with pytest.raises((ValueError, OSError), match=words):
            wrong()


@BOTH
def test_an_iterable_is_cast_to_the_schema_that_it_came_with(library, tmp_path):
    batches = [pa.record_batch({"a": pa.array([1], pa.int32()), "b": [[1.5, 2.5]]})]
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32(), 2))])
    made = library.write_dataset(iter(batches), tmp_path / "t", schema=schema)
    assert made.to_table() == pa.table({"a": [1], "b": [[1.5, 2.5]]}, schema=schema)
    with pytest.raises((ValueError, OSError)):
        library.write_dataset(iter([pa.record_batch({"a": [2**40]})]), tmp_path / "u", pa.schema([("a", pa.int32())]))


@BOTH
def test_metadata_that_is_no_text_is_not_written(library, tmp_path):
    with pytest.raises(ValueError, match="Metadata key b'foo' is not valid utf8"):
        library.write_dataset(ROWS.replace_schema_metadata({"foo": b"\x80"}), tmp_path / "t")
    assert not (tmp_path / "t" / "_versions").exists()


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.add_columns({}),
        lambda made: made.add_columns(pa.schema([])),
        lambda made: made.alter_columns(),
        lambda made: made.drop_columns([]),
    ],
)
def test_changes_of_no_column_are_versions(library, change, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t")
    change(made)
    assert library.dataset(tmp_path / "t").version == 2
    assert made.to_table() == ROWS


@BOTH
def test_values_that_stand_for_others(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t", mode=None, enable_v2_manifest_paths=None)
    made = library.write_dataset(ROWS, tmp_path / "t", mode="Overwrite")
    assert made.take([True, False, 2])["id"].to_pylist() == [1, 0, 2]
    with pytest.raises((TypeError, ValueError)):
        made.take(pa.array([True]))
    for flag in (True, None):
        made.create_scalar_index("id", "BTREE", replace=flag, train=flag)
    assert made.cleanup_old_versions(delete_unverified=None, error_if_tagged_old_versions=None).old_versions == 0
    made.tags.create("first", True)
    assert made.checkout_version("first").version == made.checkout_version(True).version == 1


@BOTH
def test_progress_in_a_folder_that_is_a_path(library, tmp_path):
    folder = tmp_path / "progress"
    progress = library.progress.FileSystemFragmentWriteProgress(folder, {"worker": "1"})
    library.write_dataset(ROWS, tmp_path / "t", progress=progress)
    assert (folder / "fragment_0.json").exists()


@BOTH
@pytest.mark.parametrize("uri", ["dbfs:lake", "s3:lake", "a:b", "x.lance:1", "C:/t"])
def test_a_scheme_without_its_slash_is_no_path(library, uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError):
        library.write_dataset(ROWS, uri)
    assert not any(tmp_path.iterdir())


def test_a_file_scheme_without_its_slash_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="scheme 'file'"):
        lance_core.write_dataset(ROWS, "file:lake")  # pylance writes to /lake
    assert not any(tmp_path.iterdir())


@BOTH
def test_local_names_with_a_colon(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for uri in ("./a:b", "10:x", str(tmp_path / "c:d"), f"file://{tmp_path}/e:f"):
        library.write_dataset(ROWS, uri)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10:x", "a:b", "c:d", "e:f"]


@BOTH
def test_taking_rows(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=40)
    assert made.take([3, 50], columns=["_rowid", "_rowid"]).schema.names == ["_rowid", "_rowid"]
    assert made.take([3, 50], columns=["id", "id"]).schema.names == ["id"]
    found = made.scanner(filter="id % 30 = 0", with_row_id=True).to_table()
    assert made._take_rows(found["_rowid"].to_pylist(), columns=["id"])["id"].to_pylist() == [0, 30, 60, 90]
    session = made.get_fragments()[1].open_session(columns=["id"], with_row_address=True)
    taken = session.take([0, 2])
    assert taken.to_pydict() == {"id": [40, 42], "_rowaddr": [1 << 32, (1 << 32) | 2]}


@BOTH
def test_default_options_of_scans(library, tmp_path):
    library.write_dataset(ROWS, tmp_path / "t")
    made = library.dataset(tmp_path / "t", default_scan_options={"with_row_id": True, "batch_size": 30})
    assert made.schema.names == ["id", "s", "_rowid"]
    assert [batch.num_rows for batch in made.to_batches()] == [30, 30, 30, 10]
    assert [batch.num_rows for batch in made.to_batches(batch_size=60)] == [60, 40]


@BOTH
def test_the_size_of_batches_by_environment(library, tmp_path, monkeypatch):
    made = library.write_dataset(ROWS, tmp_path / "t")
    monkeypatch.setenv("LANCE_DEFAULT_BATCH_SIZE", "12")
    assert {batch.num_rows for batch in made.scanner().to_batches()} == {12, 4}


@BOTH
def test_sessions(library, tmp_path):
    library.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=25)
    one = library.dataset(tmp_path / "t")
    before = one.session().size_bytes()
    one.to_table()
    assert one.session().size_bytes() > before
    other = library.dataset(tmp_path / "t", session=one.session())
    assert other.session().is_same_as(one.session())
    assert not library.dataset(tmp_path / "t").session().is_same_as(one.session())
    small = library.dataset(tmp_path / "t", metadata_cache_size_bytes=0)
    assert small.to_table() == ROWS
    assert small.session().size_bytes() < one.session().size_bytes()
    with pytest.warns(DeprecationWarning, match="index_cache_size"):
        library.dataset(tmp_path / "t", index_cache_size=1)


@BOTH
def test_counters(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t")
    calls, read = library.iops_counter(), library.bytes_read_counter()
    made.to_table()
    assert library.iops_counter() > calls
    assert library.bytes_read_counter() > read


def test_metadata_that_is_kept_is_not_read_again(tmp_path):
    wide = pa.table({f"c{i}": list(range(1000)) for i in range(300)})
    made = lance_core.write_dataset(wide, tmp_path / "t")

    def reads():
        before = lance_core.iops_counter()
        assert made.to_table(columns=["c7"]) == wide.select(["c7"])
        return lance_core.iops_counter() - before

    first = reads()
    assert reads() < first
    assert pickle.loads(pickle.dumps(made)).session().size_bytes() == 0


@BOTH
def test_read_params(library, tmp_path):
    library.write_dataset(ROWS, tmp_path / "t")
    params = {"cache_repetition_index": True, "validate_on_decode": True}
    assert library.dataset(tmp_path / "t", read_params=params).to_table() == ROWS


def test_read_params_that_are_not_known(tmp_path):
    lance_core.write_dataset(ROWS, tmp_path / "t")
    with pytest.raises(InvalidInputError, match="read_params: prefetch is not known"):
        lance_core.dataset(tmp_path / "t", read_params={"prefetch": 1})


@BOTH
def test_a_description_of_a_file_travels(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t")
    file = pickle.loads(pickle.dumps(made.get_fragments()[0].metadata)).files[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert file.path() == file.path
    assert [warning.category for warning in caught] == [DeprecationWarning]


@BOTH
def test_a_fragment_of_a_file_that_was_written_by_itself(library, tmp_path):
    from importlib import import_module

    files = import_module(f"{library.__name__}.file")
    made = library.write_dataset([], tmp_path / "t", schema=ROWS.schema)
    with files.LanceFileWriter(str(tmp_path / "t" / "data" / "own.lance")) as writer:
        writer.write_batch(ROWS)
    fragment = library.LanceFragment.create_from_file("own.lance", made, 0)
    assert fragment.physical_rows == 100
    append = library.LanceOperation.Append([fragment])
    assert library.LanceDataset.commit(made.uri, append, read_version=made.version).to_table() == ROWS


@BOTH
def test_nulls_by_sql_take_no_file(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t")
    before = made.get_fragments()[0].data_files()
    made.add_columns({"b": "CAST(NULL AS INT)"})
    assert made.get_fragments()[0].data_files() == before
    made.add_columns({"v": "arrow_cast(NULL, 'FixedSizeList(32, Float32)')"})
    assert [made.schema.field(name).type for name in ("b", "v")] == [pa.int32(), pa.list_(pa.float32(), 32)]
    assert made.to_table(columns=["b", "v"]).to_pylist()[7] == {"b": None, "v": None}


@BOTH
def test_plans_of_scans_and_merges(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t")
    assert "projection=[id]" in made.scanner(columns=[], filter="id < 50", with_row_id=True).explain_plan(True)
    ran = made.scanner(columns=[], filter="id < 50", with_row_id=True).analyze_plan()
    line = next(line for line in ran.splitlines() if line.strip().startswith("LanceRead:"))
    assert line.index("output_rows=50") < line.index("rows_scanned=100") < line.index("bytes_read=")
    assert line.index("bytes_read=") < line.index("iops=") < line.index("requests=")
    made.create_scalar_index("id", "BTREE")
    asked = "ScalarIndexQuery: query=[id = 10]@id_idx"
    assert asked in made.scanner(filter="id = 10").explain_plan(True)
    assert asked not in made.scanner(filter="id = 10", use_scalar_index=False).explain_plan(True)
    merge = made.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises((NotImplementedError, OSError), match="does not support explain_plan"):
        merge.explain_plan()
    merge = merge.use_index(False)
    plan = merge.explain_plan()
    facts = "on=[id], when_matched=UpdateAll, when_not_matched=InsertAll, when_not_matched_by_source=Keep"
    assert plan.startswith(f"MergeInsert: {facts}")
    assert "Join" in plan
    version = made.version
    ran = merge.analyze_plan(pa.table({"id": [1, 500], "s": ["x", "y"]}))
    for fact in ("num_inserted_rows=1", "num_updated_rows=1", "num_files_written=1", "bytes_written="):
        assert fact in ran
    assert made.latest_version == version


def test_the_files_of_a_plan_that_ran_are_deleted(tmp_path):
    made = lance_core.write_dataset(ROWS, tmp_path / "t")
    before = set((tmp_path / "t").rglob("*"))
    made.merge_insert("id").when_not_matched_insert_all().analyze_plan(pa.table({"id": [500], "s": ["y"]}))
    assert set((tmp_path / "t").rglob("*")) == before


@BOTH
def test_what_is_in_memory(library):
    for place in ("memory://", "memory://again"):
        for _ in range(2):
            made = library.write_dataset(ROWS, place)
            assert made.count_rows() == 100
            del made


def test_what_is_in_memory_stays_while_somebody_holds_it():
    made = lance_core.write_dataset(ROWS, "memory://held")
    with pytest.raises(lance_core.errors.DatasetExistsError):
        lance_core.write_dataset(ROWS, "memory://held")
    assert made.to_table() == ROWS


@BOTH
def test_automatic_cleanup_is_switched_off_from_an_old_handle(library, tmp_path):
    made = library.write_dataset(ROWS, tmp_path / "t")
    made.optimize.enable_auto_cleanup({"interval": 1, "older_than_seconds": 0})
    for _ in range(3):
        library.write_dataset(ROWS, tmp_path / "t", mode="append")
    made.optimize.disable_auto_cleanup()
    assert not any(key.startswith("lance.auto_cleanup") for key in library.dataset(tmp_path / "t").config())


def test_records_as_text(tmp_path):
    made = lance_core.write_dataset(ROWS, tmp_path / "t")
    fragment = made.get_fragments()[0].metadata
    for library, one in ((lance.debug, lance.dataset(tmp_path / "t")), (lance_core.debug, made)):
        whole = fragment if library is lance_core.debug else one.get_fragments()[0].metadata
        for text in (library.format_schema(one), library.format_manifest(one), library.format_fragment(whole, one)):
            assert "logical_type" in text
        assert "major_version: 2" in library.format_fragment(whole, one)
        assert len(library.list_transactions(one)) == 1
        assert "Overwrite" in library.list_transactions(one)[0]


def test_names_of_the_extension_module(tmp_path):
    assert not manifest_needs_migration(lance_core.write_dataset(ROWS, tmp_path / "t"))


def test_tables_of_vectors():
    import lance.vector
    import numpy as np

    for data, names in [([[1, 2], [3, 4]], None), ({"x": [1, 2], "y": [3, 4]}, ["k", "v"]), (np.ones((2, 3)), "v")]:
        assert vec_to_table(data, names) == lance.vector.vec_to_table(data, names)
    with pytest.raises(ValueError, match="dimensions"):
        vec_to_table([[1, 2], [3]])
    with pytest.raises(NotImplementedError):
        vec_to_table(5)


class TestSql:
    @BOTH
    def test_queries(self, library):
        made = library.write_dataset(ROWS, "memory://")
        query = made.sql("SELECT * FROM t WHERE id > 97").table_name("t").build()
        assert pa.Table.from_batches(query.to_batch_records()) == ROWS.slice(98)
        query = made.sql("SELECT UPPER(s) AS u FROM dataset WHERE id BETWEEN 1 AND 2").build()
        assert query.to_stream_reader().read_all().to_pydict() == {"u": ["1", "2"]}
        query = made.sql("SELECT _rowid, _rowaddr FROM dataset WHERE id = 7").with_row_id().with_row_addr().build()
        assert query.to_stream_reader().read_all().to_pylist() == [{"_rowid": 7, "_rowaddr": 7}]

    def test_it_reaches_the_dataset_alone(self, tmp_path):
        made = lance_core.write_dataset(ROWS, "memory://")
        (tmp_path / "x.csv").write_text("a\n1\n")
        elsewhere = ROWS
        for text in (
            f"SELECT * FROM '{tmp_path}/x.csv'",
            "SELECT * FROM elsewhere",
            "SELEC",
            "SELECT nope FROM dataset",
        ):
            with pytest.raises(InvalidInputError, match="SQL: "):
                made.sql(text).build().to_batch_records()
        assert elsewhere is ROWS
        with pytest.raises(InvalidInputError, match="sql must be a string"):
            made.sql(5)

    def test_sizes_of_batches(self):
        made = lance_core.write_dataset(ROWS, "memory://")
        sizes = [
            batch.num_rows for batch in made.sql("SELECT * FROM dataset").batch_size(40).build().to_batch_records()
        ]
        assert max(sizes) <= 40
        assert sum(sizes) == 100

    def test_without_the_engine(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
        query = lance_core.write_dataset(ROWS, "memory://").sql("SELECT 1").build()
        with pytest.raises(UnsupportedError, match=r"pip install 'lance-dagster\[sql\]'"):
            query.to_batch_records()


def defaults_of(called):
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # classes that are not made by hand
        return {}
    return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


def test_what_is_not_given_is_what_pylance_takes():
    shared = {
        name: (getattr(lance, name), getattr(lance_core, name)) for name in dir(lance) if hasattr(lance_core, name)
    }
    shared = {name: both for name, both in shared.items() if name[0] != "_" and callable(both[0])}
    for name, (theirs, ours) in list(shared.items()):
        verbs = (
            [verb for verb in dir(theirs) if verb[0] != "_" and hasattr(ours, verb)] if inspect.isclass(theirs) else []
        )
        shared |= {f"{name}.{verb}": (getattr(theirs, verb), getattr(ours, verb)) for verb in verbs}
    compared, others = 0, set()
    for name, (theirs, ours) in shared.items():
        here = defaults_of(ours)
        for argument, value in defaults_of(theirs).items():
            compared += argument in here
            if argument in here and here[argument] != value:
                others.add((name, argument))
    assert compared > 200
    assert {argument for _, argument in others} == {"max_rows_per_group"}  # of files of version 0.1


@pytest.mark.variants(8)
@pytest.mark.parametrize(
    "duration",
    [
        "5ns", "5us", "5µs", "5ms", "5 millis", "5msec", "500 milliseconds", "1.5s", "1secs", "1H", "1h 30m", "1hrs",
        "2wks", "1wk", "1M", "1yr", "5S", "soon", "0.5d", "٣s", "-1s", "9999999999999y",
    ],
)  # fmt: skip
def test_durations_in_storage_options_are_those_of_pylance(duration):
    options = {"aws_region": "us-east-1", "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true"}
    options |= {"aws_skip_signature": "true", "client_max_retries": "0", "timeout": duration}
    with pytest.raises(ValueError) as theirs:
        lance.dataset("s3://bucket/table", storage_options=options)
    try:
        parse_seconds("timeout", duration)
    except InvalidInputError:
        assert "as Duration" in str(theirs.value)
    else:
        assert "as Duration" not in str(theirs.value)  # it failed to connect
