"""What messages recommend: each function, argument and option that one names is there, and does what it says."""

import ast
import inspect
import re
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, LanceError, SchemaError, UnsupportedError
from pyspark_lance.datasource.options import SourceOptions
from pyspark_lance.writing.schema_plan import plan_write

MODULES = sorted(Path(pyspark_lance.__file__).parent.rglob("*.py"))
FUNCTIONS = ("write", "read", "read_changes", "merge", "update", "delete", "write_columns", "convert", "to_parquet", "compact", "create_scalar_index", "deep_clone")  # fmt: skip


def messages_of(tree):
    """The messages that a module raises, and its constants, with {} for values."""
    constants = [
        one.value for one in tree.body if isinstance(one, ast.AnnAssign | ast.Assign) and one.value is not None
    ]
    raised = [one.exc for one in ast.walk(tree) if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call)]
    for node in (*constants, *(argument for call in raised for argument in call.args)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)


MESSAGES = [(path.name, text) for path in MODULES for text in messages_of(ast.parse(path.read_text()))]


def test_there_are_messages():
    assert len(MESSAGES) > 100


def test_functions_that_messages_name_are_there():
    named = {(name, found) for name, text in MESSAGES for found in re.findall(r"pyspark_lance\.(\w+)\(", text)}
    assert named
    assert {found for _, found in named} <= set(pyspark_lance.__all__)
    for found in {found for _, text in MESSAGES for found in re.findall(r"dataset\(uri\)\.(\w+)\(", text)}:
        assert callable(getattr(lance_core.LanceDataset, found))


def test_arguments_and_options_that_messages_name_are_there():
    arguments = {
        name for function in FUNCTIONS for name in inspect.signature(getattr(pyspark_lance, function)).parameters
    }
    for name, text in MESSAGES:
        for found in re.findall(r"(?<![\w.{}<>!])([a-z_]+)=(?=['\w.])", text):
            assert found in arguments or found in ("name", "key"), (name, text)
        for found in re.findall(r"\boption[s]? (\w+)(?=[)=:]| (?:must|pushdown))", text):
            if found != "path":
                SourceOptions({found: "1"})
        for call, found in re.findall(r"pyspark_lance\.(\w+)\([^()]*?(\w+)=", text):
            assert found in inspect.signature(getattr(pyspark_lance, call)).parameters, (name, text)


def remedies(text):
    return set(re.findall(r"schema_mode|option \w+|mode=", text))


def test_a_verb_recommends_no_argument_that_it_lacks():
    table = pa.schema([("a", pa.int32()), ("s", pa.struct([("x", pa.int32())]))])
    for source in (
        [("a", pa.string()), ("s", table.field("s").type)],
        [("a", pa.int32()), ("s", pa.struct([("x", pa.int32()), ("y", pa.int32())]))],
        [("a", pa.int32())],
        [*table, ("new", pa.int32())],
    ):
        with pytest.raises(SchemaError) as raised:
            plan_write(pa.schema(source), table)
        assert remedies(str(raised.value))
        with pytest.raises(SchemaError) as raised:
            plan_write(pa.schema(source), table, has_schema_mode=False)
        assert not remedies(str(raised.value)), raised.value


def test_remedies_work(spark, uri):
    """Each remedy works as its message says."""
    pyspark_lance.write(spark.sql("select 1 as id, 'a' as s"), uri)
    wider = spark.sql("select 1 as id, 'a' as s, 2 as new")
    with pytest.raises(SchemaError, match=r"schema_mode='add_columns' \(option mergeSchema\) adds them"):
        pyspark_lance.write(wider, uri)
    with pytest.raises(SchemaError, match=r"add_columns\(\[pyarrow\.field\(name, type\)") as raised:
        pyspark_lance.merge(wider, uri, on="id")
    assert not remedies(str(raised.value))
    with pytest.raises(UnsupportedError, match=r"add_columns\(\[pyarrow\.field\(name, type\)"):
        pyspark_lance.write(wider, uri, mode="overwrite", replace_where="id = 1", schema_mode="add_columns")
    assert pyspark_lance.merge(wider.drop("new"), uri, on="id").rows_updated == 1
    lance_core.dataset(uri).add_columns([pa.field("new", pa.int32())])
    assert pyspark_lance.merge(wider, uri, on="id").rows_updated == 1
    lacking = spark.sql("select 1 as id, 'b' as s")
    with pytest.raises(Exception, match=r"pyspark_lance\.merge\(df, uri, on=\.\.\.\) keeps the values") as raised:
        lacking.write.format("lance").mode("append").option("merge_on", "id").save(uri)
    assert not remedies(str(raised.value).splitlines()[0])
    pyspark_lance.merge(lacking, uri, on="id")
    assert lance_core.dataset(uri).to_table().to_pylist() == [{"id": 1, "s": "b", "new": 2}]
    other = spark.sql("select 'one' as id, 'b' as s, 3 as new")
    with pytest.raises(SchemaError, match=r"(?m)column 'id': the DataFrame has string, the table int32; cast it$"):
        pyspark_lance.merge(other, uri, on="s")
    with pytest.raises(SchemaError, match="replace the whole table with mode='overwrite' and schema_mode='overwrite'"):
        pyspark_lance.write(other, uri)
    pyspark_lance.write(other, uri, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(LanceError, match=r"write cast\('1' as int\)"):
        pyspark_lance.update(uri, {"new": "'1'"}, spark=spark)
    assert pyspark_lance.update(uri, {"new": "cast('1' as int)"}, spark=spark).rows_updated == 1


@pytest.mark.parametrize(
    "verb",
    [
        lambda spark, uri: pyspark_lance.write(spark.range(3), uri),
        pyspark_lance.read,
        lambda spark, uri: pyspark_lance.merge(spark.range(3), uri, on="id"),
        lambda spark, uri: pyspark_lance.update(uri, {"id": "1"}, where="id = 1", spark=spark),
        lambda spark, uri: pyspark_lance.delete(uri, where="id = 1", spark=spark),
        lambda _, uri: SourceOptions({"path": uri}).uri,
        pyspark_lance.compact,
        lambda spark, uri: pyspark_lance.execute_tasks(spark, uri, [None]),
        lambda spark, uri: pyspark_lance.create_scalar_index(spark, uri, "id", "BTREE"),
        lambda spark, uri: pyspark_lance.deep_clone(spark, uri, "copy.lance"),
        lambda spark, uri: pyspark_lance.deep_clone(spark, "copy.lance", uri),
        lambda spark, uri: pyspark_lance.to_parquet(uri, "copy.parquet", spark=spark),
        lambda spark, uri: pyspark_lance.read_changes(spark, uri, begin_version=1),
        lambda spark, uri: pyspark_lance.write_columns(spark.range(3), uri, on="id"),
    ],
)
def test_tables_in_memory_are_rejected_before_any_task(spark, verb):
    uri = "memory://rejected-by-spark/t.lance"
    table = lance_core.write_dataset(pa.table({"id": pa.array([1, 2], pa.int64())}), uri)
    with pytest.raises(InvalidInputError, match="Spark's tasks run in others: use a folder"):
        verb(spark, uri)
    assert table.version == lance_core.dataset(uri).version == 1
