"""Promotions that die before any of their writes, and processes that promote at the same time; on disk and on S3."""

import contextlib
import datetime as dt
import json
import sys

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import OutcomeUnknownError, StoreError
from lance_core.store.local import LocalStore
from lance_core.store.s3 import S3Store
from tests import processes

WRITES = ("copy", "put", "put_if_absent")
REAL = {(kind, name): getattr(kind, name) for kind in (LocalStore, S3Store) for name in WRITES}
MOST_WRITES = 20
READS = {name: getattr(LocalStore, name) for name in ("get", "get_tail", "get_ranges", "read", "head", "list")}
MOST_READS = 100
BRANCH = "dagster/backfill/b7"


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path):
    """Root and options of a lake."""
    if request.param == "disk":
        return str(tmp_path), {}
    s3 = request.getfixturevalue("s3")
    return f"s3://{s3.new_bucket()}", s3.storage_options


SCHEMA = pa.schema({"day": pa.string(), "n": pa.int64()})


def day(number, values):
    return pa.table([[f"d{number}"] * len(values), values], schema=SCHEMA)


def fill(uri, options, contents):
    """Replace days in one commit."""
    fragments = []
    for number, values in contents.items():
        fragments += lance_core.write_fragments(
            day(number, values), uri, mode="append", storage_options=options or None
        )
    slices = lance_core.Slices(
        [lance_core.Slice(name=f"d{i}", conditions={"day": lance_core.Equals(f"d{i}")}) for i in contents]
    )
    lance_core.commit_fragments(uri, fragments, SCHEMA, mode="replace", slices=slices, storage_options=options or None)


def new_table(uri, options):
    table = pa.concat_tables([day(number, [0, 1, 2]) for number in range(6)])
    return lance_core.write_dataset(
        table, uri, max_rows_per_file=3, enable_stable_row_ids=True, storage_options=options or None
    )


def rows(library, uri, options, branch=None):
    dataset = library.dataset(uri, storage_options=options or None)
    if branch is not None:
        dataset = dataset.checkout_version((branch, None))
    return sorted(zip(*dataset.to_table().to_pydict().values(), strict=True))


class Died(BaseException):
    """Nothing may catch it."""


@contextlib.contextmanager
def dying(monkeypatch, step, error=Died):
    """The process dies before its write number `step`, or the write fails; gives the list of the writes before."""
    made = []
    with monkeypatch.context() as patch:
        for (kind, name), real in REAL.items():

            def call(self, *args, _real=real, _name=name, **options):
                if len(made) == step:
                    raise error
                made.append(_name)
                return _real(self, *args, **options)

            patch.setattr(kind, name, call)
        yield made


@pytest.mark.on_ceph
def test_one_that_dies_anywhere_is_run_again_and_is_committed_once(place, monkeypatch):
    """Of deletions in old fragments and in new ones, with rows that keep their ids; main has moved meanwhile."""
    root, options = place
    for step in range(MOST_WRITES):
        uri = f"{root}/t{step}"
        branch = new_table(uri, options).create_branch(BRANCH)
        fill(branch.uri, options, {1: [7, 8], 9: [5]})
        branch.checkout_latest()
        branch.delete("(day = 'd1' and n = 7) or (day = 'd4' and n = 1)")  # of a new fragment, and of an old one
        main = lance_core.dataset(uri, storage_options=options or None)
        main.insert(day(8, [1]))
        before, expected = rows(lance, uri, options), sorted([*rows(lance, uri, options, BRANCH), ("d8", 1)])
        with dying(monkeypatch, step) as made:
            try:
                main.branches.promote(BRANCH)
            except Died:
                died = True
            else:
                died = False
        committed = rows(lance, uri, options)
        assert committed in (before, expected), made
        done = lance_core.dataset(uri, storage_options=options or None).branches.promote(BRANCH)
        assert (done.version, done.deduplicated) == (3, committed == expected), made
        for library in (lance, lance_core):
            assert rows(library, uri, options) == expected, made
        table = lance.dataset(uri, storage_options=options or None)
        table.validate()
        assert (table.version, table.tags.list()[done.tag]["version"]) == (3, 3)
        assert table.branches.list()[BRANCH]["metadata"]["lance.promoted_version"] == "3"
        if not died:
            assert committed == expected
            assert {"copy", "put", "put_if_absent"} <= set(made)
            return
    raise AssertionError(f"more than {MOST_WRITES} writes")


def test_an_error_says_whether_the_branch_is_promoted(tmp_path, monkeypatch):
    """Each write fails once, and all after it: main is as before, or the outcome is said to be unknown."""
    for step in range(MOST_WRITES):
        uri = f"{tmp_path}/t{step}"
        branch = new_table(uri, {}).create_branch(BRANCH)
        fill(branch.uri, {}, {1: [7, 8], 9: [5]})
        main, before = lance_core.dataset(uri), rows(lance, uri, {})
        with dying(monkeypatch, step, StoreError("the disk is full")) as made:
            try:
                main.branches.promote(BRANCH)
            except OutcomeUnknownError:
                assert rows(lance, uri, {}) != before, made
            except StoreError:
                assert rows(lance, uri, {}) == before, made
            else:
                return
        assert lance_core.dataset(uri).branches.promote(BRANCH).version == 2
        assert rows(lance, uri, {}) == rows(lance, uri, {}, BRANCH)
    raise AssertionError(f"more than {MOST_WRITES} writes")


def promote_at_once(uri, options, branches):
    """What processes say that promote branches at the same time."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                processes.running(
                    [sys.executable, "-m", "tests.faults.promoter", uri, branch, json.dumps(options)], talks=True
                )
            )
            for branch in branches
        ]
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in started]


@pytest.mark.on_ceph
def test_processes_that_promote_at_the_same_time(place):
    """Each its own days: all commit. One day twice: the later one fails by name. One branch twice: one version."""
    root, options = place
    uri = f"{root}/t"
    main = new_table(uri, options)
    contents = {"a": {0: [10], 7: [11]}, "b": {1: [20]}, "c": {2: [30]}, "rival": {2: [40]}}
    for name, days in contents.items():
        fill(main.create_branch(name).uri, options, days)
    said = dict(zip([*contents, "again"], promote_at_once(uri, options, [*contents, "a"]), strict=True))
    assert not any("error" in said[name] for name in ("a", "b", "again")), said
    assert said["a"]["version"] == said["again"]["version"]
    assert {said["a"]["deduplicated"], said["again"]["deduplicated"]} == {True, False}
    (lost,) = [name for name, found in said.items() if "error" in found]
    won = "c" if lost == "rival" else "rival"
    assert {lost, won} == {"c", "rival"}
    assert said[lost]["error"] == "BranchConflictError"
    assert f"version {said[won]['version']} filled 'd2' as well" in said[lost]["text"]
    assert sorted(said[name]["version"] for name in ("a", "b", won)) == [2, 3, 4]
    expected = [("d0", 10), ("d1", 20), ("d2", contents[won][2][0]), ("d7", 11)]
    expected += [(f"d{i}", n) for i in (3, 4, 5) for n in range(3)]
    for library in (lance, lance_core):
        assert rows(library, uri, options) == sorted(expected)


@contextlib.contextmanager
def overtaken(monkeypatch, step, meanwhile):
    """Before read number `step` something else happens; gives the list of the reads that were made."""
    made = []
    with monkeypatch.context() as patch:
        for name, real in READS.items():

            def call(self, *args, _real=real, _name=name, **options):
                made.append(_name)
                if len(made) == step + 1:
                    with monkeypatch.context() as undone:
                        for each, own in READS.items():
                            undone.setattr(LocalStore, each, own)
                        meanwhile()
                return _real(self, *args, **options)

            patch.setattr(LocalStore, name, call)
        yield made


def test_one_that_another_overtakes_anywhere_is_committed_once(tmp_path, monkeypatch):
    """Another process promotes the branch before the first, the second ... read of this one."""
    for step in range(MOST_READS):
        uri = f"{tmp_path}/t{step}"
        branch = new_table(uri, {}).create_branch(BRANCH)
        fill(branch.uri, {}, {1: [7, 8], 9: [5]})
        main, others = lance_core.dataset(uri), []

        def promote(uri=uri, others=others):
            others.append(lance_core.dataset(uri).branches.promote(BRANCH))

        with overtaken(monkeypatch, step, promote) as made:
            done = main.branches.promote(BRANCH)
        assert [one.version for one in (done, *others, lance_core.dataset(uri))] == [2] * (2 + len(others)), made
        assert [one.deduplicated for one in (done, *others)].count(False) == 1, made
        assert rows(lance, uri, {}) == rows(lance, uri, {}, BRANCH)
        if not others:
            return
    raise AssertionError(f"more than {MOST_READS} reads")


@contextlib.contextmanager
def interrupted(monkeypatch, meanwhile):
    """Before each write something else happens; gives the list of the writes that were made."""
    made = []
    with monkeypatch.context() as patch:
        for (kind, name), real in REAL.items():

            def call(self, *args, _real=real, _name=name, **options):
                with monkeypatch.context() as undone:
                    for (other, each), own in REAL.items():
                        undone.setattr(other, each, own)
                    meanwhile()
                made.append(_name)
                return _real(self, *args, **options)

            patch.setattr(kind, name, call)
        yield made


@pytest.mark.parametrize(
    ("library", "verb", "spelled"),
    [
        (lance_core, "compact", "{}/../t"),
        (lance, "compact", "file://{}"),
        (lance_core, "clean up", "file://{}"),
        (lance, "clean up", "{}/../t"),
    ],
)
def test_maintenance_before_each_write_and_after_loses_nothing(tmp_path, monkeypatch, library, verb, spelled):
    """By either library, under another spelling of the table's URI, with all that maintenance may remove removed."""
    uri = f"{tmp_path}/t"
    branch = new_table(uri, {}).create_branch(BRANCH)
    fill(branch.uri, {}, {1: [7, 8], 9: [5]})
    branch.checkout_latest()
    branch.delete("(day = 'd1' and n = 7) or (day = 'd4' and n = 1)")
    on_branch = rows(lance, uri, {}, BRANCH)
    expected = sorted([*on_branch, ("d8", 1)])
    main = lance_core.dataset(uri)
    main.insert(day(8, [1]))

    def maintenance():
        table = library.dataset(spelled.format(uri))
        if verb == "compact":
            table.optimize.compact_files(target_rows_per_fragment=100)
        else:
            table.cleanup_old_versions(older_than=dt.timedelta(0), error_if_tagged_old_versions=False)

    with interrupted(monkeypatch, maintenance) as made:
        done = main.branches.promote(BRANCH)
    assert {"copy", "put", "put_if_absent"} <= set(made)
    for _ in range(2):
        for each in (lance, lance_core):
            assert rows(each, uri, {}) == expected
        assert rows(lance, uri, {}, BRANCH) == on_branch
        maintenance()
    assert main.branches.promote(BRANCH).version == done.version


def test_again_after_its_version_was_cleaned_up(tmp_path):
    """Without a tag nothing keeps the version; the branch itself knows that it was promoted."""
    uri = f"{tmp_path}/t"
    branch = new_table(uri, {}).create_branch(BRANCH)
    fill(branch.uri, {}, {1: [7, 8]})
    main = lance_core.dataset(uri)
    done = main.branches.promote(BRANCH, tag=False)
    main.insert(day(8, [1]))
    main.cleanup_old_versions(older_than=dt.timedelta(0), error_if_tagged_old_versions=False)
    assert done.version not in [each["version"] for each in main.versions()]
    again = main.branches.promote(BRANCH, tag=False)
    assert (again.version, again.deduplicated, main.latest_version) == (done.version, True, done.version + 1)
