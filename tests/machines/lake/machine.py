"""The steps of the machine: each takes a step on the lake and on the model, and compares them."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any, ClassVar

import pyarrow as pa

import lance_core
from lance_core.commit.versions import load_manifest
from lance_core.errors import CommitConflictError, LanceError, ObjectNotFoundError, StoreError
from lance_core.maintenance.verify.files import verify
from tests.machines.lake import traps
from tests.machines.lake.changes import SCHEMA, ZERO, Change, Rows, changed, compact, draw, table_of, value_of
from tests.machines.lake.lake import HOUR, LIBRARIES, NAMES, Fault, Outcome
from tests.machines.lake.model import FindingError, Line, Table
from tests.machines.lake.places import Place
from tests.machines.lake.references import References
from tests.machines.lake.traps import FULL


def values(rows: Rows) -> Rows:
    """The rows without the columns that were added."""
    return {k: changed((), v=value_of(cells)) for k, cells in rows.items()}


class Machine(References):
    """A lake, its model, and the steps."""

    def __init__(self, place: Place, random: Random, log: Callable[[str], None]) -> None:
        super().__init__(place, random, log)
        self.create()

    def create(self) -> None:
        """Make a table."""
        free = [name for name in NAMES if name not in self.tables]
        if not free:
            return self.write()
        name = self.random.choice(free)
        uri = f"{self.place.root}/{name}"
        if self.place.kind != "s3":
            uri = f"{self.place.root}/{name.replace('%', '_')}"
        rows = dict.fromkeys(self.fresh(self.random.randint(1, 8)), ZERO)
        library = self.library()
        options = {"enable_stable_row_ids": self.random.random() < 0.5}
        self.log(f"{library} creates {name} with {len(rows)} rows")
        LIBRARIES[library].write_dataset(
            table_of(rows), uri, storage_options=self.place.options() or None, max_rows_per_file=4, **options
        )
        self.tables[name] = Table(name, uri, {None: Line(None, {1: rows}, 1)})
        return None

    def write(self) -> None:
        """Change rows, indices or files."""
        table = self.table()
        branch, library = self.line(table), self.library()
        rows, names = table.lines[branch].rows, self.columns(table, branch)
        are_at_once = self.place.server is None and self.random.random() < 0.15  # what leaves few traces meets the like
        change, other = (
            draw(self.random, self.fresh, rows, names, is_quiet=are_at_once or self.random.random() < 0.3)
            for _ in range(2)
        )
        other_library = self.library()
        meantime: list[Outcome] = []

        def meanwhile() -> None:
            with traps.untrapped():
                meantime.append(self.attempt(lambda: other.work(self.open(other_library, table, branch))))

        are_vectors_indexed = self.are_vectors_indexed(table, branch)
        if are_vectors_indexed and self.random.random() < 0.3:  # moves of rows that such an index has to follow
            change = compact(self.random)
        if change.name.startswith("index IVF") and self.place.is_shared:
            library = "pylance"
        fault = self.fault(library, meanwhile)
        if are_at_once and library == "ours":
            fault = Fault("meanwhile", traps.AFTER_PUT, work=meanwhile)
        also = f" while {other_library} does {other.name}" if fault.kind == "meanwhile" else ""
        self.log(f"{library} {change.name} on {table.name}@{branch or 'main'}{fault}{also}")
        outcome = self.take(library, fault, lambda role: change.work(self.open(library, table, branch, role)))
        done = [(change, outcome), *((other, outcome_of_other) for outcome_of_other in meantime)]
        self.settle_rows(table, branch, done)
        stays = any(table.lines[branch].rows.get(k) == cells for k, cells in rows.items())  # where an index finds it
        if are_vectors_indexed and stays and not self.has_vector_index(table, branch):
            raise FindingError(f"{table.name}@{branch or 'main'} has lost its index of vectors")

    def columns(self, table: Table, branch: str | None) -> list[str]:
        """The columns of a line beside `k` and `v`."""
        return [name for name in self.open("ours", table, branch).schema.names if name not in SCHEMA.names]

    def schema_at(self, table: Table, branch: str | None, version: int) -> list[str]:
        """The columns of a version."""
        return list(self.open("ours", table).checkout_version((branch, version)).schema.names)

    def overwrite(self) -> None:
        """Replace all rows of main, or of a branch."""
        table = self.table()
        branch, library = self.line(table), self.library()
        rows = dict.fromkeys(self.fresh(self.random.randint(0, 6)), ZERO)
        fault = self.fault(library)
        self.log(f"{library} overwrites {table.name}@{branch or 'main'} with {list(rows)}{fault}")
        write = LIBRARIES[library].write_dataset
        work = lambda role: write(table_of(rows), self.open(library, table, branch, role), mode="overwrite")  # noqa: E731
        outcome = self.take(library, fault, work)
        self.settle_rows(table, branch, [(Change("overwrite", lambda _: None, lambda _: rows), outcome)])

    def promote(self) -> None:
        """Publish a branch."""
        table = self.table()
        names = [name for name, line in table.lines.items() if name is not None and line.promoted is None]
        if not names:
            return self.branch()
        name = self.random.choice(names)
        line = table.lines[name]
        assert line.fork is not None
        at, number = line.fork
        above = table.lines.get(at)
        if above is None or number not in above.versions:
            return None
        names = {tuple(self.columns(table, where)) for where in (at, name)}
        names.add(tuple(item for item in self.schema_at(table, at, number) if item not in SCHEMA.names))
        shape = values if len(names) > 1 else dict  # what becomes of columns that only one side has is not modelled
        forked, now, new = (shape(rows) for rows in (above.versions[number], above.rows, line.rows))
        fault = self.fault("ours")
        self.log(f"ours promotes {table.name}@{name}{fault}")
        moved = {k for k in forked.keys() | new.keys() if forked.get(k) != new.get(k)}
        dropped = {k for k in moved if k not in new}
        has_casts = self.open("ours", table, at).schema != self.open("ours", table, name).schema
        is_same = above.latest == number and len(names) == 1 and not has_casts and not line.is_forgotten
        change = Change(
            "promote",
            lambda _: None,
            lambda rows: {
                **{k: v for k, v in rows.items() if k not in dropped},
                **{k: new[k] for k in moved - dropped},
            },
        )
        outcome = self.take(
            "ours", fault, lambda role: self.open("ours", table, at, role).branches.promote(name), not is_same
        )
        overlap = {k for k in moved if forked.get(k) != now.get(k)}
        if outcome.error is None and overlap:
            same = all(now.get(k) == new.get(k) for k in overlap)
            if not same:
                raise FindingError(f"{name} was promoted, and both changed {sorted(overlap)}")
        before = above.rows
        self.settle_rows(table, at, [(change, outcome)], shape=shape)
        if outcome.error is None or above.rows != before:
            line.promoted = line.latest
        for name_of, ref in self.open("ours", table).tags.list().items():
            if name_of.startswith("promoted."):
                table.tags[name_of] = (ref["branch"], ref["version"])
        return None

    def drop(self) -> None:
        """Drop a table; one that a shallow clone needs is spared."""
        if len(self.tables) == 1:
            return self.create()
        table = self.table()
        # Of creations that were killed, whose clones might have been moved.
        left = [] if table.clones else [item["uri"] for item in self.open("ours", table).clones.list().values()]
        fault = self.fault("ours")
        self.log(f"ours drops {table.name}{fault}")
        outcome = self.take(
            "ours",
            fault,
            lambda role: lance_core.LanceDataset.drop(table.uri, self.place.options(role)),
            bool(table.clones or left),
            deletes=True,
        )
        if table.clones:
            if outcome.error is None:
                raise FindingError(f"{table.name} was dropped, though {list(table.clones)} need it")
            return None
        if outcome.error is not None:
            with contextlib.suppress(lance_core.errors.NotFoundError):
                for uri in left:
                    self.open("ours", table).clones.release(uri)
                lance_core.LanceDataset.drop(table.uri, self.place.options())
        del self.tables[table.name]
        for other in self.tables.values():
            if other.clones.pop(table.name, None) is not None:
                opened = self.open("ours", other)
                listed = [item["uri"] for item in opened.clones.list().values()]
                if lance_core.canonical_uri(table.uri) in listed:  # the drop was interrupted
                    opened.clones.release(table.uri)
        return None

    def clean_up(self) -> None:
        """Remove old versions."""
        table = self.table()
        branch, library = self.line(table), self.library()
        another, refer, note = self.refer(table, branch)
        fault = self.fault(library, refer if library == "ours" else None, (CommitConflictError,))
        older = timedelta(days=self.random.choice([0, 0, 3, 14]))
        policy: dict[str, Any] = {"older_than": older}
        if self.random.random() < 0.3:
            policy = {"retain_versions": self.random.randint(1, 3)}
        before = set(table.lines[branch].versions)
        policy |= {"error_if_tagged_old_versions": False, "delete_unverified": self.random.random() < 0.5}
        if library == "ours" and "older_than" in policy and self.random.random() < 0.5:
            policy["age_from"] = "replacement"
        if fault.kind == "meanwhile" and fault.at != traps.AFTER_PUT:
            fault.at += self.random.choice([0, 8, 16])  # also while it removes files
        also = f" while another makes {another}" if fault.kind == "meanwhile" else ""
        self.log(f"{library} cleans up {table.name}@{branch or 'main'} {policy}{fault}{also}")
        self.take(
            library,
            fault,
            lambda role: self.open(library, table, branch, role).cleanup_old_versions(**policy),
            deletes=True,
        )
        self.settle_rows(table, branch, note())
        line = table.lines[branch]
        line.is_forgotten |= library != "ours" and not before <= line.versions.keys()
        if "older_than" in policy:
            since = line.replaced if "age_from" in policy else line.born
            young = {version for version in before if version in since and self.day - since[version] < older.days}
            if not young <= line.versions.keys():
                raise FindingError(f"versions {sorted(young - line.versions.keys())} were removed before their age")
        if fault.kind != "none":
            self.forget_broken(table, branch)

    def forget_broken(self, table: Table, branch: str | None) -> None:
        """Forget the versions that nothing needs and that an interrupted cleanup has begun to remove."""
        line = table.lines[branch]
        for version in set(line.versions) - table.needed(branch):
            try:
                self.read(table, branch, version)
            except FindingError:
                del line.versions[version]

    def hold(self) -> None:
        """Hold a version for a reader of changes, or release it."""
        table = self.table()
        at = self.line(table)
        version = table.lines[at].latest
        if table.holds and self.random.random() < 0.4:
            name = self.random.choice(list(table.holds))
            at = table.holds[name][0]
            self.log(f"ours releases {name} of {table.name}@{at or 'main'}")
            self.open("ours", table, at).readers.release(name)
            if table.holds[name][1] < table.lines[at].latest:
                del table.holds[name]
            return
        name = self.name("reader")
        self.log(f"ours holds {table.name}@{at or 'main'}:{version} for {name}")
        self.open("ours", table, at).readers.hold(name)
        table.holds[name] = (at, version)

    def pass_time(self) -> None:
        """Let days pass."""
        days = self.random.choice([1, 4, 8, 20])
        self.log(f"{days} days pass")
        self.day += days
        self.place.move_time([table.uri for table in self.tables.values()], days)
        if self.random.random() < 0.5:  # the versions of long ago are replaced now, and cleaned up at once
            self.check()
            self.overwrite()
            self.clean_up()

    def damage(self) -> None:
        """Tear or remove a data file of the latest version: `verify` sees it, until it is mended."""
        table = self.table()
        branch = self.line(table)
        opened = self.open("ours", table, branch)
        keys = [
            f"data/{file.path}"
            for fragment in opened.snapshot.manifest.fragments
            for file in fragment.files
            if file.base_id is None
        ]
        if not keys:
            return
        key, tears = self.random.choice(keys), self.random.random() < 0.5
        self.log(f"{key} of {table.name}@{branch or 'main'} is {'torn' if tears else 'missing'} for a while")
        store = opened.snapshot.store
        data = bytes(store.get(key))
        store.delete(key)
        if tears:
            store.put(key, data[: self.random.randrange(len(data))])
        try:
            if not verify(self.open("ours", table, branch)):
                raise FindingError(f"verify sees nothing, though {key} is damaged")
        finally:
            store.put(key, data)

    def tear_version(self) -> None:
        """Tear the manifest of an old version that nothing needs: it is named, all else goes on, cleanup removes it."""
        table = self.table()
        branch = self.line(table)
        line = table.lines[branch]
        tags = self.open("ours", table).tags.list().values()
        old = set(line.versions) - table.needed(branch) - {item["version"] for item in tags if item["branch"] == branch}
        old -= {item.fork[1] for item in table.lines.values() if item.fork is not None and item.fork[0] == branch}
        if not old or table.holds:
            return self.write()
        version = self.random.choice(sorted(old))
        opened = self.open("ours", table, branch)
        store = opened.snapshot.store
        location = load_manifest(store, version).location
        assert location is not None
        self.log(f"the manifest of {table.name}@{branch or 'main'}:{version} is torn")
        data = bytes(store.get(location.key))
        store.put(location.key, data[: self.random.randrange(len(data) - 20)])
        opened = lance_core.dataset(table.uri, storage_options=self.place.options()).checkout_version((branch, None))
        named = [problem for problem in verify(opened) if problem.version == version]
        if not named:
            raise FindingError(f"verify does not name the torn version {version}")
        listed = {item["version"] for item in opened.versions()}
        if not set(line.versions) - {version} <= listed:
            raise FindingError(f"beside the torn version {version}, only {sorted(listed)} are listed")
        with traps.clock(2 * HOUR):
            opened.cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
            )
        self.settle_rows(table, branch, [])
        if version in line.versions:
            raise FindingError(f"cleanup has not removed the torn version {version}")
        return None

    def slow_write(self) -> None:
        """Write rows while a cleanup removes files that no version has: the rows are there, or the write fails."""
        if self.place.server is not None:  # there only files of an hour are looked for
            return self.write()
        table = self.table()
        branch = self.line(table)
        rows = dict.fromkeys(self.fresh(6), ZERO)
        opened = self.open("ours", table, branch)
        self.log(f"ours appends {list(rows)} to {table.name}@{branch or 'main'} while a cleanup removes young files")
        is_staged = self.random.random() < 0.5

        def clean_up() -> None:
            self.open("ours", table, branch).cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
            )

        def batches() -> Iterator[pa.RecordBatch]:
            yield from table_of(rows).to_batches(max_chunksize=2)
            if not is_staged:
                clean_up()

        def work() -> None:
            reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
            if not is_staged:
                lance_core.write_dataset(reader, opened, mode="append", max_rows_per_file=2)
                return
            fragments = lance_core.fragment.write_fragments(reader, opened, max_rows_per_file=2)
            clean_up()
            lance_core.LanceDataset.commit(
                opened, lance_core.LanceOperation.Append(fragments), read_version=opened.version
            )

        outcome = self.attempt(work)
        names_cause = "by a cleanup with delete_unverified" in str(outcome.error)
        if outcome.error is not None and not (
            names_cause or isinstance(outcome.error, ObjectNotFoundError | StoreError)
        ):
            raise FindingError(f"a write whose files were deleted ends in {outcome.error!r}") from outcome.error
        self.settle_rows(table, branch, [(Change("append", lambda _: None, lambda old: {**old, **rows}), outcome)])
        return None

    def full_disk(self) -> None:
        """Maintain a table on a disk that is full: each step alone, and what removes files succeeds."""
        if self.place.server is not None:  # buckets are never full
            return self.write()
        table = self.table()
        branch = self.line(table)
        self.log(f"the disk is full while ours maintains {table.name}@{branch or 'main'}")
        trap = traps.Trap("full", 0)
        with traps.set_trap(trap):
            opened = self.open("ours", table, branch)
            outcomes = [
                self.attempt(lambda: opened.insert(table_of({self.fresh(1)[0]: ZERO}))),
                self.attempt(lambda: opened.optimize.compact_files(target_rows_per_fragment=1000)),
                self.attempt(opened.optimize.optimize_indices),
                self.attempt(lambda: opened.tags.create(self.name("tag"), (branch, opened.version))),
            ]
            for outcome in outcomes:
                if outcome.error is not None and (
                    not isinstance(outcome.error, StoreError) or FULL not in str(outcome.error)
                ):
                    raise FindingError(f"a full disk ends in {outcome.error!r}") from outcome.error
            if outcomes[0].error is None or outcomes[3].error is None:
                raise FindingError("rows or a tag were written to a full disk")
            with traps.clock(2 * HOUR):
                cleaned = self.attempt(
                    lambda: self.open("ours", table, branch).cleanup_old_versions(
                        older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
                    )
                )
            if cleaned.error is not None:
                raise FindingError(f"a full disk is not cleaned: {cleaned.error!r}") from cleaned.error
        self.settle_rows(table, branch, [])
        return None

    def commit_by_hand(self) -> None:
        """Commit an operation that would break the table: it is rejected."""
        table = self.table()
        branch = self.line(table)
        opened = self.open("ours", table, branch)
        fragments = [json.loads(json.dumps(item.metadata.to_json())) for item in opened.get_fragments()]
        kind = self.random.choice(["rows", "ids", "type", "not null"])
        schema = opened.schema
        if kind == "rows" and fragments:
            fragments[0]["physical_rows"] += 1
        elif kind == "ids" and fragments:
            fragments[0]["id"] += 1000
        elif kind == "type":
            schema = schema.set(schema.get_field_index("v"), pa.field("v", pa.string()))
        else:
            schema = schema.set(schema.get_field_index("v"), pa.field("v", pa.int64(), nullable=False))
        if not fragments:
            return self.write()
        self.log(f"ours commits a Merge of {table.name}@{branch or 'main'} with other {kind}")
        merged = [lance_core.FragmentMetadata.from_json(json.dumps(item)) for item in fragments]
        operation = lance_core.LanceOperation.Merge(merged, schema)
        outcome = self.attempt(lambda: lance_core.LanceDataset.commit(opened, operation, read_version=opened.version))
        if outcome.error is None or not isinstance(outcome.error, LanceError):
            raise FindingError(f"a Merge with other {kind} ends in {outcome.error!r}")
        self.settle_rows(table, branch, [])
        return None

    def erase(self) -> None:
        """Erase rows, where nothing needs a version that has them."""
        tables = [
            table
            for table in self.tables.values()
            if not (len(table.lines) > 1 or table.tags or table.holds or table.clones or self.is_clone(table))
        ]
        if not tables:
            return self.create()
        table = self.random.choice(tables)
        line = table.lines[None]
        divisor = self.random.randint(2, 6)
        upload = None
        client = None if self.place.server is None else self.place.server.client()
        store = self.place.store(table.uri)
        if client is not None and self.random.random() < 0.6:
            bucket, _, path = lance_core.store.base.unescaped_root(store.root)[5:].partition("/")
            upload = client.create_multipart_upload(Bucket=bucket, Key=f"{path}/data/unfinished.lance")
        self.log(f"ours erases k % {divisor} = 0 of {table.name}{' beside an unfinished upload' if upload else ''}")
        opened = self.open("ours", table)
        if upload is not None:
            planned = opened.erase_rows(f"k % {divisor} = 0", dry_run=True, delete_unverified=True)
            if planned.uploads_aborted != ("data/unfinished.lance",):
                raise FindingError(f"the upload is not planned to be aborted: {planned}")
            if (
                lance_core.dataset(table.uri, storage_options=self.place.options())
                .erase_rows("k = -1", dry_run=True, delete_unverified=True)
                .proven
            ):
                raise FindingError("an erasure is proven beside an unfinished upload")
        with traps.clock(2 * HOUR):
            report = opened.erase_rows(f"k % {divisor} = 0", delete_unverified=True)
            places = (*report.obstacles, *report.remaining)
            for obstacle in places:  # what killed writers left; the message has the remedy
                self.log(f"    {obstacle.kind}: {obstacle.message}")
                for tag in re.findall(r"tags.delete\('(.*?)'\)", obstacle.message):
                    opened.tags.delete(tag)
                for uri in re.findall(r"clones.release\('(.*?)'\)", obstacle.message):
                    opened.clones.release(uri)
                if obstacle.kind == "index":
                    self.open("pylance", table).drop_index("e_idx")
                if obstacle.kind == "orphan branch":
                    opened.branches.discard(obstacle.path)
            if places:
                report = opened.erase_rows(f"k % {divisor} = 0", delete_unverified=True)
        if not report.proven:
            raise FindingError(f"an erasure is not proven: {report.obstacles} {report.remaining}")
        if client is not None:
            client.close()
        change, before = (
            Change("erase", lambda _: None, lambda rows: {k: v for k, v in rows.items() if k % divisor}),
            line.rows,
        )
        for version, rows in list(line.versions.items()):
            if any(k % divisor == 0 for k in rows):
                del line.versions[version]
        self.settle_rows(table, None, [(change, Outcome())], before=before)
        return None

    def maintain(self) -> None:
        """Clean up all that nothing needs: exactly what is needed is left."""
        table = self.table()
        self.log(f"ours removes all that nothing needs of {table.name}")
        lines = sorted(table.lines, key=lambda name: (name is None, -len(str(name))))
        with traps.clock(2 * HOUR):
            for branch in lines:
                if table.lines[branch].fork is not None or branch is None:
                    self.open("ours", table, branch).cleanup_old_versions(
                        older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
                    )
        for branch in lines:
            self.settle_rows(table, branch, [])
            # Killed creations of branches and clones left tags.
            tags = self.open("ours", table).tags.list().values()
            needed = table.needed(branch) | {item["version"] for item in tags if item["branch"] == branch}
            left = set(table.lines[branch].versions)
            first = min((version for at, version in table.holds.values() if at == branch), default=None)
            spared = set() if first is None else {version for version in left if version >= first}
            spared |= {
                line.fork[1] for line in table.lines.values() if line.fork is not None and line.fork[0] == branch
            }
            if left - spared != needed - spared:
                raise FindingError(f"{branch or 'main'} has the versions {sorted(left)}, needed are {sorted(needed)}")

    def is_clone(self, table: Table) -> bool:
        """Whether a table is a shallow clone of another."""
        return any(table.name in other.clones for other in self.tables.values())

    STEPS: ClassVar = {
        "write": 12, "overwrite": 1, "restore": 2, "tag": 2, "branch": 2, "discard": 1, "promote": 2, "clone": 2, "drop": 1,
        "create": 1, "clean_up": 3, "hold": 1, "pass_time": 2, "damage": 1, "erase": 2, "tear_version": 1, "maintain": 2,
        "commit_by_hand": 1, "tear_reference": 1, "lose_reference": 1, "full_disk": 1, "slow_write": 1,
    }  # fmt: skip

    def step(self) -> None:
        """Take a step, and check the lake."""
        (name,) = self.random.choices(list(self.STEPS), list(self.STEPS.values()))
        getattr(self, name)()
        self.check()
