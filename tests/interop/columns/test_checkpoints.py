"""Columns of a function that failed: a second run uses results of the first for what has not changed since."""

import datetime as dt
import sqlite3

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import InvalidInputError


class Tripled:
    """A function that triples a column, and fails once."""

    def __init__(self, fails_at):
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, batch):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("a batch fails")
        return pa.record_batch([pc.multiply(batch["a"], 3)], ["three"])


def makes(kind="int64"):
    return pa.schema([("three", kind)])


def swap_names(dataset):
    dataset.alter_columns({"path": "a", "name": "n"}, {"path": "n", "name": "a"})


def restore(dataset):
    dataset.checkout_version(1).restore()


def remove_unknown_files(dataset):
    dataset.cleanup_old_versions(dt.timedelta(0), delete_unverified=True)


MEANWHILE = {
    "nothing": (lambda _: None, 1),
    "delete from a finished fragment": (lambda d: d.delete("a < 20"), 1),
    "delete from an unfinished one": (lambda d: d.delete("a BETWEEN 110 AND 120"), 2),
    "update": (lambda d: d.update({"a": "a + 1000"}, where="a < 40"), 2),
    "update in place": (lambda d: d.update({"a": "a + 1000"}, where="a < 40", write_mode="rewrite_columns"), 3),
    "restore": (restore, 4),
    "another column": (lambda d: d.add_columns({"w": "a + 1"}), 4),
    "other names": (swap_names, 4),
    "compaction": (lambda d: d.optimize.compact_files(), 4),
    "cleanup": (remove_unknown_files, 3),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_results_of_what_did_not_change_are_used(tmp_path, meanwhile, stable):
    happens, calls = MEANWHILE[meanwhile]
    rows = pa.table({"a": range(10, 170, 10), "n": range(16)})
    dataset = lance_core.write_dataset(rows, tmp_path / "t", max_rows_per_file=8, enable_stable_row_ids=stable)
    dataset.delete("n IN (2, 9)")
    step, place = Tripled(4), tmp_path / "kept.sqlite"
    with pytest.raises(RuntimeError, match="a batch fails"):
        dataset.add_columns(lance_core.batch_udf(makes(), place)(step), read_columns=["a"], batch_size=4)
    happens(lance_core.dataset(dataset.uri))
    dataset = lance_core.dataset(dataset.uri)
    before, step = dataset.to_table(), Tripled(None)
    dataset.add_columns(lance_core.batch_udf(makes(), place)(step), read_columns=["a"], batch_size=4)
    assert lance_core.dataset(dataset.uri).to_table(columns=before.column_names) == before
    found = lance.dataset(dataset.uri)
    found.validate()
    assert found.to_table() == lance_core.dataset(dataset.uri).to_table()
    assert found.to_table()["three"].to_pylist() == [3 * a for a in found.to_table()["a"].to_pylist()]
    assert step.calls == calls
    assert not place.exists()


@pytest.mark.parametrize(
    "change",
    [{"read_columns": ["n", "a"]}, {"batch_size": 5}, {"kind": "float64"}],
    ids=["columns", "batches", "type"],
)
def test_another_call_starts_again(tmp_path, change):
    dataset = lance_core.write_dataset({"a": range(16), "n": range(16)}, tmp_path / "t", max_rows_per_file=8)
    dataset.delete("a = 4")
    place = tmp_path / "kept.sqlite"
    with pytest.raises(RuntimeError, match="a batch fails"):
        dataset.add_columns(lance_core.batch_udf(makes(), place)(Tripled(4)), read_columns=["a"], batch_size=4)
    kind, step = change.pop("kind", "int64"), Tripled(None)

    def call(batch):
        return pa.record_batch([step(batch)["three"].cast(kind)], ["three"])

    kwargs = {"read_columns": ["a"], "batch_size": 4, **change}
    dataset.add_columns(lance_core.batch_udf(makes(kind), place)(call), **kwargs)
    found = lance.dataset(dataset.uri).to_table()
    assert found["three"].to_pylist() == [3 * a for a in found["a"].to_pylist()]
    assert found.schema.field("three").type == pa.type_for_alias(kind)


def test_a_checkpoint_that_does_not_say_what_it_is_of_is_named(tmp_path):
    """Such as one of pylance, which uses results for fragments that have changed since."""
    theirs = lance.write_dataset(pa.table({"a": [1, 2, 3, 4]}), tmp_path / "t", max_rows_per_file=2)
    place = tmp_path / "kept.sqlite"
    with pytest.raises(OSError, match="a batch fails"):
        theirs.add_columns(lance.batch_udf(makes(), str(place))(Tripled(2)), read_columns=["a"])
    ours, udf = lance_core.dataset(theirs.uri), lance_core.batch_udf(makes(), place)(Tripled(None))
    with pytest.raises(InvalidInputError, match=r"cannot be used as a checkpoint.* delete it"):
        ours.add_columns(udf, read_columns=["a"])
    assert ours.latest_version == 1
    with sqlite3.connect(place) as connection:
        assert connection.execute("SELECT count(*) FROM fragments").fetchone() == (1,), "it is as it was"
    place.unlink()
    ours.add_columns(lance_core.batch_udf(makes(), place)(Tripled(None)), read_columns=["a"])
    assert ours.to_table()["three"].to_pylist() == [3, 6, 9, 12]
