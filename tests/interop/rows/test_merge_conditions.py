"""Conditions of merges: they are checked before a row is merged, whether or not a row needs them, as in pylance."""

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import InvalidInputError

ALL = pa.table({"id": [1, 2], "n": [1, 2]})
NEW = pa.table({"id": [7], "n": [1]})

UPDATES = {
    "source.nope > 3": "no field 'nope'|no column",
    "target.nope > 3": "no field 'nope'|no column",
    "nope > 3": "nope",
    "source.n": "gives int64, not true or false",
    "source.n > ": "source.n > ",
}
DELETES = {"nope > 3": "nope", "n": "n", "n > ": "n > "}


@pytest.mark.parametrize("condition", UPDATES)
def test_wrong_conditions_of_updates(tmp_path, condition):
    made = lance_core.write_dataset(ALL, tmp_path / "t")
    with pytest.raises((ValueError, OSError)):
        lance.dataset(made.uri).merge_insert("id").when_matched_update_all(condition).execute(NEW)
    merge = made.merge_insert("id").when_matched_update_all(condition)
    for call in (merge.execute, merge.execute_uncommitted, merge.analyze_plan):
        with pytest.raises(InvalidInputError, match=UPDATES[condition]):
            call(NEW)
    with pytest.raises(InvalidInputError, match=UPDATES[condition]):
        merge.explain_plan()


@pytest.mark.parametrize("condition", DELETES)
def test_wrong_conditions_of_deletes(tmp_path, condition):
    made = lance_core.write_dataset(ALL, tmp_path / "t")
    with pytest.raises((ValueError, OSError)):
        lance.dataset(made.uri).merge_insert("id").when_not_matched_by_source_delete(condition).execute(ALL)
    merge = made.merge_insert("id").when_not_matched_by_source_delete(condition)
    for call in (merge.execute, merge.execute_uncommitted, merge.analyze_plan):
        with pytest.raises(InvalidInputError, match=DELETES[condition]):
            call(ALL)


@pytest.mark.parametrize("expression", [pc.field("nope") > 3, pc.field("n"), pc.field("n") > "x"])
def test_wrong_expressions(tmp_path, expression):
    made = lance_core.write_dataset(ALL, tmp_path / "t")
    with pytest.raises(InvalidInputError):
        made.merge_insert("id").when_not_matched_by_source_delete(expression).execute(ALL)
    with pytest.raises(InvalidInputError):
        made.merge_insert("id").when_matched_update_all(expression).execute(NEW)


def test_a_stream_is_not_read_if_a_condition_is_wrong(tmp_path):
    made = lance_core.write_dataset(ALL, tmp_path / "t")

    def batches():
        raise AssertionError("the stream is read")
        yield

    for merge in (
        made.merge_insert("id").when_matched_update_all("source.nope > 1"),
        made.merge_insert("id").when_not_matched_by_source_delete("nope > 1"),
    ):
        with pytest.raises(InvalidInputError, match="nope"):
            merge.execute(batches(), schema=ALL.schema)


def test_conditions_of_values_of_every_kind(tmp_path):
    """The check evaluates conditions on no rows, and must accept what rows accept."""
    data = {
        "id": [1, 2],
        "when": pa.array([1, 2], pa.timestamp("us")),
        "words": [["a"], ["b"]],
        "parts": [{"x": 1}] * 2,
    }
    data |= {
        "code": pa.array(["a", "b"]).dictionary_encode(),
        "vector": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1)),
    }
    made = lance_core.write_dataset(pa.table(data), tmp_path / "t")
    source = made.to_table(filter="id = 1")
    for condition in (
        "source.when > target.when",
        "source.code = 'a' AND target.parts.x = 1",
        "array_length(source.words) = 1 OR target.vector IS NULL",
        "true",
    ):
        made.merge_insert("id").when_matched_update_all(condition).execute(source)
    done = made.merge_insert("id").when_not_matched_by_source_delete("parts.x = 2 OR code = 'b'").execute(source)
    assert done["num_deleted_rows"] == 1
