"""Filters name their columns, and nulls do not match."""

import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.arrow import check_filter, columns_of, matching, matching_all
from tests import processes

ROOT = Path(__file__).parents[4]


def test_columns_of_an_expression():
    expression = (
        (pc.field("a") > 5)
        & (pc.field("s", "x", "y") == pc.field("b"))
        & pc.is_null(pc.field("z.q"))
        & (pc.field("a") < 9)
    )
    assert columns_of(expression) == ["a", "s", "b", "z.q"]
    assert columns_of(pc.scalar(True)) == []


def test_rows_match_where_the_expression_is_true():
    batch = pa.record_batch({"a": [1, None, 3], "s": [{"x": 1}, {"x": 2}, None]})
    assert matching(batch, pc.field("a") > 1).to_pylist() == [False, False, True]
    assert matching(batch, pc.field("s", "x") == 2).to_pylist() == [False, True, False]
    for wrong in (pc.field("nope") == 1, pc.field("a") + 1, pc.field("a") == "x"):
        with pytest.raises(InvalidInputError, match="filter"):
            matching(batch, wrong)


def test_conditions_are_looked_at_one_after_the_other():
    batch = pa.record_batch({"a": [0, 1, None, 3, 4, 5, 6, 7, 8, 9], "b": [0, 1, 2, 0, 1, 2, None, 0, 1, 2]})
    wide, narrow, unsafe = pc.field("a") > 0, pc.field("b") == 2, pc.divide(pc.scalar(9), pc.field("a")) == 1
    for expressions in (
        [wide, narrow],
        [narrow, wide],
        [narrow, pc.scalar(True)],
        [wide, narrow, pc.scalar(pa.scalar(None, pa.bool_()))],
    ):
        whole = expressions[0]
        for other in expressions[1:]:
            whole &= other
        assert matching_all(batch, expressions).to_pylist() == matching(batch, whole).to_pylist()
    # 9 / 0 is not evaluated: that row is out before.
    assert matching_all(batch, [pc.field("a") > 7, unsafe]).to_pylist() == [False] * 8 + [True, True]
    assert matching_all(batch, [pc.field("a") > 99, pc.divide(pc.scalar(1), pc.scalar(0)) == 1]).true_count == 0


def test_a_filter_is_sql_or_an_expression():
    schema = pa.schema([("a", pa.int64())])
    batch = pa.record_batch({"a": [1, None, 3]})
    assert matching(batch, check_filter("a > 1", schema)).to_pylist() == [False, False, True]
    with pytest.raises(InvalidInputError, match="int"):
        check_filter(3, schema)
    assert check_filter(None, schema) is None


def test_an_expression_brings_its_functions_to_another_process(tmp_path):
    schema = pa.schema([("a", pa.string())])
    (tmp_path / "filter").write_bytes(pickle.dumps(check_filter("initcap(a) = 'Bob'", schema)))
    program = (
        "import pickle, sys, pyarrow as pa; from lance_core.verbs.expressions.arrow import matching; "
        "expression = pickle.load(open(sys.argv[1], 'rb')); "
        "print(matching(pa.record_batch({'a': ['bob', 'BOB', None]}), expression).to_pylist())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "filter")]
    done = processes.run(command, check=True)
    assert done.stdout.strip() == "[True, True, False]"


def test_sql_is_imported_when_it_is_used():
    program = "import sys, lance_core; print('sqlglot' in sys.modules)"
    done = processes.run([sys.executable, "-c", program], check=True)
    assert done.stdout.strip() == "False"
