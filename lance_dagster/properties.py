"""The transaction properties of commits that Dagster makes: their keys, and functions that read their values.

Each commit records them in the table, so that the table alone shows which run wrote what:

    dagster.run_id  dagster.root_run_id  dagster.job_name  dagster.step_key  dagster.attempt  dagster.backfill_id
    dagster.asset_key        "analytics/events"
    dagster.partition_keys   JSON list; above 4 KiB a JSON object with count, first, last and sha256
    dagster.partition_hash   sha256 of the whole JSON list
    dagster.columns          JSON list of the columns that the commit sets, on commits of an asset that owns columns;
                             empty for its other commits, such as of an index
    dagster.code_version     the asset's code version, if it has one
    dagster.maintenance_metadata   JSON of the asset's metadata lance/maintenance, if it has it
    dagster.blocking_checks  JSON list of the asset's blocking checks in the code location of the run, on a branch
    dagster.erasure          "true" on the commits of an erasure
    dagster.write_token      sha256 of (root run, asset, output, partition keys)
    dagster.input.<asset>    {"uri": "s3://lake/nyc/flights.lance", "version": 17}, "branch" if it is not main, and
                             "table_id" if the table has one; a list of these as strings if several versions were read

The promotion of a branch joins the values of the branch's commits into JSON lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lance_core

RUN_ID: Final = "dagster.run_id"
ROOT_RUN_ID: Final = "dagster.root_run_id"
JOB_NAME: Final = "dagster.job_name"
STEP_KEY: Final = "dagster.step_key"
ATTEMPT: Final = "dagster.attempt"
BACKFILL_ID: Final = "dagster.backfill_id"
ASSET_KEY: Final = "dagster.asset_key"
PARTITION_KEYS: Final = "dagster.partition_keys"
PARTITION_HASH: Final = "dagster.partition_hash"
BLOCKING_CHECKS: Final = "dagster.blocking_checks"
CODE_VERSION: Final = "dagster.code_version"
COLUMNS: Final = "dagster.columns"
WRITE_TOKEN: Final = "dagster.write_token"  # noqa: S105 - the name of a property
INPUT_PREFIX: Final = "dagster.input."
MAINTENANCE: Final = "dagster.maintenance"
MAINTENANCE_METADATA: Final = "dagster.maintenance_metadata"
DATA_VERSION: Final = "dagster.data_version"
OUT_OF_PARTITION: Final = "dagster.out_of_partition"
"""On a commit that may have changed rows outside of its partitions: "allow"."""
ERASURE: Final = "dagster.erasure"
"""On the commits of an erasure: "true"."""
COLUMN_TYPE: Final = "dagster.column_type"
"""On a commit that changes the type of a column, or adds columns without values: the columns and the change."""
BEGUN_EMPTY: Final = ("lance/branch", "begun empty")
"""The property, with its value, of a commit that creates a table without rows, from which branches are forked."""
PROMOTION_RUN_ID: Final = "dagster.promotion_run_id"
PROMOTION_JOB_NAME: Final = "dagster.promotion_job_name"
FOREIGN_BRANCH_VERSIONS: Final = "dagster.foreign_branch_versions"
"""On a promotion: a JSON list of the versions of the branch that no run wrote, and that may have changed any rows."""
UNDO_RUN_ID: Final = "dagster.undo.run_id"
UNDONE_VERSIONS: Final = "dagster.undo.versions"

PROMOTED_FROM: Final = "promoted_from"
PROMOTED_FORK: Final = "promoted_fork"
PROMOTED_IDENTITY: Final = "promoted_identity"
PROMOTED_VERSION: Final = "promoted_version"
SLICES: Final = "lance.slices"
"""On a commit that replaced the rows of partitions."""
TAKES_BACK: Final = "lance.takes_back"
"""On a commit that adds no rows except for earlier ones, such as an undo; `LanceDataset.ensure_branch` reads it."""

_MAX_PARTITION_KEYS_BYTES: Final = 4096
_LONGEST_SHOWN_KEY: Final = 200
_SHORTENED: Final = '{"count": '


def properties_of(transaction: lance_core.Transaction | None) -> dict[str, str]:
    """The properties of a transaction; empty if no transaction is recorded."""
    return dict((transaction.transaction_properties if transaction is not None else None) or {})


def split_values(value: str | None) -> list[str]:
    """The values of a property: one value, or those that a promotion has joined into a JSON list of strings."""
    if not value:
        return []
    try:
        texts = json.loads(value)
    except ValueError:
        return [value]
    return texts if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else [value]


def join_values(values: Sequence[str]) -> str:
    """The property that `split_values` reads as these values: a single value itself, several as a JSON list."""
    return values[0] if len(values) == 1 else json.dumps(values)


def listed_keys(keys: str) -> str:
    """The value of `dagster.partition_keys` for a JSON list of keys: the list, or a summary if it exceeds 4 KiB."""
    if len(keys.encode()) <= _MAX_PARTITION_KEYS_BYTES:
        return keys
    listed = json.loads(keys)
    shown = {"first": listed[0][:_LONGEST_SHOWN_KEY], "last": listed[-1][:_LONGEST_SHOWN_KEY]}
    return json.dumps({"count": len(listed), **shown, "sha256": hashed(keys)})


def is_shortened(value: object) -> bool:
    """Whether a value of `dagster.partition_keys` is a summary of more keys than a commit records."""
    return isinstance(value, str) and value.startswith(_SHORTENED)


def partition_names(properties: Mapping[str, str]) -> list[str]:
    """The partitions that the properties of a commit name; empty if there are none, or too many to name."""
    for key in ("lance.slice_names", PARTITION_KEYS):
        try:
            names = json.loads(properties.get(key, "[]"))
        except ValueError:  # of another writer
            return []
        if isinstance(names, list) and names and not any(is_shortened(name) for name in names):
            return [str(name) for name in names]
    return []


def hashed(value: str) -> str:
    """The sha256 of a string, in hexadecimal digits."""
    return sha256(value.encode()).hexdigest()
