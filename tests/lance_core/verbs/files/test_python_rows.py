"""Rows from Python that do not fit: errors that name the column, whichever call takes the rows."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import ArgumentTypeError, SchemaError, UnsupportedError
from lance_core.verbs.files.python_rows import table_of_columns, table_of_dicts, table_of_frame

_numbers = itertools.count()
SCHEMA = pa.schema({"a": pa.int8(), "b": pa.string()})


def written(rows):
    return lance_core.write_dataset(rows, f"memory://python-rows-{next(_numbers)}")


def given(rows):
    """The rows, which a function makes of pandas where they are a frame."""
    if not callable(rows):
        return rows
    import pandas as pd

    return rows(pd)


CALLS = {
    "write": written,
    "insert": lambda rows: written(pa.table({"a": [1], "b": [1]})).insert(rows),
    "merge": lambda rows: (
        written(pa.table({"a": [1], "b": [1]})).merge_insert("a").when_not_matched_insert_all().execute(rows)
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ({"a": [1], "b": [1, 2]}, SchemaError, "column 'b' has 2 rows, and 'a' has 1"),
        ({"a": [1, "x"]}, SchemaError, "column 'a': Could not convert 'x' with type str: tried to convert to int64"),
        ({"a": 1}, ArgumentTypeError, "column 'a': a list or an array of values is needed, not int"),
        ({"a": None}, ArgumentTypeError, "column 'a': a list or an array of values is needed, not NoneType"),
        ({"a": pa.scalar(1)}, ArgumentTypeError, "column 'a': a list or an array .* not Int64Scalar"),
        ({1: [1]}, ArgumentTypeError, "a name is a string, not 1"),
        ({"a": [2**70]}, SchemaError, "column 'a': .* too large"),
        ({"a": [object()]}, SchemaError, "column 'a': "),
        ({"a": np.zeros((2, 2))}, SchemaError, "column 'a': only handle 1-dimensional arrays"),
        ({"a": ["\udc80"]}, SchemaError, "column 'a': "),
        ({"\udc80": [1]}, SchemaError, "surrogates not allowed"),
        ([{"a": 1}, {"a": "x"}], SchemaError, "column 'a': Could not convert 'x'"),
        ([{"a": 1}, 5], ArgumentTypeError, "row 1: a dict of values by column is needed, not int"),
        ([{1: 1}], ArgumentTypeError, "a name is a string, not 1"),
        (lambda pd: pd.DataFrame({"a": [1, "x"]}), SchemaError, "Conversion failed for column a"),
        (lambda pd: pd.DataFrame([[1, 2]], columns=["a", "a"]), SchemaError, "Duplicate column names"),
        (lambda pd: pd.Series([1]), ArgumentTypeError, "Series of pandas; a DataFrame is needed"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_raise_errors_that_name_the_column(call, rows, kind, message):
    with pytest.raises(kind, match=message) as caught:
        CALLS[call](given(rows))
    assert isinstance(caught.value, TypeError) is (kind is ArgumentTypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": [300], "b": ["x"]}, "column 'a': .*too large"),
        ({"a": [1], "b": [1]}, "column 'b': "),
        ({"a": pa.array([300]), "b": ["x"]}, "column 'a': "),
        ({"a": [1]}, r"the data has no column 'b', which the schema has; its columns are \['a'\]"),
        ([{"a": 1, "b": 1}], "column 'b': "),
        (lambda pd: pd.DataFrame({"a": [1000], "b": ["x"]}), "column a"),
        (lambda pd: pd.DataFrame({"a": [1]}), "'b' present in the specified schema is not found"),
    ],
)
def test_rows_that_do_not_fit_a_schema(rows, message):
    with pytest.raises(SchemaError, match=message):
        lance_core.write_dataset(given(rows), f"memory://python-rows-{next(_numbers)}", schema=SCHEMA)


def test_a_type_that_arrow_does_not_convert_to_is_named():
    with pytest.raises(UnsupportedError, match="column 'a': "):
        table_of_columns({"a": pa.array([1])}, pa.schema({"a": pa.list_(pa.int8())}))


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"a": []},
        {"a": [1, None], "b": np.arange(2)},
        {"a": np.array([1.5]), "b": pa.chunked_array([["x"]]), "c": (1,)},
        {b"a": [1], "b": range(1)},
        {"a": {"x": 1}, "b": {1}},
        {"a": "xy"},
    ],
)
def test_tables_are_those_of_pyarrow(columns):
    assert table_of_columns(columns).equals(pa.Table.from_pydict(columns))
    assert table_of_columns({"a": (n for n in range(3)), "b": [1, 2, 3]}).to_pydict() == {
        "a": [0, 1, 2],
        "b": [1, 2, 3],
    }


@pytest.mark.parametrize("columns", [{"a": [1], "b": ["x"]}, {b"a": pa.array([1]), "b": [None], "more": [1]}])
def test_tables_of_a_schema_are_those_of_pyarrow(columns):
    schema = SCHEMA.with_metadata({"k": "v"})
    table = table_of_columns(columns, schema)
    assert table.equals(pa.Table.from_pydict(columns, schema=schema), check_metadata=True)


@pytest.mark.parametrize("rows", [[{"a": 1, "b": "x"}, {"b": "y"}], [{"a": 1}, {"a": 2, "b": "y"}], [{}, {"a": 1}]])
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_tables_of_dicts_are_those_of_pyarrow(rows, schema):
    assert table_of_dicts(rows, schema).equals(pa.Table.from_pylist(rows, schema=schema))


def test_tables_of_frames_have_the_index_that_pyarrow_stores():
    frame = given(lambda pd: pd.DataFrame({"a": [1]}, index=["x"]))
    assert table_of_frame(frame).equals(pa.Table.from_pandas(frame), check_metadata=True)
    assert table_of_frame(frame, with_index=False).column_names == ["a"]
    assert table_of_frame(frame.reset_index(drop=True)).column_names == ["a"]
    assert table_of_columns({"a": frame["a"]}).to_pydict() == {"a": [1]}
