"""Mutants: changes of the code that the tests do not notice.

    make mutants [SEED=1] [FIRST=1] [NUMBER=40] [CODE="lance_core ..."] [TESTS="tests/lance_core ..."]

Places of the code are drawn by the seed; cosmic-ray changes one at a time, in a copy of the tree below `.mutants/`:
another operator, number, constant or exception, a loop that does not run. Coverage, which records the lines that each test
runs, gives the tests of a mutant; they run quickest first, for as long as `BUDGET_S` allows. A mutant dies if one of them
fails. `.mutants/report.md` lists those that live; `tests/mutants.md` says which of them stay, and why.

The coverage is taken once for a copy, and the copy is made again when the tree has changed. FIRST leaves out the
mutants before it, so that a long run can go on where it stopped.
"""

import argparse
import ast
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.processes import ROOT, run

BUDGET_S = 60.0
"""The seconds that the tests of one mutant may take together, as measured without any change."""

CONTROL = 10
"""One of this many mutants that die is reverted, and its tests have to pass then."""

HOME = ROOT / ".mutants"
TREE = HOME / "tree"
PYTHON = ROOT / ".venv" / "bin" / "python"
COPIED = (
    "lance_core",
    "pyspark_lance",
    "lance_dagster",
    "tests",
    "example_project",
    "docs",
    "protos",
    "README.md",
    "pyproject.toml",
)
_DURATION = re.compile(r"^\s*([\d.]+)s (?:call|setup|teardown)\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one module.

    Attributes:
        path: The module, below the root.
        line: Its first line that is changed.
        operator: Cosmic-ray's name of the change.
        occurrence: Which of the places where that change can be made.
    """

    path: str
    line: int
    operator: str
    occurrence: int

    def code(self) -> str | None:
        """The changed module; None if it is the same."""
        before = (TREE / self.path).read_text()
        after = mutate_code(before, get_operator(self.operator)(), self.occurrence)
        return None if after == before else after

    def shown(self) -> str:
        """The line before and after."""
        before, after = (TREE / self.path).read_text().splitlines(), (self.code() or "").splitlines()
        changed = next(
            (i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), self.line - 1
        )
        new = after[changed] if changed < len(after) else ""
        return f"`{before[changed].strip()}` became `{new.strip()}`"


def operators() -> dict[str, Operator]:
    """Cosmic-ray's changes, but for those that need a parameter."""
    found = {}
    for name in operator_names():
        if not any(word in name for word in ("VariableReplacer", "VariableInserter")):
            found[name] = get_operator(name)()
    return found


def typing_lines(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a module only speaks to type checkers: annotations, and what is imported for them."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            found += [each.annotation for each in every if each is not None and each.annotation is not None]
            found += [] if node.returns is None else [node.returns]
        elif isinstance(node, ast.AnnAssign):
            found.append(node.annotation)
            if isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias" and node.value is not None:
                found.append(node.value)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found.append(node)
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in found]


def candidate_lines(code: str) -> list[int]:
    """Lines with something that may be changed, which is cheap to find."""
    kinds = (ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.For, ast.Break, ast.Continue, ast.ExceptHandler)
    tests = (ast.If, ast.IfExp, ast.While, ast.Assert)
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, kinds) or (isinstance(node, ast.Constant) and isinstance(node.value, int | float)):
            found.add(node.lineno)
        elif isinstance(node, tests):
            found.add(node.test.lineno)
    return sorted(found)


def mutants_of(path: str) -> Mapping[tuple[int, int], Sequence[Mutant]]:
    """All changes of a module, by where they begin."""
    code = (TREE / path).read_text()
    nodes, typing = list(ast_nodes(get_ast(code))), typing_lines(code)
    found: dict[tuple[int, int], list[Mutant]] = {}
    for name, operator in operators().items():
        occurrence = -1
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                occurrence += 1
                if not any(first <= start < last for first, last in typing):
                    mutant = Mutant(path=path, line=start[0], operator=name, occurrence=occurrence)
                    found.setdefault(start, []).append(mutant)
    return found


def drawn(code: Sequence[str], seed: int) -> Iterator[Mutant]:
    """Mutants in the order that the seed gives: a line, a place on it, a change of it. No line comes twice."""
    lines = []
    for top in code:
        for path in sorted((TREE / top).rglob("*.py")):
            name = str(path.relative_to(TREE))
            if "_proto" not in name:
                lines += [(name, number) for number in candidate_lines(path.read_text())]
    chance = random.Random(seed)
    chance.shuffle(lines)
    known: dict[str, Mapping[tuple[int, int], Sequence[Mutant]]] = {}
    for path, line in lines:
        if path not in known:
            known[path] = mutants_of(path)
        places = [place for place in known[path] if place[0] == line]
        if places:
            mutant = chance.choice(known[path][chance.choice(sorted(places))])
            if mutant.code() is not None:
                yield mutant


def environment() -> dict[str, str]:
    """The environment of the tests: processes that they start, such as Spark's workers, import the code of the copy as well."""
    return {**os.environ, "PYTHONPATH": str(TREE)}


def digest(names: Sequence[str]) -> str:
    """A hash of the files of the tree."""
    total = hashlib.sha256()
    for name in names:
        path = ROOT / name
        for file in sorted(path.rglob("*") if path.is_dir() else [path]):
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def prepare(tests: Sequence[str]) -> dict[str, float]:
    """Copy the tree and take the coverage of the tests, unless that was done; returns how long each test takes."""
    HOME.mkdir(exist_ok=True)
    saved = HOME / "durations.json"
    key = f"{digest(COPIED)} {' '.join(tests)}"
    if saved.exists() and (known := json.loads(saved.read_text()))["key"] == key:
        return known["durations"]
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir()
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, TREE / name)
    print("taking the coverage of", *tests, flush=True)
    words = ["-q", "--durations=0", "--durations-min=0", "--cov", "--cov-context=test", "--cov-report="]
    done = run([PYTHON, "-m", "pytest", *words, *tests], env=environment(), cwd=TREE, limit_s=4 * 3600)
    if done.returncode:
        raise SystemExit(done.stdout[-5000:] + "\nthe tests fail without any change")
    durations: dict[str, float] = {}
    for seconds, test in _DURATION.findall(done.stdout):
        durations[test] = durations.get(test, 0) + float(seconds)
    saved.write_text(json.dumps({"key": key, "durations": durations}))
    return durations


def tests_of(mutant: Mutant, data: coverage.CoverageData, durations: Mapping[str, float]) -> list[str]:
    """The tests that run the mutant's line, quickest first, as many as the budget allows.

    Lines that run when a module is imported belong to no test: for them, all tests that run anything of the module count.
    """
    by_line = data.contexts_by_lineno(str(TREE / mutant.path))
    every = (context for contexts in by_line.values() for context in contexts)
    tests = {context.rpartition("|")[0] for context in by_line.get(mutant.line, [])} - {""}
    tests = tests or {context.rpartition("|")[0] for context in every} - {""}
    chosen, total = [], 0.0
    for test in sorted(tests, key=lambda test: (durations.get(test, 1.0), test)):
        total += durations.get(test, 1.0)
        if chosen and total > BUDGET_S:
            break
        chosen.append(test)
    return chosen


def lives(mutant: Mutant, tests: Sequence[str]) -> bool:
    """Whether all of these tests pass with the change."""
    path = TREE / mutant.path
    before = path.read_text()
    changed = mutant.code()
    assert changed is not None
    path.write_text(changed)
    try:
        return passes(tests)
    finally:
        path.write_text(before)


def passes(tests: Sequence[str]) -> bool:
    """Whether all of these tests pass with the tree as it is; one that hangs does not."""
    listed = HOME / "tests.txt"
    listed.write_text("\n".join(tests))
    words = ["-x", "-q", "-p", "no:cacheprovider", f"@{listed}"]
    try:
        done = run([PYTHON, "-m", "pytest", *words], env=environment(), cwd=TREE, limit_s=300 + 5 * BUDGET_S)
    except AssertionError:
        return False
    if done.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])  # it says nothing of the change
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Change the code here and there, and see whether a test fails.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--code", nargs="+", required=True)
    parser.add_argument("--tests", nargs="+", required=True)
    asked = parser.parse_args()
    durations = prepare(asked.tests)
    data = coverage.CoverageData(str(TREE / ".coverage"))
    data.read()
    survivors, dead = [], 0
    last = asked.first + asked.number - 1
    for number, mutant in itertools.islice(enumerate(drawn(asked.code, asked.seed), 1), asked.first - 1, last):
        tests = tests_of(mutant, data, durations)
        alive = not tests or lives(mutant, tests)
        dead += not alive
        if dead % CONTROL == 1 and not alive and not passes(tests):
            raise SystemExit(f"without the change these tests fail as well: {tests}")
        said = "lives" if alive else "dies"
        print(f"{number:4} {said:5} {mutant.path}:{mutant.line} {mutant.shown()}, {len(tests)} tests", flush=True)
        if alive:
            survivors.append(f"| `{mutant.path}:{mutant.line}` | {mutant.shown()} | {len(tests)} |")
    head = f"Seed {asked.seed}, {asked.first} to {last}: of {dead + len(survivors)} mutants {dead} died.\n\n| place | change | tests |\n|---|---|---|\n"
    (HOME / "report.md").write_text(head + "\n".join(survivors) + "\n")
    print(f"{dead} of {dead + len(survivors)} died; the others are in {HOME / 'report.md'}")


if __name__ == "__main__":
    main()
