"""Descriptions of fragments: pylance's JSON both ways, and the table layer's records."""

import json

import lance
import pyarrow as pa

from lance_core.verbs.pylance_types.fragments import FragmentMetadata


def test_json_is_pylances_both_ways(tmp_path):
    dataset = lance.write_dataset(pa.table({"a": range(10)}), tmp_path / "t", enable_stable_row_ids=True)
    dataset.delete("a < 3")
    theirs = lance.dataset(tmp_path / "t").get_fragments()[0].metadata
    text = json.dumps(theirs.to_json())
    ours = FragmentMetadata.from_json(text)
    assert (ours.num_rows, ours.num_deletions, ours.num_bytes) == (7, 3, theirs.files[0].file_size_bytes)
    assert json.loads(json.dumps(ours.to_json())) == json.loads(text)
    assert lance.fragment.FragmentMetadata.from_json(json.dumps(ours.to_json())) == theirs
    assert FragmentMetadata.from_record(ours.to_record()) == ours
