"""Verdicts against pylance's: every operation is committed after every other one, by both libraries."""

import json
import shutil
import uuid

import lance
import pyarrow as pa
import pytest

from lance_core.commit.conflict import VERDICTS, Verdict, judge
from lance_core.commit.loop import commit
from lance_core.errors import CommitConflictError, LanceError
from lance_core.store import open_store
from lance_core.table.filled_slices import SLICES_KEY
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import OPERATIONS, Append, CreateIndex, UnknownOperation, Update, UpdateMemWalState
from lance_core.table.operations.update import CompactedSsTable
from lance_core.table.transaction import Transaction

Op = lance.LanceOperation


def rows(start, stop):
    return pa.table({"a": list(range(start, stop)), "s": [str(i) for i in range(start, stop)]})


def append(path):
    lance.write_dataset(rows(100, 105), path, mode="append")


def overwrite(path):
    lance.write_dataset(rows(0, 5), path, mode="overwrite")


def delete(predicate):
    return lambda path: lance.dataset(path).delete(predicate)


def update(where):
    return lambda path: lance.dataset(path).update({"s": "'x'"}, where=where)


def update_columns(fragment_id, start):
    def run(path):
        fragment = lance.dataset(path).get_fragment(fragment_id)
        changed, fields = fragment.update_columns(pa.table({"a": [start], "s": ["y"]}), left_on="a", right_on="a")
        lance.LanceDataset.commit(path, Op.Update(updated_fragments=[changed], fields_modified=fields), read_version=1)

    return run


def replace_data(fragment_id, name, field):
    def run(path):
        column = rows(0, 10).select([name])
        file = lance.fragment.write_fragments(column, path)[0].files[0]
        new = lance.fragment.DataFile(
            file.path, [field], [0], file.file_major_version, file.file_minor_version, file.file_size_bytes
        )
        lance.LanceDataset.commit(path, Op.DataReplacement([Op.DataReplacementGroup(fragment_id, new)]), read_version=1)

    return run


def create_index(column, kind, name):
    return lambda path: lance.dataset(path).create_scalar_index(column, kind, name=name)


def rewrite(first):
    """A Rewrite of two fragments, without the ReserveFragments that compaction commits first."""

    def run(path):
        old = [lance.dataset(path).get_fragment(i).metadata for i in (first, first + 1)]
        new = lance.fragment.write_fragments(rows(0, 20), path)
        group = Op.RewriteGroup(old_fragments=old, new_fragments=new)
        lance.LanceDataset.commit(path, Op.Rewrite(groups=[group], rewritten_indices=[]), read_version=1)

    return run


def merge_not_preserving(path):
    ds = lance.dataset(path)
    fragments = [fragment.metadata for fragment in ds.get_fragments()]
    lance.LanceDataset.commit(path, Op.Merge(fragments, ds.schema), read_version=1)


def project_not_preserving(path):
    ds = lance.dataset(path)
    lance.LanceDataset.commit(path, Op.Project(ds.schema), read_version=1)


VARIANTS = {
    "append": append,
    "delete 0": delete("a = 1"),
    "delete 0 again": delete("a = 2"),
    "delete all of 1": delete("a >= 10 and a < 20"),
    "overwrite": overwrite,
    "update 0": update("a = 3"),
    "update 2": update("a = 23"),
    "update all of 1": update("a >= 10 and a < 20"),
    "columns of 0": update_columns(0, 4),
    "columns of 3": update_columns(3, 34),
    "rewrite 0 1": rewrite(0),
    "rewrite 2 3": rewrite(2),
    "index a": create_index("a", "BTREE", "i"),
    "index s": create_index("s", "BITMAP", "j"),
    "index s, same name": create_index("s", "BITMAP", "i"),
    "add column": lambda path: lance.dataset(path).add_columns({"z": "a + 1"}),
    "merge": merge_not_preserving,
    "drop s": lambda path: lance.dataset(path).drop_columns(["s"]),
    "drop a": lambda path: lance.dataset(path).drop_columns(["a"]),
    "project": project_not_preserving,
    "config k": lambda path: lance.dataset(path).update_config({"k": "v"}),
    "config l": lambda path: lance.dataset(path).update_config({"l": "v"}),
    "table metadata": lambda path: lance.dataset(path).update_metadata({"k": "v"}),
    "schema metadata": lambda path: lance.dataset(path).update_schema_metadata({"k": "v"}),
    "field metadata a": lambda path: lance.dataset(path).update_field_metadata({"a": {"k": "v"}}),
    "replace s of 0": replace_data(0, "s", 1),
    "replace s of 1": replace_data(1, "s", 1),
    "restore": lambda path: lance.dataset(path, version=1).restore(),
    "add base": lambda path: lance.dataset(path).add_bases([lance.DatasetBasePath("/elsewhere", "n")]),
}

QUICK = ("append", "delete 0", "rewrite 0 1", "project", "replace s of 0")

# pylance's restore takes the latest version for its read version, and its bases cannot be committed by hand.
NOT_RAW = ("restore", "add base")

# Pending, committed, our outcome: where we are stricter than pylance on purpose.
STRICTER = {
    # pylance finds out only when it builds the manifest.
    ("field metadata a", "drop a"): "incompatible",
    # An index on a dropped column.
    ("index s", "drop s"): "retryable",
    ("index s, same name", "drop s"): "retryable",
    ("index a", "drop a"): "retryable",
    # The projection brings a schema without the new field metadata.
    ("drop s", "field metadata a"): "retryable",
    ("drop a", "field metadata a"): "retryable",
    ("project", "field metadata a"): "retryable",
}


def outcome(run):
    try:
        run()
    except CommitConflictError as error:
        return "retryable" if error.retryable else "incompatible"
    except LanceError:
        return "invalid"
    except (OSError, ValueError) as error:
        text = str(error)
        if "Retryable commit conflict" in text:
            return "retryable"
        return "incompatible" if "Incompatible transaction" in text else "invalid"
    return "ok"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """The dataset, and a copy per variant on which pylance committed it."""
    top = tmp_path_factory.mktemp("matrix")
    lance.write_dataset(rows(0, 40), str(top / "start"), max_rows_per_file=10)
    for name, run in VARIANTS.items():
        shutil.copytree(top / "start", top / name)
        run(str(top / name))
    return top


def transaction_of(workshop, name):
    path = min((workshop / name / "_versions").glob("*.manifest"))
    return Transaction.from_bytes(Manifest.from_bytes(path.read_bytes()).transaction_bytes)


@pytest.mark.parametrize(
    "committed", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_outcomes_agree(workshop, tmp_path, committed):
    differences = []
    for pending in VARIANTS:
        transaction = transaction_of(workshop, pending)
        theirs = lance.dataset(str(workshop / pending)).read_transaction(2)
        if theirs is None or pending in NOT_RAW:
            continue
        shutil.copytree(workshop / committed, tmp_path / "theirs")
        shutil.copytree(workshop / committed, tmp_path / "ours")
        place = str(tmp_path / "theirs")
        expected = outcome(lambda: lance.LanceDataset.commit(place, theirs.operation, read_version=1))  # noqa: B023
        store = open_store(str(tmp_path / "ours"))
        ours = outcome(lambda: commit(store, transaction))  # noqa: B023
        wanted = STRICTER.get((pending, committed), expected)
        if ours != wanted:
            differences.append((pending, ours, expected))
        elif ours == "ok":
            check_same_result(tmp_path)
        shutil.rmtree(tmp_path / "theirs")
        shutil.rmtree(tmp_path / "ours")
    assert differences == []


def check_same_result(tmp_path):
    """What was committed is the same, but for times, names and the library."""
    left, right = (
        Manifest.from_bytes(min((tmp_path / n / "_versions").glob("*.manifest")).read_bytes())
        for n in ("ours", "theirs")
    )
    assert list(left.fragments) == list(right.fragments)
    # A projection read back from its file knows no schema metadata; pylance then loses what the table had.
    assert left.schema.fields == right.schema.fields
    assert (left.version, left.reader_flags, left.writer_flags) == (
        right.version,
        right.reader_flags,
        right.writer_flags,
    )
    assert (left.config, left.table_metadata, left.max_fragment_id) == (
        right.config,
        right.table_metadata,
        right.max_fragment_id,
    )
    assert [(index.name, index.fragment_bitmap) for index in left.indices] == [
        (index.name, index.fragment_bitmap) for index in right.indices
    ]
    assert lance.dataset(str(tmp_path / "ours")).version == right.version


def test_the_table_has_every_cell():
    known = {*OPERATIONS.values(), UnknownOperation}
    assert set(VERDICTS) == set(OPERATIONS.values())
    for row in VERDICTS.values():
        assert set(row) == known


def test_an_unknown_operation_rules_out_everything():
    unknown = Transaction(read_version=1, operation=UnknownOperation(described="new"))
    pending = Transaction(read_version=1, operation=Append())
    assert judge(pending, unknown) is Verdict.INCOMPATIBLE


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        (["p=1"], ["p=2"], Verdict.COMPATIBLE),
        (["p=1", "p=2"], ["p=2", "p=3"], Verdict.RETRYABLE),
        (["p=1"], None, Verdict.COMPATIBLE),
    ],
)
def test_slices_in_common_are_retried(mine, theirs, verdict):
    def transaction(slices):
        properties = {} if slices is None else {SLICES_KEY: json.dumps(slices)}
        return Transaction(read_version=1, operation=Update(), properties=properties)

    assert judge(transaction(mine), transaction(theirs)) is verdict


MADE = IndexMetadata(uuid=uuid.UUID(int=1), name="i", fields=(0,), dataset_version=1)
OLD = IndexMetadata(uuid=uuid.UUID(int=2), name="i", fields=(0,), dataset_version=1)
OTHER = IndexMetadata(uuid=uuid.UUID(int=3), name="j", fields=(0,), dataset_version=1)


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        (CreateIndex(new_indices=(MADE,)), CreateIndex(new_indices=(OTHER,)), Verdict.COMPATIBLE),
        (CreateIndex(new_indices=(MADE,)), CreateIndex(new_indices=(OLD,)), Verdict.RETRYABLE),
        (CreateIndex(new_indices=(MADE,)), CreateIndex(removed_indices=(OLD,)), Verdict.RETRYABLE),
        (CreateIndex(removed_indices=(OLD,)), CreateIndex(new_indices=(MADE,)), Verdict.RETRYABLE),
        (CreateIndex(removed_indices=(OLD,)), CreateIndex(removed_indices=(OLD,)), Verdict.RETRYABLE),
        (CreateIndex(removed_indices=(OLD,)), CreateIndex(new_indices=(OTHER,)), Verdict.COMPATIBLE),
    ],
)
def test_changes_of_one_index_are_retried(mine, theirs, verdict):
    assert judge(Transaction(read_version=1, operation=mine), Transaction(read_version=1, operation=theirs)) is verdict


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        ((1, 5), (1, 5), Verdict.INCOMPATIBLE),
        ((1, 5), (1, 6), Verdict.INCOMPATIBLE),
        ((1, 5), (1, 4), Verdict.RETRYABLE),
        ((1, 5), (2, 6), Verdict.COMPATIBLE),
    ],
)
def test_levels_of_one_shard_are_merged_in_order(mine, theirs, verdict):
    def transaction(shard, generation):
        level = CompactedSsTable(shard_id=uuid.UUID(int=shard), generation=generation)
        return Transaction(read_version=1, operation=UpdateMemWalState(compacted_sstables=(level,)))

    assert judge(transaction(*mine), transaction(*theirs)) is verdict
