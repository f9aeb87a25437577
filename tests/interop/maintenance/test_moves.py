"""Files of old rows move to a base path: no row, id or index changes, and both libraries read and write on."""

import dataclasses
import datetime as dt
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance import blob_array, blob_field

import lance_core
import lance_core.errors
from lance_core import maintenance
from lance_core.cli.app import cli
from lance_core.errors import (
    CorruptFileError,
    InvalidInputError,
    MaintenanceFailedError,
    ObjectNotFoundError,
    SchemaError,
    StoreError,
)
from lance_core.maintenance import MaintenancePolicy
from lance_core.store import copy_object, open_store
from tests import processes

TODAY = dt.datetime.now(dt.UTC).date()
AGES = (400, 300, 200, 91, 20, 1)
POLICY = MaintenancePolicy(
    move_older_than="90d", move_by="day", move_to="cold", target_rows_per_fragment=1, cleanup_older_than=None
)
BACK = MaintenancePolicy(
    move_older_than="90d", move_by="day", move_to=".", target_rows_per_fragment=1, cleanup_older_than=None
)
CLEAN = MaintenancePolicy(
    move_older_than="90d", move_by="day", move_to="cold", target_rows_per_fragment=1, cleanup_older_than=None,
    retain_versions=1,
)  # fmt: skip


def rows(age, first, count=4):
    days = pa.array([age if age is None else TODAY - dt.timedelta(days=age)] * count, pa.date32())
    return pa.table({"id": range(first, first + count), "day": days, "word": [f"{age} {n}" for n in range(count)]})


@pytest.fixture
def place(tmp_path):
    return tmp_path


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t.lance")


def create(uri, *, cold=None, is_root=False, ages=AGES, **options):
    """A table with a fragment per day, the oldest first, and a base path "cold"."""
    for first, age in enumerate(ages):
        lance.write_dataset(rows(age, 4 * first), uri, mode="append", **options)
    base = lance_core.DatasetBasePath(cold or str(Path(uri).parent / "cold"), name="cold", is_dataset_root=is_root)
    table = lance_core.dataset(uri)
    table.add_bases([base])
    return table


def bases(uri):
    """The base path of each fragment's file, by fragment."""
    return {fragment.fragment_id: fragment.data_files()[0].base_id for fragment in lance.dataset(uri).get_fragments()}


def count_cold(uri):
    files = [file for fragment in lance.dataset(uri).get_fragments() for file in fragment.data_files()]
    return sum(file.base_id is not None for file in files)


def content(library, uri):
    return library.dataset(uri).to_table(with_row_id=True, with_row_address=True).sort_by("id")


def check(uri, before):
    for library in (lance, lance_core):
        assert content(library, uri) == before
        assert library.dataset(uri).validate() is None
        for condition, count in (("id = 5", 1), ("word = '200 1'", 1), ("day IS NULL", 0), ("id < 9", 9)):
            assert library.dataset(uri).count_rows(filter=condition) == min(count, before.num_rows), condition


def cold_files(uri):
    return sorted(path.name for path in (Path(uri).parent / "cold").rglob("*.lance"))


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("is_root", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_rows_ids_and_indices_stay(uri, stable, is_root, indexed):
    table = create(uri, is_root=is_root, enable_stable_row_ids=stable)
    if indexed:
        for column, kind in (("id", "BTREE"), ("word", "BITMAP"), ("day", "ZONEMAP")):
            table.create_scalar_index(column, kind)
    before, described = content(lance, uri), lance.dataset(uri).list_indices()
    table.checkout_latest()
    version = table.version
    dry = maintenance.maintain(table, POLICY, dry_run=True)
    assert (dry.outcome, lance.dataset(uri).version, cold_files(uri)) == ("done", version, [])
    report = maintenance.maintain(table, POLICY)
    assert report.outcome == "done"
    assert report.done["files_moved"] == dry.done["files_moved"] == 4
    assert report.done["bytes_moved"] == dry.done["bytes_moved"] > 0
    assert [(step.step, step.bytes_written, step.version_after - step.version_before) for step in report.steps] == [
        ("move_files", report.done["bytes_moved"], 1)
    ]
    assert bases(uri) == {0: 1, 1: 1, 2: 1, 3: 1, 4: None, 5: None}
    assert lance.dataset(uri).list_indices() == described
    check(uri, before)
    assert len(cold_files(uri)) == 4
    version = lance.dataset(uri).version
    assert maintenance.maintain(lance_core.dataset(uri), POLICY).outcome == "healthy"
    assert lance.dataset(uri).version == version


def test_old_files_go_with_cleanup_and_copies_with_theirs(uri):
    """The files that were moved are removed with old versions; copies when no version has them, and nothing else."""
    table = create(uri)
    stranger = Path(uri).parent / "cold" / "of_another_table.lance"
    stranger.parent.mkdir()
    stranger.write_bytes(b"not ours")
    before = content(lance, uri)
    maintenance.maintain(table, POLICY)
    assert len(list(Path(uri, "data").iterdir())) == 6
    table = lance_core.dataset(uri)
    assert table.cleanup_old_versions(retain_versions=1).data_files_removed == 4
    assert len(list(Path(uri, "data").iterdir())) == 2
    check(uri, before)
    assert maintenance.maintain(table, BACK).done["files_moved"] == 4
    assert set(bases(uri).values()) == {None}
    check(uri, before)
    assert len(cold_files(uri)) == 5
    removed = lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
    assert removed.data_files_removed == 4
    assert cold_files(uri) == [stranger.name]
    assert len(list(Path(uri, "data").iterdir())) == 6
    check(uri, before)
    assert [json.loads(path.read_text())["base"] for path in Path(uri, "_refs", "moves").iterdir()] == [None]


def test_rows_that_leave_take_their_copies_along(uri):
    """Copies of fragments that expire, or are compacted, are removed with the versions that have them."""
    table = create(uri)
    policy = MaintenancePolicy(
        move_older_than="90d", move_by="day", move_to="cold", expire_rows_older_than="250d", expire_by="day",
        cleanup_older_than=None, retain_versions=1,
    )  # fmt: skip
    report = maintenance.maintain(table, policy)
    assert (report.outcome, report.done["rows_expired"], report.done["files_moved"]) == ("done", 8, 1)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(8, 24))
    assert sorted(fragment.count_rows() for fragment in lance.dataset(uri).get_fragments()) == [8, 8]
    maintenance.maintain(lance_core.dataset(uri), policy)
    assert maintenance.maintain(lance_core.dataset(uri), policy).outcome == "healthy"
    assert len(cold_files(uri)) == count_cold(uri)


@pytest.mark.parametrize("stable", [False, True])
def test_compaction_does_not_merge_across_bases(uri, stable):
    create(uri, enable_stable_row_ids=stable)
    maintenance.maintain(lance_core.dataset(uri), POLICY)
    tasks = maintenance.Compaction.plan(lance_core.dataset(uri)).tasks
    assert [task.fragment_ids for task in tasks] == [[0, 1, 2, 3], [4, 5]]
    policy = MaintenancePolicy(move_older_than="90d", move_by="day", move_to="cold", cleanup_older_than=None)
    report = maintenance.maintain(lance_core.dataset(uri), policy)
    assert (report.outcome, report.done["files_moved"]) == ("done", 1)
    assert sorted(bases(uri).values(), key=str) == [1, None], "what was in the base path is there again"
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(24))
    assert maintenance.maintain(lance_core.dataset(uri), policy).outcome == "healthy"


@pytest.mark.parametrize("stable", [False, True])
def test_tags_branches_clones_and_promotion_go_on(uri, place, stable):
    table = create(uri, enable_stable_row_ids=stable)
    table.create_scalar_index("id", "BTREE")
    table.tags.create("audit", 3)
    early = table.create_branch("early")
    lance.dataset(uri).shallow_clone(str(place / "clone.lance"), lance.dataset(uri).version)
    before = content(lance, uri)
    maintenance.maintain(lance_core.dataset(uri), POLICY)
    late = lance_core.dataset(uri).create_branch("late")
    lance_core.dataset(uri).shallow_clone(str(place / "late.lance"), lance_core.dataset(uri).version)
    maintenance.maintain(lance_core.dataset(uri), CLEAN)
    check(uri, before)
    for library in (lance, lance_core):
        assert library.dataset(uri, version="audit").count_rows() == 12
        assert library.dataset(uri, version="audit").to_table()["id"].to_pylist() == list(range(12))
        for name in ("early", "late"):
            branch = library.dataset(uri).checkout_version((name, None))
            assert sorted(branch.to_table()["id"].to_pylist()) == list(range(24))
        assert sorted(library.dataset(str(place / "late.lance")).to_table()["id"].to_pylist()) == list(range(24))
    early.update({"word": "'changed'"}, where="id = 1 OR id = 18")
    early.delete("id = 6")
    late.delete("id = 9")
    lance_core.dataset(uri).branches.promote("early")
    lance_core.dataset(uri).branches.promote("late")
    for library in (lance, lance_core):
        found = library.dataset(uri).to_table().sort_by("id").to_pylist()
        assert [row["id"] for row in found] == [n for n in range(24) if n not in (6, 9)]
        assert [row["id"] for row in found if row["word"] == "changed"] == [1, 18]


@pytest.mark.parametrize("stable", [False, True])
def test_promotion_to_fragments_with_deletions(uri, stable):
    table = create(uri, enable_stable_row_ids=stable)
    table.delete("id IN (0, 5)")
    branch = table.create_branch("work")
    branch.delete("id = 2")
    branch.update({"word": "'changed'"}, where="id = 7")
    policy = dataclasses.replace(POLICY, materialize_deletions_threshold=1.0)
    assert maintenance.maintain(lance_core.dataset(uri), policy).done["files_moved"] == 4
    lance_core.dataset(uri).branches.promote("work")
    for library in (lance, lance_core):
        found = library.dataset(uri).to_table().sort_by("id").to_pylist()
        assert [row["id"] for row in found] == [n for n in range(24) if n not in (0, 2, 5)]
        assert [row["id"] for row in found if row["word"] == "changed"] == [7]


@pytest.mark.parametrize("stable", [False, True])
def test_changes_and_deletions_stay(uri, stable):
    """Fragments with deletions move as they are, and changes are read across the move."""
    table = create(uri, enable_stable_row_ids=stable)
    table.delete("id IN (0, 5, 6, 21)")
    start = table.version
    lance.write_dataset(rows(95, 100), uri, mode="append")
    before = content(lance, uri)
    policy = dataclasses.replace(POLICY, materialize_deletions_threshold=1.0)
    assert maintenance.maintain(lance_core.dataset(uri), policy).done["files_moved"] == 5
    assert content(lance, uri) == content(lance_core, uri) == before
    table = lance_core.dataset(uri)
    table.insert(rows(1, 200))
    table.delete("id = 8")
    delta = lance_core.dataset(uri).delta(begin_version=start, end_version=table.version)
    inserted = delta.get_inserted_rows().read_all()
    assert sorted(inserted["id"].to_pylist()) == [100, 101, 102, 103, 200, 201, 202, 203]
    if stable:
        assert delta.get_updated_rows().read_all().num_rows == 0
        theirs = lance.dataset(uri).delta(compared_against=start)
        assert sorted(theirs.get_inserted_rows().read_all()["id"].to_pylist()) == sorted(inserted["id"].to_pylist())


WRITERS = {
    "append": lambda table: table.insert(rows(100, 50)),
    "delete": lambda table: table.delete("id = 1 OR id = 17"),
    "update": lambda table: table.update({"word": "'new'"}, where="id = 2"),
    "compact": lambda table: table.optimize.compact_files(),
    "index": lambda table: table.create_scalar_index("id", "BTREE"),
    "column": lambda table: table.add_columns({"twice": "id * 2"}),
    "config": lambda table: table.update_config({"a": "b"}),
}


@pytest.mark.parametrize("verb", WRITERS)
@pytest.mark.parametrize("writer", [lance, lance_core])
def test_writers_that_began_before(uri, verb, writer):
    """A writer that began before the move follows it, or has to repeat its change; nothing is lost."""
    create(uri)
    stale = writer.dataset(uri)
    maintenance.maintain(lance_core.dataset(uri), POLICY)
    try:
        WRITERS[verb](stale)
    except (OSError, lance_core.errors.CommitConflictError) as error:
        if "onflict" not in str(error):
            raise
        WRITERS[verb](writer.dataset(uri))
    check_after(uri, verb)


@pytest.mark.parametrize("verb", WRITERS)
@pytest.mark.parametrize("writer", [lance, lance_core])
def test_writers_beside_the_move(uri, verb, writer, monkeypatch):
    """Commits between the copies and the commit of the move stay; fragments that they changed move with the next run."""
    from lance_core.maintenance import moves

    create(uri)

    def put(store, keys, pending=None, make_durable=moves.make_durable):
        make_durable(store, keys, pending)
        WRITERS[verb](writer.dataset(uri))

    with monkeypatch.context() as patched:
        patched.setattr(moves, "make_durable", put)
        report = maintenance.maintain(lance_core.dataset(uri), POLICY)
    assert report.outcome in ("done", "healthy", "skipped"), report.error
    check_after(uri, verb)
    for fragment in lance.dataset(uri).get_fragments():
        assert len({file.base_id for file in fragment.data_files()}) == 1, "the files of a fragment move together"
    for _ in range(2):
        maintenance.maintain(lance_core.dataset(uri), CLEAN)
    check_after(uri, verb)
    assert len(cold_files(uri)) == count_cold(uri)


def check_after(uri, verb):
    expected = set(range(24)) | (set(range(50, 54)) if verb == "append" else set())
    expected -= {1, 17} if verb == "delete" else set()
    for library in (lance, lance_core):
        found = library.dataset(uri).to_table()
        assert sorted(found["id"].to_pylist()) == sorted(expected)
        if verb == "update":
            assert found.filter(pa.compute.equal(found["word"], "new"))["id"].to_pylist() == [2]
        if verb == "column":
            assert all(row["twice"] == 2 * row["id"] for row in found.to_pylist())
        assert library.dataset(uri).count_rows(filter="id = 4") == 1


def test_a_fragment_moves_by_its_largest_time(uri):
    create(uri, ages=(None, 200))
    mixed = [rows(200, 10, 2), rows(None, 12, 2), rows(20, 14, 2)]
    lance.write_dataset(pa.concat_tables(mixed[:2]), uri, mode="append")
    lance.write_dataset(pa.concat_tables([mixed[0], mixed[2]]), uri, mode="append")
    for zone_map in (False, True):
        if zone_map:
            lance.dataset(uri).create_scalar_index("day", "ZONEMAP")
        report = maintenance.maintain(lance_core.dataset(uri), POLICY, dry_run=True)
        assert report.done["files_moved"] == 2
    maintenance.maintain(lance_core.dataset(uri), POLICY)
    assert bases(uri) == {0: None, 1: 1, 2: 1, 3: None}


@pytest.mark.parametrize("writer", [lance, lance_core])
def test_files_of_blobs_move_along(uri, writer):
    limits = {"inline_size_threshold": 100, "dedicated_size_threshold": 1000, "pack_file_size_threshold": 2000}
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), blob_field("b", **limits)])
    payloads = [b"a" * 10, b"b" * 500, None, b"c" * 5000]
    day = pa.array([TODAY - dt.timedelta(days=200)] * 4, pa.date32())
    table = pa.table([pa.array(range(4)), day, blob_array(payloads)], schema=schema)
    writer.write_dataset(table, uri, data_storage_version="2.2")
    base = lance_core.DatasetBasePath(str(Path(uri).parent / "cold"), name="cold")
    lance_core.dataset(uri).add_bases([base])
    assert list(Path(uri).rglob("*.blob"))
    for policy, place, other in ((POLICY, base.path, uri), (BACK, uri, base.path)):
        assert maintenance.maintain(lance_core.dataset(uri), policy).done["files_moved"] == 1
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
        assert list(Path(place).rglob("*.blob"))
        assert not list(Path(other).rglob("*.blob"))
        for library in (lance, lance_core):
            found = library.dataset(uri).to_table(columns=["b"], blob_handling="all_binary")
            assert found["b"].to_pylist() == payloads


KILLED = """
import os, signal, sys
import lance_core
import lance_core.errors
from lance_core import maintenance
from lance_core.maintenance import moves
uri, after = sys.argv[1], int(sys.argv[2])
copied = []
def copy(source, key, store, target, copy_object=moves.copy_object):
    if len(copied) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    copied.append(target)
    copy_object(source, key, store, target)
moves.copy_object = copy
moves.COPIES_AT_ONCE = 1
if after > 3:
    moves.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
policy = maintenance.MaintenancePolicy(
    move_older_than="90d", move_by="day", move_to="cold", target_rows_per_fragment=1, cleanup_older_than=None
)
maintenance.maintain(lance_core.dataset(uri), policy)
"""


@pytest.mark.variants(5)
@pytest.mark.parametrize("after", [0, 2, 4])
@pytest.mark.parametrize("then", ["finish", "rewrite", "expire"])
def test_a_killed_move_is_finished_or_removed(uri, after, then):
    create(uri)
    before, version = content(lance, uri), lance.dataset(uri).version
    done = processes.run([sys.executable, "-c", KILLED, uri, str(after)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (len(cold_files(uri)), lance.dataset(uri).version) == (after, version)
    check(uri, before)
    copies = cold_files(uri)
    if then == "rewrite":  # the files that were copied are not those of the newest version any more
        lance.dataset(uri).optimize.compact_files()
    if then == "expire":
        lance.dataset(uri).delete("id < 16")
    report = maintenance.maintain(lance_core.dataset(uri), POLICY)
    if then == "finish":
        assert report.done["files_moved"] == 4
        assert set(copies) <= set(cold_files(uri)), "what was copied is not copied again"
        check(uri, before)
    assert len(cold_files(uri)) == count_cold(uri)
    assert maintenance.maintain(lance_core.dataset(uri), POLICY).outcome == "healthy"


def test_a_move_that_was_given_up(uri):
    """The copies of a killed move are removed after a week, and none of them is used from half of that on."""
    create(uri)
    for after in (2, 4):
        processes.run([sys.executable, "-c", KILLED, uri, str(after)], check=False)
        copies = cold_files(uri)
        days = 7 if after == 2 else 4
        for record in Path(uri, "_refs", "moves").iterdir():
            os.utime(record, (record.stat().st_mtime - days * 86_410,) * 2)
        report = maintenance.maintain(lance_core.dataset(uri), POLICY)
        assert (report.done["files_moved"], set(copies).isdisjoint(cold_files(uri))) == (4, True)
        maintenance.maintain(lance_core.dataset(uri), BACK)
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
        assert cold_files(uri) == []


def test_copies_of_a_move_that_may_go_on(uri):
    """Cleanup keeps copies that a run may be about to commit, and removes them after a week."""
    create(uri)
    processes.run([sys.executable, "-c", KILLED, uri, "2"], check=False)
    copies = cold_files(uri)
    assert len(copies) == 2
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
    assert cold_files(uri) == copies
    (record,) = Path(uri, "_refs", "moves").iterdir()
    os.utime(record, (record.stat().st_mtime - 7 * 86_410,) * 2)
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
    assert (cold_files(uri), record.exists()) == ([], False)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(24))


@pytest.mark.parametrize("content", ["{", "[]", '{"base": 1}'])
def test_a_record_that_cannot_be_read(uri, content):
    create(uri)
    Path(uri, "_refs", "moves").mkdir(parents=True)
    Path(uri, "_refs", "moves", "torn.json").write_text(content)
    with pytest.raises(CorruptFileError, match=r"_refs/moves/torn\.json .* remove it"):
        maintenance.maintain(lance_core.dataset(uri), POLICY)


def test_a_forged_record_removes_nothing_else(uri):
    """Cleanup removes files with the names that moves give alone, whatever a record says."""
    create(uri)
    victim = Path(uri).parent / "secret.lance"
    victim.write_text("precious")
    names = {"a.lance": "secret.lance", "b.lance": "0123456789ab.x/../secret.lance"}
    record = {"base": str(victim.parent), "prefix": "", "blobs": False, "files": names}
    Path(uri, "_refs", "moves").mkdir(parents=True)
    Path(uri, "_refs", "moves", "forged.json").write_text(json.dumps(record))
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
    assert victim.read_text() == "precious"


def test_moves_of_several_tables_share_a_base(place):
    uris = [str(place / name) for name in ("a.lance", "b.lance")]
    for uri in uris:
        create(uri, cold=str(place / "cold"))
        maintenance.maintain(lance_core.dataset(uri), POLICY)
    assert len(cold_files(uris[0])) == 8
    maintenance.maintain(lance_core.dataset(uris[0]), BACK)
    lance_core.dataset(uris[0]).cleanup_old_versions(retain_versions=1)
    assert len(cold_files(uris[0])) == 4
    assert sorted(lance.dataset(uris[1]).to_table()["id"].to_pylist()) == list(range(24))


@pytest.mark.parametrize("where", ["the same bucket", "another bucket", "a disk"])
def test_tables_on_s3(s3, place, where):
    """Both libraries read the files of a table on S3 in a base path elsewhere."""
    bucket, options = s3.new_bucket(), s3.storage_options
    cold = {"the same bucket": f"s3://{bucket}/cold", "a disk": str(place / "cold")}.get(where)
    cold = cold or f"s3://{s3.new_bucket()}/cold"
    uri = f"s3://{bucket}/t.lance"
    for first, age in enumerate(AGES):
        lance.write_dataset(rows(age, 4 * first), uri, mode="append", storage_options=options)
    table = lance_core.dataset(uri, storage_options=options)
    table.add_bases([lance_core.DatasetBasePath(cold, name="cold")])

    def move(policy):
        return maintenance.maintain(lance_core.dataset(uri, storage_options=options), policy)

    assert move(POLICY).done["files_moved"] == 4
    assert move(POLICY).outcome == "healthy"
    for library in (lance, lance_core):
        found = library.dataset(uri, storage_options=options).to_table()
        assert sorted(found["id"].to_pylist()) == list(range(24))
    assert move(BACK).done["files_moved"] == 4
    cleaned = lance_core.dataset(uri, storage_options=options)
    assert cleaned.cleanup_old_versions(retain_versions=1, delete_unverified=True).data_files_removed == 8
    assert [meta.key for meta in open_store(cold, options).list("")] == []
    found = lance.dataset(uri, storage_options=options).to_table()
    assert sorted(found["id"].to_pylist()) == list(range(24))


KILLED_WITHIN_A_COPY = """
import os, sys
import lance_core
from lance_core import maintenance
def die(event, arguments):
    if event in ("os.rename", "os.link") and "cold" in str(arguments[1]):
        os._exit(9)
sys.addaudithook(die)
policy = maintenance.MaintenancePolicy(move_older_than="90d", move_by="day", move_to="cold", cleanup_older_than=None)
maintenance.maintain(lance_core.dataset(sys.argv[1]), policy)
"""


@pytest.mark.parametrize("then", ["finish", "wait", "rewrite"])
def test_the_part_of_a_copy_that_was_killed(uri, then):
    """Cleanup removes it after a week, or at once where nobody else works on the table; also once the move is done."""
    create(uri, ages=(200, 1))
    cold, stranger = Path(uri).parent / "cold", "of_another_table.lance#12"
    assert processes.run([sys.executable, "-c", KILLED_WITHIN_A_COPY, uri], check=False).returncode == 9
    (part,) = cold.iterdir()
    assert "#" in part.name
    (cold / stranger).write_bytes(b"not ours")
    if then == "rewrite":  # the file that was copied is not that of the newest version any more
        lance.dataset(uri).optimize.compact_files()
        for path in cold.iterdir():
            os.utime(path, (path.stat().st_mtime - 7 * 86_410,) * 2)
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
        assert [path.name for path in cold.iterdir()] == [stranger]
        return
    assert maintenance.maintain(lance_core.dataset(uri), POLICY).done["files_moved"] == 1
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
    assert part.exists(), "the run that writes it may go on"
    if then == "wait":
        os.utime(part, (part.stat().st_mtime - 7 * 86_410,) * 2)
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=then == "finish")
    assert {path.name for path in cold.iterdir()} == {stranger, *cold_files(uri)}
    check(uri, content(lance, uri))


def test_copies_of_a_killed_move_where_nobody_else_works(uri):
    create(uri)
    processes.run([sys.executable, "-c", KILLED, uri, "2"], check=False)
    assert len(cold_files(uri)) == 2
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert (cold_files(uri), list(Path(uri, "_refs", "moves").iterdir())) == ([], [])


def reject_removal(path, *_):
    raise PermissionError(errno.EACCES, "Permission denied", path)


def test_a_base_path_is_listed_once_for_all_moves(uri, monkeypatch):
    """Cleanup looks for parts of killed copies, of which a table that moves each day may have the records of years."""
    create(uri)
    for age in (390, 290, 190, 90):
        policy = dataclasses.replace(POLICY, move_older_than=f"{age}d")
        assert maintenance.maintain(lance_core.dataset(uri), policy).done["files_moved"] == 1
    assert len(list(Path(uri, "_refs", "moves").iterdir())) == 4
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)
    assert sum(str(path).endswith("/cold") for path in listed) == 1


class TestDrop:
    def test_copies_go_with_the_table(self, uri):
        table, cold = create(uri), Path(uri).parent / "cold"
        maintenance.maintain(table, POLICY)
        for name in ("of_another_table.lance", f"{cold_files(uri)[0]}x", "of_another_table.lance#7"):
            (cold / name).write_bytes(b"not ours")
        (cold / f"{cold_files(uri)[0]}#7").write_bytes(b"a part of a copy that was killed")
        lance_core.LanceDataset.drop(uri)
        assert len(list(cold.iterdir())) == 3
        assert {path.read_bytes() for path in cold.iterdir()} == {b"not ours"}
        assert not Path(uri).exists()

    @pytest.mark.parametrize("how", ["copied", "linked"])
    def test_copies_that_another_folder_needs(self, uri, how, caplog):
        """The drop of a copy of the folder, or of a link to it, leaves the table whole."""
        maintenance.maintain(create(uri), POLICY)
        before, other = content(lance, uri), Path(uri).parent / "other.lance"
        shutil.copytree(uri, other) if how == "copied" else other.symlink_to(uri)
        lance_core.LanceDataset.drop(str(other))
        assert not other.exists()
        check(uri, before)
        assert ("stay in" in caplog.text) == (how == "copied")

    def test_a_record_that_cannot_be_read(self, uri):
        maintenance.maintain(create(uri), POLICY)
        record = next(Path(uri, "_refs", "moves").iterdir())
        record.write_text("{")
        before = content(lance, uri)
        with pytest.raises(CorruptFileError, match=r"is no record of a move .* remove it"):
            lance_core.LanceDataset.drop(uri)
        check(uri, before)

    def test_a_base_that_cannot_be_written(self, uri, monkeypatch):
        maintenance.maintain(create(uri), POLICY)
        before = content(lance, uri)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", reject_removal)
            with pytest.raises(StoreError, match=r"copies of moved files in .*cold could not .* remove .*_refs/moves/"):
                lance_core.LanceDataset.drop(uri)
        check(uri, before)

    def test_tables_on_s3(self, s3):
        options = s3.storage_options
        uri, cold = f"s3://{s3.new_bucket()}/t.lance", f"s3://{s3.new_bucket()}/cold"
        lance.write_dataset(rows(200, 0), uri, storage_options=options)
        table = lance_core.dataset(uri, storage_options=options)
        table.add_bases([lance_core.DatasetBasePath(cold, name="cold")])
        assert maintenance.maintain(table, POLICY).done["files_moved"] == 1
        lance_core.LanceDataset.drop(uri, storage_options=options)
        assert not list(open_store(cold, options).list(""))


def test_a_bucket_that_is_missing(s3):
    """The storage of the base path is asked before anything is written."""
    options = s3.storage_options
    uri = f"s3://{s3.new_bucket()}/t.lance"
    lance.write_dataset(rows(200, 0), uri, storage_options=options)
    table = lance_core.dataset(uri, storage_options=options)
    table.add_bases([lance_core.DatasetBasePath("s3://bucket-that-is-missing/cold", name="cold")])
    version = lance.dataset(uri, storage_options=options).version
    with pytest.raises(MaintenanceFailedError, match=r"move_files: .*bucket-that-is-missing"):
        maintenance.maintain(lance_core.dataset(uri, storage_options=options), POLICY)
    assert lance.dataset(uri, storage_options=options).version == version
    assert not list(open_store(uri, options).list("_refs/"))


def test_the_server_copies_between_buckets(s3, monkeypatch):
    source, target = (open_store(f"s3://{s3.new_bucket()}/t", s3.storage_options) for _ in range(2))
    source.put("a", b"bytes")
    monkeypatch.setattr(type(target), "open_writer", lambda *_: pytest.fail("the object was read and written"))
    copy_object(source, "a", target, "b")
    assert bytes(target.get("b")) == b"bytes"


class TestErrors:
    def test_fields_that_go_together(self):
        with pytest.raises(
            InvalidInputError, match="move_older_than and move_by and move_to go together: give move_by"
        ):
            MaintenancePolicy(move_older_than="90d", move_to="cold")
        assert MaintenancePolicy(move_older_than="never", move_by="day", move_to="cold").age_of_files is None

    @pytest.mark.parametrize(
        ("fields", "kind", "problem"),
        [
            (
                {"move_to": "ice"},
                InvalidInputError,
                "move_to 'ice' is no base path of the table, which has 'cold': add",
            ),
            ({"move_by": "id"}, SchemaError, "move_by 'id' is a column of type int64"),
            ({"move_by": "no"}, SchemaError, "move_by 'no' is no column of the table"),
        ],
    )
    def test_before_anything_is_written(self, uri, fields, kind, problem):
        create(uri)
        names = {"move_older_than": "90d", "move_by": "day", "move_to": "cold", **fields}
        version = lance.dataset(uri).version
        with pytest.raises(kind, match=problem):
            maintenance.maintain(lance_core.dataset(uri), MaintenancePolicy(**names))
        assert (lance.dataset(uri).version, Path(uri, "_refs", "moves").exists()) == (version, False)

    def test_a_base_that_is_missing(self, uri):
        """Files of a base path that was deleted cannot move back: the error names the file, and nothing is committed."""
        create(uri)
        maintenance.maintain(lance_core.dataset(uri), POLICY)
        version = lance.dataset(uri).version
        shutil.rmtree(Path(uri).parent / "cold")
        with pytest.raises(ObjectNotFoundError, match="cold"):
            maintenance.maintain(lance_core.dataset(uri), BACK)
        assert lance.dataset(uri).version == version

    def test_a_base_that_cannot_be_written(self, uri):
        blocked = Path(uri).parent / "cold"
        create(uri, cold=str(blocked))
        blocked.write_text("a file")
        version = lance.dataset(uri).version
        with pytest.raises(MaintenanceFailedError, match=r"move_files: .*cold"):
            maintenance.maintain(lance_core.dataset(uri), POLICY)
        assert lance.dataset(uri).version == version


def test_command(uri):
    create(uri)
    arguments = ["maintain", uri, "--move-older-than", "90d", "--move-by", "day", "--move-to", "cold", "--json"]
    result = CliRunner().invoke(cli, [*arguments, "--target-rows-per-fragment", "1"])
    assert result.exit_code == 0, result.output
    assert '"files_moved": 4' in result.output
    assert len(cold_files(uri)) == 4
