"""Each patch in `undone/` can be applied, and says which machine finds which fault."""

import pytest

from tests.machines.check import PACKAGES, UNDONE, apply, read_patches, replay_line
from tests.processes import ROOT


@pytest.mark.parametrize("path", sorted(UNDONE.glob("*.patch")), ids=lambda path: path.stem)
def test_patch_applies_and_changes_code_alone(path):
    assert path in {undone.path for undone in read_patches()}
    checked = apply(path, ROOT, "--check")
    assert checked.returncode == 0, checked.stderr
    changed = [line.split()[-1] for line in path.read_text().splitlines() if line.startswith("+++ ")]
    assert changed
    assert all(name.removeprefix("b/").startswith(PACKAGES) for name in changed), changed


def test_a_patch_without_its_lines_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.machines.check.UNDONE", tmp_path)
    (tmp_path / "one.patch").write_text("machine: lake\ndiff --git a/x b/x\n")
    with pytest.raises(ValueError, match=r"one\.patch does not begin with the lines"):
        read_patches()
    (tmp_path / "one.patch").write_text("machine: mill\nfault: it grinds.\n")
    with pytest.raises(ValueError, match=r"names the machine 'mill'"):
        read_patches()


def test_the_last_replay_line_counts():
    assert replay_line("step\nreplay: --seed 1\nshorter\nreplay: --seed 1 --steps 0,4\n") == "--seed 1 --steps 0,4"
    assert replay_line("Traceback") is None
