"""Erase rows from a dataset: from all its versions and files, with a proof by reading what is left.

    survey      find the versions of all branches that hold the rows, or traces of them
    obstacles   if tags, forked branches, clones or users need such a version, nothing is changed
    per branch  delete, without the condition in the history -> rewrite the fragments -> rebuild the indices
    clean up    move tags, delete the tags of readers and forks, then remove the versions that hold rows or traces,
                on branches before their parents
    proof       survey again, from the files alone; then check every file below the root

Each step finds out what is left to do, so that a repeated call finishes an interrupted erasure. The next survey finds
rows that others have committed meanwhile; the report names the versions and files that hold rows in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lance_core.commit import commit, load_following
from lance_core.errors import InvalidInputError, RetryableConflictError, StoreError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.cleanup.plan import Selectors
from lance_core.maintenance.cleanup.run import cleanup_old_versions
from lance_core.maintenance.compaction.compaction import commit_what_fits
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.erasure.condition import ErasureCondition
from lance_core.maintenance.erasure.names import Columns, Node
from lance_core.maintenance.erasure.obstacles import (
    find_obstacles,
    holding_versions,
    is_needless_fork_tag,
    released_branches,
    released_readers,
)
from lance_core.maintenance.erasure.proof import prove
from lance_core.maintenance.erasure.report import ErasureReport
from lance_core.maintenance.erasure.survey import ErasureSurvey, Line, survey
from lance_core.maintenance.erasure.uploads import doomed_uploads, upload_findings
from lance_core.store import Upload, delete_durably
from lance_core.table.operations import CreateIndex, Delete, UpdateConfig, UpdateMap
from lance_core.table.paths import data_key, tag_ref_key
from lance_core.table.refs import BranchRef, TagRef
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import read_branches, read_tags, reject_torn
from lance_core.verbs.context.snapshot import Snapshot, retrying_on_latest
from lance_core.verbs.context.uncommitted_files import staged
from lance_core.verbs.indices.optimize import optimize_indices
from lance_core.verbs.refs.readers import READER_KEY, is_reader_tag
from lance_core.verbs.refs.sweep import is_fork_tag
from lance_core.verbs.refs.tags import Tags
from lance_core.verbs.rows.removal import each_matching, remove_rows
from lance_core.verbs.scan.blob_view import described_columns

__all__ = ["ErasureOptions", "erase_rows"]

_logger = logging.getLogger(__name__)

_ROUNDS: Final = 4
"""Most rounds of deletion and cleanup: other writers can add rows meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOptions:
    """The options of an erasure: what it may change.

    Attributes:
        dry_run: Report what would be done, and change nothing.
        retag: Move tags of versions that hold rows to the version of the same branch after the erasure. Tags of
            readers of changes are deleted in any case.
        release_branches: Remove versions that branches were forked from. These branches cannot be promoted any more.
        drop_indices: Drop indices that can hold values of the rows and cannot be built here, such as vector and
            full-text indices.
        delete_unverified: Remove files that nothing refers to whatever their age, and on object storage versions of
            the last five minutes. Only safe if no other process uses the dataset.
        in_use: Versions of the main branch that must stay, by the name of their user.
        transaction_properties: Transaction properties of the commits.
    """

    dry_run: bool = False
    retag: bool = False
    release_branches: bool = False
    drop_indices: bool = False
    delete_unverified: bool = False
    in_use: Mapping[str, int] = field(default_factory=dict)
    transaction_properties: Mapping[str, str] = field(default_factory=dict)


def erase_rows(dataset: Handle, where: str, options: ErasureOptions) -> ErasureReport:
    """Erase rows from all versions and files of a dataset; see `LanceDataset.erase_rows`.

    Args:
        dataset: A handle on the dataset, which moves to the latest version of its branch.
        where: The rows, in SQL.
        options: What the erasure may change.

    Raises:
        InvalidInputError: The condition does not fit the columns of the main branch, or names no column; or a
            transaction property contains a value of the condition.
        CorruptFileError: The file of a tag or branch is torn, so that the versions it needs are not known.
    """
    condition = ErasureCondition(where)
    run = _Erasure(dataset=dataset, condition=condition, options=options)
    main = dataset.checkout_version(("main", None)).source
    condition.of(described_columns(main.manifest) or main.manifest.schema)
    if any(condition.is_in_string(value) for value in options.transaction_properties.values()):
        raise InvalidInputError(
            "transaction_properties contain a value of the condition, which no version may record: leave it out"
        )
    report = run.run()
    if not options.dry_run:
        dataset.move_to(load_following(dataset.source.store, dataset.source.manifest))
    return report


@dataclass(slots=True)
class _Erasure:
    """One run of `erase_rows`."""

    dataset: Handle
    condition: ErasureCondition
    options: ErasureOptions
    report: ErasureReport = field(init=False)
    removed: dict[str, set[int]] = field(default_factory=dict)
    columns: dict[Node, Columns] = field(default_factory=dict)

    def run(self) -> ErasureReport:
        """Survey the versions, erase the rows unless there are obstacles, and prove the result."""
        facts, tags, refs = self._survey(None)
        table = self.dataset._refs  # noqa: SLF001 - same library
        obstacles, clones = find_obstacles(table, facts, tags, refs, self.options)
        self.report = ErasureReport(
            uri=table.root.root,
            dry_run=self.options.dry_run,
            proven=False,
            holding=holding_versions(facts, tags),
            obstacles=obstacles,
            clones=clones,
            bases=_bases(facts),
        )
        if self.options.dry_run or obstacles:
            return self._planned(facts, tags, refs)
        released = released_branches(facts, refs, self.options)
        # `retrying` does not fit: after a conflict the next survey also finds rows that other writers have added.
        for number in range(_ROUNDS):
            # Unreferenced files are removed together with versions, or on their own.
            if not _is_work_left(facts) and (number or not self.options.delete_unverified):
                break
            for line in facts.lines:
                try:
                    self._erase_on(line, facts)
                except RetryableConflictError as error:
                    # The rest is done in the next round, or reported at the end.
                    _logger.warning("%s: others changed the same rows: %s", line.name, error)
            facts, tags, refs = self._survey(facts)
            released |= released_branches(facts, refs, self.options)
            doomed = {line.name: set(line.doomed()) for line in facts.lines}
            self._clean_up(facts, tags)
            facts, tags, refs = self._survey(facts)
            for line in facts.lines:
                self.removed.setdefault(line.name, set()).update(doomed.get(line.name, set()) - line.versions.keys())
        self._abort_uploads()
        freed = {name: tuple(sorted(numbers)) for name, numbers in self.removed.items() if numbers}
        self.report = replace(self.report, versions_removed=freed, branches_released=tuple(sorted(released)))
        return self._proven()

    def _doomed_uploads(self) -> Sequence[Upload]:
        """The unfinished uploads to abort; empty if the storage does not say which there are, as the proof reports."""
        root = self.dataset._refs.root  # noqa: SLF001 - same library
        try:
            return doomed_uploads(root, of_any_age=self.options.delete_unverified)
        except StoreError:
            return ()

    def _abort_uploads(self) -> None:
        uploads = self._doomed_uploads()
        for upload in uploads:
            self.dataset._refs.root.abort_upload(upload)  # noqa: SLF001 - same library
        self.report = replace(self.report, uploads_aborted=tuple(upload.key for upload in uploads))

    def _survey(
        self, earlier_survey: ErasureSurvey | None
    ) -> tuple[ErasureSurvey, dict[str, TagRef], dict[str, BranchRef]]:
        """A new survey, all tags, and all branches."""
        root = self.dataset._refs.root  # noqa: SLF001 - same library
        tags, torn_tags = read_tags(root)
        refs, torn = read_branches(root)
        reject_torn([*torn_tags, *torn.values()])
        facts = survey(root, refs, self.condition, earlier_survey)
        self.condition, self.columns = facts.condition, facts.columns
        return facts, tags, refs

    def _planned(
        self, facts: ErasureSurvey, tags: Mapping[str, TagRef], refs: Mapping[str, BranchRef]
    ) -> ErasureReport:
        rows = {line.name: self.condition.count_live(self._source(line)) for line in facts.lines}
        versions = {line.name: tuple(line.going(drops=self.options.drop_indices)) for line in facts.lines}
        suspect = [
            (f"{line.name}:{index.name}", is_supported(index, line.latest.schema))
            for line in facts.lines
            for index in line.latest.suspect
        ]
        uploads = self._doomed_uploads()
        left = tuple(upload_findings(self.dataset._refs.root, uploads))  # noqa: SLF001 - same library
        return replace(
            self._proven() if facts.is_clean() else replace(self.report, remaining=left),
            uploads_aborted=tuple(upload.key for upload in uploads),
            rows_deleted={name: count for name, count in rows.items() if count},
            fragments_rewritten=sum(len(facts.fragments_to_rewrite(line)) for line in facts.lines),
            indices_rebuilt=tuple(sorted({name for name, is_built in suspect if is_built})),
            indices_dropped=tuple(
                sorted({name for name, is_built in suspect if not is_built}) if self.options.drop_indices else ()
            ),
            versions_removed={name: numbers for name, numbers in versions.items() if numbers},
            readers_released=tuple(sorted(released_readers(facts, tags, self.options))),
            branches_released=tuple(sorted(released_branches(facts, refs, self.options))),
        )

    def _proven(self) -> ErasureReport:
        table = self.dataset._refs  # noqa: SLF001 - same library
        remaining, reading = prove(table, self.condition, self.report, self.columns)
        return replace(self.report, remaining=remaining, read=reading, proven=not remaining)

    def _source(self, line: Line) -> Snapshot:
        return self.dataset.checkout_version((line.name, None)).source

    def _erase_on(self, line: Line, facts: ErasureSurvey) -> None:
        """Erase the rows from the latest version of a branch: delete them, rewrite fragments, rebuild indices."""
        if not line.latest.reasons:
            return
        deleted = self._delete(line)
        if deleted:
            rows = {**self.report.rows_deleted, line.name: self.report.rows_deleted.get(line.name, 0) + deleted}
            self.report = replace(self.report, rows_deleted=rows)
        handle = self.dataset.checkout_version((line.name, None))
        fragments = self._rewrite(handle, facts)
        suspect = {index.name for index in line.latest.suspect}
        user_indices = [index for index in handle.source.manifest.indices if not index.is_system]
        indices = [index for index in user_indices if fragments or index.name in suspect]
        built = {index.name for index in indices if is_supported(index, handle.source.manifest.schema)}
        self._rebuild(handle, line, sorted(built))
        if self.options.drop_indices:
            self._drop(handle, line, sorted({index.name for index in indices} - built))
        manifest = handle.source.manifest
        if (
            "record" in line.latest.reasons
            and manifest.version == line.latest.number
            and not self.condition.is_in_bytes(manifest.to_bytes())
        ):
            # Only its transaction mentions the condition: cleanup can remove both once a later version exists.
            self._commit(handle, UpdateConfig(config=UpdateMap(entries={})))

    def _delete(self, line: Line) -> int:
        """Delete the rows by a transaction that does not record the condition; returns the number of rows."""

        def attempt(base: Snapshot) -> int:
            columns = described_columns(base.manifest)
            expression = self.condition.of(columns or base.manifest.schema)
            with staged(base) as files:
                removal = remove_rows(base, each_matching(base, expression, columns), files)
                if not removal.num_rows:
                    return 0
                operation = Delete(
                    updated_fragments=removal.updated_fragments,
                    deleted_fragment_ids=removal.removed_fragment_ids,
                )
                files.commit(operation, removal.affected_rows, self.options.transaction_properties)
            return removal.num_rows

        source = self._source(line)
        return retrying_on_latest(source, attempt) if self.condition.columns(source) is not None else 0

    def _rewrite(self, handle: Handle, facts: ErasureSurvey) -> int:
        """Rewrite the fragments whose files hold rows or traces, without deleted rows; returns their number."""
        source = handle.source
        options = replace(
            CompactionOptions.of({"compaction_mode": "reencode"}, source.manifest.config), defer_index_remap=False
        )
        files = facts.files_to_rewrite(source.manifest.schema)
        held = [
            fragment
            for fragment in source.manifest.fragments
            if any(data_key(file.path) in files for file in fragment.files)
        ]
        if not held:
            return 0
        results = [CompactionTask.of([fragment], source.manifest.version, options).execute(handle) for fragment in held]
        commit_what_fits(handle, results, self.options.transaction_properties, keep_up=True)
        self.report = replace(self.report, fragments_rewritten=self.report.fragments_rewritten + len(held))
        return len(held)

    def _rebuild(self, handle: Handle, line: Line, names: list[str]) -> None:
        if not names:
            return
        properties = self.options.transaction_properties
        manifest = optimize_indices(handle.source, index_names=names, retrain=True, properties=properties)
        handle.move_to(manifest)
        built = dict.fromkeys((*self.report.indices_rebuilt, *(f"{line.name}:{name}" for name in names)))
        self.report = replace(self.report, indices_rebuilt=tuple(built))

    def _drop(self, handle: Handle, line: Line, names: list[str]) -> None:
        freed = tuple(index for index in handle.source.manifest.indices if index.name in names)
        if not freed:
            return
        self._commit(handle, CreateIndex(removed_indices=freed))
        dropped = dict.fromkeys((*self.report.indices_dropped, *(f"{line.name}:{name}" for name in names)))
        self.report = replace(self.report, indices_dropped=tuple(dropped))

    def _commit(self, handle: Handle, operation: CreateIndex | UpdateConfig) -> None:
        source = handle.source
        transaction = Transaction(
            read_version=source.manifest.version,
            operation=operation,
            properties=dict(self.options.transaction_properties),
        )
        handle.move_to(commit(source.store, transaction, base=source.manifest).manifest)

    def _clean_up(self, facts: ErasureSurvey, tags: Mapping[str, TagRef]) -> None:
        """Move tags, then remove the versions that hold rows or traces, on branches before their parents."""
        self._move_tags(facts, tags)
        self._release_forks(facts, tags)
        self._release_readers(facts, tags)
        for line in sorted(facts.lines, key=lambda line: -len(line.ref.identifier) if line.ref else 1):
            doomed = line.doomed()
            if not doomed and not self.options.delete_unverified:
                continue
            selectors = Selectors(
                versions=frozenset(doomed or [0]),
                delete_unverified=self.options.delete_unverified,
                error_if_tagged=False,
                keep_forks=not self.options.release_branches,
                keep_for_change_readers=False,  # a reader that misses them fails, and names the full refresh
                in_use=self.options.in_use if line.branch is None else {},
            )
            handle = self.dataset.checkout_version((line.name, None))
            stats = cleanup_old_versions(handle, selectors)
            files = (
                stats.old_versions
                + stats.data_files_removed
                + stats.transaction_files_removed
                + stats.index_files_removed
                + stats.deletion_files_removed
            )
            self.report = replace(
                self.report,
                files_removed=self.report.files_removed + files,
                bytes_removed=self.report.bytes_removed + stats.bytes_removed,
            )

    def _move_tags(self, facts: ErasureSurvey, tags: Mapping[str, TagRef]) -> None:
        """Move the tags that may be moved to the latest version of their branch, unless it holds rows or traces too."""
        lines = {line.branch: line for line in facts.lines}
        for name, ref in tags.items():
            line = lines.get(ref.branch)
            if line is None or not self.options.retag or ref.version not in line.doomed() or line.latest.reasons:
                continue
            if is_reader_tag(name, ref):
                continue  # on a later version the reader would miss rows
            if is_fork_tag(name, ref):
                continue  # a branch cannot be promoted on a later version
            Tags(self.dataset._refs).update(name, (line.name, line.latest.number))  # noqa: SLF001 - same library
            self.report = replace(self.report, tags_moved={**self.report.tags_moved, name: line.latest.number})

    def _release_forks(self, facts: ErasureSurvey, tags: Mapping[str, TagRef]) -> None:
        """Delete the fork tags on versions to remove, if their branch may be released or was released before."""
        refs = {line.name: line.ref for line in facts.lines if line.ref is not None}
        doomed = {line.branch: set(line.doomed()) for line in facts.lines}
        for name, ref in tags.items():
            is_allowed = self.options.release_branches or is_needless_fork_tag(name, ref, refs)
            if is_fork_tag(name, ref) and is_allowed and ref.version in doomed.get(ref.branch, ()):
                delete_durably(self.dataset._refs.root, tag_ref_key(name))  # noqa: SLF001 - same library

    def _release_readers(self, facts: ErasureSurvey, tags: Mapping[str, TagRef]) -> None:
        """Delete the tags of readers on versions to remove; the readers then need a full refresh."""
        doomed = {line.branch: set(line.doomed()) for line in facts.lines}
        released = set(self.report.readers_released)
        for name, ref in tags.items():
            if is_reader_tag(name, ref) and ref.version in doomed.get(ref.branch, ()):
                delete_durably(self.dataset._refs.root, tag_ref_key(name))  # noqa: SLF001 - same library
                released.add(ref.metadata[READER_KEY])
        self.report = replace(self.report, readers_released=tuple(sorted(released)))


def _is_work_left(facts: ErasureSurvey) -> bool:
    """Whether another round can change anything; an index that cannot be built here does not count."""
    return any(line.doomed() or line.is_replaced(drops=False) for line in facts.lines)


def _bases(facts: ErasureSurvey) -> tuple[str, ...]:
    """The base paths of surveyed versions that lie outside of the root of the dataset."""
    root = facts.lines[0].store.root
    paths = {path for line in facts.lines for version in line.versions.values() for path in version.base_paths}
    return tuple(sorted(path for path in paths if not (path + "/").startswith(root + "/")))
