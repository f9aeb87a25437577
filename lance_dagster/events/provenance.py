"""The origin of rows as Dagster's tags of events: the code version, and the data versions of the assets they are from.

Dagster shows an asset as out of sync by these tags. It writes them itself into the event of a step. Events of jobs
repeat the tags of the step that wrote the rows, so that rows of old code stay out of sync after a promotion or an undo.

Where a run was killed between its commit and its event, the properties of the commit name code and inputs.

An input that the step read on the branch is on main under another data version once its own table is promoted: the tag
then has that version, if the promoted rows are those that the step read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final

import dagster as dg

import lance_core
from lance_core.errors import NotFoundError
from lance_dagster import properties as prop
from lance_dagster._context.check_log import read_provenance_log
from lance_dagster.lineage.history import TableInput, TableVersion, format_data_version, last_data_change, read_history
from lance_dagster.lineage.table_life import table_id_in
from lance_dagster.tables.write_events import read_write_events, read_write_events_of_run

_INPUT: Final = "dagster/input_data_version/"
_POINTER: Final = "dagster/input_event_pointer/"
_CODE: Final = "dagster/code_version"
_OTHERS: Final = (_CODE, "dagster/data_version_is_user_provided")
_MOST_EVENTS: Final = 500

Origins = dict[str | None, tuple[int, dict[str, str]]]
"""The newest version that wrote each partition, or None, and the origin of its rows."""


def provenance_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of an event that name the origin of its rows."""
    return {name: tag for name, tag in tags.items() if name in _OTHERS or name.startswith((_INPUT, _POINTER))}


def find_written_provenance(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    branch: str,
    run_ids: Collection[str],
    *,
    head: lance_core.LanceDataset | None,
    without: Collection[int] = (),
) -> Origins:
    """The newest version that runs wrote to a branch, and the origin of its rows, by partition, or by None.

    Args:
        instance: The instance that recorded the runs.
        key: The asset.
        branch: The branch.
        run_ids: The runs.
        head: The newest version of the branch; None if it was discarded.
        without: Versions that do not count.
    """
    newest: Origins = {}
    for run_id in run_ids:
        written = [
            (event.partition, event.version, provenance_tags(event.tags))
            for event in read_write_events_of_run(instance, run_id, key)
            if event.branch == branch
        ]
        written += read_provenance_log(instance, run_id, key) if not written else []
        for partition, version, tags in written:
            if version is not None and version not in without and newest.get(partition, (0, {}))[0] <= version:
                newest[partition] = version, tags
    if head is not None:
        add_provenance_of_commits(instance, key, head, newest, run_ids=run_ids, without=without)
    return newest


def add_provenance_of_commits(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    head: lance_core.LanceDataset,
    newest: Origins,
    *,
    run_ids: Collection[str] | None = None,
    without: Collection[int] = (),
) -> None:
    """Add the origin of rows of later commits, whose events are missing, to what events say.

    Args:
        instance: The instance that has the events of the inputs.
        key: The asset.
        head: The newest version to look at; without `run_ids`, versions are read back to those that events name.
        newest: What events say, which is changed.
        run_ids: The runs whose commits count; None for all.
        without: Versions that do not count.
    """
    oldest = min((version for version, _ in newest.values()), default=0) if run_ids is None else 0
    for commit in read_history(head, after=oldest, count_changes=False):
        if commit.version in without or not _writes_rows_of(commit, key.to_user_string()):
            continue
        if run_ids is not None and not set(commit.writers) <= set(run_ids):
            continue
        partitions = commit.partitions if isinstance(commit.partitions, list) else [None]
        due = [part for part in partitions if newest.get(part, (0, {}))[0] < commit.version]
        newest |= dict.fromkeys(due, (commit.version, _tags_of_commit(instance, commit))) if due else {}


def _writes_rows_of(commit: TableVersion, asset: str) -> bool:
    is_other = commit.properties.keys() & {prop.UNDO_RUN_ID, prop.ERASURE, prop.MAINTENANCE}
    return commit.changes_rows and not is_other and prop.RUN_ID in commit.properties and asset in commit.assets


def _tags_of_commit(instance: dg.DagsterInstance, commit: TableVersion) -> dict[str, str]:
    """The tags that the event of a commit would have had; without a pointer to inputs that no event names.

    Dagster shows an asset without such a pointer as out of sync.
    """
    tags = dict.fromkeys(_OTHERS, "true") | {
        _CODE: commit.properties.get(prop.CODE_VERSION) or commit.properties[prop.RUN_ID]
    }
    for read in reversed(commit.inputs):  # the version that an input has loaded is the first of its asset
        if read.uri is None or read.version is None:
            continue
        tags[_INPUT + read.asset] = format_data_version(read.uri, read.version, read.branch, read.table_id)
        tags |= _find_recorded_input(instance, read)
    return tags


def _find_recorded_input(instance: dg.DagsterInstance, read: TableInput) -> dict[str, str]:
    """The tags of an input by the event of the version that was read, or of the newest one before it."""
    key = dg.AssetKey.from_user_string(read.asset)
    for event in islice(read_write_events(instance, key), _MOST_EVENTS):
        if event.version is None or event.version > (read.version or 0) or event.branch != read.branch:
            continue
        recorded = event.data_version
        if read.table_id is not None and table_id_in(recorded) not in (None, read.table_id):
            continue  # of a table that was dropped
        return {_INPUT + read.asset: recorded, _POINTER + read.asset: str(event.record.storage_id)} if recorded else {}
    return {}


def point_inputs_to_main(
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
    branch: str,
    read: Mapping[str, int],
    open_table: Callable[[dg.AssetKey], lance_core.LanceDataset | None],
) -> dict[str, str]:
    """The tags with inputs as main has them, where a branch with the rows that were read was promoted.

    Args:
        instance: The instance that has the events of the inputs.
        tags: The origin of rows that were written to the branch.
        branch: The branch.
        read: The versions of the branch that were read, by asset.
        open_table: Returns the table of an asset; None if it has none.
    """
    published = dict(tags)
    for name, tag in tags.items():
        asset = name.removeprefix(_INPUT)
        if asset == name:
            continue
        version = read.get(asset)
        place, _, number = tag.rpartition(":")
        if version is None and place.endswith(f":{branch}") and number.isdecimal():
            version = int(number)  # an asset that was not loaded, whose newest event was about the branch
        key = dg.AssetKey.from_user_string(asset)
        table = None if version is None else open_table(key)
        promoted = None if table is None or version is None else _find_published_version(table, branch, version)
        if table is None or promoted is None:
            continue
        published[name] = format_data_version(table.root_uri, promoted, table_id=table.recorded_table_id())
        newest = instance.fetch_materializations(key, limit=1).records
        if newest:
            published[_POINTER + asset] = str(newest[0].storage_id)
    return published


def _find_published_version(table: lance_core.LanceDataset, branch: str, version: int) -> int | None:
    """The version of main that has the rows of a version of a branch; None if it is not known to have them."""
    promotion = table.find_transaction(prop.PROMOTED_FROM, branch)
    if promotion is None:
        return None
    number, transaction = promotion
    promoted = prop.properties_of(transaction).get(prop.PROMOTED_VERSION, "")
    if not promoted.isdecimal():
        return None
    earlier, later = sorted((int(promoted), version))
    if earlier == later:
        return number
    try:
        head = table.checkout_version((branch, later))
    except NotFoundError:
        return None  # the branch was discarded, and what it changed in between is not known
    return number if last_data_change(head) <= earlier else None
