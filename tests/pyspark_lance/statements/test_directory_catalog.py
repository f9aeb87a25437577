"""Tables of roots with a manifest table, which pylance's directory namespace reads and writes at the same time."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core import catalog as manifest
from lance_core.errors import (
    CommitConflictError,
    CorruptFileError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    RetryableConflictError,
    SchemaError,
    UnsupportedError,
)
from tests.interop.namespaces import Namespace, rest_service


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


@pytest.fixture
def namespace(lake, lance):
    made = Namespace(lake)
    made.create("other", 1)
    return made


@pytest.fixture
def sql(spark, lake):
    pyspark_lance.register_catalog(spark, "lake", lake)

    def run(statement, **params):
        return [tuple(row) for row in pyspark_lance.sql(spark, statement, **params).collect()]

    return run


def test_created_tables_are_listed_and_dropped_ones_are_not(sql, namespace, lake, lance):
    sql("CREATE TABLE lake.nyc.t (a BIGINT)")
    sql("INSERT INTO lake.nyc.t VALUES (4)")
    sql("CREATE TABLE lake.top AS SELECT a FROM lake.nyc.t")
    sql("CALL lake.system.shallow_clone('nyc.t', 'nyc.deep.shallow')")
    sql("CALL lake.system.deep_clone('other', 'lake.nyc.copy')")
    assert namespace.tables() == ["other", "top"]
    assert namespace.tables("nyc") == ["copy", "t"]
    assert namespace.namespaces() == ["nyc"]
    for name, value in {"nyc.t": 4, "top": 4, "nyc.copy": 1, "nyc.deep.shallow": 4}.items():
        assert namespace.rows(lance, name) == [value]
    assert namespace.listed()["nyc$t"] == manifest.new_location("nyc$t")
    with pytest.raises(DatasetExistsError, match=r"lake\.nyc\.t already exists"):
        sql("CREATE TABLE lake.nyc.t (b INT)")
    sql("CREATE OR REPLACE TABLE lake.top AS SELECT 9L AS a")
    assert namespace.rows(lance, "top") == [9]
    namespace.create("nyc.theirs", 7)
    assert sql("SELECT a FROM lake.nyc.theirs") == [(7,)]
    sql("DROP TABLE lake.top")
    sql("DROP TABLE lake.nyc.theirs")
    sql("DROP TABLE lake.nyc.deep.shallow")
    namespace.call("drop_table", "nyc.t")
    assert namespace.tables() == ["other"]
    assert namespace.tables("nyc") == ["copy"]
    assert not list(Path(lake).glob("*nyc$t*/**/*.manifest"))


def test_a_table_in_its_folder_stays_there(sql, namespace, lake, lance):
    lance_core.write_dataset(pa.table({"a": [1]}), f"{lake}/nyc/t.lance")
    assert sql("SELECT a FROM lake.nyc.t") == [(1,)]
    sql("CREATE OR REPLACE TABLE lake.nyc.t AS SELECT 2L AS a")
    assert namespace.listed()["nyc$t"] == "nyc/t.lance"
    assert namespace.rows(lance, "nyc.t") == [2]
    sql(f"DROP TABLE lance.`{lake}/nyc/t.lance`")
    assert namespace.tables("nyc") == []


@pytest.mark.parametrize("name", ["one.t", "two.t", "top"])
def test_a_table_with_several_ids_is_replaced_under_each(sql, namespace, lake, lance, name):
    namespace.call("create_namespace", "one")
    namespace.create("one.t", 1)
    folder = manifest.read_listing(lake).tables["one$t"]
    namespace.call("create_namespace", "two")
    for other in ("two.t", "top"):
        namespace.call("register_table", other, location=folder)
    before = namespace.listed()
    sql(f"CREATE TABLE IF NOT EXISTS lake.{name} (b INT)")
    assert namespace.rows(lance, "one.t") == [1]
    for replace in ("CREATE OR REPLACE", "REPLACE"):
        sql(f"{replace} TABLE lake.{name} AS SELECT 2L AS a UNION ALL SELECT 3L")
        assert sorted(namespace.rows(lance, "one.t")) == [2, 3]
        sql(f"{replace} TABLE lake.{name} (a BIGINT)")
        assert namespace.rows(lance, "one.t") == []
    assert namespace.listed() == before


def test_a_folder_that_others_are_removing_is_not_used(sql, namespace, lake, lance):
    folder = Path(lake, manifest.new_location("nyc$t"))
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "left.lance").write_bytes(b"")
    sql("CREATE TABLE lake.nyc.t AS SELECT 2L AS a")
    assert namespace.listed()["nyc$t"] == manifest.new_location("nyc$t", 1)
    assert namespace.rows(lance, "nyc.t") == [2]


def test_a_root_without_a_manifest_gets_none(sql, lake):
    sql("CREATE TABLE lake.nyc.t (a BIGINT)")
    sql("DROP TABLE lake.nyc.t")
    assert not Path(lake, "__manifest").exists()


def test_an_entry_without_a_table_is_filled_or_removed(sql, namespace, lance):
    for name in ("one", "two", "three"):
        namespace.call("declare_table", f"nyc.{name}")
    with pytest.raises(DatasetNotFoundError, match=r"there is no table lake\.nyc\.one"):
        sql("SELECT * FROM lake.nyc.one")
    before = namespace.listed()
    sql("CREATE TABLE lake.nyc.one AS SELECT 5L AS a")
    assert namespace.rows(lance, "nyc.one") == [5]
    assert namespace.listed() == before | {"nyc": None}
    sql("DROP TABLE lake.nyc.two")
    sql("DROP TABLE IF EXISTS lake.nyc.three")
    assert namespace.tables("nyc") == ["one"]
    with pytest.raises(DatasetNotFoundError):
        sql("DROP TABLE lake.nyc.two")


def test_a_table_without_an_entry_is_found_and_listed_by_a_repeat(sql, namespace, lake, lance, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "register", killed)
        with pytest.raises(KeyboardInterrupt):
            sql("CREATE TABLE lake.nyc.t AS SELECT 6L AS a")
    assert sql("SELECT a FROM lake.nyc.t") == [(6,)]
    assert "nyc$t" not in namespace.listed()
    with pytest.raises(DatasetExistsError, match=r"IF NOT EXISTS lists it"):
        sql("CREATE TABLE lake.nyc.t AS SELECT 6L AS a")
    sql("CREATE TABLE IF NOT EXISTS lake.nyc.t AS SELECT 6L AS a")
    assert namespace.rows(lance, "nyc.t") == [6]
    with monkeypatch.context() as patch:
        patch.setattr(lance_core.LanceDataset, "drop", killed)
        with pytest.raises(KeyboardInterrupt):
            sql("DROP TABLE lake.nyc.t")
    assert namespace.tables("nyc") == ["t"]
    sql("DROP TABLE lake.nyc.t")
    assert namespace.tables("nyc") == []
    assert not lance_core.list_tables(f"{lake}/nyc")


def test_a_namespace_s_name_is_no_table_s(sql, namespace, lake):
    namespace.call("create_namespace", "nyc")
    creations = ("CREATE TABLE lake.nyc (a INT)", "CREATE TABLE lake.nyc AS SELECT 1 AS a")
    for statement in (*creations, "CALL lake.system.shallow_clone('other', 'nyc')"):
        with pytest.raises(DatasetExistsError, match=r"lake\.nyc is a namespace"):
            sql(statement)
    assert not Path(lake, "nyc.lance").exists()


def test_a_row_with_the_location_of_the_manifest_table_is_not_dropped(sql, namespace, lake):
    listed = lance_core.dataset(f"{lake}/__manifest")
    (row,) = listed.to_table(filter="object_id = 'other'").to_pylist()
    listed.insert(pa.Table.from_pylist([row | {"object_id": "bad", "location": "__manifest"}], listed.schema))
    for statement in (
        "DROP TABLE lake.bad",
        "CREATE OR REPLACE TABLE lake.bad AS SELECT 1 AS a",
        "DROP TABLE lake.other",
    ):
        with pytest.raises(CorruptFileError, match="the table bad: the location '__manifest' is in __manifest"):
            sql(statement)
    manifest.deregister(lake, "__manifest")
    sql("SELECT * FROM lake.other")
    assert manifest.read_listing(lake).tables == {"other": "other.lance"}


def test_a_table_that_others_would_confuse_is_not_created(sql, namespace, lake):
    """A folder of the root has another id; a folder that pylance named has none."""
    namespace.create("nyc.t", 1)
    namespace.call("create_namespace", "nyc")
    namespace.call("register_table", "nyc.other", location="other.lance")
    for name in ("other", "nyc.t"):
        namespace.call("deregister_table", name)
    before = sorted(path.name for path in Path(lake).iterdir())
    for statement, message in {
        "CREATE TABLE lake.other (a BIGINT)": r"other\.lance is the table nyc\$other",
        "CREATE TABLE lake.nyc.t AS SELECT 2L AS a": r"_nyc\$t is a table that was deregistered as nyc\$t",
    }.items():
        with pytest.raises(DatasetExistsError, match=message):
            sql(statement)
    assert sorted(path.name for path in Path(lake).iterdir()) == before


@pytest.mark.parametrize(
    ("statement", "is_service"),
    [
        ("INSERT INTO {} SELECT late(1L)", False),
        ("UPDATE {} SET a = late(1L)", True),
        ("CREATE OR REPLACE TABLE {} AS SELECT late(1L) AS a", True),  # in a root of its own it lists the id again
    ],
)
def test_a_statement_names_its_rows_where_the_id_was_taken_away_meanwhile(
    spark, namespace, lake, statement, is_service
):
    namespace.call("create_namespace", "nyc")
    namespace.create("nyc.t", 3)
    location = namespace.call("describe_table", "nyc.t").location

    def deregister(value):
        from lance_core import catalog

        catalog.deregister(lake, Path(location).name, missing_ok=True)
        return value

    spark.udf.register("late", deregister, "long")
    with rest_service(lake) as service:
        pyspark_lance.register_catalog(spark, "far", **({"namespace": service} if is_service else {"root": lake}))
        with pytest.raises(DatasetNotFoundError, match=r"committed to .*, but the table nyc\.t was dropped or renamed"):
            pyspark_lance.sql(spark, statement.format("far.nyc.t"))
    assert 1 in lance_core.dataset(location).to_table()["a"].to_pylist()


def test_the_manifest_table_is_not_dropped(sql, namespace, lake):
    with pytest.raises(InvalidInputError, match="names the tables of its folder"):
        sql(f"DROP TABLE lance.`{lake}/__manifest`")
    assert namespace.tables() == ["other"]


def test_deregistered_tables_are_neither_created_over_nor_dropped(sql, lake):
    from lance.namespace import DirectoryNamespace
    from lance_namespace import DeregisterTableRequest

    lance_core.write_dataset(pa.table({"a": [1]}), f"{lake}/old.lance")
    DirectoryNamespace(root=lake, manifest_enabled="false").deregister_table(DeregisterTableRequest(id=["old"]))
    creations = ("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", "CREATE OR REPLACE TABLE")
    clones = [f"CALL lake.system.deep_clone('{source}', 'old')" for source in ("old", "sound")]
    lance_core.write_dataset(pa.table({"a": [1]}), f"{lake}/sound.lance")
    for statement in (*(f"{words} lake.old (a INT)" for words in creations), *clones):
        with pytest.raises((DatasetExistsError, DatasetNotFoundError), match="deregistered"):
            sql(statement)
    with pytest.raises(DatasetNotFoundError, match="deregistered"):
        sql("DROP TABLE lake.old")
    sql("DROP TABLE IF EXISTS lake.old")
    assert lance_core.dataset(f"{lake}/old.lance").count_rows() == 1


def test_of_two_creators_one_wins(sql, namespace, lake, lance, monkeypatch):
    """The other one, pylance, registers the name while the rows are written."""
    found = manifest.register

    def late(*given, **options):
        namespace.create("nyc.t", 8)
        found(*given, **options)

    monkeypatch.setattr(manifest, "register", late)
    with pytest.raises(DatasetExistsError, match=r"nyc\$t .*was created by another writer"):
        sql("CREATE TABLE lake.nyc.t AS SELECT 6L AS a")
    assert namespace.rows(lance, "nyc.t") == [8]
    assert sql("SELECT a FROM lake.nyc.t") == [(8,)]
    assert lance_core.list_tables(lake) == ["nyc/t", "other.lance"]


def test_writers_of_both_libraries_lose_no_entry(namespace, lake):
    failures = []

    def theirs():
        own = Namespace(namespace.root)
        for number in range(8):
            own.call("declare_table", f"a.theirs{number}")

    def ours(name):
        for number in range(8):
            manifest.declare(lake, f"a${name}{number}", f"a/{name}{number}.lance")
            if number % 2:
                manifest.deregister(lake, f"a/{name}{number}.lance")

    def caught(work, *args):
        try:
            work(*args)
        except BaseException as error:
            failures.append(error)
            raise

    jobs = [threading.Thread(target=caught, args=args) for args in [(theirs,), (ours, "x"), (ours, "y")]]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert not failures
    kept = {f"a${name}{number}" for name in "xy" for number in range(0, 8, 2)}
    assert set(namespace.listed()) == {"other", "a", *kept, *(f"a$theirs{number}" for number in range(8))}


def test_of_two_registrations_of_a_name_one_wins(namespace, lake):
    begun, results, locations = threading.Barrier(2), [], ("a/t.lance", "1_a$t")
    for location in locations:
        lance_core.write_dataset({"a": [1]}, f"{lake}/{location}")

    def register(location):
        begun.wait(timeout=100)
        try:
            manifest.register(lake, "a$t", location)
        except DatasetExistsError:
            return
        results.append(location)

    jobs = [threading.Thread(target=register, args=(location,)) for location in locations]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert results == [namespace.listed()["a$t"]]


def test_columns_that_extensions_added_are_kept(lake, namespace):
    table = lance_core.dataset(f"{lake}/__manifest")
    table.add_columns({"owner": "'me'"})
    manifest.declare(lake, "a$t", "a/t.lance")
    rows = {row["object_id"]: row["owner"] for row in lance_core.dataset(f"{lake}/__manifest").to_table().to_pylist()}
    assert rows == {"other": "me", "a": None, "a$t": None}
    assert namespace.tables("a") == ["t"]


@pytest.mark.parametrize("error", [CommitConflictError, RetryableConflictError])
def test_a_manifest_that_others_always_change_is_reported(lake, namespace, monkeypatch, error):
    def lost(*_, **__):
        raise error("lost the race")

    monkeypatch.setattr(manifest, "_insert", lost)
    with pytest.raises(CommitConflictError, match="lost the race"):
        manifest.declare(lake, "a$t", "a/t.lance")


def test_a_catalog_whose_namespace_is_a_service(spark, namespace, lake, lance):
    for name in ("nyc", "sea"):
        namespace.call("create_namespace", name)
    namespace.create("nyc.theirs", 7)
    with rest_service(lake) as service:
        pyspark_lance.register_catalog(spark, "far", namespace=service)

        def run(statement):
            return [tuple(row) for row in pyspark_lance.sql(spark, statement).collect()]

        assert run("SELECT a FROM far.nyc.theirs") == [(7,)]
        assert run("SELECT a FROM far.NYC.Theirs") == [(7,)]
        run("CREATE TABLE far.sea.ships AS SELECT 5L AS a")
        run("INSERT INTO far.sea.ships VALUES (6)")
        assert sorted(namespace.rows(lance, "sea.ships")) == [5, 6]
        assert run("SHOW TABLES IN far.sea") == [("sea", "ships", False)]
        namespace.call("register_table", "sea.second", location=namespace.listed()["nyc$theirs"])
        assert run("SHOW TABLES IN far.nyc") == [("nyc", "theirs", False)]
        assert run("SHOW TABLES IN far.sea") == [("sea", "second", False), ("sea", "ships", False)]
        namespace.call("deregister_table", "sea.second")
        with pytest.raises(DatasetExistsError):
            run("CREATE TABLE far.sea.ships (a BIGINT)")
        for wrong in (
            "(a CHAR(3))",
            "(a BIGINT) PARTITIONED BY (b)",
            "AS SELECT 1 AS `a.b`",
            "AS SELECT make_interval(1) AS a",
        ):
            with pytest.raises((SchemaError, UnsupportedError)):
                run(f"CREATE TABLE far.sea.wrong {wrong}")
            with pytest.raises((SchemaError, UnsupportedError)):
                run(f"CREATE OR REPLACE TABLE far.sea.wrong {wrong}")
        assert namespace.tables("sea") == ["ships"]
        run("CALL far.system.shallow_clone('nyc.theirs', 'sea.clone')")
        assert namespace.rows(lance, "sea.clone") == [7]
        run("DROP TABLE far.sea.clone")
        run("DROP TABLE far.sea.ships")
        assert namespace.tables("sea") == []
        with pytest.raises(DatasetNotFoundError, match=r"no table far\.sea\.ships: the namespace of its catalog"):
            run("SELECT * FROM far.sea.ships")
    for wrong in ({}, {"root": lake, "namespace": service}):
        with pytest.raises(InvalidInputError, match="a root or a namespace"):
            pyspark_lance.register_catalog(spark, "far", **wrong)
    with pytest.raises(InvalidInputError, match="impl is missing"):
        pyspark_lance.register_catalog(spark, "far", namespace={"uri": "http://127.0.0.1:1"})


@pytest.mark.parametrize("statement", ["DROP TABLE IF EXISTS lake.shop.orders", "SELECT * FROM lake.shop.orders"])
def test_a_table_that_was_renamed_is_not_there_under_its_old_name(sql, namespace, lance, statement):
    sql("CREATE TABLE lake.shop.orders AS SELECT 6L AS a")
    location = namespace.call("deregister_table", "shop.orders").location.rpartition("/")[2]
    namespace.call("register_table", "shop.archive", location=location)
    if statement.startswith("DROP"):
        sql(statement)
    else:
        with pytest.raises(DatasetNotFoundError):
            sql(statement)
    assert namespace.rows(lance, "shop.archive") == [6]
    sql("CREATE OR REPLACE TABLE lake.shop.orders AS SELECT 2L AS a")
    sql("INSERT INTO lake.shop.orders VALUES (3)")
    assert namespace.rows(lance, "shop.archive") == [6]
    assert sorted(namespace.rows(lance, "shop.orders")) == [2, 3]
    sql("DROP TABLE lake.shop.orders")
    assert namespace.walk() == ["other", "shop.archive"]
