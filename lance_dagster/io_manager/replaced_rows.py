"""Rows that were committed while a step ran, and that its overwrite has replaced, for a warning in the log.

An overwrite replaces what is in its partitions. Rows of other runs of the asset, which fill the same partitions, are
`WriteResult.overruled_versions`; commits of all other writers are looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

import lance_core
from lance_dagster.io_manager.output import TableOutput
from lance_dagster.io_manager.write_attempts import made_by
from lance_dagster.lineage.history import is_without_changes
from lance_dagster.properties import ASSET_KEY, PROMOTED_FROM, properties_of, split_values


def log_replaced(output: TableOutput, outcome: lance_core.WriteResult, begun: int | None) -> None:
    """Name commits of other writers whose rows the overwrite of a step has replaced; a failure is only logged.

    Args:
        output: The output.
        outcome: What was committed.
        begun: The version that was the newest as the step began; None if it is not known.
    """
    if output.settings.write_mode != "overwrite" or outcome.deduplicated:
        return
    since = begun if begun is not None else outcome.read_version
    if outcome.dataset.version <= since + 1:
        return
    try:
        for version, num_rows in _replaced(output, outcome, since):
            output.context.log.warning(
                "%s: version %d was committed while the step ran, by %s; %d rows that it wrote were replaced in "
                "version %d",
                output.label, version, made_by(outcome.dataset, version), num_rows, outcome.dataset.version,
            )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - the write is committed; only a warning is missing
        output.context.log.warning(
            "%s: it is not known whether version %d replaced rows that others have committed since version %d: %s",
            output.label, outcome.dataset.version, since, error,
        )  # fmt: skip


def _replaced(output: TableOutput, outcome: lance_core.WriteResult, since: int) -> Iterator[tuple[int, int]]:
    """The versions of other writers with rows of the written partitions, newest first, and their numbers of rows."""
    asset = output.context.asset_key.to_user_string()
    newer: tuple[lance_core.LanceDataset, lance_core.Transaction | None] | None = None
    for handle, transaction in outcome.dataset.history():
        if newer is not None and newer[0].version < outcome.dataset.version:
            version, num_rows = newer[0].version, 0
            is_skipped = version in outcome.overruled_versions or is_without_changes(newer[1])
            if not is_skipped and not _is_write_of(asset, newer[1]):
                num_rows = _rows_written(output, newer[0], handle)
            if num_rows:
                yield version, num_rows
        if handle.version <= since:
            return
        newer = handle, transaction
    if newer is not None and newer[0].version == 1 < outcome.dataset.version:
        num_rows = newer[0].count_rows(_partitions(output, newer[0]))
        if num_rows and not _is_write_of(asset, newer[1]):
            yield 1, num_rows


def _is_write_of(asset: str, transaction: lance_core.Transaction | None) -> bool:
    """Whether a run wrote a version for an asset itself; promotions are not such writes."""
    properties = properties_of(transaction)
    return asset in split_values(properties.get(ASSET_KEY)) and PROMOTED_FROM not in properties


def _rows_written(output: TableOutput, after: lance_core.LanceDataset, before: lance_core.LanceDataset) -> int:
    """The rows of the written partitions in data files that a version has added."""
    paths = {file.path for fragment in before.get_fragments() for file in fragment.metadata.files}
    changed = [
        fragment
        for fragment in after.get_fragments()
        if not paths.issuperset(file.path for file in fragment.metadata.files)
    ]
    return after.scanner(filter=_partitions(output, after), fragments=changed).count_rows() if changed else 0


def _partitions(output: TableOutput, dataset: lance_core.LanceDataset) -> pc.Expression | None:
    slices = output.plan_slices(dataset.schema)
    return None if slices is None else slices.expression(dataset.schema)
