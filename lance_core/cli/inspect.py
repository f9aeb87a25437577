"""Commands that look at a table and change nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pyarrow as pa

from lance_core.cli.command import command, parse_version
from lance_core.cli.output import CommandOutput
from lance_core.commit.versions import (
    list_versions,
    load_manifest,
    load_transaction,
    load_version_header,
    reload_latest,
)
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.errors import CorruptFileError
from lance_core.maintenance import describe_index_health
from lance_core.maintenance.cleanup.plan import Selectors, plan_cleanup
from lance_core.schema import Schema, field_to_arrow
from lance_core.store import ObjectStore
from lance_core.table.fragment_list import FragmentList
from lance_core.table.idempotency import Proofs, is_proof
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.manifest.version_summary import VersionHeader
from lance_core.table.transaction import COMMIT_MESSAGE_KEY
from lance_core.verbs.columns.compute.computation import list_computations
from lance_core.verbs.columns.compute.due import count_due_rows
from lance_core.verbs.columns.compute.results import list_staged_computations
from lance_core.verbs.scan.read_fragment import with_all_row_counts

_RUN_KEY = re.compile(r"\w+\.run_id")
"""The property by which an orchestrator's commits name their run: `run_id` with the orchestrator's name before it."""

_SHORT_RUN = 8
"""The characters of a run's id that distinguish runs, as in the Dagster UI."""


@command("info")
def info(dataset: LanceDataset, output: CommandOutput) -> None:
    """Show what a table is and how large it is."""
    manifest = dataset.snapshot.manifest
    counts = _count_fragments(with_all_row_counts(dataset.snapshot))
    output.record(
        {
            "uri": dataset.uri,
            "version": dataset.version,
            "branch": manifest.branch,
            "committed": manifest.timestamp,
            **counts,
            "columns": len(manifest.schema.fields),
            "data_storage_version": manifest.data_storage_version,
            "stable_row_ids": manifest.uses_stable_row_ids,
            "indices": sorted({index.name for index in manifest.indices}),
            **_describe_config(manifest.config),
            "metadata": dict(manifest.table_metadata),
        }
    )


@command("versions", versioned=False)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the newest to show; 0 for all.",
)
def versions(dataset: LanceDataset, output: CommandOutput, limit: int) -> None:
    """List versions, newest first."""
    store = dataset.snapshot.store
    numbers = list(reversed(list_versions(store)))
    listed_numbers = numbers[:limit] if limit else numbers
    rows = list[dict[str, Any]]()
    for number in listed_numbers:
        try:
            header = load_version_header(store, number)
        except CorruptFileError as error:
            rows.append({"version": number, "run": None, "message": f"cannot be read: {error}"})
            continue
        counts = _count_fragments(header.fragments) if isinstance(header, Manifest) else {}
        rows.append({**_describe_commit(dataset, header), **counts})
    columns = ["version", "committed", "operation", "rows", "deleted_rows", "fragments", "bytes", "message"]
    if any(row["run"] for row in rows):
        columns.insert(3, "run")
        shown = rows if output.as_json else [{**row, "run": (row["run"] or "")[:_SHORT_RUN]} for row in rows]
    else:
        shown = rows
    output.rows(shown, columns)
    if len(listed_numbers) < len(numbers):
        output.line(f"{len(numbers) - len(listed_numbers)} older versions are not shown (--limit 0 shows all)")


@command("show", versioned=False)
@click.argument("version")
def show(dataset: LanceDataset, output: CommandOutput, version: str) -> None:
    """Show one VERSION and what its commit changed.

    VERSION is a number or a tag.
    """
    dataset_at_version = dataset.checkout_version(parse_version(version))
    manifest = dataset_at_version.snapshot.manifest
    transaction = load_transaction(dataset_at_version.snapshot.store, manifest)
    writer = manifest.writer_version
    values: dict[str, Any] = {
        **_describe_commit(dataset_at_version, manifest),
        **_count_fragments(with_all_row_counts(dataset_at_version.snapshot)),
    }
    values["writer"] = f"{writer.library} {writer.version}" if writer is not None else None
    if transaction is not None:
        values["read_version"] = transaction.read_version
        values["transaction"] = transaction.uuid
        values["properties"] = dict(transaction.properties)
    earlier = [number for number in list_versions(dataset_at_version.snapshot.store) if number < manifest.version]
    if earlier and earlier[-1] < manifest.version - 1:
        values["changes"] = f"unknown: version {manifest.version - 1} was cleaned up"
    elif earlier:
        try:
            before = load_manifest(dataset_at_version.snapshot.store, earlier[-1])
            values["changes"] = _describe_changes(before, manifest)
        except CorruptFileError as error:
            values["changes"] = f"unknown: version {earlier[-1]} cannot be read: {error}"
    output.record(values)


@command("fragments")
def fragments(dataset: LanceDataset, output: CommandOutput) -> None:
    """List the fragments of a version."""
    rows = [
        {
            "id": message.id,
            "rows": message.physical_rows - message.deletion_file.num_deleted_rows,
            "deleted_rows": message.deletion_file.num_deleted_rows,
            "files": len(message.files),
            "bytes": sum(file.file_size_bytes for file in message.files),
        }
        for message in with_all_row_counts(dataset.snapshot).messages()
    ]
    output.rows(rows, ["id", "rows", "deleted_rows", "files", "bytes"])


@command("files")
@click.option(
    "--orphans", is_flag=True, help="List the files that no version refers to, such as those of unfinished writes."
)
def files(dataset: LanceDataset, output: CommandOutput, orphans: bool) -> None:
    """List the data and deletion files of a version."""
    if orphans:
        selectors = Selectors(versions=frozenset(), delete_unverified=True, error_if_tagged=False)
        orphaned_files = [dataclasses.asdict(file) for file in plan_cleanup(*_load_latest(dataset), selectors).files]
        output.rows(orphaned_files, ["path", "kind", "size_bytes"])
        output.line(f"{len(orphaned_files)} file(s), including files of writes in progress")
        return
    output.rows(list(_list_files(dataset.snapshot.manifest)), ["fragment", "path", "kind", "version", "bytes", "base"])


@command("schema")
def schema(dataset: LanceDataset, output: CommandOutput) -> None:
    """List the columns of a version, with ids and types."""
    output.rows(list(_list_fields(dataset.snapshot.manifest.schema)), ["id", "name", "type", "nullable", "metadata"])


@command("columns")
def columns(dataset: LanceDataset, output: CommandOutput) -> None:
    """List computed columns and their due rows.

    The code version and the inputs are those of the newest run that committed, on a branch before it began; a run by
    another code version computes all rows. Seconds and cost are those of the due rows that are not staged, by the last
    runs.
    """
    rows = []
    listed = {each.name: each for each in list_staged_computations(dataset.snapshot)}
    for _, computation in sorted((listed | {each.name: each for each in list_computations(dataset.snapshot)}).items()):
        due = count_due_rows(dataset.snapshot, computation, None, retry_failed=False)
        failed = count_due_rows(dataset.snapshot, computation, None, retry_failed=True).get("failed", 0)
        rows.append({
            "name": computation.name,
            "columns": computation.columns.names,
            "inputs": list(computation.inputs),
            "code_version": computation.code_version,
            "failed": failed,
            "due": due.total,
            "share": round(due.share, 4),
            "staged": due.staged,
            "seconds": due.seconds,
            "cost": due.cost,
            **due,
        })  # fmt: skip
    reasons = ["due", "share", "new", "inputs changed", "code changed", "failed", "staged"]
    output.rows(rows, ["name", "columns", "inputs", "code_version", *reasons, "seconds", "cost"])


@command("indices")
def indices(dataset: LanceDataset, output: CommandOutput) -> None:
    """List indices, their coverage and recall.

    Declared are those that maintenance keeps by a policy with `indices`. Recall is the share of the nearest rows, or of
    rows with rare words, that were found when maintenance measured it.
    """
    rows = [dataclasses.asdict(index) for index in describe_index_health(dataset)]
    shown = [{**row, "recall": (row["recall"] or {}).get("value"), "bytes": row["size_bytes"]} for row in rows]
    columns = ["name", "column", "kind", "metric", "declared", "built", "covered", "segments", "trained_rows"]
    output.rows(rows if output.as_json else shown, [*columns, "recall", "bytes"])
    for row in rows:
        if not row["built"]:
            output.line("{name} is missing: no row is covered, and each is searched".format(**row))
        if row["failure"] is not None:
            failure = "to {action} it failed: {reason}; the next attempt: {retry_at}".format(**row["failure"])
            output.line(f"{row['name']}: {failure}")


@command("head")
@click.option(
    "-n", "--rows", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many rows to show."
)
@click.option("-c", "--column", multiple=True, help="Only these columns; can be repeated.")
def head(dataset: LanceDataset, output: CommandOutput, count: int, column: tuple[str, ...]) -> None:
    """Show the first rows of a version."""
    table: pa.Table = dataset.head(count, columns=list(column) or None)
    output.rows(table.to_pylist(), table.column_names, are_data=True)


@command("diff", versioned=False)
@click.argument("a")
@click.argument("b")
def diff(dataset: LanceDataset, output: CommandOutput, a: str, b: str) -> None:
    """Say what changed from version A to version B.

    Each is a number or a tag.
    """
    old, new = (dataset.checkout_version(parse_version(version)).snapshot.manifest for version in (a, b))
    output.record({"from_version": old.version, "to_version": new.version, **_describe_changes(old, new)})


@command("tags", versioned=False)
def tags(dataset: LanceDataset, output: CommandOutput) -> None:
    """List the tags of a table."""
    rows = [{"tag": name, **described} for name, described in dataset.tags.list().items()]
    output.rows(rows, ["tag", "version", "branch", "created_at", "updated_at"])


def _load_latest(dataset: LanceDataset) -> tuple[ObjectStore, Manifest]:
    return dataset.snapshot.store, reload_latest(dataset.snapshot.store, dataset.snapshot.manifest)


def _list_files(manifest: Manifest) -> Iterator[dict[str, Any]]:
    names = {node.id: node.name for node, _ in manifest.schema.walk()}
    for fragment in manifest.fragments:
        for file in fragment.files:
            yield {
                "fragment": fragment.id,
                "path": f"data/{file.path}",
                "kind": "data",
                "version": f"{file.file_major_version}.{file.file_minor_version}",
                "bytes": file.file_size_bytes,
                "base": manifest.base_path(file.base_id).path if file.base_id is not None else None,
                "fields": [names[i] for i in file.fields if i in names],
            }
        if fragment.deletion_file is not None:
            path = fragment.deletion_file.key(fragment.id)
            yield {"fragment": fragment.id, "path": path, "kind": "deletion", "bytes": None}


def _count_fragments(fragments: FragmentList) -> dict[str, Any]:
    """Numbers of fragments; without rows if the manifest does not record them."""
    rows = deleted = size = num_files = 0
    for message in fragments.messages():
        rows += message.physical_rows
        deleted += message.deletion_file.num_deleted_rows
        num_files += len(message.files)
        size += sum(file.file_size_bytes for file in message.files)
    is_known = None not in fragments.live_counts()
    return {
        "rows": rows - deleted if is_known else None,
        "deleted_rows": deleted if is_known else None,
        "fragments": len(fragments),
        "data_files": num_files,
        "bytes": size,
    }


def _describe_commit(dataset: LanceDataset, manifest: Manifest | VersionHeader) -> dict[str, Any]:
    transaction = load_transaction(dataset.snapshot.store, manifest)
    properties = {} if transaction is None else transaction.properties
    return {
        "version": manifest.version,
        "committed": manifest.timestamp,
        "operation": transaction.operation.name if transaction is not None else None,
        "run": next((value for key, value in sorted(properties.items()) if _RUN_KEY.fullmatch(key)), None),
        "message": properties.get(COMMIT_MESSAGE_KEY),
    }


def _describe_changes(old: Manifest, new: Manifest) -> dict[str, Any]:
    before, after = _raw_fragments_by_id(old.fragments), _raw_fragments_by_id(new.fragments)
    rows = [_count_fragments(manifest.fragments)["rows"] for manifest in (old, new)]
    columns = [{field.name for field in manifest.schema.fields} for manifest in (old, new)]
    config = {
        key: f"{old.config.get(key, '')} -> {new.config.get(key, '')}"
        for key in sorted({*old.config, *new.config})
        if old.config.get(key) != new.config.get(key) and not is_proof(key)
    }
    return {
        "rows_difference": None if None in rows else rows[1] - rows[0],
        "fragments_added": sorted(after.keys() - before.keys()),
        "fragments_removed": sorted(before.keys() - after.keys()),
        "fragments_changed": sorted(i for i in after.keys() & before.keys() if after[i] != before[i]),
        "columns_added": sorted(columns[1] - columns[0]),
        "columns_removed": sorted(columns[0] - columns[1]),
        "config_changed": config,
    }


def _describe_config(config: Mapping[str, str]) -> dict[str, Any]:
    """The configuration without proofs of writes, and the number of proofs of each kind, if there are any."""
    settings: dict[str, Any] = {"config": {key: value for key, value in config.items() if not is_proof(key)}}
    proofs = Proofs.of(config)
    kinds = {"streams": proofs.streams, "keys": proofs.keys, "attempts": proofs.attempts, "fills": proofs.fills}
    counts = {kind: len(proofs) for kind, proofs in kinds.items()}
    return settings | (
        {"committed_writes": {kind: count for kind, count in counts.items() if count}} if any(counts.values()) else {}
    )


def _raw_fragments_by_id(fragments: FragmentList) -> dict[int, bytes]:
    return dict(zip(fragments.ids, fragments.raw, strict=True))


def _list_fields(schema: Schema) -> Iterator[dict[str, Any]]:
    depths = {-1: -1}
    for node, parent in schema.walk():
        depths[node.id] = depths.get(parent, -1) + 1
        yield {
            "id": node.id,
            "name": "  " * depths[node.id] + node.name,
            "type": str(field_to_arrow(node).type) if not node.children else node.logical_type,
            "nullable": node.nullable,
            "metadata": {key: bytes(value).decode(errors="replace") for key, value in node.metadata.items()},
        }
