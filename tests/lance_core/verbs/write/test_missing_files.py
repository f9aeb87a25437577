"""Operations that users build by hand, whose files a cleanup removed before the commit."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import ObjectNotFoundError
from lance_core.fragment import write_fragments

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset(ROWS, tmp_path / "t")


def commit(table, operation):
    return lance_core.LanceDataset.commit(table, operation, read_version=1)


def of_append(table, fragments):
    return commit(table, lance_core.LanceOperation.Append(fragments))


def of_overwrite(table, fragments):
    return commit(table, lance_core.LanceOperation.Overwrite(table.schema, fragments))


def of_update(table, fragments):
    return commit(table, lance_core.LanceOperation.Update(removed_fragment_ids=[0], new_fragments=fragments))


def of_transaction(table, fragments):
    transaction = lance_core.Transaction(1, lance_core.LanceOperation.Append(fragments))
    return lance_core.LanceDataset.commit(table, transaction)


def of_batch(table, fragments):
    transaction = lance_core.Transaction(1, lance_core.LanceOperation.Append(fragments))
    return lance_core.LanceDataset.commit_batch(table, [transaction])["dataset"]


@pytest.mark.parametrize("commit_them", [of_append, of_overwrite, of_update, of_transaction, of_batch])
def test_an_operation_whose_new_files_were_deleted_is_not_committed(table, commit_them):
    fragments = write_fragments(ROWS, table)
    table.cleanup_old_versions(timedelta(0), delete_unverified=True)
    with pytest.raises(ObjectNotFoundError, match="Write the files again"):
        commit_them(table, fragments)
    opened = lance_core.dataset(table.uri)
    assert (opened.version, opened.to_table()) == (1, ROWS)
    assert commit_them(table, write_fragments(ROWS, table)).count_rows() in (3, 6)


def test_files_that_the_version_has_are_not_looked_for(table):
    (path,) = Path(table.uri, "data").iterdir()
    data = path.read_bytes()
    path.unlink()
    fragments = [fragment.metadata for fragment in table.get_fragments()]
    merged = commit(table, lance_core.LanceOperation.Merge(fragments, table.schema))
    path.write_bytes(data)
    assert merged.count_rows() == 3
