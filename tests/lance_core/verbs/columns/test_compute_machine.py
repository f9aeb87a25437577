"""Random histories of a table with a computed column: after each step the calls and the cells are a model's."""

import copy
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import RetryableConflictError
from lance_core.verbs.columns.compute.digests import digest_rows
from lance_core.verbs.columns.compute.lease import Lease
from tests.inputs_in_place import replace_data, update_columns

COLUMNS = pa.schema([("size", pa.int64())])
BATCH, STAGED = 4, 10


class Killed(BaseException):
    """The process ends while the function runs."""


class Machine:
    """A table and its model.

    Attributes:
        rows: For each key its text, and what its cell was computed from: code and text; None for no cell.
        staged: Keys, codes and texts of which a value may be staged.
    """

    def __init__(self, uri, seed):
        self.random = random.Random(seed)
        self.uri, self.keys, self.steps = str(uri), 0, []
        self.rows, self.versions = {}, {}
        self.staged = set()
        texts = self.new_rows(30)
        lance_core.write_dataset(texts, self.uri, max_rows_per_file=11, enable_stable_row_ids=True)

    @property
    def table(self):
        return lance_core.dataset(self.uri)

    def new_text(self):
        return self.random.choice(["", "a", "bb", "poison", "é" * self.random.randrange(30), str(self.random.random())])

    def new_rows(self, number):
        keys = range(self.keys, self.keys + number)
        self.keys += number
        texts = [self.new_text() for _ in keys]
        self.rows.update({key: (text, None) for key, text in zip(keys, texts, strict=True)})
        return pa.table({"key": keys, "text": texts, "other": [0] * number})

    def some_keys(self):
        return self.random.sample(sorted(self.rows), min(len(self.rows), self.random.choice([1, 3, 20])))

    def pick(self, library=None):
        return (library or self.random.choice([lance, lance_core])).dataset(self.uri)

    # Steps

    def append(self):
        self.pick().insert(self.new_rows(self.random.choice([1, 5, 40])))

    def update_inputs(self):
        text, keys = self.new_text(), self.some_keys()
        self.pick().update({"text": f"'{text}'"}, where=f"key in ({', '.join(map(str, keys))})")
        self.rows.update({key: (text, self.rows[key][1]) for key in keys})

    def update_in_place(self):
        text, keys = self.new_text(), self.some_keys()
        where = f"key in ({', '.join(map(str, keys))})"
        self.pick(lance_core).update({"text": f"'{text}'"}, where=where, write_mode="rewrite_columns")
        self.rows.update({key: (text, self.rows[key][1]) for key in keys})

    def set_inputs(self):
        """By pylance, in place; some of these do not record which rows changed."""
        way = self.random.choice([replace_data, update_columns, partial(update_columns, with_offsets=True)])
        texts = {key: self.new_text() for key in self.some_keys()}
        if not self.table.get_fragments():
            return "no fragment"
        for key in way(self.uri, "key", texts):
            self.rows[key] = (texts[key], self.rows[key][1])
        return getattr(way, "__name__", "with offsets")

    def update_others(self):
        self.pick().update({"other": "other + 1"}, where=f"key % 3 = {self.random.randrange(3)}")

    def upsert_equal(self):
        keys = self.some_keys()
        rows = pa.table({"key": keys, "text": [self.rows[key][0] for key in keys], "other": [7] * len(keys)})
        merge = self.pick(lance_core).merge_insert("key")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def delete(self):
        keys = self.some_keys()[:5]
        self.pick().delete(f"key in ({', '.join(map(str, keys))})")
        for key in keys:
            del self.rows[key]

    def compact(self):
        self.pick().optimize.compact_files()

    def clean(self):
        self.table.cleanup_old_versions(timedelta(0), retain_versions=1)
        self.versions = {}

    def restore(self):
        version = self.random.choice([*self.versions, None])
        if version is not None:
            table = lance_core.dataset(self.uri, version=version)
            table.restore()
            self.rows = copy.deepcopy(self.versions[version])

    def add_index(self):
        self.pick(lance_core).create_scalar_index("key", "BTREE", replace=True)

    def promote(self):
        """A branch computes cells, with more versions than main has meanwhile."""
        name = f"b{len(self.steps)}"
        branch = self.table.create_branch(name)
        for _ in range(self.random.randrange(8)):
            branch.insert(self.new_rows(1))
        if self.random.random() < 0.5:
            keys = self.some_keys()
            branch.update({"text": "'of a branch'"}, f"key in ({', '.join(map(str, keys))})")
            self.rows.update({key: ("of a branch", self.rows[key][1]) for key in keys})
        if self.random.random() < 0.3 and branch.get_fragments():
            texts = {key: self.new_text() for key in self.some_keys()}
            for key in update_columns(self.uri, "key", texts, branch=name):
                self.rows[key] = (texts[key], self.rows[key][1])
        of_branch = set(self.rows)
        said = [self.compute(name) for _ in range(self.random.choice([1, 1, 2]))]
        self.pick().insert(self.new_rows(2))
        assert set(self.rows) > of_branch
        self.table.branches.promote(name)
        self.table.branches.delete(name)
        return "; ".join(said)

    def compute(self, branch=None, *, kill=False):
        code = self.random.choice(["1", "1", "1", "2"])
        left = self.random.randrange(1, 40) if kill else None
        called = Counter()

        def measure(batch):
            nonlocal left
            if left is not None and (left := left - batch.num_rows) < 0:
                raise Killed
            texts = batch["text"].to_pylist()
            if "poison" in texts:
                raise ValueError("poison")
            called.update(texts)
            return pa.array([len(text) + 1000 * int(code) for text in texts])

        where = self.random.choice([None, None, "key % 2 = 0"])
        table = self.table if branch is None else self.table.checkout_version((branch, None))
        due = {
            key for key, (text, cell) in self.rows.items() if cell != (code, text) and (where is None or key % 2 == 0)
        }
        expected = Counter(self.rows[key][0] for key in due if self.rows[key][0] != "poison")
        options = {"inputs": ["text"], "columns": COLUMNS, "name": "size", "code_version": code}
        options["where"] = where
        counted = table.count_due_rows(**options)
        assert sum(counted.values()) == len(due), (counted, len(due))
        texts = {key: self.rows[key][0] for key in due}
        before = self.staged if branch is None else set()
        staged = Counter(text for key, text in texts.items() if (key, code, text) in before)
        try:
            result = table.compute_columns(
                measure, **options, batch_size=BATCH, max_failed_rows=10**6,
                commit_every=self.random.choice([STAGED, "1ms"]),
                visible_every=self.random.choice([None, 15]) if not kill else None,
                executor=self.random.choice([None, None, self.execute]),
            )  # fmt: skip
        except Killed:
            assert called <= expected
            self.staged |= {(key, code, text) for key, text in texts.items()}
            return f"code {code}, killed after {called.total()} of {len(due)} rows"
        assert sum(result.rows_due.values()) == len(due)
        assert result.rows_computed == len(due)
        assert called <= expected, called - expected
        assert not (expected - called) - staged, "rows were neither called nor staged"
        if not before:
            assert called == expected
            assert (result.commits > 0) == bool(due)
        if due and branch is None and where is None:
            self.staged = {one for one in self.staged if one[1] != code}
        self.rows.update({key: (self.rows[key][0], (code, self.rows[key][0])) for key in due})
        return (
            f"code {code}, {where or 'all'}, {len(due)} rows, calls {result.calls}, staged {result.rows_staged_before}"
        )

    def execute(self, plan):
        """Run tasks, of which the answers of some are lost, so that they are attempted again."""
        tasks = plan.divide(self.random.randrange(1, 6))
        for task in self.random.sample(tasks, len(tasks)):
            if self.random.random() < 0.3:
                task.run()
            yield task.run()

    def kill(self):
        return self.compute(kill=True)

    def two_runs(self):
        """While a run computes some rows, another one is rejected, or computes rows of other fragments."""
        code, mode = self.random.choice("12"), self.random.choice(["reject", "split", "split"])
        options = {"inputs": ["text"], "columns": COLUMNS, "name": "size", "code_version": code, "batch_size": BATCH}
        options |= {"commit_every": STAGED, "max_failed_rows": 10**6}
        called, results, others, waits = [Counter(), Counter()], [], [], threading.Event()

        def measure(batch, number):
            if number == 0 and not results:
                begin_second()
            texts = batch["text"].to_pylist()
            if "poison" in texts:
                raise ValueError("poison")
            called[number].update(texts)
            return pa.array([len(text) + 1000 * int(code) for text in texts])

        def begin_second():
            results.append(None)
            if self.random.random() < 0.3:
                self.compact()
            if mode == "reject":
                with pytest.raises(RetryableConflictError):
                    self.table.compute_columns(partial(measure, number=1), **options)
            else:
                second = partial(measure, number=1)
                others.append(pool.submit(self.table.compute_columns, second, **options, on_running=mode))
                while not others[0].done() and not waits.is_set():
                    time.sleep(0.01)

        def wait(lease):
            waits.set()
            return wait_for_others(lease)

        due = {key for key, (text, cell) in self.rows.items() if cell != (code, text)}
        first = {key for key in due if key % 2 == 0}
        wait_for_others = Lease.wait_for_others
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
            patch.setattr(Lease, "wait_for_others", wait)
            result = self.table.compute_columns(
                partial(measure, number=0),
                **options,
                where="key % 2 = 0",
                on_running=self.random.choice([mode, "wait"]),
            )
        texts = [Counter(self.rows[key][0] for key in keys if self.rows[key][0] != "poison") for keys in (first, due)]
        assert called[0] <= texts[0]
        assert called[0] + called[1] <= texts[1], "a row was called twice"
        is_done = dict.fromkeys(self.rows, False)
        if "_size" in self.table.schema.names:
            rows = self.table.to_table(columns=["key", "text", "_size"])
            states = zip(rows["_size"].to_pylist(), digest_rows(rows.select(["text"])).tolist(), strict=True)
            is_by = [
                state is not None and (state["code"], state["inputs"]) == (code, digest) for state, digest in states
            ]
            is_done = dict(zip(rows["key"].to_pylist(), is_by, strict=True))
        assert all(is_done[key] for key in first)
        computed = {key for key in due if is_done[key]}
        second = sum(other.result().rows_computed for other in others)
        assert not others or computed == due
        assert len(computed) == result.rows_computed + second, (len(computed), result, second)
        self.rows.update({key: (self.rows[key][0], (code, self.rows[key][0])) for key in computed})
        return f"code {code}, {mode}, {len(first)} and {second} of {len(due)} rows"

    def step(self):
        step = self.random.choices(list(STEPS), list(STEPS.values()))[0]
        if not self.rows:
            step = Machine.append
        self.steps.append(f"{step.__name__} {step(self) or ''}")
        self.check()

    def check(self):
        version = self.table.version
        self.versions[version] = copy.deepcopy(self.rows)
        for library in (lance_core, lance):
            read = library.dataset(self.uri).to_table().to_pylist()
            assert Counter((row["key"], row["text"]) for row in read) == Counter(
                (key, text) for key, (text, _) in self.rows.items()
            )
            for row in read:
                cell = self.rows[row["key"]][1]
                code, text = cell or (None, None)
                value = None if cell is None or text == "poison" else len(text) + 1000 * int(code)
                assert row.get("size") == value, (library.__name__, row, cell)
        failed = f"{self.uri.rpartition('/')[0]}/_failed/t.size.lance"
        failures = sum(1 for _, cell in self.rows.values() if cell and cell[1] == "poison")
        if failures and not {"restore", "promote"} & {step.partition(" ")[0] for step in self.steps}:
            assert lance_core.dataset(failed).count_rows() >= failures


STEPS = {
    Machine.append: 3,
    Machine.update_inputs: 3,
    Machine.update_in_place: 2,
    Machine.set_inputs: 2,
    Machine.update_others: 2,
    Machine.upsert_equal: 2,
    Machine.delete: 1,
    Machine.compact: 2,
    Machine.clean: 1,
    Machine.restore: 1,
    Machine.add_index: 1,
    Machine.compute: 6,
    Machine.kill: 2,
    Machine.two_runs: 2,
    Machine.promote: 1,
}
"""Each step with its weight."""


def run(uri, seed, steps):
    machine = Machine(uri, seed)
    for _ in range(steps):
        try:
            machine.step()
        except BaseException as error:
            error.add_note(f"seed {seed}:\n" + "\n".join(machine.steps))
            raise


@pytest.mark.variants(3)
@pytest.mark.parametrize("seed", range(6))
def test_short_histories(tmp_path, seed):
    run(tmp_path / "t.lance", seed, 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_long_histories(tmp_path, seed):
    run(tmp_path / "t.lance", seed, 60)
