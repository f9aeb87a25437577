"""Commits and history: finds and reads the versions of a dataset, and commits new versions beside other writers."""

from lance_core.commit.attempts import (
    REPLACES_KEY,
    AttemptProperties,
    ConflictPolicy,
    OnEarlierAttempt,
    WriteAttempt,
    number_of,
    reject_later,
)
from lance_core.commit.claims import CLAIM_AGE, VersionClaim, claimed, reject_claimed
from lance_core.commit.conflict import AffectedRows, Verdict, affected_fragments, judge
from lance_core.commit.handler import LOOK_AGAIN_AFTER
from lance_core.commit.history import (
    find_all_by_property,
    find_by_property,
    find_transaction,
    load_transactions,
    summaries,
)
from lance_core.commit.listeners import Listener, on_commit
from lance_core.commit.loop import commit, commit_change
from lance_core.commit.name_migration import migrate_to_v2_names
from lance_core.commit.proofs import attempts_of, changes_rows, committed_version, find_idempotent_commit
from lance_core.commit.rebase import Prepare, Rebased, deletion_vector, load_deletion_vector
from lance_core.commit.records import (
    Change,
    Commit,
    Committed,
    Lost,
    Outcome,
    Unknown,
    committed_or_raise,
)
from lance_core.commit.relation import carries_on
from lance_core.commit.removed_versions import list_removed_versions, removed_key, store_removed_transaction
from lance_core.commit.versions import (
    already_exists,
    check_identity,
    existing_versions,
    explain_missing,
    identity_of,
    latest_version,
    list_versions,
    load_following,
    load_latest,
    load_manifest,
    load_transaction,
    load_version_header,
    locate_latest,
    newest_versions,
    reject_another,
    reject_dropped_dataset,
)
from lance_core.errors import CommitConflictError

__all__ = [
    "CLAIM_AGE",
    "LOOK_AGAIN_AFTER",
    "REPLACES_KEY",
    "AffectedRows",
    "AttemptProperties",
    "Change",
    "Commit",
    "CommitConflictError",
    "Committed",
    "ConflictPolicy",
    "Listener",
    "Lost",
    "OnEarlierAttempt",
    "Outcome",
    "Prepare",
    "Rebased",
    "Unknown",
    "Verdict",
    "VersionClaim",
    "WriteAttempt",
    "affected_fragments",
    "already_exists",
    "attempts_of",
    "carries_on",
    "changes_rows",
    "check_identity",
    "claimed",
    "commit",
    "commit_change",
    "committed_or_raise",
    "committed_version",
    "deletion_vector",
    "existing_versions",
    "explain_missing",
    "find_all_by_property",
    "find_by_property",
    "find_idempotent_commit",
    "find_transaction",
    "identity_of",
    "judge",
    "latest_version",
    "list_removed_versions",
    "list_versions",
    "load_deletion_vector",
    "load_following",
    "load_latest",
    "load_manifest",
    "load_transaction",
    "load_transactions",
    "load_version_header",
    "locate_latest",
    "migrate_to_v2_names",
    "newest_versions",
    "number_of",
    "on_commit",
    "reject_another",
    "reject_claimed",
    "reject_dropped_dataset",
    "reject_later",
    "removed_key",
    "store_removed_transaction",
    "summaries",
]
