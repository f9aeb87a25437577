"""A manifest with two fragments of one id, as an early release of pylance wrote: verify, deletes and compaction name it."""

from dataclasses import replace
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError
from lance_core.maintenance.verify.files import verify
from lance_core.verbs.inspect.validation import manifest_problems

MESSAGE = r"Fragment ids are not unique and ascending: \[0, 1, 1\]"


@pytest.fixture
def table(tmp_path):
    for _ in range(3):
        table = lance.write_dataset(pa.table({"a": [1, 2, 3]}), tmp_path / "t0", mode="append")
    (latest, *_) = sorted((tmp_path / "t0" / "_versions").glob("*.manifest"))
    raw = latest.read_bytes()
    at = raw.rfind(b"\x08\x02\x12")  # the id of fragment 2
    latest.write_bytes(raw[:at] + b"\x08\x01\x12" + raw[at + 3 :])
    found = lance_core.dataset(table.uri)
    assert [fragment.fragment_id for fragment in found.get_fragments()] == [0, 1, 1]
    return found


@pytest.mark.parametrize(
    "verb",
    [
        lambda table: table.validate(),
        lambda table: table.delete("a = 1"),
        lambda table: table.optimize.compact_files(),
    ],
    ids=["validate", "delete", "compaction"],
)
def test_verbs_name_it(table, verb):
    with pytest.raises(CorruptFileError, match=MESSAGE):
        verb(table)
    assert (table.latest_version, table.count_rows()) == (3, 9)


def test_verify_names_it(table):
    assert [problem.message for problem in verify(table)] == ["Fragment ids are not unique and ascending: [0, 1, 1]"]


def test_verify_names_segments_that_cover_a_fragment_twice(tmp_path):
    table = lance_core.write_dataset({"a": [1, 2, 3]}, tmp_path / "t")
    table.create_scalar_index("a", "BTREE")
    (index,) = table.snapshot.manifest.indices
    twice = replace(table.snapshot.manifest, indices=(index, replace(index, uuid=uuid4())))
    assert list(manifest_problems(twice)) == ["index 'a_idx' has several segments over fragments [0]"]
    same = replace(table.snapshot.manifest, indices=(index, index))
    assert next(manifest_problems(same)) == "Duplicate index id"
