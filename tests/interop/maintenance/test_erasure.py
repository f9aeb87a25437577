"""Erasures: no byte below the root holds a marker of an erased row, whatever history the table has."""

import contextlib
import datetime as dt
import secrets
import shutil
import time
import uuid
import warnings
from dataclasses import replace
from pathlib import Path

import fsspec
import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyroaring import BitMap

import lance_core
from lance_core.errors import InvalidInputError, StoreError, UnsupportedError
from lance_core.maintenance.erasure import proof
from lance_core.store.local import LocalStore
from lance_core.store.s3 import S3Store
from lance_core.store.s3_client import S3Client
from tests.support.hypothesis_settings import examples

PLAIN = {"lance-encoding:compression": "none"}
BLOB = {"lance-encoding:blob": "true"}
DIMENSIONS = 4
SCHEMA = pa.schema([
    pa.field("id", pa.int64()),
    pa.field("key", pa.string(), metadata=PLAIN),
    pa.field("part", pa.string(), metadata=PLAIN),
    pa.field("name", pa.string(), metadata=PLAIN),
    pa.field("raw", pa.binary(), metadata=PLAIN),
    pa.field("st", pa.struct([pa.field("inner", pa.string(), metadata=PLAIN)])),
    pa.field("tags", pa.list_(pa.field("item", pa.string(), metadata=PLAIN))),
    pa.field("words", pa.dictionary(pa.int32(), pa.string())),
    pa.field("image", pa.large_binary(), metadata=BLOB),
    pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
])  # fmt: skip


class Person:
    """A row with a marker in each column."""

    def __init__(self, number):
        self.id = number
        self.marks = {column: f"{column[0]}{secrets.token_hex(12)}"[:24] for column in SCHEMA.names}
        self.vector = np.random.default_rng(number).random(DIMENSIONS, np.float32)

    def __getattr__(self, name):
        return self.marks[name]

    @property
    def where(self):
        return f"key = '{self.marks['key']}'"

    def needles(self):
        own = [mark.encode() for column, mark in self.marks.items() if column not in ("id", "vector")]
        return [*own, self.vector.tobytes()]

    def row(self):
        return {
            "id": self.id, "key": self.key, "part": self.part, "name": self.name, "raw": self.raw.encode(),
            "st": {"inner": self.marks["st"]}, "tags": [self.tags, "all"], "words": self.words,
            "image": self.image.encode() * 3, "vector": self.vector.tolist(),
        }  # fmt: skip


def people(start, count):
    return [Person(number) for number in range(start, start + count)]


def table_of(persons):
    rows = [person.row() for person in persons]
    columns = [
        pa.array([row["words"] for row in rows]).dictionary_encode()
        if field.name == "words"
        else pa.array([row[field.name] for row in rows], field.type)
        for field in SCHEMA
    ]
    return pa.table(columns, schema=SCHEMA)


def every_byte(uri, options=None):
    """The bytes of everything below a root, by name."""
    if not uri.startswith("s3://"):
        return {str(path): path.read_bytes() for path in Path(uri).rglob("*") if path.is_file()}
    files = fsspec.filesystem(
        "s3",
        key=options["aws_access_key_id"],
        secret=options["aws_secret_access_key"],
        endpoint_url=options["aws_endpoint"],
        skip_instance_cache=True,
    )
    return {path: files.cat_file(path) for path in files.find(uri)}


def places(uri, person, options=None):
    """The files that hold a marker of a person, and the markers."""
    found = every_byte(uri, options)
    return {
        (path.removeprefix(uri), needle)
        for path, data in found.items()
        for needle in person.needles()
        if needle in data
    }


def check_erased(uri, person, options=None):
    assert places(uri, person, options) == set()
    for name in ["main", *lance_core.dataset(uri, storage_options=options).branches.list()]:
        for library in (lance, lance_core):
            handle = library.dataset(uri, storage_options=options).checkout_version((name, None))
            versions = [one["version"] for one in handle.versions()]
            for version in versions:
                seen = handle.checkout_version(version)
                if "key" in seen.schema.names:
                    assert person.key not in seen.to_table(columns=["key"])["key"].to_pylist()


def check_kept(uri, persons, options=None):
    """The others are there, by scans and by indices of both libraries."""
    for library in (lance, lance_core):
        dataset = library.dataset(uri, storage_options=options)
        assert sorted(dataset.to_table(columns=["id"])["id"].to_pylist()) == sorted(one.id for one in persons)
        for one in persons[:2]:
            for column in ("key", "part", "name"):
                found = dataset.to_table(columns=["id"], filter=f"{column} = '{one.marks[column]}'")
                assert found["id"].to_pylist() == [one.id]


SCALARS = {"key": "BTREE", "part": "ZONEMAP", "name": "BITMAP", "tags": "LABEL_LIST", "raw": "BLOOMFILTER"}


@pytest.mark.variants(2)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("maker", [lance, lance_core])
def test_no_byte_is_left_after_a_long_history(tmp_path, stable, maker):
    uri = str(tmp_path / "t")
    crowd = people(0, 30)
    lost = crowd[7]
    maker.write_dataset(table_of(crowd[:20]), uri, max_rows_per_file=8, enable_stable_row_ids=stable)
    for column, kind in SCALARS.items():
        maker.dataset(uri).create_scalar_index(column, kind)
    maker.write_dataset(table_of(crowd[20:]), uri, mode="append")
    maker.dataset(uri).update({"id": f"{lost.id} + 100"}, where=lost.where)
    maker.dataset(uri).update({"id": f"{lost.id}"}, where=lost.where)
    again = table_of([lost, crowd[3]])
    maker.dataset(uri).merge_insert("id").when_matched_update_all().execute(again)
    maker.dataset(uri).optimize.compact_files(target_rows_per_fragment=16)
    maker.dataset(uri).optimize.optimize_indices()
    branch = maker.dataset(uri).create_branch("work")
    branch.insert(table_of(people(50, 3)))
    maker.dataset(uri).delete(f"name = '{lost.name}' and id = 4000")
    maker.dataset(uri).tags.create("kept", maker.dataset(uri).version)
    assert {needle for _, needle in places(uri, lost)} == set(lost.needles())

    stopped = lance_core.dataset(uri).erase_rows(lost.where)
    assert {(one.kind, one.path) for one in stopped.obstacles} == {("tag", "kept"), ("branch", "work")}
    assert not stopped.proven
    assert places(uri, lost)

    report = lance_core.dataset(uri).erase_rows(lost.where, retag=True, release_branches=True, delete_unverified=True)
    assert report.proven, report.remaining
    assert report.rows_deleted == {"main": 1, "work": 1}
    check_erased(uri, lost)
    check_kept(uri, [one for one in crowd if one is not lost])
    assert lance.dataset(uri).checkout_version(("work", None)).count_rows() == 32

    before = set(every_byte(uri))
    assert lance_core.dataset(uri).erase_rows(lost.where).proven
    assert set(every_byte(uri)) == before  # nothing is left to do


def test_rows_that_were_deleted_before_are_erased_too(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 6)
    lance_core.write_dataset(table_of(crowd), uri)
    lance_core.dataset(uri).create_scalar_index("name", "ZONEMAP")
    lance_core.dataset(uri).delete(crowd[2].where)
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert places(uri, crowd[2])
    report = lance_core.dataset(uri).erase_rows(crowd[2].where)
    assert report.proven
    assert report.rows_deleted == {}
    check_erased(uri, crowd[2])


def test_an_index_that_outlived_its_rows_is_built_again(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 6)
    lance_core.write_dataset(table_of(crowd), uri, max_rows_per_file=3)
    for column, kind in SCALARS.items():
        lance_core.dataset(uri).create_scalar_index(column, kind)
    lance_core.dataset(uri).delete(crowd[1].where)
    lance_core.dataset(uri).optimize.compact_files()
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert report.proven
    assert report.rows_deleted == {}
    assert len(report.indices_rebuilt) == len(SCALARS)
    check_erased(uri, crowd[1])
    check_kept(uri, [one for one in crowd if one is not crowd[1]])


@pytest.mark.parametrize("kind", ["IVF_FLAT", "INVERTED", "NGRAM"])
def test_an_index_of_another_library_is_named_and_not_called_proven(tmp_path, kind):
    uri = str(tmp_path / "t")
    crowd = people(0, 20)
    lance.write_dataset(table_of(crowd), uri, max_rows_per_file=8)

    def build():
        if kind == "IVF_FLAT":
            lance.dataset(uri).create_index("vector", kind, num_partitions=2, name="search", replace=True)
        else:
            lance.dataset(uri).create_scalar_index("name", kind, name="search", replace=True)

    build()
    lost = crowd[5]
    report = lance_core.dataset(uri).erase_rows(lost.where)
    assert not report.proven
    assert {one.kind for one in report.remaining} == {"index"}
    build()
    report = lance_core.dataset(uri).erase_rows(lost.where)
    assert report.proven, report.remaining
    check_erased(uri, lost)
    report = lance_core.dataset(uri).erase_rows(crowd[6].where, drop_indices=True)
    assert report.proven
    assert report.indices_dropped == ("main:search",)
    check_erased(uri, crowd[6])


def test_columns_that_are_dropped_or_written_again_keep_no_value(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 6)
    dataset = lance.write_dataset(table_of(crowd).drop_columns(["words"]), uri, max_rows_per_file=3)
    old = crowd[0].name
    fragment = dataset.get_fragments()[0]
    new = pa.table({"id": pa.array([0], pa.int64()), "name": ["somebody else"]})
    updated, fields = fragment.update_columns(new, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    lance.LanceDataset.commit(uri, operation, read_version=1)
    lance_core.dataset(uri).drop_columns(["raw"])
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert any(old.encode() in data for data in every_byte(uri).values())
    report = lance_core.dataset(uri).erase_rows(f"name = '{old}'")
    assert report.proven
    assert report.rows_deleted == {}
    assert not any(old.encode() in data for data in every_byte(uri).values())
    assert lance_core.dataset(uri).erase_rows(crowd[4].where).proven
    check_erased(uri, crowd[4])


def test_the_condition_stands_nowhere(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(
        table_of(crowd), uri, transaction_properties={"partitions": crowd[1].part}, commit_message=crowd[1].key
    )
    lance_core.dataset(uri).delete(crowd[1].where)
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert report.proven
    check_erased(uri, crowd[1])
    assert crowd[1].key not in repr(report)


def test_a_commit_of_an_erasure_does_not_hold_the_condition(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri)
    from lance_core.maintenance.erasure import erase as erasure

    monkeypatch.setattr(erasure._Erasure, "_clean_up", lambda *_: None)
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert not report.proven
    assert len(lance_core.dataset(uri).versions()) > 2
    assert {path.split("/")[1] for path, _ in places(uri, crowd[1])} == {"data"}


def test_a_further_table_at_the_place_of_a_clone_is_not_erased(tmp_path):
    uri, copy = str(tmp_path / "t"), str(tmp_path / "clone")
    lance_core.write_dataset({"id": [1, 2]}, uri).shallow_clone(copy, 1)
    shutil.rmtree(copy)
    lance_core.write_dataset({"id": [1, 2]}, copy)
    lance_core.dataset(uri).insert({"id": [4]})
    for report in (lance_core.dataset(uri).erase_rows("id = 4", delete_unverified=True) for _ in range(2)):
        assert [(finding.kind, finding.path) for finding in report.remaining] == [("clone", copy)]
        assert "another dataset is there" in report.remaining[0].message
    lance_core.dataset(uri).clones.release(copy)
    assert lance_core.dataset(uri).erase_rows("id = 4", delete_unverified=True).proven
    assert lance_core.dataset(copy).count_rows() == 2


def test_clones_and_sources_are_named(tmp_path):
    uri, copy = str(tmp_path / "t"), str(tmp_path / "clone")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri).shallow_clone(copy, 1)
    lost = crowd[1]
    report = lance_core.dataset(uri).erase_rows(lost.where)
    assert [(one.kind, one.path) for one in report.obstacles] == [("clone", copy)]
    assert places(uri, lost)
    report = lance_core.dataset(copy).erase_rows(lost.where)
    assert [(one.kind, one.path) for one in report.remaining] == [("base", uri)]
    assert not report.proven
    lance_core.dataset(uri).clones.release(copy)
    assert lance_core.dataset(uri).erase_rows(lost.where).proven
    assert lance_core.dataset(copy).erase_rows(lost.where).proven
    check_erased(uri, lost)
    check_erased(copy, lost)


def test_detached_versions_and_versions_in_use(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    dataset = lance.write_dataset(table_of(crowd), uri)
    operation = lance.LanceOperation.Append(lance.fragment.write_fragments(table_of(people(9, 1)), uri))
    lance.LanceDataset.commit(dataset, operation, read_version=1, detached=True)
    lance_core.dataset(uri).insert(table_of(people(20, 1)))
    report = lance_core.dataset(uri).erase_rows(crowd[1].where, in_use={"a reader": 1})
    assert [(one.kind, one.path) for one in report.obstacles] == [("in use", "a reader")]
    assert lance_core.dataset(uri).erase_rows(crowd[1].where).proven
    check_erased(uri, crowd[1])


def test_files_of_nobody(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri)
    lance_core.write_fragments(table_of([crowd[1]]), uri, mode="append")
    Path(uri, "notes.txt").write_text("mine")
    stray = Path(uri, f"_indices/{uuid.uuid4()}/page_data.lance")
    stray.parent.mkdir(parents=True)
    stray.write_bytes(crowd[1].key.encode())
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert sorted(one.kind for one in report.remaining) == ["data", "index", "unknown"]
    Path(uri, "notes.txt").unlink()
    assert lance_core.dataset(uri).erase_rows(crowd[1].where, delete_unverified=True).proven
    check_erased(uri, crowd[1])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_dictionary_of_a_file_of_nobody_may_hold_a_value_of_the_rows(tmp_path, wrapped):
    uri = str(tmp_path / "t")
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), ["alice", "bobby-tables"])
    values = pa.StructArray.from_arrays([names], ["name"]) if wrapped else names
    where = ("one.name" if wrapped else "one") + " = 'bobby-tables'"
    lance_core.write_dataset(pa.table({"one": values}), uri)
    clean = pa.array(["alice"]).dictionary_encode()
    lance_core.write_fragments(
        pa.table({"one": pa.StructArray.from_arrays([clean], ["name"]) if wrapped else clean}), uri
    )
    lance_core.write_fragments(pa.table({"one": values.slice(0, 1)}), uri)
    report = lance_core.dataset(uri).erase_rows(where)
    assert [one.kind for one in report.remaining] == ["data"]
    left = [path for path in Path(uri).rglob("*") if path.is_file() and b"bobby-tables" in path.read_bytes()]
    assert [path.relative_to(uri).as_posix() for path in left] == [report.remaining[0].path]
    assert not report.proven
    assert lance_core.dataset(uri).erase_rows(where, delete_unverified=True).proven


def test_a_dictionary_in_a_map_loses_the_values_of_erased_rows(tmp_path):
    uri = str(tmp_path / "t")
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), ["alice", "bobby-tables"])
    maps = pa.MapArray.from_arrays([0, None, 1, 2], pa.array(["a", "b"]), names)
    people = pa.table({"id": [1, 2, 3], "names": maps})
    lance_core.write_dataset(people, uri, data_storage_version="2.2")
    lance_core.write_dataset(people.slice(0, 2), uri, mode="append")
    assert lance_core.dataset(uri).erase_rows("id = 3", delete_unverified=True).proven
    assert not [path for path in Path(uri).rglob("*") if path.is_file() and b"bobby-tables" in path.read_bytes()]
    left = {"id": [1, 2, 1, 2], "names": [[("a", "alice")], None, [("a", "alice")], None]}
    assert lance_core.dataset(uri).to_table().to_pydict() == left
    assert lance.dataset(uri).to_table().to_pydict() == left


def test_rows_that_come_meanwhile_are_reported_or_erased(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri)
    from lance_core.maintenance.erasure import erase as erasure

    clean_up = erasure._Erasure._clean_up

    def late(self, facts):
        clean_up(self, facts)
        lance.write_dataset(table_of([crowd[1]]), uri, mode="append")

    monkeypatch.setattr(erasure._Erasure, "_clean_up", late)
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert not report.proven
    assert {one.kind for one in report.remaining} == {"version"}
    monkeypatch.undo()
    assert lance_core.dataset(uri).erase_rows(crowd[1].where).proven
    check_erased(uri, crowd[1])


class Killed(BaseException):
    pass


@pytest.mark.variants(2)
@pytest.mark.parametrize("at", range(0, 24, 3))
def test_an_erasure_that_was_killed_is_finished_by_the_next_one(tmp_path, monkeypatch, at):
    uri = str(tmp_path / "t")
    crowd = people(0, 9)
    lance_core.write_dataset(table_of(crowd), uri, max_rows_per_file=4)
    lance_core.dataset(uri).create_scalar_index("key", "BTREE")
    lance_core.dataset(uri).create_branch("work").insert(table_of(people(50, 2)))
    calls = 0
    real = {name: getattr(LocalStore, name) for name in ("put", "put_if_absent", "delete", "open_writer")}

    def dying(name):
        def call(self, *args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > at:
                raise Killed
            return real[name](self, *args, **kwargs)

        return call

    for name in real:
        monkeypatch.setattr(LocalStore, name, dying(name))
    with contextlib.suppress(Killed):
        lance_core.dataset(uri).erase_rows(crowd[1].where, retag=True, release_branches=True)
    monkeypatch.undo()
    report = lance_core.dataset(uri).erase_rows(
        crowd[1].where, retag=True, release_branches=True, delete_unverified=True
    )
    assert report.proven, report.remaining
    check_erased(uri, crowd[1])
    check_kept(uri, [one for one in crowd if one is not crowd[1]])


def test_on_s3(s3):
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    crowd = people(0, 9)
    lance_core.write_dataset(table_of(crowd), uri, max_rows_per_file=4, storage_options=options)
    dataset = lance_core.dataset(uri, storage_options=options)
    dataset.create_scalar_index("key", "BTREE")
    dataset.create_branch("work").insert(table_of(people(50, 2)))
    report = dataset.erase_rows(crowd[1].where, release_branches=True)
    assert not report.proven  # young versions stay while others can be at work
    assert all(one.kind in {"version", "index"} for one in report.remaining)
    report = dataset.erase_rows(crowd[1].where, release_branches=True, delete_unverified=True)
    assert report.proven, report.remaining
    check_erased(uri, crowd[1], options)
    check_kept(uri, [one for one in crowd if one is not crowd[1]], options)


STEPS = ["append", "delete", "update", "merge", "compact", "index", "optimize", "tag", "branch", "clean", "again"]


@examples(12, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.booleans(), st.integers(0, 4)), min_size=3, max_size=9))
def test_random_histories(tmp_path_factory, steps):
    uri = str(tmp_path_factory.mktemp("erasure") / "t")
    crowd = people(0, 8)
    lost = crowd[3]
    lance_core.write_dataset(table_of(crowd), uri, max_rows_per_file=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (step, theirs, which) in enumerate(steps):
            dataset = (lance if theirs else lance_core).dataset(uri)
            if step == "append":
                dataset.insert(table_of(people(100 * (number + 1), 3)))
            elif step == "delete":
                dataset.delete(f"id = {which}")
            elif step == "update":
                dataset.update({"id": "id + 1000"}, where=f"id = {which}")
            elif step == "merge":
                dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(
                    table_of([lost])
                )
            elif step == "compact":
                dataset.optimize.compact_files()
            elif step == "index":
                column = list(SCALARS)[which]
                dataset.create_scalar_index(column, SCALARS[column])
            elif step == "optimize":
                dataset.optimize.optimize_indices()
            elif step == "tag":
                dataset.tags.create(f"t{number}", dataset.version)
            elif step == "branch":
                dataset.create_branch(f"b{number}").delete(f"id = {which}")
            elif step == "clean":
                dataset.cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
            else:
                dataset.insert(table_of([lost]))
    others = sorted(
        row["id"] for row in lance.dataset(uri).to_table(columns=["id", "key"]).to_pylist() if row["key"] != lost.key
    )
    report = lance_core.dataset(uri).erase_rows(lost.where, retag=True, release_branches=True, delete_unverified=True)
    assert report.proven, report.remaining
    check_erased(uri, lost)
    assert sorted(lance.dataset(uri).to_table(columns=["id"])["id"].to_pylist()) == others
    assert lance_core.dataset(uri).validate() is None


def test_dictionaries_of_old_manifests_are_named(tmp_path):
    crowd = people(0, 4)
    old = str(tmp_path / "old")
    words = table_of(crowd).select(["key", "words"])
    lance_core.write_dataset(words, old, data_storage_version="0.1")
    report = lance_core.dataset(old).erase_rows(crowd[1].where)
    assert [one.kind for one in report.remaining] == ["version"]
    assert "dictionaries" in report.remaining[0].message
    plain = str(tmp_path / "plain")
    lance_core.write_dataset(words.select(["key"]), plain, data_storage_version="0.1")
    assert lance_core.dataset(plain).erase_rows(crowd[1].where).proven
    assert not any(crowd[1].key.encode() in data for data in every_byte(plain).values())


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_every_file_version(tmp_path, version):
    uri = str(tmp_path / "t")
    crowd = people(0, 8)
    columns = ["id", "key", "part", "name", "raw", "st", "tags"]
    rows = table_of(crowd).select(columns).replace_schema_metadata(None)
    plain = pa.schema([field.remove_metadata() for field in rows.schema])
    lance.write_dataset(rows.cast(plain), uri, max_rows_per_file=3, data_storage_version=version)
    lance.dataset(uri).create_scalar_index("key", "BTREE")
    assert lance_core.dataset(uri).erase_rows(crowd[5].where).proven
    check_erased(uri, crowd[5])
    check_kept(uri, [one for one in crowd if one is not crowd[5]])


def test_blobs_in_files_of_their_own(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    marks = [person.image.encode() * 4000 for person in crowd]
    rows = pa.table({"key": [one.key for one in crowd], "image": lance.blob_array(marks)})
    lance.write_dataset(rows, uri, data_storage_version="2.2", max_rows_per_file=2)
    assert any(path.endswith(".blob") for path in every_byte(uri))
    lance_core.dataset(uri).create_branch("b").delete(crowd[2].where)
    report = lance_core.dataset(uri).erase_rows(crowd[2].where, release_branches=True)
    assert report.proven, report
    check_erased(uri, crowd[2])
    left = [blob.readall() for blob in lance.dataset(uri).take_blobs("image", indices=[0, 1, 2])]
    assert sorted(left) == sorted(mark for mark in marks if mark is not marks[2])


@pytest.mark.parametrize("maker", [lance, lance_core])
def test_blobs_of_each_place(tmp_path, maker):
    """In the data file, packed with others, and in a file of their own, through an update and a compaction."""
    uri = str(tmp_path / "t")
    crowd = people(0, 6)
    marks = [one.image.encode() * times for one, times in zip(crowd, [1, 200, 4000] * 2, strict=True)]
    field = maker.blob_field("image", inline_size_threshold=1000, dedicated_size_threshold=50_000)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("key", pa.string(), metadata=PLAIN), field])
    rows = pa.table([pa.array(range(6)), [one.key for one in crowd], maker.blob_array(marks)], schema=schema)
    maker.write_dataset(rows, uri, data_storage_version="2.2", max_rows_per_file=4)
    blobs = {path: data for path, data in every_byte(uri).items() if path.endswith(".blob")}
    held = [sum(mark in data for data in blobs.values()) for mark in marks]
    assert held[0] == held[3] == 0  # in the data file
    assert held[1] == held[2] == held[4] == held[5] == 1
    lance_core.dataset(uri).update({"id": "id"}, where=crowd[1].where)
    lance_core.dataset(uri).optimize.compact_files()
    lance_core.dataset(uri).create_branch("work")
    report = lance_core.dataset(uri).erase_rows("id in (0, 1, 2)", release_branches=True)
    assert report.proven, report
    for lost in crowd[:3]:
        check_erased(uri, lost)
    for library in (lance, lance_core):
        left = [blob.readall() for blob in library.dataset(uri).take_blobs("image", indices=[0, 1, 2])]
        assert left == marks[3:]


def test_a_released_branch_keeps_the_files_that_it_borrows(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 12)
    lance_core.write_dataset(table_of(crowd), uri, max_rows_per_file=3)
    lance_core.dataset(uri).create_branch("work").insert(table_of(people(50, 2)))
    lance_core.dataset(uri).optimize.compact_files()
    report = lance_core.dataset(uri).erase_rows(crowd[1].where, release_branches=True)
    assert report.proven
    assert report.branches_released == ("work",)
    for library in (lance_core, lance):
        library.dataset(uri).cleanup_old_versions(
            dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        for reader in (lance_core, lance):
            branch = reader.dataset(uri).checkout_version(("work", None))
            assert branch.to_table(columns=["key", "name"]).num_rows == 13
    lance_core.dataset(uri).checkout_version(("work", None)).insert(table_of(people(60, 1)))
    lance_core.dataset(uri).branches.delete("work")
    assert lance_core.dataset(uri).tags.list() == {}


def test_fragments_that_others_change_meanwhile_are_tried_again(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri)
    from lance_core.maintenance.erasure import erase as erasure

    rewrite, calls = erasure._Erasure._rewrite, []

    def beside(self, handle, found):
        calls.append(handle.version)
        if len(calls) == 1:
            lance.dataset(uri).update({"part": "'moved'"}, where=f"id = {crowd[0].id}")
            lance.dataset(uri).optimize.compact_files(materialize_deletions_threshold=0.0)
        return rewrite(self, handle, found)

    monkeypatch.setattr(erasure._Erasure, "_rewrite", beside)
    assert lance_core.dataset(uri).erase_rows(crowd[1].where).proven
    assert len(calls) >= 1
    check_erased(uri, crowd[1])
    assert lance.dataset(uri).count_rows() == 3


@pytest.mark.parametrize("compacted", [False, True])
def test_a_row_that_matches_by_the_former_name_of_a_column_is_an_obstacle(tmp_path, compacted):
    uri = str(tmp_path / "t")
    rows = pa.table({"id": [1, 2, 3], "email": ["Ann@example.org", "Bob@example.org", "Eve@example.org"]})
    dataset = lance_core.write_dataset(rows, uri)
    dataset.alter_columns({"path": "email", "name": "email_raw"})
    if compacted:  # other files than those in which the column had its former name
        dataset.delete("id = 3")
        dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    dataset.add_columns({"email": "lower(email_raw)"})
    for dry_run in (True, False):
        stopped = lance_core.dataset(uri).erase_rows("email = 'Bob@example.org'", dry_run=dry_run)
        assert [(one.kind, one.path) for one in stopped.obstacles] == [("renamed", f"main:{dataset.version}")]
        assert "'email' (now 'email_raw')" in stopped.obstacles[0].message
        assert not stopped.proven
    assert lance_core.dataset(uri).version == dataset.version  # nothing was changed
    assert lance_core.dataset(uri).erase_rows("email_raw = 'Bob@example.org'").proven
    assert lance_core.dataset(uri).erase_rows("email = 'Bob@example.org'").proven
    assert not any(b"Bob" in data for data in every_byte(uri).values())
    assert 2 not in lance.dataset(uri).to_table()["id"].to_pylist()


def test_older_versions_in_which_a_column_has_another_name_go_too(tmp_path):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(pa.table({"id": [1, 2, 3], "email": ["Ann@a", "Bob@b", "Eve@e"]}), uri)
    dataset.alter_columns({"path": "email", "name": "email_raw"})
    dataset.delete("id = 3")
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    dataset.add_columns({"email": "lower(email_raw)"})
    dataset.delete("id = 2")
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    assert lance_core.dataset(uri).erase_rows("email = 'Bob@b'").proven
    assert not any(b"Bob" in data for data in every_byte(uri).values())
    assert lance.dataset(uri).to_table().to_pylist() == [{"id": 1, "email_raw": "Ann@a", "email": "ann@a"}]


def test_a_column_of_the_same_id_after_an_overwrite_or_a_restoration_is_another_one(tmp_path):
    uri, other = str(tmp_path / "t"), str(tmp_path / "other")
    lance_core.write_dataset(pa.table({"id": [1], "first": ["Ann"], "last": ["Smith"]}), uri)
    later = pa.table({"id": [2], "last": ["Ann"], "first": ["Eve"]})
    lance.write_dataset(later, uri, mode="overwrite")
    assert lance_core.dataset(uri).erase_rows("first = 'Ann'").proven
    assert lance.dataset(uri).to_table().to_pylist() == later.to_pylist()
    lance.write_dataset(pa.table({"id": [1]}), other)
    lance.dataset(other).add_columns({"email": "'ann@a'"})
    lance.dataset(other).checkout_version(1).restore()
    lance.dataset(other).add_columns({"city": "'ann@a'", "email": "'eve@e'"})
    assert lance_core.dataset(other).erase_rows("email = 'ann@a'").proven
    assert lance.dataset(other).to_table().to_pylist() == [{"id": 1, "city": "ann@a", "email": "eve@e"}]


@pytest.mark.parametrize("column", ["_row_created_at_version", "_row_last_updated_at_version", "_rowid"])
@pytest.mark.parametrize("stable", [False, True])
def test_what_a_version_knows_of_rows_names_none(tmp_path, column, stable):
    dataset = lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "t", enable_stable_row_ids=stable)
    for condition in (f"{column} = 1", f"id = 1 and {column} = 1"):
        with pytest.raises(InvalidInputError, match="values of columns"):
            dataset.erase_rows(condition)
    assert dataset.count_rows() == 1


def test_deletion_files_of_nobody_are_read(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri)
    lance_core.dataset(uri).delete(crowd[3].where)
    own = next(Path(uri, "_deletions").iterdir())
    mark = crowd[1].key.encode()
    bitmap = BitMap([1, 2]).serialize()
    stray = {"0-1-5.arrow": mark, "0-1-6.bin": bitmap + mark, "zz.bin": bitmap, "a/0-1-9.bin": mark}
    for name, data in {**stray, "0-1-7.bin": bitmap, "0-1-8.arrow": own.read_bytes()}.items():
        Path(uri, "_deletions", name).parent.mkdir(exist_ok=True)
        Path(uri, "_deletions", name).write_bytes(data)
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert {(one.kind, one.path) for one in report.remaining} == {("unknown", f"_deletions/{name}") for name in stray}
    assert not report.proven
    for name in stray:
        Path(uri, "_deletions", name).unlink()
    assert lance_core.dataset(uri).erase_rows(crowd[1].where).proven
    check_erased(uri, crowd[1])


def test_blobs_that_are_given_by_a_uri_are_an_obstacle(tmp_path):
    uri, outside = str(tmp_path / "t"), tmp_path / "7.bin"
    outside.write_bytes(b"a picture")
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("image")])
    blobs = lance.blob_array([outside.as_uri(), b"x", outside.as_uri()])
    rows = pa.table([pa.array([7, 8, 9]), blobs], schema=schema)
    lance.write_dataset(rows, uri, data_storage_version="2.2", allow_external_blob_outside_bases=True)
    for dry_run in (True, False):
        stopped = lance_core.dataset(uri).erase_rows("id = 7", dry_run=dry_run)
        assert [(one.kind, one.path) for one in stopped.obstacles] == [("blobs", "main")]
        assert "URI" in stopped.obstacles[0].message
    assert lance_core.dataset(uri).version == 1
    lance.dataset(uri).delete("id = 7")
    assert lance_core.dataset(uri).erase_rows("id = 7").obstacles  # until the address is deleted, it is named
    lance_core.dataset(uri).optimize.compact_files(materialize_deletions_threshold=0.0)
    assert lance_core.dataset(uri).erase_rows("id = 7").proven
    assert lance_core.dataset(uri).erase_rows("id = 8").proven  # that of the row beside it is not a matter
    (blob,) = lance.dataset(uri).take_blobs("image", indices=[0])
    assert blob.read() == b"a picture"


def s3_bucket(s3):
    """A new bucket, and a client to look at it past the store."""
    import boto3

    options = s3.storage_options
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        region_name="us-east-1",
    )
    return s3.new_bucket(), client, options


def test_noncurrent_versions_of_objects_are_a_finding_until_they_are_removed(s3):
    bucket, client, options = s3_bucket(s3)
    enabled, suspended = {"Status": "Enabled"}, {"Status": "Suspended"}
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)
    uri = f"s3://{bucket}/t"
    crowd = people(0, 4)
    dataset = lance_core.write_dataset(table_of(crowd), uri, storage_options=options)
    dataset.create_scalar_index("key", "BTREE")
    for status in (enabled, suspended, enabled):
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=status)
        report = dataset.erase_rows(crowd[1].where, delete_unverified=True)
        assert not report.proven
        assert [(one.kind, one.path) for one in report.remaining] == [("versioning", uri)]
    for one in client.list_object_versions(Bucket=bucket)["Versions"]:
        if not one["IsLatest"]:
            client.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])
    assert dataset.erase_rows(crowd[1].where, delete_unverified=True).proven
    left = client.list_object_versions(Bucket=bucket)["Versions"]
    bodies = [client.get_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])["Body"] for one in left]
    data = b"".join(body.read() for body in bodies)
    assert not any(needle in data for needle in crowd[1].needles())


@pytest.mark.parametrize(("error", "proven"), [(UnsupportedError, True), (StoreError, False)])
def test_a_bucket_that_does_not_answer_is_a_finding_unless_it_has_no_versioning(s3, monkeypatch, error, proven):
    bucket, _, options = s3_bucket(s3)
    real = S3Client.request

    async def request(self, method, **parameters):
        if method == "get_bucket_versioning":
            raise error("no")
        return await real(self, method, **parameters)

    monkeypatch.setattr(S3Client, "request", request)
    dataset = lance_core.write_dataset(pa.table({"id": [1, 2]}), f"s3://{bucket}/t", storage_options=options)
    report = dataset.erase_rows("id = 2", delete_unverified=True)
    assert report.proven is proven
    assert [one.kind for one in report.remaining] == ([] if proven else ["versioning"])


@pytest.fixture
def begin_now(monkeypatch):
    """moto's server gives all uploads one time, long ago."""
    real = S3Store.unfinished_uploads

    def begun_now(self):
        return [replace(upload, begun=time.time() - 1) for upload in real(self)]

    monkeypatch.setattr(S3Store, "unfinished_uploads", begun_now)


@pytest.mark.usefixtures("begin_now")
def test_unfinished_uploads_are_named_and_aborted_on_demand(s3):
    bucket, client, options = s3_bucket(s3)
    uri = f"s3://{bucket}/t"
    crowd = people(0, 4)
    dataset = lance_core.write_dataset(table_of(crowd), uri, storage_options=options)
    key = "data/unfinished.lance"
    branch = dataset.create_branch("draft")
    for name in ("t/data/unfinished.lance", "t/tree/draft/data/x.lance", "t2/other.lance"):
        upload = client.create_multipart_upload(Bucket=bucket, Key=name)["UploadId"]
        part = {"Bucket": bucket, "Key": name, "UploadId": upload, "PartNumber": 1}
        client.upload_part(**part, Body=crowd[1].key.encode())
    names = [("upload", key), ("upload", "tree/draft/data/x.lance")]
    planned = dataset.erase_rows(crowd[1].where, dry_run=True)
    assert [(one.kind, one.path) for one in planned.remaining] == names
    report = dataset.erase_rows(crowd[1].where, release_branches=True)
    assert not report.proven
    assert [(one.kind, one.path) for one in report.remaining if one.kind == "upload"] == names
    assert all("delete_unverified" in one.message for one in report.remaining if one.kind == "upload")
    assert branch.uri
    assert len(client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 3
    planned = dataset.erase_rows(crowd[1].where, dry_run=True, delete_unverified=True)
    assert planned.uploads_aborted == tuple(name for _, name in names)
    report = dataset.erase_rows(crowd[1].where, release_branches=True, delete_unverified=True)
    assert report.uploads_aborted == tuple(name for _, name in names)
    assert report.proven, report.remaining
    assert [one["Key"] for one in client.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["t2/other.lance"]


def test_uploads_that_a_storage_does_not_list_are_not_proven_to_be_absent(s3, monkeypatch):
    bucket, _, options = s3_bucket(s3)
    real = S3Client.request

    async def request(self, method, **parameters):
        if method == "list_multipart_uploads":
            raise StoreError("s3:ListBucketMultipartUploads is denied")
        return await real(self, method, **parameters)

    monkeypatch.setattr(S3Client, "request", request)
    dataset = lance_core.write_dataset(pa.table({"id": [1, 2]}), f"s3://{bucket}/t", storage_options=options)
    for dry_run in (True, False):
        report = dataset.erase_rows("id = 2", delete_unverified=True, dry_run=dry_run)
        assert not report.proven
        assert [one.kind for one in report.remaining] == ["upload"]
        assert "s3:ListBucketMultipartUploads" in report.remaining[0].message


@pytest.mark.usefixtures("begin_now")
def test_an_old_upload_is_aborted_as_an_old_file_is_removed(s3, monkeypatch):
    bucket, client, options = s3_bucket(s3)
    dataset = lance_core.write_dataset(pa.table({"id": [1, 2]}), f"s3://{bucket}/t", storage_options=options)
    client.create_multipart_upload(Bucket=bucket, Key="t/data/old.lance")
    assert dataset.erase_rows("id = 2").uploads_aborted == ()
    monkeypatch.setattr(proof, "UNVERIFIED_AGE", dt.timedelta(0))
    assert dataset.erase_rows("id = 2").uploads_aborted == ("data/old.lance",)


def test_links_to_folders_are_named(tmp_path):
    uri = str(tmp_path / "t")
    crowd = people(0, 4)
    lance_core.write_dataset(table_of(crowd), uri)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.lance").write_bytes(crowd[1].key.encode())
    Path(uri, "old").symlink_to(tmp_path / "outside")
    Path(uri, "data", "dangling.lance").symlink_to(tmp_path / "nothing")
    report = lance_core.dataset(uri).erase_rows(crowd[1].where)
    assert [(one.kind, one.path) for one in report.remaining] == [
        ("unknown", "data/dangling.lance"),
        ("unknown", "old"),
    ]
    Path(uri, "old").unlink()
    Path(uri, "data", "dangling.lance").unlink()
    assert lance_core.dataset(uri).erase_rows(crowd[1].where).proven


@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("dry_run_first", [False, True])
def test_a_delete_whose_predicate_names_another_column_of_the_rows(tmp_path, library, compacts, dry_run_first):
    uri = str(tmp_path / "t.lance")
    kinds = pa.schema({"id": pa.int64(), "mail": pa.string(), "at": pa.struct({"names": pa.list_(pa.large_string())})})
    mails = [{"id": 1, "mail": "bob@example.org", "at": {"names": ["bobby-b"]}}]
    others = [{"id": 2, "mail": "ann@example.org", "at": {"names": ["annie-a"]}}]
    lance_core.write_dataset(pa.Table.from_pylist(mails, kinds), uri)
    lance_core.write_dataset(pa.Table.from_pylist(others, kinds), uri, mode="append")
    library.dataset(uri).delete("mail = 'bob@example.org' OR at.names[0] = 'bobby-b'")
    library.dataset(uri).delete("mail = 'nobody@example.org'")
    if compacts:
        library.dataset(uri).optimize.compact_files()
    table = lance_core.dataset(uri)
    if dry_run_first:
        planned = table.erase_rows("id = 1", dry_run=True)
        assert not planned.proven
        assert 3 in planned.versions_removed["main"]
    assert table.erase_rows("id = 1").proven
    left = b"".join(every_byte(uri).values())
    assert b"bob" not in left
    assert table.to_table().to_pylist() == others
    assert lance.dataset(uri).to_table().to_pylist() == others
