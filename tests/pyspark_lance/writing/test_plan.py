"""What is decided from schemas alone: stored types, and rejections that name the column."""

import pyarrow as pa
import pytest
from pyspark.sql import types as t  # noqa: TID253 - the parameters of the tests

from lance_core import Equals, Slice, Slices
from lance_core.errors import InvalidInputError, LanceError, SchemaError, UnsupportedError
from pyspark_lance.types.spark_types import VECTOR_WIDTH, batch_schema, spark_schema
from pyspark_lance.writing.schema_plan import plan_write

FLOATS = t.ArrayType(t.FloatType())


def frame(**columns):
    """What Spark hands over for columns of these types; (type, metadata) for a column with metadata."""
    schema = t.StructType()
    for name, given in columns.items():
        kind, metadata = given if isinstance(given, tuple) else (given, None)
        schema = schema.add(name, kind, nullable=True, metadata=metadata)
    return batch_schema(schema)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (t.LongType(), pa.int64()),
        (t.TimestampType(), pa.timestamp("us", "UTC")),
        (t.TimestampNTZType(), pa.timestamp("us")),
        (t.TimeType(6), pa.time64("us")),
        (t.DateType(), pa.date32()),
        (t.DecimalType(12, 3), pa.decimal128(12, 3)),
        (t.DayTimeIntervalType(), pa.duration("us")),
        (t.BinaryType(), pa.binary()),
        (t.NullType(), pa.null()),
        (FLOATS, pa.list_(pa.field("item", pa.float32()))),
        ((FLOATS, {VECTOR_WIDTH: 4}), pa.list_(pa.field("item", pa.float32()), 4)),
        ((FLOATS, {VECTOR_WIDTH: "4"}), pa.list_(pa.field("item", pa.float32()), 4)),
        (t.MapType(t.StringType(), t.TimeType()), pa.map_(pa.string(), pa.time64("us"))),
        (t.VariantType(), pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])),
        (t.StructType().add("v", FLOATS, True, {VECTOR_WIDTH: 2}), pa.struct([("v", pa.list_(pa.field("item", pa.float32()), 2))])),
    ],
    ids=str,
)  # fmt: skip
def test_stored_type_of_a_new_column(kind, stored):
    field = plan_write(frame(c=kind), None).stored.field("c")
    assert field.type == stored
    assert field.nullable


def test_every_stored_type_goes_back_to_the_spark_type_that_made_it():
    schema = t.StructType()
    kinds = [
        t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType(),
        t.StringType(), t.BinaryType(), t.DateType(), t.TimestampType(), t.TimestampNTZType(), t.TimeType(6),
        t.DecimalType(38, 10), t.DayTimeIntervalType(), t.NullType(), t.VariantType(), FLOATS,
        t.MapType(t.StringType(), t.ArrayType(t.LongType())), t.StructType().add("a", FLOATS),
    ]  # fmt: skip
    for number, kind in enumerate(kinds):
        schema = schema.add(f"c{number}", kind)
    schema = schema.add("v", FLOATS, True, {VECTOR_WIDTH: 8, "comment": "x"})
    stored = plan_write(batch_schema(schema), None).stored
    assert spark_schema(stored) == schema
    # ... and such a table can be appended to with the very same schema.
    assert plan_write(batch_schema(schema), stored).stored == stored


def test_collations_and_precisions_are_kept():
    kinds = [t.StringType("UTF8_LCASE"), t.TimeType(3), t.StructType().add("s", t.StringType("UNICODE_CI"))]
    schema = t.StructType()
    for number, kind in enumerate(kinds):
        schema = schema.add(f"c{number}", kind)
    back = spark_schema(plan_write(batch_schema(schema), None).stored)
    assert [field.dataType for field in back] == kinds
    assert all(not field.metadata for field in back)
    with pytest.raises(UnsupportedError, match=r"column 'l\[\]': string collate UTF8_LCASE"):
        frame(l=t.ArrayType(t.StringType("UTF8_LCASE")))


def test_an_array_of_nothing_is_rejected_by_name_unless_the_table_knows_its_items():
    nothing = frame(l=t.ArrayType(t.NullType()))
    with pytest.raises(SchemaError, match="column 'l': an array of untyped nulls"):
        plan_write(nothing, None)
    assert plan_write(nothing, pa.schema([("l", pa.list_(pa.int64()))])).stored.field("l").type == pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("kind", "stored", "fits"),
    [
        (t.IntegerType(), pa.int64(), True),
        (t.LongType(), pa.int32(), True),
        (t.StringType(), pa.int32(), False),
        (t.BooleanType(), pa.int32(), False),
        (t.FloatType(), pa.float64(), True),
        (t.DoubleType(), pa.float32(), True),
        (t.IntegerType(), pa.float64(), True),
        (t.LongType(), pa.float64(), True),
        (t.DecimalType(10, 2), pa.decimal128(12, 2), True),
        (t.DecimalType(10, 2), pa.decimal128(12, 3), True),
        (t.DecimalType(10, 2), pa.decimal128(10, 3), True),
        (t.IntegerType(), pa.decimal128(12, 2), True),
        (t.LongType(), pa.decimal128(20, 2), True),
        (t.ArrayType(t.IntegerType()), pa.list_(pa.int64()), True),
    ],
    ids=str,
)
def test_numbers_fit_into_columns_of_numbers(kind, stored, fits):
    if fits:
        assert plan_write(frame(c=kind), pa.schema([("c", stored)])).stored.field("c").type == stored
    else:
        with pytest.raises(SchemaError, match="column 'c': the DataFrame has"):
            plan_write(frame(c=kind), pa.schema([("c", stored)]))


def test_metadata_of_columns_is_kept_as_strings():
    field = plan_write(frame(c=(t.LongType(), {"comment": "n", "n": 1})), None).stored
    assert field.field("c").metadata == {b"comment": b"n"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (t.StructType().add("a", t.LongType()).add("a", t.LongType()), "column 'a' occurs twice"),
        (t.StructType().add("s", t.StructType().add("x", t.LongType()).add("x", t.LongType())), "struct 's': .*'x' occurs twice"),
        (t.StructType().add("a.b", t.LongType()), "'a.b'"),
        (t.StructType().add("a`b", t.LongType()), "'a`b'"),
        (t.StructType().add("_rowid", t.LongType()), "'_rowid'"),
        (t.StructType().add("", t.LongType()), "without a name"),
        (t.StructType().add("c", t.CharType(3)), "column 'c'"),
        (t.StructType().add("i", t.YearMonthIntervalType()), "column 'i': .*interval"),
        (t.StructType().add("i", t.CalendarIntervalType()), "column 'i': .*interval"),
        (t.StructType().add("s", t.StructType().add("l", t.ArrayType(t.YearMonthIntervalType()))), r"column 's\.l\[\]'"),
        (t.StructType().add("m", t.MapType(t.StringType(), t.YearMonthIntervalType())), r"column 'm\.value'"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_stored_are_rejected_by_name(schema, message):
    with pytest.raises((SchemaError, UnsupportedError), match=message):
        batch_schema(schema)


@pytest.mark.parametrize(
    ("kind", "widths", "message"),
    [
        (t.StringType(), {"v": 2}, "column 'v': a vector must be an array"),
        (t.ArrayType(t.StringType()), {"v": 2}, "column 'v': the items of a vector must be numbers, not string"),
        ((t.ArrayType(t.BooleanType()), {VECTOR_WIDTH: 2}), None, "column 'v': .*numbers, not bool"),
        ((t.ArrayType(FLOATS), {VECTOR_WIDTH: 2}), None, "column 'v': .*numbers, not list"),
        ((FLOATS, {VECTOR_WIDTH: 0}), None, "column 'v': metadata"),
        ((FLOATS, {VECTOR_WIDTH: "x"}), None, "column 'v': metadata"),
        ((FLOATS, {VECTOR_WIDTH: True}), None, "column 'v': metadata"),
        ((FLOATS, {VECTOR_WIDTH: 3}), {"v": 2}, "column 'v': vector_columns says 2 items, its metadata 3"),
        (FLOATS, {"v": 0}, "column 'v': 0 is not"),
        (FLOATS, {"w": 2}, "no column 'w'"),
    ],
)
def test_invalid_vectors_are_rejected(kind, widths, message):
    with pytest.raises(InvalidInputError, match=message):
        plan_write(frame(v=kind), None, vector_columns=widths)


def vector_table(width):
    return pa.schema([("v", pa.list_(pa.float32(), width))])


@pytest.mark.parametrize(("kind", "widths"), [(FLOATS, None), ((FLOATS, {VECTOR_WIDTH: 2}), None), (FLOATS, {"v": 2})])
def test_a_table_knows_the_width_of_its_vectors(kind, widths):
    assert plan_write(frame(v=kind), vector_table(2), vector_columns=widths).stored == vector_table(2)


@pytest.mark.parametrize(("kind", "widths"), [((FLOATS, {VECTOR_WIDTH: 3}), None), (FLOATS, {"v": 3})])
def test_another_width_than_the_table_has_is_rejected(kind, widths):
    with pytest.raises(SchemaError, match="column 'v': the DataFrame has vectors of 3 items, the table of 2"):
        plan_write(frame(v=kind), vector_table(2), vector_columns=widths)


def test_vector_columns_does_not_make_vectors_of_the_lists_that_a_table_has():
    table = pa.schema([("v", pa.list_(pa.float32()))])
    with pytest.raises(SchemaError, match="column 'v': the table has list"):
        plan_write(frame(v=FLOATS), table, vector_columns={"v": 2})
    assert plan_write(frame(v=(FLOATS, {VECTOR_WIDTH: 2})), table).stored == table


TABLE = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("x", pa.float64())])


def test_order_and_nullability_do_not_matter():
    source = frame(x=t.DoubleType(), id=t.LongType(), name=t.StringType())
    assert plan_write(source, TABLE).stored == TABLE
    assert plan_write(source, TABLE, mode="overwrite").stored == TABLE


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"id": t.LongType(), "name": t.StringType()}, r"lacks the columns \['x'\]"),
        ({"id": t.LongType(), "name": t.StringType(), "x": t.DoubleType(), "y": t.LongType()}, r"has the columns \['y'\]"),
        ({"id": t.LongType(), "name": t.StringType(), "X": t.DoubleType()}, "'X' is called 'x' in the table"),
        ({"id": t.BooleanType(), "name": t.StringType(), "x": t.DoubleType()}, r"column 'id': the DataFrame has bool, the table int64"),
        ({"id": t.LongType(), "name": t.BinaryType(), "x": t.DoubleType()}, "column 'name': the DataFrame has binary"),
        ({"id": t.LongType(), "name": t.ArrayType(t.StringType()), "x": t.DoubleType()}, "column 'name'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["append", "overwrite", "replace"])
def test_a_schema_that_does_not_fit_is_rejected_by_name(mode, source, message):
    with pytest.raises(SchemaError, match=message):
        plan_write(frame(**source), TABLE, mode=mode, case_sensitive=True)


def test_overwrite_of_the_schema_takes_any():
    source = frame(x=t.StringType())
    assert plan_write(source, TABLE, mode="overwrite", schema_mode="overwrite").stored == pa.schema(
        [("x", pa.string())]
    )
    with pytest.raises(InvalidInputError, match="'append'"):
        plan_write(source, TABLE, mode="append", schema_mode="overwrite")


def test_add_columns_takes_new_and_missing_ones():
    source = frame(id=t.LongType(), v=(FLOATS, {VECTOR_WIDTH: 2}))
    plan = plan_write(source, TABLE, schema_mode="add_columns")
    assert plan.new_columns == ("v",)
    assert plan.stored == pa.schema([*TABLE, ("v", pa.list_(pa.float32(), 2))])
    with pytest.raises(SchemaError, match="column 'id' of the table cannot be null"):
        plan_write(frame(name=t.StringType()), TABLE, schema_mode="add_columns")


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.uint8(), t.ShortType()),
        (pa.uint64(), t.DecimalType(20, 0)),
        (pa.float16(), t.FloatType()),
        (pa.large_string(), t.StringType()),
        (pa.dictionary(pa.int32(), pa.string()), t.StringType()),
        (pa.timestamp("ns", "Europe/Paris"), t.TimestampType()),
        (pa.timestamp("s"), t.TimestampNTZType()),
        (pa.time32("s"), t.TimeType(6)),
        (pa.date64(), t.DateType()),
        (pa.binary(4), t.BinaryType()),
        (pa.large_list(pa.field("x", pa.int32(), nullable=False)), t.ArrayType(t.IntegerType())),
        (pa.struct([("b", pa.int32()), ("a", pa.uint8())]), t.StructType().add("a", t.ShortType()).add("b", t.IntegerType())),
    ],
    ids=str,
)  # fmt: skip
def test_types_that_spark_lacks_take_the_type_that_they_are_read_as(stored, kind):
    table = pa.schema([("c", stored)])
    assert plan_write(frame(c=kind), table).stored == table
    assert spark_schema(table).fieldNames() == ["c"]
    with pytest.raises(SchemaError, match="column 'c'"):
        plan_write(frame(c=t.BooleanType()), table)


def test_a_void_column_fits_every_column():
    assert plan_write(frame(id=t.LongType(), name=t.NullType(), x=t.NullType()), TABLE).stored == TABLE


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.decimal128(5, -2)], ids=str)
def test_columns_that_spark_cannot_read_are_rejected_by_name(kind):
    with pytest.raises(UnsupportedError, match="column 'c'"):
        spark_schema(pa.schema([("c", kind)]))


def test_slices_must_be_exact_in_the_stored_columns():
    slices = Slices([Slice(name="a", conditions={"k": Equals("a")})])
    assert plan_write(frame(k=t.StringType()), None, slices=slices).stored == pa.schema([("k", pa.string())])
    for source in (frame(k=t.LongType()), frame(other=t.StringType())):
        with pytest.raises(LanceError, match="'k'"):
            plan_write(source, None, slices=slices)


@pytest.mark.parametrize("options", [{"mode": "upsert"}, {"schema_mode": "merge"}])
def test_unknown_modes_are_rejected(options):
    with pytest.raises(InvalidInputError, match="is none of"):
        plan_write(frame(id=t.LongType()), None, **options)


def nested(*names):
    inner = t.StructType()
    for name in names:
        inner = inner.add(name, t.LongType())
    return t.ArrayType(t.StructType().add("s", inner))


@pytest.mark.parametrize(
    ("given", "schema_mode", "message"),
    [
        (("a", "b"), "strict", r"column 'c\[\].s': .* field 'c\[\].s.b' of type int64, which the table lacks.*dropF"),
        (("a", "b"), "add_columns", r"'c\[\].s': .* field 'c\[\].s.b' of type int64, which the table lacks.*dropF"),
        ((), "strict", r"column 'c\[\].s': .* lacks the field 'c\[\].s.a' of the table, of type int64.*withF.*mergeS"),
    ],
)
def test_fields_of_structs_that_differ_are_named_with_the_remedy(given, message, schema_mode):
    table = plan_write(frame(c=nested("a")), None).stored
    with pytest.raises(SchemaError, match=message):
        plan_write(frame(c=nested(*given)), table, schema_mode=schema_mode)


def struct(**fields):
    made = t.StructType()
    for name, kind in fields.items():
        made = made.add(name, kind)
    return made


def test_structs_get_the_fields_that_are_new():
    table = plan_write(frame(id=t.LongType(), s=struct(a=t.LongType(), t=struct(x=t.LongType()))), None).stored
    given = struct(b=t.StringType(), t=struct(y=t.StringType(), x=t.LongType()), a=t.LongType())
    plan = plan_write(frame(s=given, id=t.LongType(), new=t.LongType()), table, schema_mode="add_columns")
    inner = pa.struct([("x", pa.int64()), ("y", pa.string())])
    assert plan.stored.field("s").type == pa.struct([("a", pa.int64()), ("t", inner), ("b", pa.string())])
    assert (plan.grown_columns, plan.new_columns) == (("s",), ("new",))
    with pytest.raises(SchemaError, match=r"field 's\.b' of type string, which the table lacks.*schema_mode='add"):
        plan_write(frame(id=t.LongType(), s=given), table)
    with pytest.raises(SchemaError, match=r"lacks the field 's\.a' of the table.*mergeSchema"):
        plan_write(frame(id=t.LongType(), s=struct(t=struct(x=t.LongType()))), table)
    lacking = plan_write(frame(id=t.LongType(), s=struct(b=t.LongType())), table, schema_mode="add_columns")
    assert lacking.stored.field("s").type.names == ["a", "t", "b"]
    strict = pa.schema([pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())]))])
    with pytest.raises(SchemaError, match=r"lacks the field 's\.a' of the table"):
        plan_write(frame(s=struct(b=t.LongType())), strict, schema_mode="add_columns")
    other_case = frame(id=t.LongType(), s=struct(A=t.LongType(), t=struct(x=t.LongType())))
    with pytest.raises(SchemaError, match=r"'s\.A' is called 's\.a' in the table: names must agree in case"):
        plan_write(other_case, table, schema_mode="add_columns", case_sensitive=True)
    assert plan_write(other_case, table, schema_mode="add_columns").stored == table


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (t.ArrayType(t.NullType(), containsNull=False), r"column 'c': the empty array\(\) .* cast it to array<...>"),
        (t.MapType(t.NullType(), t.NullType(), False), r"column 'c': the empty map\(\) .* cast it to map"),
    ],
)
def test_arrays_and_maps_of_nothing_are_rejected_by_name(kind, message):
    with pytest.raises(SchemaError, match=message):
        frame(c=kind)


@pytest.mark.parametrize("nest", [t.ArrayType, lambda kind: t.StructType([t.StructField("x", kind)])])
def test_columns_that_spark_cannot_pass_on_are_rejected(nest):
    kind = t.IntegerType()
    for _ in range(62):
        kind = nest(kind)
    known = batch_schema(t.StructType([t.StructField("a", kind)]))
    assert spark_schema(known).names == ["a"]
    for _ in range(100):
        kind = nest(kind)
        with pytest.raises(UnsupportedError, match="column 'a' is nested more than 62 deep"):
            batch_schema(t.StructType([t.StructField("a", kind)]))
    with pytest.raises(UnsupportedError, match="column 'a' is nested more than 62 deep"):
        spark_schema(pa.schema([pa.field("a", pa.list_(known.field("a").type))]))
