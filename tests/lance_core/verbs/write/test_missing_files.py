"""Fragments whose files a cleanup has removed are not committed."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import NotFoundError
from lance_core.maintenance import commit_what_fits
from lance_core.optimize import Compaction
from lance_core.store import PendingWrites, presence
from tests import processes

ROWS = pa.table({"p": [1, 2], "v": [1, 2]})


@pytest.fixture(params=["local", "memory", "s3"])
def place(request, tmp_path):
    uri, options = str(tmp_path / "t"), {}
    if request.param == "memory":
        uri = f"memory://missing/{tmp_path.name}"
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    kept = lance_core.write_dataset(ROWS, uri, storage_options=options)
    yield uri, options
    del kept


def fragments(uri, options):
    """Two fragments that nothing refers to, and whose files a cleanup has removed."""
    made = lance_core.fragment.write_fragments(ROWS, uri, storage_options=options, max_rows_per_file=1)
    assert len(made) == 2
    lance_core.dataset(uri, storage_options=options).cleanup_old_versions(timedelta(0), delete_unverified=True)
    return made


CASES = {"append": {}, "overwrite": {"mode": "overwrite"}, "configured": {"table_config": {"a": "b"}}}


@pytest.mark.parametrize("case", CASES)
def test_fragments_without_their_files_are_rejected(place, monkeypatch, case):
    uri, options = place
    monkeypatch.setattr(presence, "RECENT_S", 0.0)
    made = fragments(uri, options)
    with pytest.raises(NotFoundError, match=r"data/.*\.lance.*2 of 2 files are missing.*Write the files again"):
        lance_core.commit_fragments(uri, made, ROWS.schema, storage_options=options, **CASES[case])
    found = lance_core.dataset(uri, storage_options=options)
    assert (found.version, found.to_table()) == (1, ROWS)
    again = lance_core.fragment.write_fragments(ROWS, uri, storage_options=options)
    assert lance_core.commit_fragments(uri, again, ROWS.schema, storage_options=options).dataset.count_rows() == 4


def columns(dataset):
    plan = dataset.plan_columns(pa.schema([("w", pa.int64())]))
    written = []
    for task in plan.tasks:
        rows = dataset.get_fragment(task.fragment_id).to_table(["v"], with_row_address=True)
        written.append(task.write(dataset, rows.rename_columns(["w", "_rowaddr"])))
    return lambda: dataset.commit_columns(plan, written)


def compaction(commit):
    def prepare(dataset):
        dataset.insert(ROWS)
        results = [task.execute(dataset) for task in Compaction.plan(dataset).tasks]
        assert results
        return lambda: commit(dataset, results)

    return prepare


@pytest.mark.parametrize(
    "prepare",
    [columns, compaction(Compaction.commit), compaction(lambda *given: commit_what_fits(*given, {}))],
    ids=["columns", "Compaction.commit", "commit_what_fits"],
)
def test_columns_and_compactions_without_their_files_are_rejected(place, monkeypatch, prepare):
    uri, options = place
    monkeypatch.setattr(presence, "RECENT_S", 0.0)
    dataset = lance_core.dataset(uri, storage_options=options)
    commit = prepare(dataset)
    before = lance_core.dataset(uri, storage_options=options)
    before.cleanup_old_versions(timedelta(0), delete_unverified=True)
    with pytest.raises(NotFoundError, match=r"data/.*\.lance.*1 of 1 files are missing.*Write the files again"):
        commit()
    found = lance_core.dataset(uri, storage_options=options)
    assert (found.version, found.to_table()) == (before.version, before.to_table())


def test_columns_and_compactions_of_this_process_cost_no_request(s3, monkeypatch):
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    dataset = lance_core.write_dataset(ROWS, uri, storage_options=options)
    dataset.insert(ROWS)
    asked = []
    monkeypatch.setattr(presence, "_is_there", lambda _, name: asked.append(name) or True)
    columns(lance_core.dataset(uri, storage_options=options))()
    lance_core.dataset(uri, storage_options=options).optimize.compact_files()
    assert asked == []


def test_a_new_table(tmp_path):
    uri = str(tmp_path / "t")
    made = lance_core.fragment.write_fragments(ROWS, uri)
    for file in Path(uri, "data").iterdir():
        file.unlink()
    with pytest.raises(NotFoundError, match="missing"):
        lance_core.commit_fragments(uri, made, ROWS.schema, mode="create")
    assert not Path(uri, "_versions").exists() or not list(Path(uri, "_versions").iterdir())


def test_files_of_this_process_cost_no_request_on_object_storage(s3, monkeypatch):
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    lance_core.write_dataset(ROWS, uri, storage_options=options)
    made = lance_core.fragment.write_fragments(ROWS, uri, storage_options=options)
    asked = []
    monkeypatch.setattr(presence, "_is_there", lambda _, name: asked.append(name) or True)
    lance_core.commit_fragments(uri, made, ROWS.schema, storage_options=options)
    assert asked == []
    code = (
        "import json, sys, lance_core, pyarrow as pa\n"
        "made = lance_core.fragment.write_fragments("
        "pa.table({'p': [3, 4], 'v': [3, 4]}), sys.argv[1], storage_options=json.loads(sys.argv[2]))\n"
        "print(json.dumps([one.to_json() for one in made]))"
    )
    done = processes.run([sys.executable, "-c", code, uri, json.dumps(options)], check=True)
    theirs = [lance_core.FragmentMetadata.from_json(json.dumps(one)) for one in json.loads(done.stdout)]
    lance_core.commit_fragments(uri, theirs, ROWS.schema, storage_options=options)
    assert len(asked) == 1


TABLE = pa.table({"p": [1, 2, 3, 4], "v": [1, 2, 3, 4]})
VERBS = {
    "write_dataset": lambda table: lance_core.write_dataset(TABLE, table, mode="append"),
    "overwrite": lambda table: lance_core.write_dataset(TABLE, table, mode="overwrite"),
    "insert": lambda table: table.insert(TABLE),
    "update": lambda table: table.update({"v": "v + 1"}, where="p = 1"),
    "delete": lambda table: table.delete("p = 1"),
    "merge_insert": lambda table: (
        table.merge_insert("p").when_matched_update_all().when_not_matched_insert_all().execute(TABLE)
    ),
    "add_columns": lambda table: table.add_columns({"w": "v + 1"}),
    "alter_columns": lambda table: table.alter_columns({"path": "v", "data_type": pa.int32()}),
    "create_scalar_index": lambda table: table.create_scalar_index("p", "BTREE"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_files_were_removed_before_its_commit_is_rejected(place, monkeypatch, verb):
    uri, options = place
    monkeypatch.setattr(presence, "RECENT_S", 0.0)
    real = PendingWrites.wait

    def wait(pending, most=0):
        real(pending, most)
        if not most:
            cleaned = lance_core.dataset(uri, storage_options=options)
            cleaned.cleanup_old_versions(timedelta(0), delete_unverified=True)

    monkeypatch.setattr(PendingWrites, "wait", wait)  # a cleanup follows each
    with pytest.raises(NotFoundError, match=r"does not exist \(\d of \d files are missing\).*Write the files again"):
        VERBS[verb](lance_core.dataset(uri, storage_options=options))
    table = lance_core.dataset(uri, storage_options=options)
    assert (table.version, table.to_table().to_pydict()) == (1, ROWS.to_pydict())
    monkeypatch.undo()
    VERBS[verb](table)


def test_a_quick_write_to_object_storage_looks_for_no_file(s3, monkeypatch):
    uri = f"s3://{s3.new_bucket()}/t"
    table = lance_core.write_dataset(ROWS, uri, storage_options=s3.storage_options)
    monkeypatch.setattr(presence, "_is_there", None)
    for write in VERBS.values():
        write(lance_core.dataset(uri, storage_options=s3.storage_options))
    assert table.version == 1
