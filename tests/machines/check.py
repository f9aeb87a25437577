"""`make machines-check`: undo mends one at a time, and see that the machine that a patch names finds each of them.

    python -m tests.machines.check [--minutes 10] [--only NAME ...]

A patch in `undone/` brings one fault back. Its first two lines are

    machine: dagster_life
    fault: one sentence

and the rest is a diff from the root. It is applied to a copy of the tree, in which `python -m tests.machines.<machine>
--minutes M` runs. The machine found the fault if it fails and prints a line `replay: <arguments>`, and
`python -m tests.machines.<machine> <arguments>` passes without the patch. The last line printed is
`N of M undone mends were found`; the exit code is 1 if one was missed.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.processes import ROOT, run

UNDONE = Path(__file__).parent / "undone"
MACHINES = ("dagster_life", "lake", "search", "spark", "corpus")
COPIED = ("lance_core", "pyspark_lance", "lance_dagster", "tests", "pyproject.toml")
PACKAGES = COPIED[:3]
LONGER = 10  # machines count minutes of processor time; beside other work they take longer


@dataclass(frozen=True, kw_only=True)
class Undone:
    """A patch that brings a fault back.

    Attributes:
        path: The file.
        machine: The machine that has to find the fault.
        fault: The fault, in a sentence.
    """

    path: Path
    machine: str
    fault: str


def read_patches() -> list[Undone]:
    """The patches, by name.

    Raises:
        ValueError: A patch has not its two lines, or names a machine that is none.
    """
    patches = []
    for path in sorted(UNDONE.glob("*.patch")):
        head = [line.partition(": ") for line in path.read_text().splitlines()[:2]]
        if [key for key, _, _ in head] != ["machine", "fault"] or not all(value.strip() for _, _, value in head):
            raise ValueError(f"{path.name} does not begin with the lines `machine: ...` and `fault: ...`")
        machine, fault = (value.strip() for _, _, value in head)
        if machine not in MACHINES:
            raise ValueError(f"{path.name} names the machine {machine!r}, which is none of {', '.join(MACHINES)}")
        patches.append(Undone(path=path, machine=machine, fault=fault))
    return patches


def apply(patch: Path, tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Apply a patch to a tree, which need not be a repository."""
    return run(["git", "apply", *options, str(patch)], cwd=tree, limit_s=60)


def copy_tree(target: Path) -> None:
    """Copy what machines need."""
    ignored = shutil.ignore_patterns("__pycache__", "*.lance")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy2(source, target / name)


def run_machine(tree: Path, machine: str, arguments: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a machine with the code of a tree."""
    return run(
        [sys.executable, "-m", f"tests.machines.{machine}", *arguments],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tree,
        limit_s=limit_s,
    )


def replay_line(said: str) -> str | None:
    """The arguments that repeat a failure, from what a machine printed."""
    lines = [line.removeprefix("replay: ") for line in said.splitlines() if line.startswith("replay: ")]
    return lines[-1] if lines else None


def judge(undone: Undone, minutes: float) -> str:
    """Run the machine with the fault: `found` and the arguments that repeat it, or why not."""
    if not (ROOT / "tests" / "machines" / undone.machine / "__main__.py").exists():
        return "missed: this machine does not exist"
    with tempfile.TemporaryDirectory(prefix="undone-") as place:
        tree = Path(place)
        copy_tree(tree)
        applied = apply(undone.path, tree)
        if applied.returncode:
            return f"missed: the patch does not apply: {applied.stderr.strip()}"
        broken = run_machine(tree, undone.machine, ["--minutes", str(minutes)], LONGER * 60 * minutes + 300)
    if broken.returncode == 0:
        return "missed"
    replay = replay_line(broken.stdout)
    if replay is None:
        return f"missed: the machine broke off: {(broken.stderr.strip() or broken.stdout.strip())[-500:]}"
    whole = run_machine(ROOT, undone.machine, shlex.split(replay), LONGER * 60 * minutes + 300)
    if whole.returncode:
        return f"missed: the machine fails without the patch too: {replay}"
    return f"found by {replay}"


def main() -> None:
    """Print a line for each patch, and how many were found."""
    parser = argparse.ArgumentParser(description="Undo mends, and see that the machines find them.")
    parser.add_argument("--minutes", type=float, default=10, help="the processor time of a machine for one patch")
    parser.add_argument("--only", nargs="*", help="names of patches, without `.patch`, or of machines")
    arguments = parser.parse_args()
    patches = [
        undone
        for undone in read_patches()
        if not arguments.only or undone.path.stem in arguments.only or undone.machine in arguments.only
    ]
    number = 0
    for undone in patches:
        start = time.monotonic()
        verdict = judge(undone, arguments.minutes)
        number += verdict.startswith("found")
        print(f"{undone.machine:13} {undone.path.stem:45} {time.monotonic() - start:5.0f} s  {verdict}", flush=True)
    print(f"{number} of {len(patches)} undone mends were found")
    sys.exit(number < len(patches))


if __name__ == "__main__":
    main()
