"""Secrets of storage options show in nothing that can be printed, logged or found in the table."""

import gc
import logging
import traceback
from datetime import timedelta

import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.errors import LanceError
from lance_core.optimize import Compaction
from lance_core.store import open_store

MARK = "hush-hush"
ROWS = pa.table({"a": range(20), "s": [str(number) for number in range(20)]})


@pytest.fixture
def place(s3):
    secrets = {name: f"{MARK}-{name}" for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")}
    return f"s3://{s3.new_bucket()}/t", {**s3.storage_options, **secrets}


def ours():
    """Everything that lives and is of a class of ours."""
    for found in gc.get_objects():
        if not isinstance(found, type) and str(type(found).__module__).startswith(("lance_core.", "lance_dagster.")):
            yield found


def shown(found):
    try:
        return f"{found!r} {found} {found:}"
    except (AttributeError, TypeError):
        return ""  # one that is half made


def used(uri, options):
    """What one holds in one's hands when one works with a table."""
    dataset = lance.write_dataset(ROWS, uri, storage_options=options, max_rows_per_file=5)
    scanner = dataset.scanner(columns=["a"], filter="a > 3")
    batches = scanner.to_batches()
    next(batches)
    yield dataset, scanner, batches, dataset.snapshot, dataset.get_fragments(), dataset.get_fragment(0).scanner()
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": 100})
    done = [task.execute(dataset) for task in plan.tasks]
    assert done
    yield plan, done, Compaction.commit(dataset, done), dataset.optimize
    dataset.tags.create("x")
    branch = dataset.create_branch("b")
    branch.insert(ROWS)
    yield branch, dataset.tags, dataset.branches, dataset.branches.diff("b"), dataset.branches.promote("b")
    merge = dataset.merge_insert("a").when_matched_update_all()
    yield merge, merge.execute(ROWS), dataset.delete("a = 1"), dataset.create_scalar_index("a", "BTREE")
    yield lance.write_fragments(ROWS, dataset), lance.FragmentWriter(uri, ROWS.schema, storage_options=options)
    yield dataset.explain_cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    yield dataset.stats, dataset.versions(), dataset.get_transactions(), dataset.list_indices(), dataset.sql("select 1")


def test_no_object_shows_them(place, caplog):
    uri, options = place
    with caplog.at_level(logging.DEBUG, "lance_core"):
        held = list(used(uri, options))
    seen = {type(found).__name__: shown(found) for found in ours() if MARK in shown(found)}
    assert held
    assert seen == {}
    assert MARK not in caplog.text
    store = open_store(uri, options)
    assert [meta.key for meta in store.list("") if MARK.encode() in store.get(meta.key)] == []


@pytest.mark.parametrize(
    "changed",
    [
        {"aws_endpoint": "http://127.0.0.1:1"},
        {"aws_secret_acces_key": MARK},
        {"secret": f"{MARK}-other"},
        {"timeout": MARK},
        {"client_max_retries": MARK},
        {"aws_allow_http": MARK},
        {"manifest_store": MARK},
        {"manifest_store": f"postgresql://u:{MARK}@127.0.0.1:1/x"},
        {"manifest_stor": MARK},
        {"aws_endpoint": f"http://u:{MARK}@127.0.0.1:1"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_no_error_shows_them(place, changed):
    uri, options = place
    options = {**options, "client_max_retries": "0", **changed}
    for use in (lance.dataset, lambda uri, **others: lance.write_dataset(ROWS, uri, mode="append", **others)):
        with pytest.raises(LanceError) as caught:
            use(uri, storage_options=options)
        trace = traceback.TracebackException.from_exception(caught.value, lookup_lines=False)
        lines = [line for line in trace.format() if not line.startswith('  File "')]
        assert MARK not in f"{lines} {caught.value!r} {vars(caught.value)}"
