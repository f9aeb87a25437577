"""Left-over files of one write go; those of its commit and of other writes stay."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError

BATCH = pa.record_batch({"id": [1, 2, 3]})
JOB, OTHER = "0123456789abcdef", "0123456789abcdee"


def written(uri, prefix):
    writer = lance_core.FragmentWriter(uri, BATCH.schema, file_prefix=prefix)
    writer.write(BATCH)
    return writer.finish()


def test_only_files_of_the_write_that_are_not_kept_go(tmp_path):
    uri = tmp_path / "t.lance"
    committed, lost, other = written(uri, JOB), written(uri, JOB), written(uri, OTHER)
    killed = uri / "data" / f"{JOB}-x.lance#123"
    killed.write_bytes(b"staged")
    lance_core.commit_fragments(uri, [*committed, *other], BATCH.schema)
    names = [file.path for fragment in committed for file in fragment.files]
    assert lance_core.delete_uncommitted_files(uri, file_prefix=JOB, keep=names) == 2
    left = {path.name for path in (uri / "data").iterdir()}
    assert left == {*names, other[0].files[0].path}
    assert lost[0].files[0].path not in left
    assert lance_core.dataset(uri).count_rows() == 6


def test_nothing_to_delete_is_fine(tmp_path):
    assert lance_core.delete_uncommitted_files(tmp_path / "none.lance", file_prefix=JOB) == 0


@pytest.mark.parametrize("prefix", ["", "abc"])
def test_a_prefix_that_others_could_share_is_rejected(tmp_path, prefix):
    with pytest.raises(InvalidInputError, match="too short"):
        lance_core.delete_uncommitted_files(tmp_path, file_prefix=prefix)


def test_index_segments_that_a_commit_uses_are_kept(tmp_path):
    dataset = lance_core.write_dataset({"id": range(4)}, tmp_path / "t", max_rows_per_file=2)
    keys = [f"{JOB[:8]}-0000-4000-8000-{number:012d}" for number in range(2)]
    made = [
        dataset.create_index_uncommitted("id", "BTREE", "id_idx", fragment_ids=[number], index_uuid=key)
        for number, key in enumerate(keys)
    ]
    dataset.commit_existing_index_segments("id_idx", "id", made[:1])
    prefix = keys[0][:-12]
    deleted = lance_core.delete_uncommitted_files(dataset.uri, file_prefix=prefix, keep=keys[:1], index_segments=True)
    assert deleted > 0
    assert {path.parent.name for path in (tmp_path / "t" / "_indices").rglob("*.*")} == {keys[0]}
    assert lance_core.dataset(dataset.uri).to_table(filter="id = 1")["id"].to_pylist() == [1]
