"""What the lake has to hold: tables, branches, tags, clones, and the rows of each version."""

from dataclasses import dataclass, field
from typing import Any

from tests.machines.lake.changes import Rows

Ref = tuple[str | None, int]


class FindingError(AssertionError):
    """Something that must hold does not."""


@dataclass
class Line:
    """The versions of main or of a branch.

    Attributes:
        fork: The version of which a branch was made; None for main.
        versions: The rows of each version that is there.
        latest: The number of the latest version.
        born: The day on which each version was committed.
        replaced: The day on which each version but the latest stopped being the latest.
        promoted: The version at which it was promoted; None if it was not.
        keeps_fork: Whether a tag keeps the version of which it was made; branches of pylance have none.
        is_forgotten: Whether pylance removed a version, so that nothing records what its commit changed.
    """

    fork: Ref | None
    versions: dict[int, Rows]
    latest: int
    born: dict[int, int] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)
    promoted: int | None = None
    keeps_fork: bool = True
    is_forgotten: bool = False

    @property
    def rows(self) -> Rows:
        """The rows of the latest version."""
        return self.versions[self.latest]


@dataclass
class Table:
    """A table.

    Attributes:
        name: Its name in the lake.
        uri: Its URI, as users write it.
        lines: Main, under None, and the branches by name.
        tags: The version of each tag.
        holds: The version that each reader of changes holds.
        clones: The version that each shallow clone was made of, by the clone's table.
    """

    name: str
    uri: str
    lines: dict[str | None, Line]
    tags: dict[str, Ref] = field(default_factory=dict)
    holds: dict[str, Ref] = field(default_factory=dict)
    clones: dict[str, Ref] = field(default_factory=dict)

    def needed(self, branch: str | None) -> set[int]:
        """The versions of a line that something refers to."""
        refs = [*self.tags.values(), *self.holds.values(), *self.clones.values()]
        refs += [line.fork for line in self.lines.values() if line.fork is not None and line.keeps_fork]
        return {version for at, version in refs if at == branch} | {self.lines[branch].latest}


def difference(expected: Rows, stored: Rows) -> dict[str, Any]:
    """What differs between rows."""
    return {
        "missing": sorted(expected.keys() - stored.keys()),
        "surplus": sorted(stored.keys() - expected.keys()),
        "changed": sorted(k for k in expected.keys() & stored.keys() if expected[k] != stored[k]),
    }
