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


CHANGES = {
    "one passes": [(1, 5), (1, 1), (2, 4)],
    "none passes": [(1, 1), (1, 2), (3, 0)],
    "both pass": [(1, 5), (1, 6)],
    "one of three, for two keys": [(2, 1), (1, 2), (2, 9), (1, 1), (2, 2), (1, 8)],
}


@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("case", CHANGES)
def test_only_rows_that_pass_count(tmp_path, case, stable, partial, has_index):
    """Two changes of one key are ambiguous only if the condition passes both."""
    found = {}
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        table = library.write_dataset(
            pa.table({"id": [1, 2, 3], "n": [3, 3, 3], "s": ["a", "b", "c"]}), uri, enable_stable_row_ids=stable
        )
        if has_index:
            table.create_scalar_index("id", "BTREE")
        ids, numbers = zip(*CHANGES[case], strict=True)
        rows = pa.table({"id": list(ids), "n": list(numbers)})
        if not partial:
            rows = rows.append_column("s", pa.array([f"new {i}" for i in range(len(ids))]))
        merge = table.merge_insert("id").when_matched_update_all("source.n > target.n").when_not_matched_insert_all()
        try:
            stats = merge.execute(rows)
            found[library] = {key: stats[key] for key in ("num_updated_rows", "num_inserted_rows")}
        except (OSError, InvalidInputError) as error:
            found[library] = "Ambiguous merge inserts are prohibited" in str(error)
        found[library] = found[library], sorted(map(str, library.dataset(uri).to_table().to_pylist()))
    assert found[lance_core] == found[lance]


def test_rows_outside_of_the_slices_that_the_condition_excludes(tmp_path):
    table = lance_core.write_dataset(pa.table({"id": [1, 2], "day": ["a", "b"], "n": [3, 3]}), tmp_path / "t")
    within = lance_core.Slices([lance_core.Slice(name="b", conditions={"day": lance_core.Equals("b")})])
    merge = table.merge_insert("id").when_matched_update_all("source.n > target.n").within(within)
    assert merge.execute(pa.table({"id": [1, 2], "n": [0, 5], "day": ["b", "b"]}))["num_updated_rows"] == 1
    with pytest.raises(InvalidInputError, match="id = 1"):
        merge.execute(pa.table({"id": [1], "n": [9], "day": ["b"]}))
