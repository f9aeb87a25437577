"""Columns that a function computes: calls, failures, kills, leases, and what pylance reads."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

import lance_core
from lance_core._proto import rowids_pb2, table_pb2
from lance_core.cli.app import cli
from lance_core.errors import (
    FailedRowsError,
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
    SchemaError,
    SupersededError,
    UnsupportedError,
)
from lance_core.table.fragment import Fragment
from lance_core.verbs.columns.compute import due
from lance_core.verbs.columns.compute import lease as leases
from lance_core.verbs.columns.compute.computation import Record
from lance_core.verbs.columns.compute.digests import digest_rows
from tests.inputs_in_place import replace_data, update_columns
from tests.processes import run, running

# pylance, which is in this process as the oracle, warns of each fork.
pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SIZE = {"inputs": ["text"], "columns": pa.schema([("size", pa.int32())]), "name": "size", "code_version": "1"}


def measure(batch):
    return pc.utf8_length(batch["text"])


@pytest.fixture
def table(tmp_path):
    """100 rows in three fragments."""
    rows = {"id": range(100), "text": ["x" * (i % 7) for i in range(100)]}
    return lance_core.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=40, enable_stable_row_ids=True)


def failures(table):
    return lance_core.dataset(f"{Path(table.uri).parent}/_failed/t.size.lance").to_table().to_pylist()


@pytest.mark.parametrize("version", ["0.1", "2.0"])
def test_files_without_null_structs_are_rejected_and_the_remedy_works(tmp_path, version):
    uri, calls = tmp_path / "t.lance", []

    def count(batch):
        calls.append(batch.num_rows)
        return measure(batch)

    rows = pa.table({"id": range(9), "text": ["x" * i for i in range(9)]})
    stable = {"enable_stable_row_ids": True}
    lance_core.write_dataset(rows, uri, data_storage_version=version, **({} if version == "0.1" else stable))
    with pytest.raises(UnsupportedError, match=f"files of version {version}.*data_storage_version"):
        lance_core.dataset(uri).compute_columns(count, **SIZE)
    assert (calls, lance_core.dataset(uri).schema.names) == ([], ["id", "text"])
    table = lance_core.dataset(uri)
    lance_core.write_dataset(table.to_table(), uri, mode="overwrite", data_storage_version="2.2")
    if version == "0.1":
        lance_core.dataset(uri).migrate_to_stable_row_ids()
    lance_core.dataset(uri).compute_columns(count, **SIZE)
    lance_core.write_dataset(rows, uri, mode="append")
    assert sum(calls) == 9


class TestFunctions:
    def test_tables_of_one_folder_keep_their_failed_rows_apart(self, tmp_path):
        def fail_on_b(batch):
            if "b" in batch["text"].to_pylist():
                raise ValueError("b")
            return measure(batch)

        uris = [tmp_path / "one.lance", tmp_path / "two.lance"]
        for uri, texts in zip(uris, (["a", "b"], ["b", "a"]), strict=True):
            lance_core.write_dataset({"text": texts}, uri, enable_stable_row_ids=True)
        for _ in range(2):
            for number, uri in enumerate(uris):
                lance_core.dataset(uri).compute_columns(fail_on_b, **SIZE, max_failed_rows=1)
                listed = lance_core.dataset(tmp_path / f"_failed/{uri.stem}.size.lance").to_table()
                assert listed["row_id"].to_pylist() == [1 - number]

    def test_frames_by_annotation(self, table):
        import pandas as pd
        import polars as pl

        def with_pandas(frame: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"size": frame["text"].str.len().astype("int32")})

        def with_polars(frame: "pl.DataFrame"):
            return frame.select(pl.col("text").str.len_chars().cast(pl.Int32).alias("size"))

        def with_pandas_series(frame: pd.DataFrame) -> pd.Series:
            return frame["text"].str.len()

        def with_polars_series(frame: "pl.DataFrame"):
            return frame["text"].str.len_chars()

        def with_table(batch):
            return pa.table({"size": measure(batch)})

        functions = with_pandas, with_polars, with_pandas_series, with_polars_series, with_table
        for code, function in enumerate(functions):
            assert table.compute_columns(function, **{**SIZE, "code_version": str(code)}).rows_computed == 100
            assert table.to_table()["size"].to_pylist() == [i % 7 for i in range(100)]

    def test_objects_of_polars_are_rejected(self, table):
        def with_objects(frame: "pl.DataFrame"):  # noqa: F821 - read as text
            return frame.select(frame["text"].map_elements(lambda _: object()).alias("size"))

        columns = pa.schema({"size": pa.binary(8)})
        with pytest.raises(SchemaError, match="Python objects"):
            table.compute_columns(with_objects, **{**SIZE, "columns": columns})

    @pytest.mark.parametrize("processes", [0, 1])
    def test_a_parameter_annotated_as_a_series(self, table, processes):
        def with_series(texts: "pd.Series"):  # noqa: F821 - read as text
            return texts.str.len()

        with pytest.raises(InvalidInputError, match="annotate it as a DataFrame, not as a Series"):
            table.compute_columns(with_series, **SIZE, processes=processes)

    def test_coroutines_run_at_once(self, table):
        running, most = 0, 0

        async def slow(batch):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return measure(batch)

        result = table.compute_columns(slow, **SIZE, batch_size=10, concurrency=4)
        assert (result.calls, most) == (10, 4)
        assert lance.dataset(table.uri).to_table()["size"].to_pylist() == [i % 7 for i in range(100)]

    def test_processes_with_an_object_each(self, table, tmp_path):
        def load():
            (tmp_path / str(os.getpid())).touch()
            return {"": 0}

        def look_up(batch, sizes):
            return pa.array([sizes.setdefault(text, len(text)) for text in batch["text"].to_pylist()])

        table.compute_columns(look_up, **SIZE, batch_size=10, processes=2, setup=load)
        assert table.to_table()["size"].to_pylist() == [i % 7 for i in range(100)]
        assert 1 <= len([path for path in tmp_path.iterdir() if path.name.isdecimal()]) <= 2
        assert not (tmp_path / str(os.getpid())).exists()

    @pytest.mark.parametrize("is_async", [False, True], ids=["process", "coroutine"])
    def test_a_call_that_takes_too_long_fails(self, table, is_async):
        def slow(batch):
            if "xxxxxx" in batch["text"].to_pylist():
                time.sleep(60)
            return measure(batch)

        async def slow_coroutine(batch):
            if "xxxxxx" in batch["text"].to_pylist():
                await asyncio.sleep(60)
            return measure(batch)

        options = {**SIZE, "where": "id < 10", "batch_size": 4, "max_failed_rows": 1, "timeout": 0.3}
        result = table.compute_columns(slow_coroutine if is_async else slow, **options)
        assert (result.rows_computed, result.rows_failed) == (10, 1)
        (failed,) = failures(table)
        assert failed["row_id"] == 6
        assert "Timeout" in failed["error"]

    def test_a_worker_that_dies_fails_on_its_row_alone(self, table):
        def die(batch):
            if "xxx" in batch["text"].to_pylist():
                os._exit(3)
            return measure(batch)

        result = table.compute_columns(die, **SIZE, where="id < 7", processes=1, max_failed_rows=1)
        assert result.rows_failed == 1
        assert failures(table)[0]["error"] == "the worker process ended with exit code 3"

    def test_failing_rows_are_bisected(self, table):
        sizes = []

        def fail(batch):
            sizes.append(batch.num_rows)
            if "xxxxx" in batch["text"].to_pylist():
                raise ValueError("five")
            return measure(batch)

        options = {**SIZE, "where": "id < 8", "batch_size": 8}
        with pytest.raises(
            FailedRowsError,
            match=r"failed on 1 of 8 rows, and 0 may fail, at first with ValueError: five; the other",
        ):
            table.compute_columns(fail, **options)
        assert sizes == [8, 4, 4, 2, 1, 1, 2]
        rows = table.to_table(columns=["size"]).slice(0, 8)["size"].to_pylist()
        assert rows == [0, 1, 2, 3, 4, None, 6, 0]
        assert [(row["row_id"], row["error"]) for row in failures(table)] == [(5, "ValueError: five")]
        assert table.compute_columns(fail, **options).rows_due == {}
        assert table.compute_columns(measure, **options, retry_failed=True).rows_due == {"failed": 1}
        assert failures(table) == []
        assert table.compute_columns(measure, **options, retry_failed=True).rows_due == {}

    def test_a_share_of_the_rows_may_fail(self, table):
        def fail(batch):
            raise KeyError(batch["text"][0].as_py())

        with pytest.raises(FailedRowsError):
            table.compute_columns(fail, **SIZE, where="id < 10", max_failed_rows=0.9)
        assert len(failures(table)) == 10
        table.update({"text": "'changed'"}, "id < 10")
        assert table.compute_columns(measure, **SIZE, where="id < 10").rows_due == {"inputs changed": 10}
        assert failures(table) == []

    def test_rows_that_are_deleted_or_restored_do_not_stand_as_failed(self, table):
        """The next run removes them, also if nothing is due; those of branches are kept."""

        def fail(batch):
            raise ValueError

        options = {**SIZE, "max_failed_rows": 4, "where": "id < 4"}
        table.compute_columns(measure, **SIZE)
        table.create_branch("tried").compute_columns(fail, **options | {"code_version": "2"})
        table.compute_columns(fail, **options | {"code_version": "3"})
        table.delete("id < 2")
        assert table.compute_columns(measure, **options | {"code_version": "3"}).rows_due == {}
        assert sorted((row["branch"], row["row_id"]) for row in failures(table)) == [
            *(("main", number) for number in (2, 3)), *(("tried", number) for number in range(4)),
        ]  # fmt: skip
        table.checkout_version(2).restore()
        assert table.compute_columns(measure, **SIZE).rows_due == {}
        assert {row["branch"] for row in failures(table)} == {"tried"}

    @pytest.mark.parametrize(
        ("result", "error", "message"),
        [
            (pa.array([1, 2], pa.int32()), InvalidInputError, "returned 2 rows for 100"),
            (pa.table({"other": [1] * 100}), SchemaError, r"returned the columns \['other'\], not \['size'\]"),
            (pa.table({"size": ["a"] * 100}), SchemaError, "other types than its columns"),
            (7, InvalidInputError, "returned a int, not a record batch"),
        ],
    )
    @pytest.mark.parametrize("processes", [0, 1])
    def test_wrong_results_are_no_failed_rows(self, table, result, error, message, processes):
        with pytest.raises(error, match=message):
            table.compute_columns(lambda _: result, **SIZE, processes=processes)
        assert lance_core.dataset(table.uri).version == 1

    @pytest.mark.parametrize("is_async", [False, True], ids=["processes", "coroutines"])
    def test_an_error_that_ends_the_run_waits_for_no_other_call(self, table, tmp_path, is_async):
        def fail(batch):
            (tmp_path / f"call-{batch['id'][0]}").touch()
            if batch["id"][0].as_py():
                time.sleep(60)
            return pa.array([], pa.int32())

        async def fail_as_coroutine(batch):
            (tmp_path / f"call-{batch['id'][0]}").touch()
            await asyncio.sleep(60 if batch["id"][0].as_py() else 0.5)
            return pa.array([], pa.int32())

        function, more = (fail_as_coroutine, {"concurrency": 3}) if is_async else (fail, {"processes": 3})
        begun = time.monotonic()
        with pytest.raises(InvalidInputError, match="returned 0 rows for 10"):
            table.compute_columns(function, **{**SIZE, "inputs": "id"}, batch_size=10, **more)
        assert time.monotonic() - begun < 30
        assert len(list(tmp_path.glob("call-*"))) <= 5
        assert not list(Path(table.uri, "_refs", "computations").glob("*-*"))

    def test_no_call_without_a_row_that_is_due(self, table):
        table.compute_columns(measure, **SIZE)

        def never(_):
            raise AssertionError

        before = lance_core.iops_counter()
        result = table.compute_columns(never, **SIZE)
        assert (result.rows_due, result.calls, result.version) == ({}, 0, 2)
        assert lance_core.iops_counter() - before < 12
        assert lance_core.dataset(table.uri).version == 2


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"inputs": ["none"]}, SchemaError, "none"),
            ({"inputs": []}, InvalidInputError, "need a column each"),
            ({"columns": pa.schema([])}, InvalidInputError, "need a column each"),
            ({"columns": pa.schema([pa.field("size", pa.int32(), nullable=False)])}, SchemaError, "must be nullable"),
            ({"columns": pa.schema([("id", pa.int64())])}, InvalidInputError, "'id' already, which .* does not own"),
            ({"columns": pa.schema([("text", pa.string())])}, InvalidInputError, "reads and sets the column 'text'"),
            ({"code_version": ""}, InvalidInputError, "code_version must be a string"),
            ({"name": ""}, InvalidInputError, "name must be a string"),
            ({"batch_size": 0}, InvalidInputError, "batch_size must be at least 1"),
            ({"commit_every": 0}, InvalidInputError, "commit_every must be at least 1 row"),
            ({"commit_every": "often"}, InvalidInputError, "is not a duration"),
            ({"concurrency": 2}, InvalidInputError, "only a coroutine function"),
            ({"on_running": "fight"}, InvalidInputError, "on_running is one of reject, wait, split"),
            ({"timeout": 0}, InvalidInputError, "timeout above 0"),
        ],
    )
    def test_are_rejected_before_a_call(self, table, options, error, message):
        def never(_):
            raise AssertionError

        with pytest.raises(error, match=message):
            table.compute_columns(never, **{**SIZE, **options})
        assert lance_core.dataset(table.uri).version == 1

    def test_a_table_without_stable_row_ids(self, tmp_path):
        table = lance_core.write_dataset({"text": ["a"]}, tmp_path / "t")
        with pytest.raises(UnsupportedError, match="migrate_to_stable_row_ids"):
            table.compute_columns(measure, **SIZE)
        table.migrate_to_stable_row_ids()
        assert table.compute_columns(measure, **SIZE).rows_computed == 1

    def test_another_type_of_the_column(self, table):
        table.compute_columns(measure, **SIZE)
        with pytest.raises(SchemaError, match="is int32, and computation 'size' returns int64"):
            table.compute_columns(measure, **{**SIZE, "columns": pa.schema([("size", pa.int64())])})

    def test_chains(self, table):
        """A computed column is an input of another one; equal values change nothing there."""
        table.compute_columns(measure, **SIZE)
        square = {
            "inputs": ["size"],
            "columns": pa.schema([("square", pa.int32())]),
            "name": "square",
            "code_version": "1",
        }

        def multiply(batch):
            return pc.multiply(batch["size"], batch["size"])

        assert table.compute_columns(multiply, **square).rows_computed == 100
        table.update({"text": "'x'"}, "id < 10")
        table.compute_columns(measure, **SIZE)
        due = [1 for i in range(10) if i % 7 != 1]
        assert table.compute_columns(multiply, **square).rows_due == {"inputs changed": len(due)}
        table.compute_columns(measure, **{**SIZE, "code_version": "2"})
        assert table.compute_columns(multiply, **square).rows_due == {}

    def test_pages_of_two_versions_of_files(self, tmp_path):
        for version in ("2.1", "2.2"):
            table = lance_core.write_dataset(
                {"text": ["a", None, "ccc"]},
                tmp_path / version,
                data_storage_version=version,
                enable_stable_row_ids=True,
            )
            table.compute_columns(measure, **SIZE)
            assert lance.dataset(table.uri).to_table()["size"].to_pylist() == [1, None, 3]
            assert table.compute_columns(measure, **SIZE).rows_due == {}


SPLIT = textwrap.dedent("""
    import sys, time
    import pyarrow as pa, pyarrow.compute as pc
    import lance_core

    uri, log, seconds, lease = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    options = {"inputs": ["id", "text"], "columns": pa.schema([("size", pa.int32())]), "name": "size"}

    def measure(batch):
        with open(log, "a") as file:
            file.write("".join(f"{number}\\n" for number in batch["id"].to_pylist()))
        time.sleep(seconds)
        return pc.utf8_length(batch["text"])

    result = lance_core.dataset(uri).compute_columns(
        measure, **options, code_version="1", batch_size=2, commit_every=4, on_running="split", lease_seconds=lease
    )
    print(result.rows_computed)
""")


PROGRAM = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    import pyarrow as pa, pyarrow.compute as pc
    import lance_core

    uri, log, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    options = {"inputs": ["text"], "columns": pa.schema([("size", pa.int32())]), "name": "size", "code_version": "1"}

    def measure(batch):
        with open(log, "a") as file:
            file.write(f"{batch.num_rows}\\n")
        time.sleep(seconds)
        return pc.utf8_length(batch["text"])

    lance_core.dataset(uri).compute_columns(measure, **options, batch_size=2, commit_every=10)
""")


class InterruptAfter:
    """A function that is interrupted once it was called on a number of rows."""

    def __init__(self, rows):
        self.left = rows

    def __call__(self, batch):
        if self.left <= 0:
            raise KeyboardInterrupt
        self.left -= batch.num_rows
        return measure(batch)


def start(table, log, seconds, program=PROGRAM):
    return running([sys.executable, "-c", program, table.uri, log, seconds])


def finish(table, log):
    run([sys.executable, "-c", PROGRAM, table.uri, log, 0], check=True)


def wait_for_calls(process, log, rows):
    end = time.monotonic() + 60
    while calls_in(log) < rows and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)


def calls_in(log):
    return sum(map(int, log.read_text().split())) if log.exists() else 0


class TestProcesses:
    def test_a_killed_run_is_continued(self, table, tmp_path):
        """Each kill repeats a batch and what was not staged at most."""
        log = tmp_path / "log"
        for rows in (30, 60, 80):
            with start(table, log, 0.005) as process:
                wait_for_calls(process, log, rows)
                process.kill()
        finish(table, log)
        assert lance.dataset(table.uri).to_table()["size"].to_pylist() == [i % 7 for i in range(100)]
        assert 100 <= calls_in(log) <= 100 + 3 * (10 + 2)
        assert not list(Path(table.uri, "data").glob("computed-*.lance"))

    def test_rows_that_were_staged_twice(self, table):
        """Of two runs that were killed, the one that staged the inputs of today counts, whatever its files' names."""
        for text in ("once", "twice"):
            table.update({"text": f"'{text}'"}, "id < 40")
            for _ in range(3):
                with pytest.raises(KeyboardInterrupt):
                    table.compute_columns(InterruptAfter(10), **SIZE, where="id < 40", batch_size=10, commit_every=10)
        result = table.compute_columns(measure, **SIZE, batch_size=10)
        assert (result.rows_staged_before, result.calls) == (30, 7)

    def test_workers_end_with_their_parent(self, table, tmp_path):
        log = tmp_path / "log"
        program = PROGRAM.replace("{batch.num_rows}", "{os.getpid()}").replace("=2,", "=1, processes=3,")
        with start(table, log, 0.05, program) as process:
            end = time.monotonic() + 60
            while not log.exists() or len(set(log.read_text().split())) < 3:
                assert time.monotonic() < end
                time.sleep(0.01)
            process.kill()
            process.wait()
            workers = set(log.read_text().split())
            end = time.monotonic() + 20
            while any(Path(f"/proc/{pid}").exists() for pid in workers):
                assert time.monotonic() < end, "a worker outlives its parent"
                time.sleep(0.05)

    @pytest.mark.slow
    def test_thirty_kills_at_random_moments(self, table, tmp_path):
        log, random = tmp_path / "log", np.random.default_rng(5)
        for _ in range(30):
            before = calls_in(log)
            with start(table, log, 0.002) as process:
                wait_for_calls(process, log, before + 1)
                time.sleep(random.random() * 0.1)
                process.kill()
        finish(table, log)
        assert lance.dataset(table.uri).to_table()["size"].to_pylist() == [i % 7 for i in range(100)]
        assert calls_in(log) <= 100 + 30 * (10 + 2)

    def test_one_run_at_a_time(self, table, tmp_path):
        log = tmp_path / "log"
        with start(table, log, 0.02) as process:
            wait_for_calls(process, log, 1)
            with pytest.raises(RetryableConflictError, match=f"is running on .* \\(process {process.pid}\\)"):
                table.compute_columns(measure, **SIZE)
            assert table.compute_columns(measure, **SIZE, on_running="wait").rows_due == {}
        assert calls_in(log) == 100
        assert table.compute_columns(measure, **SIZE).rows_due == {}

    def test_a_paused_run_that_was_taken_over(self, table, monkeypatch):
        """The lease ends while the function runs: neither staged rows nor a commit follow."""
        monkeypatch.setattr(leases.Lease, "_renew", lambda self: self._ended.wait())

        def pause(batch):
            age = time.time() - 3600
            (key,) = (Path(table.uri) / "_refs" / "computations").glob("*-*")
            lease = json.loads(key.read_text())
            key.write_text(json.dumps({**lease, "host": "another"}))
            os.utime(key, (age, age))
            assert lance_core.dataset(table.uri).compute_columns(measure, **SIZE).rows_computed == 100
            return measure(batch)

        with pytest.raises(SupersededError, match="another run computes the columns of"):
            table.compute_columns(pause, **SIZE, batch_size=100)
        assert lance_core.dataset(table.uri).version == 2
        assert list((Path(table.uri) / "_refs" / "computations").glob("*-*")) == []

    def test_rows_change_while_a_run_goes_on(self, table):
        """Values land on their rows, or rows stay due."""

        def change(batch):
            if batch["text"].to_pylist()[0] == "":
                other = lance.dataset(table.uri)
                other.update({"text": "'moved'"}, where="id = 3")
                other.delete("id = 4")
                other.insert(pa.table({"id": [1000], "text": ["new"]}))
                other.optimize.compact_files()
                lance_core.dataset(table.uri).update({"text": "'set'"}, "id = 5", write_mode="rewrite_columns")
            return measure(batch)

        result = table.compute_columns(change, **SIZE, batch_size=100)
        assert result.rows_computed == 99
        assert table.count_due_rows(**SIZE) == {"new": 1, "inputs changed": 2}
        assert table.compute_columns(measure, **SIZE).rows_computed == 3
        rows = lance.dataset(table.uri).to_table().to_pylist()
        assert len(rows) == 100
        assert all(row["size"] == len(row["text"]) for row in rows)
        table.cleanup_old_versions(timedelta(0))
        assert table.compute_columns(measure, **SIZE).rows_due == {}

    @pytest.mark.parametrize("library", [lance, lance_core])
    def test_a_column_that_others_add_while_a_run_goes_on(self, table, library):
        """Their values stay, and once their column is dropped the next run goes on from what was staged."""

        def add(batch):
            if "size" not in lance_core.dataset(table.uri).schema.names:
                library.dataset(table.uri).add_columns({"size": "cast(id as int)"})
            return measure(batch)

        with pytest.raises(
            IncompatibleConflictError, match=r"'size' was added by another writer \(drop or rename that"
        ):
            table.compute_columns(add, **SIZE, commit_every=10, batch_size=10)
        table.checkout_latest()
        assert table.to_table()["size"].to_pylist() == list(range(100))
        with pytest.raises(InvalidInputError, match="drop or rename that column"):
            table.compute_columns(measure, **SIZE)
        table.drop_columns(["size"])
        assert table.compute_columns(measure, **SIZE).rows_staged_before == 100

    def test_branches(self, table):
        """A run on a branch, and its promotion."""
        branch = table.create_branch("compute")
        assert branch.compute_columns(measure, **SIZE).rows_computed == 100
        assert "size" not in lance_core.dataset(table.uri).schema.names
        lance_core.dataset(table.uri).branches.promote("compute")
        main = lance_core.dataset(table.uri)
        assert main.to_table()["size"].to_pylist() == [i % 7 for i in range(100)]
        assert main.compute_columns(measure, **SIZE).rows_due == {}

    def test_versions_of_a_branch_are_not_those_of_main(self, table):
        """Changes on main after the promotion have smaller version numbers than the branch had."""
        branch = table.create_branch("long")
        for number in range(12):
            branch.insert({"id": [1000 + number], "text": ["bb"]})
        assert branch.compute_columns(measure, **SIZE).rows_due == {"new": 112}
        again = branch.compute_columns(measure, **SIZE)
        assert (again.rows_due, again.rows_compared) == ({}, 0)
        branch.update({"text": "'on the branch'"}, "id = 1")
        again = branch.compute_columns(measure, **SIZE)
        assert (again.rows_due, again.rows_compared) == ({"inputs changed": 1}, 0)
        main = lance_core.dataset(table.uri)
        main.insert({"id": [2000], "text": ["main"]})
        main.branches.promote("long")
        main.checkout_latest()
        assert main.count_due_rows(**SIZE) == {"new": 1}
        main.update({"text": "'changed'"}, "id in (3, 1003)")
        main.insert({"id": [2001], "text": ["later"]})
        assert main.version < branch.version
        assert main.count_due_rows(**SIZE) == {"new": 2, "inputs changed": 2}
        assert main.compute_columns(measure, **SIZE).rows_computed == 4
        # The rows of the promotion were compared once, and are not read again.
        assert main.compute_columns(measure, **SIZE).rows_compared == 0
        assert {row["text"]: row["size"] for row in main.to_table(["text", "size"]).to_pylist()}["later"] == 5

    def test_a_dropped_column_is_computed_again(self, table):
        two = {**SIZE, "columns": pa.schema([("size", pa.int32()), ("double", pa.int32())])}

        def both(batch):
            size = measure(batch)
            return pa.table({"size": size, "double": pc.multiply(size, 2)})

        table.compute_columns(both, **two)
        table.drop_columns(["double"])
        # A fragment is computed as a whole: its other rows have a record, and lack the column.
        assert table.compute_columns(both, **two, where="id < 10").rows_due == {"new": 40}
        assert table.compute_columns(both, **two).rows_due == {"new": 60}
        assert table.to_table(["double"])["double"].to_pylist() == [2 * (i % 7) for i in range(100)]

    def test_another_code_version_for_some_rows(self, table):
        """A commit by the new code, of some rows, settles nothing about the others."""
        table.compute_columns(measure, **SIZE)
        second = {**SIZE, "code_version": "2"}
        assert table.compute_columns(measure, **second, where="id < 10").rows_due == {"code changed": 10}
        assert table.compute_columns(measure, **second).rows_due == {"code changed": 90}
        assert table.compute_columns(measure, **second).rows_due == {}

    def test_fragments_that_record_no_versions_are_looked_at(self):
        record = Record(code="1", settled=9)
        versions = rowids_pb2.RowDatasetVersionSequence()
        versions.runs.add(version=9).span.range.end = 3
        settled = table_pb2.DataFragment(id=1, inline_last_updated_at_versions=versions.SerializeToString())
        assert due._is_settled(settled, record)
        assert not due._is_settled(settled, replace(record, settled=8))
        assert not due._is_settled(table_pb2.DataFragment(id=1), record)
        bare = Fragment(id=1, files=(), physical_rows=3)
        assert due._read_versions(bare, np.arange(3)).tolist() == [due.UNKNOWN_VERSION] * 3

    def test_a_table_in_a_bucket(self, s3):
        uri = f"s3://{s3.new_bucket()}/t.lance"
        options = {"storage_options": s3.storage_options}
        rows = pa.table({"text": ["a", "bb", "poison"]})
        table = lance_core.write_dataset(rows, uri, enable_stable_row_ids=True, **options)

        def fail(batch):
            if "poison" in batch["text"].to_pylist():
                raise ValueError
            return measure(batch)

        table.compute_columns(fail, **SIZE, batch_size=1, commit_every=1, max_failed_rows=1)
        assert lance.dataset(uri, **options).to_table()["size"].to_pylist() == [1, 2, None]
        failed = uri.replace("t.lance", "_failed/t.size.lance")
        assert lance_core.dataset(failed, **options).count_rows() == 1
        assert table.compute_columns(fail, **SIZE).rows_due == {}


def swap_columns(table, ids):
    """Another column gets the name of the input."""
    texts = table.to_table(["id", "text"]).to_pylist()
    table.add_columns(pa.table({"new": ["set" if row["id"] in ids else row["text"] for row in texts]}))
    lance.dataset(table.uri).alter_columns({"path": "text", "name": "old"}, {"path": "new", "name": "text"})


def swap_stored_columns(table, ids):
    """The columns are in one file, and have been there before the cells were computed."""
    assert set(ids) == {3, 5}
    lance.dataset(table.uri).alter_columns({"path": "text", "name": "old"}, {"path": "spare", "name": "text"})


def upsert(table, ids, *, by):
    rows = pa.table({"id": ids, "text": ["set"] * len(ids)})
    by.dataset(table.uri).merge_insert("id").when_matched_update_all().execute(rows)


def merge_column(table, ids):
    """The input is dropped, and comes back by pylance's merge."""
    rows = table.to_table(["id", "text"]).to_pylist()
    dataset = lance.dataset(table.uri)
    dataset.drop_columns(["text"])
    texts = ["set" if row["id"] in ids else row["text"] for row in rows]
    dataset.merge(pa.table({"id": [row["id"] for row in rows], "text": texts}), "id")


WAYS = {
    "data replacement by pylance": lambda table, ids: replace_data(table.uri, "id", dict.fromkeys(ids, "set")),
    "data replacement": lambda table, ids: replace_data(table.uri, "id", dict.fromkeys(ids, "set"), by=lance_core),
    "update_columns by pylance": lambda table, ids: update_columns(table.uri, "id", dict.fromkeys(ids, "set")),
    "update_columns with offsets by pylance": lambda table, ids: update_columns(
        table.uri, "id", dict.fromkeys(ids, "set"), with_offsets=True
    ),
    "renamed columns": swap_columns,
    "renamed columns of one file": swap_stored_columns,
    "upsert of some columns by pylance": partial(upsert, by=lance),
    "upsert of some columns": partial(upsert, by=lance_core),
    "merge by pylance": merge_column,
    "write_columns": lambda table, ids: table.write_columns(
        {"id": ids, "text": ["set"] * len(ids)}, on="id", missing="keep"
    ),
    "update of the fewest bytes": lambda table, ids: table.update(
        {"text": "'set'"}, f"id in ({', '.join(map(str, ids))})", write_mode="fewest_bytes"
    ),
}


def numbers_in(*logs):
    return sorted(int(line) for log in logs if log.exists() for line in log.read_text().split())


class TestSetup:
    """A worker that cannot be set up ends the run; no row is failed for it."""

    @pytest.mark.parametrize("way", ["os._exit(3)", "sys.exit(3)", "1 / 0"])
    def test_a_setup_that_dies_leaves_the_rows_due(self, table, way):
        def setup():
            exec(way, {"os": os, "sys": sys})

        calls = {**SIZE, "timeout": 10, "max_failed_rows": 100}
        with pytest.raises(InvalidInputError, match="setup failed: "):
            table.compute_columns(lambda batch, _: measure(batch), setup=setup, **calls)
        result = table.compute_columns(lambda batch, _: measure(batch), setup=lambda: 1, **calls)
        assert (result.rows_due, result.rows_failed) == ({"new": 100}, 0)

    def test_its_time_is_not_that_of_a_call(self, table):
        slow = {"setup": lambda: time.sleep(1.5), "timeout": 1, "processes": 2}
        assert table.compute_columns(lambda batch, _: measure(batch), **slow, **SIZE).rows_failed == 0

    def test_a_call_that_exits_is_one_that_failed(self, table):
        def leave(batch):
            sys.exit(3)

        table.compute_columns(leave, timeout=10, max_failed_rows=100, **SIZE)
        assert {failure["error"] for failure in failures(table)} == {"SystemExit: 3"}

    def test_a_column_named_like_the_record_is_rejected_before_a_call(self, table):
        columns = pa.schema([("_size", pa.int32())])
        with pytest.raises(InvalidInputError, match="keeps the record of each row in the column '_size'"):
            table.compute_columns(measure, **{**SIZE, "columns": columns})


class TestSplitRuns:
    """Each of three runs computes rows that no other one holds, in a table of 25 fragments."""

    @pytest.fixture
    def table(self, tmp_path):
        rows = {"id": range(100), "text": ["x" * (i % 7) for i in range(100)]}
        return lance_core.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=4, enable_stable_row_ids=True)

    def start(self, table, log, seconds=0.05, lease=120):
        return running(
            [sys.executable, "-c", SPLIT, table.uri, log, seconds, lease], talks=True, log=Path(f"{log}.err")
        )

    def check(self, table, **due):
        table.checkout_latest()
        assert table.to_table()["size"].to_pylist() == [i % 7 for i in range(100)]
        assert lance.dataset(table.uri).to_table()["size"].to_pylist() == [i % 7 for i in range(100)]
        assert table.count_due_rows(**SIZE | {"inputs": ["id", "text"]}) == due
        assert not list(Path(table.uri, "data").glob("computed-*"))
        assert not list(Path(table.uri, "_refs", "computations").glob("*-*"))

    def test_each_row_is_called_once(self, table, tmp_path):
        logs = [tmp_path / f"log-{number}" for number in range(3)]
        with contextlib.ExitStack() as stack:
            runs = [stack.enter_context(self.start(table, log)) for log in logs]
            lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=20)
            computed = [int(each.communicate(timeout=60)[0].split()[0]) for each in runs]
        assert numbers_in(*logs) == list(range(100))
        assert sum(computed) == 100
        assert sum(log.exists() for log in logs) > 1  # one that starts late finds nothing left
        self.check(table)

    def test_a_run_of_other_rows(self, table, tmp_path):
        """A run of all holds what is due in its condition alone."""

        def start():
            return lance_core.dataset(table.uri).compute_columns(measure, **options, on_running="split")

        def during(batch):
            if not others:
                others.extend(pool.submit(start) for _ in range(2))
                while lance_core.dataset(table.uri).count_due_rows(**options) != {"new": 40}:
                    time.sleep(0.01)
                assert not any(other.done() for other in others)
            return measure(batch)

        options, others = SIZE | {"inputs": ["id", "text"]}, []
        with ThreadPoolExecutor() as pool:
            assert table.compute_columns(during, **options, where="id < 40").rows_computed == 40
        assert sum(other.result().rows_computed for other in others) == 60
        self.check(table)

    def test_waits_for_the_rows_of_a_run_that_fails(self, table):
        """What the other one leaves is computed at the end."""

        def start():
            return lance_core.dataset(table.uri).compute_columns(measure, **options, on_running="split")

        def fail(batch):
            if not others:
                others.append(pool.submit(start))
                while lance_core.dataset(table.uri).count_due_rows(**options) != {"new": 40}:
                    time.sleep(0.01)
            raise KeyboardInterrupt

        options, others = SIZE | {"inputs": ["id", "text"]}, []
        with ThreadPoolExecutor() as pool, pytest.raises(KeyboardInterrupt):
            table.compute_columns(fail, **options, where="id < 40")
        assert others[0].result().rows_computed == 100
        self.check(table)
        assert table.compute_columns(measure, **options | {"code_version": "2"}).rows_computed == 100
        assert table.compute_columns(measure, **options | {"code_version": "2"}).rows_compared == 0

    def test_rows_of_a_killed_run_are_taken_over(self, table, tmp_path):
        logs = [tmp_path / f"log-{number}" for number in range(2)]
        with self.start(table, logs[0], 0.1) as killed, self.start(table, logs[1], 0.1) as other:
            wait_for_calls(killed, logs[0], 1)
            killed.kill()
            killed.wait()
            assert other.communicate(timeout=60)[0]
        assert set(numbers_in(*logs)) == set(range(100))
        assert len(numbers_in(*logs)) <= 100 + 4 + 2
        assert table.checkout_latest() is None
        self.check(table)

    def test_a_paused_run_that_comes_back(self, table, tmp_path):
        """It writes nothing once another one took its rows over, and ends by an error."""
        logs = [tmp_path / f"log-{number}" for number in range(2)]
        with self.start(table, logs[0], 0.1, 3) as paused:
            wait_for_calls(paused, logs[0], 1)
            os.kill(paused.pid, signal.SIGSTOP)
            with self.start(table, logs[1], 0, 3) as other:
                other.communicate(timeout=60)
            time.sleep(4)
            finish_split = [sys.executable, "-c", SPLIT, table.uri, logs[1], 0, 3]
            run(finish_split, check=True)
            version = lance_core.dataset(table.uri).version
            os.kill(paused.pid, signal.SIGCONT)
            assert paused.wait() != 0
        assert set(numbers_in(logs[1])) == set(range(100))
        assert lance_core.dataset(table.uri).version == version
        self.check(table)


class TestInputsSetByOthers:
    @pytest.mark.variants(8)
    @pytest.mark.parametrize("then", ["", "compact", "compact, clean"])
    @pytest.mark.parametrize("way", WAYS)
    def test_their_rows_are_due(self, table, way, then):
        spare = ["set" if i in (3, 5) else "x" * (i % 7) for i in range(100)]
        table.add_columns(pa.table({"spare": spare}))
        lance.dataset(table.uri).optimize.compact_files()
        table.checkout_latest()
        lance_core.write_dataset(table.to_table(), table.uri, mode="overwrite", max_rows_per_file=40)
        table.checkout_latest()
        assert table.compute_columns(measure, **SIZE, visible_every=40).rows_computed == 100
        WAYS[way](table, [3, 5])
        if "compact" in then:
            lance.dataset(table.uri).optimize.compact_files()
        if "clean" in then:
            lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
        table.checkout_latest()
        assert table.count_due_rows(**SIZE) == {"inputs changed": 2}
        result = table.compute_columns(measure, **SIZE)
        assert (result.rows_due, result.rows_computed) == ({"inputs changed": 2}, 2)
        texts = ["set" if i in (3, 5) else "x" * (i % 7) for i in range(100)]
        rows = sorted(lance.dataset(table.uri).to_table(["id", "text", "size"]).to_pylist(), key=lambda row: row["id"])
        assert [(row["text"], row["size"]) for row in rows] == [(text, len(text)) for text in texts]
        assert table.compute_columns(measure, **SIZE).rows_due == {}

    def test_on_a_branch(self, table):
        """The promotion brings them; cells that were computed on the branch meanwhile are not compared again."""
        table.compute_columns(measure, **SIZE)
        branch = table.create_branch("changed")
        update_columns(table.uri, "id", {3: "set"}, branch="changed")
        branch.checkout_latest()
        assert branch.count_due_rows(**SIZE) == {"inputs changed": 1}
        main = lance_core.dataset(table.uri)
        main.branches.promote("changed")
        main.checkout_latest()
        assert main.compute_columns(measure, **SIZE).rows_due == {"inputs changed": 1}
        assert main.compute_columns(measure, **SIZE).rows_compared == 0

    def test_while_rows_move(self, table):
        """A compaction during the run changes no input: its fragments are not compared afterwards."""

        def compact(batch):
            lance.dataset(table.uri).optimize.compact_files()
            return measure(batch)

        table.compute_columns(compact, **SIZE, batch_size=100)
        assert len(table.get_fragments()) == 1
        again = table.compute_columns(measure, **SIZE)
        assert (again.rows_due, again.rows_compared) == ({}, 0)

    def test_another_list_of_inputs(self, table):
        table.compute_columns(measure, **SIZE)
        assert table.compute_columns(measure, **SIZE | {"inputs": ["id", "text"]}).rows_due == {"inputs changed": 100}
        assert table.count_due_rows(**SIZE | {"inputs": ["id", "text"]}) == {}
        assert table.count_due_rows(**SIZE | {"inputs": ["text", "id"]}) == {}

    def test_another_order_of_inputs(self, table):
        """Nothing is called again, also for rows that are compared; the function gets the inputs in its order."""

        def call(batch):
            orders.append(batch.schema.names)
            return measure(batch)

        orders, options = [], SIZE | {"inputs": ["text", "id"]}
        table.compute_columns(call, **options)
        table.update({"text": "text"}, "id < 40")
        other = SIZE | {"inputs": ["id", "text"]}
        again = table.compute_columns(call, **other)
        assert (again.rows_due, again.rows_compared, orders) == ({}, 40, [["text", "id"]])
        table.insert({"id": [200], "text": ["new"]})
        assert table.compute_columns(call, **other).rows_due == {"new": 1}
        assert orders == [["text", "id"], ["id", "text"]]
        assert table.count_due_rows(**options) == {}


def test_due_rows_are_estimated_by_the_last_runs(table):
    """By their calls; a run without a call changes nothing."""
    assert table.count_due_rows(**SIZE).seconds_per_row is None

    def wait(batch):
        time.sleep(0.01 * batch.num_rows)
        return measure(batch)

    table.compute_columns(wait, **SIZE, where="id < 20", batch_size=5, cost_per_row=0.25)
    table.compute_columns(wait, **SIZE, where="id < 20")
    due = table.create_branch("estimated").count_due_rows(**SIZE)
    assert due == {"new": 80}
    assert (due.total, due.share, due.cost_per_row) == (80, 0.8, 0.25)
    assert 0.01 < due.seconds_per_row < 1


def test_estimates_have_what_failed_and_killed_runs_spent(table, tmp_path):
    """Of each 20 rows one batch is divided; a run that ends early counts what it called, and what it staged."""

    def fail(batch):
        if "xxxxxx" in batch["text"].to_pylist():
            raise ValueError
        return measure(batch)

    options = {**SIZE, "batch_size": 4, "commit_every": 4, "cost_per_row": 0.5}
    with pytest.raises(FailedRowsError):
        table.compute_columns(fail, **options, where="id < 8")
    due = table.count_due_rows(**SIZE)
    assert (due.calls_per_row, due.cost_per_row) == ((8 + 4 + 2) / 8, 0.5 * (8 + 4 + 2) / 8)
    result = table.compute_columns(fail, **options, where="id < 16", max_failed_rows=1)
    assert (result.calls, result.rows_called) == (2 + 4, 8 + 4 + 2)
    with start(table, tmp_path / "log", 0.01) as process:
        wait_for_calls(process, tmp_path / "log", 30)
        process.kill()
    runs = json.loads(Path(table.uri, "_refs", "computations", f"{b'size'.hex()}.json").read_text())
    assert len(runs) == 3
    assert runs[-1]["rows"] == runs[-1]["called"] >= 20
    with pytest.raises(KeyboardInterrupt):
        table.compute_columns(InterruptAfter(8), **options)
    assert table.count_due_rows(**SIZE).calls_per_row < 1.75


def test_a_terminal_shows_a_progress_bar(table, tmp_path):
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, table.uri, tmp_path / "log", 0.02]
    with running(command, terminal=theirs, env={**os.environ, "COLUMNS": "150", "TERM": "xterm"}) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other side is closed
            while part := os.read(ours, 65536):
                shown += part
        assert process.wait(60) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"size .* 100/100 \d+ rows/s, 0 failed", plain)


def test_the_command_lists_computations_and_due_rows(table):
    def listed():
        result = CliRunner().invoke(cli, ["columns", table.uri, "--json"])
        assert result.exit_code == 0
        return json.loads(result.stdout)

    assert listed() == []
    table.compute_columns(measure, **SIZE)
    facts = {"name": "size", "columns": ["size"], "inputs": ["text"], "code_version": "1"}
    facts |= {"failed": 0, "staged": 0, "cost": None}
    assert listed() == [{**facts, "due": 0, "share": 0, "seconds": 0}]
    table.insert({"id": [200], "text": ["new"]})
    table.update({"text": "'other'"}, "id < 3")
    (line,) = listed()
    assert line["seconds"] is not None  # three digits: 0 on a fast machine
    assert line | {"seconds": 0} == {**facts, "due": 4, "new": 1, "inputs changed": 3, "share": 0.0396, "seconds": 0}
    table.compute_columns(measure, **SIZE, where="id = 200", cost_per_row=0.5)
    assert [(line["due"], line["cost"]) for line in listed()] == [(3, 1.5)]
    table.drop_columns(["size"])
    assert listed() == []


def list_columns(table):
    return json.loads(CliRunner().invoke(cli, ["columns", table.uri, "--json"]).stdout)


class Poison:
    """A function that fails on some texts, and counts its rows."""

    def __init__(self, *texts):
        self.texts, self.rows = texts, 0

    def __call__(self, batch):
        self.rows += batch.num_rows
        if not set(self.texts).isdisjoint(batch["text"].to_pylist()):
            raise ValueError("poison")
        return measure(batch)


def test_changed_inputs_are_the_reason_of_rows_that_failed(table):
    """A failed row whose inputs are equal is still `failed`, if such rows are asked for."""
    table.update({"text": "'bad'"}, "id < 3")
    table.compute_columns(Poison("bad"), **SIZE, max_failed_rows=3)
    table.update({"text": "'good'"}, "id = 1")
    table.update({"text": "text"}, "id = 2")
    assert table.count_due_rows(**SIZE) == {"inputs changed": 1}
    assert table.count_due_rows(**SIZE, retry_failed=True) == {"inputs changed": 1, "failed": 2}
    (line,) = list_columns(table)
    assert (line["due"], line["inputs changed"], line["failed"]) == (1, 1, 2)
    result = table.compute_columns(measure, **SIZE, retry_failed=True)
    assert (result.rows_due, result.rows_computed) == ({"inputs changed": 1, "failed": 2}, 3)


def test_the_command_knows_the_inputs_of_the_newest_run(table):
    table.compute_columns(measure, **SIZE)
    table.compute_columns(measure, **SIZE | {"inputs": ["text", "id"]})
    table.update({"id": "id + 1000"}, "id < 5")
    (line,) = list_columns(table)
    assert (line["inputs"], line["due"]) == (["id", "text"], 5)


def test_staged_rows_are_counted_apart(table):
    """By the dry run and by the command, before the first commit and after it; they are not called, nor in the rate."""
    options = {**SIZE, "batch_size": 5, "commit_every": 5, "cost_per_row": 2.0, "max_failed_rows": 1}
    with pytest.raises(KeyboardInterrupt):
        table.compute_columns(InterruptAfter(40), **options)
    due = table.count_due_rows(**SIZE)
    assert (due, due.total, due.staged, due.cost) == ({"new": 100}, 100, 40, 120)
    (line,) = list_columns(table)
    assert (line["name"], line["columns"], line["inputs"], line["code_version"]) == ("size", ["size"], ["text"], "1")
    assert (line["due"], line["staged"], line["cost"]) == (100, 40, 120)
    steps = []
    call = Poison()
    assert table.compute_columns(call, **options, progress=steps.append).rows_staged_before == 40
    assert (call.rows, steps[-1].rows_done, steps[-1].rows_computed) == (60, 100, 60)
    assert steps[-1].rows_per_second * steps[-1].seconds == pytest.approx(60)
    assert (table.count_due_rows(**SIZE).staged, list_columns(table)[0]["staged"]) == (0, 0)
    table.update({"text": "'changed'"}, "id < 20")
    with pytest.raises(KeyboardInterrupt):
        table.compute_columns(InterruptAfter(15), **options)
    table.update({"text": "'again'"}, "id < 3")
    due = table.count_due_rows(**SIZE)
    assert (due, due.staged, list_columns(table)[0]["cost"]) == ({"inputs changed": 20}, 12, 16)
    assert table.compute_columns(Poison(), **options).calls == 2
    table.update({"text": "'third'"}, "id < 20")
    with pytest.raises(KeyboardInterrupt):
        table.compute_columns(InterruptAfter(15), **options)
    table.drop_columns(["text"])  # what is staged has no inputs any more
    table.drop_columns(["size"])
    assert list_columns(table) == []


def test_failed_rows_of_a_branch_are_those_of_main_after_its_promotion(table):
    """Also of rows that the branch added, which get other ids; the entries of a branch stay while it is there."""
    table.update({"text": "'bad'"}, "id = 3")
    options = {**SIZE, "max_failed_rows": 9}
    for name in ("kept", "promoted"):
        branch = table.create_branch(name)
        branch.insert({"id": [200], "text": [name]})
        branch.compute_columns(Poison("bad", name), **options, attempt=name)
    table.insert({"id": [300], "text": ["on main"]})
    table.branches.promote("promoted")
    table.checkout_latest()
    assert table.compute_columns(Poison(), **options, attempt="main").rows_due == {"new": 1}

    def listed():
        return {(row["branch"], row["row_id"]): (row["error"], row["attempt"]) for row in failures(table)}

    ids = {row["id"]: row["_rowid"] for row in table.to_table(["id", "_rowid"]).to_pylist()}
    (own,) = {row_id for branch, row_id in listed() if branch == "promoted"} - {ids[3]}
    error = ("ValueError: poison", "promoted")
    assert {key: entry for key, entry in listed().items() if key[0] != "kept"} == {
        ("main", ids[3]): error, ("main", ids[200]): error, ("promoted", ids[3]): error, ("promoted", own): error,
    }  # fmt: skip
    table.branches.discard("promoted")
    table.compute_columns(Poison(), **options)
    assert {branch for branch, _ in listed()} == {"main", "kept"}
    assert table.compute_columns(Poison(), **options, retry_failed=True).rows_computed == 2
    assert {branch for branch, _ in listed()} == {"kept"}


@pytest.mark.parametrize("code_version", ["1", "2"])
def test_rows_that_were_compared_are_not_compared_again(table, code_version):
    """After another computation, and after updates of another column; an update of the inputs is seen then."""
    options = SIZE | {"code_version": code_version}
    table.compute_columns(measure, **SIZE)
    table.compute_columns(measure, **options)
    other = {"inputs": ["text"], "columns": pa.schema([("other", pa.int32())]), "name": "other", "code_version": "1"}
    for where in ("id < 40", "id >= 40"):
        table.compute_columns(measure, **other, where=where)
    first = table.compute_columns(measure, **options)
    assert (first.rows_compared, first.commits, first.version) == (100, 0, first.read_version + 1)
    again = table.compute_columns(measure, **options)
    assert (again.rows_compared, again.version) == (0, first.version)
    lance.dataset(table.uri).update({"id": "id + 1"}, "id >= 60")
    assert [table.compute_columns(measure, **options).rows_compared for _ in range(3)] == [40, 0, 0]
    table.update({"text": "'changed'"}, "id < 5")
    assert table.compute_columns(measure, **options).rows_due == {"inputs changed": 5}
    rows = table.to_table(["text", "size"]).to_pylist()
    assert all(row["size"] == len(row["text"]) for row in rows)


@pytest.mark.parametrize("visible_every", [20, 40])
def test_early_commits_are_own_versions(table, visible_every):
    """Their rows are not compared by later runs, but those are that another writer has changed meanwhile."""
    options = {**SIZE, "batch_size": 5, "visible_every": visible_every}
    assert table.compute_columns(measure, **options).commits > 1
    again = table.compute_columns(measure, **options)
    assert (again.rows_due, again.rows_compared) == ({}, 0)

    def change(batch):
        if len(changed) == 3:
            lance.dataset(table.uri).update({"text": "'meanwhile'"}, "id = 7")
        changed.append(batch.num_rows)
        return measure(batch)

    changed = []
    assert table.compute_columns(change, **options | {"code_version": "2"}).commits > 1
    assert table.compute_columns(measure, **options | {"code_version": "2"}).rows_due == {"inputs changed": 1}
    rows = table.to_table(["text", "size"]).to_pylist()
    assert all(row["size"] == len(row["text"]) for row in rows)


VALUES = [
    (["a", "a\0", "", "abcdefgh", "abcdefghi", None, "x" * 600, "x" * 601, "x" * 512], pa.string()),
    ([[1], [1, 0], [], None, [0, 1], [1, 1]], pa.list_(pa.int64())),
    (
        [{"a": 1, "b": 2}, {"a": 2, "b": 1}, None, {"a": None, "b": 1}],
        pa.struct([("a", pa.int64()), ("b", pa.int64())]),
    ),
    ([[("a", 1)], [("b", 1)], [], None, [("a", None)]], pa.map_(pa.string(), pa.int64())),
    ([[1.0, 2.0], None, [2.0, 1.0], [1.0, None], [1.0, 0.0]], pa.list_(pa.float32(), 2)),
    ([True, False, None], pa.bool_()),
    ([b"abc", b"abd", None], pa.binary(3)),
    ([1, 2, None, -1], pa.timestamp("us")),
    ([1.5, -1.5, None, 0.0], pa.float16()),
]


@pytest.mark.parametrize(
    ("values", "kind"), VALUES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_digests_depend_on_values_alone(values, kind):
    array = pa.array(np.array(values, np.float16), kind) if kind == pa.float16() else pa.array(values, kind)
    digests = digest_rows(pa.record_batch({"a": array})).tolist()
    assert len(set(digests)) == len(set(map(str, array.to_pylist())))
    for start in range(len(values)):
        part = pa.chunked_array([array.slice(start, 1), array.slice(start + 1)])
        assert digest_rows(pa.table({"a": part})).tolist() == digests[start:]
    if not pa.types.is_nested(kind) and kind != pa.float16():
        assert digest_rows(pa.record_batch({"a": array.dictionary_encode()})).tolist() == digests


def test_digests_are_the_same_in_each_release():
    rows = pa.record_batch({"a": pa.array([1, None]), "b": pa.array(["text", ""])})
    assert digest_rows(rows).tolist() == DIGESTS


DIGESTS = [-5934630573208423151, -7119460805655766528]


class TestTypesOfResults:
    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (pa.string(), pa.array([1, 2])),
            (pa.int32(), pa.array(["1", "2"])),
            (pa.bool_(), pa.array([5, 0])),
            (pa.float32(), pa.array([0.1, 1e300])),
            (pa.list_(pa.float32(), 1), pa.array([[1e300], [1.0]])),
            (pa.string(), pa.array([True, False])),
            (pa.timestamp("us"), pa.array([1, 2])),
            (pa.timestamp("us"), pa.array([1, 2], pa.timestamp("us", "UTC"))),
            (pa.date32(), pa.array([1, 2], pa.int32())),
            (pa.struct([("a", pa.int64())]), pa.array([{"a": 1, "b": 2}] * 2)),
            (pa.int32(), pa.array([1, 2**40])),
            (pa.map_(pa.string(), pa.string()), pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))),
        ],
        ids=str,
    )
    def test_another_kind_ends_the_run(self, tmp_path, kind, values):
        table = lance_core.write_dataset({"id": [1, 2]}, tmp_path / "t", enable_stable_row_ids=True)
        with pytest.raises(SchemaError, match="other types than its columns"):
            table.compute_columns(
                lambda _: values, inputs="id", columns=pa.schema([("v", kind)]), name="v", code_version="1"
            )
        assert table.schema.names == ["id"]

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (pa.list_(pa.float32(), 2), pa.array([[0.5, 1.5], None])),
            (pa.int32(), pa.array([2, 3])),
            (pa.float32(), pa.array([float("inf"), None])),
            (pa.string(), pa.nulls(2)),
            (pa.string(), pa.array(["a", "b"], pa.large_string())),
            (pa.struct([("a", pa.int32())]), pa.array([{"a": 1}, None])),
            (pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[0.5, 1.5], [2.0, 3.0]], pa.list_(pa.float32(), 2))),
        ],
        ids=str,
    )
    def test_another_width_is_converted(self, tmp_path, kind, values):
        table = lance_core.write_dataset({"id": [1, 2]}, tmp_path / "t", enable_stable_row_ids=True)
        table.compute_columns(
            lambda _: values, inputs="id", columns=pa.schema([("v", kind)]), name="v", code_version="1"
        )
        assert table.to_table(["v"])["v"].to_pylist() == values.to_pylist()


@pytest.mark.parametrize("options", [{}, {"processes": 2}, {"timeout": 60}], ids=str)
def test_what_was_computed_before_an_error_is_kept(tmp_path, options):
    table = lance_core.write_dataset({"id": range(2000)}, tmp_path / "t", enable_stable_row_ids=True)

    def compute(batch):
        return (
            batch["id"].slice(1) if 1500 in batch["id"].to_pylist() and not (tmp_path / "on").exists() else batch["id"]
        )

    what = {"inputs": "id", "columns": pa.schema([("v", pa.int64())]), "name": "v", "code_version": "1"}
    with pytest.raises(InvalidInputError):
        table.compute_columns(compute, **what, batch_size=20, **options)
    (tmp_path / "on").touch()
    assert table.compute_columns(compute, **what, batch_size=20).rows_staged_before >= 1400


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_ends_the_program(tmp_path, error):
    table = lance_core.write_dataset({"id": [1, 2]}, tmp_path / "t", enable_stable_row_ids=True)

    async def compute(batch):
        raise error

    with pytest.raises(error):
        table.compute_columns(compute, inputs="id", columns=pa.schema([("v", pa.int64())]), name="v", code_version="1")
