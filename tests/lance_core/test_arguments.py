"""Arguments of a wrong type: every public verb takes them, or rejects them by name before anything is done."""

import inspect
import itertools
import warnings

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.arguments import checked
from lance_core.errors import ArgumentTypeError, InvalidInputError, LanceError
from lance_core.optimize import Compaction

ROWS = pa.table({"a": range(10), "s": ["x"] * 10})
WRONG = [5, None, "abc", [], {}, object(), -1, 1.5, b"x", True]
GOOD = {
    "data_obj": ROWS, "data": ROWS, "uri": "memory://good", "dataset_uri": "memory://good", "predicate": "a > 3",
    "updates": {"a": "1"}, "values": {"k": "v"}, "columns": ["a"], "indices": [1], "column": "a", "index_type": "BTREE",
    "version": 1, "on": "a", "schema": ROWS.schema, "left_on": "a", "num_rows": 1, "start": 0, "end": 2, "fragment_id": 0,
    "text": "a > 1", "fragments": [], "transforms": {"n": "a + 1"}, "target_path": "memory://copy", "ids": [0],
}  # fmt: skip

_numbers = itertools.count()


def fresh():
    return lance_core.write_dataset(ROWS, f"memory://arguments{next(_numbers)}")


HOLDERS = {
    "dataset": fresh,
    "fragment": lambda: fresh().get_fragments()[0],
    "tags": lambda: fresh().tags,
    "branches": lambda: fresh().branches,
    "optimize": lambda: fresh().optimize,
    "scanner": lambda: fresh().scanner(),
    "merge": lambda: fresh().merge_insert("a").when_matched_update_all(),
    "sql": lambda: fresh().sql("SELECT 1"),
    "compaction": lambda: Compaction,
    "module": lambda: lance_core,
}
SLOW = ("dataset", "fragment", "merge")
NOT_OFFERED = ("partition_expression",)
"""Properties of Arrow's datasets that raise whatever is asked of them."""
FUNCTIONS = ("dataset", "write_dataset", "write_fragments", "commit_fragments", "list_tables", "json_to_schema")


def verbs(holder):
    if holder == "module":
        return FUNCTIONS
    return [name for name in dir(HOLDERS[holder]()) if not name.startswith("_") and name not in NOT_OFFERED]


def calls(function):
    """Each argument wrong in each way, with what else must be given."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one for one in parameters if one.default is one.empty and one.kind not in kinds]
    for wrong, value in itertools.product([one for one in parameters if one.kind not in kinds], WRONG):
        given = {one.name: GOOD.get(one.name, "abc") for one in needed if one.kind is not one.POSITIONAL_ONLY}
        yield {**given, wrong.name: value}


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "holder", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in HOLDERS]
)
def test_wrong_arguments_end_in_errors_of_ours(holder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore")
    others = []
    for name in verbs(holder):
        function = getattr(HOLDERS[holder](), name)
        if not callable(function):
            continue
        for given in calls(function):
            try:
                found = getattr(HOLDERS[holder](), name)(**given)
                if hasattr(found, "__next__"):
                    next(found, None)
            except LanceError:
                continue
            except Exception as error:  # noqa: BLE001 - each error outside of our tree is reported
                others.append((name, given, repr(error)))
    assert others == []


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda made: made.drop_columns(5), "columns"),
        (lambda made: made.drop_columns("a"), "columns"),
        (lambda made: made.alter_columns(5), "alter_columns"),
        (lambda made: made.merge_insert(5), "on"),
        (lambda made: made.update(5), "updates"),
        (lambda made: made.take(None), "indices"),
        (lambda made: made.take("abc"), "indices"),
        (lambda made: made.take([1.5]), "indices"),
        (lambda made: made.to_table(columns=5), "columns"),
        (lambda made: made.to_table(limit="abc"), "limit"),
        (lambda made: made.tags.create(5, 1), "tag"),
        (lambda made: made.create_branch(None), "branch"),
        (lambda made: made.update_config(5), "values"),
        (lambda made: made.insert(5), "rows"),
        (lambda made: made.optimize.compact_files(batch_size="abc"), "batch_size"),
        (lambda made: made.cleanup_old_versions("abc"), "older_than"),
        (lambda made: made.history(ahead=0), "ahead"),
        (lambda made: made.history(ahead=-1), "ahead"),
        (lambda made: made.known_after("stream"), "kind"),
        (lambda made: made.known_after([]), "kind"),
    ],
)
def test_the_argument_is_named(call, argument):
    made = fresh()
    with pytest.raises(InvalidInputError, match=argument):
        call(made)
    assert made.latest_version == 1


def test_what_is_like_the_type_is_taken():
    made = fresh()
    assert made.head(np.int64(3)).num_rows == 3
    assert made.to_table(columns=(name for name in ["a"])).num_columns == 1
    assert made.to_table(columns=np.array(["a"]), limit=np.int32(2)).num_rows == 2
    assert made.take(np.array([1, 2])).num_rows == 2
    assert made.take(pa.chunked_array([[1, 2]])).num_rows == 2
    assert made.scanner(with_row_id=np.True_).to_table().num_columns == 3


def test_numbers_of_numpy_and_times_of_pandas_name_versions(tmp_path):
    import pandas as pd

    made = lance_core.write_dataset(ROWS, tmp_path / "t")
    tomorrow = pd.Timestamp.now() + pd.Timedelta(days=1)
    for time in (tomorrow, tomorrow.tz_localize("UTC"), tomorrow.to_pydatetime()):
        assert lance_core.dataset(made.uri, asof=time).version == 1
    for version in (np.int64(1), np.uint32(1)):
        assert made.checkout_version(version).version == 1
        assert lance_core.dataset(made.uri, version=version).version == 1
        assert made.read_transaction(version) is not None
    if hasattr(pa.Int64Scalar, "__index__"):  # the lowest pyarrow has none
        assert made.take([pa.scalar(3), pa.scalar(1)]).column("a").to_pylist() == [3, 1]


@pytest.mark.parametrize("wrong", [{"k": 1}, {"k": b"v"}, {1: "v"}])
def test_metadata_is_of_texts(wrong):
    made = fresh()
    for change in (made.update_config, made.update_metadata, made.update_schema_metadata):
        with pytest.raises(InvalidInputError):
            change(wrong)
    with pytest.raises(InvalidInputError):
        made.update_field_metadata({"a": wrong})
    with pytest.raises(InvalidInputError, match="late_materialization"):
        made.to_table(late_materialization=5)
    assert made.latest_version == 1


def test_an_item_of_another_type_is_found_among_many():
    for indices in ([1] * 50 + [1.5], [1] * 50 + ["x"], [True, None], ["x"] * 50):
        with pytest.raises(InvalidInputError, match="indices"):
            fresh().take(indices)


def test_an_error_of_a_type_is_a_type_error():
    with pytest.raises(TypeError, match=r"head: num_rows must be a whole number or None, not 'abc'"):
        fresh().head("abc")

    @checked
    def function(first: int, *, second: tuple[str, int] | None = None, third: "Missing" = None) -> None:  # noqa: F821
        del first, second, third

    function(1, second=("a", 2), third=object())
    with pytest.raises(ArgumentTypeError, match="second must be 2 values: a string, a whole number or None"):
        function(1, second=("a",))


@pytest.mark.parametrize("options", ["aws_secret_access_key=canary", [("aws_secret_access_key", "canary")]])
def test_wrong_options_of_a_storage_are_not_shown(options):
    with pytest.raises(ArgumentTypeError, match="storage_options must be a mapping or None") as caught:
        lance_core.dataset("memory://arguments", storage_options=options)
    assert "canary" not in str(caught.value)


def scanned_by_default(dataset, columns):
    return lance_core.dataset(dataset.uri, default_scan_options={"columns": columns}).to_table()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda d: d.drop_columns(pa.array(["s"])), "columns"),
        (lambda d: d.insert(ROWS, transaction_properties={"a": 1}), "transaction_properties"),
        (lambda d: lance_core.write_dataset(ROWS, d, mode="append", transaction_properties={1: "a"}), "_properties"),
        (lambda d: d.cleanup_old_versions(retain_versions=np.timedelta64(1, "s")), "retain_versions"),
        (lambda _: lance_core.LanceOperation.Overwrite({"a": 1}, []), "schema"),
        (lambda _: lance_core.LanceOperation.Merge([], {"a": 1}), "schema"),
        (lambda _: lance_core.LanceOperation.Project({"a": 1}), "schema"),
        (lambda d: d.alter_columns({"path": "a", "data_type": "int32"}), "data_type"),
        (lambda d: d.alter_columns({"path": "a", "nullable": "yes"}), "nullable"),
        (lambda d: d.replace_field_metadata("a", {"k": ["x"]}), "metadata"),
        (lambda d: d.update_config({"k": 1}), "values: the value of 'k' must be a string or None, not 1"),
        (lambda d: d.update({"a": 5}), "expression"),
        (
            lambda d: d.to_table(columns={"a": 1}),
            "columns: the value of 'a' must be a string or a pyarrow expression, not 1",
        ),
        (lambda d: d.take([0], columns={"a": None}), "columns: the value of 'a' must be a string .*, not None"),
        (lambda d: d.scanner(columns={1: "a"}).to_table(), "columns: a key must be a string, not 1"),
        (lambda d: scanned_by_default(d, {"x": 1}), "columns: 'x' is an SQL string or a pyarrow expression, not int"),
        (lambda d: scanned_by_default(d, {1: "a"}), "columns: a name is a string, not 1"),
        (lambda d: d.add_columns({"n": 1}), "Column expressions must be a string. Got <class 'int'>"),
        (lambda d: d.add_columns({1: "1"}), "Column names must be a string. Got <class 'int'>"),
        (lambda d: d.drop_columns({"a": 1}), "columns must be a list"),
        (lambda d: d.merge_insert("a").retry_timeout(5), "retry_timeout"),
        (lambda _: lance_core.write_dataset(ROWS, 5), "uri must be a string or a path"),
        (lambda d: lance_core.dataset(d.uri, commit_lock=5), "commit_lock"),
        (lambda d: d.update({1: "1"}), "updates: a key must be a string, not 1"),
        (lambda d: d.update_field_metadata({"a": {"k": 1}}), "the value of 'a' must be a mapping"),
        (
            lambda d: d.cleanup_old_versions(in_use={"reader": "1"}),
            "in_use: the value of 'reader' must be a whole number",
        ),
        (
            lambda d: lance_core.dataset(d.uri, version=1.0),
            r"a number, the name of a tag, or a pair \(branch, version\), not 1.0",
        ),
        (lambda _: lance_core.write_dataset(None, "memory://rows-of-none"), "NoneType"),
    ],
)
def test_values_of_wrong_types_are_rejected_as_types(call, named):
    dataset = fresh()
    with pytest.raises(ArgumentTypeError, match=named) as caught:
        call(dataset)
    assert isinstance(caught.value, TypeError)
    assert dataset.latest_version == 1


def test_what_pylance_takes_is_taken(tmp_path):
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=None, max_bytes_per_file=None)
    assert len(lance_core.write_fragments(ROWS, dataset.uri, max_rows_per_file=None, max_bytes_per_file=None)) == 1
    dataset.insert(ROWS, max_rows_per_file=np.int64(4))
    assert len(dataset.get_fragments()) == 4
    assert dataset.head(None).num_rows == 20
    assert dataset.to_table(order_by="a", limit=np.int64(1)).num_rows == 1
    assert dataset.cleanup_old_versions(np.timedelta64(0, "s"), delete_unverified=True).old_versions == 1


@pytest.mark.parametrize("act", [lambda d: d.drop_index("none"), lambda d: d.prewarm_index("none")])
def test_an_index_that_is_missing_is_a_runtime_error_as_well(act):
    with pytest.raises(RuntimeError, match="not found") as caught:
        act(fresh())
    assert isinstance(caught.value, lance_core.errors.NotFoundError)
