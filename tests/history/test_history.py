"""Tables of every minor release of pylance from 0.20 on: read, changed and indexed here, and read again by today's.

`make test-history` makes an environment for each release in `.venv-history`, and runs these.
"""

import json
import shutil
from pathlib import Path

import lance
import pytest

import lance_core
from lance_core.errors import UnsupportedError
from lance_core.maintenance.verify.files import verify
from tests import processes
from tests.history.releases import (
    FIRST_DICTIONARIES,
    FIRST_IN_PYLANCE,
    FIRST_INDICES,
    FIRST_LISTS,
    RELEASES,
    is_before,
    python_of,
    read_of,
    written_by,
)
from tests.history.write_tables import INDICES, rows

SCRIPT = Path(__file__).with_name("write_tables.py")
# Label lists and zone maps of old releases are ignored with a warning, and rows are read instead.
pytestmark = [
    pytest.mark.history,
    pytest.mark.filterwarnings("ignore:index .* is ignored:UserWarning"),
]

READ = [
    pytest.param(release, version, id=f"{release}-{version}") for release in RELEASES for version in read_of(release)
]
DRAFTS = [
    pytest.param(release, version, id=f"{release}-{version}")
    for release in RELEASES
    for version in written_by(release)
    if version not in read_of(release)
]
FILTERS = {
    "id = 5": lambda row: row["id"] == 5,
    "id > 500": lambda row: row["id"] > 500,
    "s = 'text 3'": lambda row: row["s"] == "text 3",
    "n = 4": lambda row: row["n"] == 4,
    "n IS NULL": lambda row: row["n"] is None,
    "array_has(l, 't2')": lambda row: "t2" in row["l"],
    "st.x = 301": lambda row: row["st"]["x"] == 301,
}


@pytest.fixture(scope="module")
def release(request, tmp_path_factory):
    """The name of a release, the folder with its tables, and what it says that it wrote."""
    python = python_of(request.param)
    if not python.exists():
        pytest.skip(f"{python} is not there: `make test-history` makes it")
    folder = tmp_path_factory.mktemp(request.param)
    done = processes.run([python, SCRIPT, folder], check=True)
    return request.param, folder, json.loads(done.stdout.splitlines()[-1])


def columns_of(release, version):
    """The columns that a release writes in files of a version."""
    left_out = set()
    if version in ("2.1", "2.2") and is_before(release, FIRST_DICTIONARIES):
        left_out.add("d")
    if version == "2.1" and is_before(release, FIRST_LISTS):
        left_out.add("l")
    return [name for name in rows(0, 1).column_names if name not in left_out]


def new_rows(start, count, release, version):
    """The rows that a file of a version can hold: 0.1 holds no null numbers, for which releases wrote 0."""
    made = rows(start, count).select(columns_of(release, version))
    if version != "legacy":
        return made
    return made.set_column(made.schema.get_field_index("n"), made.schema.field("n"), made["n"].fill_null(0))


def expected_rows(start, count, release, version):
    return new_rows(start, count, release, version).to_pylist()


def first_rows(release, version):
    """What the release wrote: 0.20 gave the rows of a later file of one write the nulls of those of the first."""
    made = [row for row in expected_rows(0, 600, release, version) if row["id"] != 17]
    if version != "2.0" or not is_before(release, "0.21"):
        return made
    return [row | {"n": null_as_before(row["id"], row["n"])} for row in made]


def null_as_before(number, value):
    in_file = number % 300
    if in_file < 150:
        return value
    return None if (number - 150) % 7 == 0 else value or 0


def by_id(found):
    return sorted(found, key=lambda row: row["id"])


def check_library(library, uri, expected, left_aside=()):
    """Rows, and rows that fulfil conditions."""
    assert by_id(library.dataset(uri).to_table().to_pylist()) == by_id(expected)
    for condition, is_meant in FILTERS.items():
        if condition.startswith("array_has") and "l" not in expected[0]:
            continue
        if condition.split()[0] in left_aside:
            continue
        found = library.dataset(uri).to_table(filter=condition).to_pylist()
        assert by_id(found) == by_id([row for row in expected if is_meant(row)]), condition


class Table:
    """A copy of a table of a release, and the rows that it is to have."""

    def __init__(self, uri, release, version):
        self.uri = uri
        self.rows = first_rows(release, version)
        # 0.34 and 0.35 wrote zone maps without a column that all later releases ask for.
        self.has_draft_of_zones = not is_before(release, "0.34") and is_before(release, "0.36")
        self.is_read_by_pylance = not is_before(release, FIRST_IN_PYLANCE[version])

    def check(self):
        """Rows and filters here and in today's pylance, and what is wrong with the files."""
        check_library(lance_core, self.uri, self.rows)
        problems = [problem.message for problem in verify(lance_core.dataset(self.uri))]
        drafts = [message for message in problems if "as pylance 0.35 to 1.0 wrote 2.2" in message]
        assert bool(drafts) != self.is_read_by_pylance
        zones = [message for message in problems if "zone map of pylance 0.34 or 0.35" in message]
        assert len(zones) == self.has_draft_of_zones
        assert len(problems) == len(drafts) + len(zones), problems
        if not self.is_read_by_pylance:
            self.check_that_pylance_rejects(None, "u32 chunk grammar")
            return
        check_library(lance, self.uri, self.rows, left_aside=["n"] if self.has_draft_of_zones else [])
        if self.has_draft_of_zones:
            self.check_that_pylance_rejects("n = 4", "missing 'zone_length' column")

    def check_that_pylance_rejects(self, condition, message):
        with pytest.raises(Exception, match=message):
            lance.dataset(self.uri).to_table(filter=condition)


@pytest.mark.parametrize("release", RELEASES, indirect=True)
def test_a_release_writes_what_is_known_of_it(release):
    """Nothing is left out in silence: not a version of files, a column, or a kind of index."""
    name, _, written = release
    expected = {}
    for version in written_by(name):
        columns = columns_of(name, version)
        known = [(column, kind) for column, kind in INDICES if not is_before(name, FIRST_INDICES.get(kind, "0.20"))]
        expected[version] = {"columns": columns, "indices": [kind for column, kind in known if column in columns]}
    assert written == expected


@pytest.mark.parametrize(("release", "version"), READ, indirect=["release"])
def test_tables_of_a_release_are_read_and_changed(release, version, tmp_path):
    name, folder, _ = release
    uri = str(tmp_path / "t")
    shutil.copytree(folder / version, uri)
    table = Table(uri, name, version)
    table.check()

    lance_core.write_dataset(new_rows(600, 50, name, version), uri, mode="append")
    table.rows += expected_rows(600, 50, name, version)
    table.check()

    lance_core.dataset(uri).delete("id = 5 OR s = 'text 9' OR n = 8")
    table.rows = [row for row in table.rows if row["id"] != 5 and row["s"] != "text 9" and row["n"] != 8]
    table.check()

    lance_core.dataset(uri).update({"n": "99"}, where="id = 6")
    table.rows = [row | {"n": 99} if row["id"] == 6 else row for row in table.rows]
    table.check()

    source = expected_rows(640, 30, name, version)
    merge = lance_core.dataset(uri).merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(new_rows(640, 30, name, version))
    keys = {row["id"] for row in source}
    table.rows = [row for row in table.rows if row["id"] not in keys] + source
    table.check()

    lance_core.dataset(uri).optimize.optimize_indices()
    table.has_draft_of_zones = False
    table.check()
    for index in lance_core.dataset(uri).list_indices():
        if index["name"] in ("v_ivf_pq", "s_inverted", "s_ngram"):  # compaction leaves what these cover
            lance_core.dataset(uri).drop_index(index["name"])
    lance_core.dataset(uri).optimize.compact_files()
    table.is_read_by_pylance = True
    table.check()
    lance_core.dataset(uri).create_scalar_index("id", "BTREE", replace=True, name="id_btree")
    table.check()


@pytest.mark.parametrize(("release", "version"), DRAFTS, indirect=["release"])
def test_drafts_of_a_version_are_rejected_by_name(release, version):
    _, folder, _ = release
    uri = str(folder / version)
    with pytest.raises(UnsupportedError, match="PageLayout"):
        lance_core.dataset(uri).to_table()
    with pytest.raises(Exception, match="PageLayout"):
        lance.dataset(uri).to_table()
    assert lance_core.dataset(uri).count_rows() == lance.dataset(uri).count_rows() == 599
