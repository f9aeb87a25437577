"""Erase rows from a dataset: from all its versions and files, with a proof by reading what is left.

    survey      find the versions of all branches that hold the rows, or traces of them
    obstacles   if tags, forked branches, clones or users need such a version, nothing is changed
    per branch  delete, without the condition in the history -> rewrite the fragments -> rebuild the indices
    clean up    move tags, delete the tags of readers and forks, then remove the versions that hold rows or traces,
                on branches before their parents
    proof       survey again, from the files alone; then check every file below the root

Each step finds out what is left to do, so that a repeated call finishes an interrupted erasure. The next survey finds
rows that others have committed meanwhile; the report names the versions and files that hold rows in the end.

Obstacles are tags, branches and clones that keep a version with the rows, runs that still read one
(`ErasureOptions.in_use`), orphaned branches, columns that were renamed, and blobs outside of the table.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import pyarrow.compute as pc

from lance_core.commit.loop import commit
from lance_core.commit.versions import reload_latest
from lance_core.encoding.structural.blob import BlobKind
from lance_core.errors import DatasetNotFoundError, RetryableConflictError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.cleanup.plan import Selectors
from lance_core.maintenance.cleanup.run import cleanup_old_versions
from lance_core.maintenance.compaction.compaction import commit_what_fits
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.erasure.proof import divide_uploads, prove
from lance_core.maintenance.erasure.report import ErasureFinding, ErasureOptions, ErasureReport, HoldingVersion
from lance_core.maintenance.erasure.survey import (
    ErasureCondition,
    ErasureSurvey,
    MatchCounts,
    Node,
    SurveyedVersion,
    survey_all_versions,
)
from lance_core.maintenance.verify.index_values import open_stored_rows
from lance_core.row_addresses import offsets_of
from lance_core.store import delete_durably
from lance_core.table.operations import CreateIndex, UpdateConfig, UpdateMap
from lance_core.table.paths import FOLDERS, data_key, tag_ref_key
from lance_core.table.refs import BranchRef, TagRef
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import TableRefs
from lance_core.verbs.indices.optimize import optimize_indices
from lance_core.verbs.refs.clones import CLONE_KEY, Clones, is_clone_tag
from lance_core.verbs.refs.readers import READER_KEY, is_reader_tag
from lance_core.verbs.refs.sweep import FORKED_KEY, find_orphans, is_fork_tag
from lance_core.verbs.refs.tags import Tags
from lance_core.verbs.rows.delete import delete_rows
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.projection import described_columns, scanned_columns
from lance_core.verbs.scan.read_fragment import read_descriptors

_logger = logging.getLogger(__name__)

_ROUNDS: Final = 4
"""Most rounds of deletion and cleanup: other writers can add rows meanwhile."""


def erase_rows(dataset: Handle, where: str, options: ErasureOptions) -> ErasureReport:
    """Erase rows from all versions and files of a dataset; see `LanceDataset.erase_rows`.

    Args:
        dataset: A handle on the dataset, which moves to the latest version of its branch.
        where: The rows, in SQL.
        options: What the erasure may change.

    Raises:
        InvalidInputError: The condition does not fit the columns of the main branch, or names no column.
        CorruptFileError: The file of a tag or branch is torn, so that the versions it needs are not known.
        DatasetNotFoundError: The dataset was dropped meanwhile, or `options.check` raised this.
    """
    condition = ErasureCondition(where)
    condition.build_over(scanned_columns(dataset.checkout_version(("main", None)).snapshot.manifest))
    report = _Erasure(dataset=dataset, condition=condition, options=options).run()
    if not options.dry_run:
        dataset.move_to(reload_latest(dataset.snapshot.store, dataset.snapshot.manifest))
    return report


@dataclass(slots=True, kw_only=True)
class _Erasure:
    """One run of `erase_rows`, and what it has done so far; see the attributes of the report."""

    dataset: Handle
    condition: ErasureCondition
    options: ErasureOptions
    counts: MatchCounts = field(default_factory=dict)
    rows_deleted: Counter[str] = field(default_factory=Counter)
    fragments_rewritten: int = 0
    tags_moved: dict[str, int] = field(default_factory=dict)
    readers_released: set[str] = field(default_factory=set)
    files_removed: int = 0
    bytes_removed: int = 0

    def run(self) -> ErasureReport:
        """Survey the versions, erase the rows unless there are obstacles, and prove the result."""
        root = self.table.root
        facts = survey_all_versions(root, self.condition, self.counts)
        uploads, left = divide_uploads(root, of_any_age=self.options.delete_unverified)
        planned = replace(
            self._plan(facts), uploads_aborted=tuple(upload.key for upload in uploads), remaining=tuple(left)
        )
        if self.options.dry_run or planned.obstacles:
            return prove(root, self.condition, self.counts, planned) if facts.is_clean() else planned
        try:
            removed = self._erase(facts)
        except DatasetNotFoundError as error:
            raise self._explain_loss(error) from error
        for upload in uploads:
            root.abort_upload(upload)
        done = replace(
            planned,
            rows_deleted=dict(self.rows_deleted),
            fragments_rewritten=self.fragments_rewritten,
            versions_removed=_name_branches(removed),
            tags_moved=self.tags_moved,
            readers_released=tuple(sorted(self.readers_released)),
            branches_released=tuple(find_forks(facts.refs, removed)),
            files_removed=self.files_removed,
            bytes_removed=self.bytes_removed,
        )
        return prove(root, self.condition, self.counts, done)

    def _explain_loss(self, error: DatasetNotFoundError) -> DatasetNotFoundError:
        """The error of a table that was dropped, or given to another name, with what was done before."""
        numbers = {
            "rows deleted": self.rows_deleted.total(),
            "fragments rewritten": self.fragments_rewritten,
            "tags moved": len(self.tags_moved) + len(self.readers_released),
            "files removed": self.files_removed,
        }
        part = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)
        return DatasetNotFoundError(f"{error}. Before that, the erasure had done a part: {part}") if part else error

    @property
    def table(self) -> TableRefs:
        """The tags and branches of the dataset."""
        return self.dataset._refs  # noqa: SLF001 - same library

    def _plan(self, facts: ErasureSurvey) -> ErasureReport:
        """Report the obstacles, and what the erasure would do."""
        root, latest, removed = self.table.root.root, facts.latest(), facts.removed(drops=self.options.drop_indices)
        bases = {base.path for version in facts.versions.values() for base in version.manifest.base_paths}
        rows = {version.branch_label: self.condition.count_live(version.snapshot) for version in latest}
        built, unbuilt = set[str](), set[str]()
        for version in latest:
            for index in version.suspect:
                names = built if is_supported(index, version.manifest.schema) else unbuilt
                names.add(f"{version.branch_label}:{index.name}")
        readers = {
            ref.metadata[READER_KEY]
            for name, ref in facts.tags.items()
            if is_reader_tag(name, ref) and ref.version in removed.get(ref.branch, ())
        }
        return ErasureReport(
            uri=root,
            dry_run=self.options.dry_run,
            proven=False,
            holding=tuple(_describe_holding(facts)),
            obstacles=tuple(find_obstacles(self.table, facts, self.options)),
            rows_deleted={name: count for name, count in rows.items() if count},
            fragments_rewritten=sum(len(facts.held_fragments(version)) for version in latest),
            indices_rebuilt=tuple(sorted(built)),
            indices_dropped=tuple(sorted(unbuilt)) if self.options.drop_indices else (),
            versions_removed=_name_branches(removed),
            readers_released=tuple(sorted(readers)),
            branches_released=tuple(find_forks(facts.refs, removed)),
            clones=tuple(sorted({clone["uri"] for clone in Clones(self.table).list().values()})),
            bases=tuple(sorted(path for path in bases if not _is_own(path, root))),
        )

    def _erase(self, facts: ErasureSurvey) -> dict[str | None, list[int]]:
        """Erase the rows, also those that others add meanwhile; returns the versions that were removed."""
        root, seen = self.table.root, set[Node]()
        # `retrying` does not fit: after a conflict the next survey also finds rows that other writers have added.
        for number in range(_ROUNDS):
            # Unreferenced files are removed together with versions, or on their own.
            if not any(facts.removed(drops=False).values()) and (number or not self.options.delete_unverified):
                break
            for version in facts.latest():
                try:
                    self._erase_on(version, facts)
                except RetryableConflictError as error:
                    # The rest is done in the next round, or reported at the end.
                    _logger.warning("%s: another writer committed first: %s", version.branch_label, error)
            facts = survey_all_versions(root, self.condition, self.counts)
            seen.update((branch, old) for branch, numbers in facts.removed().items() for old in numbers)
            self._clean_up(facts)
            facts = survey_all_versions(root, self.condition, self.counts)
        removed: dict[str | None, list[int]] = {}
        for branch, old in sorted(seen - facts.versions.keys(), key=lambda node: node[1]):
            removed.setdefault(branch, []).append(old)
        return removed

    def _erase_on(self, version: SurveyedVersion, facts: ErasureSurvey) -> None:
        """Erase the rows from the latest version of a branch: delete them, rewrite fragments, rebuild indices."""
        if not version.reasons:
            return
        handle = self.dataset.checkout_version((version.branch_label, None))
        properties = self.options.transaction_properties
        if self.condition.columns(handle.snapshot.manifest) is not None:
            self.options.check()
            where = self.condition.where
            manifest, rows = delete_rows(handle.snapshot, where, properties=properties, is_recorded=False)
            handle.move_to(manifest)
            self.rows_deleted += Counter({version.branch_label: rows})
        self._rewrite(handle, facts)
        names, manifest = {index.name for index in version.suspect}, handle.snapshot.manifest
        indices = [index for index in manifest.indices if index.name in names]
        built = {index.name for index in indices if is_supported(index, manifest.schema)}
        if built:
            self.options.check()
            index_names = sorted(built)
            handle.move_to(
                optimize_indices(handle.snapshot, index_names=index_names, retrain=True, properties=properties)
            )
        dropped = tuple(index for index in indices if index.name not in built) if self.options.drop_indices else ()
        if dropped:
            self._commit(handle, CreateIndex(removed_indices=dropped))
        if "record" in version.reasons and handle.version == version.number:
            # Cleanup can remove it and its transaction once a later version exists.
            self._commit(handle, UpdateConfig(config=UpdateMap(entries={})))

    def _rewrite(self, handle: Handle, facts: ErasureSurvey) -> None:
        """Rewrite the fragments whose files hold rows, without deleted rows."""
        manifest = handle.snapshot.manifest
        options = replace(
            CompactionOptions.of({"compaction_mode": "reencode"}, manifest.config), defer_index_remap=False
        )
        held = [
            fragment
            for fragment in manifest.fragments
            if any(data_key(file.path) in facts.held for file in fragment.files)
        ]
        if held:
            tasks = [CompactionTask.of([fragment], manifest.version, options) for fragment in held]
            results = [task.execute(handle) for task in tasks]
            self.options.check()
            commit_what_fits(handle, results, self.options.transaction_properties, keep_up=True)
        self.fragments_rewritten += len(held)

    def _commit(self, handle: Handle, operation: CreateIndex | UpdateConfig) -> None:
        self.options.check()
        manifest, properties = handle.snapshot.manifest, dict(self.options.transaction_properties)
        transaction = Transaction(read_version=manifest.version, operation=operation, properties=properties)
        handle.move_to(commit(handle.snapshot.store, transaction, base=manifest).manifest)

    def _clean_up(self, facts: ErasureSurvey) -> None:
        """Move tags, then remove the versions that hold rows or traces, on branches before their parents."""
        removed, latest = facts.removed(), {version.branch: version for version in facts.latest()}
        for name, ref in facts.tags.items():
            if ref.version in removed.get(ref.branch, ()):
                self.options.check()
                self._move_tag(name, ref, latest[ref.branch], facts.refs)
        for branch in reversed(latest):
            if not removed[branch] and not self.options.delete_unverified:
                continue
            selectors = Selectors(
                versions=frozenset(removed[branch] or [0]),
                delete_unverified=self.options.delete_unverified,
                error_if_tagged=False,
                keep_forks=not self.options.release_branches,
                keep_for_change_readers=False,  # a reader that misses them fails, and names the full refresh
                in_use=self.options.in_use if branch is None else {},
            )
            self.options.check()
            stats = cleanup_old_versions(
                self.dataset.checkout_version((branch or "main", None)), selectors, log_level=logging.INFO
            )
            self.files_removed += stats.old_versions + stats.data_files_removed + stats.transaction_files_removed
            self.files_removed += stats.index_files_removed + stats.deletion_files_removed
            self.bytes_removed += stats.bytes_removed

    def _move_tag(self, name: str, ref: TagRef, latest: SurveyedVersion, refs: Mapping[str, BranchRef]) -> None:
        """Delete the tag of a reader or a fork, or move that of a user to the latest version without the rows."""
        if is_reader_tag(name, ref):  # on a later version the reader would miss rows
            delete_durably(self.table.root, tag_ref_key(name))
            self.readers_released.add(ref.metadata[READER_KEY])
        elif is_fork_tag(name, ref):  # a branch cannot be promoted on a later version
            fork = refs.get(ref.metadata[FORKED_KEY])
            is_released = fork is not None and (fork.parent_branch, fork.parent_version) != (ref.branch, ref.version)
            if self.options.release_branches or is_released:
                delete_durably(self.table.root, tag_ref_key(name))
        elif self.options.retag and not is_clone_tag(name, ref) and not latest.reasons:
            Tags(self.table).update(name, (latest.branch_label, latest.number))
            self.tags_moved[name] = latest.number


def _is_own(path: str, root: str) -> bool:
    """Whether a base path is the root, or in a folder that a table has for its own files, such as `tree/`."""
    below = f"{path}/".removeprefix(f"{root}/")
    return not below or (below != f"{path}/" and f"{below.partition('/')[0]}/" in FOLDERS)


def _name_branches(versions: Mapping[str | None, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Versions by the name of their branch, without branches that have none."""
    return {branch or "main": tuple(numbers) for branch, numbers in versions.items() if numbers}


def _describe_holding(facts: ErasureSurvey) -> Iterator[HoldingVersion]:
    """The versions that hold rows or traces of them."""
    for node, version in facts.versions.items():
        if version.reasons:
            yield HoldingVersion(
                branch=version.branch_label,
                version=version.number,
                is_latest=version.is_latest,
                fragments=len(facts.held_fragments(version)),
                reasons=tuple(sorted(version.reasons)),
                tags=tuple(sorted(name for name, ref in facts.tags.items() if (ref.branch, ref.version) == node)),
            )


def find_obstacles(table: TableRefs, facts: ErasureSurvey, options: ErasureOptions) -> Iterator[ErasureFinding]:
    """Yield the obstacles to an erasure.

    Args:
        table: The references of the dataset.
        facts: The survey of the dataset.
        options: The options of the erasure.
    """
    removed = facts.removed(drops=options.drop_indices)
    yield from _find_tags(facts, options, removed)
    for name, number in sorted(options.in_use.items()):
        if number in removed[None]:
            message = f"version main:{number}, which holds the rows, is in use by {name}: let it finish, then erase"
            yield ErasureFinding(kind="in use", path=name, message=message)
    for name in () if options.release_branches else find_forks(facts.refs, removed):
        message = (
            f"it was forked from {facts.refs[name].parent_branch or 'main'}:{facts.refs[name].parent_version}, which "
            "holds the rows: promote or discard the branch, or set release_branches, which removes that version; the "
            "branch cannot be promoted after that"
        )
        yield ErasureFinding(kind="branch", path=name, message=message)
    for name in find_orphans(table, facts.refs.keys(), timedelta(0)):
        message = f"no reference names the branch: remove its files by branches.discard({name!r})"
        yield ErasureFinding(kind="orphan branch", path=name, message=message)
    for version in facts.latest():
        yield from _find_renamed(facts, version)
        if _has_external_blobs(facts, version):
            message = (
                "rows refer to blobs by URI, and an erasure does not remove such objects: remove the objects, delete "
                "the rows and compact (materialize_deletions_threshold=0), then erase"
            )
            yield ErasureFinding(kind="blobs", path=version.branch_label, message=message)
        holds_addresses = not version.manifest.uses_stable_row_ids and not options.drop_indices
        for index in version.suspect if holds_addresses else ():
            if "HNSW" in index.kind:
                message = (
                    f"pylance cannot search the {index.kind} index {index.name!r} once rows of its graph are removed: "
                    "drop it, or set drop_indices, then erase"
                )
                yield ErasureFinding(kind="index", path=index.name, message=message)


def find_forks(refs: Mapping[str, BranchRef], versions: Mapping[str | None, Collection[int]]) -> list[str]:
    """Find the branches that were forked from one of some versions.

    Args:
        refs: All branches.
        versions: Numbers of versions, by branch; None is main.
    """
    return sorted(name for name, ref in refs.items() if ref.parent_version in versions.get(ref.parent_branch, ()))


def _find_tags(
    facts: ErasureSurvey, options: ErasureOptions, removed: Mapping[str | None, Collection[int]]
) -> Iterator[ErasureFinding]:
    """The tags of versions that have to be removed, but those of readers and of the forks of branches."""
    for name, ref in sorted(facts.tags.items()):
        if ref.version not in removed.get(ref.branch, ()) or is_reader_tag(name, ref):
            continue
        where = f"version {ref.branch or 'main'}:{ref.version}, which holds the rows"
        if is_clone_tag(name, ref):
            clone = ref.metadata[CLONE_KEY]
            remedy = f"erase there, or drop the clone; then clones.release({clone!r})"
            message = f"the clone {clone} refers to files of {where}: {remedy}"
            yield ErasureFinding(kind="clone", path=clone, message=message)
        elif not options.retag and not is_fork_tag(name, ref):
            message = f"the tag names {where}: retag moves it to the version after the erasure"
            yield ErasureFinding(kind="tag", path=name, message=message)


def _find_renamed(facts: ErasureSurvey, version: SurveyedVersion) -> Iterator[ErasureFinding]:
    """Yield a finding for each set of columns of a version by which live rows match, if one was renamed since."""
    fields = version.manifest.schema.by_id()
    for names, columns in version.columns.items():
        renamed = [f"{name!r} (now {fields[key].name!r})" for key, name in sorted(names) if fields[key].name != name]
        if not renamed or not any(facts.counts.get((piece.files, names)) for piece in version.pieces):
            continue
        if facts.condition.count_live(version.snapshot.with_manifest(replace(version.manifest, schema=columns))):
            message = (
                f"live rows match by columns that have another name in an older version, {', '.join(renamed)}: erase "
                "by the present names first, or remove that version if these rows are to stay"
            )
            yield ErasureFinding(kind="renamed", path=f"{version.branch_label}:{version.number}", message=message)


def _has_external_blobs(facts: ErasureSurvey, version: SurveyedVersion) -> bool:
    """Whether stored rows that match, deleted rows included, refer to blobs by URI.

    If the condition cannot be evaluated in the latest version, all rows of fragments that can hold a row count.
    """
    manifest, columns = version.manifest, described_columns(version.manifest)
    held = facts.held_fragments(version)
    if columns is None or not held:
        return False
    fragments = [piece.fragment for piece in version.pieces if piece.fragment.id in held]
    whole = open_stored_rows(version.snapshot, fragments)
    where = facts.condition.build_over(columns) if facts.condition.columns(manifest) is not None else None
    return any(
        pc.any(pc.equal(pc.struct_field(entries, "kind"), BlobKind.EXTERNAL.value)).as_py()
        for fragment, rows in each_matching(whole, where, columns)
        for entries in read_descriptors(whole, fragment, offsets_of(rows))
    )
