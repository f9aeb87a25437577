"""A lake and its model: steps are taken with a fault, errors are judged, and the lake is compared with the model."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote, unquote

import lance

import lance_core
from lance_core.errors import CommitConflictError, InvalidInputError, LanceError, OutcomeUnknownError, SchemaError
from lance_core.maintenance.verify.files import verify
from lance_core.store import conditions, open_store
from tests.machines.lake import traps
from tests.machines.lake.changes import WORDS, Change, Rows, rows_of, vector_of, words_of
from tests.machines.lake.model import FindingError, Table, difference
from tests.machines.lake.places import Place
from tests.machines.lake.server import Rule
from tests.machines.lake.traps import Killed, Trap

LIBRARIES = {"ours": lance_core, "pylance": lance}
NAMES = ("t.lance", "a%20b.lance", "n/é.lance", "p+q.lance", "90%25.lance")
SKEWS = (0, 0, 0, -90, 300, 3600)
LACKING = ("DeleteObject", "PutObject", "ListBucket", "GetObject", "DeleteObject-AbortMultipartUpload")
HOUR = 3600
# A version of which a reader of changes needs the following ones keeps these, too.


@dataclass
class Outcome:
    """How the work of a step ended.

    Attributes:
        error: The error; None if it succeeded.
        is_known: Whether an error means that nothing was done.
    """

    error: BaseException | None = None
    is_known: bool = True


@dataclass
class Fault:
    """What goes wrong in a step.

    Attributes:
        kind: `none`, `deny`, `throttle`, `late`, or a kind of `traps.KINDS`.
        at: The number of the call or request.
        role: The role of the writer.
        work: What another writer does meanwhile.
        errors: The errors that a step may end in because of it, besides those of conflicts.
    """

    kind: str = "none"
    at: int = 0
    role: str = "full"
    work: Callable[[], None] | None = None
    errors: tuple[type[Exception], ...] = ()

    def __str__(self) -> str:
        return "" if self.kind == "none" else f" [{self.kind} {self.role if self.kind == 'deny' else f'at {self.at}'}]"


class Lake:
    """A lake and its model.

    Args:
        place: Where the lake is.
        random: The source of all numbers.
        log: Gets a line for each step.
    """

    def __init__(self, place: Place, random: Random, log: Callable[[str], None]) -> None:
        self.place, self.random, self.log = place, random, log
        self.tables: dict[str, Table] = {}
        self._next_key = itertools.count(1)
        self._next_name = itertools.count(1)
        self.day = 0

    # What steps need

    def fresh(self, count: int) -> list[int]:
        """New keys."""
        return list(itertools.islice(self._next_key, count))

    def name(self, what: str) -> str:
        """A new name."""
        return f"{what}{next(self._next_name)}"

    def library(self) -> str:
        """A library, by name."""
        return self.random.choice(["ours", "ours", "pylance"]) if self.place.is_shared else "ours"

    def table(self) -> Table:
        """A table."""
        return self.random.choice(list(self.tables.values()))

    def line(self, table: Table) -> str | None:
        """Main or a branch."""
        return self.random.choice([None, *table.lines])

    def open(self, library: str, table: Table, branch: str | None = None, role: str = "full") -> Any:
        """A table at the latest version of a branch."""
        uri = table.uri
        if self.place.server is not None and self.random.random() < 0.5:
            uri = f"{self.place.root}/{quote(unquote(table.name))}"  # another spelling
        opened = LIBRARIES[library].dataset(uri, storage_options=self.place.options(role) or None)
        return opened if branch is None else opened.checkout_version((branch, None))

    def fault(
        self,
        library: str,
        meanwhile: Callable[[], None] | None = None,
        errors: tuple[type[Exception], ...] = (),
    ) -> Fault:
        """Draw what goes wrong."""
        kinds = {"none": 8}
        if meanwhile is not None and (library == "ours" or self.place.server is not None):
            kinds["meanwhile"] = 4
        if self.place.server is not None:
            kinds |= {"deny": 3, "throttle": 1, "lose": 2, "late": 1}
        if library == "ours":
            kinds |= {"kill before": 2, "kill after": 2, "fail": 1, "lose": 2}
            kinds["full"] = int(self.place.server is None)
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        role = f"no-{self.random.choice(LACKING)}" if kind == "deny" else "full"
        if kind == "meanwhile" and not errors and self.random.random() < 0.5:
            role = "no-DeleteObject"  # a writer that loses has leftovers that it cannot remove
        at = self.random.choice([self.random.randrange(6), self.random.randrange(25)])
        if kind == "meanwhile" and self.place.server is None and self.random.random() < 0.4:
            at = traps.AFTER_PUT
        return Fault(kind, at, role, meanwhile, errors)

    # Taking a step

    def attempt(self, work: Callable[[], object]) -> Outcome:
        """Do something as another process does it."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is judged
            return Outcome(error, isinstance(error, LanceError) and not isinstance(error, OutcomeUnknownError))
        return Outcome()

    def take(
        self,
        library: str,
        fault: Fault,
        work: Callable[[str], object],
        may_be_rejected: bool = False,
        deletes: bool = False,
    ) -> Outcome:
        """Do the work of a step with a fault, and judge its error."""
        server = self.place.server
        is_request = server is not None and fault.kind in ("throttle", "lose", "late", "meanwhile")
        trap = (
            None
            if is_request or fault.kind in ("none", "deny", "throttle", "late")
            else Trap(fault.kind, fault.at, fault.work, may_delete=fault.role == "full")
        )
        if server is not None:
            times = self.random.randint(1, 2) if fault.kind == "throttle" else 1
            if self.random.random() < 0.3:
                conditions._proven.clear()  # a new process, which tests the endpoint
            server.begin(Rule(fault.kind, fault.at, times, fault.work) if is_request else None)
        outcome, skew = Outcome(), self.random.choice(SKEWS) if library == "ours" else 0
        if skew:
            self.log(f"    with a clock that is off by {skew} s")
        with traps.clock(skew), traps.set_trap(trap):
            try:
                work(fault.role)
            except Killed as error:
                outcome = Outcome(error, is_known=False)
            except Exception as error:  # noqa: BLE001 - it is judged
                is_lost = fault.kind == "lose" and server is None  # a single put or delete may have happened
                is_known = isinstance(error, LanceError) and not isinstance(error, OutcomeUnknownError)
                outcome = Outcome(error, is_known and not is_lost)
        denied = set() if server is None else set(server.denied)
        if server is not None:
            server.end()
        if fault.kind != "none" and library == "ours":
            self.delete_claims()
        if outcome.error is not None:
            self.log(
                f"    {type(outcome.error).__name__}: {str(outcome.error).splitlines()[0] if str(outcome.error) else ''}"
            )
            self.judge(library, fault, outcome, denied, may_be_rejected)
            is_denied = fault.role.startswith("no-DeleteObject") and not deletes
            if (
                library == "ours"
                and is_denied
                and not isinstance(
                    outcome.error, (Killed, CommitConflictError, InvalidInputError, SchemaError, *fault.errors)
                )
            ):
                raise FindingError(f"a writer that may not delete fails: {outcome.error!r}") from outcome.error
        return outcome

    def delete_claims(self) -> None:
        """Delete the claims of processes that were killed, as the error about a claimed version says."""
        for table in self.tables.values():
            store = open_store(table.uri, self.place.options("full"))
            for key in [meta.key for meta in store.list("") if "_refs/claims/" in meta.key]:
                store.delete(key)

    def judge(self, library: str, fault: Fault, outcome: Outcome, denied: set[str], may_be_rejected: bool) -> None:
        """See that an error of ours is of our tree, has a cause, and names it."""
        error = outcome.error
        if isinstance(error, Killed):
            return
        if library != "ours":
            if fault.kind == "none" and not may_be_rejected:
                raise FindingError(f"pylance fails without a cause: {error!r}") from error
            return
        if not isinstance(error, LanceError):
            raise FindingError(f"an error is not of our tree: {error!r}") from error
        if may_be_rejected and isinstance(error, InvalidInputError | CommitConflictError | SchemaError):
            return
        if fault.kind in ("none", "throttle", "late") or (fault.kind == "lose" and self.place.server is not None):
            raise FindingError(f"a step fails without a cause that it has to fail for: {error!r}") from error
        if fault.kind == "deny" and not any(action in str(error) for action in denied):
            raise FindingError(f"{sorted(denied)} were denied, and the error names none: {error!r}") from error
        expected = (CommitConflictError, InvalidInputError, SchemaError, *fault.errors)
        # A version that replaced all that another one wrote, such as a cast of the same column, cannot show it any more.
        is_hidden = isinstance(error, OutcomeUnknownError) and "does not show whether it was made from" in str(error)
        if fault.kind == "meanwhile" and not isinstance(error, expected) and not is_hidden:
            raise FindingError(f"a conflict ends in another error: {error!r}") from error

    # Comparing

    def settle_rows(
        self,
        table: Table,
        branch: str | None,
        done: list[tuple[Change, Outcome]],
        before: Rows | None = None,
        shape: Callable[[Rows], Rows] = dict,
    ) -> None:
        """See that a line has rows that its changes can have led to, up to a shape, and take them into the model."""
        line = table.lines[branch]
        start = line.rows if before is None else before
        sure = [change for change, outcome in done if outcome.error is None]
        maybe = [change for change, outcome in done if outcome.error is not None and not outcome.is_known]
        between, ends = [start], []
        for count in range(len(maybe) + 1):
            for extra in itertools.combinations(maybe, count):
                for order in itertools.permutations([*sure, *extra]):
                    rows = start
                    for change in order:
                        rows = change.effect(rows)
                        between.append(rows)
                    ends.append(rows)
        opened = self.open("ours", table, branch)
        stored = rows_of(opened.to_table())
        if shape(stored) not in map(shape, ends):
            raise FindingError(f"{table.name}@{branch or 'main'}: rows differ: {difference(ends[0], stored)}")
        versions = sorted(item["version"] for item in opened.versions())
        for version in versions:
            if version > line.latest and version not in line.versions:
                rows = stored if version == opened.version else self.read(table, branch, version)
                if shape(rows) not in map(shape, between):
                    raise FindingError(
                        f"{table.name}@{branch or 'main'}:{version} has other rows: {difference(start, rows)}"
                    )
                line.versions[version], line.born[version] = rows, self.day
        if opened.version != line.latest:
            for version in line.versions:
                if version != opened.version:
                    line.replaced.setdefault(version, self.day)
        line.latest = opened.version
        line.versions.setdefault(line.latest, stored)
        lost = table.needed(branch) - set(versions)
        if lost:
            raise FindingError(f"{table.name}@{branch or 'main'} has lost the versions {sorted(lost)}")
        line.versions = {version: rows for version, rows in line.versions.items() if version in versions}

    def read(self, table: Table, branch: str | None, version: int | None = None, library: str = "ours") -> Rows:
        """Read a version."""
        opened = LIBRARIES[library].dataset(table.uri, storage_options=self.place.options() or None)
        try:
            return rows_of(opened.checkout_version((branch, version)).to_table())
        except Exception as error:
            where = f"{table.name}@{branch or 'main'}:{version}"
            raise FindingError(f"{library} cannot read {where}: {error!r}") from error

    def has_vector_index(self, table: Table, branch: str | None) -> bool:
        """Whether a line has the index of vectors that pylance built."""
        return any(index.index_type == "IVF_FLAT" for index in self.open("ours", table, branch).describe_indices())

    def are_vectors_indexed(self, table: Table, branch: str | None) -> bool:
        """Whether the index covers all rows."""
        if not self.has_vector_index(table, branch):
            return False
        return bool(self.open("pylance", table, branch).stats.index_stats("e_idx")["num_unindexed_rows"] == 0)

    def search(self, table: Table, branch: str | None) -> None:
        """See that pylance finds rows by their vectors through its index, and none that was deleted."""
        rows = table.lines[branch].rows
        opened = self.open("pylance", table, branch)
        keys = self.random.sample(sorted(rows), min(3, len(rows))) + self.fresh(1)
        for key in keys:
            nearest = {"column": "e", "q": vector_of(key), "k": 1}
            hits = opened.to_table(columns=["k", "_distance"], nearest=nearest)["k"].to_pylist()
            if set(hits) - set(rows) or (key in rows and hits != [key]):
                raise FindingError(f"the nearest rows of {key} in {table.name}@{branch or 'main'} are {hits}")

    def check(self) -> None:
        """See that every reference has its rows, for both libraries, and that `verify` finds nothing."""
        tables = list(self.tables.values())
        if self.place.server is not None:  # a request takes its time
            tables = self.random.sample(tables, min(2, len(tables)))
        for table in tables:
            for branch, line in table.lines.items():
                refs = table.needed(branch)
                rest = set(line.versions) - refs
                chosen = {line.latest, *self.random.sample(sorted(refs), min(2, len(refs)))}
                if rest:
                    chosen.add(self.random.choice(sorted(rest)))
                for version in sorted(chosen):
                    self.compare(table, branch, version)
                # On a branch that pylance compacted it looks for the index of moved rows in the wrong folder.
                if branch is None and self.place.is_shared and self.has_vector_index(table, branch):
                    self.search(table, branch)
                problems = verify(self.open("ours", table, branch))
                if problems:
                    raise FindingError(f"verify finds in {table.name}@{branch or 'main'}: {problems}")

    def compare(self, table: Table, branch: str | None, version: int) -> None:
        """See that both libraries read the model's rows of a version."""
        expected = table.lines[branch].versions[version]
        for library in LIBRARIES if self.place.is_shared else ("ours",):
            stored = self.read(table, branch, version, library)
            if stored != expected:
                where = f"{table.name}@{branch or 'main'}:{version}"
                raise FindingError(f"{library} reads other rows of {where}: {difference(expected, stored)}")
        word = self.random.choice(WORDS)
        fitting = {key for key in expected if word in (words_of(key) or [])}
        opened = lance_core.dataset(table.uri, storage_options=self.place.options() or None)
        hits = opened.checkout_version((branch, version)).to_table(["k"], filter=f"array_has(w, '{word}')")
        if sorted(hits["k"].to_pylist()) != sorted(fitting):
            where = f"{table.name}@{branch or 'main'}:{version}"
            raise FindingError(f"rows of {where} with the word {word}: {sorted(hits['k'].to_pylist())}")
