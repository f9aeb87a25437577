"""Cleanups: what goes is what pylance removes, and nothing goes that somebody needs."""

import datetime as dt
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core._proto import table_pb2
from lance_core.cli.app import cli
from lance_core.errors import InvalidInputError, StoreError, UnsupportedError
from lance_core.maintenance import MaintenancePolicy, auto_cleanup, maintain
from lance_core.maintenance.cleanup import run as cleanup
from lance_core.store.local import LocalStore

DAY = 86_400


def numbers(start, count=20):
    return pa.table({"id": pa.array(range(start, start + count), pa.int64())})


def make(path, *, versions=6):
    """Appends, deletes, an index and a compaction; every version differs."""
    dataset = lance.write_dataset(numbers(0), path)
    for i in range(1, versions):
        dataset = lance.write_dataset(numbers(i * 100), path, mode="append")
        if i == 2:
            dataset.delete("id = 7")
        if i == 3:
            dataset.create_scalar_index("id", "BTREE")
        if i == 4:
            dataset.create_scalar_index("id", "BTREE", replace=True)
    dataset.delete("id = 105")
    dataset.optimize.compact_files()
    return lance.dataset(path)


def files(path):
    """All files below a path, as relative names; without the hint, which pylance alone keeps up to date."""
    root = Path(path)
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and "hint" not in p.name}


def age_all(path, days):
    for file in Path(path).rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - days * DAY,) * 2)


def twin(path, other):
    """A copy of a dataset, its times included."""
    shutil.copytree(path, other, copy_function=shutil.copy2)
    return str(other)


SELECTORS = [
    {"retain_versions": 1},
    {"retain_versions": 3},
    {"older_than": dt.timedelta(0)},
    {"older_than": dt.timedelta(microseconds=1)},
    {"older_than": dt.timedelta(days=1)},
    {"versions": [2, 3, 99]},
    {"versions": [2, 3, 5], "retain_versions": 8},
    {"retain_versions": 1, "delete_unverified": True},
    {},
]


@pytest.mark.parametrize("selectors", SELECTORS, ids=str)
def test_what_goes_is_what_pylance_removes(tmp_path, selectors):
    make(tmp_path / "ours")
    orphan = tmp_path / "ours" / "data" / "0123456789.lance"
    orphan.write_bytes(b"x" * 10)
    (tmp_path / "ours" / "readme.txt").write_text("stays")
    (tmp_path / "ours" / "data" / "notes.txt").write_text("stays")
    theirs = twin(tmp_path / "ours", tmp_path / "theirs")
    expected = lance.dataset(theirs).cleanup_old_versions(**selectors)
    dataset = lance_core.dataset(tmp_path / "ours")
    plan = dataset.explain_cleanup_old_versions(**selectors, include_files=True)
    before = files(tmp_path / "ours")
    stats = dataset.cleanup_old_versions(**selectors)
    assert files(tmp_path / "ours") == files(theirs)
    for name in (
        "bytes_removed", "old_versions", "data_files_removed", "transaction_files_removed", "index_files_removed",
        "deletion_files_removed", "failed_deletes",
    ):  # fmt: skip
        assert getattr(stats, name) == getattr(expected, name), name
    assert plan.stats == stats
    assert {file.path for file in plan.candidate_files} == before - files(tmp_path / "ours")
    for version in lance.dataset(tmp_path / "ours").versions():
        lance.dataset(tmp_path / "ours", version=version["version"]).validate()
    found = lance.dataset(tmp_path / "ours").to_table(filter="id IN (6, 7, 105, 503)").column("id").to_pylist()
    assert sorted(found) == [6, 503]


def test_files_that_nothing_refers_to_go_after_seven_days(tmp_path):
    path = tmp_path / "t"
    make(path)
    names = [
        "data/abc.lance", "data/def.lance#a1b2", "_transactions/3-abc.txn", "_deletions/0-1-99.arrow",
        "_deletions/0-1-98.bin", "_indices/01234567-0123-0123-0123-0123456789ab/x.lance", "_versions/.tmp_7",
        "_versions/18446744073709551600.manifest#ab12", "data/abc/00000001.blob",
    ]  # fmt: skip
    for age, survives in ((6, True), (8, False)):
        for name in names:
            (path / name).parent.mkdir(exist_ok=True, parents=True)
            (path / name).write_bytes(b"x")
            os.utime(path / name, (time.time() - age * DAY,) * 2)
        lance_core.dataset(path).cleanup_old_versions()
        assert all((path / name).exists() is survives for name in names)
    assert lance.dataset(path).count_rows() == 118


def test_forced_it_takes_young_orphans_too(tmp_path):
    path = tmp_path / "t"
    make(path)
    for name in ("data/abc.lance", "_transactions/3-abc.txn", "_deletions/0-1-99.arrow"):
        (path / name).write_bytes(b"x")
    lance_core.dataset(path).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    referenced = files(path)
    assert not {"data/abc.lance", "_transactions/3-abc.txn", "_deletions/0-1-99.arrow"} & referenced
    assert len(referenced) == 2 + 1 + 1 + 2  # data, transaction, manifest, index
    lance.dataset(path).validate()


def test_the_tag_of_a_fork_protects_without_a_word(tmp_path):
    path = tmp_path / "t"
    make(path)
    ours = lance_core.dataset(path)
    ours.create_branch("work", 2)
    assert [name for name in ours.tags.list() if name.startswith("fork.")]
    ours.cleanup_old_versions(retain_versions=1)
    left = [version["version"] for version in lance.dataset(path).versions()]
    assert left == [2, ours.version]
    assert lance.dataset(path).checkout_version(("work", None)).count_rows() == 40


def test_a_tag_that_only_looks_like_a_forks_does_not(tmp_path):
    path = tmp_path / "t"
    make(path)
    ours = lance_core.dataset(path)
    ours.tags.create("fork.lift", 2)
    with pytest.raises(InvalidInputError, match=r"1 tagged version\(s\).*fork.lift"):
        ours.cleanup_old_versions(retain_versions=1)


def test_manifests_that_need_unknown_features_stop_a_cleanup(tmp_path):
    path = tmp_path / "t"
    make(path)
    newest, second = sorted((path / "_versions").glob("*.manifest"))[:2]
    data = bytearray(second.read_bytes())
    start = int.from_bytes(data[-16:-8], "little")
    message = table_pb2.Manifest.FromString(bytes(data[start + 4 : -16]))
    message.reader_feature_flags = 1 << 40
    raw = message.SerializeToString()
    second.write_bytes(bytes(data[:start]) + len(raw).to_bytes(4, "little") + raw + bytes(data[-16:]))
    before = sorted(path.rglob("*"))
    with pytest.raises(UnsupportedError):
        lance_core.dataset(path).cleanup_old_versions(retain_versions=1)
    assert sorted(path.rglob("*")) == before
    assert newest.exists()


def test_tagged_versions_stay(tmp_path):
    path = tmp_path / "t"
    dataset = make(path)
    dataset.tags.create("important", 2)
    ours = lance_core.dataset(path)
    before = files(path)
    with pytest.raises(InvalidInputError, match="important"):
        ours.cleanup_old_versions(retain_versions=1)
    assert files(path) == before
    plan = ours.explain_cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    assert plan.warnings == ("version 2 is kept: it is tagged important",)
    ours.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    assert [v["version"] for v in lance.dataset(path).versions()] == [2, dataset.version]
    assert lance.dataset(path, version="important").to_table().num_rows == 40


def test_versions_in_use_stay(tmp_path):
    path = tmp_path / "t"
    dataset = make(path)
    ours = lance_core.dataset(path)
    ours.cleanup_old_versions(retain_versions=1, in_use={"backfill 7": 3})
    assert [v["version"] for v in ours.versions()] == [3, dataset.version]
    assert lance.dataset(path, version=3).to_table().num_rows == 60


def test_a_stale_handle_removes_nothing_newer(tmp_path):
    path = tmp_path / "t"
    dataset = make(path)
    lance_core.dataset(path, version=4).cleanup_old_versions(older_than=dt.timedelta(0))
    assert [v["version"] for v in lance.dataset(path).versions()] == list(range(4, dataset.version + 1))


def test_detached_versions_stay_with_their_files(tmp_path):
    path = tmp_path / "t"
    dataset = lance.write_dataset(numbers(0), path)
    fragment = lance.fragment.LanceFragment.create(path, numbers(500))
    operation = lance.LanceOperation.Append([fragment])
    detached = lance.LanceDataset.commit(dataset, operation, read_version=1, detached=True)
    lance.write_dataset(numbers(900), path, mode="overwrite")
    age_all(path, 30)
    ours = lance_core.dataset(path)
    ours.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert lance.dataset(path, version=detached.version).to_table().num_rows == 40
    assert lance.dataset(path).count_rows() == 20
    ours.cleanup_old_versions(versions=[detached.version], delete_unverified=True)
    assert len(files(path)) == 3


def fork(path, spelled):
    """A table whose branch `work` was made through a URI that is spelled in one of several ways."""
    lance.write_dataset(numbers(0), path)
    lance.write_dataset(numbers(100), path, mode="append")
    handle = lance.dataset(spelled)
    branch = handle.create_branch("work")
    lance.write_dataset(numbers(1000), branch.uri, mode="append")
    lance.write_dataset(numbers(500), path, mode="overwrite")
    lance.write_dataset(numbers(600), path, mode="append")


@pytest.mark.parametrize("made", ["plain", "slash", "file", "dots", "link", "relative"])
@pytest.mark.parametrize("cleaned", ["plain", "file", "link"])
def test_what_branches_need_stays_however_paths_are_spelled(tmp_path, monkeypatch, made, cleaned):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    path = str(tmp_path / "t")
    spellings = {
        "plain": path, "slash": path + "/", "file": f"file://{path}", "dots": f"{tmp_path}/x/../t",
        "link": f"{tmp_path}/link/t", "relative": "t",
    }  # fmt: skip
    (tmp_path / "x").mkdir()
    fork(path, spellings[made])
    expected = lance.dataset(path).checkout_version(("work", None)).to_table()
    age_all(path, 30)
    plan = lance_core.dataset(spellings[cleaned]).explain_cleanup_old_versions(retain_versions=1)
    assert [(b.name, b.referenced_version, b.cleanup_candidate) for b in plan.referenced_branches] == [
        ("work", 2, True)
    ]
    stats = lance_core.dataset(spellings[cleaned]).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert stats.old_versions == 2
    assert [v["version"] for v in lance.dataset(path).versions()] == [2, 4]
    assert lance.dataset(path).checkout_version(("work", None)).to_table().equals(expected)
    assert lance.dataset(path, version=2).count_rows() == 40


def test_a_compacted_branch_lets_its_fork_go(tmp_path):
    path = str(tmp_path / "t")
    fork(path, path)
    place = f"{path}/tree/work"
    lance_core.dataset(place).optimize.compact_files()
    branch = lance_core.dataset(place)
    main_before = files(path) - {f"tree/work/{name}" for name in files(place)}
    branch.cleanup_old_versions(retain_versions=1)
    assert main_before <= files(path)
    lance_core.dataset(path).cleanup_old_versions(retain_versions=1)
    assert [v["version"] for v in lance.dataset(path).versions()] == [4]
    assert lance.dataset(path).checkout_version(("work", None)).count_rows() == 60
    assert len([name for name in files(path) if name.startswith("data/")]) == 2


def test_a_branch_of_a_branch_protects_both(tmp_path):
    path = str(tmp_path / "t")
    fork(path, path)
    work = lance.dataset(path).checkout_version(("work", None))
    work.create_branch("deeper", ("work", None))
    lance.dataset(path).tags.create("on-work", ("work", 3))
    expected = work.to_table()
    place = f"{path}/tree/work"
    lance.write_dataset(numbers(7000), place, mode="overwrite")
    age_all(path, 30)
    branch = lance_core.dataset(place)
    with pytest.raises(InvalidInputError, match="on-work"):
        branch.cleanup_old_versions(retain_versions=1)
    lance.dataset(path).tags.delete("on-work")
    branch.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    lance_core.dataset(path).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert lance.dataset(path).checkout_version(("deeper", None)).to_table().equals(expected)
    assert lance.dataset(path).checkout_version(("work", None)).count_rows() == 20


def test_a_clone_never_removes_files_of_its_source(tmp_path):
    path, clone = str(tmp_path / "t"), str(tmp_path / "clone")
    make(path)
    lance.dataset(path).shallow_clone(clone, lance.dataset(path).version)
    lance.write_dataset(numbers(0), clone, mode="overwrite")
    before = files(path)
    age_all(tmp_path, 30)
    lance_core.dataset(clone).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert files(path) == before
    assert lance.dataset(clone).count_rows() == 20


class PowerCutError(Exception):
    """The process ended."""


@pytest.mark.parametrize("after", [0, 1, 5, 9, 14, 20])
def test_an_interrupted_run_is_finished_by_the_next(tmp_path, monkeypatch, after):
    make(tmp_path / "whole")
    path = twin(tmp_path / "whole", tmp_path / "broken")
    lance_core.dataset(tmp_path / "whole").cleanup_old_versions(retain_versions=1)
    left = after
    original = LocalStore.delete

    def delete(self, key):
        nonlocal left
        if left == 0:
            raise PowerCutError
        left -= 1
        original(self, key)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", delete)
        with pytest.raises(PowerCutError):
            lance_core.dataset(path).cleanup_old_versions(retain_versions=1)
    assert lance.dataset(path).to_table().num_rows == 118
    lance_core.dataset(path).cleanup_old_versions(retain_versions=1)
    # The claim of the run that was killed counts for a day.
    left_files = {name for name in files(path) if not name.startswith("_refs/claims/")}
    assert left_files == files(tmp_path / "whole")


def test_maintenance_that_can_delete_nothing_is_partly_done(tmp_path, monkeypatch):
    for number in range(3):
        table = lance_core.write_dataset(pa.table({"a": [number]}), tmp_path / "t", mode="overwrite")

    def delete(self, key):
        if not key.startswith("_refs/"):
            raise StoreError("no")

    monkeypatch.setattr(LocalStore, "delete", delete)
    report = maintain(table, MaintenancePolicy(cleanup_older_than=dt.timedelta(microseconds=1)))
    assert (report.outcome, report.has_work) == ("partly done", False)
    assert report.reason.startswith("clean_up: 4 files could not be deleted; the first: data/")


def test_a_file_that_cannot_be_removed_keeps_its_version_listed(tmp_path, monkeypatch):
    make(tmp_path / "t")
    original = LocalStore.delete

    def delete(self, key):
        if key.startswith("_deletions/"):
            raise StoreError("no")
        original(self, key)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", delete)
        stats = lance_core.dataset(tmp_path / "t").cleanup_old_versions(retain_versions=1)
        assert stats.failed_deletes == 2
        assert stats.old_versions == 0
        command = ["cleanup", str(tmp_path / "t"), "--retain-versions", "1", "--json"]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 1
        assert json.loads(result.stdout)["failed_deletes"] == 2
        assert "lance: 2 files could not be deleted; the first: _deletions/" in result.stderr
    stats = lance_core.dataset(tmp_path / "t").cleanup_old_versions(retain_versions=1)
    assert (stats.failed_deletes, stats.deletion_files_removed) == (0, 2)
    assert len(lance.dataset(tmp_path / "t").versions()) == 1


def test_rate_and_concurrency(tmp_path, monkeypatch):
    make(tmp_path / "t")
    dataset = lance_core.dataset(tmp_path / "t")
    count = len(dataset.explain_cleanup_old_versions(retain_versions=1, include_files=True).candidate_files)
    slept = []
    monkeypatch.setattr(cleanup, "time", SimpleNamespace(monotonic=lambda: 7.0, sleep=slept.append))
    dataset.cleanup_old_versions(retain_versions=1, delete_rate_limit=100, delete_concurrency=4)
    assert sorted(slept) == pytest.approx([number / 100 for number in range(count)])
    assert len(lance.dataset(tmp_path / "t").versions()) == 1


@pytest.mark.parametrize(
    "arguments",
    [{"retain_versions": 0}, {"versions": []}, {"delete_rate_limit": 0}, {"delete_concurrency": 0}],
    ids=str,
)
def test_senseless_arguments_are_rejected(tmp_path, arguments):
    lance.write_dataset(numbers(0), tmp_path / "t")
    with pytest.raises((OSError, ValueError)):
        lance.dataset(tmp_path / "t").cleanup_old_versions(**arguments)
    with pytest.raises(InvalidInputError):
        lance_core.dataset(tmp_path / "t").cleanup_old_versions(**arguments)


def test_v1_names(tmp_path):
    lance.write_dataset(numbers(0), tmp_path / "t", enable_v2_manifest_paths=False)
    for i in range(3):
        lance.write_dataset(numbers(i), tmp_path / "t", mode="overwrite")
    lance_core.dataset(tmp_path / "t").cleanup_old_versions(retain_versions=1)
    assert len(files(tmp_path / "t")) == 3
    assert lance.dataset(tmp_path / "t").count_rows() == 20


def test_blobs_beside_data_files_go_with_them(tmp_path):
    lance.write_dataset(numbers(0), tmp_path / "t")
    (old,) = (tmp_path / "t" / "data").iterdir()
    lance.write_dataset(numbers(0), tmp_path / "t", mode="overwrite")
    new = next(p for p in (tmp_path / "t" / "data").iterdir() if p != old)
    for file in (old, new):
        (file.with_suffix("")).mkdir()
        (file.with_suffix("") / "00000001.blob").write_bytes(b"blob")
    lance_core.dataset(tmp_path / "t").cleanup_old_versions(retain_versions=1)
    assert {name for name in files(tmp_path / "t") if name.startswith("data/")} == {
        f"data/{new.name}", f"data/{new.stem}/00000001.blob",
    }  # fmt: skip


def test_auto_cleanup_follows_the_configuration(tmp_path, caplog):
    path = str(tmp_path / "t")
    options = {"interval": 3, "older_than_seconds": 0}
    lance.write_dataset(numbers(0), path, auto_cleanup_options=options)
    theirs = twin(path, tmp_path / "theirs")
    for i in range(7):
        lance_core.write_dataset(numbers(i), path, mode="append")
        lance.write_dataset(numbers(i), theirs, mode="append")
        assert [v["version"] for v in lance.dataset(path).versions()] == [
            v["version"] for v in lance.dataset(theirs).versions()
        ]
    for interval in ("often", "-1"):
        lance.dataset(path).update_config({"lance.auto_cleanup.interval": interval})
        assert auto_cleanup(lance_core.dataset(path)) is None
        assert interval in caplog.text
    age = "9" * 400 + "y"
    lance.dataset(path).update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": age})
    assert auto_cleanup(lance_core.dataset(path)) is None
    assert "y' is longer than 999,999,999 days" in caplog.text


def test_explain_lists_files_up_to_a_limit(tmp_path):
    make(tmp_path / "t")
    plan = lance_core.dataset(tmp_path / "t").explain_cleanup_old_versions(
        retain_versions=1, include_files=True, max_files=3
    )
    assert len(plan.candidate_files) == 3
    assert plan.candidate_files_truncated
    assert plan.stats.old_versions == plan.read_version - 1
    assert np.all([not file.unverified for file in plan.candidate_files])
