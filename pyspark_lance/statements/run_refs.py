"""Runs CREATE and DROP of branches and tags, and PROMOTE BRANCH."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_core import LanceDataset
from lance_core.errors import VersionNotFoundError
from pyspark_lance.statements import records
from pyspark_lance.statements.context import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["create_branch", "create_tag", "drop_ref", "promote", "version_reference"]


def create_branch(context: Context, statement: records.CreateBranch) -> DataFrame:
    """Run a CREATE BRANCH."""
    dataset, _ = context.target(statement.table)
    if not (statement.if_not_exists and statement.name in dataset.branches.list()):
        dataset.create_branch(statement.name, _source(dataset, statement.source))
    return context.answer("name string", [(statement.name,)])


def create_tag(context: Context, statement: records.CreateTag) -> DataFrame:
    """Run a CREATE TAG."""
    dataset, _ = context.target(statement.table)
    reference = _source(dataset, statement.source)
    answer = context.answer("name string", [(statement.name,)])
    if statement.name in dataset.tags.list():
        if statement.replaces:
            dataset.tags.update(statement.name, reference)
            return answer
        if statement.if_not_exists:
            return answer
    dataset.tags.create(statement.name, reference)
    return answer


def drop_ref(context: Context, statement: records.DropRef) -> DataFrame:
    """Run a DROP BRANCH or DROP TAG."""
    dataset, _ = context.target(statement.table)
    refs: Any = dataset.tags if statement.kind == "TAG" else dataset.branches
    if not (statement.if_exists and statement.name not in refs.list()):
        refs.delete(statement.name)
    return context.answer("name string", [(statement.name,)])


def promote(context: Context, statement: records.PromoteBranch) -> DataFrame:
    """Run a PROMOTE BRANCH."""
    dataset, _ = context.target(statement.table)
    return context.answer("version long", [(dataset.branches.promote(statement.name).version,)])


def _source(dataset: LanceDataset, source: records.RefSource) -> Any:
    """The version that a branch or a tag begins with, as lance_core takes it.

    Raises:
        VersionNotFoundError: The table has no such branch, tag or version.
    """
    if source.tag is not None:
        if source.tag not in dataset.tags.list():
            raise VersionNotFoundError(f"{dataset.uri} has no tag {source.tag!r}")
        return source.tag
    if source.branch is None:
        return version_reference(dataset, source.version)
    if source.branch != "main" and source.branch not in dataset.branches.list():
        raise VersionNotFoundError(f"{dataset.uri} has no branch {source.branch!r}")
    version = None if source.version is None else int(source.version)
    source_dataset = dataset.checkout_version((None if source.branch == "main" else source.branch, version))
    return (source_dataset.branch, source_dataset.version)


def version_reference(dataset: LanceDataset, version: str | None) -> Any:
    """A version as `checkout_version` takes it: a number of this branch, or a tag."""
    if version is None:
        return None
    return (dataset.branch, int(version)) if version.isdecimal() else version
