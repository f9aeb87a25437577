"""The wheel and the source archive hold what users need; an installed wheel is typed and has its version."""

import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import lance_core
from tests import processes

PACKAGES = ("lance_core", "pyspark_lance", "lance_dagster")
EXAMPLES = Path(__file__).parent / "typing" / "examples.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both archives."""
    folder = tmp_path_factory.mktemp("built")
    processes.run([sys.executable, "-m", "hatchling", "build", "-d", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def elsewhere(built, tmp_path_factory):
    """An environment with the wheel; what it depends on is that of the tests."""
    home = tmp_path_factory.mktemp("elsewhere")
    processes.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "venv" / "lib" / version / "site-packages"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shutil.copy(EXAMPLES, home)
    # pyarrow has no types of its own, wherever it is installed.
    (home / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-pyarrow.*]\nignore_missing_imports = true\n")
    return home


def test_the_wheel_has_the_packages_with_their_types(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_the_version_is_stated_once(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name.split("-")[1] == lance_core.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", lance_core.__version__)


def test_the_source_archive_leaves_the_data_of_tests_out(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        sizes = {member.name: member.size for member in source.getmembers()}
    names = list(sizes)
    assert any(name.endswith("/lance_core/__init__.py") for name in names)
    assert any(name.endswith("/protos/table.proto") for name in names)
    assert not [name for name in names if name.endswith(".lance") or "/historical/" in name]
    assert {name: size for name, size in sizes.items() if size > 100_000} == {}  # sources, and no data


def test_what_is_installed_is_typed_for_its_users(elsewhere):
    python = elsewhere / "venv" / "bin" / "python"
    found = processes.run([python, "-c", "import lance_core; print(lance_core.__file__)"], cwd=elsewhere, check=True)
    assert "elsewhere" in found.stdout
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", "cache"]
    done = processes.run([*command, "examples.py"], cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found" in done.stdout
