"""The changes of an incremental input that the next run of an asset reads, counted as the run counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any

import dagster as dg

from lance_core.errors import LanceError, UnsupportedError
from lance_dagster._context.definitions import assets_of_same_definition, list_inputs_of
from lance_dagster.handlers import input_selection as selection
from lance_dagster.handlers.base import ChangesPart, ChangesRequest, ReadRequest
from lance_dagster.handlers.changes import count_changes
from lance_dagster.lineage.history import read_history
from lance_dagster.lineage.watermarks import UnreadRange, updates_unknown
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.partitions import slices_of
from lance_dagster.tables.refs import TableRef, TableRoot
from lance_dagster.tables.settings import OutputSettings, TableSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadChanges:
    """Changes of an input that no run has read.

    Attributes:
        request: The read of the next run.
        label: The input, for messages.
    """

    request: ReadRequest
    label: str

    @classmethod
    def of(
        cls,
        context: dg.AssetCheckExecutionContext,
        root: TableRoot,
        unread: UnreadRange,
        assets: tuple[TableRef, TableRef],
        keys: Sequence[str] | None,
    ) -> UnreadChanges:
        """The changes of some partitions of an input.

        Args:
            context: The context of the check.
            root: The root of the tables.
            unread: The versions of the input that no run has read.
            assets: The asset that reads, and the asset that is read.
            keys: The partitions of the input; None for all rows.

        Raises:
            LanceError: The next run cannot read the input, such as for a column that does not exist.
        """
        (reader, upstream), dataset = assets, unread.dataset
        label = f"input {upstream.name} of asset {reader.name}"
        metadata = metadata_of_input(context, reader, upstream) or {}
        columns = selection.parse_columns(metadata.get("columns"), dataset.schema, label)
        if columns is None:
            columns = selection.columns_of_asset(upstream.key, upstream.metadata or {}, dataset.schema, label)
        rows = [selection.parse_filter(metadata.get("lance/filter"), dataset, label)]
        if keys is not None:
            rows.append(slices_of(upstream, keys, dataset.schema).expression(dataset.schema))
        conditions = [condition for condition in rows if condition is not None]
        beside = dict(assets_of_same_definition(context, reader.key)) or {reader.key: reader.metadata or {}}
        key = selection.split_key(_merge_key(root, beside), columns, dataset.schema) or ()
        changes = ChangesRequest(
            parts=(ChangesPart(begin_version=unread.begin, filter=reduce(and_, conditions) if conditions else None),),
            key=key,
            updates_of=selection.choose_counted_columns(
                columns, key, dataset.schema, [key_of_reader.to_user_string() for key_of_reader in beside]
            ),
        )
        settings = root if isinstance(root, TableSettings) else TableSettings(root_uri=root.root_uri)
        return cls(
            label=label,
            request=ReadRequest(
                dataset=dataset, columns=columns, filter=None, table=settings, load_as=None, changes=changes
            ),
        )

    def count(self) -> int:
        """The number of changes.

        Raises:
            LanceError: The next run cannot read the changes.
        """
        changes = self.request.changes
        assert changes is not None
        try:
            count_changes(self.request, all_of_them=True)
        except UnsupportedError as error:
            if self.request.dataset.has_stable_row_ids:
                raise
            raise updates_unknown(self.request.dataset.uri, self.label, error) from error
        return sum(changes.counts.values())

    def since(self) -> datetime:
        """The time of the first commit with at least one of the changes; if it was cleaned up, of the next one."""
        changes, dataset = self.request.changes, self.request.dataset
        assert changes is not None
        (part,) = changes.parts
        commits = [*read_history(dataset, after=part.begin_version, count_changes=False)][::-1]
        begins = [part.begin_version, *(commit.version for commit in commits)]
        for begin, commit in zip(begins, commits, strict=False):
            if (commit.changes_rows or commit.version > begin + 1) and self._begins_in(begin, commit.version):
                return commit.time
        return dataset.timestamp

    def _begins_in(self, begin: int, version: int) -> bool:
        """Whether changes that are read were made since another version; True if that can no longer be determined."""
        changes, dataset = self.request.changes, self.request.dataset
        assert changes is not None
        try:
            at = dataset.checkout_version((dataset.branch, version))
            part = replace(changes.parts[0], begin_version=begin)
            alone = replace(changes, parts=(part,), counts={})
            return replace(self, request=replace(self.request, dataset=at, changes=alone)).count() > 0
        except LanceError:
            return True


def metadata_of_input(
    context: dg.AssetCheckExecutionContext, reader: TableRef, upstream: TableRef
) -> Mapping[str, object] | None:
    """The metadata of the input that reads changes; None if there are several such inputs, or none is known."""
    input_metadata = [
        metadata for metadata in list_inputs_of(context, reader.key, upstream.key) if "lance/changes" in metadata
    ]
    return (
        {key: plain_metadata(value) for key, value in input_metadata[0].items()} if len(input_metadata) == 1 else None
    )


def _merge_key(root: TableRoot, readers: Mapping[dg.AssetKey, Mapping[str, Any]]) -> list[str]:
    """The columns by which the merges of the assets that read match rows."""
    settings = root.output if isinstance(root, TableSettings) else OutputSettings()
    merge_keys = [
        settings.overridden(metadata, asset=key.to_user_string(), strict=True).merge_key
        for key, metadata in readers.items()
    ]
    return list(dict.fromkeys(name for key in merge_keys for name in key))
