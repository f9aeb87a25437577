"""The cases that lance-spark's own tests run as SQL, over tables of the same columns; pylance reads what became of them.

Not among them, and rejected by name: backfills from a view (`ADD COLUMNS c FROM v`, which `write_columns` does), the
primary key by SQL, namespaces without tables, vector and text search.
"""

import pytest

import lance_core
import pyspark_lance
from lance_core.errors import DatasetNotFoundError, LanceError, NotFoundError, SchemaError

PEOPLE = "(1, 'Alice', 10), (2, 'Bob', 20), (3, 'Charlie', 30), (4, 'Diana', 40)"


@pytest.fixture
def lake(spark, tmp_path):
    pyspark_lance.register_catalog(spark, "lake", tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture
def sql(spark, lake):
    def run(statement, **params):
        return [tuple(row) for row in pyspark_lance.sql(spark, statement, **params).collect()]

    return run


@pytest.fixture
def people(sql, lake):
    sql("CREATE TABLE lake.default.people (id INT, name STRING, value INT)")
    sql(f"INSERT INTO lake.default.people VALUES {PEOPLE}")
    return str(lake / "default" / "people.lance")


def rows(lance, uri):
    return sorted(tuple(row.values()) for row in lance.dataset(uri).to_table().to_pylist())


def test_create_describe_show_and_drop(sql, lake, lance):
    sql("CREATE TABLE lake.default.one (id BIGINT NOT NULL, name STRING) USING lance")
    sql("CREATE TABLE lake.default.two (id BIGINT NOT NULL)")
    assert sql("DESCRIBE TABLE lake.default.one") == [("id", "bigint", None), ("name", "string", None)]
    assert sql("SHOW TABLES IN lake.default") == [("default", "one", False), ("default", "two", False)]
    assert sql("SELECT COUNT(*) FROM lake.default.two") == [(0,)]
    sql("DROP TABLE IF EXISTS lake.default.two PURGE")
    with pytest.raises(DatasetNotFoundError, match=r"lake\.default\.two"):
        sql("SELECT COUNT(*) FROM lake.default.two")
    assert not lance.dataset(str(lake / "default" / "one.lance")).schema.field("id").nullable


def test_create_and_replace_as_select(spark, sql, people, lance):
    spark.sql("SELECT * FROM VALUES (10, 'New'), (20, 'Other') AS v(id, name)").createOrReplaceTempView("source")
    sql("CREATE OR REPLACE TABLE lake.default.fresh AS SELECT * FROM source")
    for _ in range(2):
        sql("CREATE OR REPLACE TABLE lake.default.fresh AS SELECT * FROM source")
    assert sql("SELECT * FROM lake.default.fresh ORDER BY id") == [(10, "New"), (20, "Other")]
    sql("REPLACE TABLE lake.default.people AS SELECT cast(id AS string) AS id, x'01' AS data FROM source")
    assert rows(lance, people) == [("10", b"\x01"), ("20", b"\x01")]
    sql("REPLACE TABLE lake.default.people (new_id INT, description STRING)")
    assert lance.dataset(people).schema.names == ["new_id", "description"]
    assert lance.dataset(people).count_rows() == 0
    with pytest.raises(DatasetNotFoundError, match="CREATE OR REPLACE TABLE creates a missing table"):
        sql("REPLACE TABLE lake.default.nothing (a INT)")


def test_properties(sql, people):
    def properties():
        return dict(sql("SHOW TBLPROPERTIES lake.default.people"))

    sql("ALTER TABLE lake.default.people SET TBLPROPERTIES ('team' = 'data-eng', 'env' = 'staging')")
    sql("ALTER TABLE lake.default.people SET TBLPROPERTIES ('env' = 'production')")
    sql("INSERT INTO lake.default.people VALUES (5, 'Eve', 50)")
    assert properties() == {"team": "data-eng", "env": "production"}
    sql("ALTER TABLE lake.default.people UNSET TBLPROPERTIES ('team')")
    assert properties() == {"env": "production"}
    with pytest.raises(DatasetNotFoundError):
        sql("ALTER TABLE lake.default.nothing SET TBLPROPERTIES ('key' = 'value')")


def test_encodings_by_property(sql, lake, lance):
    sql(
        """CREATE TABLE lake.default.packed (id BIGINT, payload STRING, ts BIGINT) USING lance TBLPROPERTIES (
        'payload.lance.compression' = 'zstd', 'payload.lance.compression-level' = '3', 'ts.lance.compression' = 'none')"""
    )
    sql("INSERT INTO lake.default.packed VALUES (1, 'hello', 1000)")
    read = lance.dataset(str(lake / "default" / "packed.lance"))
    assert read.to_table().to_pylist() == [{"id": 1, "payload": "hello", "ts": 1000}]
    metadata = {field.name: field.metadata for field in read.schema}
    assert metadata["payload"][b"lance-encoding:compression"] == b"zstd"
    assert metadata["payload"][b"lance-encoding:compression-level"] == b"3"
    assert metadata["ts"][b"lance-encoding:compression"] == b"none"
    assert not metadata["id"]
    assert sql("SHOW TBLPROPERTIES lake.default.packed") == []


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("'payload.lance.compression' = 'gzip'", r"payload.*'gzip', and must be"),
        ("'id.lance.structural-encoding' = 'rle'", r"id.*'rle', and must be"),
        ("'id.lance.compresion' = 'zstd'", "compresion"),
        ("'nope.lance.compression' = 'zstd'", "no columns.*nope"),
    ],
)
def test_encodings_that_are_not_possible(sql, lake, properties, message):
    with pytest.raises(LanceError, match=message):
        sql(f"CREATE TABLE lake.default.bad (id BIGINT, payload STRING) TBLPROPERTIES ({properties})")
    assert sql("SHOW TABLES IN lake") == []


def test_indices(sql, people):
    for kind, column in (("btree", "id"), ("btree", "name"), ("zonemap", "value")):
        sql(f"CALL lake.system.create_scalar_index('default.people', '{column}', '{kind}', 'idx_{column}')")
    shown = {row[0]: row[1:] for row in sql("SHOW INDEX FROM lake.default.people")}
    assert shown == {
        "idx_id": (["id"], "btree", 4),
        "idx_name": (["name"], "btree", 4),
        "idx_value": (["value"], "zonemap", 4),
    }
    assert sql("SELECT id FROM lake.default.people WHERE name = 'Bob' AND value = 20") == [(2,)]
    sql("CALL lake.system.drop_index('default.people', 'idx_id')")
    assert len(sql("SHOW INDEXES IN lake.default.people")) == 2
    with pytest.raises(NotFoundError):
        sql("CALL lake.system.drop_index('default.people', 'idx_id')")


def test_optimize_and_vacuum(spark, sql, people):
    sql("CREATE TABLE lake.default.empty (id INT)")
    (optimized,) = pyspark_lance.sql(spark, "CALL lake.system.compact('default.empty')").collect()
    assert (optimized.metrics.fragments_removed, optimized.metrics.fragments_added) == (0, 0)
    for batch in range(5):
        sql(
            "INSERT INTO lake.default.people SELECT id + 10 * :batch, name, value FROM lake.default.people WHERE id < 5",
            batch=batch + 1,
        )
    (optimized,) = pyspark_lance.sql(
        spark, "CALL lake.system.compact('default.people', target_rows_per_fragment => 100)"
    ).collect()
    assert optimized.metrics.fragments_removed > 5
    assert optimized.metrics.fragments_added == 1
    sql("UPDATE lake.default.people SET value = 150 WHERE id = 1")
    (vacuumed,) = pyspark_lance.sql(
        spark, "CALL lake.system.cleanup_old_versions('default.people', INTERVAL 0 HOURS, age_from => 'replacement')"
    ).collect()
    assert vacuumed.old_versions == lance_core.dataset(people).version - 1
    assert vacuumed.bytes_removed > 0
    assert sql("SELECT count(*), max(value) FROM lake.default.people") == [(24, 150)]


def test_a_vacuum_passes_over_tagged_versions(spark, sql, people):
    sql("CALL lake.system.create_tag('default.people@v1', 'kept')")
    sql("DELETE FROM lake.default.people WHERE id = 1")
    with pytest.raises(LanceError, match="tagged"):
        sql("CALL lake.system.cleanup_old_versions('default.people', INTERVAL 0 HOURS)")
    arguments = "('default.people', INTERVAL 0 HOURS, error_if_tagged_old_versions => false"
    (dry,) = pyspark_lance.sql(
        spark, f"CALL lake.system.explain_cleanup_old_versions{arguments}, include_files => true)"
    ).collect()
    assert dry.stats.old_versions == 1
    assert {file.kind for file in dry.candidate_files} >= {"manifest", "transaction"}
    (vacuumed,) = pyspark_lance.sql(spark, f"CALL lake.system.cleanup_old_versions{arguments})").collect()
    assert vacuumed.old_versions == 1
    assert sql("SELECT count(*) FROM lake.default.people@kept") == [(0,)]


def test_selects(sql, people):
    sql("CREATE TABLE lake.default.scores (id INT NOT NULL, score INT)")
    sql("INSERT INTO lake.default.scores VALUES (1, 95), (2, 87), (3, 92)")
    assert sql("SELECT name FROM lake.default.people WHERE id > 1 AND value < 40 ORDER BY id DESC") == [
        ("Charlie",),
        ("Bob",),
    ]
    assert sql(
        "SELECT t1.name, t2.score FROM lake.default.people t1 JOIN lake.default.scores t2 ON t1.id = t2.id ORDER BY t1.id"
    ) == [("Alice", 95), ("Bob", 87), ("Charlie", 92)]
    assert sql(
        "SELECT value > 20 AS much, COUNT(*) AS c, AVG(value) FROM lake.default.people GROUP BY 1 ORDER BY 1"
    ) == [
        (False, 2, 15.0),
        (True, 2, 35.0),
    ]
    assert len(sql("SELECT * FROM lake.default.people LIMIT 3")) == 3


def test_inserts_and_overwrites(sql, people, lance):
    sql("INSERT INTO lake.default.people SELECT id + 10, name, value * 2 FROM lake.default.people WHERE id < 3")
    assert rows(lance, people)[-2:] == [(11, "Alice", 20), (12, "Bob", 40)]
    sql(
        "INSERT OVERWRITE lake.default.people SELECT id, UPPER(name) AS name, value FROM lake.default.people WHERE id = 1"
    )
    assert rows(lance, people) == [(1, "ALICE", 10)]
    sql("INSERT OVERWRITE lake.default.people VALUES (100, 'NewUser1', 1000), (200, 'NewUser2', 2000)")
    assert rows(lance, people) == [(100, "NewUser1", 1000), (200, "NewUser2", 2000)]


def test_updates_deletes_and_time_travel(sql, people):
    sql("UPDATE lake.default.people SET value = value + 100 WHERE value < 30")
    assert sql("SELECT value FROM lake.default.people ORDER BY id") == [(110,), (120,), (30,), (40,)]
    assert sql("SELECT value FROM lake.default.people VERSION AS OF 2 WHERE id = 1") == [(10,)]
    sql("DELETE FROM lake.default.people WHERE name = 'Bob'")
    assert sql("SELECT count(*) FROM lake.default.people") == [(3,)]
    assert sql("SELECT count(*) FROM lake.default.people VERSION AS OF 3") == [(4,)]


def test_merges(spark, sql, people, lance):
    data = [(1, "Alice_Updated", 100), (2, "Bob", 0), (5, "Eve", 50)]
    spark.createDataFrame(data, "id int, name string, value int").createOrReplaceTempView("source")
    sql(
        """MERGE INTO lake.default.people t USING source s ON t.id = s.id
        WHEN MATCHED AND s.value = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET name = s.name, value = s.value
        WHEN NOT MATCHED THEN INSERT (id, name, value) VALUES (s.id, s.name, s.value)"""
    )
    assert rows(lance, people) == [(1, "Alice_Updated", 100), (3, "Charlie", 30), (4, "Diana", 40), (5, "Eve", 50)]
    sql("MERGE INTO lake.default.people t USING source s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert rows(lance, people) == [(3, "Charlie", 30), (4, "Diana", 40)]


def test_branches_and_tags(sql, people):
    sql("DELETE FROM lake.default.people WHERE id = 4")
    sql("CALL lake.system.create_tag('default.people VERSION AS OF 2', 'first')")

    def create(source, *arguments, verb="create_branch"):
        quoted = ", ".join(f"'{argument}'" for argument in (f"default.people{source}", *arguments))
        return sql(f"CALL lake.system.{verb}({quoted})")

    assert create("", "latest", verb="ensure_branch") == [(3,)]
    assert create("", "latest", verb="ensure_branch") == [(3,)]
    assert create("@v2", "old") == [(2,)]
    assert create("@first", "source-branch") == [(2,)]
    sql("DELETE FROM lake.default.people@`source-branch` WHERE id = 1")
    assert create("@source-branch", "child") == [(3,)]
    assert create("@source-branch VERSION AS OF 2", "child_v2") == [(2,)]
    assert create("@main VERSION AS OF 2", "again") == [(2,)]
    shown = {name: (parent, version) for name, parent, version in sql("SHOW BRANCH IN lake.default.people")}
    assert shown == {
        "latest": ("main", 3), "old": ("main", 2), "source-branch": ("main", 2), "again": ("main", 2),
        "child": ("source-branch", 3), "child_v2": ("source-branch", 2),
    }  # fmt: skip
    counts = {name: sql(f"SELECT count(*) FROM lake.default.people@`{name}`")[0][0] for name in shown}
    assert counts == {"latest": 3, "old": 4, "source-branch": 3, "again": 4, "child": 3, "child_v2": 4}
    for source in ("@missing", " VERSION AS OF missing", "@v1000", "@main VERSION AS OF 1000"):
        with pytest.raises(NotFoundError):
            create(source, "never")
    with pytest.raises(LanceError, match="latest"):
        create("", "latest")
    create("", "child", verb="delete_branch")
    create("", "child", verb="discard_branch")
    with pytest.raises(LanceError, match="child"):
        create("", "child", verb="delete_branch")
    assert "never" not in {row[0] for row in sql("SHOW BRANCHES FROM lake.default.people")}
    create("@source-branch", "copied", verb="create_tag")
    assert ("copied", "source-branch", 3) in sql("SHOW TAGS IN lake.default.people")
    create("@v1", "copied", verb="update_tag")
    assert ("copied", "main", 1) in sql("SHOW TAGS IN lake.default.people")


@pytest.mark.variants(4)
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "ALTER TABLE lake.default.people ADD COLUMNS doubled FROM v",
            "line 1, column 53: the type of column 'doubled', FROM v",
        ),
        ("ALTER TABLE lake.default.people UPDATE COLUMNS value FROM v", "line 1, column 33: 'UPDATE'"),
        ("ALTER TABLE lake.default.people SET UNENFORCED PRIMARY KEY (id)", "line 1, column 33: 'SET'"),
        ("ALTER TABLE lake.default.people RENAME TO lake.default.others", "line 1, column 33: 'RENAME'"),
        ("ALTER TABLE lake.default.people ADD COLUMNS (age INT FIRST)", "line 1, column 54: 'FIRST'"),
        ("ALTER TABLE lake.default.people ADD COLUMNS (age INT DEFAULT 3)", "line 1, column 54: 'DEFAULT'"),
        ("CALL lake.system.cleanup_old_versions('default.people', before_version => 3)", "before_version"),
        ("CREATE NAMESPACE lake.more", "line 1, column 8: .*once it has a table"),
        ("DROP NAMESPACE lake.default", "line 1, column 1: 'DROP'"),
    ],
)
def test_what_is_rejected_by_name(sql, people, statement, message):
    before = lance_core.dataset(people).version
    with pytest.raises(LanceError, match=message):
        sql(statement)
    assert lance_core.dataset(people).version == before


def test_columns(sql, people, lance):
    sql("ALTER TABLE lake.default.people ADD COLUMNS (age INT, email STRING)")
    sql("ALTER TABLE lake.default.people RENAME COLUMN name TO full_name")
    sql("ALTER TABLE lake.default.people DROP COLUMN age")
    sql("ALTER TABLE lake.default.people DROP COLUMN IF EXISTS age")
    sql("ALTER TABLE lake.default.people ALTER COLUMN id DROP NOT NULL")
    assert lance.dataset(people).schema.names == ["id", "full_name", "value", "email"]
    with pytest.raises(SchemaError, match="value"):
        sql("ALTER TABLE lake.default.people ADD COLUMNS (value INT)")


def test_row_ids_and_versions_of_rows(sql, lake):
    sql("CREATE TABLE lake.default.kept (id INT, value INT) TBLPROPERTIES ('enable_stable_row_ids' = 'true')")
    sql("INSERT INTO lake.default.kept VALUES (1, 100), (2, 200)")
    sql("UPDATE lake.default.kept SET value = 1 WHERE id = 2")
    assert sql("SELECT _rowid, id FROM lake.default.kept ORDER BY id") == [(0, 1), (1, 2)]
    assert sql(
        "SELECT id, _row_created_at_version, _row_last_updated_at_version FROM lake.default.kept ORDER BY id"
    ) == [(1, 2, 2), (2, 2, 3)]
