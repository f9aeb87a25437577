"""The releases of pylance whose tables are tested, and what each could not do yet."""

from tests import processes

ENVIRONMENTS = processes.ROOT / ".venv-history"
RELEASES = (processes.ROOT / "tests/history/releases.txt").read_text().split()

FIRST_TO_WRITE = {"legacy": "0.20", "2.0": "0.20", "2.1": "0.20", "2.2": "0.35"}
"""Before these a version of files was not known."""

FIRST_TO_BE_READ = FIRST_TO_WRITE | {"2.1": "0.33"}
"""What releases before these called by that version was a draft that no later release reads."""

FIRST_IN_PYLANCE = FIRST_TO_BE_READ | {"2.2": "2.0"}
"""As above, where pylance 14.0.2 rejects drafts that are read here."""

FIRST_INDICES = {"NGRAM": "0.23", "ZONEMAP": "0.34", "BLOOMFILTER": "0.36"}
FIRST_DICTIONARIES = "0.38"
"""In files of 2.1 and later; before, writing them was a panic."""

FIRST_LISTS = "0.21"
"""In files of 2.1."""


def is_before(release, first):
    """Whether one release came before another one."""
    numbers = [[int(part) for part in name.split(".")] for name in (release, first)]
    return numbers[0] < numbers[1]


def written_by(release):
    """The versions of files that a release writes."""
    return [version for version, first in FIRST_TO_WRITE.items() if not is_before(release, first)]


def read_of(release):
    """The versions of files of a release that are read."""
    return [version for version, first in FIRST_TO_BE_READ.items() if not is_before(release, first)]


def python_of(release):
    """The interpreter in the environment of a release."""
    return ENVIRONMENTS / release / "bin" / "python"
