"""200 cycles of a table with declared indices, with pylance writing beside and children that are killed: its numbers.

python -m pytest -m slow -s tests/lance_core/maintenance/test_search_cycles.py
"""

import contextlib
import statistics
import threading

import lance as pylance
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, describe_index_health, maintain
from tests.lance_core.maintenance.test_search_machine import Machine, kill_children, real_children
from tests.support.local_child import LocalChild, use_children

CYCLES = 200
POLICY = MaintenancePolicy(
    indices={
        "v": {"kind": "IVF_PQ", "min_recall": 0.95, "nprobes": 20, "refine_factor": 20, "num_sub_vectors": 4},
        "text": {"kind": "FTS", "min_recall": 1.0},
        "key": "BTREE",
    },
    retain_versions=5,
)


class Cycles(Machine):
    """A table of some thousand rows, and the numbers of its maintenance."""

    def __init__(self, uri):
        super().__init__(uri, "cycles")
        self.metric, self.declarations = "l2", dict(POLICY.indices)
        self.shares, self.recalls, self.bytes, self.kills = [], [], [], 0
        table = lance_core.write_dataset(self.new_rows(2000), self.uri, mode="append")
        self.check_figures(maintain(table, POLICY))

    def write(self, cycle):
        for step in (Machine.append, Machine.update_text, Machine.delete, Machine.upsert):
            step(self)
        if cycle % 2:
            (Machine.compact if cycle % 4 == 1 else Machine.write_columns)(self)
        if len(self.rows) > 5000:
            keys = sorted(self.rows)[:2500]
            self.table.delete(f"key <= {keys[-1]}")
            self.rows = {key: row for key, row in self.rows.items() if key > keys[-1]}
        if cycle % 5 == 0:
            self.promote()

    def maintain_beside(self, *, kill):
        """Maintain while pylance appends; the child is killed once it works, if it is to be."""
        self.let_time_pass()
        data, done = [self.new_rows(5) for _ in range(4)], threading.Event()
        threads = [threading.Thread(target=self.append_beside, args=(data,))]
        if kill:
            threads.append(threading.Thread(target=kill_children, args=(done, self.random.random()), daemon=True))
        for thread in threads:
            thread.start()
        with real_children() if kill else contextlib.nullcontext():
            report = maintain(self.table, POLICY)
        done.set()
        for thread in threads:
            thread.join()
        self.kills += "killed by signal" in str(report.reason)
        return report

    def append_beside(self, data):
        for rows in data:
            pylance.write_dataset(rows, self.uri, mode="append")

    def check_figures(self, report):
        assert report.outcome in ("done", "healthy"), report.reason
        self.shares.append(max(1 - each.covered for each in self.states()))
        self.recalls.append([each.recall["value"] for each in self.states() if each.recall])
        assert self.shares[-1] < 0.05
        assert min(self.recalls[-1]) >= 0.95

    def states(self):
        return describe_index_health(self.table)


@pytest.mark.slow
def test_200_cycles(tmp_path, monkeypatch):
    use_children(monkeypatch, LocalChild)
    life = Cycles(tmp_path / "t.lance")
    for cycle in range(1, CYCLES + 1):
        life.steps.append(f"cycle {cycle}")
        life.write(cycle)
        life.check()
        report = life.maintain_beside(kill=cycle % 10 == 0)
        life.check()
        if cycle % 10 == 0:
            life.let_time_pass()
            report = maintain(life.table, POLICY)
            life.check()
        life.check_figures(report)
        if cycle % 20 == 0:
            life.bytes.append(life.measure_bytes())
            assert life.bytes[-1][0] <= 2 * life.bytes[-1][1], life.bytes
    recalls = [min(values) for values in life.recalls]
    factors = [kept / fresh for kept, fresh in life.bytes]
    print(
        f"\n{len(life.shares)} maintenances, {len(life.rows)} rows of {life.keys}, {life.kills} killed builds; "
        f"unindexed share median {statistics.median(life.shares):.4f}, largest {max(life.shares):.4f}; "
        f"least recall {min(recalls):.3f}; bytes over a fresh build: "
        f"median {statistics.median(factors):.2f}, largest {max(factors):.2f} ({life.bytes[-1]})"
    )
