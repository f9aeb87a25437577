"""Tables of every minor release of pylance from 0.20 on: read, changed and indexed here, and read again by today's.

`make test-history` makes an environment for each release in `.venv-history`, and runs these.
"""

import json
import shutil
from pathlib import Path

import lance
import pytest

import lance_core
from lance_core.maintenance.verify import verify
from tests import processes
from tests.history.write_tables import rows

ENVIRONMENTS = processes.ROOT / ".venv-history"
SCRIPT = Path(__file__).with_name("write_tables.py")
RELEASES = (processes.ROOT / "tests/history/releases.txt").read_text().split()
VERSIONS = ("legacy", "2.0", "2.1", "2.2")
# Label lists of old releases are left aside, with a warning, and rows are read instead.
pytestmark = [pytest.mark.history, pytest.mark.filterwarnings("ignore:index .* is left aside:UserWarning")]

FILTERS = {
    "id = 5": lambda row: row["id"] == 5,
    "id > 500": lambda row: row["id"] > 500,
    "s = 'text 3'": lambda row: row["s"] == "text 3",
    "n = 4": lambda row: row["n"] == 4,
    "n IS NULL": lambda row: row["n"] is None,
    "array_has(l, 't2')": lambda row: "t2" in row["l"],
    "st.x = 301": lambda row: row["st"]["x"] == 301,
}


@pytest.fixture(scope="module", params=RELEASES)
def release(request, tmp_path_factory):
    """The folder with the tables of a release, and the kinds of indices of each."""
    python = ENVIRONMENTS / request.param / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: `make test-history` makes it")
    folder = tmp_path_factory.mktemp(request.param)
    done = processes.run([python, SCRIPT, folder], check=True)
    return folder, json.loads(done.stdout.splitlines()[-1])


def expected_rows(start, count, version):
    """The rows as they are read again: 0.1 files hold no null numbers."""
    made = rows(start, count).to_pylist()
    return [row | {"n": row["n"] or 0} for row in made] if version == "legacy" else made


def by_id(found):
    return sorted(found, key=lambda row: row["id"])


def check(uri, expected):
    """Rows and filters here, and rows in today's pylance."""
    ours = lance_core.dataset(uri)
    assert by_id(ours.to_table().to_pylist()) == by_id(expected)
    for condition, is_meant in FILTERS.items():
        found = ours.to_table(filter=condition).to_pylist()
        assert by_id(found) == by_id([row for row in expected if is_meant(row)]), condition
    assert verify(ours) == []


def check_pylance(uri, expected, *, reads):
    """Rows in today's pylance, if it reads the table that the release wrote."""
    if reads:
        assert by_id(lance.dataset(uri).to_table().to_pylist()) == by_id(expected)


def is_read(uri):
    """Whether today's pylance reads all rows: it rejects 2.2 files of releases to which that was a draft."""
    try:
        lance.dataset(uri).to_table()
    except BaseException:  # noqa: BLE001 - its panics are no Exception
        return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_tables_of_a_release_are_read_and_changed(release, version, tmp_path):
    folder, written = release
    if version not in written:
        pytest.skip(f"that release does not write {version}")
    uri = str(tmp_path / "t")
    shutil.copytree(folder / version, uri)
    reads = is_read(uri)
    assert reads or version == "2.2"
    expected = [row for row in expected_rows(0, 600, version) if row["id"] != 17]
    check(uri, expected)

    lance_core.write_dataset(rows(600, 50), uri, mode="append")
    expected += expected_rows(600, 50, version)
    check(uri, expected)

    lance_core.dataset(uri).delete("id = 5 OR s = 'text 9'")
    expected = [row for row in expected if row["id"] != 5 and row["s"] != "text 9"]
    check(uri, expected)

    lance_core.dataset(uri).update({"n": "99"}, where="id = 6")
    expected = [row | {"n": 99} if row["id"] == 6 else row for row in expected]
    check(uri, expected)

    source = expected_rows(640, 30, version)
    merge = lance_core.dataset(uri).merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(rows(640, 30))
    keys = {row["id"] for row in source}
    expected = [row for row in expected if row["id"] not in keys] + source
    check(uri, expected)
    check_pylance(uri, expected, reads=reads)

    lance_core.dataset(uri).optimize.optimize_indices()
    check(uri, expected)
    for index in lance_core.dataset(uri).list_indices():
        if index["name"] in ("v_ivf_pq", "s_inverted", "s_ngram"):  # compaction leaves what these cover
            lance_core.dataset(uri).drop_index(index["name"])
    lance_core.dataset(uri).optimize.compact_files()
    check(uri, expected)
    lance_core.dataset(uri).create_scalar_index("id", "BTREE", replace=True, name="id_btree")
    check(uri, expected)
    check_pylance(uri, expected, reads=True)
