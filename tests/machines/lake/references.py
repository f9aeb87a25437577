"""Steps of tags, branches, clones and restores, also while a cleanup removes what they are about to name."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import quote

import lance_core
from lance_core.errors import CommitConflictError, VersionNotFoundError
from lance_core.maintenance.verify.files import verify
from tests.machines.lake import traps
from tests.machines.lake.changes import Change
from tests.machines.lake.lake import HOUR, NAMES, Fault, Lake, Outcome
from tests.machines.lake.model import FindingError, Line, Ref, Table

__all__ = ["References"]


class References(Lake):
    """The steps that name versions."""

    def fault_beside_a_cleanup(self, library: str, table: Table, branch: str | None) -> Fault:
        """Draw what goes wrong in a step that names a version of ours; another process may clean up meanwhile."""

        def clean_up() -> None:
            with traps.untrapped():
                self.open("ours", table, branch).cleanup_old_versions(
                    older_than=timedelta(0),
                    delete_unverified=self.place.server is not None,  # there young versions are kept otherwise
                    error_if_tagged_old_versions=False,
                )

        return self.fault(library, clean_up if library == "ours" else None, (VersionNotFoundError,))

    def refer(
        self, table: Table, branch: str | None
    ) -> tuple[str, Callable[[], None], Callable[[], list[tuple[Change, Outcome]]]]:
        """A step of another process that names an old version, and what takes it into the model afterwards."""
        line = table.lines[branch]
        version = self.random.choice([number for number in line.versions if number != line.latest] or [line.latest])
        rows, verb = line.versions[version], self.random.choice(["tag", "branch", "restore"])
        name = self.name(verb)
        outcomes: list[Outcome] = []

        def work() -> None:
            opened = self.open("ours", table)
            if verb == "tag":
                opened.tags.create(name, (branch, version))
            elif verb == "branch":
                opened.create_branch(name, (branch, version))
            else:
                opened.checkout_version((branch, version)).restore()

        def meanwhile() -> None:
            with traps.untrapped():
                outcomes.append(self.attempt(work))

        def note() -> list[tuple[Change, Outcome]]:
            for outcome in outcomes:
                if outcome.error is not None and not isinstance(
                    outcome.error, VersionNotFoundError | CommitConflictError
                ):
                    raise FindingError(f"a {verb} beside a cleanup ends in {outcome.error!r}") from outcome.error
                if verb == "tag":
                    self.note_tag(table, name, (branch, version), outcome)
                elif verb == "branch":
                    self.note_branch(table, name, (branch, version), outcome, keeps_fork=True)
            return [
                (Change("restore", lambda _: None, lambda _: rows), outcome)
                for outcome in outcomes
                if verb == "restore"
            ]

        return f"{verb} {name} of version {version}", meanwhile, note

    def restore(self) -> None:
        """Go back to a former version."""
        table = self.table()
        branch, library = self.line(table), self.library()
        line = table.lines[branch]
        older = [number for number in line.versions if number != line.latest]
        version = self.random.choice(older or [line.latest])
        rows = line.versions[version]
        fault = self.fault_beside_a_cleanup(library, table, branch)
        self.log(f"{library} restores {table.name}@{branch or 'main'} version {version}{fault}")

        def work(role: str) -> None:
            self.open(library, table, branch, role).checkout_version((branch, version)).restore()

        outcome = self.take(library, fault, work)
        self.settle_rows(table, branch, [(Change("restore", lambda _: None, lambda _: rows), outcome)])

    def tag(self) -> None:
        """Make, move or delete a tag."""
        table, library = self.table(), self.library()
        branch = self.line(table)
        version = self.random.choice(list(table.lines[branch].versions))
        verb = self.random.choice(["create", "create", "update", "delete"]) if table.tags else "create"
        fault = self.fault(library) if verb == "delete" else self.fault_beside_a_cleanup(library, table, branch)
        name = self.name("tag") if verb == "create" else self.random.choice(list(table.tags))
        self.log(f"{library} {verb}s {name} at {table.name}@{branch or 'main'}:{version}{fault}")
        arguments = (name,) if verb == "delete" else (name, (branch, version))
        outcome = self.take(
            library,
            fault,
            lambda role: getattr(self.open(library, table, None, role).tags, verb)(*arguments),
            deletes=verb == "delete",
        )
        self.note_tag(table, name, None if verb == "delete" else (branch, version), outcome)
        if fault.kind == "meanwhile":
            self.settle_rows(table, branch, [])

    def note_tag(self, table: Table, name: str, after: Ref | None, outcome: Outcome) -> None:
        """See that a tag is what the outcome of its change says, and take it into the model."""
        before = table.tags.get(name)
        listed = lance_core.dataset(table.uri, storage_options=self.place.options()).tags.list().get(name)
        stored = None if listed is None else (listed["branch"], listed["version"])
        allowed = {after} if outcome.error is None else {before} if outcome.is_known else {before, after}
        if stored not in allowed:
            raise FindingError(f"tag {name} is {stored}, expected one of {allowed}")
        table.tags.pop(name, None)
        if stored is not None:
            table.tags[name] = stored

    def branch(self) -> None:
        """Make a branch."""
        table, library = self.table(), self.library()
        at = self.line(table)
        line = table.lines[at]
        version = self.random.choice([line.latest, self.random.choice(list(line.versions))])
        name, fault = self.name("branch"), self.fault_beside_a_cleanup(library, table, at)
        self.log(f"{library} branches {name} from {table.name}@{at or 'main'}:{version}{fault}")
        outcome = self.take(
            library, fault, lambda role: self.open(library, table, None, role).create_branch(name, (at, version))
        )
        self.note_branch(table, name, (at, version), outcome, keeps_fork=library == "ours")
        if fault.kind == "meanwhile":
            self.settle_rows(table, at, [])

    def note_branch(self, table: Table, name: str, fork: Ref, outcome: Outcome, *, keeps_fork: bool) -> None:
        """See that a branch exists or not, as the outcome of its creation says, and take it into the model."""
        opened = lance_core.dataset(table.uri, storage_options=self.place.options())
        is_there = name in opened.branches.list()
        if is_there is (outcome.error is not None) and outcome.is_known:
            raise FindingError(f"branch {name} {'exists' if is_there else 'does not exist'} after {outcome.error!r}")
        if is_there:
            first = opened.checkout_version((name, None)).version
            table.lines[name] = Line(fork, {first: table.lines[fork[0]].versions[fork[1]]}, first)
            table.lines[name].keeps_fork = keeps_fork

    def discard(self) -> None:
        """Delete a branch."""
        table = self.table()
        names = [name for name in table.lines if name is not None]
        if not names:
            return self.branch()
        name, library = self.random.choice(names), "ours"
        fault = self.fault(library)
        self.log(f"{library} discards {table.name}@{name}{fault}")
        refs = [*table.tags.values(), *table.clones.values()]
        refs += [line.fork for line in table.lines.values() if line.fork is not None]
        is_needed = any(at == name for at, _ in refs)
        # Killed creations of branches and clones left tags.
        is_tagged = any(tag["branch"] == name for tag in self.open("ours", table).tags.list().values())
        outcome = self.take(
            library,
            fault,
            lambda role: self.open(library, table, None, role).branches.discard(name),
            is_needed or is_tagged,
            True,
        )
        opened = lance_core.dataset(table.uri, storage_options=self.place.options())
        if name in opened.branches.list():
            if outcome.error is None:
                raise FindingError(f"{name} was discarded, and is listed")
            # some of its files may be deleted: it is discarded once more, as the message of such an error says.
            with contextlib.suppress(FindingError):
                self.read(table, name)
                return None
            opened.branches.discard(name)
        elif is_needed:
            raise FindingError(f"{name} was discarded, though a reference needs it")
        for item in [item for item, (at, _) in table.holds.items() if at == name]:
            del table.holds[item]
        listed = opened.tags.list()
        for tag in [tag for tag in table.tags if tag.startswith(f"promoted.{name}.") and tag not in listed]:
            del table.tags[tag]  # it goes with the branch
        del table.lines[name]
        return None

    def clone(self) -> None:
        """Make a shallow clone, or a deep one."""
        table = self.table()
        free = [name for name in NAMES if name not in self.tables]
        if not free:
            return self.drop()
        name = self.random.choice(free)
        uri = f"{self.place.root}/{name if self.place.kind == 's3' else name.replace('%', '_')}"
        at = self.line(table)
        version = self.random.choice(list(table.lines[at].versions))
        rows = table.lines[at].versions[version]
        verb = self.random.choice(["shallow_clone", "shallow_clone", "deep_clone"])
        fault = self.fault_beside_a_cleanup("ours", table, at) if verb == "shallow_clone" else self.fault("ours")
        self.log(f"ours {verb}s {table.name}@{at or 'main'}:{version} to {name}{fault}")

        def work(role: str) -> None:
            options = self.place.options(role)
            getattr(self.open("ours", table, None, role), verb)(uri, (at, version), options)

        outcome = self.take("ours", fault, work)
        try:
            opened = lance_core.dataset(uri, storage_options=self.place.options())
        except lance_core.errors.DatasetNotFoundError:
            opened = None
        if (opened is None) is (outcome.error is None) and outcome.is_known:
            raise FindingError(f"clone {name}: {opened} after {outcome.error!r}")
        if opened is not None:
            self.tables[name] = Table(name, uri, {None: Line(None, {opened.version: rows}, opened.version)})
            if verb == "shallow_clone":
                table.clones[name] = (at, version)
        elif self.place.store(uri):
            for meta in list(self.place.store(uri).list("")):
                self.place.store(uri).delete(meta.key)
        if fault.kind == "meanwhile":
            self.settle_rows(table, at, [])
        return None

    def lose_reference(self) -> None:
        """Remove the file of a branch for a while: who needs it is named, and nothing of the branch is removed."""
        table = self.table()
        names = [name for name, line in table.lines.items() if name is not None and line.keeps_fork]
        if not names:
            return self.branch()
        name = self.random.choice(names)
        store, key = self.place.store(table.uri), f"_refs/branches/{quote(name, safe='')}.json"
        self.log(f"{key} of {table.name} is missing for a while")
        data = bytes(store.get(key))
        store.delete(key)
        opened = self.open("ours", table)
        tags = {tag for tag, ref in opened.tags.list().items() if ref["branch"] == name}
        forks = {other for other, line in table.lines.items() if line.fork is not None and line.fork[0] == name}
        needed = forks | {tag for tag in tags if not tag.startswith(("fork.", "promoted.", "changes."))}
        if (key in {problem.path for problem in verify(opened)}) is not bool(needed):
            raise FindingError(f"beside {key}, which {needed} need, verify says {verify(opened)}")
        with traps.clock(2 * HOUR):
            opened.cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
            )
        store.put(key, data)
        self.settle_rows(table, None, [])
        self.read(table, name)
        return None

    def tear_reference(self) -> None:
        """Tear the file of a tag or branch: it is named, all else goes on, nothing is removed; then mend it or remove it."""
        table = self.table()
        kinds = {"tags": sorted(table.tags), "branches": sorted(name for name in table.lines if name is not None)}
        refs = [(kind, name) for kind, names in kinds.items() for name in names]
        if not refs:
            return self.tag()
        kind, name = self.random.choice(refs)
        store, key = self.place.store(table.uri), f"_refs/{kind}/{quote(name, safe='')}.json"
        self.log(f"{key} of {table.name} is torn for a while")
        data = bytes(store.get(key))
        store.put(key, data[: self.random.randrange(len(data) - 2)])
        opened = self.open("ours", table)
        if key not in {problem.path for problem in verify(opened)}:
            raise FindingError(f"verify does not name {key}")
        others = {item for item in kinds[kind] if item != name}
        listed = (opened.tags if kind == "tags" else opened.branches).list()
        if not others <= listed.keys() or name in listed:
            raise FindingError(f"beside {key}, {sorted(listed)} are listed, not {sorted(others)}")
        if kind == "tags":
            outcome = self.attempt(lambda: opened.tags.get_version(name))
            if outcome.error is None or f"tags.delete({name!r})" not in str(outcome.error):
                raise FindingError(f"an error names no remedy: {outcome.error!r}")
        with traps.clock(2 * HOUR):
            removed = opened.cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
            )
        if removed.old_versions:
            raise FindingError(f"a cleanup beside {key}, which says what is needed, removes {removed}")
        if kind == "tags" and self.random.random() < 0.5:
            opened.tags.delete(name)  # the remedy
            del table.tags[name]
        else:
            store.put(key, data)
        return None
