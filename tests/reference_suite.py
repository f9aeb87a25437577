"""The Python tests of pylance that pass with `import lance_core as lance`.

    LANCE_SRC=/path/to/lance python -m tests.reference_suite [--keep] [-k EXPRESSION] [FILE ...]

The tests are read from a checkout of lancedb/lance and run in a temporary folder with lance_core under pylance's name.
reference_suite.txt lists the tests that pylance 14.0.2 passes, and whether lance_core does. Tests that fail are printed;
a result that differs from the list fails the run. `--keep` runs all tests with pylance too, and rewrites the list. A name
that a test file imports at its head, and that lance_core lacks, fails the tests that use it, and not the file.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.processes import run

KEPT = Path(__file__).with_suffix(".txt")

# Left out: indices, indices of vectors, the namespace service, torch and tensorflow, object stores, tracing of the Rust engine.
FILES = (
    "blob",
    "dataset",
    "file",
    "filter",
    "fork",
    "fragment",
    "ingestion",
    "integration",
    "json",
    "lance",
    "migration",
    "multi_base",
    "optimize",
    "order_by",
    "sampler",
    "schema",
    "schema_evolution",
    "session",
    "table_ops",
)

SETTINGS = """[pytest]
markers = cuda
    integration
    gpu
    slow
    torch
    forward
    compat
filterwarnings = error::FutureWarning
    error::DeprecationWarning
"""

# In every process, also in those that tests start, `lance` and its modules stand for lance_core and its modules.
ALIAS = '''
import importlib, importlib.abc, importlib.machinery, sys, types

# Private places of pylance that its tests look into.
PLACES = {"lance._dataset.sharded_batch_iterator": "lance_core.sampler"}

class Missing:
    """A name that a test file imports at its head, and that lance_core lacks."""
    def __init__(self, name): self.__dict__["name"] = name
    def __call__(self, *args, **options): raise NotImplementedError("lance_core has no " + self.__dict__["name"])
    def __getattr__(self, attribute):
        if attribute.startswith("__"): raise AttributeError(attribute)
        raise NotImplementedError("lance_core has no " + self.__dict__["name"])

class Alias(types.ModuleType):
    def __setattr__(self, name, value):
        # A module that is imported must not hide the function of its name (`lance.dataset`).
        if isinstance(value, Alias) and callable(getattr(self.__dict__.get("_real"), name, None)): return
        super().__setattr__(name, value)
    def __getattr__(self, name):
        real = self.__dict__.get("_real")
        try:
            return getattr(real, name)
        except AttributeError:
            collecting = getattr(sys, "_collecting", False)
            if name.startswith("__") or not collecting: raise
            return Missing(self.__name__ + "." + name)

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lance":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None
    def create_module(self, spec):
        real = PLACES.get(spec.name, "lance_core" + spec.name[len("lance"):])
        module = Alias(spec.name)
        try:
            module._real = importlib.import_module(real)
            if real == "lance_core":
                module._real.LanceDataset._ds = property(lambda self: self)  # where pylance's tests look behind it
        except ImportError:
            if not getattr(sys, "_collecting", False): raise ModuleNotFoundError(spec.name, name=spec.name)
            module._real = None
        return module
    def exec_module(self, module): pass

sys.meta_path.insert(0, Finder())
'''

PLUGIN = """
import json, os, sys

OUT = open(os.environ["REFERENCE_RESULTS"], "a")

def pytest_sessionstart(session): sys._collecting = True
def pytest_collection_finish(session): sys._collecting = False
def pytest_collectreport(report):
    if report.failed: write(report.nodeid, "error", report)
def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        write(report.nodeid, report.outcome, report)
def write(test, outcome, report):
    crash = getattr(report.longrepr, "reprcrash", None)
    OUT.write(json.dumps([test, outcome, crash.message[:400] if crash else ""]) + "\\n")
    OUT.flush()
"""


def results(source: Path, ours: bool, files: list[str], expression: str | None) -> dict[str, tuple[str, str]]:
    """Outcome and message of each test, by its id."""
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(shutil.copytree(source / "python" / "python" / "tests", Path(folder) / "tests"))
        (tests / "pytest.ini").write_text(SETTINGS)
        names = Path(folder) / "names"
        names.mkdir()
        (names / "reference_plugin.py").write_text(PLUGIN)
        if ours:
            (names / "sitecustomize.py").write_text(ALIAS)
        out = Path(folder) / "results"
        out.touch()
        root = Path(__file__).parents[1]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (names, root))),
            "REFERENCE_RESULTS": str(out),
            "TMPDIR": folder,
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "reference_plugin", "-p", "no:cacheprovider"]
        command += ["--tb=line", "--timeout=120"]
        command += ["-k", expression] if expression else []
        done = run([*command, *[f"test_{name}.py" for name in files]], env=environment, cwd=tests, limit_s=3000)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        if not lines:
            sys.exit(done.stdout + done.stderr)
    return {test: (outcome, message) for test, outcome, message in lines}


def main() -> None:
    """Run both, print what is missing, and compare with the kept list."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference_suite")
    parser.add_argument("--keep", action="store_true", help="write the list of expected results")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these tests, as pytest selects them")
    parser.add_argument("files", nargs="*", help=f"of {', '.join(FILES)}")
    arguments = parser.parse_args()
    source = Path(os.environ.get("LANCE_SRC") or sys.exit("LANCE_SRC: the folder of a checkout of lancedb/lance"))
    files = arguments.files or list(FILES)
    ours = results(source, True, files, arguments.k)
    if arguments.keep:
        theirs = results(source, False, list(FILES), None)
        kept = {test: True for test, (outcome, _) in theirs.items() if outcome == "passed"}
    else:
        kept = {test: state == "passes" for state, _, test in (x.partition(" ") for x in KEPT.read_text().splitlines())}
    wanted = [test for test in sorted(kept) if arguments.keep or test in ours]
    passes = {test: ours.get(test, ("", ""))[0] == "passed" for test in wanted}
    for test, (outcome, message) in ours.items():
        if outcome == "error" or (test in passes and not passes[test]):
            print(f"{test}: {outcome} {message.partition(chr(10))[0]}")
    print(f"{len(wanted)} pass with pylance, {sum(passes.values())} of them with lance_core")
    if arguments.keep:
        KEPT.write_text("".join(f"{'passes' if passes[test] else 'fails'} {test}\n" for test in wanted))
        return
    changed = [test for test in wanted if passes[test] != kept[test]]
    for test in changed:
        print(f"{'passes' if passes[test] else 'fails'} now: {test}")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
