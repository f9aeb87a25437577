"""Runs OPTIMIZE, VACUUM, RESTORE, CLONE, CREATE INDEX and DROP INDEX."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from lance_core.errors import DatasetExistsError, InvalidInputError, NotFoundError
from lance_core.maintenance import CompactionOptions
from pyspark_lance.distributed.cloning import deep_clone
from pyspark_lance.distributed.compaction import compact
from pyspark_lance.distributed.indices import create_scalar_index
from pyspark_lance.statements import records
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.run_refs import version_reference
from pyspark_lance.statements.run_tables import list_table, new_table, spelled_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "clone",
    "create_index",
    "drop_index",
    "optimize",
    "restore",
    "vacuum",
]

_KINDS: Final = {"ZONE_MAP": "ZONEMAP", "BLOOM": "BLOOMFILTER", "BLOOM_FILTER": "BLOOMFILTER"}


def optimize(context: Context, statement: records.Optimize) -> DataFrame:
    """Run an OPTIMIZE."""
    dataset, location = context.target(statement.table)
    options = {key: _value(value) for key, value in statement.options.items()}
    option_names = [field.name for field in dataclasses.fields(CompactionOptions)]
    unknown = [name for name in options if name not in option_names]
    if unknown:
        raise InvalidInputError(
            f"OPTIMIZE has no options {unknown}; it has {', '.join(option_names)}. Nothing was done"
        )
    done = compact(context.spark, dataset.uri, options or None, storage_options=location.storage_options).metrics
    row = (dataset.uri, done.fragments_removed, done.fragments_added, done.files_removed, done.files_added)
    schema = "path string, fragments_removed long, fragments_added long, files_removed long, files_added long"
    return context.answer(schema, [row])


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def vacuum(context: Context, statement: records.Vacuum) -> DataFrame:
    """Run a VACUUM; as in Delta, an age counts from when a newer version replaced the version."""
    dataset, _ = context.target(statement.table)
    hours = statement.retain_hours
    older_than = None if hours is None else dt.timedelta(hours=hours)
    if statement.dry_run:
        explanation = dataset.explain_cleanup_old_versions(
            older_than,
            statement.retain_versions,
            error_if_tagged_old_versions=False,
            age_from="replacement",
            include_files=True,
        )
        return context.answer("path string", [(file.path,) for file in explanation.candidate_files])
    done = dataset.cleanup_old_versions(
        older_than, statement.retain_versions, error_if_tagged_old_versions=False, age_from="replacement"
    )
    row = (dataset.uri, done.old_versions, done.data_files_removed, done.bytes_removed)
    return context.answer("path string, old_versions long, data_files_removed long, bytes_removed long", [row])


def create_index(context: Context, statement: records.CreateIndex) -> DataFrame:
    """Run a CREATE INDEX."""
    dataset, location = context.target(statement.table)
    column, kind = spelled_column(context, dataset, statement.column), statement.kind.upper()
    kind = _KINDS.get(kind, kind)
    before = dataset.describe_indices()
    # Without a name, lance_core names the index as pylance does: another kind of index on the same column stays.
    like = {index.name for index in before if index.field_names == [column] and index.index_type.upper() == kind}
    same = [index.name for index in before if (index.name == statement.name if statement.name else index.name in like)]
    if same and statement.if_not_exists:
        return context.nothing()
    if same and not statement.replaces:
        raise DatasetExistsError(
            f"{statement.table} has the index {same[0]} already; CREATE OR REPLACE INDEX builds it again"
        )
    indexed_dataset = create_scalar_index(
        context.spark,
        dataset.uri,
        column,
        kind,
        statement.name or (same[0] if same else None),
        replace=statement.replaces,
        storage_options=location.storage_options,
        **{key: _value(value) for key, value in statement.options.items()},
    )
    names = [index.name for index in indexed_dataset.describe_indices()]
    new = [name for name in names if name not in {index.name for index in before}]
    name = statement.name or (same or new)[0]
    return context.answer("fragments_indexed long, index_name string", [(len(indexed_dataset.get_fragments()), name)])


def drop_index(context: Context, statement: records.DropIndex) -> DataFrame:
    """Run a DROP INDEX."""
    dataset, _ = context.target(statement.table)
    names = [index.name for index in dataset.describe_indices()]
    if statement.name not in names:
        if statement.if_exists:
            return context.nothing()
        raise NotFoundError(f"{statement.table} has no index {statement.name!r}; it has {names}")
    dataset.drop_index(statement.name)
    return context.nothing()


def restore(context: Context, statement: records.Restore) -> DataFrame:
    """Run a RESTORE."""
    dataset, _ = context.target(statement.table)
    if statement.timestamp is not None:
        version = dataset.version_as_of(context.sources.moment(statement.timestamp))
        restored_dataset = dataset.checkout_version((dataset.branch, version))
    else:
        restored_dataset = dataset.checkout_version(version_reference(dataset, statement.version))
        if restored_dataset.branch != dataset.branch:
            raise InvalidInputError(
                f"RESTORE {statement.table}: {statement.version} is a version of branch"
                f" {restored_dataset.branch or 'main'}, and a branch can only be restored to a version of its own"
            )
    restored_dataset.restore()
    row = (restored_dataset.version, restored_dataset.count_rows(), len(restored_dataset.get_fragments()))
    return context.answer("version long, num_rows_after_restore long, num_fragments_after_restore long", [row])


def clone(context: Context, statement: records.CloneTable) -> DataFrame:
    """Run a CREATE TABLE ... CLONE."""
    if statement.table.ref is not None:
        raise InvalidInputError(
            f"{statement.table}: a clone is a new table, not a branch: leave out @{statement.table.ref}"
        )
    target, exists = new_table(context, statement.table)
    if exists and not statement.if_not_exists:
        raise context.finder.exists_error(statement.table, target)
    if exists:
        list_table(target, is_new=False)
        return context.nothing()
    source = context.finder.open(statement.source)
    location = context.finder.find(statement.source)
    if statement.timestamp is not None:
        version = source.version_as_of(context.sources.moment(statement.timestamp))
        source = source.checkout_version((source.branch, version))
    elif statement.version is not None:
        source = source.checkout_version(version_reference(source, statement.version))
    reference = (source.branch, source.version)
    if statement.shallow:
        clone_dataset = source.shallow_clone(target.uri, reference, target.storage_options)
    else:
        clone_dataset = deep_clone(
            context.spark,
            location.uri,
            target.uri,
            version=reference,
            storage_options=location.storage_options,
            target_storage_options=target.storage_options,
        )
    list_table(target, is_new=True)
    row = (clone_dataset.count_rows(), len(clone_dataset.get_fragments()))
    return context.answer("num_rows long, num_fragments long", [row])
