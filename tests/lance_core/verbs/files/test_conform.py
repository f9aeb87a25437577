"""Data is fitted to a dataset's schema, or rejected by column before anything is written."""

import pyarrow as pa
import pytest

from lance_core.errors import SchemaError
from lance_core.schema import schema_from_arrow
from lance_core.verbs.files.conform import check_new_columns, conform, fit

POINT = pa.struct([("x", pa.int8()), ("y", pa.int8())])
DATASET = schema_from_arrow(
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("p", POINT)])
)


def test_columns_are_matched_by_name_and_missing_nullable_ones_left_out():
    kind = pa.struct([("y", pa.int8()), ("x", pa.int8())])
    data = pa.table({"p": pa.array([{"y": 2, "x": 1}], kind), "id": pa.array([7])})
    schema = fit(DATASET, data.schema)
    fitted = conform(data, schema)
    assert [f.id for f, _ in schema.walk()] == [0, 2, 3, 4]
    assert fitted.schema.names == ["id", "p"]
    assert fitted.to_pylist() == [{"id": 7, "p": {"x": 1, "y": 2}}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": pa.array(["a"])}, r"missing=\['id'\]"),
        ({"id": pa.array([1]), "other": pa.array([1])}, r"unexpected=\['other'\]"),
        ({"id": pa.array([1], pa.int32())}, "`id` should have type int64 but type was int32"),
        ({"id": pa.array([1]), "p": pa.array([{"x": 1}], pa.struct([("x", pa.int8())]))}, r"`p`.*missing=\['y'\]"),
        (
            {
                "id": pa.array([1]),
                "p": pa.array([{"x": 1, "y": "a"}], pa.struct([("x", pa.int8()), ("y", pa.string())])),
            },
            "`p.y`",
        ),
    ],
)
def test_data_that_does_not_fit_is_rejected_by_column(data, message):
    with pytest.raises(SchemaError, match=message):
        fit(DATASET, pa.table(data).schema)


def test_views_and_extension_types_are_stored_as_what_they_are():
    data = pa.table({"v": pa.array(["a", None], pa.string_view()), "u": pa.array([b"0" * 16, None], pa.uuid())})
    schema = schema_from_arrow(data.schema)
    fitted = conform(data, fit(schema, data.schema))
    assert fitted.schema.types == [pa.string(), pa.binary(16)]
    assert fitted["u"].to_pylist() == [b"0" * 16, None]


def test_a_new_dataset_needs_named_columns():
    with pytest.raises(SchemaError, match="at least one"):
        check_new_columns(pa.schema([]))
    with pytest.raises(SchemaError, match="empty"):
        check_new_columns(pa.schema([("", pa.int8())]))
