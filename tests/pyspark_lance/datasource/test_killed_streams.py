"""A query that is killed at each step of a batch continues from its checkpoint, and the table has every row once."""

import json
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from tests import processes

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("stream_driver.py")
ROWS = 10


def drop(folder, number):
    """A file of rows, which makes a batch."""
    lines = [json.dumps({"id": one, "kind": one % 3}) for one in range(number * ROWS, (number + 1) * ROWS)]
    target = folder / "arrivals" / f"{number}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines))


def expected(mode, batches):
    kinds = [(one, one % 3) for one in range(batches * ROWS)]
    return kinds if mode == "append" else sorted(Counter(kind for _, kind in kinds).items())


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_each_batch_is_committed_once(tmp_path, mode):
    import lance  # after other tests have started their sessions

    uri = tmp_path / "table.lance"

    def found():
        table = lance.dataset(uri)
        rows = sorted(tuple(row.values()) for row in table.to_table().to_pylist())
        batches = [
            table.checkout_version(one["version"]).read_transaction(one["version"]).transaction_properties
            for one in table.versions()
        ]
        return rows, [one["spark.streaming.batch"] for one in batches]

    # Killed in batch 0, 1 and 2; what each run finds in the table afterwards.
    for number, (step, there) in enumerate([("begins", 0), ("written", 1), ("committed", 3)]):
        drop(tmp_path, number)
        command = [sys.executable, str(DRIVER), str(tmp_path), mode, str(number), step]
        done = processes.run(command)
        assert done.returncode != 0, "it was not killed"
        if there:
            assert found() == (expected(mode, there), [str(batch) for batch in range(there)]), done.stderr[-3000:]
        else:
            assert not (uri / "_versions").exists()
    drop(tmp_path, 3)
    processes.run([sys.executable, str(DRIVER), str(tmp_path), mode], check=True)
    assert found() == (expected(mode, 4), ["0", "1", "2", "3"])


def change(source, number):
    """A version of a table, which makes a batch of changes."""
    import lance

    rows = pa.table({"id": range(number * ROWS, (number + 1) * ROWS), "n": [0] * ROWS})
    if number in (0, 3):
        lance.write_dataset(rows, str(source), mode="append", enable_stable_row_ids=True)
    elif number == 1:
        lance.dataset(str(source)).update({"n": "n + 1"}, "id % 2 = 0")
    else:
        lance.dataset(str(source)).delete("id % 3 = 0")


def changes(source, begin, end):
    """All changes of a table after a version, each once."""
    feed = lance_core.dataset(source).delta(begin_version=begin, end_version=end)
    rows = feed.get_changes(preimages=True).read_all().to_pylist()
    return sorted((row["_commit_version"], row["id"], row["n"], row["_change_type"]) for row in rows)


def test_each_change_of_a_feed_is_written_once(tmp_path):
    import lance  # after other tests have started their sessions

    source, target = tmp_path / "source.lance", tmp_path / "table.lance"
    for number, (step, there) in enumerate([("begins", 0), ("written", 1), ("committed", 3), (None, 4)]):
        change(source, number)
        done = processes.run(
            [sys.executable, str(DRIVER), str(tmp_path), "feed", *([str(number), step] if step else [])]
        )
        assert (done.returncode == 0) == (step is None), done.stderr[-3000:]
        found = lance.dataset(str(target)).to_table().to_pylist() if there else []
        seen = sorted((row["_commit_version"], row["id"], row["n"], row["_change_type"]) for row in found)
        assert seen == [change for version in range(there) for change in changes(source, version, version + 1)]
    kinds = Counter(kind for _, _, _, kind in seen)
    assert kinds == {"insert": 20, "update_preimage": 5, "update_postimage": 5, "delete": 4}
