"""Columns of all kinds, as every minor release of pylance from 0.20 on wrote them in each version of files."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError
from tests import processes
from tests.history.releases import FIRST_DICTIONARIES, RELEASES, is_before, python_of, read_of
from tests.history.write_columns import NOT_WRITTEN

SCRIPT = Path(__file__).with_name("write_columns.py")
pytestmark = pytest.mark.history

DICTIONARIES = {"dictionary", "dictionary_null"}
NULL_STRUCTS = {"struct_null", "struct_list"}
"""2.0 has no place for the nulls of structs, which releases before 12.0 lost."""

REJECTED = {"blob", "packed_struct"}
"""What releases before 0.38 wrote in 2.1 and 2.2, and pylance 14 does not read: it shows nulls for the packed struct."""


@pytest.fixture(scope="module", params=RELEASES)
def release(request, tmp_path_factory):
    """The name of a release, the folder with its tables, and what failed."""
    python = python_of(request.param)
    if not python.exists():
        pytest.skip(f"{python} is not there: `make test-history` makes it")
    folder = tmp_path_factory.mktemp(request.param)
    done = processes.run([python, SCRIPT, folder, *read_of(request.param)], check=True)
    return request.param, folder, json.loads(done.stdout.splitlines()[-1])


def values(path):
    """The values of the column of an Arrow file; None without one."""
    return pa.ipc.open_file(path).read_all()["c"].to_pylist() if path.exists() else None


def values_here(folder):
    """The values that are read here, or why they are not."""
    try:
        table = lance_core.dataset(str(folder / "table")).to_table(blob_handling="all_binary")
    except LanceError as error:
        return str(error)
    return table["c"].to_pylist()


def not_written(release, version):
    """The kinds of columns that a release does not write."""
    kinds = set()
    if version in ("2.1", "2.2") and is_before(release, FIRST_DICTIONARIES):
        kinds |= DICTIONARIES
    if version == "2.0" and not is_before(release, "12.0"):
        kinds |= NULL_STRUCTS
    if version == "2.2" and not is_before(release, "3.0") and is_before(release, "13.0"):
        kinds.add("blob")
    return kinds


def rejected(release, version):
    """The kinds of columns that a release wrote, and that are not read here."""
    return REJECTED if version in ("2.1", "2.2") and is_before(release, "0.38") else set()


def test_values_are_those_that_were_written_or_what_the_release_made_of_them(release):
    name, folder, outcomes = release
    assert list(outcomes) == read_of(name)
    wrong = {}
    for version, kinds in outcomes.items():
        missing = not_written(name, version)
        assert {kind for kind, outcome in kinds.items() if outcome == NOT_WRITTEN} == missing
        for kind in sorted(kinds.keys() - missing):
            place = folder / version / kind
            found = values_here(place)
            if isinstance(found, str):
                if kind not in rejected(name, version):
                    wrong[version, kind] = found
            elif kind in rejected(name, version) or found not in (
                values(place / "source.arrow"),
                values(place / "read.arrow"),
            ):
                wrong[version, kind] = "other values"
    assert wrong == {}
