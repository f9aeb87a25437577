"""How far a table has consumed its inputs: moved by commits, kept by everything else."""

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import WatermarkMove
from lance_core.errors import BranchConflictError, CorruptFileError, IncompatibleConflictError, InvalidInputError

ROWS = pa.table({"id": [1, 2, 3]})


def moves(after, before=None, *parts, by=""):
    return WatermarkMove.properties(
        [WatermarkMove(name="in", parts=parts or ("all",), before=before, after=after, by=by)]
    )


def append(uri, *given, rows=ROWS, **options):
    properties = moves(*given, **options)
    return lance_core.write_dataset(rows, uri, mode="append", transaction_properties=properties)


def positions(dataset):
    return {part: one.position for part, one in dataset.watermarks("in").items()}


@pytest.fixture
def uri(tmp_path):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(ROWS, uri, transaction_properties=moves("1", None, "a", "b"))
    return uri


def test_every_operation_moves_and_keeps_them(uri):
    append(uri, "2", "1", "a")
    dataset = lance_core.dataset(uri)
    assert positions(dataset) == {"a": "2", "b": "1"}
    merge = dataset.merge_insert("id").when_matched_update_all().commit_properties(moves("3", "2", "a"))
    merge.execute(ROWS)
    assert positions(dataset) == {"a": "3", "b": "1"}
    lance_core.write_dataset(ROWS, uri, mode="overwrite", transaction_properties=moves("4", "1", "b"))
    assert positions(lance_core.dataset(uri)) == {"a": "3", "b": "4"}
    theirs = lance.dataset(uri)
    theirs.delete("id = 1")
    theirs.optimize.compact_files()
    theirs.update_config({"mine": "1"})
    theirs.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert positions(lance_core.dataset(uri)) == {"a": "3", "b": "4"}
    ours = lance_core.dataset(uri)
    ours.update_config({"other": "1"}, replace=True)
    assert positions(ours) == {"a": "3", "b": "4"}
    append(uri, None, "3", "a")
    assert positions(lance_core.dataset(uri)) == {"b": "4"}


def test_a_restore_brings_them_back(uri):
    append(uri, "2", "1", "a", "b")
    lance_core.dataset(uri, 1).restore()
    assert positions(lance_core.dataset(uri)) == {"a": "1", "b": "1"}


def test_a_move_from_elsewhere_conflicts_and_changes_nothing(uri):
    append(uri, "2", "1", "a")
    for given in (("3", "1", "a"), ("3", None, "b"), ("3", "1", "c")):
        with pytest.raises(IncompatibleConflictError, match="from a watermark of"):
            append(uri, *given)
    dataset = lance_core.dataset(uri)
    assert (dataset.version, dataset.count_rows()) == (2, 6)
    files = {file.path for one in dataset.get_fragments() for file in one.data_files()}
    assert {path.name for path in (Path(uri) / "data").iterdir()} == files


def test_the_same_writer_may_move_again(uri):
    append(uri, "2", "1", "a", by="run")
    append(uri, "2", "1", "a", by="run")
    with pytest.raises(IncompatibleConflictError, match="by run"):
        append(uri, "2", "1", "a", by="other")


def test_a_promotion_brings_those_that_the_branch_moved(uri):
    main = lance_core.dataset(uri)
    branch = main.create_branch("b")
    append(branch.uri, "2", "1", "a", rows=pa.table({"id": [7]}))
    append(branch.uri, "3", "2", "a", rows=pa.table({"id": [8]}))
    append(uri, "9", "1", "b", rows=pa.table({"id": [9]}))
    assert positions(lance_core.dataset(branch.uri)) == {"a": "3", "b": "1"}
    main.branches.promote("b")
    assert positions(lance_core.dataset(uri)) == {"a": "3", "b": "9"}
    assert main.branches.diff("b").left_behind == ()


def test_a_promotion_whose_changes_main_has_consumed_conflicts(uri):
    main = lance_core.dataset(uri)
    branch = main.create_branch("b")
    append(branch.uri, "2", "1", "a")
    append(uri, "5", "1", "a")
    with pytest.raises(BranchConflictError, match="moved since by"):
        main.branches.promote("b")
    assert positions(lance_core.dataset(uri)) == {"a": "5", "b": "1"}


def test_what_cannot_be_read_is_named(uri):
    lance.dataset(uri).update_config({"lance-dagster.watermark.in": "nonsense"})
    with pytest.raises(CorruptFileError, match=r"watermark\.in"):
        lance_core.dataset(uri).watermarks("in")
    with pytest.raises(InvalidInputError, match="at least one part"):
        WatermarkMove(name="in", parts=(), before=None, after="1")
