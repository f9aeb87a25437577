"""A history that lies ends a commit with an error that names what lies, instead of one attempt after another."""

import shutil

import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.commit import versions
from lance_core.errors import CorruptFileError
from lance_core.table.manifest.manifest import ManifestLocation
from lance_core.table.paths import DETACHED_BIT, Naming

ROWS = pa.table({"a": [1, 2]})


def name(version):
    return f"{2**64 - 1 - version:020d}.manifest"


def folder(place):
    (place / name(3)).mkdir()


def dangling(place):
    (place / name(3)).symlink_to("/nowhere/at/all")


def renamed(place):
    shutil.copy(place / name(2), place / name(3))


def last_number(place):
    (place / name(2)).rename(place / name(DETACHED_BIT - 1))


LIES = {
    folder: "version 3 exists, but can be neither",
    dangling: "version 3 exists, but can be neither",
    renamed: "holds version 2",
    last_number: "holds version 2",
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("by", ["handle", "uri"])
def test_an_insert_ends_and_says_what_lies(tmp_path, lie, by):
    uri = tmp_path / "t"
    handle = lance.write_dataset(ROWS, uri)
    handle.insert(ROWS)
    lie(uri / "_versions")
    with pytest.raises(CorruptFileError, match=LIES[lie]):
        lance.write_dataset(ROWS, handle if by == "handle" else uri, mode="append")
    assert len(list((uri / "data").iterdir())) == 2


def test_a_first_version_that_cannot_be_seen(tmp_path):
    (tmp_path / "t" / "_versions" / name(1)).mkdir(parents=True)
    with pytest.raises(CorruptFileError, match="version 1 exists"):
        lance.write_dataset(ROWS, tmp_path / "t")


@pytest.mark.parametrize("by", ["handle", "uri"])
def test_a_listing_of_what_is_not_there(tmp_path, monkeypatch, by):
    handle = lance.write_dataset(ROWS, tmp_path / "t")
    location = ManifestLocation(key=f"_versions/{name(3)}", size_bytes=100, naming=Naming.V2)
    monkeypatch.setattr(versions, "locate_latest", lambda *_: (3, location))
    with pytest.raises(CorruptFileError, match="does not exist"):
        lance.write_dataset(ROWS, handle if by == "handle" else tmp_path / "t", mode="append")
